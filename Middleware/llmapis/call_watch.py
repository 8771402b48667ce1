"""Reports the start and end of one LLM call to an observer."""
from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence

from Middleware.exceptions import EarlyTerminationException
from Middleware.llmapis.handlers.base.base_chat_completions_handler import text_of
from Middleware.llmapis.handlers.base.base_llm_api_handler import BackendSettings, Prompt
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_call import LlmCallRecord, LlmOutcome, Observer
from Middleware.models.messages import Answer, Chunk, cached_tokens, token_count
from Middleware.models.request_context import current_node, current_request

EVENTS = ("llm_call_started", "llm_prompt", "llm_call_finished", "llm_call_failed")


class CallWatch:
    """Keeps the record of one call and reports its start and end to ``observer``."""

    def __init__(self, observer: Observer, record: LlmCallRecord) -> None:
        self._observer = observer
        self._record = record
        self._started = 0.0

    @staticmethod
    def of(endpoint: str, streamed: bool, request_id: str | None) -> CallWatch | None:
        """Return the watch for a call of the current node or request; None without a listener."""
        request = current_request()
        site = current_node(request)
        observer = site.observer if site is not None else request.listeners if request is not None else None
        if observer is None or not observer.listens_to(*EVENTS):
            # Without a listener the tokens of a stream need not be counted.
            return None
        record = LlmCallRecord(request.request_id if request is not None else request_id or "", endpoint, streamed)
        if site is not None:
            record.request_id, record.workflow_name = site.request_id, site.workflow_name
            record.node_index, record.node_name = site.node_index, site.node_name
        return CallWatch(observer, record)

    def start(self, prompt: Prompt, settings: BackendSettings) -> None:
        record = self._record
        record.model = settings.model or ""
        record.messages = len(prompt.conversation or ())
        record.prompt_characters = _characters(prompt)
        self._started = time.perf_counter()
        self._observer.emit("llm_call_started", record)
        self._observer.emit("llm_prompt", record, prompt)

    def count(self, chunks: Generator[Chunk, None, None]) -> Iterator[Chunk]:
        """Yield the chunks of a stream and count them."""
        first: float | None = None
        texts = characters = 0
        try:
            for chunk in chunks:
                token = chunk.get("token")
                if token:
                    texts += 1
                    characters += len(token)
                if first is None and (token or chunk.get("reasoning") or chunk.get("tool_calls")):
                    first = time.perf_counter() - self._started
                yield chunk
        finally:
            record = self._record
            record.seconds_to_first_token, record.chunks, record.answer_characters = first, texts, characters
            chunks.close()

    def answered(self, answer: Answer) -> None:
        """Record the answer of a call that does not stream."""
        self._record.answer_characters = len(answer if isinstance(answer, str) else answer["content"])

    def end(self, error: BaseException | None, outcome: LlmOutcome, settings: BackendSettings,
            failed: Sequence[str], scope: CancelScope | None, waited: float = 0.0) -> None:
        """Report the end of the call.

        Args:
            error: the cause of the end, None for a complete answer. An abandoned or cancelled call has not failed.
            outcome, settings: those of the endpoint that was called last.
            failed: the endpoints that failed before that one.
            waited: seconds in the queue of calls.
        """
        record = self._record
        record.seconds, record.waited = time.perf_counter() - self._started, waited
        record.endpoint, record.model = settings.endpoint_name, settings.model or ""
        record.failed_endpoints, record.finish_reason = tuple(failed), outcome.finish_reason
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


def _characters(prompt: Prompt) -> int:
    total = len(prompt.system_prompt or "") + len(prompt.prompt or "")
    for message in prompt.conversation or ():
        content = message.get("content")
        total += len(content if isinstance(content, str) else text_of(content))
    return total
