"""The concurrency gate of all workers together: tickets in the state database, of which the oldest have the slots.

A worker that has tickets which wait looks once a second, and whenever another says that one was given back. While the
database does not answer, each worker lets its share through by itself; afterwards it enters the tickets of all its
running and waiting requests again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from Middleware.common.fair_semaphore import Slots, Waiter
from Middleware.exceptions import StateUnavailableError
from Middleware.utilities.daemon_threads import start_daemon

if TYPE_CHECKING:
    from Middleware.addons.postgres.database import Database

logger = logging.getLogger(__name__)

# Between two looks without a notification, and between two removals of the tickets of dead workers.
LOOK_SECONDS = 1.0
COUNT_SECONDS = 10.0
# After the tickets were lost, the other workers get this time to enter those of their running requests.
GRACE_SECONDS = 2.0

_ENTER = "SELECT ticket, before FROM wilmer.enter_gate(%s, %s, %s)"
_AGAIN = "SELECT wilmer.enter_gate_again(%s, %s, %s, %s)"
_LEAVE = "SELECT wilmer.leave_gate(%s, %s, %s)"
_LOOK = "SELECT ticket, before FROM wilmer.look_at_gate(%s, %s, %s)"
_OWN = "SELECT id FROM wilmer.gate WHERE worker = %s"
# Each ticket leaves a dead row, over which each worker counts while all others wait. Autovacuum looks once a minute,
# when a busy gate has a hundred thousand of them. A vacuum takes a few milliseconds and blocks no request.
TIDY_TICKETS = 1000
_TIDY = "VACUUM (SKIP_LOCKED, TRUNCATE false) wilmer.gate"
_COUNT_WORKERS = "SELECT count(*) FROM wilmer.live_workers()"


class SharedWaiter(Waiter):
    """A request's or a call's ticket, or its place among this worker's while it has none."""

    def __init__(self, gate: SharedGate, rank: int) -> None:
        super().__init__(gate, rank)
        # The ticket and the number of the worker for which it was taken.
        self.ticket: int | None = None
        self.worker = 0
        # A thread takes a ticket for it at this moment.
        self.is_entering = False


