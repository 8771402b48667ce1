"""Answers in the form of Anthropic's Messages API: the content of a message, whole and as the events of a stream.

``Blocks`` makes events from the chunks of the engine. A stream sends them, and a whole answer is their sum, so that the
two cannot differ.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypedDict, cast

from Middleware.api.answers.answer import FinishedAnswer
from Middleware.api.answers.stream_renderers import BUILDER, SHORT_PAUSES, SSE_TYPE, Template, named_sse
from Middleware.api.errors import PublicError
from Middleware.api.requests.offered_tools import OfferedTools
from Middleware.models.messages import ToolCall, Usage, cached_tokens
from Middleware.utilities.answers.tool_calls import ToolCallNumbers, arguments_object, read_fragment
from Middleware.utilities.text_utils import encode_text

# The packages' types require a signature, and clients turn thinking without one into text. Where no Claude has given
# one, nothing is read from it when it comes back.
SIGNATURE = "wilmer-"
STOP_REASONS: Mapping[str, str] = {"length": "max_tokens", "content_filter": "refusal"}
# Ids of other characters are refused by clients, and by Anthropic itself when the conversation moves there.
_VALID_ID = re.compile(r"[A-Za-z0-9_-]+")


# -- objects -----------------------------------------------------------------------------------------------------------
class TextBlock(TypedDict):
    type: Literal["text"]
    text: str


class ThinkingBlock(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, object]


class RedactedBlock(TypedDict):
    type: Literal["redacted_thinking"]
    data: str


Block = TextBlock | ThinkingBlock | RedactedBlock | ToolUseBlock


class MessageUsage(TypedDict):
    """Token counts. ``input_tokens`` are those that no cache had."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: dict[str, int]
    output_tokens: int
    service_tier: str


class MessageObject(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: str | None
    stop_sequence: None
    usage: MessageUsage


class BlockStart(TypedDict):
    type: Literal["content_block_start"]
    index: int
    content_block: Block


class BlockDelta(TypedDict):
    """A piece of the open block: a ``type``, and the text under the name that the type has for it."""

    type: Literal["content_block_delta"]
    index: int
    delta: dict[str, str]


class BlockStop(TypedDict):
    type: Literal["content_block_stop"]
    index: int


BlockEvent = BlockStart | BlockDelta | BlockStop


@dataclass(frozen=True, slots=True)
class MessageForm:
    """What the answers to one request have in common, whole or streamed.

    Attributes:
        tools: gives calls the client's names.
        thinking: the client gets the model's reasoning, as far as the user's settings send it.
        thinking_omitted: it gets to know that there was some, but not its text.
        request_label: the id of the request in errors.
    """

    id: str
    model: str
    tools: OfferedTools
    thinking: bool
    thinking_omitted: bool
    request_label: str

    def message(self, content: list[Block], stop_reason: str | None, usage: MessageUsage) -> MessageObject:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": usage,
        }

    def whole(self, answer: FinishedAnswer) -> MessageObject:
        """Return a complete answer."""
        blocks, content = Blocks(self), _Content()
        # Each is whole. Without a number, one that has no id would count as a fragment of the call before it.
        calls: list[ToolCall] = [{**call, "index": index} for index, call in enumerate(answer.tool_calls or ())]
        for events in (
            blocks.thoughts(answer),
            blocks.text(answer.text),
            blocks.calls(calls),
            blocks.close(),
        ):
            for event in events:
                content.add(event)
        return self.message(
            content.blocks,
            stop_reason(answer.finish_reason, blocks.has_calls, answer.cancelled),
            message_usage(answer.usage),
        )

    def empty(self, prompt_tokens: int) -> MessageObject:
        """Return the answer to a request that allows no tokens."""
        return self.message([], "max_tokens", message_usage({"prompt_tokens": prompt_tokens, "completion_tokens": 0}))


def message_usage(usage: Usage) -> MessageUsage:
    cached = cached_tokens(usage) or 0
    # A back-end that counts its cache in other units must not make this negative.
    uncached = max(usage.get("prompt_tokens", 0) - cached, 0)
    return {
        "input_tokens": uncached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.get("completion_tokens", 0),
        "service_tier": "standard",
    }


def stop_reason(finish_reason: str | None, has_calls: bool, cancelled: bool) -> str:
    if cancelled:
        return "end_turn"
    return STOP_REASONS.get(finish_reason or "", "tool_use" if has_calls else "end_turn")


