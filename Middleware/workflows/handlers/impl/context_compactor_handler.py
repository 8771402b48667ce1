"""ContextCompactor: summaries of the older parts of a conversation."""

from __future__ import annotations

from Middleware.services.memory.compactor_settings import load_compactor_settings
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import state_of


class ContextCompactorHandler(BaseHandler):
    """Returns the summaries in tags; the settings are in the file that the user's ``contextCompactorSettingsFile``
    names.
    """

    # It stores summaries of the conversation so far, and cleans each answer of its LLM itself.
    acts = "writes"
    barrier = True
    cleans_itself = True

    KEYS = {"ContextCompactor": ()}

    def handle(self, context: ExecutionContext) -> object:
        state = state_of(context)
        if state is None:
            return ""
        settings = load_compactor_settings()
        if settings is None:
            return ""
        # Imported here because only users with such settings need it.
        if settings.follow_edits:
            from Middleware.workflows.tools.memory.following_compaction import FollowingCompaction

            return FollowingCompaction(context, settings, state).run()
        from Middleware.workflows.tools.memory.context_compaction import ContextCompaction

        return ContextCompaction(context, settings, state).run()
