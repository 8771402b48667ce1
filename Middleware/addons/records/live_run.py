"""A run while it is at work, as its request and the events of the engine tell it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypedDict, TypeVar, cast

from Middleware.addons.records.model import (
    MICROSECONDS,
    RUN_KINDS,
    SHORT_TEXT,
    Attribute,
    LiveText,
    RunDocument,
    RunFacts,
    RunKind,
    RunStatus,
    Span,
    SpanKind,
    SpanStatus,
)
from Middleware.addons.records.repeated_lists import LEAST_MESSAGES, SharedLists
from Middleware.models.cancel_scope import SERVER_STOPS
from Middleware.models.llm_call import Attempt, LlmCallRecord
from Middleware.models.messages import LARGEST_NUMBER, token_count
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, SentRequest
from Middleware.utilities.discussions.discussion_id import OPEN_TAG, without_discussion_id_tags
from Middleware.utilities.text_utils import SENTINEL_CHARACTER, restore_braces

T = TypeVar("T")

# Five thousand rows are more than anybody reads; only workflows that run each other in loops make more.
MAX_SPANS = 5_000
GATE = "gate"
"""What a request waits for before it runs, as ``wait_started`` names it."""
# What a message takes in memory in addition to its text, which it shares with the conversation of the client.
MESSAGE_BYTES = 64


class RequestText(TypedDict):
    """What a client has sent, as a text of its run."""

    messages: Sequence[Mapping[str, object]]
    tools: Sequence[Mapping[str, object]] | None
    tool_choice: object


class LiveRun(RunDocument):
    """The document of a run, which grows with it. Events of nodes that run side by side come from several threads.

    Attributes:
        id: that of the request.
        nodes: the spans of nodes, by the run of their workflow and their index.
        workflows, calls, waits, steps: the spans at work of these kinds, by what they are spans of.
        attempts: the spans of requests to servers, with what is known of each.
        dropped, dropped_by_call: the numbers of messages that did not fit into a window, by node and by call.
        routing: the span in which a category is chosen.
        chosen: the category that was named; None without a routing.
        answer: what the answering node has delivered.
        last_call: the LLM call that began last.
        files: the configuration files that were used, as in ``RequestContext``.
        secret: returns the key of the hash of the conversation.
        refused, gone: how a wait at the gate ended: too late, or without the client.
    """

    # What most runs leave as it is belongs to the class: a run is made for each request.
    _status: RunStatus = "running"
    _ended: int | None = None
    _sent: SentRequest | None = None
    _request_text: RequestText | None = None
    _messages: Sequence[Mapping[str, object]] | None = None
    routing: Span | None = None
    chosen: str | None = None
    answer: object = None
    last_call: LlmCallRecord | None = None
    question = first_user = ""
    workflow: str | None = None
    discussion: str | None = None
    key_hash: str | None = None
    refused = gone = False
    queued: int | None = None
    error: str | None = None
    error_type: str | None = None
    node_count = call_count = 0

    def __init__(
        self,
        request: RequestContext,
        changes: Iterator[int],
        keeps_texts: bool,
        secret: Callable[[], bytes] | None = None,
    ) -> None:
        super().__init__(facts=cast(RunFacts, {}), spans=[])
        self.secret = secret
        self.files: dict[str, str] = {}
        request.files = self.files
        self.id = request.request_id
        self.keeps_texts = keeps_texts
        self._request: RequestContext | None = request
        self._changes, self._ids = changes, itertools.count(1)
        # Spans are measured with the exact clock; the moments in a request are those of the other one.
        self._clock, self._monotonic = time.perf_counter(), time.monotonic()
        self._started = time.time_ns() // 1000
        self.nodes: dict[tuple[str, int], Span] = {}
        self.workflows: dict[str, Span] = {}
        self.calls: dict[int, tuple[Span, LlmCallRecord]] = {}
        self.waits: dict[tuple[str, str, int], Span] = {}
        self.steps: dict[int, Span] = {}
        self.dropped: dict[tuple[str, int], int] = {}
        self.dropped_by_call: dict[int, int] = {}
        self.attempts: list[tuple[Span, Attempt]] = []
        self._answered: list[LlmCallRecord] = []
        self.user: str | None = request.user
        self.private = request.redact
        self.size = request.body_bytes
        self.touched = next(changes)

    # -- spans ---------------------------------------------------------------------------------------------------
    def touch(self) -> None:
        """Note a change of the run."""
        self.touched = next(self._changes)

    def now(self) -> int:
        """Return the microseconds since the start of the run."""
        return int((time.perf_counter() - self._clock) * MICROSECONDS)

    def begin(
        self, kind: SpanKind, name: str, parent: Span | None, attributes: dict[str, Attribute] | None = None
    ) -> Span:
        """Return a new span that begins now."""
        # Without calls of our own, as a node costs a span and its end.
        number, touched = next(self._ids), next(self._changes)
        self.touched = touched
        span = Span(
            number,
            None if parent is None else parent.id,
            kind,
            name,
            int((time.perf_counter() - self._clock) * MICROSECONDS),
            0,
            "running",
            {} if attributes is None else attributes,
            {},
            touched,
        )
        if number <= MAX_SPANS:
            self.spans.append(span)
        else:
            self.spans_left_out += 1
        return span

    def end(self, span: Span, status: SpanStatus = "ok", error: BaseException | None = None) -> None:
        """End a span now, if it has not ended."""
        if span.status != "running":
            return
        span.duration = int((time.perf_counter() - self._clock) * MICROSECONDS) - span.start
        if error is not None and self.keeps_texts:
            span.texts["error"] = str(error)
        span.status = status
        span.touched = self.touched = next(self._changes)

    def moment(self) -> int:
        """Return now, in microseconds since 1970."""
        return self._started + self.now()

    def text(self, span: Span, name: str, value: object) -> None:
        """Keep a text of a span, by reference."""
        if self.keeps_texts:
            span.texts[name] = value

    def texts(self, span: Span, texts: Mapping[str, object]) -> None:
        """Keep several texts of a span, by reference."""
        if self.keeps_texts:
            span.texts.update(texts)

    def close_below(self, parent: Span, status: SpanStatus) -> None:
        """End the spans at work directly below ``parent``, whose end is not reported."""
        for span in list(self.spans):
            if span.parent == parent.id and span.status == "running":
                self.end(span, status)

    # -- the request ---------------------------------------------------------------------------------------------
    def read(self, request: RequestContext, sent: SentRequest, user: str, key_hash: str | None) -> None:
        """Note whose request it is and what it says."""
        self.user, self.key_hash, self.private = user, key_hash, self.private or request.redact
        self._messages = sent.messages
        if self.keeps_texts:
            self._sent = sent
        else:
            # Not kept until it is wanted: what the engine lets go of, it can use again.
            self._look_into_messages()
        self.touch()

    def _look_into_messages(self) -> None:
        messages, self._messages = self._messages, None
        if messages is not None:
            self.question = _text_of(next((one for one in reversed(messages) if one.get("role") == "user"), None))
            self.first_user = _text_of(next((one for one in messages if one.get("role") == "user"), None))

    def keep_request(self, span: Span) -> None:
        """Keep what the client has sent as a text of the first span after it was read."""
        sent, self._sent = self._sent, None
        if sent is not None:
            self._request_text = {"messages": sent.messages, "tools": sent.tools, "tool_choice": sent.tool_choice}
            self.text(span, "request", self._request_text)

    def answered(self, call: LlmCallRecord) -> None:
        """Note an LLM call that was answered."""
        self._answered.append(call)

    def finish(self) -> None:
        """Note the end of the run; nothing of its request is needed any more."""
        request = self._request
        if request is None:
            return
        self._ended = self.moment()
        self._status = self._last_status(request)
        left: SpanStatus = "error" if self._status == "failed" else "cancelled"
        for span in self.spans:
            if span.status == "running":
                self.end(span, left)
        # Now, though the writer could: what they are made of is still in the processor's caches.
        self.facts, self.trace = self._facts(request), request.trace
        self._request = self.last_call = None
        self._share_messages()
        # The run stays in memory for hours; the collector would look at each of these again and again.
        self.nodes, self.workflows, self.calls, self.waits, self.steps, self._answered = {}, {}, {}, {}, {}, []
        self.touch()

    def _share_messages(self) -> None:
        """Take the messages of a long conversation from the run before, and leave none to a run without texts."""
        sent, self._request_text = self._request_text, None
        if sent is not None and len(sent["messages"]) >= LEAST_MESSAGES:
            sent["messages"] = _shared(sent["messages"], self.size)
        for span, attempt in self.attempts:
            messages = attempt.payload.get("messages")
            if isinstance(messages, list) and len(messages) >= LEAST_MESSAGES:
                attempt.payload = {
                    **attempt.payload,
                    "messages": _shared(messages, self.size) if self.keeps_texts else [],
                }
                self.text(span, "payload", attempt.payload)

    def refresh(self) -> None:
        """Bring the facts up to date."""
        request = self._request
        if request is None:
            return
        status = self._status_now(request)
        if status != self._status:
            self._status = status
            self.touch()
        self._note_first_tokens()
        facts = self._facts(request)
        # The run may have ended in the meantime.
        if self._request is not None:
            self.facts = facts

    def _note_first_tokens(self) -> None:
        """Note which of the calls at work have begun to write, of which no event tells."""
        for span, call in list(self.calls.values()):
            first = call.answer.first_at
            if first is not None and "time_to_first_token" not in span.attributes:
                span.attributes["time_to_first_token"] = int((first - self._clock) * MICROSECONDS) - span.start
                span.touched = self.touched = next(self._changes)

    def live(self) -> list[LiveText]:
        return [
            {
                "span": span.id,
                "tokens": len(call.answer.texts),
                "text": "".join(call.answer.texts),
                "reasoning": "".join(str(chunk.get("reasoning") or "") for chunk in list(call.answer.others)),
            }
            for span, call in list(self.calls.values())
        ]

    def _status_now(self, request: RequestContext) -> RunStatus:
        if request.answered_at is not None:
            return "answered"
        return "queued" if (GATE, "", 0) in self.waits else "running"

    def _last_status(self, request: RequestContext) -> RunStatus:
        if self.refused:
            return "refused"
        if request.cancel_scope.reason == SERVER_STOPS:
            return "interrupted"
        if request.was_cut_short or self.gone:
            return "cancelled"
        return "failed" if request.failed or self.error_type is not None else "ok"

    # -- the facts -----------------------------------------------------------------------------------------------
    def _facts(self, request: RequestContext) -> RunFacts:
        self._look_into_messages()
        self.private = self.private or request.redact
        route, reason = self._route(request)
        calls = list(self._answered)
        read, written, cached = _usage(calls)
        facts: RunFacts = {
            "id": self.id,
            "kind": self._kind(request),
            "origin": None if request.origin is None else {"run": request.origin[0], "span": request.origin[1]},
            "status": self._status,
            "error.type": self.error_type,
            "user": self.user,
            "key_hash": self.key_hash,
            "private": self.private,
            "client": request.api_type,
            # The client's text is kept of requests that are not private; the other is the name in our own lists.
            "model": (request.model if self.private else request.asked_model) or None,
            "stream": request.stream,
            "workflow": self.workflow,
            "route": route,
            "route.reason": reason,
            "discussion": self.discussion,
            "conversation": None,
            "started": self._started,
            "queued": self.queued,
            "first_token": self._moment(request.first_token_at),
            "answered": self._moment(request.answered_at),
            "ended": self._ended,
            "nodes": self.node_count,
            "calls": self.call_count,
            "endpoints": list(dict.fromkeys(call.endpoint for call in calls)),
            "usage.input_tokens": read,
            "usage.output_tokens": written,
            "usage.cache_read.input_tokens": cached,
            "estimated": any(_reported_output(call) is None and call.chunks > 0 for call in calls),
            "config": [],
            "question": None,
            "answer": None,
            "error": None,
        }
        if self.keeps_texts:
            facts["question"] = _short(self.question)
            facts["answer"], facts["error"] = _short(self._answer_text(request)), _short(self.error)
        return facts

    @staticmethod
    def _kind(request: RequestContext) -> RunKind:
        if request.kind in RUN_KINDS:
            return request.kind
        return "task" if request.task else "chat"

    def _route(self, request: RequestContext) -> tuple[str | None, str | None]:
        """Return the route with the branches that its nodes took, and the reason for it."""
        route, reason = request.route, request.route_reason
        if not route:
            return None, None
        if request.workflow_override:
            route = request.model or route
        elif self.chosen:
            reason = f"category {self.chosen}, {reason}"
        elif request.task and not reason:
            reason = "background task"
        if request.misspelt_model:
            reason = ", ".join(filter(None, [reason, request.misspelt_model]))
        return " > ".join([route, *request.branches]) if request.branches else route, reason or None

    def _answer_text(self, request: RequestContext) -> str | None:
        """Return the answer, or what the client has got of it."""
        if self.answer is None:
            # A call that is tried again has no node, and its stream is not that of a client.
            call = self.last_call if request.tokens or request.kind == "again" else None
            return None if call is None else "".join(list(call.answer.texts)) or None
        if isinstance(self.answer, Mapping):
            return _text_of(self.answer)
        return str(self.answer)

    def _moment(self, monotonic: float | None) -> int | None:
        """Return a moment of the request in microseconds since 1970."""
        if monotonic is None:
            return None
        return self._started + max(int((monotonic - self._monotonic) * MICROSECONDS), 0)


def _shared(messages: Sequence[T], characters: int) -> list[T]:
    return process().one(SharedLists).shared(messages, characters)


def _text_of(message: Mapping[str, object] | None) -> str:
    content = message.get("content") if message is not None else None
    return content if isinstance(content, str) else ""


def _short(text: str | None) -> str | None:
    """Return the beginning of a text as people wrote it."""
    if text is None:
        return None
    beginning = text[: 2 * SHORT_TEXT]
    if SENTINEL_CHARACTER in beginning or OPEN_TAG in beginning:
        # What stands for a brace is that much longer, and so may a tag be.
        beginning = without_discussion_id_tags(restore_braces(text[: 20 * SHORT_TEXT]))
    return beginning[:SHORT_TEXT]


def _reported_output(call: LlmCallRecord) -> int | None:
    """Return the tokens of an answer as its back-end counted them."""
    usage = call.outcome.usage if call.outcome is not None else None
    return token_count(usage.get("completion_tokens")) if usage else None


def _usage(calls: Iterable[LlmCallRecord]) -> tuple[int | None, int | None, int | None]:
    """Return the tokens that were read, written and read from a cache; None for a number that no server reported."""
    read = written = cached = None
    for call in calls:
        read, written = _sum(read, call.prompt_tokens), _sum(written, _reported_output(call))
        cached = _sum(cached, call.cached_tokens)
    return read, written, cached


def _sum(known: int | None, more: int | None) -> int | None:
    return known if more is None else min(more + (known or 0), LARGEST_NUMBER)
