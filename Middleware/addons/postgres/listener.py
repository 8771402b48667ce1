"""What workers tell each other: notifications of PostgreSQL, which reach another process within a millisecond."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

import psycopg

from Middleware.addons.postgres.database import Database, StateConnection, call_back, first_line
from Middleware.utilities.daemon_threads import start_daemon

CHANNEL = "wilmer"
CANCEL, CANCEL_FOR, GATE = "cancel", "cancel-for", "gate"
"""The first words of notifications: a request must be stopped, whose id follows; the same, but the users whose request
it must be stand before the id; a place at the gate is free."""
NOTIFY = f"SELECT pg_notify('{CHANNEL}', %s)"
"""Sends a notification: a word, then perhaps a space and something of at most 7,900 bytes. Never in a transaction that
writes data, as it would make all such transactions of the server wait for each other."""

_TEST = "test"
_EVENT = "a notification of the state database"
# How often the connection proves that it is alive.
_PROOF_SECONDS = 10.0
# How often the listener looks at other things, and whether it is to end.
_BEAT_SECONDS = 1.0
# What was written shortly before the loss may have been notified after it.
_MARGIN_SECONDS = 5.0


class Listener:
    """Hears notifications on a thread of its own, and calls the functions that wait for them there.

    The functions must be quick, as later notifications wait for them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._functions: dict[str, list[Callable[[str], object]]] = {}
        self._beats: list[Callable[[], object]] = []
        self._after_gaps: list[Callable[[float], object]] = []
        self._connection: StateConnection | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        # When the connection was last known to work.
        self._proved = 0.0

    # -- before it starts ----------------------------------------------------------------------------------------------
    def on(self, word: str, function: Callable[[str], object]) -> None:
        """Call ``function`` with what follows ``word`` in each notification that begins with it."""
        self._functions.setdefault(word, []).append(function)

    def on_beat(self, function: Callable[[], object]) -> None:
        """Call ``function`` about once a second, also while the database is down."""
        self._beats.append(function)

    def on_gap(self, function: Callable[[float], object]) -> None:
        """Call ``function`` after the connection was lost and is replaced, when notifications arrive again.

        It gets the number of seconds, counted backwards from now, within which some may have been missed.
        """
        self._after_gaps.append(function)

    def start(self) -> None:
        """Listen from now on. Raises psycopg.Error, and RuntimeError if the system cannot start a thread."""
        self._listen()
        self._thread = start_daemon(self._run, "state-listener", "No thread can listen to the state database")
        if self._thread is None:
            self._close()
            raise RuntimeError("cannot start the thread that listens to the state database")

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(10 * _BEAT_SECONDS)

    # -- on its thread -------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                if self._connection is None:
                    self._listen_again()
                else:
                    self._receive(self._connection)
            except psycopg.Error as error:
                self._lose(error)
            for function in self._beats:
                call_back(_EVENT, function)
        self._close()

    def _receive(self, connection: StateConnection) -> None:
        """Pass on what arrives within one beat."""
        for notification in connection.notifies(timeout=_BEAT_SECONDS):
            self._proved = time.monotonic()
            word, _, rest = notification.payload.partition(" ")
            for function in self._functions.get(word, ()):
                call_back(_EVENT, function, rest)
        if time.monotonic() - self._proved >= _PROOF_SECONDS:
            connection.execute("SELECT 1")
            self._proved = time.monotonic()

    def _lose(self, error: psycopg.Error) -> None:
        if self._connection is None:
            # Nor can it be replaced: the database has a thread that looks when it is back.
            self._database.fail(first_line(error))
        self._close()

    def _listen_again(self) -> None:
        if self._database.down:
            self._stopped.wait(_BEAT_SECONDS)
            return
        last = self._proved
        self._listen()
        # What happened before this moment is found in tables, and what happens after it is heard.
        for function in self._after_gaps:
            call_back(_EVENT, function, time.monotonic() - last + _MARGIN_SECONDS)

    def _listen(self) -> None:
        connection = self._database.connect()
        try:
            connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            connection.close()
            raise
        self._connection, self._proved = connection, time.monotonic()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def notifications_arrive(database: Database, connection: StateConnection, seconds: float) -> bool:
    """Return whether a notification sent on ``connection`` arrives on another one. Raises psycopg.Error.

    It takes no lock and writes nothing: a pooler in transaction mode, where none arrives, keeps the connection to the
    server, and with it whatever locks a session has.
    """
    test = f"{_TEST} {uuid.uuid4().hex}"
    with database.connect() as other:
        other.execute(f"LISTEN {CHANNEL}")
        connection.execute(NOTIFY, [test])
        return any(notification.payload == test for notification in other.notifies(timeout=seconds))
