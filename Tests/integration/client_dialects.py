"""The dialects that clients speak: what they send, and what they read in an answer, by the letter.

    front = FRONTS["Ollama chat"]
    heard = front.read(server.request("POST", front.path, front.body("Flow", "Hi", stream=True)), stream=True)

Reading raises AssertionError for an answer that is not well-formed in its dialect, its end included.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from Tests.api.front_dialects import anthropic_message, openai_message, plain_message
from Tests.api.responses_stream import heard as read_events
from Tests.integration.launcher import Response

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a word up.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}, "n": {"type": "integer"}}},
        },
    }
]
TAGS = {"system": "Sys", "user": "User", "assistant": "Assistant"}
STOP_REASONS = {
    "end_turn": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
Calls = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Turn:
    """A message of a client's history. ``call`` is a tool call: name and arguments; role ``tool`` answers it."""

    role: str
    text: str = ""
    image: str = ""
    call: tuple[str, dict[str, Any]] | None = None


@dataclass
class Heard:
    """What a client has at the end of an answer.

    Attributes:
        calls: name and arguments of each tool call.
        call_ids: the id of each tool call.
        usage: tokens of prompt and answer; None if they are not told.
        error: the message of an error, ``""`` if there is none; what came before it is kept.
    """

    status: int
    text: str = ""
    reasoning: str = ""
    calls: Calls = field(default_factory=list)
    call_ids: list[str] = field(default_factory=list)
    finish: str | None = None
    usage: tuple[int, int] | None = None
    fingerprint: str | None = None
    error: str = ""


class Front:
    """A client dialect at one path.

    Attributes:
        takes_tools: requests and answers have a place for tool calls.
        takes_images: requests have a place for images.
        tells_failures: a stream tells a failure of its first second, too, and has the status of success.
    """

    path = stream_type = ""
    takes_tools = takes_images = True
    tells_failures = False

    def body(self, model: str, turns: Sequence[Turn], stream: bool) -> dict[str, Any]:
        """A request with this history; leaves out what the dialect has no place for."""
        raise NotImplementedError

    def read(self, response: Response, stream: bool) -> Heard:
        heard = Heard(response.status)
        if response.status != 200:
            assert response.headers["content-type"] == "application/json"
            heard.error = self.read_error(response.json, response.status)
        elif stream:
            assert response.headers["content-type"].split(";")[0] == self.stream_type
            self.read_stream(response.body.decode("utf-8"), heard)
        else:
            assert response.headers["content-type"] == "application/json"
            self.read_whole(response.json, heard)
        return heard

    def read_error(self, body: Any, status: int) -> str:
        raise NotImplementedError

    def read_stream(self, text: str, heard: Heard) -> None:
        raise NotImplementedError

    def read_whole(self, body: Any, heard: Heard) -> None:
        raise NotImplementedError


class _OpenAi(Front):
    stream_type = "text/event-stream"
    kind = ""

    def read_error(self, body: Any, status: int) -> str:
        return openai_message(body, status)

    def read_stream(self, text: str, heard: Heard) -> None:
        blocks = text.split("\n\n")
        assert blocks[-2:] == ["data: [DONE]", ""], "the terminator is missing"
        events = [json.loads(block.removeprefix("data: ")) for block in blocks[:-2] if block != ":"]
        if events and "error" in events[-1]:
            heard.error = self.read_error(events.pop(), 502)
        else:
            self.read_usage(events[-1], heard)
            assert events.pop()["choices"] == []
        for event in events:
            assert (event["object"], event["usage"], event["id"]) == (self.stream_kind, None, events[0]["id"])
            assert heard.finish is None, "something follows the finish reason"
            heard.fingerprint = event["system_fingerprint"]
            [choice] = event["choices"]
            self.read_part(choice, choice["finish_reason"] is None, heard)
            heard.finish = choice["finish_reason"]
        assert bool(heard.finish) != bool(heard.error)
        self.end_stream(events, heard)

    @property
    def stream_kind(self) -> str:
        return self.kind

    def read_part(self, choice: Any, more: bool, heard: Heard) -> None:
        """One choice of a streamed event; ``more``: the finish reason is still to come."""
        raise NotImplementedError

    def end_stream(self, events: list[Any], heard: Heard) -> None:
        """A look at all events."""

    def read_whole(self, body: Any, heard: Heard) -> None:
        assert body["object"] == self.kind
        [choice] = body["choices"]
        heard.finish, heard.fingerprint = choice["finish_reason"], body["system_fingerprint"]
        self.read_usage(body, heard)
        self.read_message(choice, heard)

    def read_message(self, choice: Any, heard: Heard) -> None:
        raise NotImplementedError

    @staticmethod
    def read_usage(body: Any, heard: Heard) -> None:
        usage = body["usage"]
        heard.usage = usage["prompt_tokens"], usage["completion_tokens"]
        assert usage["total_tokens"] == sum(heard.usage)


