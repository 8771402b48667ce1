"""Checks of workflows that run each other: endless loops, answers that go nowhere, inputs that no node passes."""
from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from Middleware.cli.check.findings import Finding
from Middleware.cli.check.lookups import Lookups
from Middleware.cli.check.node_checks import NodeView, child_folder, child_names, child_workflows, texts_in
from Middleware.cli.check.text_checks import variables_in
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.node import NODE, is_responder
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.utilities.sensitive_logging_utils import SECRET_KEYS
from Middleware.utilities.text_utils import counted
from Middleware.workflows.handlers.registry import node_types
from Middleware.workflows.managers.workflow_manager import MAX_NESTING

# A held lock ends the run, so the nodes behind one need not run.
_MAY_END_THE_RUN = "WorkflowLock"
_INPUT = re.compile(r"(?<!\{)\{agent([1-9][0-9]{0,3})Input\b")
# The prompts of a child that its caller may replace, with the keys of the caller.
_REPLACED_BY = {"systemPrompt": ("firstNodeSystemPromptOverride", "systemPromptOverride"),
                "prompt": ("firstNodePromptOverride", "promptOverride")}
_NAME = re.compile(r"(?<!\{)\{([^\W\d]\w{0,99})")
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
        for view in calling_views(loaded):
            folder = child_folder(view)
            # Nodes without this key pass inputs of their own.
            count = _messages_first(view) + len(_passed(view)) if "scoped_variables" in view.keys else math.inf
            for path, name in child_names(view) if folder is not None else ():
                child_loaded = None if "{" in name else lookups.child(name, folder or None, loaded)
                if child_loaded is not None:
                    missing = _missing_inputs(child_loaded, count, lookups, _replaced_prompts(view))
                    self._calls[child_loaded.display].setdefault((loaded.display, view.index),
                                                                 _Call(view, path, missing))

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
    most = max(len(_passed(call.view)) + _messages_first(call.view) for call in calls)
    for number in sorted(numbers):
        view, path = calls[0].missing[number]
        given = f"pass {most} at most" if most else "pass none"
        entries = "one entry" if number == 1 else f"{number} entries"
        yield view.finding("warning", "", f"{{agent{number}Input}} is never filled in: the nodes that run this "
                           f"workflow {given}", path=path,
                           expected=f"'scoped_variables' with {entries} in the node that runs it")


def _passed_by_others(call: _Call, missing: Mapping[int, tuple[NodeView, str]]) -> Finding:
    view, passed = call.view, len(_passed(call.view))
    user = next(iter(missing.values()))[0]
    where = child(view.path, "scoped_variables") if "scoped_variables" in view.node else call.path
    names = ", ".join(f"{{agent{number}Input}}" for number in sorted(missing))
    return view.finding("warning", "", f"{names} in {user.label} of workflow {quoted(_short(user.loaded))} "
                        f"{'is' if len(missing) == 1 else 'are'} not filled in when this node runs it: it passes "
                        f"{counted(passed, 'input') if passed else 'no inputs'}", path=where,
                        expected="'scoped_variables' with "
                                 + counted(max(missing) - _messages_first(view), "entry", "entries"))


def check_request_inputs(loaded: LoadedWorkflow, lookups: Lookups, caller: str = "a request") -> Iterator[Finding]:
    """Yield a finding for each input of a workflow that ``caller`` runs, which passes none."""
    for number, (view, path) in _missing_inputs(loaded, 0, lookups).items():
        yield view.finding("warning", "", f"{{agent{number}Input}} is never filled in where {caller} runs this "
                           "workflow: only nodes that run a workflow pass inputs", path=path,
                           expected="a variable of the conversation, such as {chat_user_prompt_last_one}")


def _missing_inputs(loaded: LoadedWorkflow, count: float, lookups: Lookups,
                    replaced: Collection[str] = ()) -> dict[int, tuple[NodeView, str]]:
    """Return the inputs above ``count`` that a workflow uses, each with the first node and JSON path that does.

    ``replaced``: the prompts that the caller replaces in the first node with prompts.
    """
    found: dict[int, tuple[NodeView, str]] = {}
    own = next((index for index, node in enumerate(loaded.nodes) if any(key in node for key in _REPLACED_BY)), -1)
    for view, path, number in _used_inputs(loaded):
        is_replaced = view.index == own and path in [child(view.path, key) for key in replaced]
        # A key of the file, or of the user, with the name of an input is what counts where none is passed.
        name = f"agent{number}Input"
        if number > count and not is_replaced and name not in {**loaded.variables, **lookups.user_variables()}:
            found.setdefault(number, (view, path))
    return found


def _replaced_prompts(view: NodeView) -> list[str]:
    """Return the prompts that a node replaces in its child, for some value at least."""
    routes = view.node.get("routeOverrides")
    sources = [view.node, *(routes.values() if isinstance(routes, Mapping) else ())]
    return [key for key, names in _REPLACED_BY.items() if any(
        source.get(name) for source in sources if isinstance(source, Mapping) for name in names)]


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
    """Yield the inputs that texts of a workflow cannot do without: the node, the JSON path of the text, the number."""
    for index, node in enumerate(loaded.nodes):
        view = NodeView(loaded, index, node, "Standard", {})
        jinja = NODE.flag(node, "jinja2")
        for path, text, _ in texts_in(node, view.path, SECRET_KEYS):
            # A child fills in such a text with its own inputs.
            if "{" in text and not path.rpartition(".")[2].lower().endswith("promptoverride"):
                numbers = _inputs_of_template(text) if jinja else _inputs_of_text(text, loaded.variables)
                yield from ((view, path, number) for number in numbers)


def _inputs_of_text(text: str, variables: Mapping[str, object]) -> list[int]:
    # A variable of the file may itself hold variables, one level deep.
    own = (variables.get(name) for name in _NAME.findall(text))
    return [int(number) for one in (text, *own) if isinstance(one, str) for number in _INPUT.findall(one)]


def _inputs_of_template(text: str) -> list[int]:
    optional = {number for found in _OPTIONAL.findall(text) for number in found}
    names = (re.fullmatch(r"agent([1-9][0-9]{0,3})Input", name) for name in variables_in(text, jinja=True))
    return [int(name[1]) for name in names if name is not None and name[1] not in optional]
