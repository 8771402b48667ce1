"""Checks of memory nodes, of the keys of the user's file that they need, and of the settings files that these name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from Middleware.addons.check.findings import Finding, finding_in
from Middleware.addons.check.lookups import ConfigFile, Lookups, Problem
from Middleware.addons.check.node_check import COMMON, NO_ENDPOINT, ONE_ENDPOINT, NodeView, limit_problems
from Middleware.services.llm_calls.prompt_parts import PART_KEYS, prompt_templates
from Middleware.services.memory import compactor_settings, memory_settings
from Middleware.services.memory.compactor_settings import CompactorSettings
from Middleware.services.memory.memory_settings import (
    BATCH,
    CURRENT_SUMMARY,
    HYBRID,
    KEYWORD,
    LATEST_MEMORIES,
    SEMANTIC,
    MemorySettings,
)
from Middleware.utilities.config.check import KeyCheck, Severity, no_effect, quoted
from Middleware.utilities.config.declarations import (
    MOST_TOKENS,
    KeyTable,
    number_from,
    read_settings,
    settings_keys,
)
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.keys.node import NODE, PROMPT_KEYS, is_responder
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.utilities.said_times import NO_DATES, zone_named
from Middleware.workflows.tools.block_prompts import TEXT_CHUNK

# The keys of a node, which also apply in settings files, for LLM calls of their own.
NODE_KEYS = frozenset(COMMON) | {key.name for key in PROMPT_KEYS} - {*PART_KEYS}
EMBEDDINGS_EXPECTED = "an endpoint whose API type has the 'type' openAIEmbeddings or ollamaEmbeddings"
MEMORY_KEY, COMPACTOR_KEY = memory_settings.USER_KEY, compactor_settings.USER_KEY
EMBEDDING_KEY = "embeddingEndpointName"
COUNT = "lastMessagesToSendInsteadOfPrompt"
LIMIT_OF_MESSAGES = f"{COUNT}MaxTokenSize"
# More messages than a conversation has in one prompt.
ALL_MESSAGES = 1_000
# Keys of the user's file that name workflows -> the nodes that run these.
HELPERS: Mapping[str, tuple[str, ...]] = {
    "recentMemoryToolWorkflow": ("QualityMemory", "RecentMemory"),
    "chatSummaryToolWorkflow": ("FullChatSummary",),
    "conversationMemoryToolWorkflow": ("ConversationMemory",),
}
USER_KEYS = frozenset({MEMORY_KEY, COMPACTOR_KEY, "fileMemoryToolWorkflow", *HELPERS})
# The columns of the search index that a search weighs.
WEIGHT_COUNT = 5
LIMIT, VECTOR_LIMIT = "maxResponseSizeInTokens", "vectorMemoryMaxResponseSizeInTokens"
# Tokens: a memory is shorter. More is what a model that repeats itself costs, unless it thinks first.
LONG_LIMIT = 1200
CONDENSE_LIMIT = "condenseMemoriesMaxResponseSizeInTokens"
T = TypeVar("T")


def check_settings_keys(
    cls: type[Any], content: Mapping[str, object], display: str, asked_by: str = ""
) -> Iterator[Finding]:
    """Yield keys that are nearly those that ``cls`` declares, and values of another type than declared."""
    yield from _key_check(display, asked_by).findings(content, settings_keys(cls))


def _key_check(display: str, asked_by: str) -> KeyCheck[Finding]:
    return KeyCheck(partial(finding_in, display, asked_by=asked_by), near_only=True, known=NODE_KEYS, of_settings=True)


def holds(texts: Collection[str], marker: str, loaded: LoadedWorkflow, lookups: Lookups) -> bool:
    """Return whether a text, or one of the user's variables in it, has a marker."""
    variables = {**lookups.user_variables(), **loaded.variables}
    inner = [
        value
        for name, value in variables.items()
        if isinstance(value, str) and any(f"{{{name}}}" in text for text in texts)
    ]
    return any(marker in text for text in (*texts, *inner))


# -- what the nodes of a workflow need ---------------------------------------------------------------------------------


def check_memory(loaded: LoadedWorkflow, views: Sequence[NodeView], lookups: Lookups) -> Iterator[Finding]:
    """Return the findings about the user's file and settings files that the nodes of a workflow need, each once."""
    types = {
        view.runs_as
        for view in views
        if not (view.runs_as == "FullChatSummary" and KeyTable(view.keys.values()).flag(view.node, "isManualConfig"))
    }
    yield from dict.fromkeys(_Needs(loaded, types, lookups).findings())
    if "Recall" in types:
        yield from _shown_anyway(views)


