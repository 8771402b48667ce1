"""What streams send while the LLM is silent: nothing that an old parser takes for the end, and nothing too early."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.answers import answer as answer_module
from Middleware.api.answers.messages_answer import MessagesStream
from Middleware.api.answers.responses_answer import ResponsesAnswer
from Middleware.api.answers.stream_renderers import (
    KoboldStream,
    OllamaChatStream,
    OpenAIChatStream,
    OpenAICompletionStream,
    Pauses,
)
from Middleware.utilities.http import connect
from Tests.api.api_lab import Answer, ApiLab, settled
from Tests.api.old_decoders import go_events
from Tests.stub_backend import Reply, StubBackend, chat_chunk, sse_reply, status_reply
from Tests.tables import check_all
from Tests.workflows.engine_lab import last_text

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
KOBOLD = "/api/extra/generate/stream"
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {}}}
REQUESTS: dict[str, dict[str, Any]] = {
    CHAT: {"stream": True, "tools": [{"type": "function", "function": TOOL}]},
    TEXT: {"stream": True},
    RESPONSES: {"stream": True, "tools": [{"type": "function", **TOOL}]},
    MESSAGES: {"stream": True, "max_tokens": 9, "tools": [{"name": "f", "input_schema": {"type": "object"}}]},
    KOBOLD: {},
}
SHORT = Pauses(0.3, 0.3, 0.3)
SILENCE = 1.2
STREAMS = (OpenAIChatStream, OpenAICompletionStream, ResponsesAnswer, MessagesStream, KoboldStream)
ONCE, UPON, STOP = chat_chunk({"content": "Once"}), chat_chunk({"content": " upon"}), chat_chunk({}, "stop")


def call(**fields: Any) -> dict[str, Any]:
    return chat_chunk({"tool_calls": [{"index": 0, **fields}]})


CALL = [
    call(id="c1", type="function", function={"name": "f", "arguments": '{"a"'}),
    call(function={"arguments": ": 1}"}),
    chat_chunk({}, "tool_calls"),
]
SILENCES: dict[str, Callable[[], Reply]] = {
    "before text": lambda: sse_reply([ONCE, UPON, STOP, "[DONE]"], header_delay=SILENCE),
    "within text": lambda: sse_reply([ONCE, UPON, STOP, "[DONE]"], delays=[0, SILENCE]),
    "before the end": lambda: sse_reply([ONCE, UPON, STOP, "[DONE]"], delays=[0, 0, SILENCE]),
    "within a call": lambda: sse_reply([*CALL, "[DONE]"], delays=[0, SILENCE]),
    "between text and a call": lambda: sse_reply([ONCE, *CALL, "[DONE]"], delays=[0, SILENCE]),
    "before a failure": lambda: status_reply(400, "late", header_delay=SILENCE),
    "between text and a failure": lambda: sse_reply([ONCE, {"error": {"message": "late"}}], delays=[0, SILENCE]),
    "comments of the back-end": lambda: Reply(
        pieces=[b": waiting\n\n"] * 8 + [b"data: " + json.dumps(event).encode() + b"\n\n" for event in (ONCE, STOP)],
        delay=0.2,
        headers={"Content-Type": "text/event-stream"},
    ),
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    monkeypatch.setattr(connect, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(answer_module, "LOOK_SECONDS", 0.1)
    for stream in STREAMS:
        monkeypatch.setattr(stream, "pauses", SHORT)
    with StubBackend() as backend:
        made = ApiLab(tmp_path, monkeypatch, backend)
        made.workflow(
            "_DefaultWorkflow", [{"type": "Standard", "endpointName": "Main", "prompt": "", "allowTools": True}]
        )
        yield made
        assert settled()


def ask(lab: ApiLab, path: str, silence: str, **fields: Any) -> Answer:
    """Ask for an answer with one of the silences, which the LLM finds in the prompt."""
    lab.backend.responder = lambda request: SILENCES[last_text(request)]()
    asked = {CHAT: "messages", MESSAGES: "messages", RESPONSES: "input"}.get(path, "prompt")
    said = [{"role": "user", "content": silence}] if asked == "messages" else silence
    client = lab.client.application.test_client()
    return Answer(client.post(path, json={asked: said, **REQUESTS[path], **fields}))


def check_answers(
    lab: ApiLab, rows: Sequence[tuple[str, str]], check: Callable[[str, str, Answer], None], **fields: Any
) -> None:
    """Check the answers to requests at these paths with these silences, which are asked for at the same time."""
    with ThreadPoolExecutor(10) as pool:
        answers = dict(zip(rows, pool.map(lambda row: ask(lab, *row, **fields), rows), strict=True))
    check_all(rows, lambda row: check(*row, answers[row]))


def test_an_old_decoder_reads_streams_with_silences(lab: ApiLab) -> None:
    def check(path: str, silence: str, answer: Answer) -> None:
        assert answer.status == 200
        names = [name for name, _ in go_events(answer.data)]
        assert len(names) > 3 and b"\n:" not in answer.data and answer.data[:1] != b":"
        assert (b"late" in answer.data) is ("failure" in silence)

    check_answers(lab, [(path, silence) for path in REQUESTS for silence in SILENCES], check)


def sign(item: dict[str, Any]) -> bool:
    """Whether a chunk of a chat has nothing to say."""
    (choice,) = item["choices"] or [{"delta": None}]
    return choice["delta"] in ({}, {"role": "assistant"}) and choice["finish_reason"] is None


def test_signs_of_a_chat_are_chunks_of_it(lab: ApiLab) -> None:
    def check(path: str, silence: str, answer: Answer) -> None:
        items = [item for _, item in go_events(answer.data)]
        signs = [item for item in items if sign(item)]
        assert len(signs) >= 2
        assert len({(item["id"], item["created"], item["model"], item["object"]) for item in items}) == 1
        roles = ["role" in choice["delta"] for item in items for choice in item["choices"]]
        assert roles == [True] + [False] * (len(roles) - 1)
        for item in signs:
            assert (item["choices"][0]["index"], item["choices"][0]["logprobs"], item["usage"]) == (0, None, None)
        assert [item["usage"] is None for item in items] == [True] * (len(items) - 1) + [False]

    rows = [(CHAT, silence) for silence in SILENCES if "failure" not in silence]
    check_answers(lab, rows, check, stream_options={"include_usage": True})


def test_signs_of_a_text_are_chunks_of_it(lab: ApiLab) -> None:
    items = [item for _, item in go_events(ask(lab, TEXT, "within text").data)]
    texts = [item["choices"][0]["text"] for item in items]
    assert "".join(texts) == "Once upon" and texts[0] == "Once" and texts[1] == ""
    assert len({(item["id"], item["object"]) for item in items}) == 1


def test_signs_of_koboldcpp_are_its_events(lab: ApiLab) -> None:
    events = go_events(ask(lab, KOBOLD, "within text").data)
    assert {name for name, _ in events} == {"message"}
    assert events[0][1] == {"token": "Once", "finish_reason": None}
    assert events[1][1] == {"token": "", "finish_reason": None}


def test_signs_are_no_tokens(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = {"include_usage": True}
    silent = [item for _, item in go_events(ask(lab, CHAT, "before text", stream_options=usage).data)]
    monkeypatch.setattr(OpenAIChatStream, "pauses", Pauses(30.0, 30.0, 30.0))
    items = [item for _, item in go_events(ask(lab, CHAT, "before text", stream_options=usage).data)]
    assert items[-1]["usage"] == silent[-1]["usage"] and sum(map(sign, silent)) >= 2 and not sum(map(sign, items))


def test_no_signs_before_their_time(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in STREAMS:
        monkeypatch.setattr(stream, "pauses", Pauses(30.0, 30.0, 30.0))

    def check(path: str, silence: str, answer: Answer) -> None:
        items = [item for _, item in go_events(answer.data)]
        assert not (path == CHAT and any(map(sign, items)))
        assert not [item for item in items if item.get("token", item.get("type")) in ("", "ping")][2:]
        assert [item.get("type") for item in items].count("response.in_progress") == (path == RESPONSES)

    check_answers(lab, [(path, "before text") for path in REQUESTS], check)


def test_a_failure_before_the_first_bytes_has_its_status(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in STREAMS:
        monkeypatch.setattr(stream, "pauses", Pauses(30.0, 0.1, 0.1))

    def check(path: str, silence: str, answer: Answer) -> None:
        assert answer.status == (200 if path == RESPONSES else 502) and b"late" in answer.data

    check_answers(lab, [(path, "before a failure") for path in REQUESTS], check)


def test_a_backup_answers_after_signs(lab: ApiLab) -> None:
    lab.endpoint("Main", {"backupEndpointName": "Other"}, lab.backend.url)
    lab.endpoint("Other", {"modelNameToSendToAPI": "other"}, lab.backend.url)
    lab.backend.responder = lambda request: (
        sse_reply([ONCE, STOP])
        if request.json["model"] == "other"
        else sse_reply([chat_chunk({"role": "assistant"}), {"error": {"message": "late"}}], header_delay=0.8, delay=0.8)
    )
    items = [
        item
        for _, item in go_events(
            lab.post({"messages": [{"role": "user", "content": "hi"}], **REQUESTS[CHAT]}, CHAT).data
        )
    ]
    assert sum(map(sign, items)) >= 2 and items[-2]["choices"][0]["delta"]["content"] == "Once"


def test_how_long_each_dialect_is_silent() -> None:
    """5 s where nothing needs a write per second; Ollama's and Anthropic's clients get one, as from their servers."""
    pauses = {stream: stream.pauses for stream in (*STREAMS, OllamaChatStream)}
    assert pauses == {
        OpenAIChatStream: (5, 5, 5),
        OpenAICompletionStream: (5, 5, 5),
        KoboldStream: (5, 5, 5),
        ResponsesAnswer: (1, 5, 15),
        MessagesStream: (1, 1, 1),
        OllamaChatStream: (1, 1, 1),
    }
