"""Parts of texts: pieces between delimiters, fields of JSON objects, texts between tags, lines."""
from __future__ import annotations

import io
import json
import re
from collections.abc import Callable

_FENCED = re.compile(r"```(?:json|JSON)?(.*)```", re.DOTALL)
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,4000}")


def json_field(text: str, field: str) -> str:
    """One top-level field of the JSON object that ``text``, or the one fenced block it consists of, holds.

    Numbers and booleans as Python writes them, objects and arrays as JSON. Empty for null, a field that is absent, and
    a text that is no JSON object.
    """
    text = text.strip()
    fenced = _FENCED.fullmatch(text)
    try:
        data = json.loads(fenced.group(1).strip() if fenced else text)
        return _as_text(data.get(field)) if field and isinstance(data, dict) else ""
    except (ValueError, RecursionError):  # also a number of too many digits, and absurd nesting
        return ""


def tagged_text(text: str, tag: str) -> str:
    """What stands between the first ``<tag>`` and the nearest ``</tag>`` after it, trimmed; else empty."""
    _, opening, rest = text.partition(f"<{tag}>")
    inside, closing, _ = rest.partition(f"</{tag}>")
    return inside.strip() if tag and opening and closing else ""


def first_pieces(text: str, delimiter: str, count: int) -> str:
    """The first ``count`` pieces between delimiters, still joined; all of them if there are not so many."""
    return delimiter.join(text.split(delimiter)[:max(count, 0)])


def last_pieces(text: str, delimiter: str, count: int) -> str:
    """The last ``count`` pieces; a delimiter at the end makes a last piece that is empty."""
    return delimiter.join(text.split(delimiter)[-count:]) if count > 0 else ""


def lines_without(text: str, unwanted: Callable[[str], bool]) -> tuple[str, int]:
    """``text`` without the lines that ``unwanted`` says (it sees them without their end), and their number.

    Lines end with a line feed, a carriage return or both; the ends of those that stay are kept as they are.
    """
    lines = list(io.StringIO(text, newline=""))
    kept = [line for line in lines if not unwanted(line.rstrip("\r\n"))]
    return "".join(kept), len(lines) - len(kept)


def whole_number(text: str) -> int | None:
    """The number that ``text`` consists of, spaces around it aside; None if it is something else."""
    text = text.strip()
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else None


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)
