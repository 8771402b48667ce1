"""Judges a run by what its test expects."""
from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from Middleware.cli.workflow_tests.outside import missing_stub
from Middleware.cli.workflow_tests.patterns import MAX_SHOWN_LINES, broken, clipped, shown
from Middleware.cli.workflow_tests.sandbox import Sandbox
from Middleware.cli.workflow_tests.scripted_llm import Call, described
from Middleware.cli.workflow_tests.suites import WorkflowTest
from Middleware.cli.workflow_tests.titles import is_title

PROMPT_LINES = 12


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        route: what was chosen for a request, as the log names it.
        answer: what the client gets; None if the run failed before.
        error: what the client, or only the log, is told of a failure; for failures of the program, what they are.
        trace: where the program failed.
    """

    route: str = ""
    answer: str | None = None
    error: str | None = None
    trace: str = ""


@dataclass(frozen=True)
class Failure:
    """Something that does not hold. ``place`` is the key of the test that demands it; ``lines`` say what was there."""

    place: str
    lines: list[str]


def unmet(test: WorkflowTest, outcome: Outcome, sandbox: Sandbox) -> list[Failure]:
    """Everything that does not hold.

    A missing reply or stub, or a failure that is not expected, comes alone, as all else follows from it.
    """
    if sandbox.script.missing:
        return [Failure("replies", _missing_reply(test, sandbox.script.missing[0]))]
    if sandbox.unstubbed:
        return [Failure("stubs", [missing_stub(name) for name in dict.fromkeys(sandbox.unstubbed)])]
    if outcome.error is not None and test.expect.error is None:
        return [Failure("", [f"the run failed: {outcome.error}", *outcome.trace.splitlines(),
                             *_nodes_that_ran(sandbox)])]
    return list(_unmet(test, outcome, sandbox))


def _unmet(test: WorkflowTest, outcome: Outcome, sandbox: Sandbox) -> Iterator[Failure]:
    expect = test.expect
    if expect.error is not None:
        yield from _failure("expect.error", ["the run did not fail"] if outcome.error is None
                            else broken(expect.error, [outcome.error]))
    if expect.answer is not None:
        yield from _failure("expect.answer", broken(expect.answer, [outcome.answer or ""]))
    if expect.route is not None:
        yield from _failure("expect.route", broken(expect.route, [outcome.route]))
    if expect.order is not None:
        yield from _failure("expect.order", _order(expect.order, sandbox))
    yield from _unmet_outputs(test, sandbox)
    yield from _unmet_prompts(test, sandbox)
    yield from _unmet_endpoints(test, sandbox)
    yield from _unmet_files(test, sandbox)


def _failure(place: str, lines: list[str]) -> Iterator[Failure]:
    if lines:
        yield Failure(place, lines)


# -- calls -------------------------------------------------------------------------------------------------------------

def _missing_reply(test: WorkflowTest, call: Call) -> list[str]:
    answered = list(dict.fromkeys(rule.node for rule in test.rules if rule.node))
    known = f"replies are there for: {', '.join(answered)}" if answered else "the test has no reply for any node"
    lines = [f"no reply for {described(call)}; {known}"]
    if call.system != call.prompt and call.system:
        lines += ["its system prompt:", *_block(call.system)]
    return [*lines, "its prompt:", *_block(call.prompt)]


def _unmet_prompts(test: WorkflowTest, sandbox: Sandbox) -> Iterator[Failure]:
    for name, pattern in test.expect.prompts.items():
        calls = [call for call in sandbox.transport.calls if is_title(name, call.workflow, call.node)]
        place = f"expect.prompts[{name!r}]"
        if not calls:
            yield Failure(place, ["the node called no LLM", *_nodes_that_ran(sandbox)])
            continue
        yield from _failure(f"{place}.system", broken(pattern.system, [call.system for call in calls]))
        yield from _failure(f"{place}.prompt", broken(pattern.prompt, [call.prompt for call in calls]))


def _unmet_endpoints(test: WorkflowTest, sandbox: Sandbox) -> Iterator[Failure]:
    for name, endpoint in test.expect.endpoints.items():
        found, place = _endpoints_of(name, sandbox), f"expect.endpoints[{name!r}]"
        if not found:
            yield Failure(place, ["no node of that title ran with an endpoint", *_nodes_that_ran(sandbox)])
        elif found != [endpoint]:
            yield Failure(place, [f"expected {shown(endpoint)}, there was {', '.join(map(shown, found))}"])


def _endpoints_of(name: str, sandbox: Sandbox) -> list[str]:
    """The endpoints that answered a node; those that would have, if it made no call."""
    calls = [call for call in sandbox.transport.calls if is_title(name, call.workflow, call.node)]
    if calls:
        return list(dict.fromkeys(call.endpoint for call in calls if call.answered))
    return list(dict.fromkeys(node.endpoint for node in sandbox.recorder.nodes()
                              if node.is_meant_by(name) and node.endpoint))


# -- nodes -------------------------------------------------------------------------------------------------------------

def _unmet_outputs(test: WorkflowTest, sandbox: Sandbox) -> Iterator[Failure]:
    nodes = sandbox.recorder.nodes()
    for name, pattern in test.expect.outputs.items():
        outputs = [node.output for node in nodes if node.is_meant_by(name) and node.output is not None]
        place = f"expect.outputs[{name!r}]"
        if outputs:
            yield from _failure(place, broken(pattern, outputs))
        else:
            yield Failure(place, ["the node delivered nothing", *_nodes_that_ran(sandbox)])


def _order(expected: Sequence[str], sandbox: Sandbox) -> list[str]:
    nodes = sandbox.recorder.nodes()
    if len(nodes) == len(expected) and all(node.is_meant_by(name)
                                           for node, name in zip(nodes, expected, strict=True)):
        return []
    bare = {node.title: node.name for node in nodes}
    wanted = [bare.get(name, name) for name in expected]
    lines = list(difflib.unified_diff(wanted, [node.name for node in nodes], n=len(nodes) + len(wanted), lineterm=""))
    return ["expected (-) and ran (+), each node before those that it starts:", *(f"  {line}" for line in lines[3:])]


def _nodes_that_ran(sandbox: Sandbox) -> list[str]:
    nodes = sandbox.recorder.nodes()
    return ["nodes that ran:", *_names(node.name for node in nodes)] if nodes else ["no node ran"]


# -- files -------------------------------------------------------------------------------------------------------------

def _unmet_files(test: WorkflowTest, sandbox: Sandbox) -> Iterator[Failure]:
    for path, pattern in test.expect.files.items():
        text, place = sandbox.text_of_file(path), f"expect.files[{path!r}]"
        if text is not None:
            yield from _failure(place, broken(pattern, [text]))
            continue
        names = sandbox.file_names()
        yield Failure(place, ["there is no such file", *(["files that there are:", *_names(names)] if names else [])])


def _names(names: Iterable[str]) -> list[str]:
    return _block("\n".join(names), MAX_SHOWN_LINES)


def _block(text: str, lines: int = PROMPT_LINES) -> list[str]:
    return [f"  {line}" for line in clipped(text, lines)]
