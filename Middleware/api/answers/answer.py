"""Turns a run of the engine into an HTTP answer, streamed or whole."""
from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from Middleware.api.answers.run_end import finish_run
from Middleware.api.answers.stream_renderers import StreamRenderer
from Middleware.api.errors import describe_error, log_error
from Middleware.api.running.disconnect_watcher import CLIENT_LEFT
from Middleware.api.running.running_requests import running_requests
from Middleware.exceptions import EarlyTerminationException
from Middleware.models.messages import Chunk, Message, ToolCall, Usage, token_count
from Middleware.models.request_context import RequestContext
from Middleware.utilities import config_utils
from Middleware.utilities.text_utils import rough_estimate_token_length
from Middleware.workflows.streaming.value_stream import as_message

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
Start = Callable[[], Iterator[Any]]
_END: Chunk = {"token": "", "finish_reason": None, "end": True}


def estimated_usage(request: RequestContext, messages: Sequence[Message], answer: str) -> Usage:
    """Token counts of the answer: those of the back-end as far as they are numbers, else an estimate."""
    usage: Usage = request.outcome.usage or {}
    prompt, completion = token_count(usage.get("prompt_tokens")), token_count(usage.get("completion_tokens"))
    total = token_count(usage.get("total_tokens"))
    if prompt is None:
        prompt = sum(rough_estimate_token_length(str(message.get("content") or "")) for message in messages)
    if completion is None:
        completion = rough_estimate_token_length(answer)
    return {**usage, "prompt_tokens": prompt, "completion_tokens": completion,
            "total_tokens": prompt + completion if total is None else total}


@dataclass(frozen=True)
class FinishedAnswer:
    """What a whole answer says, whatever the dialect.

    Attributes:
        reasoning: "" unless the user sends it to clients.
        usage: token counts in OpenAI's words.
    """

    text: str
    tool_calls: list[ToolCall] | None
    finish_reason: str | None
    reasoning: str
    fingerprint: str
    usage: Usage

    @staticmethod
    def of(value: object, request: RequestContext, messages: Sequence[Message]) -> FinishedAnswer:
        """Read the engine's item: a text, or a dict with tool calls."""
        message = as_message(value)
        text, calls = (str(value), None) if message is None else (message["content"], message["tool_calls"] or None)
        outcome = request.outcome
        return FinishedAnswer(text, calls, outcome.finish_reason,
                              outcome.reasoning if config_utils.user_flag("sendReasoningToClient") else "",
                              outcome.fingerprint, estimated_usage(request, messages, text))


class WholeAnswer:
    """Runs the engine up to the responder's output on the calling thread; the rest follows after the response."""

    def __init__(self, request: RequestContext, start: Start) -> None:
        self._request = request
        self._context = contextvars.copy_context()
        self._start = start
        self._items: Iterator[object] | None = None

    def value(self) -> object:
        """The answer, a text or a tool-call dict. Raises what the engine raises, after cleaning up."""
        try:
            self._items = self._context.run(self._start)
            value = self._context.run(next, self._items, "")
        except EarlyTerminationException as error:
            logger.info("Request %s ended early: %s", self._request.request_id, error)
            value = ""
        except BaseException:
            self._request.failed = True
            finish_run(self._request, self._context, self._items)
            raise
        return "" if value is None else value

    def close(self) -> None:
        """The response is out: run the nodes that remain."""
        if not self._request.answer_complete:
            running_requests().answered(self._request)
        finish_run(self._request, self._context, self._items)


