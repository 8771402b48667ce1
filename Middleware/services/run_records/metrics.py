"""What Prometheus is told of the runs: counts and times since the start, added up as runs end.

The writer's thread adds, threads of requests read. The objects of ``prometheus_client`` are not used for that: their
locks are Python's, which cooperative servers replace by ones that must not be shared with a native thread. Only the
text of ``/metrics`` is theirs (``api/metrics.py``).
"""
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from Middleware.services.run_records.model import RUN_KINDS, RUN_STATUSES, SPAN_STATUSES, UNFINISHED, RunDocument, Span
from Middleware.services.run_records.texts import normalised
from Middleware.utilities.native_threads import new_lock

MICROSECONDS = 1_000_000
# Of one family: label sets beyond this number would fill the memory of whoever stores them.
MOST_SERIES = 200
OTHER = "other"
"""The value of a label whose own value is not known, or would be one too many."""

# In seconds: from a cached answer to the long prompt of a slow computer.
REQUEST_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800)
FIRST_TOKEN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300)
# Many nodes only join texts.
NODE_SECONDS = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

# The number of values that each of these labels can have.
CLOSED = {"kind": len(RUN_KINDS), "status": max(len(RUN_STATUSES) - len(UNFINISHED), len(SPAN_STATUSES)), "type": 3}
TOKENS: Mapping[str, str] = {"input": "usage.input_tokens", "output": "usage.output_tokens",
                             "cached": "usage.cache_read.input_tokens"}

_Value = TypeVar("_Value")


class Series(Generic[_Value]):
    """The label sets of one family with their values.

    When there are as many as there may be, labels whose values come from the configuration become ``other`` in each
    further one. The others keep their few values, for which room is left.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)
        self.values: dict[tuple[str, ...], _Value] = {}
        reserved = 1
        for label in labels:
            reserved *= CLOSED.get(label, 1)
        self._most = MOST_SERIES - reserved

    def key(self, values: Sequence[str | None]) -> tuple[str, ...]:
        """Return the label set under which a value is kept."""
        key = tuple(value or OTHER for value in values)
        if key in self.values or len(self.values) < self._most:
            return key
        return tuple(value if label in CLOSED else OTHER for label, value in zip(self.labels, key, strict=True))


class Counter:
    """A number for each label set, which only grows."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.name, self.text = name, text
        self.series: Series[int] = Series(labels)
        # A family without labels is there from the start, or a first event would look like no change.
        if not labels:
            self.series.values[()] = 0

    def add(self, amount: int, *values: str | None) -> None:
        key = self.series.key(values)
        self.series.values[key] = self.series.values.get(key, 0) + amount


@dataclass
class Times:
    """How many times were at most as long as each limit, and longer than the one before; the last: longer than all.

    ``total`` is their sum in microseconds.
    """

    counts: list[int]
    total: int = 0


class Histogram:
    """The distribution of times for each label set."""

    def __init__(self, name: str, text: str, limits: Sequence[float], *labels: str) -> None:
        self.name, self.text, self.limits = name, text, tuple(limits)
        self.series: Series[Times] = Series(labels)
        if not labels:
            self.series.values[()] = self._nothing()

    def _nothing(self) -> Times:
        return Times([0] * (len(self.limits) + 1))

    def add(self, microseconds: int, *values: str | None) -> None:
        key = self.series.key(values)
        times = self.series.values.get(key) or self.series.values.setdefault(key, self._nothing())
        times.counts[bisect_left(self.limits, microseconds / MICROSECONDS)] += 1
        times.total += microseconds


class MetricsReader(Protocol):
    """Takes each family as it is now."""

    def counter(self, name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], int]) -> None: ...

    def histogram(self, name: str, text: str, labels: Sequence[str], limits: Sequence[float],
                  values: Mapping[tuple[str, ...], Times]) -> None: ...


