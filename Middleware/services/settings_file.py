"""Settings objects read from a JSON file, each key declared once with its kind, default and meaning."""
from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from Middleware.exceptions import ConfigurationError
from Middleware.utilities import config_utils
from Middleware.utilities.text_utils import as_flag

logger = logging.getLogger(__name__)

T = TypeVar("T")

INT, NUMBER, FLAG, NAME, TEXT, LEVEL = "int", "number", "bool", "name", "str", "level"
_MISSING = object()


def setting(key: str, kind: str, default: Any, meaning: str, *, otherwise: Any = _MISSING) -> Any:
    """A field of a settings dataclass.

    Args:
        kind: ``int``, ``number``, ``bool``, ``name`` (blank means not set), ``str``, or ``level``.
        otherwise: what an unusable value counts as, if not as the default.
    """
    return dataclasses.field(default=default, metadata={
        "key": key, "kind": kind, "meaning": meaning, "otherwise": default if otherwise is _MISSING else otherwise})


def load_settings(cls: type[T], user_key: str, purpose: str) -> T | None:
    """The settings in the file that the user's ``user_key`` names; None, with an error in the log, if there is none.

    ``purpose`` says in the log what does not happen without them. ``cls`` has a field ``raw`` for the whole file.
    """
    try:
        name = config_utils.user_name_setting(user_key)
        if not name:
            logger.error("%s: the user's file names no settings file ('%s')", purpose, user_key)
            return None
        content, display = config_utils.load_settings_file(name)
    except ConfigurationError as error:
        logger.error("%s: %s", purpose, error)
        return None
    return read_settings(cls, content, display)


def read_settings(cls: type[T], content: Mapping[str, Any], display: str) -> T:
    """The declared keys of ``content``, numbers in texts included; a value that is none is logged and not used."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        key = field.metadata.get("key")
        if key is not None and content.get(key) is not None:
            values[field.name] = _value(content[key], field, display)
    return cls(**values, **{"raw": content})


def _value(value: Any, field: dataclasses.Field[Any], display: str) -> Any:
    kind = field.metadata["kind"]
    if kind == FLAG:
        return as_flag(value)
    if kind == LEVEL:
        return value
    if kind in (TEXT, NAME):
        if isinstance(value, str):
            return value.strip() if kind == NAME else value
    else:
        number = _number(value, whole=kind == INT)
        if number is not None:
            return number
    if kind in (INT, NUMBER) and value == "":
        return field.default
    logger.warning("%s: '%s' is no %s: %r; using %r", display, field.metadata["key"],
                   "text" if kind in (TEXT, NAME) else "number", value, field.metadata["otherwise"])
    return field.metadata["otherwise"]


def _number(value: Any, whole: bool) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number) or (whole and not number.is_integer()):
        return None
    return int(number) if whole else number
