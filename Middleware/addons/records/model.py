"""What is recorded of a run: its facts and its spans, with their texts.

``RunFacts`` has the keys that the API of the console sends as ``run``, ``Span.as_row`` the order of its ``spans``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, get_args

if TYPE_CHECKING:
    from Middleware.models.trace_context import TraceContext

MICROSECONDS = 1_000_000
"""In a second: all times of runs are whole microseconds."""

RunKind: TypeAlias = Literal["chat", "task", "playground", "replay", "again"]
"""``task`` is a front-end's own request, such as for a title."""

RunStatus: TypeAlias = Literal["queued", "running", "answered", "ok", "failed", "cancelled", "refused", "interrupted"]
"""``answered``: the answer is out, nodes go on. ``refused``: turned away at the gate. ``interrupted``: the server
ended."""

SpanKind: TypeAlias = Literal[
    "wait", "route", "workflow", "node", "llm", "attempt", "embedding", "tool", "memory", "note"
]

SpanStatus: TypeAlias = Literal["ok", "error", "cancelled", "running", "stand-in"]
"""``stand-in``: answered from a recording."""

TextName: TypeAlias = Literal[
    "request",
    "payload",
    "answer",
    "reasoning",
    "tool_calls",
    "output",
    "inputs",
    "arguments",
    "result",
    "written",
    "message",
    "error",
]
"""``request``: what the client has sent, on the first span of a run."""

RUN_KINDS: tuple[RunKind, ...] = get_args(RunKind)
RUN_STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)
SPAN_KINDS: tuple[SpanKind, ...] = get_args(SpanKind)
SPAN_STATUSES: tuple[SpanStatus, ...] = get_args(SpanStatus)
TEXT_NAMES: tuple[TextName, ...] = get_args(TextName)

# The states in which work of the run is left.
UNFINISHED: frozenset[RunStatus] = frozenset({"queued", "running", "answered"})

# A list of runs shows the beginning of these texts; longer ones are cut.
SHORT_TEXT = 500

Attribute: TypeAlias = "str | int | float | bool | list[str] | None"
"""The value of an attribute: JSON, no text of a conversation. None: the back-end has not said."""


class RunOrigin(TypedDict):
    """The run and the span that a replay or another try repeats; ``span`` is None for a whole run."""

    run: str
    span: int | None


class ConfigVersion(TypedDict):
    """A configuration file that a run used: its path below the config root, and the hash of its text."""

    path: str
    hash: str


class LiveText(TypedDict):
    """The answer so far of a running call. ``tokens``: its pieces with text."""

    span: int
    tokens: int
    text: str
    reasoning: str


class RunOwner(TypedDict):
    """Whose a run is: of ``RunFacts``, what decides who may know of it."""

    user: str | None
    key_hash: str | None


RunFacts = TypedDict(
    "RunFacts",
    {
        "id": str,
        "kind": RunKind,
        "origin": RunOrigin | None,
        "status": RunStatus,
        # The name of the exception class that ended the run, such as "BackendTimeoutError".
        "error.type": str | None,
        "user": str | None,
        # The first 16 hex digits of the SHA-256 of the client's key.
        "key_hash": str | None,
        "private": bool,
        # The dialect, as ``RequestContext.api_type``.
        "client": str,
        # As the client has asked for it.
        "model": str | None,
        "stream": bool,
        "workflow": str | None,
        "route": str | None,
        "route.reason": str | None,
        "discussion": str | None,
        # 16 hex digits; None for a private run.
        "conversation": str | None,
        # Moments in microseconds since 1970; None: not (yet) reached.
        "started": int,
        # When the request began to wait at the gate; None if it had its slot at once.
        "queued": int | None,
        "first_token": int | None,
        "answered": int | None,
        "ended": int | None,
        "nodes": int,
        "calls": int,
        # Those that answered, in the order of their first answer.
        "endpoints": list[str],
        # Sums over the answered calls; None if no back-end said.
        "usage.input_tokens": int | None,
        "usage.output_tokens": int | None,
        "usage.cache_read.input_tokens": int | None,
        # The counts are ours, not those of a back-end.
        "estimated": bool,
        "config": list[ConfigVersion],
        # Texts: None in a private run on the disk, and wherever the viewer may not see them.
        "question": str | None,
        "answer": str | None,
        "error": str | None,
    },
)


