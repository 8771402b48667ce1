"""The node types that are found, and what is declared about each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from Middleware.common import constants
from Middleware.workflows.handlers import registry
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.impl.specialized_node_handler import StaticResponseHandler
from Middleware.workflows.handlers.registry import build_registry, node_types

ROOT = Path(__file__).parents[3]

ACTS = {
    "no": {
        "Standard",
        "StaticResponse",
        "StringConcatenator",
        "Conditional",
        "ArithmeticProcessor",
        "JsonExtractor",
        "TagTextExtractor",
        "DelimitedChunker",
    },
    "reads": {
        "GetCustomFile",
        "OfflineWikiApiFullArticle",
        "OfflineWikiApiBestFullArticle",
        "OfflineWikiApiTopNFullArticles",
        "OfflineWikiApiPartialArticle",
        "OfflineResearcherApiQuickSearch",
        "OfflineResearcherApiDeepResearch",
        "ConversationalKeywordSearchPerformerTool",
        "MemoryKeywordSearchPerformerTool",
        "RecentMemorySummarizerTool",
        "ChatSummaryMemoryGatheringTool",
        "GetCurrentMemoryFromFile",
        "GetCurrentSummaryFromFile",
        "GetCurrentStateDocument",
        "VectorMemorySearch",
    },
    "writes": {
        "SaveCustomFile",
        "WorkflowLock",
        "ImageProcessor",
        "ContextCompactor",
        "chatSummarySummarizer",
        "WriteCurrentSummaryToFileAndReturnIt",
    },
    "outside": {
        "CustomWorkflow",
        "ConditionalCustomWorkflow",
        "ConversationChunkProcessor",
        "PythonModule",
        "WebFetch",
        "CurlCommand",
        "MCPToolCall",
        "SlowButQualityRAG",
        "QualityMemory",
        "RecentMemory",
        "ConversationMemory",
        "FullChatSummary",
    },
}
PURE = ACTS["no"] | {
    "WebFetch",
    "OfflineWikiApiFullArticle",
    "OfflineWikiApiBestFullArticle",
    "OfflineWikiApiTopNFullArticles",
    "OfflineWikiApiPartialArticle",
    "OfflineResearcherApiQuickSearch",
    "OfflineResearcherApiDeepResearch",
    "ConversationalKeywordSearchPerformerTool",
}
TRAITS = {
    "barrier": {"WorkflowLock", "ImageProcessor", "ContextCompactor"},
    "reaches_outside": {
        "OfflineWikiApiFullArticle",
        "OfflineWikiApiBestFullArticle",
        "OfflineWikiApiTopNFullArticles",
        "OfflineWikiApiPartialArticle",
        "OfflineResearcherApiQuickSearch",
        "OfflineResearcherApiDeepResearch",
        "WebFetch",
        "CurlCommand",
        "MCPToolCall",
        "PythonModule",
    },
    "runs_workflow": {"CustomWorkflow", "ConditionalCustomWorkflow"},
    "cleans_itself": {
        "CustomWorkflow",
        "ConditionalCustomWorkflow",
        "ConversationChunkProcessor",
        "ImageProcessor",
        "SlowButQualityRAG",
        "chatSummarySummarizer",
        "ContextCompactor",
    },
    "needs_endpoint": {"Standard", "ImageProcessor"},
}
SHIPPED = frozenset().union(*ACTS.values())


def test_every_shipped_type_is_found() -> None:
    assert len(SHIPPED) == 41
    assert node_types().keys() >= SHIPPED


def test_the_objects_of_the_registry_declare_their_types() -> None:
    objects = build_registry()
    assert list(objects) == list(node_types())
    assert all(type(objects[node_type]) is handler for node_type, handler in node_types().items())
    assert all(node_type in handler.KEYS for node_type, handler in objects.items())
    assert objects["OfflineResearcherApiQuickSearch"] is objects["OfflineResearcherApiDeepResearch"]


@pytest.mark.parametrize("acts", ACTS)
def test_what_the_types_do(acts: str) -> None:
    assert {node_type for node_type in SHIPPED if node_types()[node_type].acts == acts} == ACTS[acts]


def test_the_types_that_may_run_in_any_order() -> None:
    assert {node_type for node_type in SHIPPED if node_types()[node_type].is_pure({})} == PURE


@pytest.mark.parametrize("trait", TRAITS)
def test_the_traits_of_the_types(trait: str) -> None:
    assert {node_type for node_type in SHIPPED if getattr(node_types()[node_type], trait)} == TRAITS[trait]


@pytest.mark.parametrize("node_type", node_types())
def test_traits_that_go_together(node_type: str) -> None:
    handler = node_types()[node_type]
    assert any("acts" in vars(parent) for parent in handler.__mro__ if parent is not BaseHandler), "acts is not said"
    assert handler.acts == "writes" or not handler.barrier
    assert handler.acts != "writes" or not handler.is_pure({})
    assert handler.acts in ("reads", "outside") or not handler.reaches_outside
    assert handler.acts == "outside" or not handler.runs_workflow


def test_the_reference_says_what_each_type_can_do() -> None:
    text = (ROOT / "Docs" / "User" / "nodes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text.split("What a node can do")[1], re.MULTILINE)[1:]
    listed = [set(types.split(", ")) & SHIPPED for _, types in rows if types.strip("-")]
    assert listed == [ACTS[acts] for acts in ("no", "reads", "writes", "outside")]


def test_a_handler_without_traits_may_do_anything() -> None:
    class Handler(StaticResponseHandler):
        acts = BaseHandler.acts

    assert Handler.acts == "outside" and not Handler.is_pure({})


def test_two_handlers_of_one_type_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(StaticResponseHandler):
        pass

    monkeypatch.setattr(registry, "_handlers", lambda: iter([StaticResponseHandler, Other]))
    with pytest.raises(TypeError, match="Other and StaticResponseHandler both declare StaticResponse"):
        node_types.__wrapped__()


def test_scripts_find_the_names_of_all_types() -> None:
    assert sorted(node_types(), key=str.lower) == constants.VALID_NODE_TYPES
