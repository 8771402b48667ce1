"""Tool calls in OpenAI's shapes: whole calls, and the fragments of a stream."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from Middleware.models.messages import FunctionCall, Message, ToolCall

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
    Other values, such as a list, are their JSON.
    """
    call_id, function = fragment.get("id"), fragment.get("function")
    found = call_id if isinstance(call_id, str) else ""
    if not isinstance(function, Mapping):
        return found, "", None
    name, arguments = function.get("name"), function.get("arguments")
    if arguments is not None and not isinstance(arguments, (str, Mapping)):
        arguments = arguments_text(arguments)
    return found, name if isinstance(name, str) else "", arguments


@dataclass
class _Arguments:
    """Follows the arguments of a call, a JSON text in pieces, to know whether it is whole."""

    begun: bool = False
    _opened: bool = False
    _quoted: bool = False
    _escaped: bool = False
    _depth: int = 0

    def add(self, text: str) -> None:
        for character in text:
            if self._quoted:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._quoted = False
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
                self._opened = True
            elif character in "}]":
                self._depth -= 1
        self.begun = self.begun or bool(text.strip())

    @property
    def is_whole(self) -> bool:
        return self._opened and self._depth <= 0 and not self._quoted


@dataclass
class _Known:
    """What the fragments of a call have brought so far."""

    id: str = ""
    name: str = ""
    arguments: _Arguments = field(default_factory=_Arguments)


class ToolCallNumbers:
    """Finds the call of a stream that a fragment belongs to.

    A known id continues its call, and a new one begins a call, except where a server sends the id late, or another one
    with each fragment. Without an id the ``index`` decides, which may be a string of digits, and without that it is the
    latest call. If the arguments of that are whole, a fragment with another name begins a new one, and one with the
    same name as well if it has arguments of its own, as nothing can follow whole ones.
    """

    def __init__(self) -> None:
        self._calls: list[_Known] = []
        self._by_id: dict[str, int] = {}
        self._by_index: dict[int, int] = {}
        self._latest = 0

    def number(self, fragment: ToolCall) -> int:
        """Return the number of the call, from 0. Fragments must be passed in order."""
        call_id, name, arguments = read_fragment(fragment)
        index = _index(fragment.get("index"))
        text = arguments if isinstance(arguments, str) else "" if arguments is None else "{}"
        number = self._find(call_id, index, name, bool(text.strip()))
        if number == len(self._calls):
            self._calls.append(_Known())
        call = self._calls[number]
        call.id, call.name = call.id or call_id, call.name or name
        call.arguments.add(text)
        if call_id:
            self._by_id[call_id] = number
        if index is not None:
            self._by_index[index] = number
        self._latest = number
        return number

    def _find(self, call_id: str, index: int | None, name: str, has_arguments: bool) -> int:
        new = len(self._calls)
        if call_id in self._by_id:
            known = self._by_id[call_id]
            # Servers also give all calls one id, and each an index or a name of its own.
            is_other = name and (
                self._calls[known].name not in ("", name) or (index is not None and self._by_index.get(index) != known)
            )
            return new if is_other and self._calls[known].arguments.is_whole else known
        latest = min(self._latest, new)
        # A fragment that has nothing but an unknown index goes on with the latest call.
        number = latest if index is None else self._by_index.get(index, new if call_id or name else latest)
        if number == new:
            # What only an empty fragment without an index has begun so far is the call of the next fragment.
            is_empty = new and self._calls[latest] == _Known() and latest not in self._by_index.values()
            return latest if is_empty else new
        call = self._calls[number]
        if not call_id:
            begins = name and call.name and call.arguments.is_whole and (name != call.name or has_arguments)
            return new if begins else number
        is_late = not call.id and not call.arguments.begun
        is_same = not call.arguments.is_whole and (not name or (name == call.name and call.arguments.begun))
        return number if is_late or is_same else new

    def numbered(self, fragments: Iterable[ToolCall]) -> list[ToolCall]:
        """Return the fragments; those whose ``index`` is not the number of their call as copies with that.

        Arguments that scripts give as an object become text, as clients expect them.
        """
        return [self._with_index(fragment) if isinstance(fragment, Mapping) else fragment for fragment in fragments]

    def _with_index(self, fragment: ToolCall) -> ToolCall:
        number, function = self.number(fragment), fragment.get("function")
        if isinstance(function, Mapping) and not isinstance(function.get("arguments"), str | None):
            fragment = {**fragment, "function": {**function, "arguments": arguments_text(function["arguments"])}}
        same = type(fragment.get("index")) is int and fragment.get("index") == number
        return fragment if same else {**fragment, "index": number}


