"""One answer in the dialect of OpenAI's Responses API: its object, and the events of a stream of it.

Source: OpenAI's reference of ``POST /v1/responses`` and its streaming events. No types of events are sent beyond those
that the packages know; npm ``openai`` raises an error for others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from Middleware.api.answers.answer import FinishedAnswer
from Middleware.api.answers.stream_renderers import SSE_TYPE, NumberedTemplate, Pauses, named_sse
from Middleware.api.errors import Cause, PublicError
from Middleware.api.requests.offered_tools import ClientTool, custom_input
from Middleware.models.messages import ToolCall, Usage, cached_tokens, token_count
from Middleware.models.responses import (
    CallItem,
    CallType,
    IncompleteDetails,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    RequestFields,
    ResponseError,
    ResponseObject,
    ResponseUsage,
    Status,
    SummaryText,
)
from Middleware.utilities.answers.tool_calls import ToolCallNumbers, arguments_object, read_fragment

# Codex ends a stream after 300 seconds without an event (its setting), and does not count comments.
PAUSES = Pauses(1.0, 5.0, 15.0)
SERVER_ERROR = "server_error"
# Codex repeats a request that failed with "server_error" or "rate_limit_exceeded", and with no other of these.
FAILURE_CODES: Mapping[Cause, str] = {
    Cause.LASTING: "invalid_prompt",
    Cause.PROMPT_TOO_LONG: "context_length_exceeded",
    Cause.NO_QUOTA: "insufficient_quota",
    Cause.RATE_LIMIT: "rate_limit_exceeded",
}
_INCOMPLETE: Mapping[str, IncompleteDetails] = {
    "length": {"reason": "max_output_tokens"},
    "content_filter": {"reason": "content_filter"},
}
_LAST_EVENTS: Mapping[Status, str] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}
_PREFIXES: Mapping[str, str] = {"custom": "ctc", "tool_search": "tsc", "local_shell": "lsh"}


class Events:
    """Writes the events of one stream, numbered from 0."""

    def __init__(self) -> None:
        self.number = -1

    def event(self, kind: str, **fields: object) -> bytes:
        """Return one event."""
        self.number += 1
        return named_sse({"type": kind, "sequence_number": self.number, **fields})


def _deltas(kind: str, where: Mapping[str, object], **after: object) -> NumberedTemplate:
    """Return the template of the events that bring the text of an item in pieces."""
    return NumberedTemplate(
        lambda number, text: named_sse({"type": kind, "sequence_number": number, **where, "delta": text, **after})
    )


class _Item:
    """An item of the output: open from ``begin`` to ``close``."""

    def __init__(self, events: Events, index: int, item_id: str) -> None:
        self.index, self.id = index, item_id
        self.status: Status = "in_progress"
        self.pieces: list[str] = []
        self._events = events

    def snapshot(self) -> OutputItem:
        """Return the item as it is now. Other threads may ask for it."""
        raise NotImplementedError

    def begin(self) -> bytes:
        return self._events.event("response.output_item.added", output_index=self.index, item=self.snapshot())

    def close(self, status: Status) -> bytes:
        """Return the last events of the item, which gets this status."""
        text = "".join(self.pieces)
        self.pieces, self.status = [text], status
        return self._end_of_text(text) + self._events.event(
            "response.output_item.done", output_index=self.index, item=self.snapshot()
        )

    def _end_of_text(self, text: str) -> bytes:
        raise NotImplementedError


class _Text(_Item):
    """The item of a message."""

    def __init__(self, events: Events, index: int, item_id: str) -> None:
        super().__init__(events, index, item_id)
        self._where = {"item_id": item_id, "output_index": index, "content_index": 0}
        self.template = _deltas("response.output_text.delta", self._where, logprobs=[])

    def snapshot(self) -> MessageItem:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": self.status,
            "content": [self._part("".join(self.pieces))] if self.pieces else [],
        }

    def begin(self) -> bytes:
        return super().begin() + self._events.event("response.content_part.added", **self._where, part=self._part(""))

    def _end_of_text(self, text: str) -> bytes:
        event = self._events.event
        return event("response.output_text.done", **self._where, text=text, logprobs=[]) + event(
            "response.content_part.done", **self._where, part=self._part(text)
        )

    @staticmethod
    def _part(text: str) -> OutputText:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class _Reasoning(_Item):
    """The item of the model's reasoning."""

    def __init__(self, events: Events, index: int, item_id: str) -> None:
        super().__init__(events, index, item_id)
        self._where = {"item_id": item_id, "output_index": index, "summary_index": 0}
        self.template = _deltas("response.reasoning_summary_text.delta", self._where)

    def snapshot(self) -> ReasoningItem:
        return {
            "id": self.id,
            "type": "reasoning",
            "status": self.status,
            "summary": [self._part("".join(self.pieces))] if self.pieces else [],
        }

    def begin(self) -> bytes:
        return super().begin() + self._events.event(
            "response.reasoning_summary_part.added", **self._where, part=self._part("")
        )

    def _end_of_text(self, text: str) -> bytes:
        event = self._events.event
        return event("response.reasoning_summary_text.done", **self._where, text=text) + event(
            "response.reasoning_summary_part.done", **self._where, part=self._part(text)
        )

    @staticmethod
    def _part(text: str) -> SummaryText:
        return {"type": "summary_text", "text": text}


