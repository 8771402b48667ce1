"""The check of structured-output files: whether they are JSON Schemas."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from Middleware.addons.check.findings import Finding
from Middleware.utilities.config.check import CHOICE_CUTOFF, is_remark, no_effect, quoted, shortened
from Middleware.utilities.config.json_source import child
from Middleware.utilities.text_utils import nearest

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
# The longest part of a message of the validator: it quotes the value.
MAX_SAID = 200


def check_schema(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """Yield a finding if a schema allows anything, or is no JSON Schema."""
    expected = "a JSON schema such as an object with 'type' and 'properties'"
    if not content:
        yield Finding("error", display, "", None, "the schema is empty", expected)
        return
    validator = _validator(content)
    if validator is None:
        return
    error = next(
        iter(sorted(validator(validator.META_SCHEMA).iter_errors(content), key=lambda one: len(one.path))), None
    )
    if error is not None:
        yield _invalid(display, error)
        return
    keywords = _keywords(validator.META_SCHEMA, validator)
    if not any(name in keywords for name in content):
        # The form in which OpenAI's API takes a schema; the program makes it itself.
        wrapped = "the value of 'schema' alone" if isinstance(content.get("schema"), Mapping) else expected
        yield Finding(
            "error",
            display,
            "",
            None,
            "none of the keys is a keyword of JSON Schema, so that the schema allows anything",
            wrapped,
        )
        return
    for name in content:
        near = "" if name in keywords or is_remark(name) else nearest(name, keywords, 0.85)
        if near and near not in content:
            yield Finding("warning", display, child("", name), None, no_effect(name), "", near)


def _invalid(display: str, error: Any) -> Finding:
    path = ""
    for part in error.absolute_path:
        path = child(path, part)
    if error.absolute_path and error.absolute_path[-1] == "type":
        near = nearest(error.instance, TYPES, CHOICE_CUTOFF) if isinstance(error.instance, str) else ""
        return Finding(
            "error", display, path, None, f"{quoted(error.instance)} is no type of JSON Schema", ", ".join(TYPES), near
        )
    return Finding("error", display, path, None, f"this is not a JSON Schema: {shortened(error.message, MAX_SAID)}")


def _validator(content: Mapping[str, object]) -> Any:
    """Return the validator class of a schema; None without the package."""
    # The package comes with the one for MCP, and hardly any check needs it.
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.validators import validator_for
    except ImportError:
        return None
    return validator_for(content, default=Draft202012Validator)


def _keywords(meta_schema: Mapping[str, Any], validator: Any) -> Collection[str]:
    """Return the keywords of the schema's version, and the older ones that all versions accept."""
    return {
        *validator.VALIDATORS,
        *meta_schema.get("properties", {}),
        "$schema",
        "$id",
        "$defs",
        "$comment",
        "$anchor",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "readOnly",
        "writeOnly",
        "deprecated",
        "then",
        "else",
        "contentMediaType",
        "contentEncoding",
    }
