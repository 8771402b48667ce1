"""The fake back-ends answer what the real ones do: the official client packages read every byte of it.

A package's response models check each answer and event by the letter (nothing converted, nothing unknown, nothing
lost), its client reads the streams over a real socket, and what both understood is compared with what was meant.
KoboldCpp has no package.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import anthropic
import ollama
import openai
import pytest
from anthropic.types import Message as ClaudeMessage
from anthropic.types import RawMessageStreamEvent
from openai.types import Completion, CompletionChoice, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, TypeAdapter

from Middleware.addons.init import demo_backend
from Tests.backend_dialects import (
    COMPLETION_TOKENS,
    DIALECTS,
    PROMPT_TOKENS,
    Answer,
    Call,
    ollama_embeddings,
    openai_embeddings,
)
from Tests.patience import PATIENCE
from Tests.stub_backend import StubBackend
from Tests.windows import wine_lacks

FIRST, SECOND = Call("look_up", {"word": "Grüße", "n": 2}), Call("stop_it", {}, "call_2")
SHAPES = {
    "plain": Answer(),
    "one token": Answer(("Grüße {}",)),
    "length": Answer(finish="length"),
    "no usage": Answer(usage=False),
    "reasoning": Answer(reasoning=("Let me ", "think")),
    "one call": Answer((), "tool_calls", calls=(FIRST,)),
    "two calls": Answer(("I ", "look"), "tool_calls", ("Hm",), (FIRST, SECOND)),
}
HI: Any = [{"role": "user", "content": "hi"}]
EXTENSIONS = {"reasoning_content"}  # llama.cpp's addition to messages and deltas, unknown to OpenAI's package


class StreamedChoice(CompletionChoice):
    """A choice of a text stream; the package describes only whole ones, whose finish reason is never null."""

    finish_reason: Literal["stop", "length", "content_filter"] | None  # type: ignore[assignment]


class StreamedCompletion(Completion):
    choices: list[StreamedChoice]  # type: ignore[assignment]


@dataclass
class Heard:
    """What a client understood of an answer; ``calls`` are ``[id, name, arguments as JSON]``."""

    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    usage: tuple[int, int] | None = None
    calls: list[list[str]] = field(default_factory=list)


# -- reading with the packages' models ----------------------------------------------------------------------------


def strictly(model: Any, data: bytes) -> Any:
    """``data`` as ``model`` (a class or a union): no conversion, no unknown key, no value that gets lost."""
    parsed = TypeAdapter(model).validate_json(data, strict=True)
    assert parsed.model_dump(exclude_unset=True, by_alias=True) == json.loads(data)
    assert set(unknown_keys(parsed)) <= EXTENSIONS
    return parsed


def unknown_keys(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        for name in type(value).model_fields:
            yield from unknown_keys(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            yield from unknown_keys(item)


def read_openai_usage(body: Any, heard: Heard) -> None:
    if body.usage:
        heard.usage = (body.usage.prompt_tokens, body.usage.completion_tokens)
        assert body.usage.total_tokens == sum(heard.usage)


def read_openai_chat(body: Any, heard: Heard) -> None:
    """A whole answer or one chunk of a stream."""
    read_openai_usage(body, heard)
    for choice in body.choices:
        part = choice.delta if isinstance(body, ChatCompletionChunk) else choice.message
        heard.text += part.content or ""
        heard.reasoning += getattr(part, "reasoning_content", "")
        heard.finish = choice.finish_reason or heard.finish
        for position, call in enumerate(part.tool_calls or ()):
            if getattr(call, "index", position) == len(heard.calls):
                assert call.type == "function"
                heard.calls.append([call.id, call.function.name, ""])
            heard.calls[getattr(call, "index", position)][2] += call.function.arguments


def read_openai_text(body: Any, heard: Heard) -> None:
    read_openai_usage(body, heard)
    for choice in body.choices:
        heard.text += choice.text
        heard.finish = choice.finish_reason or heard.finish


def read_ollama(body: Any, heard: Heard) -> None:
    part = body.message if isinstance(body, ollama.ChatResponse) else body
    heard.text += (part.content if part is not body else part.response) or ""
    heard.reasoning += part.thinking or ""
    if part is not body:
        heard.calls += [
            ["", call.function.name, json.dumps(call.function.arguments, ensure_ascii=False)]
            for call in part.tool_calls or ()
        ]
    assert heard.finish is None and body.done is (body.done_reason is not None)
    heard.finish = body.done_reason
    if body.eval_count is not None:
        heard.usage = (body.prompt_eval_count, body.eval_count)


def read_claude(body: Any, heard: Heard) -> None:
    for block in body.content:
        start_claude_block(block, heard)
        if block.type == "tool_use":
            heard.calls[-1][2] = json.dumps(block.input, ensure_ascii=False)
    heard.finish, heard.usage = body.stop_reason, (body.usage.input_tokens, body.usage.output_tokens)


def start_claude_block(block: Any, heard: Heard) -> None:
    if block.type == "tool_use":
        heard.calls.append([block.id, block.name, ""])
    elif block.type == "thinking":
        heard.reasoning += block.thinking
    else:
        heard.text += block.text


def read_claude_event(event: Any, heard: Heard) -> None:
    match event.type:
        case "message_start":
            read_claude(event.message, heard)
        case "content_block_start":
            start_claude_block(event.content_block, heard)
        case "content_block_delta":
            delta = event.delta
            heard.text += getattr(delta, "text", "")
            heard.reasoning += getattr(delta, "thinking", "")
            if delta.type == "input_json_delta":
                heard.calls[-1][2] += delta.partial_json
        case "message_delta":
            assert heard.usage is not None
            heard.finish, heard.usage = event.delta.stop_reason, (heard.usage[0], event.usage.output_tokens)


# -- the packages -------------------------------------------------------------------------------------------------


def openai_client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def claude_client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


@dataclass(frozen=True)
class Package:
    """How the package of a dialect reads it: its models, what they say, and its client for a URL."""

    whole: Any
    event: Any
    read: Callable[[Any, Heard], None]
    read_event: Callable[[Any, Heard], None]
    client: Callable[[str], Any]
    ask: Callable[[Any], Iterable[Any]]

    def listen(self, url: str) -> Heard:
        """What the client understands of a stream."""
        heard = Heard()
        with self.client(url) as client:
            for event in self.ask(client):
                self.read_event(event, heard)
        return heard


PACKAGES = {
    "openAIChatCompletion": Package(
        ChatCompletion,
        ChatCompletionChunk,
        read_openai_chat,
        read_openai_chat,
        openai_client,
        lambda client: client.chat.completions.create(model="m", messages=HI, stream=True),
    ),
    "openAIV1Completion": Package(
        Completion,
        StreamedCompletion,
        read_openai_text,
        read_openai_text,
        openai_client,
        lambda client: client.completions.create(model="m", prompt="hi", stream=True),
    ),
    "ollamaApiChat": Package(
        ollama.ChatResponse,
        ollama.ChatResponse,
        read_ollama,
        read_ollama,
        ollama.Client,
        lambda client: client.chat("m", HI, stream=True),
    ),
    "ollamaApiGenerate": Package(
        ollama.GenerateResponse,
        ollama.GenerateResponse,
        read_ollama,
        read_ollama,
        ollama.Client,
        lambda client: client.generate("m", "hi", stream=True),
    ),
    "claudeMessages": Package(
        ClaudeMessage,
        RawMessageStreamEvent,
        read_claude,
        read_claude_event,
        claude_client,
        lambda client: client.messages.create(model="m", max_tokens=9, messages=HI, stream=True),
    ),
}


def meant(api_type: str, answer: Answer) -> Heard:
    """What a client of that dialect can learn of an answer."""
    claude, has_calls = api_type == "claudeMessages", api_type not in ("openAIV1Completion", "ollamaApiGenerate")
    names = (
        {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
        if claude
        else {}
        if api_type == "openAIChatCompletion"
        else {"tool_calls": "stop"}
    )
    return Heard(
        answer.text,
        "" if api_type == "openAIV1Completion" else "".join(answer.reasoning),
        names.get(answer.finish, answer.finish),
        (PROMPT_TOKENS, COMPLETION_TOKENS) if answer.usage or claude else None,
        [
            [
                "" if api_type.startswith("ollama") else call.id,
                call.name,
                json.dumps(dict(call.arguments), ensure_ascii=False),
            ]
            for call in answer.calls
        ]
        if has_calls
        else [],
    )


def events_in(data: bytes) -> list[bytes]:
    """The JSON of each event of an SSE or NDJSON stream, ``[DONE]`` and Claude's contentless ping left out."""
    lines = [line.removeprefix(b"data: ") for line in data.splitlines()]
    return [line for line in lines if line.startswith(b"{") and line != b'{"type": "ping"}']


