"""``follow.json``: what is stored of a discussion's conversations to find them again in requests.

An unreadable document counts as empty. That costs precision, never a memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from Middleware.exceptions import StoredDataError
from Middleware.services.memory.memory_documents import FOLLOW_FILE
from Middleware.utilities.conversations.message_keys import PathMessage, Tail, next_tails
from Middleware.utilities.conversations.path import ClientFirst, client_first, key_before_window
from Middleware.utilities.conversations.trail import WindowFacts
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import read_object, write_content

MOST_CONVERSATIONS = 20
MOST_TOMBSTONES = 1000
_FIRST = 4


@dataclass(frozen=True)
class Conversation:
    """One of the conversations that share a discussion id.

    Attributes:
        number: names it, also in the index of messages.
        first: the keys of its first messages.
        active: kind of memory -> the ids of the pieces of its newest trail, in order.
        client_first, last: see ``WindowFacts``.
        tails: see ``next_tails``.
        used: when a request last belonged to it, in Unix milliseconds.
        rewritten: kind of memory -> how many passes in a row found most of it rewritten.
        length: the number of its messages at the last pass.
    """

    number: int
    first: tuple[str, ...] = ()
    active: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    client_first: ClientFirst | None = None
    last: str = ""
    tails: tuple[Tail, ...] = ()
    used: int = 0
    rewritten: Mapping[str, int] = field(default_factory=dict)
    length: int = 0

    def window(self, kind: str) -> WindowFacts:
        return WindowFacts(self.client_first, self.last, self.active.get(kind, ()))

    def seen(self, messages: Sequence[PathMessage], history: Sequence[PathMessage], now: int) -> Conversation:
        """Return the conversation after a request; ``history``: its messages without the injected ones."""
        before = self.tails[0] if self.tails else None
        return replace(
            self,
            first=self.first if len(self.first) == _FIRST else tuple(message.key for message in history[:_FIRST]),
            client_first=client_first(history, self.client_first),
            last=key_before_window(history, before, self.last),
            tails=next_tails(messages, self.tails),
            used=now,
        )


@dataclass(frozen=True)
class FollowState:
    """The document: conversations, the least recently used first, and the sources of what must not be made again."""

    conversations: tuple[Conversation, ...] = ()
    tombstones: tuple[tuple[str, ...], ...] = ()

    def find(self, number: int | None) -> Conversation | None:
        return next((one for one in self.conversations if one.number == number), None)

    def new_number(self) -> int:
        return max((one.number for one in self.conversations), default=0) + 1

    def with_conversation(self, changed: Conversation) -> FollowState:
        others = [one for one in self.conversations if one.number != changed.number]
        return replace(self, conversations=tuple(sorted([*others, changed], key=lambda one: one.used)))

    def with_tombstone(self, sources: tuple[str, ...]) -> FollowState:
        return replace(self, tombstones=(*self.tombstones, sources)[-MOST_TOMBSTONES:])


def read_follow_state(state: DiscussionState) -> FollowState:
    """Return the document of a discussion. Raises DataKeyError."""
    try:
        return follow_state_in(read_object(state, FOLLOW_FILE))
    except (StoredDataError, OSError):
        return FollowState()


def follow_state_in(content: Mapping[str, object]) -> FollowState:
    """Return the state that ``follow_state_as_json`` has written into an object; what is damaged is left out."""
    listed = [*_list(content.get("older")), *_list(content.get("conversations"))]
    found = [one for entry in listed if (one := _conversation(entry)) is not None]
    return FollowState(tuple(found), tuple(filter(None, map(_texts, _list(content.get("tombstones"))))))


def write_follow_state(state: DiscussionState, changed: FollowState) -> None:
    """Store the document. Raises OSError and DataKeyError."""
    write_content(state, FOLLOW_FILE, follow_state_as_json(changed))


def follow_state_as_json(changed: FollowState) -> dict[str, object]:
    """Return what is stored of a state."""
    old, new = changed.conversations[:-MOST_CONVERSATIONS], changed.conversations[-MOST_CONVERSATIONS:]
    return {
        "conversations": [_as_json(one) for one in new],
        # Of those that were not used for long, only their memories count.
        "older": [{"number": one.number, "active": _active_as_json(one)} for one in old],
        "tombstones": [list(sources) for sources in changed.tombstones],
    }


def _as_json(one: Conversation) -> dict[str, object]:
    first = one.client_first
    return {
        "number": one.number,
        "first": list(one.first),
        "active": _active_as_json(one),
        "clientFirst": {"key": first.key, "count": first.count, "second": first.second} if first else None,
        "last": one.last,
        "injected": [
            {"length": tail.length, "beginning": list(tail.beginning), "keys": list(tail.keys)} for tail in one.tails
        ],
        "used": one.used,
        "rewritten": dict(one.rewritten),
        "length": one.length,
    }


def _active_as_json(one: Conversation) -> dict[str, list[str]]:
    return {kind: list(names) for kind, names in one.active.items()}


def _conversation(entry: object) -> Conversation | None:
    if not isinstance(entry, Mapping) or type(entry.get("number")) is not int:
        return None
    first, active, rewritten = (entry.get(key) for key in ("clientFirst", "active", "rewritten"))
    return Conversation(
        number=entry["number"],
        first=_texts(entry.get("first")),
        active={str(kind): _texts(names) for kind, names in active.items()} if isinstance(active, Mapping) else {},
        client_first=_client_first(first) if isinstance(first, Mapping) else None,
        last=_text(entry.get("last")),
        tails=tuple(map(_tail, filter(_is_object, _list(entry.get("injected"))))),
        used=_number(entry.get("used")),
        rewritten={str(kind): _number(count) for kind, count in rewritten.items()}
        if isinstance(rewritten, Mapping)
        else {},
        length=_number(entry.get("length")),
    )


def _client_first(entry: Mapping[str, object]) -> ClientFirst:
    return ClientFirst(_text(entry.get("key")), _number(entry.get("count")), _text(entry.get("second")))


def _tail(entry: Mapping[str, object]) -> Tail:
    return Tail(_number(entry.get("length")), _texts(entry.get("beginning")), _texts(entry.get("keys")))


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: object) -> tuple[str, ...]:
    return tuple(entry for entry in _list(value) if isinstance(entry, str))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if type(value) is int else 0


def bury(state: DiscussionState, sources: tuple[str, ...]) -> None:
    """Note that no memory is made of these messages again. Raises OSError and DataKeyError."""
    write_follow_state(state, read_follow_state(state).with_tombstone(sources))
