"""What LLMs must get back with their tool calls, among several workers: the next request may reach another one."""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import TYPE_CHECKING, cast

from Middleware.exceptions import StateUnavailableError
from Middleware.llmapis.keepsakes import KEPT_SECONDS, MAX_ANSWER_BYTES, KeepsakeStore, KeptAnswer, agreeing
from Middleware.utilities.text_utils import storable

if TYPE_CHECKING:
    from Middleware.addons.postgres.database import Database

_TIDY_SECONDS = 600.0
# Those of one question are the newest.
_MOST = 50
_KEEP = "INSERT INTO wilmer.keepsakes (owner, shape, question, ids, kept) VALUES (%s, %s, %s, %s, %s)"
_FIND = (
    "SELECT ids, question, kept FROM wilmer.keepsakes WHERE owner = %s AND shape = %s "
    "AND at > now() - make_interval(secs => %s) ORDER BY at DESC LIMIT %s"
)
_TIDY = "DELETE FROM wilmer.keepsakes WHERE at < now() - make_interval(secs => %s)"


class SharedKeepsakes(KeepsakeStore):
    """Asks the database where the memory of this worker has nothing. An outage is like an empty table."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._tidied = time.monotonic()

    def put(self, answer: KeptAnswer) -> None:
        super().put(answer)
        if not answer.kept or answer.is_secret or len(answer.kept) > MAX_ANSWER_BYTES:
            return
        ids = [storable(one) for one in answer.ids]
        with contextlib.suppress(StateUnavailableError):
            self._database.write(_KEEP, [_owner(answer), answer.shape, answer.question, ids, answer.kept])

    def find(self, wanted: KeptAnswer, is_running: bool) -> list[KeptAnswer]:
        found = super().find(wanted, is_running)
        if found or not is_running:
            return found
        with contextlib.suppress(StateUnavailableError):
            rows = self._database.read(_FIND, [_owner(wanted), wanted.shape, KEPT_SECONDS, _MOST])
            kept = [
                KeptAnswer(wanted.owner, tuple(cast("list[str]", ids)), wanted.shape, str(question), cast(bytes, data))
                for ids, question, data in rows
            ]
            return agreeing(kept, wanted)
        return []

    def tidy(self) -> None:
        """Delete what is too old, now and then."""
        if time.monotonic() - self._tidied >= _TIDY_SECONDS:
            self._tidied = time.monotonic()
            with contextlib.suppress(StateUnavailableError):
                self._database.write(_TIDY, [KEPT_SECONDS])


def _owner(answer: KeptAnswer) -> str:
    """Return a name that says nothing about the user and the key."""
    return hashlib.sha256("\0".join(answer.owner).encode("utf-8", "surrogatepass")).hexdigest()
