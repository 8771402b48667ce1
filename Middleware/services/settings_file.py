"""Settings objects read from a JSON file, each key declared once with its kind, default and meaning."""
from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from Middleware.exceptions import ConfigurationError
from Middleware.utilities import config_utils
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.keys.endpoint import CONTEXT_LEVELS
from Middleware.utilities.text_utils import as_flag, estimation_level_multiplier

logger = logging.getLogger(__name__)

T = TypeVar("T")

INT, NUMBER, FLAG, NAME, TEXT, LEVEL = "int", "number", "bool", "name", "str", "level"
MOST = 1_000_000_000  # of anything that is counted
_MISSING = object()


def setting(key: str, kind: str, default: object, meaning: str, *, otherwise: object = _MISSING,
            least: int | None = None, most: int = MOST, names: str = "") -> Any:
    """A field of a settings dataclass.

    Args:
        kind: ``int``, ``number``, ``bool``, ``name`` (blank means not set), ``str``, or ``level``.
            The value of a level is a factor.
        otherwise: what an unusable value counts as, if not as the default.
        least: what a smaller number counts as.
        most: what a larger number counts as.
        names: what kind of thing a name names, as in ``ConfigKey``.
    """
    return dataclasses.field(default=default, metadata={
        "key": key, "kind": kind, "meaning": meaning, "least": least, "most": most, "names": names,
        "otherwise": default if otherwise is _MISSING else otherwise})


def declared_keys(cls: type[Any]) -> tuple[ConfigKey, ...]:
    """The keys that a settings dataclass declares, in their order."""
    return tuple(_declared(field) for field in dataclasses.fields(cls) if "key" in field.metadata)


def _declared(field: dataclasses.Field[Any]) -> ConfigKey:
    metadata, default = field.metadata, field.default
    kind, most = metadata["kind"], metadata["most"]
    if kind == LEVEL:
        return ConfigKey(metadata["key"], TEXT, CONTEXT_LEVELS[0], metadata["meaning"], choices=CONTEXT_LEVELS)
    return ConfigKey(metadata["key"], TEXT if kind == NAME else kind, default, metadata["meaning"],
                     names=metadata["names"], least=metadata["least"], most=None if most == MOST else most)


def load_settings(cls: type[T], user_key: str, purpose: str, level: int = logging.ERROR) -> T | None:
    """The settings in the file that the user's ``user_key`` names; None, with a line in the log, if there is none.

    ``purpose`` says in that line what does not happen without them.
    """
    try:
        name = config_utils.user_name_setting(user_key)
        if not name:
            logger.log(level, "%s: the user's file names no settings file ('%s')", purpose, user_key)
            return None
        content, display = config_utils.load_settings_file(name)
    except ConfigurationError as error:
        logger.log(level, "%s: %s", purpose, error)
        return None
    return read_settings(cls, content, display)


def read_settings(cls: type[T], content: Mapping[str, object], display: str) -> T:
    """The declared keys of ``content``, each as its field says; a number may be in a text, and a blank one is absent.

    What is no number or text, and a number out of range, is logged with what is used in its place. ``cls`` has a field
    ``raw`` for the whole file, and may have one ``file`` for the name that messages give it.
    """
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    values: dict[str, object] = {"file": display} if any(field.name == "file" for field in fields) else {}
    for field in fields:
        key = field.metadata.get("key")
        if key is not None and content.get(key) is not None:
            values[field.name] = _value(content[key], field, display)
    return cls(**values, **{"raw": content})


def _value(value: object, field: dataclasses.Field[Any], display: str) -> object:
    kind = field.metadata["kind"]
    if kind == FLAG:
        return as_flag(value)
    if kind == LEVEL:
        return estimation_level_multiplier(value)
    if kind in (TEXT, NAME):
        if isinstance(value, str):
            return value.strip() if kind == NAME else value
    else:
        number = number_from(value, whole=kind == INT)
        if number is not None:
            return _within(number, field, display)
    if kind in (INT, NUMBER) and value == "":
        return field.default
    otherwise = field.metadata["otherwise"]
    logger.warning("%s: '%s' is no %s: %r; %s", display, field.metadata["key"],
                   "text" if kind in (TEXT, NAME) else "number", value,
                   "it counts as not given" if otherwise is None else f"using {otherwise!r}")
    return otherwise


def _within(number: float, field: dataclasses.Field[Any], display: str) -> float:
    """The number, or the nearest one that makes sense, with a word in the log."""
    least = field.metadata["least"]
    nearest: float = min(number if least is None else max(number, least), field.metadata["most"])
    if nearest != number:
        logger.warning("%s: '%s' is %s; using %s", display, field.metadata["key"], number, nearest)
    return nearest


def number_from(value: object, whole: bool) -> int | float | None:
    """A finite number, which may be in a text; None for anything else, and for a fraction if it must be whole."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number) or (whole and not number.is_integer()):
        return None
    return int(number) if whole else number
