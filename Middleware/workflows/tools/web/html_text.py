"""The visible text of an HTML page."""
from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser

HIDDEN_ELEMENTS = frozenset({"script", "style", "head", "noscript", "iframe"})
PIECE_CHARACTERS = 64 * 1024
MOST_EFFORT = 4_000_000  # characters read again for each "<" of an end that may be text after all


def visible_text(html: str, stopped: Callable[[], bool] = lambda: False) -> str:
    """The page's pieces of text, each trimmed, one per line; entities decoded, hidden elements left out.

    Takes any text; what is no HTML comes back as it is, trimmed. Large pages take seconds: when ``stopped`` says so,
    the rest is left out.
    """
    reader, start = _Reader(), 0
    while start < len(html) and not stopped():
        # The parser scans what is not closed yet again with each feed: growing pieces keep that linear.
        end = start + max(PIECE_CHARACTERS, len(reader.rawdata))
        reader.feed(html[start:end])
        start = end
    rest = reader.rawdata
    if len(rest) <= PIECE_CHARACTERS and len(rest) * rest.count("<") <= MOST_EFFORT:
        reader.close()  # else it is a tag or comment that never ends, which browsers hide too
    return "\n".join(reader.finished())


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._pieces: list[str] = []
        self._open: list[str] = []  # data that belongs to one piece
        self._hidden = ""
        self._depth = 0

    def finished(self) -> list[str]:
        self._end_piece()
        return self._pieces

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._open.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._end_piece()
        if self._hidden == "head" and tag == "body":  # the end tag of head may be left out
            self._hidden = ""
        if not self._hidden and tag in HIDDEN_ELEMENTS:
            self._hidden, self._depth = tag, 0
        if tag == self._hidden:
            self._depth += 1

    def handle_endtag(self, tag: str) -> None:
        self._end_piece()
        if tag == self._hidden:
            self._depth -= 1
            if self._depth == 0:
                self._hidden = ""

    def handle_comment(self, data: str) -> None:
        self._end_piece()

    def handle_decl(self, decl: str) -> None:
        self._end_piece()

    def handle_pi(self, data: str) -> None:
        self._end_piece()

    def unknown_decl(self, data: str) -> None:
        self._end_piece()

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:  # "<![" and something unknown, which browsers take for a comment
            return self.parse_bogus_comment(i)

    def _end_piece(self) -> None:
        text = "".join(self._open).strip()
        self._open.clear()
        if text:
            self._pieces.append(text)
