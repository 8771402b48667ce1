"""What the schemas of single kinds of files say beyond the declarations of their keys, as their readers do."""
from __future__ import annotations

from collections.abc import Callable, Mapping

from Middleware.cli.check.file_kinds import FileKind
from Scripts.generate.schema_values import Schema, caseless

ADDRESS = {"pattern": r"^\s*[Hh][Tt][Tt][Pp][Ss]?://[^\s/]",
           "patternErrorMessage": "It must be an address such as http://127.0.0.1:5001."}


def add_rules(kind: FileKind, schema: Schema) -> Schema:
    """The schema with the rules of its kind."""
    add = RULES.get(kind.name)
    if add is not None:
        add(kind, schema)
    return schema


def _endpoint(kind: FileKind, schema: Schema) -> None:
    schema["properties"]["endpoint"] |= ADDRESS


def _mcp_server(kind: FileKind, schema: Schema) -> None:
    """Programs need a command, servers an address."""
    schema["allOf"] = [_needs(["stdio"], "command", {"minLength": 1}),
                       _needs(["sse", "streamable_http"], "url", ADDRESS)]


def _needs(transports: list[str], name: str, rules: Schema) -> Schema:
    return {"if": {"required": ["transport"], "properties": {"transport": {"enum": transports}}},
            "then": {"required": [name], "properties": {name: {"type": "string", **rules}}}}


def _routing(kind: FileKind, schema: Schema) -> None:
    """Remarks between the categories."""
    category = schema["additionalProperties"]
    schema["patternProperties"] = {pattern: {"if": {"type": "object"}, "then": category}
                                   for pattern in category["patternProperties"]}


def _settings(kind: FileKind, schema: Schema) -> None:
    """A blank level is unknown there."""
    for key in kind.keys:
        if key.caseless:
            schema["properties"][key.name]["anyOf"][1]["pattern"] = caseless(key.choices)


RULES: Mapping[str, Callable[[FileKind, Schema], None]] = {
    "endpoint": _endpoint, "mcp-server": _mcp_server, "routing": _routing,
    "memory-settings": _settings, "compactor-settings": _settings}
