"""Remove the liveness calls that WilmerAI added to its own answers from a conversation, and merge repeated calls.

An agent client that such a call keeps running sends it back with every later request, where it would teach the LLM to
make the call itself. Nothing here changes its input; unchanged messages are the same objects in the result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from Middleware.models.messages import Message, ToolCall
from Middleware.utilities.answers.tool_calls import calls_among
from Middleware.utilities.config.keys.user import LIVENESS_CALL
from Middleware.utilities.prompt_extraction_utils import outside_exchange

ID_PREFIX = "wilmer_liveness_"
MARK = "[Wilmer]"
NO_TEXT = ("", "Assistant:")
# Agents often make a call twice for good reasons, such as a check before and after an edit.
LEAST_REPEATS = 3
NOTE = (
    "[Wilmer note: this call was made {count} consecutive times, and the result was identical each time. "
    "Making it again will change nothing. Act differently now: try other arguments or another tool, "
    "or answer with what is known.]"
)


def clean_up(messages: Sequence[Message], liveness: LivenessCall) -> list[Message]:
    """Return the conversation without liveness exchanges, except one at its end, and with repeated exchanges merged."""
    return collapse_repeats(strip_liveness_calls(messages, liveness))


# -- calls -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """A well-formed call. ``arguments`` is the string as received, an object as JSON, or "" without any."""

    id: str
    name: str
    arguments: str

    @staticmethod
    def of(call: ToolCall) -> _Call | None:
        function = call.get("function")
        if not isinstance(function, Mapping) or not isinstance(name := function.get("name"), str):
            return None
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping):
            arguments = json.dumps(dict(arguments), ensure_ascii=False)
        if arguments is not None and not isinstance(arguments, str):
            return None
        return _Call(_text(call.get("id")), name, arguments or "")

    @property
    def canonical_arguments(self) -> str:
        """Return the arguments as JSON with sorted keys; arguments that are not JSON are unchanged."""
        try:
            return json.dumps(json.loads(self.arguments.strip() or "{}"), sort_keys=True)
        except (ValueError, RecursionError):
            return self.arguments


@dataclass(frozen=True)
class LivenessCall:
    """The liveness call in the user's settings. It recognises the calls that WilmerAI has made."""

    name: str
    canonical_arguments: str

    @staticmethod
    def of(setting: object) -> LivenessCall | None:
        """Return the call that ``livenessToolCall`` declares; None unless it names a tool."""
        if not isinstance(setting, Mapping):
            return None
        name = LIVENESS_CALL.value(setting, "toolName")
        if not isinstance(name, str) or not name.strip():
            return None
        arguments = LIVENESS_CALL.value(setting, "arguments")
        encoded = json.dumps(dict(arguments) if isinstance(arguments, Mapping) else {}, sort_keys=True)
        return LivenessCall(name.strip(), encoded)

    def matches(self, raw: ToolCall) -> bool:
        """Return whether a call is a liveness call. A malformed call never is."""
        call = _Call.of(raw)
        return call is not None and (
            call.id.startswith(ID_PREFIX)
            or MARK in call.arguments
            or (call.name.strip() == self.name and call.canonical_arguments == self.canonical_arguments)
        )


# -- liveness calls ----------------------------------------------------------------------------------------------------


def strip_liveness_calls(messages: Sequence[Message], liveness: LivenessCall) -> list[Message]:
    """Return the conversation without liveness calls and their results; an exchange at its end stays."""
    last = _trailing_exchange(messages, liveness)
    strip = _Stripping(liveness)
    return [*chain.from_iterable(map(strip.feed, messages[:last])), *messages[last:]]


def _trailing_exchange(messages: Sequence[Message], liveness: LivenessCall) -> int:
    """Return the index of the liveness turn whose results end the conversation, or its length without one."""
    end = len(messages)
    # The requested answer may have been opened already.
    while end and _is_open_turn(messages[end - 1]):
        end -= 1
    start = outside_exchange(messages, end - 1)
    return start if end and any(map(liveness.matches, _calls(messages[start]))) else len(messages)


