"""How a key of a configuration file is declared: once, for the code that reads it and for all that explains it."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ConfigKey:
    """One key of a kind of file.

    Attributes:
        kind: the JSON type: ``str``, ``bool``, ``int``, ``number``, ``list``, ``object`` or ``any``.
        default: what counts when the key is absent or null.
        meaning: one sentence for the person who writes the file.
        choices: the only texts that mean something; any text if empty.
        names: the kind of thing that a text names: a kind of file such as ``endpoint`` or ``workflow``, a folder of
            such files such as ``endpoint-folder``, ``directory`` or ``file``; empty if it names nothing.
        least: the smallest number that means something.
        most: the largest number that means something.
        inert: the key is accepted and has no effect.
        also: further JSON types that mean the same, such as a single ``str`` where a ``list`` is declared.
        entries: the kind of each entry of a list, or of each value of an object; any if empty.
        keys: the keys of an object, or of each object in a list.
        is_open: an object takes keys beyond ``keys``.
    """

    name: str
    kind: str
    default: Any
    meaning: str
    required: bool = field(default=False, kw_only=True)
    choices: tuple[str, ...] = field(default=(), kw_only=True)
    names: str = field(default="", kw_only=True)
    least: float | None = field(default=None, kw_only=True)
    most: float | None = field(default=None, kw_only=True)
    inert: bool = field(default=False, kw_only=True)
    also: tuple[str, ...] = field(default=(), kw_only=True)
    entries: str = field(default="", kw_only=True)
    keys: tuple[ConfigKey, ...] = field(default=(), kw_only=True)
    is_open: bool = field(default=True, kw_only=True)


def by_name(keys: Iterable[ConfigKey]) -> Mapping[str, ConfigKey]:
    """The keys of one kind of file, to be looked up by name."""
    return {key.name: key for key in keys}
