"""Checks of workflows that run each other: endless loops, answers that go nowhere, inputs that no node passes."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from Middleware.addons.check.findings import Finding
from Middleware.addons.check.flow import REPLACED_BY, messages_first, missing_inputs, passed
from Middleware.addons.check.lookups import Lookups
from Middleware.addons.check.node_checks import NodeView, child_folder, child_names, child_workflows, texts_in, views_of
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.node import is_responder
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.utilities.sensitive_logging_utils import SECRET_KEYS
from Middleware.utilities.text_utils import counted
from Middleware.workflows.managers.workflow_manager import MAX_NESTING

# A held lock ends the run, so the nodes behind one need not run.
_MAY_END_THE_RUN = "WorkflowLock"


# -- loops -------------------------------------------------------------------------------------------------------------


def check_loop(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if the node always leads back to its own workflow. A loop has one, in its first file."""
    if view.runs_as != "CustomWorkflow" or not _always_runs(view.loaded, view.index):
        return
    circle = _circle(view, lookups)
    if circle and view.loaded.display == min(loaded.display for loaded in circle):
        names = " -> ".join(_short(loaded) for loaded in (*circle, view.loaded))
        yield view.finding(
            "error",
            "workflowName",
            f"the workflow runs itself again and again, without a condition: {names}",
            expected="a ConditionalCustomWorkflow that ends the loop",
        )


def _always_runs(loaded: LoadedWorkflow, index: int) -> bool:
    return not any(node.get("type") == _MAY_END_THE_RUN for node in loaded.nodes[:index])


def _circle(view: NodeView, lookups: Lookups) -> list[LoadedWorkflow]:
    """Return the workflows on the way from a node back to its workflow, which is the first; none without such a way."""
    waiting = [[view.loaded, following] for following in child_workflows(view, lookups) or ()]
    known: set[str] = set()
    while waiting:
        way = waiting.pop(0)
        if way[-1].display == view.loaded.display:
            return way[:-1]
        if way[-1].display not in known and len(way) <= MAX_NESTING:
            known.add(way[-1].display)
            waiting += [
                [*way, following]
                for following in lookups.always_run_by(way[-1], lambda loaded: _always_run_by(loaded, lookups))
            ]
    return []


def _always_run_by(loaded: LoadedWorkflow, lookups: Lookups) -> Iterator[LoadedWorkflow]:
    for view in views_of(loaded):
        if view.runs_as == "CustomWorkflow" and _always_runs(loaded, view.index):
            yield from child_workflows(view, lookups) or ()


def _short(loaded: LoadedWorkflow) -> str:
    return loaded.display.removeprefix("Workflows/").removesuffix(".json")


# -- who answers -------------------------------------------------------------------------------------------------------


