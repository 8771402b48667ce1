"""Bytes of a file to text, and text to JSON."""
from __future__ import annotations

import codecs
import json
import locale
import logging
from typing import NamedTuple, NoReturn

from Middleware.exceptions import ConfigSyntaxError
from Middleware.utilities.config.json_mistakes import constant_position, explain

logger = logging.getLogger(__name__)


def legacy_code_page() -> str:
    """The encoding that a file which is not UTF-8 most likely has: the locale's own, else Western Windows."""
    name = codecs.lookup(locale.getpreferredencoding(False)).name
    return name if name not in ("utf-8", "ascii") else "cp1252"


class ForeignByte(NamedTuple):
    """The first byte of a file that is not UTF-8; both numbers count from 1, the column in bytes."""

    line: int
    column: int


def decode(data: bytes) -> tuple[str, ForeignByte | None]:
    """``data`` as UTF-8 with an optional BOM; else as the legacy code page, bad bytes replaced, with the place."""
    try:
        return data.decode("utf-8-sig"), None
    except UnicodeDecodeError as error:
        place = ForeignByte(data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start))
        return data.decode(legacy_code_page(), errors="replace"), place


def decode_text(data: bytes, display: str) -> str:
    """The text of ``decode``, with a warning that names ``display`` if it is not UTF-8."""
    text, foreign = decode(data)
    if foreign is not None:
        logger.warning("%s is not UTF-8 (line %d, column %d); it is read as %s. Expected: a file saved as UTF-8.",
                       display, *foreign, legacy_code_page())
    return text


def parse_json(data: bytes, display: str) -> object:
    """Strict JSON. Raises ``ConfigSyntaxError`` with ``display``, line and column."""
    return parse_text(decode_text(data, display), display)


def parse_text(text: str, display: str) -> object:
    """``parse_json`` of what was decoded."""
    if not text.strip():
        raise ConfigSyntaxError(display, "the file is empty", text or "\n")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        mistake = explain(error.msg, text, error.pos)
        raise ConfigSyntaxError(display, mistake.message, text, mistake.position) from None
    except _NoSuchConstant as error:
        raise ConfigSyntaxError(display, f"{error} is not a JSON value", text,
                                constant_position(text, str(error))) from None
    except RecursionError:
        raise ConfigSyntaxError(display, "nested too deeply") from None
    except ValueError as error:
        raise ConfigSyntaxError(display, str(error)) from None


class _NoSuchConstant(ValueError):
    """A word such as NaN, which JavaScript has and JSON has not."""


def _refuse_constant(name: str) -> NoReturn:
    raise _NoSuchConstant(name)
