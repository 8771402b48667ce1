"""Turn a run of the engine into an HTTP answer, streamed or whole, and run the nodes that follow the answer."""

from __future__ import annotations

import contextvars
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from Middleware.api.answers.stream_renderers import StreamRenderer
from Middleware.api.errors import describe_error, log_error, report_failure
from Middleware.api.running.disconnect_watcher import CLIENT_LEFT
from Middleware.api.running.running_requests import is_cut_off, running_requests
from Middleware.exceptions import ClientError, EarlyTerminationException, ServerStoppingError
from Middleware.llmapis.finish_reasons import with_calls
from Middleware.models.messages import LARGEST_NUMBER, Chunk, Message, ToolCall, Usage, token_count
from Middleware.models.request_context import RequestContext
from Middleware.utilities import config_utils
from Middleware.utilities.daemon_threads import run_in_pool
from Middleware.utilities.text_utils import rough_estimate_token_length
from Middleware.workflows.events import Listeners, default_listeners
from Middleware.workflows.request_line import terminal_line
from Middleware.workflows.streaming.value_stream import as_message

logger = logging.getLogger(__name__)

# How often a stream that has nothing to send looks whether a heartbeat is due, or the server stops. After the first
# chunk, it looks when the engine returns, whose interval is in utilities/http/connect.py.
LOOK_SECONDS = 1.0
Start = Callable[[], Iterator[Any]]
_END: Chunk = {"token": "", "finish_reason": None, "end": True}


def estimated_usage(request: RequestContext, messages: Sequence[Message], answer: str) -> Usage:
    """Return the token counts of the answer: those of the back-end where they are numbers, otherwise estimates.

    A missing count is the rest of the total, if the other one and the total are there, and anything is left: servers
    that count only one of both send it as the total. A total below the sum of both is not kept; one above it is,
    because some servers add the thoughts.
    """
    usage: Usage = request.outcome.usage or {}
    prompt, completion = token_count(usage.get("prompt_tokens")), token_count(usage.get("completion_tokens"))
    total = token_count(usage.get("total_tokens"))
    if prompt is None or completion is None:
        rest = 0 if total is None or prompt is completion else total - (prompt or completion or 0)
        total = None
        if prompt is None:
            texts = (str(message.get("content") or "") for message in messages)
            prompt = sum(map(rough_estimate_token_length, texts)) if rest <= 0 else rest
        if completion is None:
            completion = rough_estimate_token_length(answer) if rest <= 0 else rest
    return {
        **usage,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": min(max(prompt + completion, total or 0), LARGEST_NUMBER),
    }


def estimated_prompt(messages: Sequence[Message], functions: Sequence[Mapping[str, object]]) -> int:
    """Return an estimate of the prompt's tokens before any workflow has run: messages, their calls, and tools."""
    texts = [str(message.get("content") or "") for message in messages]
    texts += [json.dumps(calls, ensure_ascii=False) for message in messages if (calls := message.get("tool_calls"))]
    if functions:
        texts.append(json.dumps(functions, ensure_ascii=False))
    # Clients show it, and take 0 for a missing count.
    return max(sum(map(rough_estimate_token_length, texts)), 1)


@dataclass(frozen=True)
class FinishedAnswer:
    """A complete answer, independent of the dialect.

    Attributes:
        reasoning: "" unless the user's settings send it to clients.
        usage: token counts under OpenAI's names.
        cancelled: the answer was cancelled, although its client is still there.
        thoughts: as ``LlmOutcome.thoughts``; none without ``reasoning``.
    """

    text: str
    tool_calls: list[ToolCall] | None
    finish_reason: str | None
    reasoning: str
    fingerprint: str
    usage: Usage
    cancelled: bool = False
    thoughts: Sequence[Mapping[str, object]] = ()

    @staticmethod
    def of(value: object, request: RequestContext, messages: Sequence[Message]) -> FinishedAnswer:
        """Make the answer from the engine's item, which is a string or a dict with tool calls."""
        message = as_message(value)
        text, calls = (str(value), None) if message is None else (message["content"], message["tool_calls"] or None)
        outcome = request.outcome
        sends_reasoning = config_utils.user_flag("sendReasoningToClient")
        return FinishedAnswer(
            text,
            calls,
            outcome.finish_reason,
            outcome.reasoning if sends_reasoning else "",
            outcome.fingerprint,
            estimated_usage(request, messages, text),
            request.cancel_scope.cancelled,
            outcome.thoughts if sends_reasoning else (),
        )


