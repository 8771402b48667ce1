"""JsonExtractor: one field of a JSON object."""
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.text_extraction import json_field
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext


class JsonExtractorHandler(BaseHandler):
    """Returns the field as a string; empty if the field is missing or the text is not a JSON object."""

    acts = "no"
    pure = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "JsonExtractor": (
            ConfigKey("jsonToExtractFrom", "str", None, "The JSON object, alone or as one fenced block.", "full",
                      required=True),
            ConfigKey("fieldToExtract", "str", None, "Name of one of its fields; not a path.", "full", required=True))}

    def handle(self, context: ExecutionContext) -> object:
        return json_field(self.text(context, "jsonToExtractFrom"), self.text(context, "fieldToExtract"))
