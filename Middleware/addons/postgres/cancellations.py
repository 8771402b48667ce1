"""Cancellations of requests that other workers have."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from Middleware.addons.postgres.listener import CANCEL, CANCEL_FOR
from Middleware.services.cancellation_service import CancellationService
from Middleware.utilities.text_utils import storable

if TYPE_CHECKING:
    from Middleware.addons.postgres.database import Database

# An id with more characters is not one of ours, and a notification has a limited size.
MAX_ID = 200
_TIDY_SECONDS = 600.0

# A row for workers that do not listen at this moment, and a word for all others.
_PASS_ON = (
    "WITH kept AS (INSERT INTO wilmer.cancellations (request_id, reason, users) VALUES (%s, %s, %s)) "
    "SELECT pg_notify('wilmer', %s)"
)
_MISSED = "SELECT request_id, reason, users FROM wilmer.cancellations WHERE at >= now() - make_interval(secs => %s)"
_TIDY = "DELETE FROM wilmer.cancellations WHERE at < now() - interval '1 hour'"


class SharedCancellations:
    """Passes cancellations of unknown requests on to all workers, and takes those of the others.

    Args:
        service: the cancellation service of this process.
        owner: returns the user of a request of this process; None for one that is not here, or whose user is not known
            yet.
    """

    def __init__(self, database: Database, service: CancellationService, owner: Callable[[str], str | None]) -> None:
        self._database = database
        self._service = service
        self._owner = owner
        self._tidied = time.monotonic()

    def pass_on(self, request_id: str, reason: str, users: frozenset[str] | None) -> None:
        """Have the worker that has a request cancel it; with ``users``, only if it is the request of one of them.

        Raises StateUnavailableError.
        """
        if len(request_id) > MAX_ID:
            return
        name = storable(request_id)
        permitted = None if users is None else ",".join(quote(user, safe="") for user in sorted(users))
        word = f"{CANCEL} {name}" if permitted is None else f"{CANCEL_FOR} {permitted} {name}"
        values = (name, storable(reason), permitted, word)
        # Cancelling twice does no harm.
        self._database.run(lambda connection: connection.execute(_PASS_ON, values), again=True)

    def notified(self, request_id: str) -> None:
        """Cancel a request that another worker has named, if it is here."""
        self._service.cancel_here(request_id)

    def notified_for(self, rest: str) -> None:
        """Cancel a request that another worker has named behind the users who may do so, if it is here and theirs."""
        permitted, _, request_id = rest.partition(" ")
        self._cancel(request_id, "", permitted)

    def catch_up(self, seconds: float) -> None:
        """Cancel what was named in the last ``seconds``, when no notification may have arrived."""
        for request_id, reason, permitted in self._database.read(_MISSED, [seconds]):
            self._cancel(request_id, reason, permitted)

    def _cancel(self, request_id: str, reason: str, permitted: str | None) -> None:
        owner = self._owner(request_id)
        if permitted is None or (owner is not None and owner in map(unquote, permitted.split(","))):
            self._service.cancel_here(request_id, reason)

    def tidy(self) -> None:
        """Remove old rows now and then; call it as often as you like."""
        if time.monotonic() - self._tidied >= _TIDY_SECONDS:
            self._tidied = time.monotonic()
            self._database.write(_TIDY)
