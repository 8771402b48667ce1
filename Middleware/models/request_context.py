"""The state of one request, and access to it for code at any level."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_call import LlmOutcome, NodeSite, Observer, TokenCounts, current_site
from Middleware.models.messages import Message, SentTimes
from Middleware.models.outside import REAL, Outside
from Middleware.models.trace_context import TraceContext


class SentRequest(NamedTuple):
    """What a client has sent, before anything is taken out of it or added."""

    messages: Sequence[Mapping[str, object]]
    tools: Sequence[Mapping[str, object]] | None = None
    tool_choice: object = None


def new_request_id() -> str:
    # Random, because a client that knows the id can cancel the request.
    return str(uuid.uuid4())


@dataclass(slots=True)
class RequestContext:
    """The state of one client request, from the socket to the last background node.

    Attributes:
        api_type: the dialect that the client speaks, as ``ResponseBuilderService`` names them.
        user: the user named by the ``model`` field in multi-user mode, else None.
        workflow_override: name of the shared workflow that the ``model`` field selected.
        has_tools: the client has sent tools, so that it may get calls; assumed where no client is known.
        schema_field: the field in which the client asks for an answer in JSON, which the LLM does not get; "" for none.
        redact: no conversation text of this request may reach the log.
        listeners: receives the events of the request; None until the engine sets it.
        outside: what is outside of the program, or what replaces it.
        background_nodes: the number of nodes that still run after the answer, including those of nested workflows.
        outcome: the outcome of the responder's LLM call.
        counts: the tokens of all LLM calls.
        model: the name of the model that answers, as clients see it.
        key_name: the note next to the client's key in the list of accepted keys.
        waited: seconds in the queue of the concurrency gate, for the request itself, and in the queue of calls.
        paused: seconds in which calls after the answer waited for their turn, up to ``paused_until``.
        route, endpoint: the chosen route and the endpoint of the last call before the end of the answer, for the log.
        route_reason: why that route was chosen, if its name does not say it.
        branches: the choices of the nodes that chose a workflow on the way to the answer.
        logged: the messages that are logged once per request.
        images_shown: a model received images of the request, or descriptions of them were available.
        started, first_token_at, answered_at, cancelled_at, background_at: monotonic seconds; the last is the start
            of the nodes after the answer.
        tokens: chunks with text sent to the client.
        failed: the answer is an error, or was ended by one.
        task: the kind of a front-end's own request, such as for a title; "" for a chat.
        client_limit: the client's own limit of the answer, in tokens.
        longest_answer: the most tokens that the answer of a front-end's own request needs; None if that is not known.
        on_end: is called once when no work of the request is left, however it ended.
        leave_gate: gives up the request's place at the concurrency gate; None if it has none.
        give_way: stops a front-end's own request, which runs again later; None if it must not be stopped (again).
        kind: what made the request if it was not a client: ``playground``, ``replay`` or ``again``.
        origin: the run that it repeats, and a span of that run.
        asked_model: the model that the client has named; "" for none.
        misspelt_model: in words that there is no model of this name, and the nearest one; "" if it is not nearly one.
        body_bytes: the length of its body.
        peer: where it came from, as ``client_addresses.peer_of`` says it; () if no client has sent it.
        asked: the conversation as the client has sent it.
        said: the values of the client's fields with the time of a message, the best first.
        history: the messages as the outermost workflow got them.
        remembered: which rows of the index of messages its messages are; set by the services, like ``config``.
        delivered: returns the text of the answer, as far as the client has got it; None before the answer.
        via: the value of the header ``X-Wilmer-Via`` for the back-ends that are called for it; "" before the first.
        traceparent: the header of this name, with which a client says which trace the request belongs to; "" for none.
        trace: that trace, or one of its own; None where none are sent.
        files: the configuration files that were used, by path, each with its name below the config root; None if they
            are not recorded.
    """

    request_id: str = field(default_factory=new_request_id)
    api_type: str = "openai"
    user: str | None = None
    workflow_override: str | None = None
    stream: bool = False
    api_key: str | None = field(default=None, repr=False)
    has_tools: bool = True
    schema_field: str = ""
    redact: bool = False
    cancel_scope: CancelScope = field(default_factory=CancelScope, repr=False)
    listeners: Observer | None = field(default=None, repr=False)
    outside: Outside = field(default=REAL, repr=False)
    # The user's settings as read once for this request, set by config_utils; their type belongs to a higher layer.
    config: object = field(default=None, repr=False)
    started: float = field(default_factory=time.monotonic)
    background_nodes: int = 0
    outcome: LlmOutcome = field(default_factory=LlmOutcome, repr=False)
    counts: TokenCounts = field(default_factory=TokenCounts, repr=False)
    model: str = ""
    key_name: str = ""
    waited: float = 0.0
    paused: float = 0.0
    paused_until: float = 0.0
    route: str = ""
    route_reason: str = ""
    branches: list[str] = field(default_factory=list)
    endpoint: str = ""
    logged: set[str] = field(default_factory=set, repr=False)
    images_shown: bool = False
    # The completed steps of adding times to messages: each is done once, although several nodes ask for it.
    stamping: set[str] = field(default_factory=set, repr=False)
    # Of message contents, by content, because several nodes hash the whole conversation.
    hashes: dict[str, str] = field(default_factory=dict, repr=False)
    # What was found out about the memories of a discussion, by its place; their type belongs to a higher layer.
    followed: dict[str, object] = field(default_factory=dict, repr=False)
    first_token_at: float | None = None
    answered_at: float | None = None
    background_at: float | None = None
    cancelled_at: float | None = None
    tokens: int = 0
    failed: bool = False
    task: str = ""
    client_limit: int | None = None
    longest_answer: int | None = None
    on_end: Callable[[], object] | None = field(default=None, repr=False)
    leave_gate: Callable[[], object] | None = field(default=None, repr=False)
    give_way: Callable[[], object] | None = field(default=None, repr=False)
    kind: str = ""
    peer: tuple[str | None, ...] = field(default=(), repr=False)
    origin: tuple[str, int | None] | None = None
    asked_model: str = ""
    misspelt_model: str = ""
    body_bytes: int = 0
    asked: Sequence[Mapping[str, object]] = field(default=(), repr=False)
    said: SentTimes = field(default_factory=dict, repr=False)
    history: Sequence[Message] = field(default=(), repr=False)
    remembered: object = field(default=None, repr=False)
    delivered: Callable[[], str] | None = field(default=None, repr=False)
    via: str = ""
    traceparent: str = ""
    trace: TraceContext | None = None
    files: dict[str, str] | None = field(default=None, repr=False)

    def begin_again(self) -> None:
        """Forget the first run of a request that is to run once more."""
        self.cancel_scope, self.outcome = CancelScope(), LlmOutcome()
        self.cancelled_at, self.background_nodes, self.endpoint = None, 0, ""
        self.branches.clear()
        self.followed.clear()

    @property
    def answer_complete(self) -> bool:
        """Return whether the complete answer was passed to the server, so that a disconnect no longer cancels."""
        return self.answered_at is not None

    @property
    def was_cut_short(self) -> bool:
        """Return whether the request was cancelled before its answer was complete."""
        if not self.cancel_scope.cancelled:
            return False
        # The thread that cancels notes it here a moment later, in which the answer may end.
        answered, cancelled = self.answered_at, self.cancelled_at or self.cancel_scope.cancelled_at
        return answered is None or (cancelled is not None and cancelled <= answered)

    def free_slot(self) -> None:
        """Give up the place at the concurrency gate, if there is one left."""
        leave = self.leave_gate
        # Another thread may do the same, which does no harm.
        if leave is not None:
            leave()

    def report(self, event: str, *arguments: object) -> None:
        """Emit an event of this request to its listeners."""
        if self.listeners is not None:
            self.listeners.emit(event, *arguments)


def report(event: str, *arguments: object) -> None:
    """Emit an event of the current request, which is its first argument; without a request, do nothing."""
    request = _current.get()
    if request is not None and request.listeners is not None:
        request.listeners.emit(event, request, *arguments)


def first_logged(text: str) -> bool:
    """Return whether ``text`` is logged for the first time in the current request; always True without a request."""
    request = current_request()
    # Users' scripts and commands work without a request.
    if request is None:
        return True
    known = text in request.logged
    request.logged.add(text)
    return not known


# A context variable, which helper threads get with a copy of the context; servers reuse threads for other requests.
_current: ContextVar[RequestContext | None] = ContextVar("wilmer_request", default=None)


# Returns the request that this thread works for, if any. The method itself, as a request asks some fifty times.
current_request: Callable[[], RequestContext | None] = _current.get


def note_wait(request: RequestContext | None, seconds: float) -> None:
    """Add a wait in the queue of the concurrency gate. Waits after the answer do not count, as no client feels them."""
    if request is not None and not request.answer_complete:
        request.waited += seconds


def note_pause(request: RequestContext | None, since: float, until: float) -> None:
    """Note that a call after the answer has waited from ``since`` to ``until``; the time limit does not run then."""
    if request is not None and request.answer_complete:
        # Several calls may wait at the same time, which counts once.
        request.paused += max(until - max(since, request.paused_until), 0.0)
        request.paused_until = max(until, request.paused_until)


def current_node(request: RequestContext | None) -> NodeSite | None:
    """Return the node of ``request`` that this thread works for, if any."""
    site = current_site()
    # An abandoned run of an earlier request may have left its entry on this thread.
    return None if site is not None and request is not None and site.request_id != request.request_id else site


def current_outside() -> Outside:
    """Return what the current request reaches outside of the program; without a request, the outside as it is."""
    request = _current.get()
    return REAL if request is None else request.outside


def set_current_request(context: RequestContext | None) -> None:
    _current.set(context)


@contextlib.contextmanager
def request_scope(context: RequestContext) -> Iterator[RequestContext]:
    """Make ``context`` the current request for a block."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)
