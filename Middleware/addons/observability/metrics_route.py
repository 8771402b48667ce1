"""The route ``/metrics``, which Prometheus reads: there only with ``--metrics``, behind the key of all routes."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from flask import Flask, Response
from flask import request as http
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from Middleware.addons.observability.metrics import RunMetrics
from Middleware.addons.records.store.writer import RunStore
from Middleware.api.gate_figures import gate_figures
from Middleware.common.constants import VERSION

PATH = "/metrics"


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
