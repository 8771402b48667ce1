"""The concurrency gate: a limit on the requests that run at the same time."""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from Middleware.api.dialects import API_TYPES, route_path
from Middleware.api.edge.body_budget import Body, BodyBudget
from Middleware.api.errors import RETRY_AFTER, PublicError, error_body
from Middleware.api.requests.background_tasks import is_waiting_task
from Middleware.api.requests.load_calls import is_load_call
from Middleware.api.running.disconnect_watcher import probe_for
from Middleware.api.running.running_requests import request_of
from Middleware.common.fair_semaphore import Slots
from Middleware.exceptions import ClientError, EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.models.request_context import note_wait
from Middleware.services.response_builder_service import to_json

logger = logging.getLogger(__name__)

BUSY = "Server busy, concurrency limit reached"
# Seconds between two checks whether the client of a waiting request has disconnected.
POLL_SECONDS = 0.1
# Many front-ends and proxies give up on a server that sends nothing for a minute, some after 10 s. Until then an error
# can still have its status.
HANDOVER_SECONDS = 5.0
FOR_EVER = float("inf")
PLACE_KEY = "wilmer.place"
"""The key of a request's ``Place`` in the WSGI environ."""


class ConcurrencyLimitMiddleware:
    """Limits the number of requests that run a workflow at the same time, and serves them in the order of arrival.

    Other requests never wait. A waiting request whose client disconnects is dropped. A request that is cancelled while
    its client still waits needs no slot: the application runs nothing for it, and answers in its dialect. What
    front-ends ask for on their own waits behind all chats. The bodies of waiting requests belong to the budget of those
    that arrive: the largest is refused when there is too much.

    A request that waits for long is handed over to the application, which sends heartbeats if the answer is streamed,
    and calls ``wait_for_slot`` before it starts the engine.

    Args:
        app: the WSGI application behind the gate.
        semaphore: its slots; a slot is held until the request gives it up, before the last byte of its answer, at the
            latest until the response body is exhausted, closed or fails.
        acquire_timeout: seconds a request may wait before it is answered with 503.
        max_waiting: the number of requests that may wait at the same time, each of which occupies a server thread;
            further ones get a 503 at once.

    Attributes:
        waiting: the number of requests that wait.
    """

    def __init__(
        self,
        app: WSGIApplication,
        semaphore: Slots,
        acquire_timeout: float = 900,
        max_waiting: int | None = None,
    ) -> None:
        self.app = app
        self.semaphore = semaphore
        self.acquire_timeout = acquire_timeout
        self.max_waiting = max_waiting
        self.waiting = 0
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        is_run = environ.get("REQUEST_METHOD") == "POST" and route_path(environ) in API_TYPES
        if not is_run or is_load_call(environ):
            return self.app(environ, start_response)
        return self.pass_through(self.app, environ, start_response)

    def pass_through(
        self, app: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Let ``app`` answer a request once it has a slot, or is handed over."""
        place = Place(self, environ)
        try:
            if not place.held and not self._wait_at_gate(place):
                place.end()
                return _refuse(environ, start_response)
            environ[PLACE_KEY] = place
            return _GatedBody(app(environ, start_response), place)
        except BaseException:
            place.end()
            raise

    def _wait_at_gate(self, place: Place) -> bool:
        """Let a request wait for a while; return False if it must be refused."""
        if not place.begin_waiting():
            if place.request is not None:
                place.request.report("wait_ended", place.request, "gate", Outcome.LATE.value)
            return False
        return place.wait(HANDOVER_SECONDS) not in (Outcome.LATE, Outcome.GONE)

    def begin_waiting(self, name: str) -> bool:
        """Count a request that begins to wait; return False if too many wait already."""
        with self._lock:
            waiting = self.waiting
            full = self.max_waiting is not None and waiting >= self.max_waiting
            self.waiting += not full
        if full:
            logger.warning("Concurrency gate: %d requests wait already, refusing request %s", waiting, name)
        else:
            logger.info("Concurrency gate: all slots are taken, request %s waits, %d waiting", name, waiting + 1)
        return not full

    def end_waiting(self) -> None:
        """Count a request that waits no more."""
        with self._lock:
            self.waiting -= 1


class Outcome(enum.Enum):
    """What a wait at the gate came to."""

    SLOT = "got"
    CANCELLED = "cancelled"
    GONE = "gone"
    LATE = "late"
    STILL_WAITING = "still waiting"


class Place:
    """A request's place at the gate: in the queue, and later a slot. ``end`` gives up either.

    The request knows how to give it up, and does so before the last byte of its answer goes out.
    """

    def __init__(self, gate: ConcurrencyLimitMiddleware, environ: WSGIEnvironment) -> None:
        self._gate = gate
        self.request = request_of(environ)
        self.name = self.request.request_id if self.request else "-"
        self._has_left = probe_for(environ)
        self._lock = threading.Lock()
        self._ended = False
        self._counted = self._reported = False
        # While the request is counted.
        self._body: Body | None = None
        self._began = time.monotonic()
        # Whether it is a front-end's own request need not be known while a slot is free.
        is_behind = not gate.semaphore.free and self._is_task(environ)
        self._waiter = gate.semaphore.enqueue(int(is_behind))
        self.held = self._waiter.wait(0)
        if self.request is not None:
            self.request.leave_gate = self.end

    def _is_task(self, environ: WSGIEnvironment) -> bool:
        # Only the body of an admitted request is in memory.
        return self.request is not None and is_waiting_task(environ)

    @property
    def waits(self) -> bool:
        """Whether the request still needs its slot. One that was cancelled needs none."""
        return not self.held and not self._ended

    def begin_waiting(self) -> bool:
        """Count this request among those that wait; return False if there are too many."""
        self._counted = self._gate.begin_waiting(self.name)
        if self._counted and self.request is not None:
            self._body = process().one(BodyBudget).keep(self.request.body_bytes)
        return self._counted

    def wait(self, seconds: float) -> Outcome:
        """Wait for the slot, at most ``seconds`` and at most until the request's time is up."""
        outcome = Outcome.STILL_WAITING
        began = time.monotonic()
        self._report_wait()
        try:
            outcome = self._wait(began + seconds)
        finally:
            note_wait(self.request, time.monotonic() - began)
            if outcome is not Outcome.STILL_WAITING:
                self._count_no_more()
                self._report_end(outcome)
        return outcome

    def _report_wait(self) -> None:
        # A request that was handed over goes on waiting.
        if self.request is not None and not self._reported:
            self._reported = True
            self.request.report("wait_started", self.request, "gate", self._gate.waiting - self._counted)

    def _report_end(self, outcome: Outcome) -> None:
        if self.request is not None:
            self._reported = False
            self.request.report("wait_ended", self.request, "gate", outcome.value)

    def _wait(self, until: float) -> Outcome:
        deadline = self._began + self._gate.acquire_timeout
        while (left := min(deadline, until) - time.monotonic()) > 0:
            if self._waiter.wait(min(POLL_SECONDS, left)):
                return self._take()
            if self._has_left is not None and self._has_left():
                logger.info("Concurrency gate: the client of request %s has gone", self.name)
                return Outcome.GONE
            if self.request is not None and self.request.cancel_scope.cancelled:
                return self._leave()
            # One that was chosen in the moment of its turn counts no more, also if the request waits again.
            if self._counted and self._body is not None and self._body.ended:
                logger.warning("Concurrency gate: no room for the body of waiting request %s, refusing it", self.name)
                return Outcome.LATE
        if time.monotonic() < deadline:
            return Outcome.STILL_WAITING
        seconds = self._gate.acquire_timeout
        logger.warning("Concurrency gate: no slot became free in %s s, refusing request %s", seconds, self.name)
        return Outcome.LATE

    def _take(self) -> Outcome:
        with self._lock:
            # The response was closed on another thread, and has released the slot.
            if self._ended:
                return Outcome.GONE
            self.held = True
        logger.info("Concurrency gate: request %s goes on after %.2f s", self.name, time.monotonic() - self._began)
        return Outcome.SLOT

    def _leave(self) -> Outcome:
        self.end()
        return Outcome.CANCELLED

    def offer(self, stop: Callable[[], object]) -> None:
        """Offer to give the slot up for a chat; see ``Waiter.offer``."""
        self._waiter.offer(stop)

    def withdraw(self, scope: CancelScope) -> None:
        """Take the offer back; see ``Waiter.withdraw``."""
        self._waiter.withdraw(scope)

    def give_up(self) -> None:
        """Release the slot and go back to the queue, behind the chats there."""
        with self._lock:
            if self._ended:
                return
            self._waiter.leave()
            self.held = False
            self._waiter = self._gate.semaphore.enqueue(rank=1)
            self.held = self._waiter.wait(0)
            self._began = time.monotonic()

    def end(self) -> None:
        """Release the slot or leave the queue. A second call does nothing."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._waiter.leave()
        if self.request is not None:
            self.request.leave_gate = None
        self._count_no_more()

    def _count_no_more(self) -> None:
        with self._lock:
            counted, self._counted = self._counted, False
        if counted:
            self._gate.end_waiting()
        if self._body is not None:
            process().one(BodyBudget).leave(self._body)


def place_of(environ: WSGIEnvironment) -> Place | None:
    """Return the place of a request at the gate; None if the request does not pass it."""
    return environ.get(PLACE_KEY)


def wait_for_slot(place: Place | None) -> None:
    """Wait for the slot of a request that was handed over without one.

    Raises:
        ClientError: it did not come in time.
        EarlyTerminationException: the request was cancelled, or its client has gone.
    """
    if place is None or not place.waits:
        return
    outcome = place.wait(FOR_EVER)
    if outcome is Outcome.LATE:
        raise ClientError(BUSY, HTTPStatus.SERVICE_UNAVAILABLE)
    if outcome is not Outcome.SLOT:
        raise EarlyTerminationException("cancelled while waiting for a slot")
    # The counters in the answer exclude the time in the queue.
    if place.request is not None:
        place.request.started = time.monotonic()


def _refuse(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    body = to_json(error_body(PublicError(HTTPStatus.SERVICE_UNAVAILABLE, BUSY), environ))
    start_response(
        "503 Service Unavailable",
        [("Content-Type", "application/json"), ("Content-Length", str(len(body))), RETRY_AFTER],
    )
    return [body]


class _GatedBody:
    """A response body that gives up its place at the gate when it is exhausted, fails or is closed.

    The server may close it on another thread than the one that iterates over it.
    """

    def __init__(self, body: Iterable[bytes], place: Place) -> None:
        self._body = body
        self._iterator = iter(body)
        self._place = place

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._iterator)
        except BaseException:
            self._place.end()
            raise

    def close(self) -> None:
        # The answer has been sent, and background nodes, which the inner close() starts, need no slot.
        self._place.end()
        close = getattr(self._body, "close", None)
        if close is not None:
            close()
