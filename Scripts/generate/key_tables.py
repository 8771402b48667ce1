"""Declared keys in words, and tables of them, for pages in Docs/User and for schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from Middleware.addons.check.file_check import KINDS
from Middleware.utilities.config.declarations import ConfigKey

LONGEST_DEFAULT = 40  # characters; a whole prompt is not shown
KIND_WORDS = {
    "str": "string",
    "bool": "true or false",
    "int": "whole number",
    "number": "number",
    "list": "list",
    "object": "object",
}
NAMED_WORDS = {"directory": "a directory", "file": "a file", "preset-type-folder": "a folder in Presets"}
FOLDER = "-folder"
NO_KEYS = "It has no keys of its own.\n"
Column = Callable[[ConfigKey], str]


def table(keys: Iterable[ConfigKey], columns: Mapping[str, Column]) -> str:
    """A Markdown table with one row per key, under the heads of ``columns``."""
    rows = [" | ".join(column(key).replace("|", "\\|") for column in columns.values()) for key in keys]
    if not rows:
        return NO_KEYS
    head = " | ".join(columns)
    return "\n".join([f"| {head} |", "|" + "---|" * len(columns), *(f"| {row} |" for row in rows), ""])


# -- columns -----------------------------------------------------------------------------------------------------------


def name(key: ConfigKey) -> str:
    """The key as it is written."""
    return f"`{key.name}`"


def default(key: ConfigKey) -> str:
    """The default as a file would hold it."""
    if key.required:
        return "required"
    return "" if key.default is None or key.default == "" else in_json(key.default)


def in_json(value: object) -> str:
    """A value as a file holds it, short."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    text = json.dumps(whole, ensure_ascii=False)
    return f"`{text}`" if len(text) <= LONGEST_DEFAULT else "built-in"


def kinds(key: ConfigKey) -> str:
    """What may stand in the key, in words."""
    words = [KIND_WORDS[kind] for kind in (key.kind, *key.also) if kind in KIND_WORDS]
    if words and key.entries in KIND_WORDS and key.kind in ("list", "object"):
        words[0] += f" of {KIND_WORDS[key.entries]}s"
    return " or ".join(words) or "any value"


def named(key: ConfigKey) -> str:
    """What the key names, in words; empty if it names nothing."""
    if key.names in NAMED_WORDS or not key.names:
        return NAMED_WORDS.get(key.names, "")
    kind = key.names.removesuffix(FOLDER)
    title = KINDS[kind].title if kind in KINDS else kind
    if key.names.endswith(FOLDER):
        return f"a folder of {title}s"
    # By the sound of the first letter: an endpoint, an MCP server, but a user.
    article = "an" if title.startswith((*"aeiAEI", "MCP")) else "a"
    return f"{article} {title}{' file' if title.endswith(('s', 'ing')) else ''}"


def allowed(key: ConfigKey) -> str:
    """The values that mean something, if not any of the kind."""
    if key.choices:
        return ", ".join(f"`{choice}`" for choice in key.choices)
    least, most = (None if limit is None else in_json(limit).strip("`") for limit in (key.least, key.most))
    if least is not None and most is not None:
        return f"{least} to {most}"
    return f"{least} or more" if least is not None else f"at most {most}" if most is not None else ""


def values(key: ConfigKey) -> str:
    """The values that mean something, or what they name."""
    return allowed(key) or named(key)


def meaning(key: ConfigKey) -> str:
    """What the key is for. Tags in it are not tags of the page."""
    return key.meaning.replace("<", "&lt;")


COLUMNS: Mapping[str, Column] = {"Key": name, "Type": kinds, "Default": default, "Values": values, "Meaning": meaning}
