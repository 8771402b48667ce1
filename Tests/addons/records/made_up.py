"""Runs that tests make up: documents with the facts and spans that matter to them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from Middleware.addons.records.model import RunDocument, RunFacts, Span, SpanKind, SpanStatus

STARTED = 1_750_000_000_000_000
SECOND = 1_000_000
KINDS: tuple[SpanKind, ...] = (
    "wait",
    "route",
    "workflow",
    "node",
    "llm",
    "attempt",
    "embedding",
    "tool",
    "memory",
    "note",
)


def facts(**changed: Any) -> RunFacts:
    """Return the facts of a run that was answered after a second; keys with a dot are given with two underscores."""
    known: RunFacts = {
        "id": "3f2a91c0-0000-4000-8000-000000000000",
        "kind": "chat",
        "origin": None,
        "status": "ok",
        "error.type": None,
        "user": "me",
        "key_hash": None,
        "private": False,
        "client": "openai_chat",
        "model": "me:Coding",
        "stream": False,
        "workflow": "Coding",
        "route": "me:Coding",
        "route.reason": None,
        "discussion": None,
        "conversation": "0123456789abcdef",
        "started": STARTED,
        "queued": None,
        "first_token": None,
        "answered": STARTED + SECOND,
        "ended": STARTED + SECOND,
        "nodes": 1,
        "calls": 1,
        "endpoints": ["Main"],
        "usage.input_tokens": None,
        "usage.output_tokens": None,
        "usage.cache_read.input_tokens": None,
        "estimated": False,
        "config": [],
        "question": None,
        "answer": None,
        "error": None,
    }
    known.update({key.replace("__", "."): value for key, value in changed.items()})  # type: ignore[typeddict-item]
    return known


class Made:
    """Builds the spans of a run; times are in seconds."""

    def __init__(self, **changed: Any) -> None:
        self.facts = facts(**changed)
        self.spans: list[Span] = []

    def add(
        self,
        kind: SpanKind,
        name: str,
        start: float,
        end: float,
        parent: Span | None = None,
        status: SpanStatus = "ok",
        texts: dict[str, object] | None = None,
        **attributes: Any,
    ) -> Span:
        span = Span(
            len(self.spans) + 1,
            parent.id if parent else None,
            kind,
            name,
            round(start * SECOND),
            round((end - start) * SECOND),
            status,
            {key.replace("__", "."): value for key, value in attributes.items()},
            texts or {},
        )
        self.spans.append(span)
        return span

    def workflow(self, name: str, start: float, end: float, parent: Span | None = None, **attributes: Any) -> Span:
        return self.add("workflow", name, start, end, parent, **{"workflow__name": name, "folder": "me", **attributes})

    def node(
        self, index: int, title: str, start: float, end: float, parent: Span | None = None, **attributes: Any
    ) -> Span:
        return self.add(
            "node",
            title,
            start,
            end,
            parent,
            **{"node__index": index, "node__title": title, "node__type": "Standard", **attributes},
        )

    def call(self, endpoint: str, start: float, end: float, parent: Span | None = None, **attributes: Any) -> Span:
        return self.add("llm", endpoint, start, end, parent, **{"endpoint": endpoint, **attributes})

    def attempt(self, endpoint: str, start: float, end: float, parent: Span | None = None, **attributes: Any) -> Span:
        return self.add("attempt", endpoint, start, end, parent, **{"operation__name": "chat", **attributes})

    def document(self, seconds: float | None = None) -> RunDocument:
        if seconds is not None:
            end = self.facts["started"] + round(seconds * SECOND)
            self.facts.update(answered=end, ended=end)
        return RunDocument(self.facts, self.spans, normalised=True)


@st.composite
def documents(draw: st.DrawFn) -> RunDocument:
    """Draw runs whose spans have any place, kind, time and figures, also such as no recorder would write."""
    spans = []
    for number in range(1, draw(st.integers(0, 12)) + 1):
        parent = draw(st.none() | st.integers(1, 12))
        attributes: dict[str, Any] = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "for": st.sampled_from(["gate", "lock", "turn"]),
                    "endpoint": st.sampled_from(["Main", "Worker"]),
                    "node.index": st.integers(1, 3),
                    "node.title": st.sampled_from(["Analyse", "Answer"]),
                    "usage.input_tokens": st.none() | st.integers(0, 10_000),
                    "usage.output_tokens": st.none() | st.integers(0, 10_000),
                    "usage.cache_read.input_tokens": st.none() | st.integers(0, 10_000),
                    "backend.load_ms": st.none() | st.floats(0, 5000),
                    "backend.prompt_ms": st.none() | st.floats(0, 5000),
                    "backend.generate_ms": st.none() | st.floats(0, 5000),
                    "time_to_first_token": st.none() | st.integers(0, 5 * SECOND),
                    "response.finish_reasons": st.none() | st.just(["length"]),
                },
            )
        )
        spans.append(
            Span(
                number,
                parent,
                draw(st.sampled_from(KINDS)),
                draw(st.sampled_from(["Main", "Coding", ""])),
                draw(st.integers(0, 10 * SECOND)),
                draw(st.integers(0, 10 * SECOND)),
                draw(st.sampled_from(["ok", "error", "cancelled", "running", "stand-in"])),
                attributes,
            )
        )
    ended = draw(st.none() | st.integers(0, 10 * SECOND))
    status = draw(st.sampled_from(["ok", "failed", "cancelled", "running", "refused", "interrupted", "answered"]))
    moment = None if ended is None else STARTED + ended
    return RunDocument(facts(status=status, answered=draw(st.sampled_from([None, moment])), ended=moment), spans)
