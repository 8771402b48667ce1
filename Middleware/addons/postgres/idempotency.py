"""The requests by idempotency key, of all workers."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from Middleware.exceptions import StateUnavailableError
from Middleware.services.idempotency_service import IdempotencyService

if TYPE_CHECKING:
    from Middleware.addons.postgres.database import Database

_REGISTER = "SELECT wilmer.register_idempotency(%s, %s, %s)"
_RELEASE = "DELETE FROM wilmer.idempotency WHERE key_hash = %s AND request_id = %s"


class SharedIdempotency(IdempotencyService):
    """The registry of this worker, and the one of all workers; alone while the database does not answer.

    ``number``: returns the number of this worker.
    """

    def __init__(self, database: Database, number: Callable[[], int]) -> None:
        super().__init__()
        self._database = database
        self._number = number
        # By request id; the database has hashes only.
        self._hashes: dict[str, bytes] = {}

    def register(self, key: str | None, request_id: str | None) -> str | None:
        earlier_here = super().register(key, request_id)
        if not key or not request_id:
            return None
        digest = hashlib.sha256(key.encode("utf-8")).digest()
        values = (digest, request_id, self._number())
        self._hashes[request_id] = digest
        try:
            # Repeated, it finds the same request, which has not displaced itself.
            [(earlier,)] = self._database.run(
                lambda connection: connection.execute(_REGISTER, values).fetchall(), again=True
            )
        except StateUnavailableError:
            return earlier_here
        return str(earlier) if earlier else None

    def release(self, request_id: str | None) -> None:
        super().release(request_id)
        digest = self._hashes.pop(request_id, None) if request_id else None
        if request_id and digest is not None:
            # The table is as good as empty after an outage, and old rows are replaced.
            with contextlib.suppress(StateUnavailableError):
                self._database.write(_RELEASE, [digest, request_id])