def number(value: Attribute) -> int | None:
    """Return the value of an attribute as a whole number, None for anything that is not a number."""
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(slots=True)
class Span:
    """One piece of a run with a beginning and an end.

    Attributes:
        id: counts from 1 in its run, in the order of the starts.
        parent: the id of the span around it; None for one of the run itself.
        start, duration: microseconds, the first since the start of the run. A running span has the duration 0.
        attributes: facts. Names are OpenTelemetry's GenAI names without ``gen_ai.``.
        texts: by name. Strings, or JSON: a payload is the object that was sent. Not for a log, not for every viewer.
        touched: the number of its last change, see ``RunRing.counter``.
    """

    id: int
    parent: int | None
    kind: SpanKind
    name: str
    start: int
    duration: int = 0
    status: SpanStatus = "running"
    attributes: dict[str, Attribute] = field(default_factory=dict)
    texts: dict[str, object] = field(default_factory=dict, repr=False)
    touched: int = 0

    def as_row(self) -> list[object]:
        """Return the span as the API sends it and the store keeps it."""
        return [
            self.id,
            self.parent,
            self.kind,
            self.name,
            self.start,
            self.duration,
            self.status,
            self.attributes,
            self.texts,
        ]


@dataclass(slots=True)
class RunDocument:
    """A run with all of its spans.

    Attributes:
        spans: in the order of their starts. Those of a run at work are added by other threads: read a copy.
        encryption_key: that of the request, with which its texts are encrypted on the disk; None without encryption.
        config_texts: the text of each file in ``facts["config"]``, by hash, without secrets.
        config: as ``facts["config"]``, in a run for a viewer whose facts do not have all of it. It and ``config_texts``
            are for the server's own work, and not for every viewer.
        spans_left_out, text_bytes_left_out: what was beyond the limits of one run.
        size: an estimate of the bytes of its texts in memory.
        touched: the number of its last change, see ``RunRing.counter``.
        trace: the trace of the request; None where none are sent.
        normalised: its texts are as they are shown and stored. Those of a run as the recorder gives it are references
            to the objects at work; ``texts.normalised`` converts them.
    """

    facts: RunFacts
    spans: list[Span]
    encryption_key: bytes | None = field(default=None, repr=False)
    config_texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    spans_left_out: int = 0
    text_bytes_left_out: int = 0
    size: int = 0
    touched: int = 0
    normalised: bool = False
    trace: TraceContext | None = field(default=None, repr=False)
    config: Sequence[ConfigVersion] = field(default=(), repr=False)

    @property
    def finished(self) -> bool:
        return self.facts["status"] not in UNFINISHED

    def live(self) -> list[LiveText]:
        """Return what the calls at work have been answered so far; nothing for a run that is over."""
        return []

    def span(self, span_id: int) -> Span | None:
        """Return the span with this id, None if it is not there or was left out."""
        # Ids are positions until spans were left out.
        if 0 < span_id <= len(self.spans) and self.spans[span_id - 1].id == span_id:
            return self.spans[span_id - 1]
        return next((span for span in self.spans if span.id == span_id), None)


@dataclass(frozen=True)
class Mark:
    """What users have noted about a run on disk."""

    pinned: bool = False
    note: str | None = None


@dataclass
class StoredRun:
    """A run on disk: its facts without texts, or with those that are in clear, and the mark on it."""

    facts: RunFacts
    mark: Mark
    texts_kept: bool
    n: int = 0
    segment: int = 0
    # The encrypted short texts of a private run.
    sealed: str | None = field(default=None, repr=False)
