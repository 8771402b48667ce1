"""The declaration of configuration keys, and the only functions that read their values."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A typing mistake, such as ten digits too many, must not become an allocated size or a waiting time.
MOST = 1_000_000_000

# The largest context windows of models today; a limit above it has a digit too many.
MOST_TOKENS = 10_000_000

ONLY_TRUE = ("true",)
SWITCHED_ON = ("true", "1", "yes", "on")
SWITCHED_OFF = ("false", "0", "no", "off", "")


@dataclass(frozen=True)
class ConfigKey:
    """One key of a kind of file, or of a type of node.

    Attributes:
        kind: the JSON type: ``str``, ``bool``, ``int``, ``number``, ``list``, ``object`` or ``any``.
        default: the value that applies if the key is absent or null.
        meaning: one sentence for the user who writes the file.
        variables: the variables that work in the value of a node's key: ``full`` (all), ``early`` (those known before
            the endpoint is) or ``none``.
        choices: the valid strings, of a list those of its entries; any string if empty.
        caseless: the choices may be written in any case.
        exact: an unknown choice is an error for check, although the default applies.
        blank: a string of white space is a valid value.
        names: the kind of object that a string names: a kind of file such as ``endpoint`` or ``workflow``, a folder of
            such files such as ``endpoint-folder``, ``directory`` or ``file``; empty if it names nothing.
        least: the smallest valid number.
        most: the largest valid number.
        otherwise: the replacement for a value that is not a number, if it is not the default.
        true_texts: the only strings that are true; if empty, every string is true but a blank one and ``false``.
        inert: the key is accepted and has no effect.
        also: further JSON types that are accepted, such as a single ``str`` where a ``list`` is declared.
        entries: the kind of each entry of a list, or of each value of an object; any if empty.
        keys: the keys of an object, or of each object in a list.
        in_new: the value that the key gets in new files, where the default is for older ones; None: no particular one.
        is_open: an object takes keys beyond ``keys``.
        capability: what the value lets the server do, as the beginning of a sentence such as ``runs the script``; empty
            if a change of the value lets it run or reach nothing else. With ``guard``: what is allowed without it.
        guard: how the key limits what the server does: a flag that is ``true`` or ``false``, or a list that allows only
            its ``entries``; empty if it does not.
    """

    name: str
    kind: str
    default: Any
    meaning: str
    variables: str = "none"
    required: bool = field(default=False, kw_only=True)
    choices: tuple[str, ...] = field(default=(), kw_only=True)
    caseless: bool = field(default=False, kw_only=True)
    exact: bool = field(default=False, kw_only=True)
    blank: bool = field(default=False, kw_only=True)
    names: str = field(default="", kw_only=True)
    least: float | None = field(default=None, kw_only=True)
    most: float | None = field(default=None, kw_only=True)
    otherwise: Any = field(default=None, kw_only=True)
    true_texts: tuple[str, ...] = field(default=(), kw_only=True)
    inert: bool = field(default=False, kw_only=True)
    also: tuple[str, ...] = field(default=(), kw_only=True)
    entries: str = field(default="", kw_only=True)
    keys: tuple[ConfigKey, ...] = field(default=(), kw_only=True)
    in_new: Any = field(default=None, kw_only=True)
    is_open: bool = field(default=True, kw_only=True)
    capability: str = field(default="", kw_only=True)
    guard: str = field(default="", kw_only=True)

    def of(self, config: Mapping[str, object]) -> Any:
        """Return the value of the key in ``config``, of whatever type; the default if it is absent or null."""
        found = config.get(self.name)
        return self.default if found is None else found

    def within(self, number: float) -> float:
        """Return the number, or the nearest one in the key's range."""
        number = number if self.least is None else max(number, self.least)
        return min(number, MOST if self.most is None else self.most)


# Both have no effect, and both are accepted at the top of several kinds of files.
SCHEMA_KEY = ConfigKey(
    "$schema", "str", "", "The JSON Schema with which editors check and complete this file.", inert=True
)
DESCRIPTION_KEY = ConfigKey("description", "str", "", "A remark about this file.", inert=True)


# -- values ------------------------------------------------------------------------------------------------------------


def as_flag(value: object, true_texts: tuple[str, ...] = ()) -> bool:
    """Return the truth of a value. Of strings ``true_texts`` are true; if it is empty, all but "" and ``false``."""
    if not isinstance(value, str):
        return bool(value)
    text = value.strip().lower()
    return text in true_texts if true_texts else value != "" and text != "false"


