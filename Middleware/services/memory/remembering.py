"""Messages are remembered: each request brings the index of messages up to date, before its first node."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from Middleware.models.messages import Message, VisionNote
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext
from Middleware.services.memory.memory_settings import MemorySettings, quiet_memory_settings
from Middleware.services.memory.message_texts import parts_of
from Middleware.services.timestamp_service import TimestampService
from Middleware.services.vision_cache import VisionResponses, picture_text
from Middleware.utilities import sqlite
from Middleware.utilities.answers.cut_off_thoughts import without_thoughts
from Middleware.utilities.answers.text_cleaner import find_generation_prompt
from Middleware.utilities.conversations.message_keys import PathMessage, path_messages, recognised
from Middleware.utilities.discussion_state import MESSAGE_INDEX, DiscussionState
from Middleware.utilities.discussions.discussion_folder import stored_discussion
from Middleware.utilities.discussions.message_index import filling
from Middleware.utilities.discussions.message_index.filling import Filled
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.message_index.message_tables import PROVISIONAL
from Middleware.utilities.discussions.message_index.row_writing import NewMessage
from Middleware.utilities.hashing_utils import hash_message_with_images
from Middleware.utilities.once import Once
from Middleware.utilities.relative_dates import language_of_message, when_words
from Middleware.utilities.said_times import Calendar, Said, Source, calendar_of
from Middleware.utilities.text_utils import escape_braces, message_text, restore_braces

logger = logging.getLogger(__name__)

ROLES = ("user", "assistant")
# Messages before one that say in which language it is.
_BEFORE = 2
_WARN_AGAIN = 3600.0
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True)
class Speech:
    """Whose messages are remembered: a discussion, with the settings of its user."""

    state: DiscussionState
    settings: MemorySettings
    times: TimestampService

    @property
    def calendar(self) -> Calendar:
        return calendar_of(self.settings.time_zone)


class RequestMessages:
    """The messages of a request that are remembered, as ``filling.Incoming``.

    Attributes:
        all: the messages of the request; history: those that are remembered, by their index among all.
    """

    def __init__(self, speech: Speech, request: RequestContext, messages: Sequence[Message]) -> None:
        self._speech, self._request, self.all = speech, request, messages
        self._captions = self._read_captions()
        kept = {index: message for index, message in enumerate(messages) if self._is_said(message)}
        last = len(messages) - 1
        # What a front-end writes as the beginning of the answer is part of no message yet.
        if last in kept and find_generation_prompt(messages[last].get("content")):
            del kept[last]
        self.history = kept
        self._numbers = list(kept)
        self._list = list(kept.values())
        self.messages: Sequence[PathMessage] = path_messages(self._list)

    @property
    def dated(self) -> bool:
        return self._speech.calendar.dates

    def _read_captions(self) -> dict[str, str]:
        if not any("images" in message for message in self.all):
            return {}
        return VisionResponses(self._speech.state).read()

    def _is_said(self, message: Message) -> bool:
        if message.get("role") not in ROLES or isinstance(message, VisionNote):
            return False
        text = message_text(message)
        if "<" in text or "[" in text:
            text = without_thoughts(text)
        return bool(text.strip()) or bool(self._caption(message))

    def _caption(self, message: Message) -> str:
        if not self._captions or not message.get("images"):
            return ""
        found = self._captions.get(hash_message_with_images(message), "").strip()
        return picture_text(found) if found else ""

    @cached_property
    def _recognised(self) -> Callable[[Message], tuple[str, str, str]]:
        return recognised(self._list).parts

    def speaker(self, index: int) -> str | None:
        message = self._list[index]
        return str(message.get("name") or "").strip() or self._recognised(message)[1] or None

    def text(self, index: int) -> str:
        """Return the words of a message, without anything that others have put before it."""
        message = self._list[index]
        text = restore_braces(self._recognised(message)[2])
        name = str(message.get("name") or "").strip()
        if name and text.startswith(f"{name}:"):
            text = text[len(name) + 1 :]
        return "\n".join(filter(None, (without_thoughts(text).strip(), self._caption(message))))

    def parts(self, index: int) -> Sequence[str]:
        return parts_of(self.text(index))

    @cached_property
    def _said(self) -> dict[int, Said]:
        stamps = {number: self._recognised(message)[0] for number, message in self.history.items()}
        speech = self._speech
        return speech.times.said(self._request, speech.state.discussion_id, self.history, stamps, speech.calendar)

    def said(self, index: int) -> tuple[int | None, int]:
        return self._said[self._numbers[index]]

    def when_words(self, index: int, text: str, said: int | None) -> str:
        day = self._speech.calendar.day(said)
        before = [message_text(message) for message in self._list[max(0, index - _BEFORE) : index]]
        return when_words(text, day, language_of_message([*before, text])) if day is not None else ""


@dataclass
class Remembered:
    """What a request has brought into the index.

    Attributes:
        incoming: its messages; filled: which rows these are, None if they could not be stored.
        answered: its answer was stored, or is not to be.
        endpoints: the names of those that make vectors of its messages behind the answer.
    """

    speech: Speech
    incoming: RequestMessages
    filled: Filled | None = None
    answered: bool = False
    endpoints: list[str] = field(default_factory=list)

    @property
    def all(self) -> Sequence[Message]:
        return self.incoming.all

    def newest(self) -> tuple[str, str]:
        """Return the text of the newest message of the user, as it was sent, and as it is remembered."""
        history = list(self.incoming.history.values())
        place = next((at for at in reversed(range(len(history))) if history[at].get("role") == "user"), None)
        if place is None:
            return "", ""
        return restore_braces(message_text(history[place])).strip(), self.incoming.text(place)

    def rows_of(self, messages: Sequence[Message]) -> set[int]:
        """Return the ids of the rows of some of the request's messages."""
        if self.filled is None:
            return set()
        wanted = set(map(id, messages))
        found = zip(self.incoming.history.values(), self.filled.rows, strict=True)
        return {number for message, ids in found if id(message) in wanted for number in ids}

    def times_of(self, request: RequestContext, messages: Sequence[Message]) -> list[int | None]:
        """Return when some of the request's messages were sent, in Unix seconds, as the index knows it."""
        if self.filled is None:
            return [None] * len(messages)
        found = zip(self.incoming.history.values(), self.filled.rows, strict=True)
        first = {id(message): ids[0] for message, ids in found if ids}
        said: dict[int, int | None] = {}
        with warning(self.speech.state), self.speech.state.messages(scope=request.cancel_scope) as index:
            numbers = [first[id(message)] for message in messages if id(message) in first]
            said = {row.id: row.said for row in index.rows(numbers)}
        return [said.get(first.get(id(message), -1)) for message in messages]