class WholeAnswer:
    """An answer sent in one piece. The calling thread runs the engine up to the responder's output.

    The nodes after the responder run once the response has been sent; without any, the run ends before that.
    """

    def __init__(self, request: RequestContext, start: Start) -> None:
        self._request = request
        self._context = contextvars.copy_context()
        self._start = start
        self._items: Iterator[object] | None = None

    def value(self) -> object:
        """Return the answer, a string or a tool-call dict. Errors of the engine are raised after cleaning up."""
        try:
            value = self._run_to_answer()
            # A node that was stopped in the middle may return a part of its output.
            if is_cut_off(self._request):
                raise ServerStoppingError
        except BaseException as error:
            self._request.failed = True
            # Before the end of the run, of which the listeners learn next.
            report_failure(error, self._request)
            finish_run(self._request, self._context, self._items)
            if is_cut_off(self._request):
                raise ServerStoppingError from error
            raise
        return "" if value is None else value

    def _run_to_answer(self) -> object:
        try:
            self._items = self._context.run(self._start)
            return self._context.run(next, self._items, "")
        # A workflow that ends itself early is not an error; the answer is empty.
        except EarlyTerminationException as error:
            logger.info("Request %s ended early: %s", self._request.request_id, error)
            return ""

    def complete(self) -> bool:
        """Note that the response is made. Return whether the run has ended; otherwise ``close`` must be called."""
        return complete_answer(self._request, self._context, self._items)

    def close(self) -> None:
        """Run the nodes after the responder, once the response has been sent."""
        finish_run(self._request, self._context, self._items)


