"""The state database of a server: whether it has one, its start, and what takes the place of files and memory then.

Imported only where a state database is named.
"""
from __future__ import annotations

from Middleware.cli.console import StartError, say
from Middleware.common import instance_global_variables as instance
from Middleware.models.process import process
from Middleware.services.shared.installing import install
from Middleware.services.shared.presence import Presence
from Middleware.utilities.conversations.discussion_folder import discussions
from Middleware.utilities.discussion_state import Discussions
from Middleware.utilities.postgres.documents import DatabaseDiscussions
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
    process().put(discussions, stored)
    install(worker.database, worker.session, worker.listener, instance.CONCURRENCY_LIMIT)
