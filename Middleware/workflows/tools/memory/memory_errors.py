"""How the log names a failure without repeating anything of a conversation."""
from __future__ import annotations

import logging

from Middleware.exceptions import EarlyTerminationException, WilmerError
from Middleware.llmapis.backend_errors import log_text

logger = logging.getLogger(__name__)


def reason(error: Exception) -> str:
    """The text of an error of this program, as far as the log may have it; of others, which may quote anything, the
    kind. More at DEBUG.
    """
    if isinstance(error, (WilmerError, EarlyTerminationException)):
        return log_text(error)
    logger.debug("A failure while memories were made", exc_info=error)
    return type(error).__name__
