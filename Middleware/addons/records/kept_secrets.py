"""Configuration files without their secrets: each becomes ``<kept secret N>``, and can be put back where it was.

This is how the run console shows and edits files. The text need not be valid JSON, because a file with a mistake is
what an editor is for; its secrets are found all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from Middleware.exceptions import WilmerError
from Middleware.utilities.config.file_secrets import Span, find_secrets, inside

# Objects of secrets: all values of an MCP server's environment and headers count, whatever their names.
_MCP_FOLDER, _MCP_HOLDERS = "MCPServers/", frozenset({"env", "headers"})
_KEPT = re.compile(r'"<kept secret (\d+)(?: of version (\d+))?>"|<kept secret (\d+)(?: of version (\d+))?>')


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
    for span in _found(text, display):
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
        value = secret if match[1] else inside(secret)
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
    spans = _found(full, display) if inserted else []
    for start, end, position in inserted:
        # The parts of a value around a secret are hidden together with it.
        if not any(span.start <= start and end <= span.end for span in spans):
            raise KeptSecretError(
                "a kept secret may stand only where secrets are hidden, such as under 'apiKey'", position
            )


def _found(text: str, display: str) -> list[Span]:
    return find_secrets(text, _MCP_HOLDERS if display.startswith(_MCP_FOLDER) else ())
