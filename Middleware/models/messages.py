"""The data of a conversation: messages, tool calls and answers.

At runtime these are plain dictionaries. Clients, back-ends and users' scripts may add other keys, which are passed on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, Required, Self, TypedDict, cast


class FunctionCall(TypedDict, total=False):
    """The function of a tool call, whose ``arguments`` are a JSON object as text."""

    # Null in the later fragments of some back-ends.
    name: str | None
    # Scripts may give the object itself.
    arguments: str | Mapping[str, object]


class ToolCall(TypedDict, total=False):
    """A tool call in OpenAI's shape, or a fragment of one in a stream, which has an ``index``."""

    index: int
    id: str | None
    type: str
    function: FunctionCall


class Keepsake(TypedDict):
    """What an LLM has sent with a message in addition to its text and calls, and gets back with it; see ``keepsakes``.

    Attributes:
        origin: what has sent it, None if that is not known.
        member: its name in a message or a call of OpenAI's form.
        at: ``message``, or the index of a call.
        stored: this program has kept it, and the client has not brought it back.
    """

    origin: str | None
    member: str
    value: object
    at: Literal["message"] | int
    stored: NotRequired[bool]


class Message(TypedDict, total=False):
    """A message in the engine: ``content`` is a string, ``images`` are data URIs, base64 or web addresses."""

    role: Required[str]
    content: Required[str]
    images: list[str]
    tool_calls: list[ToolCall]
    tool_call_id: str
    name: str
    extra: list[Keepsake]
    # The values of TIME_FIELDS that a client has sent, the best first. Runs and back-ends get messages without them.
    said: list[object]


# The fields of a message with which clients say when it was sent, the best first: the first is that of Open WebUI and
# others, the second Ollama's, the third SillyTavern's.
TIME_FIELDS = ("timestamp", "created_at", "send_date")


class VisionNote(dict[str, object]):
    """A message that describes an image; code that counts a client's messages leaves it out."""

    @classmethod
    def saying(cls, content: str) -> Message:
        """Return a note from the user."""
        return cast(Message, cls(role="user", content=content))

    def copy(self) -> Self:
        """Return a copy that is a note as well."""
        return type(self)(self)


def joined_extra(first: Mapping[str, object], second: Mapping[str, object]) -> list[Keepsake]:
    """Return the keepsakes of two messages of the assistant that become one, with the calls of both."""
    one, other = cast(Message, first), cast(Message, second)
    calls = len(one.get("tool_calls") or ())
    moved: list[Keepsake] = [
        {**kept, "at": kept["at"] + calls} if isinstance(kept["at"], int) else kept for kept in other.get("extra", ())
    ]
    out: dict[object, Keepsake] = {}
    for kept in (*one.get("extra", ()), *moved):
        # A thought that goes on, in texts or in blocks.
        key = kept["origin"], kept["member"], kept["at"], kept.get("stored")
        value: Any = kept["value"]
        before: Any = out[key]["value"] if key in out else None
        goes_on = isinstance(value, str | list) and type(value) is type(before)
        out[key] = cast(Keepsake, {**kept, "value": before + value}) if goes_on else kept
    return list(out.values())


def without_extra(messages: list[Message]) -> list[Message]:
    """Return the messages without their keepsakes and times."""
    if not [message for message in messages if "extra" in message or "said" in message]:
        return messages
    return [_without(message, "extra", "said") for message in messages]


def add_times(message: Message, sent: Mapping[str, object]) -> None:
    """Keep with a message the times in the fields that a client has sent with it."""
    times = [sent[field] for field in TIME_FIELDS if sent.get(field) is not None]
    if times:
        message["said"] = times


SentTimes = Mapping[int, tuple[Message, Sequence[object]]]
"""The times that clients have sent, by the ``id`` of the message; with the message, so that the id stays its own."""


def without_times(messages: list[Message]) -> tuple[list[Message], SentTimes]:
    """Return the messages without times, and the times of those that had some."""
    if not [message for message in messages if "said" in message]:
        return messages, {}
    left = [_without(message, "said") if "said" in message else message for message in messages]
    pairs = zip(left, messages, strict=True)
    return left, {id(message): (message, sent["said"]) for message, sent in pairs if "said" in sent}


