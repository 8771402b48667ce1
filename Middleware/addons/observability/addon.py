"""``/metrics`` for Prometheus, and traces for OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from Middleware.cli.addon import AddOn, Flags
from Middleware.cli.launch import Launch
from Middleware.cli.preparation import require_packages
from Middleware.cli.program import FlagError, StartError

if TYPE_CHECKING:
    from flask import Flask


class Observability(AddOn):
    def add_flags(self, flags: Flags) -> None:
        flags.add(
            "--metrics",
            action="store_true",
            help="serve counts and times of requests and LLM calls at /metrics, for Prometheus",
        )
        flags.add(
            "--otel",
            action="store_true",
            help="send each request as a trace to an OpenTelemetry collector; the variables "
            "OTEL_... say where to (default: http://localhost:4318)",
        )

    def check(self, launch: Launch) -> None:
        flags = launch.arguments.flags
        if flags.otel and not launch.native:
            raise FlagError("--otel needs native threads: start run_waitress.py instead, without Eventlet.")
        if flags.metrics:
            require_packages("--metrics", "requirements.lock", "prometheus-client", "prometheus_client")
        if flags.otel:
            require_packages(
                "--otel",
                "requirements-otel.txt",
                "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
                "opentelemetry.sdk",
                "opentelemetry.exporter.otlp.proto.http",
            )

    def prepare(self, launch: Launch) -> None:
        if launch.bound is None:
            return
        if launch.arguments.flags.metrics:
            _count(launch)
        if launch.arguments.flags.otel:
            _trace(launch)


def _count(launch: Launch) -> None:
    # Imported here: most servers count nothing.
    from Middleware.addons.observability.metrics import PATH, RunMetrics, add_metrics_route
    from Middleware.addons.records.records import recorded_runs

    metrics, store = RunMetrics(), recorded_runs(launch).store
    store.observe(metrics)

    def add_route(app: Flask) -> None:
        add_metrics_route(app, metrics, store)

    launch.routes.append(add_route)
    launch.lines.append(f"  Metrics:        {launch.url}{PATH}")


def _trace(launch: Launch) -> None:
    # Imported here: the packages may not be installed.
    from Middleware.addons.observability.traces import RunTraces, is_disabled
    from Middleware.addons.records.records import recorded_runs

    if is_disabled():
        return
    try:
        traces = RunTraces()
    except ValueError as error:
        raise StartError(f"--otel: {error} Environment variables whose names begin with OTEL_BSP_ set that.") from error
    recorded_runs(launch).store.observe(traces)
    # A request has its trace before it is recorded, and the last runs are sent once they are written.
    launch.listeners.insert(0, traces)
    launch.on_stop.insert(0, traces.close)


ADDON = Observability
