"""What the answer of an LLM node is held to: a JSON schema, a demanded tool call, or nothing."""
from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from Middleware.exceptions import ConfigValueError
from Middleware.llmapis.api_types import CLAUDE_MESSAGES
from Middleware.llmapis.handlers.base.structured_output import usable_field
from Middleware.services.llm_calls.tool_enforcement import ToolDemand
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.api_type import API_TYPE
from Middleware.utilities.config.keys.node import NODE

if TYPE_CHECKING:
    from Middleware.workflows.models.execution_context import ExecutionContext

logger = logging.getLogger(__name__)

SCHEMA_KEY = "structuredOutputFile"


@dataclass(frozen=True)
class AnswerShape:
    """What a call sends besides its prompt.

    Attributes:
        tools: the client's tools, for the back-end's own tool calling; never together with a schema that is sent.
        demand: the tool call that the answer must be; its schema is ``schema``.
    """

    schema: Mapping[str, object] | None = None
    tools: Sequence[Mapping[str, object]] | None = None
    tool_choice: object = None
    demand: ToolDemand | None = None

    @staticmethod
    def of(context: ExecutionContext, schema: Mapping[str, object] | None = None) -> AnswerShape:
        """Decide for the node in ``context``; ``schema`` comes from code and counts like that of the node's file.

        Raises ConfigurationError for a schema file that cannot be used, and for a node whose schema meets a demanded
        tool call.
        """
        forwards = NODE.flag(context.config, "allowTools")
        tools, choice = (context.tools or None, context.tool_choice) if forwards else (None, None)
        demand = ToolDemand.of(tools, choice)
        if demand is not None and _chat(context) and _takes_schema(context):
            if schema is not None or NODE.value(context.config, SCHEMA_KEY):
                raise ConfigValueError(
                    f"node '{context.node_name}' holds the answer to a schema, but the request demands a tool call",
                    json_path=SCHEMA_KEY, expected="a node without allowTools, or one without a schema")
            return AnswerShape(demand.schema, demand=demand)
        schema = _node_schema(context) if schema is None else schema
        if schema is not None and tools and _takes_schema(context):
            logger.warning("Node '%s': the answer is held to a schema; the request's tools are not sent.",
                           context.node_name)
            tools = choice = None
        return AnswerShape(schema, tools, choice)


def _node_schema(context: ExecutionContext) -> Mapping[str, object] | None:
    name = NODE.value(context.config, SCHEMA_KEY)
    if name is None or name == "":
        return None
    declared = API_TYPE.value(_api_type(context), "structuredOutput")
    if not _chat(context) and not declared:
        _warn_ignored(context)
        return None
    schema = config_utils.load_structured_output(name)
    if _is_claude(context):
        _warn_ignored(context)  # it is passed on nevertheless: a backup endpoint may take it
    return schema


def _takes_schema(context: ExecutionContext) -> bool:
    """Whether the endpoint's handler has a place to write a schema to."""
    declared = API_TYPE.value(_api_type(context), "structuredOutput")
    if not isinstance(declared, Mapping) or _is_claude(context):
        return False
    return usable_field(declared) is not None


def _chat(context: ExecutionContext) -> bool:
    return context.llm_handler is not None and context.llm_handler.takes_message_collection


def _is_claude(context: ExecutionContext) -> bool:
    return bool(API_TYPE.value(_api_type(context), "type") == CLAUDE_MESSAGES)


def _api_type(context: ExecutionContext) -> Mapping[str, object]:
    handler = context.llm_handler
    return handler.llm.settings.api_type if handler is not None and handler.llm is not None else {}


def _warn_ignored(context: ExecutionContext) -> None:
    logger.warning("Node '%s': the API type of endpoint '%s' takes no schema; %s is ignored.", context.node_name,
                   context.llm_handler.endpoint_name if context.llm_handler else "", SCHEMA_KEY)
