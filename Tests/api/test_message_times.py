"""The times that clients send with messages: read in every dialect, and in no prompt, payload or record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.api import workflow_gateway
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Tests.api.api_lab import ApiLab, settled
from Tests.stub_backend import StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import assistant, reply_to, user

CHAT, OLLAMA, MESSAGES, RESPONSES = "/v1/chat/completions", "/api/chat", "/v1/messages", "/v1/responses"
TIMED = {"timestamp": 1781871600, "created_at": "2026-06-19T14:20:00Z", "send_date": "June 19, 2026 2:20pm"}


class Lab(ApiLab):
    """``said``: what the last run knows of the times of its messages."""

    said: list[list[object]]
    asked: Any


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with StubBackend() as backend:
        backend.responder = lambda request: reply_to(request, "fine")
        lab = Lab(tmp_path, monkeypatch, backend)
        start = WorkflowManager.start_prepared
        read = workflow_gateway.SentRequest

        def spy(manager: WorkflowManager, request: Any, messages: Any, **fields: Any) -> Any:
            sent = [request.said.get(id(message), (message, ())) for message in messages]
            assert all(one is message for (one, _), message in zip(sent, messages, strict=True))
            lab.said = [list(times) for _, times in sent] if request.said else []
            return start(manager, request, messages, **fields)

        def sent(*values: Any) -> Any:
            lab.asked = values[0]
            return read(*values)

        monkeypatch.setattr(WorkflowManager, "start_prepared", spy)
        monkeypatch.setattr(workflow_gateway, "SentRequest", sent)
        yield lab
    assert settled()


def ask(lab: Lab, path: str, messages: list[dict[str, Any]], **fields: Any) -> Any:
    """Return the payload of the back-end."""
    listed = "input" if path == RESPONSES else "messages"
    body = {"model": "m", "max_tokens": 100, "stream": False, listed: messages, **fields}
    answer = lab.post(body, path)
    assert answer.status == 200, answer.json
    return lab.backend.requests[-1].json


@table("path", [CHAT, OLLAMA, MESSAGES, RESPONSES])
def test_times_are_read_and_reach_no_back_end(lab: Lab, path: str) -> None:
    plain = [user("Hi"), assistant("Hello"), user("{now}")]
    without = ask(lab, path, plain)
    assert lab.said == []
    record = lab.asked
    assert ask(lab, path, [{**message, **TIMED} for message in plain]) == without
    assert lab.said == [list(TIMED.values())] * 3
    assert lab.asked == record
    # Fields without effect have none, whatever is in them.
    odd = [{**plain[0], "timestamp": None, "date": 5}, {**plain[1], "send_date": {}}, {**plain[2], "created_at": [1]}]
    assert ask(lab, path, odd) == without
    assert lab.said == [[], [{}], [[1]]]


@table(
    ("path", "messages", "said"),
    [
        # A part list, an image, a tool call and its result.
        (CHAT, [{"role": "user", "content": [{"type": "text", "text": "Hi"}], "timestamp": 5}], [[5]]),
        (MESSAGES, [{"role": "user", "content": [{"type": "text", "text": "Hi"}], "send_date": "x"}], [["x"]]),
        (RESPONSES, [{"type": "message", "role": "user", "content": "Hi", "id": "m", "created_at": 7}], [[7]]),
        (RESPONSES, [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}], "timestamp": 5}], [[5]]),
        (OLLAMA, [{"role": "user", "content": "Hi", "images": ["aGk="], "timestamp": 5}], [[5]]),
        # Blank messages are left out, those with an id and braces are copies, one of the system has a time as well.
        (
            CHAT,
            [
                {"role": "system", "content": "Be kind. [DiscussionId]k1[/DiscussionId]", "timestamp": 1},
                {"role": "assistant", "content": " ", "timestamp": 2},
                {"role": "user", "content": "Hi {there}", "timestamp": 3},
                {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "So?", "timestamp": 4},
            ],
            [[1], [3], [], [4]],
        ),
    ],
)
def test_each_message_keeps_its_own(lab: Lab, path: str, messages: list[dict[str, Any]], said: list[Any]) -> None:
    sent = ask(lab, path, messages)
    assert lab.said == said
    bare = [{key: value for key, value in message.items() if key not in TIMED} for message in messages]
    assert ask(lab, path, bare) == sent
    assert lab.said == []


def test_role_prefixes_and_generators_leave_the_times(lab: Lab) -> None:
    lab.user(chatCompleteAddUserAssistant=True, chatCompletionAddMissingAssistantGenerator=True)
    for path in (CHAT, OLLAMA, MESSAGES, RESPONSES):
        ask(lab, path, [{**user("Hi"), "timestamp": 5}])
        assert lab.said == [[5], []], path
