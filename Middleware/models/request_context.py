"""What belongs to one request, and how code deep inside finds it."""
from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_call import LlmOutcome, Observer
from Middleware.models.trial import Trial


def new_request_id() -> str:
    return str(uuid.uuid4())


@dataclass
class RequestContext:
    """The state of one client request, from the socket to the last background node.

    Attributes:
        api_type: the dialect that the client speaks, as ``ResponseBuilderService`` names them.
        user: the user named by the ``model`` field in multi-user mode, else None.
        workflow_override: name of the shared workflow that the ``model`` field selected.
        redact: no conversation text of this request may reach the log.
        listeners: who is told what happens to the request; None until the engine sets it.
        trial: what the request gets in place of the world outside, if it only tries a workflow out.
        config: the user's settings as read once for this request (set by config_utils).
        background_nodes: how many nodes remain to be run after the answer, those of nested workflows included.
        outcome: that of the responder's LLM call.
        route, endpoint: what was chosen, for the log; while it is answered, the endpoint that was called last.
        told: what the log has been told of and need not hear again.
        images_shown: a model was shown images of the request, or descriptions of them were at hand.
        stamping: the steps of giving messages their times that were taken.
        hashes: of contents of messages, by content: several nodes look at the whole conversation.
        started, first_token_at, answered_at, cancelled_at, background_at: monotonic seconds; the last: when the nodes
            after the answer began.
        tokens: chunks with text sent to the client.
        failed: an error was the answer, or ended it.
    """

    request_id: str = field(default_factory=new_request_id)
    api_type: str = "openai"
    user: str | None = None
    workflow_override: str | None = None
    stream: bool = False
    api_key: str | None = field(default=None, repr=False)
    redact: bool = False
    cancel_scope: CancelScope = field(default_factory=CancelScope, repr=False)
    listeners: Observer | None = field(default=None, repr=False)
    trial: Trial | None = field(default=None, repr=False)
    config: object = field(default=None, repr=False)
    started: float = field(default_factory=time.monotonic)
    background_nodes: int = 0
    outcome: LlmOutcome = field(default_factory=LlmOutcome, repr=False)
    route: str = ""
    endpoint: str = ""
    told: set[str] = field(default_factory=set, repr=False)
    images_shown: bool = False
    stamping: set[str] = field(default_factory=set, repr=False)
    hashes: dict[str, str] = field(default_factory=dict, repr=False)
    first_token_at: float | None = None
    answered_at: float | None = None
    background_at: float | None = None
    cancelled_at: float | None = None
    tokens: int = 0
    failed: bool = False

    @property
    def answer_complete(self) -> bool:
        """The terminator or whole body was handed to the server; a disconnect no longer cancels."""
        return self.answered_at is not None


def first_time_told(text: str) -> bool:
    """Whether the log has not yet been told this in the current request; always so without one."""
    request = current_request()
    if request is None:
        return True
    known = text in request.told
    request.told.add(text)
    return not known


_current: ContextVar[RequestContext | None] = ContextVar("wilmer_request", default=None)


def current_request() -> RequestContext | None:
    """The request that this thread works for, if any."""
    return _current.get()


def current_trial() -> Trial | None:
    """What the current request gets in place of the world outside, if it is a trial."""
    request = _current.get()
    return request.trial if request is not None else None


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
