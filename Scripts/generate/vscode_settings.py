"""The entry ``json.schemas`` of a VS Code settings file, which may hold comments, trailing commas and other settings.

Everything else in the file stays as it is, to the byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

KEY = "json.schemas"
INDENT = "  "
Entry = dict[str, Any]

_TOKEN = re.compile(
    r"""(?P<comment>//[^\r\n]*|/\*.*?\*/)|(?P<text>"(?:\\.|[^"\\\r\n])*")|(?P<mark>[{}\[\],:])"""
    r"""|(?P<word>[^\s{}\[\],:"/]+)|(?P<space>\s+)|(?P<wrong>.)""",
    re.DOTALL,
)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True)
class _Member:
    """A key of the settings with the place of its value."""

    key: str
    start: int
    end: int


def with_schemas(text: str, entries: Sequence[Entry], is_own: Callable[[str], bool]) -> str:
    """The settings file with ``entries`` in the list of schemas, in place of those whose ``url`` ``is_own`` accepts.

    Entries that other people made are kept behind them. A blank ``text`` counts as an empty file. Raises ValueError
    for what is not a settings file.
    """
    if not text.strip("\ufeff \t\r\n"):
        return f"{{\n{INDENT}{_member(entries, [])}\n}}\n"
    line_end = "\r\n" if "\r\n" in text else "\n"
    opening, members = _members(text)
    found = next((member for member in reversed(members) if member.key == KEY), None)
    if found is None:
        more = "," if members else ""
        rest = text[opening + 1 :]
        gap = "" if rest[:1] in ("\r", "\n") else line_end
        return text[: opening + 1] + (f"\n{INDENT}{_member(entries, [])}{more}").replace("\n", line_end) + gap + rest
    others = [item for item in _items(text[found.start : found.end]) if not is_own(_url(item))]
    return (
        text[: found.start] + _list(entries, others).replace("\r\n", "\n").replace("\n", line_end) + text[found.end :]
    )


# -- writing -----------------------------------------------------------------------------------------------------------


def _member(entries: Sequence[Entry], others: Sequence[str]) -> str:
    return f"{json.dumps(KEY)}: {_list(entries, others)}"


def _list(entries: Sequence[Entry], others: Sequence[str]) -> str:
    inner = INDENT * 2
    items = [json.dumps(entry, indent=len(INDENT), ensure_ascii=False).replace("\n", f"\n{inner}") for entry in entries]
    lines = f",\n{inner}".join([*items, *map(_closed, others)])
    return f"[\n{inner}{lines.rstrip()}\n{INDENT}]" if lines else "[]"


def _closed(item: str) -> str:
    """An item after which a comma has effect: not one that ends in a comment up to the end of the line."""
    last = [token for token in _tokens(item) if token.kind != "space"][-1]
    return f"{item}\n{INDENT * 2}" if last.text.startswith("//") else item


# -- reading -----------------------------------------------------------------------------------------------------------


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        yield _Token(str(match.lastgroup), match.group(), match.start())


def _members(text: str) -> tuple[int, list[_Member]]:
    """Where the root object begins, and its members. Raises ValueError if there is no such object."""
    if not isinstance(_loads(text), dict):
        raise ValueError("the file holds no JSON object")
    tokens = [token for token in _tokens(text.replace("\ufeff", " ", 1)) if token.kind not in ("space", "comment")]
    members, place = [], 1
    while tokens[place].text != "}":
        last = _last_of_value(tokens, place + 2)  # behind the key and its colon
        members.append(_Member(json.loads(tokens[place].text), tokens[place + 2].start, tokens[last].end))
        place = last + (2 if tokens[last + 1].text == "," else 1)
    return tokens[0].start, members


def _last_of_value(tokens: Sequence[_Token], place: int) -> int:
    """The place of the last token of the value that begins at ``place``."""
    depth = 0
    for index in range(place, len(tokens)):
        depth += (tokens[index].text in ("{", "[")) - (tokens[index].text in ("}", "]"))
        if depth == 0:
            return index
    raise ValueError("a bracket is not closed")


def _items(text: str) -> list[str]:
    """The items of a list as they are written, with the comments around them."""
    if not isinstance(_loads(text), list):
        raise ValueError(f"'{KEY}' is not a list")
    items, depth, start = [], 0, 1
    for token in _tokens(text):
        depth += (token.text in ("{", "[")) - (token.text in ("}", "]"))
        if token.kind == "mark" and ((depth == 1 and token.text == ",") or depth == 0):
            items.append(text[start : token.start].strip())
            start = token.end
    return [item for item in items if _without_comments(item).strip()]


def _url(item: str) -> str:
    entry = _loads(item)
    return str(entry.get("url", "")) if isinstance(entry, dict) else ""


def _loads(text: str) -> Any:
    """JSON with comments and trailing commas. Raises ValueError."""
    return json.loads(
        re.sub(
            r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])',
            lambda match: match.group(1) or "",
            _without_comments(text.lstrip("\ufeff")),
        )
    )


def _without_comments(text: str) -> str:
    return "".join(" " if token.kind == "comment" else token.text for token in _tokens(text))
