"""Tool calls in OpenAI's shapes: whole calls, and the fragments of a stream."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MAX_DIGITS = 9  # of an index that comes as text


def calls_among(value: object) -> list[Mapping[str, object]]:
    """The tool calls in what foreign code gives as a list of them: its objects; none, if it is no list."""
    return [call for call in value if isinstance(call, Mapping)] if isinstance(value, (list, tuple)) else []


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

    def number(self, fragment: Mapping[str, object]) -> int:
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

    def numbered(self, fragments: Iterable[object]) -> list[object]:
        """The fragments, those without a proper ``index`` as copies that have one."""
        return [self._with_index(fragment) if isinstance(fragment, Mapping) else fragment for fragment in fragments]

    def _with_index(self, fragment: Mapping[str, object]) -> Mapping[str, object]:
        number = self.number(fragment)
        return fragment if type(fragment.get("index")) is int else {**fragment, "index": number}

    def _by_id(self, call_id: str) -> int:
        known = self._ids.get(self._latest, "")
        if not call_id or not known or known == call_id:
            return self._latest
        return self._numbers.get(call_id, self._highest + 1)


class ToolCallAssembler:
    """Puts the fragments of streamed tool calls together."""

    def __init__(self) -> None:
        self._calls: dict[int, dict[str, object]] = {}
        self._numbers = ToolCallNumbers()

    def add(self, fragments: Iterable[object]) -> None:
        """Take the ``tool_calls`` of one chunk. A name or id replaces, argument texts append, an object replaces."""
        for fragment in fragments:
            if isinstance(fragment, Mapping):
                self._merge(self._calls.setdefault(self._numbers.number(fragment), {}), fragment)

    def calls(self) -> list[dict[str, object]]:
        """The calls so far, whole, by ascending index."""
        return [{"id": call.get("id", ""), "type": "function",
                 "function": {"name": call.get("name", ""), "arguments": _whole(call.get("arguments", ""))}}
                for _, call in sorted(self._calls.items())]

    @staticmethod
    def _merge(call: dict[str, Any], fragment: Mapping[str, object]) -> None:
        function = fragment.get("function")
        function = function if isinstance(function, Mapping) else {}
        for key, value in (("id", fragment.get("id")), ("name", function.get("name"))):
            if isinstance(value, str) and value:
                call[key] = value
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            if not isinstance(call.get("arguments"), list):
                call["arguments"] = []
            call["arguments"].append(arguments)  # one long text would be copied for each of a file's tokens
        elif isinstance(arguments, Mapping):
            call["arguments"] = dict(arguments)


def _whole(arguments: object) -> object:
    return "".join(arguments) if isinstance(arguments, list) else arguments


def _index(value: object) -> int | None:
    if type(value) is int:  # a bool is no index
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) <= MAX_DIGITS else None
