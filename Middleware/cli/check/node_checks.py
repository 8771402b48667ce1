"""Checks of nodes of one type: memory nodes and CurlCommand."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from Middleware.cli.check.findings import Finding
from Middleware.cli.check.lookups import Lookups
from Middleware.cli.check.node_view import NodeView
from Middleware.cli.check.settings_checks import EMBEDDINGS_EXPECTED, holds
from Middleware.services.memory.memory_search import HYBRID, KEYWORD, SEMANTIC
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.declarations import as_flag
from Middleware.utilities.config.json_source import child
from Middleware.workflows.tools.block_prompts import TEXT_CHUNK
from Middleware.workflows.tools.curl.checks import names_option
from Middleware.workflows.tools.curl.options import Argument, may_name_file, read_arguments, refusal
from Middleware.workflows.tools.memory.chat_summary import CURRENT_SUMMARY, LATEST_MEMORIES, PROMPTS

MODES = (KEYWORD, SEMANTIC, HYBRID)
WEIGHT_COUNT = 5


def check_memory_node(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Findings about one node, if it is a memory node."""
    check = CHECKS.get(view.runs_as)
    if check is not None:
        yield from check(view, lookups)


# -- VectorMemorySearch ------------------------------------------------------------------------------------------------


def _search(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    yield from _weights(view)
    written = view.node.get("searchMode")
    mode = str(written).strip().lower() if written is not None else KEYWORD
    if mode in (SEMANTIC, HYBRID):
        yield from _embeddings(view, mode, lookups)


def _embeddings(view: NodeView, mode: str, lookups: Lookups) -> Iterator[Finding]:
    key = "embeddingEndpointName"
    name = view.node.get(key) or ""
    if not isinstance(name, str) or "{" in name:  # reported as the wrong kind, or as taking no variables
        return
    if not name.strip():
        yield view.finding("warning", key if key in view.node else "searchMode", f"the searchMode {quoted(mode)} needs "
                           f"'{key}'; the node searches by {KEYWORD}", expected=EMBEDDINGS_EXPECTED)
        return
    problem = lookups.endpoint(name)
    if problem is not None:
        yield replace(view.finding("error", key, problem.message, suggestion=problem.suggestion), about=problem.file)
    elif lookups.has_user and not lookups.makes_embeddings(name):
        yield view.finding("error", key, f"endpoint {quoted(name)} generates text and cannot make embeddings",
                           expected=EMBEDDINGS_EXPECTED)


def _weights(view: NodeView) -> Iterator[Finding]:
    weights = view.node.get("bm25Weights")
    if not isinstance(weights, (list, tuple)):  # of anything else the kind is reported
        return
    if len(weights) != WEIGHT_COUNT or any(
            isinstance(weight, bool) or not isinstance(weight, (int, float)) for weight in weights):
        yield view.finding("warning", "bm25Weights", f"'bm25Weights' is no list of {WEIGHT_COUNT} numbers and is not "
                           "used", expected="numbers for title, summary, entities, key phrases and text, in this order")


# -- nodes with markers ------------------------------------------------------------------------------------------------


def _summarizer(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    if not view.node.get("endpointName"):
        yield view.finding("error", "", "the node calls an LLM but names no endpoint",
                           expected="'endpointName' with the name of a file in Endpoints")
    texts = _prompts(view)
    lacking = [marker for marker in (CURRENT_SUMMARY, LATEST_MEMORIES)
               if not holds(texts, (marker,), view.loaded, lookups)]
    if len(lacking) == 2:
        yield view.finding("note", "", f"no prompt holds {CURRENT_SUMMARY} or {LATEST_MEMORIES}; the LLM is asked "
                           "once, and its answer becomes the summary")
    elif lacking:
        effect = ("a new summary knows nothing of the one before" if lacking == [CURRENT_SUMMARY] else
                  "new memories do not reach the summary")
        yield view.finding("note", "", f"no prompt holds {lacking[0]}; {effect}")


def _blocks(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    texts = _prompts(view)
    if not view.node.get("fileMemoryWorkflowName") and texts and not holds(texts, (TEXT_CHUNK,), view.loaded, lookups):
        yield view.finding("warning", "prompt" if view.node.get("prompt") else "systemPrompt", "no prompt holds "
                           f"{TEXT_CHUNK}, so that the LLM does not see the blocks of ragTarget")


def _prompts(view: NodeView) -> list[str]:
    texts = (view.node.get(key) for key in PROMPTS)
    return [text for text in texts if isinstance(text, str) and text.strip()]


CHECKS: Mapping[str, Callable[[NodeView, Lookups], Iterator[Finding]]] = {
    "VectorMemorySearch": _search, "chatSummarySummarizer": _summarizer, "SlowButQualityRAG": _blocks}


_INSTEAD = {
    "form": "--form-string, which takes a text as it is", "header": "-H 'X-Name: ...', with the header's name written "
    "here", "proxy-header": "--proxy-header 'X-Name: ...', with the header's name written here",
    "data-urlencode": "--data-urlencode 'name=...', with the field's name written here",
    "url-query": "--url-query 'name=...', with the field's name written here",
    "json": "--data-raw with -H 'Content-Type: application/json', which takes a text as it is"}
_DATA_INSTEAD = "--data-raw, which takes a text as it is"

_PLACEHOLDER = re.compile(r"\{[^{}]+\}")
_JINJA_PLACEHOLDER = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_NAME = re.compile(r"[^\W\d]\w{0,99}")
_FOREIGN = re.compile(r"agent\d+(Output|Input)|chat_user_prompt_|templated_user_prompt_|messages$")


def check_curl_node(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Findings about texts of a model or a client that may name a file, which curl then sends."""
    items = view.node.get("args")
    if view.runs_as != "CurlCommand" or not isinstance(items, (list, tuple)):
        return
    texts = [item if isinstance(item, str) else "" for item in items]
    variables = {**lookups.user_variables(), **view.loaded.variables}
    for argument in read_arguments(texts):
        if not argument.allowed and names_option(texts[argument.index], argument.name):
            yield view.finding("error", "args", refusal(argument.name),
                               path=child(child(view.path, "args"), argument.index))
        placeholder = _risky_placeholder(argument, view.node, variables)
        if placeholder:
            mark = "with '=@' in it" if argument.name == "form" and "=" not in (argument.value or "") else (
                "beginning with '@'")
            yield view.finding(
                "warning", "args", f"{placeholder} is the text of a model or a client; {mark}, it makes curl send a "
                "file of this computer", expected=_INSTEAD.get(argument.name, _DATA_INSTEAD),
                path=child(child(view.path, "args"), argument.value_index or 0))


def _risky_placeholder(argument: Argument, node: Mapping[str, object], variables: Mapping[str, Any]) -> str:
    """The first placeholder of others that may make a file name of the argument's value; empty if there is none.

    Files with cookies are left out: curl sends none of them that are not for that server.
    """
    if argument.name == "cookie":
        return ""
    jinja = as_flag(node.get("jinja2"))
    value = (argument.value or "") if jinja else _with_own_texts(argument.value or "", variables)
    pattern = _JINJA_PLACEHOLDER if jinja else _PLACEHOLDER
    refused = as_flag(node.get("blockOptionInjection")) and argument.index != argument.value_index
    for found in pattern.finditer(value):
        before, after = (pattern.sub("", text) for text in (value[:found.start()], value[found.end():]))
        if refused and not before:
            continue  # the node refuses an item that begins with '@'
        if may_name_file(argument.name, before, after) and _is_foreign(found[0], variables):
            return found[0]
    return ""


def _with_own_texts(value: str, variables: Mapping[str, Any]) -> str:
    """The value with the author's own texts in place of their names, and without literal braces."""
    def text(match: re.Match[str]) -> str:
        found = variables.get(match[0][1:-1])
        return _without_literal_braces(found) if isinstance(found, str) else match[0]
    return _PLACEHOLDER.sub(text, _without_literal_braces(value))


def _without_literal_braces(text: str) -> str:
    return text.replace("{{", "((").replace("}}", "))")


def _is_foreign(placeholder: str, variables: Mapping[str, Any]) -> bool:
    return any(_FOREIGN.match(name) for name in _NAME.findall(placeholder) if name not in variables)
