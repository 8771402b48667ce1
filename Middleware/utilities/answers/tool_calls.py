"""Tool calls in OpenAI's shapes: whole calls, and the fragments of a stream."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from Middleware.models.messages import ToolCall

MAX_DIGITS = 9  # of an index that comes as text


def calls_among(value: object) -> list[ToolCall]:
    """The tool calls in what clients and scripts give as a list of them: its objects; none, if it is no list."""
    return [cast(ToolCall, call) for call in value if isinstance(call, Mapping)] \
        if isinstance(value, (list, tuple)) else []


class ToolCallNumbers:
    """Says which call of a stream a fragment belongs to.

    That is its ``index``, which may be a text of digits. Without one it goes by its ``id``: a new id begins the next
    call, no id continues the latest one.
    """

    def __init__(self) -> None:
        self._ids: dict[int, str] = {}  # "" until an id is known
        self._numbers: dict[str, int] = {}
        self._latest = 0
        self._highest = 0

    def number(self, fragment: ToolCall) -> int:
        """The number of the call, from 0. Fragments must come in their order."""
        call_id = fragment.get("id")
        call_id = call_id if isinstance(call_id, str) else ""
        number = _index(fragment.get("index"))
        if number is None:
            number = self._by_id(call_id)
        self._ids[number] = call_id or self._ids.get(number, "")
        if call_id:
            self._numbers.setdefault(call_id, number)
        self._latest, self._highest = number, max(self._highest, number)
        return number

    def numbered(self, fragments: Iterable[ToolCall]) -> list[ToolCall]:
        """The fragments, those without a proper ``index`` as copies that have one."""
        return [self._with_index(fragment) if isinstance(fragment, Mapping) else fragment for fragment in fragments]

    def _with_index(self, fragment: ToolCall) -> ToolCall:
        number = self.number(fragment)
        return fragment if type(fragment.get("index")) is int else {**fragment, "index": number}

    def _by_id(self, call_id: str) -> int:
        known = self._ids.get(self._latest, "")
        if not call_id or not known or known == call_id:
            return self._latest
        return self._numbers.get(call_id, self._highest + 1)


@dataclass
class _Call:
    """A call as far as its fragments have arrived."""

    id: str = ""
    name: str = ""
    # Pieces of text, joined at the end: one long text would be copied for each of a file's tokens.
    arguments: list[str] | Mapping[str, object] = field(default_factory=list)

    def add(self, fragment: ToolCall) -> None:
        """Take a fragment. A name or id replaces, argument texts append, an object replaces."""
        call_id, function = fragment.get("id"), fragment.get("function")
        if isinstance(call_id, str) and call_id:
            self.id = call_id
        if not isinstance(function, Mapping):
            return
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(name, str) and name:
            self.name = name
        if isinstance(arguments, str):
            if not isinstance(self.arguments, list):
                self.arguments = []
            self.arguments.append(arguments)
        elif isinstance(arguments, Mapping):
            self.arguments = dict(arguments)

    def whole(self) -> ToolCall:
        arguments = "".join(self.arguments) if isinstance(self.arguments, list) else self.arguments
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


class ToolCallAssembler:
    """Puts the fragments of streamed tool calls together."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._numbers = ToolCallNumbers()

    def add(self, fragments: Iterable[ToolCall]) -> None:
        """Take the ``tool_calls`` of one chunk."""
        for fragment in fragments:
            # A script's chunk may hold anything.
            if isinstance(fragment, Mapping):
                self._calls.setdefault(self._numbers.number(fragment), _Call()).add(fragment)

    def calls(self) -> list[ToolCall]:
        """The calls so far, whole, by ascending index."""
        return [call.whole() for _, call in sorted(self._calls.items())]


def _index(value: object) -> int | None:
    if type(value) is int:  # a bool is no index
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) <= MAX_DIGITS else None
