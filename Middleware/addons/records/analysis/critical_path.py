"""The critical path through the spans of a run: which span the run was waiting for at each moment."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from Middleware.addons.records.model import RunDocument, Span

_Children = Mapping[int | None, Sequence[Span]]


class TimeSlice(NamedTuple):
    """A piece of time that belongs to one span and to none of the spans in it; ``span`` None: to the run itself."""

    span: Span | None
    start: int
    end: int


class SpanTree:
    """The spans of a run by their place in its tree. A parent that was left out counts as none."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans
        self._by_id = {span.id: span for span in spans}
        self._children: dict[int | None, list[Span]] = {}
        for span in spans:
            self._children.setdefault(self._parent_id(span), []).append(span)

    def _parent_id(self, span: Span) -> int | None:
        # A span begins after the one around it, so its id is greater. This also keeps circles out.
        known = span.parent is not None and span.parent < span.id and span.parent in self._by_id
        return span.parent if known else None

    def children(self, span: Span | None) -> Sequence[Span]:
        """Return the spans directly in ``span``, or with None those of the run itself, in the order of their ids."""
        return self._children.get(None if span is None else span.id, ())

    def parent(self, span: Span) -> Span | None:
        number = self._parent_id(span)
        return None if number is None else self._by_id[number]

    def around(self, span: Span | None, kind: str) -> Span | None:
        """Return the innermost span of a kind around ``span``, or itself if it is one."""
        while span is not None and span.kind != kind:
            span = self.parent(span)
        return span

    def within(self, span: Span | None) -> Iterator[Span]:
        """Yield all spans in ``span``, each before those in it."""
        waiting = list(reversed(self.children(span)))
        while waiting:
            found = waiting.pop()
            yield found
            waiting += reversed(self.children(found))


def end_of(document: RunDocument, now: int | None = None) -> int:
    """Return how long the client waited, in microseconds: until the answer was complete, or else until the end.

    Args:
        now: the moment in microseconds since 1970, for a run that goes on.
    """
    facts = document.facts
    last = facts["answered"] or facts["ended"]
    if last is None and not document.finished:
        last = now
    if last is not None:
        return max(last - facts["started"], 0)
    return max((span.start + span.duration for span in document.spans), default=0)


def critical_path(tree: SpanTree, end: int) -> list[TimeSlice]:
    """Return the time from 0 to ``end`` in pieces, without gaps and in order.

    At each moment, the run waits for the span that ends last: of parallel nodes, only the slowest counts.
    """
    pieces: list[TimeSlice] = []
    # What is still to be divided, the latest on top, because the pieces are found from the end.
    work: list[tuple[Span | None, int, int, bool]] = [(None, 0, end, False)]
    while work:
        span, first, last, is_own = work.pop()
        if is_own:
            pieces.append(TimeSlice(span, first, last))
        else:
            work += reversed(list(_divided(tree.children(span), span, first, last, end)))
    return pieces[::-1]


def _divided(
    children: Sequence[Span], span: Span | None, first: int, last: int, end: int
) -> Iterator[tuple[Span | None, int, int, bool]]:
    """Divide the time of ``span``, from its end, into that of its children and its own (last value True)."""
    by_end = sorted(((child.start, _end(child, end), child) for child in children), key=lambda entry: entry[1])
    # Those that work at this moment, the one that started first on top.
    working: list[tuple[int, int, Span]] = []
    moment = last
    while moment > first:
        while by_end and by_end[-1][1] >= moment:
            start, _, child = by_end.pop()
            heapq.heappush(working, (start, child.id, child))
        if working and working[0][0] < moment:
            start, _, child = heapq.heappop(working)
            begin = max(start, first)
            yield child, begin, moment, False
            moment = begin
            continue
        # Those that start later have no part in what is left.
        working.clear()
        before = max(by_end[-1][1], first) if by_end else first
        yield span, before, moment, True
        moment = before


def _end(span: Span, end: int) -> int:
    return end if span.status == "running" else span.start + span.duration