class StreamingAnswer:
    """The body of a streamed response.

    A helper thread runs the engine up to the first chunk while this body sends heartbeats. From then on, the thread
    that serves the response iterates over the engine itself.
    """

    def __init__(
        self, request: RequestContext, start: Start, renderer: StreamRenderer, usage: Callable[[str], Usage]
    ) -> None:
        self._request = request
        self._context = contextvars.copy_context()
        self._start = start
        self._renderer = renderer
        self._usage = usage
        self._send_reasoning = config_utils.user_flag("sendReasoningToClient")
        self._items: Iterator[object] | None = None
        self._first: Any = None
        self._error: BaseException | None = None
        # The lock is released with the first chunk. An event would hold a kilobyte as long as the stream lasts.
        self._ready, self._wake = False, threading.Lock()
        self._wake.acquire()
        self._lock = threading.Lock()
        self._abandoned = False
        self._closed = self._run_ended = False
        self._body = self._render()
        self._texts: list[str] = []
        self._finished = self._cancelled = self._has_calls = False
        # Rendered pieces that are held back until their batch is complete.
        self._pending: list[bytes] = []

    # -- until the first chunk -----------------------------------------------------------------------------------
    def begin(self, timeout: float | None = None) -> StreamingAnswer:
        """Start the engine.

        An error within ``timeout`` seconds, by default those of the dialect, is raised, so that the client gets a real
        status, unless the dialect tells failures in the stream.
        """
        run_in_pool(self._run_to_first_chunk, "first-chunk")
        self._wake.acquire(timeout=self._renderer.pauses.beginning if timeout is None else timeout)
        if (
            self._ready
            and self._error is not None
            and not isinstance(self._error, EarlyTerminationException)
            and (isinstance(self._error, ClientError) or not self._renderer.tells_failures)
        ):
            self._request.failed = True
            report_failure(self._error, self._request)
            self.close()
            raise self._error
        return self

    def _run_to_first_chunk(self) -> None:
        try:
            self._items = self._context.run(self._start)
            self._first = self._first_visible(self._items)
        # The thread that serves the response raises it.
        except BaseException as error:
            self._error = ServerStoppingError() if is_cut_off(self._request) else error
        with self._lock:
            self._ready = True
            self._wake.release()
            abandoned = self._abandoned
        if abandoned:
            finish_run(self._request, self._context, self._items)

    def _first_visible(self, items: Iterator[Any]) -> Chunk:
        """Return the first chunk that sends something to the client; before it, a failure can still have its status."""
        while True:
            chunk: Chunk = self._context.run(next, items, _END)
            if "fingerprint" in chunk:
                self._renderer.fingerprint = chunk["fingerprint"]
            if (
                self._abandoned
                or chunk["token"]
                or chunk["finish_reason"]
                or "end" in chunk
                or chunk.get("tool_calls")
                or (self._send_reasoning and (chunk.get("reasoning") or "thought" in chunk))
            ):
                return chunk

    # -- the body ------------------------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[bytes]:
        return self._body

    def _render(self) -> Iterator[bytes]:
        opening, due = self._renderer.beginning(), 0.0
        _, first, again = self._renderer.pauses
        while not self._ready and not is_cut_off(self._request):
            if time.monotonic() >= due:
                yield opening or self._renderer.heartbeat()
                due = time.monotonic() + (first if opening else again)
                opening = b""
            self._wake.acquire(timeout=LOOK_SECONDS)
        if opening:
            self._pending.append(opening)
        # An engine that does not end in time is left behind; it closes itself.
        failure = self._error if self._ready else ServerStoppingError()
        run, items, pending, joins = self._context.run, self._items, self._pending, self._renderer.joins
        chunk, due = self._first, time.monotonic() + first
        try:
            # All in one generator: each one around it would hold memory, and cost a call for each token.
            while failure is None and items is not None:
                self._render_chunk(chunk)
                if "end" in chunk:
                    self._raise_if_cut_off()
                    pending += self._ending()
                    break
                if "more" not in chunk:
                    if pending:
                        # Not through _flush: a generator for each token costs more than all the rest of this loop.
                        if joins:
                            piece = b"".join(pending)
                            pending.clear()
                            yield piece
                        else:
                            yield from self._flush()
                        due = time.monotonic() + first
                    elif time.monotonic() >= due:
                        yield self._renderer.heartbeat()
                        due = time.monotonic() + again
                chunk = run(next, items, _END)
        # This body has been closed.
        except GeneratorExit:
            raise
        # Whatever a plug-in raises, the client must get the end of its stream, or it would wait for ever.
        except BaseException as error:
            failure = error
        if failure is not None:
            pending += self._failure_pieces(failure)
        yield from self._flush()

    def _render_chunk(self, chunk: Chunk) -> None:
        """Add the rendered pieces of a chunk to the pending ones."""
        renderer, token = self._renderer, chunk["token"]
        # A shortcut for nearly all chunks. See the note on plain chunks in OpenAiApiHandler.read_events.
        if token and len(chunk) == 2 and not chunk["finish_reason"]:
            self._pending.append(renderer.text(token))
            self._count(token)
            return
        if "fingerprint" in chunk:
            renderer.fingerprint = chunk["fingerprint"]
        if self._send_reasoning and chunk.get("reasoning"):
            self._add(renderer.reasoning(chunk["reasoning"]))
        if self._send_reasoning and "thought" in chunk:
            self._add(renderer.thought(chunk["thought"]))
        finish, calls = chunk["finish_reason"], chunk.get("tool_calls")
        self._has_calls = self._has_calls or bool(calls)
        if finish:
            self._raise_if_cut_off()
            # The calls of a cancelled answer may be parts of calls.
            if not self._request.cancel_scope.cancelled:
                finish = with_calls(finish, self._has_calls)
        if calls:
            self._add(renderer.tool_calls(token, calls, finish))
            self._count(token)
        elif token:
            self._add(renderer.text(token))
            self._count(token)
        if finish and not self._finished:
            self._finish()
            if not calls:
                self._add(renderer.final(finish))

    def _finish(self) -> None:
        self._finished = True
        # Read now: the call of an LLM that is cancelled ends like any other, and what is cancelled later is complete.
        self._cancelled = self._request.cancel_scope.cancelled

    def _raise_if_cut_off(self) -> None:
        """Raise an error in place of the finish reason of an answer that the end of the server has cut off."""
        if not self._finished and is_cut_off(self._request):
            raise ServerStoppingError

    def _add(self, piece: bytes) -> None:
        if piece:
            self._pending.append(piece)

    def _flush(self) -> Iterator[bytes]:
        """Yield the pending pieces, joined into one where the dialect's clients can parse that."""
        pending = self._pending
        pieces = [b"".join(pending)] if self._renderer.joins and len(pending) > 1 else pending[:]
        pending.clear()
        yield from pieces

    def _count(self, token: str) -> None:
        request = self._request
        if not request.tokens:
            request.first_token_at = time.monotonic()
        request.tokens += 1
        if self._renderer.wants_usage:
            self._texts.append(token)

    def _ending(self) -> list[bytes]:
        """Return the end of the stream: the final chunk unless it was sent, usage if requested, the terminator."""
        if not self._finished:
            self._finish()
            self._add(self._renderer.final("stop"))
        pieces = self._renderer.ending(lambda: self._usage("".join(self._texts)), self._cancelled)
        self._complete()
        return pieces

    def _complete(self) -> None:
        """Note that all of the stream is made, before its last pieces are sent."""
        # An engine that is left behind cannot be closed from here; the thread that runs it does that.
        if self._ready:
            self._run_ended = complete_answer(self._request, self._context, self._items)
        else:
            running_requests().answered(self._request)

    def _failure_pieces(self, error: BaseException) -> list[bytes]:
        if is_cut_off(self._request) and not self._finished:
            error = ServerStoppingError()
        if isinstance(error, EarlyTerminationException):
            return self._ending()
        self._request.failed = True
        # An engine that is left behind still works in this context, and its end has been logged.
        if not isinstance(error, ServerStoppingError):
            self._context.run(log_error, error, self._request, "in mid-stream")
        public = describe_error(error, self._request)
        self._request.background_nodes = 0
        pieces = self._renderer.error(public)
        self._complete()
        return pieces

    # -- the end -------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Stop the engine, or run the remaining nodes, after the response has ended in any way."""
        if self._closed:
            return
        self._closed = True
        if not self._request.answer_complete and self._error is None:
            running_requests().watcher.forget(self._request)
            self._request.cancel_scope.cancel(CLIENT_LEFT)
        with self._lock:
            self._abandoned = not self._ready
        # The helper thread still runs the engine, and closes it.
        if self._abandoned:
            return
        self._body.close()  # type: ignore[attr-defined]
        if not self._run_ended:
            finish_run(self._request, self._context, self._items)


