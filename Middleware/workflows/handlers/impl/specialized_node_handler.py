"""Nodes that need no conversation of their own: texts, numbers, conditions, extraction, files, images, locks."""
from __future__ import annotations

from Middleware.workflows.handlers.base.base_workflow_node_handler import FamilyHandler
from Middleware.workflows.handlers.impl.specialized.conditional import ConditionalHandler
from Middleware.workflows.handlers.impl.specialized.static_texts import StaticResponseHandler, StringConcatenatorHandler


class SpecializedNodeHandler(FamilyHandler):
    """Router to one handler per node type."""

    NODES = (StaticResponseHandler, StringConcatenatorHandler, ConditionalHandler)
