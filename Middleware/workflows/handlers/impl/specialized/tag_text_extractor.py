"""TagTextExtractor: the text between two tags."""
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.text_extraction import tagged_text
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext


class TagTextExtractorHandler(BaseHandler):
    """Returns the trimmed text inside the first pair of tags."""

    acts = "no"
    pure = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "TagTextExtractor": (
            ConfigKey("tagToExtractFrom", "str", None, "The text with the tags.", "full", required=True),
            ConfigKey("fieldToExtract", "str", None, "Name of the tag, without brackets.", "full", required=True),
            ConfigKey("defaultText", "str", "", "The result if the tag is absent, not closed or blank inside.",
                      "full"))}

    def handle(self, context: ExecutionContext) -> object:
        if self.value(context, "tagToExtractFrom") is None or self.value(context, "fieldToExtract") is None:
            return ""
        inside = tagged_text(self.text(context, "tagToExtractFrom"), self.text(context, "fieldToExtract"))
        return inside or self.text(context, "defaultText")
