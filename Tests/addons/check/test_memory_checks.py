"""What memory nodes need: keys of the user's file, and what the settings files there say."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.check.findings import Finding, report
from Middleware.addons.check.lookups import Lookups
from Middleware.addons.check.workflow_check import check_workflow
from Middleware.services.memory.compactor_settings import CompactorSettings
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.endpoint import CONTEXT_LEVELS
from Middleware.utilities.text_utils import estimation_level_multiplier
from Tests.addons.check.checking import FakeLookups, brief, check, only, static
from Tests.llmapis.lab import Lab
from Tests.tables import table

MEMORY, COMPACTOR = "discussionIdMemoryFileWorkflowSettings", "contextCompactorSettingsFile"
USER_FILE, FILE, COMPACT = "Users/tester.json", "Workflows/tester/Memory.json", "Workflows/tester/Compact.json"
GOOD = {"endpointName": "Main", "prompt": "[TextChunk]"}
VECTOR = {"useVectorForQualityMemory": True, "endpointName": "Main"}
CONDENSE = {**GOOD, "condenseMemories": True, "memoriesBeforeCondensation": 3}
STATE = {**VECTOR, "useStateDocument": True}


class MemoryChecks(Lab):
    """A user with settings files for memories and compaction, a workflow ``Helper``, and an endpoint for vectors."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root, monkeypatch)
        self.write("ApiTypes/Embed", {"type": "openAIEmbeddings"})
        self.endpoint("Vectors", {"apiTypeConfigFileName": "Embed"})
        self.preset("OpenAiCompatibleApis", "Calm", {"temperature": 0})
        self.write("Workflows/tester/Helper", {"nodes": [static()]})
        self.write("Workflows/tester/Memory", GOOD)
        self.write("Workflows/tester/Compact", {"endpointName": "Main"})

    def user(self, **settings: Any) -> None:
        super().user(**{MEMORY: "Memory", COMPACTOR: "Compact", **settings})

    def found(self, *nodes: str | dict[str, Any], **variables: Any) -> list[Finding]:
        """All findings but the hint that memories do not follow edits, which most of these settings give."""
        return [finding for finding in self.all_found(*nodes, **variables) if "follow edits:" not in finding.message]

    def all_found(self, *nodes: str | dict[str, Any], **variables: Any) -> list[Finding]:
        self.write(
            "Workflows/tester/Main",
            {**variables, "nodes": [{"type": node} if isinstance(node, str) else node for node in nodes]},
        )
        return check_workflow(config_utils.load_workflow("Main"), Lookups())

    def with_settings(self, settings: dict[str, Any], *nodes: str) -> list[Finding]:
        self.write("Workflows/tester/Memory", settings)
        return self.found(*(nodes or ("QualityMemory",)))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryChecks]:
    yield MemoryChecks(tmp_path, monkeypatch)
    config_utils.reset_config_store()


def places(found: list[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.severity, finding.file, finding.json_path) for finding in found]


# -- longest answers ---------------------------------------------------------------------------------------------------

PLAIN, OF_VECTORS, OF_JOINING = (
    "maxResponseSizeInTokens",
    "vectorMemoryMaxResponseSizeInTokens",
    "condenseMemoriesMaxResponseSizeInTokens",
)


@table(
    ("settings", "key"),
    [
        ({**GOOD, PLAIN: 4096}, PLAIN),
        ({**GOOD, PLAIN: 4095}, ""),
        # The endpoint of the purpose counts, not the general one.
        ({**CONDENSE, "condenseMemoriesEndpointName": "Small", PLAIN: 600}, PLAIN),
        ({**CONDENSE, "condenseMemoriesEndpointName": "Small", PLAIN: 600, OF_JOINING: 100}, ""),
        ({**CONDENSE, OF_JOINING: 5000}, OF_JOINING),
        ({**GOOD, OF_JOINING: 5000}, ""),
        ({**VECTOR, OF_VECTORS: 5000}, OF_VECTORS),
        ({**VECTOR, "vectorMemoryEndpointName": "Small", OF_VECTORS: 600}, OF_VECTORS),
        # Not used for searchable memories.
        ({**VECTOR, PLAIN: 5000}, ""),
        ({**GOOD, "fileMemoryWorkflowName": "Helper", PLAIN: 5000}, ""),
    ],
)
def test_longest_answer_and_window(lab: MemoryChecks, settings: dict[str, Any], key: str) -> None:
    lab.endpoint("Main", {"maxContextTokenSize": 4096, "removeThinking": True})
    lab.endpoint("Small", {"maxContextTokenSize": 512})
    found = lab.with_settings(settings)
    assert places(found) == ([("warning", FILE, key)] if key else [])
    assert all("no room is left for the prompt" in finding.message for finding in found)


