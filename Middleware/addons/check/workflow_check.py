"""The check of a whole workflow file against the declared node types and the files that it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from Middleware.addons.check.file_check import HOMES
from Middleware.addons.check.findings import Finding, workflow_name
from Middleware.addons.check.flow import (
    CHOICES,
    DEFAULT_CONTENT,
    Flow,
    Value,
    check_option_injection,
    check_request_inputs,
    check_value_safe,
)
from Middleware.addons.check.lookups import Lookups, Problem, path_of
from Middleware.addons.check.memory_check import check_memory, check_memory_node
from Middleware.addons.check.node_check import (
    NodeView,
    check_answer_choices,
    check_curl_node,
    check_response_limit,
    check_targets,
    child_workflows,
    keys_of,
    nearest_type,
    views_of,
)
from Middleware.addons.check.prompt_check import check_block_size, check_relative_times
from Middleware.addons.check.text_check import (
    Names,
    TextProblem,
    TextRules,
    check_condition,
    check_early_text,
    check_handed_down_text,
    check_jinja,
    check_names,
    check_plain_value,
    check_text,
)
from Middleware.utilities.config.check import KeyCheck, Severity, quoted, shortened
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.node import FLOAT_FIELDS, NODE, NUMERIC_FIELDS, is_responder
from Middleware.utilities.config.users import DEFAULT_WORKFLOW
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.utilities.json_data import strings_in
from Middleware.utilities.sensitive_logging_utils import is_secret_name
from Middleware.utilities.templates.substitution import has_braces
from Middleware.utilities.text_utils import nearest
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.registry import node_types
from Middleware.workflows.managers.workflow_manager import MAX_NESTING
from Middleware.workflows.processors.workflows_processor import find_responder

# Keys whose texts a child workflow fills in again.
HANDED_DOWN = frozenset(
    {
        "firstNodeSystemPromptOverride",
        "systemPromptOverride",
        "firstNodePromptOverride",
        "promptOverride",
        "routeOverrides",
    }
)
NAMES_OF_NODES = frozenset({"type", "title", "agentName", "dependsOn"})
NEVER_HONOURED = "isResponder"
# Keys that may occur in any node as a comment or leftover.
NOISE = frozenset({NEVER_HONOURED, "displayOnlyComment", "multiModelList", *NUMERIC_FIELDS, *FLOAT_FIELDS})


def check_workflow(loaded: LoadedWorkflow, lookups: Lookups) -> list[Finding]:
    """Return all findings about a workflow, in the order of its nodes, and then about the settings that these need.

    Changes nothing, and accepts any JSON.

    Reads the configuration through ``lookups`` only, which must see the settings of the user who runs the workflow.
    """
    check = _Check(loaded, lookups)
    needs = check.memory() if lookups.has_user else ()
    return all_located([*check.file(), *check.nodes(), *needs], lookups, loaded)


@cache
def _all_keys(types: tuple[tuple[str, type[BaseHandler]], ...]) -> frozenset[str]:
    """Return the names that mean something in a node of any type."""
    return NOISE.union(*(keys_of(*named) for named in types))


@dataclass
class _Check:
    loaded: LoadedWorkflow
    lookups: Lookups

    def __post_init__(self) -> None:
        self._user_wide = frozenset(map(str, self.lookups.user_variables()))
        self._partly = self.lookups.fills_partially()
        self._elsewhere = _all_keys(tuple(node_types().items()))

    # -- the file ----------------------------------------------------------------------------------------------------
    def file(self) -> Iterator[Finding]:
        if not self.loaded.nodes:
            yield self._no_nodes()
        yield from self._responders()
        yield from self._variables()
        # The file makes its folder a model, which clients choose.
        if self.loaded.name == DEFAULT_WORKFLOW:
            yield from check_request_inputs(self.loaded, self.lookups)

    def _no_nodes(self) -> Finding:
        meant = nearest("nodes", self.loaded.variables)
        if not meant:
            return self._at("warning", "nodes", "the workflow has no nodes, and so no answer")
        return self._at(
            "error",
            child("", meant),
            f"the key {quoted(meant)} is a variable and nothing else; the workflow has no nodes, and so no answer",
            "nodes",
        )

    def _responders(self) -> Iterator[Finding]:
        marked = [index for index, node in enumerate(self.loaded.nodes) if is_responder(node)]
        if len(marked) > 1:
            others = ", ".join(str(index + 1) for index in marked[1:])
            yield self._at(
                "warning",
                f"nodes[{marked[1]}]",
                "several nodes are marked to answer; node "
                f"{marked[0] + 1} does, and the mark on {others} has no effect",
            )

    def _variables(self) -> Iterator[Finding]:
        """Yield findings for placeholders inside the file's own variables, where a text of a node names these."""
        names = self._names(len(self.loaded.nodes))
        for name, value in self.loaded.variables.items():
            if not isinstance(value, str) or "{" not in value or not self._is_used(name):
                continue
            rules = TextRules(names, partly=True, show=not is_secret_name(name))
            for problem in check_names(value, rules):
                yield self._at(
                    problem.severity,
                    child("", name),
                    f"the variable '{shortened(name)}': {problem.message}",
                    suggestion=problem.suggestion,
                )

    def _is_used(self, name: str) -> bool:
        pattern = re.compile(r"\{" + re.escape(name) + r"[}\[.!:]")
        return any(pattern.search(text) for node in self.loaded.nodes for _, text in strings_in(node))

    def _at(self, severity: Severity, path: str, message: str, suggestion: str = "") -> Finding:
        return Finding(severity, self.loaded.display, path, None, message, "", suggestion)

    # -- its nodes ---------------------------------------------------------------------------------------------------
    def nodes(self) -> Iterator[Finding]:
        for view in views_of(self.loaded):
            yield from self._node_keys(view)
            yield from self._texts(view)
            for check in NODE_CHECKS:
                yield from check(view, self.lookups)

    def _node_keys(self, view: NodeView) -> Iterator[Finding]:
        """Check the keys of a node against their declarations. Keys of other types are harmless."""
        check = KeyCheck(
            view.at,
            near_only=True,
            known=self._elsewhere,
            of_node=True,
            homes=HOMES,
            top=view.path,
            needed=("endpointName",) if view.needs_endpoint else (),
        )
        if NEVER_HONOURED in view.node:
            yield _never_honoured(view)
        yield from check.present(view.node, view.keys, view.path)
        yield from () if view.is_misread else check.missing(view.node, view.keys, view.path)

    def memory(self) -> Iterator[Finding]:
        """Yield findings about other files, which memory nodes need."""
        return check_memory(self.loaded, views_of(self.loaded), self.lookups)

    # -- texts -------------------------------------------------------------------------------------------------------
    def _names(self, index: int) -> Names:
        return Names(self.loaded.variables, self._user_wide, index + 1, len(self.loaded.nodes))

    def _texts(self, view: NodeView) -> Iterator[Finding]:
        names = self._names(view.index)
        jinja = NODE.flag(view.node, "jinja2")
        for key, value in view.values():
            if key.name in NAMES_OF_NODES or key.kind == "bool" or not isinstance(value, (str, list, dict)):
                continue
            for keys, text in strings_in(value):
                if not has_braces(text):
                    continue
                rules = TextRules(
                    names,
                    self._partly,
                    show=not any(is_secret_name(str(name)) for name in (key.name, *keys)),
                    children=self._variables_of_children(view) if key.name in HANDED_DOWN else None,
                )
                for problem in _check_by_declaration(key, text, jinja, rules):
                    found = view.finding(
                        problem.severity,
                        key.name,
                        problem.message,
                        expected=problem.expected,
                        suggestion=problem.suggestion,
                        path=child(view.path, key.name, *keys),
                    )
                    yield replace(found, offset=problem.offset)

    def _variables_of_children(self, view: NodeView) -> frozenset[str] | None:
        """Return the variables of all workflows that the node may run; None if one of them is not known."""
        children = child_workflows(view, self.lookups)
        return None if children is None else frozenset(name for loaded in children for name in loaded.variables)


