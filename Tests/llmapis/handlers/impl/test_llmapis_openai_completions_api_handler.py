"""The OpenAI text completion dialect over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from Middleware.exceptions import BackendResponseError
from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.handlers.impl.openai_completions_api_handler import OpenAiCompletionsApiHandler
from Middleware.llmapis.transport import Transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities.answers.stream_parsers import SSEParser
from Tests.backend_dialects import COMPLETION_TOKENS, DIALECTS, PROMPT_TOKENS, Answer
from Tests.stub_backend import Reply, StubBackend, json_reply, sse_event, sse_reply

HI = Prompt(None, "Be kind. ", "hi")
DIALECT = DIALECTS["openAIV1Completion"]
SILENCE = {"token": "", "finish_reason": None}
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
) -> OpenAiCompletionsApiHandler:
    values = {"endpoint": {}, "api_type": {}, **settings}
    url = backend.url if backend else "http://127.0.0.1:1"
    return OpenAiCompletionsApiHandler(BackendSettings("E", url, **values), Transport(), scope)


def read(*events: Any) -> list[dict[str, Any]]:
    return handler().read_events(SSEParser().feed(b"".join(map(sse_event, events))))


def choice(**content: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None, **content}]}


def text(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["token"] for chunk in chunks)


# -- requests -----------------------------------------------------------------------------------------------------


def test_payload() -> None:
    body = handler(model="m", samplers={"max_tokens": 300, "stream": False}).payload(HI)
    assert body == {"model": "m", "prompt": "Be kind. hi", "max_tokens": 300, "stream": False}
    assert list(body) == ["model", "prompt", "max_tokens", "stream"]


def test_model_may_be_empty_left_out_or_overridden() -> None:
    assert handler(model="").payload(HI) == {"model": "", "prompt": "Be kind. hi"}
    assert handler(model=None).payload(HI) == {"prompt": "Be kind. hi"}
    assert handler(model="m", samplers={"model": "x"}).payload(HI) == {"model": "x", "prompt": "Be kind. hi"}


def test_images_are_not_sent_and_the_log_says_so_once_in_a_request(caplog: pytest.LogCaptureFixture) -> None:
    prompt = Prompt([{"role": "user", "content": "", "images": ["AAAA"]}], "", "hi")
    with request_scope(RequestContext()):
        for _ in range(2):
            assert handler(model="m").payload(prompt) == {"model": "m", "prompt": "hi"}
    assert [record.getMessage() for record in caplog.records] == [
        "Endpoint 'E': skipped 1 image(s): text completions take none."
    ]


# -- events -------------------------------------------------------------------------------------------------------


def test_tokens_and_finish() -> None:
    assert read(choice(text="Hel"), choice(text="lo", finish_reason="length")) == [
        {"token": "Hel", "finish_reason": None},
        {"token": "lo", "finish_reason": "length"},
    ]


def test_last_chunk_without_text_still_finishes() -> None:
    assert read(choice(text="a"), choice(finish_reason="stop")) == [
        {"token": "a", "finish_reason": None},
        {"token": "", "finish_reason": "stop"},
    ]


@pytest.mark.parametrize("content", [{"text": None}, {"text": ""}, {"text": 5}, {}])
def test_chunk_without_text_is_a_sign_of_life(content: dict[str, Any]) -> None:
    assert read(choice(**content)) == [SILENCE]


@pytest.mark.parametrize(
    "noise", [123, "{broken", [], {"choices": []}, {"choices": None}, {}, "[DONE]", {"choices": ["x"]}]
)
def test_noise_is_skipped(noise: Any) -> None:
    assert read(noise, choice(text="a")) == [{"token": "a", "finish_reason": None}]


def test_usage_comes_with_or_without_a_choice_and_after_the_end() -> None:
    assert read({**choice(text="a"), "usage": USAGE}) == [{"token": "a", "finish_reason": None, "usage": USAGE}]
    assert read({"choices": [], "usage": USAGE}) == [{**SILENCE, "usage": USAGE}]
    assert read(choice(finish_reason="stop"), {**choice(text="late"), "usage": USAGE}) == [
        {"token": "", "finish_reason": "stop"},
        {"token": "late", "finish_reason": None, "usage": USAGE},
    ]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_carried_beside_the_text(key: str) -> None:
    assert read(choice(**{key: "hm"})) == [{**SILENCE, "reasoning": "hm"}]
    assert read(choice(text="a", **{key: ""})) == [{"token": "a", "finish_reason": None}]


def test_fingerprint_is_carried_once() -> None:
    event = {**choice(text="a"), "system_fingerprint": "b1"}
    assert read(event, event) == [
        {"token": "a", "finish_reason": None, "fingerprint": "b1"},
        {"token": "a", "finish_reason": None},
    ]
    call = handler()
    call.read_whole(event)
    assert call.outcome.fingerprint == "b1"


def test_error_object_raises() -> None:
    with pytest.raises(BackendResponseError, match=r"Endpoint 'E' .*: an error instead of an answer: too long"):
        read({"error": {"message": "too  long"}})
    with pytest.raises(BackendResponseError, match="bad"):
        handler().read_events(SSEParser().feed(b'event: error\ndata: {"message": "bad"}\n\n'))


# -- whole calls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_stream(backend: StubBackend, finish: str) -> None:
    backend.script(DIALECT.reply(Answer(finish=finish), stream=True))
    call = handler(backend, model="m", api_key="k", samplers={"stream": True})
    chunks = list(call.handle_streaming(HI))
    assert text(chunks) == "Hello there"
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == [finish]
    assert chunks[-1]["usage"] == USAGE
    assert (call.outcome.finish_reason, call.outcome.usage) == (finish, USAGE)
    [request] = backend.requests
    assert request.path == "/v1/completions" and request.headers["authorization"] == "Bearer k"
    assert request.json == {"model": "m", "prompt": "Be kind. hi", "stream": True}


def test_error_behind_tokens_does_not_lose_them(backend: StubBackend) -> None:
    events = b"".join(map(sse_event, [choice(text="a"), {"error": "gone"}]))
    backend.script(Reply(pieces=[events]))
    stream = handler(backend).handle_streaming(HI)
    assert next(stream)["token"] == "a"
    with pytest.raises(BackendResponseError, match="gone"):
        list(stream)


def test_stream_that_simply_ends(backend: StubBackend) -> None:
    backend.script(sse_reply([choice(text="a")]))
    call = handler(backend)
    assert text(list(call.handle_streaming(HI))) == "a" and call.outcome.finish_reason is None


def test_plain_body_instead_of_a_stream(backend: StubBackend) -> None:
    backend.script(DIALECT.reply(Answer(finish="length"), stream=False))
    chunks = [chunk for chunk in handler(backend).handle_streaming(HI) if chunk != SILENCE]
    assert chunks == [{"token": "Hello there", "finish_reason": "length", "usage": USAGE}]


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_complete_answer(backend: StubBackend, finish: str) -> None:
    backend.script(DIALECT.reply(Answer(finish=finish), stream=False))
    call = handler(backend, model="m")
    assert call.handle_non_streaming(HI) == "Hello there"
    assert (call.outcome.finish_reason, call.outcome.usage) == (finish, USAGE)
    assert backend.requests[0].path == "/v1/completions"


def test_reasoning_of_a_complete_answer() -> None:
    call = handler()
    assert call.read_whole(choice(text="a", reasoning_content="hm")) == "a"
    assert call.outcome.reasoning == "hm"


@pytest.mark.parametrize(
    "body",
    [
        {"choices": []},
        {"choices": [None]},
        {},
        [],
        5,
        "SECRET",
        {"text": "SECRET"},
        {"choices": [{"text": ["SECRET"]}]},
        {"choices": [{"message": "SECRET"}]},
    ],
)
def test_what_has_no_text_is_no_answer(body: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BackendResponseError, match="Endpoint 'E' .*: an answer without a message: "):
        handler().read_whole(body)
    assert "SECRET" not in caplog.text


def test_null_text_is_an_empty_answer(caplog: pytest.LogCaptureFixture) -> None:
    assert handler().read_whole(choice(text=None)) == "" and caplog.text == ""


@pytest.mark.parametrize("stream", [False, True])
def test_error_body_with_a_good_status_raises(backend: StubBackend, stream: bool) -> None:
    backend.script(json_reply({"error": {"message": "overloaded"}}))
    with pytest.raises(BackendResponseError, match="overloaded"):
        list(handler(backend).handle_streaming(HI)) if stream else handler(backend).handle_non_streaming(HI)


def test_cancelled_before_the_start_sends_nothing(backend: StubBackend) -> None:
    scope = CancelScope()
    scope.cancel()
    call = handler(backend, scope)
    assert list(call.handle_streaming(HI)) == [] and call.handle_non_streaming(HI) == ""
    assert backend.requests == []
