"""Parts of texts: pieces between delimiters, fields of JSON objects, texts between tags, lines."""
from __future__ import annotations

import io
import json
import re
from collections.abc import Callable

_FENCED = re.compile(r"```(?:json|JSON)?(.*)```", re.DOTALL)
# Python refuses to convert more than 4300 digits.
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,4000}")


def json_field(text: str, field: str) -> str:
    """Return one top-level field of the JSON object in ``text``, which may be in a fenced code block.

    Numbers and booleans are written as in Python, objects and arrays as JSON. The result is empty for null, for an
    absent field, and for a text that is not a JSON object.
    """
    text = text.strip()
    fenced = _FENCED.fullmatch(text)
    try:
        data = json.loads(fenced.group(1).strip() if fenced else text)
        return _as_text(data.get(field)) if field and isinstance(data, dict) else ""
    # Also for a number with too many digits, and for extreme nesting.
    except (ValueError, RecursionError):
        return ""


def tagged_text(text: str, tag: str) -> str:
    """Return the trimmed text between the first ``<tag>`` and the next ``</tag>``; empty if there is none."""
    _, opening, rest = text.partition(f"<{tag}>")
    inside, closing, _ = rest.partition(f"</{tag}>")
    return inside.strip() if tag and opening and closing else ""


def first_pieces(text: str, delimiter: str, count: int) -> str:
    """Return the first ``count`` pieces between delimiters, still joined; all of them if there are not so many."""
    return delimiter.join(text.split(delimiter)[:max(count, 0)])


def last_pieces(text: str, delimiter: str, count: int) -> str:
    """Return the last ``count`` pieces; a delimiter at the end makes a last piece that is empty."""
    return delimiter.join(text.split(delimiter)[-count:]) if count > 0 else ""


def lines_without(text: str, unwanted: Callable[[str], bool]) -> tuple[str, int]:
    """Return ``text`` without the ``unwanted`` lines, which it tests without their ends, and their number.

    Lines end with a line feed, a carriage return or both; the ends of the other lines are kept.
    """
    lines = list(io.StringIO(text, newline=""))
    kept = [line for line in lines if not unwanted(line.rstrip("\r\n"))]
    return "".join(kept), len(lines) - len(kept)


def whole_number(text: str) -> int | None:
    """Return the number in ``text``, which may have spaces around it; None for anything else."""
    text = text.strip()
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else None


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)
