"""The tools of a request, by the names at the LLM and at the client."""

from __future__ import annotations

import pytest

from Middleware.api.requests.offered_tools import ClientTool, OfferedTools
from Middleware.exceptions import ClientError

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


@pytest.fixture
def tools() -> OfferedTools:
    offered = OfferedTools()
    offered.add("Read", "Reads a file.", SCHEMA)
    offered.add("read", None, None)
    offered.add("crm__find", "", None, ClientTool("find", namespace="crm"))
    offered.add("Read", "again", {})
    return offered


def test_functions(tools: OfferedTools) -> None:
    nothing = {"type": "object", "properties": {}}
    assert tools.functions == [
        {"type": "function", "function": {"name": "Read", "description": "Reads a file.", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "read", "parameters": nothing}},
        {"type": "function", "function": {"name": "crm__find", "parameters": nothing}},
    ]
    assert len(tools) == 3 and not OfferedTools()


def test_names_come_back(tools: OfferedTools) -> None:
    """The exact name first, then without regard to case; an unknown one as it is."""
    assert [tools.called(name).name for name in ("Read", "read", "READ", "Write")] == ["Read", "read", "Read", "Write"]
    assert tools.called("CRM__Find") == ClientTool("find", "function", "crm")


def test_choice(tools: OfferedTools) -> None:
    assert tools.choice("Read", "tool_choice.name") == {"type": "function", "function": {"name": "Read"}}
    with pytest.raises(ClientError, match=r"^tool_choice.name: .* no tool 'Raed' .* Did you mean '[Rr]ead'\?") as error:
        tools.choice("Raed", "tool_choice.name")
    assert error.value.status == 400
