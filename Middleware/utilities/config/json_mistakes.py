"""Explanations of JSON syntax errors: a sentence that says what to change, and where."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

_WORD = re.compile(r"[^\W\d][\w$-]{0,39}")
_NUMBER = re.compile(r"[+-]?[\d.][\w.+-]{0,39}")
_QUOTES = "'`´‘’‚“”„«»"
_CLOSING = {"{": "}", "[": "]"}
_LITERALS = {"true": "true", "false": "false", "none": "null", "nil": "null", "null": "null", "undefined": "null"}
# The byte order marks of UTF-16, as Western code pages decode them.
_UTF_16 = ("ÿþ", "þÿ")


class Mistake(NamedTuple):
    """``message`` has no full stop; ``position`` is an index into the text, at most its length."""

    message: str
    position: int


def explain(problem: str, text: str, position: int, open_bracket: Callable[[int], int | None]) -> Mistake:
    """Return the mistake behind ``problem``, which ``json`` reports at ``position`` of ``text``.

    ``open_bracket`` returns the offset of the innermost bracket that is open at an offset.
    """
    if text[:2] in _UTF_16 or "\0" in text[:2]:
        return Mistake("the file is UTF-16; save it as UTF-8", 0)
    if problem.startswith(("Unterminated string", "Invalid control character")):
        return _broken_text(text, position)
    if "escape" in problem:
        return Mistake(
            r"write a backslash in a string twice (C:\\Models), or use a forward slash (C:/Models)", position
        )
    return _Failure(problem, text, position, open_bracket).mistake()


def _broken_text(text: str, position: int) -> Mistake:
    char = text[position : position + 1]
    if char == "\t":
        return Mistake(r"a string contains a tab; write \t", position)
    if char in ("\n", "\r", '"', ""):
        return Mistake(
            r"a string has no closing quotation mark on its line (write a line break in a string as \n)", position
        )
    return Mistake(f"a string contains a control character (U+{ord(char):04X}); write \\u{ord(char):04x}", position)


class _Failure:
    """The position where the parser failed: ``char`` is the character there, ``last`` the one before it."""

    def __init__(self, problem: str, text: str, position: int, open_bracket: Callable[[int], int | None]) -> None:
        self.problem, self.text, self._open_bracket = problem, text, open_bracket
        while position < len(text) and text[position].isspace():
            position += 1
        # Python 3.13 reports the position of the comma, older versions that of the bracket after it.
        if problem.startswith("Illegal trailing comma"):
            position = len(text) - len(text[position + 1 :].lstrip())
        self.position, self.char = position, text[position : position + 1]
        before = text[:position].rstrip()
        self.end, self.last = len(before), before[-1:]

    def mistake(self) -> Mistake:
        return (
            self._anywhere()
            or self._comma()
            or self._extra()
            or self._separator()
            or self._value()
            or self._at(_PLAIN.get(self.problem, self.problem[:1].lower() + self.problem[1:]))
        )

    def _at(self, message: str, position: int | None = None) -> Mistake:
        return Mistake(message, self.position if position is None else position)

    def _anywhere(self) -> Mistake | None:
        """Explain text that is never valid in JSON, and the end of the file."""
        rest = self.text[self.position : self.position + 7]
        if not self.char:
            opened = self._open_bracket(self.position)
            return self._at(
                f"the file ends too early: the '{self.text[opened]}' of line {self._line(opened)} is not closed"
                if opened is not None
                else "the file ends too early"
            )
        if rest.startswith(("//", "/*", "#", "<!--")):
            return self._at('JSON has no comments; write the remark as a string under a key such as "_comment"')
        if rest in ("<<<<<<<", "=======", ">>>>>>>"):
            return self._at("this is a marker of a merge conflict")
        if self.char in _QUOTES:
            return self._at(f'strings and keys need straight double quotation marks ("), not {self.char}')
        return None

    def _comma(self) -> Mistake | None:
        if self.last == "," and self.char in ("}", "]"):
            return self._at(f"there is a comma before the closing '{self.char}'", self.end - 1)
        if self.char == "," and self.last in (",", "[", "{"):
            return self._at("there is a comma without an entry before it")
        return None

    def _extra(self) -> Mistake | None:
        if self.problem != "Extra data":
            return None
        if self.char in ("}", "]"):
            return self._at(f"there is one '{self.char}' too many")
        return self._at("the JSON is complete before this; is there a closing bracket too many, or a second object?")

    def _separator(self) -> Mistake | None:
        if self.problem.startswith("Expecting ':'"):
            return self._at(
                f"write ':' between a key and its value, not '{self.char}'"
                if self.char in "=;,"
                else "':' and a value are expected after a key; check its quotation marks"
            )
        if not self.problem.startswith("Expecting ','"):
            return None
        opened = self._open_bracket(self.position)
        bracket = self.text[opened] if opened is not None else ""
        if self.char in ("}", "]") or (self.char == ":" and bracket == "["):
            wanted = _CLOSING.get(bracket, "")
            return self._at(
                f"'{self.char}' is not allowed here: the '{bracket}' of line {self._line(opened or 0)} is "
                f"not closed by '{wanted}'"
            )
        # Without a space between them, two adjacent tokens are probably one that was misspelt.
        adjacent = self.end == self.position
        if adjacent and self.last.isalnum() and (self.char.isalnum() or self.char == "."):
            return self._at(f"this is not a number: {self._number(self._number_start())}", self._number_start())
        # After a string, "t", "f" and "n" may begin true, false or null, with only a comma missing.
        if self.last == '"' and self.char.isalpha() and (adjacent or self.char not in "tfn"):
            return self._at('write a quotation mark inside a string as \\"', self.end - 1)
        if self.char in ":=;":
            return self._at(f"a comma is expected here, not '{self.char}'")
        before, here = self._line(self.end), self._line(self.position)
        return self._at("a comma is missing before this" + (f", at the end of line {before}" if before < here else ""))

    def _value(self) -> Mistake | None:
        """Explain something else in the position of a key or a value."""
        word = _WORD.match(self.text, self.position)
        as_key = self.problem.startswith("Expecting property name")
        if word and not as_key and word.group().lower() in _LITERALS:
            return self._at(f"'{word.group()}' is written {_LITERALS[word.group().lower()]} in JSON")
        if word:
            return self._at(f"the {'key' if as_key else 'string'} '{word.group()}' needs double quotation marks")
        if as_key:
            return None
        if self.char in ",}]" and self.last == ":":
            return self._at("the key has no value")
        return self._at(f"this is not a number: {self._number(self.position)}") if self.char in "+.-" else None

    def _number_start(self) -> int:
        start = self.position
        while start and (self.text[start - 1].isalnum() or self.text[start - 1] in ".+-"):
            start -= 1
        return start

    def _number(self, start: int) -> str:
        match = _NUMBER.match(self.text, start)
        return match.group() if match else self.char

    def _line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1


_PLAIN = {
    "Expecting property name enclosed in double quotes": "a key in double quotation marks is expected here",
    "Expecting value": "a value is expected here",
}
