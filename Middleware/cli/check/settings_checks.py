"""Checks of a settings file against its declared keys: spelling, kinds of values, and what they name."""
from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from Middleware.cli.check.findings import Finding, Severity, quoted
from Middleware.cli.check.key_checks import is_remark, meant_key
from Middleware.cli.check.lookups import ConfigFile, Lookups, Problem
from Middleware.cli.check.names import nearest
from Middleware.cli.check.node_view import COMMON
from Middleware.services.settings_file import FLAG, INT, LEVEL, NAME, NUMBER, TEXT, number_from, read_settings
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.endpoint import CONTEXT_LEVELS
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.utilities.text_utils import as_flag
from Middleware.workflows.handlers.impl.standard_node_handler import PROMPT_KEYS

NODE_KEYS = frozenset(COMMON) | {key.name for key in PROMPT_KEYS}
"""In LLM calls of its own a settings file plays the part of a node, so that these mean something in it, too."""

EMBEDDINGS_EXPECTED = "an endpoint whose API type has the 'type' openAIEmbeddings or ollamaEmbeddings"

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """An LLM call that the settings lead to: the keys that name endpoint and preset, and what they name."""

    purpose: str
    endpoint_key: str
    endpoint: str
    preset_key: str
    preset: str


@dataclass(frozen=True)
class SettingsKeys:
    """The check of the keys of one settings file, without what they name."""

    file: ConfigFile

    @property
    def asked_by(self) -> str:
        """The file that needs the settings."""
        return ""

    def finding(self, severity: Severity, key: str, message: str, *, expected: str = "",
                suggestion: str = "") -> Finding:
        """A finding at ``key`` ("": the file)."""
        return Finding(severity, self.file.display, child("", key) if key else "", None, message, expected, suggestion,
                       self.asked_by)

    def keys(self, cls: type[Any]) -> Iterator[Finding]:
        """Keys that are nearly declared ones, and values of another kind than declared."""
        fields = _fields(cls)
        for name, value in self.file.content.items():
            if name in fields:
                if value is not None:
                    yield from self._value(fields[name], value)
            elif name not in NODE_KEYS and not is_remark(name):
                yield from self._unknown(name, fields)

    def readable(self, cls: type[T]) -> T:
        """The settings as they are used, but without a word in the log about values of the wrong kind."""
        fields = _fields(cls)
        good = {key: value for key, value in self.file.content.items()
                if key not in fields or fields[key].metadata["kind"] == FLAG or value is None
                or not (_wrong(fields[key], value) or fields[key].metadata["kind"] == LEVEL)}
        return read_settings(cls, good, self.file.display)

    def _unknown(self, name: str, fields: Collection[str]) -> Iterator[Finding]:
        meant = meant_key(name, fields)
        shown = quoted(name)
        if meant and meant in self.file.content:
            yield self.finding("note", name, f"the key {shown} is unknown and has no effect; '{meant}' counts")
        elif meant:
            yield self.finding("warning", name, f"the key {shown} is unknown and has no effect", suggestion=meant)

    def _value(self, field: dataclasses.Field[Any], value: object) -> Iterator[Finding]:
        key = field.metadata["key"]
        if field.metadata["kind"] == LEVEL:
            yield from self._level(key, value)
            return
        wrong = _wrong(field, value)
        if wrong:
            yield self.finding("warning", key, f"'{key}' must be {wrong}, not {quoted(value, key)}; "
                               f"{_instead(field, value)}")

    def _level(self, key: str, value: object) -> Iterator[Finding]:
        if not isinstance(value, str) or value.strip().lower() not in CONTEXT_LEVELS:
            yield self.finding("warning", key, f"'{key}' is {quoted(value, key)}, which is unknown; 'conservative' is "
                               "used", expected=", ".join(CONTEXT_LEVELS),
                               suggestion=nearest(str(value), CONTEXT_LEVELS, 0.6))


