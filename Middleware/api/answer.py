"""Turns a run of the engine into an HTTP answer, streamed or whole (design D3, frontend-api section 7)."""
from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from Middleware.api.errors import describe_error, log_error
from Middleware.api.running_requests import running_requests
from Middleware.exceptions import EarlyTerminationException
from Middleware.models.request_context import RequestContext
from Middleware.utilities import config_utils
from Middleware.utilities.text_utils import rough_estimate_token_length

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
BACKGROUND_LIMIT_SECONDS = 3600
Start = Callable[[], Iterator[Any]]
_END: dict[str, Any] = {"token": "", "finish_reason": None, "end": True}


class StreamRenderer(Protocol):
    """How one dialect writes a stream."""

    heartbeat: bytes
    include_usage: bool

    def text(self, token: str) -> bytes: ...
    def tool_calls(self, token: str, calls: list[dict[str, Any]], finish_reason: str | None) -> bytes: ...
    def final(self, finish_reason: str) -> bytes: ...
    def usage(self, usage: dict[str, Any]) -> bytes: ...
    def terminator(self) -> bytes: ...
    def error(self, message: str, status: int) -> bytes: ...


def estimated_usage(request: RequestContext, messages: list[dict[str, Any]], answer: str) -> dict[str, Any]:
    """Token counts of the answer: those of the back-end, else an estimate."""
    if request.usage:
        return request.usage
    prompt = sum(rough_estimate_token_length(str(message.get("content") or "")) for message in messages)
    completion = rough_estimate_token_length(answer)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class WholeAnswer:
    """Runs the engine up to the responder's output on the calling thread; the rest follows after the response."""

    def __init__(self, request: RequestContext, start: Start) -> None:
        self._request = request
        self._context = contextvars.copy_context()
        self._start = start
        self._items: Iterator[Any] | None = None

    def value(self) -> Any:
        """The answer, a text or a tool-call dict. Raises what the engine raises, after cleaning up."""
        try:
            self._items = self._context.run(self._start)
            value = self._context.run(next, self._items, "")
        except EarlyTerminationException as error:
            logger.info("Request %s ended early: %s", self._request.request_id, error)
            value = ""
        except BaseException:
            running_requests.end(self._request)
            raise
        return "" if value is None else value

    def close(self) -> None:
        """The response is out: run the nodes that remain."""
        running_requests.answered(self._request)
        _finish_run(self._request, self._context, self._items)


