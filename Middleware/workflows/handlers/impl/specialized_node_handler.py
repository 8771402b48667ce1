"""StaticResponse and StringConcatenator: texts from the workflow file."""
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext


class StaticResponseHandler(BaseHandler):
    """Returns a fixed text."""

    acts = "no"
    pure = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "StaticResponse": (ConfigKey("content", "str", "", "The text.", "full"),)}

    def handle(self, context: ExecutionContext) -> object:
        return self.static_text(context, self.text(context, "content"))


class StringConcatenatorHandler(BaseHandler):
    """Joins texts."""

    acts = "no"
    pure = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "StringConcatenator": (
            ConfigKey("strings", "list", (), "The texts to join.", "full"),
            ConfigKey("delimiter", "str", "", "The text between them."))}

    def handle(self, context: ExecutionContext) -> object:
        return self.static_text(context, self._joined(context))

    def _joined(self, context: ExecutionContext) -> str:
        strings = self.value(context, "strings")
        if not isinstance(strings, list):
            return ""
        return str(self.value(context, "delimiter")).join(
            context.substitute(text) if isinstance(text, str) else str(text) for text in strings)
