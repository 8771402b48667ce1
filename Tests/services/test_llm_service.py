"""The handle of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from Middleware.services.llm_service import LlmHandlerService, response_limit
from Tests.llmapis.lab import Lab


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def test_handle_of_an_endpoint(lab: Lab) -> None:
    lab.endpoint("Main", {"promptTemplate": "alpaca", "addGenerationPrompt": True})
    handle = LlmHandlerService().load_model_from_config("Main", None, True, "300")
    assert handle.endpoint_name == "Main" and handle.endpoint_config["promptTemplate"] == "alpaca"
    assert handle.prompt_template_file_name == "alpaca"
    assert handle.takes_message_collection and handle.llm.streaming
    assert handle.max_tokens == handle.llm.max_tokens == 300


@pytest.mark.parametrize("template", [{}, {"promptTemplate": None}])
def test_template_of_the_user_stands_in(lab: Lab, template: dict[str, Any]) -> None:
    lab.endpoint("Main", template)
    assert LlmHandlerService().load_model_from_config("Main").prompt_template_file_name == "chatml"


@pytest.mark.parametrize(
    ("endpoint", "wanted", "result"),
    [(True, None, True), (True, True, True), (True, False, False), (False, None, False), (False, True, False)],
)
def test_generation_prompt_needs_the_endpoint(lab: Lab, endpoint: bool, wanted: bool | None, result: bool) -> None:
    lab.endpoint("Main", {"addGenerationPrompt": endpoint})
    handle = LlmHandlerService().load_model_from_config("Main", add_generation_prompt=wanted)
    assert handle.add_generation_prompt is result


def test_handle_without_an_endpoint(lab: Lab) -> None:
    handle = LlmHandlerService().without_endpoint()
    assert handle.llm is None and handle.prompt_template_file_name == "chatml" and handle.takes_message_collection


@pytest.mark.parametrize(
    ("value", "expected"),
    [(300, 300), ("300", 300), (300.9, 300), (None, None), ("many", 400), ("", 400), (True, 400), (float("nan"), 400)],
)
def test_response_limit(value: Any, expected: int | None) -> None:
    assert response_limit(value) == expected
