"""What is added up of finished runs for Prometheus: bounds, buckets, and what does not count."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given

from Middleware.services.run_records.metrics import MOST_SERIES, OTHER, Histogram, RunMetrics, Times
from Middleware.services.run_records.model import RunDocument
from Tests.services.run_records.made_up import Made, documents


class Families:
    """What a reader is given, by name."""

    def __init__(self, metrics: RunMetrics) -> None:
        self.counts: dict[str, dict[tuple[str, ...], int]] = {}
        self.times: dict[str, dict[tuple[str, ...], Times]] = {}
        self.labels: dict[str, tuple[str, ...]] = {}
        metrics.read(self)

    def counter(self, name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], int]) -> None:
        assert text.endswith(".")
        self.labels[name], self.counts[name] = tuple(labels), dict(values)

    def histogram(self, name: str, text: str, labels: Sequence[str], limits: Sequence[float],
                  values: Mapping[tuple[str, ...], Times]) -> None:
        assert text.endswith(".") and list(limits) == sorted(limits)
        self.labels[name], self.times[name] = tuple(labels), dict(values)


def families(*runs: RunDocument) -> Families:
    metrics = RunMetrics()
    for run in runs:
        metrics.observe(run)
    return Families(metrics)


def called(endpoint: str = "Main", **changed: Any) -> Made:
    """Return a run with a call that was answered at once."""
    made = Made(**changed)
    node = made.node(1, "Answer", 0, 1, made.workflow("Coding", 0, 1))
    call = made.call(endpoint, 0, 1, node, time_to_first_token=300_000)
    made.attempt(endpoint, 0, 1, call, request__model="qwen", usage__input_tokens=100, usage__output_tokens=20,
                 usage__cache_read__input_tokens=None)
    return made


def test_one_run() -> None:
    found = families(called().document(2))
    assert found.counts == {
        "wilmer_requests_total": {("me", "chat", "ok"): 1},
        "wilmer_llm_calls_total": {("Main", "qwen", "ok"): 1},
        "wilmer_tokens_total": {("Main", "qwen", "input"): 100, ("Main", "qwen", "output"): 20},
        "wilmer_retries_total": {(): 0}, "wilmer_failovers_total": {}}
    assert {name: {key: (sum(times.counts), times.total) for key, times in of.items()}
            for name, of in found.times.items()} == {
        "wilmer_request_seconds": {(): (1, 2_000_000)}, "wilmer_llm_call_seconds": {(): (1, 1_000_000)},
        "wilmer_time_to_first_token_seconds": {("Main",): (1, 300_000)},
        "wilmer_node_seconds": {("Coding", "Standard"): (1, 1_000_000)}}


def test_no_family_has_more_label_sets_than_it_may() -> None:
    metrics = RunMetrics()
    for number in range(3 * MOST_SERIES):
        made = called(f"Endpoint {number}", user=f"user {number}", status=("ok", "failed")[number % 2])
        call = made.spans[2]
        made.attempt(f"Spare {number}", 1, 2, call, stands_in_for=f"Endpoint {number}")
        made.node(2, "Next", 1, 2, made.workflow(f"Workflow {number}", 1, 2))
        metrics.observe(made.document(1))
    found = Families(metrics)
    for of in (*found.counts.values(), *found.times.values()):
        assert len(of) <= MOST_SERIES
    requests = found.counts["wilmer_requests_total"]
    assert sum(requests.values()) == 3 * MOST_SERIES
    # What is left over still says how it ended.
    assert requests[OTHER, "chat", "ok"] > 0 and requests[OTHER, "chat", "failed"] > 0
    assert requests["user 0", "chat", "ok"] == 1


def test_what_is_not_known_is_called_other() -> None:
    made = Made(user=None, status="refused")
    made.call("", 0, 1)
    found = families(made.document(1))
    assert found.counts["wilmer_requests_total"] == {(OTHER, "chat", "refused"): 1}
    assert found.counts["wilmer_llm_calls_total"] == {(OTHER, OTHER, "ok"): 1}


def test_retries_and_backups() -> None:
    made = Made()
    call = made.call("Spare", 0, 3)
    made.attempt("Main", 0, 1, call, status="error")
    made.attempt("Main", 1, 2, call, status="error")
    for start in (2, 3):
        made.attempt("Spare", start, start + 1, call, stands_in_for="Main", request__model="small")
    found = families(made.document(4))
    assert found.counts["wilmer_retries_total"] == {(): 2}
    assert found.counts["wilmer_failovers_total"] == {("Main", "Spare"): 1}
    assert found.counts["wilmer_llm_calls_total"] == {("Spare", "small", "ok"): 1}


def test_tokens_of_a_call_that_failed_do_not_count() -> None:
    made = Made(status="failed")
    call = made.call("Main", 0, 1, status="error")
    made.attempt("Main", 0, 1, call, usage__input_tokens=5)
    assert families(made.document(1)).counts["wilmer_tokens_total"] == {}


def test_what_a_replay_takes_from_its_recording_does_not_count() -> None:
    made = Made(kind="replay")
    made.node(1, "Answer", 0, 1, made.workflow("Coding", 0, 1)).status = "stand-in"
    made.call("Main", 0, 1, status="stand-in")
    found = families(made.document(1))
    assert found.times["wilmer_node_seconds"] == found.counts["wilmer_llm_calls_total"] == {}


def test_a_time_is_in_the_bucket_of_the_first_limit_that_is_not_below_it() -> None:
    histogram = Histogram("seconds", "Times.", (1, 2), "endpoint")
    for microseconds in (0, 1_000_000, 1_000_001, 2_000_000, 9_000_000):
        histogram.add(microseconds, "Main")
    assert histogram.series.values["Main",] == Times([2, 2, 1], 13_000_001)


@given(documents())
def test_every_run_can_be_counted(run: RunDocument) -> None:
    found = families(run)
    assert sum(found.counts["wilmer_requests_total"].values()) == 1
    assert sum(found.counts["wilmer_llm_calls_total"].values()) == sum(
        span.kind == "llm" and span.status != "stand-in" for span in run.spans)
