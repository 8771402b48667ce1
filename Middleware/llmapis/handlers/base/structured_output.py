"""Insert the JSON schema for an answer into a payload, as the API type's ``structuredOutput`` defines."""
from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from Middleware.utilities.config.keys.api_type import STRUCTURED_OUTPUT

logger = logging.getLogger(__name__)


def attach_schema(body: dict[str, Any], schema: Mapping[str, object], descriptor: object, endpoint_name: str) -> None:
    """Insert ``schema`` into ``body``; ``descriptor`` is the API type's ``structuredOutput``."""
    descriptor = descriptor if isinstance(descriptor, Mapping) else {}
    field = usable_field(descriptor)
    if field is None:
        logger.warning("Endpoint '%s': its API type declares no usable structuredOutput; the answer is not "
                       "constrained.", endpoint_name)
        return
    value: Mapping[str, object] = schema if STRUCTURED_OUTPUT.value(descriptor, "style") == "raw" else {
        "type": "json_schema", "json_schema": {
            "name": "wilmer_structured_output", "strict": STRUCTURED_OUTPUT.flag(descriptor, "strict"),
            "schema": schema}}
    *parents, leaf = field.split(".")
    for parent in parents:
        known = body.get(parent)
        body[parent] = dict(known) if isinstance(known, Mapping) else {}
        body = body[parent]
    if leaf in body:
        logger.warning("Endpoint '%s': the schema replaces the value of '%s'.", endpoint_name, field)
    body[leaf] = value


def usable_field(descriptor: Mapping[str, object]) -> str | None:
    """Return the field of the schema by an API type's ``structuredOutput``; None for an invalid descriptor."""
    field, style = STRUCTURED_OUTPUT.value(descriptor, "field"), STRUCTURED_OUTPUT.value(descriptor, "style")
    return field if isinstance(field, str) and field and style in STRUCTURED_OUTPUT["style"].choices else None
