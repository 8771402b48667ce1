"""Descriptions of images by vision models: in a file of the discussion, or cached in memory."""
from __future__ import annotations

import logging
from collections.abc import Mapping

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.utilities.conversations.discussion_files import if_readable, read_object, write_file
from Middleware.utilities.conversations.discussion_folder import SHORT, DiscussionFolder
from Middleware.utilities.once import BoundedCache

logger = logging.getLogger(__name__)

FILE_NAME = "vision_responses.json"
# A few megabytes of text; a description that was dropped costs another LLM call.
MAX_ENTRIES = 512
MAX_CHARACTERS = 4_000_000


class VisionResponses:
    """The file ``vision_responses.json`` of one discussion: descriptions by the hash of their message.

    Raises DataKeyError for a file of another API key. Reading creates nothing.
    """

    def __init__(self, folder: DiscussionFolder) -> None:
        self._folder = folder

    def read(self) -> dict[str, str]:
        """Return all descriptions; empty without a file, or with a logged error if it cannot be read."""
        return {key: text for key, text in (self._load() or {}).items() if isinstance(text, str)}

    def add(self, descriptions: Mapping[str, str], scope: CancelScope | None = None) -> None:
        """Store the ``descriptions`` whose hash is not in the file.

        A file that cannot be read is not changed. A failure to write is logged: the image is only described again next
        time. Raises EarlyTerminationException if ``scope`` is cancelled while waiting for the file.
        """
        if not descriptions:
            return
        try:
            with self._folder.lock(SHORT, scope):
                known = self._load()
                if known is not None and not descriptions.keys() <= known.keys():
                    write_file(self._folder, FILE_NAME, {**descriptions, **known})
        except OSError as error:
            logger.error("Descriptions of images in discussion %s were not saved: %s", self._folder.discussion_id,
                         error.strerror or type(error).__name__)

    def _load(self) -> dict[str, object] | None:
        """Return the object in the file; None for other content, which must not be overwritten."""
        return if_readable(lambda: read_object(self._folder, FILE_NAME), None)


def recent_descriptions() -> BoundedCache[str, str]:
    """Return the process's cache of descriptions, by a key of everything they depend on."""
    return process().one(_new_descriptions)


def _new_descriptions() -> BoundedCache[str, str]:
    return BoundedCache(MAX_ENTRIES, len, MAX_CHARACTERS)
