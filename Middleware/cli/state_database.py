"""The state database of a server: whether it has one, its start, and what takes the place of files and memory then.

Imported only where a state database is named.
"""
from __future__ import annotations

from Middleware.cli.console import StartError, say
from Middleware.common import instance_global_variables as instance
from Middleware.models.process import process
from Middleware.services.cancellation_service import get_cancellation_service
from Middleware.services.idempotency_service import IdempotencyService
from Middleware.services.locking_service import LockingService
from Middleware.services.shared.cancellations import SharedCancellations
from Middleware.services.shared.idempotency import SharedIdempotency
from Middleware.services.shared.presence import Presence
from Middleware.services.shared.workflow_locks import SharedLockingService
from Middleware.utilities.conversations.discussion_folder import discussions
from Middleware.utilities.discussion_state import Discussions
from Middleware.utilities.postgres.documents import DatabaseDiscussions
from Middleware.utilities.postgres.listener import CANCEL
from Middleware.utilities.postgres.session import LIVE_WORKERS
from Middleware.utilities.postgres.worker import StateStartError, StateWorker


def start_worker(url: str) -> StateWorker:
    """Connect this process to the state database and put what is shared in its place. Raises StartError."""
    try:
        worker = StateWorker(url)
        presence = Presence(worker.database, lambda: worker.session.number, LIVE_WORKERS,
                            f"concurrency={instance.CONCURRENCY_LIMIT}/{instance.CONCURRENCY_LEVEL}")
        _share(worker)
        worker.listener.on_beat(worker.session.look)
        worker.session.on_number(presence.enter)
        worker.listener.on_beat(presence.beat)
        worker.start(say)
    except StateStartError as error:
        raise StartError(f"--database: {error}") from None
    return worker


def _share(worker: StateWorker) -> None:
    """Put what is in the database in the place of what is in files and in the memory of one process."""
    stored: Discussions = DatabaseDiscussions(worker.database, worker.session)
    locks: LockingService = SharedLockingService(worker.database)
    idempotency: IdempotencyService = SharedIdempotency(worker.database, lambda: worker.session.number)
    process().put(discussions, stored)
    process().put(LockingService, locks)
    process().put(IdempotencyService, idempotency)
    service = get_cancellation_service()
    cancellations = SharedCancellations(worker.database, service)
    service.relay = cancellations.pass_on
    worker.listener.on(CANCEL, cancellations.notified)
    worker.listener.on_gap(cancellations.catch_up)
    worker.listener.on_beat(cancellations.tidy)
