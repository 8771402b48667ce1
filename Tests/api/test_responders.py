"""What an answer may come from besides an LLM, and what may follow it, in the dialects of Responses and Messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.api.api_lab import Answer, ApiLab, settled
from Tests.stub_backend import StubBackend, status_reply
from Tests.workflows.engine_lab import last_text, llm, reply_to, static

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SCRIPTS = {"text": "return 'from a script'", "generator": "yield from ['from ', 'a ', 'script']"}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        yield ApiLab(tmp_path, monkeypatch, backend)
    assert settled()


def ask(lab: ApiLab, path: str, stream: bool) -> Answer:
    said: dict[str, Any] = (
        {"input": "hi"} if path == RESPONSES else {"max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
    )
    return lab.post({**said, "stream": stream}, path)


def heard(answer: Answer, path: str, stream: bool) -> tuple[str, str]:
    """The whole text, and how the answer ended."""
    assert answer.status == 200, answer.data
    if not stream:
        body = answer.json
    else:
        events = [json.loads(block.partition("data: ")[2]) for block in answer.data.decode().split("\n\n") if block]
        kinds = [event["type"] for event in events]
        if path == MESSAGES:
            assert kinds[-2:] == ["message_delta", "message_stop"]
            text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
            return text, events[-2]["delta"]["stop_reason"]
        deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        body = events[-1]["response"]
        assert deltas == body["output"][0]["content"][0]["text"]
    if path == MESSAGES:
        return body["content"][0]["text"], body["stop_reason"]
    return body["output"][0]["content"][0]["text"], body["status"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_every_kind_of_responder(lab: ApiLab, tmp_path: Path, path: str, stream: bool) -> None:
    end = "completed" if path == RESPONSES else "end_turn"
    lines = "from a node\nwith two lines"
    cases: list[tuple[list[dict[str, Any]], str]] = [([static(lines)], lines)]
    for kind, body in SCRIPTS.items():
        (tmp_path / f"{kind}.py").write_text(f"def Invoke():\n    {body}\n", encoding="utf-8")
        cases.append(([{"type": "PythonModule", "module_path": str(tmp_path / f"{kind}.py")}], "from a script"))
    lab.workflow("Child", [static("unused"), llm(returnToUser=True), static("unused")])
    cases.append(([{"type": "CustomWorkflow", "workflowName": "Child", "returnToUser": True}], "<hi>"))
    for nodes, text in cases:
        lab.default(nodes)
        assert heard(ask(lab, path, stream), path, stream) == (text, end), nodes


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_what_follows_the_answer(lab: ApiLab, path: str, stream: bool) -> None:
    """Nodes after the responder run, and one that fails changes nothing for the client."""
    lab.default([llm(returnToUser=True), llm("late {agent1Output}"), llm("fails")])
    lab.backend.responder = lambda request: (
        status_reply(400) if last_text(request) == "fails" else reply_to(request, f"<{last_text(request)}>")
    )
    assert heard(ask(lab, path, stream), path, stream) == ("<hi>", "completed" if path == RESPONSES else "end_turn")
    assert settled() and lab.prompts == ["hi", "late <hi>", "fails"]