# -- events ------------------------------------------------------------------------------------------------------------
@dataclass
class _Call:
    """A call of which fragments have arrived."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    # The number of the pieces of ``arguments`` that have become events.
    sent: int = 0
    begun: bool = False
    # The number of pieces at the last look whether they are complete.
    looked: int = 0

    def add(self, fragment: ToolCall) -> None:
        call_id, name, arguments = read_fragment(fragment)
        # The beginning of the block has been sent with them.
        if not self.begun:
            self.id, self.name = call_id or self.id, name or self.name
        if arguments:
            self.arguments.append(
                arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)
            )

    def unsent(self) -> str:
        """Return the arguments that have arrived since the last time; "" as long as they do not begin an object."""
        text = "".join(self.arguments[self.sent :])
        # Clients fail on anything else; what never becomes an object is left out, as in a whole answer.
        if not self.sent and not text.lstrip().startswith("{"):
            return ""
        self.sent = len(self.arguments)
        return text

    def is_complete(self) -> bool:
        """Return whether the arguments are a whole object, so that no more of them can come."""
        if self.looked == len(self.arguments):
            return False
        self.looked = len(self.arguments)
        # The cheap test spares reading long arguments again for each fragment of another call.
        return self.arguments[-1].rstrip().endswith("}") and arguments_object("".join(self.arguments)) is not None


class Blocks:
    """Makes the events of a message's content. One block is open at a time, and each has all its events in a row.

    Fragments of a call wait while another is open. That one is closed when its arguments are complete, when text
    follows, or at the end.
    """

    def __init__(self, form: MessageForm) -> None:
        self._form = form
        self._index = -1
        # The type of the open block, "" if none is.
        self._open = ""
        self._hash = hashlib.sha256()
        self._numbers = ToolCallNumbers()
        # The calls that are not closed, in the order of their arrival. Only the first of them is open.
        self._calls: dict[int, _Call] = {}
        self._closed: set[int] = set()

    @property
    def has_calls(self) -> bool:
        return bool(self._closed or self._calls)

    def text(self, token: str) -> Iterator[BlockEvent]:
        if token:
            if self._open != "text":
                yield from self.close()
                yield self._start({"type": "text", "text": ""})
            yield self._delta("text_delta", "text", token)

    def reasoning(self, token: str) -> Iterator[BlockEvent]:
        if not token or not self._form.thinking:
            return
        if self._open != "thinking":
            yield from self.close()
            self._hash = hashlib.sha256()
            yield self._start({"type": "thinking", "thinking": "", "signature": ""})
        self._hash.update(encode_text(token))
        if not self._form.thinking_omitted:
            yield self._delta("thinking_delta", "thinking", token)

    def thoughts(self, answer: FinishedAnswer) -> Iterator[BlockEvent]:
        """Add all reasoning of an answer, in the blocks of Claude if it is unchanged."""
        if "".join(str(block.get("thinking") or "") for block in answer.thoughts) != answer.reasoning:
            yield from self.reasoning(answer.reasoning)
            return
        for block in answer.thoughts:
            yield from self.reasoning(str(block.get("thinking") or ""))
            yield from self.thought(block)

    def thought(self, block: Mapping[str, object]) -> Iterator[BlockEvent]:
        """End a block of thinking with the signature of the Claude that has sent it, or add one without a text."""
        if not self._form.thinking:
            return
        if block["type"] == "redacted_thinking":
            yield from self.close()
            yield self._start(cast(RedactedBlock, dict(block)))
            self._open = ""
            yield {"type": "content_block_stop", "index": self._index}
            return
        text = str(block.get("thinking") or "")
        if not text and self._open != "thinking":
            yield from self.close()
            self._hash = hashlib.sha256()
            yield self._start({"type": "thinking", "thinking": "", "signature": ""})
        # The signature is that of the text, which must have reached the client as it is.
        is_whole = hashlib.sha256(encode_text(text)).digest() == self._hash.digest()
        if self._open == "thinking" and is_whole and not (text and self._form.thinking_omitted):
            yield from self._end_text(str(block.get("signature") or ""))

    def calls(self, fragments: Iterable[ToolCall]) -> Iterator[BlockEvent]:
        for fragment in fragments:
            # A script's chunk may hold anything.
            if isinstance(fragment, Mapping):
                number = self._numbers.number(fragment)
                # Its block is closed, and cannot be opened again.
                if number not in self._closed:
                    self._calls.setdefault(number, _Call()).add(fragment)
        while self._calls:
            number, call = next(iter(self._calls.items()))
            # The beginning of a block contains the name.
            if not call.name:
                return
            yield from self._pieces(call)
            if len(self._calls) == 1 or not call.is_complete():
                return
            yield self._end_call(number)

    def close(self) -> Iterator[BlockEvent]:
        """Close what is open, after the calls that wait."""
        for number, call in list(self._calls.items()):
            yield from self._pieces(call)
            yield self._end_call(number)
        yield from self._end_text()

    def _pieces(self, call: _Call) -> Iterator[BlockEvent]:
        """Open the block of a call if it is not, and add the arguments that have arrived."""
        if not call.begun:
            yield from self._end_text()
            call.begun = True
            call_id = call.id if _VALID_ID.fullmatch(call.id) else f"toolu_{uuid.uuid4().hex[:24]}"
            name = self._form.tools.called(call.name).name
            yield self._start({"type": "tool_use", "id": call_id, "name": name, "input": {}})
        if text := call.unsent():
            yield self._delta("input_json_delta", "partial_json", text)

    def _end_call(self, number: int) -> BlockStop:
        del self._calls[number]
        self._closed.add(number)
        self._open = ""
        return {"type": "content_block_stop", "index": self._index}

    def _end_text(self, signature: str = "") -> Iterator[BlockEvent]:
        """Close an open block of text or thinking, this with a signature."""
        if self._open == "thinking":
            yield self._delta("signature_delta", "signature", signature or SIGNATURE + self._hash.hexdigest())
        if self._open:
            self._open = ""
            yield {"type": "content_block_stop", "index": self._index}

    def _start(self, block: Block) -> BlockStart:
        self._index += 1
        self._open = block["type"]
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, kind: str, key: str, text: str) -> BlockDelta:
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, key: text}}


class _Content:
    """The content that events add up to."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._arguments: list[str] = []

    def add(self, event: BlockEvent) -> None:
        if event["type"] == "content_block_start":
            self.blocks.append(event["content_block"])
            self._arguments = []
            return
        block = self.blocks[-1]
        if event["type"] == "content_block_stop":
            if block["type"] == "tool_use":
                block["input"] = arguments_object("".join(self._arguments)) or {}
            return
        delta = event["delta"]
        if block["type"] == "text":
            block["text"] += delta["text"]
        elif block["type"] == "tool_use":
            self._arguments.append(delta["partial_json"])
        elif block["type"] == "thinking":
            block["thinking"] += delta.get("thinking", "")
            block["signature"] += delta.get("signature", "")