class OpenAiChatFront(_OpenAi):
    path, kind, stream_kind = "/v1/chat/completions", "chat.completion", "chat.completion.chunk"

    def body(self, model: str, turns: Sequence[Turn], stream: bool) -> dict[str, Any]:
        return {
            "model": model,
            "messages": [self._message(turn) for turn in turns],
            "tools": TOOLS,
            **_openai_stream(stream),
        }

    @staticmethod
    def _message(turn: Turn) -> dict[str, Any]:
        if turn.call:
            function = {"name": turn.call[0], "arguments": json.dumps(turn.call[1], ensure_ascii=False)}
            return {
                "role": turn.role,
                "content": None,
                "tool_calls": [{"id": "call_a", "type": "function", "function": function}],
            }
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{turn.image}"}}
        content = [{"type": "text", "text": turn.text}, image] if turn.image else turn.text
        answered = {"tool_call_id": "call_a"} if turn.role == "tool" else {}
        return {"role": turn.role, **answered, "content": content}

    def read_part(self, choice: Any, more: bool, heard: Heard) -> None:
        delta = choice["delta"]
        heard.text += delta.get("content") or ""
        heard.reasoning += delta.get("reasoning_content") or ""

    def end_stream(self, events: list[Any], heard: Heard) -> None:
        deltas = [event["choices"][0]["delta"] for event in events]
        assert [delta.get("role") for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)][: len(deltas)]
        joined: dict[int, dict[str, str]] = {}
        for part in (part for delta in deltas for part in delta.get("tool_calls") or ()):
            call = joined.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
            for key, value in {"id": part.get("id"), **part["function"]}.items():
                call[key] += value or ""
        self._read_calls([joined[index] for index in range(len(joined))], heard)

    def read_message(self, choice: Any, heard: Heard) -> None:
        message = choice["message"]
        assert message["role"] == "assistant"
        calls = message.get("tool_calls", [])
        assert isinstance(message["content"], str) or calls
        heard.text, heard.reasoning = message["content"] or "", message.get("reasoning_content", "")
        self._read_calls([{"id": call["id"], **call["function"]} for call in calls], heard)

    @staticmethod
    def _read_calls(calls: list[dict[str, str]], heard: Heard) -> None:
        heard.call_ids = [call["id"] for call in calls]
        heard.calls = [(call["name"], json.loads(call["arguments"])) for call in calls]


class OpenAiTextFront(_OpenAi):
    path, kind = "/v1/completions", "text_completion"
    takes_tools = takes_images = False

    def body(self, model: str, turns: Sequence[Turn], stream: bool) -> dict[str, Any]:
        return {"model": model, "prompt": tagged(turns), **_openai_stream(stream)}

    def read_part(self, choice: Any, more: bool, heard: Heard) -> None:
        heard.text += choice["text"]

    def read_message(self, choice: Any, heard: Heard) -> None:
        heard.text = _text(choice["text"])


class _Ollama(Front):
    stream_type = "application/x-ndjson"

    def read_error(self, body: Any, status: int) -> str:
        return plain_message(body)

    def read_stream(self, text: str, heard: Heard) -> None:
        lines = text.split("\n")
        assert lines.pop() == "", "the last line is not ended"
        parts = [json.loads(line) for line in lines]
        if "error" in parts[-1]:
            heard.error = self.read_error(parts.pop(), 502)
        else:
            self._read_end(parts[-1], heard)
        for number, part in enumerate(parts):
            assert part["done"] == (not heard.error and number == len(parts) - 1)
            # Calls have a line of their own, directly before the last.
            if "tool_calls" in part.get("message", {}):
                assert number == len(parts) - 2 and part["message"]["content"] == ""
            self._read_part(part, heard)

    def read_whole(self, body: Any, heard: Heard) -> None:
        self._read_end(body, heard)
        self._read_part(body, heard)

    @staticmethod
    def _read_end(body: Any, heard: Heard) -> None:
        assert body["done"] is True
        heard.finish = body["done_reason"]
        heard.usage = body["prompt_eval_count"], body["eval_count"]
        assert body["total_duration"] > 0

    def _read_part(self, body: Any, heard: Heard) -> None:
        assert body["created_at"].endswith("Z") and body["model"] and body["request_id"]
        self.read_text(body, heard)

    def read_text(self, body: Any, heard: Heard) -> None:
        raise NotImplementedError