def _without(message: Message, *keys: str) -> Message:
    return cast(Message, {key: message[key] for key in message if key not in keys})  # type: ignore[literal-required]


def without_images(message: Message) -> Message:
    """Return a copy of the message without its images."""
    copy = message.copy()
    copy.pop("images", None)
    return copy


def without_all_images(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without images, and without what has nothing else directly behind results of tools.

    Those are where the images of the results were; an empty message of the user would look like an answer to them.
    """
    if not [message for message in messages if "images" in message]:
        return list(messages)
    return [
        without_images(message) if "images" in message else message
        for index, message in enumerate(messages)
        if not ("images" in message and holds_results_images(messages, index))
    ]


def holds_results_images(messages: Sequence[Message], index: int) -> bool:
    """Return whether a message has nothing but the images of the tool results directly before it."""
    message = messages[index]
    return (
        bool(message.get("images"))
        and not message.get("content")
        and message.get("role") == "user"
        and index > 0
        and messages[index - 1].get("role") == "tool"
    )


class PromptTokens(TypedDict, total=False):
    """How the tokens of a prompt were treated. A count that the back-end does not report is absent."""

    cached_tokens: int


class Usage(TypedDict, total=False):
    """Token counts in OpenAI's form."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens


# JavaScript, SQLite and protobuf hold every whole number up to here. A larger one would damage what stands next to it:
# the transaction that records it, the JSON of an answer, the batch of a trace.
LARGEST_NUMBER = 2**53
# Usage objects nest once. A deeper one is left out, so that no back-end can nest it beyond what Python can write.
USAGE_DEPTH = 8


def measure(value: object) -> int | float | None:
    """Return a count or a time that comes from outside, from 0 to 2**53; None for what is not a finite number."""
    # Not isinstance(), for which True is an integer.
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return min(max(value, 0), LARGEST_NUMBER)
    return None


def token_count(value: object) -> int | None:
    """Return a token count that a back-end sent, from 0 to 2**53; None for what is not a whole number."""
    number = measure(value)
    return None if number is None or number % 1 else int(number)


def sent_usage(sent: Mapping[str, object], depth: int = USAGE_DEPTH) -> dict[str, object]:
    """Return the usage object of a back-end with token counts from 0 to 2**53, and no number that JSON cannot hold.

    A member that counts tokens is left out if it is neither a whole number, nor an object, nor null.
    """
    found: dict[str, object] = {}
    for name, value in sent.items():
        is_count = name.endswith("tokens") and not isinstance(value, dict)
        kept = token_count(value) if is_count else _kept(value, depth)
        if value is None or kept is not None:
            found[name] = kept
    return found


def _kept(value: object, depth: int) -> object:
    """Return JSON data without what could not be written or read again, which becomes None."""
    if isinstance(value, dict):
        return sent_usage(value, depth - 1) if depth else None
    if isinstance(value, list):
        return [_kept(item, depth - 1) for item in value] if depth else None
    return None if isinstance(value, (int, float)) and not abs(value) <= LARGEST_NUMBER else value


def cached_tokens(usage: Mapping[str, object]) -> int | None:
    """Return how many prompt tokens the back-end found in its cache; None if it does not say."""
    details = usage.get("prompt_tokens_details")
    return token_count(details.get("cached_tokens")) if isinstance(details, Mapping) else None


class Chunk(TypedDict, total=False):
    """A piece of a streamed answer.

    Attributes:
        token: text, "" for none.
        finish_reason: in the chunk that ends the answer, else None.
        end: nothing follows; never leaves the process.
    """

    token: Required[str]
    finish_reason: Required[str | None]
    tool_calls: list[ToolCall]
    reasoning: str
    usage: Usage
    fingerprint: str
    # The next chunk follows at once, so that the edge can send both in one write.
    more: bool
    end: bool
    # A whole block of Claude's thinking, with a signature for clients of the Messages API.
    thought: Mapping[str, object]


class ToolCallAnswer(TypedDict):
    """A whole answer that calls tools."""

    content: str
    tool_calls: list[ToolCall]
    finish_reason: NotRequired[str]


Answer = str | ToolCallAnswer
"""A whole answer: a text, or tool calls."""