class StreamingAnswer:
    """The body of a streamed response.

    A helper thread runs the engine up to the first chunk while this body sends heartbeats; from then on the thread
    that serves the response iterates the engine itself.
    """

    def __init__(self, request: RequestContext, start: Start, renderer: StreamRenderer,
                 usage: Callable[[str], dict[str, Any]]) -> None:
        self._request = request
        self._context = contextvars.copy_context()
        self._start = start
        self._renderer = renderer
        self._usage = usage
        self._items: Iterator[Any] | None = None
        self._first: Any = None
        self._error: BaseException | None = None
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._abandoned = False
        self._closed = False
        self._body = self._render()
        self._texts: list[str] = []
        self._finished = False
        self._waiting: list[bytes] = []  # rendered, and held back for the rest of its batch

    # -- until the first chunk -----------------------------------------------------------------------------------
    def begin(self, patience: float = HEARTBEAT_SECONDS) -> StreamingAnswer:
        """Start the engine; raises if it fails within ``patience`` seconds, so that the client gets a real status."""
        threading.Thread(target=self._run_to_first_chunk, name="first-chunk", daemon=True).start()
        self._ready.wait(patience)
        if self._ready.is_set() and self._error is not None and not self._ended_early(self._error):
            self.close()
            raise self._error
        return self

    def _run_to_first_chunk(self) -> None:
        try:
            self._items = self._context.run(self._start)
            self._first = self._context.run(next, self._items, _END)
        except BaseException as error:  # handed to the thread that serves the response
            self._error = error
        with self._lock:
            self._ready.set()
            abandoned = self._abandoned
        if abandoned:
            _finish_run(self._request, self._context, self._items)

    # -- the body ------------------------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._body)

    def _render(self) -> Iterator[bytes]:
        while not self._ready.is_set():
            yield self._renderer.heartbeat
            self._ready.wait(HEARTBEAT_SECONDS)
        try:
            if self._error is not None:
                raise self._error
            yield from self._render_chunks()
        except Exception as error:
            yield b"".join(self._waiting) + self._last_words(error)

    def _render_chunks(self) -> Iterator[bytes]:
        renderer, run, items = self._renderer, self._context.run, self._items
        assert items is not None
        chunk = self._first
        waiting = self._waiting
        written = time.monotonic()
        while True:
            token, calls = chunk["token"], chunk.get("tool_calls")
            if calls:
                waiting.append(renderer.tool_calls(token, calls, chunk["finish_reason"]))
                self._count(token)
            elif token:
                waiting.append(renderer.text(token))
                self._count(token)
            if chunk["finish_reason"] and not self._finished:
                self._finished = True
                if not calls:
                    waiting.append(renderer.final(chunk["finish_reason"]))
            if "end" in chunk:
                waiting.append(self._ending())
                last = b"".join(waiting)
                waiting.clear()
                yield last
                return
            if "more" not in chunk:
                if waiting:
                    yield b"".join(waiting)
                    waiting.clear()
                    written = time.monotonic()
                elif time.monotonic() - written >= HEARTBEAT_SECONDS:
                    yield renderer.heartbeat
                    written = time.monotonic()
            chunk = run(next, items, _END)

    def _count(self, token: str) -> None:
        request = self._request
        if not request.tokens:
            request.first_token_at = time.monotonic()
        request.tokens += 1
        if self._renderer.include_usage:
            self._texts.append(token)

    def _ending(self) -> bytes:
        """The final chunk if there was none, usage if asked for, the terminator."""
        parts = [] if self._finished else [self._renderer.final("stop")]
        self._finished = True
        if self._renderer.include_usage:
            parts.append(self._renderer.usage(self._usage("".join(self._texts))))
        parts.append(self._renderer.terminator())
        running_requests.answered(self._request)
        return b"".join(parts)

    def _last_words(self, error: Exception) -> bytes:
        if self._ended_early(error):
            return self._ending()
        log_error(error, self._request, "in mid-stream")
        public = describe_error(error, self._request)
        self._request.background_pending = False
        running_requests.answered(self._request)
        return self._renderer.error(public.message, public.status)

    def _ended_early(self, error: BaseException) -> bool:
        return isinstance(error, EarlyTerminationException)

    # -- the end -------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """The response is over, whatever way: stop the engine, or let the remaining nodes run."""
        if self._closed:
            return
        self._closed = True
        if not self._request.answer_complete and self._error is None:
            running_requests.watcher.forget(self._request)
            self._request.cancel_scope.cancel("the response was closed")
        with self._lock:
            self._abandoned = not self._ready.is_set()
        if self._abandoned:
            return  # the helper thread runs the engine; it will close it
        self._body.close()  # type: ignore[attr-defined]
        _finish_run(self._request, self._context, self._items)


def _finish_run(request: RequestContext, context: contextvars.Context, items: Iterator[Any] | None) -> None:
    """Run what remains of a run: on a thread of its own if nodes follow the answer, else here and now."""
    if items is None:
        running_requests.end(request)
    elif not request.answer_complete or request.cancel_scope.cancelled:
        try:
            context.run(items.close)  # type: ignore[attr-defined]
        finally:
            running_requests.end(request)
            _log_request(request)
    elif request.background_pending:
        threading.Thread(target=_run_in_background, args=(request, context, items), name="background-nodes",
                         daemon=True).start()
    else:
        _exhaust(request, context, items)


def _run_in_background(request: RequestContext, context: contextvars.Context, items: Iterator[Any]) -> None:
    limit = context.run(config_utils.user_int, "backgroundNodesTimeoutInSeconds", BACKGROUND_LIMIT_SECONDS, minimum=0)
    timer = threading.Timer(limit, request.cancel_scope.cancel, args=("background nodes took too long",))
    timer.daemon = True
    if limit:
        timer.start()
    try:
        _exhaust(request, context, items)
    finally:
        timer.cancel()


def _exhaust(request: RequestContext, context: contextvars.Context, items: Iterator[Any]) -> None:
    try:
        context.run(_drain, items)
    except EarlyTerminationException as error:
        logger.info("Request %s: the nodes after the answer ended early: %s", request.request_id, error)
    except Exception as error:  # the answer is out; only the log can be told
        log_error(error, request, "after the answer")
    finally:
        running_requests.end(request)
        _log_request(request)


def _drain(items: Iterator[Any]) -> None:
    for _ in items:
        pass


def _log_request(request: RequestContext) -> None:
    """One line that says how the request went."""
    if not logger.isEnabledFor(logging.INFO):
        return
    now = time.monotonic()
    first, answered = request.first_token_at, request.answered_at or now
    speed = ""
    if first is not None and answered > first:
        rate = request.tokens / (answered - first)
        speed = f", first token after {first - request.started:.2f} s, {rate:.1f} tokens/s"
    logger.info("Request %s: route %s, endpoint %s%s, answered after %.2f s, done after %.2f s%s", request.request_id,
                request.route or "-", request.endpoint or "-", speed, answered - request.started,
                now - request.started, ", cancelled" if request.cancel_scope.cancelled else "")
