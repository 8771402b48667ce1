"""The way of spans to the collector: a queue, and a thread that sends what comes through it in batches.

OpenTelemetry's own batch processor is not used: its threads and locks are Python's, which cooperative servers replace
by ones that must not be shared with the writer's native thread. Its variables are read here.
"""
from __future__ import annotations

import logging
import os
import time
from queue import Empty

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
    OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_BSP_SCHEDULE_DELAY,
)
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from Middleware.utilities.native_threads import SimpleQueue, new_lock, start_native
from Middleware.utilities.once import Once

logger = logging.getLogger(__name__)

# A server that ends waits no longer for the collector; as for the disk.
CLOSE_SECONDS = 5.0
REASON_LENGTH = 300
# The exporter reports each failure of each attempt.
_EXPORTER_LOGS = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.exporter.otlp.common.http")


class SpanSender(SpanProcessor):
    """Sends spans to the collector in batches, on a thread of its own."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[ReadableSpan | None] = SimpleQueue()
        self._ended = new_lock()
        self._started = False
        self._most_waiting = _number(OTEL_BSP_MAX_QUEUE_SIZE, 2048)
        self._most_at_once = min(_number(OTEL_BSP_MAX_EXPORT_BATCH_SIZE, 512), self._most_waiting)
        self._delay = _number(OTEL_BSP_SCHEDULE_DELAY, 5000) / 1000
        self._problems: Once[str] = Once(1)
        self._dropped = False

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span, on the writer's thread."""
        if self._queue.qsize() >= self._most_waiting:
            if not self._dropped:
                logger.warning("More than %d spans wait for the collector of traces: further ones are dropped.",
                               self._most_waiting)
            self._dropped = True
            return
        self._dropped = False
        self._queue.put(span)
        if not self._started:
            self._started = True
            self._ended.acquire()
            try:
                start_native(self._run, "run-traces")
            # The system has no thread left. The next span may find one.
            except RuntimeError as error:
                self._started = False
                self._ended.release()
                logger.warning("Traces are not sent now: %s", error)

    def close(self) -> None:
        """Send what waits, and wait for that a little."""
        if self._started:
            self._queue.put(None)
            if self._ended.acquire(timeout=CLOSE_SECONDS):
                self._ended.release()

    def _run(self) -> None:
        try:
            reasons = _Reasons()
            # Its connections belong to this thread, under every launcher.
            exporter: SpanExporter = OTLPSpanExporter()
            more = True
            while more:
                batch, more = self._batch()
                if batch:
                    reasons.last = ""
                    self._note(exporter.export(batch) is SpanExportResult.SUCCESS, reasons.last)
            exporter.shutdown()
        finally:
            self._ended.release()

    def _batch(self) -> tuple[list[ReadableSpan], bool]:
        """Wait for spans; return them, and whether there may be more."""
        batch: list[ReadableSpan] = []
        until: float | None = None
        while len(batch) < self._most_at_once:
            try:
                span = self._queue.get(timeout=None if until is None else max(until - time.monotonic(), 0.0))
            except Empty:
                break
            if span is None:
                return batch, False
            batch.append(span)
            until = until or time.monotonic() + self._delay
        return batch, True

    def _note(self, sent: bool, reason: str) -> None:
        if not sent:
            if self._problems.first("failed"):
                logger.warning("Traces do not reach the collector and are lost (%s). Requests go on.",
                               reason or "no answer")
        elif self._problems.keys():
            self._problems.clear()
            logger.info("Traces reach the collector again.")


class _Reasons(logging.Filter):
    """Keeps what the exporter logs of its failures out of the log, where each attempt would have a line."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""
        for name in _EXPORTER_LOGS:
            logging.getLogger(name).addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        self.last = record.getMessage()[:REASON_LENGTH]
        return False


def _number(variable: str, default: int) -> int:
    """Return the value of an environment variable, which must be a positive whole number."""
    text = os.environ.get(variable, "").strip()
    return int(text) if text.isascii() and text.isdigit() and int(text) else default
