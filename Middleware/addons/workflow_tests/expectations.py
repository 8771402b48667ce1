"""Compare a run with the expectations of its test."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from Middleware.addons.workflow_tests.sandbox import Sandbox
from Middleware.addons.workflow_tests.scripted_llm import Call, described
from Middleware.addons.workflow_tests.suites import Condition, Pattern, WorkflowTest, is_title

# Failures are read in a terminal: one prompt must not push all others off the screen.
MAX_SHOWN_LINES = 40
MAX_SHOWN_CHARACTERS = 300
NEAREST_LINES = 3
# Less like the wanted text, a line does not help.
NEAREST_CUTOFF = 0.3
# The lines that difflib shows around a change.
CONTEXT_LINES = 3
# Enough to recognise a prompt; more would hide the other failures.
PROMPT_LINES = 12


@dataclass
class Outcome:
    """The result of a run.

    Attributes:
        routes: the names of the route of a request: with its branches first, and as the log and clients have it.
        answer: the client's answer; None if the run failed before it.
        error: the message of a failure, as the client or only the log gets it.
        trace: the traceback of an error in the program.
    """

    routes: list[str] = field(default_factory=lambda: [""])
    answer: str | None = None
    error: str | None = None
    trace: str = ""


@dataclass(frozen=True)
class Failure:
    """An expectation that is not met: the JSON path of its key in the test, and lines with the actual values."""

    json_path: str
    lines: list[str]


def failures_of(test: WorkflowTest, outcome: Outcome, sandbox: Sandbox) -> list[Failure]:
    """Return the expectations that are not met.

    A missing reply or stub, or an unexpected error, is returned alone, as all other failures follow from it.
    """
    if sandbox.script.missing:
        return [Failure("replies", _missing_reply(test, sandbox.script.missing[0]))]
    if sandbox.unstubbed:
        return [Failure("stubs", list(dict.fromkeys(sandbox.unstubbed)))]
    if outcome.error is not None and test.expect.error is None:
        return [
            Failure("", [f"the run failed: {outcome.error}", *outcome.trace.splitlines(), *_nodes_that_ran(sandbox)])
        ]
    return list(_failures(test, outcome, sandbox))


def _failures(test: WorkflowTest, outcome: Outcome, sandbox: Sandbox) -> Iterator[Failure]:
    expect = test.expect
    if expect.error is not None:
        yield from _failure(
            "expect.error", ["the run did not fail"] if outcome.error is None else broken(expect.error, [outcome.error])
        )
    if expect.answer is not None:
        yield from _failure("expect.answer", broken(expect.answer, [outcome.answer or ""]))
    if expect.route is not None:
        yield from _failure("expect.route", broken(expect.route, outcome.routes))
    if expect.order is not None:
        yield from _failure("expect.order", _order(expect.order, sandbox))
    yield from _output_failures(test, sandbox)
    yield from _prompt_failures(test, sandbox)
    yield from _endpoint_failures(test, sandbox)
    yield from _file_failures(test, sandbox)


def _failure(json_path: str, lines: list[str]) -> Iterator[Failure]:
    if lines:
        yield Failure(json_path, lines)


# -- calls -------------------------------------------------------------------------------------------------------------


def _missing_reply(test: WorkflowTest, call: Call) -> list[str]:
    answered = list(dict.fromkeys(rule.node for rule in test.rules if rule.node))
    known = f"replies are there for: {', '.join(answered)}" if answered else "the test has no reply for any node"
    lines = [f"no reply for {described(call)}; {known}"]
    if call.system != call.prompt and call.system:
        lines += ["its system prompt:", *_block(call.system)]
    return [*lines, "its prompt:", *_block(call.prompt)]


def _prompt_failures(test: WorkflowTest, sandbox: Sandbox) -> Iterator[Failure]:
    for name, pattern in test.expect.prompts.items():
        calls = [call for call in sandbox.llm.calls if is_title(name, call.workflow, call.node)]
        json_path = f"expect.prompts[{name!r}]"
        if not calls:
            yield Failure(json_path, ["the node called no LLM", *_nodes_that_ran(sandbox)])
            continue
        yield from _failure(f"{json_path}.system", broken(pattern.system, [call.system for call in calls]))
        yield from _failure(f"{json_path}.prompt", broken(pattern.prompt, [call.prompt for call in calls]))


def _endpoint_failures(test: WorkflowTest, sandbox: Sandbox) -> Iterator[Failure]:
    for name, endpoint in test.expect.endpoints.items():
        found, json_path = _endpoints_of(name, sandbox), f"expect.endpoints[{name!r}]"
        if not found:
            yield Failure(json_path, ["no node of that title ran with an endpoint", *_nodes_that_ran(sandbox)])
        elif found != [endpoint]:
            yield Failure(json_path, [f"expected {_quoted(endpoint)}, there was {', '.join(map(_quoted, found))}"])


def _endpoints_of(name: str, sandbox: Sandbox) -> list[str]:
    """Return the endpoints that answered a node's calls; if it made none, those that it would have called."""
    calls = [call for call in sandbox.llm.calls if is_title(name, call.workflow, call.node)]
    if calls:
        return list(dict.fromkeys(call.endpoint for call in calls if call.answered))
    return list(
        dict.fromkeys(node.endpoint for node in sandbox.recorder.nodes() if node.is_meant_by(name) and node.endpoint)
    )


# -- nodes -------------------------------------------------------------------------------------------------------------


