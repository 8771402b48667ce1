"""Which node the code at hand works for."""

from __future__ import annotations

import contextvars
from collections.abc import Generator
from typing import Any

import pytest

from Middleware.models.llm_call import NodeSite, TokenCounts, current_site, enter_node, leave_node
from Middleware.models.messages import Usage


class Deaf:
    def emit(self, event: str, *arguments: object) -> None:
        raise AssertionError(event)

    def listens_to(self, *events: str) -> bool:
        return False


def site(name: str) -> NodeSite:
    return NodeSite(Deaf(), "r", "Main", 1, name)


def test_nodes_nest() -> None:
    outer, inner = site("outer"), site("inner")
    assert current_site() is None
    before = enter_node(outer)
    between = enter_node(inner)
    assert (before, between, current_site()) == (None, outer, inner)
    leave_node(inner, between)
    assert current_site() is outer
    leave_node(outer, before)
    assert current_site() is None


def test_leaving_in_another_context_changes_nothing_there() -> None:
    def node() -> Generator[None, None, None]:
        before = enter_node(inner)
        try:
            yield
        finally:
            leave_node(inner, before)

    inner, outer = site("inner"), site("outer")
    run = node()
    contextvars.copy_context().run(next, run)
    assert current_site() is None
    before = enter_node(outer)
    run.close()
    assert current_site() is outer
    leave_node(outer, before)


def cached(number: int) -> Usage:
    return {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": number}}


@pytest.mark.parametrize(
    ("usages", "numbers", "words"),
    [
        ([], (0, None, None, None), ""),
        ([None], (1, None, None, None), ""),
        ([{"completion_tokens": 10}], (1, None, None, 10), "10 tokens out"),
        ([{"prompt_tokens": 100, "completion_tokens": 10}], (1, 100, None, 10), "100 tokens in, 10 out"),
        ([cached(90)], (1, 100, 10, 10), "100 tokens in, 90 cached, 10 out"),
        ([cached(0), None, cached(90)], (3, 200, 110, 20), "200 tokens in, 90 cached, 20 out"),
        ([cached(90), {"prompt_tokens": 5}], (2, 105, None, 10), "105 tokens in, 10 out"),
        ([{"prompt_tokens": 5}, cached(90)], (2, 105, None, 10), "105 tokens in, 10 out"),
        ([{"prompt_tokens": "5", "completion_tokens": True}], (1, None, None, None), ""),
    ],
)
def test_the_sums_of_calls(usages: list[Any], numbers: tuple[int | None, ...], words: str) -> None:
    counts = TokenCounts()
    for usage in usages:
        counts.add(usage)
    assert (counts.calls, counts.prompt_tokens, counts.processed_tokens, counts.completion_tokens) == numbers
    assert counts.in_words == words
