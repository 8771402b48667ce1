"""Constraints on answers: a JSON schema, or a few texts of which the answer has to be one."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from Middleware.llmapis.handlers.base.answer_forms import text_in
from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.utilities.config.keys.api_type import API_TYPE, STRUCTURED_OUTPUT

logger = logging.getLogger(__name__)

# The field of the object around a choice.
CHOICE_FIELD = "answer"
# A model of 0.5B filled up to 15 tokens with this object, its line breaks and indentation.
TOKENS_AROUND_CHOICE = 20
# The first token of many models begins with a space.
_GRAMMAR = 'root ::= " "? '


def constrain(body: dict[str, Any], prompt: Prompt, settings: BackendSettings) -> None:
    """Insert the constraint on the answer, if there is one: a grammar or a JSON schema, as the API type defines."""
    if prompt.schema is None and not prompt.choices:
        return
    grammar = grammar_field(settings.api_type) if prompt.choices else ""
    descriptor = API_TYPE.value(settings.api_type, "structuredOutput")
    descriptor = descriptor if isinstance(descriptor, Mapping) else {}
    field, raw = usable_field(descriptor), STRUCTURED_OUTPUT.value(descriptor, "style") == "raw"
    if grammar:
        _put(settings, body, grammar, choices_grammar(prompt.choices))
    elif field is not None and raw:
        _put(settings, body, field, choices_schema(prompt.choices) if prompt.choices else prompt.schema)
    elif field is not None:
        if prompt.choices:
            _leave_room(body, settings)
        _put(
            settings,
            body,
            field,
            {
                "type": "json_schema",
                "json_schema": {
                    "name": "wilmer_structured_output",
                    "strict": STRUCTURED_OUTPUT.flag(descriptor, "strict"),
                    "schema": choice_object(prompt.choices) if prompt.choices else prompt.schema,
                },
            },
        )
    # A prompt that offers choices asks for one of them in words as well.
    elif not prompt.choices:
        logger.warning(
            "Endpoint '%s': its API type declares no usable structuredOutput; the answer is not constrained.",
            settings.endpoint_name,
        )


def _leave_room(body: dict[str, Any], settings: BackendSettings) -> None:
    """Raise the response limit by what stands around a choice, which is not part of the node's answer."""
    key = API_TYPE.value(settings.api_type, "maxNewTokensPropertyName")
    if key and type(body.get(key)) is int:
        body[key] += TOKENS_AROUND_CHOICE


def _put(settings: BackendSettings, body: dict[str, Any], field: str, constraint: object) -> None:
    """Set a field of the payload, whose dots separate nested objects."""
    *parents, leaf = field.split(".")
    for parent in parents:
        known = body.get(parent)
        # The object may belong to a configuration file, so the schema goes into a copy.
        body[parent] = dict(known) if isinstance(known, Mapping) else {}
        body = body[parent]
    if leaf in body:
        logger.warning("Endpoint '%s': the schema replaces the value of '%s'.", settings.endpoint_name, field)
    body[leaf] = constraint


def usable_field(descriptor: Mapping[str, object]) -> str | None:
    """Return the field of the schema by an API type's ``structuredOutput``; None for an invalid descriptor."""
    field, style = STRUCTURED_OUTPUT.value(descriptor, "field"), STRUCTURED_OUTPUT.value(descriptor, "style")
    return field if isinstance(field, str) and field and style in STRUCTURED_OUTPUT["style"].choices else None


def grammar_field(api_type: Mapping[str, object]) -> str:
    """Return the field that takes a grammar in llama.cpp's format; "" if the server takes none."""
    fields = API_TYPE.value(api_type, "samplerFieldMap")
    return text_in(fields, "grammar") if isinstance(fields, Mapping) else ""


def choices_grammar(choices: Sequence[str]) -> str:
    """Return the grammar, in llama.cpp's format, of an answer that is one of the texts."""
    texts = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return f"{_GRAMMAR}({texts})"


def choices_in(grammar: str) -> list[str]:
    """Return the texts of a grammar that ``choices_grammar`` has made; none of any other."""
    found = list[str]()
    if grammar.startswith(f"{_GRAMMAR}(") and grammar.endswith(")"):
        position, end = len(_GRAMMAR) + 1, len(grammar) - 1
        while position < end:
            choice, position = json.JSONDecoder().raw_decode(grammar, position)
            found.append(choice)
            position += len(" | ")
    return found


def choices_schema(choices: Sequence[str]) -> dict[str, object]:
    """Return the JSON schema of one of the texts."""
    return {"type": "string", "enum": list(choices)}


def choice_object(choices: Sequence[str]) -> dict[str, object]:
    """Return the JSON schema of an object with one of the texts, as OpenAI's own servers accept only objects."""
    return {
        "type": "object",
        "properties": {CHOICE_FIELD: choices_schema(choices)},
        "required": [CHOICE_FIELD],
        "additionalProperties": False,
    }