def _shown_anyway(views: Sequence[NodeView]) -> Iterator[Finding]:
    """Yield a finding for Recall nodes whose results are in the prompt of the node that answers anyway."""
    answering = next((view for view in views if is_responder(view.node)), views[-1])
    node, count = answering.node, number_from(answering.node.get(COUNT), whole=True)
    if NODE.value(node, "prompt") or node.get(LIMIT_OF_MESSAGES) is not None or (count or 0) < ALL_MESSAGES:
        return
    for view in views:
        if view.runs_as == "Recall":
            yield view.finding(
                "warning",
                "",
                f"{answering.label} sends all messages anyway ('{COUNT}' is {count}), so that only messages of other "
                "chats are new in what this node finds",
                expected=f"a smaller '{COUNT}' there, and as many messages as 'newestShown' here",
            )


def check_settings_file(kind: str, lookups: Lookups) -> Iterator[Finding]:
    """Yield the findings about the settings file of this kind that the current user's file names, as if in full use."""
    no_workflow = LoadedWorkflow("", "", "", "", [], {})
    types = {"QualityMemory"} if kind == "memory-settings" else {"ContextCompactor"}
    yield from _Needs(no_workflow, types, lookups).settings()


class _Needs:
    """Yield the requirements of nodes of ``types``. The user's file is read only if one of them needs it."""

    def __init__(self, loaded: LoadedWorkflow, types: set[str], lookups: Lookups) -> None:
        self._loaded, self._types, self._lookups = loaded, types, lookups

    def findings(self) -> Iterator[Finding]:
        for key, users in HELPERS.items():
            if self._types.intersection(users):
                yield from self._helper(key)
        yield from self.settings()

    def settings(self) -> Iterator[Finding]:
        """Yield the findings about settings files."""
        if self._types & {"QualityMemory", "RecentMemory", "FullChatSummary"}:
            yield from self._settings(MEMORY_KEY, "memory nodes write no memories", self._memory)
        if "VectorMemorySearch" in self._types and "Recall" not in self._types:
            yield from self._hint()
        if "Recall" in self._types:
            yield from self._settings(MEMORY_KEY, "Recall nodes find nothing", _recall)
        if "ContextCompactor" in self._types:
            yield from self._settings(COMPACTOR_KEY, "ContextCompactor nodes give an empty text", _compactor)

    def _hint(self) -> Iterator[Finding]:
        """Yield a note, which is the same for each workflow of the user, unless a settings file is missing."""
        file = _memory_settings(self._lookups)
        if file is not None:
            yield SettingsCheck(file, self._loaded, self._lookups).hint(
                "rememberMessages" if "rememberMessages" in file.content else "",
                "workflows search memories with VectorMemorySearch; Recall nodes would find more: with "
                "rememberMessages also every message, word for word",
            )

    def _helper(self, key: str) -> Iterator[Finding]:
        name = self._lookups.user_name(key)
        if name == "":
            yield from self._misspelt(key)
            return
        problem = name if isinstance(name, Problem) else self._lookups.workflow(name, None, self._loaded)
        if problem is not None:
            yield self._at("error", key, problem.message, suggestion=problem.suggestion, about=problem.file)

    def _settings(
        self, key: str, effect: str, check: Callable[[SettingsCheck], Iterator[Finding]]
    ) -> Iterator[Finding]:
        name = self._lookups.user_name(key)
        if name == "":
            found = [*self._misspelt(key, effect)]
            yield from found or [
                self._at(
                    "warning",
                    key if key in self._lookups.user_file().content else "",
                    f"'{key}' is not set, so that {effect}",
                    expected="the name of a settings file among the workflows",
                )
            ]
            return
        file = name if isinstance(name, Problem) else self._lookups.settings_file(name)
        if isinstance(file, ConfigFile):
            yield from check(SettingsCheck(file, self._loaded, self._lookups))
        else:
            yield self._at("error", key, f"{effect}: {file.message}", suggestion=file.suggestion, about=file.file)

    def _misspelt(self, key: str, effect: str = "") -> Iterator[Finding]:
        written = self._lookups.misspelt_user_key(key, USER_KEYS)
        if written:
            more = f", so that {effect}" if effect else ""
            yield self._at("warning", written, no_effect(written) + more, suggestion=key)

    def _at(
        self, severity: Severity, key: str, message: str, expected: str = "", suggestion: str = "", about: str = ""
    ) -> Finding:
        return Finding(
            severity,
            self._lookups.user_file().display,
            child("", key) if key else "",
            None,
            message,
            expected,
            suggestion,
            self._loaded.display,
            about=about,
        )

    def _memory(self, check: SettingsCheck) -> Iterator[Finding]:
        settings = check.read(MemorySettings)
        vector = "QualityMemory" in self._types and settings.use_vector
        files = bool(self._types & {"RecentMemory", "FullChatSummary"}) or (
            "QualityMemory" in self._types and not settings.use_vector
        )
        yield from check.keys(MemorySettings)
        if (files or vector) and "followEdits" not in check.file.content:
            yield check.hint(
                "",
                "memories do not follow edits: what was made of a message stays when it is edited or deleted",
                '"followEdits": true, or false if that is meant',
            )
        yield from _MemoryPaths(check, settings, files, vector).findings()