class SharedGate(Slots):
    """The slots of all workers. Thread-safe.

    Args:
        size: the number of slots, the same on all workers.
        number: returns the number of this worker.
    """

    # A request that is certain of a slot need not look whether the request is a front-end's own. Here, no slot is
    # certain.
    free = False

    def __init__(self, database: Database, number: Callable[[], int], size: int) -> None:
        self._database = database
        self._number = number
        # In the order of arrival.
        self._waiters: dict[SharedWaiter, None] = {}
        self._changed = threading.Condition()
        super().__init__(size, self._changed)
        # The worker has had tickets, which may be lost; after that no new ones are taken before this time.
        self._was_renewed, self._enter_from = False, 0.0
        self._renewing = threading.Lock()
        self._watcher: threading.Thread | None = None
        # Soon there is something to look at; and the table may have tickets of this worker that it does not know.
        self._noticed = self._must_reenter = False
        self._cleaned = 0.0
        # The workers that were alive when they were last counted, and when that was.
        self._workers, self._counted = 1, 0.0
        # The tickets that were given back since the table was tidied.
        self._given_back = 0
        # Tickets of this worker that had no request then.
        self._strange: set[int] = set()

    @property
    def waiting(self) -> int:
        with self._changed:
            return sum(not waiter.granted.is_set() for waiter in self._waiters)

    @property
    def taken(self) -> int:
        with self._changed:
            return sum(waiter.granted.is_set() for waiter in self._waiters)

    # -- coming and going ----------------------------------------------------------------------------------------------
    def enqueue(self, rank: int = 0) -> SharedWaiter:
        """Return a waiter at the end of the queue, with a slot immediately if one is free.

        ``rank``: see ``Waiter``. One above 0 takes a ticket only when a slot is free, so that every other waiter of all
        workers goes before it.
        """
        waiter = SharedWaiter(self, rank)
        with self._changed:
            self._waiters[waiter] = None
            # Those that came earlier and wait like this one go first.
            has_turn = not rank or not any(
                one.rank and not one.granted.is_set() for one in self._waiters if one is not waiter
            )
        if has_turn:
            self._enter(waiter)
        self._share_if_down()
        stop = None
        with self._changed:
            if not waiter.granted.is_set():
                self._watch()
                stop = None if rank else self._take_offer()
        # Without the lock, as the holder may release its slot at once.
        if stop is not None:
            stop()
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Give a ticket back, or a place without one."""
        with self._changed:
            if not isinstance(waiter, SharedWaiter) or waiter not in self._waiters:
                return
            del self._waiters[waiter]
            ticket, worker = waiter.ticket, waiter.worker
        self._share_if_down()
        # On this thread: the client of a request that ends may send the next one at once, and must not find it waiting.
        if ticket is not None:
            self._give_back(worker, ticket)

    def _enter(self, waiter: SharedWaiter) -> None:
        """Take a ticket for a waiter, which has a slot if it is among the oldest."""
        with self._changed:
            if waiter.is_entering or waiter.ticket is not None or time.monotonic() < self._enter_from:
                return
            waiter.is_entering = True
        worker, ticket, before, is_wanted = self._number(), None, 0, False
        try:
            [(ticket, before)] = self._database.write(_ENTER, [worker, self.size, not waiter.rank])
        # Perhaps it was taken all the same.
        except StateUnavailableError:
            self._reenter_all()
        finally:
            with self._changed:
                waiter.is_entering = False
                # It may have left in the meantime, or all tickets were entered again.
                is_wanted = ticket is not None and waiter in self._waiters and waiter.ticket is None
                if is_wanted:
                    waiter.ticket, waiter.worker = ticket, worker
                    if before < self.size:
                        waiter.granted.set()
        if ticket is not None and not is_wanted:
            self._give_back(worker, ticket)

    def _give_back(self, worker: int, ticket: int) -> None:
        self._given_back += 1
        try:
            # Deleting twice does no harm.
            self._database.run(lambda connection: connection.execute(_LEAVE, [worker, ticket, self.size]), again=True)
        except StateUnavailableError:
            self._reenter_all()

    def _reenter_all(self) -> None:
        """Have all tickets entered again: in a second, or when the database is back."""
        if not self._database.down:
            with self._changed:
                self._must_reenter = True
                self._watch()

    # -- waiting -------------------------------------------------------------------------------------------------------
    def notified(self, rest: str = "") -> None:
        """Look soon whether a waiter has a slot now: another worker says that one may be free."""
        with self._changed:
            self._noticed = True
            self._changed.notify_all()

    def _watch(self) -> None:
        """Start the thread that looks, unless it runs. The lock is held."""
        if self._watcher is None:
            self._watcher = start_daemon(self._run, "gate", "Requests that wait for a slot of all workers wait longer")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._noticed, LOOK_SECONDS)
                self._noticed = False
                if not self._must_reenter and all(waiter.granted.is_set() for waiter in self._waiters):
                    # Under the lock, so that the next waiter starts a new thread.
                    self._watcher = None
                    return
            try:
                self._look()
            # The next look tries again, and in between the workers share.
            except StateUnavailableError:
                self._share_if_down()
            # Requests depend on this thread.
            except Exception:
                logger.exception("The concurrency gate could not be looked at")
                time.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        """Grant slots to the waiters that have one now. Raises StateUnavailableError."""
        if self._database.down:
            # All tickets are entered again when it is back.
            self._must_reenter = False
            self._share_if_down()
            return
        now = time.monotonic()
        clean = now - self._cleaned >= LOOK_SECONDS
        with self._changed:
            waiting = {one.ticket: one for one in self._waiters if not one.granted.is_set() and one.ticket is not None}
            without = sorted(
                (one for one in self._waiters if not one.granted.is_set() and one.ticket is None),
                key=lambda one: one.rank,
            )
        if clean:
            self._cleaned = now
        seen: dict[int, int] = dict(
            self._database.run(
                lambda connection: connection.execute(_LOOK, [self._number(), list(waiting), clean]).fetchall(),
                again=True,
            )
        )
        with self._changed:
            for ticket, waiter in waiting.items():
                if seen.get(ticket, self.size) < self.size and waiter.ticket == ticket:
                    waiter.granted.set()
            is_lost = any(
                ticket not in seen and one.ticket == ticket and one in self._waiters for ticket, one in waiting.items()
            )
        if self._must_reenter or is_lost:
            self.renew()
            return
        for waiter in without:
            self._enter(waiter)
            # Those that wait behind others go one after the other, as long as a slot is free.
            if waiter.rank and not waiter.granted.is_set():
                break

    def renew(self) -> None:
        """Enter the tickets of this worker again: those of running requests now, those of waiting ones a bit later.

        Call it when the worker has got its number, and when the database is back: the tickets may be lost, and
        requests may have come and gone in the meantime.
        """
        with self._renewing:
            with self._changed:
                self._must_reenter = False
                # There was nothing to lose before the first time.
                if self._was_renewed:
                    self._enter_from = time.monotonic() + GRACE_SECONDS
                self._was_renewed = True
                running = [one for one in self._waiters if one.granted.is_set()]
                former = [one.ticket for one in self._waiters if one.ticket is not None]
                before = next((one.worker for one in self._waiters if one.ticket is not None), 0)
            worker = self._number()
            try:
                rows = self._database.run(
                    lambda connection: connection.execute(_AGAIN, [worker, before, former, len(running)]).fetchall(),
                    again=True,
                )
            except StateUnavailableError:
                self._reenter_all()
                return
            tickets = sorted(row[0] for row in rows)
            left = []
            with self._changed:
                for one in self._waiters:
                    if not one.granted.is_set() and one.ticket in former:
                        one.ticket = None
                for waiter, ticket in zip(running, tickets, strict=True):
                    if waiter not in self._waiters:
                        left.append(ticket)
                        continue
                    # It was about to get one on another thread.
                    if waiter.ticket is not None and waiter.ticket not in former:
                        left.append(waiter.ticket)
                    waiter.ticket, waiter.worker = ticket, worker
        for ticket in left:
            self._give_back(worker, ticket)
        self.notified()

    def beat(self) -> None:
        """Do now and then what keeps the gate right; call it once a second.

        The workers are counted, for the time when the database does not answer; tickets of this worker without a
        request are given back: one would be in the way for as long as the worker lives; and dead rows are removed.
        """
        if self._given_back >= TIDY_TICKETS and not self._database.down:
            self._given_back = 0
            self._database.write(_TIDY)
        if time.monotonic() - self._counted < COUNT_SECONDS or self._database.down:
            return
        self._counted, number = time.monotonic(), self._number()
        [(workers,)] = self._database.read(_COUNT_WORKERS)
        self._workers = max(1, workers)
        own = {ticket for (ticket,) in self._database.read(_OWN, [number])}
        with self._changed:
            own -= {one.ticket for one in self._waiters}
        # One that was seen last time is not just being taken or given back.
        for ticket in own & self._strange:
            self._give_back(number, ticket)
        self._strange = own

    # -- without the database ------------------------------------------------------------------------------------------
    def _share_if_down(self) -> None:
        """While the database does not answer, let this worker's share of the requests through."""
        if not self._database.down:
            return
        share = max(1, self.size // self._workers)
        with self._changed:
            running = sum(one.granted.is_set() for one in self._waiters)
            waiting = [one for one in self._waiters if not one.granted.is_set()]
            for waiter in sorted(waiting, key=lambda one: one.rank)[: max(0, share - running)]:
                waiter.granted.set()

    def _is_wanted(self) -> bool:
        return any(not one.granted.is_set() and not one.rank for one in self._waiters)
