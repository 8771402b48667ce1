"""Checks of the keys and values of one JSON object against declarations: spelling, presence, kinds, choices, limits."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from Middleware.cli.check.findings import Finding, Severity, quoted
from Middleware.cli.check.key_checks import is_remark, limits, meant_key
from Middleware.cli.check.names import nearest
from Middleware.utilities.config.declarations import ConfigKey, KeyTable, number_from
from Middleware.utilities.config.json_source import child

Homes = Mapping[str, str]
"""Key -> the kind of file that it belongs into, for keys that stand in the wrong one."""

CHOICE_CUTOFF = 0.55
_FLAG_TEXTS = frozenset({"", "true", "false"})
_USER_FLAG_TEXTS = frozenset({"yes", "no", "on", "off", "1", "0"})
_WANTED = {"str": "a text", "bool": "true or false", "int": "a whole number", "number": "a number", "list": "a list",
           "object": "an object"}


@dataclass(frozen=True)
class ObjectCheck:
    """The check of an object in a file.

    Attributes:
        file: as messages name it.
        many_flags: flags may also be yes, no, on, off, 1 and 0, as in user files.
        homes: where unknown keys may belong.
    """

    file: str
    many_flags: bool = False
    homes: Homes | None = None

    def findings(self, content: Mapping[str, object], keys: Mapping[str, ConfigKey], path: str = "",
                 is_open: bool = False) -> Iterator[Finding]:
        """Everything about the object at ``path``. ``is_open``: it takes other keys than ``keys``, too."""
        for name, value in content.items():
            key = keys.get(name)
            if key is not None and value is not None:
                yield from self.value(key, value, child(path, name))
            elif key is None and not is_open and not is_remark(name):
                yield from self._unknown(name, content, keys, path)
        yield from self._missing(content, keys, path)

    def value(self, key: ConfigKey, value: object, path: str) -> Iterator[Finding]:
        """Everything about the value of a declared key, which is not null."""
        kinds = (key.kind, *key.also)
        if not any(_FITS[kind](value) or (kind == "bool" and self._is_flag(value)) for kind in kinds):
            severity: Severity = "error" if key.required or (key.names and key.names != "directory") else "warning"
            wanted = " or ".join(_WANTED[kind] for kind in kinds)
            yield self._at(severity, path, f"'{key.name}' must be {wanted}, not {quoted(value, key.name)}")
        elif isinstance(value, str) and key.choices:
            yield from self._choice(key, value, path)
        elif isinstance(value, Mapping):
            yield from self._inside(key, value, path)
        elif isinstance(value, (list, tuple)):
            for index, entry in enumerate(value):
                yield from self._entry(key, entry, child(path, index))
        elif key.kind in ("int", "number"):
            yield from self._limits(key, value, path)

    def _inside(self, key: ConfigKey, value: Mapping[str, object], path: str) -> Iterator[Finding]:
        if key.keys:
            yield from self.findings(value, KeyTable(key.keys), path, key.is_open)
        for name, entry in value.items() if key.entries else ():
            if not is_remark(name) and entry is not None:
                yield from self._entry(key, entry, child(path, name), name)

    def _entry(self, key: ConfigKey, entry: object, path: str, name: str = "") -> Iterator[Finding]:
        if key.entries and not (_FITS[key.entries](entry) or key.entries == "str" and _is_plain(entry)):
            what = "each entry" if key.kind == "list" else "each value"
            yield self._at("warning", path, f"{what} of '{key.name}' must be {_WANTED[key.entries]}, not "
                                            f"{quoted(entry, key.name, name)}")
        elif key.keys and isinstance(entry, Mapping) and key.kind == "list":
            yield from self.findings(entry, KeyTable(key.keys), path, key.is_open)

    # -- keys --------------------------------------------------------------------------------------------------------
    def _unknown(self, name: str, content: Mapping[str, object], keys: Mapping[str, ConfigKey],
                 path: str) -> Iterator[Finding]:
        said, place = f"the key {quoted(name)} is unknown and has no effect", child(path, name)
        meant, home = meant_key(name, keys), (self.homes or {}).get(name, "") if not path else ""
        if home and not meant:
            yield self._at("warning", place, f"the key {quoted(name)} has no effect here", f"it in {home}")
        elif meant and content.get(meant) is not None:
            yield self._at("note", place, f"{said}; '{meant}' counts")
        elif meant:
            yield self._at("error" if keys[meant].required else "warning", place, said, suggestion=meant)
        else:
            yield self._at("note", place, said)

    def _missing(self, content: Mapping[str, object], keys: Mapping[str, ConfigKey], path: str) -> Iterator[Finding]:
        for key in keys.values():
            value = content.get(key.name)
            if not key.required or not (value is None or isinstance(value, str) and not value.strip()):
                continue
            expected = ", ".join(key.choices) or key.meaning.rstrip(".")
            if value is not None:
                yield self._at("error", child(path, key.name), f"'{key.name}' is empty", expected)
            elif not any(name not in keys and meant_key(name, {key.name}) for name in content):
                yield self._at("error", path, f"the key '{key.name}' is missing", expected)

    # -- values ------------------------------------------------------------------------------------------------------
    def _is_flag(self, value: object) -> bool:
        if isinstance(value, str):
            text = value.strip().lower()
            return text in _FLAG_TEXTS or (self.many_flags and text in _USER_FLAG_TEXTS)
        return self.many_flags and value in (0, 1)

    def _choice(self, key: ConfigKey, value: str, path: str) -> Iterator[Finding]:
        written = value.strip().lower() if key.caseless else value
        if written in key.choices or not value.strip():
            return
        severity: Severity = "error" if key.required else "warning"
        yield self._at(severity, path, f"'{key.name}' is {quoted(value, key.name)}, which is unknown",
                       ", ".join(key.choices), nearest(value, key.choices, CHOICE_CUTOFF))

    def _limits(self, key: ConfigKey, value: Any, path: str) -> Iterator[Finding]:
        number = float(value) if value != "" else None
        wrong = number is not None and (
            (key.least is not None and number < key.least) or (key.most is not None and number > key.most))
        if wrong:
            yield self._at("warning", path, f"'{key.name}' is {quoted(value, key.name)}, which is out of range",
                           limits(key))

    def _at(self, severity: Severity, path: str, message: str, expected: str = "", suggestion: str = "") -> Finding:
        return Finding(severity, self.file, path, None, message, expected, suggestion)


def _is_number(value: object, whole: bool) -> bool:
    """Numbers may stand in texts; a blank one counts as not given."""
    return value == "" or number_from(value, whole) is not None


def _is_plain(value: object) -> bool:
    """A number that somebody wrote without quotation marks where a text is expected."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_FITS: Mapping[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str), "bool": lambda value: isinstance(value, bool),
    "int": lambda value: _is_number(value, True), "number": lambda value: _is_number(value, False),
    "list": lambda value: isinstance(value, (list, tuple)), "object": lambda value: isinstance(value, Mapping),
    "any": lambda value: True}
