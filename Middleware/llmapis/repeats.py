"""When a failed call is sent again: after which failure, how often, and after which wait."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from Middleware.exceptions import BackendError
from Middleware.llmapis.backend_errors import says_loading, status_of
from Middleware.utilities.config.keys.api_type import API_TYPE
from Middleware.utilities.config.keys.endpoint import ENDPOINT

if TYPE_CHECKING:
    from Middleware.llmapis.handlers.base.backend_call import BackendSettings

logger = logging.getLogger(__name__)

MOST_ATTEMPTS = 3
# Seconds before the second and the third attempt. A client waits; a server that needs longer says so.
WAITS = (0.25, 0.5)
# A server that is busy, or was lost with the request, gets a little more time.
BUSY_WAITS = (0.5, 1.0)
LOADING_WAIT = 1.0
_BUSY = (408, 429, 529)
# A stream begins towards the client after the second time, and until then its failure has its own status. A failure
# after the first is not repeated, as another attempt that takes as long would end too late for that.
EARLY_SECONDS, BEGUN_SECONDS = 2.5, 5.0
# These failures do not pass.
_LASTING = (501, 505, 508)


class Repeats:
    """Counts the attempts of one call. With a backup, that is the second attempt."""

    def __init__(self, settings: BackendSettings, streams_since: float | None = None) -> None:
        """``streams_since``: when a streamed call began, in monotonic seconds."""
        self._settings, self._streams_since = settings, streams_since
        self._loading_since: float | None = None
        self._attempts, self._was_stale = 1, False

    def wait_after(self, error: BackendError) -> float | None:
        """Return the seconds until the call is sent again; None if it is not."""
        settings, status = self._settings, status_of(error)
        if settings.single_attempt:
            return None
        # Ollama may say with any status that it is loading.
        may_load = status == 503 or (status is not None and is_ollama(settings))
        most = ENDPOINT.number(settings.endpoint, "loadingTimeoutInSeconds") if may_load and says_loading(error) else 0
        if most:
            return self._loading_wait(error, most)
        if error.lost == "stale" and not self._was_stale:
            # The server had closed the idle connection, so it has not seen the request.
            self._was_stale = True
            self._log("the connection was stale", 0.0)
            return 0.0
        waits = BUSY_WAITS if error.lost or status in _BUSY else WAITS
        passes = error.lost or status in _BUSY or ((status or 0) >= 500 and status not in _LASTING)
        elapsed = 0.0 if self._streams_since is None else time.monotonic() - self._streams_since
        is_late = waits is WAITS and EARLY_SECONDS <= elapsed < BEGUN_SECONDS
        if not passes or is_late or self._attempts == MOST_ATTEMPTS:
            return None
        wait = waits[self._attempts - 1] if error.retry_after is None else error.retry_after
        self._log("the connection was lost before an answer" if error.lost else f"status {status}", wait)
        self._attempts += 1
        return wait

    def _loading_wait(self, error: BackendError, most: float) -> float | None:
        now, name = time.monotonic(), self._settings.endpoint_name
        if self._loading_since is None:
            self._loading_since = now
            logger.info("Endpoint '%s': the server loads its model; it is waited for, %g s at most.", name, most)
        left = self._loading_since + most - now
        return None if left <= 0 else min(LOADING_WAIT if error.retry_after is None else error.retry_after, left)

    def _log(self, reason: str, wait: float) -> None:
        attempt = f"{reason} (attempt {self._attempts} of {MOST_ATTEMPTS})"
        logger.warning("Endpoint '%s': %s. Trying again in %g s.", self._settings.endpoint_name, attempt, wait)


def is_ollama(settings: BackendSettings) -> bool:
    """Return whether the server speaks a dialect of Ollama."""
    return str(API_TYPE.value(settings.api_type, "type")).startswith("ollama")
