"""Who is signed in to the console: operators, by a hash in the index, and clients' keys, by a token that contains the
session. Both outlive the server, and are known to every process that uses the console's folder."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, TypedDict, TypeVar

from Middleware.addons.console.calls import ConsoleError, Role
from Middleware.addons.console.sign_in import read_code
from Middleware.addons.records.console_folder import SECRET_BYTES
from Middleware.addons.records.model import MICROSECONDS
from Middleware.api.edge.access_keys import BEARER, AccessKeys, Grant, api_key_in
from Middleware.utilities.discussions.client_keys import key_names
from Middleware.utilities.once import BoundedCache, Once
from Middleware.utilities.text_utils import encode_text

if TYPE_CHECKING:
    import sqlite3

    from cryptography.fernet import Fernet

    from Middleware.addons.records.viewers import Viewer, ViewerRole

logger = logging.getLogger(__name__)

T = TypeVar("T")
OPERATOR_DAYS = 30
OPERATOR_SECONDS = OPERATOR_DAYS * 24 * 3600
KEY_SECONDS = 12 * 3600
# The time of the last use is written at most so often, so that reading a page is not a write.
TOUCH_SECONDS = 3600
# It distinguishes a token that has expired from a guessed key, and does not count as a failed sign-in.
TOKEN_PREFIX = "wilmer-console-"
TOKEN_BYTES = 32
# Listed at most. Far more than there are browsers of one household; the one not used for longest is not listed.
MAX_KEY_SESSIONS = 500
# The first bits of each token of the library: its version, and zeros of the time.
FERNET_BEGINNING = "gAAAA"
FAILURES, FAILURE_SECONDS = 10, 60.0
# Peers whose failures are remembered. Forgetting one costs an attacker with so many addresses nothing anyway.
MAX_PEERS = 1000
MAX_LABEL = 120
_SPEND = "INSERT OR IGNORE INTO spent VALUES (?, ?)"
_END = "DELETE FROM session WHERE lower(substr(hex(hash), 1, 16)) = ?"

Index = Callable[[], AbstractContextManager["sqlite3.Connection"]]


class SessionLine(TypedDict):
    """A signed-in browser, as Settings lists it; times in microseconds."""

    id: str
    label: str
    role: str
    created: int
    used: int
    current: bool


@dataclass(frozen=True, slots=True)
class Session:
    """Who makes a call.

    Attributes:
        users: whose runs may be seen; None for all.
        expires: microseconds since 1970; None for a key that is sent in place of a token.
        key: of the client; None for an operator.
        key_name: the note next to the key, for the log.
        id: names the session in lists; "" for a key that is sent in place of a token.
    """

    role: Role
    users: frozenset[str] | None = None
    expires: int | None = None
    key: str | None = field(default=None, repr=False)
    key_name: str = ""
    id: str = ""

    def viewer(self) -> Viewer:
        """Return who asks, for the archive of runs."""
        from Middleware.addons.records.viewers import Viewer

        roles: dict[Role, ViewerRole] = {Role.OWN: "own", Role.ALL: "all", Role.OPERATOR: "operator"}
        names = key_names(self.key, self.users) if self.key else frozenset()
        return Viewer(roles[self.role], names, self.users, self.key)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _id(digest: bytes) -> str:
    return digest.hex()[:16]


def _line(digest: bytes, label: str, created: int, used: int, role: Role = Role.OPERATOR) -> SessionLine:
    return {"id": _id(digest), "label": label, "role": role.word, "created": created, "used": used, "current": False}


class SessionTable:
    """What the index knows of sessions: those of operators, and which sign-in codes and tokens of keys were used up.

    A session that could not be written, or read again, lives in memory: a full disk must not keep its owner from
    looking why. The end of a session holds at once, and is written as soon as the disk takes it.
    """

    def __init__(self, index: Index, clock: Callable[[], float] = time.time) -> None:
        self._index = index
        self._clock = clock
        self._lock = threading.Lock()
        # Used codes, and sessions that are not on the disk.
        self._spent: dict[bytes, int] = {}
        self._unstored: dict[bytes, SessionLine] = {}
        # When sessions were used last, as far as they were looked for.
        self._seen: dict[bytes, int] = {}
        # Statements that the disk did not take, with their values.
        self._late: set[tuple[str, tuple[object, ...]]] = set()
        self._failures: Once[str] = Once(1)

    def spend(self, nonce: bytes, until: int) -> bool:
        """Use a code up; return False if it has been used."""
        now = int(self._clock())
        with self._lock:
            self._spent = {known: end for known, end in self._spent.items() if end >= now}
            if nonce in self._spent:
                return False
            self._spent[nonce] = until

        def store(index: sqlite3.Connection) -> bool:
            index.execute("DELETE FROM spent WHERE until < ?", (now,))
            return index.execute(_SPEND, (nonce, until)).rowcount > 0

        # Another process on the same folder may have let the code in. Without the disk only this one is asked.
        return self._on_disk(store, unless=True, late=(_SPEND, (nonce, until)))

    def is_spent(self, nonce: bytes) -> bool | None:
        """Return whether ``spend`` has had this, in whichever process on the folder; None if the disk does not say."""
        return nonce in self._spent or self._on_disk(
            lambda index: index.execute("SELECT 1 FROM spent WHERE nonce = ?", (nonce,)).fetchone() is not None,
            unless=None,
        )

    def begin(self, label: str) -> tuple[str, Session]:
        """Begin a session of an operator; return its token and it."""
        token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        digest, now = _hash(token), self._now()

        def store(index: sqlite3.Connection) -> bool:
            index.execute("DELETE FROM session WHERE used < ?", (self._oldest(),))
            index.execute(
                "INSERT INTO session (hash, created, used, label) VALUES (?, ?, ?, ?)", (digest, now, now, label)
            )
            return True

        if not self._on_disk(store, unless=False):
            self._unstored[digest] = _line(digest, label, now, now)
        return token, self._session(digest, now)

    def find(self, token: str) -> Session | None:
        """Return the session of a token; None without one, or if it has ended."""
        digest, now = _hash(token), self._now()
        if digest in self._unstored:
            return self._session(digest, now)
        if self._ends(digest):
            return None

        def look(index: sqlite3.Connection) -> int | None:
            row = index.execute("SELECT used FROM session WHERE hash = ?", (digest,)).fetchone()
            return None if row is None else int(row[0])

        used = self._on_disk(look, unless=self._seen.get(digest))
        if used is None or used < self._oldest():
            self._seen.pop(digest, None)
            return None
        self._seen[digest] = used
        if used < now - TOUCH_SECONDS * MICROSECONDS:
            # If the disk cannot be written, the session goes on.
            self._on_disk(
                lambda index: index.execute("UPDATE session SET used = ? WHERE hash = ?", (now, digest)), unless=None
            )
            used = now
        return self._session(digest, used)

    def lines(self) -> list[SessionLine]:
        """Return all sessions, the last used first."""
        rows: list[tuple[bytes, str, int, int]] = self._on_disk(
            lambda index: index.execute(
                "SELECT hash, label, created, used FROM session WHERE used >= ?", (self._oldest(),)
            ).fetchall(),
            unless=[],
        )
        found = [
            _line(digest, label or "", created, used) for digest, label, created, used in rows if not self._ends(digest)
        ]
        return sorted([*found, *self._unstored.values()], key=lambda line: -line["used"])

    def end(self, name: str) -> bool:
        """End the session with this id; return False without one."""
        for digest in [digest for digest in list(self._seen) if _id(digest) == name]:
            del self._seen[digest]
        unstored = [digest for digest in list(self._unstored) if _id(digest) == name]
        for digest in unstored:
            del self._unstored[digest]
        gone = self._on_disk(lambda index: index.execute(_END, (name,)).rowcount, unless=1, late=(_END, (name,)))
        return bool(unstored) or gone > 0

    def _ends(self, digest: bytes) -> bool:
        """Return whether a session has ended that is still on the disk."""
        return (_END, (_id(digest),)) in self._late

    def end_all(self) -> int:
        """End every session; return how many there were."""
        count = len(self._unstored)
        self._unstored.clear()
        self._seen.clear()
        return count + self._on_disk(lambda index: index.execute("DELETE FROM session").rowcount, unless=0)

    def _now(self) -> int:
        return int(self._clock() * MICROSECONDS)

    def _oldest(self) -> int:
        """Return the last use before which a session has ended."""
        return self._now() - OPERATOR_SECONDS * MICROSECONDS

    @staticmethod
    def _session(digest: bytes, used: int) -> Session:
        return Session(Role.OPERATOR, expires=used + OPERATOR_SECONDS * MICROSECONDS, id=_id(digest))

    def _on_disk(
        self,
        action: Callable[[sqlite3.Connection], T],
        unless: T,
        late: tuple[str, tuple[object, ...]] | None = None,
    ) -> T:
        """Return the result of ``action`` on the index, which may be done twice; ``unless`` if the disk is at fault.

        ``late`` is the statement that a later call executes in that case.
        """
        # Imported here: a server whose console is never opened needs no SQLite for it.
        import sqlite3

        from Middleware.utilities.sqlite import when_free

        try:
            with self._index() as index:
                result = when_free(lambda: action(index))
                # The disk may take no writes yet.
                with contextlib.suppress(sqlite3.Error):
                    for statement in list(self._late):
                        index.execute(*statement)
                        self._late.discard(statement)
        except (sqlite3.Error, OSError) as error:
            # Open pages ask twice a second.
            if self._failures.first(type(error).__name__):
                logger.warning("The sessions of the console could not be read or written: %s", type(error).__name__)
            if late is not None:
                self._late.add(late)
            return unless
        if self._failures.keys():
            self._failures.clear()
        return result


@dataclass(frozen=True, slots=True)
class _KeySession:
    """A session of a client's key, as its token contains it; ``created`` in microseconds."""

    key: str = field(repr=False)
    created: int
    label: str


