"""The tool loops of agent frameworks, whole and streamed."""

from __future__ import annotations

import itertools

import pytest

from Tests.amounts import alternate
from Tests.clients.agent_frameworks import LOOPS, STREAMS_LOSE_CALLS
from Tests.clients.cases import MARKS, NODE, TEXT, calls_tool, conversation
from Tests.clients.client import RESULTS
from Tests.integration.launcher import Backend, Launcher

# The packages use names of each other that newer versions deprecate.
pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.mark.parametrize(("name", "stream"), alternate(itertools.product(LOOPS, (False, True)), 5))
def test_tool_loop(server: Launcher, backend: Backend, name: str, stream: bool) -> None:
    """Two calls in one answer; their results arrive with the ids of the calls."""
    backend.replies[NODE] = calls_tool
    assert LOOPS[name](server.url, backend.hello, stream).strip() == TEXT
    offered, answered = backend.calls()
    assert [tool["function"]["name"] for tool in offered.json["tools"]] == ["weather"]
    asked, call, *results = [message for message in conversation(answered) if message["role"] != "system"]
    assert backend.hello in str(asked["content"])
    kept = list(RESULTS.items())[-1:] if stream and name in STREAMS_LOSE_CALLS else list(RESULTS.items())
    assert [made["function"]["name"] for made in call["tool_calls"]] == ["weather"] * len(kept)
    given = {made["id"]: made["function"]["arguments"] for made in call["tool_calls"]}
    assert len(given) == len(kept)
    for (city, result), message in zip(kept, results, strict=True):
        assert message["role"] == "tool" and result in message["content"]
        assert city in given[message["tool_call_id"]]
