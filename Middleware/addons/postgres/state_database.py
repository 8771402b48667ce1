"""The state database of a server: whether it has one, its start, and what takes the place of files and memory then.

Imported only where a state database is named.
"""

from __future__ import annotations

import contextlib
import logging

from Middleware.addons.postgres.documents import DatabaseDiscussions
from Middleware.addons.postgres.moving import discussions_in_files
from Middleware.addons.postgres.presence import Presence
from Middleware.addons.postgres.shared_objects import install
from Middleware.addons.postgres.stored_discussions import DiscussionName, discussion_names
from Middleware.addons.postgres.worker import StateStartError, StateWorker
from Middleware.api.running.running_requests import running_requests
from Middleware.cli.program import StartError, say
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError, StateUnavailableError
from Middleware.models.process import process
from Middleware.utilities.command_lines import own_command
from Middleware.utilities.discussion_state import Discussions
from Middleware.utilities.discussions.discussion_folder import discussions
from Middleware.utilities.text_utils import storable

logger = logging.getLogger(__name__)


def start_worker(url: str) -> StateWorker:
    """Connect this process to the state database and put what is shared in its place. Raises StartError."""
    try:
        worker = StateWorker(url)
        presence = Presence(
            worker.database,
            lambda: worker.session.number,
            f"concurrency={instance.CONCURRENCY_LIMIT}/{instance.CONCURRENCY_LEVEL}",
        )
        in_files = _names_in_files()
        _share(worker)
        worker.listener.on_beat(worker.session.look)
        worker.session.on_number(presence.enter)
        worker.listener.on_beat(presence.beat)
        worker.on_stop = presence.leave
        running_requests().on_drain = presence.drain
        worker.start(say)
    except StateStartError as error:
        raise StartError(f"--database: {error}") from None
    _warn_of_files(worker, in_files)
    return worker


def _names_in_files() -> set[DiscussionName]:
    """Return the discussions in all users' folders."""
    # A folder that cannot be listed, or a user file with a mistake, is reported by the check.
    with contextlib.suppress(OSError, ConfigurationError):
        return {
            DiscussionName(storable(space), found.key_hash or "", storable(found.discussion_id))
            for space, found in discussions_in_files()
        }
    return set()


def _warn_of_files(worker: StateWorker, in_files: set[DiscussionName]) -> None:
    """Warn of discussions that were stored before there was a database, and have not been moved into it."""
    if not in_files:
        return
    with contextlib.suppress(StateUnavailableError):
        left = len(in_files - set(worker.database.run(discussion_names, again=True)))
        if left:
            logger.warning(
                "The folders hold conversations that are not in the state database (%d), so that nothing of "
                "them is remembered. This copies them: %s",
                left,
                own_command("state", "import"),
            )


def _share(worker: StateWorker) -> None:
    """Put what is in the database in the place of what is in files and in the memory of one process."""
    stored: Discussions = DatabaseDiscussions(worker.database, worker.session)
    process().put(discussions, stored)
    install(worker.database, worker.session, worker.listener, instance.CONCURRENCY_LIMIT, _owner)


def _owner(request_id: str) -> str | None:
    request = running_requests().find(request_id)
    return request.user if request is not None else None
