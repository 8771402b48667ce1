"""Checks of the requirements of memory nodes: keys of the user's file, and the settings files that these name."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from Middleware.cli.check.findings import Finding
from Middleware.cli.check.lookups import ConfigFile, Lookups, Problem
from Middleware.cli.check.node_view import COMMON, NodeView
from Middleware.services.memory import compactor_settings, memory_settings
from Middleware.services.memory.compactor_settings import CompactorSettings
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.utilities.config.check import KeyCheck, Severity, no_effect, quoted
from Middleware.utilities.config.declarations import KeyTable, read_settings, settings_keys
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.node import PROMPT_KEYS
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.workflows.tools.block_prompts import TEXT_CHUNK
from Middleware.workflows.tools.memory.condensation import BATCH

NODE_KEYS = frozenset(COMMON) | {key.name for key in PROMPT_KEYS}
"""The keys of a node, which also apply in settings files, for LLM calls of their own."""

EMBEDDINGS_EXPECTED = "an endpoint whose API type has the 'type' openAIEmbeddings or ollamaEmbeddings"

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """An LLM call that the settings lead to: the keys that name endpoint and preset, and their values."""

    purpose: str
    endpoint_key: str
    endpoint: str
    preset_key: str
    preset: str


@dataclass(frozen=True)
class SettingsKeys:
    """The check of the keys of one settings file, without the files that these name."""

    file: ConfigFile

    @property
    def asked_by(self) -> str:
        """The file that needs the settings."""
        return ""

    def finding(self, severity: Severity, key: str, message: str, *, expected: str = "",
                suggestion: str = "") -> Finding:
        """Return a finding at ``key`` ("": the file)."""
        return Finding(severity, self.file.display, child("", key) if key else "", None, message, expected, suggestion,
                       self.asked_by)

    def keys(self, cls: type[Any]) -> Iterator[Finding]:
        """Yield keys that are nearly declared ones, and values of another type than declared."""
        return self._check.findings(self.file.content, settings_keys(cls))

    def readable(self, cls: type[T]) -> T:
        """Return the settings as they are used, without log entries about values of the wrong type."""
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
        """Yield a finding unless an endpoint exists and is of the right kind."""
        problem = self.lookups.endpoint(name) if name else None
        if name and problem is None and self.lookups.makes_embeddings(name) is not embeddings:
            problem = Problem(f"endpoint {quoted(name)} " + (
                "generates text and cannot make embeddings" if embeddings else
                "makes embeddings and cannot write text"))
        expected = EMBEDDINGS_EXPECTED if embeddings else "the name of an endpoint that generates text"
        yield from self._problem(key, problem, in_use, expected)

    def workflow(self, key: str, name: str, in_use: bool) -> Iterator[Finding]:
        """Yield a finding unless a helper workflow of the user exists."""
        yield from self._problem(key, self.lookups.workflow(name, None, self.loaded) if name else None, in_use)

    def call(self, call: Call) -> Iterator[Finding]:
        """Yield a finding unless an LLM call has an endpoint, and a preset that fits it."""
        if not call.endpoint:
            yield self.finding("error", "", f"the file names no endpoint that {call.purpose}",
                               expected=f"'{call.endpoint_key}' with the name of a file in Endpoints")
        elif self.lookups.endpoint(call.endpoint) is None and not self.lookups.makes_embeddings(call.endpoint):
            problem = self.lookups.preset(call.preset or None, call.endpoint)
            yield from self._problem(call.preset_key if call.preset else call.endpoint_key, problem, True)

    def marked(self, key: str, texts: Collection[str], marker: str, effect: str) -> Iterator[Finding]:
        """Yield a finding unless one of ``texts`` holds ``marker``; ``effect`` describes the consequence."""
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
    """Return whether a text, or one of the user's variables in it, has one of the markers."""
    variables = {**lookups.user_variables(), **loaded.variables}
    inner = [value for name, value in variables.items()
             if isinstance(value, str) and any(f"{{{name}}}" in text for text in texts)]
    return any(marker in text for text in (*texts, *inner) for marker in markers)


MEMORY_KEY, COMPACTOR_KEY = memory_settings.USER_KEY, compactor_settings.USER_KEY

HELPERS: Mapping[str, tuple[str, ...]] = {
    "recentMemoryToolWorkflow": ("QualityMemory", "RecentMemory"), "chatSummaryToolWorkflow": ("FullChatSummary",),
    "conversationMemoryToolWorkflow": ("ConversationMemory",)}
"""Keys of the user's file that name workflows -> the nodes that run these."""