def _check_by_declaration(key: ConfigKey, text: str, jinja: bool, rules: TextRules) -> Iterator[TextProblem]:
    if key.variables == "early":
        return check_early_text(text, rules)
    if key.variables != "full":
        return check_plain_value(text, rules) if key.kind in ("str", "object", "list", "any") else iter(())
    if jinja:
        # A child that fills the text in again may do so without Jinja2.
        return check_jinja(text, rules, is_filled_again=key.name in HANDED_DOWN)
    return check_handed_down_text(text, rules) if key.name in HANDED_DOWN else check_text(text, rules)


# -- checks of single nodes --------------------------------------------------------------------------------------------


def check_type(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if the type of a node is unknown."""
    written = view.node.get("type", "Standard")
    if not isinstance(written, str):
        yield view.finding(
            "warning", "type", f"the type must be a string, not {quoted(written)}; the node runs as Standard"
        )
    elif written not in node_types():
        fails = not view.node.get("endpointName")
        yield view.finding(
            "error" if fails else "warning",
            "type",
            f"the type {quoted(written)} is unknown; the "
            f"node runs as Standard{', and fails without an endpoint' if fails else ''}",
            suggestion=nearest_type(written),
        )


def check_tools(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if a node offers the client's tools to its model without effect."""
    if "allowTools" not in view.keys or not NODE.flag(view.node, "allowTools"):
        return
    nodes = view.loaded.nodes
    # Only the answer of the responder reaches the client, and with it its tool calls.
    if view.index != find_responder(nodes):
        yield view.finding(
            "warning",
            "allowTools",
            "the node gives its model the client's tools, but does not "
            "answer the client; no tool call of it is carried out",
        )


def check_dependencies(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield findings for entries of ``dependsOn`` that cannot be waited for."""
    wanted = view.node.get("dependsOn")
    for position, entry in enumerate(wanted if isinstance(wanted, (list, tuple)) else ()):
        found, near = _nodes_meant(entry, view.loaded.nodes)
        if any(index < view.index for index in found):
            continue
        message = (
            f"dependsOn names no node with {quoted(entry)}"
            if not found
            else f"dependsOn names node {found[0] + 1}, which is not an earlier one; nothing is waited for"
        )
        yield view.finding("warning", "", message, suggestion=near, path=child(child(view.path, "dependsOn"), position))


def _never_honoured(view: NodeView) -> Finding:
    has_flag = "returnToUser" in view.node or "is_responder" in view.node
    meant = bool(view.node[NEVER_HONOURED]) and not has_flag
    return view.finding(
        "warning" if meant else "note",
        NEVER_HONOURED,
        "'isResponder' never has an effect",
        expected="'returnToUser' or 'is_responder'",
    )


def _nodes_meant(entry: object, nodes: Sequence[Mapping[str, object]]) -> tuple[list[int], str]:
    """Return the indexes of the nodes that an entry of ``dependsOn`` names; without any, the nearest title."""
    if isinstance(entry, int) and not isinstance(entry, bool):
        return ([entry - 1] if 1 <= entry <= len(nodes) else []), ""
    if not isinstance(entry, str):
        return [], ""
    found = [index for index, node in enumerate(nodes) if entry in (node.get("title"), node.get("agentName"))]
    titles = [title for node in nodes for title in (node.get("title"), node.get("agentName")) if isinstance(title, str)]
    return found, "" if found else nearest(entry, titles)


# -- workflows that run each other -------------------------------------------------------------------------------------

# A held lock ends the run, so the nodes behind one need not run.
_MAY_END_THE_RUN = "WorkflowLock"


def check_loop(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if the node always leads back to its own workflow. A loop has one, in its first file."""
    if view.runs_as != "CustomWorkflow" or not _always_runs(view.loaded, view.index):
        return
    circle = _circle(view, lookups)
    if circle and view.loaded.display == min(loaded.display for loaded in circle):
        names = " -> ".join(workflow_name(loaded.display) for loaded in (*circle, view.loaded))
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
        f"a node of the child workflow {quoted(workflow_name(marked.display))} is marked "
        f"to answer, but no node of this workflow is, so that {last.label} answers and the child's text "
        "goes nowhere",
        expected='"returnToUser": true in the node that runs the child',
    )


def _is_used(view: NodeView) -> bool:
    name = f"agent{view.index + 1}Output"
    everything = [view.loaded.variables, *view.loaded.nodes[view.index + 1 :]]
    return any(re.search(rf"\b{name}\b", text) for one in everything for _, text in strings_in(one))


# -- workflows that are chosen by a value ------------------------------------------------------------------------------


def check_choice(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield findings about the keys of a node that chooses a workflow by a value."""
    table = view.node.get(CHOICES)
    if CHOICES not in view.keys or not isinstance(table, Mapping):
        return
    value = Flow(view.loaded, lookups).text(view.node.get("conditionalKey"), NODE.flag(view.node, "jinja2"), view.index)
    keys = {name.strip().lower(): name for name, target in table.items() if target}
    has_fallback = keys.pop("default", None) is not None or view.node.get(DEFAULT_CONTENT) is not None
    if value.texts is not None:
        yield from _check_fixed(view, value, value.texts, keys, has_fallback)
    elif value.is_open and not has_fallback:
        yield view.finding(
            "warning",
            CHOICES,
            f"the value is {value.source}, which may be any text, and there is no "
            "'Default'; the request fails where the text is not exactly one of the keys",
            expected="'Default' with the workflow for every other value",
        )
    if value.lists_categories:
        yield from _check_categories(view, keys, lookups)


def _check_fixed(
    view: NodeView, value: Value, texts: Mapping[str, str], keys: Mapping[str, str], has_fallback: bool
) -> Iterator[Finding]:
    without_key = [text for key, text in texts.items() if key not in keys]
    never = [name for key, name in keys.items() if key not in texts]
    said = f"{value.source}, which is {_listed(texts.values())}"
    if without_key and not has_fallback:
        fails = "no request can pass this node" if len(without_key) == len(texts) else "the request fails then"
        unused = f" (the keys are {', '.join(map(quoted, keys.values()))})" if never else ""
        yield view.finding(
            "error" if len(without_key) == len(texts) else "warning",
            CHOICES,
            f"the value is {said}; there is no key {_listed(without_key)}{unused} and no 'Default', so that {fails}",
            expected=f"the keys {_listed(texts.values(), 'and')}, or 'Default' for every other value",
        )
        return
    for name in never:
        yield view.finding(
            "warning",
            "",
            f"the workflow of {quoted(name)} never runs: the value is {said}",
            suggestion=nearest(name, texts.values()),
            path=child(child(view.path, CHOICES), name),
        )


def _check_categories(view: NodeView, keys: Mapping[str, str], lookups: Lookups) -> Iterator[Finding]:
    """Yield keys that are not categories although the LLM chooses among the categories of the routing."""
    name = lookups.user_name("routingConfig") if lookups.has_user else ""
    routing = lookups.routing(name) if isinstance(name, str) and name else {}
    if isinstance(routing, Problem) or not routing:
        return
    known = {category.strip().lower() for category in routing}
    for value, key in keys.items():
        if value not in known:
            yield view.finding(
                "warning",
                "",
                f"{quoted(key)} is not a category of the routing {quoted(name)}, among which the LLM chooses",
                expected=", ".join(routing),
                suggestion=nearest(key, routing),
                path=child(child(view.path, CHOICES), key),
            )


def _listed(texts: Any, word: str = "or") -> str:
    named = [quoted(text) if text else "an empty text" for text in texts]
    return f" {word} ".join(filter(None, (", ".join(named[:-1]), named[-1])))


# -- all of them -------------------------------------------------------------------------------------------------------


def _check_condition(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    found = list(check_condition(view, lookups))
    # What cannot be read has to be changed first.
    yield from found or check_value_safe(view, lookups)


# A new check of single nodes is one function in this list.
NODE_CHECKS: tuple[Callable[[NodeView, Lookups], Iterator[Finding]], ...] = (
    check_type,
    check_targets,
    check_memory_node,
    check_curl_node,
    check_dependencies,
    check_tools,
    check_choice,
    check_response_limit,
    check_answer_choices,
    _check_condition,
    check_option_injection,
    check_block_size,
    check_relative_times,
    check_loop,
    check_child_answers,
)


def all_located(findings: Sequence[Finding], lookups: Lookups, loaded: LoadedWorkflow | None = None) -> list[Finding]:
    """Return the findings with their positions; each file with findings is read for them."""
    own = {loaded.display: loaded.path} if loaded is not None else {}
    sources = {file: lookups.source(own.get(file) or path_of(file)) for file in {finding.file for finding in findings}}
    return [finding.located(sources[finding.file]) for finding in findings]