# -- settings files ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SettingsCheck:
    """The check of one settings file. ``loaded`` is the workflow whose nodes need it."""

    file: ConfigFile
    loaded: LoadedWorkflow
    lookups: Lookups

    def finding(
        self, severity: Severity, key: str, message: str, expected: str = "", suggestion: str = "", about: str = ""
    ) -> Finding:
        """Return a finding at ``key`` ("": the file)."""
        return Finding(
            severity,
            self.file.display,
            child("", key) if key else "",
            None,
            message,
            expected,
            suggestion,
            self.loaded.display,
            about=about,
        )

    def hint(self, key: str, message: str, expected: str = "") -> Finding:
        """Return a note that is the same for each workflow of the user, and is in no log."""
        return replace(self.finding("note", key, message, expected), is_hint=True)

    def keys(self, cls: type[Any]) -> Iterator[Finding]:
        yield from check_settings_keys(cls, self.file.content, self.file.display, self.loaded.display)

    def read(self, cls: type[T]) -> T:
        """Return the settings as they are used."""
        keys, check = settings_keys(cls), _key_check(self.file.display, self.loaded.display)
        # Reading a value of the wrong type logs it, and ``keys`` reports the same with its position.
        good = {
            name: value
            for name, value in self.file.content.items()
            if name not in keys
            or value is None
            or keys[name].kind == "bool"
            or not any(check.value(keys[name], value, name))
        }
        return read_settings(cls, good, self.file.display)

    def endpoint(self, key: str, name: str, in_use: bool, embeddings: bool = False) -> Iterator[Finding]:
        """Yield a finding unless an endpoint exists and is of the right kind."""
        look_up = self.lookups.embeddings_endpoint if embeddings else self.lookups.endpoint
        problem = look_up(name) if name else None
        if name and problem is None and not embeddings and self.lookups.makes_embeddings(name):
            problem = Problem(f"endpoint {quoted(name)} makes embeddings and cannot write text")
        expected = EMBEDDINGS_EXPECTED if embeddings else "the name of an endpoint that generates text"
        yield from self._problem(key, problem, in_use, expected)

    def workflow(self, key: str, name: str, in_use: bool) -> Iterator[Finding]:
        """Yield a finding unless a helper workflow of the user exists."""
        yield from self._problem(key, self.lookups.workflow(name, None, self.loaded) if name else None, in_use)

    def call(
        self, purpose: str, endpoint: tuple[str, str], preset: tuple[str, str], limit: str = LIMIT
    ) -> Iterator[Finding]:
        """Yield a finding unless an LLM call has an endpoint, and a preset and a longest answer that fit it.

        Endpoint and preset are a key and a name each; ``limit`` is the key of the longest answer.
        """
        key, name = endpoint
        if not name:
            yield self.finding(
                "error",
                "",
                f"the file names no endpoint that {purpose}",
                f"'{key}' with the name of a file in Endpoints",
            )
        elif self.lookups.endpoint(name) is None and not self.lookups.makes_embeddings(name):
            preset_key, preset_name = preset
            problem = self.lookups.preset(preset_name or None, name)
            yield from self._problem(preset_key if preset_name else key, problem, True)
            for message, expected in limit_problems(limit, self.file.content.get(limit), name, self.lookups):
                yield self.finding("warning", limit, message, expected)

    def marked(self, key: str, texts: Collection[str], marker: str, effect: str) -> Iterator[Finding]:
        """Yield a finding unless one of ``texts`` holds ``marker``; ``effect`` describes the consequence."""
        if not holds(texts, marker, self.loaded, self.lookups):
            yield self.finding(
                "warning",
                key if self.file.content.get(key) else "",
                f"no prompt holds {marker}, so that {effect}",
                f"'{key}' with {marker}",
            )

    def _problem(self, key: str, problem: Problem | None, in_use: bool, expected: str = "") -> Iterator[Finding]:
        if problem is not None:
            more = "" if in_use else " (not in use at present)"
            yield self.finding(
                "error" if in_use else "note",
                key,
                problem.message + more,
                "" if problem.suggestion else expected,
                problem.suggestion,
                problem.file,
            )


