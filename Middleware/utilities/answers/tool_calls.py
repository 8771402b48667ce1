"""Tool calls in OpenAI's shapes: whole calls, and the fragments of a stream."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from Middleware.models.messages import ToolCall

# An index that comes as a string may be of any length; Python refuses to convert more than 4300 digits.
MAX_DIGITS = 9


def calls_among(value: object) -> list[ToolCall]:
    """Return the objects in a value that clients and scripts pass as tool calls; none if it is not a list."""
    return (
        [cast(ToolCall, call) for call in value if isinstance(call, Mapping)]
        if isinstance(value, (list, tuple))
        else []
    )


def calls_as_text(calls: Iterable[ToolCall], before: str = "") -> str:
    """Return what follows the text ``before`` in an answer whose tool calls become text: a line of JSON for each."""
    lines = []
    for call in calls:
        function = call.get("function") or {}
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            # Models write arguments that are cut off, or no JSON at all.
            with contextlib.suppress(ValueError, RecursionError):
                arguments = json.loads(arguments)
        lines.append(json.dumps({"name": function.get("name") or "", "arguments": arguments}, ensure_ascii=False))
    return ("\n\n" if before.strip() and lines else "") + "\n".join(lines)


def arguments_object(arguments: object) -> dict[str, object] | None:
    """Return the arguments of a call as an object, or None: models also write what is not a JSON object."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return dict(arguments) if isinstance(arguments, Mapping) else None


def read_fragment(fragment: ToolCall) -> tuple[str, str, str | Mapping[str, object] | None]:
    """Return what a fragment of a call has: id and name, "" without one, and its part of the arguments.

    The arguments are a piece of their JSON, which may be empty, or from some scripts the whole object; None without.
    """
    call_id, function = fragment.get("id"), fragment.get("function")
    found = call_id if isinstance(call_id, str) else ""
    if not isinstance(function, Mapping):
        return found, "", None
    name, arguments = function.get("name"), function.get("arguments")
    return (found, name if isinstance(name, str) else "", arguments if isinstance(arguments, (str, Mapping)) else None)


def new_call_id() -> str:
    """Return the id of a call to which the server gave none."""
    return f"call_{secrets.token_hex(12)}"


class ToolCallNumbers:
    """Finds the call of a stream that a fragment belongs to.

    The ``index`` of the fragment, which may be a string of digits, decides. Without one its ``id`` does: a new id
    begins the next call, and a fragment without an id continues the latest one.
    """

    def __init__(self) -> None:
        # The id is "" until it is known.
        self._ids: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._latest = 0
        self._highest = 0

    def number(self, fragment: ToolCall) -> int:
        """Return the number of the call, from 0. Fragments must be passed in order."""
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
        """Return the fragments; those without an integer ``index`` as copies with one."""
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
    """A call, assembled from the fragments that have arrived so far."""

    id: str = ""
    name: str = ""
    # Strings that are joined at the end: appending to one string would copy it for each token of a long argument.
    arguments: list[str] | Mapping[str, object] = field(default_factory=list)

    def add(self, fragment: ToolCall) -> None:
        """Add a fragment. A name, an id or an object replaces the present one; argument strings are appended."""
        call_id, name, arguments = read_fragment(fragment)
        self.id, self.name = call_id or self.id, name or self.name
        if isinstance(arguments, str):
            if not isinstance(self.arguments, list):
                self.arguments = []
            self.arguments.append(arguments)
        elif arguments is not None:
            self.arguments = dict(arguments)

    def whole(self) -> ToolCall:
        arguments = "".join(self.arguments) if isinstance(self.arguments, list) else self.arguments
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


class ToolCallAssembler:
    """Assembles streamed tool calls from their fragments."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._numbers = ToolCallNumbers()

    def add(self, fragments: Iterable[ToolCall]) -> None:
        """Add the ``tool_calls`` of one chunk."""
        for fragment in fragments:
            # A script's chunk may hold anything.
            if isinstance(fragment, Mapping):
                self._calls.setdefault(self._numbers.number(fragment), _Call()).add(fragment)

    def calls(self) -> list[ToolCall]:
        """Return the calls so far by ascending index."""
        return [call.whole() for _, call in sorted(self._calls.items())]


def _index(value: object) -> int | None:
    # ``isinstance`` would accept a bool.
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) <= MAX_DIGITS else None
