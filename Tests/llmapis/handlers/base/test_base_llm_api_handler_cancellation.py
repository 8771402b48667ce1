"""A request that is cancelled ends its back-end call, whatever the dialect: quietly, and without a trace."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.handlers.base.base_llm_api_handler import BaseLlmApiHandler
from Middleware.llmapis.llm_api import TYPES
from Middleware.llmapis.transport import Transport
from Middleware.services.cancellation_service import cancellation_service
from Tests.backend_dialects import DIALECTS, Answer
from Tests.llmapis.transport_lab import SOON
from Tests.stub_backend import Reply, StubBackend

REQUEST = "a request to cancel"
PROMPT = Prompt([{"role": "user", "content": "hi"}], prompt="hi")
FIRST_TOKENS = Answer(("one ", "two"))


@pytest.fixture(autouse=True)
def forget_the_request() -> Iterator[None]:
    yield
    cancellation_service.acknowledge_cancellation(REQUEST)


@pytest.fixture(params=list(DIALECTS))
def type_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def call(type_name: str, backend: StubBackend, transport: Transport) -> BaseLlmApiHandler:
    settings = BackendSettings("E", backend.url, {}, {"streamPropertyName": "stream"}, model="m")
    return TYPES[type_name](settings, transport, cancellation_service.scope_for(REQUEST))


def test_a_request_cancelled_before_its_call_sends_nothing(call: BaseLlmApiHandler, backend: StubBackend) -> None:
    cancellation_service.request_cancellation(REQUEST)
    assert list(call.handle_streaming(PROMPT)) == [] and call.handle_non_streaming(PROMPT) == ""
    assert backend.requests == []


def test_a_stream_ends_before_the_next_chunk(call: BaseLlmApiHandler, type_name: str, backend: StubBackend) -> None:
    reply, held = DIALECTS[type_name].reply(FIRST_TOKENS, True, hang=True), threading.Event()
    second = next(number for number, piece in enumerate(reply.pieces or ()) if b"two" in piece)
    backend.default = replace(reply, held=held, held_piece=second)
    tokens = []
    for chunk in call.handle_streaming(PROMPT):
        tokens.append(chunk["token"])
        if chunk["token"]:
            cancellation_service.request_cancellation(REQUEST)
            held.set()
    assert "".join(tokens) == "one "
    assert backend.requests[0].wait_ended()


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_waits_for_its_answer_ends(call: BaseLlmApiHandler, backend: StubBackend, stream: bool) -> None:
    backend.default = Reply(never=True)
    threading.Timer(0.05, cancellation_service.request_cancellation, [REQUEST]).start()
    started = time.monotonic()
    text = (
        "".join(chunk["token"] for chunk in call.handle_streaming(PROMPT))
        if stream
        else call.handle_non_streaming(PROMPT)
    )
    assert text == "" and time.monotonic() - started < SOON


def test_another_request_goes_on(call: BaseLlmApiHandler, type_name: str, backend: StubBackend) -> None:
    backend.default = DIALECTS[type_name].reply(FIRST_TOKENS, True)
    cancellation_service.request_cancellation("another request")
    try:
        assert "".join(chunk["token"] for chunk in call.handle_streaming(PROMPT)) == "one two"
    finally:
        cancellation_service.acknowledge_cancellation("another request")