@table(
    ("settings", "thinks", "key"),
    [
        ({**GOOD, PLAIN: 1200}, False, ""),
        ({**GOOD, PLAIN: 1201}, False, PLAIN),
        ({**GOOD, PLAIN: "1500"}, False, PLAIN),
        ({**GOOD, PLAIN: 1500}, True, ""),
        ({**VECTOR, OF_VECTORS: 1201}, False, OF_VECTORS),
        ({**VECTOR, OF_VECTORS: 1201}, True, ""),
        ({**VECTOR, "vectorMemoryEndpointName": "Other", OF_VECTORS: 1500}, True, OF_VECTORS),
        ({**VECTOR, PLAIN: 1500}, False, ""),
        ({**GOOD, OF_VECTORS: 1500}, False, ""),
        ({**VECTOR, "vectorMemoryWorkflowName": "Helper", OF_VECTORS: 1500}, False, ""),
    ],
)
def test_an_answer_may_be_longer_than_memories_are(
    lab: MemoryChecks, settings: dict[str, Any], thinks: bool, key: str
) -> None:
    lab.endpoint("Main", {"removeThinking": thinks})
    lab.endpoint("Other", {})
    found = lab.with_settings(settings)
    assert places(found) == ([("warning", FILE, key)] if key else [])
    assert all("a small model that repeats itself" in finding.message for finding in found)


@table(
    ("settings", "window", "says"),
    [
        ({**GOOD, PLAIN: 4096}, 4096, "no room is left"),
        ({**GOOD, PLAIN: 4095}, 4096, "more than memories need"),
        ({**GOOD, PLAIN: "5000"}, 4096, "no room is left"),
        ({**GOOD, PLAIN: 1201}, 1201, "no room is left"),
        ({**VECTOR, OF_VECTORS: 5000}, 4096, "no room is left"),
        ({**CONDENSE, PLAIN: 5000}, 4096, "no room is left"),
        ({**GOOD, PLAIN: 10_000_000}, None, "more than memories need"),
        ({**GOOD, PLAIN: 10_000_001}, None, "out of range"),
        ({**GOOD, PLAIN: "10000001"}, 4096, "out of range"),
        ({**VECTOR, OF_VECTORS: 10**12}, None, "out of range"),
    ],
)
def test_an_answer_that_is_far_too_long_is_reported_once(
    lab: MemoryChecks, settings: dict[str, Any], window: int | None, says: str
) -> None:
    lab.endpoint("Main", {"maxContextTokenSize": window} if window else {})
    finding = only(lab.with_settings(settings))
    assert finding.json_path in (PLAIN, OF_VECTORS) and says in finding.message


def test_longest_summary_of_the_compactor_and_window(lab: MemoryChecks) -> None:
    lab.endpoint("Main", {"maxContextTokenSize": 4096})
    lab.write("Workflows/tester/Compact", {"endpointName": "Main", PLAIN: 5000})
    assert places(lab.found("ContextCompactor")) == [("warning", COMPACT, PLAIN)]


# -- the user's file ---------------------------------------------------------------------------------------------------

WRITERS = ["QualityMemory", "RecentMemory", "FullChatSummary"]


@pytest.mark.parametrize("node", [*WRITERS, "ContextCompactor", "ConversationMemory", "GetCurrentSummaryFromFile"])
def test_good_settings(lab: MemoryChecks, node: str) -> None:
    assert report(lab.found(node)) == ""


@pytest.mark.parametrize(("node", "key"), [*((node, MEMORY) for node in WRITERS), ("ContextCompactor", COMPACTOR)])
@pytest.mark.parametrize("value", ["", "  ", None])
def test_no_settings_file(lab: MemoryChecks, node: str, key: str, value: Any) -> None:
    lab.user(**{key: value})
    finding = only(lab.found(node))
    assert (finding.severity, finding.file, finding.json_path) == ("warning", USER_FILE, key)
    assert "is not set" in finding.message
    assert finding.line is not None


@pytest.mark.parametrize(
    "node",
    [
        "GetCurrentMemoryFromFile",
        "ConversationMemory",
        "StaticResponse",
        {"type": "FullChatSummary", "isManualConfig": True},
    ],
)
def test_nodes_that_need_no_settings(lab: MemoryChecks, node: Any) -> None:
    lab.user(**{MEMORY: "", COMPACTOR: "", "chatSummaryToolWorkflow": "Missing"})
    assert [finding for finding in lab.found(node) if finding.file == USER_FILE] == []


@pytest.mark.parametrize(
    ("node", "key", "near"), [("QualityMemory", MEMORY, "Memory"), ("ContextCompactor", COMPACTOR, "Compact")]
)
def test_a_settings_file_that_does_not_exist(lab: MemoryChecks, node: str, key: str, near: str) -> None:
    lab.user(**{key: near + "s"})
    finding = only(lab.found(node))
    assert (finding.severity, finding.file, finding.json_path) == ("error", USER_FILE, key)
    assert "does not exist" in finding.message
    assert finding.suggestion == near


@pytest.mark.parametrize(("text", "says"), [('{"a": 1,\n oops}', "Memory.json"), ("[1]", "JSON object")])
def test_a_settings_file_that_cannot_be_read(lab: MemoryChecks, text: str, says: str) -> None:
    (lab.root / FILE).write_text(text, encoding="utf-8")
    config_utils.reset_config_store()
    finding = only(lab.found("RecentMemory"))
    assert (finding.severity, finding.json_path) == ("error", MEMORY)
    assert says in finding.message


def test_a_settings_name_that_is_no_text(lab: MemoryChecks) -> None:
    lab.user(**{MEMORY: 5})
    finding = only(lab.found("QualityMemory"))
    assert (finding.severity, finding.json_path) == ("error", MEMORY)
    assert "must be a string" in finding.message