@dataclass(frozen=True)
class SettingsCheck(SettingsKeys):
    """The check of one settings file. ``loaded`` is the workflow whose nodes need it."""

    loaded: LoadedWorkflow
    lookups: Lookups

    @property
    def asked_by(self) -> str:
        return self.loaded.display

    def endpoint(self, key: str, name: str, in_use: bool, embeddings: bool = False) -> Iterator[Finding]:
        """An endpoint must exist and be of the right kind."""
        problem = self.lookups.endpoint(name) if name else None
        if name and problem is None and self.lookups.makes_embeddings(name) is not embeddings:
            problem = Problem(f"endpoint {quoted(name)} " + (
                "generates text and cannot make embeddings" if embeddings else
                "makes embeddings and cannot write text"))
        expected = EMBEDDINGS_EXPECTED if embeddings else "the name of an endpoint that generates text"
        yield from self._problem(key, problem, in_use, expected)

    def workflow(self, key: str, name: str, in_use: bool) -> Iterator[Finding]:
        """A helper workflow of the user must exist."""
        yield from self._problem(key, self.lookups.workflow(name, None, self.loaded) if name else None, in_use)

    def call(self, call: Call) -> Iterator[Finding]:
        """An LLM call needs an endpoint, and a preset that fits it."""
        if not call.endpoint:
            yield self.finding("error", "", f"the file names no endpoint that {call.purpose}",
                               expected=f"'{call.endpoint_key}' with the name of a file in Endpoints")
        elif self.lookups.endpoint(call.endpoint) is None and not self.lookups.makes_embeddings(call.endpoint):
            problem = self.lookups.preset(call.preset or None, call.endpoint)
            yield from self._problem(call.preset_key if call.preset else call.endpoint_key, problem, True)

    def marked(self, key: str, texts: Collection[str], marker: str, effect: str) -> Iterator[Finding]:
        """One of ``texts`` must hold ``marker``; else ``effect`` says what happens."""
        if not holds(texts, (marker,), self.loaded, self.lookups):
            yield self.finding("warning", key if self.file.content.get(key) else "",
                               f"no prompt holds {marker}, so that {effect}", expected=f"'{key}' with {marker}")

    def _problem(self, key: str, problem: Problem | None, in_use: bool, expected: str = "") -> Iterator[Finding]:
        if problem is not None:
            more = "" if in_use else " (not in use at present)"
            finding = self.finding("error" if in_use else "note", key, problem.message + more,
                                   expected="" if problem.suggestion else expected, suggestion=problem.suggestion)
            yield dataclasses.replace(finding, about=problem.file)


def holds(texts: Collection[str], markers: Collection[str], loaded: LoadedWorkflow, lookups: Lookups) -> bool:
    """Whether a text, or one of the user's variables in it, has one of the markers."""
    variables = {**lookups.user_variables(), **loaded.variables}
    inner = [value for name, value in variables.items()
             if isinstance(value, str) and any(f"{{{name}}}" in text for text in texts)]
    return any(marker in text for text in (*texts, *inner) for marker in markers)


def _fields(cls: type[Any]) -> Mapping[str, dataclasses.Field[Any]]:
    return {field.metadata["key"]: field for field in dataclasses.fields(cls) if "key" in field.metadata}


def _wrong(field: dataclasses.Field[Any], value: Any) -> str:
    """What a value of another kind should have been; empty if it is right. Blank numbers count as not given."""
    kind = field.metadata["kind"]
    if kind in (NAME, TEXT):
        return "" if isinstance(value, str) else "a text"
    if kind == FLAG:
        text = value.strip().lower() if isinstance(value, str) else None
        return "" if isinstance(value, bool) or text in ("", "true", "false") else "true or false"
    if kind in (INT, NUMBER):
        if value == "":
            return ""
        return _out_of_range(field, float(value)) if number_from(value, kind == INT) is not None else _NUMBERS[kind]
    return ""


def _out_of_range(field: dataclasses.Field[Any], number: float) -> str:
    least = field.metadata["least"]
    if least is not None and number < least:
        return f"{least} or more"
    most = field.metadata["most"]
    return f"at most {most}" if number > most else ""


_NUMBERS = {INT: "a whole number", NUMBER: "a number"}


def _instead(field: dataclasses.Field[Any], value: Any) -> str:
    kind, default = field.metadata["kind"], field.metadata["otherwise"]
    if kind == FLAG:
        return f"it counts as {'true' if as_flag(value) else 'false'}"
    if kind in (INT, NUMBER) and number_from(value, kind == INT) is not None:
        most = field.metadata["most"]
        return f"{most if float(value) > most else field.metadata['least']} is used"
    return "it counts as not given" if kind in (NAME, TEXT) or default is None else f"{default:g} is used"
