"""Notices that a model repeats itself, while its answer arrives.

Small models that have nothing more to say often go on with the same line, the same words or ever new entries of a list,
until their limit ends the answer.
"""

from __future__ import annotations

import re

from Middleware.utilities.answers.cut_off_thoughts import THOUGHT_TAG
from Middleware.utilities.discussions.message_index.words import index_words

# A shorter line may be there often, such as a heading.
_LEAST_WORDS_OF_A_LINE = 3
_SAME_LINES = 3
# Characters that follow each other so often are a loop. A shorter one counts from so many characters on, too.
_LEAST_LOOP = 24
_SAME_LOOPS = 4
# Characters: rules between paragraphs are long rows of one character.
_LONGEST_ROW = 1_200
# Longer loops are found as equal lines.
_LONGEST_LOOP = 4_000
MOST_LIST_ITEMS = 40
# A longer line is a model that does not find its end.
MOST_WORDS_OF_A_LINE = 120
# So many new characters are waited for before a loop is looked for again.
_STEP = 16

_MARK = re.compile(r"\s*(?:[-*•–+>]|\(?\d{1,3}[.):])\s+")
# A member of an object that is written over several lines: its values may be the same in each.
_MEMBER = re.compile(r'\s*"(?!summary")[^"]*"\s*:')
_SENTENCE_END = re.compile(r"[.!?…:;。！？；\"”\]}|](?:\s|\Z)|[。！？]")
_JSON = re.compile(r"\s*(?:```\w*\s*)?[\[{]")
_LIST_START = re.compile(r'\s*[\[{"\d-]')
_CLOSED = re.compile(r"[.!?…。！？][\"'”’)\]」』）]*\s*\Z")


