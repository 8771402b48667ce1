"""Which of several equal messages a memory reaches to.

Memories name the last message they cover by its hash, which equal messages share. Beside the memories a small file
keeps the hash of the message before it. It is never needed: without it, the newest of equal messages counts.
"""
from __future__ import annotations

import logging
from collections.abc import Collection

from Middleware.exceptions import StoredDataError
from Middleware.utilities.discussion_files import read_json, write_json
from Middleware.utilities.discussion_folder import DiscussionFolder

logger = logging.getLogger(__name__)

ANCHORS_FILE = "memory_anchors.json"


class MemoryAnchors:
    """The file of one discussion. A file that cannot be used is ignored, and left as it is."""

    def __init__(self, folder: DiscussionFolder) -> None:
        self._folder = folder

    def read(self) -> dict[str, str]:
        """Hash of a memory's last message -> hash of the message before that one ("": it was the first)."""
        try:
            return self._content()
        except (StoredDataError, OSError) as error:
            logger.debug("%s is not used: %s", self._folder.display(ANCHORS_FILE), error)
            return {}

    def note(self, stored_hash: str, before: str, keep: Collection[str]) -> None:
        """Add an entry, and drop those of memories that are not in ``keep`` any more."""
        try:
            known = {key: value for key, value in self._content().items() if key in keep}
            write_json(self._folder.file(ANCHORS_FILE), {**known, stored_hash: before}, self._folder.cipher,
                       self._folder.file_mode)
        except (StoredDataError, OSError) as error:
            logger.debug("%s is not written: %s", self._folder.display(ANCHORS_FILE), error)

    def _content(self) -> dict[str, str]:
        display = self._folder.display(ANCHORS_FILE)
        content = read_json(self._folder.file(ANCHORS_FILE), self._folder.cipher, display)
        if content is None:
            return {}
        if not isinstance(content, dict):
            raise StoredDataError(f"{display} holds no object")
        return {key: value for key, value in content.items() if isinstance(value, str)}
