"""The spans that are made of a finished run for a collector of traces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from Middleware.addons.observability.otel_names import otel_name
from Middleware.addons.observability.traces import CAPTURE, RunTraces
from Middleware.addons.records.model import SPAN_KINDS, RunDocument
from Middleware.models.request_context import RequestContext
from Middleware.models.trace_context import TraceContext, span_id_in
from Tests.addons.records.made_up import STARTED, Made, documents
from Tests.integration.otlp_receiver import OtlpReceiver

TRACE = TraceContext(0x0AF7651916CD43DD8448EB211C80319C)
Sent = Callable[[RunDocument], list[ReadableSpan]]


class Kept(SpanProcessor):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    """Return what makes spans of a run, each after the one around it, and the root last."""
    for name in ("OTEL_SDK_DISABLED", "OTEL_TRACES_SAMPLER", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)

    def spans(document: RunDocument) -> list[ReadableSpan]:
        kept = Kept()
        document.trace = document.trace or TRACE
        RunTraces(kept).observe(document)
        return kept.spans

    yield spans


@pytest.fixture
def with_texts(monkeypatch: pytest.MonkeyPatch, sent: Sent) -> Sent:
    monkeypatch.setenv(CAPTURE, "span_only")
    return sent


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents(), st.booleans())
def test_every_run_is_one_tree(sent: Sent, run: RunDocument, of_a_client: bool) -> None:
    run.trace = TraceContext(TRACE.trace_id, 7 if of_a_client else 0)
    spans = sent(run)
    ids = [span.context.span_id for span in spans]
    [root] = [span for span in spans if span.parent is None or span.parent.span_id == 7]
    assert root is spans[-1] and len(set(ids)) == len(ids)
    assert {span.context.trace_id for span in spans} == {TRACE.trace_id}
    assert all(span.parent is not None and span.parent.span_id in ids for span in spans if span is not root)
    assert len(spans) == 1 + sum(
        span.kind in ("workflow", "node", "attempt", "embedding", "tool") for span in run.spans
    )


def test_a_trace_that_is_not_sampled_is_not_sent(sent: Sent) -> None:
    made = Made().document(1)
    made.trace = TraceContext(1, 0, sampled=False)
    assert sent(made) == []


def test_times_are_those_that_were_recorded(sent: Sent) -> None:
    made = Made()
    made.node(1, "Answer", 0.5, 2, made.workflow("Coding", 0.25, 3))
    workflow, node, root = sent(made.document(4))
    assert [(span.start_time, span.end_time) for span in (node, workflow, root)] == [
        ((STARTED + start) * 1000, (STARTED + end) * 1000)
        for start, end in ((500_000, 2_000_000), (250_000, 3_000_000), (0, 4_000_000))
    ]


def test_what_is_no_span_of_a_trace_gives_its_place_to_what_is_around_it(sent: Sent) -> None:
    made = Made()
    route = made.add("route", "route", 0, 1)
    made.attempt("Main", 0, 1, made.call("Main", 0, 1, made.workflow("Categorize", 0, 1, route)))
    workflow, chat, root = sent(made.document(1))
    assert chat.parent is not None and chat.parent.span_id == workflow.context.span_id
    assert workflow.parent is not None and workflow.parent.span_id == root.context.span_id


def test_vectors(sent: Sent) -> None:
    made = Made()
    made.add(
        "embedding",
        "Vectors",
        0,
        1,
        texts={"inputs": ["a secret"]},
        operation__name="embeddings",
        request__model="minilm",
        texts_=1,
    )
    embedding, _ = sent(made.document(1))
    assert embedding.name == "embeddings minilm" and attributes(embedding)["gen_ai.operation.name"] == "embeddings"
    assert "secret" not in str(attributes(embedding))


def test_the_first_token_counts_from_the_request_that_was_answered(sent: Sent) -> None:
    made = Made()
    call = made.call("Main", 1, 5, time_to_first_token=3_000_000)
    made.attempt("Main", 1, 2, call, request__model="a").status = "error"
    made.attempt("Main", 2, 5, call, request__model="a")
    failed, answered, _ = sent(made.document(5))
    name = "gen_ai.response.time_to_first_chunk"
    assert name not in attributes(failed) and attributes(answered)[name] == 2.0


def test_the_id_of_a_request_is_the_one_that_its_server_was_told(sent: Sent) -> None:
    header = TRACE.next_traceparent()
    made = Made()
    made.attempt("Main", 0, 1, made.call("Main", 0, 1), traceparent=header)
    chat, _ = sent(made.document(1))
    assert header == f"00-{TRACE.trace_id:032x}-{chat.context.span_id:016x}-01"
    assert chat.context.span_id == span_id_in(header) and "traceparent" not in str(attributes(chat))


def test_texts_in_the_form_of_the_convention(with_texts: Sent) -> None:
    made = Made()
    call = made.call("Main", 0, 1)
    call.texts = {
        "reasoning": "Let me see",
        "answer": "Here",
        "tool_calls": [{"id": "c1", "function": {"name": "find", "arguments": "{}"}}],
    }
    question = [{"type": "text", "text": "Hi"}, {"image": "image/png", "bytes": 9}]
    messages = [{"role": "user", "content": question}, {"role": "tool", "content": "found"}]
    made.attempt(
        "Main",
        0,
        1,
        call,
        texts={"payload": {"system": "Be short", "messages": messages}},
        response__finish_reasons=["tool_calls"],
    )
    made.attempt(
        "Main",
        1,
        2,
        made.call("Main", 1, 2),
        texts={"payload": {"prompt": "Once upon"}},
        operation__name="text_completion",
    )
    made.add("tool", "find", 0, 1, texts={"arguments": {"word": "x"}, "result": "found"}, tool__name="find")
    chat, completion, tool, _ = sorted(
        with_texts(made.document(2)), key=lambda span: ("invoke" in span.name, "tool" in span.name, span.start_time)
    )
    assert json.loads(attributes(chat)["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "Be short"}]},
        {
            "role": "user",
            "parts": [
                {"type": "text", "content": "Hi"},
                {"type": "text", "content": '{"image": "image/png", "bytes": 9}'},
            ],
        },
        {"role": "tool", "parts": [{"type": "text", "content": "found"}]},
    ]
    assert json.loads(attributes(chat)["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "finish_reason": "tool_calls",
            "parts": [
                {"type": "reasoning", "content": "Let me see"},
                {"type": "text", "content": "Here"},
                {"type": "tool_call", "id": "c1", "name": "find", "arguments": "{}"},
            ],
        }
    ]
    assert json.loads(attributes(completion)["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Once upon"}]}
    ]
    assert attributes(tool)["gen_ai.tool.call.arguments"] == '{"word": "x"}'
    assert attributes(tool)["gen_ai.tool.call.result"] == "found"


def test_a_name_of_ones_own_for_the_service(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sent(Made().document(1))[0].resource.attributes["service.name"] == "wilmerai"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "living room")
    assert sent(Made().document(1))[0].resource.attributes["service.name"] == "living room"


@pytest.mark.parametrize(("sampler", "sampled"), [("always_off", False), ("parentbased_always_on", True)])
def test_the_sampler_of_opentelemetry_decides(
    sent: Sent, monkeypatch: pytest.MonkeyPatch, sampler: str, sampled: bool
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    request = RequestContext()
    RunTraces(Kept()).request_arrived(request)
    assert request.trace is not None and request.trace.sampled is sampled
    assert request.trace.next_traceparent().endswith("-01" if sampled else "-00")


def test_a_collector_that_hangs_costs_no_time_and_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"):
        monkeypatch.setenv(name, "8")
    with OtlpReceiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        collector.answers.clear()
        traces = RunTraces()
        for number in range(100):
            run = Made(workflow=f"Number {number}").document(1)
            run.trace = TRACE
            traces.observe(run)
        assert collector.asked.wait(60)
        collector.answers.set()
        traces.close()
        names = [span.name for span in collector.spans()]
    # One batch was under way, and one queue full has waited; what came last was kept.
    assert len(names) <= 16 and names[-1] == "invoke_workflow Number 99"
    # Again only if 20 seconds have passed.
    assert {record.getMessage() for record in caplog.records if record.levelname == "WARNING"} == {
        "More spans wait for the collector of traces than OTEL_BSP_MAX_QUEUE_SIZE allows: the oldest are dropped."
    }


@pytest.mark.parametrize("kind", SPAN_KINDS)
def test_names_are_those_of_opentelemetry_or_our_own(kind: Any) -> None:
    assert otel_name(kind, "usage.input_tokens") == "gen_ai.usage.input_tokens"
    assert otel_name(kind, "server.port") == "server.port"
    assert otel_name(kind, "http.status") == "http.response.status_code"
    assert otel_name(kind, "request.min_p").endswith("request.min_p")
    assert otel_name(kind, "request.min_p").startswith("wilmer.")
