"""How far a conversation was worked through, as a file of message hashes."""
from __future__ import annotations

import logging

from Middleware.utilities.file_utils import read_plain_text_file, write_plain_text_file

logger = logging.getLogger(__name__)


class ChunkCursor:
    """The hashes in one file, one a line; ``hashes`` are those read when the object was made, and those added since.

    A file that is missing or cannot be read counts as empty.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.hashes = self._read()

    def add(self, message_hash: str) -> None:
        """Add a hash and rewrite the file in one step. A failure to write is logged."""
        self.hashes.append(message_hash)
        try:
            write_plain_text_file(self._path, "".join(f"{known}\n" for known in self.hashes))
        except (OSError, ValueError) as error:  # ValueError: no possible file name
            logger.error("The cursor file %s was not written (%s); its messages will come again.", self._path, error)

    def _read(self) -> list[str]:
        try:
            lines = read_plain_text_file(self._path).splitlines()
        except (OSError, ValueError) as error:
            logger.warning("The cursor file %s cannot be read (%s); it counts as empty.", self._path, error)
            return []
        return [line.strip() for line in lines if line.strip()]
