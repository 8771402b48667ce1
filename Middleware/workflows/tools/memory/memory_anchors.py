"""Which of several equal messages a memory reaches to.

Memories name the last message they cover by its hash, which equal messages share. Beside the memories a small file
keeps where it stood. It is never needed: without it, the newest of equal messages counts.
"""
from __future__ import annotations

import logging
from collections.abc import Collection

from Middleware.exceptions import StoredDataError
from Middleware.services.memory.memory_store import ANCHORS_FILE
from Middleware.utilities.conversations.discussion_files import read_json, write_json
from Middleware.utilities.conversations.discussion_folder import DiscussionFolder
from Middleware.utilities.conversations.message_places import MessagePlace, place_from_json

logger = logging.getLogger(__name__)



class MemoryAnchors:
    """The file of one discussion. A file that cannot be used is ignored, and left as it is."""

    def __init__(self, folder: DiscussionFolder) -> None:
        self._folder = folder

    def read(self) -> dict[str, MessagePlace]:
        """Hash of a memory's last message -> where that one stood."""
        try:
            places = {key: place_from_json(value) for key, value in self._content().items()}
            return {key: place for key, place in places.items() if place is not None}
        except (StoredDataError, OSError) as error:
            logger.debug("%s is not used: %s", self._folder.display(ANCHORS_FILE), error)
            return {}

    def note(self, stored_hash: str, place: MessagePlace, keep: Collection[str]) -> None:
        """Add an entry, and drop those of memories that are not in ``keep`` any more."""
        try:
            known = {key: value for key, value in self._content().items() if key in keep}
            write_json(self._folder.file(ANCHORS_FILE), {**known, stored_hash: place.as_json()},
                       self._folder.cipher, self._folder.file_mode)
        except (StoredDataError, OSError) as error:
            logger.debug("%s is not written: %s", self._folder.display(ANCHORS_FILE), error)

    def _content(self) -> dict[str, object]:
        display = self._folder.display(ANCHORS_FILE)
        content = read_json(self._folder.file(ANCHORS_FILE), self._folder.cipher, display)
        if content is None:
            return {}
        if not isinstance(content, dict):
            raise StoredDataError(f"{display} holds no object")
        return content
