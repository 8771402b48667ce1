"""Why a run took this long: the parts add up, and the sentence names what it waited for."""

from __future__ import annotations

import pytest
from hypothesis import given

from Middleware.addons.records.analysis.critical_path import SpanTree, critical_path, end_of
from Middleware.addons.records.analysis.explanation import Explanation, explain, phases
from Middleware.addons.records.analysis.prefix import prefixes
from Middleware.addons.records.model import RunDocument
from Tests.addons.records.made_up import SECOND, STARTED, Made, documents
from Tests.properties import examples


@given(documents())
@examples(300)
def test_the_critical_path_has_no_gap_and_the_parts_add_up(document: RunDocument) -> None:
    now = STARTED + 12 * SECOND
    whole = end_of(document, now)
    pieces = critical_path(SpanTree(document.spans), whole)
    ends = [0, *(piece.end for piece in pieces)]
    assert [piece.start for piece in pieces] == ends[:-1] and ends[-1] == whole
    explanation = explain(document, now)
    assert abs(sum(part["us"] for part in explanation["parts"]) - whole) <= whole * 0.05
    assert explanation["text"].endswith(".") and all(part["us"] >= 0 for part in explanation["parts"])


@given(documents())
@examples(100)
def test_phases_of_an_attempt_add_up_to_it(document: RunDocument) -> None:
    for span in document.spans:
        found = phases(span, document.spans[0])
        assert sum(us for _, us in found) == span.duration and all(us >= 0 for _, us in found)


def slow_gate(run: Made) -> None:
    run.add("wait", "gate", 0, 8, **{"for": "gate", "ahead": 3})
    node = run.node(1, "Answer", 8, 10, run.workflow("Coding", 8, 10))
    run.attempt("Main", 8, 10, run.call("Main", 8, 10, node))


def workflow_lock(run: Made) -> None:
    node = run.node(1, "Only one", 0, 9, run.workflow("Coding", 0, 10))
    run.add("wait", "lock", 0, 9, node, **{"for": "lock"})


def slow_load(run: Made) -> None:
    answered(run, backend__load_ms=7000.0, backend__prompt_ms=500.0, backend__generate_ms=2000.0)


def long_prompt(run: Made) -> None:
    answered(
        run,
        backend__prompt_ms=7900.0,
        backend__generate_ms=2000.0,
        usage__input_tokens=18204,
        usage__cache_read__input_tokens=412,
        usage__output_tokens=168,
    )


def slow_writing(run: Made) -> None:
    answered(run, backend__prompt_ms=500.0, backend__generate_ms=9000.0, usage__output_tokens=486)


def unreported_stream(run: Made) -> None:
    node = run.node(1, "Answer", 0, 10, run.workflow("Coding", 0, 10))
    run.attempt("Main", 0, 10, run.call("Main", 0, 10, node, time_to_first_token=7 * SECOND), usage__output_tokens=30)


def counted_here(run: Made) -> None:
    node = run.node(1, "Answer", 0, 10, run.workflow("Coding", 0, 10))
    run.attempt("Main", 0, 10, run.call("Main", 0, 10, node, time_to_first_token=4 * SECOND, chunks=300))


def slow_tool(run: Made) -> None:
    node = run.node(1, "Look it up", 0, 9, run.workflow("Coding", 0, 10))
    run.add("tool", "WebFetch", 0, 9, node, tool__name="WebFetch")


def retry(run: Made) -> None:
    call = run.call("Main", 0, 10, run.node(1, "Answer", 0, 10, run.workflow("Coding", 0, 10)))
    run.attempt("Main", 0, 7, call, status="error", http__status=500)
    run.attempt("Main", 7.5, 10, call)


def nested(run: Made) -> None:
    outer = run.node(1, "Search", 0, 10, run.workflow("Coding", 0, 10))
    inner = run.node(1, "Read", 0, 10, run.workflow("Search", 0, 10, outer))
    run.attempt("Worker", 0, 10, run.call("Worker", 0, 10, inner), usage__output_tokens=300)


def parallel(run: Made) -> None:
    workflow = run.workflow("Coding", 0, 10)
    run.attempt("Worker", 0, 3, run.call("Worker", 0, 3, run.node(1, "Quick", 0, 3, workflow)))
    run.attempt("Main", 0, 9, run.call("Main", 0, 9, run.node(2, "Slow", 0, 9, workflow)))


def answered(run: Made, **attributes: object) -> None:
    node = run.node(1, "Answer", 0, 10, run.workflow("Coding", 0, 10))
    run.attempt("Main", 0, 10, run.call("Main", 0, 10, node), **attributes)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (slow_gate, "gate", "10.0 s: 8.0 s waiting for a slot at the gate (3 ahead), 2.0 s Main answered."),
        (workflow_lock, "lock", "10.0 s: 9.0 s waiting for a workflow lock, 1.0 s the rest."),
        (
            slow_load,
            "load",
            "10.0 s: 7.0 s Main loaded its model, 2.0 s Main wrote, 0.5 s Main had not begun, "
            "0.5 s Main read the prompt.",
        ),
        (
            long_prompt,
            "prompt",
            "10.0 s: 7.9 s Main read 18,204 prompt tokens (412 reused), 2.0 s Main wrote 168 (84/s), 0.1 s the rest.",
        ),
        (
            slow_writing,
            "write",
            "10.0 s: 9.0 s Main wrote 486 (54/s), 0.5 s Main had not begun, 0.5 s Main read the prompt.",
        ),
        (unreported_stream, "prompt", "10.0 s: 7.0 s Main read the prompt, 3.0 s Main wrote 30 (10/s)."),
        (counted_here, "write", "10.0 s: 6.0 s Main wrote ≈300 (50/s), 4.0 s Main read the prompt."),
        (slow_tool, "tool", "10.0 s: 9.0 s tool WebFetch in node 1 'Look it up', 1.0 s the rest."),
        (retry, "retry", "10.0 s: 7.0 s failed attempt at Main, 2.5 s Main answered, 0.5 s waiting to try Main again."),
        (nested, "answer", "10.0 s: 10.0 s Worker answered with 300 tokens."),
        (parallel, "answer", "10.0 s: 9.0 s Main answered, 1.0 s the rest."),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_sentence_names_the_bottleneck(make: object, kind: str, text: str) -> None:
    run = Made()
    assert callable(make)
    make(run)
    explanation = explain(run.document(10))
    assert (explanation["parts"][0]["kind"], explanation["text"]) == (kind, text)