@pytest.mark.parametrize(
    ("written", "meant", "node"),
    [
        ("discusionIdMemoryFileWorkflowSettings", MEMORY, "QualityMemory"),
        ("contextCompactorSettingsFileName", COMPACTOR, "ContextCompactor"),
        ("recentMemoryToolWorkflows", "recentMemoryToolWorkflow", "RecentMemory"),
    ],
)
def test_a_misspelt_user_key(lab: MemoryChecks, written: str, meant: str, node: str) -> None:
    keys = {key: value for key, value in ((MEMORY, "Memory"), (COMPACTOR, "Compact")) if key != meant}
    Lab.user(lab, **{**keys, written: "Memory"})
    finding = only(lab.found(node))
    assert (finding.severity, finding.json_path, finding.suggestion) == ("warning", written, meant)


@table(
    ("node", "key"),
    [
        ("QualityMemory", "recentMemoryToolWorkflow"),
        ("RecentMemory", "recentMemoryToolWorkflow"),
        ("FullChatSummary", "chatSummaryToolWorkflow"),
        ("ConversationMemory", "conversationMemoryToolWorkflow"),
    ],
)
@table(("value", "severities"), [("Helpr", ["error"]), ("Helper", []), ("", []), (None, []), (7, ["error"])])
def test_helper_workflows(lab: MemoryChecks, node: str, key: str, value: Any, severities: list[str]) -> None:
    lab.user(**{key: value})
    found = lab.found(node)
    assert places(found) == [(severity, USER_FILE, key) for severity in severities]
    assert [finding.suggestion for finding in found if value == "Helpr"] == ["Helper"] * (value == "Helpr")


def test_helpers_of_other_nodes_are_left_alone(lab: MemoryChecks) -> None:
    lab.user(recentMemoryToolWorkflow="Missing", chatSummaryToolWorkflow="Missing")
    assert lab.found("ConversationMemory") == []


# -- keys of a settings file -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("lookBackStartTurn", "lookbackStartTurn"),
        ("useVectorsForQualityMemory", "useVectorForQualityMemory"),
        ("vectorMemoryEndpoint", "vectorMemoryEndpointName"),
        ("chunk_estimated_token_size", "chunkEstimatedTokenSize"),
    ],
)
def test_misspelt_keys(lab: MemoryChecks, written: str, meant: str) -> None:
    finding = only(lab.with_settings({**GOOD, written: 5}))
    assert (finding.severity, finding.file, finding.json_path, finding.suggestion) == ("warning", FILE, written, meant)


@pytest.mark.parametrize(
    "key",
    ["Display_Only_Description", "_comment", "jinja2", "addUserAssistantTags", "myOwn", "nMessagesToIncludeInVariable"],
)
def test_other_keys_are_left_alone(lab: MemoryChecks, key: str) -> None:
    assert lab.with_settings({**GOOD, key: "x"}) == []


def test_a_misspelt_key_beside_the_right_one(lab: MemoryChecks) -> None:
    assert places(lab.with_settings({**GOOD, "Prompt": "x"})) == [("note", FILE, "Prompt")]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("lookbackStartTurn", "three", "3 is used"),
        ("lookbackStartTurn", 2.5, "whole number"),
        ("lookbackStartTurn", True, "whole number"),
        ("embeddingBackfillBatchSize", "x", "0 is used"),
        ("condensationLockTimeoutSeconds", [1], "as not given"),
        ("stateDocumentMinRetentionRatio", "half", "a number"),
        ("condenseMemoriesMaxResponseSizeInTokens", "x", "as not given"),
        ("vectorMemoryPreset", 5, "a string"),
        ("vectorMemoryIndexTopics", "no", "counts as true"),
        ("vectorMemoryIndexTopics", 0, "counts as false"),
        ("chunkEstimatedTokenSize", 0, "is 0, which is out of range; 1 is used. Expected: 1 to 1000000000."),
        ("maxResponseSizeInTokens", 10**12, "; 10000000 is used"),
        ("stateDocumentMinRetentionRatio", 50, "at most 1"),
        ("wilmerContextEstimationLevel", "agressive", "unknown"),
    ],
)
def test_values_of_the_wrong_kind(
    lab: MemoryChecks, caplog: pytest.LogCaptureFixture, key: str, value: Any, says: str
) -> None:
    finding = only(lab.with_settings({**GOOD, key: value}))
    assert (finding.severity, finding.file, finding.json_path) == ("warning", FILE, key)
    assert says in str(finding)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lookbackStartTurn", "3"),
        ("lookbackStartTurn", ""),
        ("lookbackStartTurn", None),
        ("lookbackStartTurn", 3.0),
        ("stateDocumentMinRetentionRatio", "0.5"),
        ("vectorMemoryIndexTopics", "True"),
        ("vectorMemoryIndexTopics", ""),
        ("wilmerContextEstimationLevel", " Balanced "),
    ],
)
def test_values_of_the_right_kind(lab: MemoryChecks, key: str, value: Any) -> None:
    assert lab.with_settings({**GOOD, key: value}) == []


