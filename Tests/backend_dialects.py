"""What real LLM servers answer, dialect by dialect, for tests: whole answers and streams as ``stub_backend`` replies.

The shapes are those of the servers' own documentation; ``Tests/test_backend_dialects.py`` has the response models of
the ``openai``, ``ollama`` and ``anthropic`` packages read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from Tests.stub_backend import RecordedRequest, Reply, json_reply, sse_event, status_reply

PROMPT_TOKENS, COMPLETION_TOKENS = 11, 7
CREATED = 1_700_000_000
TIMESTAMP = "2026-01-02T03:04:05.678901Z"


@dataclass(frozen=True)
class Call:
    """A tool call: ``arguments`` as an object."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = "call_1"


@dataclass(frozen=True)
class Answer:
    """What a model says, independent of any dialect.

    Attributes:
        tokens: the text in the pieces that a stream delivers.
        finish: ``stop``, ``length``, ``tool_calls`` or ``content_filter``.
        refusal: why the model does not answer, where the dialect says that apart from the text.
    """

    tokens: Sequence[str] = ("Hel", "lo ", "there")
    finish: str = "stop"
    reasoning: Sequence[str] = ()
    calls: Sequence[Call] = ()
    usage: bool = True
    refusal: str = ""

    @property
    def text(self) -> str:
        return "".join(self.tokens)


class Dialect:
    """One back-end API. ``api_type`` is the ``type`` of its ApiTypes file; ``name`` that of the shipped file.

    Attributes:
        paths: those at which it is spoken.
        streams: it streams unless a request says otherwise.
        gives_call_ids: its tool calls have ids.
        error_member: the member of an object in place of an answer, or of the rest of one, that says what has failed.
    """

    name = ""
    api_type = ""
    paths: tuple[str, ...] = ()
    streams = False
    gives_call_ids = True
    error_member = "error"

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        raise NotImplementedError

    def pieces(self, answer: Answer) -> list[bytes]:
        """The events of a stream as bytes, one HTTP chunk each."""
        raise NotImplementedError

    content_type = "text/event-stream"

    def reply(self, answer: Answer, stream: bool, **options: Any) -> Reply:
        if not stream:
            return Reply(body=self.whole(answer), **options)
        return self._streamed(self.pieces(answer), **options)

    def broken(self, answer: Answer, stream: bool, words: str) -> Reply:
        """A failure after the text of an answer; a whole answer says nothing else."""
        error = {self.error_member: words}
        if not stream:
            return json_reply(error)
        pieces = self.pieces(answer)
        last = max(number for number, piece in enumerate(pieces) if answer.tokens[-1].encode() in piece)
        event = _line(error) if self.content_type == "application/x-ndjson" else sse_event(error)
        return self._streamed([*pieces[: last + 1], event])

    def early(self, answer: Answer, stream: bool) -> Reply:
        """An answer whose reason to end also stands behind its first piece of text; whole, one that is not of calls."""
        if not stream:
            return Reply(body=self.whole(replace(answer, finish="stop")))
        pieces = self.pieces(answer)
        first = min(number for number, piece in enumerate(pieces) if answer.tokens[0].encode() in piece)
        reasons = [piece for piece in self.pieces(Answer((), usage=False)) if b'_reason": "' in piece]
        # An object of Ollama that is done is the last one.
        early = [piece.replace(b'"done": true', b'"done": false') for piece in reasons]
        return self._streamed([*pieces[: first + 1], *early, *pieces[first + 1 :]])

    def _streamed(self, pieces: list[bytes], **options: Any) -> Reply:
        return Reply(pieces=pieces, headers={"Content-Type": self.content_type}, **options)


def _usage() -> dict[str, int]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": COMPLETION_TOKENS,
        "total_tokens": PROMPT_TOKENS + COMPLETION_TOKENS,
    }


