"""The folder of the run console: where it is, and the secret in it. Nothing is created before something is written."""

from __future__ import annotations

import contextlib
import os
import secrets
import time

from Middleware.utilities.files.file_access import atomic_write, folder_lock

OWNER_ONLY = 0o600
OWNER_ONLY_FOLDER = 0o700
DAY = 24 * 60 * 60
EXPORTS = "exports"
"""The folder of exported discussions."""
SECRET_BYTES = 32


class ConsoleFolder:
    """The folder at ``path``, which need not exist."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def file(self, name: str) -> str:
        """Return the path of a file in it."""
        return os.path.join(self.path, name)

    def made(self) -> str:
        """Return the path of the folder, which is created if it is missing. Raises OSError."""
        os.makedirs(self.path, mode=OWNER_ONLY_FOLDER, exist_ok=True)
        return self.path

    def remove_old_exports(self, days: int) -> None:
        """Remove the exports that are older than ``days``. What is in use now goes another time."""
        moment = time.time() - days * DAY
        with contextlib.suppress(OSError), os.scandir(self.file(EXPORTS)) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < moment:
                        os.unlink(entry.path)

    def secret(self) -> bytes:
        """Return the secret, which is made at the first call. Raises OSError.

        It is read from its file each time: the command ``console`` makes it too, and users may delete the folder.
        """
        known = self._read_secret()
        if known is not None:
            return known
        with folder_lock(self.made()):
            # Another process may have made it in the meantime.
            known = self._read_secret()
            if known is None:
                known = secrets.token_bytes(SECRET_BYTES)
                atomic_write(self.file("secret"), known, OWNER_ONLY)
        return known

    def _read_secret(self) -> bytes | None:
        try:
            with open(self.file("secret"), "rb") as file:
                data = file.read(SECRET_BYTES)
        except FileNotFoundError:
            return None
        # A part of it, which a copy of the folder may have left, would be easier to guess.
        return data if len(data) == SECRET_BYTES else None
