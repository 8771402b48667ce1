"""Discussions in the state database: documents, locks and searchable memories.

Documents are byte for byte what files would hold. Each has a version, which every write compares: a worker that has
lost its lock without noticing can neither overwrite nor repeat what another one has written since.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import errors
from psycopg.rows import TupleRow

from Middleware.addons.postgres.database import Database, StateConnection
from Middleware.addons.postgres.listing import list_discussions
from Middleware.addons.postgres.session import WorkerSession, lock_key
from Middleware.addons.postgres.stored_salts import store_salt, stored_salt
from Middleware.exceptions import EarlyTerminationException, StateConflictError, StateUnavailableError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.utilities.config.users import get_discussions_space
from Middleware.utilities.discussion_state import DiscussionState, ListedDiscussion
from Middleware.utilities.discussions.discussion_folder import KEY_FOLDER, DiscussionFolder
from Middleware.utilities.discussions.stored_files import cipher_of, encoded
from Middleware.utilities.encryption_utils import MOST_DERIVED_KEYS, Cipher, KeySalt, cipher_for, file_named, is_token
from Middleware.utilities.files.file_access import PathLocks
from Middleware.utilities.files.path_utils import folded_name, is_flat_name
from Middleware.utilities.once import BoundedCache
from Middleware.utilities.text_utils import storable

if TYPE_CHECKING:
    from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
    from Middleware.utilities.discussions.vector_memory.searchable import SearchableMemories

# The bytes of the documents that this worker has read last, so that a document of megabytes is not sent at each turn.
_CACHED_BYTES = 64 * 1024 * 1024
_CACHED_DOCUMENTS = 100_000
# What an entry costs in addition to its bytes.
_ENTRY_BYTES = 500
_CHANGES, _LONGEST_PAUSE = 20, 0.02
_NEVER_READ = -1

# Documents that are removed and made again have other versions than before.
FIRST_VERSION = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_READ = """\
SELECT d.id, known.name, c.version, CASE WHEN c.version <> known.version THEN c.content END
FROM wilmer.discussions d CROSS JOIN unnest(%s::text[], %s::bigint[]) AS known (name, version)
LEFT JOIN wilmer.documents c ON c.discussion = d.id AND c.name = known.name
WHERE d.space = %s AND d.key_hash = %s AND d.discussion_id = %s"""
# If another worker was faster, what is there now comes back, unless that was at this moment.
_REPLACE = """\
WITH replaced AS (
    UPDATE wilmer.documents SET content = %(content)s, version = version + 1, changed_at = now()
    WHERE discussion = %(discussion)s AND name = %(name)s AND version = %(version)s RETURNING discussion, version)
SELECT discussion, version, NULL FROM replaced UNION ALL
SELECT discussion, version, content FROM wilmer.documents
WHERE discussion = %(discussion)s AND name = %(name)s AND NOT EXISTS (SELECT FROM replaced)"""
_ADD = f"""\
INSERT INTO wilmer.documents (discussion, name, content, version) VALUES (%s, %s, %s, {FIRST_VERSION})
ON CONFLICT DO NOTHING RETURNING discussion, version, NULL"""
_ADD_FIRST = f"""\
WITH one AS (
    INSERT INTO wilmer.discussions (space, key_hash, discussion_id) VALUES (%s, %s, %s)
    ON CONFLICT (space, key_hash, discussion_id) DO UPDATE SET created_at = wilmer.discussions.created_at RETURNING id)