def _recall(check: SettingsCheck) -> Iterator[Finding]:
    settings = check.read(MemorySettings)
    if not settings.remember_messages and not settings.use_vector:
        yield check.finding(
            "warning",
            "rememberMessages" if "rememberMessages" in check.file.content else "",
            "neither rememberMessages nor useVectorForQualityMemory is on, so that Recall nodes find nothing",
            '"rememberMessages": true',
        )
    yield from check.endpoint(EMBEDDING_KEY, settings.embedding_endpoint, settings.remember_messages, embeddings=True)
    yield from _time_zone(check, settings)


def _time_zone(check: SettingsCheck, settings: MemorySettings) -> Iterator[Finding]:
    zone = settings.time_zone
    if zone and zone.casefold() != NO_DATES and zone_named(zone) is None:
        yield check.finding(
            "warning",
            "timeZone",
            f"the time zone {quoted(zone)} is unknown on this machine; dates are those of the server's time zone",
            'a name such as "Europe/Berlin", or "none"',
        )


def _compactor(check: SettingsCheck) -> Iterator[Finding]:
    settings = check.read(CompactorSettings)
    yield from check.keys(CompactorSettings)
    yield from check.endpoint("endpointName", settings.endpoint, True)
    yield from check.call(
        "writes the summaries",
        ("endpointName", settings.endpoint),
        ("preset" if settings.preset_key else "presetName", settings.preset),
    )
    for key, text, markers in (
        ("oldSectionPrompt", settings.old_prompt, (compactor_settings.MESSAGES,)),
        ("neutralSummaryPrompt", settings.neutral_prompt, (compactor_settings.MESSAGES,)),
        ("oldestUpdatePrompt", settings.oldest_prompt, (compactor_settings.EXISTING, compactor_settings.NEW)),
    ):
        for marker in markers:
            if marker not in text:
                yield check.finding(
                    "warning",
                    key,
                    f"'{key}' does not hold {marker}, so that the LLM does not see what it stands for",
                    f"{marker} in the prompt",
                )


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
        yield from self._calls()
        yield from self._prompts()
        yield from self._options()

    def _names(self) -> Iterator[Finding]:
        settings, check = self._settings, self._check
        plain = (
            self._direct_files
            or (self._direct_vector and not settings.vector_endpoint_name)
            or (self._condenses and not settings.condense_endpoint_name)
        )
        yield from check.endpoint("endpointName", settings.endpoint, plain)
        yield from check.endpoint("vectorMemoryEndpointName", settings.vector_endpoint_name, self._direct_vector)
        yield from check.endpoint("condenseMemoriesEndpointName", settings.condense_endpoint_name, self._condenses)
        embeds = self._vector or settings.remember_messages
        yield from check.endpoint(EMBEDDING_KEY, settings.embedding_endpoint, embeds, embeddings=True)
        yield from check.workflow("fileMemoryWorkflowName", settings.file_workflow, self._files)
        yield from check.workflow("vectorMemoryWorkflowName", settings.vector_workflow, self._vector)
        yield from check.workflow(
            "stateDocumentWorkflowName", settings.state_workflow, self._vector and settings.use_state_document
        )

    def _calls(self) -> Iterator[Finding]:
        settings, call = self._settings, self._check.call
        endpoint, preset = ("endpointName", settings.endpoint), ("preset", settings.preset)
        if self._direct_files:
            yield from call("writes memories", endpoint, preset)
            yield from self._long_limit(LIMIT, settings.max_response_tokens, settings.endpoint)
        # The keys of a purpose count before the general ones.
        if self._direct_vector:
            own, own_preset = settings.vector_endpoint_name, settings.vector_preset_name
            yield from call(
                "writes searchable memories",
                ("vectorMemoryEndpointName", own) if own else endpoint,
                ("vectorMemoryPreset", own_preset) if own_preset else preset,
                VECTOR_LIMIT,
            )
            yield from self._long_limit(VECTOR_LIMIT, settings.vector_max_response_tokens, own or settings.endpoint)
        if self._condenses:
            own, own_preset = settings.condense_endpoint_name, settings.condense_preset_name
            yield from call(
                "joins memories",
                ("condenseMemoriesEndpointName", own) if own else endpoint,
                ("condenseMemoriesPreset", own_preset) if own_preset else preset,
                LIMIT if settings.condense_response_tokens is None else CONDENSE_LIMIT,
            )

    def _long_limit(self, key: str, limit: int, endpoint: str) -> Iterator[Finding]:
        written, lookups = self._check.file.content.get(key), self._check.lookups
        content = lookups.endpoint_config(endpoint) if endpoint else None
        if limit <= LONG_LIMIT or content is None or ENDPOINT.flag(content, "removeThinking"):
            return
        # A limit that is out of range, or fills the context window, has a finding already.
        in_range = (number_from(written, whole=False) or 0) <= MOST_TOKENS
        if in_range and not any(limit_problems(key, written, endpoint, lookups)):
            yield self._check.finding(
                "warning",
                key,
                f"'{key}' is {limit}, more than memories need: a small model that repeats itself keeps the server busy "
                "until then",
                f"at most {LONG_LIMIT}, such as 500; more only for a model that thinks first, whose endpoint has "
                "'removeThinking'",
            )

    def _prompts(self) -> Iterator[Finding]:
        settings, check = self._settings, self._check
        texts = (settings.system_prompt, settings.prompt)
        if self._direct_files and not any(text.strip() for text in texts):
            yield check.finding(
                "error",
                "",
                "the file holds no prompt for memories and names no workflow, so that none are written",
                "'prompt', 'systemPrompt' or 'fileMemoryWorkflowName'",
            )
        elif self._direct_files:
            yield from check.marked("prompt", texts, TEXT_CHUNK, "the LLM does not see what it is to remember")
        # Without a prompt of their own, these two use a built-in one, which has its marker.
        if self._direct_vector and settings.vector_prompt:
            yield from check.marked(
                "vectorMemoryPrompt",
                (settings.vector_system_prompt, settings.vector_prompt),
                TEXT_CHUNK,
                "the LLM does not see what it is to remember",
            )
        if self._condenses and settings.condense_prompt:
            texts = (settings.condense_system_prompt, settings.condense_prompt)
            if not holds(texts, TEXT_CHUNK, check.loaded, check.lookups):
                yield from check.marked(
                    "condenseMemoriesPrompt",
                    (settings.condense_prompt,),
                    BATCH,
                    "the LLM does not see what it is to join",
                )

    def _options(self) -> Iterator[Finding]:
        settings, check = self._settings, self._check
        yield from _time_zone(check, settings)
        if settings.use_state_document and not settings.state_workflow:
            yield check.finding(
                "error" if self._vector else "note",
                "useStateDocument",
                "useStateDocument is on, but stateDocumentWorkflowName names no workflow; no document is kept",
                "'stateDocumentWorkflowName' with the name of a workflow",
            )
        elif settings.use_state_document and not settings.use_vector:
            yield check.finding(
                "note", "useStateDocument", "useStateDocument has no effect unless useVectorForQualityMemory is on"
            )
        if settings.condense and settings.condense_count < 1:
            yield check.finding(
                "error" if self._files else "note",
                "condenseMemories",
                "condenseMemories is on, but memoriesBeforeCondensation is not 1 or more; nothing is condensed",
                "'memoriesBeforeCondensation', how many memories are joined at a time",
            )


