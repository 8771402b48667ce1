"""How the log names a failure without repeating anything of a conversation."""
from __future__ import annotations

import logging

from Middleware.exceptions import WilmerError
from Middleware.llmapis.backend_errors import log_text, public_text
from Middleware.utilities.sensitive_logging_utils import is_encryption_active

logger = logging.getLogger(__name__)


def reason(error: Exception) -> str:
    """The text of an error of this program, as far as the log may have it; of others, which may quote anything, the
    kind. More at DEBUG, unless the request is private.
    """
    if isinstance(error, WilmerError):
        return log_text(error)
    if not is_encryption_active():
        logger.debug("A failure while memories were made", exc_info=error)
    return public_text(error)