INSERT INTO wilmer.documents (discussion, name, content, version) SELECT id, %s, %s, {FIRST_VERSION} FROM one
ON CONFLICT DO NOTHING RETURNING discussion, version, NULL"""
_COPY = f"""\
INSERT INTO wilmer.documents (discussion, name, content, version)
SELECT discussion, %s, content, {FIRST_VERSION} FROM wilmer.documents WHERE discussion = %s AND name = %s
ON CONFLICT (discussion, name) DO UPDATE
SET content = excluded.content, version = wilmer.documents.version + 1, changed_at = now()"""
_HOLDS_KEY = "SELECT EXISTS (SELECT FROM wilmer.discussions WHERE space = %s AND key_hash IN (%s, %s))"


@dataclass(frozen=True)
class _Document:
    """A document as it was read.

    Attributes:
        discussion: the row of its discussion; None before it is stored.
        version: 0 if there is no document.
    """

    discussion: int | None
    version: int
    content: bytes | None


def _weight(document: _Document) -> int:
    return _ENTRY_BYTES + len(document.content or b"")


class DatabaseDiscussions:
    """All discussions in the state database, for one worker."""

    def __init__(self, database: Database, session: WorkerSession) -> None:
        self.database, self.session = database, session
        self.cache: BoundedCache[tuple[str, ...], _Document] = BoundedCache(_CACHED_DOCUMENTS, _weight, _CACHED_BYTES)
        self._salts: dict[str, KeySalt | None] = {}
        # By the space and the names of a key: the one that has data, or "".
        self._first_names: BoundedCache[tuple[str, ...], str] = BoundedCache(MOST_DERIVED_KEYS)

    @property
    def worker(self) -> int:
        return self.session.number

    @property
    def health(self) -> str:
        return "unreachable" if self.database.down else "ok"

    def state(
        self, discussion_id: str, key_hash: str | None = None, encryption_key: bytes | None = None
    ) -> DiscussionState:
        return DatabaseDiscussion(self, discussion_id, key_hash, encryption_key)

    def listed(self) -> list[ListedDiscussion] | None:
        return list_discussions(self.database, storable(get_discussions_space()))

    def folder(
        self, discussion_id: str, key_hash: str | None = None, encryption_key: bytes | None = None
    ) -> DiscussionFolder | None:
        return None

    def key_salt(self, user: str | None = None) -> KeySalt | None:
        space = storable(get_discussions_space(user))
        # Salts come only while no server runs, so each is read once.
        if space not in self._salts:
            self._salts[space] = self.database.run(lambda connection: stored_salt(connection, space), again=True)
        return self._salts[space]

    def keep_key_salt(self, salt: KeySalt, user: str | None = None) -> KeySalt:
        space = storable(get_discussions_space(user))
        self.database.run(lambda connection: store_salt(connection, space, salt), again=True)
        self._salts.pop(space, None)
        return self.key_salt(user) or salt

    def has_key(self, name: str, user: str | None = None) -> bool:
        [(found,)] = self.database.read(_HOLDS_KEY, [storable(get_discussions_space(user)), name, name])
        return bool(found)

    def first_name(self, names: Sequence[str], user: str | None = None) -> str | None:
        place = storable(get_discussions_space(user)), *names
        known = self._first_names.get(place)
        if known is None:
            try:
                known = next((name for name in names if self.has_key(name, user)), "")
            # The database may be back before the request ends. What it writes then would hide all data under a later
            # name, if it had the name of a key without data.
            except StateUnavailableError:
                return names[-1]
            # A server writes under no other name while this one has data, or none has.
            self._first_names.put(place, known)
        return known or None

    def hold_data_of_a_key(self, discussion_id: str) -> bool:
        folded = folded_name(discussion_id)
        if not KEY_FOLDER.fullmatch(folded):
            return False
        try:
            [(found,)] = self.database.read(_HOLDS_KEY, [get_discussions_space(), storable(discussion_id), folded])
        # Nothing is stored without the database, and it may be back before the request ends.
        except StateUnavailableError:
            return True
        return bool(found)


class DatabaseDiscussion:
    """One discussion in the state database.

    The object remembers the version of each document that it has read last, and writes only if that is still the
    present one. While it holds a lock, a document must not change between two readings either: then the lock was lost,
    another worker has it, and reading raises StateConflictError.

    Raises ValueError for an id or hash that is not usable as the name of a folder, into which it may be exported.
    """

    def __init__(
        self,
        all_discussions: DatabaseDiscussions,
        discussion_id: str,
        key_hash: str | None,
        encryption_key: bytes | None,
    ) -> None:
        if not is_flat_name(discussion_id) or (key_hash and not is_flat_name(key_hash)):
            raise ValueError("a discussion id must be usable as the name of a folder")
        self._all, self._database = all_discussions, all_discussions.database
        self._id = discussion_id
        self._cipher = cipher_for(encryption_key)
        self._names = storable(get_discussions_space()), key_hash or "", storable(discussion_id)
        self._read: dict[str, _Document] = {}
        # While a lock is held: the version of each document that was read since.
        self._during_lock: dict[str, int] | None = None
        # While documents are read together: each of them, as soon as one of them was wanted.
        self._together: dict[str, _Document | None] | None = None

    @property
    def discussion_id(self) -> str:
        return self._id

    @property
    def place(self) -> str:
        return "\0".join((self._database.place, *self._names))

    @property
    def cipher(self) -> Cipher:
        return self._cipher

    def display(self, name: str) -> str:
        return f"{self._id}/{name}"

    def memories(self, *, write: bool = False, scope: CancelScope | None = None) -> SearchableMemories:
        # Most discussions have none.
        from Middleware.addons.postgres.memory_rows import PostgresMemories

        return PostgresMemories(self._database, *self._names, write=write, cipher=self._cipher, scope=scope)

    def messages(self, *, write: bool = False, scope: CancelScope | None = None) -> MessageIndex:
        from Middleware.addons.postgres.message_store import PostgresMessages

        return PostgresMessages(self._database, *self._names, write=write, cipher=self._cipher, scope=scope)

    # -- documents -----------------------------------------------------------------------------------------------------
    def read(self, name: str) -> bytes | None:
        during_lock = self._during_lock
        try:
            document = self._present(name)
        except StateUnavailableError:
            # What could not be read must not be replaced later, as if it had been empty.
            if during_lock is not None:
                during_lock[name] = _NEVER_READ
            raise
        if during_lock is not None and during_lock.setdefault(name, document.version) != document.version:
            raise self._conflict(name)
        self._read[name] = document
        return document.content

    @contextlib.contextmanager
    def together(self, *names: str) -> Iterator[None]:
        is_outer = self._together is None
        self._together = {**dict.fromkeys(names), **(self._together or {})}
        try:
            yield
        finally:
            if is_outer:
                self._together = None

    def write(self, name: str, content: bytes) -> None:
        if name not in self._read:
            self.read(name)
        document = self._read[name]
        if self._during_lock is not None and self._during_lock.get(name, document.version) != document.version:
            raise self._conflict(name)
        self._replace(name, document, content)

    def change(
        self,
        name: str,
        function: Callable[[bytes | None], bytes | None],
        scope: CancelScope | None = None,
        timeout: float | None = None,
    ) -> None:
        ends = None if timeout is None else time.monotonic() + timeout
        # The threads of this worker wait for each other, so that only other workers can be faster.
        with process().one(PathLocks).named(f"{self.place}\0{name}", scope, timeout):
            # What this worker has read last usually is the present document, and writing compares it.
            document, is_present = self._known(name), False
            for attempt in range(_CHANGES):
                # The first may have failed only because this worker did not know what another has written long ago.
                if attempt > 1:
                    _pause(scope, ends)
                if document is None:
                    document, is_present = self._fetch(name) if attempt else self._present(name), True
                try:
                    content = function(document.content)
                except Exception:
                    if is_present:
                        raise
                    # The present document may be another one.
                    document = None
                    continue
                if content is None and not is_present:
                    present = self._present(name)
                    if present is not document:
                        document, is_present = present, True
                        continue
                self._note(name, document)
                if content is None:
                    return
                try:
                    self._replace(name, document, content)
                    return
                except StateConflictError:
                    newer = self._known(name)
                    document, is_present = None if newer is document else newer, True
        raise self._conflict(name)

    def copy(self, name: str, suffix: str, instead: bytes | None = None) -> None:
        stored = self.read(name)
        if instead is not None:
            cipher = cipher_of(stored or b"", self._cipher, self.display(name))
            self._set(name + suffix, self._present(name + suffix), encoded(instead, cipher))
            self._read.pop(name + suffix, None)
            return
        if stored is None:
            return
        # A document of another key must not replace a good copy.
        with file_named(self.display(name)):
            clear = self._cipher.decrypt(stored)
        if self._cipher.active and not is_token(stored):
            self._set(name + suffix, self._present(name + suffix), self._cipher.encrypt(clear))
        else:
            self._database.run(
                lambda connection: connection.execute(_COPY, [name + suffix, self._read[name].discussion, name]),
                again=True,
            )
        self._read.pop(name + suffix, None)

    def hide(self, name: str, suffix: str) -> None:
        if not self._cipher.active:
            return
        copy = self._present(name + suffix)
        if copy.content and not is_token(copy.content):
            self._set(name + suffix, copy, self._cipher.encrypt(copy.content))

    # -- locks ---------------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def lock(self, name: str, scope: CancelScope | None = None, timeout: float | None = None) -> Iterator[None]:
        with self._all.session.lock(f"{self.place}\0{name}", lock_key(*self._names, name), scope, timeout):
            if self._together is not None:
                # Others may have written until the lock was free.
                self._together = dict.fromkeys(self._together)
            if self._during_lock is not None:
                yield
                return
            self._during_lock = {}
            try:
                yield
            finally:
                self._during_lock = None

    def _conflict(self, name: str) -> StateConflictError:
        return StateConflictError(f"another worker has changed {self.display(name)} in the meantime")

    # -- statements ----------------------------------------------------------------------------------------------------
    def _known(self, name: str) -> _Document | None:
        """Return the document as this worker has read or written it last; None if it does not know it."""
        return self._all.cache.get((*self._names, name))

    def _present(self, name: str) -> _Document:
        """Return the document, as it was at the first reading of those that are read together."""
        if self._together is None or name not in self._together:
            return self._fetch(name)
        missing = [one for one, document in self._together.items() if document is None]
        return self._together[name] or self._fetch(name, *missing)

    def _fetch(self, name: str, *others: str) -> _Document:
        """Return the document, and note all others; bytes are sent only if this worker does not have them."""
        known = {one: self._known(one) for one in (name, *others)}
        versions = [one.version if one else 0 for one in known.values()]
        rows = self._database.run(
            lambda connection: connection.execute(_READ, [list(known), versions, *self._names], binary=True).fetchall(),
            again=True,
        )
        found = {one: _Document(None, 0, None) for one in known}
        for discussion, one, version, content in rows:
            before = known[one]
            if version is None:
                found[one] = _Document(discussion, 0, None)
            elif before is not None and version == before.version:
                found[one] = before
            else:
                found[one] = self._keep(one, _Document(discussion, version, content))
        if self._together is not None:
            self._together.update((one, found[one]) for one in self._together.keys() & found.keys())
        return found[name]

    def _keep(self, name: str, document: _Document) -> _Document:
        self._all.cache.put((*self._names, name), document)
        if self._together is not None and name in self._together:
            self._together[name] = document
        return document

    def _note(self, name: str, document: _Document) -> None:
        """Take the version of a document as this object's own."""
        self._read[name] = document
        if self._during_lock is not None:
            self._during_lock[name] = document.version

    def _replace(self, name: str, before: _Document, content: bytes) -> None:
        cipher = self._cipher
        if before.content is not None:
            cipher = cipher_of(before.content, cipher, self.display(name))
        self._note(name, self._set(name, before, encoded(content, cipher)))

    def _set(self, name: str, before: _Document, stored: bytes) -> _Document:
        """Store the bytes if ``before`` is still the present document, and return the new one."""

        def compare_and_set(connection: StateConnection) -> list[TupleRow]:
            if before.version:
                return connection.execute(
                    _REPLACE,
                    {"content": stored, "discussion": before.discussion, "name": name, "version": before.version},
                    binary=True,
                ).fetchall()
            if before.discussion is None:
                return connection.execute(_ADD_FIRST, [*self._names, name, stored]).fetchall()
            try:
                return connection.execute(_ADD, [before.discussion, name, stored]).fetchall()
            # The discussion has been removed since.
            except errors.ForeignKeyViolation:
                return []

        present = None
        for discussion, version, faster in self._database.run(compare_and_set, again=True):
            if faster is None:
                return self._keep(name, _Document(discussion, version, stored))
            if version != before.version:
                present = self._keep(name, _Document(discussion, version, faster))
        present = present or self._fetch(name)
        # The first attempt of this statement may have been carried out although its connection broke.
        if present.content != stored:
            raise self._conflict(name)
        return present


def _pause(scope: CancelScope | None, ends: float | None) -> None:
    """Wait for a moment before a change is tried again, so that two workers do not meet again and again."""
    time.sleep(random.random() * _LONGEST_PAUSE)
    if scope is not None and scope.cancelled:
        raise EarlyTerminationException("The request was cancelled while others changed a document")
    if ends is not None and time.monotonic() >= ends:
        raise TimeoutError("others change the document all the time")
