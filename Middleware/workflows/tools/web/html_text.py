"""The visible text of HTML pages.

Python's ``html.parser`` is not used: what it holds back, hides or reads again and again differs between its releases.
This module finds tags and comments as the HTML standard describes it (in its section on tokenization), in linear time.
It builds no tree: the text needs none, and that of a hostile page costs far more than the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape

HIDDEN_ELEMENTS = frozenset({"script", "style", "head", "noscript", "iframe"})
# How many characters are read, at least, between two looks at ``stopped``.
LOOK_CHARACTERS = 64 * 1024

# Any other "<" is text.
_MARKUP = re.compile(
    r"<(?:(?P<comment>!--)|(?P<declaration>[!?]|/(?![a-zA-Z]|\Z))|"
    r"(?P<end>/?)(?P<tag>[a-zA-Z][^ \t\n\r\f/>]*))"
)
_COMMENT_END = re.compile(r"(?<=<!--)-?>|--!?>")
# A quoted value that is never closed reaches to the end of the page.
_ATTRIBUTE = re.compile(
    r"""[ \t\n\r\f/]*[^ \t\n\r\f/>][^ \t\n\r\f/>=]*
                            (?:[ \t\n\r\f]*=[ \t\n\r\f]*(?:"[^"]*"?|'[^']*'?|[^"'> \t\n\r\f][^> \t\n\r\f]*)?)?""",
    re.VERBOSE,
)
_TAG_END = re.compile(r"[ \t\n\r\f/]*>")
_HEAD_END = re.compile(r"</head(?=[ \t\n\r\f/>])|<body(?=[ \t\n\r\f/>])", re.IGNORECASE | re.ASCII)
# What is in these elements is not markup, up to the end tag of the element.
_ENDS_WITHOUT_MARKUP = {
    name: re.compile(rf"</{name}(?=[ \t\n\r\f/>])", re.IGNORECASE | re.ASCII)
    for name in ("script", "style", "iframe", "xmp", "textarea", "title")
}
_WITH_ENTITIES = frozenset({"textarea", "title"})
_CDATA_END = re.compile(r"]]>")


def visible_text(html: str, stopped: Callable[[], bool] = lambda: False) -> str:
    """Return the page's pieces of text, each trimmed, one per line; entities decoded, hidden elements left out.

    Takes any string; one that is not HTML is returned trimmed. As in browsers, a tag, a comment or a script that never
    ends hides what follows. Large pages take seconds: once ``stopped`` returns True, the rest is left out.
    """
    return "\n".join(_Page(html).read(stopped))


class _Page:
    def __init__(self, html: str) -> None:
        self._html = html
        self._pieces: list[str] = []
        # The outermost hidden element that is open, and how many of its name are.
        self._hidden, self._depth = "", 0
        self._absent: set[re.Pattern[str]] = set()

    def read(self, stopped: Callable[[], bool]) -> list[str]:
        """Return the pieces."""
        start = looked_at = 0
        while markup := _MARKUP.search(self._html, start):
            if markup.start() - looked_at >= LOOK_CHARACTERS:
                looked_at = markup.start()
                if stopped():
                    return self._pieces
            self._add(start, markup.start())
            start = self._after(markup)
        self._add(start, len(self._html))
        return self._pieces

    def _add(self, start: int, end: int, entities: bool = True) -> None:
        if self._hidden:
            return
        text = self._html[start:end]
        if entities and "&" in text:
            text = _decoded(text)
        if text := text.strip():
            self._pieces.append(text)

    def _after(self, markup: re.Match[str]) -> int:
        """Take in a comment, a declaration or a tag. Return where the text behind it begins."""
        if markup["comment"]:
            end = _COMMENT_END.search(self._html, markup.end())
            return end.end() if end else len(self._html)
        if markup["declaration"]:
            return self._after_declaration(markup.start())
        position, empty = self._tag_end(markup.end())
        name = markup["tag"].lower()
        if position < 0:
            return len(self._html)
        if markup["end"]:
            self._close(name)
        # XHTML allows <script src="..."/>, which has no end tag.
        elif not empty:
            self._open(name, position)
            return self._after_content(name, position)
        return position

    def _after_declaration(self, start: int) -> int:
        if self._html.startswith("<![CDATA[", start) and (section := self._find(_CDATA_END, start)):
            return section.end()
        # Also what browsers take for a comment, such as "<![if IE]>", "<?xml ...?>" and "</ p>".
        return self._html.find(">", start) + 1 or len(self._html)

    def _tag_end(self, position: int) -> tuple[int, bool]:
        """Return the position behind the tag, -1 if it never ends, and whether it ends with "/>"."""
        while attribute := _ATTRIBUTE.match(self._html, position):
            position = attribute.end()
        end = _TAG_END.match(self._html, position)
        return (end.end(), end[0].endswith("/>")) if end else (-1, False)

    def _open(self, name: str, position: int) -> None:
        # The end tag of head may be left out.
        if self._hidden == "head" and name == "body":
            self._hidden = ""
        if not self._hidden and name in HIDDEN_ELEMENTS and (name != "head" or self._find(_HEAD_END, position)):
            self._hidden, self._depth = name, 0
        if name == self._hidden:
            self._depth += 1

    def _close(self, name: str) -> None:
        if name == self._hidden:
            self._depth -= 1
            if self._depth == 0:
                self._hidden = ""

    def _after_content(self, name: str, start: int) -> int:
        """Return where markup can begin again after this start tag."""
        if name == "plaintext":
            end = len(self._html)
        elif name in _ENDS_WITHOUT_MARKUP and (found := self._find(_ENDS_WITHOUT_MARKUP[name], start)):
            end = found.start()
        # Without its end tag, a title or textarea would show all tags of the page.
        else:
            return start
        self._add(start, end, entities=name in _WITH_ENTITIES)
        return end

    def _find(self, end: re.Pattern[str], start: int) -> re.Match[str] | None:
        # Once is enough: a million <title> without an end must not each read the whole page.
        found = None if end in self._absent else end.search(self._html, start)
        if found is None:
            self._absent.add(end)
        return found


def _decoded(text: str) -> str:
    try:
        return unescape(text)
    # A number of more digits than Python converts; no character has one.
    except ValueError:
        return text
