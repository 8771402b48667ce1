"""What workers know of each other: a row for each, and whether all have the same configuration."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from Middleware.common import instance_global_variables as instance
from Middleware.common.constants import VERSION
from Middleware.exceptions import StateUnavailableError
from Middleware.utilities import config_utils
from Middleware.utilities.daemon_threads import run_in_pool
from Middleware.utilities.text_utils import storable

if TYPE_CHECKING:
    from Middleware.addons.postgres.database import Database

logger = logging.getLogger(__name__)

# How often a worker says that it is there, for people who look; whether it is alive, the lock on its number says.
_BEAT_SECONDS = 20.0
# An older row is that of a worker that was killed, whose number another one has just taken.
_OLDEST_ROW_SECONDS = 3 * _BEAT_SECONDS

_ENTER = """\
INSERT INTO wilmer.workers (number, instance_id, host, pid, version, config_hash, started_at, last_seen)
VALUES (%s, %s, %s, %s, %s, %s, now() - make_interval(secs => %s), now())
ON CONFLICT (number) DO UPDATE SET instance_id = excluded.instance_id, host = excluded.host, pid = excluded.pid,
    version = excluded.version, config_hash = excluded.config_hash, started_at = excluded.started_at,
    last_seen = excluded.last_seen, draining = false"""
_SEEN = "UPDATE wilmer.workers SET last_seen = now() WHERE number = %s AND instance_id = %s"
_DRAIN = "UPDATE wilmer.workers SET draining = true WHERE number = %s AND instance_id = %s"
_OTHERS = """\
SELECT number, config_hash FROM wilmer.workers
WHERE number IN (SELECT wilmer.live_workers()) AND number <> %s AND config_hash <> %s
    AND last_seen > now() - make_interval(secs => %s) ORDER BY number"""
_LEAVE = "DELETE FROM wilmer.workers WHERE number = %s AND instance_id = %s"


class Presence:
    """The row of this worker.

    Args:
        number: returns the number of this worker.
        settings: what must be the same on all workers in addition to the configuration, as text.
    """

    def __init__(self, database: Database, number: Callable[[], int], settings: str = "") -> None:
        self._database, self._number = database, number
        self._began = self._seen = time.monotonic()
        self._mark = f"{configuration_hash()} {settings}".strip()
        # The number under which the row is, and the workers that were warned of.
        self._entered = 0
        self._warned: set[tuple[int, str]] = set()

    def enter(self) -> None:
        """Write the row, also when the database has lost it or the number is another one.

        If the database does not answer, ``beat`` writes it later.
        """
        self._entered, self._seen = self._number(), time.monotonic()
        values = (
            self._entered,
            instance.INSTANCE_ID,
            storable(socket.gethostname()),
            os.getpid(),
            VERSION,
            self._mark,
            time.monotonic() - self._began,
        )
        try:
            self._database.run(lambda connection: connection.execute(_ENTER, values), again=True)
            self.compare()
        except StateUnavailableError:
            # The next beat tries again.
            self._entered = 0

    def beat(self) -> None:
        """Renew the row now and then; call it as often as you like. Raises StateUnavailableError."""
        if self._entered != self._number():
            self.enter()
        elif time.monotonic() - self._seen >= _BEAT_SECONDS:
            self._seen = time.monotonic()
            self._database.write(_SEEN, [self._entered, instance.INSTANCE_ID])
            self.compare()

    def compare(self) -> None:
        """Warn of each living worker that has another configuration, once. Raises StateUnavailableError."""
        for number, mark in self._database.read(_OTHERS, [self._entered, self._mark, _OLDEST_ROW_SECONDS]):
            if (number, mark) not in self._warned:
                self._warned.add((number, mark))
                logger.warning(
                    "Worker %d has another configuration than this one, worker %d: their files below "
                    "Configs or their --concurrency differ",
                    number,
                    self._entered,
                )

    def drain(self) -> None:
        """Say that this worker accepts no more requests; it does not wait until that is written."""
        run_in_pool(self._drain, "draining")

    def _drain(self) -> None:
        # It is for people who look, and says nothing that a proxy would not notice.
        with contextlib.suppress(StateUnavailableError):
            self._database.write(_DRAIN, [self._entered, instance.INSTANCE_ID])

    def leave(self) -> None:
        """Remove the row. Raises StateUnavailableError."""
        self._database.write(_LEAVE, [self._entered, instance.INSTANCE_ID])


def configuration_hash() -> str:
    """Return the SHA-256 of names and bytes of all JSON files of the configuration."""
    root, digest = Path(config_utils.get_root_config_directory()), hashlib.sha256()
    for path in sorted(root.rglob("*.json"), key=lambda found: found.relative_to(root).as_posix()):
        try:
            content = path.read_bytes()
        # It may be unreadable, or it was removed a moment ago.
        except OSError:
            content = b""
        name = path.relative_to(root).as_posix().encode("utf-8", "surrogateescape")
        digest.update(b"%d %d " % (len(name), len(content)) + name + content)
    return digest.hexdigest()
