"""Checks of workflows that run each other: endless loops, answers that go nowhere, inputs that no node passes."""
from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from Middleware.cli.check.findings import Finding
from Middleware.cli.check.lookups import Lookups
from Middleware.cli.check.node_checks import NodeView, child_names, child_workflows, texts_in
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.keys.node import NODE, is_responder
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.utilities.sensitive_logging_utils import SECRET_KEYS
from Middleware.workflows.handlers.registry import node_types
from Middleware.workflows.managers.workflow_manager import MAX_NESTING

# A held lock ends the run, so the nodes behind one need not run.
_MAY_END_THE_RUN = "WorkflowLock"
_INPUT = re.compile(r"\{\{?\s*agent([1-9][0-9]{0,3})Input\b")
# In a Jinja2 statement, or with a filter or a test, a missing input may be what the author expects.
_OPTIONAL = re.compile(r"\{%[^%]*agent([1-9][0-9]{0,3})Input\b|"
                       r"agent([1-9][0-9]{0,3})Input\s*(?:\||is\b|or\b|if\b|and\b)|(?:\bif|\bor|\band|\bnot)\s+agent([1-9][0-9]{0,3})Input\b")


# -- loops -------------------------------------------------------------------------------------------------------------

def check_loop(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if the node always leads back to its own workflow. A loop has one, in its first file."""
    if view.runs_as != "CustomWorkflow" or not _always_runs(view.loaded, view.index):
        return
    circle = _circle(view, lookups)
    if circle and view.loaded.display == min(loaded.display for loaded in circle):
        names = " -> ".join(_short(loaded) for loaded in (*circle, view.loaded))
        yield view.finding("error", "workflowName", "the workflow runs itself again and again, without a condition: "
                           f"{names}", expected="a ConditionalCustomWorkflow that ends the loop")


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
            waiting += [[*way, following] for following in lookups.always_run_by(
                way[-1], lambda loaded: _always_run_by(loaded, lookups))]
    return []


def _always_run_by(loaded: LoadedWorkflow, lookups: Lookups) -> Iterator[LoadedWorkflow]:
    for view in calling_views(loaded):
        if view.runs_as == "CustomWorkflow" and _always_runs(loaded, view.index):
            yield from child_workflows(view, lookups) or ()


def calling_views(loaded: LoadedWorkflow) -> Iterator[NodeView]:
    """Yield the nodes of a workflow that may run another one."""
    for index, node in enumerate(loaded.nodes):
        node_type = node.get("type", "Standard")
        if isinstance(node_type, str) and node_type in node_types():
            view = NodeView(loaded, index, node, node_type, node_types()[node_type].TABLES[node_type])
            if any(True for _ in child_names(view)):
                yield view


def _short(loaded: LoadedWorkflow) -> str:
    return loaded.display.removeprefix("Workflows/").removesuffix(".json")


# -- who answers -------------------------------------------------------------------------------------------------------

def check_child_answers(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if only a node inside a child is marked to answer, and the child's result goes nowhere."""
    nodes = view.loaded.nodes
    is_last = view.index == len(nodes) - 1
    if view.runs_as not in ("CustomWorkflow", "ConditionalCustomWorkflow") or is_last or any(map(is_responder, nodes)):
        return
    marked = next((loaded for loaded in child_workflows(view, lookups) or () if any(map(is_responder, loaded.nodes))),
                  None)
    if marked is None or _is_used(view):
        return
    last = NodeView(view.loaded, len(nodes) - 1, nodes[-1], "Standard", {})
    yield view.finding("warning", "", f"a node of the child workflow {quoted(_short(marked))} is marked to answer, but "
                       f"no node of this workflow is, so that {last.label} answers and the child's text goes nowhere",
                       expected='"returnToUser": true in the node that runs the child')


def _is_used(view: NodeView) -> bool:
    name = f"agent{view.index + 1}Output"
    everything = [view.loaded.variables, *view.loaded.nodes[view.index + 1:]]
    return any(re.search(rf"\b{name}\b", text) for one in everything for _, text, _ in texts_in(one, "", SECRET_KEYS))


# -- inputs ------------------------------------------------------------------------------------------------------------

@dataclass
class Inputs:
    """The inputs that workflows use, and how many their callers pass.

    Attributes:
        passed: by file, the most that one of its callers passes.
        by_name: the same by the name of the workflow, where only a run shows which file it is.
    """

    passed: dict[str, float] = field(default_factory=dict)
    by_name: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _used: dict[str, LoadedWorkflow] = field(default_factory=dict)

    def add(self, loaded: LoadedWorkflow, lookups: Lookups) -> None:
        """Add a workflow, with the workflows that it runs."""
        self._used[loaded.display] = loaded
        for view in calling_views(loaded):
            count = _passed_by(view)
            children = child_workflows(view, lookups)
            for child in children or ():
                self.passed[child.display] = max(self.passed.get(child.display, 0), count)
            if children is None:
                self.called((name for _, name in child_names(view)), count)

    def called(self, names: Iterable[str], count: float = math.inf) -> None:
        """Add callers of workflows of which only the names are known."""
        for name in names:
            stem = name.rpartition("/")[2].casefold()
            self.by_name[stem] = max(self.by_name[stem], count)

    def findings(self) -> Iterator[Finding]:
        """Yield the inputs that no caller passes, each once. A workflow without a caller may be meant for scripts."""
        for display, loaded in self._used.items():
            if display not in self.passed:
                continue
            stem = display.rpartition("/")[2].removesuffix(".json").casefold()
            most = max(self.passed[display], self.by_name[stem])
            named: set[int] = set()
            for view, path, number in _used_inputs(loaded):
                if number > most and number not in named:
                    named.add(number)
                    given = f"pass {most:.0f} at most" if most else "pass none"
                    entries = "one entry" if number == 1 else f"{number} entries"
                    yield view.finding("warning", "", f"{{agent{number}Input}} is never filled in: the nodes that run "
                                       f"this workflow {given}", path=path,
                                       expected=f"'scoped_variables' with {entries} in the node that runs it")


def _passed_by(view: NodeView) -> float:
    return _messages_first(view) + len(_passed(view)) if "scoped_variables" in view.keys else math.inf


def _passed(view: NodeView) -> Sequence[object]:
    values = NODE.value(view.node, "scoped_variables") if "scoped_variables" in view.keys else None
    return values if isinstance(values, (list, tuple)) else () if values is None else (values,)


def _messages_first(view: NodeView) -> int:
    # The first input of this type's children is the block of messages.
    return int(view.runs_as == "ConversationChunkProcessor")


def passed_text(view: NodeView, number: int) -> object:
    """Return the text of a node that becomes the input ``number`` of the workflows it runs; None if there is none."""
    index = number - 1 - _messages_first(view)
    values = _passed(view)
    return values[index] if 0 <= index < len(values) else None


def _used_inputs(loaded: LoadedWorkflow) -> Iterator[tuple[NodeView, str, int]]:
    for index, node in enumerate(loaded.nodes):
        view = NodeView(loaded, index, node, "Standard", {})
        for path, text, _ in texts_in(node, view.path, SECRET_KEYS):
            if "Input" not in text:
                continue
            optional = {int(number) for found in _OPTIONAL.findall(text) for number in found if number}
            numbers = [int(number) for number in _INPUT.findall(text)]
            # A child fills in such a text with its own inputs.
            if not path.rpartition(".")[2].lower().endswith("promptoverride"):
                yield from ((view, path, number) for number in numbers if number not in optional)
