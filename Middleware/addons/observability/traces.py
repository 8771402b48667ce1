"""Traces: each finished run as a tree of OpenTelemetry spans, with the times that were recorded.

This module is imported with ``--otel`` only, as the packages of ``requirements-otel.txt`` may not be there.
"""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from Middleware.addons.observability import otel_names as names
from Middleware.addons.records.model import MICROSECONDS, RunDocument, Span
from Middleware.addons.records.run_texts import normalised
from Middleware.common.constants import VERSION
from Middleware.models.request_context import RequestContext
from Middleware.models.trace_context import TraceContext, span_id_in
from Middleware.utilities.daemon_threads import start_daemon

logger = logging.getLogger(__name__)

SERVICE = "wilmerai"
# What the SDK calls a service without a name.
UNNAMED_SERVICE = "unknown_service"
NANOSECONDS = 1_000
# A valid one is much shorter, and the library would log a longer one.
MOST_OF_HEADER = 200
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The variable with which texts get into spans, if its value is the next one."""
SPAN_ONLY = "SPAN_ONLY"
# A server that ends waits no longer for the collector; as for the disk.
CLOSE_SECONDS = 5.0
REASON_LENGTH = 300
# Where the library says, at most every 20 seconds, that its queue is full.
QUEUE_LOG = "opentelemetry.sdk._shared_internal"


class RunTraces:
    """Gives each request its trace when it arrives, and sends the spans of each run that is over.

    It is a listener of the engine for the first, on threads of requests, and an observer of the store for the second.

    Args:
        processor: takes the spans; by default the library's, which sends them in batches on a thread of its own. A full
            queue loses its oldest spans, so that neither a slow collector nor a dead one holds up the store.

    Raises ValueError if the environment variables of that thread contradict each other.
    """

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        self._ids = _Ids()
        found = Resource.create({"service.version": VERSION})
        if str(found.attributes.get("service.name", "")).startswith(UNNAMED_SERVICE):
            found = found.merge(Resource({"service.name": SERVICE}))
        self._provider = TracerProvider(resource=found, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(processor or BatchSpanProcessor(_Exporter()))
        self._tracer = self._provider.get_tracer("wilmerai", VERSION)
        self._captures = os.environ.get(CAPTURE, "").strip().upper() == SPAN_ONLY

    # -- requests ------------------------------------------------------------------------------------------------
    def request_arrived(self, request: RequestContext) -> None:
        header = {"traceparent": request.traceparent[:MOST_OF_HEADER]}
        around = TraceContextTextMapPropagator().extract(header, Context())
        parent = get_current_span(around).get_span_context()
        trace_id = parent.trace_id if parent.is_valid else random.getrandbits(128) or 1
        sampled = (
            self._provider.sampler.should_sample(around, trace_id, names.INVOKE_WORKFLOW, SpanKind.SERVER).decision
            is Decision.RECORD_AND_SAMPLE
        )
        request.trace = TraceContext(trace_id, parent.span_id if parent.is_valid else 0, sampled)

    # -- finished runs -------------------------------------------------------------------------------------------
    def observe(self, document: RunDocument) -> None:
        """Send the spans of a run, if its trace is one of those that are sent."""
        trace = document.trace
        if trace is None or not trace.sampled:
            return
        # Of a private run, only its own user sees a text.
        run = normalised(document, texts=self._captures and not document.facts["private"])
        facts, started = run.facts, run.facts["started"]
        root = self._begin(
            names.span_name(names.INVOKE_WORKFLOW, facts["workflow"]),
            _around(trace),
            SpanKind.SERVER,
            started,
            run_attributes(run),
            root_of=trace,
        )
        around = {0: set_span_in_context(root, Context())}
        calls = _calls(run.spans)
        for span in sorted(run.spans, key=lambda one: one.id):
            context = around.get(span.parent or 0, around[0])
            name, kind = _name_and_kind(span)
            if not name:
                # What is in it belongs to what is around it.
                around[span.id] = context
                continue
            attributes = span_attributes(span, run)
            if span.kind == "attempt" and span.parent in calls:
                attributes.update(_of_call(calls[span.parent], span))
            made = self._begin(name, context, kind, started + span.start, attributes, _known_id(span))
            around[span.id] = set_span_in_context(made, Context())
            _end(made, started + span.start + span.duration, span.status == "error", span.texts.get("error"))
        _end(root, facts["ended"] or started, facts["status"] == "failed", None)

    def _begin(
        self,
        name: str,
        around: Context,
        kind: SpanKind,
        start: int,
        attributes: Mapping[str, AttributeValue],
        span_id: int = 0,
        root_of: TraceContext | None = None,
    ) -> OtelSpan:
        """Begin a span. ``start``: microseconds since 1970; ``span_id``: 0 for a new one."""
        self._ids.next_span_id, self._ids.next_trace_id = span_id, 0 if root_of is None else root_of.trace_id
        return self._tracer.start_span(name, around, kind, attributes, start_time=start * NANOSECONDS)

    def close(self) -> None:
        """Send what is left, if the collector takes it soon."""
        # By itself, the library waits half a minute.
        closing = start_daemon(self._provider.shutdown, "close-traces", "The last traces are not sent")
        if closing is not None:
            closing.join(CLOSE_SECONDS)


class _Exporter(OTLPSpanExporter):
    """Sends spans to the collector. The log says once that they do not arrive, and once that they do again."""

    def __init__(self) -> None:
        super().__init__()
        self._reason, self._fails = "", False
        # The library has a line there for each failure of each attempt.
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(self._keep_reason)
        logging.getLogger(QUEUE_LOG).addFilter(_name_the_loss)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._reason = ""
        result = super().export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._fails:
            logger.warning(
                "Traces do not reach the collector and are lost (%s). Requests go on.", self._reason or "no answer"
            )
        elif self._fails and not failed:
            logger.info("Traces reach the collector again.")
        self._fails = failed
        return result

    def _keep_reason(self, record: logging.LogRecord) -> bool:
        self._reason = record.getMessage()[:REASON_LENGTH]
        return False


def _name_the_loss(record: logging.LogRecord) -> bool:
    """Say what a full queue loses, in place of the library's words."""
    if not str(record.msg).startswith("Queue full"):
        return True
    logger.warning(
        "More spans wait for the collector of traces than OTEL_BSP_MAX_QUEUE_SIZE allows: the oldest are dropped."
    )
    return False


