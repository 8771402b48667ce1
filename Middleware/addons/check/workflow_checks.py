"""The check of a whole workflow file against the declared node types and the files that it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from Middleware.addons.check.call_checks import check_child_answers, check_loop, check_request_inputs
from Middleware.addons.check.condition_checks import check_condition
from Middleware.addons.check.file_kinds import HOMES
from Middleware.addons.check.findings import Finding
from Middleware.addons.check.lookups import Lookups, path_of
from Middleware.addons.check.memory_checks import check_memory, check_memory_node
from Middleware.addons.check.node_checks import (
    NodeView,
    check_answer_choices,
    check_curl_node,
    check_response_limit,
    check_targets,
    child_workflows,
    keys_of,
    nearest_type,
    texts_in,
    views_of,
)
from Middleware.addons.check.prompt_checks import check_block_size, check_relative_times
from Middleware.addons.check.text_checks import (
    Names,
    TextProblem,
    TextRules,
    check_early_text,
    check_handed_down_text,
    check_jinja,
    check_names,
    check_plain_value,
    check_text,
)
from Middleware.addons.check.value_checks import check_choice
from Middleware.utilities.config.check import KeyCheck, Severity, quoted, shortened
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.node import FLOAT_FIELDS, NODE, NUMERIC_FIELDS, is_responder
from Middleware.utilities.config.users import DEFAULT_WORKFLOW
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.utilities.sensitive_logging_utils import SECRET_KEYS
from Middleware.utilities.templates.substitution import has_braces
from Middleware.utilities.text_utils import nearest
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.registry import node_types
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
            rules = TextRules(names, partly=True, show=name.lower() not in SECRET_KEYS)
            for problem in check_names(value, rules):
                yield self._at(
                    problem.severity,
                    child("", name),
                    f"the variable '{shortened(name)}': {problem.message}",
                    suggestion=problem.suggestion,
                )

    def _is_used(self, name: str) -> bool:
        pattern = re.compile(r"\{" + re.escape(name) + r"[}\[.!:]")
        return any(pattern.search(text) for node in self.loaded.nodes for _, text, _ in texts_in(node, "", SECRET_KEYS))

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
            secret_key = key.name.lower() in SECRET_KEYS
            for path, text, secret in texts_in(value, child(view.path, key.name), SECRET_KEYS):
                if not has_braces(text):
                    continue
                rules = TextRules(
                    names,
                    self._partly,
                    show=not (secret or secret_key),
                    children=self._variables_of_children(view) if key.name in HANDED_DOWN else None,
                )
                for problem in _check_by_declaration(key, text, jinja, rules):
                    found = view.finding(
                        problem.severity,
                        key.name,
                        problem.message,
                        expected=problem.expected,
                        suggestion=problem.suggestion,
                        path=path,
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
    """Yield a finding if a node offers the client's tools to its model in vain."""
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
    """Return the indexes of the nodes that an entry of ``dependsOn`` names; if there is none, the nearest title."""
    if isinstance(entry, int) and not isinstance(entry, bool):
        return ([entry - 1] if 1 <= entry <= len(nodes) else []), ""
    if not isinstance(entry, str):
        return [], ""
    found = [index for index, node in enumerate(nodes) if entry in (node.get("title"), node.get("agentName"))]
    titles = [title for node in nodes for title in (node.get("title"), node.get("agentName")) if isinstance(title, str)]
    return found, "" if found else nearest(entry, titles)


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
    check_condition,
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