USER_KEYS = frozenset({MEMORY_KEY, COMPACTOR_KEY, "fileMemoryToolWorkflow", *HELPERS})


def check_memory(loaded: LoadedWorkflow, views: Sequence[NodeView], lookups: Lookups) -> Iterator[Finding]:
    """Return the findings about the user's file and settings files that the nodes of a workflow need, each once."""
    types = {view.runs_as for view in views if not _just_reads(view)}
    yield from dict.fromkeys(_Needs(loaded, types, lookups).findings())


def _just_reads(view: NodeView) -> bool:
    return view.runs_as == "FullChatSummary" and KeyTable(view.keys.values()).flag(view.node, "isManualConfig")


class _Needs:
    """Yield the requirements of nodes of ``types``. The user's file is read only if one of them needs it."""

    def __init__(self, loaded: LoadedWorkflow, types: set[str], lookups: Lookups) -> None:
        self._loaded, self._types, self._lookups = loaded, types, lookups

    def findings(self) -> Iterator[Finding]:
        for key, users in HELPERS.items():
            if self._types.intersection(users):
                yield from self._helper(key)
        if self._types & {"QualityMemory", "RecentMemory", "FullChatSummary"}:
            yield from self._settings(MEMORY_KEY, "memory nodes write no memories", self._memory)
        if "ContextCompactor" in self._types:
            yield from self._settings(COMPACTOR_KEY, "ContextCompactor nodes give an empty text", self._compactor)

    # -- the user's file ---------------------------------------------------------------------------------------------
    def _helper(self, key: str) -> Iterator[Finding]:
        name = self._lookups.user_name(key)
        problem = name if isinstance(name, Problem) else None
        if isinstance(name, str):
            if not name:
                yield from self._misspelt(key)
                return
            problem = self._lookups.workflow(name, None, self._loaded)
        if problem is not None:
            yield replace(self._at("error", key, problem.message, suggestion=problem.suggestion), about=problem.file)

    def _settings(self, key: str, effect: str,
                  check: Callable[[SettingsCheck], Iterator[Finding]]) -> Iterator[Finding]:
        name = self._lookups.user_name(key)
        if name == "":
            found = [*self._misspelt(key, effect)]
            yield from found or [self._at(
                "warning", key if key in self._lookups.user_file().content else "",
                f"'{key}' is not set, so that {effect}", expected="the name of a settings file among the workflows")]
            return
        file = name if isinstance(name, Problem) else self._lookups.settings_file(name)
        if isinstance(file, ConfigFile):
            yield from check(SettingsCheck(file, self._loaded, self._lookups))
        else:
            yield replace(self._at("error", key, f"{effect}: {file.message}", suggestion=file.suggestion),
                          about=file.file)

    def _misspelt(self, key: str, effect: str = "") -> Iterator[Finding]:
        written = self._lookups.misspelt_user_key(key, USER_KEYS)
        if written:
            more = f", so that {effect}" if effect else ""
            yield self._at("warning", written, no_effect(written) + more, suggestion=key)

    def _at(self, severity: Severity, key: str, message: str, expected: str = "", suggestion: str = "") -> Finding:
        return Finding(severity, self._lookups.user_file().display, child("", key) if key else "", None, message,
                       expected, suggestion, self._loaded.display)

    # -- the settings ------------------------------------------------------------------------------------------------
    def _memory(self, check: SettingsCheck) -> Iterator[Finding]:
        settings = check.readable(MemorySettings)
        vector = "QualityMemory" in self._types and settings.use_vector
        files = bool(self._types & {"RecentMemory", "FullChatSummary"}) or (
            "QualityMemory" in self._types and not settings.use_vector)
        yield from check.keys(MemorySettings)
        yield from _MemoryPaths(check, settings, files, vector).findings()

    def _compactor(self, check: SettingsCheck) -> Iterator[Finding]:
        settings = check.readable(CompactorSettings)
        yield from check.keys(CompactorSettings)
        yield from check.endpoint("endpointName", settings.endpoint, True)
        yield from check.call(Call("writes the summaries", "endpointName", settings.endpoint,
                                   "preset" if settings.preset_key else "presetName", settings.preset))
        for key, text, markers in (
                ("oldSectionPrompt", settings.old_prompt, (compactor_settings.MESSAGES,)),
                ("neutralSummaryPrompt", settings.neutral_prompt, (compactor_settings.MESSAGES,)),
                ("oldestUpdatePrompt", settings.oldest_prompt, (compactor_settings.EXISTING, compactor_settings.NEW))):
            for marker in markers:
                if marker not in text:
                    yield check.finding("warning", key, f"'{key}' does not hold {marker}, so that the LLM does not see "
                                        "what it stands for", expected=f"{marker} in the prompt")


