"""The settings file of the context compactor."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from Middleware.services.memory.compactor_settings import CompactorSettings, load_compactor_settings
from Tests.llmapis.lab import Lab


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab = Lab(tmp_path, monkeypatch)
    lab.user(contextCompactorSettingsFile="Compactor")
    return lab


def loaded(lab: Lab, **content: Any) -> CompactorSettings:
    lab.write("Workflows/tester/Compactor", content)
    settings = load_compactor_settings()
    assert settings is not None
    return settings


def test_defaults(lab: Lab) -> None:
    settings = loaded(lab, endpointName="Main")
    assert (settings.endpoint, settings.preset, settings.max_response_tokens) == ("Main", "", 750)
    assert (settings.recent_budget, settings.old_budget, settings.lookback) == (20000, 20000, 5)
    assert settings.old_prompt == settings.neutral_prompt == "[MESSAGES_TO_SUMMARIZE]"
    assert settings.oldest_prompt == "[EXISTING_SUMMARY]\n\n[NEW_CONTENT]"
    roles = {settings.old_system_prompt, settings.neutral_system_prompt, settings.oldest_system_prompt}
    assert len(roles) == 3 and all(20 < len(role) < 600 for role in roles)
    assert settings.file == "Workflows/tester/Compactor.json"


def test_every_key(lab: Lab) -> None:
    settings = loaded(
        lab,
        endpointName=" E ",
        preset="P",
        maxResponseSizeInTokens="99",
        recentContextTokens=10,
        oldContextTokens="7",
        lookbackStartTurn=0,
        wilmerContextEstimationLevel="Balanced",
        oldSectionSystemPrompt="a",
        oldSectionPrompt="b",
        neutralSummarySystemPrompt="c",
        neutralSummaryPrompt="d",
        oldestUpdateSystemPrompt="e",
        oldestUpdatePrompt="f",
        unknown=1,
    )
    assert (settings.endpoint, settings.preset, settings.max_response_tokens) == ("E", "P", 99)
    assert (settings.recent_budget, settings.old_budget, settings.lookback) == (12, 8, 0)
    assert [
        settings.old_system_prompt,
        settings.old_prompt,
        settings.neutral_system_prompt,
        settings.neutral_prompt,
        settings.oldest_system_prompt,
        settings.oldest_prompt,
    ] == list("abcdef")
    assert settings.raw["unknown"] == 1


@pytest.mark.parametrize(
    ("names", "preset"),
    [
        ({"presetName": "Q"}, "Q"),
        ({"preset": "P", "presetName": "Q"}, "P"),
        ({"preset": " ", "presetName": "Q"}, "Q"),
        ({"preset": None}, ""),
    ],
)
def test_both_names_of_the_preset(lab: Lab, names: dict[str, Any], preset: str) -> None:
    assert loaded(lab, **names).preset == preset


def test_a_blank_prompt_would_show_the_model_nothing(lab: Lab) -> None:
    settings = loaded(
        lab, oldSectionPrompt="", neutralSummaryPrompt=" ", oldestUpdatePrompt="", oldSectionSystemPrompt=""
    )
    assert settings.old_prompt == settings.neutral_prompt == "[MESSAGES_TO_SUMMARIZE]"
    assert settings.oldest_prompt == "[EXISTING_SUMMARY]\n\n[NEW_CONTENT]"
    assert settings.old_system_prompt == ""


@pytest.mark.parametrize(
    ("user", "content", "clue"),
    [
        ({}, None, "contextCompactorSettingsFile"),
        ({"contextCompactorSettingsFile": " "}, None, "names no settings file"),
        ({"contextCompactorSettingsFile": "Gone"}, None, "Workflows/tester/Gone.json"),
        ({"contextCompactorSettingsFile": "Compactor"}, [1], "Workflows/tester/Compactor.json"),
    ],
)
def test_no_settings_is_a_warning(
    lab: Lab, caplog: pytest.LogCaptureFixture, user: dict[str, Any], content: Any, clue: str
) -> None:
    lab.user(**user)
    if content is not None:
        lab.write("Workflows/tester/Compactor", content)
    assert load_compactor_settings() is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert clue in caplog.text


def test_a_file_that_is_no_json_is_named(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    loaded(lab)
    lab.write("Workflows/tester/Broken", {})
    (lab.root / "Workflows/tester/Broken.json").write_text("{\n  oops", encoding="utf-8")
    lab.user(contextCompactorSettingsFile="Broken")
    assert load_compactor_settings() is None
    assert "Workflows/tester/Broken.json, line 2" in caplog.text


def test_only_the_users_folder_is_looked_at(lab: Lab) -> None:
    lab.write("Workflows/_shared/Compactor", {"endpointName": "Main"})
    assert load_compactor_settings() is None