class _Ids(RandomIdGenerator):
    """Makes the ids of spans; those that were sent to servers and by clients are given to it."""

    def __init__(self) -> None:
        self.next_trace_id = self.next_span_id = 0

    def generate_span_id(self) -> int:
        return self.next_span_id or super().generate_span_id()

    def generate_trace_id(self) -> int:
        return self.next_trace_id or super().generate_trace_id()


def _around(trace: TraceContext) -> Context:
    """Return the context of the root: the span of the client, if it has named one."""
    if not trace.parent_id:
        return Context()
    parent = SpanContext(trace.trace_id, trace.parent_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(parent), Context())


def _name_and_kind(span: Span) -> tuple[str, SpanKind]:
    """Return the name of a span and its kind; "" for what has no span in a trace."""
    if span.kind == "workflow":
        return names.span_name(names.INVOKE_WORKFLOW, span.name), SpanKind.INTERNAL
    if span.kind == "node":
        return names.span_name("node", span.name), SpanKind.INTERNAL
    if span.kind == "tool":
        return names.span_name(names.EXECUTE_TOOL, span.name), SpanKind.INTERNAL
    if span.kind in ("attempt", "embedding"):
        operation = str(span.attributes.get("operation.name") or "chat")
        return names.span_name(operation, span.attributes.get("request.model")), SpanKind.CLIENT
    return "", SpanKind.INTERNAL


def _known_id(span: Span) -> int:
    """Return the id under which a server got a request; 0 for none."""
    sent = span.attributes.get(names.TRACEPARENT)
    return span_id_in(sent) if isinstance(sent, str) else 0


def run_attributes(run: RunDocument) -> dict[str, AttributeValue]:
    """Return the attributes of the root. Nothing that a client has sent, its key and its address are among them."""
    facts = run.facts
    found: dict[str, object] = {
        names.OPERATION_NAME: names.INVOKE_WORKFLOW,
        names.WORKFLOW_NAME: facts["workflow"],
        names.CONVERSATION_ID: facts["conversation"],
        names.ERROR_TYPE: facts["error.type"],
        "wilmer.run.id": facts["id"],
        "wilmer.run.kind": facts["kind"],
        "wilmer.run.status": facts["status"],
        "wilmer.run.user": facts["user"],
        "wilmer.run.route": facts["route"],
        "wilmer.run.client": facts["client"],
        "wilmer.run.stream": facts["stream"],
        **{
            names.otel_name("attempt", name): facts[name]
            for name in ("usage.input_tokens", "usage.output_tokens", "usage.cache_read.input_tokens")
        },
    }
    return _known(found)


