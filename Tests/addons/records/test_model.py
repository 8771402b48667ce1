"""The words and keys of a recorded run, as the console's API promises them."""

from Middleware.addons.records.model import RUN_KINDS, RUN_STATUSES, SPAN_KINDS, RunDocument, RunFacts, Span

FACTS = """id kind origin status error.type user key_hash private client model stream workflow route route.reason
discussion conversation started queued first_token answered ended nodes calls endpoints usage.input_tokens
usage.output_tokens usage.cache_read.input_tokens estimated config question answer error""".split()


def test_the_facts_of_a_run_have_the_promised_keys():
    assert list(RunFacts.__annotations__) == FACTS


def test_the_words_for_kinds_and_states():
    assert RUN_KINDS == ("chat", "task", "playground", "replay", "again")
    assert RUN_STATUSES == ("queued", "running", "answered", "ok", "failed", "cancelled", "refused", "interrupted")
    assert SPAN_KINDS == ("wait", "route", "workflow", "node", "llm", "attempt", "embedding", "tool", "memory", "note")


def test_a_span_is_a_row_of_nine():
    span = Span(2, 1, "node", "Answer", 10, 20, "ok", {"node.index": 1}, {"output": "Hello"})
    assert span.as_row() == [2, 1, "node", "Answer", 10, 20, "ok", {"node.index": 1}, {"output": "Hello"}]


def test_a_span_is_found_by_its_id_even_if_others_were_left_out():
    spans = [Span(1, None, "workflow", "A", 0), Span(3, 1, "node", "B", 1)]
    document = RunDocument(RunFacts(status="running"), spans)  # type: ignore[typeddict-item]
    assert document.span(3) is spans[1] and document.span(1) is spans[0] and document.span(2) is None
    assert not document.finished
