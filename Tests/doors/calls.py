"""What each client asks, with a body, and whether the answer is a whole and real one."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from Tests.api.front_dialects import OLLAMA_CHAT, OPENAI_CHAT, message_at

QUESTION = "Write a story about rain in Köln"
"""The back-ends say it again, so that only an answer to this body holds it."""
# A busy machine needs most of it for the first request, which loads what a run needs.
PATIENCE = 120.0


@dataclass(frozen=True)
class Call:
    """A request. ``text``: takes the body of its answer, and returns what the model said; it may raise."""

    name: str
    path: str
    body: Mapping[str, Any]
    text: Callable[[bytes], str]


def _said_in_response(data: bytes) -> str:
    answer = json.loads(data)
    assert answer["status"] == "completed", answer
    return "".join(part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"])


def _said_in_message(data: bytes) -> str:
    answer = json.loads(data)
    assert answer["stop_reason"] == "end_turn", answer
    return "".join(block["text"] for block in answer["content"] if block["type"] == "text")


_MESSAGES = {"messages": [{"role": "user", "content": QUESTION}]}
CALLS = (
    Call("whole", OPENAI_CHAT.path, {**_MESSAGES, "stream": False}, lambda data: OPENAI_CHAT.answer(data, False)),
    Call("stream", OPENAI_CHAT.path, {**_MESSAGES, "stream": True}, lambda data: OPENAI_CHAT.answer(data, True)),
    Call("ollama", OLLAMA_CHAT.path, _MESSAGES, lambda data: OLLAMA_CHAT.answer(data, True)),
    Call("messages", "/v1/messages", {**_MESSAGES, "max_tokens": 1000}, _said_in_message),
    Call("responses", "/v1/responses", {"input": QUESTION}, _said_in_response),
)


def ask(
    connection: socket.socket, method: str, path: str, headers: Mapping[str, str], body: object = None
) -> tuple[int, bytes]:
    """Return the status and the body of an answer. The connection is closed."""
    client = http.client.HTTPConnection(*connection.getpeername()[:2])
    client.sock = connection
    try:
        data = None if body is None else json.dumps(body).encode("utf-8")
        kind = {} if data is None else {"Content-Type": "application/json"}
        client.request(method, path, data, {**kind, **headers})
        response = client.getresponse()
        return response.status, response.read()
    finally:
        client.close()
        connection.close()


def problem_of(call: Call, status: int, data: bytes, expected: int) -> str:
    """Return what is wrong with an answer; "" if it is what was expected."""
    if status != expected:
        return f"HTTP {status} in place of {expected}: {data[:200]!r}"
    try:
        if expected != 200:
            return "" if message_at(call.path, json.loads(data), status) else "a refusal without a message"
        text = call.text(data)
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"[:300]
    return "" if QUESTION in text else f"no answer to the question: {text[:200]!r}"
