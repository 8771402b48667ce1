"""How the back-ends did in the last 24 hours, from the recorded calls. No server is asked for it."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from Middleware.addons.records.analysis.critical_path import SpanTree
from Middleware.addons.records.analysis.explanation import phases
from Middleware.addons.records.model import MICROSECONDS, RunDocument, Span, number
from Middleware.addons.records.queries import RunQuery

if TYPE_CHECKING:
    from Middleware.addons.records.archive import RunArchive
    from Middleware.addons.records.viewers import Viewer

HOURS = 24
HOUR = 3600 * MICROSECONDS
# An evening has some hundreds. Figures of more would be no other ones, and reading them takes seconds.
MOST_RUNS = 5000


class HourFigures(TypedDict):
    """One of the 24 hours, oldest first."""

    calls: int
    failed: int


class EndpointFigures(TypedDict):
    """The figures of an endpoint. Medians in microseconds and tokens per second; None where it is not known."""

    calls: int
    failed: int
    first_token_us: int | None
    speed: float | None
    model: str | None
    last_error: str | None
    hours: list[HourFigures]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """What is remembered of one attempt."""

    endpoint: str
    at: int
    failed: bool
    first_token_us: int | None
    speed: float | None
    model: str | None
    problem: str | None


def calls_of(document: RunDocument) -> tuple[RecordedCall, ...]:
    """Return the attempts of a run."""
    tree, started = SpanTree(document.spans), document.facts["started"]
    return tuple(
        _call(tree, span, started)
        for span in document.spans
        if span.kind == "attempt" and span.status in ("ok", "error")
    )


def _call(tree: SpanTree, attempt: Span, started: int) -> RecordedCall:
    call, status = tree.around(attempt, "llm"), number(attempt.attributes.get("http.status"))
    failed = attempt.status == "error"
    first = number(call.attributes.get("time_to_first_token")) if call is not None and not failed else None
    tokens = number(attempt.attributes.get("usage.output_tokens"))
    writing = sum(us for kind, us in phases(attempt, call) if kind == "write")
    model = attempt.attributes.get("response.model") or attempt.attributes.get("request.model")
    # The text of an error may quote a conversation; its status does not.
    problem = None if not failed else f"status {status}" if status else "no answer"
    return RecordedCall(
        attempt.name,
        started + attempt.start,
        failed,
        None if first is None or call is None else max(call.start + first - attempt.start, 0),
        tokens * MICROSECONDS / writing if tokens and writing and not failed else None,
        model if isinstance(model, str) else None,
        problem,
    )


class BackendFigures:
    """Adds up the calls of the last 24 hours. A run is read once for all viewers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, tuple[int, tuple[RecordedCall, ...]]] = {}

    def of_endpoints(self, archive: RunArchive, viewer: Viewer, now: int) -> dict[str, EndpointFigures]:
        """Return the figures by endpoint, of the runs that a viewer may see. ``now``: microseconds since 1970."""
        since = now - HOURS * HOUR
        with self._lock:
            self._calls = {run_id: known for run_id, known in self._calls.items() if known[0] >= since}
            calls: list[RecordedCall] = []
            for document in archive.documents(RunQuery(limit=MOST_RUNS, since=since), viewer):
                run_id = document.facts["id"]
                if run_id not in self._calls:
                    self._calls[run_id] = document.facts["started"], calls_of(document)
                calls += self._calls[run_id][1]
        by_endpoint: dict[str, list[RecordedCall]] = {}
        for call in calls:
            by_endpoint.setdefault(call.endpoint, []).append(call)
        return {name: _figures(found, since) for name, found in by_endpoint.items()}


def no_figures() -> EndpointFigures:
    """Return the figures of an endpoint without calls."""
    return _figures((), 0)


def _figures(calls: Sequence[RecordedCall], since: int) -> EndpointFigures:
    newest = max(calls, key=lambda call: call.at, default=None)
    last_failed = max((call for call in calls if call.failed), key=lambda call: call.at, default=None)
    first = _median(call.first_token_us for call in calls)
    speed = _median(call.speed for call in calls)
    return {
        "calls": len(calls),
        "failed": sum(call.failed for call in calls),
        "first_token_us": None if first is None else round(first),
        "speed": None if speed is None else round(speed, 1),
        "model": newest.model if newest else None,
        "last_error": last_failed.problem if last_failed else None,
        "hours": list(_hours(calls, since)),
    }


def _hours(calls: Iterable[RecordedCall], since: int) -> Iterator[HourFigures]:
    hours = [HourFigures(calls=0, failed=0) for _ in range(HOURS)]
    for call in calls:
        place = min(max((call.at - since) // HOUR, 0), HOURS - 1)
        hours[place]["calls"] += 1
        hours[place]["failed"] += call.failed
    return iter(hours)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