def check_child_answers(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if only a node inside a child is marked to answer, and the child's result goes nowhere."""
    nodes = view.loaded.nodes
    is_last = view.index == len(nodes) - 1
    if view.runs_as not in ("CustomWorkflow", "ConditionalCustomWorkflow") or is_last or any(map(is_responder, nodes)):
        return
    marked = next(
        (loaded for loaded in child_workflows(view, lookups) or () if any(map(is_responder, loaded.nodes))), None
    )
    if marked is None or _is_used(view):
        return
    last = NodeView(view.loaded, len(nodes) - 1, nodes[-1], "Standard", {})
    yield view.finding(
        "warning",
        "",
        f"a node of the child workflow {quoted(_short(marked))} is marked to answer, but "
        f"no node of this workflow is, so that {last.label} answers and the child's text goes nowhere",
        expected='"returnToUser": true in the node that runs the child',
    )


def _is_used(view: NodeView) -> bool:
    name = f"agent{view.index + 1}Output"
    everything = [view.loaded.variables, *view.loaded.nodes[view.index + 1 :]]
    return any(re.search(rf"\b{name}\b", text) for one in everything for _, text, _ in texts_in(one, "", SECRET_KEYS))


# -- inputs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """A node that runs a workflow.

    Attributes:
        path: the JSON path of what names the workflow.
        missing: the inputs that the workflow uses above those that the node passes, each with its node and JSON path.
    """

    view: NodeView
    path: str
    missing: Mapping[int, tuple[NodeView, str]]


class Inputs:
    """The inputs that workflows use, and those that their callers pass."""

    def __init__(self) -> None:
        # By file: its callers, each once, whichever user reaches it.
        self._calls: dict[str, dict[tuple[str, int], _Call]] = defaultdict(dict)
        self._named: set[str] = set()

    def add(self, loaded: LoadedWorkflow, lookups: Lookups) -> None:
        """Add a workflow as a caller of the workflows that it runs."""
        for view in (one for one in views_of(loaded) if not one.is_misread):
            folder = child_folder(view)
            # Nodes without this key pass inputs of their own.
            count = messages_first(view) + len(passed(view)) if "scoped_variables" in view.keys else math.inf
            for path, name in child_names(view) if folder is not None else ():
                child_loaded = None if "{" in name else lookups.child(name, folder or None, loaded)
                if child_loaded is not None:
                    missing = missing_inputs(child_loaded, count, lookups, _replaced_prompts(view))
                    self._calls[child_loaded.display].setdefault(
                        (loaded.display, view.index), _Call(view, path, missing)
                    )

    def named(self, names: Iterable[str]) -> None:
        """Add names in settings: the program itself runs these workflows, and passes inputs to some of them."""
        self._named.update(name.rpartition("/")[2].casefold() for name in names)

    def findings(self) -> Iterator[Finding]:
        """Yield the inputs that no caller passes, where they are used, and those that some pass, at the others."""
        for display, calls in self._calls.items():
            stem = display.rpartition("/")[2].removesuffix(".json").casefold()
            everywhere = set.intersection(*(set(one.missing) for one in calls.values()))
            everywhere = set() if stem in self._named else everywhere
            yield from _passed_by_none([*calls.values()], everywhere)
            for call in calls.values():
                missing = {number: use for number, use in call.missing.items() if number not in everywhere}
                if missing:
                    yield _passed_by_others(call, missing)


def _passed_by_none(calls: Sequence[_Call], numbers: Collection[int]) -> Iterator[Finding]:
    most = max(len(passed(call.view)) + messages_first(call.view) for call in calls)
    for number in sorted(numbers):
        view, path = calls[0].missing[number]
        given = f"pass {most} at most" if most else "pass none"
        entries = "one entry" if number == 1 else f"{number} entries"
        yield view.finding(
            "warning",
            "",
            f"{{agent{number}Input}} is never filled in: the nodes that run this workflow {given}",
            path=path,
            expected=f"'scoped_variables' with {entries} in the node that runs it",
        )


def _passed_by_others(call: _Call, missing: Mapping[int, tuple[NodeView, str]]) -> Finding:
    view, count = call.view, len(passed(call.view))
    user = next(iter(missing.values()))[0]
    where = child(view.path, "scoped_variables") if "scoped_variables" in view.node else call.path
    names = ", ".join(f"{{agent{number}Input}}" for number in sorted(missing))
    return view.finding(
        "warning",
        "",
        f"{names} in {user.label} of workflow {quoted(_short(user.loaded))} "
        f"{'is' if len(missing) == 1 else 'are'} not filled in when this node runs it: it passes "
        f"{counted(count, 'input') if count else 'no inputs'}",
        path=where,
        expected="'scoped_variables' with " + counted(max(missing) - messages_first(view), "entry", "entries"),
    )


def check_request_inputs(loaded: LoadedWorkflow, lookups: Lookups, caller: str = "a request") -> Iterator[Finding]:
    """Yield a finding for each input of a workflow that ``caller`` runs, which passes none."""
    for number, (view, path) in missing_inputs(loaded, 0, lookups).items():
        yield view.finding(
            "warning",
            "",
            f"{{agent{number}Input}} is never filled in where {caller} runs this "
            "workflow: only nodes that run a workflow pass inputs",
            path=path,
            expected="a variable of the conversation, such as {chat_user_prompt_last_one}",
        )


def _replaced_prompts(view: NodeView) -> list[str]:
    """Return the prompts that a node replaces in its child, for some value at least."""
    routes = view.node.get("routeOverrides")
    sources = [view.node, *(routes.values() if isinstance(routes, Mapping) else ())]
    return [
        key
        for key, names in REPLACED_BY.items()
        if any(source.get(name) for source in sources if isinstance(source, Mapping) for name in names)
    ]
