"""JSON Schemas of declared keys: what may stand in them, as tolerant as the program, with what an editor shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from Middleware.llmapis.samplers import NULL_MARKER
from Middleware.utilities.config.check import REMARKS
from Middleware.utilities.config.declarations import SWITCHED_ON, ConfigKey
from Middleware.utilities.config.keys.endpoint import PRESET_SAMPLER_KEYS
from Scripts.generate import key_tables

Schema = dict[str, Any]

WHOLE_NUMBER = r"\s*[+-]?[0-9]+\s*"
WHOLE_NUMBER_OF_FILE = r"\s*[+-]?[0-9]+(\.0*)?([eE]\+?[0-9]+)?\s*"
NUMBER = r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*"
PLACEHOLDER = r"\{"
MANY_FLAGS = {
    "type": ["boolean", "string", "integer", "null"],
    "pattern": r"^\s*([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]|[Yy][Ee][Ss]|[Nn][Oo]|[Oo][Nn]|[Oo][Ff][Ff]|1|0)?\s*$",
    "minimum": 0,
    "maximum": 1,
}
"""Flags that may also be yes, no, on, off, 1 and 0."""
BLANK, NOT_BLANK = r"^\s*$", r"\S"

TYPES = {"str": "string", "bool": "boolean", "int": "integer", "number": "number", "list": "array", "object": "object"}
MESSAGES = {"bool": "It must be true or false.", "int": "It must be a whole number.", "number": "It must be a number."}


def of_key(key: ConfigKey, of_node: bool = False) -> Schema:
    """The schema of a key's value, with title, description and default. ``of_node``: numbers and texts as lenient as in
    nodes."""
    schema: Schema = {"title": _title(key), "description": describe(key)}
    default = plain(key.default)
    if not key.required and default not in (None, "", [], {}):
        schema["default"] = default
    if key.choices and key.kind != "list":
        return schema | _choices(key, of_node)
    if key.kind in MESSAGES and not key.also:
        schema["errorMessage"] = MESSAGES[key.kind]  # editors that know it show it in place of one about types
    return schema | (values(key, of_node) if key.kind in TYPES else {})


def of_object(keys: Iterable[ConfigKey], is_open: bool, of_node: bool = False) -> Schema:
    """The schema of an object with these keys. One that is not open takes beyond them only what people write
    for themselves."""
    keys = list(keys)
    schema: Schema = {"type": "object", "properties": {key.name: of_key(key, of_node) for key in keys}}
    required = [key.name for key in keys if key.required]
    if required:
        schema["required"] = required
    if not is_open:
        schema["patternProperties"] = remarks()
        schema["additionalProperties"] = False
    return schema


def remarks() -> Schema:
    """Keys that people write for themselves, whatever they hold."""
    return {"^([^A-Za-z]|$)": {}, _any_of_words(REMARKS): {}}


# -- what is shown -----------------------------------------------------------------------------------------------------


def describe(key: ConfigKey) -> str:
    """The key's meaning in whole sentences."""
    sentences = [key.meaning]
    if key.inert and "without effect" not in key.meaning:
        sentences.append("Has no effect.")
    if key.variables != "none":
        sentences.append(
            "Variables work here."
            if key.variables == "full"
            else "Variables that are known before the endpoint is work here."
        )
    return " ".join(sentences)


def _title(key: ConfigKey) -> str:
    named = key_tables.named(key)
    return f"{key.name}: {key_tables.kinds(key)}" + (f", names {named}" if named else "")


def plain(value: Any) -> Any:
    """JSON data without the types that declarations use to stay unchanged."""
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


# -- what is right -----------------------------------------------------------------------------------------------------


def _choices(key: ConfigKey, of_node: bool) -> Schema:
    words = [*key.choices, *([] if key.required else [None])]
    others = [PLACEHOLDER] if key.variables != "none" else []
    if not of_node and not key.required:
        others.append(BLANK)
    if key.caseless:
        others.append(caseless(key.choices))
    rules: list[Schema] = [{"enum": words}]
    if others:
        rules.append({"type": "string", "pattern": "|".join(others)})
    rules += [{"type": TYPES[kind]} for kind in key.also]
    return {"anyOf": rules} if len(rules) > 1 else rules[0]