class KeySessions:
    """The sessions of clients' keys: each is encrypted in its token with the secret of the console's folder.

    A session outlives the server, and every process on the folder knows it. No key is on the server's disk, and none
    can be read from a token without the secret. A session that has ended is noted in the index, where all processes
    look.
    """

    def __init__(
        self,
        keys: AccessKeys | None,
        table: SessionTable,
        secret: Callable[[], bytes],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._table = table
        self._secret = secret
        self._clock = clock
        # The secret as it was read last, so that sessions survive a disk that fails. Before that, one of this process.
        self._known_secret = secrets.token_bytes(SECRET_BYTES)
        # For the list of signed-in browsers.
        self._seen: BoundedCache[bytes, _KeySession] = BoundedCache(MAX_KEY_SESSIONS)

    def session_of(self, key: str) -> Session:
        """Return what a key may do now. Raises ConsoleError: 401 for no accepted key, 403 for one without a role."""
        if self._keys is None:
            return Session(Role.OWN, key=key)
        grant = self._keys.grant(BEARER + key)
        if grant is None:
            raise ConsoleError(401, "This is not one of the keys that the server accepts.")
        return _granted(grant, key)

    def begin(self, key: str, label: str) -> tuple[str, Session]:
        """Begin a session; return its token and it. Raises ConsoleError as ``session_of`` does."""
        session = self.session_of(key)
        known = _KeySession(key, int(self._clock() * MICROSECONDS), session.key_name or label)
        content = json.dumps([known.key, known.created, known.label])
        token = TOKEN_PREFIX + self._fernet().encrypt(content.encode("utf-8")).decode("ascii")
        digest = _hash(token)
        self._seen.put(digest, known)
        return token, _timed(session, digest, known)

    def find(self, token: str) -> Session | None:
        """Return the session of a token; None if it has ended, or is not a token of a key."""
        digest, known = _hash(token), self._opened(token)
        if known is None:
            return None
        ended = self._table.is_spent(digest)
        # Where the disk cannot tell, only a session that this process has seen goes on: another may have ended.
        if ended or (ended is None and digest not in self._seen):
            self._seen.pop(digest)
            return None
        session = self._session(digest, known)
        if session is None:
            # For ever, even if the key is accepted again.
            self._end(digest, known)
        else:
            self._seen.put(digest, known)
        return session

    def lines(self) -> list[SessionLine]:
        """Return the sessions that this process has seen, the newest first."""
        return [
            _line(digest, known.label, known.created, known.created, session.role)
            for digest, known in sorted(self._listed(), key=lambda one: -one[1].created)
            if (session := self._session(digest, known)) is not None
        ]

    def end(self, name: str) -> bool:
        """End the session with this id; return False if this process has seen none."""
        found = [(digest, known) for digest, known in self._listed() if _id(digest) == name]
        for digest, known in found:
            self._end(digest, known)
        return bool(found)

    def _listed(self) -> list[tuple[bytes, _KeySession]]:
        digests = self._seen.keys()
        return [(digest, known) for digest in digests if (known := self._seen.get(digest)) is not None]

    def _end(self, digest: bytes, known: _KeySession) -> None:
        self._table.spend(digest, known.created // MICROSECONDS + KEY_SECONDS + 1)
        self._seen.pop(digest)

    def _session(self, digest: bytes, known: _KeySession) -> Session | None:
        """Return what a session may do now; None if its time is up, or its key has lost the right."""
        if known.created + KEY_SECONDS * MICROSECONDS < self._clock() * MICROSECONDS:
            return None
        try:
            return _timed(self.session_of(known.key), digest, known)
        except ConsoleError:
            return None

    def _opened(self, token: str) -> _KeySession | None:
        # An operator's token, so that a server with no other never loads the library.
        if not token.startswith(TOKEN_PREFIX + FERNET_BEGINNING):
            return None
        from cryptography.fernet import InvalidToken

        sealed = token.removeprefix(TOKEN_PREFIX).encode("ascii", "replace")
        try:
            # Another spelling of the same bytes, which base64 allows, would be a token that has not been ended.
            if base64.urlsafe_b64encode(base64.urlsafe_b64decode(sealed)) != sealed:
                return None
            content = self._fernet().decrypt(sealed)
        # The first is that of base64.
        except (ValueError, InvalidToken):
            return None
        return _KeySession(*json.loads(content))

    def _fernet(self) -> Fernet:
        # Imported here, as elsewhere: most servers never encrypt.
        from cryptography.fernet import Fernet

        key = hmac.digest(self.secret(), b"wilmer console key session", "sha256")
        return Fernet(base64.urlsafe_b64encode(key))

    def secret(self) -> bytes:
        """Return the secret of the console's folder, or what was read last if the disk fails."""
        with contextlib.suppress(OSError):
            self._known_secret = self._secret()
        return self._known_secret


def _timed(session: Session, digest: bytes, known: _KeySession) -> Session:
    return replace(session, expires=known.created + KEY_SECONDS * MICROSECONDS, id=_id(digest))


def _granted(grant: Grant, key: str) -> Session:
    if not grant.console:
        raise ConsoleError(
            403,
            "This key is accepted, but does not open the console. Its line in the list of keys "
            "would read 'KEY console=own' (its own runs) or 'KEY console=all' (the runs of its "
            "users), with 'user=NAME', if it has that, behind it.",
        )
    role = Role.ALL if grant.console == "all" else Role.OWN
    return Session(role, grant.console_users, key=key, key_name=grant.name)


class FailedSignIns:
    """Counts the failed sign-ins of each peer. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._times: BoundedCache[str, deque[float]] = BoundedCache(MAX_PEERS)

    def add(self, peer: str) -> None:
        """Count a failure."""
        # Of two failures at once, each counts.
        with self._lock:
            times = self._times.get(peer) or deque(maxlen=FAILURES)
            times.append(self._clock())
            self._times.put(peer, times)

    def seconds_to_wait(self, peer: str) -> int:
        """Return after how many seconds the peer may try again; 0 for now."""
        with self._lock:
            times = self._times.get(peer)
            if times is None or len(times) < FAILURES:
                return 0
            return max(0, math.ceil(times[0] + FAILURE_SECONDS - self._clock()))


class Sessions:
    """Signs in, and finds who makes a call.

    Args:
        index: opens the index of the console's folder.
        secret: returns the secret of that folder. Sign-in codes are signed with it, and tokens of keys encrypted.
        keys: the accepted keys; None if any key is accepted.
    """

    def __init__(
        self,
        index: Index,
        secret: Callable[[], bytes],
        keys: AccessKeys | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.operators = SessionTable(index, clock)
        self.keys = KeySessions(keys, self.operators, secret, clock)
        self._secret = secret
        self._clock = clock
        self._failed = FailedSignIns()

    def sign_in(self, peer: str, code: str | None, key: str | None, label: str) -> tuple[str, Session]:
        """Return a new token with its session, for a code or a key. Raises ConsoleError."""
        with self._counting_failures(peer):
            begun = self.keys.begin(key or "", label) if code is None else self._begin_operator(code, label)
            token, session = begun
            return f"{token}.{self._proof_key(_id(_hash(token))).hex()}", session

    def proof(self, name: str, nonce: str) -> str:
        """Return what shows a page that this server has begun the session with this id, which may have ended.

        Another program on the server's port does not know the secret. The page checks it with the key in its token.
        """
        return hmac.digest(self._proof_key(name), encode_text(nonce), "sha256").hex()

    def _proof_key(self, name: str) -> bytes:
        return hmac.digest(self.keys.secret(), b"wilmer console proof " + encode_text(name), "sha256")

    def _begin_operator(self, code: str, label: str) -> tuple[str, Session]:
        read = read_code(self._secret(), code, self._clock())
        if read is None or not self.operators.spend(*read):
            raise ConsoleError(
                401,
                "This sign-in link is not valid: each is good once, for ten minutes. "
                "'python server.py console' (installed from a wheel: 'wilmerai console') prints "
                "a new one.",
            )
        return self.operators.begin(label)

    def of_call(self, peer: str, authorization: str | None, count: bool = True) -> Session:
        """Return the session of a call. Raises ConsoleError.

        Args:
            count: count a wrong key among the failed sign-ins of the peer.
        """
        key = api_key_in(authorization)
        if key is None:
            raise _unauthorized("This call needs a token of the console: 'Authorization: Bearer TOKEN'.")
        if key.startswith(TOKEN_PREFIX):
            # What follows the dot is for the page. Tokens of older versions have nothing there.
            token, dot, proof_key = key.partition(".")
            is_whole = not dot or proof_key == self._proof_key(_id(_hash(token))).hex()
            session = (self.keys.find(token) or self.operators.find(token)) if is_whole else None
            if session is None:
                raise _unauthorized("This session has ended. Sign in again.")
            return session
        with self._counting_failures(peer, count):
            return self.keys.session_of(key)

    @contextlib.contextmanager
    def _counting_failures(self, peer: str, count: bool = True) -> Iterator[None]:
        """Count a wrong key or code, and refuse it with 429 after too many. Correct ones are always accepted."""
        try:
            yield
        except ConsoleError as error:
            # A key that is good for something else was not guessed.
            if error.status != HTTPStatus.UNAUTHORIZED:
                raise
            seconds = self._failed.seconds_to_wait(peer)
            if seconds:
                raise ConsoleError(
                    429,
                    f"Too many failed sign-ins. Try again in {seconds} seconds.",
                    headers=(("Retry-After", str(seconds)),),
                ) from None
            if count:
                self._failed.add(peer)
            raise

    def end_by_id(self, name: str) -> bool:
        """End the session with this id; return False without one."""
        ended = self.keys.end(name)
        return self.operators.end(name) or ended

    def lines(self, current: Session) -> list[SessionLine]:
        """Return all sessions, those of operators first."""
        return [{**line, "current": line["id"] == current.id} for line in [*self.operators.lines(), *self.keys.lines()]]


def _unauthorized(message: str) -> ConsoleError:
    return ConsoleError(401, message, headers=(("WWW-Authenticate", "Bearer"),))
