"""What is tried again, whole and streamed: after which failure, how often, after which wait, and what is not."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from Middleware.exceptions import BackendError, BackendResponseError, BackendStatusError
from Middleware.llmapis import repeats
from Middleware.llmapis import transport as transport_module
from Middleware.llmapis.api_types import COMPLETION_TYPES
from Middleware.llmapis.handlers.base import base_llm_api_handler
from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.handlers.base.base_llm_api_handler import BaseLlmApiHandler
from Middleware.llmapis.llm_api import TYPES
from Middleware.llmapis.transport import Transport
from Middleware.models.cancel_scope import CancelScope
from Tests.backend_dialects import Answer, speak
from Tests.llmapis.transport_lab import SOON, cancel_during
from Tests.stub_backend import (
    AFTER_HEADERS,
    BEFORE_STATUS,
    Reply,
    StubBackend,
    chat_chunk,
    json_reply,
    sse_reply,
    status_reply,
)
from Tests.tables import table

HI = Prompt([{"role": "user", "content": "hi"}])
both_modes = pytest.mark.parametrize("stream", [False, True])


class Waits(CancelScope):
    """Notes the waits between attempts instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return False


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between attempts, which take no time."""
    waits: list[float] = []

    def waiting(self: BaseLlmApiHandler, seconds: float | None) -> Any:
        waits.append(seconds or 0.0)
        yield {"token": "", "finish_reason": None}

    monkeypatch.setattr(BaseLlmApiHandler, "_waiting", waiting)
    return waits


def handler(
    backend: StubBackend,
    transport: Transport,
    kind: str = "openAIChatCompletion",
    scope: CancelScope | None = None,
    endpoint: dict[str, Any] | None = None,
    **settings: Any,
) -> BaseLlmApiHandler:
    api_type = {"type": kind, "streamPropertyName": "stream"}
    made = BackendSettings("my-llm", backend.url, endpoint or {}, api_type, **settings)
    return TYPES[kind](made, transport, scope)


def ask(call: BaseLlmApiHandler, stream: bool, prompt: Prompt = HI) -> str:
    if not stream:
        answer = call.handle_non_streaming(prompt)
        return answer if isinstance(answer, str) else answer["content"]
    call.settings.samplers["stream"] = True  # type: ignore[index]
    return "".join(chunk["token"] for chunk in call.handle_streaming(prompt))


def answering(backend: StubBackend, *failures: Reply) -> None:
    """Let the server fail so, and then answer."""
    left = list(failures)
    backend.responder = lambda request: left.pop(0) if left else speak(request, Answer(("Hello",)))


def error_object(code: object, **more: Any) -> Reply:
    return json_reply({"error": {"code": code, "message": "busy"}, **more})


SHORT, BUSY = [0.25, 0.5], [0.5, 1.0]


@both_modes
@table(
    "failures, waits",
    [
        *(([status_reply(status)] * 2, SHORT) for status in (500, 502, 503, 504, 507, 599)),
        *(([status_reply(status)] * 2, BUSY) for status in (408, 429, 529)),
        ([Reply(drop=BEFORE_STATUS)] * 2, BUSY),
        ([Reply(drop=BEFORE_STATUS, reset=True)] * 2, BUSY),
        ([status_reply(429, headers={"Retry-After": "3"}), status_reply(503, headers={"retry-after": "60"})], [3, 10]),
        (
            [status_reply(408, headers={"Retry-After": "0"}), status_reply(502, headers={"Retry-After": "soon"})],
            [0, 0.5],
        ),
        ([status_reply(503, headers={"Retry-After": "7"}, keep_alive=False), Reply(drop=BEFORE_STATUS)], [7, 1.0]),
        ([status_reply(529, headers={"Retry-After": "3600"})], [10]),
        # The same said within a status of success.
        ([error_object(503)] * 2, SHORT),
        ([json_reply([error_object(503).body])] * 2, SHORT),
        ([error_object("529")] * 2, BUSY),
        ([json_reply({"error": {"status": 429, "message": "busy"}})], BUSY[:1]),
        ([json_reply({"error": "busy", "code": 502})], SHORT[:1]),
        ([json_reply({"error": {"type": "overloaded_error", "message": "x"}})], BUSY[:1]),
        ([json_reply({"error": {"message": "x"}, "status": "429"})], BUSY[:1]),
        ([sse_reply([{"type": "error", "error": {"type": "rate_limit_error"}}])], BUSY[:1]),
        ([sse_reply([{"error": {"code": 504, "message": "x"}}])], SHORT[:1]),
        ([sse_reply([chat_chunk({"role": "assistant", "content": ""}), {"error": {"code": 500}}])], SHORT[:1]),
        ([sse_reply([chat_chunk({"reasoning_content": "hm"}), {"error": {"code": 500}}])], SHORT[:1]),
    ],
)
def test_a_failure_that_may_pass(
    backend: StubBackend, noted: list[float], stream: bool, failures: list[Reply], waits: list[float]
) -> None:
    noted.clear()
    if not stream and any(reply.pieces for reply in failures):
        return
    answering(backend, *failures)
    first = len(backend.requests)
    # A connection that was used before is another matter.
    assert ask(handler(backend, Transport()), stream) == "Hello"
    assert noted == waits and len(backend.requests) - first == len(failures) + 1


@both_modes
@pytest.mark.parametrize("kind", TYPES)
def test_a_code_next_to_the_error_counts_in_each_dialect(
    backend: StubBackend, noted: list[float], stream: bool, kind: str
) -> None:
    answering(backend, json_reply({"error": "busy", "code": 429}), json_reply({"error": "busy", "status": "503"}))
    prompt = Prompt(prompt="hi") if kind in COMPLETION_TYPES else HI
    assert ask(handler(backend, Transport(), kind), stream, prompt) == "Hello"
    assert noted == [BUSY[0], SHORT[1]]


@both_modes
@table(
    "reply, attempts, error",
    [
        (status_reply(500, "one"), 3, "status 500"),
        (Reply(drop=BEFORE_STATUS), 3, "before it answered"),
        *((status_reply(status), 1, f"status {status}") for status in (400, 401, 403, 404, 413, 422, 501, 505, 508)),
        (error_object(500), 3, "busy"),
        (error_object(400), 1, "busy"),
        (error_object("rate_limit"), 1, "busy"),
        (error_object(508), 1, "busy"),
        (error_object(5000), 1, "busy"),
        (error_object(True), 1, "busy"),
        (Reply(body={"a": 1}, drop=AFTER_HEADERS), 1, "in the middle"),
        (Reply(body=b"<html>"), 1, "not JSON|no event"),
        (json_reply({}), 1, "an answer without a message"),
        (Reply(raw=b"SSH-2.0-OpenSSH_9\r\n"), 1, "not proper HTTP"),
        (Reply(status=307, headers={"Location": "http://127.0.0.1:1/"}), 1, "redirects"),
    ],
)
def test_how_often_it_is_tried(
    backend: StubBackend, noted: list[float], stream: bool, reply: Reply, attempts: int, error: str
) -> None:
    backend.responder = lambda request: reply
    first = len(backend.requests)
    with pytest.raises(BackendError, match=error):
        ask(handler(backend, Transport()), stream)
    assert len(backend.requests) - first == attempts
    # With a backup, that is the second attempt.
    with pytest.raises(BackendError, match=error):
        ask(handler(backend, Transport(), single_attempt=True), stream)
    assert len(backend.requests) - first == attempts + 1


@both_modes
def test_the_last_of_three_errors_is_raised(backend: StubBackend, noted: list[float], stream: bool) -> None:
    answering(backend, status_reply(500, "one"), status_reply(502, "two"), status_reply(503, "three"))
    with pytest.raises(BackendStatusError) as caught:
        ask(handler(backend, Transport()), stream)
    assert (caught.value.status, caught.value.body) == (503, "three")


@both_modes
def test_a_used_connection_that_is_lost_does_not_count(
    backend: StubBackend, transport: Transport, noted: list[float], stream: bool
) -> None:
    answering(backend)
    ask(handler(backend, transport), stream)
    lost = Reply(drop=BEFORE_STATUS)
    answering(backend, lost, status_reply(500, keep_alive=False), status_reply(500))
    assert ask(handler(backend, transport), stream) == "Hello"
    assert noted == [0, *SHORT]
    # Only the first time.
    answering(backend, lost, status_reply(500), lost)
    assert ask(handler(backend, transport), stream) == "Hello"
    assert noted[3:] == [0, 0.25, 1.0]


@both_modes
def test_each_repeat_is_one_warning_without_the_body(
    backend: StubBackend, noted: list[float], caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    said = status_reply(503, "the words of the conversation", keep_alive=False)
    answering(backend, said, Reply(drop=BEFORE_STATUS))
    assert ask(handler(backend, Transport()), stream) == "Hello"
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "Endpoint 'my-llm': status 503 (attempt 1 of 3). Trying again in 0.25 s.",
        "Endpoint 'my-llm': the connection was lost before an answer (attempt 2 of 3). Trying again in 1 s.",
    ]


@table(
    "delta, shown",
    [
        ({"content": "Hel"}, True),
        ({"reasoning_content": "hm"}, True),
        (
            {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]},
            True,
        ),
        ({"reasoning_content": "hm"}, False),
    ],
)
def test_what_the_client_has_seen_is_not_repeated(
    backend: StubBackend, noted: list[float], monkeypatch: pytest.MonkeyPatch, delta: dict[str, Any], shown: bool
) -> None:
    monkeypatch.setattr(base_llm_api_handler, "shows_reasoning", lambda: shown)
    backend.default = sse_reply([chat_chunk(delta), {"error": {"code": 503, "message": "died"}}])
    first = len(backend.requests)
    with pytest.raises(BackendResponseError, match="died"):
        ask(handler(backend, Transport()), True)
    assert len(backend.requests) - first == (1 if shown else 3)


def test_a_stream_waits_with_heartbeats(backend: StubBackend, transport: Transport) -> None:
    answering(backend, status_reply(429, headers={"Retry-After": "2"}))
    call = handler(backend, transport, samplers={"stream": True})
    tokens = [chunk["token"] for chunk in call.handle_streaming(HI)]
    assert tokens.index("Hello") >= 1 and "".join(tokens) == "Hello"


@both_modes
def test_retry_after_is_obeyed_within_its_limit(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(transport_module, "MAX_RETRY_AFTER_SECONDS", 0.3)
    answering(backend, status_reply(429, headers={"Retry-After": "60"}))
    started = time.monotonic()
    assert ask(handler(backend, transport), stream) == "Hello"
    assert 0.3 <= time.monotonic() - started < SOON


LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}


@both_modes
@table(
    "kind, reply",
    [
        ("openAIChatCompletion", json_reply(LOADING, 503)),
        ("openAIChatCompletion", json_reply({"error": {"message": "x", "type": "unavailable_error"}}, 503)),
        ("openAIChatCompletion", status_reply(503, "Model is WARMING up")),
        ("openAIChatCompletion", Reply(status=503, body=b"server is starting up")),
        ("openAIChatCompletion", json_reply(LOADING)),
        (
            "koboldCppGenerate",
            json_reply({"detail": {"msg": "Server is not ready", "type": "service_unavailable"}}, 503),
        ),
        ("ollamaApiChat", json_reply({"error": "llm server loading model"}, 500)),
        ("ollamaApiGenerate", json_reply({"error": "model is loading"}, 404)),
    ],
)
def test_a_loading_server_is_waited_for(
    backend: StubBackend,
    noted: list[float],
    caplog: pytest.LogCaptureFixture,
    stream: bool,
    kind: str,
    reply: Reply,
) -> None:
    caplog.set_level(logging.INFO)
    noted.clear()
    # More often than anything else is tried, and none of it counts.
    answering(backend, *[reply] * 5, status_reply(500), status_reply(500))
    prompt = HI if "hat" in kind else Prompt(prompt="hi")
    assert ask(handler(backend, Transport(), kind), stream, prompt) == "Hello"
    assert noted == [1.0] * 5 + SHORT
    lines = [record for record in caplog.records if "loads its model" in record.getMessage()]
    assert [(record.levelname, record.getMessage()) for record in lines] == [
        ("INFO", "Endpoint 'my-llm': the server loads its model; it is waited for, 300 s at most.")
    ]


@both_modes
@table(
    "kind, reply, attempts",
    [
        ("openAIChatCompletion", status_reply(503, "no capacity"), 3),
        ("openAIChatCompletion", status_reply(500, "loading model"), 3),
        ("openAIChatCompletion", status_reply(400, "loading model"), 1),
        ("ollamaApiChat", json_reply({"error": "error loading model"}, 500), 3),
        ("ollamaApiChat", json_reply({"error": "loading: llama runner process has terminated"}, 500), 3),
        ("openAIChatCompletion", status_reply(503, "model failed to start: loading"), 3),
        ("openAIChatCompletion", status_reply(503, "unable to be loading"), 3),
    ],
)
def test_what_does_not_load_is_not_waited_for(
    backend: StubBackend, noted: list[float], stream: bool, kind: str, reply: Reply, attempts: int
) -> None:
    backend.responder = lambda request: reply
    first = len(backend.requests)
    with pytest.raises(BackendStatusError):
        ask(handler(backend, Transport(), kind), stream)
    assert len(backend.requests) - first == attempts
    assert 1.0 not in noted


@both_modes
@table(
    "endpoint, settings, attempts",
    [
        ({"loadingTimeoutInSeconds": 310}, {}, 312),
        ({}, {}, 302),
        ({"loadingTimeoutInSeconds": "4"}, {}, 6),
        ({"loadingTimeoutInSeconds": 0}, {}, 3),
        ({}, {"single_attempt": True}, 1),
    ],
)
def test_how_long_a_loading_server_is_waited_for(
    backend: StubBackend,
    noted: list[float],
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
    endpoint: dict[str, Any],
    settings: dict[str, Any],
    attempts: int,
) -> None:
    noted.clear()
    # The clock of the waits: each takes its time, and an attempt none.
    monkeypatch.setattr(repeats, "time", type("Clock", (), {"monotonic": staticmethod(lambda: sum(noted))}))
    backend.default = json_reply(LOADING, 503)
    first = len(backend.requests)
    with pytest.raises(BackendStatusError, match="still loading its model.*loadingTimeoutInSeconds"):
        ask(handler(backend, Transport(), endpoint=endpoint, **settings), stream)
    assert abs(len(backend.requests) - first - attempts) <= 1


@both_modes
@pytest.mark.parametrize("reply", [json_reply(LOADING, 503), status_reply(429, headers={"Retry-After": "900"})])
def test_a_stop_ends_the_wait(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch, stream: bool, reply: Reply
) -> None:
    monkeypatch.setattr(transport_module, "MAX_RETRY_AFTER_SECONDS", 2 * SOON)
    monkeypatch.setattr(repeats, "LOADING_WAIT", 2 * SOON)
    backend.default = reply
    scope = CancelScope()
    call = handler(backend, transport, scope=scope)
    answer, stopped, done = cancel_during(backend, scope, 1, lambda: ask(call, stream))
    assert answer == "" and done - stopped < SOON
    assert len(backend.requests) == 1


def test_an_abandoned_stream_ends_its_wait(backend: StubBackend, transport: Transport) -> None:
    backend.default = json_reply(LOADING, 503)
    call = handler(backend, transport, samplers={"stream": True})
    found: list[Any] = []
    reading = threading.Thread(target=lambda: found.extend(call.handle_streaming(HI)))
    reading.start()
    backend.wait_requests(1)
    call.abort()
    reading.join(SOON)
    assert not reading.is_alive()