def test_a_near_level_is_suggested(lab: MemoryChecks) -> None:
    found = only(lab.with_settings({**GOOD, "wilmerContextEstimationLevel": "agressive"}))
    assert found.suggestion == "aggressive"


def test_the_levels_are_those_that_are_known(caplog: pytest.LogCaptureFixture) -> None:
    assert len({estimation_level_multiplier(level) for level in CONTEXT_LEVELS}) == 4
    assert caplog.messages == []


@pytest.mark.parametrize("cls", [MemorySettings, CompactorSettings])
def test_no_declared_key_is_taken_for_another(lab: MemoryChecks, cls: type[Any]) -> None:
    keys = [field.metadata["key"].name for field in dataclasses.fields(cls) if "key" in field.metadata]
    lab.write("Workflows/tester/Compact", dict.fromkeys(keys))
    found = lab.with_settings(dict.fromkeys(keys), "QualityMemory", "ContextCompactor")
    assert [
        finding
        for finding in found
        if "unknown" in finding.message and finding.file == (FILE if cls is MemorySettings else COMPACT)
    ] == []


def test_keys_are_shown_in_one_line(lab: MemoryChecks) -> None:
    lab.user(**{"recentMemoryTool\nWorkflow": "x"})
    found = lab.with_settings({**GOOD, "look\nbackStartTurn": 1, "": 2, " ": 3})
    assert [(finding.file, finding.suggestion) for finding in found] == [
        (USER_FILE, "recentMemoryToolWorkflow"),
        (FILE, "lookbackStartTurn"),
    ]
    assert all(str(finding).isprintable() for finding in found)


# -- what a settings file names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({**GOOD, "endpointName": "Mian"}, "endpointName"),
        ({**VECTOR, "endpointName": "Mian"}, "endpointName"),
        ({**VECTOR, "vectorMemoryEndpointName": "Mian"}, "vectorMemoryEndpointName"),
        ({**CONDENSE, "condenseMemoriesEndpointName": "Mian"}, "condenseMemoriesEndpointName"),
        ({**VECTOR, "embeddingEndpointName": "Mian"}, "embeddingEndpointName"),
    ],
)
def test_missing_endpoints(lab: MemoryChecks, settings: dict[str, Any], key: str) -> None:
    finding = only(lab.with_settings(settings))
    assert (finding.severity, finding.file, finding.json_path) == ("error", FILE, key)
    assert finding.suggestion == "Main"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({**GOOD, "endpointName": "Vectors"}, "endpointName"),
        ({**VECTOR, "vectorMemoryEndpointName": "Vectors"}, "vectorMemoryEndpointName"),
        ({**CONDENSE, "condenseMemoriesEndpointName": "Vectors"}, "condenseMemoriesEndpointName"),
        ({**VECTOR, "embeddingEndpointName": "Main"}, "embeddingEndpointName"),
    ],
)
def test_endpoints_of_the_wrong_kind(lab: MemoryChecks, settings: dict[str, Any], key: str) -> None:
    finding = only(lab.with_settings(settings))
    assert (finding.severity, finding.file, finding.json_path) == ("error", FILE, key)
    assert "cannot" in finding.message


def test_endpoints_of_the_right_kind(lab: MemoryChecks) -> None:
    assert lab.with_settings({**VECTOR, "vectorMemoryEndpointName": "Main", "embeddingEndpointName": "Vectors"}) == []


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"prompt": "[TextChunk]"}, "writes memories"),
        ({"useVectorForQualityMemory": True}, "writes searchable"),
        ({"fileMemoryWorkflowName": "Helper", "condenseMemories": True, "memoriesBeforeCondensation": 2}, "joins"),
    ],
)
def test_no_endpoint(lab: MemoryChecks, settings: dict[str, Any], place: str) -> None:
    finding = only(lab.with_settings(settings))
    assert (finding.severity, finding.json_path) == ("error", "")
    assert place in finding.message


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({**GOOD, "preset": "Clam"}, "preset"),
        ({**VECTOR, "preset": "Clam"}, "preset"),
        ({**VECTOR, "vectorMemoryPreset": "Clam"}, "vectorMemoryPreset"),
        ({**CONDENSE, "condenseMemoriesPreset": "Clam"}, "condenseMemoriesPreset"),
    ],
)
def test_presets(lab: MemoryChecks, settings: dict[str, Any], key: str) -> None:
    finding = only(lab.with_settings(settings))
    assert (finding.severity, finding.json_path, finding.suggestion) == ("error", key, "Calm")
    assert lab.with_settings({**settings, key: "Calm"}) == []


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, "fileMemoryWorkflowName"),
        ({"useVectorForQualityMemory": True}, "vectorMemoryWorkflowName"),
        (STATE, "stateDocumentWorkflowName"),
    ],
)
def test_workflows(lab: MemoryChecks, settings: dict[str, Any], key: str) -> None:
    finding = only(lab.with_settings({**settings, key: "Helpr"}))
    assert (finding.severity, finding.json_path, finding.suggestion) == ("error", key, "Helper")
    assert lab.with_settings({**settings, key: "Helper"}) == []


