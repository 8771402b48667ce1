"""Configuration files without their secrets: each becomes ``<kept secret N>``, and can be put back where it was.

This is how the run console shows and edits files. The text need not be valid JSON, because a file with a mistake is
what an editor is for; its secrets are found all the same.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from Middleware.exceptions import WilmerError
from Middleware.utilities.config.excerpts import is_secret_name
from Middleware.utilities.sensitive_logging_utils import (
    SECRET_FLAGS,
    SECRET_KEYS,
    joined_spans,
    secret_spans,
    spans_after_names,
)

# Declared keys that only sound like secrets.
_HARMLESS = frozenset({"conditionalKey", "promptTemplateEndToken", "encryptUsingApiKey"})
# Objects of secrets: all values of an MCP server's environment and headers count, whatever their names.
_MCP_FOLDER, _MCP_HOLDERS = "MCPServers/", frozenset({"env", "headers"})
# Options of curl, without the dashes, whose value is a secret; short ones also behind others.
_SECRET_OPTION = re.compile(rf"user|proxy-user|oauth2-bearer|pass|cookie|proxy-pass|cert|{SECRET_FLAGS}")
# Keys whose value is a command, or its arguments.
_COMMANDS = frozenset({"args", "arguments", "command"})


# A string ends on its line even without a closing quotation mark; anything else ends at the next mark of JSON. The
# loop never gives back what it has, so that a backslash at the end of the line does not make it begin again and again.
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\[^\n]?)*+(?:"|(?=\n)|\Z)|[{}\[\],:=]|[^\s{}\[\],:="][^\s{}\[\],"]*')
_COLON = re.compile(r"\s*[:=]")
# A header written as one text, such as an argument of curl; ``Bearer`` and its like stay readable.
_HEADER = re.compile(r"([A-Za-z][\w-]*)\s*:\s*(?:(?:Bearer|Basic|Token|Digest)\s+)?(\S.*)", re.DOTALL)
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(?:=(.+))?", re.DOTALL)
# What is not a secret under any key: nothing, a word of JSON, variables alone, and references to where the key is.
_PLAIN = re.compile(r"\s*|true|false|null|\s*(?:\$?\{[\w.]+\}\s*)+|\s*(?:env|file):.*")
_KEPT = re.compile(r'"<kept secret (\d+)(?: of version (\d+))?>"|<kept secret (\d+)(?: of version (\d+))?>')


class Span(NamedTuple):
    """A secret in a text, from ``start`` to ``end``; ``whole``: it is a whole value, with its quotation marks."""

    start: int
    end: int
    whole: bool


class KeptSecretError(WilmerError, ValueError):
    """A kept secret cannot be put back. ``position`` is its index in the text."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True)
class Masked:
    """A text without its secrets, and these, in the order of their numbers."""

    text: str
    secrets: Sequence[str] = field(default=(), repr=False)


def masked(text: str, display: str, version: int | None = None) -> Masked:
    """Return the text of the configuration file ``display`` without its secrets.

    ``version`` marks the secrets as those of an older version of the file.
    """
    pieces, secrets, position = [], [], 0
    of = "" if version is None else f" of version {version}"
    for span in find_secrets(text, display):
        secrets.append(text[span.start : span.end])
        name = f"<kept secret {len(secrets)}{of}>"
        pieces += [text[position : span.start], f'"{name}"' if span.whole else name]
        position = span.end
    return Masked("".join([*pieces, text[position:]]), secrets)


def put_back(text: str, display: str, kept: Mapping[int | None, Sequence[str]]) -> str:
    """Return the text with its secrets. ``kept``: those of the file (None), and of older versions by their number.

    Raises KeptSecretError for a secret that there is not, or that would be shown where it is put.
    """
    pieces, inserted, position, moved = [], [], 0, 0
    for match in _KEPT.finditer(text):
        number, version = match[1] or match[3], match[2] or match[4]
        secrets = kept.get(int(version) if version else None, ())
        if not 0 < int(number) <= len(secrets):
            raise KeptSecretError(
                f"there is no {match[0].strip(chr(34))} in this file; write the value itself", match.start()
            )
        secret = secrets[int(number) - 1]
        value = secret if match[1] else _inside(secret)
        pieces += [text[position : match.start()], value]
        start = match.start() + moved
        inserted.append((start, start + len(value), match.start()))
        moved += len(value) - len(match[0])
        position = match.end()
    full = "".join([*pieces, text[position:]])
    _require_hidden(full, display, inserted)
    return full