def caseless(choices: Iterable[str]) -> str:
    """The pattern of choices that may be written in any case."""
    return rf"^\s*({_any_of_words(choices)})\s*$"


def values(key: ConfigKey, of_node: bool) -> Schema:
    """The rules for a value of the key's kinds. Each rule is about one JSON type only, so that they can be combined."""
    if "any" in key.also:
        return {}
    schema: Schema = {}
    types: list[str] = []
    for kind in (key.kind, *key.also):
        for name in _json_types(kind, of_node):
            types += [name] if name not in types else []
        schema |= _rules(key, kind, of_node)
    if "str" in (key.kind, *key.also) and not key.required:
        schema.pop("pattern", None)
    elif key in PRESET_SAMPLER_KEYS:
        types += ["string"] if "string" not in types else []
        schema["pattern"] = "|".join(filter(None, (schema.get("pattern"), f"^{NULL_MARKER}$")))
    if not key.required:
        types.append("null")
    return {"type": types[0] if len(types) == 1 else types} | schema


def _json_types(kind: str, of_node: bool) -> list[str]:
    if kind == "str":
        return ["string", *(["number", "boolean"] if of_node else [])]
    if kind in ("int", "number"):
        return [TYPES["number" if of_node else kind], "string"]
    return [TYPES[kind], *(["string"] if kind == "bool" else [])]


def _rules(key: ConfigKey, kind: str, of_node: bool) -> Schema:
    if kind == "str":
        return {"pattern": NOT_BLANK, "patternErrorMessage": "It must not be blank."} if key.required else {}
    if kind == "bool" and key.true_texts == SWITCHED_ON:
        return dict(MANY_FLAGS)
    if kind == "bool":
        return {"pattern": rf"^\s*({_in_any_case('true')}|{_in_any_case('false')})?\s*$"}
    if kind in ("int", "number"):
        return _number(key, kind, of_node)
    if kind == "list":
        return {"items": _entry(key, of_node)} if key.entries or key.keys else {}
    return _object(key, of_node)


def _number(key: ConfigKey, kind: str, of_node: bool) -> Schema:
    limits = {"minimum": key.least, "maximum": key.most}
    found = {name: limit for name, limit in limits.items() if limit is not None}
    return {"pattern": _number_text(key, kind, of_node)} | found


def _number_text(key: ConfigKey, kind: str, of_node: bool) -> str:
    """What a text must look like to count as a number. Texts in which all variables work must have one."""
    if not of_node:
        return f"^{WHOLE_NUMBER_OF_FILE if kind == 'int' else NUMBER}$|^$"
    text = f"^{WHOLE_NUMBER if kind == 'int' else NUMBER}$"
    return PLACEHOLDER if key.variables == "full" else text if key.variables == "none" else f"{text}|{PLACEHOLDER}"


def _object(key: ConfigKey, of_node: bool) -> Schema:
    if key.keys:
        return {name: rule for name, rule in of_object(key.keys, key.is_open).items() if name != "type"}
    return {"patternProperties": remarks(), "additionalProperties": _entry(key, of_node)} if key.entries else {}


def _entry(key: ConfigKey, of_node: bool) -> Schema:
    """One entry of a list or object. A number counts as a text; in an object null is not an entry."""
    if key.keys and key.kind == "list":
        return of_object(key.keys, key.is_open)
    if key.entries not in TYPES:
        return {}
    if key.choices:
        return {"enum": [*key.choices]}
    names = [
        *_json_types(key.entries, of_node),
        *(["number"] if key.entries == "str" else []),
        *(["null"] if key.kind == "object" else []),
    ]
    return {"type": names}


def _any_of_words(words: Iterable[str]) -> str:
    return "|".join(map(_in_any_case, words))


def _in_any_case(word: str) -> str:
    """A pattern without flags, which JSON Schema does not know."""
    return "".join(f"[{letter.upper()}{letter}]" if letter.isalpha() else re.escape(letter) for letter in word)
