"""What nodes take from their context for a conversation's stored data."""

from __future__ import annotations

from typing import Any

import pytest

from Middleware.models.messages import VisionNote
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import as_text, raw_messages, state_of


def context(discussion_id: str | None, messages: list[dict[str, Any]]) -> ExecutionContext:
    return ExecutionContext("r", "w", discussion_id, {}, messages, False, api_key_hash="ad165b11320bc915")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("a", "a"),
        ({"content": "b", "tool_calls": [{}]}, "b"),
        ({"content": None}, ""),
        (None, ""),
        (5, "5"),
        (["a"], ""),
        ({"x": "a"}, ""),
        ({"content": ["a"]}, ""),
    ],
)
def test_results_of_workflows(result: Any, text: str) -> None:
    assert as_text(result) == text


def test_folder_of_a_conversation() -> None:
    assert state_of(context(None, [])) is None
    folder = state_of(context("k1", []))
    assert folder is not None and (folder.discussion_id, folder.key_hash) == ("k1", "ad165b11320bc915")


def test_notes_on_images_are_no_messages() -> None:
    messages = [{"role": "user", "content": "a"}, VisionNote(role="user", content="an owl")]
    assert raw_messages(context("k1", messages)) == messages[:1]
