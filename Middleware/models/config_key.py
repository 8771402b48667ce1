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
        names: the kind of thing that a text names, such as ``endpoint`` or ``workflow``; empty if it names nothing.
        least: the smallest number that means something.
        most: the largest number that means something.
        inert: the key is accepted and has no effect.
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


def by_name(keys: Iterable[ConfigKey]) -> Mapping[str, ConfigKey]:
    """The keys of one kind of file, to be looked up by name."""
    return {key.name: key for key in keys}