EVERY_DIALECT = pytest.mark.parametrize("api_type", PACKAGES)
EVERY_DIALECT_ON_A_SOCKET = pytest.mark.parametrize(
    "api_type",
    [
        # Anthropic's package sets them on its connections.
        pytest.param(name, marks=wine_lacks("the socket options of keep-alive")) if name == "claudeMessages" else name
        for name in PACKAGES
    ],
)
EVERY_SHAPE = pytest.mark.parametrize("answer", SHAPES.values(), ids=SHAPES)


def test_every_dialect_but_koboldcpp_has_a_package() -> None:
    assert DIALECTS.keys() - PACKAGES.keys() == {"koboldCppGenerate"}


@EVERY_DIALECT
@EVERY_SHAPE
def test_whole_answers(api_type: str, answer: Answer) -> None:
    package, heard = PACKAGES[api_type], Heard()
    package.read(strictly(package.whole, json.dumps(DIALECTS[api_type].whole(answer)).encode()), heard)
    assert heard == meant(api_type, answer)


@EVERY_DIALECT
@EVERY_SHAPE
def test_stream_events(api_type: str, answer: Answer) -> None:
    package, heard = PACKAGES[api_type], Heard()
    pieces = DIALECTS[api_type].pieces(answer)
    events = [event for piece in pieces for event in events_in(piece)]
    assert len(events) == len(pieces) - (not api_type.startswith("ollama"))  # all but the ping or [DONE]
    for event in events:
        package.read_event(strictly(package.event, event), heard)
    assert heard == meant(api_type, answer)