class ToolCallReader:
    """Gives the tool calls of a back-end's stream one form, whatever form they have.

    The fragments leave with an ``index`` from 0 in the order in which their calls appear; the first one of a call has
    its ``id``, ``type`` and name, and no other has; arguments are text. Other members of a fragment stay as they are.
    """

    def __init__(self) -> None:
        self._numbers = ToolCallNumbers()
        # The calls whose first fragment has been passed on, and whether they have had arguments.
        self._begun: dict[int, bool] = {}
        # First fragments that wait for their id or their name, and empty arguments that wait for others.
        self._held: dict[int, ToolCall] = {}

    def read(self, fragments: Iterable[ToolCall], is_final: bool = False) -> list[ToolCall]:
        """Return the fragments of one event in that form; one that has to wait comes later.

        ``is_final``: the arguments ``{}`` do not stand for others that follow, as those of some servers do.
        """
        found: list[ToolCall] = []
        for fragment in fragments:
            number = self._numbers.number(fragment)
            if number not in self._begun:
                # Another call has begun, so what the one before waits for will not come.
                found += self._released(number)
            found += self._passed(number, fragment, is_final)
        return found

    def finish(self) -> list[ToolCall]:
        """Return what is left at the end of the stream: fragments that wait, and ``{}`` for no arguments."""
        found = self._released()
        for number, has_arguments in self._begun.items():
            if not has_arguments:
                found.append({"index": number, "function": {"arguments": "{}"}})
                self._begun[number] = True
        return found

    def _passed(self, number: int, fragment: ToolCall, is_final: bool, waits: bool = True) -> list[ToolCall]:
        held, is_first = self._held.pop(number, None), number not in self._begun
        if held:
            fragment = _merged(held, fragment)
        call_id, name, arguments = read_fragment(fragment)
        text, others = arguments_text(arguments), _of_function(fragment)
        lacks = is_first and not text and not (call_id and name)
        if waits and (lacks or (not is_final and not self._begun.get(number) and text.strip() == "{}")):
            self._held[number] = fragment
            return []
        if not is_first and not (text or others or _members(fragment)):
            return []
        self._begun[number] = self._begun.get(number, False) or bool(text.strip())
        begins: ToolCall = {"id": call_id or new_call_id(), "type": "function"} if is_first else {}
        named: FunctionCall = {"name": name} if is_first else {}
        return [{"index": number, **begins, **_members(fragment), "function": {**named, "arguments": text, **others}}]

    def _released(self, but: int | None = None) -> list[ToolCall]:
        waiting = [number for number in self._held if number != but]
        return [part for number in waiting for part in self._passed(number, {}, True, waits=False)]


def _merged(held: ToolCall, fragment: ToolCall) -> ToolCall:
    """Return one fragment of one that waits and the next of its call, whose arguments count if they are not blank."""
    parts = [part if isinstance(part := one.get("function"), Mapping) else {} for one in (held, fragment)]
    function = {key: value for part in parts for key, value in part.items() if value}
    before, text = (arguments_text(read_fragment(one)[2]) for one in (held, fragment))
    function["arguments"] = text if text.strip() else before + text
    return cast(ToolCall, {**held, **{key: value for key, value in fragment.items() if value}, "function": function})


