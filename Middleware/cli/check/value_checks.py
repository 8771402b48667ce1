"""The check of nodes that choose a workflow by a value: whether their keys cover what the value may be."""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from Middleware.cli.check.findings import Finding
from Middleware.cli.check.lookups import Lookups, Problem
from Middleware.cli.check.node_checks import NodeView, child_workflows, node_label, texts_in
from Middleware.cli.check.text_checks import parsed_template
from Middleware.services.llm_calls.prompt_parts import prompt_templates
from Middleware.services.prompt_categorization_service import UNKNOWN
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.utilities.text_utils import nearest
from Middleware.workflows.handlers.registry import node_types
from Middleware.workflows.processors.workflows_processor import find_responder

_TABLE = "conditionalWorkflows"
_INSTEAD = "UseDefaultContentInsteadOfWorkflow"
_OUTPUT = re.compile(r"agent([1-9][0-9]{0,5})Output")
_ONE_VARIABLE = re.compile(r"\s*\{([^\W\d]\w{0,99})\}\s*")
# Workflows that run each other in a circle, or outputs that name each other, must not keep the check busy.
_MAX_DEPTH = 8
# The names of the filters and methods that change only what the comparison ignores: case and outer spaces.
_HARMLESS = frozenset({"trim", "strip", "upper", "lower", "string", "capitalize", "title"})
# The variables with the categories of the routing, as `category_variables` of the engine makes them.
_CATEGORY_VARIABLES = re.compile(r"category_list|category_descriptions|category_colon_descriptions|"
                                 r"categoriesSeparatedByOr|categoryNameBulletpoints")


@dataclass(frozen=True)
class Range:
    """What a value may be.

    Attributes:
        texts: the texts, in lower case without outer spaces, each with its spelling; without others unless ``is_open``.
        is_open: the value may be any text, as an LLM writes it.
        source: what gives the value, for a message.
        lists_categories: the LLM was shown the categories of the routing.
    """

    texts: Mapping[str, str]
    source: str
    is_open: bool = False
    lists_categories: bool = False