def number_from(value: object, whole: bool) -> int | float | None:
    """Return a finite number, which may be in a string; None for anything else, and for a fraction if ``whole``."""
    # A bool is an int in Python, but ``true`` as a number in a file is a mistake.
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number) or (whole and not number.is_integer()):
        return None
    return int(number) if whole else number


class KeyTable(dict[str, ConfigKey]):
    """The keys of one kind of file by name. Reading a key that is not declared raises KeyError."""

    __slots__ = ()

    def __init__(self, keys: Iterable[ConfigKey]) -> None:
        super().__init__((key.name, key) for key in keys)

    def value(self, config: Mapping[str, object], name: str) -> Any:
        """Return what ``ConfigKey.of`` returns, with flags as booleans."""
        key = self[name]
        found = config.get(name)
        if found is None:
            found = key.default
        return as_flag(found, key.true_texts) if key.kind == "bool" else found

    def has(self, config: Mapping[str, object], name: str) -> bool:
        """Return whether ``config`` gives the key a value."""
        return config.get(self[name].name) is not None

    def lookup(self, name: str) -> tuple[str, Any]:
        """Return the arguments of ``dict.get``, name and default, for code where speed matters. Null stays None."""
        return name, self[name].default

    def flag(self, config: Mapping[str, object], name: str) -> bool:
        """Return ``value`` as a boolean, with strings read as the key declares."""
        key = self[name]
        found = config.get(name)
        if found is None:
            return key.default is True
        return found if found is True or found is False else as_flag(found, key.true_texts)

    def number(self, config: Mapping[str, object], name: str) -> Any:
        """Return the integer in ``config``, which may be in a string, without its fraction; else the default."""
        value = config.get(name)
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            try:
                return int(value)
            # A string that is not a number, or an infinite number: the default applies.
            except (ValueError, OverflowError):
                pass
        return self[name].default

    def text(self, config: Mapping[str, object], name: str) -> str:
        """Return the string in ``config``; the default without one, or if the value is not a string."""
        default = self[name].default or ""
        found = config.get(name)
        return found if isinstance(found, str) else str(default)


# -- settings files ----------------------------------------------------------------------------------------------------


def setting(key: ConfigKey, read: Callable[[Any], Any] | None = None) -> Any:
    """Return a field of a settings dataclass. ``read`` converts the value if the key's kind does not say how."""
    return field(default=read(key.default) if read else key.default, metadata={"key": key, "read": read})


def settings_keys(cls: type[Any]) -> KeyTable:
    """Return the keys that a settings dataclass declares, in their order."""
    return KeyTable(field.metadata["key"] for field in dataclasses.fields(cls) if "key" in field.metadata)


def read_settings(cls: type[T], content: Mapping[str, object], display: str) -> T:
    """Return the declared keys of ``content``; a number may be in a string, and a blank one counts as absent.

    A value of the wrong type, or a number out of range, is logged together with the value that replaces it. ``cls`` has
    a field ``raw`` for the whole file, and may have one ``file`` for the name of the file in messages.
    """
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    values: dict[str, Any] = {"file": display} if any(field.name == "file" for field in fields) else {}
    for one in fields:
        key: ConfigKey | None = one.metadata.get("key")
        if key is not None and content.get(key.name) is not None:
            read = one.metadata["read"]
            values[one.name] = read(content[key.name]) if read else _setting(content[key.name], key, display)
    return cls(**values, **{"raw": content})  # noqa: PIE804  - only some classes have it


def _setting(value: object, key: ConfigKey, display: str) -> Any:
    if key.kind == "bool":
        return as_flag(value, key.true_texts)
    if key.kind == "str" and isinstance(value, str):
        # White space around the name of a file is a typing mistake; elsewhere it may be wanted.
        return value.strip() if key.names else value
    number = number_from(value, whole=key.kind == "int") if key.kind != "str" else None
    if number is not None:
        nearest = key.within(number)
        if nearest != number:
            logger.warning("%s: '%s' is %s; using %s", display, key.name, number, nearest)
        return nearest
    if key.kind != "str" and value == "":
        return key.default
    instead = key.default if key.otherwise is None else key.otherwise
    wanted = "string" if key.kind == "str" else "number"
    logger.warning(
        "%s: '%s' is not a %s: %r; %s",
        display,
        key.name,
        wanted,
        value,
        "it counts as not given" if instead is None else f"using {instead!r}",
    )
    return instead
