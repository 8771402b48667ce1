"""Checks of a node's keys against their declarations: spelling, presence, kind of value."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from Middleware.cli.check.findings import Finding, Severity, quoted
from Middleware.cli.check.names import nearest
from Middleware.cli.check.node_view import NodeView
from Middleware.utilities.config.declarations import ConfigKey

SPELLING_CUTOFF = 0.85
CHECKED_ELSEWHERE = frozenset({"searchMode"})
NEVER_HONOURED = "isResponder"
REMARKS = ("comment", "description", "note", "remark", "todo", "disabled", "unused", "backup")
"""Words in the names of keys that people write for themselves."""


def check_keys(view: NodeView, known_elsewhere: Collection[str]) -> Iterator[Finding]:
    """All findings about the keys of a node. ``known_elsewhere``: keys of other types, which are harmless here."""
    yield from _unknown_keys(view, known_elsewhere)
    yield from () if view.is_misread else _missing_keys(view)
    for key, value in view.values():
        wrong = KINDS[key.kind](key, value) if key.kind in KINDS else ""
        if wrong and key.name != "type":
            yield view.finding("warning", key.name, f"'{key.name}' {wrong}")
        elif key.name not in CHECKED_ELSEWHERE:
            yield from _choice_and_limits(view, key, value)


# -- spelling ----------------------------------------------------------------------------------------------------------

def _unknown_keys(view: NodeView, known_elsewhere: Collection[str]) -> Iterator[Finding]:
    for name in view.node:
        if name in view.keys or name in known_elsewhere or is_remark(name):
            continue
        if name == NEVER_HONOURED:
            yield _never_honoured(view)
            continue
        meant = meant_key(name, view.keys)
        if not meant:
            continue
        if meant in view.node:
            yield view.finding("note", name, f"the key {quoted(name)} is unknown and has no effect; '{meant}' counts")
        else:
            needed = view.keys[meant].required or (meant == "endpointName" and view.needs_endpoint)
            severity: Severity = "error" if needed else "warning"
            yield view.finding(severity, name, f"the key {quoted(name)} is unknown and has no effect", suggestion=meant)


def meant_key(name: str, keys: Collection[str]) -> str:
    """The key that a misspelt one was probably meant to be; empty if none is near."""
    return f"{name}Name" if f"{name}Name" in keys else nearest(name, keys, SPELLING_CUTOFF)


def is_meant(name: str, key: str, content: Collection[str]) -> bool:
    """Whether ``name``, one of the keys of ``content``, is probably a misspelt ``key``."""
    return name != key and key not in content and not is_remark(name) and bool(meant_key(name, {key}))


def is_remark(name: str) -> bool:
    """Whether a key was probably written for people only."""
    return not name[:1].isalpha() or any(word in name.casefold() for word in REMARKS)


def _never_honoured(view: NodeView) -> Finding:
    has_flag = "returnToUser" in view.node or "is_responder" in view.node
    meant = bool(view.node[NEVER_HONOURED]) and not has_flag
    return view.finding("warning" if meant else "note", NEVER_HONOURED, "'isResponder' never has an effect",
                        expected="'returnToUser' or 'is_responder'")


# -- presence ----------------------------------------------------------------------------------------------------------

def _missing_keys(view: NodeView) -> Iterator[Finding]:
    for key in view.keys.values():
        if not key.required:
            continue
        value, meaning = view.node.get(key.name), key.meaning.rstrip(".")
        blank = value == "" if key.name == "delimiter" else isinstance(value, str) and not value.strip()
        if blank and key.kind == "str":  # a line feed between pieces is no blank text
            yield view.finding("warning", key.name, f"'{key.name}' is empty", expected=meaning)
        elif value is None and not _is_given_otherwise(view, key):
            yield view.finding("error", "", f"the key '{key.name}' is missing", expected=meaning)


def _is_given_otherwise(view: NodeView, key: ConfigKey) -> bool:
    """Whether the node has the key in another spelling, which is reported as such."""
    return any(value is not None and name not in view.keys and meant_key(name, {key.name})
               for name, value in view.node.items())


# -- choices and limits ------------------------------------------------------------------------------------------------

def _choice_and_limits(view: NodeView, key: ConfigKey, value: Any) -> Iterator[Finding]:
    if isinstance(value, str) and ("{" in value or not value.strip()):
        return
    if isinstance(value, str) and key.choices:
        if value.strip().lower() not in (choice.lower() for choice in key.choices):
            yield view.finding("warning", key.name, f"'{key.name}' is {quoted(value, key.name)}, which is unknown",
                               expected=", ".join(key.choices), suggestion=nearest(value, key.choices, 0.55))
    elif key.kind in ("int", "number", "float") and (key.least is not None or key.most is not None):
        number = float(value)
        if (key.least is not None and number < key.least) or (key.most is not None and number > key.most):
            yield view.finding("warning", key.name, f"'{key.name}' is {quoted(value, key.name)}, which is out of range",
                               expected=limits(key))


def limits(key: ConfigKey) -> str:
    """The limits of a number in words."""
    if key.least is not None and key.most is not None:
        return f"{key.least:g} to {key.most:g}"
    return f"{key.least:g} or more" if key.least is not None else f"at most {key.most:g}"


# -- kinds -------------------------------------------------------------------------------------------------------------

def _text(key: ConfigKey, value: object) -> str:
    return f"must be a text, not {quoted(value)}" if isinstance(value, (list, dict)) else ""


def _flag(key: ConfigKey, value: object) -> str:
    if isinstance(value, bool) or isinstance(value, str) and value.strip().lower() in ("", "true", "false"):
        return ""
    return f"must be true or false, not {_shown(key, value)}"


def _number(convert: Callable[[Any], Any]) -> Callable[[ConfigKey, Any], str]:
    def check(key: ConfigKey, value: object) -> str:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return ""
        if isinstance(value, str) and _is_number(key, value, convert):
            return ""
        return f"must be a number, not {_shown(key, value)}"
    return check


def _is_number(key: ConfigKey, text: str, convert: Callable[[Any], Any]) -> bool:
    """Whether a text counts as a number. Counts of pieces, which take all variables, want a real number."""
    if "{" in text:
        return key.variables != "none"
    if key.variables == "full":
        return False
    try:
        convert(text)
    except ValueError:
        return False
    return True


def _list(key: ConfigKey, value: object) -> str:
    if isinstance(value, (list, tuple)) or "any" in key.also:
        return ""
    return f"must be a list, not {_shown(key, value)}"


def _object(key: ConfigKey, value: object) -> str:
    return "" if isinstance(value, dict) else f"must be an object, not {_shown(key, value)}"


def _shown(key: ConfigKey, value: object) -> str:
    """A value as a finding shows it. Long texts that take variables may hold passwords, say in URLs or arguments."""
    if isinstance(value, str) and key.variables == "full" and key.kind not in ("int", "number"):
        return "a text"
    return quoted(value, key.name)


KINDS: Mapping[str, Callable[[ConfigKey, Any], str]] = {
    "str": _text, "bool": _flag, "int": _number(int), "number": _number(float), "float": _number(float),
    "list": _list, "object": _object}
