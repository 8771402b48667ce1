"""The words by which a message is found, the same for what is stored and for what is searched."""

from __future__ import annotations

import re
import unicodedata

from Middleware.utilities.stop_words import words_of

# Scripts without spaces: Thai to Lao, Myanmar, Khmer, kana, Chinese characters.
_UNSPACED = re.compile(
    "[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)
# Base64, hexadecimal digests and keys: no question has them, and each would be a word of its own.
LONGEST_WORD = 60
_DATA = re.compile(r"[A-Za-z0-9+/=_-]{61,}")
_OF_DATA = (re.compile(r"\d"), re.compile(r"[a-z]"), re.compile(r"[A-Z]"))
# Scripts with marks that the index takes for the end of a word, and those above.
_WITH_MARKS = re.compile("[\u0591-\u1dff\u2c00-\uabff\uf900-\ufdff\U00020000-\U0003ffff]")


def index_words(text: str) -> list[str]:
    """Return the words of ``text`` in order, as ``words_of`` folds them.

    In scripts without spaces, a word is a pair of neighbouring characters; a character alone is itself. Runs of more
    than ``LONGEST_WORD`` letters and digits are left out.
    """
    if len(text) > LONGEST_WORD and max(map(len, text.split()), default=0) > LONGEST_WORD:
        text = _DATA.sub(_without_data, text)
    if text.isascii() or not _WITH_MARKS.search(text):
        return [word for word in words_of(text) if len(word) <= LONGEST_WORD]
    words: list[str] = []
    for word in words_of(_without_marks(text)):
        if _UNSPACED.search(word):
            words += _split(word)
        elif len(word) <= LONGEST_WORD:
            words.append(word)
    return words


def _without_data(run: re.Match[str]) -> str:
    # Looked at once for each run: as conditions within the expression, they would be tried at each of its characters.
    return " " if all(kind.search(run[0]) for kind in _OF_DATA) else run[0]


def is_pair(word: str) -> bool:
    """Return whether ``word`` is one of a script without spaces."""
    return _UNSPACED.match(word) is not None


def _without_marks(text: str) -> str:
    # Composed first: a Japanese sound mark is part of its letter.
    composed = unicodedata.normalize("NFC", text)
    return "".join(character for character in composed if unicodedata.category(character)[0] != "M")


def _split(word: str) -> list[str]:
    """Return the words of a run of letters in which a script without spaces occurs."""
    words: list[str] = []
    end = 0
    for found in _UNSPACED.finditer(word):
        words += [word[end : found.start()]] if found.start() > end else []
        words += [found[0][index : index + 2] for index in range(max(1, len(found[0]) - 1))]
        end = found.end()
    return words + ([word[end:]] if end < len(word) else [])