class OllamaChatFront(_Ollama):
    path = "/api/chat"

    def body(self, model: str, turns: Sequence[Turn], stream: bool) -> dict[str, Any]:
        return {"model": model, "messages": [self._message(turn) for turn in turns], "tools": TOOLS, "stream": stream}

    @staticmethod
    def _message(turn: Turn) -> dict[str, Any]:
        message: dict[str, Any] = {"role": turn.role, "content": turn.text}
        if turn.call:
            message["tool_calls"] = [{"function": {"name": turn.call[0], "arguments": turn.call[1]}}]
        if turn.role == "tool":
            message["tool_name"] = "look_up"
        return {**message, "images": [turn.image]} if turn.image else message

    def read_text(self, body: Any, heard: Heard) -> None:
        message = body["message"]
        assert message["role"] == "assistant"
        heard.text += message["content"]
        heard.reasoning += message.get("thinking", "")
        for index, call in enumerate(message.get("tool_calls", ())):
            assert call["function"]["index"] == index
            heard.calls.append((call["function"]["name"], call["function"]["arguments"]))
            heard.call_ids.append(call["id"])


class OllamaGenerateFront(_Ollama):
    path = "/api/generate"
    takes_tools = False

    def body(self, model: str, turns: Sequence[Turn], stream: bool) -> dict[str, Any]:
        images = [turn.image for turn in turns if turn.image and turn.role != "tool"]
        return {"model": model, "prompt": tagged(turns), "stream": stream, **({"images": images} if images else {})}

    def read_text(self, body: Any, heard: Heard) -> None:
        heard.text += _text(body["response"])


class MessagesFront(Front):
    path, stream_type = "/v1/messages", "text/event-stream"

    def body(self, model: str, turns: Sequence[Turn], stream: bool) -> dict[str, Any]:
        system = [{"type": "text", "text": turn.text} for turn in turns if turn.role == "system"]
        tools = [
            {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
            for function in _functions()
        ]
        return {
            "model": model,
            "max_tokens": 1024,
            "stream": stream,
            "system": system,
            "tools": tools,
            "thinking": {"type": "adaptive"},
            "messages": [self._message(turn) for turn in turns if turn.role != "system"],
        }

    @staticmethod
    def _message(turn: Turn) -> dict[str, Any]:
        if turn.call:
            return {
                "role": turn.role,
                "content": [{"type": "tool_use", "id": "toolu_a", "name": turn.call[0], "input": turn.call[1]}],
            }
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": turn.image}}
        content = [{"type": "text", "text": turn.text}, image] if turn.image else turn.text
        if turn.role == "tool":
            return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_a", "content": content}]}
        return {"role": turn.role, "content": content}

    def read_error(self, body: Any, status: int) -> str:
        return anthropic_message(body, status)

    def read_stream(self, text: str, heard: Heard) -> None:
        blocks = text.split("\n\n")
        assert blocks.pop() == ""
        events = []
        for block in blocks:
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        events = [event for event in events if event["type"] != "ping"]
        message = events.pop(0)["message"]
        assert message["content"] == [] and message["usage"]["input_tokens"] > 0
        if events[-1]["type"] == "error":
            heard.error = self.read_error(events.pop(), 502)
        else:
            assert events.pop() == {"type": "message_stop"}
            end = events.pop()
            message = {**message, **end["delta"], "usage": end["usage"]}
        self.read_whole({**message, "content": self._content(events, bool(heard.error))}, heard)

    @staticmethod
    def _content(events: list[Any], cut_off: bool) -> list[Any]:
        """What the events add up to; one block is open at a time, and all but one that a failure has cut off end."""
        content: list[Any] = []
        parts: list[str] | None = None
        for event in events:
            kind = event["type"].removeprefix("content_block_")
            assert event["index"] == len(content) - (kind != "start") and (parts is None) == (kind == "start")
            if kind == "start":
                parts = []
                content.append(event["content_block"])
            elif kind == "delta":
                _, (key, value) = event["delta"].items()
                if key == "partial_json":
                    parts.append(value)  # type: ignore[union-attr]
                else:
                    content[-1][key] += value
            else:
                assert kind == "stop"
                if content[-1]["type"] == "tool_use":
                    content[-1]["input"] = json.loads("".join(parts or ()) or "{}")
                parts = None
        assert parts is None or cut_off
        return content

    def read_whole(self, body: Any, heard: Heard) -> None:
        assert (body["type"], body["role"], body["stop_sequence"]) == ("message", "assistant", None)
        usage = body["usage"]
        if not heard.error:
            heard.finish = STOP_REASONS[body["stop_reason"]]
            heard.usage = usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]
        for block in body["content"]:
            if block["type"] == "text":
                heard.text += block["text"]
            elif block["type"] == "thinking":
                assert block["signature"]
                heard.reasoning += block["thinking"]
            else:
                assert block["type"] == "tool_use"
                heard.calls.append((block["name"], block["input"]))
                heard.call_ids.append(block["id"])


