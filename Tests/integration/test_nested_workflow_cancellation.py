"""A client that goes away during the LLM call of a nested workflow ends child and parent."""
from __future__ import annotations

import pytest

from Tests.integration.launcher import Backend, Launcher
from Tests.integration.stop_cases import NESTED, StopCase, assert_nothing_follows, leave


@pytest.mark.parametrize("case", NESTED, ids=lambda case: case.name)
def test_neither_child_nor_parent_goes_on(server: Launcher, backend: Backend, case: StopCase) -> None:
    assert leave(server, backend, case) < 2
    assert_nothing_follows(backend, case)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_same_workflow_runs_completely_for_a_client_that_stays(server: Launcher, backend: Backend,
                                                               stream: bool) -> None:
    """The stop of one run leaves nothing behind that ends the next."""
    leave(server, backend, NESTED[0])
    backend.reset()
    assert server.ask("Nested", stream).status == 200
    assert backend.nodes() == ["inner", "inner-next", "outer-next"]
