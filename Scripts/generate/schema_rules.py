"""What the schemas of single kinds of files say beyond the declarations of their keys, as their readers do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from Middleware.addons.check.file_check import FileKind, NativeKeys, add_native
from Middleware.utilities.config.keys.api_type import MARKED_TURNS
from Scripts.generate import generated_files
from Scripts.generate.schema_values import Schema, caseless, of_key

API_TYPES = generated_files.ROOT / "Public" / "Configs" / "ApiTypes"
ADDRESS = {
    "pattern": r"^\s*[Hh][Tt][Tt][Pp][Ss]?://[^\s/]",
    "patternErrorMessage": "It must be an address such as http://127.0.0.1:5001.",
}


def add_rules(kind: FileKind, schema: Schema) -> Schema:
    """The schema with the rules of its kind."""
    add = RULES.get(kind.name)
    if add is not None:
        add(kind, schema)
    return schema


def _prompt_template(kind: FileKind, schema: Schema) -> None:
    """At least one mark for each kind of message, even if it is blank."""
    schema["allOf"] = [{"anyOf": [{"required": [key]} for key in keys]} for keys in MARKED_TURNS.values()]


def _preset(kind: FileKind, schema: Schema) -> None:
    """The names that the samplers have in each API type, with their values; the server may take more."""
    native: NativeKeys = {}
    folders: dict[str, set[str]] = {}
    for file in sorted(API_TYPES.glob("*.json")):
        api_type = json.loads(file.read_text(encoding="utf-8"))
        own: NativeKeys = {}
        add_native(own, api_type)
        for name, keys in own.items():
            folders.setdefault(name, set()).add(str(api_type.get("presetType")))
            native.setdefault(name, []).extend(key for key in keys if key not in native.get(name, []))
    for name, keys in sorted(native.items()):
        meanings = [
            of_key(replace(key, name=name, meaning=f"{key.meaning} In {', '.join(sorted(folders[name]))}."))
            for key in keys
        ]
        # A name has several meanings only in different API types.
        schema["properties"][name] = meanings[0] if len(meanings) == 1 else {"anyOf": meanings}


def _endpoint(kind: FileKind, schema: Schema) -> None:
    schema["properties"]["endpoint"] |= ADDRESS


def _mcp_server(kind: FileKind, schema: Schema) -> None:
    """Programs need a command, servers an address."""
    schema["allOf"] = [
        _needs(["stdio"], "command", {"minLength": 1}),
        _needs(["sse", "streamable_http"], "url", ADDRESS),
    ]


def _needs(transports: list[str], name: str, rules: Schema) -> Schema:
    return {
        "if": {"required": ["transport"], "properties": {"transport": {"enum": transports}}},
        "then": {"required": [name], "properties": {name: {"type": "string", **rules}}},
    }


def _routing(kind: FileKind, schema: Schema) -> None:
    """Remarks between the categories."""
    category = schema["additionalProperties"]
    schema["patternProperties"] = {
        pattern: {"if": {"type": "object"}, "then": category} for pattern in category["patternProperties"]
    }


def _settings(kind: FileKind, schema: Schema) -> None:
    """A blank choice is unknown there."""
    for key in kind.keys:
        if key.caseless:
            schema["properties"][key.name]["anyOf"][1]["pattern"] = caseless(key.choices)
        elif key.choices:
            schema["properties"][key.name]["anyOf"].pop()


RULES: Mapping[str, Callable[[FileKind, Schema], None]] = {
    "endpoint": _endpoint,
    "preset": _preset,
    "prompt-template": _prompt_template,
    "mcp-server": _mcp_server,
    "routing": _routing,
    "memory-settings": _settings,
    "compactor-settings": _settings,
}
