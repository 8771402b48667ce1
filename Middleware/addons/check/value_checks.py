"""Checks of nodes that choose a workflow by a value, and of the workflow that chooses a category of the routing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from Middleware.addons.check.findings import Finding
from Middleware.addons.check.flow import CATEGORY_VARIABLES, CHOICES, DEFAULT_CONTENT, Flow, Value
from Middleware.addons.check.lookups import Lookups, Problem
from Middleware.addons.check.node_checks import NodeView, child_workflows, texts_in
from Middleware.services.prompt_categorization_service import UNKNOWN
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.utilities.text_utils import nearest
from Middleware.workflows.handlers.registry import node_types
from Middleware.workflows.processors.workflows_processor import find_responder


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


def check_category_prompt(loaded: LoadedWorkflow, routing: Mapping[str, object], lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if no text of a workflow whose LLM chooses a category says what the categories are."""
    texts = _all_texts(loaded, lookups) if Flow(loaded, lookups).result().is_open else None
    names = [name.casefold() for name in routing if name != UNKNOWN]
    if texts is None or any(
        CATEGORY_VARIABLES.search(text) or any(name in text.casefold() for name in names) for text in texts
    ):
        return
    index = find_responder(loaded.nodes)
    node = loaded.nodes[index]
    view = NodeView(loaded, index, node, "Standard", {})
    yield view.finding(
        "warning",
        next((key for key in ("prompt", "systemPrompt") if node.get(key)), ""),
        "nothing in this workflow, which chooses the category, tells the LLM what the categories are "
        f"({', '.join(routing)})",
        expected="{category_colon_descriptions} in a prompt",
    )


def _all_texts(loaded: LoadedWorkflow, lookups: Lookups) -> list[str] | None:
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


def _brought_by(
    loaded: LoadedWorkflow, index: int, node: Mapping[str, Any], lookups: Lookups
) -> list[LoadedWorkflow] | None:
    """Return the workflows that a node runs; None if it may read texts that no file of a workflow shows."""
    node_type = node.get("type", "Standard")
    handler = node_types().get(node_type) if isinstance(node_type, str) else None
    if handler is None or handler.reaches_outside or node_type == "GetCustomFile" or node.get("structuredOutputFile"):
        return None
    return child_workflows(NodeView(loaded, index, node, node_type, handler.TABLES[node_type]), lookups)


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
    """Yield keys that are no categories although the LLM chooses among the categories of the routing."""
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