def _output_failures(test: WorkflowTest, sandbox: Sandbox) -> Iterator[Failure]:
    nodes = sandbox.recorder.nodes()
    for name, pattern in test.expect.outputs.items():
        outputs = [node.output for node in nodes if node.is_meant_by(name) and node.output is not None]
        json_path = f"expect.outputs[{name!r}]"
        if outputs:
            yield from _failure(json_path, broken(pattern, outputs))
        else:
            yield Failure(json_path, ["the node delivered nothing", *_nodes_that_ran(sandbox)])


def _order(expected: Sequence[str], sandbox: Sandbox) -> list[str]:
    nodes = sandbox.recorder.nodes()
    if len(nodes) == len(expected) and all(node.is_meant_by(name) for node, name in zip(nodes, expected, strict=True)):
        return []
    bare = {node.title: node.name for node in nodes}
    wanted = [bare.get(name, name) for name in expected]
    lines = list(difflib.unified_diff(wanted, [node.name for node in nodes], n=len(nodes) + len(wanted), lineterm=""))
    return ["expected (-) and ran (+), each node before those that it starts:", *(f"  {line}" for line in lines[3:])]


def _nodes_that_ran(sandbox: Sandbox) -> list[str]:
    nodes = sandbox.recorder.nodes()
    return ["nodes that ran:", *_names(node.name for node in nodes)] if nodes else ["no node ran"]


# -- files -------------------------------------------------------------------------------------------------------------


def _file_failures(test: WorkflowTest, sandbox: Sandbox) -> Iterator[Failure]:
    for path, pattern in test.expect.files.items():
        text, json_path = sandbox.text_of_file(path), f"expect.files[{path!r}]"
        if text is not None:
            yield from _failure(json_path, broken(pattern, [text]))
            continue
        names = sandbox.file_names()
        existing = ["files that there are:", *_names(names)] if names else []
        yield Failure(json_path, ["there is no such file", *existing])


def _names(names: Iterable[str]) -> list[str]:
    return _block("\n".join(names), MAX_SHOWN_LINES)


def _block(text: str, lines: int = PROMPT_LINES) -> list[str]:
    return [f"  {line}" for line in _clipped(text, lines)]


# -- patterns ----------------------------------------------------------------------------------------------------------


def broken(pattern: Pattern, values: Sequence[str]) -> list[str]:
    """Return lines that explain why ``values`` do not match; empty if they do.

    ``lacks`` must be true for each value, the other conditions together for at least one.
    """
    lines: list[str] = []
    for condition in pattern:
        if condition.operation == "lacks":
            lines += next((_explain(condition, value) for value in values if not condition.holds(value)), [])
    wanted = [condition for condition in pattern if condition.operation != "lacks"]
    # The failure is explained for the value that comes nearest.
    best = max(values, key=lambda value: sum(condition.holds(value) for condition in wanted), default="")
    for condition in wanted:
        if not condition.holds(best):
            lines += _explain(condition, best)
    return lines


def _explain(condition: Condition, value: str) -> list[str]:
    """Return lines that explain why the condition is false for ``value``."""
    expected = _quoted(condition.text)
    if condition.operation == "equals":
        return ["expected exactly this text (-), there was (+):", *_diff(condition.text, value)]
    if condition.operation == "lacks":
        with_it = [line for line in value.splitlines() if condition.text in line]
        return [f"expected without {expected}; there was:", *_block("\n".join(with_it or [value]), PROMPT_LINES)]
    wanted = f"expected to {'contain' if condition.operation == 'contains' else 'match'} {expected}"
    if not value:
        return [f"{wanted}; the text is empty"]
    lines = value.splitlines()
    # In a short text, the place is found at a glance.
    near = (
        difflib.get_close_matches(condition.text, lines, NEAREST_LINES, NEAREST_CUTOFF)
        if condition.operation == "contains" and len(lines) > PROMPT_LINES
        else []
    )
    if near:
        return [f"{wanted}; the nearest lines there:", *_block("\n".join(near))]
    return [f"{wanted}; there was:", *_block(value, MAX_SHOWN_LINES)]


def _diff(expected: str, value: str) -> list[str]:
    before, after = expected.splitlines(), value.splitlines()
    # Only the line ends differ, which a diff of lines would not show.
    if before == after:
        return [f"- {_quoted(expected)}", f"+ {_quoted(value)}"]
    lines = list(difflib.unified_diff(before, after, lineterm=""))[2:]
    whole = len(before) <= CONTEXT_LINES and len(after) <= CONTEXT_LINES
    # Line numbers are only useful where lines are left out.
    return _clipped("\n".join(lines[1:] if whole else lines), MAX_SHOWN_LINES)


def _quoted(text: str) -> str:
    """Return a string in quotes, on one line, cut if it is long."""
    quoted = repr(text[:MAX_SHOWN_CHARACTERS])
    return quoted if len(text) <= MAX_SHOWN_CHARACTERS else f"{quoted}... ({len(text)} characters)"


def _clipped(text: str, lines: int) -> list[str]:
    """Return the first lines of a string, each cut if it is long."""
    found = text.splitlines() or [""]
    cut = [line if len(line) <= MAX_SHOWN_CHARACTERS else f"{line[:MAX_SHOWN_CHARACTERS]}..." for line in found[:lines]]
    return cut if len(found) <= lines else [*cut, f"... and {len(found) - lines} more lines"]