class StreamingAnswer:
    """The body of a streamed response.

    A helper thread runs the engine up to the first chunk while this body sends heartbeats; from then on the thread
    that serves the response iterates the engine itself.
    """

    def __init__(self, request: RequestContext, start: Start, renderer: StreamRenderer,
                 usage: Callable[[str], Usage]) -> None:
        self._request = request
        self._context = contextvars.copy_context()
        self._start = start
        self._renderer = renderer
        self._usage = usage
        self._send_reasoning = config_utils.user_flag("sendReasoningToClient")
        self._items: Iterator[object] | None = None
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
            self._request.failed = True
            self.close()
            raise self._error
        return self

    def _run_to_first_chunk(self) -> None:
        try:
            self._items = self._context.run(self._start)
            self._first = self._first_to_show(self._items)
        except BaseException as error:  # handed to the thread that serves the response
            self._error = error
        with self._lock:
            self._ready.set()
            abandoned = self._abandoned
        if abandoned:
            finish_run(self._request, self._context, self._items)

    def _first_to_show(self, items: Iterator[Any]) -> Chunk:
        """The first chunk that puts something on the wire: until then a failure can still have its real status."""
        while True:
            chunk: Chunk = self._context.run(next, items, _END)
            if "fingerprint" in chunk:
                self._renderer.fingerprint = chunk["fingerprint"]
            if self._abandoned or chunk["token"] or chunk["finish_reason"] or "end" in chunk \
                    or chunk.get("tool_calls") or (self._send_reasoning and chunk.get("reasoning")):
                return chunk

    # -- the body ------------------------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._body)

    def _render(self) -> Iterator[bytes]:
        while not self._ready.is_set():
            yield self._renderer.heartbeat()
            self._ready.wait(HEARTBEAT_SECONDS)
        failure = self._error
        if failure is None:
            try:
                yield from self._render_chunks()
            except GeneratorExit:  # this body is closed
                raise
            except BaseException as error:  # what foreign code lets through would hang the client
                failure = error
        if failure is not None:
            self._waiting += self._last_words(failure)
            yield from self._flush()

    def _render_chunks(self) -> Iterator[bytes]:
        run, items, waiting = self._context.run, self._items, self._waiting
        assert items is not None
        chunk = self._first
        written = time.monotonic()
        while True:
            self._render_chunk(chunk)
            if "end" in chunk:
                waiting += self._ending()
                yield from self._flush()
                return
            if "more" not in chunk:
                if waiting:
                    yield from self._flush()
                    written = time.monotonic()
                elif time.monotonic() - written >= HEARTBEAT_SECONDS:
                    yield self._renderer.heartbeat()
                    written = time.monotonic()
            chunk = run(next, items, _END)

    def _render_chunk(self, chunk: Chunk) -> None:
        """Put what a chunk stands for among what waits to be written."""
        renderer, token = self._renderer, chunk["token"]
        # By far the most chunks. See the note on plain chunks in OpenAiApiHandler.read_events.
        if token and len(chunk) == 2 and not chunk["finish_reason"]:
            self._waiting.append(renderer.text(token))
            self._count(token)
            return
        if "fingerprint" in chunk:
            renderer.fingerprint = chunk["fingerprint"]
        if self._send_reasoning and chunk.get("reasoning"):
            self._add(renderer.reasoning(chunk["reasoning"]))
        finish, calls = chunk["finish_reason"], chunk.get("tool_calls")
        if calls:
            self._add(renderer.tool_calls(token, calls, finish))
            self._count(token)
        elif token:
            self._add(renderer.text(token))
            self._count(token)
        if finish and not self._finished:
            self._finished = True
            if not calls:
                self._add(renderer.final(finish))

    def _add(self, piece: bytes) -> None:
        if piece:
            self._waiting.append(piece)

    def _flush(self) -> Iterator[bytes]:
        """Write what waits: in one piece if the dialect's readers can take that."""
        waiting, joins = self._waiting, self._renderer.joins
        pieces = [b"".join(waiting)] if joins and len(waiting) > 1 else waiting[:]
        waiting.clear()
        yield from pieces

    def _count(self, token: str) -> None:
        request = self._request
        if not request.tokens:
            request.first_token_at = time.monotonic()
        request.tokens += 1
        if self._renderer.wants_usage:
            self._texts.append(token)

    def _ending(self) -> list[bytes]:
        """The final chunk if there was none, usage if asked for, the terminator."""
        if not self._finished:
            self._finished = True
            self._add(self._renderer.final("stop"))
        pieces = self._renderer.ending(lambda: self._usage("".join(self._texts)))
        running_requests().answered(self._request)
        return pieces

    def _last_words(self, error: BaseException) -> list[bytes]:
        if self._ended_early(error):
            return self._ending()
        self._request.failed = True
        self._context.run(log_error, error, self._request, "in mid-stream")
        public = describe_error(error, self._request)
        self._request.background_nodes = 0
        running_requests().answered(self._request)
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
            running_requests().watcher.forget(self._request)
            self._request.cancel_scope.cancel(CLIENT_LEFT)
        with self._lock:
            self._abandoned = not self._ready.is_set()
        if self._abandoned:
            return  # the helper thread runs the engine; it will close it
        self._body.close()  # type: ignore[attr-defined]
        finish_run(self._request, self._context, self._items)