# -- the end of the run -----------------------------------------------------------------------------------------------
def complete_answer(request: RequestContext, context: contextvars.Context, items: Iterator[object] | None) -> bool:
    """Note that the answer is complete, before the last byte of it is sent. Return whether the run has ended.

    It ends now unless nodes follow the answer: its client may send the next request as soon as it has that byte, and
    must find nothing of this one, neither its locks nor its slot. For the nodes that follow, which need no slot, call
    ``finish_run`` once the answer has been sent. The arguments are those of ``finish_run``.
    """
    running_requests().answered(request)
    if request.background_nodes and not request.cancel_scope.cancelled:
        request.free_slot()
        return False
    finish_run(request, context, items)
    return True


def finish_run(request: RequestContext, context: contextvars.Context, items: Iterator[object] | None) -> None:
    """Finish a run: on a separate thread if nodes follow the answer, otherwise on the calling thread.

    Args:
        context: the context in which the run was started; log lines need it.
        items: the engine's iterator, None if it was never made.
    """
    if items is None:
        _end(request, context)
    elif not request.answer_complete or request.failed or request.cancel_scope.cancelled:
        _stop(request, context, items, "while it was stopped")
    elif request.background_nodes:
        _start_in_background(request, context, items)
    else:
        _exhaust(request, context, items)


