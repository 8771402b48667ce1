"""The state database of a server: whether it has one, its start, and what takes the place of files and memory then.

Imported only where a state database is named.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable

import psycopg

from Middleware.addons.postgres.database import (
    CONNECTIONS_OF_A_WORKER,
    AddressError,
    Database,
    StateConnection,
    StatementAbortedError,
    first_line,
)
from Middleware.addons.postgres.database_address import is_encrypted_or_local
from Middleware.addons.postgres.documents import DatabaseDiscussions
from Middleware.addons.postgres.listener import Listener, notifications_arrive
from Middleware.addons.postgres.migrations import SchemaError, migrate
from Middleware.addons.postgres.moving import discussions_in_files
from Middleware.addons.postgres.presence import Presence
from Middleware.addons.postgres.session import WorkerSession
from Middleware.addons.postgres.shared_objects import install
from Middleware.addons.postgres.stored_discussions import DiscussionName, discussion_names
from Middleware.api.running.running_requests import running_requests
from Middleware.cli.program import StartError, say
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError, OperatorError, StateUnavailableError, WilmerError
from Middleware.models.process import process
from Middleware.utilities.command_lines import own_command
from Middleware.utilities.config.users import configured_users
from Middleware.utilities.discussion_state import Discussions
from Middleware.utilities.discussions.discussion_folder import discussions
from Middleware.utilities.http.via import own_server
from Middleware.utilities.text_utils import storable

logger = logging.getLogger(__name__)

OLDEST_SERVER = 15
_POOLER = (
    "notifications do not arrive: a pooler in transaction mode does not work here; connect to PostgreSQL itself "
    "or to a pooler in session mode"
)
_POOL = (
    f"If this is a pooler, it needs {CONNECTIONS_OF_A_WORKER} connections to PostgreSQL for each server "
    "(PgBouncer: default_pool_size)"
)
# How long the start tries to connect, and after what time it says so.
_CONNECT_SECONDS, _QUIET_SECONDS = 10.0, 2.0
_PAUSE_SECONDS = 0.5
# What the server refuses for good. It says so in its own language, so that elsewhere the start tries for a while.
_FINAL = (
    "authentication failed",
    "does not exist",
    "no pg_hba.conf entry",
    "no password supplied",
    "permission denied",
    "does not support SSL",
    "certificate",
)
# What another program answers, such as a web server.
_OTHER_PROGRAM = ("invalid response to SSL", "expected authentication request")


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
        _look_for_salts()
    except StateStartError as error:
        raise StartError(f"--database: {error}") from None
    _warn_of_files(worker, in_files)
    return worker


def _look_for_salts() -> None:
    """Read the salts of the served users: a client is answered while the database is away, with what is known."""
    users: list[str | None] = [*configured_users()]
    for user in users or [None]:
        # A mistake is reported to the client whom it concerns.
        with contextlib.suppress(WilmerError):
            process().one(discussions).key_salt(user)


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


# -- the connections ---------------------------------------------------------------------------------------------------


def _shared_secret(connection: StateConnection) -> bytes:
    """Return what the servers of one database sign their tokens with. It need not be kept from those who may read it:
    a request with a token that is not the sender's own is only refused."""
    [(made,)] = connection.execute(
        "SELECT extract(epoch FROM applied_at)::text FROM wilmer.schema_version WHERE version = 1"
    ).fetchall()
    return hashlib.sha256(f"wilmer via {made}".encode()).digest()


class StateStartError(OperatorError):
    """The state database cannot be used. The text is one line for the administrator, without the password."""


class StateWorker:
    """The connections of one worker and what they found at the start.

    Attributes:
        description: the database in the lines of the start, after ``start``.
        on_stop: what is done in the database at the end, while the number is still this worker's. It may raise
            StateUnavailableError.
    """

    def __init__(self, url: str) -> None:
        """Does not connect yet. Raises StateStartError for an address that cannot be right."""
        try:
            self.database = Database(url)
        except AddressError as error:
            raise StateStartError(str(error)) from None
        self.session = WorkerSession(self.database)
        self.listener = Listener(self.database)
        self.description = ""
        self.on_stop: Callable[[], object] | None = None

    def start(self, tell: Callable[[str], object], timeout: float = _CONNECT_SECONDS) -> None:
        """Connect, bring the schema up to date, take a number and listen. Raises StateStartError.

        Args:
            tell: reports what the start waits for.
            timeout: for how many seconds a database that does not answer is tried again.
        """
        try:
            with self._first_connection(tell, timeout) as connection:
                self._check(connection)
                if not notifications_arrive(self.database, connection, self.database.checkout_seconds):
                    raise StateStartError(_POOLER)
                migrate(connection)
                own_server().secret = _shared_secret(connection)
            self.session.open()
            self.listener.start()
        except AddressError as error:
            self.stop()
            raise StateStartError(str(error)) from None
        except (psycopg.Error, SchemaError, StateUnavailableError, RuntimeError) as error:
            self.stop()
            # A pooler that has no connection left lets clients in and wait.
            advice = f". {_POOL}" if isinstance(error, StatementAbortedError) else ""
            raise StateStartError(f"{self.database.place}: {first_line(error)}{advice}") from None
        except StateStartError:
            self.stop()
            raise

    def stop(self) -> None:
        """Free the number and all locks, and close the connections."""
        self.listener.stop()
        if self.on_stop is not None and self.session.number:
            with contextlib.suppress(StateUnavailableError):
                self.on_stop()
        self.session.close()
        self.database.close()

    def _first_connection(self, tell: Callable[[str], object], timeout: float) -> StateConnection:
        began, reported = time.monotonic(), False
        while True:
            try:
                return self.database.connect()
            except psycopg.OperationalError as error:
                text, waited = first_line(error), time.monotonic() - began
                if any(words in text for words in _OTHER_PROGRAM):
                    raise StateStartError(f"{self.database.place} is not PostgreSQL: {text}") from None
                if waited >= timeout or any(words in text for words in _FINAL):
                    raise
                if waited >= _QUIET_SECONDS and not reported:
                    tell(f"Waiting for the state database ({self.database.place}): {text}")
                    reported = True
                time.sleep(_PAUSE_SECONDS)

    def _check(self, connection: StateConnection) -> None:
        info = connection.info
        version = f"{info.server_version // 10000}.{info.server_version % 10000}"
        if info.server_version < OLDEST_SERVER * 10000:
            raise StateStartError(f"{self.database.place} is PostgreSQL {version}; {OLDEST_SERVER} or newer is needed")
        encoding = info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StateStartError(f"{self.database.place} has the encoding {encoding}; a database with UTF8 is needed")
        hosts = info.host or ""
        self.description = f"{info.dbname} at {hosts or 'this machine'}:{info.port} (PostgreSQL {version})"
        if not is_encrypted_or_local(self.database.setting("sslmode") or os.environ.get("PGSSLMODE", ""), hosts):
            logger.warning(
                "The connection to the state database (%s) may be read on its way: add sslmode=require, or "
                "better verify-full, to its address",
                self.database.place,
            )
