"""Settings classes: what they declare, and how they are loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from Middleware.utilities import config_utils
from Middleware.utilities.config.declarations import ConfigKey, read_settings, setting, settings_keys
from Middleware.utilities.config.keys.endpoint import CONTEXT_LEVELS
from Middleware.utilities.config.workflows import load_settings
from Middleware.utilities.text_utils import estimation_level_multiplier
from Tests.llmapis.lab import Lab

USER_KEY = "contextCompactorSettingsFile"


@dataclass(frozen=True)
class Plain:
    raw: Mapping[str, Any] = field(default_factory=dict)
    endpoint: str = setting(ConfigKey("endpointName", "str", "", "Who answers.", names="endpoint"))
    count: int = setting(ConfigKey("count", "int", 3, "How many.", least=1))
    share: float = setting(ConfigKey("share", "number", 0.5, "How much.", most=1))
    level: float = setting(
        ConfigKey("level", "str", "conservative", "How far.", choices=CONTEXT_LEVELS), estimation_level_multiplier
    )
    text: str = setting(ConfigKey("text", "str", "x", "What."))
    on: bool = setting(ConfigKey("on", "bool", False, "Whether."))


@dataclass(frozen=True)
class WithFile:
    raw: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    yield Lab(tmp_path, monkeypatch)
    config_utils.reset_config_store()


def test_the_keys_that_a_class_declares() -> None:
    levels = ("conservative", "balanced", "aggressive", "xaggressive")
    assert tuple(settings_keys(Plain).values()) == (
        ConfigKey("endpointName", "str", "", "Who answers.", names="endpoint"),
        ConfigKey("count", "int", 3, "How many.", least=1),
        ConfigKey("share", "number", 0.5, "How much.", most=1),
        ConfigKey("level", "str", "conservative", "How far.", choices=levels),
        ConfigKey("text", "str", "x", "What."),
        ConfigKey("on", "bool", False, "Whether."),
    )
    assert settings_keys(WithFile) == {}


def test_a_class_may_keep_how_messages_name_the_file() -> None:
    content = {"count": 4}
    assert read_settings(WithFile, content, "Workflows/a/b.json") == WithFile(content, "Workflows/a/b.json")
    assert read_settings(Plain, content, "Workflows/a/b.json") == Plain(content, count=4)


@pytest.mark.parametrize(
    ("name", "level", "expected"),
    [
        ("", logging.ERROR, "Nothing is done: the user's file names no settings file ('contextCompactorSettingsFile')"),
        ("nowhere", logging.WARNING, "Nothing is done: settings file 'nowhere' does not exist."),
    ],
)
def test_missing_settings_are_logged_as_the_caller_says(
    lab: Lab, caplog: pytest.LogCaptureFixture, name: str, level: int, expected: str
) -> None:
    lab.user(**{USER_KEY: name})
    assert load_settings(Plain, USER_KEY, "Nothing is done", level) is None
    assert [record.levelno for record in caplog.records] == [level]
    assert caplog.records[0].getMessage().startswith(expected)


def test_settings_are_found_among_the_workflows(lab: Lab) -> None:
    lab.user(**{USER_KEY: "mine"})
    lab.write("Workflows/tester/mine", {"text": "y"})
    assert load_settings(WithFile, USER_KEY, "Nothing is done") == WithFile({"text": "y"}, "Workflows/tester/mine.json")
