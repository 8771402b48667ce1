"""Which messages are which, from request to request, and which stored texts were made of the messages of a request.

Users edit, delete, regenerate, go back and branch off; front-ends cut off the beginning, write names and dates before
messages, and insert texts of their own. Everything here is pure: it compares the keys of the messages of a request
with stored keys, whatever they are stored in. A *history* is the messages of a request without those of role
``system`` and without blank ones, as the outermost workflow got them; once the injected messages are known
(``injected``), it is the history without them (``without``), whose indexes all other functions mean.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from Middleware.models.messages import Message

# -- messages ----------------------------------------------------------------------------------------------------------


class PathMessage(NamedTuple):
    """A message of a history.

    Attributes:
        key: the first 16 hexadecimal digits of the hash of what it says: without role label, time stamp and speaker,
            and with runs of blanks as one.
        other: the same with the speaker, or without what may be one (he has not spoken again yet); "" if it has none.
        role: its role.
        length: the characters of its content.
    """

    key: str
    other: str = ""
    role: str = "user"
    length: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys by which a stored message may be this one: one or two."""
        return (self.key, self.other) if self.other else (self.key,)


def path_messages(messages: Sequence[Message]) -> list[PathMessage]:
    """Return the messages of a history with their keys, one for one.

    Names, roles and dates before the texts change no key, whether they stand before all messages or before none.
    """
    raise NotImplementedError


Positions = Mapping[str, Sequence[int]]
"""Key -> the indexes of the messages that have it, ascending."""


def positions(history: Sequence[PathMessage]) -> Positions:
    """Return where each key stands in ``history``; a message with two keys stands under both."""
    raise NotImplementedError


# -- injected messages -------------------------------------------------------------------------------------------------


class Tail(NamedTuple):
    """What is stored of a request to recognise the messages that front-ends insert at a fixed depth.

    Attributes:
        length: the number of messages, injected ones included.
        beginning: the keys of the first three.
        keys: the keys of the newest 40, the newest first.
    """

    length: int
    beginning: tuple[str, ...]
    keys: tuple[str, ...]


def tail_of(messages: Sequence[PathMessage]) -> Tail:
    """Return the ``Tail`` of a request, before injected messages are taken out."""
    raise NotImplementedError


def next_tails(messages: Sequence[PathMessage], known: Sequence[Tail]) -> tuple[Tail, ...]:
    """Return the tails that a request stores in place of ``known``: its own, and the newest of another one."""
    raise NotImplementedError


def injected(messages: Sequence[PathMessage], known: Sequence[Tail]) -> frozenset[int]:
    """Return the indexes of the messages that a front-end has inserted.

    Such a message is long and stands as far from the end as one with its key did in the newest request of another
    length, or of another window.

    Args:
        known: the stored tails of the conversation (``next_tails``).
    """
    raise NotImplementedError


def without(messages: Sequence[PathMessage], left_out: Collection[int]) -> list[PathMessage]:
    """Return the history without some messages."""
    return [message for index, message in enumerate(messages) if index not in left_out]


# -- conversations -----------------------------------------------------------------------------------------------------