class ResponsesFront(Front):
    path, stream_type = "/v1/responses", "text/event-stream"
    tells_failures = True

    def body(self, model: str, turns: Sequence[Turn], stream: bool) -> dict[str, Any]:
        return {
            "model": model,
            "stream": stream,
            "store": False,
            "instructions": "\n".join(turn.text for turn in turns if turn.role == "system"),
            "input": [self._item(turn) for turn in turns if turn.role != "system"],
            "tools": [{"type": "function", **function} for function in _functions()],
        }

    @staticmethod
    def _item(turn: Turn) -> dict[str, Any]:
        if turn.call:
            return {
                "type": "function_call",
                "call_id": "call_a",
                "name": turn.call[0],
                "arguments": json.dumps(turn.call[1], ensure_ascii=False),
            }
        kind = "output_text" if turn.role == "assistant" else "input_text"
        image = {"type": "input_image", "image_url": f"data:image/png;base64,{turn.image}"}
        content = [{"type": kind, "text": turn.text}, *([image] if turn.image else [])]
        if turn.role == "tool":
            return {
                "type": "function_call_output",
                "call_id": "call_a",
                "output": content if turn.image else turn.text,
            }
        return {"role": turn.role, "content": content}

    def read_error(self, body: Any, status: int) -> str:
        return openai_message(body, status)

    def read_stream(self, text: str, heard: Heard) -> None:
        self.read_whole(read_events(text.encode()).response, heard)

    def read_whole(self, body: Any, heard: Heard) -> None:
        assert body["object"] == "response" and body["id"].startswith("resp_")
        if body["status"] == "failed":
            heard.error = body["error"]["message"]
        else:
            cut = body["incomplete_details"]
            assert (body["status"] == "completed") == (cut is None)
            heard.finish = {"max_output_tokens": "length"}.get(cut["reason"], cut["reason"]) if cut else "stop"
            heard.usage = body["usage"]["input_tokens"], body["usage"]["output_tokens"]
            assert body["usage"]["total_tokens"] == sum(heard.usage)
        for item in body["output"]:
            if item["type"] == "message":
                heard.text += "".join(part["text"] for part in item["content"])
            elif item["type"] == "reasoning":
                heard.reasoning += "".join(part["text"] for part in item["summary"])
            else:
                assert item["type"] == "function_call"
                heard.calls.append((item["name"], json.loads(item["arguments"])))
                heard.call_ids.append(item["call_id"])


FRONTS: dict[str, Front] = {
    "OpenAI chat": OpenAiChatFront(),
    "OpenAI text": OpenAiTextFront(),
    "OpenAI Responses": ResponsesFront(),
    "Anthropic Messages": MessagesFront(),
    "Ollama chat": OllamaChatFront(),
    "Ollama generate": OllamaGenerateFront(),
}


def _functions() -> list[dict[str, Any]]:
    """The functions of ``TOOLS``, for the dialects that have them in another place."""
    return [tool["function"] for tool in TOOLS]  # type: ignore[misc]


def tagged(turns: Sequence[Turn]) -> str:
    """A history as one text with role tags; tool traffic has no tag and is left out."""
    return "".join(f"[Beg_{TAGS[turn.role]}]{turn.text}" for turn in turns if turn.role in TAGS and not turn.call)


def _openai_stream(stream: bool) -> dict[str, Any]:
    return {"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}


def _text(value: Any) -> str:
    assert isinstance(value, str)
    return value