@EVERY_DIALECT_ON_A_SOCKET
@EVERY_SHAPE
def test_streams_over_a_socket(api_type: str, answer: Answer) -> None:
    with StubBackend() as backend:
        backend.script(DIALECTS[api_type].reply(answer, stream=True))
        assert PACKAGES[api_type].listen(backend.url) == meant(api_type, answer)


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (CreateEmbeddingResponse, openai_embeddings([[0.5, -1.0], [2.0, 3.0]])),
        (CreateEmbeddingResponse, openai_embeddings([[0.5, -1.0], [2.0, 3.0]], indices=[1, 0])),
        (ollama.EmbedResponse, ollama_embeddings([[0.5, -1.0], [2.0, 3.0]])),
    ],
)
def test_embeddings(model: Any, body: dict[str, Any]) -> None:
    parsed = strictly(model, json.dumps(body).encode())
    vectors = parsed.embeddings if model is ollama.EmbedResponse else [entry.embedding for entry in parsed.data]
    assert vectors == [[0.5, -1.0], [2.0, 3.0]]
    assert model is ollama.EmbedResponse or [entry.index for entry in parsed.data] in ([0, 1], [1, 0])


# -- the demo back-end --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo() -> Iterator[demo_backend.DemoServer]:
    server = demo_backend.start(delay=0)
    yield server
    server.shutdown()
    server.server_close()


def ask_demo(port: int, path: str, body: dict[str, Any]) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", path, json.dumps({"model": "m", **body}), {"Content-Type": "application/json"})
    data = connection.getresponse().read()
    connection.close()
    return data


@pytest.mark.parametrize(
    ("api_type", "path"), [("openAIChatCompletion", "/v1/chat/completions"), ("ollamaApiChat", "/api/chat")]
)
def test_demo_back_end(demo: demo_backend.DemoServer, api_type: str, path: str) -> None:
    package, text = PACKAGES[api_type], demo_backend.answer(HI)
    request = {"messages": HI, "stream_options": {"include_usage": True}}
    whole, streamed = Heard(), Heard()
    package.read(strictly(package.whole, ask_demo(demo.port, path, {**request, "stream": False})), whole)
    for event in events_in(ask_demo(demo.port, path, {**request, "stream": True})):
        package.read_event(strictly(package.event, event), streamed)
    assert whole == streamed
    assert (whole.text, whole.finish, whole.usage) == (text, "stop", (1, len(text.split())))
    by_client = package.listen(demo.url)
    assert (by_client.text, by_client.finish) == (text, "stop")


def test_listings_of_the_demo_back_end(demo: demo_backend.DemoServer) -> None:
    with openai_client(demo.url) as openai_, ollama.Client(demo.url) as ollama_:
        assert [model.id for model in openai_.models.list()] == [demo_backend.MODEL]
        assert [model.model for model in ollama_.list().models] == [demo_backend.MODEL]
