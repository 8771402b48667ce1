"""The KoboldCpp dialect over real sockets, and the abort that a cancelled call leaves behind."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from Middleware.exceptions import BackendResponseError, BackendStatusError
from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.handlers.impl import koboldcpp_api_handler
from Middleware.llmapis.handlers.impl.koboldcpp_api_handler import CallCounter, KoboldCppApiHandler
from Middleware.llmapis.transport import Transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.answers.stream_parsers import SSEParser
from Tests.backend_dialects import COMPLETION_TOKENS, DIALECTS, PROMPT_TOKENS, Answer, named_event
from Tests.llmapis.transport_lab import SOON
from Tests.stub_backend import BEFORE_STATUS, RecordedRequest, Reply, StubBackend, json_reply, sse_event, status_reply
from Tests.workflows.engine_lab import until

HI = Prompt(None, "Be kind. ", "hi")
DIALECT = DIALECTS["koboldCppGenerate"]
ABORT = "/api/extra/abort"
SILENCE = {"token": "", "finish_reason": None}
QUIET_SECONDS = 0.4  # an abort would have arrived in a small part of it
USAGE = {
    "prompt_tokens": PROMPT_TOKENS,
    "completion_tokens": COMPLETION_TOKENS,
    "total_tokens": PROMPT_TOKENS + COMPLETION_TOKENS,
}


@pytest.fixture
def backend() -> Iterator[StubBackend]:
    with StubBackend() as stub:
        yield stub


def handler(
    backend: StubBackend | None = None, scope: CancelScope | None = None, **settings: Any
) -> KoboldCppApiHandler:
    url = backend.url if backend else "http://127.0.0.1:1"
    values = {"base_url": url, "endpoint": {}, "api_type": {}, **settings}
    return KoboldCppApiHandler(BackendSettings("E", **values), Transport(), scope)


def read(*events: bytes) -> list[dict[str, Any]]:
    return handler().read_events(SSEParser().feed(b"".join(events)))


def message(token: Any, **more: Any) -> bytes:
    return named_event("message", {"token": token, **more})


def text(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["token"] for chunk in chunks)


def with_images(*images: Any, role: str = "user") -> Prompt:
    return Prompt([{"role": role, "content": "", "images": list(images)}], "", "look")


# -- requests -----------------------------------------------------------------------------------------------------


def test_payload_has_no_model() -> None:
    body = handler(model="m", samplers={"max_length": 300, "rep_pen": 1.1}).payload(HI)
    assert body == {"prompt": "Be kind. hi", "max_length": 300, "rep_pen": 1.1}


@pytest.mark.parametrize("preset", [[], ["from preset"], None])
def test_images_of_a_preset_are_discarded(preset: Any) -> None:
    samplers = {"images": preset, "top_k": 1}
    assert handler(samplers=samplers).payload(HI) == {"prompt": "Be kind. hi", "top_k": 1}
    assert handler(samplers=samplers).payload(with_images("data:image/png;base64,AAAA", "BBBB")) == {
        "prompt": "look",
        "top_k": 1,
        "images": ["AAAA", "BBBB"],
    }


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("data:image/png;base64,iVBORw0=", "iVBORw0="),
        ("data:image/jpeg;name=a.jpg;base64,AA==", "AA=="),
        ("DATA:image/gif;BASE64,R0lG", "R0lG"),
        ("iVBORw0=", "iVBORw0="),
    ],
)
def test_images_lose_their_data_uri_prefix(image: str, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    prompt = with_images(image)
    before = copy.deepcopy(prompt)
    assert handler().payload(prompt) == {"prompt": "look", "images": [expected]}
    assert prompt == before and caplog.text == ""


@pytest.mark.parametrize(
    "image",
    [
        "https://h/x.png",
        "http://h/x,y.png",
        "HTTPS://h/x.png",
        "file:///secret.png",
        "data:image/svg+xml,%3Csvg%3E",
        "data:image/png;base64,",
        "",
        None,
        5,
    ],
)
def test_images_that_are_no_base64_are_skipped_with_a_warning(image: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert handler().payload(with_images("AAAA", image, "BBBB")) == {"prompt": "look", "images": ["AAAA", "BBBB"]}
    [record] = caplog.records
    assert record.levelname == "WARNING" and "'E'" in record.message and "1 image" in record.message
    assert not isinstance(image, str) or not image or image not in record.message


def test_images_that_cannot_be_sent_leave_no_key() -> None:
    assert handler().payload(with_images("https://h/x.png")) == {"prompt": "look"}
    assert handler().payload(with_images("AAAA", role="assistant")) == {"prompt": "look"}


# -- events -------------------------------------------------------------------------------------------------------


def test_tokens_and_finish() -> None:
    assert read(message("Hel"), message("lo", finish_reason=None), message("", finish_reason="length")) == [
        {"token": "Hel", "finish_reason": None},
        {"token": "lo", "finish_reason": None},
        {"token": "", "finish_reason": "length"},
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [("stop", "stop"), ("length", "length"), ("odd", "stop"), (None, None), ("", None), ("null", None), (5, None)],
)
def test_finish_reason(given: Any, expected: str | None) -> None:
    assert read(message("a", finish_reason=given)) == [{"token": "a", "finish_reason": expected}]


def test_only_events_named_message_count() -> None:
    assert read(named_event("progress", {"token": "no"}), message("yes")) == [{"token": "yes", "finish_reason": None}]
    assert read(sse_event({"token": "unnamed"})) == [{"token": "unnamed", "finish_reason": None}]
    assert read(named_event("progress", {"error": "of no concern"})) == []


@pytest.mark.parametrize("noise", [123, "{broken", [], {}, {"other": 1}, "[DONE]"])
def test_noise_is_skipped(noise: Any) -> None:
    assert read(b"event: message\n" + sse_event(noise), message("a")) == [{"token": "a", "finish_reason": None}]


@pytest.mark.parametrize("token", [None, 5])
def test_token_that_is_no_text_is_a_sign_of_life(token: Any) -> None:
    assert read(message(token)) == [SILENCE]


def test_what_follows_a_finish_reason_counts() -> None:
    assert read(message("", finish_reason="stop"), message("late")) == [
        {"token": "", "finish_reason": "stop"},
        {"token": "late", "finish_reason": None},
    ]


@pytest.mark.parametrize(
    "event",
    [
        named_event("message", {"error": {"message": "too  long"}}),
        named_event("error", {"message": "too long"}),
        named_event("message", {"detail": {"msg": "too long", "type": "bad_input"}}),
        sse_event({"error": "too long"}),
    ],
)
def test_error_event_raises(event: bytes) -> None:
    with pytest.raises(BackendResponseError, match=r"Endpoint 'E' .*: an error instead of an answer: too long"):
        read(event)


# -- whole calls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_stream(backend: StubBackend, finish: str) -> None:
    backend.script(DIALECT.reply(Answer(finish=finish), stream=True))
    call = handler(backend, model="m", api_key="k", samplers={"stream": True})
    chunks = list(call.handle_streaming(HI))
    assert text(chunks) == "Hello there"
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == [finish]
    assert call.outcome.finish_reason == finish
    [request] = backend.requests
    assert request.path == "/api/extra/generate/stream" and request.headers["authorization"] == "Bearer k"
    assert request.json == {"prompt": "Be kind. hi", "stream": True}


def test_end_of_the_connection_is_a_normal_end(backend: StubBackend) -> None:
    backend.script(Reply(pieces=[message("Hel"), message("lo")], framing="close"))
    call = handler(backend)
    assert text(list(call.handle_streaming(HI))) == "Hello" and call.outcome.finish_reason is None


def test_open_connection_after_the_last_event_is_not_waited_for(backend: StubBackend) -> None:
    backend.script(Reply(pieces=[message("a"), message("", finish_reason="stop")], hang=True))
    started = time.monotonic()
    assert text(list(handler(backend).handle_streaming(HI))) == "a"
    assert time.monotonic() - started < SOON


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_complete_answer(backend: StubBackend, finish: str) -> None:
    backend.script(DIALECT.reply(Answer(finish=finish), stream=False))
    call = handler(backend)
    assert call.handle_non_streaming(HI) == "Hello there"
    assert (call.outcome.finish_reason, call.outcome.usage) == (finish, USAGE)
    assert backend.requests[0].path == "/api/v1/generate"


def test_complete_answer_of_an_older_server() -> None:
    call = handler()
    assert call.read_whole({"results": [{"text": "a"}]}) == "a"
    assert (call.outcome.finish_reason, call.outcome.usage) == (None, None)


def test_plain_body_instead_of_a_stream(backend: StubBackend) -> None:
    backend.script(DIALECT.reply(Answer(finish="length"), stream=False))
    chunks = [chunk for chunk in handler(backend).handle_streaming(HI) if chunk != SILENCE]
    assert chunks == [{"token": "Hello there", "finish_reason": "length", "usage": USAGE}]


@pytest.mark.parametrize(
    "body",
    [
        {"results": []},
        {"results": None},
        {"results": ["SECRET"]},
        {},
        [],
        5,
        "SECRET",
        {"results": [{"text": ["SECRET"]}]},
        {"results": [{"token": "SECRET"}]},
    ],
)
def test_what_has_no_text_is_no_answer(body: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BackendResponseError, match="Endpoint 'E' .*: an answer without a message: "):
        handler().read_whole(body)
    assert "SECRET" not in caplog.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body", [{"error": {"message": "is busy"}}, {"detail": {"msg": "is busy", "type": "x"}}, {"detail": "is busy"}]
)
def test_error_body_with_a_good_status_raises(backend: StubBackend, body: dict[str, Any], stream: bool) -> None:
    backend.script(json_reply(body))
    with pytest.raises(BackendResponseError, match=": is busy"):
        list(handler(backend).handle_streaming(HI)) if stream else handler(backend).handle_non_streaming(HI)


# -- cancelled calls ----------------------------------------------------------------------------------------------


def silent(request: RecordedRequest) -> Reply:
    """A server that generates for ever, and answers aborts."""
    return json_reply({"success": "true"}) if request.path == ABORT else Reply(never=True)


def generate(call: KoboldCppApiHandler) -> Any:
    return call.handle_non_streaming(HI)


def stream(call: KoboldCppApiHandler) -> Any:
    return text(list(call.handle_streaming(HI)))


class Running:
    """A call on its own thread, with its own stop switch."""

    def __init__(
        self,
        backend: StubBackend,
        way: Callable[[KoboldCppApiHandler], Any] = generate,
        scope: CancelScope | None = None,
        **settings: Any,
    ) -> None:
        self.scope = scope or CancelScope()
        self.result: Any = None
        self._call, self._way = handler(backend, self.scope, **settings), way
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.result = self._way(self._call)

    def cancel(self) -> float:
        """Seconds until the cancelled call came back."""
        started = time.monotonic()
        self.scope.cancel()
        return self.join(started)

    def join(self, started: float = 0.0) -> float:
        self._thread.join(2 * SOON)
        assert not self._thread.is_alive()
        return time.monotonic() - started


def aborts(backend: StubBackend) -> int:
    """How many aborts came, after the time that one would have needed."""
    time.sleep(QUIET_SECONDS)
    return sum(request.path == ABORT for request in backend.requests)


@pytest.mark.parametrize("way", [generate, stream])
def test_cancelled_call_aborts_the_generation(backend: StubBackend, way: Any) -> None:
    backend.responder = silent
    call = Running(backend, way, api_key="k")
    backend.wait_requests(1)
    assert call.cancel() < SOON and call.result == ""
    abort = backend.wait_requests(2)[1]
    assert (abort.method, abort.path, abort.json) == ("POST", ABORT, {})
    assert abort.headers["authorization"] == "Bearer k" and abort.headers["content-type"] == "application/json"
    assert aborts(backend) == 1


def test_stream_cancelled_between_tokens_aborts(backend: StubBackend) -> None:
    backend.script(Reply(pieces=[message("a")], hang=True))
    scope = CancelScope()
    chunks = handler(backend, scope).handle_streaming(HI)
    assert next(chunks)["token"] == "a"
    scope.cancel()
    chunks.close()
    assert backend.wait_requests(2)[1].path == ABORT
    assert backend.requests[0].wait_ended()


def test_no_abort_while_another_call_runs_there(backend: StubBackend) -> None:
    backend.responder = silent
    first, second = Running(backend), Running(backend, stream)
    backend.wait_requests(2)
    first.cancel()
    assert aborts(backend) == 0
    second.cancel()
    assert backend.wait_requests(3)[2].path == ABORT
    assert aborts(backend) == 1


def test_calls_cancelled_together_abort_once(backend: StubBackend) -> None:
    backend.responder = silent
    scope = CancelScope()
    calls = [Running(backend, scope=scope) for _ in range(3)]
    backend.wait_requests(3)
    scope.cancel()
    for call in calls:
        call.join()
    assert backend.wait_requests(4)[3].path == ABORT
    assert aborts(backend) == 1


def test_calls_to_another_server_do_not_matter(backend: StubBackend) -> None:
    with StubBackend() as other:
        backend.responder = other.responder = silent
        elsewhere, call = Running(other), Running(backend)
        backend.wait_requests(1)
        other.wait_requests(1)
        call.cancel()
        assert backend.wait_requests(2)[1].path == ABORT
        assert aborts(other) == 0
        elsewhere.cancel()


@pytest.mark.parametrize("way", [generate, stream])
def test_call_that_ends_normally_aborts_nothing(backend: StubBackend, way: Any) -> None:
    backend.script(DIALECT.reply(Answer(), stream=way is stream))
    scope = CancelScope()
    assert way(handler(backend, scope)) == "Hello there"
    scope.cancel()
    assert aborts(backend) == 0


def test_call_cancelled_when_its_answer_is_there_aborts_nothing(
    backend: StubBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.script(DIALECT.reply(Answer(), stream=False))
    scope = CancelScope()
    call = handler(backend, scope)
    read = call.read_response
    monkeypatch.setattr(call, "read_response", lambda body: (scope.cancel(), read(body))[1])
    assert call.handle_non_streaming(HI) == "Hello there" and scope.cancelled
    assert aborts(backend) == 0


def test_stream_cancelled_after_its_finish_reason_aborts_nothing(backend: StubBackend) -> None:
    backend.script(Reply(pieces=[message("a", finish_reason="stop")], hang=True))
    scope = CancelScope()
    chunks = handler(backend, scope).handle_streaming(HI)
    assert next(chunks)["token"] == "a"
    scope.cancel()
    chunks.close()
    assert aborts(backend) == 0


def test_abandoned_stream_aborts_nothing(backend: StubBackend) -> None:
    backend.script(Reply(pieces=[message("a")], hang=True))
    chunks = handler(backend, CancelScope()).handle_streaming(HI)
    next(chunks)
    chunks.close()
    assert aborts(backend) == 0


def test_cancelled_before_the_start_sends_nothing(backend: StubBackend) -> None:
    scope = CancelScope()
    scope.cancel()
    call = handler(backend, scope)
    assert call.handle_non_streaming(HI) == "" and list(call.handle_streaming(HI)) == []
    time.sleep(QUIET_SECONDS)
    assert backend.requests == []


def test_ended_and_failed_calls_are_not_counted_any_more(backend: StubBackend) -> None:
    backend.script(status_reply(400), DIALECT.reply(Answer(), stream=False), Reply(pieces=[message("a")], hang=True))
    with pytest.raises(BackendStatusError):
        handler(backend).handle_non_streaming(HI)
    handler(backend).handle_non_streaming(HI)
    abandoned = handler(backend).handle_streaming(HI)
    next(abandoned)
    abandoned.close()
    backend.responder = silent
    call = Running(backend)
    backend.wait_requests(4)
    call.cancel()
    assert backend.wait_requests(5)[4].path == ABORT


@pytest.mark.parametrize(
    "answer", [status_reply(503), Reply(body=b"<html>"), Reply(never=True), Reply(drop=BEFORE_STATUS)]
)
def test_failing_abort_is_neither_waited_for_nor_loud(
    backend: StubBackend, answer: Reply, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(koboldcpp_api_handler, "ABORT_READ_SECONDS", 0.4)
    backend.responder = lambda request: answer if request.path == ABORT else Reply(never=True)
    call = Running(backend)
    backend.wait_requests(1)
    assert call.cancel() < SOON
    backend.wait_requests(2)
    assert until(lambda: "'E' could not be aborted" in caplog.text)
    time.sleep(0.7)  # beyond the wait before a second attempt
    assert aborts(backend) == 1
    # Sessions of other tests in this process may end just now, and say so.
    own = [record for record in caplog.records if record.name.startswith("Middleware.llmapis.")]
    assert [record for record in own if record.levelno > logging.DEBUG] == []


def test_base_urls_of_one_server_count_together(backend: StubBackend) -> None:
    backend.responder = silent
    url = backend.url
    calls = [Running(backend, base_url=url + end) for end in ("", "/", "/api")]
    backend.wait_requests(3)
    for call in calls[:2]:
        call.cancel()
    assert aborts(backend) == 0
    calls[2].cancel()
    assert backend.wait_requests(4)[3].path == ABORT


def test_counter() -> None:
    counter = CallCounter()
    with counter.counted("a"), counter.counted("b"):
        with counter.counted("a"):
            pass
        assert counter.busy("a") and counter.busy("b")
    assert not counter.busy("a") and not counter.busy("b") and not counter.busy("never seen")