def check_choice(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield findings about the keys of a node that chooses a workflow by a value."""
    table = view.node.get(_TABLE)
    if _TABLE not in view.keys or not isinstance(table, Mapping):
        return
    key = view.node.get("conditionalKey")
    here = _Values(view.loaded, lookups)
    found = here.of_text(key, NODE.flag(view.node, "jinja2"), view.index, 0) if isinstance(key, str) else None
    if found is None:
        return
    keys = {name.strip().lower(): name for name, target in table.items() if target}
    has_fallback = keys.pop("default", None) is not None or view.node.get(_INSTEAD) is not None
    check = _check_open if found.is_open else _check_closed
    yield from check(view, found, keys, has_fallback)
    if found.lists_categories:
        yield from _check_categories(view, keys, lookups)


def result_of(loaded: LoadedWorkflow, lookups: Lookups) -> Range | None:
    """Return what a workflow may answer; None if the files do not show it."""
    return _Values(loaded, lookups).of_result(0)


def check_category_prompt(loaded: LoadedWorkflow, routing: Mapping[str, object], lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if no text of a workflow whose LLM chooses a category says what the categories are."""
    said = result_of(loaded, lookups)
    texts = _told(loaded, lookups) if said is not None and said.is_open else None
    names = [name.casefold() for name in routing if name != UNKNOWN]
    if texts is None or any(_CATEGORY_VARIABLES.search(text) or any(name in text.casefold() for name in names)
                            for text in texts):
        return
    index = find_responder(loaded.nodes)
    node = loaded.nodes[index]
    view = NodeView(loaded, index, node, "Standard", {})
    yield view.finding("warning", next((key for key in ("prompt", "systemPrompt") if node.get(key)), ""),
                       "nothing in this workflow, which chooses the category, tells the LLM what the categories are "
                       f"({', '.join(routing)})", expected="{category_colon_descriptions} in a prompt")


def _told(loaded: LoadedWorkflow, lookups: Lookups) -> list[str] | None:
    """Return all texts of a workflow and of those that it runs; None if one of its nodes may bring others."""
    texts = [text for _, text, _ in texts_in(dict(lookups.user_variables()), "", frozenset())]
    waiting, known = [loaded], {loaded.display}
    while waiting:
        one = waiting.pop()
        texts += [text for _, text, _ in texts_in([dict(one.variables), *one.nodes], "", frozenset())]
        for index, node in enumerate(one.nodes):
            children = _brought_by(one, index, node, lookups)
            if children is None:
                return None
            waiting += [following for following in children if following.display not in known]
            known.update(following.display for following in children)
    return texts


def _brought_by(loaded: LoadedWorkflow, index: int, node: Mapping[str, Any],
                lookups: Lookups) -> list[LoadedWorkflow] | None:
    """Return the workflows that a node runs; None if it may read texts that no file of a workflow shows."""
    node_type = node.get("type", "Standard")
    handler = node_types().get(node_type) if isinstance(node_type, str) else None
    if handler is None or handler.reaches_outside or node_type == "GetCustomFile" or node.get("structuredOutputFile"):
        return None
    return child_workflows(NodeView(loaded, index, node, node_type, handler.TABLES[node_type]), lookups)


def _check_closed(view: NodeView, found: Range, keys: Mapping[str, str], has_fallback: bool) -> Iterator[Finding]:
    without_key = [text for value, text in found.texts.items() if value not in keys]
    never = [name for value, name in keys.items() if value not in found.texts]
    said = f"{found.source}, which is {_listed(found.texts.values())}"
    if without_key and not has_fallback:
        fails = "no request can pass this node" if len(without_key) == len(found.texts) else "the request fails then"
        unused = f" (the keys are {', '.join(map(quoted, keys.values()))})" if never else ""
        yield view.finding(
            "error" if len(without_key) == len(found.texts) else "warning", _TABLE,
            f"the value is {said}; there is no key {_listed(without_key)}{unused} and no 'Default', so that {fails}",
            expected=f"the keys {_listed(found.texts.values(), 'and')}, or 'Default' for every other value")
        return
    for name in never:
        yield view.finding("warning", "", f"the workflow of {quoted(name)} never runs: the value is {said}",
                           suggestion=nearest(name, found.texts.values()),
                           path=child(child(view.path, _TABLE), name))


def _check_open(view: NodeView, found: Range, keys: Mapping[str, str], has_fallback: bool) -> Iterator[Finding]:
    if not has_fallback:
        yield view.finding("warning", _TABLE, f"the value is {found.source}, which may be any text, and there is no "
                           "'Default'; the request fails where the text is not exactly one of the keys",
                           expected="'Default' with the workflow for every other value")


def _check_categories(view: NodeView, keys: Mapping[str, str], lookups: Lookups) -> Iterator[Finding]:
    """Yield keys that are no categories although the LLM chooses among the categories of the routing."""
    name = lookups.user_name("routingConfig") if lookups.has_user else ""
    routing = lookups.routing(name) if isinstance(name, str) and name else {}
    if isinstance(routing, Problem) or not routing:
        return
    known = {category.strip().lower() for category in routing}
    for value, key in keys.items():
        if value not in known:
            yield view.finding("warning", "", f"{quoted(key)} is not a category of the routing {quoted(name)}, among "
                               "which the LLM chooses", expected=", ".join(routing), suggestion=nearest(key, routing),
                               path=child(child(view.path, _TABLE), key))


def _listed(texts: Any, word: str = "or") -> str:
    named = [quoted(text) if text else "an empty text" for text in texts]
    return f" {word} ".join(filter(None, (", ".join(named[:-1]), named[-1])))


@dataclass(frozen=True)
class _Values:
    """The values that texts and nodes of one workflow may have. None: that cannot be known from the files."""

    loaded: LoadedWorkflow
    lookups: Lookups

    def of_text(self, text: str, jinja: bool, index: int, depth: int) -> Range | None:
        """Return the values of a text of the node ``index``."""
        if depth > _MAX_DEPTH:
            return None
        if jinja:
            return _Template(self, index, depth).values(text)
        one = _ONE_VARIABLE.fullmatch(text)
        if one is not None:
            return self.of_variable(one[1], index, depth)
        return None if "{" in text else _closed([text], "a fixed text")

    def of_variable(self, name: str, index: int, depth: int) -> Range | None:
        """Return the values of a variable in a text of the node ``index``."""
        number = _OUTPUT.fullmatch(name)
        if number is not None:
            return self._of_node(int(number[1]) - 1, depth + 1) if int(number[1]) <= index else None
        value = self.loaded.variables.get(name)
        return self.of_text(value, False, index, depth + 1) if isinstance(value, str) else None

    def _of_node(self, index: int, depth: int) -> Range | None:
        node = self.loaded.nodes[index]
        node_type = node.get("type", "Standard")
        source = f"the output of {node_label(index, node)}"
        if node_type == "Conditional":
            return _closed(["TRUE", "FALSE"], source)
        if node_type == "StaticResponse":
            content = node.get("content")
            found = self.of_text(content, NODE.flag(node, "jinja2"), index, depth) if isinstance(content, str) else None
            return found if found is None or found.is_open else Range(found.texts, source)
        if not isinstance(node_type, str) or node_type not in node_types():
            return None
        if node_types()[node_type].needs_endpoint and not node.get("structuredOutputFile"):
            texts = " ".join(prompt_templates(node))
            return Range({}, f"what the LLM of {node_label(index, node)} writes", True,
                         _CATEGORY_VARIABLES.search(texts) is not None)
        return self._of_children(NodeView(self.loaded, index, node, node_type,
            node_types()[node_type].TABLES[node_type]), source, depth)

    def _of_children(self, view: NodeView, source: str, depth: int) -> Range | None:
        """Return the values of a node that answers with the result of a child workflow."""
        # A ConversationChunkProcessor answers with a count or a file; a RAG node with its workflow only at times.
        if ("workflowName" not in view.keys and _TABLE not in view.keys) or "returnFile" in view.keys:
            return None
        children = child_workflows(view, self.lookups) if depth <= _MAX_DEPTH else None
        if children is None:
            return None
        found = [_Values(loaded, self.lookups).of_result(depth + 1) for loaded in children]
        content = view.node.get(_INSTEAD)
        if content is not None:
            found.append(self.of_text(str(content), NODE.flag(view.node, "jinja2"), view.index, depth))
        return _together(found, source)

    def of_result(self, depth: int) -> Range | None:
        """Return the values of the whole workflow."""
        nodes = self.loaded.nodes
        return self._of_node(find_responder(nodes), depth) if nodes else None


class _Template:
    """The values of a Jinja2 template: of its texts, and of the expressions that choose among texts."""

    def __init__(self, values: _Values, index: int, depth: int) -> None:
        self._values, self._index, self._depth = values, index, depth

    def values(self, text: str) -> Range | None:
        # Imported here because most workflows have no templates.
        from jinja2 import TemplateError

        if "{" not in text:
            return _closed([text], "a fixed text")
        try:
            return self._body(parsed_template(text).body)
        # What is wrong with the template is reported with its text.
        except (TemplateError, RecursionError):
            return None

    def _body(self, body: Sequence[Any]) -> Range | None:
        from jinja2 import nodes

        parts = [part for node in body for part in (node.nodes if isinstance(node, nodes.Output) else [node])]
        parts = [part for part in parts if not (isinstance(part, nodes.TemplateData) and not part.data.strip())]
        # A text of several parts is not looked into.
        if len(parts) > 1:
            return None
        if not parts:
            return _closed([""], "")
        if isinstance(parts[0], nodes.If):
            branches = [parts[0].body, *(one.body for one in parts[0].elif_), parts[0].else_]
            return _together([self._body(branch) for branch in branches], "")
        return self._expression(parts[0])

    def _expression(self, node: Any) -> Range | None:
        from jinja2 import nodes

        if isinstance(node, (nodes.TemplateData, nodes.Const)):
            return _closed([str(node.data if isinstance(node, nodes.TemplateData) else node.value)], "")
        if isinstance(node, (nodes.Compare, nodes.Not, nodes.Test)):
            return _closed(["True", "False"], "")
        if isinstance(node, nodes.CondExpr):
            other = self._expression(node.expr2) if node.expr2 is not None else _closed([""], "")
            return _together([self._expression(node.expr1), other], "")
        if isinstance(node, nodes.Name):
            return self._values.of_variable(node.name, self._index, self._depth)
        if isinstance(node, nodes.Filter) and node.name in _HARMLESS and not node.args:
            return self._expression(node.node)
        called = node.node if isinstance(node, nodes.Call) and not node.args else None
        if isinstance(called, nodes.Getattr) and called.attr in _HARMLESS:
            return self._expression(called.node)
        return None


def _closed(texts: Sequence[str], source: str) -> Range:
    return Range({text.strip().lower(): text.strip() for text in texts}, source or "the result of the template")


def _together(found: Sequence[Range | None], source: str) -> Range | None:
    """Return the values of several sources; None if one of them is not known."""
    known = [one for one in found if one is not None]
    if len(known) < len(found) or not known:
        return None
    first_open = next((one for one in known if one.is_open), None)
    texts = {value: text for one in known for value, text in one.texts.items()}
    named = source or next((one.source for one in known if one.source), "")
    return first_open or Range(texts, named or "the result of the template")