class _Call(_Item):
    """The item of a call of one of the client's tools."""

    def __init__(self, events: Events, index: int, item_id: str, call_id: str, tool: ClientTool) -> None:
        super().__init__(events, index, item_id)
        self._call_id, self._tool = call_id, tool
        self._where = {"item_id": item_id, "output_index": index}
        self._template = _deltas("response.function_call_arguments.delta", self._where)

    def snapshot(self) -> CallItem:
        kind, text = self._tool.kind, "".join(self.pieces)
        if kind == "tool_search":
            return {**self._call("tool_search_call"), "execution": "client", "arguments": arguments_object(text) or {}}
        if kind == "local_shell":
            action = {"type": "exec", "command": [], "env": {}, **(arguments_object(text) or {})}
            return {**self._call("local_shell_call"), "action": action}
        named = self._call("custom_tool_call" if kind == "custom" else "function_call")
        named["name"] = self._tool.name
        if self._tool.namespace:
            named["namespace"] = self._tool.namespace
        if kind == "custom":
            return {**named, "input": "" if self.status == "in_progress" else custom_input(text)}
        return {**named, "arguments": text}

    def _call(self, kind: CallType) -> CallItem:
        return {"id": self.id, "type": kind, "status": self.status, "call_id": self._call_id}

    def add(self, text: str) -> bytes:
        """Return the event of a fragment of the arguments; ``b""`` where the client gets them at the end."""
        self.pieces.append(text)
        if self._tool.kind != "function":
            return b""
        self._events.number += 1
        return self._template.fill(self._events.number, text)

    def close(self, status: Status) -> bytes:
        # Clients parse the arguments of functions, and many LLMs send nothing for none.
        empty = self._tool.kind == "function" and not "".join(self.pieces).strip()
        return (self.add("{}") if empty else b"") + super().close(status)

    def cut_off(self) -> bool:
        """Return whether the arguments end too early to be JSON."""
        text = "".join(self.pieces)
        return bool(text.strip()) and arguments_object(text) is None

    def _end_of_text(self, text: str) -> bytes:
        event = self._events.event
        if self._tool.kind == "function":
            return event("response.function_call_arguments.done", **self._where, name=self._tool.name, arguments=text)
        if self._tool.kind != "custom":
            return b""
        given = custom_input(text)
        return event("response.custom_tool_call_input.delta", **self._where, delta=given) + event(
            "response.custom_tool_call_input.done", **self._where, input=given
        )