class Known(Protocol):
    """A stored conversation, as it is asked about a history. Everything stored counts, what is elsewhere included.

    Attributes:
        number: its number within the discussion.
        used: when a request last belonged to it; a higher number is later.
        first: the keys of its first messages, at most 4.
        length: the number of messages of its newest trail; of rows, those on the path.
    """

    @property
    def number(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def first(self) -> Sequence[str]: ...
    @property
    def length(self) -> int: ...

    def shared(self, history: Sequence[PathMessage]) -> int:
        """Return how many messages of its newest trail occur in ``history``, each message counted once."""
        ...

    def places(self, message: PathMessage) -> Sequence[float]:
        """Return where the message stands in the conversation, by either key, ascending."""
        ...

    def side_by_side(self, messages: Sequence[PathMessage]) -> bool:
        """Return whether these messages stand somewhere directly one behind the other."""
        ...


@dataclass(frozen=True)
class KnownKeys:
    """A stored conversation whose keys are all in memory: ``Known`` for pieces, and for small tables of rows.

    Attributes:
        trail: the keys of its newest trail, in order.
        elsewhere: sequences of keys that stood in it at some time, in the order of writing.
    """

    number: int
    used: int = 0
    first: Sequence[str] = ()
    trail: Sequence[str] = ()
    elsewhere: Sequence[Sequence[str]] = ()

    @property
    def length(self) -> int:
        return len(self.trail)

    def shared(self, history: Sequence[PathMessage]) -> int:
        raise NotImplementedError

    def places(self, message: PathMessage) -> Sequence[float]:
        raise NotImplementedError

    def side_by_side(self, messages: Sequence[PathMessage]) -> bool:
        raise NotImplementedError


def conversation_of(history: Sequence[PathMessage], known: Iterable[Known]) -> int | None:
    """Return the number of the stored conversation to which a history belongs; None for one of its own.

    The newest user message is not counted. A conversation in which the first 4 messages agree, of whose newest trail
    half occurs, or in which at least 4 messages of the history occur in order, either half of it or its first 4 side
    by side. Of several, the one with most messages in common, then the one used last. Two messages in common, a
    greeting and "Hi", are never enough, unless they are half of what there is.
    """
    raise NotImplementedError


def is_tentative(history: Sequence[PathMessage]) -> bool:
    """Return whether a conversation has just begun: before its second user message and its sixth message.

    So are titles, tags and single questions of front-ends, of which nothing may be written.
    """
    raise NotImplementedError


# -- windows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientFirst:
    """The first message that a client sends, and how many messages the history had when it first was the first."""

    key: str
    count: int


def client_first(history: Sequence[PathMessage], known: ClientFirst | None) -> ClientFirst | None:
    """Return what a request stores in place of ``known``; None for an empty history."""
    raise NotImplementedError


def beginning_is_deleted(history: Sequence[PathMessage], known: ClientFirst | None) -> bool:
    """Return whether a beginning that is missing was deleted: the same message stayed first while 12 came.

    Only for a beginning that is missing inside the first piece of a conversation (of rows: its first ten). Otherwise
    it is cut off, by a client that sends the newest messages only, or hides old ones.
    """
    raise NotImplementedError


class Gap(NamedTuple):
    """Messages that a client leaves out behind the greeting that it keeps.

    Attributes:
        kept: how many messages stand before the gap, 1 or 2; the history begins behind it.
        missing: how many messages of the newest trail are left out.
    """

    kept: int
    missing: int


def kept_greeting(history: Sequence[PathMessage], newest: Sequence[str]) -> Gap | None:
    """Return the gap behind the greeting of a client that keeps it and cuts behind it; None without one.

    At least 4 messages are missing there in one run, before the newest 8 of ``newest``, and nothing stands there
    instead. One to three are a deletion.

    Args:
        newest: the keys of the newest trail of the conversation, in order; of rows, those on the path.
    """
    raise NotImplementedError


def key_before_window(history: Sequence[PathMessage], tail: Tail | None, known: str) -> str:
    """Return the key of the message before the first one that the client sends; "" if it is not known.

    Args:
        tail: that of the previous request of the conversation.
        known: what this function returned for it.
    """
    raise NotImplementedError


# -- pieces ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """The keys of a stored text that was made of messages.

    Attributes:
        id: names it; stays when its text is edited.
        sources: the keys of all messages that it was made of, in order.
        before: the key of the message before the first one; "" is the beginning of a conversation.
        after: the id of the piece before it; "" if it was the first.
        made: when, in Unix milliseconds; a higher number is later.
        tombstone: its text is deleted, and must not be made again.
    """

    id: str
    sources: tuple[str, ...]
    before: str = ""
    after: str = ""
    made: int = 0
    tombstone: bool = False


class Placed(NamedTuple):
    """A piece, and the indexes in the history of its sources; () if it stands before a window."""

    piece: Piece
    at: tuple[int, ...]


@dataclass(frozen=True)
class Trail:
    """The pieces on the path of a history that are chosen for it, oldest first; tombstones included.

    Attributes:
        length: the number of messages of the history.
        placed: the pieces; those before a window come first.
        begins_at: how many messages at the beginning belong to the last piece before the window, or were passed over
            for it.
    """

    length: int
    placed: Sequence[Placed] = ()
    begins_at: int = 0
    covered: frozenset[int] = field(default=frozenset())

    @property
    def pieces(self) -> list[Piece]:
        """Return the pieces with a text."""
        return [placed.piece for placed in self.placed if not placed.piece.tombstone]

    def holes(self, end: int) -> list[tuple[int, int]]:
        """Return the stretches, each as first index and index behind it, below ``end`` that no piece covers."""
        raise NotImplementedError


class WindowFacts(NamedTuple):
    """What is stored about the windows in which a client sends a conversation.

    Attributes:
        first: see ``ClientFirst``.
        last: see ``key_before_window``.
        newest: the ids of the pieces of the newest trail, in order.
    """

    first: ClientFirst | None = None
    last: str = ""
    newest: Sequence[str] = ()


def trail_of(history: Sequence[PathMessage], pieces: Sequence[Piece], window: WindowFacts) -> Trail:
    """Return the trail of a history.

    Args:
        pieces: all stored pieces of one kind, in the order of writing, the newest last.
    """
    raise NotImplementedError


def among_others(own: Sequence[Piece], others: Iterable[Piece]) -> list[Piece]:
    """Return the pieces of a trail with those of other conversations: each behind the last own piece made before it."""
    raise NotImplementedError
