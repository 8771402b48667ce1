"""The settings file of memories."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from Middleware.services.memory.memory_settings import MemorySettings, load_memory_settings
from Tests.llmapis.lab import Lab
from Tests.tables import table


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def loaded(lab: Lab, content: dict[str, Any] | str, name: Any = "Memory-Settings") -> MemorySettings | None:
    lab.user(discussionIdMemoryFileWorkflowSettings=name)
    lab.write("Workflows/tester/Memory-Settings", {})
    text = content if isinstance(content, str) else json.dumps(content)
    (lab.root / "Workflows" / "tester" / "Memory-Settings.json").write_text(text, encoding="utf-8")
    return load_memory_settings()


def test_defaults(lab: Lab) -> None:
    s = loaded(lab, {})
    assert s is not None
    assert (s.use_vector, s.lookback, s.chunk_tokens, s.chunk_messages) == (False, 3, 1000, 5)
    assert (s.vector_max_response_tokens, s.vector_chunk_tokens, s.vector_chunk_messages) == (1024, 1000, 5)
    assert (s.backfill, s.state_retention, s.condense, s.condense_count, s.condense_buffer) == (20, 0.5, False, 0, 0)
    assert (s.condense_max_response_tokens, s.lock_timeout, s.file_workflow, s.endpoint) == (500, 600, "", "")
    assert s.max_response_tokens == 400


def test_fallbacks_between_keys(lab: Lab) -> None:
    s = loaded(lab, {"endpointName": "E", "preset": "P", "maxResponseSizeInTokens": 300})
    assert s is not None
    assert (s.vector_endpoint, s.vector_preset, s.condense_endpoint, s.condense_preset) == ("E", "P", "E", "P")
    assert s.condense_max_response_tokens == 300
    s = loaded(
        lab,
        {
            "endpointName": "E",
            "vectorMemoryEndpointName": "V",
            "vectorMemoryPreset": "VP",
            "condenseMemoriesEndpointName": "C",
            "condenseMemoriesMaxResponseSizeInTokens": "250",
        },
    )
    assert s is not None
    assert (s.vector_endpoint, s.vector_preset, s.condense_endpoint, s.condense_max_response_tokens) == (
        "V",
        "VP",
        "C",
        250,
    )


@table(
    "content, attribute, value",
    [
        ({"lookbackStartTurn": "7"}, "lookback", 7),
        ({"lookbackStartTurn": 4.0}, "lookback", 4),
        ({"lookbackStartTurn": True}, "lookback", 3),
        ({"lookbackStartTurn": "x"}, "lookback", 3),
        ({"lookbackStartTurn": None}, "lookback", 3),
        ({"fileMemoryWorkflowName": ""}, "file_workflow", ""),
        ({"fileMemoryWorkflowName": 5}, "file_workflow", ""),
        ({"fileMemoryWorkflowName": " W "}, "file_workflow", "W"),
        ({"useVectorForQualityMemory": "true"}, "use_vector", True),
        ({"condenseMemories": "false"}, "condense", False),
        ({"embeddingBackfillBatchSize": 0}, "backfill", 0),
        ({"embeddingBackfillBatchSize": True}, "backfill", 0),
        ({"embeddingBackfillBatchSize": 1.5}, "backfill", 0),
        ({"embeddingBackfillBatchSize": "8"}, "backfill", 8),
        ({"stateDocumentMinRetentionRatio": 0}, "state_retention", 0),
        ({"stateDocumentMinRetentionRatio": "1"}, "state_retention", 1),
        ({"stateDocumentMinRetentionRatio": 50}, "state_retention", 1),
        ({"condensationLockTimeoutSeconds": 0}, "lock_timeout", None),
        ({"condensationLockTimeoutSeconds": -1}, "lock_timeout", None),
        ({"condensationLockTimeoutSeconds": "soon"}, "lock_timeout", 600),
        ({"condensationLockTimeoutSeconds": "soon"}, "lock_seconds", None),
        ({"condensationLockTimeoutSeconds": ""}, "lock_timeout", 600),
        ({"condensationLockTimeoutSeconds": 1.5}, "lock_timeout", 1.5),
        ({"chunkEstimatedTokenSize": -5}, "chunk_tokens", 1),
        ({"maxMessagesBetweenChunks": 0}, "chunk_messages", 1),
        ({"lookbackStartTurn": -2}, "lookback", 0),
        ({"maxResponseSizeInTokens": 10**40}, "max_response_tokens", 10**7),
        (
            {"chunkEstimatedTokenSize": 1e300, "wilmerContextEstimationLevel": "xaggressive"},
            "file_chunk_size",
            1850000000,
        ),
        ({"chunkEstimatedTokenSize": 100, "wilmerContextEstimationLevel": " Balanced"}, "file_chunk_size", 125),
        (
            {"vectorMemoryChunkEstimatedTokenSize": 3, "wilmerContextEstimationLevel": "aggressive"},
            "vector_chunk_size",
            4,
        ),
        ({"chunkEstimatedTokenSize": -5}, "chunk_tokens", 1),
        ({"maxMessagesBetweenChunks": 0}, "chunk_messages", 1),
        ({"lookbackStartTurn": -2}, "lookback", 0),
        ({"maxResponseSizeInTokens": 10**40}, "max_response_tokens", 10**7),
        (
            {"chunkEstimatedTokenSize": 1e300, "wilmerContextEstimationLevel": "xaggressive"},
            "file_chunk_size",
            1850000000,
        ),
        ({"chunkEstimatedTokenSize": 100, "wilmerContextEstimationLevel": 7}, "file_chunk_size", 100),
    ],
)
def test_values(lab: Lab, content: dict[str, Any], attribute: str, value: Any) -> None:
    settings = loaded(lab, content)
    assert getattr(settings, attribute) == value


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("lookbackStartTurn", "many", "is not a number: 'many'; using 3"),
        ("condensationLockTimeoutSeconds", "soon", "is not a number: 'soon'; it counts as not given"),
        ("stateDocumentMinRetentionRatio", 1.5, "is 1.5; using 1"),
    ],
)
def test_a_wrong_value_is_named(lab: Lab, caplog: pytest.LogCaptureFixture, key: str, value: Any, message: str) -> None:
    with caplog.at_level(logging.WARNING):
        loaded(lab, {key: value})
    assert f"Memory-Settings.json: '{key}' {message}" in caplog.text


@pytest.mark.parametrize(
    "content, name, problem",
    [
        ("{}", "", "discussionIdMemoryFileWorkflowSettings"),
        ("{}", "Memory-Setings", "Memory-Settings"),
        ("{broken", "Memory-Settings", "line 1"),
        ("[]", "Memory-Settings", "object"),
        ("{}", 5, "discussionIdMemory"),
    ],
)
def test_no_usable_file(lab: Lab, caplog: pytest.LogCaptureFixture, content: str, name: Any, problem: str) -> None:
    with caplog.at_level(logging.ERROR):
        assert loaded(lab, content, name) is None
    assert "No memories are written" in caplog.text and problem in caplog.text


def test_the_file_is_read_afresh(lab: Lab) -> None:
    assert loaded(lab, {"lookbackStartTurn": 1}) is not None
    assert loaded(lab, {"lookbackStartTurn": 12}).lookback == 12  # type: ignore[union-attr]