def whole_call(call: ToolCall) -> ToolCall:
    """Return a call of a complete answer in the form that clients know: with an id, and with arguments as text."""
    call_id, name, arguments = read_fragment(call)
    text = arguments_text(arguments)
    return {
        "id": call_id or new_call_id(),
        "type": "function",
        **_members(call),
        "function": {"name": name, "arguments": text if text.strip() else "{}", **_of_function(call)},
    }


def with_unique_ids(messages: list[Message]) -> list[Message]:
    """Return a conversation in which no two calls have one id: servers that count from 0 in each answer repeat theirs.

    A later call gets its id with ``_2``, ``_3`` and so on, and the results that follow it the same. Changed messages
    are copies.
    """
    calling = [message["tool_calls"] for message in messages if "tool_calls" in message]
    known = [str(call.get("id")) for calls in calling for call in calls_among(calls)]
    if len(set(known)) == len(known):
        return messages
    out, taken = list(messages), set[str]()
    # The ids of the calls of the latest message, by the id that the client knows.
    waiting: dict[str, list[str]] = {}
    for index, message in enumerate(messages):
        if calls := calls_among(message.get("tool_calls")):
            waiting = {}
            out[index] = {**message, "tool_calls": [_with_own_id(call, taken, waiting) for call in calls]}
        elif message["role"] == "tool" and (ids := waiting.get(str(message.get("tool_call_id")))):
            # Of calls of one message with one id, the results come in their order.
            out[index] = {**message, "tool_call_id": ids.pop(0) if len(ids) > 1 else ids[0]}
    return out


def _with_own_id(call: ToolCall, taken: set[str], waiting: dict[str, list[str]]) -> ToolCall:
    known = call.get("id")
    if not isinstance(known, str) or not known:
        return call
    names = itertools.chain([known], (f"{known}_{number}" for number in itertools.count(2)))
    own = next(name for name in names if name not in taken)
    taken.add(own)
    waiting.setdefault(known, []).append(own)
    return {**call, "id": own}


def new_call_id() -> str:
    """Return the id of a call to which the server gave none."""
    return f"call_{secrets.token_hex(12)}"


def arguments_text(arguments: object) -> str:
    """Return the arguments of a call, or a piece of them, as text: other values become JSON, and null ""."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return json.dumps(arguments, ensure_ascii=False)


CALL_FORM = frozenset({"index", "id", "type", "function"})


def _members(fragment: ToolCall) -> ToolCall:
    """Return the members of a call that not all calls have."""
    return cast(ToolCall, {key: value for key, value in fragment.items() if key not in CALL_FORM})


def _of_function(fragment: ToolCall) -> FunctionCall:
    """Return the members of a call's function that not all have."""
    function = fragment.get("function")
    others = function.items() if isinstance(function, Mapping) else ()
    return cast(FunctionCall, {key: value for key, value in others if key not in ("name", "arguments")})


@dataclass
class _Call:
    """A call, assembled from the fragments that have arrived so far."""

    id: str = ""
    name: str = ""
    # Strings that are joined at the end: appending to one string would copy it for each token of a long argument.
    arguments: list[str] | Mapping[str, object] = field(default_factory=list)

    def add(self, fragment: ToolCall) -> None:
        """Add a fragment. The first id and name stay; an object replaces the arguments, and strings are appended."""
        call_id, name, arguments = read_fragment(fragment)
        self.id, self.name = self.id or call_id, self.name or name
        if isinstance(arguments, str):
            if not isinstance(self.arguments, list):
                self.arguments = []
            self.arguments.append(arguments)
        elif arguments is not None:
            self.arguments = dict(arguments)

    def whole(self) -> ToolCall:
        arguments = "".join(self.arguments) if isinstance(self.arguments, list) else self.arguments
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


def assembled(fragments: Iterable[ToolCall]) -> list[ToolCall]:
    """Return the whole calls of fragments that ``ToolCallReader`` has returned."""
    assembler = ToolCallAssembler()
    assembler.add(fragments)
    return assembler.calls()


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
