"""What streams send while the LLM is silent: nothing that an old parser takes for the end, and nothing too early."""

from __future__ import annotations

import itertools
import json
import threading
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
    OllamaGenerateStream,
    OpenAIChatStream,
    OpenAICompletionStream,
)
from Middleware.utilities.http import connect
from Tests.api.api_lab import STREAMS, Answer, ApiLab, after_heartbeats, pause, settled
from Tests.api.old_decoders import go_events
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_chunk, sse_reply, status_reply
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
SHORT, LONG = 0.1, 60.0
# A silence lasts until so many signs were sent in it, or, where none are expected, for so many seconds.
SIGNS, SILENCE = 3, 1.2
LATE = {"error": {"message": "late"}}
ONCE, UPON, STOP = chat_chunk({"content": "Once"}), chat_chunk({"content": " upon"}), chat_chunk({}, "stop")


def call(**fields: Any) -> dict[str, Any]:
    return chat_chunk({"tool_calls": [{"index": 0, **fields}]})


CALL = [
    call(id="c1", type="function", function={"name": "f", "arguments": '{"a"'}),
    call(function={"arguments": ": 1}"}),
    chat_chunk({}, "tool_calls"),
]
SILENCES: dict[str, Callable[[threading.Event], Reply]] = {
    "before text": lambda over: sse_reply([ONCE, UPON, STOP, "[DONE]"], held=over),
    "within text": lambda over: sse_reply([ONCE, UPON, STOP, "[DONE]"], held=over, held_piece=1),
    "before the end": lambda over: sse_reply([ONCE, UPON, STOP, "[DONE]"], held=over, held_piece=2),
    "within a call": lambda over: sse_reply([*CALL, "[DONE]"], held=over, held_piece=1),
    "between text and a call": lambda over: sse_reply([ONCE, *CALL, "[DONE]"], held=over, held_piece=1),
    "before a failure": lambda over: status_reply(400, "late", held=over),
    "between text and a failure": lambda over: sse_reply([ONCE, LATE], held=over, held_piece=1),
    "comments of the back-end": lambda over: Reply(
        pieces=[b": waiting\n\n"] * 8 + [b"data: " + json.dumps(event).encode() + b"\n\n" for event in (ONCE, STOP)],
        delay=0.1,
        held=over,
        held_piece=7,
        headers={"Content-Type": "text/event-stream"},
    ),
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    monkeypatch.setattr(connect, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(answer_module, "LOOK_SECONDS", 0.05)
    with StubBackend() as backend:
        made = ApiLab(tmp_path, monkeypatch, backend)
        pause(monkeypatch, SHORT)
        made.workflow(
            "_DefaultWorkflow", [{"type": "Standard", "endpointName": "Main", "prompt": "", "allowTools": True}]
        )
        yield made
        assert settled()


class Signs:
    """Ends silences: each when the thread that asked, which writes the stream, has sent enough signs in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.expected = True
        self.overs: dict[str, threading.Event] = {}
        self._numbers, self._asked = itertools.count(), threading.local()
        for stream in STREAMS:
            monkeypatch.setattr(stream, "heartbeat", self._counted(stream.heartbeat))

    def silence(self) -> str:
        """Return the number of a new silence of this thread."""
        number = f"{next(self._numbers):03d}"
        self._asked.over, self._asked.left = threading.Event(), SIGNS
        self.overs[number] = self._asked.over
        if not self.expected:
            threading.Timer(SILENCE, self._asked.over.set).start()
        return number

    def _counted(self, heartbeat: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        def beat(stream: Any) -> bytes:
            self._asked.left -= 1
            if not self._asked.left:
                self._asked.over.set()
            return heartbeat(stream)

        return beat


@pytest.fixture
def signs(monkeypatch: pytest.MonkeyPatch) -> Signs:
    return Signs(monkeypatch)


@pytest.fixture
def no_signs(lab: ApiLab, signs: Signs, monkeypatch: pytest.MonkeyPatch) -> Signs:
    signs.expected = False
    pause(monkeypatch, LONG)
    return signs


def ask(lab: ApiLab, signs: Signs, path: str, silence: str, **fields: Any) -> Answer:
    """Ask for an answer with one of the silences, which the LLM finds in the prompt."""

    def respond(request: RecordedRequest) -> Reply:
        name, number = last_text(request).split(" #")
        return SILENCES[name](signs.overs[number])

    lab.backend.responder = respond
    asked = {CHAT: "messages", MESSAGES: "messages", RESPONSES: "input"}.get(path, "prompt")
    text = f"{silence} #{signs.silence()}"
    said = [{"role": "user", "content": text}] if asked == "messages" else text
    client = lab.client.application.test_client()
    return Answer(client.post(path, json={asked: said, **REQUESTS[path], **fields}))


def check_answers(
    lab: ApiLab,
    signs: Signs,
    rows: Sequence[tuple[str, str]],
    check: Callable[[str, str, Answer], None],
    **fields: Any,
) -> None:
    """Check the answers to requests at these paths with these silences, which are asked for at the same time."""
    with ThreadPoolExecutor(10) as pool:
        answers = dict(zip(rows, pool.map(lambda row: ask(lab, signs, *row, **fields), rows), strict=True))
    check_all(rows, lambda row: check(*row, answers[row]))


def test_an_old_decoder_reads_streams_with_silences(lab: ApiLab, signs: Signs) -> None:
    def check(path: str, silence: str, answer: Answer) -> None:
        assert answer.status == 200
        names = [name for name, _ in go_events(answer.data)]
        assert len(names) > 3 and b"\n:" not in answer.data and answer.data[:1] != b":"
        assert (b"late" in answer.data) is ("failure" in silence)

    check_answers(lab, signs, [(path, silence) for path in REQUESTS for silence in SILENCES], check)


def sign(item: dict[str, Any]) -> bool:
    """Whether a chunk of a chat has nothing to say."""
    (choice,) = item["choices"] or [{"delta": None}]
    return choice["delta"] in ({}, {"role": "assistant"}) and choice["finish_reason"] is None


def test_signs_of_a_chat_are_chunks_of_it(lab: ApiLab, signs: Signs) -> None:
    def check(path: str, silence: str, answer: Answer) -> None:
        items = [item for _, item in go_events(answer.data)]
        found = [item for item in items if sign(item)]
        assert len(found) >= SIGNS
        assert len({(item["id"], item["created"], item["model"], item["object"]) for item in items}) == 1
        roles = ["role" in choice["delta"] for item in items for choice in item["choices"]]
        assert roles == [True] + [False] * (len(roles) - 1)
        for item in found:
            assert (item["choices"][0]["index"], item["choices"][0]["logprobs"], item["usage"]) == (0, None, None)
        assert [item["usage"] is None for item in items] == [True] * (len(items) - 1) + [False]

    rows = [(CHAT, silence) for silence in SILENCES if "failure" not in silence]
    check_answers(lab, signs, rows, check, stream_options={"include_usage": True})


def test_signs_of_a_text_are_chunks_of_it(lab: ApiLab, signs: Signs, monkeypatch: pytest.MonkeyPatch) -> None:
    pause(monkeypatch, SHORT, LONG)
    items = [item for _, item in go_events(ask(lab, signs, TEXT, "within text").data)]
    texts = [item["choices"][0]["text"] for item in items]
    assert "".join(texts) == "Once upon" and texts[0] == "Once" and texts[1] == ""
    assert len({(item["id"], item["object"]) for item in items}) == 1


def test_signs_of_koboldcpp_are_its_events(lab: ApiLab, signs: Signs, monkeypatch: pytest.MonkeyPatch) -> None:
    pause(monkeypatch, SHORT, LONG)
    events = go_events(ask(lab, signs, KOBOLD, "within text").data)
    assert {name for name, _ in events} == {"message"}
    assert events[0][1] == {"token": "Once", "finish_reason": None}
    assert events[1][1] == {"token": "", "finish_reason": None}


def test_signs_are_no_tokens(lab: ApiLab, signs: Signs, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = {"include_usage": True}
    silent = [item for _, item in go_events(ask(lab, signs, CHAT, "before text", stream_options=usage).data)]
    signs.expected = False
    pause(monkeypatch, LONG)
    items = [item for _, item in go_events(ask(lab, signs, CHAT, "before text", stream_options=usage).data)]
    assert items[-1]["usage"] == silent[-1]["usage"] and sum(map(sign, silent)) >= SIGNS and not sum(map(sign, items))


def test_no_signs_before_their_time(lab: ApiLab, no_signs: Signs) -> None:
    def check(path: str, silence: str, answer: Answer) -> None:
        items = [item for _, item in go_events(answer.data)]
        assert not (path == CHAT and any(map(sign, items)))
        assert not [item for item in items if item.get("token", item.get("type")) in ("", "ping")][2:]
        assert [item.get("type") for item in items].count("response.in_progress") == (path == RESPONSES)

    check_answers(lab, no_signs, [(path, "before text") for path in REQUESTS], check)


def test_a_failure_before_the_first_bytes_has_its_status(
    lab: ApiLab, no_signs: Signs, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause(monkeypatch, SHORT, LONG)

    def check(path: str, silence: str, answer: Answer) -> None:
        assert answer.status == (200 if path == RESPONSES else 502) and b"late" in answer.data

    check_answers(lab, no_signs, [(path, "before a failure") for path in REQUESTS], check)


def test_a_backup_answers_after_signs(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    over = after_heartbeats(monkeypatch, SIGNS)
    lab.endpoint("Main", {"backupEndpointName": "Other"}, lab.backend.url)
    lab.endpoint("Other", {"modelNameToSendToAPI": "other"}, lab.backend.url)
    lab.backend.responder = lambda request: (
        sse_reply([ONCE, STOP])
        if request.json["model"] == "other"
        else sse_reply([chat_chunk({"role": "assistant"}), LATE], held=over, held_piece=1)
    )
    items = [
        item
        for _, item in go_events(
            lab.post({"messages": [{"role": "user", "content": "hi"}], **REQUESTS[CHAT]}, CHAT).data
        )
    ]
    assert sum(map(sign, items)) >= SIGNS and items[-2]["choices"][0]["delta"]["content"] == "Once"


def test_how_long_each_dialect_is_silent() -> None:
    """5 s where nothing needs a write per second; Ollama's and Anthropic's clients get one, as from their servers."""
    pauses = {stream: stream.pauses for stream in STREAMS}
    assert pauses == {
        OpenAIChatStream: (5, 5, 5),
        OpenAICompletionStream: (5, 5, 5),
        KoboldStream: (5, 5, 5),
        ResponsesAnswer: (1, 5, 15),
        MessagesStream: (1, 1, 1),
        OllamaChatStream: (1, 1, 1),
        OllamaGenerateStream: (1, 1, 1),
    }
