"""Descriptions of images by vision models: in a file of the discussion, or cached in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from Middleware.exceptions import UnreadableDataError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import (
    change_object,
    if_readable,
    log_unreadable,
    logged_as_conflict,
    read_object,
)
from Middleware.utilities.once import BoundedCache

logger = logging.getLogger(__name__)

FILE_NAME = "vision_responses.json"
# A few megabytes of text; a description that was dropped costs another LLM call.
MAX_ENTRIES = 512
MAX_CHARACTERS = 4_000_000


def picture_text(description: str) -> str:
    """Return a description of an image as it stands in a message that is remembered."""
    return f"(picture: {description.strip()})"


class VisionResponses:
    """The document ``vision_responses.json`` of one discussion: descriptions by the hash of their message.

    Raises DataKeyError for a file of another API key. Reading creates nothing.
    """

    def __init__(self, state: DiscussionState) -> None:
        self._state = state

    def read(self) -> dict[str, str]:
        """Return all descriptions; empty without a file, or with a logged error if it cannot be read."""
        nothing: dict[str, object] = {}
        known = if_readable(lambda: read_object(self._state, FILE_NAME), nothing)
        return {key: text for key, text in known.items() if isinstance(text, str)}

    def forget(self, texts: Iterable[str]) -> None:
        """Delete the descriptions that stand in ``texts``, which are those of messages as they are remembered."""
        gone = {key for key, known in self.read().items() if any(picture_text(known) in text for text in texts)}
        if gone:
            change_object(self._state, FILE_NAME, lambda known: {key: known[key] for key in known if key not in gone})

    def add(self, descriptions: Mapping[str, str], scope: CancelScope | None = None) -> None:
        """Store the ``descriptions`` whose hash is not in the file.

        A file that cannot be read is not changed. A failure to write is logged: the image is only described again next
        time. Raises EarlyTerminationException if ``scope`` is cancelled while waiting for the file.
        """
        if not descriptions:
            return
        try:
            change_object(self._state, FILE_NAME, lambda known: {**descriptions, **known}, scope)
        except UnreadableDataError as error:
            log_unreadable(error)
        except OSError as error:
            if not logged_as_conflict(error):
                logger.error(
                    "Descriptions of images in discussion %s were not saved: %s",
                    self._state.discussion_id,
                    error.strerror or type(error).__name__,
                )


def recent_descriptions() -> BoundedCache[str, str]:
    """Return the process's cache of descriptions, by a key of everything they depend on."""
    return process().one(_new_descriptions)


def _new_descriptions() -> BoundedCache[str, str]:
    return BoundedCache(MAX_ENTRIES, len, MAX_CHARACTERS)
