"""Clients of four dialects in a tool loop: each sends back what it was sent, as a client of its dialect does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from Tests.api.api_lab import Answer

NAMES = ("chat", "ollama", "messages", "responses")
PARAMETERS = {"type": "object", "properties": {"zone": {"type": "string"}}}
THINKING = {"type": "enabled", "budget_tokens": 1024}


class Served(Protocol):
    """What answers: an application in this process, or a server."""

    def post(self, body: Any, path: str, *, headers: dict[str, str]) -> Answer: ...


class Client:
    """A client in a tool loop, which has sent and received what is in ``history``.

    Args:
        brings: whether it sends the model's reasoning back.
    """

    def __init__(self, lab: Served, name: str, stream: bool = False, brings: bool = True, key: str = "") -> None:
        self._lab, self._name, self._stream, self._brings = lab, name, stream, brings
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.history: list[dict[str, Any]] = []
        self.calls: list[tuple[str, str]] = []

    def asks(self, text: str = "What time is it?", **more: Any) -> None:
        message = {"role": "user", "content": text, **more}
        self.history.append({"type": "message", **message} if self._name == "responses" else message)
        self._send()

    def answers_calls(self, *results: str, picture: str = "") -> None:
        """Send a result for each call of the last answer, each with this PNG, in base64, if there is one."""
        given = [self._shown(text, picture) for text in results or ("It is noon.",) * len(self.calls)]
        if self._name == "messages":
            blocks = [
                {"type": "tool_result", "tool_use_id": call_id, **content}
                for (call_id, _), content in zip(self.calls, given, strict=True)
            ]
            self.history.append({"role": "user", "content": blocks})
        else:
            self.history += [self._result(*call, content) for call, content in zip(self.calls, given, strict=True)]
        self._send()

    def _shown(self, text: str, picture: str) -> dict[str, Any]:
        """The members of a result that say what the tool has found."""
        if not picture or self._name == "ollama":
            return {"content": text, **({"images": [picture]} if picture else {})}
        url = f"data:image/png;base64,{picture}"
        images: dict[str, dict[str, Any]] = {
            "chat": {"type": "image_url", "image_url": {"url": url}},
            "responses": {"type": "input_image", "image_url": url},
            "messages": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}},
        }
        image = images[self._name]
        return {"content": [{"type": "input_text" if self._name == "responses" else "text", "text": text}, image]}

    def _result(self, call_id: str, name: str, content: dict[str, Any]) -> dict[str, Any]:
        if self._name == "responses":
            return {"type": "function_call_output", "call_id": call_id, "output": content["content"]}
        if self._name == "ollama":
            return {"role": "tool", "tool_name": name, **content}
        return {"role": "tool", "tool_call_id": call_id, **content}

    def _send(self) -> None:
        function = {"name": "clock", "description": "Tells the time.", "parameters": PARAMETERS}
        requests: dict[str, tuple[str, dict[str, Any]]] = {
            "chat": ("/v1/chat/completions", {"messages": self.history, "tools": [nested(function)]}),
            "ollama": ("/api/chat", {"model": "m", "messages": self.history, "tools": [nested(function)]}),
            "messages": (
                "/v1/messages",
                {
                    "model": "m",
                    "max_tokens": 4000,
                    "messages": self.history,
                    "thinking": THINKING,
                    "tools": [{"name": "clock", "input_schema": PARAMETERS}],
                },
            ),
            "responses": ("/v1/responses", {"input": self.history, "tools": [{"type": "function", **function}]}),
        }
        path, body = requests[self._name]
        answer = self._lab.post({**body, "stream": self._stream}, path, headers=self._headers)
        assert answer.status == 200, answer.data
        read: Callable[[Answer], list[dict[str, Any]]] = getattr(self, f"_{self._name}")
        self.history += read(answer)

    # -- reading an answer, each returns what the client adds to its history ---------------------------------------
    def _chat(self, answer: Answer) -> list[dict[str, Any]]:
        if self._stream:
            message: dict[str, Any] = {"role": "assistant", "content": ""}
            for event in answer.events[:-1]:
                for name, value in event["choices"][0]["delta"].items() if event["choices"] else ():
                    if name == "tool_calls":
                        add_fragments(message.setdefault("tool_calls", []), value)
                    elif name != "role":
                        message[name] = message.get(name, "") + (value or "")
        else:
            message = answer.json["choices"][0]["message"]
        self.calls = [(call["id"], call["function"]["name"]) for call in message.get("tool_calls") or ()]
        return [self._without(message, "reasoning_content")]

    def _ollama(self, answer: Answer) -> list[dict[str, Any]]:
        lines = [json.loads(line)["message"] for line in answer.data.splitlines()]
        calls = [call for line in lines for call in line.get("tool_calls") or ()]
        message = {"role": "assistant", "content": "".join(line["content"] for line in lines), "tool_calls": calls}
        if thinking := "".join(line.get("thinking") or "" for line in lines):
            message["thinking"] = thinking
        self.calls = [(call["id"], call["function"]["name"]) for call in calls]
        return [self._without(message, "thinking")]

    def _messages(self, answer: Answer) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        for event in named_events(answer) if self._stream else ():
            if event["type"] == "content_block_start":
                blocks.append(dict(event["content_block"]))
            elif event["type"] == "content_block_delta":
                ((name, text),) = [(key, value) for key, value in event["delta"].items() if key != "type"]
                name = "input" if name == "partial_json" else name
                blocks[-1][name] = (blocks[-1].get(name) or "") + text
            elif event["type"] == "content_block_stop" and blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = json.loads(blocks[-1]["input"])
        blocks = blocks if self._stream else answer.json["content"]
        self.calls = [(block["id"], block["name"]) for block in blocks if block["type"] == "tool_use"]
        kept = [block for block in blocks if self._brings or "thinking" not in block["type"]]
        return [{"role": "assistant", "content": kept}]

    def _responses(self, answer: Answer) -> list[dict[str, Any]]:
        whole = list(named_events(answer))[-1]["response"] if self._stream else answer.json
        self.calls = [(item["call_id"], item["name"]) for item in whole["output"] if item["type"] == "function_call"]
        return [item for item in whole["output"] if self._brings or item["type"] != "reasoning"]

    def _without(self, message: dict[str, Any], *names: str) -> dict[str, Any]:
        return {key: value for key, value in message.items() if self._brings or key not in names}


def nested(function: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": function}


def add_fragments(calls: list[dict[str, Any]], fragments: list[dict[str, Any]]) -> None:
    for fragment in fragments:
        if fragment["index"] == len(calls):
            calls.append({key: value for key, value in fragment.items() if key != "index"})
        else:
            calls[fragment["index"]]["function"]["arguments"] += fragment["function"]["arguments"]


def named_events(answer: Answer) -> Iterator[Any]:
    for block in answer.data.decode().strip().split("\n\n"):
        yield json.loads(block.partition("data: ")[2])


def assistants(payload: Any) -> list[Any]:
    """The messages of the model in the payload of a chat server."""
    return [message for message in payload["messages"] if message["role"] == "assistant"]


def members(message: Mapping[str, Any]) -> dict[str, Any]:
    """What an assistant's message has besides role, text and the usual members of calls."""
    found = {name: value for name, value in message.items() if name not in ("role", "content", "tool_calls")}
    for index, one in enumerate(message.get("tool_calls") or ()):
        found |= {f"{index}.{name}": one[name] for name in one if name not in ("index", "id", "type", "function")}
        function = one["function"]
        found |= {f"{index}.function.{name}": function[name] for name in function if name not in ("name", "arguments")}
    return found
