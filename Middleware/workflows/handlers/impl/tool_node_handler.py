"""Nodes that use a tool: scripts, prompts for blocks of text, services that find articles or answer, and search."""
from __future__ import annotations

from Middleware.workflows.handlers.base.base_workflow_node_handler import FamilyHandler
from Middleware.workflows.handlers.impl.tools.keyword_search import KeywordSearchHandler
from Middleware.workflows.handlers.impl.tools.offline_researcher import OfflineResearcherHandler
from Middleware.workflows.handlers.impl.tools.offline_wikipedia import OfflineWikipediaHandler
from Middleware.workflows.handlers.impl.tools.python_module import PythonModuleHandler
from Middleware.workflows.handlers.impl.tools.slow_but_quality_rag import SlowButQualityRAGHandler


class ToolNodeHandler(FamilyHandler):
    """Router to one handler per tool."""

    NODES = (PythonModuleHandler, SlowButQualityRAGHandler, OfflineWikipediaHandler, OfflineResearcherHandler,
             KeywordSearchHandler)
