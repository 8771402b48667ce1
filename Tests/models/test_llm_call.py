"""Which node the code at hand works for."""
from __future__ import annotations

import contextvars
from collections.abc import Generator

from Middleware.models.llm_call import NodeSite, current_site, enter_node, leave_node


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
