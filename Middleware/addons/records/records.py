"""All that a process has of recorded runs, as the launcher makes it for the console."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from Middleware.addons.records.archive import RunArchive
from Middleware.addons.records.completion import ConfigVersions
from Middleware.addons.records.console_folder import SECRET_BYTES, ConsoleFolder
from Middleware.addons.records.recorder import RunRecorder
from Middleware.addons.records.ring import RunRing
from Middleware.addons.records.run_texts import Normalisation
from Middleware.addons.records.settings import RecordSettings
from Middleware.addons.records.store.writer import RunStore
from Middleware.models.process import process
from Middleware.utilities.config.paths import console_directory

if TYPE_CHECKING:
    from Middleware.cli.launch import Launch

# How soon a secret that was replaced on the disk is used.
SECRET_SECONDS = 60.0


@dataclass
class RunRecords:
    """The recorder and what it fills.

    Attributes:
        mode: ``on``, or ``edit``: the console may save files of the configuration. ``off``: there is no console, and
            runs are only counted or traced.
        folder: where runs are kept.
        settings: what is kept there.
        archive: the runs for everybody who looks at them.
    """

    mode: str
    folder: ConsoleFolder
    settings: RecordSettings
    ring: RunRing
    store: RunStore
    archive: RunArchive
    recorder: RunRecorder

    def __post_init__(self) -> None:
        self._notes = NoteHandler(self.recorder)

    def begin(self) -> None:
        """Listen to the log, of which runs keep their warnings; remove old exports."""
        logging.getLogger().addHandler(self._notes)
        self.folder.remove_old_exports(self.settings.current().days)

    def close(self) -> None:
        """Write what is under way, at the end of the process."""
        logging.getLogger().removeHandler(self._notes)
        self.store.close()


def console_folder() -> ConsoleFolder:
    """Return the folder of recorded runs, which may not exist."""
    return ConsoleFolder(console_directory())


@contextlib.contextmanager
def stored_runs() -> Iterator[RunArchive]:
    """Yield the runs on disk, for a command; those in the memory of a server are its own."""
    folder, ring = console_folder(), RunRing()
    store = RunStore(folder, ring, RecordSettings(folder))
    try:
        yield RunArchive(ring, store)
    finally:
        store.close()


def recorded_runs(launch: Launch, mode: str = "off") -> RunRecords:
    """Return what records the runs of this process, made for the first add-on that asks.

    ``mode``: that of a console, which asks first if there is one. Without it no run stays in memory or on disk.
    """
    records = launch.shared.get(RunRecords)
    if not isinstance(records, RunRecords):
        records = launch.shared[RunRecords] = build_records(mode, getattr(launch.arguments.flags, "record", None))
        launch.listeners.append(records.recorder)
        launch.on_stop.append(records.close)
        records.begin()
    return records


def build_records(mode: str, record: str | None = None) -> RunRecords:
    """Return the records of a process whose command line says ``--console mode`` and ``--record record``."""
    # Built now: the writer's thread is a native one, which must not wait for a lock of another kind.
    process().one(Normalisation)
    process().one(ConfigVersions)
    folder, ring = console_folder(), RunRing() if mode != "off" else RunRing(max_runs=0)
    settings = RecordSettings(folder, record if mode != "off" else "off")
    store = RunStore(folder, ring, settings)
    recorder = RunRecorder(ring, store, settings, ConversationSecret(folder, settings))
    return RunRecords(mode, folder, settings, ring, store, RunArchive(ring, store), recorder)


class NoteHandler(logging.Handler):
    """Takes warnings and errors to the runs that they are about."""

    def __init__(self, recorder: RunRecorder) -> None:
        super().__init__(logging.WARNING)
        self._recorder = recorder

    def handle(self, record: logging.LogRecord) -> bool:
        # Without the lock of all handlers: there is nothing to guard, and requests would wait for each other.
        self._recorder.noted(record)
        return True


class ConversationSecret:
    """The key of the hashes of conversations: that of the folder, or one of this process if nothing is written."""

    def __init__(self, folder: ConsoleFolder, settings: RecordSettings) -> None:
        self._folder, self._settings = folder, settings
        self._own = secrets.token_bytes(SECRET_BYTES)
        self._known, self._valid_until = b"", 0.0

    def __call__(self) -> bytes:
        if self._settings.known_mode == "off":
            return self._own
        now = time.monotonic()
        if now >= self._valid_until:
            try:
                self._known = self._folder.secret()
            # The folder cannot be written, so that no run in it has to be recognised either.
            except OSError:
                self._known = self._own
            self._valid_until = now + SECRET_SECONDS
        return self._known