class RepetitionGuard:
    """Reads an answer piece by piece, until it repeats itself.

    Args:
        lines: a line of the answer is one sentence, so that a long line is a repetition as well. Elsewhere a line may
            be a paragraph, and a sentence without an end is one.

    Attributes:
        found: what repeats, for the log; "" for nothing so far.
    """

    def __init__(self, lines: bool = False) -> None:
        self.found = ""
        self._lines = lines
        self._text = ""
        self._cut = 0
        # Up to where lines, list items and loops were looked for.
        self._line_start = self._read = self._looked = 0
        self._seen: dict[str, int] = {}
        self._lists = _ListItems()

    def add(self, piece: str) -> bool:
        """Read on; return whether the answer repeats itself. Pieces of any size have the same result."""
        for start in range(0, len(piece), _STEP):
            self._text += piece[start : start + _STEP]
            if not self.found and self._thinks():
                continue
            if self.found or self._repeats():
                return True
        return False

    def end(self) -> str:
        """Return the answer, which ends here: all of it, or what stands before the repetition."""
        if not self.found and self._line_start < len(self._text) and not self._thinks():
            self._repeats_line(len(self._text))
        return self._before() if self.found else self._text

    def _thinks(self) -> bool:
        # Thoughts may come back to the same words.
        tag = THOUGHT_TAG.match(self._text.lstrip())
        if tag is None or tag[1]:
            return False
        ends = [end.end() for end in THOUGHT_TAG.finditer(self._text) if end[1]]
        if ends and self._line_start < ends[-1]:
            self._line_start = self._read = self._looked = ends[-1]
        return not ends and not self._loops()

    def _repeats(self) -> bool:
        return self._repeats_lines() or self._counts_items() or self._goes_on() or self._loops()

    def _note(self, found: str, cut: int) -> bool:
        self.found, self._cut = found, cut
        return True

    # -- the kinds of repetition ---------------------------------------------------------------------------------
    def _repeats_lines(self) -> bool:
        while (end := self._text.find("\n", self._line_start)) >= 0:
            if self._repeats_line(end):
                return True
            self._line_start = end + 1
        return False

    def _repeats_line(self, end: int) -> bool:
        line = self._text[self._line_start : end]
        key = " ".join(_MARK.sub("", line, count=1).split()).casefold()
        if _MEMBER.match(line) or (
            len(key.split()) < _LEAST_WORDS_OF_A_LINE and len(index_words(key)) < (_LEAST_WORDS_OF_A_LINE)
        ):
            return False
        self._seen[key] = self._seen.get(key, 0) + 1
        return self._seen[key] >= _SAME_LINES and self._note("a line", self._line_start)

    def _counts_items(self) -> bool:
        read, self._read = self._read, len(self._text)
        cut = self._lists.read(self._text, read)
        return cut is not None and self._note("a list", cut)

    def _goes_on(self) -> bool:
        start = self._line_start
        if not self._lines or _JSON.match(self._text):
            ends = [*_SENTENCE_END.finditer(self._text, start)]
            start = ends[-1].end() if ends else start
        # Most lines are short, and words have two characters or more.
        if len(self._text) - start <= MOST_WORDS_OF_A_LINE:
            return False
        count = len(index_words(self._text[start:]))
        return count > MOST_WORDS_OF_A_LINE and self._note("a line without an end", start)

    def _loops(self) -> bool:
        text, size = self._text, len(self._text)
        if size - self._looked < _STEP or size < _LEAST_LOOP * _SAME_LOOPS:
            return False
        self._looked = size
        end = text[-_LEAST_LOOP:]
        place = text.rfind(end, max(0, size - _LONGEST_LOOP - _LEAST_LOOP), size - 1)
        while place >= 0:
            step = size - _LEAST_LOOP - place
            # A loop of a few characters: as many of it as make a long one.
            length = _SAME_LOOPS * step * -(-_LEAST_LOOP // step)
            if step == 1 and not end.isspace():
                length = _LONGEST_ROW
            if length > size:
                return False
            if text[size - length : size - step] == text[size - length + step :]:
                start = size - length
                while start and text[start - 1] == text[start - 1 + step]:
                    start -= 1
                return self._note("the same words", start + step)
            place = text.rfind(end, max(0, size - _LONGEST_LOOP - _LEAST_LOOP), place + _LEAST_LOOP - 1)
        return False

    # -- what is kept --------------------------------------------------------------------------------------------
    def _before(self) -> str:
        kept = self._text[: self._cut]
        if _JSON.match(kept):
            # Whatever reads it takes the objects that are whole.
            return kept
        whole, newline, last = kept.rpartition("\n")
        if last.strip() and not _CLOSED.search(last):
            ends = [found.end() for found in re.finditer(r"[.!?…][\"'”’)\]]*(?=\s)|[。！？]", last)]
            kept = whole + newline + last[: ends[-1]] if ends else whole
        return _without_repeated_end(kept)


def _without_repeated_end(text: str) -> str:
    """Return the text without lines at its end that it has before."""
    lines = text.splitlines(keepends=True)
    while lines and (not lines[-1].strip() or lines[-1].strip() in {line.strip() for line in lines[:-1]}):
        lines.pop()
    return "".join(lines).rstrip()


class _ListItems:
    """Counts the items of lists in JSON, character by character."""

    def __init__(self) -> None:
        # Of each open bracket how many commas have followed; None for an object, and for a bracket of a text.
        self._open: list[int | None] = []
        self._quoted = self._escaped = False
        self._pending: int | None = None

    def read(self, text: str, start: int) -> int | None:
        """Read on from ``start``; return where a list has more items than ``MOST_LIST_ITEMS``, None for nowhere."""
        for place in range(start, len(text)):
            if (cut := self._take(text[place], place)) is not None:
                return cut
        return None

    def _take(self, character: str, place: int) -> int | None:
        if self._quoted:
            self._quoted = self._escaped or character != '"'
            self._escaped = not self._escaped and character == "\\"
            return None
        if self._pending is not None and not character.isspace():
            # Only what begins like JSON is a list.
            if not _LIST_START.match(character):
                self._open.pop()
            self._pending = None
        if character == '"':
            self._quoted = bool(self._open)
        elif character in "[{":
            self._open.append(0 if character == "[" else None)
            self._pending = place if character == "[" else None
        elif character in "]}" and self._open:
            self._open.pop()
        elif character == "," and self._open and (count := self._open[-1]) is not None:
            self._open[-1] = count + 1
            return place if count + 1 >= MOST_LIST_ITEMS else None
        return None