@pytest.mark.parametrize(
    ("settings", "nodes", "severity"),
    [
        ({**GOOD, "vectorMemoryEndpointName": "Mian"}, ["QualityMemory"], "note"),
        ({**GOOD, "stateDocumentWorkflowName": "Helpr"}, ["QualityMemory"], "note"),
        ({**VECTOR, "prompt": "[TextChunk]", "fileMemoryWorkflowName": "Helpr"}, ["QualityMemory"], "note"),
        (
            {**VECTOR, "prompt": "[TextChunk]", "fileMemoryWorkflowName": "Helpr"},
            ["QualityMemory", "RecentMemory"],
            "error",
        ),
    ],
)
def test_names_that_are_not_in_use_are_notes(
    lab: MemoryChecks, settings: dict[str, Any], nodes: list[str], severity: str
) -> None:
    finding = only(lab.with_settings(settings, *nodes))
    assert finding.severity == severity
    assert ("not in use" in finding.message) is (severity == "note")


# -- prompts and options -----------------------------------------------------------------------------------------------


@table(
    ("settings", "places_"),
    [
        ({"endpointName": "Main"}, [("error", "")]),
        ({"endpointName": "Main", "prompt": " "}, [("error", "")]),
        ({"endpointName": "Main", "prompt": "Sum up."}, [("warning", "prompt")]),
        ({"endpointName": "Main", "systemPrompt": "Sum up."}, [("warning", "")]),
        ({"endpointName": "Main", "systemPrompt": "[TextChunk]"}, []),
        (VECTOR, []),
        ({**VECTOR, "vectorMemoryPrompt": "JSON!"}, [("warning", "vectorMemoryPrompt")]),
        ({**VECTOR, "vectorMemoryPrompt": "JSON!", "vectorMemorySystemPrompt": "[TextChunk]"}, []),
        ({**VECTOR, "vectorMemorySystemPrompt": "JSON!"}, []),
        ({**CONDENSE, "condenseMemoriesPrompt": "Join."}, [("warning", "condenseMemoriesPrompt")]),
        ({**CONDENSE, "condenseMemoriesPrompt": "[MemoriesToCondense]"}, []),
        ({**CONDENSE, "condenseMemoriesPrompt": "Join.", "condenseMemoriesSystemPrompt": "[TextChunk]"}, []),
        ({**GOOD, "followEdits": True}, []),
        ({**VECTOR, "followEdits": True}, []),
        ({**GOOD, "condenseMemories": True}, [("error", "condenseMemories")]),
        ({**CONDENSE, "memoriesBeforeCondensation": 0}, [("error", "condenseMemories")]),
        (STATE, [("error", "useStateDocument")]),
        ({**GOOD, "useStateDocument": True}, [("note", "useStateDocument")]),
        ({**GOOD, "useStateDocument": True, "stateDocumentWorkflowName": "Helper"}, [("note", "useStateDocument")]),
    ],
)
def test_prompts_and_options(lab: MemoryChecks, settings: dict[str, Any], places_: list[tuple[str, str]]) -> None:
    found = lab.with_settings(settings)
    assert brief(found) == places_
    assert all(finding.file == FILE for finding in found)


NO_MARKER = {"type": "chatSummarySummarizer", "endpointName": "Main", "prompt": "Sum up."}
WRITTEN = {"type": "WriteCurrentSummaryToFileAndReturnIt", "input": "x"}


@table(
    ("settings", "node", "places_"),
    [
        ({**GOOD, "followEdits": True}, NO_MARKER, [("warning", "nodes[0]")]),
        ({**GOOD, "followEdits": "yes"}, NO_MARKER, [("warning", "nodes[0]")]),
        ({**GOOD, "followEdits": False}, NO_MARKER, [("note", "nodes[0]")]),
        (GOOD, NO_MARKER, [("note", "nodes[0]")]),
        ({**GOOD, "followEdits": True}, {**NO_MARKER, "prompt": "[LATEST_MEMORIES]"}, [("note", "nodes[0]")]),
        ({**GOOD, "followEdits": True}, {**NO_MARKER, "prompt": "[CHAT_SUMMARY] [LATEST_MEMORIES]"}, []),
        ({**GOOD, "followEdits": True}, WRITTEN, [("note", "nodes[0].type")]),
        ({**GOOD, "followEdits": False}, WRITTEN, []),
        ({**GOOD, "followEdits": 7}, WRITTEN, [("note", "nodes[0].type")]),
        ({**GOOD, "followEdits": True, "otherChats": "hidden"}, "QualityMemory", [("warning", "otherChats")]),
        ({**GOOD, "followEdits": True, "otherChats": 3}, "QualityMemory", [("warning", "otherChats")]),
        ({**GOOD, "followEdits": True, "otherChats": "HIDE"}, "QualityMemory", [("warning", "otherChats")]),
        ({**GOOD, "followEdits": True, "otherChats": "hide"}, "QualityMemory", []),
    ],
)
def test_what_does_not_follow_edits(
    lab: MemoryChecks, settings: dict[str, Any], node: str | dict[str, Any], places_: list[tuple[str, str]]
) -> None:
    lab.write("Workflows/tester/Memory", settings)
    assert brief(lab.found(node)) == places_


