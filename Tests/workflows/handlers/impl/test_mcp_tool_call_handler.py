"""MCPToolCall nodes in workflows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import ConfigurationError, EarlyTerminationException
from Middleware.models.process import Process
from Middleware.workflows.tools.mcp.mcp_sessions import McpSessions
from Middleware.workflows.tools.mcp_client_tool import MCPToolCallError
from Tests.stub_backend import StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, static
from Tests.workflows.tools.mcp.mcp_lab import plain_file

NOT_FOUND = "MCP server config 'nope' was not found under Public/Configs/MCPServers/."


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    sessions = McpSessions()
    own = Process()
    own.put(McpSessions, sessions)
    monkeypatch.setattr("Middleware.models.process._process", own)
    with StubBackend() as backend:
        made = EngineLab(tmp_path, monkeypatch, backend)
        made.write("MCPServers/lab", plain_file())
        yield made
    sessions.close()


def call(tool: str = "arguments", **more: Any) -> dict[str, Any]:
    return {"type": "MCPToolCall", "title": "Mine", "server": "lab", "tool": tool, **more}


def test_result(lab: EngineLab) -> None:
    assert lab.run([call(arguments={"a": 1})]) == "{'a': 1}"
    assert lab.run([call(), static("<{agent1Output}>")]) == "<{}>"


def test_structured_result(lab: EngineLab) -> None:
    lab.write("MCPServers/lab", plain_file('{"content": [], "structuredContent": {"result": 42}}'))
    assert lab.run([call(), static("{agent1Output}")]) == '{"result": 42}'


def test_variables(lab: EngineLab) -> None:
    lab.write("MCPServers/other", plain_file())
    nodes = [
        static("other"),
        static("argu{{x}}"),
        call(
            server="{agent1Output}",
            tool="{agent1Output}",
            arguments={
                "{agent1Output}": "{agent1Output}",
                "deep": [{"list": ["{agent2Output}", 1]}],
                "n": 20,
                "none": None,
                "flag": True,
                "real": 1.5,
            },
        ),
    ]
    assert lab.run(nodes) == repr(
        {
            "{agent1Output}": "other",
            "deep": [{"list": ["argu{x}", 1]}],
            "n": 20,
            "none": None,
            "flag": True,
            "real": 1.5,
        }
    )


def test_the_node_is_not_changed(lab: EngineLab) -> None:
    nodes = [static("one"), call(arguments={"a": ["{agent1Output}"]})]
    assert lab.run(nodes) == lab.run(nodes) == "{'a': ['one']}"


def test_static_token_stream(lab: EngineLab) -> None:
    lab.write("MCPServers/lab", plain_file('{"content": [{"type": "text", "text": "hi  there"}]}'))
    chunks = lab.chunks([call()])
    assert [chunk["token"] for chunk in chunks if chunk["token"]] == ["hi", "  ", "there"]
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["stop"]


# -- failures ----------------------------------------------------------------------------------------------------------

FAILURES = [
    ({"server": "nope"}, NOT_FOUND),
    ({"server": "a/b"}, "'a/b' cannot be the name of an MCP server"),
    ({"server": "{nothing_of_this_name}"}, "MCP server config '{nothing_of_this_name}' was not found under"),
    ({"tool": "refused"}, "MCP call to 'lab.refused' failed: not like this"),
    (
        {"tool": "slow", "arguments": {"seconds": 90}, "timeout": 0.5},
        "MCP call to 'lab.slow' timed out after 0.5s (waiting for the tool)",
    ),
    (
        {"tool": "slow", "arguments": {"seconds": 90}, "timeout": 1},
        "MCP call to 'lab.slow' timed out after 1s (waiting for the tool)",
    ),
    ({"tool": "die"}, "MCP call to 'lab.die' failed: the server ended the connection"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "text"), FAILURES)
def test_failed_calls(lab: EngineLab, changes: dict[str, Any], text: str) -> None:
    for nodes in ([call(**changes)], [call(onError="raise", **changes), static("after")]):
        lab.run([call()])  # connected already, so that the time runs out during the call
        with pytest.raises(MCPToolCallError) as caught:
            lab.run(nodes)
        assert str(caught.value).startswith(text)
    assert lab.run([call(onError="return", **changes), static("{agent1Output}")]).startswith(text)
    assert lab.streamed([call(onError="return", **changes)]).startswith(text)


def test_error_result(lab: EngineLab) -> None:
    lab.write("MCPServers/lab", plain_file('{"content": [{"type": "text", "text": "no {luck}"}], "isError": true}'))
    assert lab.run([call("read", onError="return")]) == "MCP tool 'read' reported an error: no {luck}"
    with pytest.raises(MCPToolCallError, match="^MCP tool 'read' reported an error: no {luck}$"):
        lab.run([call("read")])


@table("on_error", ["raise", "return"])
@table(
    ("key", "value"),
    [
        ("server", None),
        ("server", ""),
        ("server", " "),
        ("server", 5),
        ("tool", None),
        ("tool", ""),
        ("tool", ["x"]),
        ("arguments", "x"),
        ("arguments", []),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", True),
        ("timeout", []),
        ("timeout", "{nothing_of_this_name}"),
        ("timeout", "{agent1Input}"),
    ],
)
def test_bad_keys(lab: EngineLab, key: str, value: Any, on_error: str) -> None:
    with pytest.raises(ValueError, match=f"'Mine'.*'{key}'") as caught:
        lab.run(
            [
                call(onError=on_error, **{"tool": "arguments", key: value})
                if key != "tool"
                else {**call(onError=on_error), "tool": value}
            ]
        )
    assert isinstance(caught.value, ConfigurationError)


def test_the_time_takes_variables(lab: EngineLab) -> None:
    # Connected already, so that the time runs out during the call.
    lab.run([call()])
    slow = call("slow", arguments={"seconds": 90}, timeout="{agent1Output}", onError="return")
    assert lab.run([static(" 0.5 "), slow]) == "MCP call to 'lab.slow' timed out after 0.5s (waiting for the tool)"
    with pytest.raises(ValueError, match="'Mine'.*'timeout'"):
        lab.run([static("soon"), slow])


@pytest.mark.parametrize("value", ["ignore", "Return", "", 5, True])
def test_bad_on_error(lab: EngineLab, value: Any) -> None:
    with pytest.raises(ValueError, match="'Mine'.*'onError'"):
        lab.run([call(onError=value)])


@pytest.mark.parametrize("key", ["server", "tool"])
def test_missing_keys(lab: EngineLab, key: str) -> None:
    node = call()
    del node[key]
    with pytest.raises(ValueError, match=f"'Mine'.*'{key}'"):
        lab.run([node])


@pytest.mark.parametrize("key", ["arguments", "timeout", "onError"])
def test_null_is_the_default(lab: EngineLab, key: str) -> None:
    assert lab.run([call(**{key: None})]) == "{}"


def test_names_are_logged_and_arguments_are_not(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lab.run([static("lab"), call(server="{agent1Output}", arguments={"a": "private"})])
    assert "MCP call to 'lab.arguments'" in caplog.text and "private" not in caplog.text


def test_what_a_tool_says_is_logged_at_debug_only(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lab.write("MCPServers/lab", plain_file('{"content": [{"type": "text", "text": "private"}], "isError": true}'))
    assert lab.run([call(onError="return")]).endswith("private")
    assert "MCP call to 'lab.arguments' failed" in caplog.text and "private" not in caplog.text


# -- cancellation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_cancellation(lab: EngineLab, on_error: str) -> None:
    lab.run([call()])
    moment: list[float] = []

    def cancel() -> None:
        moment.append(time.monotonic())
        lab.request.cancel_scope.cancel()

    threading.Timer(0.3, cancel).start()
    with pytest.raises(EarlyTerminationException):
        lab.run([call("slow", arguments={"seconds": 90}, timeout=90, onError=on_error), static("after")])
    assert time.monotonic() - moment[0] < 60


# -- from scripts ------------------------------------------------------------------------------------------------------

SCRIPT = """
from Middleware.workflows.tools.mcp_client_tool import MCPClient, MCPToolCallError
def Invoke(what):
    client = MCPClient()
    try:
        if what == "list":
            return sorted(client.list_tools("lab", timeout=20))
        return client.call_tool("nope" if what == "fail" else "lab", "slow" if what == "slow" else "pid",
                                {"seconds": 30} if what == "slow" else {})
    except MCPToolCallError as error:
        return f"caught {error}"
"""


def script(lab: EngineLab, what: str) -> dict[str, Any]:
    (lab.root / "tools.py").write_text(SCRIPT, encoding="utf-8")
    return {"type": "PythonModule", "module_path": str(lab.root / "tools.py"), "args": [what]}


def test_scripts_share_the_sessions_of_nodes(lab: EngineLab) -> None:
    assert lab.run([script(lab, "call")]) == lab.run([call("pid")])
    assert lab.run([script(lab, "list")]) == ["a", "b"]
    assert lab.run([script(lab, "fail")]) == f"caught {NOT_FOUND}"


def test_cancellation_reaches_a_call_in_a_script(lab: EngineLab) -> None:
    lab.run([call()])
    threading.Timer(0.3, lab.request.cancel_scope.cancel).start()
    started = time.monotonic()
    with pytest.raises(EarlyTerminationException):
        lab.run([script(lab, "slow"), static("after")])
    assert time.monotonic() - started < 60
