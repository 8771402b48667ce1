"""Cancellations of requests that other workers have."""
from __future__ import annotations

import time
from typing import TYPE_CHECKING

from Middleware.services.cancellation_service import CancellationService
from Middleware.utilities.text_utils import storable

if TYPE_CHECKING:
    from Middleware.utilities.postgres.database import Database

# An id with more characters is none of ours, and a notification has a limited size.
MAX_ID = 200
_TIDY_SECONDS = 600.0

# A row for workers that do not listen at this moment, and a word for all others.
_PASS_ON = ("WITH kept AS (INSERT INTO wilmer.cancellations (request_id, reason) VALUES (%s, %s)) "
            "SELECT pg_notify('wilmer', 'cancel ' || %s)")
_MISSED = "SELECT request_id, reason FROM wilmer.cancellations WHERE at >= now() - make_interval(secs => %s)"
_TIDY = "DELETE FROM wilmer.cancellations WHERE at < now() - interval '1 hour'"


class SharedCancellations:
    """Passes cancellations of unknown requests on to all workers, and takes those of the others.

    ``service``: the cancellation service of this process.
    """

    def __init__(self, database: Database, service: CancellationService) -> None:
        self._database = database
        self._service = service
        self._tidied = time.monotonic()

    def pass_on(self, request_id: str, reason: str) -> None:
        """Have the worker that has a request cancel it. Raises StateUnavailableError."""
        if len(request_id) > MAX_ID:
            return
        values = (storable(request_id), storable(reason), storable(request_id))
        # Cancelling twice does no harm.
        self._database.run(lambda connection: connection.execute(_PASS_ON, values), again=True)

    def notified(self, request_id: str) -> None:
        """Cancel a request that another worker has named, if it is here."""
        self._service.cancel_here(request_id)

    def catch_up(self, seconds: float) -> None:
        """Cancel what was named in the last ``seconds``, when no notification may have arrived."""
        for request_id, reason in self._database.read(_MISSED, [seconds]):
            self._service.cancel_here(request_id, reason)

    def tidy(self) -> None:
        """Remove old rows now and then; call it as often as you like."""
        if time.monotonic() - self._tidied >= _TIDY_SECONDS:
            self._tidied = time.monotonic()
            self._database.write(_TIDY)