class OpenAiChat(Dialect):
    """Also what llama.cpp sends: a first delta whose content is null, usage in a last chunk without choices."""

    name, api_type = "Open-AI-API", "openAIChatCompletion"
    paths = ("/v1/chat/completions",)

    def whole(self, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
        if answer.reasoning:
            message["reasoning_content"] = "".join(answer.reasoning)
        if answer.refusal:
            message["refusal"] = answer.refusal
        if answer.calls:
            message["tool_calls"] = [_openai_call(call) for call in answer.calls]
        body: dict[str, Any] = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": CREATED,
            "model": "stub-model",
            "system_fingerprint": "b1234-stub",
            "choices": [{"index": 0, "message": message, "finish_reason": answer.finish, "logprobs": None}],
        }
        if answer.usage:
            body["usage"] = _usage()
        return body

    def pieces(self, answer: Answer) -> list[bytes]:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
        deltas += [{"reasoning_content": text} for text in answer.reasoning]
        deltas += [{"content": text} for text in answer.tokens]
        deltas += [{"refusal": text} for text in _halves(answer.refusal) if answer.refusal]
        for index, call in enumerate(answer.calls):
            whole = _openai_call(call)
            text = whole["function"].pop("arguments")
            deltas.append(
                {"tool_calls": [{"index": index, **whole, "function": {**whole["function"], "arguments": ""}}]}
            )
            deltas += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in _halves(text)]
        events: list[Any] = [self._chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
        events.append(self._chunk([{"index": 0, "delta": {}, "finish_reason": answer.finish}]))
        if answer.usage:
            events.append(self._chunk([], usage=_usage()))
        return [sse_event(event) for event in (*events, "[DONE]")]

    @staticmethod
    def _chunk(choices: list[Any], **more: Any) -> dict[str, Any]:
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": "stub-model",
            "system_fingerprint": "b1234-stub",
            "choices": choices,
            **more,
        }


class OpenAiCompletion(Dialect):
    """Text completions, which know no tool calls."""

    name, api_type = "OpenAI-Compatible-Completions", "openAIV1Completion"
    paths = ("/v1/completions",)

    def whole(self, answer: Answer) -> dict[str, Any]:
        body = self._body([{"index": 0, "text": answer.text, "finish_reason": _text_finish(answer), "logprobs": None}])
        return {**body, "usage": _usage()} if answer.usage else body

    def pieces(self, answer: Answer) -> list[bytes]:
        events: list[Any] = [
            self._body([{"index": 0, "text": text, "finish_reason": None, "logprobs": None}]) for text in answer.tokens
        ]
        events.append(self._body([{"index": 0, "text": "", "finish_reason": _text_finish(answer), "logprobs": None}]))
        if answer.usage:
            events.append({**self._body([]), "usage": _usage()})
        return [sse_event(event) for event in (*events, "[DONE]")]

    @staticmethod
    def _body(choices: list[Any]) -> dict[str, Any]:
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": CREATED,
            "model": "stub-model",
            "system_fingerprint": "b1234-stub",
            "choices": choices,
        }


