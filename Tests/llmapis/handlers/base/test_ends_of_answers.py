"""Finish reasons, failures and answers without an answer, in all dialects, streamed and whole."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from Middleware.exceptions import BackendResponseError
from Middleware.exceptions.invalid_llm_response_error import InvalidLlmResponseError
from Middleware.llmapis import finish_reasons
from Middleware.llmapis.handlers.base import stream_ends
from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.handlers.base.base_llm_api_handler import BaseLlmApiHandler
from Middleware.llmapis.handlers.impl.claude_api_handler import ClaudeApiHandler
from Middleware.llmapis.handlers.impl.koboldcpp_api_handler import KoboldCppApiHandler
from Middleware.llmapis.handlers.impl.ollama_chat_api_handler import OllamaChatHandler
from Middleware.llmapis.handlers.impl.ollama_generate_api_handler import OllamaGenerateHandler
from Middleware.llmapis.handlers.impl.openai_api_handler import OpenAiApiHandler
from Middleware.llmapis.handlers.impl.openai_completions_api_handler import OpenAiCompletionsApiHandler
from Middleware.llmapis.transport import Transport
from Tests.backend_dialects import DIALECTS, Answer
from Tests.stub_backend import Reply, StubBackend, json_reply
from Tests.tables import table

HANDLERS: dict[str, type[BaseLlmApiHandler]] = {
    "openAIChatCompletion": OpenAiApiHandler,
    "openAIV1Completion": OpenAiCompletionsApiHandler,
    "ollamaApiChat": OllamaChatHandler,
    "ollamaApiGenerate": OllamaGenerateHandler,
    "koboldCppGenerate": KoboldCppApiHandler,
    "claudeMessages": ClaudeApiHandler,
}
CHAT = frozenset({"openAIChatCompletion", "ollamaApiChat", "claudeMessages"})
WORDS = [
    *[
        (word, "stop")
        for word in "stop eos eos_token stop_sequence end_turn end complete COMPLETED Done finish".split()
    ],
    *[(word, "stop") for word in ("finished", "pause-turn", "a word of 2031", "tool_calls", "function call")],
    *[(word, "length") for word in "length max_tokens max_output_tokens model_length token_limit limit".split()],
    *[(word, "length") for word in ("context-length", "Max Length", "model_context_window_exceeded")],
    *[(word, "content_filter") for word in "content_filter SAFETY sensitive refusal recitation spii blocklist".split()],
    *[(word, "content_filter") for word in ("image-safety", "moderation", "guardrail_intervened")],
]
FAILURES = [
    *["error", "failed", "network_error", "insufficient_system_resource", "internal error", "overloaded", "Timeout"],
    *["abort", "cancelled", "OTHER_ERROR", "malformed_function_call", "unexpected_tool_call"],
]


def event(kind: str, text: str = "", reason: str | None = None, **more: Any) -> list[dict[str, Any]]:
    """The events of a piece of an answer, with its finish reason."""
    if kind == "openAIChatCompletion":
        return [{"choices": [{"delta": {"content": text}, "finish_reason": reason, **more}]}]
    if kind == "openAIV1Completion":
        return [{"choices": [{"text": text, "finish_reason": reason, **more}]}]
    end = {} if reason is None else {"done_reason": reason}
    if kind == "ollamaApiChat":
        return [{"message": {"content": text}, "done": reason is not None, **end, **more}]
    if kind == "ollamaApiGenerate":
        return [{"response": text, "done": reason is not None, **end, **more}]
    if kind == "koboldCppGenerate":
        return [{"token": text, "finish_reason": reason, **more}]
    events: list[dict[str, Any]] = [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}]
    return events if reason is None else [*events, {"type": "message_delta", "delta": {"stop_reason": reason}, **more}]


def whole(kind: str, text: str, reason: str | None) -> dict[str, Any]:
    if kind == "openAIChatCompletion":
        return {"choices": [{"message": {"content": text}, "finish_reason": reason}]}
    if kind == "koboldCppGenerate":
        return {"results": [{"text": text, "finish_reason": reason}]}
    if kind == "claudeMessages":
        return {"content": [{"type": "text", "text": text}], "stop_reason": reason}
    return event(kind, text, reason)[0]


@pytest.fixture
def backend() -> Iterator[StubBackend]:
    with StubBackend() as stub:
        yield stub


def handler(kind: str, url: str = "http://127.0.0.1:1", name: str = "E", file: str = "") -> BaseLlmApiHandler:
    return HANDLERS[kind](BackendSettings(name, url, endpoint={}, api_type={}, model="m", file=file), Transport())


def prompt(kind: str) -> Prompt:
    return Prompt([{"role": "user", "content": "hi"}]) if kind in CHAT else Prompt(prompt="hi")


def framed(kind: str, *events: dict[str, Any]) -> Reply:
    lines = [json.dumps(one) for one in events]
    if kind.startswith("ollama"):
        return Reply(pieces=[f"{line}\n".encode() for line in lines], headers={"Content-Type": "application/x-ndjson"})
    names = [f"event: {one['type']}\n" if "type" in one else "" for one in events]
    return Reply(
        pieces=[f"{name}data: {line}\n\n".encode() for name, line in zip(names, lines, strict=True)],
        headers={"Content-Type": "text/event-stream"},
    )


def streamed(kind: str, backend: StubBackend, *events: dict[str, Any]) -> tuple[BaseLlmApiHandler, list[Any]]:
    backend.script(framed(kind, *events))
    call = handler(kind, backend.url)
    return call, list(call.handle_streaming(prompt(kind)))


every_kind = pytest.mark.parametrize("kind", HANDLERS)


@every_kind
@table("sent, inside", WORDS)
def test_each_word_of_a_server_is_one_of_four(kind: str, sent: str, inside: str) -> None:
    call = handler(kind)
    for position, one in enumerate(event(kind, "a", sent)):
        chunks = call.read_events(
            [json.dumps(one) if kind.startswith("ollama") else (one.get("type"), json.dumps(one))]
        )
        if position == len(event(kind, "a", sent)) - 1:
            assert chunks[-1]["finish_reason"] == inside
    assert (call.outcome.finish_reason, call.outcome.sent_reason, call.ended) == (inside, sent, True)
    call = handler(kind)
    assert call.read_whole(whole(kind, "a", sent)) == "a"
    assert (call.outcome.finish_reason, call.outcome.sent_reason) == (inside, sent)


@pytest.mark.parametrize("kind", ["openAIChatCompletion", "openAIV1Completion", "koboldCppGenerate"])
@pytest.mark.parametrize("sent", ["", "null", "None", " NULL "])
def test_some_words_are_no_reason(kind: str, sent: str) -> None:
    call = handler(kind)
    for one in event(kind, "a", sent) + event(kind, "b"):
        [chunk] = call.read_events([(None, json.dumps(one))])
        assert chunk["finish_reason"] is None
    assert not call.ended
    assert call.read_whole(whole(kind, "a", sent)) == "a" and call.outcome.finish_reason is None


def test_an_unknown_word_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    said = [finish_reasons.finish_reason("odd word", endpoint) for endpoint in ("A", "A", "B")]
    assert said == ["stop"] * 3
    assert [line for line in caplog.messages if "'odd_word' is unknown" in line and "Endpoint 'A'" in line][1:] == []
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("sent, inside", [("stop", "tool_calls"), ("eos", "tool_calls"), ("max_tokens", "length")])
@pytest.mark.parametrize("kind", ["openAIChatCompletion", "ollamaApiChat"])
def test_calls_decide(kind: str, sent: str, inside: str) -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    first, last = event(kind, ""), event(kind, "", sent)
    where = first[0]["choices"][0]["delta"] if kind.startswith("open") else first[0]["message"]
    where["tool_calls"] = calls
    call = handler(kind)
    chunks = [
        chunk
        for one in first + last
        for chunk in call.read_events([json.dumps(one) if kind.startswith("ollama") else (None, json.dumps(one))])
    ]
    assert chunks[-1]["finish_reason"] == inside


# -- failures ----------------------------------------------------------------------------------------------------------


@every_kind
@table("word", FAILURES)
def test_a_reason_that_is_a_failure_fails(kind: str, word: str, backend: StubBackend) -> None:
    with pytest.raises(BackendResponseError, match=f'an error instead of an answer: the finish reason "{word}"'):
        streamed(kind, backend, *event(kind, "", word))
    with pytest.raises(BackendResponseError, match=f'the finish reason "{word}"'):
        handler(kind).read_whole(whole(kind, "half", word))


@every_kind
def test_text_that_came_with_or_before_a_failure_is_delivered(kind: str, backend: StubBackend) -> None:
    backend.script(framed(kind, *event(kind, "half "), *event(kind, "a word", "error")))
    call, texts = handler(kind, backend.url), list[str]()
    with pytest.raises(BackendResponseError, match='the finish reason "error"'):
        for chunk in call.handle_streaming(prompt(kind)):
            texts.append(chunk["token"])
            assert chunk["finish_reason"] is None
    assert "".join(texts) == "half a word"


SAID = [
    ({"error": {"message": "out of memory"}}, "out of memory"),
    ({"error": "out of memory"}, "out of memory"),
    ({"error": {"code": 402, "metadata": {"raw": '{"detail": "CUDA died"}'}}}, "CUDA died"),
    ({"error": {"metadata": {"raw": "plain words"}}}, "plain words"),
    ({"error": {"status_msg": "insufficient balance"}}, "insufficient balance"),
    ({"error": {"failure": {"reason": "the worker died"}}}, "the worker died"),
    ({"error": {"errors": [{"description": "quota"}]}}, "quota"),
]


@every_kind
@table("body, said", SAID)
def test_an_error_object_is_a_failure_in_the_servers_words(
    kind: str, body: dict[str, Any], said: str, backend: StubBackend
) -> None:
    with pytest.raises(BackendResponseError, match=f"an error instead of an answer: {said}"):
        streamed(kind, backend, body)
    with pytest.raises(BackendResponseError, match=f"an error instead of an answer: {said}"):
        handler(kind).read_whole(body)


@every_kind
@table("error", [None, False, 0, "", [], {}])
def test_an_empty_error_is_none(kind: str, error: object, backend: StubBackend) -> None:
    _, chunks = streamed(kind, backend, *[{**one, "error": error} for one in event(kind, "a", "stop")])
    assert "".join(chunk["token"] for chunk in chunks) == "a"
    assert handler(kind).read_whole({**whole(kind, "a", "stop"), "error": error}) == "a"


@pytest.mark.parametrize("kind", ["openAIChatCompletion", "openAIV1Completion"])
def test_a_choice_may_hold_the_error(kind: str, backend: StubBackend) -> None:
    error = {"code": 502, "message": "Provider disconnected"}
    backend.script(framed(kind, *event(kind, "half"), *event(kind, " more", "error", error=error)))
    texts = list[str]()
    with pytest.raises(BackendResponseError, match="Provider disconnected"):
        for chunk in handler(kind, backend.url).handle_streaming(prompt(kind)):
            texts.append(chunk["token"])
    assert "".join(texts) == "half more"
    body = whole(kind, "half", "stop")
    body["choices"][0]["error"] = error
    with pytest.raises(BackendResponseError, match="Provider disconnected"):
        handler(kind).read_whole(body)


# -- no answer ---------------------------------------------------------------------------------------------------------

NO_ANSWERS: list[tuple[Any, str]] = [
    ({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}, "insufficient balance"),
    ({"success": False, "reason": "no such deployment"}, "no such deployment"),
    ({"info": "maintenance until 10:00"}, "maintenance until 10:00"),
    ({"id": "x", "created": 1}, "only 'id', 'created'"),
    ({}, "an empty object"),
    ([{"message": "in a list"}], "in a list"),
    (5, "JSON of the type int"),
]


@every_kind
@table("body, said", NO_ANSWERS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_what_holds_no_answer_is_a_failure(kind: str, stream: bool, body: Any, said: str, backend: StubBackend) -> None:
    backend.script(json_reply(body))
    call = handler(kind, backend.url)
    with pytest.raises(BackendResponseError, match=rf"Endpoint 'E' \(http.*\): an answer without a message: {said}"):
        list(call.handle_streaming(prompt(kind))) if stream else call.handle_non_streaming(prompt(kind))


@table(
    "message, fails",
    [
        ({"content": 5}, True),
        ({"content": {"text": "secret"}}, True),
        ({"content": True}, True),
        ({"content": "secret", "tool_calls": {"a": 1}}, True),
        ({"content": "secret", "tool_calls": "x"}, True),
        ({"content": None, "tool_calls": None}, False),
        ({"content": [{"type": "text", "text": ""}], "tool_calls": []}, False),
        ({}, False),
    ],
)
def test_a_message_of_another_shape_is_a_failure(message: dict[str, Any], fails: bool) -> None:
    body = {"choices": [{"message": message}]}
    if not fails:
        assert handler("openAIChatCompletion").read_whole(body) == ""
        return
    with pytest.raises(InvalidLlmResponseError, match=r"without a message: only '.*'$") as caught:
        handler("openAIChatCompletion").read_whole(body)
    assert "secret" not in str(caught.value)


def test_a_choice_of_a_whole_answer_may_have_a_delta() -> None:
    assert handler("openAIChatCompletion").read_whole({"choices": [{"delta": {"content": "hi"}}]}) == "hi"
    for choice in ({"message": None}, {"delta": None}, {"delta": "hi"}):
        # It is no other dialect either.
        with pytest.raises(InvalidLlmResponseError, match=r"without a message: only 'choices'$"):
            handler("openAIChatCompletion").read_whole({"choices": [choice]})


@every_kind
@table("data", [b"", b"\n\n", b": ping\n\n", b"data: [DONE]\n\n"])
def test_a_stream_without_an_event_is_no_answer(kind: str, data: bytes, backend: StubBackend) -> None:
    backend.script(Reply(body=data, headers={"Content-Type": "text/event-stream"}))
    with pytest.raises(BackendResponseError, match="Endpoint 'E'"):
        list(handler(kind, backend.url).handle_streaming(prompt(kind)))


@pytest.mark.parametrize("kind, other", list(itertools.permutations(HANDLERS, 2)))
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_answer_of_another_dialect_is_named(kind: str, other: str, stream: bool, backend: StubBackend) -> None:
    dialect = DIALECTS[other]
    backend.script(dialect.reply(Answer(("Hello",)), stream=stream))
    call = handler(kind, backend.url)
    with pytest.raises(BackendResponseError) as caught:
        list(call.handle_streaming(prompt(kind))) if stream else call.handle_non_streaming(prompt(kind))
    assert "Is it the right ApiType?" in str(caught.value) and dialect.name in str(caught.value)


@every_kind
def test_an_empty_text_in_the_right_form_is_an_empty_answer(kind: str, backend: StubBackend) -> None:
    _, chunks = streamed(kind, backend, *event(kind, "", "stop"))
    assert chunks[-1]["finish_reason"] == "stop" and not any(chunk["token"] for chunk in chunks)
    assert handler(kind).read_whole(whole(kind, "", "stop")) == ""


def test_what_comes_before_the_answer_does_no_harm(backend: StubBackend) -> None:
    """Azure sends the results of its filters first; usage comes last."""
    kind = "openAIChatCompletion"
    filters = {"choices": [], "prompt_filter_results": [{}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
    _, chunks = streamed(kind, backend, filters, *event(kind, "Hi"), *event(kind, "", "stop"), usage)
    assert "".join(chunk["token"] for chunk in chunks) == "Hi"


@table(
    "choice, more",
    [
        ({}, {}),
        ({}, {"object": "chat.completion"}),
        ({"delta": {}}, {}),
        ({"delta": None}, {}),
        ({"finish_reason": None}, {"object": "chat.completion"}),
        ({"finish_reason": ""}, {}),
    ],
)
def test_one_event_with_the_whole_answer_is_the_answer(
    backend: StubBackend, choice: dict[str, Any], more: dict[str, Any]
) -> None:
    kind = "openAIChatCompletion"
    # An endpoint that has ended its streams so far.
    streamed(kind, backend, *event(kind, "", "stop"))
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    message = {"role": "assistant", "content": "Hi", "tool_calls": calls, "reasoning_content": "hm"}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}], **more}
    call, chunks = streamed(kind, backend, body)
    assert chunks[0]["token"] == "Hi" and chunks[0]["reasoning"] == "hm"
    assert [made["id"] for chunk in chunks for made in chunk.get("tool_calls", ())] == ["c"]
    assert call.outcome.finish_reason == (None if "finish_reason" in choice else "tool_calls")


# -- streams without an end --------------------------------------------------------------------------------------------


def told(kind: str, backend: StubBackend, name: str, file: str = "") -> str:
    return "".join(chunk["token"] for chunk in handler(kind, backend.url, name, file).handle_streaming(prompt(kind)))


@every_kind
def test_who_has_sent_an_end_once_must_send_it_always(kind: str, backend: StubBackend) -> None:
    marked, other = f"marked {kind}", f"other {kind}"
    backend.script(framed(kind, *event(kind, "whole"), *event(kind, "", "stop")))
    assert told(kind, backend, marked) == "whole"
    backend.script(*[framed(kind, *event(kind, "half of"))] * 2)
    texts = list[str]()
    with pytest.raises(BackendResponseError, match="Endpoint 'marked .*: the stream ended without its end"):
        texts += (chunk["token"] for chunk in handler(kind, backend.url, marked).handle_streaming(prompt(kind)))
    assert told(kind, backend, other) == "half of"


def test_users_may_have_endpoints_of_one_name(backend: StubBackend) -> None:
    kind = "openAIChatCompletion"
    whole, half = framed(kind, *event(kind, "whole"), *event(kind, "", "stop")), framed(kind, *event(kind, "half of"))
    backend.script(whole, half, half)
    assert told(kind, backend, "Main", "Endpoints/a/Main.json") == "whole"
    assert told(kind, backend, "Main", "Endpoints/b/Main.json") == "half of"
    with pytest.raises(BackendResponseError, match="Endpoint 'Main' .*: the stream ended without its end"):
        told(kind, backend, "Main", "Endpoints/a/Main.json")


@every_kind
def test_who_never_sends_an_end_is_logged_once(
    kind: str, backend: StubBackend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    backend.script(*[framed(kind, *event(kind, "all of it"))] * 2)
    assert [told(kind, backend, f"plain {kind}") for _ in range(2)] == ["all of it"] * 2
    assert len([line for line in caplog.messages if "sends no end of its streams" in line]) == 1


@every_kind
def test_a_last_event_without_a_line_end_is_read_and_half_a_one_is_a_cut(kind: str, backend: StubBackend) -> None:
    first, second = (framed(kind, *event(kind, text)) for text in ("one ", "two"))
    assert first.pieces is not None and second.pieces is not None
    last = second.pieces[0].rstrip(b"\n")
    backend.script(Reply(pieces=[*first.pieces, last], headers=first.headers))
    assert told(kind, backend, f"whole {kind}") == "one two"
    for half in (last[:-3], last[: len(last) // 2], last[:2]):
        backend.script(Reply(pieces=[*first.pieces, half], headers=first.headers))
        with pytest.raises(BackendResponseError, match="the stream ended without its end"):
            told(kind, backend, f"half {kind}")


def test_done_alone_is_an_end(backend: StubBackend) -> None:
    """Some servers send no finish reason, but always [DONE]."""
    kind, done = "openAIChatCompletion", b"data: [DONE]\n\n"
    reply = framed(kind, *event(kind, "a"))
    assert reply.pieces is not None
    backend.script(Reply(pieces=[*reply.pieces, done], headers=reply.headers), reply)
    assert told(kind, backend, "done") == "a"
    with pytest.raises(BackendResponseError, match="without its end"):
        told(kind, backend, "done")


def test_a_comment_without_a_line_end_is_no_half_event(backend: StubBackend) -> None:
    reply = framed("openAIChatCompletion", *event("openAIChatCompletion", "a"))
    assert reply.pieces is not None
    backend.script(Reply(pieces=[*reply.pieces, b": ping"], headers=reply.headers))
    assert told("openAIChatCompletion", backend, "pings") == "a"


# -- reasons that come too early ---------------------------------------------------------------------------------------


def chunks_of(kind: str, backend: StubBackend, *events: dict[str, Any]) -> list[Any]:
    return streamed(kind, backend, *events)[1]


@every_kind
def test_a_reason_on_each_event_loses_nothing(kind: str, backend: StubBackend) -> None:
    events = [one for text in ("one ", "two ", "three") for one in event(kind, text, "stop")]
    chunks = chunks_of(kind, backend, *events)
    assert "".join(chunk["token"] for chunk in chunks) == "one two three"
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["stop"]
    assert chunks[-1]["finish_reason"] == "stop"


@every_kind
def test_the_last_reason_is_that_of_the_answer(kind: str, backend: StubBackend) -> None:
    call, chunks = streamed(kind, backend, *event(kind, "a", "stop"), *event(kind, "b"), *event(kind, "", "length"))
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["length"]
    assert call.outcome.finish_reason == "length"


def test_a_call_after_the_reason_is_a_call(backend: StubBackend) -> None:
    kind = "openAIChatCompletion"
    late = event(kind)
    late[0]["choices"][0]["delta"] = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]}
    chunks = chunks_of(kind, backend, *event(kind, "", "stop"), *late)
    assert chunks[-1]["finish_reason"] == "tool_calls" and any("tool_calls" in chunk for chunk in chunks)


@every_kind
def test_text_long_after_the_reason_is_waited_for_and_passed_on_at_once(kind: str, backend: StubBackend) -> None:
    first, late = framed(kind, *event(kind, "a", "stop")), framed(kind, *event(kind, "late", "stop"))
    assert first.pieces is not None and late.pieces is not None
    backend.script(Reply(pieces=[*first.pieces, *late.pieces], delays=[1.5, *[0.0] * 4], headers=first.headers))
    assert told(kind, backend, f"late {kind}") == "alate"


def test_a_server_that_never_closes_delays_the_end_by_a_second(backend: StubBackend) -> None:
    kind = "openAIChatCompletion"
    reply = framed(kind, *event(kind, "a"), *event(kind, "", "stop"))
    backend.script(Reply(pieces=reply.pieces, headers=reply.headers, hang=True))
    started = time.monotonic()
    assert told(kind, backend, "open") == "a" and 0.9 < time.monotonic() - started < 40


def test_a_server_that_goes_on_with_nothing_is_left_after_64_kilobytes(
    backend: StubBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "openAIChatCompletion"
    monkeypatch.setattr(stream_ends, "DRAIN_SECONDS", 60.0)  # so that only the bytes can be the limit
    padding = [{"choices": [], "padding": "x" * 8000}] * 9
    reply = framed(kind, *event(kind, "a"), *event(kind, "", "stop"), *padding)
    backend.script(Reply(pieces=reply.pieces, headers=reply.headers, hang=True))
    started = time.monotonic()
    assert told(kind, backend, "padded") == "a" and time.monotonic() - started < 30
