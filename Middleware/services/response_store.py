"""The responses of the Responses API that clients refer to later: those under way, and in memory those that ended."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

from Middleware.exceptions import ClientError, DataKeyError, WilmerError
from Middleware.models.process import process
from Middleware.models.responses import Item, ResponseObject
from Middleware.services.memory.discussion_keys import ENCRYPT_KEY
from Middleware.utilities.config.users import choice_in, flag_in, settings_for
from Middleware.utilities.discussions.client_keys import data_key
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher, cipher_for, owner_mark
from Middleware.utilities.json_data import from_stored_json, to_stored_json
from Middleware.utilities.once import OwnedCache

logger = logging.getLogger(__name__)

STORE_KEY = "responsesStore"
IN_MEMORY, NOT_KEPT = "memory", "none"
# A conversation of an agent has some hundred responses; with whole histories or images, each is a few megabytes.
MAX_RESPONSES = 1000
MAX_BYTES = 64 * 1024 * 1024
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
# What the id of an item takes in memory, in addition to the JSON: a string, and its place in a set.
ITEM_ID_BYTES = 160
CLIENT_CANCELLED = "its client cancelled the response"
NOT_FOUND = "previous_response_not_found"
REFERENCE = "item_reference"
ANONYMOUS = "anon"
_RESPONSE_ID = re.compile(r"resp_([0-9a-f]{32})")
_MADE_ID = re.compile(r"[a-z]{1,8}_[0-9A-Fa-f]{16,64}")
# The beginnings of the ids that OpenAI gives to items. Any other type has that of its own name.
_ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}

Owner = tuple[str, str]
"""A user, and the mark of a client's key: all that two clients must have in common to see each other's responses."""


def response_id_of(request_id: str) -> str:
    """Return the id of the response to a request."""
    return f"resp_{request_id.replace('-', '')}"


def request_id_of(response_id: str) -> str | None:
    """Return the id of the request that has this response; None for an id that no request can have."""
    match = _RESPONSE_ID.fullmatch(response_id)
    return str(uuid.UUID(match[1])) if match else None


@dataclass(frozen=True)
class Caller:
    """Who asks.

    Attributes:
        users: the users whose responses are visible to the client.
        api_key: the client's key.
        keep_none: those of the users that keep no responses.
    """

    users: tuple[str, ...]
    api_key: str | None = field(default=None, repr=False)
    keep_none: frozenset[str] = frozenset()

    @staticmethod
    def of(users: Iterable[str], api_key: str | None) -> Caller:
        """Return the caller with the key, with what the settings of the users say."""
        users = tuple(users)
        return Caller(users, api_key, frozenset(user for user in users if not _kept_by(user)))

    @property
    def key_mark(self) -> str:
        return owner_mark(self.api_key) if self.api_key else ANONYMOUS

    def owners(self) -> frozenset[Owner]:
        """Return the owners whose stored responses this caller may use."""
        key_mark = self.key_mark
        return frozenset((user, key_mark) for user in self.users if user not in self.keep_none)


def _kept_by(user: str) -> bool:
    try:
        # A value that cannot be used is more likely meant to keep nothing than to keep everything.
        return choice_in(settings_for(user), STORE_KEY, user, NOT_KEPT) == IN_MEMORY
    # The broken file of one of several users must not hide the responses of the others.
    except WilmerError:
        return False


@dataclass(frozen=True)
class Conversation:
    """What a request goes on with.

    Attributes:
        history: the items of the earlier responses, input and output, oldest first.
        items: the items of the request itself, each with an id.
    """

    history: list[Item]
    items: list[Item]


@dataclass(frozen=True)
class _Entry:
    """A response that ended.

    Attributes:
        number: counts the responses in the order in which they ended.
        response, items: JSON, encrypted for users with encryption; both empty if it was too large.
        item_ids: the ids of the items of input and output.
    """

    number: int
    owner: Owner
    previous: str | None
    response: bytes
    items: bytes
    encrypted: bool
    item_ids: frozenset[str]

    @property
    def weight(self) -> int:
        return len(self.response) + len(self.items) + ITEM_ID_BYTES * len(self.item_ids)

    def read(self, data: bytes, caller: Caller) -> object | None:
        """Return one of the two pieces of JSON; None with a key that does not fit, for which nothing is there."""
        if not data:
            return None
        if self.encrypted:
            try:
                data = _cipher(caller, self.owner[0]).decrypt(data)
            except DataKeyError:
                return None
        return from_stored_json(data)

    def all_items(self, caller: Caller) -> list[Item] | None:
        """Return the items of input and output; None as ``read``."""
        items, response = self.read(self.items, caller), self.read(self.response, caller)
        if items is None or response is None:
            return None
        return [*cast("list[Item]", items), *_output(cast(ResponseObject, response))]


@dataclass
class AwaitedResponse:
    """A response that other requests may wait for. ``response`` is None if its client left before."""

    response: ResponseObject | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float) -> ResponseObject | None:
        """Wait for the end of the response; return it, or None if it did not end in time or without a client."""
        self._ended.wait(seconds)
        return self.response

    def end(self, response: ResponseObject | None) -> None:
        self.response = response
        self._ended.set()


class RunningResponse:
    """A response under way, from its beginning to the end of its last event.

    Attributes:
        id: the id of the response.
        items: the items of its input.
        kept: whether it stays in the store when it has ended, which its ``store`` field says.
        so_far: returns the response with its output so far. Other threads call it.
    """

    def __init__(
        self,
        store: ResponseStore,
        caller: Caller,
        request_id: str,
        items: Sequence[Item],
        previous: str | None,
        kept: bool,
    ) -> None:
        self.id = response_id_of(request_id)
        self.items = items
        self.previous = previous
        self.kept = kept
        self.caller = caller
        self.user = caller.users[0]
        # Read here: at the end of a stream, a mistake in the settings could not be reported any more.
        self.encrypted = kept and bool(caller.api_key) and flag_in(settings_for(self.user), ENCRYPT_KEY, self.user)
        self.so_far: Callable[[], ResponseObject] | None = None
        self._store = store

    def finish(self, response: ResponseObject) -> None:
        """Keep the response as it is sent last. To be called before that is sent; a second call does nothing."""
        self._store.end(self, response)

    def discard(self) -> None:
        """Forget the response unless it was finished: its client left, or got an error instead."""
        self._store.end(self, None)


class ResponseStore:
    """The responses of all clients of this process. Thread-safe; a restart forgets them.

    Of the owner that holds most, the response that was not used for longest leaves when there are too many.

    Args:
        max_responses: the number of responses that are kept.
        max_bytes: the bytes of their JSON, all together.
        max_response_bytes: the bytes of one; a larger one is not kept.
    """

    def __init__(
        self,
        max_responses: int = MAX_RESPONSES,
        max_bytes: int = MAX_BYTES,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        self._max_response_bytes = max_response_bytes
        self._lock = threading.Lock()
        self._entries: OwnedCache[str, _Entry] = OwnedCache(
            max_responses, max_bytes, lambda entry: entry.weight, lambda entry: entry.owner
        )
        self._numbers = itertools.count()
        self._running: dict[str, RunningResponse] = {}
        self._awaited: dict[str, list[AwaitedResponse]] = {}

    # -- a request -----------------------------------------------------------------------------------------------
    def conversation(self, caller: Caller, previous: str | None, items: Sequence[Item]) -> Conversation:
        """Return the items that a request sends, references replaced, and those that come before them.

        Raises:
            ClientError: the previous response, one before it, or an item that is referred to, is not known.
        """
        history = [] if previous is None else self._chain(caller, previous)
        present = {item.get("id") for item in history}
        wanted = [str(item.get("id")) for item in items if item.get("type") == REFERENCE]
        found = self._referenced(caller, {name for name in wanted if name not in present})
        own: list[Item] = []
        # One for all: a system call for each of thousands of items would be felt.
        digits = uuid.uuid4().hex
        for number, item in enumerate(items):
            kind, name = item.get("type"), item.get("id")
            if kind == REFERENCE:
                # An item of the history is in the conversation already.
                if str(name) not in present:
                    own.append(found[str(name)])
            elif name and isinstance(name, str):
                own.append(item)
            else:
                kind = kind if kind and isinstance(kind, str) else "message"
                own.append({**item, "id": f"{_ID_PREFIXES.get(kind, kind[:40])}_{digits}{number:04x}"})
        return Conversation(history, own)

    def begin(
        self, caller: Caller, request_id: str, items: Sequence[Item], previous: str | None = None, *, keep: bool = True
    ) -> RunningResponse:
        """Register the response to a request of the caller's only user.

        The caller that runs the request calls ``discard`` when it ends in any way.
        """
        running = RunningResponse(self, caller, request_id, items, previous, keep and not caller.keep_none)
        with self._lock:
            self._running[running.id] = running
        return running

    def end(self, running: RunningResponse, response: ResponseObject | None) -> None:
        """End a response under way, and keep what it has become, if anything."""
        if running.id not in self._running:
            return
        entry = self._entry(running, response) if response is not None and running.kept else None
        with self._lock:
            # Another thread may have ended or deleted it in the meantime.
            ended = self._running.pop(running.id, None)
            if ended is not None and entry is not None and running.kept:
                self._entries.put(running.id, entry)
            waiting = self._awaited.get(running.id, []) if ended is not None else []
            for awaited in waiting:
                awaited.end(response)

    def _entry(self, running: RunningResponse, response: ResponseObject) -> _Entry | None:
        owner = running.user, running.caller.key_mark
        try:
            data, items = to_stored_json(response), to_stored_json(running.items)
        # What a client nests as deeply as its request allows is one level deeper here.
        except RecursionError:
            logger.warning("Response %s is nested too deeply to be kept.", running.id)
            return None
        if len(data) + len(items) > self._max_response_bytes:
            logger.warning(
                "Response %s is not kept, because it has %d MB of JSON; at most %d MB are kept of one.",
                running.id,
                (len(data) + len(items)) >> 20,
                self._max_response_bytes >> 20,
            )
            return _Entry(next(self._numbers), owner, running.previous, b"", b"", False, frozenset())
        names = frozenset([str(item["id"]) for item in (*running.items, *_output(response)) if "id" in item])
        cipher = _cipher(running.caller, running.user) if running.encrypted else NO_CIPHER
        return _Entry(
            next(self._numbers),
            owner,
            running.previous,
            cipher.encrypt(data),
            cipher.encrypt(items),
            running.encrypted,
            names,
        )

    # -- reading -------------------------------------------------------------------------------------------------
    def response(self, caller: Caller, response_id: str) -> ResponseObject | None:
        """Return a response as it was sent last, or so far; None if the caller has none with this id that is kept."""
        running = self.running(caller, response_id)
        if running is not None and running.kept and running.so_far is not None:
            return running.so_far()
        entry = self._use(caller, response_id)
        return None if entry is None else cast("ResponseObject | None", entry.read(entry.response, caller))

    def items(self, caller: Caller, response_id: str) -> Sequence[Item] | None:
        """Return the items of the input of a response, without those of the ones before it; None as ``response``."""
        running = self.running(caller, response_id)
        if running is not None and running.kept:
            return running.items
        entry = self._use(caller, response_id)
        return None if entry is None else cast("Sequence[Item] | None", entry.read(entry.items, caller))

    def delete(self, caller: Caller, response_id: str) -> bool:
        """Forget a response; return False if the caller has none with this id that is kept."""
        running = self.running(caller, response_id)
        owners = caller.owners()
        with self._lock:
            if running is not None and running.kept and running.id in self._running:
                running.kept = False
                return True
            entry = self._entries.get(response_id)
            if entry is None or entry.owner not in owners or not entry.response:
                return False
            self._entries.pop(response_id)
        return True

    def running(self, caller: Caller, response_id: str) -> RunningResponse | None:
        """Return a response of the caller that is under way, kept or not; None for another id."""
        running = self._running.get(response_id)
        theirs = running is None or running.user not in caller.users or running.caller.key_mark != caller.key_mark
        return None if theirs else running

    @contextlib.contextmanager
    def awaiting(self, response_id: str) -> Iterator[AwaitedResponse]:
        """Yield an object that learns of the end of a response, which may not have begun yet."""
        awaited = AwaitedResponse()
        with self._lock:
            self._awaited.setdefault(response_id, []).append(awaited)
        try:
            yield awaited
        finally:
            with self._lock:
                # By identity: two that wait for the same end are equal.
                left = [other for other in self._awaited[response_id] if other is not awaited]
                self._awaited[response_id] = left
                if not left:
                    del self._awaited[response_id]

    # -- chains and references -----------------------------------------------------------------------------------
    def _chain(self, caller: Caller, response_id: str) -> list[Item]:
        """Return the items of a response and of all before it, oldest first. All of them count as used now."""
        entries: list[_Entry] = []
        wanted: str | None = response_id
        while wanted is not None:
            entry = self._use(caller, wanted)
            if entry is None or not entry.response:
                raise _lost(response_id, too_large=entry is not None)
            entries.append(entry)
            wanted = entry.previous
        history: list[Item] = []
        for entry in reversed(entries):
            items = entry.all_items(caller)
            if items is None:
                raise _lost(response_id)
            history += items
        return history

    def _referenced(self, caller: Caller, wanted: set[str]) -> dict[str, Item]:
        """Return the items with these ids, each from the newest response that has it, which counts as used now."""
        found: dict[str, Item] = {}
        if wanted:
            owners = caller.owners()
            with self._lock:
                entries = [(name, entry) for name, entry in self._entries.items() if entry.owner in owners]
            for response_id, entry in sorted(entries, key=lambda one: one[1].number, reverse=True):
                names = entry.item_ids & (wanted - found.keys())
                if names:
                    self._use(caller, response_id)
                    found.update(
                        {str(item["id"]): item for item in entry.all_items(caller) or () if item.get("id") in names}
                    )
                if len(found) == len(wanted):
                    break
        for name in sorted(wanted - found.keys()):
            raise ClientError(
                f"The item{in_quotes(name)} that 'input' refers to is not known: it was not stored, or "
                "has been forgotten. Send the item itself.",
                HTTPStatus.NOT_FOUND,
                param="input",
            )
        return found

    def _use(self, caller: Caller, response_id: str) -> _Entry | None:
        """Return an entry of the caller, used now."""
        owners = caller.owners()
        with self._lock:
            entry = self._entries.get(response_id)
            if entry is None or entry.owner not in owners:
                return None
            self._entries.use(response_id)
            return entry


def get_response_store() -> ResponseStore:
    """Return the store of this process."""
    return process().one(ResponseStore)


def in_quotes(name: str) -> str:
    """Return an id for a message: in quotes and with a space before it; nothing for what no server makes an id of.

    Messages go into the log, and a client may write anything.
    """
    return f" '{name}'" if _MADE_ID.fullmatch(name) else ""


def _lost(response_id: str, too_large: bool = False) -> ClientError:
    why = (
        "was too large to be stored, or one before it was"
        if too_large
        else ("is not known: it was not stored, or it or one before it has been deleted or forgotten")
    )
    return ClientError(
        f"The response{in_quotes(response_id)} that 'previous_response_id' names {why}. Send the whole "
        "conversation as 'input', without it.",
        param="previous_response_id",
        code=NOT_FOUND,
    )


def _output(response: ResponseObject) -> Sequence[Item]:
    return cast("Sequence[Item]", response["output"])


def _cipher(caller: Caller, user: str) -> Cipher:
    return cipher_for(data_key(caller.api_key or "", user))
