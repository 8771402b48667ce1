"""Puts what all workers share in the place of what one process has for itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from Middleware.addons.postgres.cancellations import SharedCancellations
from Middleware.addons.postgres.gate import SharedGate
from Middleware.addons.postgres.idempotency import SharedIdempotency
from Middleware.addons.postgres.koboldcpp import SharedCallCounter
from Middleware.addons.postgres.listener import CANCEL, CANCEL_FOR, GATE
from Middleware.addons.postgres.workflow_locks import SharedLockingService
from Middleware.common.instance_global_variables import Gate
from Middleware.llmapis.handlers.impl.koboldcpp_api_handler import CallCounter
from Middleware.models.process import process
from Middleware.services.cancellation_service import get_cancellation_service
from Middleware.services.idempotency_service import IdempotencyService
from Middleware.services.locking_service import LockingService

if TYPE_CHECKING:
    from Middleware.addons.postgres.database import Database
    from Middleware.addons.postgres.listener import Listener
    from Middleware.addons.postgres.session import WorkerSession


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
    locks: LockingService = SharedLockingService(database)
    process().put(LockingService, locks)
