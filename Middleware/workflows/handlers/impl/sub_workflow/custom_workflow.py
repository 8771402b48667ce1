"""CustomWorkflow and ConditionalCustomWorkflow: run a child with the parent's conversation."""
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.keys.node import (
    CONDITIONAL_WORKFLOWS,
    FOLDER_OVERRIDE,
    MISSING_WORKFLOW,
    NODE,
    SCOPED_VARIABLES,
    WORKFLOW_NAME,
)
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.impl.sub_workflow.children import ChildRun, scoped_inputs
from Middleware.workflows.models.execution_context import ExecutionContext

OVERRIDE_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("firstNodeSystemPromptOverride", "str", None, "System prompt of the child's first prompting node.",
              "full"),
    ConfigKey("systemPromptOverride", "str", None, "Other name of firstNodeSystemPromptOverride.", "full"),
    ConfigKey("firstNodePromptOverride", "str", None, "Prompt of the child's first prompting node.", "full"),
    ConfigKey("promptOverride", "str", None, "Other name of firstNodePromptOverride.", "full"),
)


class CustomWorkflowHandler(BaseHandler):
    """The result of the child, which knows only the scoped variables of its parent."""
    # The child may have nodes of any type, and cleans its own answer.
    acts = "outside"
    cleans_itself = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "CustomWorkflow": (
            WORKFLOW_NAME, FOLDER_OVERRIDE, SCOPED_VARIABLES, *OVERRIDE_KEYS)}

    def handle(self, context: ExecutionContext) -> object:
        return _run_child(context, str(self.value(context, "workflowName") or MISSING_WORKFLOW), context.config)


class ConditionalCustomWorkflowHandler(BaseHandler):
    """The result of the child that a value chooses, or a text if it chooses none."""
    # As CustomWorkflow.
    acts = "outside"
    cleans_itself = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "ConditionalCustomWorkflow": (
            ConfigKey("conditionalKey", "str", "", "The value that chooses.", "full"),
            CONDITIONAL_WORKFLOWS,
            ConfigKey("UseDefaultContentInsteadOfWorkflow", "any", None, "Text instead of the Default workflow.",
                      "full"),
            ConfigKey("routeOverrides", "object", {}, "Value -> prompt overrides.", "full"),
            FOLDER_OVERRIDE, SCOPED_VARIABLES)}

    def handle(self, context: ExecutionContext) -> object:
        value = self.text(context, "conditionalKey").strip().lower()
        targets = _lower_keys(self.value(context, "conditionalWorkflows"))
        overrides = _lower_keys(self.value(context, "routeOverrides"))
        name = targets.get(value)
        if name:
            return _run_child(context, str(name), overrides.get(value))
        content = self.value(context, "UseDefaultContentInsteadOfWorkflow")
        if content is not None:
            return self.static_text(context, context.substitute(content))
        return _run_child(context, str(targets.get("default") or MISSING_WORKFLOW),
                          overrides.get(value) or overrides.get("default"))


def _run_child(context: ExecutionContext, name: str, overrides: object) -> object:
    items = context.start_child(
        name, folder_override=NODE.value(context.config, "workflowUserFolderOverride") or None,
        scoped_inputs=scoped_inputs(context),
        system_prompt_override=_override(context, overrides, "firstNodeSystemPromptOverride", "systemPromptOverride"),
        prompt_override=_override(context, overrides, "firstNodePromptOverride", "promptOverride"))
    child = ChildRun(items)
    return child if context.is_responder else child.finish()


def _override(context: ExecutionContext, overrides: object, name: str, alias: str) -> str | None:
    """One override, its values escaped so that the child's own substitution takes them literally."""
    if not isinstance(overrides, Mapping):
        return None
    value = overrides.get(name) if name in overrides else overrides.get(alias)
    if not value:
        return None
    return context.substitute(value, restore=False)


def _lower_keys(value: object) -> dict[str, object]:
    """The entries by their keys in lower case without spaces around; one written without such spaces wins."""
    if not isinstance(value, Mapping):
        return {}
    lower = {str(key).lower(): entry for key, entry in value.items()}
    return {**{key.strip(): entry for key, entry in lower.items()}, **lower}
