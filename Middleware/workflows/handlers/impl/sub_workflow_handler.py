"""Nodes that run another workflow: CustomWorkflow and ConditionalCustomWorkflow."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from Middleware.utilities.streaming_utils import stream_static_content
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler, NodeKey
from Middleware.workflows.models.execution_context import ExecutionContext

SUB_WORKFLOW_TYPES = frozenset({"CustomWorkflow", "ConditionalCustomWorkflow", "ConversationChunkProcessor"})
MISSING_WORKFLOW = "No_Workflow_Name_Supplied"

SHARED_KEYS: tuple[NodeKey, ...] = (
    NodeKey("workflowUserFolderOverride", "str", None, "Folder of the child under Workflows."),
    NodeKey("scoped_variables", "list", None, "The child's agent1Input, agent2Input, ...", "full"),
)
OVERRIDE_KEYS: tuple[NodeKey, ...] = (
    NodeKey("firstNodeSystemPromptOverride", "str", None, "System prompt of the child's first prompting node.", "full"),
    NodeKey("systemPromptOverride", "str", None, "Other name of firstNodeSystemPromptOverride.", "full"),
    NodeKey("firstNodePromptOverride", "str", None, "Prompt of the child's first prompting node.", "full"),
    NodeKey("promptOverride", "str", None, "Other name of firstNodePromptOverride.", "full"),
)


class ChildRun:
    """A child workflow that is the responder of its parent.

    Iterating gives its chunk dicts; ``item`` its single result; ``finish`` runs whatever nodes remain.
    """

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return self._items

    def item(self) -> Any:
        """The child's result, before its later nodes run; an empty text if it has none."""
        value = next(self._items, None)
        return "" if value is None else value

    def finish(self) -> Any:
        """Run to the end. Returns the last item not yet taken, or an empty text."""
        last = [*self._items][-1:]
        return "" if not last or last[0] is None else last[0]


class SubWorkflowHandler(BaseHandler):
    """Runs the child with the parent's conversation, and only the scoped variables of its parent."""

    KEYS: ClassVar[Mapping[str, tuple[NodeKey, ...]]] = {
        "CustomWorkflow": (
            NodeKey("workflowName", "str", MISSING_WORKFLOW, "The workflow to run.", required=True),
            *SHARED_KEYS, *OVERRIDE_KEYS),
        "ConditionalCustomWorkflow": (
            NodeKey("conditionalKey", "str", "", "The value that chooses.", "full"),
            NodeKey("conditionalWorkflows", "object", {}, "Value -> workflow; Default is the fallback."),
            NodeKey("UseDefaultContentInsteadOfWorkflow", "any", None, "Text instead of the Default workflow.", "full"),
            NodeKey("routeOverrides", "object", {}, "Value -> prompt overrides.", "full"),
            *SHARED_KEYS),
    }

    def handle(self, context: ExecutionContext) -> Any:
        if context.config["type"] == "CustomWorkflow":
            return self._run_child(context, str(context.config.get("workflowName") or MISSING_WORKFLOW),
                                   context.config)
        return self._handle_conditional(context)

    def _handle_conditional(self, context: ExecutionContext) -> Any:
        value = self.text(context, "conditionalKey").strip().lower()
        targets = _lower_keys(self.value(context, "conditionalWorkflows"))
        overrides = _lower_keys(self.value(context, "routeOverrides"))
        name = targets.get(value)
        if name:
            return self._run_child(context, str(name), overrides.get(value))
        content = context.config.get("UseDefaultContentInsteadOfWorkflow")
        if content is not None:
            text = context.substitute(content)
            return stream_static_content(text, context.request.cancel_scope) if context.stream else text
        return self._run_child(context, str(targets.get("default") or MISSING_WORKFLOW),
                               overrides.get(value) or overrides.get("default"))

    def _run_child(self, context: ExecutionContext, name: str, overrides: Any) -> Any:
        items = context.workflow_manager.start_child(
            context, name, folder_override=context.config.get("workflowUserFolderOverride") or None,
            scoped_inputs=self._scoped_inputs(context),
            system_prompt_override=_override(context, overrides, "firstNodeSystemPromptOverride",
                                             "systemPromptOverride"),
            prompt_override=_override(context, overrides, "firstNodePromptOverride", "promptOverride"))
        child = ChildRun(items)
        return child if context.is_responder else child.finish()

    @staticmethod
    def _scoped_inputs(context: ExecutionContext) -> tuple[str, ...]:
        values = context.config.get("scoped_variables")
        if values is None:
            return ()
        if not isinstance(values, list):
            values = [values]
        return tuple(context.substitute(value) for value in values)


def _override(context: ExecutionContext, overrides: Any, name: str, alias: str) -> str | None:
    """One override, its values escaped so that the child's own substitution takes them literally."""
    if not isinstance(overrides, Mapping):
        return None
    value = overrides.get(name) if name in overrides else overrides.get(alias)
    if not value:
        return None
    return context.workflow_variable_service.apply_variables(str(value), context, restore=False)


def _lower_keys(value: Any) -> dict[str, Any]:
    return {str(key).lower(): entry for key, entry in value.items()} if isinstance(value, Mapping) else {}


