"""Bytes of a file to text, and text to JSON."""
from __future__ import annotations

import codecs
import json
import locale
import logging
from typing import Any, NoReturn

from Middleware.exceptions import ConfigSyntaxError

logger = logging.getLogger(__name__)


def legacy_code_page() -> str:
    """The encoding that a file which is not UTF-8 most likely has: the locale's own, else Western Windows."""
    name = codecs.lookup(locale.getpreferredencoding(False)).name
    return name if name not in ("utf-8", "ascii") else "cp1252"


def decode_text(data: bytes, display: str) -> str:
    """``data`` as UTF-8 with an optional BOM; else, with a warning, as the legacy code page, bad bytes replaced."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        encoding = legacy_code_page()
        logger.warning("%s is not UTF-8 (byte %d); it is read as %s. Save it as UTF-8.", display, error.start, encoding)
        return data.decode(encoding, errors="replace")


def parse_json(data: bytes, display: str) -> Any:
    """Strict JSON. Raises ``ConfigSyntaxError`` with ``display``, line and column."""
    text = decode_text(data, display)
    if not text.strip():
        raise ConfigSyntaxError(display, "the file is empty")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ConfigSyntaxError(display, error.msg, error.doc, error.pos) from None
    except RecursionError:
        raise ConfigSyntaxError(display, "nested too deeply") from None
    except ValueError as error:
        raise ConfigSyntaxError(display, str(error)) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")