class OllamaChat(Dialect):
    name, api_type = "OllamaApiChat", "ollamaApiChat"
    paths = ("/api/chat",)
    streams = True
    gives_call_ids = False
    content_type = "application/x-ndjson"

    def whole(self, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.reasoning:
            message["thinking"] = "".join(answer.reasoning)
        if answer.calls:
            message["tool_calls"] = [_ollama_call(call) for call in answer.calls]
        return {"model": "stub-model", "created_at": TIMESTAMP, "message": message, **_ollama_end(answer)}

    def pieces(self, answer: Answer) -> list[bytes]:
        messages: list[dict[str, Any]] = [{"content": "", "thinking": text} for text in answer.reasoning]
        messages += [{"content": text} for text in answer.tokens]
        messages += [{"content": "", "tool_calls": [_ollama_call(call)]} for call in answer.calls]
        lines = [
            {"model": "stub-model", "created_at": TIMESTAMP, "message": {"role": "assistant", **message}, "done": False}
            for message in messages
        ]
        lines.append(
            {
                "model": "stub-model",
                "created_at": TIMESTAMP,
                "message": {"role": "assistant", "content": ""},
                **_ollama_end(answer),
            }
        )
        return [_line(line) for line in lines]


class OllamaGenerate(Dialect):
    name, api_type = "OllamaApiGenerate", "ollamaApiGenerate"
    paths = ("/api/generate",)
    streams = True
    content_type = "application/x-ndjson"

    def whole(self, answer: Answer) -> dict[str, Any]:
        body: dict[str, Any] = {"model": "stub-model", "created_at": TIMESTAMP, "response": answer.text}
        if answer.reasoning:
            body["thinking"] = "".join(answer.reasoning)
        return {**body, **_ollama_end(answer)}

    def pieces(self, answer: Answer) -> list[bytes]:
        parts: list[dict[str, Any]] = [{"response": "", "thinking": text} for text in answer.reasoning]
        parts += [{"response": text} for text in answer.tokens]
        lines = [{"model": "stub-model", "created_at": TIMESTAMP, **part, "done": False} for part in parts]
        lines.append({"model": "stub-model", "created_at": TIMESTAMP, "response": "", **_ollama_end(answer)})
        return [_line(line) for line in lines]


class KoboldCpp(Dialect):
    """Tells finish reasons in its own events, and no token counts in streams."""

    name, api_type = "KoboldCpp", "koboldCppGenerate"
    paths = ("/api/v1/generate", "/api/extra/generate/stream")

    def whole(self, answer: Answer) -> dict[str, Any]:
        result: dict[str, Any] = {"text": answer.text, "finish_reason": _plain_finish(answer)}
        if answer.usage:
            result |= {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS}
        return {"results": [result]}

    def pieces(self, answer: Answer) -> list[bytes]:
        events = [{"token": text, "finish_reason": None} for text in answer.tokens]
        events.append({"token": "", "finish_reason": _plain_finish(answer)})
        return [named_event("message", event) for event in events]


class Claude(Dialect):
    name, api_type = "Claude", "claudeMessages"
    paths = ("/v1/messages",)
    STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}

    def whole(self, answer: Answer) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if answer.reasoning:
            content.append({"type": "thinking", "thinking": "".join(answer.reasoning), "signature": "sig"})
        if answer.tokens:
            content.append({"type": "text", "text": answer.text})
        content += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
            for call in answer.calls
        ]
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "stub-model",
            "content": content,
            "stop_reason": self.STOP_REASONS[answer.finish],
            "stop_sequence": None,
            **_explained(answer),
            "usage": {"input_tokens": PROMPT_TOKENS, "output_tokens": COMPLETION_TOKENS},
        }

    def pieces(self, answer: Answer) -> list[bytes]:
        events: list[dict[str, Any]] = [
            {
                "type": "message_start",
                "message": {
                    **self.whole(Answer(())),
                    "stop_reason": None,
                    "usage": {"input_tokens": PROMPT_TOKENS, "output_tokens": 1},
                },
            },
            {"type": "ping"},
        ]
        blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        if answer.reasoning:
            blocks.append(
                (
                    {"type": "thinking", "thinking": "", "signature": ""},
                    [
                        *({"type": "thinking_delta", "thinking": text} for text in answer.reasoning),
                        {"type": "signature_delta", "signature": "sig"},
                    ],
                )
            )
        if answer.tokens:
            blocks.append(
                ({"type": "text", "text": ""}, [{"type": "text_delta", "text": text} for text in answer.tokens])
            )
        for call in answer.calls:
            parts = ["", *_halves(json.dumps(dict(call.arguments), ensure_ascii=False))]
            blocks.append(
                (
                    {"type": "tool_use", "id": call.id, "name": call.name, "input": {}},
                    [{"type": "input_json_delta", "partial_json": part} for part in parts],
                )
            )
        for index, (start, deltas) in enumerate(blocks):
            events.append({"type": "content_block_start", "index": index, "content_block": start})
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        events.append(
            {
                "type": "message_delta",
                "usage": {"output_tokens": COMPLETION_TOKENS},
                "delta": {
                    "stop_reason": self.STOP_REASONS[answer.finish],
                    "stop_sequence": None,
                    **_explained(answer),
                },
            }
        )
        events.append({"type": "message_stop"})
        return [named_event(event["type"], event) for event in events]


def _explained(answer: Answer) -> dict[str, Any]:
    return {"stop_details": {"type": "refusal", "explanation": answer.refusal}} if answer.refusal else {}


