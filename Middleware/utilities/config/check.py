"""The only check of configuration against its declarations: spelling, presence, kinds, choices and limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from Middleware.utilities.config.declarations import (
    MOST,
    SWITCHED_OFF,
    SWITCHED_ON,
    ConfigKey,
    KeyTable,
    as_flag,
    number_from,
)
from Middleware.utilities.config.json_source import child
from Middleware.utilities.sensitive_logging_utils import MASK, is_secret_name, mask_text, mask_url
from Middleware.utilities.text_utils import nearest

F = TypeVar("F")
Severity = Literal["error", "warning", "note"]

# A finding is one line of a terminal; a quoted value must leave room for the sentence around it.
MAX_QUOTED = 80
# Keys of one file are often alike (such as "headCount" and "tailCount"), so only near misses count as misspelt.
SPELLING_CUTOFF = 0.85
# A choice comes from a short list, so that a distant match is still a useful suggestion.
CHOICE_CUTOFF = 0.55
REMARKS = ("comment", "description", "note", "remark", "todo", "disabled", "unused", "backup")
"""Words in the names of keys that users add as remarks."""

_WANTED = {
    "str": "a string",
    "bool": "true or false",
    "int": "a whole number",
    "number": "a number",
    "list": "a list",
    "object": "an object",
}


@dataclass(frozen=True)
class KeyCheck(Generic[F]):
    """The check of one kind of object.

    Attributes:
        at: makes a finding of severity, JSON path, message, expected value and suggestion.
        near_only: unknown keys are reported only if they resemble a known key.
        known: undeclared keys that are harmless.
        needed: keys that are required here although their declarations do not say so.
        homes: the kind of file that a key belongs in, for keys that are in the wrong file, and ``top``: the path of the
            object whose keys are meant.
        of_node: check as leniently as the engine, which converts numbers to strings, and strings with placeholders to
            numbers.
        strict: report everything as an error, and leave nested objects to the caller.
        of_settings: check a settings file, whose reader replaces unusable values: findings name the replacement.
    """

    at: Callable[[Severity, str, str, str, str], F]
    near_only: bool = False
    known: Collection[str] = ()
    needed: Collection[str] = ()
    homes: Mapping[str, str] | None = None
    top: str = ""
    of_node: bool = False
    strict: bool = False
    of_settings: bool = False

    def findings(
        self, content: Mapping[str, object], keys: Mapping[str, ConfigKey], path: str = "", is_open: bool = False
    ) -> Iterator[F]:
        """Yield all findings about the object at ``path``. ``is_open``: it may have keys other than ``keys``."""
        yield from self.present(content, keys, path, is_open)
        yield from self.missing(content, keys, path)

    def present(
        self, content: Mapping[str, object], keys: Mapping[str, ConfigKey], path: str = "", is_open: bool = False
    ) -> Iterator[F]:
        """Yield the findings about the keys that the object has."""
        for name, value in content.items():
            key = keys.get(name)
            # Null counts as absent.
            if key is not None and value is not None:
                yield from self.value(key, value, child(path, name))
            elif key is None and not is_open and name not in self.known and not is_remark(name):
                yield from self._unknown(name, content, keys, path)

    def missing(self, content: Mapping[str, object], keys: Mapping[str, ConfigKey], path: str = "") -> Iterator[F]:
        """Yield the findings about required keys that are missing or blank."""
        for key in keys.values():
            value = content.get(key.name)
            if not key.required or not (value is None or (isinstance(value, str) and not value.strip())):
                continue
            expected = ", ".join(key.choices) or key.meaning.rstrip(".")
            if value is not None:
                # For other kinds ``value`` reports that a blank string is not one of them.
                if not ((value and key.blank) or (self.of_node and key.kind != "str")):
                    yield self.at(
                        self._severity("warning" if self.of_node else "error"),
                        child(path, key.name),
                        f"'{key.name}' is empty",
                        expected,
                        "",
                    )
            # A misspelt key is reported by ``present`` already; "missing" as well would be a second finding about it.
            elif not any(
                given is not None and name not in keys and meant_key(name, {key.name})
                for name, given in content.items()
            ):
                yield self.at("error", path, f"the key '{key.name}' is missing", expected, "")

    def value(self, key: ConfigKey, value: object, path: str) -> Iterator[F]:
        """Yield the findings about the value of a declared key; the value is not null."""
        kinds = (key.kind, *key.also)
        if not any(self._fits(key, kind, value) for kind in kinds):
            # A name of the wrong type leads to no file, so the request fails; elsewhere the default applies.
            names = key.names and key.names != "directory" and not self.of_node and not self.of_settings
            wanted = " or ".join(self._wanted(kind) for kind in kinds)
            yield self._wrong(
                key,
                value,
                path,
                f"must be {wanted}, not {self._shown(key, value)}",
                severity="error" if names or (key.required and not self.of_node) else "warning",
            )
        elif isinstance(value, str) and key.choices:
            yield from self._choice(key, value, path)
        elif isinstance(value, Mapping):
            yield from self._inside(key, value, path)
        elif isinstance(value, (list, tuple)):
            for index, entry in enumerate(value):
                yield from self._entry(key, entry, child(path, index))
        elif key.kind in ("int", "number"):
            yield from self._limits(key, value, path)

    # -- keys --------------------------------------------------------------------------------------------------------
    def _unknown(
        self, name: str, content: Mapping[str, object], keys: Mapping[str, ConfigKey], path: str
    ) -> Iterator[F]:
        message, here, meant = no_effect(name), child(path, name), meant_key(name, keys)
        home = (self.homes or {}).get(name, "") if path == self.top else ""
        if self.strict:
            yield self.at("error", here, message, f"one of {', '.join(keys)}", meant or nearest(name, keys))
        elif home and not meant:
            yield self.at("warning", here, f"the key {quoted(name)} has no effect here", f"it in {home}", "")
        elif meant and content.get(meant) is not None:
            yield self.at("note", here, f"{message}; '{meant}' counts", "", "")
        elif meant:
            yield self.at(
                "error" if keys[meant].required or meant in self.needed else "warning", here, message, "", meant
            )
        elif not self.near_only:
            yield self.at("note", here, message, "", "")

    def _inside(self, key: ConfigKey, value: Mapping[str, object], path: str) -> Iterator[F]:
        # A strict caller reads nested objects itself, and checks each with the keys that apply there.
        if key.keys and not self.strict:
            yield from self.findings(value, KeyTable(key.keys), path, key.is_open)
        for name, entry in value.items() if key.entries else ():
            if self.strict or (not is_remark(name) and entry is not None):
                yield from self._entry(key, entry, child(path, name), name)

    def _entry(self, key: ConfigKey, entry: object, path: str, name: str = "") -> Iterator[F]:
        if self.strict and key.entries != "str":
            return
        # A number is often written without quotation marks where a string is expected.
        plain_number = isinstance(entry, (int, float)) and not isinstance(entry, bool) and not self.strict
        if key.entries and not (self._fits(key, key.entries, entry) or (key.entries == "str" and plain_number)):
            what = "each entry" if key.kind == "list" else "each value"
            yield self.at(
                self._severity("warning"),
                path,
                f"{what} of '{key.name}' must be {_WANTED[key.entries]}, not {quoted(entry, key.name, name)}",
                "",
                "",
            )
        elif key.choices and key.kind == "list" and entry not in key.choices:
            yield self.at(
                self._severity("warning"),
                path,
                f"{quoted(entry, key.name, name)} in '{key.name}' is unknown",
                ", ".join(key.choices),
                nearest(str(entry), key.choices, CHOICE_CUTOFF),
            )
        elif key.keys and isinstance(entry, Mapping) and key.kind == "list":
            yield from self.findings(entry, KeyTable(key.keys), path, key.is_open)

    # -- values ------------------------------------------------------------------------------------------------------
    def _fits(self, key: ConfigKey, kind: str, value: object) -> bool:
        if kind == "str":
            return isinstance(value, str) or (self.of_node and not isinstance(value, (list, tuple, Mapping)))
        if kind == "bool":
            return _is_flag(key, value)
        if kind in ("int", "number"):
            return self._is_number(key, kind, value)
        return kind == "any" or isinstance(value, (list, tuple) if kind == "list" else Mapping)

    def _is_number(self, key: ConfigKey, kind: str, value: object) -> bool:
        """Return whether a value counts as a number; outside of nodes a blank string counts as not given."""
        if not self.of_node:
            return value == "" or number_from(value, kind == "int") is not None
        if not isinstance(value, str):
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        if "{" in value:
            return key.variables != "none"
        # The engine does not convert counts of pieces, in which all variables work.
        return key.variables != "full" and _is_convertible(value, int if kind == "int" else float)

    def _choice(self, key: ConfigKey, value: str, path: str) -> Iterator[F]:
        written = value.strip().lower() if key.caseless else value
        # A blank choice counts as not given; only settings files have no such rule.
        given = value.strip() or self.of_settings
        if written not in key.choices and given and not (self.of_node and "{" in value):
            yield self._wrong(
                key,
                value,
                path,
                f"is {self._shown(key, value)}, which is unknown",
                ", ".join(key.choices),
                nearest(value, key.choices, CHOICE_CUTOFF),
                "error" if key.exact or (key.required and not self.of_node) else "warning",
            )

    def _limits(self, key: ConfigKey, value: object, path: str) -> Iterator[F]:
        number = number_from(value, whole=False)
        # The reader of a settings file applies this limit to every number.
        most = MOST if key.most is None and self.of_settings else key.most
        if number is not None and (
            (key.least is not None and number < key.least) or (most is not None and number > most)
        ):
            yield self._wrong(
                key, value, path, f"is {self._shown(key, value)}, which is out of range", _range(key.least, most)
            )

    def _wanted(self, kind: str) -> str:
        return _WANTED["number" if self.of_node and kind == "int" else kind]

    def _shown(self, key: ConfigKey, value: object) -> str:
        # Strings that take all variables may contain passwords, for example in URLs or arguments.
        secret = self.of_node and isinstance(value, str) and key.variables == "full"
        return "a string" if secret and key.kind not in ("int", "number") else quoted(value, key.name)

    def _severity(self, severity: Severity) -> Severity:
        return "error" if self.strict else severity

    def _wrong(
        self,
        key: ConfigKey,
        value: object,
        path: str,
        problem: str,
        expected: str = "",
        suggestion: str = "",
        severity: Severity = "warning",
    ) -> F:
        instead = f"; {_instead(key, value)}" if self.of_settings else ""
        return self.at(self._severity(severity), path, f"'{key.name}' {problem}{instead}", expected, suggestion)


def _is_convertible(text: str, convert: Callable[[str], float]) -> bool:
    try:
        convert(text)
    except ValueError:
        return False
    return True


def _is_flag(key: ConfigKey, value: object) -> bool:
    # Without a list of true words, any other string would silently be true, so only these two pass the check.
    words = key.true_texts == SWITCHED_ON
    if isinstance(value, str):
        return value.strip().lower() in ((*SWITCHED_ON, *SWITCHED_OFF) if words else ("true", "false", ""))
    return isinstance(value, bool) or (words and value in (0, 1))


def _range(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f"{least:.15g} to {most:.15g}"
    return f"{least:.15g} or more" if least is not None else f"at most {most:.15g}"


def _instead(key: ConfigKey, value: object) -> str:
    """Return a clause about what replaces an unusable value."""
    if key.kind == "bool":
        return f"it counts as {'true' if as_flag(value, key.true_texts) else 'false'}"
    number = number_from(value, key.kind == "int") if key.kind in ("int", "number") else None
    default = key.default if key.otherwise is None else key.otherwise
    if number is not None:
        return f"{key.within(number):.15g} is used"
    if key.choices:
        return f"'{default}' is used"
    return "it counts as not given" if key.kind == "str" or default is None else f"{default:.15g} is used"


# -- spelling ----------------------------------------------------------------------------------------------------------


def no_effect(name: str) -> str:
    """Return the message about an unknown key."""
    return f"the key {quoted(name)} is unknown and has no effect"


def meant_key(name: str, keys: Collection[str]) -> str:
    """Return the key that a misspelt one was probably meant to be; "" if none is similar."""
    # "endpoint" differs from "endpointName" by more than the cutoff allows.
    return f"{name}Name" if f"{name}Name" in keys else nearest(name, keys, SPELLING_CUTOFF)


def is_meant(name: str, key: str, content: Collection[str]) -> bool:
    """Return whether ``name``, one of the keys of ``content``, is probably a misspelt ``key``."""
    return name != key and key not in content and not is_remark(name) and bool(meant_key(name, {key}))


def is_remark(name: str) -> bool:
    """Return whether a key was probably written as a remark."""
    return not name[:1].isalpha() or any(word in name.casefold() for word in REMARKS)


# -- what is shown -----------------------------------------------------------------------------------------------------


def shortened(text: str, limit: int = MAX_QUOTED) -> str:
    """Return ``text`` as one printable line of at most ``limit`` characters."""
    line = "".join(character if character.isprintable() else " " for character in text[: limit + 1])
    return line if len(line) <= limit else line[: limit - 3] + "..."


def quoted(value: object, *keys: str) -> str:
    """Return a value as a message may show it. ``keys`` lead to it; the value of a secret-like key is masked."""
    if any(map(is_secret_name, keys)):
        return MASK
    if isinstance(value, str):
        # An address stands alone; a command with one has secrets elsewhere, too.
        is_address = "://" in value and not any(map(str.isspace, value))
        return f"'{shortened(mask_url(value) if is_address else mask_text(value))}'"
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, (list, tuple)) else shortened(json.dumps(value, default=str))