class RunMetrics:
    """An observer of finished runs that adds them up. No label has a value that a client has chosen."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._requests = Counter("wilmer_requests_total", "Requests that are over, as the run console lists them.",
                                 "user", "kind", "status")
        self._request_seconds = Histogram(
            "wilmer_request_seconds", "Time from the arrival of a request to the end of its last node.",
            REQUEST_SECONDS)
        self._first_token = Histogram(
            "wilmer_time_to_first_token_seconds", "Time from a streamed LLM call to the first piece of its answer.",
            FIRST_TOKEN_SECONDS, "endpoint")
        self._calls = Counter("wilmer_llm_calls_total", "LLM calls of nodes; one that is repeated, or answered by a "
                              "backup, counts once.", "endpoint", "model", "status")
        self._call_seconds = Histogram("wilmer_llm_call_seconds", "Time of an LLM call, with repetitions and backups.",
                                       REQUEST_SECONDS)
        self._tokens = Counter("wilmer_tokens_total", "Tokens of answered LLM calls, as the back-ends reported them; "
                               "cached ones are among the input.", "endpoint", "model", "type")
        self._node_seconds = Histogram("wilmer_node_seconds", "Time of a workflow node.", NODE_SECONDS,
                                       "workflow", "node_type")
        self._retries = Counter("wilmer_retries_total", "Requests to an LLM server that were sent again.")
        self._failovers = Counter("wilmer_failovers_total", "LLM calls in which a backup stood in for an endpoint.",
                                  "endpoint", "backup")

    def observe(self, document: RunDocument) -> None:
        """Add a run that has ended."""
        run = normalised(document, texts=False)
        facts = run.facts
        attempts: dict[int, list[Span]] = {}
        names = {span.id: span.name for span in run.spans if span.kind == "workflow"}
        for span in run.spans:
            if span.kind == "attempt" and span.parent is not None:
                attempts.setdefault(span.parent, []).append(span)
        with self._lock:
            self._requests.add(1, facts["user"], facts["kind"], facts["status"])
            if facts["ended"] is not None:
                self._request_seconds.add(facts["ended"] - facts["started"])
            for span in run.spans:
                # What a replay takes from its recording is no work of today.
                if span.status == "stand-in":
                    continue
                if span.kind == "llm":
                    self._add_call(span, attempts.get(span.id, []))
                elif span.kind == "node":
                    self._node_seconds.add(span.duration, names.get(span.parent or 0), _name(span, "node.type"))

    def _add_call(self, call: Span, attempts: Sequence[Span]) -> None:
        endpoint = _name(call, "endpoint")
        model = _name(attempts[-1], "request.model") if attempts else None
        self._calls.add(1, endpoint, model, call.status)
        self._call_seconds.add(call.duration)
        first = call.attributes.get("time_to_first_token")
        if isinstance(first, int):
            self._first_token.add(first, endpoint)
        self._retries.add(len(attempts) - len({attempt.name for attempt in attempts}))
        for failed, backup in {(_name(attempt, "stands_in_for"), attempt.name) for attempt in attempts}:
            if failed is not None:
                self._failovers.add(1, failed, backup)
        # The tokens of a call that failed are not among those of its run either.
        for attempt in attempts if call.status == "ok" else ():
            for kind, attribute in TOKENS.items():
                count = attempt.attributes.get(attribute)
                if attempt.status == "ok" and isinstance(count, int):
                    self._tokens.add(count, endpoint, model, kind)

    def read(self, reader: MetricsReader) -> None:
        """Give a reader all families, each as of the same moment."""
        with self._lock:
            for family in self._families():
                series = family.series
                if isinstance(family, Counter):
                    reader.counter(family.name, family.text, series.labels, family.series.values)
                else:
                    reader.histogram(family.name, family.text, series.labels, family.limits, family.series.values)

    def _families(self) -> Iterator[Counter | Histogram]:
        yield from (self._requests, self._request_seconds, self._first_token, self._calls, self._call_seconds,
                    self._tokens, self._node_seconds, self._retries, self._failovers)


def _name(span: Span, attribute: str) -> str | None:
    value = span.attributes.get(attribute)
    return value if isinstance(value, str) else None
