"""Nodes that need no conversation of their own: texts, numbers, conditions, extraction, files, images, locks."""
from __future__ import annotations

from Middleware.workflows.handlers.base.base_workflow_node_handler import FamilyHandler
from Middleware.workflows.handlers.impl.specialized.arithmetic import ArithmeticProcessorHandler
from Middleware.workflows.handlers.impl.specialized.conditional import ConditionalHandler
from Middleware.workflows.handlers.impl.specialized.custom_files import GetCustomFileHandler, SaveCustomFileHandler
from Middleware.workflows.handlers.impl.specialized.delimited_chunker import DelimitedChunkerHandler
from Middleware.workflows.handlers.impl.specialized.image_processor import ImageProcessorHandler
from Middleware.workflows.handlers.impl.specialized.json_extractor import JsonExtractorHandler
from Middleware.workflows.handlers.impl.specialized.static_texts import StaticResponseHandler, StringConcatenatorHandler
from Middleware.workflows.handlers.impl.specialized.tag_text_extractor import TagTextExtractorHandler
from Middleware.workflows.handlers.impl.specialized.workflow_lock import WorkflowLockHandler


class SpecializedNodeHandler(FamilyHandler):
    """Router to one handler per node type."""

    NODES = (
        StaticResponseHandler, StringConcatenatorHandler, ConditionalHandler, ArithmeticProcessorHandler,
        JsonExtractorHandler, TagTextExtractorHandler, DelimitedChunkerHandler, GetCustomFileHandler,
        SaveCustomFileHandler, ImageProcessorHandler, WorkflowLockHandler)