DIALECTS: dict[str, Dialect] = {
    dialect.api_type: dialect
    for dialect in (OpenAiChat(), OpenAiCompletion(), OllamaChat(), OllamaGenerate(), KoboldCpp(), Claude())
}
PATHS = {path: dialect for dialect in DIALECTS.values() for path in dialect.paths}


def dialect_of(request: RecordedRequest) -> Dialect | None:
    """The dialect of the path that a request calls, whatever stands before it."""
    path = urlsplit(request.path).path
    return next((dialect for known, dialect in PATHS.items() if path.endswith(known)), None)


def wants_stream(request: RecordedRequest) -> bool:
    """Whether a real server would stream its answer."""
    dialect = dialect_of(request)
    by_default = (dialect is not None and dialect.streams) or request.path.endswith("/stream")
    return bool(request.json.get("stream", by_default))


def speak(request: RecordedRequest, answer: Answer, **options: Any) -> Reply:
    """What a real server says at the path of a request, whole or streamed; status 404 at an unknown path."""
    dialect = dialect_of(request)
    return status_reply(404) if dialect is None else dialect.reply(answer, wants_stream(request), **options)


def texts_of(request: RecordedRequest) -> list[tuple[str, str]]:
    """What a request says to a model: a role and a text for each message; a completion's prompt is the user's."""
    body = request.json
    system = [("system", _text(body["system"]))] if body.get("system") else []
    messages = body.get("messages") or [{"role": "user", "content": body.get("prompt")}]
    return [*system, *((message["role"], _text(message.get("content"))) for message in messages)]


def embed(
    request: RecordedRequest, vector: Callable[[str], Sequence[float]] = lambda text: [1.0, float(len(text)), 0.5]
) -> Reply:
    """The vectors of the texts of a request."""
    given = request.json["input"]
    vectors = [vector(text) for text in ([given] if isinstance(given, str) else given)]
    return json_reply(ollama_embeddings(vectors) if "/api/" in request.path else openai_embeddings(vectors))


def openai_embeddings(vectors: Sequence[Sequence[float]], indices: Sequence[int] | None = None) -> dict[str, Any]:
    """The answer of ``/v1/embeddings``; ``indices`` say which text each vector belongs to, in order by default."""
    numbers = range(len(vectors)) if indices is None else indices
    return {
        "object": "list",
        "model": "stub-model",
        "data": [
            {"object": "embedding", "index": index, "embedding": list(vector)}
            for index, vector in zip(numbers, vectors, strict=True)
        ],
        "usage": {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS},
    }


def ollama_embeddings(vectors: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The answer of ``/api/embed``."""
    return {
        "model": "stub-model",
        "embeddings": [list(vector) for vector in vectors],
        "total_duration": 5_000_000,
        "load_duration": 1_000_000,
        "prompt_eval_count": PROMPT_TOKENS,
    }


def named_event(name: str, data: Mapping[str, Any]) -> bytes:
    """A server-sent event with an ``event:`` line."""
    return f"event: {name}\n".encode() + sse_event(dict(data))


def _line(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode() + b"\n"


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _openai_call(call: Call) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
    }


def _ollama_call(call: Call) -> dict[str, Any]:
    return {"function": {"name": call.name, "arguments": dict(call.arguments)}}


def _text_finish(answer: Answer) -> str:
    return answer.finish if answer.finish == "content_filter" else _plain_finish(answer)


def _plain_finish(answer: Answer) -> str:
    """The finish reason of servers that have no word of their own for tool calls."""
    return "length" if answer.finish == "length" else "stop"


def _ollama_end(answer: Answer) -> dict[str, Any]:
    end: dict[str, Any] = {"done": True, "done_reason": _plain_finish(answer)}
    if answer.usage:
        end |= {
            "total_duration": 5_000_000,
            "load_duration": 1_000_000,
            "prompt_eval_count": PROMPT_TOKENS,
            "prompt_eval_duration": 1_000_000,
            "eval_count": COMPLETION_TOKENS,
            "eval_duration": 2_000_000,
        }
    return end


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [text[:middle], text[middle:]]
