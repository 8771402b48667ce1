"""The four dialects that clients speak, for tests: how each asks, and how its answers are read."""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

Item = dict[str, Any]

COUNTERS = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count",
            "eval_duration")


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
        blocks = [block for block in text.split("\n\n") if block and block != ":"]
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

    def error(self, item: Item) -> tuple[str, int | None]:
        """Message and status of an error object that is not a 400; the status is None where the dialect tells none."""
        if self.ollama:
            assert item.keys() == {"error"} and isinstance(item["error"], str)
            return item["error"], None
        assert item.keys() == {"error"} and item["error"].keys() == {"message", "type", "code"}
        assert item["error"]["type"] == "server_error"
        return item["error"]["message"], item["error"]["code"]

    def __str__(self) -> str:
        return self.name


OPENAI_CHAT = Front("openai-chat", "/v1/chat/completions", chat=True, ollama=False)
OPENAI_TEXT = Front("openai-text", "/v1/completions", chat=False, ollama=False)
OLLAMA_CHAT = Front("ollama-chat", "/api/chat", chat=True, ollama=True)
OLLAMA_TEXT = Front("ollama-text", "/api/generate", chat=False, ollama=True)
FRONTS = (OPENAI_CHAT, OPENAI_TEXT, OLLAMA_CHAT, OLLAMA_TEXT)
