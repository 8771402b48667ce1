"""One face for all client packages: what they are asked to do, and what they made of the answers.

A client uses its package as that package's own documentation shows; it works around nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

MODEL = "ann:Talk"
KEY = "sk-any"
IMPATIENT_SECONDS = 0.7
"""After this time without an answer ``give_up`` has enough: less than the second between two heartbeats of Ollama."""

Turns = Sequence[tuple[str, str]]
"""A conversation as pairs of role and text."""

TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Where?"}},
            "required": ["city"],
        },
    },
}
RESULTS = {"Oslo": "rain", "Tromsø": "snow"}
"""What the tool answers, by its argument ``city``."""


@dataclass(frozen=True)
class Said:
    """An answer as the client delivered it.

    Attributes:
        pieces: the texts of a stream that were not empty; a whole answer is one piece.
        calls: name and arguments of each tool call.
        finish: the reason in the client's own word.
        tokens: those of the prompt and those of the answer, where the client tells them.
    """

    pieces: tuple[str, ...]
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    finish: str | None = None
    tokens: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Client:
    """A client package, connected to one server. ``url``: of that server, without a path.

    ``lacks`` names the methods that the package has no call for, and ``chat_with_image`` where ``chat`` cannot send an
    image together with a text. ``done`` and ``reached_limit`` are its words for an
    answer that is complete, and for one that was cut off.
    """

    lacks: frozenset[str] = frozenset()
    done, reached_limit = "stop", "length"

    def __init__(self, url: str) -> None:
        raise NotImplementedError

    def models(self) -> list[str]:
        """The models of the list, each of which the client also looked up by its name."""
        raise NotImplementedError

    def chat(self, turns: Turns, image: str = "") -> Said:
        """A whole answer; ``image``: base64 of a PNG that goes with the last turn."""
        raise NotImplementedError

    def stream(self, turns: Turns) -> Said:
        raise NotImplementedError

    def complete(self, prompt: str) -> Said:
        """A whole answer to a text instead of a conversation."""
        raise NotImplementedError

    def complete_with_image(self, prompt: str, image: str) -> Said:
        raise NotImplementedError

    def stream_completion(self, prompt: str) -> Said:
        raise NotImplementedError

    def use_tool(self, question: str, stream: bool) -> tuple[Said, Said]:
        """Offer ``TOOL``, answer each call with ``RESULTS``, and return both answers of the model."""
        raise NotImplementedError

    def break_off(self, question: str) -> str:
        """Read the first piece of a stream, end the stream without ending the client, and return the piece."""
        raise NotImplementedError

    def give_up(self, question: str) -> None:
        """Ask for a whole answer and raise the package's own error after ``IMPATIENT_SECONDS``."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of connections."""


def require(missing: str) -> None:
    """Leave the test out for the reason given, if there is one; ``.ci/run`` wants all of them."""
    if missing:
        assert os.environ.get("WILMER_ALL_CLIENTS") != "1", missing
        pytest.skip(missing)


Made = TypeVar("Made", bound=Callable[..., Any])


def needs(method: str) -> Callable[[Made], Made]:
    """Mark a test that only clients with that method take."""

    def mark(test: Made) -> Made:
        test.__dict__["needs"] = method
        return test

    return mark


def texts(pieces: Iterable[str | None]) -> tuple[str, ...]:
    """The pieces without the empty ones."""
    return tuple(piece for piece in pieces if piece)


def arguments(value: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments of a tool call as an object; the OpenAI dialect has them as text."""
    found: Mapping[str, Any] = json.loads(value) if isinstance(value, str) else value
    return found


def data_uri(image: str) -> str:
    return f"data:image/png;base64,{image}"


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def openai_turns(turns: Turns, image: str = "") -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in turns]
    if image:
        messages[-1]["content"] = [
            {"type": "text", "text": messages[-1]["content"]},
            {"type": "image_url", "image_url": {"url": data_uri(image)}},
        ]
    return messages
