"""Docs/User/Configuration_Reference.md: every kind of file with its keys, as the program declares them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from Middleware.addons.check.file_check import KINDS, FileKind
from Middleware.utilities.config.declarations import ConfigKey
from Scripts.generate import config_schemas, generated_files, key_tables
from Scripts.generate.reference_texts import INTRODUCTION, TEXTS

PATH = generated_files.ROOT / "Docs" / "User" / "Configuration_Reference.md"
ELSEWHERE = frozenset({"$schema"})
"""Keys of every file, which the introduction tells of."""


def render() -> str:
    """The page."""
    return "\n".join([INTRODUCTION, _overview(), *(_section(kind) for kind in in_order())])


def in_order() -> list[FileKind]:
    """The kinds in the order in which one meets them."""
    return [KINDS[name] for name in TEXTS]


def _overview() -> str:
    rows = [f"| [{heading(kind)}](#{anchor(kind)}) | `{kind.pattern}` | {kind.meaning} |" for kind in in_order()]
    return "\n".join(["| Kind | Files | What for |", "|---|---|---|", *rows, ""])


def heading(kind: FileKind) -> str:
    """The title of a kind's section."""
    title = kind.title[:1].upper() + kind.title[1:]
    return title if title.endswith("s") or kind.name in ("current-user", "routing") else f"{title}s"


def anchor(kind: FileKind) -> str:
    """What a link to the section ends in."""
    return heading(kind).lower().replace(" ", "-")


def _section(kind: FileKind) -> str:
    text = TEXTS[kind.name]
    example = config_schemas.pretty(text.example)
    parts = [
        f"## {heading(kind)}\n",
        f"{kind.meaning}\n",
        f"* Where: {text.place}\n* Schema: `Public/Schemas/{config_schemas.file_name(kind.name)}`\n",
        f"```json part={kind.name}\n{example}\n```\n",
    ]
    keys = [key for key in kind.keys if key.name not in ELSEWHERE]
    if keys:
        parts += [*(["In each category:\n"] if kind.entries else []), _table(keys), *_inner(keys, "")]
    return "\n".join([*parts, *([f"{text.more}\n"] if text.more else [])])


def _inner(keys: Iterable[ConfigKey], path: str) -> Iterator[str]:
    """Tables for objects inside a file, and objects inside these."""
    for key in keys:
        if key.keys:
            name = f"{path}.{key.name}" if path else key.name
            where = f"In `{name}`" if key.kind == "object" else f"In each entry of `{name}`"
            yield f"{where}:\n"
            yield _table(key.keys)
            yield from _inner(key.keys, name)


def _table(keys: Iterable[ConfigKey]) -> str:
    return key_tables.table(keys, {**key_tables.COLUMNS, "Values": _values})


def _values(key: ConfigKey) -> str:
    """The allowed values, or a link to the kind that the key names."""
    allowed, named = key_tables.allowed(key), key_tables.named(key)
    kind = KINDS.get(key.names.removesuffix(key_tables.FOLDER))
    link = f"[{named}](#{anchor(kind)})" if kind else named
    return "; ".join(filter(None, (allowed, link)))


def files() -> dict[Path, str]:
    """The page with current tables."""
    return {PATH: render()}