def span_attributes(span: Span, run: RunDocument) -> dict[str, AttributeValue]:
    """Return the attributes of a recorded span, and its texts if they are there."""
    found: dict[str, object] = {
        names.otel_name(span.kind, name): value for name, value in span.attributes.items() if name != names.TRACEPARENT
    }
    if span.kind == "workflow":
        found.update({names.OPERATION_NAME: names.INVOKE_WORKFLOW, names.CONVERSATION_ID: run.facts["conversation"]})
    elif span.kind == "tool":
        found.update(
            {
                names.OPERATION_NAME: names.EXECUTE_TOOL,
                names.TOOL_ARGUMENTS: _json(span.texts.get("arguments")),
                names.TOOL_RESULT: _json(span.texts.get("result")),
            }
        )
    elif span.kind in ("attempt", "embedding"):
        found["wilmer.endpoint"] = span.name
        payload = span.texts.get("payload")
        if isinstance(payload, Mapping):
            found[names.INPUT_MESSAGES] = json.dumps(_input_messages(payload), ensure_ascii=False)
    if span.status in ("cancelled", "stand-in"):
        found["wilmer.status"] = span.status
    return _known(found)


def _known(attributes: Mapping[str, object]) -> dict[str, AttributeValue]:
    return {name: value for name, value in attributes.items() if isinstance(value, (str, bool, int, float, list))}


def _calls(spans: Sequence[Span]) -> dict[int | None, tuple[Span, int]]:
    """Return each call by its id, with the id of the attempt that answered it."""
    last = {span.parent: span.id for span in spans if span.kind == "attempt" and span.status != "error"}
    return {span.id: (span, last.get(span.id, 0)) for span in spans if span.kind == "llm"}


def _of_call(call_and_last: tuple[Span, int], attempt: Span) -> dict[str, AttributeValue]:
    """Return what is recorded with the call, for the attempt that answered it."""
    call, last = call_and_last
    if attempt.id != last:
        return {}
    found: dict[str, AttributeValue] = {}
    first = call.attributes.get("time_to_first_token")
    if isinstance(first, int):
        found[names.FIRST_CHUNK] = max(call.start + first - attempt.start, 0) / MICROSECONDS
    parts = [
        *_parts("reasoning", call.texts.get("reasoning")),
        *_parts("text", call.texts.get("answer")),
        *_tool_parts(call.texts.get("tool_calls")),
    ]
    if parts:
        reasons = attempt.attributes.get("response.finish_reasons")
        message = {
            "role": "assistant",
            "parts": parts,
            "finish_reason": reasons[0] if isinstance(reasons, list) and reasons else "stop",
        }
        found[names.OUTPUT_MESSAGES] = json.dumps([message], ensure_ascii=False)
    return found


def _parts(kind: str, content: object) -> list[dict[str, object]]:
    """Return the parts of a text, or of a list of blocks, of which those without a text keep their form."""
    if isinstance(content, list):
        return [part for block in content for part in _parts(*_block(block))]
    return [{"type": kind, "content": content}] if content else []


def _block(block: object) -> tuple[str, object]:
    text = block.get("text") if isinstance(block, Mapping) else None
    if isinstance(text, str):
        return "text", text
    return str(block.get("type") or "text") if isinstance(block, Mapping) else "text", _json(block)


def _tool_parts(calls: object) -> Iterator[dict[str, object]]:
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield {
                "type": "tool_call",
                "id": call.get("id"),
                "name": function.get("name"),
                "arguments": function.get("arguments"),
            }


def _input_messages(payload: Mapping[object, object]) -> list[dict[str, object]]:
    """Return the messages of a payload in OpenTelemetry's form. A prompt of one text is a message of the user."""
    messages: list[dict[str, object]] = []
    # Anthropic has the system prompt next to the messages.
    for role, text in (("system", payload.get("system")), ("user", payload.get("prompt"))):
        if text:
            messages.append({"role": role, "parts": _parts("text", text)})
    sent = payload.get("messages")
    for message in sent if isinstance(sent, list) else ():
        if isinstance(message, Mapping):
            parts = [*_parts("text", message.get("content")), *_tool_parts(message.get("tool_calls"))]
            messages.append({"role": message.get("role"), "parts": parts})
    return messages


def _json(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _end(span: OtelSpan, at: int, failed: bool, error: object) -> None:
    if failed:
        # Errors may quote a conversation, so they are among the texts.
        span.set_status(Status(StatusCode.ERROR, error if isinstance(error, str) else None))
    span.end(at * NANOSECONDS)


def is_disabled() -> bool:
    """Return whether OpenTelemetry's own variables say that nothing may be sent."""
    return (
        os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        or os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"
    )