def test_what_happens_after_the_answer_does_not_count() -> None:
    run = Made()
    workflow = run.workflow("Coding", 0, 60)
    run.attempt("Main", 0, 2, run.call("Main", 0, 2, run.node(1, "Answer", 0, 2, workflow)))
    run.attempt("Worker", 2, 60, run.call("Worker", 2, 60, run.node(2, "Remember", 2, 60, workflow)))
    assert explain(run.document(2))["text"] == "2.0 s: 2.0 s Main answered."


def test_many_small_nodes_are_put_together_by_endpoint() -> None:
    run = Made()
    workflow = run.workflow("Coding", 0, 100)
    for index in range(100):
        node = run.node(index + 1, f"Step {index}", index, index + 1, workflow)
        run.attempt("Worker", index, index + 1, run.call("Worker", index, index + 1, node), usage__output_tokens=5)
    assert explain(run.document(100))["text"] == "1 min 40 s: 1 min 40 s Worker answered with 500 tokens."


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ("running", "So far 5.0 s: 5.0 s Main answered."),
        ("failed", "Failed after 2.0 s: 2.0 s Main answered."),
        ("refused", "Turned away after 2.0 s: 2.0 s Main answered."),
        ("cancelled", "Stopped after 2.0 s: 2.0 s Main answered."),
    ],
)
def test_a_run_without_an_answer_says_how_it_ended(status: str, text: str) -> None:
    running = status == "running"
    run = Made(status=status, answered=None, ended=None if running else STARTED + 2 * SECOND)
    call = run.call("Main", 0, 2, run.node(1, "Answer", 0, 2, run.workflow("Coding", 0, 2)))
    run.attempt("Main", 0, 2, call)
    for span in run.spans if running else ():
        span.status, span.duration = "running", 0
    assert explain(run.document(), STARTED + 5 * SECOND)["text"] == text


def test_a_prompt_that_was_read_again_is_explained() -> None:
    def run(day: str) -> Made:
        made = Made(id=day)
        call = made.call("Main", 0, 10, made.node(1, "Answer", 0, 10, made.workflow("Coding", 0, 10)))
        payload = {"messages": [{"role": "system", "content": f"Today is {day}. You know all there is to know."}]}
        made.attempt(
            "Main",
            0,
            10,
            call,
            backend__prompt_ms=8000.0,
            backend__generate_ms=2000.0,
            usage__input_tokens=3900,
            usage__output_tokens=100,
            texts={"payload": payload},
        )
        return made

    document, before = run("Tuesday").document(10), run("Monday").document(10)
    explanation = explain(document, compared=prefixes(document, [before]))
    assert explanation["text"] == (
        "10.0 s: 8.0 s Main read 3,900 prompt tokens, 2.0 s Main wrote 100 (50/s). Main could not use what it had read "
        'before: Same up to character 9 of 48 (18%). First difference in message 1 (system): "Today is Monday. You '
        'know all there is to" / "Today is Tuesday. You know all there is to".'
    )
    assert [part["span"] for part in explanation["parts"]] == [4, 4]


def odd_run() -> Explanation:
    run = Made()
    run.add("route", "Categorize", 0, 0, attempts=2, chosen=None)
    node = run.node(2, "Answer", 0, 5, run.workflow("Coding", 0, 5))
    call = run.call("Worker", 0, 5, node)
    run.attempt("Main", 0, 1, call, status="error", texts={"error": "Endpoint 'Main': connection refused\nmore"})
    run.attempt(
        "Worker",
        1,
        5,
        call,
        stands_in_for="Main",
        dropped_messages=12,
        request__max_tokens=400,
        response__finish_reasons=["length"],
    )
    run.add("note", "warning", 0, 0, node, level="WARNING", texts={"message": "Node 'Answer': unknown variable '{x}'"})
    run.add("note", "warning", 0, 0, node, logger="Middleware.workflows.managers.workflow_variable_manager")
    run.node(3, "Remember", 5, 6, run.spans[1]).status = "error"
    return explain(run.document(6))


def test_odd_things_are_told() -> None:
    assert odd_run()["odd"] == [
        "No category was matched in 2 attempts, so the default workflow ran.",
        "1 attempt at Main failed for node 2 'Answer' (Endpoint 'Main': connection refused); the next one was "
        "answered.",
        "Worker answered in place of Main for node 2 'Answer'.",
        "12 messages did not fit into the context window of Worker and were left out for node 2 'Answer'.",
        "The answer of Worker for node 2 'Answer' was cut at its limit of 400 tokens.",
        "Node 'Answer': unknown variable '{x}'",
        "A variable of node 2 'Answer' had no value.",
        "Node 3 'Remember' failed.",
    ]