class _MemoryPaths:
    """Yield findings about the files that memory settings name, for memory files, searchable memories or both."""

    def __init__(self, check: SettingsCheck, settings: MemorySettings, files: bool, vector: bool) -> None:
        self._check, self._settings = check, settings
        self._files, self._vector = files, vector
        self._condenses = files and settings.condense
        self._direct_files = files and not settings.file_workflow
        self._direct_vector = vector and not settings.vector_workflow

    def findings(self) -> Iterator[Finding]:
        yield from self._names()
        for call in self._calls():
            yield from self._check.call(call)
        yield from self._prompts()
        yield from self._options()

    def _names(self) -> Iterator[Finding]:
        settings, check = self._settings, self._check
        plain = (self._direct_files or (self._direct_vector and not settings.vector_endpoint_name)
                 or (self._condenses and not settings.condense_endpoint_name))
        yield from check.endpoint("endpointName", settings.endpoint, plain)
        yield from check.endpoint("vectorMemoryEndpointName", settings.vector_endpoint_name, self._direct_vector)
        yield from check.endpoint("condenseMemoriesEndpointName", settings.condense_endpoint_name, self._condenses)
        yield from check.endpoint("embeddingEndpointName", settings.embedding_endpoint, self._vector, embeddings=True)
        yield from check.workflow("fileMemoryWorkflowName", settings.file_workflow, self._files)
        yield from check.workflow("vectorMemoryWorkflowName", settings.vector_workflow, self._vector)
        yield from check.workflow("stateDocumentWorkflowName", settings.state_workflow,
                                  self._vector and settings.use_state_document)

    def _calls(self) -> Iterator[Call]:
        settings = self._settings
        if self._direct_files:
            yield Call("writes memories", "endpointName", settings.endpoint, "preset", settings.preset)
        if self._direct_vector:
            yield Call("writes searchable memories", *_own("vectorMemoryEndpointName", settings.vector_endpoint_name,
                                                           "endpointName", settings.endpoint),
                       *_own("vectorMemoryPreset", settings.vector_preset_name, "preset", settings.preset))
        if self._condenses:
            yield Call("joins memories", *_own("condenseMemoriesEndpointName", settings.condense_endpoint_name,
                                               "endpointName", settings.endpoint),
                       *_own("condenseMemoriesPreset", settings.condense_preset_name, "preset", settings.preset))

    def _prompts(self) -> Iterator[Finding]:
        settings, check = self._settings, self._check
        texts = (settings.system_prompt, settings.prompt)
        if self._direct_files and not any(text.strip() for text in texts):
            yield check.finding("error", "", "the file holds no prompt for memories and names no workflow, so that "
                                "none are written", expected="'prompt', 'systemPrompt' or 'fileMemoryWorkflowName'")
        elif self._direct_files:
            yield from check.marked("prompt", texts, TEXT_CHUNK, "the LLM does not see what it is to remember")
        if self._direct_vector and settings.vector_prompt:
            yield from check.marked("vectorMemoryPrompt", (settings.vector_system_prompt, settings.vector_prompt),
                                    TEXT_CHUNK, "the LLM does not see what it is to remember")
        if self._condenses and settings.condense_prompt:
            texts = (settings.condense_system_prompt, settings.condense_prompt)
            if not holds(texts, (TEXT_CHUNK,), check.loaded, check.lookups):
                yield from check.marked("condenseMemoriesPrompt", (settings.condense_prompt,), BATCH,
                                        "the LLM does not see what it is to join")

    def _options(self) -> Iterator[Finding]:
        settings, check = self._settings, self._check
        if settings.use_state_document and not settings.state_workflow:
            yield check.finding("error" if self._vector else "note", "useStateDocument", "useStateDocument is on, but "
                                "stateDocumentWorkflowName names no workflow; no document is kept",
                                expected="'stateDocumentWorkflowName' with the name of a workflow")
        elif settings.use_state_document and not settings.use_vector:
            yield check.finding("note", "useStateDocument", "useStateDocument has no effect unless "
                                "useVectorForQualityMemory is on")
        if settings.condense and settings.condense_count < 1:
            yield check.finding("error" if self._files else "note", "condenseMemories", "condenseMemories is on, but "
                                "memoriesBeforeCondensation is not 1 or more; nothing is condensed",
                                expected="'memoriesBeforeCondensation', how many memories are joined at a time")


def _own(key: str, name: str, other_key: str, other: str) -> tuple[str, str]:
    """Return the key that counts, and the name in it."""
    return (key, name) if name else (other_key, other)