def _stop(request: RequestContext, context: contextvars.Context, items: Iterator[object], phase: str) -> None:
    try:
        context.run(items.close)  # type: ignore[attr-defined]
    # Plug-ins may raise anything, and the server would never close the connection.
    except BaseException as error:
        context.run(log_error, error, request, phase)
    finally:
        _end(request, context)


def _start_in_background(request: RequestContext, context: contextvars.Context, items: Iterator[object]) -> None:
    thread = threading.Thread(
        target=_run_in_background, args=(request, context, items), name="background-nodes", daemon=True
    )
    try:
        thread.start()
    # The system cannot create another thread.
    except RuntimeError as error:
        context.run(log_error, error, request, "before the nodes after the answer")
        _stop(request, context, items, "after the answer")


def _run_in_background(request: RequestContext, context: contextvars.Context, items: Iterator[object]) -> None:
    with running_requests().in_background(request) as count:
        context.run(
            logger.info,
            "Request %s: nodes after its answer: %d; requests at work in the background: %d",
            request.request_id,
            request.background_nodes,
            count,
            extra={"terminal": terminal_line(request, time.monotonic())},
        )
        try:
            limit = context.run(_TimeLimit, request)
        # Without the user's settings there is no time limit, so nothing runs.
        except Exception as error:
            context.run(log_error, error, request, "before the nodes after the answer")
            _stop(request, context, items, "after the answer")
            return
        try:
            _exhaust(request, context, items)
        finally:
            limit.end()


class _TimeLimit:
    """Cancels the background nodes of a request that take longer than the user allows; 0 allows any time.

    The time in which their calls wait for their turn does not count.
    """

    def __init__(self, request: RequestContext) -> None:
        self._request = request
        self._seconds = config_utils.user_int("backgroundNodesTimeoutInSeconds")
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._ended = not self._seconds
        self._timer: threading.Timer | None = None
        self._look()

    def _look(self) -> None:
        left = self._seconds + self._request.paused - (time.monotonic() - self._began)
        with self._lock:
            if self._ended:
                return
            if left > 0:
                self._timer = threading.Timer(left, self._look)
                self._timer.daemon = True
                self._timer.start()
                return
        self._request.cancel_scope.cancel("background nodes took too long")

    def end(self) -> None:
        """Cancel nothing any more."""
        with self._lock:
            self._ended = True
            if self._timer is not None:
                self._timer.cancel()


def _exhaust(request: RequestContext, context: contextvars.Context, items: Iterator[object]) -> None:
    try:
        context.run(deque, items, 0)
    except EarlyTerminationException as error:
        context.run(logger.info, "Request %s: the nodes after the answer ended early: %s", request.request_id, error)
    # The answer has been sent, so the error can only be logged.
    except BaseException as error:
        context.run(log_error, error, request, "after the answer")
    finally:
        _end(request, context)


def _end(request: RequestContext, context: contextvars.Context) -> None:
    running_requests().end(request)
    # There are no listeners yet if the request failed before a workflow began.
    listeners = request.listeners or Listeners(default_listeners())
    context.run(listeners.emit, "request_finished", request)
