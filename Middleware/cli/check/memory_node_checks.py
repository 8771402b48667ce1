"""Checks of what memory nodes themselves say, beyond the kinds of their keys."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from Middleware.cli.check.findings import Finding
from Middleware.cli.check.lookups import Lookups
from Middleware.cli.check.node_view import NodeView
from Middleware.cli.check.settings_checks import EMBEDDINGS_EXPECTED, holds
from Middleware.services.memory.memory_search import HYBRID, KEYWORD, SEMANTIC
from Middleware.utilities.config.check import quoted
from Middleware.workflows.tools.block_prompts import TEXT_CHUNK
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