def remember(
    request: RequestContext,
    discussion_id: str,
    messages: Sequence[Message],
    api_key_hash: str | None,
    encryption_key: bytes | None,
) -> Remembered:
    """Store what the messages of a request bring. Raises DataKeyError."""
    settings = quiet_memory_settings()
    state = stored_discussion(discussion_id, api_key_hash, encryption_key)
    times = TimestampService(api_key_hash, encryption_key, scope=request.cancel_scope)
    speech = Speech(state, settings, times)
    remembered = Remembered(speech, RequestMessages(speech, request, messages))
    remembered.endpoints += filter(None, (settings.embedding_endpoint,))
    with warning(state), opened_for_writing(state, request) as index:
        remembered.filled = filling.fill(index, remembered.incoming, int(time.time()), settings.messages_kept)
    return remembered


def remember_answer(request: RequestContext, remembered: Remembered, text: str) -> None:
    """Store the answer that the client has got, and what was left of a long history."""
    filled = remembered.filled
    if remembered.answered or filled is None:
        return
    remembered.answered = True
    speech, message = remembered.speech, Message(role="assistant", content=escape_braces(text))
    rows = _answer_rows(remembered, filled, message) if text.strip() else []
    if not rows and not filled.later:
        return
    with warning(speech.state), opened_for_writing(speech.state, request) as index:
        filling.add_answer(index, filled, rows, speech.settings.messages_kept)


def _answer_rows(remembered: Remembered, filled: Filled, message: Message) -> list[NewMessage]:
    history = [*remembered.incoming.history.values(), message]
    # Without a request's fields: the answer has none.
    incoming = RequestMessages(remembered.speech, RequestContext(), history)
    if len(incoming.messages) != len(history):
        return []
    now = int(time.time())
    said = (now, Source.ARRIVAL) if incoming.dated else Said()
    rows = filling.rows_of(incoming, len(history) - 1, filled.conversation, filled.end, said, now)
    return [row._replace(state=PROVISIONAL) for row in rows]


# -- the file ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened_for_writing(state: DiscussionState, request: RequestContext) -> Iterator[MessageIndex]:
    """Open the index for a block. A damaged file is moved away, and the index begins again."""
    try:
        index = state.messages(write=True, scope=request.cancel_scope)
    except sqlite3.DatabaseError as error:
        if sqlite.error_code(error) not in _DAMAGED:
            raise
        move_away(state)
        index = state.messages(write=True, scope=request.cancel_scope)
    with index:
        try:
            yield index
        except sqlite3.DatabaseError as error:
            if sqlite.error_code(error) in _DAMAGED:
                index.close()
                move_away(state)
            raise


def move_away(state: DiscussionState) -> None:
    """Give a damaged index another name. What the client still sends is stored again."""
    path = os.path.join(state.place, MESSAGE_INDEX)
    other = f"{path}.corrupt-{int(time.time())}"
    for ending in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            os.replace(path + ending, other + ending)
    logger.warning(
        "%s is damaged; it is now %s, and the messages that clients send are stored again",
        state.display(MESSAGE_INDEX),
        os.path.basename(other),
    )


def _warned() -> Once[tuple[str, int]]:
    """The discussions whose index could not be written, each with the hour."""
    return Once()


@contextlib.contextmanager
def warning(state: DiscussionState) -> Iterator[None]:
    """Turn an error of the file into a warning, once an hour: the conversation goes on without it."""
    try:
        yield
    # The message of other errors of SQLite never quotes a text.
    except (sqlite3.Error, OSError) as error:
        if process().one(_warned).first((state.place, int(time.monotonic() / _WARN_AGAIN))):
            logger.warning("Messages of discussion %s could not be stored: %s", state.discussion_id, error)