@table(
    ("settings", "nodes", "hints"),
    [
        (GOOD, ["QualityMemory"], 1),
        (VECTOR, ["QualityMemory"], 1),
        (GOOD, ["RecentMemory", "QualityMemory"], 1),
        (GOOD, ["FullChatSummary"], 1),
        (GOOD, [{"type": "FullChatSummary", "isManualConfig": True}], 0),
        (GOOD, ["GetCurrentSummaryFromFile"], 0),
        ({**GOOD, "followEdits": True}, ["QualityMemory"], 0),
        ({**GOOD, "followEdits": False}, ["QualityMemory"], 0),
        ({**GOOD, "followedits": True}, ["QualityMemory"], 1),
    ],
)
def test_memories_that_do_not_follow_edits(
    lab: MemoryChecks, settings: dict[str, Any], nodes: list[str | dict[str, Any]], hints: int
) -> None:
    lab.write("Workflows/tester/Memory", settings)
    found = [finding for finding in lab.all_found(*nodes) if finding.is_hint]
    assert places(found) == [("note", FILE, "")] * hints
    assert all('"followEdits": true' in finding.expected for finding in found)


@pytest.mark.parametrize("user", [{MEMORY: ""}, {MEMORY: "Nowhere"}, {MEMORY: 3}], ids=str)
def test_without_settings_nothing_follows_edits(lab: MemoryChecks, user: dict[str, Any]) -> None:
    lab.user(**user)
    assert brief(lab.found(WRITTEN, NO_MARKER)) == [("note", "nodes[1]")]


def test_a_marker_may_stand_in_a_variable(lab: MemoryChecks) -> None:
    lab.write("Workflows/tester/Memory", {"endpointName": "Main", "prompt": "{task}"})
    assert lab.found("QualityMemory", task="Sum up: [TextChunk]") == []
    assert brief(lab.found("QualityMemory", task="Sum up.")) == [("warning", "prompt")]


# -- compactor ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "places_"),
    [
        ({}, [("error", "")]),
        ({"endpointName": "Mian"}, [("error", "endpointName")]),
        ({"endpointName": "Vectors"}, [("error", "endpointName")]),
        ({"endpointName": "Main", "presetName": "Clam"}, [("error", "presetName")]),
        ({"endpointName": "Main", "preset": "Calm", "presetName": "Clam"}, []),
        ({"endpointName": "Main", "oldSectionPrompt": ""}, []),
        ({"endpointName": "Main", "oldSectionPrompt": "x"}, [("warning", "oldSectionPrompt")]),
        ({"endpointName": "Main", "neutralSummaryPrompt": "x"}, [("warning", "neutralSummaryPrompt")]),
        ({"endpointName": "Main", "oldestUpdatePrompt": "[NEW_CONTENT]"}, [("warning", "oldestUpdatePrompt")]),
        ({"endpointName": "Main", "oldContextToken": 5}, [("warning", "oldContextToken")]),
        ({"endpointName": "Main", "recentContextTokens": "many"}, [("warning", "recentContextTokens")]),
    ],
)
def test_compactor(lab: MemoryChecks, settings: dict[str, Any], places_: list[tuple[str, str]]) -> None:
    lab.write("Workflows/tester/Compact", settings)
    found = lab.found("ContextCompactor")
    assert brief(found) == places_
    assert all(finding.file == COMPACT for finding in found)


# -- the nodes themselves ----------------------------------------------------------------------------------------------

SEARCH = {"type": "VectorMemorySearch", "input": "x"}
RECALL, NO_SETTINGS = {"type": "Recall"}, ("warning", "")
SUMMARIZER = {"type": "chatSummarySummarizer", "endpointName": "Main"}
RAG = {"type": "SlowButQualityRAG", "ragTarget": "x", "ragType": "y"}