# -- single nodes ------------------------------------------------------------------------------------------------------


def check_memory_node(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield findings about one node, if it is a memory node."""
    if view.runs_as == "VectorMemorySearch":
        yield from _search(view, lookups)
        return
    if view.runs_as == "WriteCurrentSummaryToFileAndReturnIt" and _follow_edits(view.loaded, lookups):
        meant = view.finding(
            "note",
            "type",
            "with followEdits, a summary that is written here counts as the user's own: it stays as it is when the "
            "messages behind it are edited or deleted",
        )
        yield replace(meant, is_hint=True)
    if view.runs_as == "Recall":
        yield from _embeddings(view, lookups)
        return
    texts = [*filter(str.strip, prompt_templates(view.node))]
    has = partial(holds, texts, loaded=view.loaded, lookups=lookups)
    if view.runs_as == "chatSummarySummarizer":
        lacking = [marker for marker in (CURRENT_SUMMARY, LATEST_MEMORIES) if not has(marker)]
        yield from _summarizer(view, lacking, len(lacking) == 2 and _follow_edits(view.loaded, lookups))
    elif (
        view.runs_as == "SlowButQualityRAG"
        and texts
        and not (view.node.get("fileMemoryWorkflowName") or has(TEXT_CHUNK))
    ):
        yield view.finding(
            "warning",
            "prompt" if view.node.get("prompt") else "systemPrompt",
            f"no prompt holds {TEXT_CHUNK}, so that the LLM does not see the blocks of ragTarget",
        )


def _search(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    weights = view.node.get("bm25Weights")
    # For anything else the type is reported.
    if isinstance(weights, (list, tuple)) and (
        len(weights) != WEIGHT_COUNT
        or any(isinstance(weight, bool) or not isinstance(weight, (int, float)) for weight in weights)
    ):
        yield view.finding(
            "warning",
            "bm25Weights",
            f"'bm25Weights' is not a list of {WEIGHT_COUNT} numbers and is not used",
            expected="numbers for title, summary, entities, key phrases and text, in this order",
        )
    written = view.node.get("searchMode")
    mode = str(written).strip().lower() if written is not None else KEYWORD
    if mode not in (SEMANTIC, HYBRID):
        return
    name = view.node.get(EMBEDDING_KEY) or ""
    if isinstance(name, str) and not name.strip():
        yield view.finding(
            "warning",
            EMBEDDING_KEY if EMBEDDING_KEY in view.node else "searchMode",
            f"the searchMode {quoted(mode)} needs '{EMBEDDING_KEY}'; the node searches by {KEYWORD}",
            expected=EMBEDDINGS_EXPECTED,
        )
    yield from _embeddings(view, lookups)


def _embeddings(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    key, name = EMBEDDING_KEY, view.node.get(EMBEDDING_KEY)
    # Reported as the wrong type, or as taking no variables.
    if not isinstance(name, str) or not name.strip() or "{" in name:
        return
    problem = lookups.embeddings_endpoint(name)
    if problem is not None:
        finding = view.finding(
            "error", key, problem.message, expected=EMBEDDINGS_EXPECTED, suggestion=problem.suggestion
        )
        yield replace(finding, about=problem.file)


def _memory_settings(lookups: Lookups) -> ConfigFile | None:
    """Return the file with the user's memory settings, if it can be used; problems with it are reported elsewhere."""
    name = lookups.user_name(MEMORY_KEY)
    file = lookups.settings_file(name) if isinstance(name, str) and name else None
    return file if isinstance(file, ConfigFile) else None


def _follow_edits(loaded: LoadedWorkflow, lookups: Lookups) -> bool:
    """Return whether the memories of the user follow edits."""
    file = _memory_settings(lookups)
    return file is not None and SettingsCheck(file, loaded, lookups).read(MemorySettings).follow_edits


def _summarizer(view: NodeView, lacking: Sequence[str], follows: bool) -> Iterator[Finding]:
    if not view.node.get("endpointName"):
        yield view.finding("error", "", NO_ENDPOINT, expected=ONE_ENDPOINT)
    if len(lacking) == 2:
        more = "; with followEdits, it cannot be made again from the memories that are still true after an edit"
        yield view.finding(
            "warning" if follows else "note",
            "",
            f"no prompt holds {CURRENT_SUMMARY} or {LATEST_MEMORIES}; the LLM is asked "
            "once, and its answer becomes the summary" + (more if follows else ""),
        )
    elif lacking:
        effect = (
            "a new summary knows nothing of the one before"
            if lacking[0] == CURRENT_SUMMARY
            else "new memories do not reach the summary"
        )
        yield view.finding("note", "", f"no prompt holds {lacking[0]}; {effect}")
