"""TagTextExtractor, JsonExtractor and DelimitedChunker: parts of a text."""
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.json_data import type_name
from Middleware.utilities.text_utils import first_pieces, json_field, last_pieces, tagged_text
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


class DelimitedChunkerHandler(BaseHandler):
    """Returns the chosen pieces with their delimiters, or a text that names the problem if a key cannot be used."""

    acts = "no"
    pure = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "DelimitedChunker": (
            ConfigKey("content", "str", None, "The text.", "full", required=True),
            ConfigKey("delimiter", "str", None, "The text between its pieces.", "full", required=True, blank=True),
            ConfigKey("mode", "str", None, "'head' (first pieces) or 'tail' (last pieces).", required=True,
                      choices=("head", "tail")),
            ConfigKey("count", "int", None, "How many pieces to keep, at least 1.", "full", required=True,
                      least=1))}

    def handle(self, context: ExecutionContext) -> object:
        count = self.count(context, "count")
        problem = self._problem(context, count)
        if problem:
            return problem
        content, delimiter = self.text(context, "content"), self.text(context, "delimiter")
        if not content:
            return ""
        if not delimiter:
            return "Invalid delimiter: must resolve to a non-empty string"
        keep = first_pieces if self.value(context, "mode") == "head" else last_pieces
        return keep(content, delimiter, count)

    def _problem(self, context: ExecutionContext, count: object) -> str:
        for name in ("content", "delimiter", "mode", "count"):
            if self.value(context, name) is None:
                return f"No {name} specified"
        if not isinstance(count, int) or isinstance(count, bool):
            return f"Invalid count: must be an integer, got {type_name(count)}"
        if count < 1:
            return f"Invalid count: must be >= 1, got {count}"
        mode = self.value(context, "mode")
        return "" if mode in ("head", "tail") else f"Invalid mode: must be 'head' or 'tail', got '{mode}'"
