"""A collector of traces: takes what is sent by OTLP over HTTP, and shows it as trees."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from Tests.stub_backend import RecordedRequest, Reply, StubBackend


@dataclass
class Received:
    """A span as it arrived; ids in hex digits, times in nanoseconds."""

    id: str
    parent: str
    trace: str
    name: str
    kind: str
    start: int
    end: int
    failed: bool
    message: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    children: list[Received] = field(default_factory=list)

    def lines(self, depth: int = 0) -> list[str]:
        """Return a line for this span and each below it, in the order of their starts."""
        below = sorted(self.children, key=lambda span: span.start)
        return ["  " * depth + self.name, *(line for child in below for line in child.lines(depth + 1))]

    def all(self) -> list[Received]:
        return [self, *(span for child in self.children for span in child.all())]


class OtlpReceiver(StubBackend):
    """The collector.

    Attributes:
        status: what it answers with.
        asked: somebody has sent something.
        answers: cleared, it answers nobody.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []
        self.refused: list[bytes] = []
        self.paths: set[str] = set()
        self.status = 200
        self.asked, self.answers = threading.Event(), threading.Event()
        self.answers.set()

    def respond(self, request: RecordedRequest) -> Reply:
        self.asked.set()
        if self.status == 200:
            self.paths.add(request.path)
            self.bodies.append(request.body)
        else:
            self.refused.append(request.body)
        return Reply(self.status, b"", held=self.answers)

    def spans(self) -> list[Received]:
        return [
            _received(span, _values(resource.resource.attributes))
            for body in list(self.bodies)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def trees(self) -> dict[str, Received]:
        """Return the root of each run that has arrived whole, by the run's id. Its root is sent last.

        Raises KeyError for a span that hangs on nothing.
        """
        spans = self.spans()
        by_id = {span.id: span for span in spans}
        assert len(by_id) == len(spans), "an id was given twice"
        roots = [span for span in spans if "wilmer.run.id" in span.attributes]
        arrived = {root.trace for root in roots}
        for span in spans:
            if span not in roots and span.trace in arrived:
                parent = by_id[span.parent]
                assert parent.trace == span.trace
                parent.children.append(span)
        return {span.attributes["wilmer.run.id"]: span for span in roots}


def _received(span: Span, resource: dict[str, Any]) -> Received:
    return Received(
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.trace_id.hex(),
        span.name,
        Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == 2,
        span.status.message,
        _values(span.attributes),
        resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, str(kind))
