"""The secrets in the text of a configuration file, which need not be valid JSON: they are found all the same."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from Middleware.utilities.sensitive_logging_utils import (
    SECRET_FLAGS,
    is_secret_name,
    joined_spans,
    secret_spans,
    spans_after_names,
)

# Options of curl, without the dashes, whose value is a secret; short ones also behind others.
_SECRET_OPTION = re.compile(rf"user|proxy-user|oauth2-bearer|pass|cookie|proxy-pass|cert|{SECRET_FLAGS}")
# Keys whose value is a command, or its arguments.
_COMMANDS = frozenset({"args", "arguments", "command"})
# A string ends on its line even without a closing quotation mark; anything else ends at the next mark of JSON. The
# loop never gives back what it has, so that a backslash at the end of the line does not make it begin again and again.
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\[^\n]?)*+(?:"|(?=\n)|\Z)|[{}\[\],:=]|[^\s{}\[\],:="][^\s{}\[\],"]*')
_COLON = re.compile(r"\s*[:=]")
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(?:=(.+))?", re.DOTALL)
# What is not a secret under any key: nothing, a word of JSON, variables alone, and references to where the key is.
_PLAIN = re.compile(r"\s*|true|false|null|\s*(?:\$?\{[\w.]+\}\s*)+|\s*(?:env|file):.*")


class Span(NamedTuple):
    """A secret in a text, from ``start`` to ``end``; ``whole``: it is a whole value, with its quotation marks."""

    start: int
    end: int
    whole: bool


@dataclass
class _Holder:
    """An open object or list: the key of its current value, and whether everything in it is secret.

    ``names``: keys whose values all are.
    """

    names: Container[str]
    is_list: bool = False
    secret: bool = False
    key: str = ""
    last: str = ""

    @property
    def is_secret(self) -> bool:
        """Whether the current value is."""
        return self.secret or is_secret_name(self.key) or self.key in self.names


def find_secrets(text: str, holders: Container[str] = ()) -> list[Span]:
    """Return the secrets in the text of a configuration file, in order. ``holders``: keys that have nothing else."""
    found = [*_secrets(text, holders)]
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(text)
        return found
    # A mistake can make any mark the beginning of a string, so that values pass for names.
    joined = joined_spans([*((span.start, span.end) for span in found), *spans_after_names(text)])
    whole = {(span.start, span.end): span for span in found if span.whole}
    return [whole.get(span) or _with_marks(text, *span) for span in joined]


def _with_marks(text: str, start: int, end: int) -> Span:
    """Return the span of a secret in a file with a mistake, with the quotation marks next to it.

    Marks around what is shown in its place decide how ``put_back`` reads it.
    """
    marks = text[start - 1 : start] == '"' == text[end : end + 1]
    secret = text[start - marks : end + marks]
    return Span(start - marks, end + marks, inside(secret) != secret)


def inside(secret: str) -> str:
    """Return a secret without the quotation marks around it."""
    return secret[1:-1] if secret[:1] == '"' == secret[-1:] and len(secret) > 1 else secret


def _secrets(text: str, names: Container[str]) -> Iterator[Span]:
    holders, before = [_Holder(names)], ""
    for match in _TOKEN.finditer(text):
        token, holder, after = match.group(), holders[-1], before
        before = token
        if token in "{[":
            holders.append(_Holder(names, token == "[", holder.is_secret, holder.key if token == "[" else ""))
        elif token in "}]":
            # A file may have a bracket too many.
            if len(holders) > 1:
                holders.pop()
        elif token == ",":
            # Where the value is missing, it may follow.
            holder.key = holder.key if holder.is_list or after in ":=" else ""
        elif token in ":=":
            continue
        elif token[-1] == ":" or (token[0] == '"' and _COLON.match(text, match.end())):
            # Also in a list, or after a colon: the mark before it may be the mistake, or the one behind it.
            is_value = holder.is_list or after in (":", "=")
            yield from (_in_value if is_value else _in_text)(match.start(), token, holder)
            holder.key = _word(token).rstrip(" :=\t")
        elif not holder.is_list and not holder.key:
            yield from _in_key(match.start(), token, holder)
        else:
            yield from _in_value(match.start(), token, holder)
            holder.last = _word(token)


def _in_key(start: int, token: str, holder: _Holder) -> Iterator[Span]:
    """Read what stands in the place of a key without a colon after it: one without quotation marks, for example."""
    name, colon, value = token.partition(":")
    holder.key = _word(name if token[0] != '"' else token).rstrip(" :=\t")
    if colon and value and token[0] != '"':
        yield from _in_value(start + len(name) + 1, value, holder)
    else:
        yield from (_in_value if holder.secret else _in_text)(start, token, holder)


def _in_value(start: int, token: str, holder: _Holder) -> Iterator[Span]:
    if holder.is_secret or _follows_option(holder):
        if not _PLAIN.fullmatch(_word(token)):
            yield Span(start, start + len(token), True)
    else:
        yield from _in_text(start, token, holder)


def _in_text(offset: int, token: str, holder: _Holder) -> Iterator[Span]:
    """Yield the secrets inside a string: in addresses, headers and options."""
    # The first quotation mark is not a part of the text, which may be a parameter or a header as a whole.
    begin = int(token[:1] == '"')
    found = [(begin + start, begin + stop) for start, stop in secret_spans(token[begin:], holder.key in _COMMANDS)]
    option = _OPTION.fullmatch(token, begin, len(token) - (token[-1:] == '"' and len(token) > 1))
    if option and option[2] and (is_secret_name(option[1]) or _SECRET_OPTION.fullmatch(option[1])):
        found.append(option.span(2))
    for start, stop in joined_spans(found):
        if not _PLAIN.fullmatch(token[start:stop]):
            yield Span(offset + start, offset + stop, False)


def _follows_option(holder: _Holder) -> bool:
    option = _OPTION.fullmatch(holder.last) if holder.is_list and not holder.secret else None
    return (
        option is not None
        and not option[2]
        and bool(_SECRET_OPTION.fullmatch(option[1]) or (holder.last.startswith("--") and is_secret_name(option[1])))
    )


def _word(token: str) -> str:
    """Return a token without quotation marks, and with its escapes read if it is a valid string."""
    if token[:1] == '"':
        try:
            return str(json.loads(token, strict=False))
        except ValueError:
            return token.strip('"')
    return token.strip("'`")
