"""What is added up of finished runs for Prometheus: bounds, buckets, and what does not count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from Middleware.addons.observability.metrics import MOST_SERIES, OTHER, RunMetrics
from Middleware.addons.records.model import RunDocument
from Tests.addons.records.made_up import Made, documents

PROJECT = Path(__file__).resolve().parents[3]


class Families:
    """What Prometheus is given: the value of each sample by its name, and by the values of its labels."""

    def __init__(self, metrics: RunMetrics) -> None:
        self.samples: dict[str, dict[tuple[str, ...], float]] = {}
        for family in metrics.collect():
            assert family.documentation.endswith(".")
            # A family without samples yet is there, too.
            self.samples.setdefault(f"{family.name}_total" if family.type == "counter" else f"{family.name}_count", {})
            for sample in family.samples:
                self.samples.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value

    @property
    def counts(self) -> dict[str, dict[tuple[str, ...], float]]:
        return {name: values for name, values in self.samples.items() if name.endswith("_total")}

    @property
    def times(self) -> dict[str, dict[tuple[str, ...], tuple[float, float]]]:
        """How many times were observed, and their sum in seconds, for each histogram."""
        return {
            name: {key: (count, self.samples[f"{name}_sum"][key]) for key, count in values.items()}
            for name, values in (
                (name.removesuffix("_count"), values)
                for name, values in self.samples.items()
                if name.endswith("_count")
            )
        }


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
    made.attempt(
        endpoint,
        0,
        1,
        call,
        request__model="qwen",
        usage__input_tokens=100,
        usage__output_tokens=20,
        usage__cache_read__input_tokens=None,
    )
    return made


def test_one_run() -> None:
    found = families(called().document(2))
    assert found.counts == {
        "wilmer_requests_total": {("me", "chat", "ok"): 1},
        "wilmer_llm_calls_total": {("Main", "qwen", "ok"): 1},
        "wilmer_tokens_total": {("Main", "qwen", "input"): 100, ("Main", "qwen", "output"): 20},
        "wilmer_retries_total": {(): 0},
        "wilmer_failovers_total": {},
    }
    assert found.times == {
        "wilmer_request_seconds": {(): (1, 2.0)},
        "wilmer_llm_call_seconds": {(): (1, 1.0)},
        "wilmer_time_to_first_token_seconds": {("Main",): (1, 0.3)},
        "wilmer_node_seconds": {("Coding", "Standard"): (1, 1.0)},
    }
    # One line a series, not a second one that says when it began.
    assert not [name for name in found.samples if name.endswith("_created")]


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
    made = Made()
    workflow = made.workflow("Coding", 0, 1)
    for index, seconds in enumerate((0, 0.001, 0.001001, 0.01, 1801)):
        made.node(index, "Answer", 0, seconds, workflow)
    found = families(made.document(1)).samples
    buckets = {key[-1]: value for key, value in found["wilmer_node_seconds_bucket"].items()}
    assert (buckets["0.001"], buckets["0.01"], buckets["0.1"], buckets["1800.0"], buckets["+Inf"]) == (2, 4, 4, 4, 5)
    assert found["wilmer_node_seconds_sum"]["Coding", "Standard"] == pytest.approx(1801.012001)


def test_a_number_of_tokens_below_0_does_not_count() -> None:
    made = called()
    made.spans[-1].attributes["usage.output_tokens"] = -1
    found = families(made.document(1)).counts
    assert found["wilmer_tokens_total"] == {("Main", "qwen", "input"): 100}


@given(documents())
def test_every_run_can_be_counted(run: RunDocument) -> None:
    found = families(run)
    assert sum(found.counts["wilmer_requests_total"].values()) == 1
    assert sum(found.counts["wilmer_llm_calls_total"].values()) == sum(
        span.kind == "llm" and span.status != "stand-in" for span in run.spans
    )


# The interpreter changes threads all the time, so that the writer's thread and requests meet at every lock.
RACE = """
import sys
import run_eventlet
from flask import Flask
from Middleware.addons.observability.metrics import add_metrics_route
from Middleware.addons.observability.metrics import RunMetrics
from Middleware.utilities.native_threads import start_native
from Tests.addons.observability.test_metrics import called

class Store:
    def dropped(self):
        return {}

metrics, app, runs, done = RunMetrics(), Flask("race"), [called().document(1)] * 2000, []
add_metrics_route(app, metrics, Store())
sys.setswitchinterval(1e-6)
start_native(lambda: ([metrics.observe(run) for run in runs], done.append(True)), "writer")

def read():
    while not done:
        app.test_client().get("/metrics")
        run_eventlet.eventlet.sleep(0)

for reader in [run_eventlet.eventlet.spawn(read) for _ in range(4)]:
    reader.wait()
print(app.test_client().get("/metrics").get_data(as_text=True))
"""


@pytest.mark.slow
def test_runs_are_counted_while_requests_read_under_eventlet() -> None:
    pytest.importorskip("eventlet")
    done = subprocess.run(
        [sys.executable, "-c", RACE],
        cwd=PROJECT,
        text=True,
        encoding="utf-8",
        capture_output=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert "wilmer_request_seconds_count 2000.0" in done.stdout and "Traceback" not in done.stderr, done.stderr