@table(
    ("node", "places_"),
    [
        (SEARCH, []),
        ({**SEARCH, "searchMode": " Keyword "}, []),
        ({**SEARCH, "searchMode": "semantc"}, [("warning", "nodes[0].searchMode")]),
        ({**SEARCH, "searchMode": "semantic"}, [("warning", "nodes[0].searchMode")]),
        (
            {**SEARCH, "searchMode": "hybrid", "embeddingEndpointName": " "},
            [("warning", "nodes[0].embeddingEndpointName")],
        ),
        (
            {**SEARCH, "searchMode": "hybrid", "embeddingEndpointName": "missing"},
            [("error", "nodes[0].embeddingEndpointName")],
        ),
        (
            {**SEARCH, "searchMode": "hybrid", "embeddingEndpointName": "Main"},
            [("error", "nodes[0].embeddingEndpointName")],
        ),
        ({**SEARCH, "searchMode": "hybrid", "embeddingEndpointName": "Vectors"}, []),
        ({**RECALL, "embeddingEndpointName": "Vectors"}, [NO_SETTINGS]),
        ({**RECALL, "embeddingEndpointName": "Main"}, [("error", "nodes[0].embeddingEndpointName"), NO_SETTINGS]),
        ({**RECALL, "embeddingEndpointName": "missing"}, [("error", "nodes[0].embeddingEndpointName"), NO_SETTINGS]),
        ({**RECALL, "embeddingEndpointName": " "}, [NO_SETTINGS]),
        ({**SEARCH, "bm25Weights": [1, 2.5, 0, 4, 5]}, []),
        ({**SEARCH, "bm25Weights": None}, []),
        ({**SEARCH, "bm25Weights": [1, 2]}, [("warning", "nodes[0].bm25Weights")]),
        ({**SEARCH, "bm25Weights": [1, 2, 3, 4, True]}, [("warning", "nodes[0].bm25Weights")]),
        ({**SEARCH, "bm25Weights": [1, 2, 3, 4, "5"]}, [("warning", "nodes[0].bm25Weights")]),
        ({**SEARCH, "bm25Weights": "1,2,3,4,5"}, [("warning", "nodes[0].bm25Weights")]),
        ({**SUMMARIZER, "prompt": "[CHAT_SUMMARY]", "systemPrompt": "[LATEST_MEMORIES]"}, []),
        ({**SUMMARIZER, "prompt": "x"}, [("note", "nodes[0]")]),
        ({**SUMMARIZER, "prompt": "[CHAT_SUMMARY]"}, [("note", "nodes[0]")]),
        (
            {**SUMMARIZER, "prompt": "x", "lateSystemPrompt": "[CHAT_SUMMARY]", "lateInstruction": "[LATEST_MEMORIES]"},
            [],
        ),
        ({**SUMMARIZER, "prompt": "[LATEST_MEMORIES]"}, [("note", "nodes[0]")]),
        ({**SUMMARIZER, "endpointName": "", "prompt": "[CHAT_SUMMARY][LATEST_MEMORIES]"}, [("error", "nodes[0]")]),
        ({"type": "WriteCurrentSummaryToFileAndReturnIt"}, [("error", "nodes[0]")]),
        ({"type": "WriteCurrentSummaryToFileAndReturnIt", "input": ""}, [("warning", "nodes[0].input")]),
        ({**RAG, "endpointName": "Main", "prompt": "Find x."}, [("warning", "nodes[0].prompt")]),
        ({**RAG, "endpointName": "Main", "systemPrompt": "Find x."}, [("warning", "nodes[0].systemPrompt")]),
        ({**RAG, "endpointName": "Main", "prompt": "In [TextChunk]"}, []),
        ({**RAG, "fileMemoryWorkflowName": "W", "prompt": "x"}, []),
    ],
)
def test_memory_nodes(node: dict[str, Any], places_: list[tuple[str, str]]) -> None:
    assert brief(check(node, lookups=FakeLookups())) == places_


def test_a_near_mode_is_suggested() -> None:
    assert only(check({**SEARCH, "searchMode": "semantc"})).suggestion == "semantic"


def test_a_user_without_any_memory_keys(lab: MemoryChecks) -> None:
    Lab.user(lab)
    finding = only(lab.found("QualityMemory"))
    assert (finding.severity, finding.file, finding.json_path, finding.line) == ("warning", USER_FILE, "", 1)


# -- the report --------------------------------------------------------------------------------------------------------

BROKEN_MEMORY = """{
  "Display_Only_Description": "memories of Alice",
  "useVectorForQualityMemory": true,
  "endpointName": "Main",
  "vectorMemoryEndpointName": "Vectors",
  "embeddingEndpointName": "Main",
  "lookBackStartTurn": 3,
  "vectorMemoryMaxMessagesBetweenChunks": "five",
  "useStateDocument": true
}
"""
REPORT = """\
Workflow tester/Main: 1 thing to look at
  warning  nodes[1].searchMode (line 10): node 2 'Look up': the searchMode 'semantic' needs 'embeddingEndpointName'; \
the node searches by keyword. Expected: an endpoint whose API type has the 'type' openAIEmbeddings or ollamaEmbeddings.
    10 |       "searchMode": "semantic"
       |       ^^^^^^^^^^^^
Users/tester.json, needed by workflow tester/Main: 2 things to look at
  error    recentMemoryToolWorkflow (line 6): workflow 'Helpr' does not exist. Looked for: \
Workflows/tester/Helpr.json. Did you mean 'Helper'?
    6 |   "recentMemoryToolWorkflow": "Helpr"
      |   ^^^^^^^^^^^^^^^^^^^^^^^^^^
  error    contextCompactorSettingsFile (line 5): ContextCompactor nodes give an empty text: settings file \
'Compct' does not exist. Looked for: Workflows/tester/Compct.json. Did you mean 'Compact'?
    5 |   "contextCompactorSettingsFile": "Compct",
      |   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
Workflows/tester/Memory.json, needed by workflow tester/Main: 5 things to look at
  warning  lookBackStartTurn (line 7): the key 'lookBackStartTurn' is unknown and has no effect. \
Did you mean 'lookbackStartTurn'?
    7 |   "lookBackStartTurn": 3,
      |   ^^^^^^^^^^^^^^^^^^^
  warning  vectorMemoryMaxMessagesBetweenChunks (line 8): 'vectorMemoryMaxMessagesBetweenChunks' must be a whole \
number, not 'five'; 5 is used
    8 |   "vectorMemoryMaxMessagesBetweenChunks": "five",
      |   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  error    vectorMemoryEndpointName (line 5): endpoint 'Vectors' makes embeddings and \
cannot write text. Expected: the name of an endpoint that generates text.
    5 |   "vectorMemoryEndpointName": "Vectors",
      |   ^^^^^^^^^^^^^^^^^^^^^^^^^^
  error    embeddingEndpointName (line 6): endpoint 'Main' generates text and cannot make \
embeddings. Expected: an endpoint whose API type has the 'type' openAIEmbeddings or ollamaEmbeddings.
    6 |   "embeddingEndpointName": "Main",
      |   ^^^^^^^^^^^^^^^^^^^^^^^
  error    useStateDocument (line 9): useStateDocument is on, but stateDocumentWorkflowName names no workflow; no \
document is kept. Expected: 'stateDocumentWorkflowName' with the name of a workflow.
    9 |   "useStateDocument": true
      |   ^^^^^^^^^^^^^^^^^^"""


