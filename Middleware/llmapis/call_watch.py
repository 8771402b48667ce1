"""Reports one LLM call, and the requests to servers that it takes, to an observer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_call import AnswerParts, Attempt, LlmCallRecord, LlmOutcome, Observer
from Middleware.models.messages import Answer, cached_tokens, token_count
from Middleware.models.request_context import current_node, current_request
from Middleware.utilities.config.keys.api_type import API_TYPE

if TYPE_CHECKING:
    from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt

EVENTS = (
    "llm_call_started",
    "llm_prompt",
    "llm_call_finished",
    "llm_call_failed",
    "attempt_started",
    "attempt_finished",
)
EMBEDDINGS = "embeddings"
"""OpenTelemetry's name for a call for vectors."""


class AttemptWatch:
    """Reports the requests of one handler to its server, of which a retry makes several."""

    def __init__(
        self,
        observer: Observer,
        settings: BackendSettings,
        operation: str,
        outcome: LlmOutcome,
        call: LlmCallRecord | None = None,
        stands_in_for: str = "",
    ) -> None:
        self._observer, self._settings, self._outcome = observer, settings, outcome
        self._operation, self._call, self._stands_in_for = operation, call, stands_in_for
        request = current_request()
        self._trace = request.trace if request is not None else None

    def next_traceparent(self) -> str:
        """Return the header that tells the server the trace of the next attempt; "" where none are sent."""
        return "" if self._trace is None else self._trace.next_traceparent()

    def begin(self, url: str, payload: Mapping[str, object], traceparent: str = "") -> Attempt:
        settings = self._settings
        attempt = Attempt(
            self._call,
            self._outcome,
            settings.endpoint_name,
            self._operation,
            str(API_TYPE.value(settings.api_type, "type")),
            url,
            payload,
            settings.endpoint,
            self._stands_in_for,
            traceparent=traceparent,
        )
        self._observer.emit("attempt_started", attempt)
        return attempt

    def end(self, attempt: Attempt, status: int | None, error: BaseException | None, stopped: bool) -> None:
        # A stream is closed by its reader after its finish reason, too.
        given_up = isinstance(error, (GeneratorExit, EarlyTerminationException))
        attempt.status, attempt.stopped = status, (stopped or given_up) and not self._outcome.finish_reason
        attempt.error = None if attempt.stopped or given_up else error
        self._observer.emit("attempt_finished", attempt)


def embedding_watch(settings: BackendSettings, outcome: LlmOutcome) -> AttemptWatch | None:
    """Return the watch for a call for vectors of the current node or request; None without a listener."""
    observer = _observer()
    return None if observer is None else AttemptWatch(observer, settings, EMBEDDINGS, outcome)


def _observer() -> Observer | None:
    request = current_request()
    site = current_node(request)
    observer = site.observer if site is not None else request.listeners if request is not None else None
    return observer if observer is not None and observer.listens_to(*EVENTS) else None


class CallWatch:
    """Keeps the record of one call and reports its start and end to ``observer``."""

    def __init__(self, observer: Observer, record: LlmCallRecord) -> None:
        self._observer = observer
        self._record = record
        self._started = 0.0
        # The endpoint that is being called, and the one that was called before it.
        self._called, self._before = record.endpoint, ""

    @staticmethod
    def of(endpoint: str, streamed: bool, request_id: str | None) -> CallWatch | None:
        """Return the watch for a call of the current node or request; None without a listener."""
        observer = _observer()
        if observer is None:
            return None
        request = current_request()
        site = current_node(request)
        record = LlmCallRecord(request.request_id if request is not None else request_id or "", endpoint, streamed)
        if site is not None:
            record.request_id, record.workflow_name, record.run_id = site.request_id, site.workflow_name, site.run_id
            record.node_index, record.node_name = site.node_index, site.node_name
        return CallWatch(observer, record)

    def start(self, prompt: Prompt, settings: BackendSettings) -> None:
        record = self._record
        record.model = settings.model or ""
        record.messages = len(prompt.conversation or ())
        self._started = time.perf_counter()
        self._observer.emit("llm_call_started", record)
        self._observer.emit("llm_prompt", record, prompt)

    def attempts(self, settings: BackendSettings, operation: str, outcome: LlmOutcome) -> AttemptWatch:
        """Return the watch for the requests that a handler is about to send."""
        if settings.endpoint_name != self._called:
            self._called, self._before = settings.endpoint_name, self._called
        return AttemptWatch(self._observer, settings, operation, outcome, self._record, self._before)

    def parts(self) -> AnswerParts:
        """Return where the handler that is called now keeps its answer; what an earlier one kept is dropped."""
        parts = self._record.answer = AnswerParts()
        return parts

    def answered(self, answer: Answer, reasoning: str) -> None:
        """Record the answer of a call that does not stream."""
        self._record.answer.take(answer, reasoning)

    def end(
        self,
        error: BaseException | None,
        outcome: LlmOutcome,
        settings: BackendSettings,
        failed: Sequence[str],
        scope: CancelScope | None,
        waited: float = 0.0,
    ) -> None:
        """Report the end of the call.

        Args:
            error: the cause of the end, None for a complete answer. An abandoned or cancelled call has not failed.
            outcome, settings: those of the endpoint that was called last.
            failed: the endpoints that failed before that one.
            waited: seconds in the queue of calls.
        """
        record, answer = self._record, self._record.answer
        record.seconds, record.waited = time.perf_counter() - self._started, waited
        record.endpoint, record.model = settings.endpoint_name, settings.model or ""
        record.failed_endpoints, record.finish_reason = tuple(failed), outcome.sent_reason or outcome.finish_reason
        record.outcome = outcome
        if record.streamed:
            record.chunks = len(answer.texts)
        if answer.first_at is not None:
            record.seconds_to_first_token = answer.first_at - self._started
        usage = outcome.usage or {}
        record.prompt_tokens = token_count(usage.get("prompt_tokens"))
        record.cached_tokens = cached_tokens(usage)
        if record.prompt_tokens is not None and record.cached_tokens is not None:
            record.processed_tokens = max(record.prompt_tokens - record.cached_tokens, 0)
        record.completion_tokens = token_count(usage.get("completion_tokens"))
        if record.completion_tokens is None and record.streamed:
            record.completion_tokens = record.chunks
        given_up = isinstance(error, (GeneratorExit, EarlyTerminationException))
        record.stopped = not outcome.finish_reason and (given_up or (scope is not None and scope.cancelled))
        if error is None or given_up:
            self._observer.emit("llm_call_finished", record)
        else:
            self._observer.emit("llm_call_failed", record, error)
