"""Hostile inputs as data, each with the outcome that the tests expect, so that every test of a kind knows them all.

A corpus is ``<name>.json``: an object with ``comment`` (what the fields mean) and ``entries``. Every entry has an
``input``, an outcome, and a ``comment`` that says what it is about. ``{"repeat": "x", "times": 300}`` stands for a long
text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent


@lru_cache
def load(name: str) -> tuple[Mapping[str, Any], ...]:
    """The entries of a corpus, with long texts written out."""
    corpus = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return tuple({key: _expanded(value) for key, value in entry.items()} for entry in corpus["entries"])


def cases(corpus: str, **wanted: Any) -> list[Any]:
    """The entries whose fields have the wanted values, as parameters named by number and comment."""
    return [
        pytest.param(entry, id=f"{number}-{entry['comment'].replace(' ', '_')[:40]}")
        for number, entry in enumerate(load(corpus))
        if all(entry.get(field) == value for field, value in wanted.items())
    ]


def texts_of(corpus: str, **wanted: Any) -> list[str]:
    """The inputs of the entries whose fields have the wanted values, those that are texts."""
    return [
        entry["input"]
        for entry in load(corpus)
        if isinstance(entry["input"], str) and all(entry.get(field) == value for field, value in wanted.items())
    ]


def _expanded(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"repeat", "times"}:
        return value["repeat"] * value["times"]
    return value
