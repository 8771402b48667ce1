"""The four dialects that clients speak, for tests: how each asks, and how its answers are read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

Item = dict[str, Any]

COUNTERS = (
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
)


TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


def openai_message(body: Any, status: int, code: str | None = None) -> str:
    """The message of an error on a route of OpenAI. Raises AssertionError unless its shape is that of the status."""
    assert body.keys() == {"error"} and body["error"].keys() == {"message", "type", "param", "code"}, body
    error = body["error"]
    assert (error["type"], error["param"], error["code"]) == (
        TYPES.get(status, "server_error"),
        None,
        code or CODES.get(status),
    ), body
    assert isinstance(error["message"], str) and error["message"]
    return str(error["message"])


def plain_message(body: Any) -> str:
    """The same of an error on any other route."""
    assert body.keys() == {"error"} and isinstance(body["error"], str) and body["error"], body
    return str(body["error"])


ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    508: "api_error",
}


def anthropic_message(body: Any, status: int) -> str:
    """The same of an error on a route of Anthropic."""
    assert body.keys() == {"type", "error", "request_id"} and body["error"].keys() == {"type", "message"}, body
    type_ = ANTHROPIC_TYPES.get(status, "invalid_request_error")
    assert (body["type"], body["error"]["type"]) == ("error", type_), body
    assert isinstance(body["error"]["message"], str) and body["error"]["message"]
    return str(body["error"]["message"])


def message_at(path: str, body: Any, status: int, code: str | None = None) -> str:
    """The same of an error on the route at ``path``."""
    if "/messages" in path:
        return anthropic_message(body, status)
    plain = path.startswith("/api/") or path.strip("/") in ("", "health")
    return plain_message(body) if plain else openai_message(body, status, code)


@dataclass(frozen=True)
class Front:
    """One dialect.

    Attributes:
        path: where it is served.
        chat: takes messages, and can carry tool calls; else it takes one prompt.
        ollama: writes JSON lines; else server-sent events.
    """

    name: str
    path: str
    chat: bool
    ollama: bool

    def body(self, text: str = "hi", **fields: Any) -> Item:
        """A request; the dialect's own default decides about streaming unless ``stream`` is given."""
        said: Item = {"messages": [{"role": "user", "content": text}]} if self.chat else {"prompt": text}
        return {**({"model": "m"} if self.ollama else {}), **said, **fields}

    def items(self, data: bytes) -> list[Item]:
        """The objects of a stream. Raises AssertionError if its framing is wrong or its end is missing."""
        text = data.decode("utf-8")
        if self.ollama:
            assert text.endswith("\n") and not text.startswith("data:")
            items: list[Item] = [json.loads(line) for line in text[:-1].split("\n")]
            assert items[-1].get("done") is True or "error" in items[-1]
            assert not any(item.get("done") for item in items[:-1])
            return items
        blocks = [block for block in text.split("\n\n") if block]
        assert text.endswith("\n\n") and blocks[-1] == "data: [DONE]"
        assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
        return [json.loads(block[6:]) for block in blocks[:-1]]

    def text(self, item: Item) -> str:
        """The text of a whole answer or of one object of a stream."""
        if self.ollama:
            return str((item["message"]["content"] if self.chat else item["response"]) or "")
        return "".join(str(self._said(choice) or "") for choice in item["choices"])

    def _said(self, choice: Item) -> Any:
        said: Item = choice.get("delta") or choice.get("message") or {}
        return said.get("content") if self.chat else choice["text"]

    def streamed(self, data: bytes) -> str:
        return "".join(self.text(item) for item in self.items(data) if "error" not in item)

    def finish(self, item: Item) -> Any:
        """Why the answer ended, None while it goes on."""
        if self.ollama:
            return item.get("done_reason")
        return next((choice["finish_reason"] for choice in item["choices"]), None)

    def finishes(self, data: bytes) -> list[Any]:
        """Every reason given in a stream; a proper stream has one."""
        return [reason for item in self.items(data) if "error" not in item and (reason := self.finish(item))]

    def answer(self, data: bytes, stream: bool) -> str:
        return self.streamed(data) if stream else self.text(json.loads(data))

    def reasoning(self, data: bytes, stream: bool) -> str:
        """What the client is told of the model's thoughts."""
        messages = [self._message(item) for item in (self.items(data) if stream else [json.loads(data)])]
        return "".join(message.get("thinking" if self.ollama else "reasoning_content", "") for message in messages)

    def _message(self, item: Item) -> Item:
        if self.ollama:
            found = item.get("message", {})
        else:
            choice: Item = next(iter(item["choices"]), {})
            found = choice.get("delta") or choice.get("message") or {}
        return dict(found)

    def calls(self, data: bytes, stream: bool) -> list[Item]:
        """All tool calls (fragments) in the order in which they came."""
        items = self.items(data) if stream else [json.loads(data)]
        return [call for item in items for call in self._message(item).get("tool_calls") or ()]

    def error(self, item: Item, status: int) -> str:
        """The message of an error object, whose shape must be that of the status."""
        return message_at(self.path, item, status)

    def __str__(self) -> str:
        return self.name


OPENAI_CHAT = Front("openai-chat", "/v1/chat/completions", chat=True, ollama=False)
OPENAI_TEXT = Front("openai-text", "/v1/completions", chat=False, ollama=False)
OLLAMA_CHAT = Front("ollama-chat", "/api/chat", chat=True, ollama=True)
OLLAMA_TEXT = Front("ollama-text", "/api/generate", chat=False, ollama=True)
FRONTS = (OPENAI_CHAT, OPENAI_TEXT, OLLAMA_CHAT, OLLAMA_TEXT)