def has_kept(text: str) -> bool:
    """Return whether a text holds secrets to be put back."""
    return _KEPT.search(text) is not None


def versions_named(text: str) -> set[int]:
    """Return the numbers of older versions whose secrets the text holds."""
    return {int(version) for match in _KEPT.finditer(text) if (version := match[2] or match[4])}


def _require_hidden(full: str, display: str, inserted: Sequence[tuple[int, int, int]]) -> None:
    """Raise KeptSecretError if a secret was put where it would be shown when the file is read again."""
    spans = find_secrets(full, display) if inserted else []
    for start, end, position in inserted:
        # The parts of a value around a secret are hidden together with it.
        if not any(span.start <= start and end <= span.end for span in spans):
            raise KeptSecretError(
                "a kept secret may stand only where secrets are hidden, such as under 'apiKey'", position
            )


def _inside(secret: str) -> str:
    return secret[1:-1] if secret[:1] == '"' == secret[-1:] and len(secret) > 1 else secret


# -- finding -----------------------------------------------------------------------------------------------------------


@dataclass
class _Holder:
    """An open object or list: the key of its current value, and whether everything in it is secret."""

    is_list: bool
    secret: bool
    key: str = ""
    last: str = ""


def find_secrets(text: str, display: str) -> list[Span]:
    """Return the secrets in the text of the configuration file ``display``, in order."""
    found = [*_secrets(text, display.startswith(_MCP_FOLDER))]
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
    return Span(start - marks, end + marks, _inside(secret) != secret)


def _secrets(text: str, of_mcp: bool) -> Iterator[Span]:
    holders = [_Holder(False, False)]
    for match in _TOKEN.finditer(text):
        token, holder = match.group(), holders[-1]
        if token in "{[":
            secret = holder.secret or _is_secret(holder.key) or (of_mcp and holder.key in _MCP_HOLDERS)
            holders.append(_Holder(token == "[", secret, holder.key if token == "[" else ""))
        elif token in "}]":
            # A file may have a bracket too many.
            if len(holders) > 1:
                holders.pop()
        elif token == ",":
            holder.key = holder.key if holder.is_list else ""
        elif token in ":=":
            continue
        elif token[0] == '"' and _COLON.match(text, match.end()):
            # Also in a list: the bracket before it may be the mistake.
            holder.key = _word(token)
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
    elif token[0] == '"':
        yield from _in_text(start, token)


def _in_value(start: int, token: str, holder: _Holder) -> Iterator[Span]:
    if holder.secret or _is_secret(holder.key) or _follows_option(holder):
        if not _PLAIN.fullmatch(_word(token)):
            yield Span(start, start + len(token), True)
    else:
        yield from _in_text(start, token, holder.key in _COMMANDS)


def _in_text(offset: int, token: str, is_command: bool = False) -> Iterator[Span]:
    """Yield the secrets inside a string: in addresses, headers and options."""
    found = secret_spans(token, is_command)
    begin, end = (1 if token[:1] == '"' else 0), len(token) - (token[-1:] == '"' and len(token) > 1)
    for pattern in (_HEADER, _OPTION):
        match = pattern.fullmatch(token, begin, end)
        if match and match[2] and (_is_secret(match[1]) or (pattern is _OPTION and _SECRET_OPTION.fullmatch(match[1]))):
            found.append(match.span(2))
    for start, stop in joined_spans(found):
        if not _PLAIN.fullmatch(token[start:stop]):
            yield Span(offset + start, offset + stop, False)


def _follows_option(holder: _Holder) -> bool:
    option = _OPTION.fullmatch(holder.last) if holder.is_list and not holder.secret else None
    return (
        option is not None
        and not option[2]
        and bool(_SECRET_OPTION.fullmatch(option[1]) or (holder.last.startswith("--") and _is_secret(option[1])))
    )


def _is_secret(name: str) -> bool:
    return bool(name) and name not in _HARMLESS and (name.lower() in SECRET_KEYS or is_secret_name(name))


def _word(token: str) -> str:
    """Return a token without quotation marks, and with its escapes read if it is a valid string."""
    if token[:1] == '"':
        try:
            return str(json.loads(token, strict=False))
        except ValueError:
            return token.strip('"')
    return token.strip("'`")
