"""The calls that run on a KoboldCpp server, of all workers: an abort stops everything there."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from Middleware.addons.postgres.session import lock_key
from Middleware.exceptions import StateUnavailableError
from Middleware.llmapis.handlers.impl.koboldcpp_api_handler import CallCounter
from Middleware.utilities.daemon_threads import run_in_pool

if TYPE_CHECKING:
    from Middleware.addons.postgres.session import WorkerSession

# A worker that asks whether a server is busy has the exclusive lock for a millisecond.
_ATTEMPTS, _PAUSE = 50, 0.01


class SharedCallCounter(CallCounter):
    """Counts the calls of this worker, and holds a shared lock for each server that has one.

    While the database does not answer, every server counts as busy.
    """

    def __init__(self, session: WorkerSession) -> None:
        super().__init__()
        self._session = session
        # What the release of the lock on each server needs.
        self._held: dict[str, int] = {}
        self._changing = threading.Lock()

    @contextmanager
    def counted(self, server: str) -> Iterator[None]:
        try:
            with super().counted(server):
                self._adjust(server)
                yield
        finally:
            self._adjust(server)

    def busy(self, server: str) -> bool:
        if super().busy(server):
            return True
        try:
            # Had at once only if no other worker has its shared lock.
            taken = self._session.try_lock(_key(server))
            if taken:
                self._session.unlock(_key(server), taken)
        except StateUnavailableError:
            return True
        return not taken

    def renew(self) -> None:
        """Take the locks again, soon after the worker has lost its session and got another."""
        # The thread that noticed the loss may be about to take or free one of them.
        run_in_pool(self._renew, "koboldcpp-locks")

    def _renew(self) -> None:
        with self._changing:
            for server in list(self._calls):
                taken = self._try_lock(server)
                # It was not lost, or was taken in the meantime.
                if taken and taken == self._held.get(server):
                    self._session.unlock(_key(server), taken, shared=True)
                elif taken:
                    self._held[server] = taken

    def _try_lock(self, server: str) -> int:
        """Return what the release needs; 0 if the database does not answer."""
        with contextlib.suppress(StateUnavailableError):
            for _ in range(_ATTEMPTS):
                if taken := self._session.try_lock(_key(server), shared=True):
                    return taken
                time.sleep(_PAUSE)
        return 0

    def _adjust(self, server: str) -> None:
        """Hold the lock of a server while a call of this worker runs there."""
        with self._changing:
            runs = super().busy(server)
            if runs and server not in self._held:
                if taken := self._try_lock(server):
                    self._held[server] = taken
            elif not runs and server in self._held:
                self._session.unlock(_key(server), self._held.pop(server), shared=True)


def _key(server: str) -> int:
    return lock_key("koboldcpp", server)
