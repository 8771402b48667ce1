"""A worker's whole connection to the state database, from its start to its end."""

from __future__ import annotations

import contextlib
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
from Middleware.addons.postgres.listener import Listener, notifications_arrive
from Middleware.addons.postgres.migrations import SchemaError, migrate
from Middleware.addons.postgres.session import WorkerSession
from Middleware.exceptions import OperatorError, StateUnavailableError

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
        began, told = time.monotonic(), False
        while True:
            try:
                return self.database.connect()
            except psycopg.OperationalError as error:
                text, waited = first_line(error), time.monotonic() - began
                if any(words in text for words in _OTHER_PROGRAM):
                    raise StateStartError(f"{self.database.place} is not PostgreSQL: {text}") from None
                if waited >= timeout or any(words in text for words in _FINAL):
                    raise
                if waited >= _QUIET_SECONDS and not told:
                    tell(f"Waiting for the state database ({self.database.place}): {text}")
                    told = True
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
