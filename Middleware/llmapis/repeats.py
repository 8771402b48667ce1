"""When a failed call is sent again: after which failure, how often, and after which wait."""

from __future__ import annotations

import logging
import time

from Middleware.exceptions import BackendError
from Middleware.llmapis.backend_errors import says_loading, status_of

logger = logging.getLogger(__name__)

MOST_ATTEMPTS = 3
# Seconds before the second and the third attempt. A client waits; a server that needs longer says so.
WAITS = (0.25, 0.5)
# A server that is busy, or was lost with the request, gets a little more time.
BUSY_WAITS = (0.5, 1.0)
LOADING_WAIT = 1.0
_BUSY = (408, 429, 529)
# These failures do not pass.
_LASTING = (501, 505, 508)


class Repeats:
    """Counts the attempts of one call.

    Args:
        is_single: there is a backup, which is the second attempt.
        loading_seconds: how long a server that loads its model is waited for.
        any_status: a server of this kind may say with any status that it loads.
    """

    def __init__(self, endpoint: str, is_single: bool, loading_seconds: float, any_status: bool) -> None:
        self._endpoint, self._is_single, self._any_status = endpoint, is_single, any_status
        self._loading_seconds = loading_seconds
        self._loading_since: float | None = None
        self._attempts, self._was_stale = 1, False

    def wait_after(self, error: BackendError) -> float | None:
        """Return the seconds until the call is sent again; None if it is not."""
        status = status_of(error)
        if self._is_single:
            return None
        if (
            (status == 503 or (self._any_status and status is not None))
            and says_loading(error)
            and self._loading_seconds
        ):
            return self._loading_wait(error)
        if error.lost == "stale" and not self._was_stale:
            # The server had closed the idle connection, so it has not seen the request.
            self._was_stale = True
            self._log("the connection was stale", 0.0)
            return 0.0
        waits = BUSY_WAITS if error.lost or status in _BUSY else WAITS
        passes = bool(error.lost) or status in _BUSY or ((status or 0) >= 500 and status not in _LASTING)
        if not passes or self._attempts == MOST_ATTEMPTS:
            return None
        wait = waits[self._attempts - 1] if error.retry_after is None else error.retry_after
        self._log("the connection was lost before an answer" if error.lost else f"status {status}", wait)
        self._attempts += 1
        return wait

    def _loading_wait(self, error: BackendError) -> float | None:
        now = time.monotonic()
        if self._loading_since is None:
            self._loading_since = now
            logger.info(
                "Endpoint '%s': the server loads its model; it is waited for, %g s at most.",
                self._endpoint,
                self._loading_seconds,
            )
        left = self._loading_since + self._loading_seconds - now
        return None if left <= 0 else min(LOADING_WAIT if error.retry_after is None else error.retry_after, left)

    def _log(self, reason: str, wait: float) -> None:
        logger.warning(
            "Endpoint '%s': %s (attempt %d of %d). Trying again in %g s.",
            self._endpoint,
            reason,
            self._attempts,
            MOST_ATTEMPTS,
            wait,
        )