class _Fragments:
    """A call of the stream. It becomes an item when its name is known."""

    def __init__(self) -> None:
        self.id = self.name = ""
        self.waiting: list[str] = []
        self.item: _Call | None = None

    def take(self, fragment: ToolCall) -> str:
        """Note what a fragment says about the call, and return its part of the arguments."""
        call_id, name, arguments = read_fragment(fragment)
        self.id, self.name = self.id or call_id, self.name or name
        return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, Mapping) else arguments or ""


class ResponsesAnswer:
    """One answer, as a stream of events (a ``StreamRenderer``) or whole.

    Both are made in the same way, so that a whole answer is the object in the last event of the stream.
    """

    content_type = SSE_TYPE
    pauses = PAUSES
    joins = True
    # It keeps the text itself, for the object in the last event.
    wants_usage = False
    tells_failures = True
    # The dialect has no field for it.
    fingerprint = ""

    def __init__(
        self,
        response: ResponseObject,
        called: Callable[[str], ClientTool],
        usage: Callable[[str], Usage],
        keep: Callable[[ResponseObject], object],
    ) -> None:
        """
        Args:
            response: the object at the beginning, without output.
            called: finds the client's tool by the name in a call of the LLM.
            usage: counts the tokens of an answer with this text.
            keep: is called with the object at its end, before the client gets it.
        """
        self._response, self._called, self._usage, self._keep = response, called, usage, keep
        self._digits = response["id"].partition("_")[2]
        self._events = Events()
        self._items: list[_Item] = []
        # The item that is open, or any number of calls.
        self._text: _Text | None = None
        self._reasoning: _Reasoning | None = None
        self._calls: dict[int, _Fragments] = {}
        self._numbers = ToolCallNumbers()
        self._finish = ""

    # -- the stream ----------------------------------------------------------------------------------------------
    def beginning(self) -> bytes:
        response = self.so_far()
        return self._events.event("response.created", response=response) + self._events.event(
            "response.in_progress", response=response
        )

    def heartbeat(self) -> bytes:
        # npm ``openai`` goes on from this object, so that it must have all output so far.
        return self._events.event("response.in_progress", response=self.so_far())

    def text(self, token: str) -> bytes:
        item = self._text
        if item is None:
            return self._first_text(token)
        events = self._events
        events.number = number = events.number + 1
        item.pieces.append(token)
        return item.template.fill(number, token)

    def _first_text(self, token: str) -> bytes:
        closed = self._close_open()
        self._text = item = _Text(self._events, *self._place("msg"))
        return closed + self._begin(item) + self.text(token)

    def reasoning(self, token: str) -> bytes:
        item, before = self._reasoning, b""
        if item is None:
            before = self._close_open()
            self._reasoning = item = _Reasoning(self._events, *self._place("rs"))
            before += self._begin(item)
        self._events.number += 1
        item.pieces.append(token)
        return before + item.template.fill(self._events.number, token)

    def tool_calls(self, token: str, calls: list[ToolCall], finish_reason: str | None) -> bytes:
        self._finish = finish_reason or self._finish
        out = self.text(token) if token else b""
        if calls and not self._calls:
            out += self._close_open()
        # A script's chunk may hold anything.
        return out + b"".join(self._fragment(fragment) for fragment in calls if isinstance(fragment, Mapping))

    def final(self, finish_reason: str) -> bytes:
        self._finish = self._finish or finish_reason
        return b""

    def thought(self, block: Mapping[str, object]) -> bytes:
        return b""

    def ending(self, usage: Callable[[], Usage], cancelled: bool) -> list[bytes]:
        return [self._end(self._usage(self._whole_text()), cancelled)]

    def error(self, error: PublicError) -> list[bytes]:
        usage = self._usage(self._whole_text()) if self._items else None
        return [
            self._last_event(
                "failed", usage, error={"code": FAILURE_CODES.get(error.cause, SERVER_ERROR), "message": error.message}
            )
        ]

    # -- the object ----------------------------------------------------------------------------------------------
    def whole(self, answer: FinishedAnswer) -> ResponseObject:
        """Return a complete answer."""
        if answer.reasoning:
            self.reasoning(answer.reasoning)
        self.tool_calls(
            answer.text,
            [{**call, "index": number} for number, call in enumerate(answer.tool_calls or ())],
            answer.finish_reason,
        )
        self._end(answer.usage, answer.cancelled)
        return self._response

    def so_far(self) -> ResponseObject:
        """Return the object as it is now. Other threads may ask for it."""
        return {**self._response, "output": [item.snapshot() for item in list(self._items)]}

    # -- items ---------------------------------------------------------------------------------------------------
    def _place(self, prefix: str) -> tuple[int, str]:
        """Return the index of the next item, and its id, which is made from that of the response."""
        index = len(self._items)
        return index, f"{prefix}_{self._digits}{index:04x}"

    def _begin(self, item: _Item) -> bytes:
        begun = item.begin()
        self._items.append(item)
        return begun

    def _fragment(self, fragment: ToolCall) -> bytes:
        call = self._calls.setdefault(self._numbers.number(fragment), _Fragments())
        text = call.take(fragment)
        if text:
            call.waiting.append(text)
        return self._flush(call) if call.name else b""

    def _flush(self, call: _Fragments) -> bytes:
        out = b""
        if call.item is None:
            tool = self._called(call.name)
            index, item_id = self._place(_PREFIXES.get(tool.kind, "fc"))
            call.item = _Call(self._events, index, item_id, call.id or f"call_{self._digits}{index:04x}", tool)
            out = self._begin(call.item)
        text = "".join(call.waiting)
        call.waiting.clear()
        return out + call.item.add(text) if text else out

    def _close_open(self, status: Status = "completed", calls: Callable[[_Call], Status] | None = None) -> bytes:
        """Return the last events of everything that is open.

        Args:
            calls: the status of each call; by default as of the others.
        """
        item = self._text or self._reasoning
        out = item.close(status) if item is not None else b""
        for call in self._calls.values():
            # The name of a call without one must be sent as well.
            out += self._flush(call)
            if call.item is not None:
                out += call.item.close(calls(call.item) if calls is not None else status)
        self._text = self._reasoning = None
        self._calls = {}
        self._numbers = ToolCallNumbers()
        return out

    # -- the end -------------------------------------------------------------------------------------------------
    def _end(self, usage: Usage, cancelled: bool) -> bytes:
        details = None if cancelled else _INCOMPLETE.get(self._finish)
        return self._last_event("cancelled" if cancelled else "incomplete" if details else "completed", usage, details)

    def _last_event(
        self,
        status: Status,
        usage: Usage | None,
        details: IncompleteDetails | None = None,
        error: ResponseError | None = None,
    ) -> bytes:
        closed = self._close_open(
            "completed" if status == "completed" else "incomplete", _status_of_call if details else None
        )
        self._response = {
            **self.so_far(),
            "status": status,
            "completed_at": int(time.time()),
            "error": error,
            "incomplete_details": details,
            "usage": None if usage is None else response_usage(usage),
        }
        self._keep(self._response)
        return closed + self._events.event(_LAST_EVENTS[status], response=self._response)

    def _whole_text(self) -> str:
        return "".join(piece for item in self._items if isinstance(item, _Text) for piece in item.pieces)


def new_response(response_id: str, model: str, store: bool, fields: RequestFields) -> ResponseObject:
    """Return the object of a response in progress.

    Args:
        fields: what comes back from the request.
    """
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "max_tool_calls": None,
        "model": model,
        "output": [],
        "service_tier": "default",
        "store": store,
        "top_logprobs": 0,
        "truncation": "disabled",
        "usage": None,
        **fields,
    }


def response_usage(usage: Usage) -> ResponseUsage:
    """Return token counts under the names of this API."""
    details = usage.get("completion_tokens_details")
    reasoning = token_count(details.get("reasoning_tokens")) if isinstance(details, Mapping) else None
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached_tokens(usage) or 0, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning or 0},
        "total_tokens": usage["total_tokens"],
    }


def _status_of_call(call: _Call) -> Status:
    return "incomplete" if call.cut_off() else "completed"
