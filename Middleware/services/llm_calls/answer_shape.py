"""The constraint on the answer of an LLM node: a JSON schema, a few texts, a required tool call, or none."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from Middleware.exceptions import ConfigValueError
from Middleware.llmapis.api_types import CLAUDE_MESSAGES
from Middleware.llmapis.handlers.base.base_llm_api_handler import grammar_field, usable_field
from Middleware.models.node_context import NodeContext
from Middleware.services.llm_calls.answer_choices import KEY as CHOICES_KEY
from Middleware.services.llm_calls.answer_choices import choices_of
from Middleware.services.llm_calls.tool_enforcement import ToolDemand
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.api_type import API_TYPE
from Middleware.utilities.config.keys.node import NODE

logger = logging.getLogger(__name__)

SCHEMA_KEY = "structuredOutputFile"


@dataclass(frozen=True)
class AnswerShape:
    """The schema and tools that a call sends.

    Attributes:
        tools: the client's tools, for the back-end's own tool calling; never sent together with a schema.
        demand: the required tool call; its schema is ``schema``.
        choices: the only texts that the answer may be; there is no ``schema`` then.
        constraint: what holds the answer to ``choices``: "grammar", "schema", or "" if the back-end takes neither.
    """

    schema: Mapping[str, object] | None = None
    tools: Sequence[Mapping[str, object]] | None = None
    tool_choice: object = None
    demand: ToolDemand | None = None
    choices: tuple[str, ...] = ()
    constraint: str = ""

    @staticmethod
    def of(context: NodeContext, schema: Mapping[str, object] | None = None) -> AnswerShape:
        """Return the shape for the node in ``context``; ``schema`` is given by code and replaces the node's file.

        Raises ConfigurationError for an unusable schema file, for a node with two constraints, and for a node with a
        schema if the request requires a tool call.
        """
        # Few nodes have the key, and a test of its name costs less than a call.
        choices = choices_of(context) if CHOICES_KEY in context.config and schema is None else ()
        if choices:
            _require_choices_alone(context)
            constraint = "grammar" if grammar_field(_api_type(context)) else "schema" if _takes_schema(context) else ""
            return AnswerShape(choices=choices, constraint=constraint)
        forwards = NODE.flag(context.config, "allowTools")
        tools, choice = (context.tools or None, context.tool_choice) if forwards else (None, None)
        demand = ToolDemand.of(tools, choice)
        if demand is not None and _chat(context) and _takes_schema(context):
            if schema is not None or NODE.value(context.config, SCHEMA_KEY):
                raise ConfigValueError(
                    f"node '{context.node_name}' holds the answer to a schema, but the request demands a tool call",
                    json_path=SCHEMA_KEY,
                    expected="a node without allowTools, or one without a schema",
                )
            return AnswerShape(demand.schema, demand=demand)
        schema = _node_schema(context) if schema is None else schema
        if schema is not None and tools and _takes_schema(context):
            logger.warning(
                "Node '%s': the answer is held to a schema; the request's tools are not sent.", context.node_name
            )
            tools = choice = None
        return AnswerShape(schema, tools, choice)


def _require_choices_alone(context: NodeContext) -> None:
    for key, given in (
        (SCHEMA_KEY, NODE.value(context.config, SCHEMA_KEY)),
        ("allowTools", NODE.flag(context.config, "allowTools")),
    ):
        if given:
            raise ConfigValueError(
                f"node '{context.node_name}' has both '{CHOICES_KEY}' and '{key}'",
                json_path=key,
                expected="one of the two",
            )


def _node_schema(context: NodeContext) -> Mapping[str, object] | None:
    name = NODE.value(context.config, SCHEMA_KEY)
    if name is None or name == "":
        return None
    declared = API_TYPE.value(_api_type(context), "structuredOutput")
    if not _chat(context) and not declared:
        _warn_ignored(context)
        return None
    schema = config_utils.load_structured_output(name)
    if _is_claude(context):
        # The schema is passed on nevertheless, because a backup may support it.
        _warn_ignored(context)
    return schema


def _takes_schema(context: NodeContext) -> bool:
    """Return whether the endpoint's handler supports a schema."""
    declared = API_TYPE.value(_api_type(context), "structuredOutput")
    # Claude's API has no field for a schema.
    if not isinstance(declared, Mapping) or _is_claude(context):
        return False
    return usable_field(declared) is not None


def _chat(context: NodeContext) -> bool:
    return context.llm_handler is not None and context.llm_handler.takes_message_collection


def _is_claude(context: NodeContext) -> bool:
    return bool(API_TYPE.value(_api_type(context), "type") == CLAUDE_MESSAGES)


def _api_type(context: NodeContext) -> Mapping[str, object]:
    handler = context.llm_handler
    return handler.llm.settings.api_type if handler is not None and handler.llm is not None else {}


def _warn_ignored(context: NodeContext) -> None:
    logger.warning(
        "Node '%s': the API type of endpoint '%s' takes no schema; %s is ignored.",
        context.node_name,
        context.llm_handler.endpoint_name if context.llm_handler else "",
        SCHEMA_KEY,
    )
