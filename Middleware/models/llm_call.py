"""The events of LLM calls, their observers, and the current node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from Middleware.models.messages import Answer, Chunk, Usage, cached_tokens, token_count


class Observer(Protocol):
    """Takes events by name. Never raises."""

    def emit(self, event: str, *arguments: object) -> None: ...

    def listens_to(self, *events: str) -> bool:
        """Return whether there is a listener for one of ``events``; otherwise they need not be emitted."""


@dataclass(slots=True)
class AnswerParts:
    """The uncleaned answer of one call, as it arrives; other threads may read it while it grows.

    Attributes:
        texts: the pieces of text. An answer that does not stream is one piece.
        others: the chunks with anything else: reasoning, tool calls, token counts.
        calls: the tool calls of an answer that does not stream.
        reasoning: the reasoning of an answer that does not stream.
        first_at: when the first text, reasoning or tool call of a stream arrived, as ``time.perf_counter`` says.
    """

    texts: list[str] = field(default_factory=list)
    others: list[Chunk] = field(default_factory=list)
    calls: Sequence[Mapping[str, object]] = ()
    reasoning: str = ""
    first_at: float | None = None

    def take(self, answer: Answer, reasoning: str) -> None:
        """Take over an answer that has not streamed."""
        text = answer if isinstance(answer, str) else answer["content"]
        self.texts, self.reasoning = [text] if text else [], reasoning
        self.calls = () if isinstance(answer, str) else answer["tool_calls"]

    @property
    def characters(self) -> int:
        """The length of the text."""
        return sum(map(len, self.texts))


@dataclass(slots=True)
class LlmCallRecord:
    """One LLM call for listeners; ``answer`` alone contains text of the conversation.

    Values that are known only at the end are set when the call has finished or failed.

    Attributes:
        workflow_name, node_index, node_name: the node that calls, its index counted from 1; "" and 0 outside a node.
        run_id: the run of the workflow, see ``NodeSite``.
        endpoint: the endpoint that is called first; at the end, the one that answered or failed last.
        model: the model name that is sent to ``endpoint``, "" for none.
        messages: the number of messages; 0 for a prompt of two texts.
        seconds_to_first_token: time until the first text, reasoning or tool call of a stream; None without one.
        prompt_tokens: the back-end's count, None if it sends none.
        cached_tokens, processed_tokens: of ``prompt_tokens``, those that the back-end had in its cache, and those that
            it has read; None if it does not say.
        completion_tokens: the back-end's count, else ``chunks``; None for a complete answer without a count.
        chunks: the number of streamed pieces of text.
        answer: the answer so far; that of the endpoint that was called last.
        outcome: the metadata of the answer, at the end.
        waited: of ``seconds``, those in the queue of calls.
        failed_endpoints: the endpoints that a backup replaced, in the order of the calls.
        stopped: the call was cancelled, or its stream abandoned, before its end.
    """

    request_id: str
    endpoint: str
    streamed: bool
    workflow_name: str = ""
    node_index: int = 0
    node_name: str = ""
    run_id: str = ""
    model: str = ""
    messages: int = 0
    seconds_to_first_token: float | None = None
    seconds: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    processed_tokens: int | None = None
    completion_tokens: int | None = None
    chunks: int = 0
    finish_reason: str | None = None
    waited: float = 0.0
    failed_endpoints: tuple[str, ...] = ()
    stopped: bool = False
    answer: AnswerParts = field(default_factory=AnswerParts, repr=False)
    outcome: LlmOutcome | None = field(default=None, repr=False)


@dataclass(slots=True)
class Attempt:
    """One request to one server: a call needs several if it is repeated, or if a backup answers. For listeners.

    Attributes:
        call: the call that it belongs to; None for a call for vectors.
        outcome: the metadata of the answer, complete when the call is.
        operation: ``chat``, ``text_completion`` or ``embeddings``.
        api_type: the type of the endpoint's API, as API type files name it.
        url: where it is sent; may contain a password.
        payload: the JSON that is sent. It must not be changed.
        endpoint_config: the file of the endpoint, shared and read-only.
        stands_in_for: the endpoint that had failed, or whose model is not loaded; "" for none.
        status: that of HTTP; None if none has arrived.
        error: what ended it; None for a complete answer, and for one that was stopped.
        stopped: it was cancelled, or its stream abandoned.
        traceparent: the header that tells the server which trace it belongs to; "" for none.
    """

    call: LlmCallRecord | None
    outcome: LlmOutcome
    endpoint: str
    operation: str
    api_type: str
    url: str
    payload: Mapping[str, object] = field(repr=False)
    endpoint_config: Mapping[str, object] = field(repr=False)
    stands_in_for: str = ""
    status: int | None = None
    error: BaseException | None = None
    stopped: bool = False
    traceparent: str = ""


@dataclass(slots=True)
class LlmOutcome:
    """The metadata of an answer.

    Attributes:
        sent_reason: the finish reason in the server's word.
        empty: ``reasoning`` for an answer of nothing else, ``nothing`` for an empty one, "" for any other.
        left_out: what the server refuses, and the request therefore did not have, or had in another form.
        usage: token counts in OpenAI's form; None if the server sent none.
        reported: the object in which the back-end reported times, or counts that ``usage`` has no name for; in its
            own form. None if it reported none.
        model: the name of the model that answered, as the back-end gives it; "" if it does not.
        thoughts: the blocks of Claude's thinking, as clients of the Messages API get them.
        kept: how many messages of the request went out with keepsakes.
        is_unmarked: the stream has ended without the mark of an end, as all of this endpoint's.
        fingerprint: the back-end's name for its build (OpenAI's ``system_fingerprint``), if it sent one.
        endpoint_config: the file of the endpoint that answered; its cleaning rules apply.
    """

    finish_reason: str | None = None
    sent_reason: str | None = None
    left_out: tuple[str, ...] = ()
    empty: str = ""
    usage: Usage | None = None
    reported: Mapping[str, object] | None = field(default=None, repr=False)
    model: str = ""
    reasoning: str = ""
    thoughts: Sequence[Mapping[str, object]] = field(default=(), repr=False)
    kept: int = 0
    is_unmarked: bool = False
    fingerprint: str = ""
    endpoint_config: Mapping[str, object] = field(default_factory=dict, repr=False)
    endpoint_name: str = ""


# One for all sums: it is held for a few additions at the end of a call.
_sums = threading.Lock()


@dataclass
class TokenCounts:
    """The tokens of several LLM calls, as their back-ends report them. Thread-safe.

    Attributes:
        calls: the number of calls, with or without counts.
        prompt_tokens, completion_tokens: None until a call reports them.
        processed_tokens: the part of ``prompt_tokens`` that was not cached; None if a call does not say.
        waited: seconds in the queue of calls.
    """

    calls: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    processed_tokens: int | None = None
    waited: float = 0.0
    _all_say_cached: bool = True

    def add(self, usage: Usage | None, waited: float = 0.0) -> None:
        """Add the counts of one call."""
        with _sums:
            self.calls += 1
            self.waited += waited
            if not usage:
                return
            written, prompt = token_count(usage.get("completion_tokens")), token_count(usage.get("prompt_tokens"))
            if written is not None:
                self.completion_tokens = (self.completion_tokens or 0) + written
            if prompt is not None:
                self.prompt_tokens = (self.prompt_tokens or 0) + prompt
                self._add_processed(prompt, cached_tokens(usage))

    def _add_processed(self, prompt: int, cached: int | None) -> None:
        self._all_say_cached = self._all_say_cached and cached is not None
        # A sum without the calls that say nothing would look too good.
        self.processed_tokens = (
            (self.processed_tokens or 0) + max(prompt - (cached or 0), 0) if self._all_say_cached else None
        )

    @property
    def in_words(self) -> str:
        """The counts of a node, such as ``2451 tokens in, 2230 cached, 120 out``; without the unknown ones.

        A wait for its turn comes last: ``waited 3.20 s for its turn``.
        """
        prompt, read, written = self.prompt_tokens, self.processed_tokens, self.completion_tokens
        waited = f"waited {self.waited:.2f} s for its turn" if self.waited >= 0.01 else None
        if prompt is None and written is None:
            return waited or ""
        parts = [
            None if prompt is None else f"{prompt} tokens in",
            None if prompt is None or read is None else f"{prompt - read} cached",
            None if written is None else f"{written} out" if prompt is not None else f"{written} tokens out",
            waited,
        ]
        return ", ".join(part for part in parts if part)


class NodeSite(NamedTuple):
    """The running node and the observer of its events.

    Attributes:
        chain: the names of the workflows from the outermost to that of the node.
        counts: gets the tokens of the node's calls.
        discussion_id: the conversation's, "" for none.
        run_id: which run of the workflow it is, as ``RunRequest.workflow_id``.
    """

    observer: Observer
    request_id: str
    workflow_name: str
    node_index: int
    node_name: str
    chain: tuple[str, ...] = ()
    counts: TokenCounts | None = None
    discussion_id: str = ""
    run_id: str = ""


# A context variable, as the nodes of a parallel block run on threads with copies of the request's context.
_site: ContextVar[NodeSite | None] = ContextVar("wilmer_node", default=None)


# Returns the node that this thread works for, if any. The method itself, as for the current request.
current_site: Callable[[], NodeSite | None] = _site.get


def enter_node(site: NodeSite) -> NodeSite | None:
    """Make ``site`` the current node; return the previous one, for ``leave_node``."""
    # Two functions, because a context manager would dominate the run time of a trivial node.
    before = _site.get()
    _site.set(site)
    return before


def leave_node(site: NodeSite, before: NodeSite | None) -> None:
    """Undo ``enter_node``. Does nothing in a context where ``site`` is not current."""
    # An abandoned generator is closed in whatever context the garbage collector runs.
    if _site.get() is site:
        _site.set(before)
