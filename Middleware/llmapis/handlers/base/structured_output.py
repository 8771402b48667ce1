"""Where a JSON schema for the answer stands in a payload, as an API type's ``structuredOutput`` says."""
from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from Middleware.llmapis.api_types import is_on

logger = logging.getLogger(__name__)


def attach_schema(body: dict[str, Any], schema: Mapping[str, Any], descriptor: Any, endpoint_name: str) -> None:
    """Write ``schema`` into ``body`` the way the API type's ``structuredOutput`` says."""
    descriptor = descriptor if isinstance(descriptor, Mapping) else {}
    field, style = descriptor.get("field"), descriptor.get("style")
    if not isinstance(field, str) or not field or style not in ("raw", "openaiJsonSchema"):
        logger.warning("Endpoint '%s': its API type declares no usable structuredOutput; the answer is not "
                       "constrained.", endpoint_name)
        return
    value: Mapping[str, Any] = schema if style == "raw" else {"type": "json_schema", "json_schema": {
        "name": "wilmer_structured_output", "strict": is_on(descriptor, "strict", True), "schema": schema}}
    *parents, leaf = field.split(".")
    for parent in parents:
        known = body.get(parent)
        body[parent] = dict(known) if isinstance(known, Mapping) else {}
        body = body[parent]
    if leaf in body:
        logger.warning("Endpoint '%s': the schema replaces the value of '%s'.", endpoint_name, field)
    body[leaf] = value
