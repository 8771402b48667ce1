"""Nodes that run another workflow."""
from __future__ import annotations

from Middleware.workflows.handlers.base.base_workflow_node_handler import FamilyHandler
from Middleware.workflows.handlers.impl.sub_workflow.children import MISSING_WORKFLOW, ChildRun
from Middleware.workflows.handlers.impl.sub_workflow.chunk_processor import ConversationChunkProcessorHandler
from Middleware.workflows.handlers.impl.sub_workflow.custom_workflow import (
    ConditionalCustomWorkflowHandler,
    CustomWorkflowHandler,
)

__all__ = ["MISSING_WORKFLOW", "SUB_WORKFLOW_TYPES", "ChildRun", "SubWorkflowHandler"]


class SubWorkflowHandler(FamilyHandler):
    """Router to one handler per node type."""

    NODES = (CustomWorkflowHandler, ConditionalCustomWorkflowHandler, ConversationChunkProcessorHandler)


SUB_WORKFLOW_TYPES = frozenset(SubWorkflowHandler.KEYS)
