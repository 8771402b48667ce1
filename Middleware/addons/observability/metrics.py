"""The route ``/metrics``: counts and times of runs since the start, added up as runs end.

This module is imported with ``--metrics`` only: the library takes memory.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from flask import Flask, Response
from flask import request as http
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from Middleware.addons.records.model import (
    MICROSECONDS,
    RUN_KINDS,
    RUN_STATUSES,
    SPAN_STATUSES,
    UNFINISHED,
    RunDocument,
    Span,
)
from Middleware.addons.records.run_texts import normalised
from Middleware.addons.records.store.writer import RunStore
from Middleware.api.gate_figures import gate_figures
from Middleware.common.constants import VERSION
from Middleware.utilities.native_threads import new_lock

# Of one family: label sets beyond this number would fill the memory of the server that stores them.
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
TOKENS: Mapping[str, str] = {
    "input": "usage.input_tokens",
    "output": "usage.output_tokens",
    "cached": "usage.cache_read.input_tokens",
}

_Family = TypeVar("_Family", Counter, Histogram)
PATH = "/metrics"


class Series(Generic[_Family]):
    """The label sets of one family.

    When there are as many as there may be, labels whose values come from the configuration become ``other`` in each
    further one. The others keep their few values, for which room is left.
    """

    def __init__(self, family: _Family, labels: Sequence[str]) -> None:
        self._family: _Family = family
        self._labels = tuple(labels)
        self._known: dict[tuple[str, ...], _Family] = {} if labels else {(): family}
        self._most = MOST_SERIES - math.prod(CLOSED.get(label, 1) for label in labels)

    def of(self, *values: str | None) -> _Family:
        """Return the counter or histogram of a label set; None is a value that is not known."""
        key = tuple(value or OTHER for value in values)
        if key not in self._known and len(self._known) >= self._most:
            key = tuple(value if label in CLOSED else OTHER for label, value in zip(self._labels, key, strict=True))
        if key not in self._known:
            self._known[key] = self._family.labels(*key)
        return self._known[key]


class RunMetrics:
    """An observer of finished runs that adds them up. No label has a value that a client has chosen."""

    def __init__(self) -> None:
        # The library would add to each series the time of its beginning, which no query on the page needs.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        # A run is in all families or in none. The lock is a native one, as the writer's thread is: held around all
        # that the library does, it lets no thread wait for the library's own locks, which under Eventlet must not be
        # shared between native threads.
        self._lock = new_lock()
        self._requests = self._counter(
            "wilmer_requests_total", "Requests that are over, as the run console lists them.", "user", "kind", "status"
        )
        self._request_seconds = self._histogram(
            "wilmer_request_seconds", "Time from the arrival of a request to the end of its last node.", REQUEST_SECONDS
        )
        self._first_token = self._histogram(
            "wilmer_time_to_first_token_seconds",
            "Time from a streamed LLM call to the first piece of its answer.",
            FIRST_TOKEN_SECONDS,
            "endpoint",
        )
        self._calls = self._counter(
            "wilmer_llm_calls_total",
            "LLM calls of nodes; one that is repeated, or answered by a backup, counts once.",
            "endpoint",
            "model",
            "status",
        )
        self._call_seconds = self._histogram(
            "wilmer_llm_call_seconds", "Time of an LLM call, with repetitions and backups.", REQUEST_SECONDS
        )
        self._tokens = self._counter(
            "wilmer_tokens_total",
            "Tokens of answered LLM calls, as the back-ends reported them; cached ones are among the input.",
            "endpoint",
            "model",
            "type",
        )
        self._node_seconds = self._histogram(
            "wilmer_node_seconds", "Time of a workflow node.", NODE_SECONDS, "workflow", "node_type"
        )
        self._retries = self._counter("wilmer_retries_total", "Requests to an LLM server that were sent again.")
        self._failovers = self._counter(
            "wilmer_failovers_total",
            "LLM calls in which a backup answered in place of an endpoint.",
            "endpoint",
            "backup",
        )

    def _counter(self, name: str, text: str, *labels: str) -> Series[Counter]:
        return Series(Counter(name, text, labels, registry=self._registry), labels)

    def _histogram(self, name: str, text: str, limits: Sequence[float], *labels: str) -> Series[Histogram]:
        return Series(Histogram(name, text, labels, registry=self._registry, buckets=limits), labels)

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
            self._requests.of(facts["user"], facts["kind"], facts["status"]).inc()
            if facts["ended"] is not None:
                self._request_seconds.of().observe((facts["ended"] - facts["started"]) / MICROSECONDS)
            for span in run.spans:
                # What a replay takes from its recording is not new work.
                if span.status == "stand-in":
                    continue
                if span.kind == "llm":
                    self._add_call(span, attempts.get(span.id, []))
                elif span.kind == "node":
                    self._node_seconds.of(names.get(span.parent or 0), _name(span, "node.type")).observe(
                        span.duration / MICROSECONDS
                    )

    def _add_call(self, call: Span, attempts: Sequence[Span]) -> None:
        endpoint = _name(call, "endpoint")
        model = _name(attempts[-1], "request.model") if attempts else None
        self._calls.of(endpoint, model, call.status).inc()
        self._call_seconds.of().observe(call.duration / MICROSECONDS)
        first = call.attributes.get("time_to_first_token")
        if isinstance(first, int):
            self._first_token.of(endpoint).observe(first / MICROSECONDS)
        self._retries.of().inc(len(attempts) - len({attempt.name for attempt in attempts}))
        for failed, backup in {(_name(attempt, "stands_in_for"), attempt.name) for attempt in attempts}:
            if failed is not None:
                self._failovers.of(failed, backup).inc()
        # The tokens of a call that failed are not among those of its run either.
        for attempt in attempts if call.status == "ok" else ():
            for kind, attribute in TOKENS.items():
                count = attempt.attributes.get(attribute)
                # The library refuses a number below 0, which a server may send.
                if attempt.status == "ok" and isinstance(count, int) and count >= 0:
                    self._tokens.of(endpoint, model, kind).inc(count)

    def collect(self) -> list[Metric]:
        """Return all families, each as of the same moment."""
        with self._lock:
            return list(self._registry.collect())


def _name(span: Span, attribute: str) -> str | None:
    value = span.attributes.get(attribute)
    return value if isinstance(value, str) else None


# -- the route ---------------------------------------------------------------------------------------------------------


def add_metrics_route(app: Flask, metrics: RunMetrics, store: RunStore) -> None:
    """Serve the figures of ``metrics``, and how many runs ``store`` had to drop."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(metrics, store))

    def show() -> Response:
        # Prometheus asks for OpenMetrics, people get plain text.
        try:
            encode, content_type = choose_encoder(http.headers.get("Accept", ""))
        # The library compares a version that is not a number.
        except (TypeError, ValueError):
            encode, content_type = choose_encoder("")
        return Response(encode(registry), content_type=content_type, headers={"Cache-Control": "no-store"})

    app.add_url_rule(PATH, "metrics", show, methods=["GET"])


class _Figures(Collector):
    """All families as they are when Prometheus asks."""

    def __init__(self, metrics: RunMetrics, store: RunStore) -> None:
        self._metrics, self._store = metrics, store

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics.collect()
        gate = gate_figures()
        yield GaugeMetricFamily(
            "wilmer_gate_waiting",
            "What waits for a slot or for its turn: requests, or with --concurrency-level endpoint LLM calls.",
            gate["waiting"],
        )
        yield GaugeMetricFamily(
            "wilmer_gate_running",
            "What runs: requests, or with --concurrency-level endpoint LLM calls.",
            gate["running"],
        )
        yield CounterMetricFamily(
            "wilmer_records_dropped_total",
            "Runs that were not recorded, or without their texts, because the disk was too slow.",
            sum(self._store.dropped().values()),
        )
        build = GaugeMetricFamily(
            "wilmer_build_info", "The version of WilmerAI, and that of Python.", labels=("version", "python")
        )
        build.add_metric((VERSION, platform.python_version()), 1)
        yield build