def test_the_whole_report_of_a_broken_set_up(
    lab: MemoryChecks, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ``-v`` the report is shown, as a user would find it in the log."""
    nodes = [
        {"type": "QualityMemory"},
        {"type": "VectorMemorySearch", "title": "Look up", "input": "x", "searchMode": "semantic"},
        {"type": "ContextCompactor"},
    ]
    files = {
        "Users/tester": json.dumps(
            {
                "endpointConfigsSubDirectory": "lab",
                "chatPromptTemplateName": "chatml",
                MEMORY: "Memory",
                COMPACTOR: "Compct",
                "recentMemoryToolWorkflow": "Helpr",
            },
            indent=2,
        ),
        "Workflows/tester/Memory": BROKEN_MEMORY,
        "Workflows/tester/Main": json.dumps({"nodes": nodes}, indent=2),
    }
    for name, text in files.items():
        (lab.root / f"{name}.json").write_text(text, encoding="utf-8")
    config_utils.reset_config_store()
    found = check_workflow(config_utils.load_workflow("Main"), Lookups())
    text = report([finding for finding in found if not finding.is_hint])
    if request.config.option.verbose > 0:
        with capsys.disabled():
            print("\n" + text)
    assert text == REPORT


# -- what was said -----------------------------------------------------------------------------------------------------


@table(
    ("settings", "expected"),
    [
        ({"rememberMessages": True}, []),
        ({"rememberMessages": True, "timeZone": "Europe/Berlin"}, []),
        ({"rememberMessages": True, "embeddingEndpointName": "Vectors"}, []),
        ({"rememberMessages": True, "embeddingEndpointName": "Main"}, [("error", FILE, "embeddingEndpointName")]),
        ({**VECTOR, "embeddingEndpointName": "Mian"}, [("note", FILE, "embeddingEndpointName")]),
        ({"rememberMessages": True, "timeZone": "none"}, []),
        (VECTOR, []),
        ({"rememberMessages": True, "timeZone": "Europe/Berlinn"}, [("warning", FILE, "timeZone")]),
        ({"rememberMessages": False}, [("warning", FILE, "rememberMessages")]),
        ({}, [("warning", FILE, "")]),
    ],
)
def test_what_recall_needs(lab: MemoryChecks, settings: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    lab.user()
    assert places(lab.with_settings(settings, "Recall")) == expected


@table(
    ("nodes", "settings", "expected"),
    [
        (["VectorMemorySearch"], VECTOR, [("note", FILE, "")]),
        (
            ["VectorMemorySearch", "VectorMemorySearch"],
            {**VECTOR, "rememberMessages": False},
            [("note", FILE, "rememberMessages")],
        ),
        (["VectorMemorySearch", "Recall"], VECTOR, []),
        (["Standard"], VECTOR, []),
    ],
)
def test_recall_would_find_more(
    lab: MemoryChecks, nodes: list[str], settings: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    lab.user()
    found = lab.with_settings(settings, *nodes)
    assert [place for place in places(found) if place[1] == FILE] == expected


ALL_SENT = {"type": "Standard", "endpointName": "Main", "prompt": "", "lastMessagesToSendInsteadOfPrompt": 10_000}


@table(
    ("nodes", "expected"),
    [
        ([RECALL, ALL_SENT], ["nodes[0]"]),
        ([RECALL, RECALL, {**ALL_SENT, "lastMessagesToSendInsteadOfPrompt": "1000"}], ["nodes[0]", "nodes[1]"]),
        ([{**ALL_SENT, "returnToUser": True}, RECALL], ["nodes[1]"]),
        ([RECALL, {**ALL_SENT, "lastMessagesToSendInsteadOfPrompt": 20}], []),
        ([RECALL, {**ALL_SENT, "lastMessagesToSendInsteadOfPromptMaxTokenSize": 3000}], []),
        ([RECALL, {**ALL_SENT, "prompt": "Answer from {agent1Output}"}], []),
        ([RECALL, {"type": "Standard", "endpointName": "Main", "prompt": ""}], []),
        ([RECALL, ALL_SENT, {"type": "StaticResponse", "content": "{agent2Output}"}], []),
        ([ALL_SENT], []),
        ([RECALL], []),
    ],
)
def test_recall_of_what_is_shown_anyway(lab: MemoryChecks, nodes: list[dict[str, Any]], expected: list[str]) -> None:
    lab.user()
    lab.write("Workflows/tester/Memory", {"rememberMessages": True})
    found = [finding for finding in lab.found(*nodes) if "sends all messages anyway" in finding.message]
    assert [finding.json_path for finding in found] == expected