class _Stripping:
    """Removes liveness calls from a conversation, message by message from its start."""

    def __init__(self, liveness: LivenessCall) -> None:
        self._liveness = liveness
        self._removed_ids: set[str] = set()
        # The number of results without an id that may still belong to the previous turn.
        self._results_due = 0

    def feed(self, message: Message) -> list[Message]:
        """Return what remains of ``message``: itself, a reduced copy, or nothing."""
        if message.get("role") == "tool":
            return [] if self._belongs_to_removed(message) else [message]
        return self._turn(message)

    def _turn(self, message: Message) -> list[Message]:
        calls = _calls(message)
        removed = [call for call in calls if self._liveness.matches(call)]
        genuine = [call for call in calls if not self._liveness.matches(call)]
        # Some clients use the same ids again in every turn.
        self._removed_ids -= _ids(genuine)
        self._removed_ids |= _ids(removed)
        self._results_due = 0 if genuine else len(removed)
        if not removed:
            return [message]
        rest = message.copy()
        del rest["tool_calls"]
        if genuine:
            rest["tool_calls"] = genuine
            return [rest]
        return [] if _has_no_text(message) and not message.get("images") else [rest]

    def _belongs_to_removed(self, result: Message) -> bool:
        call_id = result.get("tool_call_id")
        ours = _text(call_id) in self._removed_ids if call_id else self._results_due > 0
        self._results_due = max(self._results_due - 1, 0) if ours else 0
        return ours


# -- repeats -----------------------------------------------------------------------------------------------------------


def collapse_repeats(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with each run of equal exchanges replaced by the first, with a note in its result."""
    kept: list[Message] = []
    index = 0
    while index < len(messages):
        count = _run_length(messages, index)
        if count >= LEAST_REPEATS:
            result = messages[index + 1]
            note = NOTE.format(count=count)
            kept += [messages[index], {**result, "content": f"{_text(result.get('content'))}\n\n{note}"}]
            index += 2 * count
        else:
            kept.append(messages[index])
            index += 1
    return kept


def _run_length(messages: Sequence[Message], index: int) -> int:
    first = _exchange(messages, index)
    count = 0
    while first is not None and _exchange(messages, index + 2 * count) == first:
        count += 1
    return count


def _exchange(messages: Sequence[Message], index: int) -> tuple[object, ...] | None:
    """Return the values by which exchanges are compared; None unless there is a turn with one call and one result."""
    if index + 1 >= len(messages):
        return None
    turn, result = messages[index], messages[index + 1]
    more_results = index + 2 < len(messages) and messages[index + 2].get("role") == "tool"
    calls = _calls(turn)
    call = _Call.of(calls[0]) if len(calls) == 1 else None
    if call is None or result.get("role") != "tool" or more_results:
        return None
    content = result.get("content")
    if content is not None and not isinstance(content, str):
        return None
    if call.id and result.get("tool_call_id") and call.id != result["tool_call_id"]:
        return None
    return call.name, call.canonical_arguments, " ".join(_text(content).split()), result.get("images")


# -- messages ----------------------------------------------------------------------------------------------------------


def _calls(message: Message) -> list[ToolCall]:
    """Return the calls of an assistant turn."""
    return calls_among(message.get("tool_calls")) if message.get("role") == "assistant" else []


def _ids(calls: Iterable[ToolCall]) -> set[str]:
    return {call_id for call in calls if (call_id := _text(call.get("id")))}


def _is_open_turn(message: Message) -> bool:
    """Return whether a message is an empty assistant turn, such as the start of the requested answer."""
    return message.get("role") == "assistant" and not message.get("tool_calls") and _has_no_text(message)


def _has_no_text(message: Message) -> bool:
    content = message.get("content")
    return content is None or (isinstance(content, str) and content.strip() in NO_TEXT)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