# -- the stream --------------------------------------------------------------------------------------------------------
class MessagesStream:
    """Renders one streamed message.

    Args:
        prompt_tokens: estimates the tokens of the prompt; clients show the count of the first event.
    """

    content_type = SSE_TYPE
    pauses = SHORT_PAUSES
    joins = True
    wants_usage = True
    tells_failures = False

    def __init__(self, form: MessageForm, prompt_tokens: Callable[[], int]) -> None:
        # The dialect has no field for it.
        self.fingerprint = ""
        self._form = form
        self._prompt_tokens = prompt_tokens
        self._blocks = Blocks(form)
        self._reason: str | None = None
        # That of the deltas of the open block; of text, only while that is open.
        self._template: Template | None = None
        self._text: Template | None = None

    def beginning(self) -> bytes:
        return self.start() + PING

    def start(self) -> bytes:
        """Return the first event."""
        usage = message_usage({"prompt_tokens": self._prompt_tokens(), "completion_tokens": 1})
        return named_sse({"type": "message_start", "message": self._form.message([], None, usage)})

    def heartbeat(self) -> bytes:
        return PING

    def text(self, token: str) -> bytes:
        template = self._text
        if template is not None:
            return template.fill(token)
        rendered = self._rendered(self._blocks.text(token))
        # Without a token, that of another block may still be there.
        self._text = self._template if token else None
        return rendered

    def reasoning(self, token: str) -> bytes:
        self._text = None
        return self._rendered(self._blocks.reasoning(token))

    def thought(self, block: Mapping[str, object]) -> bytes:
        self._text = None
        return self._rendered(self._blocks.thought(block))

    def tool_calls(self, token: str, calls: list[ToolCall], finish_reason: str | None) -> bytes:
        text = self.text(token) if token else b""
        self._text = None
        self._reason = finish_reason or self._reason
        return text + self._rendered(self._blocks.calls(calls))

    def final(self, finish_reason: str) -> bytes:
        self._reason = finish_reason
        return b""

    def ending(self, usage: Callable[[], Usage], cancelled: bool) -> list[bytes]:
        closing = self._rendered(self._blocks.close())
        reason = stop_reason(self._reason, self._blocks.has_calls, cancelled)
        return [closing, message_end(reason, message_usage(usage()))]

    def error(self, error: PublicError) -> list[bytes]:
        return [named_sse(BUILDER.build_anthropic_error(error.message, error.status, self._form.request_label))]

    def _rendered(self, events: Iterable[BlockEvent]) -> bytes:
        return b"".join(map(self._event, events))

    def _event(self, event: BlockEvent) -> bytes:
        if event["type"] != "content_block_delta" or "signature" in event["delta"]:
            self._template = None
            return named_sse(event)
        (_, kind), (key, text) = event["delta"].items()
        if self._template is None:
            index = event["index"]
            self._template = Template(
                lambda marker: named_sse(
                    {"type": "content_block_delta", "index": index, "delta": {"type": kind, key: marker}}
                )
            )
        return self._template.fill(text)


def message_end(reason: str, usage: MessageUsage) -> bytes:
    """Return the last events of a stream."""
    stop = {"stop_reason": reason, "stop_sequence": None}
    return named_sse({"type": "message_delta", "delta": stop, "usage": usage}) + named_sse({"type": "message_stop"})


PING = named_sse({"type": "ping"})
