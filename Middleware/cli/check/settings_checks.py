"""Checks of a settings file against its declared keys: spelling, kinds of values, and what they name."""
from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from Middleware.cli.check.findings import Finding
from Middleware.cli.check.lookups import ConfigFile, Lookups, Problem
from Middleware.cli.check.node_view import COMMON
from Middleware.utilities.config.check import KeyCheck, Severity, quoted
from Middleware.utilities.config.declarations import read_settings, settings_keys
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.node import PROMPT_KEYS
from Middleware.utilities.config.workflows import LoadedWorkflow

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
        return self._check.findings(self.file.content, settings_keys(cls))

    def readable(self, cls: type[T]) -> T:
        """The settings as they are used, but without a word in the log about values of the wrong kind."""
        keys = settings_keys(cls)
        good = {name: value for name, value in self.file.content.items() if name not in keys or value is None
                or keys[name].kind == "bool" or not any(self._check.value(keys[name], value, name))}
        return read_settings(cls, good, self.file.display)

    @property
    def _check(self) -> KeyCheck[Finding]:
        return KeyCheck(self._at, near_only=True, known=NODE_KEYS, says_instead=True)

    def _at(self, severity: Severity, path: str, message: str, expected: str, suggestion: str) -> Finding:
        return Finding(severity, self.file.display, path, None, message, expected, suggestion, self.asked_by)


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
