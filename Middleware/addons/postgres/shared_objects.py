"""What all workers share, and ``install``, which puts it in the place of what one process has for itself."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from Middleware.addons.postgres.gate import SharedGate
from Middleware.addons.postgres.kept_answers import SharedKeepsakes
from Middleware.addons.postgres.listener import CANCEL, CANCEL_FOR, GATE
from Middleware.addons.postgres.session import lock_key
from Middleware.addons.postgres.workflow_locks import SharedLockingService
from Middleware.common.instance_global_variables import Gate
from Middleware.exceptions import StateUnavailableError
from Middleware.llmapis.handlers.impl.koboldcpp_api_handler import CallCounter
from Middleware.llmapis.keepsakes import KeepsakeStore
from Middleware.models.process import process
from Middleware.services.cancellation_service import CancellationService, get_cancellation_service
from Middleware.services.idempotency_service import IdempotencyService
from Middleware.services.locking_service import LockingService
from Middleware.utilities.daemon_threads import run_in_pool
from Middleware.utilities.text_utils import storable

if TYPE_CHECKING:
    from Middleware.addons.postgres.database import Database
    from Middleware.addons.postgres.listener import Listener
    from Middleware.addons.postgres.session import WorkerSession

# An id with more characters is not one of ours, and a notification has a limited size.
MAX_ID = 200
_TIDY_SECONDS = 600.0

# A row for workers that do not listen at this moment, and a word for all others.
_PASS_CANCELLATION_ON = (
    "WITH kept AS (INSERT INTO wilmer.cancellations (request_id, reason, users) VALUES (%s, %s, %s)) "
    "SELECT pg_notify('wilmer', %s)"
)
_MISSED_CANCELLATIONS = (
    "SELECT request_id, reason, users FROM wilmer.cancellations WHERE at >= now() - make_interval(secs => %s)"
)
_TIDY_CANCELLATIONS = "DELETE FROM wilmer.cancellations WHERE at < now() - interval '1 hour'"
_REGISTER_KEY = "SELECT wilmer.register_idempotency(%s, %s, %s)"
_RELEASE_KEY = "DELETE FROM wilmer.idempotency WHERE key_hash = %s AND request_id = %s"
# A worker that asks whether a server is busy has the exclusive lock for a millisecond.
_LOCK_ATTEMPTS, _LOCK_PAUSE = 50, 0.01


def install(
    database: Database, session: WorkerSession, listener: Listener, concurrency: int, owner: Callable[[str], str | None]
) -> None:
    """Let the services of this process know those of the other workers. Call it before anything of a worker is started.

    Args:
        concurrency: the number of slots of all workers together; 0 for no gate.
        owner: returns the user of a request of this process, see ``SharedCancellations``.
    """

    def number() -> int:
        return session.number

    service = get_cancellation_service()
    cancellations = SharedCancellations(database, service, owner)
    service.relay = cancellations.pass_on
    listener.on(CANCEL, cancellations.notified)
    listener.on(CANCEL_FOR, cancellations.notified_for)
    listener.on_gap(cancellations.catch_up)
    listener.on_beat(cancellations.tidy)
    idempotency: IdempotencyService = SharedIdempotency(database, number)
    process().put(IdempotencyService, idempotency)
    calls = SharedCallCounter(session)
    counter: CallCounter = calls
    process().put(CallCounter, counter)
    session.on_number(calls.renew)
    if concurrency > 0:
        gate = SharedGate(database, number, concurrency)
        process().one(Gate).semaphore = gate
        session.on_number(gate.renew)
        database.on_return(gate.renew)
        listener.on(GATE, gate.notified)
        listener.on_beat(gate.beat)
    keepsakes = SharedKeepsakes(database)
    store: KeepsakeStore = keepsakes
    process().put(KeepsakeStore, store)
    listener.on_beat(keepsakes.tidy)
    locks: LockingService = SharedLockingService(database)
    process().put(LockingService, locks)


# -- cancellations -----------------------------------------------------------------------------------------------------


class SharedCancellations:
    """Passes cancellations of unknown requests on to all workers, and takes those of the others.

    Args:
        service: the cancellation service of this process.
        owner: returns the user of a request of this process; None for one that is not here, or whose user is not known
            yet.
    """

    def __init__(self, database: Database, service: CancellationService, owner: Callable[[str], str | None]) -> None:
        self._database = database
        self._service = service
        self._owner = owner
        self._tidied = time.monotonic()

    def pass_on(self, request_id: str, reason: str, users: frozenset[str] | None) -> None:
        """Have the worker that has a request cancel it; with ``users``, only if it is the request of one of them.

        Raises StateUnavailableError.
        """
        if len(request_id) > MAX_ID:
            return
        name = storable(request_id)
        permitted = None if users is None else ",".join(quote(user, safe="") for user in sorted(users))
        word = f"{CANCEL} {name}" if permitted is None else f"{CANCEL_FOR} {permitted} {name}"
        values = (name, storable(reason), permitted, word)
        # Cancelling twice does no harm.
        self._database.run(lambda connection: connection.execute(_PASS_CANCELLATION_ON, values), again=True)

    def notified(self, request_id: str) -> None:
        """Cancel a request that another worker has named, if it is here."""
        self._service.cancel_here(request_id)

    def notified_for(self, rest: str) -> None:
        """Cancel a request that another worker has named behind the users who may do so, if it is here and theirs."""
        permitted, _, request_id = rest.partition(" ")
        self._cancel(request_id, "", permitted)

    def catch_up(self, seconds: float) -> None:
        """Cancel what was named in the last ``seconds``, when no notification may have arrived."""
        for request_id, reason, permitted in self._database.read(_MISSED_CANCELLATIONS, [seconds]):
            self._cancel(request_id, reason, permitted)

    def _cancel(self, request_id: str, reason: str, permitted: str | None) -> None:
        owner = self._owner(request_id)
        if permitted is None or (owner is not None and owner in map(unquote, permitted.split(","))):
            self._service.cancel_here(request_id, reason)

    def tidy(self) -> None:
        """Remove old rows now and then; call it as often as you like."""
        if time.monotonic() - self._tidied >= _TIDY_SECONDS:
            self._tidied = time.monotonic()
            self._database.write(_TIDY_CANCELLATIONS)


# -- idempotency keys --------------------------------------------------------------------------------------------------


class SharedIdempotency(IdempotencyService):
    """The registry of this worker, and the one of all workers; alone while the database does not answer.

    ``number``: returns the number of this worker.
    """

    def __init__(self, database: Database, number: Callable[[], int]) -> None:
        super().__init__()
        self._database = database
        self._number = number
        # By request id; the database has hashes only.
        self._hashes: dict[str, bytes] = {}

    def register(self, key: str | None, request_id: str | None) -> str | None:
        earlier_here = super().register(key, request_id)
        if not key or not request_id:
            return None
        digest = hashlib.sha256(key.encode("utf-8")).digest()
        values = (digest, request_id, self._number())
        self._hashes[request_id] = digest
        try:
            # Repeated, it finds the same request, which has not displaced itself.
            [(earlier,)] = self._database.run(
                lambda connection: connection.execute(_REGISTER_KEY, values).fetchall(), again=True
            )
        except StateUnavailableError:
            return earlier_here
        return str(earlier) if earlier else None

    def release(self, request_id: str | None) -> None:
        super().release(request_id)
        digest = self._hashes.pop(request_id, None) if request_id else None
        if request_id and digest is not None:
            # The table is as good as empty after an outage, and old rows are replaced.
            with contextlib.suppress(StateUnavailableError):
                self._database.write(_RELEASE_KEY, [digest, request_id])


# -- calls on KoboldCpp servers ----------------------------------------------------------------------------------------


class SharedCallCounter(CallCounter):
    """Counts the calls of this worker, and holds a shared lock for each server that has one: an abort ends all there.

    While the database does not answer, every server counts as busy.
    """

    def __init__(self, session: WorkerSession) -> None:
        super().__init__()
        self._session = session
        # What the release of the lock on each server needs.
        self._held: dict[str, int] = {}
        self._changing = threading.Lock()

    @contextmanager
    def counted(self, server: str) -> Iterator[None]:
        try:
            with super().counted(server):
                self._adjust(server)
                yield
        finally:
            self._adjust(server)

    def busy(self, server: str) -> bool:
        if super().busy(server):
            return True
        try:
            # Had at once only if no other worker has its shared lock.
            taken = self._session.try_lock(_server_key(server))
            if taken:
                self._session.unlock(_server_key(server), taken)
        except StateUnavailableError:
            return True
        return not taken

    def renew(self) -> None:
        """Take the locks again, soon after the worker has lost its session and got another."""
        # The thread that noticed the loss may be about to take or free one of them.
        run_in_pool(self._renew, "koboldcpp-locks")

    def _renew(self) -> None:
        with self._changing:
            for server in list(self._calls):
                taken = self._try_lock(server)
                # It was not lost, or was taken in the meantime.
                if taken and taken == self._held.get(server):
                    self._session.unlock(_server_key(server), taken, shared=True)
                elif taken:
                    self._held[server] = taken

    def _try_lock(self, server: str) -> int:
        """Return what the release needs; 0 if the database does not answer."""
        with contextlib.suppress(StateUnavailableError):
            for _ in range(_LOCK_ATTEMPTS):
                if taken := self._session.try_lock(_server_key(server), shared=True):
                    return taken
                time.sleep(_LOCK_PAUSE)
        return 0

    def _adjust(self, server: str) -> None:
        """Hold the lock of a server while a call of this worker runs there."""
        with self._changing:
            runs = super().busy(server)
            if runs and server not in self._held:
                if taken := self._try_lock(server):
                    self._held[server] = taken
            elif not runs and server in self._held:
                self._session.unlock(_server_key(server), self._held.pop(server), shared=True)


def _server_key(server: str) -> int:
    return lock_key("koboldcpp", server)
