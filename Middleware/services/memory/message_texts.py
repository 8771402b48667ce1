"""What is stored of a message: its text without all that others have put into it, in parts if it is long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from Middleware.utilities.discussions.message_index.words import index_words

# A part has so many words at most, a message so many parts: 8,800 words.
MOST_WORDS, MOST_PARTS = 220, 40
# Lines of a block of code, above which only its beginning and its end are stored.
MOST_CODE, CODE_KEPT = 60, 20
_FENCED = re.compile(r"^```.*?(?:^```[^\S\n]*$|\Z)", re.MULTILINE | re.DOTALL)
_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|\n")


def parts_of(text: str) -> list[str]:
    """Return ``text`` as one part, or in parts of at most ``MOST_WORDS`` words; none for a blank text.

    It is cut between paragraphs, else between sentences, else between words. What exceeds ``MOST_PARTS`` is left out.
    """
    text = text.strip()
    if not text:
        return []
    if "```" in text:
        text = _FENCED.sub(_shortened, text)
    if len(text) <= MOST_WORDS or len(index_words(text)) <= MOST_WORDS:
        return [text]
    return _packed(_paragraphs(text), "\n\n")[:MOST_PARTS]


def _shortened(found: re.Match[str]) -> str:
    lines = found[0].splitlines()
    if len(lines) <= MOST_CODE:
        return found[0]
    # The fences themselves are lines, too.
    return "\n".join((*lines[: CODE_KEPT + 1], CUT_CODE, *lines[-CODE_KEPT - 1 :]))


CUT_CODE = "[...]"
"""Stands for the lines in the middle of a block of code that are not stored."""


def _paragraphs(text: str) -> Iterator[str]:
    position = 0
    for fence in _FENCED.finditer(text):
        yield from _PARAGRAPH.split(text[position : fence.start()])
        yield fence[0]
        position = fence.end()
    yield from _PARAGRAPH.split(text[position:])


def _packed(pieces: Iterable[str], between: str) -> list[str]:
    """Return the pieces joined to parts that are as long as possible."""
    parts: list[str] = []
    room = 0
    for piece in filter(None, map(str.strip, pieces)):
        words = len(index_words(piece))
        if words > MOST_WORDS:
            parts += _packed(_SENTENCE.split(piece), " ") if between != " " else _cut(piece)
            room = 0
        elif words <= room:
            parts[-1] += between + piece
            room -= words
        else:
            parts.append(piece)
            room = MOST_WORDS - words
    return parts


def _cut(sentence: str) -> list[str]:
    words = sentence.split()
    if len(words) * 2 < len(index_words(sentence)):
        # A script without spaces: each character begins a word.
        return [sentence[at : at + MOST_WORDS] for at in range(0, len(sentence), MOST_WORDS)]
    return [" ".join(words[at : at + MOST_WORDS]) for at in range(0, len(words), MOST_WORDS)]
