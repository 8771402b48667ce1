"""The bodies of streamed answers of the console's API."""

from __future__ import annotations

import contextvars
import logging
import queue
from collections.abc import Iterable, Iterator

from Middleware.addons.console.calls import Event, error_type
from Middleware.api.errors import describe_error, log_error
from Middleware.api.running.disconnect_watcher import CLIENT_LEFT, Probe
from Middleware.api.running.running_requests import running_requests
from Middleware.models.request_context import RequestContext
from Middleware.utilities.daemon_threads import run_in_pool

logger = logging.getLogger(__name__)

# Proxies and browsers give up on a stream that is silent for a minute.
HEARTBEAT_SECONDS = 15.0
HEARTBEAT = b":\n\n"


class EventBody:
    """A stream of events.

    Events of a call that runs the engine are made on a thread of their own, so that heartbeats go out while the
    back-end is silent; when the client leaves, its request is cancelled.
    """

    def __init__(
        self,
        events: Iterable[Event | None],
        request: RequestContext | None,
        probe: Probe | None,
        context: contextvars.Context,
    ) -> None:
        self._events = events
        self._request = request
        self._probe = probe
        self._context = context
        self._closed = False
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._body = self._framed() if request is None else self._run(request)

    def __iter__(self) -> Iterator[bytes]:
        return self._body

    def close(self) -> None:
        """End the stream, in whichever state it is. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._request is None:
            self._close_events()
        # Its thread closes the events.
        elif not self._request.answer_complete:
            self._request.cancel_scope.cancel(CLIENT_LEFT)

    def _close_events(self) -> None:
        close = getattr(self._events, "close", None)
        if close is not None:
            close()

    def _framed(self) -> Iterator[bytes]:
        for event in self._events:
            yield HEARTBEAT if event is None else event.framed()

    def _run(self, request: RequestContext) -> Iterator[bytes]:
        # Started here and not by the first step of the body: a body without a reader must end, too.
        running_requests().begin(request, self._probe)
        try:
            run_in_pool(lambda: self._context.run(self._make, request), "console-run")
        except BaseException:
            running_requests().end(request)
            raise
        return self._received()

    def _received(self) -> Iterator[bytes]:
        while True:
            try:
                piece = self._queue.get(timeout=HEARTBEAT_SECONDS)
            except queue.Empty:
                piece = HEARTBEAT
            if piece is None:
                return
            yield piece

    def _make(self, request: RequestContext) -> None:
        failure: Event | None = None
        try:
            for event in self._events:
                self._queue.put(HEARTBEAT if event is None else event.framed())
        # The client must get the end of its stream, whatever a workflow raises.
        except BaseException as error:
            log_error(error, request, "in the console")
            public = describe_error(error, request)
            failure = Event(
                "error", {"error": {"message": public.message, "type": error_type(public.status), "where": ""}}
            )
        finally:
            self._close_events()
            running_requests().answered(request)
            running_requests().end(request)
            if failure is not None:
                self._queue.put(failure.framed())
            self._queue.put(None)
