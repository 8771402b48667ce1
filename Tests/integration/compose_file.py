"""Reads ``compose.yaml`` as far as that file goes, so that the tests need no package for it.

The part of YAML that is understood: comments on lines of their own, mappings and lists by indentation, ``[]``, and
scalars of one line, plain or in double quotes, which all stay texts. Anything else raises ValueError.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_KEY = re.compile(r"([\w./-]+):(?: +(.*))?")
_PLAIN = re.compile(r"[\w./](?:[\w ./-]|:(?=\S))*")
Line = tuple[int, str]


def read_compose(file: Path) -> dict[str, Any]:
    return parse(file.read_text(encoding="utf-8"))


def parse(text: str) -> dict[str, Any]:
    """The top mapping."""
    lines = [
        (len(line) - len(line.lstrip(" ")), line.strip())
        for line in text.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    value, rest = _block(lines, 0)
    if rest or not isinstance(value, dict):
        raise ValueError(f"not understood: {rest[:1]}")
    return value


def _block(lines: list[Line], indent: int) -> tuple[Any, list[Line]]:
    """The mapping or list whose lines begin at ``indent``, and the lines after it."""
    is_list = bool(lines) and lines[0][1].startswith("- ")
    items: list[str] = []
    mapping: dict[str, Any] = {}
    while lines and lines[0][0] == indent and lines[0][1].startswith("- ") == is_list:
        text, lines = lines[0][1], lines[1:]
        if is_list:
            items.append(_scalar(text[2:]))
            continue
        key, value = _key(text)
        if key in mapping:
            raise ValueError(f"twice: {text}")
        if value is None and lines and lines[0][0] > indent:
            mapping[key], lines = _block(lines, lines[0][0])
        else:
            mapping[key] = [] if value == "[]" else None if value is None else _scalar(value)
    return (items if is_list else mapping), lines


def _key(text: str) -> tuple[str, str | None]:
    found = _KEY.fullmatch(text)
    if found is None:
        raise ValueError(f"not understood: {text}")
    return found[1], found[2]


def _scalar(text: str) -> str:
    if text.startswith('"'):
        return str(json.loads(text))
    if not _PLAIN.fullmatch(text):
        raise ValueError(f"put this into double quotes: {text}")
    return text
