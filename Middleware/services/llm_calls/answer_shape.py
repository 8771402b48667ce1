"""The constraint on the answer of an LLM node: a JSON schema, a few texts, a required tool call, or none."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from Middleware.exceptions import ConfigValueError
from Middleware.llmapis.api_types import CLAUDE_MESSAGES
from Middleware.llmapis.handlers.base.structured_output import CHOICE_FIELD, grammar_field, usable_field
from Middleware.models.llm_handler import LlmHandler
from Middleware.models.node_context import NodeContext
from Middleware.models.process import process
from Middleware.services.llm_calls.tool_enforcement import ToolDemand
from Middleware.services.prompt_categorization_service import match_category
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.api_type import API_TYPE
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.once import BoundedCache
from Middleware.utilities.streaming_utils import remove_thinking_from_text

logger = logging.getLogger(__name__)

SCHEMA_KEY = "structuredOutputFile"
CHOICES_KEY = "answerChoices"
# Long enough to read an answer and to ask for another one, short enough when the model on the server is exchanged.
REMEMBERED_SECONDS = 600.0
# About 150 bytes each.
MAX_REMEMBERED = 1000


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


# -- a few texts -------------------------------------------------------------------------------------------------------


def choices_of(context: NodeContext) -> tuple[str, ...]:
    """Return the texts of the node's ``answerChoices``, without dashes of a list, and without repetitions."""
    given = NODE.value(context.config, CHOICES_KEY)
    if not given:
        return ()
    lines = (
        context.substitute(given).splitlines()
        if isinstance(given, str)
        else [context.substitute(item) for item in given]
        if isinstance(given, (list, tuple))
        else []
    )
    texts = (" ".join(line.strip().removeprefix("- ").split()) for line in lines)
    found = tuple(dict.fromkeys(text for text in texts if text))
    if not found:
        logger.warning("Node '%s': '%s' holds no text; the answer is not constrained.", context.node_name, CHOICES_KEY)
    return found


def chosen(answer: object, choices: tuple[str, ...], handler: LlmHandler) -> str | None:
    """Return the choice that a complete answer is, as text, JSON string or field of an object; None for any other."""
    if not isinstance(answer, str):
        return None
    outcome = handler.service.outcome
    # A model whose turn begins inside its thoughts cannot leave them where only the choices are allowed.
    text = remove_thinking_from_text(answer, outcome.endpoint_config).strip() or outcome.reasoning.strip()
    if text in choices:
        return text
    found: object = None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        found = found.get(CHOICE_FIELD) if isinstance(found, Mapping) else found
    return found if isinstance(found, str) and found in choices else None


def names_choice(answer: object, choices: tuple[str, ...]) -> bool:
    """Return whether a complete answer has one of the choices in it, alone or in a sentence."""
    return isinstance(answer, str) and match_category(answer, list(choices)) is not None


class ChosenBefore:
    """The positions of the choices in the last answers, by a hash of all that was sent. No text is kept."""

    def __init__(self) -> None:
        self._known: BoundedCache[bytes, tuple[int, float]] = BoundedCache(MAX_REMEMBERED)

    def get(self, key: bytes) -> int | None:
        """Return the position; None if it is unknown or too old."""
        position, known_since = self._known.get(key) or (None, 0.0)
        return None if time.monotonic() - known_since > REMEMBERED_SECONDS else position

    def put(self, key: bytes, position: int) -> None:
        self._known.put(key, (position, time.monotonic()))


def chosen_before() -> ChosenBefore:
    """Return the memory of the process."""
    return process().one(ChosenBefore)


def key_of(
    context: NodeContext, handler: LlmHandler, sent: Mapping[str, object], choices: tuple[str, ...]
) -> bytes | None:
    """Return the hash of a call; None for a node that is to ask each time."""
    if not (NODE.flag(context.config, "rememberChoice") and context.request.outside.remembers):
        return None
    settings = handler.service.settings
    parts = [
        context.api_key_hash,
        context.discussion_id,
        settings.endpoint_name,
        settings.base_url,
        settings.model,
        settings.samplers,
        choices,
        sent,
    ]
    return hashlib.blake2b(json.dumps(parts, default=str).encode(), digest_size=16).digest()
