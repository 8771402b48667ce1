"""A client that goes away during the LLM call of a nested workflow ends child and parent."""

from __future__ import annotations

import pytest

from Tests.integration.launcher import Backend, Launcher
from Tests.integration.stop_cases import NESTED, Phase
from Tests.integration.stop_clients import Client, assert_nothing_follows, leave
from Tests.patience import PATIENCE


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("phase", NESTED, ids=lambda phase: phase.name)
def test_neither_child_nor_parent_goes_on(server: Launcher, backend: Backend, phase: Phase, stream: bool) -> None:
    stop = leave(server, backend, phase, Client(stream=stream))
    assert stop.took < PATIENCE
    assert_nothing_follows(stop)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_same_workflow_runs_completely_for_a_client_that_stays(
    server: Launcher, backend: Backend, stream: bool
) -> None:
    """The stop of one run leaves nothing behind that ends the next."""
    leave(server, backend, NESTED[0])
    assert server.ask("Nested", stream).status == 200
    assert backend.nodes() == ["inner", "inner-next", "outer-next"]
