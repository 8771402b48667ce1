"""The last step of every save of a configuration file from the console: a backup, the file, and a line about it."""

from __future__ import annotations

import calendar
import contextlib
import logging
import os
import re
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from Middleware.addons.records.console_folder import OWNER_ONLY, ConsoleFolder
from Middleware.addons.records.model import MICROSECONDS
from Middleware.addons.records.store.writer import RunStore
from Middleware.utilities.config.paths import get_root_config_directory, mode_of_new
from Middleware.utilities.files.file_access import atomic_write
from Middleware.utilities.text_utils import encode_text

logger = logging.getLogger(__name__)

BACKUPS = "backups"
_MOMENT = re.compile(r"(\d{8}-\d{6})-(\d{6})")


@dataclass(frozen=True)
class Version:
    """An older version of a file. ``at``: when it was replaced, in microseconds since 1970."""

    at: int
    path: str
    size: int


def save_file(folder: ConsoleFolder, store: RunStore, path: str, text: str, session: str, what: str) -> str | None:
    """Write a file of the configuration; return the name of the backup, None for a file that is new.

    Args:
        path: relative to the config root, with forward slashes, and checked.
        session: who saves it, for the list of changes.
        what: what was changed, in a few words without any text of the file.

    Raises OSError if the file, or its backup, cannot be written; then it is unchanged.
    """
    target = os.path.join(get_root_config_directory(), *path.split("/"))
    backup = _back_up(folder, path, target)
    atomic_write(target, encode_text(text), mode_of_new(path))
    logger.info("The console saved %s: %s (backup: %s)", path, what, backup or "none, as it is new")
    # The file is saved by then, so a full disk must not look as if it were not.
    with contextlib.suppress(sqlite3.Error, OSError), store.index() as index:
        index.execute(
            "INSERT INTO change (at, session, path, what, backup) VALUES (?, ?, ?, ?, ?)",
            (time.time_ns() // 1000, session, path, what, backup),
        )
        index.commit()
    return backup


def _back_up(folder: ConsoleFolder, path: str, target: str) -> str | None:
    try:
        before = Path(target).read_bytes()
    except FileNotFoundError:
        return None
    # One reading of the clock: the parts of two could be of different seconds.
    seconds, microseconds = divmod(time.time_ns() // 1000, MICROSECONDS)
    name = _name(path, time.strftime("%Y%m%d-%H%M%S", time.gmtime(seconds)) + f"-{microseconds:06d}")
    folder.made()
    atomic_write(os.path.join(folder.path, BACKUPS, name), before, OWNER_ONLY)
    return name


def _name(path: str, moment: str) -> str:
    return f"{path.replace('/', '~')}.{moment}"


def versions(folder: ConsoleFolder, path: str) -> list[Version]:
    """Return the versions of a file that saves have replaced, the newest first."""
    start, found = _name(path, ""), []
    try:
        with os.scandir(folder.file(BACKUPS)) as entries:
            for entry in entries:
                moment = _MOMENT.fullmatch(entry.name.removeprefix(start)) if entry.name.startswith(start) else None
                if moment is not None:
                    seconds = calendar.timegm(time.strptime(moment[1], "%Y%m%d-%H%M%S"))
                    found.append(Version(seconds * MICROSECONDS + int(moment[2]), entry.path, entry.stat().st_size))
    # Nothing was saved yet.
    except OSError:
        return []
    return sorted(found, key=lambda version: -version.at)
