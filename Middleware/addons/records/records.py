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
from Middleware.addons.records.folder import SECRET_BYTES, ConsoleFolder
from Middleware.addons.records.recorder import RunRecorder
from Middleware.addons.records.ring import RunRing
from Middleware.addons.records.settings import RecordSettings
from Middleware.addons.records.store.writer import RunStore
from Middleware.addons.records.texts import Normalisation
from Middleware.models.process import process
from Middleware.utilities.config.paths import console_directory

if TYPE_CHECKING:
    from Middleware.addons.console.catalog_model import MakeWorkflowCatalog
    from Middleware.addons.console.config_editor import MakeEditor
    from Middleware.addons.observability.metrics import RunMetrics
    from Middleware.addons.observability.traces import RunTraces

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
        make_workflow_catalog: reads the workflows, for the pages about them; it belongs to the layer above the API.
        make_editor: shows and changes the configuration; so does it.
        metrics: what ``/metrics`` shows; None: it is not served.
        traces: gives requests their traces, and sends them; None: none are sent.
    """

    mode: str
    folder: ConsoleFolder
    settings: RecordSettings
    ring: RunRing
    store: RunStore
    archive: RunArchive
    recorder: RunRecorder
    make_workflow_catalog: MakeWorkflowCatalog | None = None
    make_editor: MakeEditor | None = None
    metrics: RunMetrics | None = None
    traces: RunTraces | None = None

    def __post_init__(self) -> None:
        self._notes = NoteHandler(self.recorder)

    @property
    def has_console(self) -> bool:
        return self.mode != "off"

    @property
    def listeners(self) -> list[object]:
        """The listeners of the engine that record."""
        return [self.recorder] if self.traces is None else [self.traces, self.recorder]

    def begin(self) -> None:
        """Listen to the log, of which runs keep their warnings."""
        logging.getLogger().addHandler(self._notes)

    def close(self) -> None:
        """Write what is under way, at the end of the process."""
        logging.getLogger().removeHandler(self._notes)
        self.store.close()
        if self.traces is not None:
            self.traces.close()


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


def build_records(mode: str, record: str | None = None, metrics: bool = False, otel: bool = False) -> RunRecords:
    """Return the records of a process whose command line says ``--console mode`` and ``--record record``.

    ``metrics``: runs are counted for ``/metrics``; ``otel``: they are sent as traces. Without a console that is all: no
    run stays in memory or on disk.
    """
    # Built now: the writer's thread is a native one, which must not wait for a lock of another kind.
    process().one(Normalisation)
    process().one(ConfigVersions)
    counted, traces = _make_metrics() if metrics else None, _make_traces() if otel else None
    folder, ring = console_folder(), RunRing() if mode != "off" else RunRing(max_runs=0)
    settings = RecordSettings(folder, record if mode != "off" else "off")
    store = RunStore(folder, ring, settings, [one for one in (counted, traces) if one is not None])
    recorder = RunRecorder(ring, store, settings, ConversationSecret(folder, settings))
    return RunRecords(
        mode, folder, settings, ring, store, RunArchive(ring, store), recorder, metrics=counted, traces=traces
    )


def _make_metrics() -> RunMetrics:
    # Imported here: most servers count nothing.
    from Middleware.addons.observability.metrics import RunMetrics

    return RunMetrics()


def _make_traces() -> RunTraces | None:
    # Imported here: the packages may not be installed.
    from Middleware.addons.observability.traces import RunTraces, is_disabled

    return None if is_disabled() else RunTraces()


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
