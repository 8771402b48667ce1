"""How the log names a failure without repeating anything of a conversation."""
from __future__ import annotations

import logging

from Middleware.exceptions import EarlyTerminationException, WilmerError

logger = logging.getLogger(__name__)


def reason(error: Exception) -> str:
    """The text of an error of this program; of others, which may quote anything, the kind. More at DEBUG."""
    if isinstance(error, (WilmerError, EarlyTerminationException)):
        return str(error)
    logger.debug("A failure while memories were made", exc_info=error)
    return type(error).__name__
