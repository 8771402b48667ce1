"""How the processes of MCP servers end: soon after a stop, in their own time otherwise."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.workflows.tools.mcp.mcp_sessions import McpSessions
from Middleware.workflows.tools.mcp_client_tool import MCPClient, MCPToolCallError
from Tests.llmapis.lab import Lab
from Tests.workflows.engine_lab import until
from Tests.workflows.tools.mcp.mcp_lab import PLAIN, ends, plain_file, python_file

# Seconds. The package alone would wait much longer here, and so would the servers.
SOON = 60.0
PACKAGE_WAITS = 300.0
IGNORES_SIGTERM = (
    f"import signal, runpy, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    f"sys.argv = [{str(PLAIN)!r}]\nrunpy.run_path({str(PLAIN)!r}, run_name='__main__')"
)
WAITS = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"
MAKES_A_CHILD = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {WAITS!r}, '%d'])"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab(tmp_path, monkeypatch)
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", PACKAGE_WAITS)
    made.write("MCPServers/lab", plain_file())
    made.write("MCPServers/stubborn", python_file(IGNORES_SIGTERM))
    return made


@pytest.fixture
def client(lab: Lab) -> Iterator[MCPClient]:
    sessions = McpSessions()
    yield MCPClient(sessions)
    sessions.close()


def pid(client: MCPClient, server: str) -> int:
    return int(client.call_tool(server, "pid"))


def stop_a_call(client: MCPClient, server: str, begun: Path, ready: Callable[[], object] | None = None) -> None:
    """Cancel the request of a call that would take five minutes when it has begun, or when it is ``ready``."""
    request = RequestContext()
    begun.unlink(missing_ok=True)

    def cancel() -> None:
        (ready or (lambda: until(begun.exists)))()
        request.cancel_scope.cancel()

    threading.Thread(target=cancel, daemon=True).start()
    with request_scope(request), pytest.raises(EarlyTerminationException):
        client.call_tool(server, "block", {"seconds": 300, "begun": str(begun)}, timeout=360)


@pytest.mark.parametrize("server", ["lab", "stubborn"])
def test_busy_server_of_a_stopped_call(client: MCPClient, tmp_path: Path, server: str) -> None:
    process = pid(client, server)
    stop_a_call(client, server, tmp_path / "begun")
    assert ends(process, SOON)


@pytest.mark.parametrize("server", ["lab", "stubborn"])
def test_kill_leaves_no_server(lab: Lab, server: str) -> None:
    """Whatever it does, and although nobody waits for it."""
    lab.write("MCPServers/lab", plain_file(env={"LINGER": "300"}))
    sessions = McpSessions()
    process = pid(MCPClient(sessions), server)
    sessions.kill()
    assert ends(process, SOON)
    sessions.kill()
    sessions.close()


def test_kill_without_sessions() -> None:
    McpSessions().kill()


def test_busy_server_of_a_call_that_took_too_long(client: MCPClient) -> None:
    process = pid(client, "lab")
    with pytest.raises(MCPToolCallError):
        client.call_tool("lab", "block", {"seconds": 300}, timeout=0.2)
    assert ends(process, SOON)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a server's children when the server has ended")
def test_child_of_a_server_that_is_still_connecting(lab: Lab, client: MCPClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SOON)
        lab.write("MCPServers/parent", python_file(MAKES_A_CHILD % listener.getsockname()[1]))
        pid(client, "lab")  # the package is loaded
        children: list[socket.socket] = []
        stop_a_call(client, "parent", lab.root / "begun", lambda: children.append(listener.accept()[0]))
        with children[0] as connection:
            connection.settimeout(SOON)
            assert connection.recv(1) == b""  # nobody holds its other end


@pytest.mark.slow
def test_server_without_a_call_has_time_to_end(lab: Lab, client: MCPClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its input ends; it may take a second to write down what it knows."""
    monkeypatch.setattr("Middleware.workflows.tools.mcp.mcp_sessions.END_SECONDS", PACKAGE_WAITS)
    ended = lab.root / "ended"
    lab.write("MCPServers/slow", plain_file(env={"LINGER": 1, "ENDED": str(ended)}))
    process = pid(client, "slow")
    lab.write("MCPServers/slow", plain_file())
    assert pid(client, "slow") != process
    assert ends(process, SOON)
    assert ended.read_text(encoding="utf-8") == "by itself"


# Of a server that runs: its input and output, and what tells of its errors and its end.
PIPES = 4


def pipes() -> int:
    """How many ends of pipes this process has."""
    folder = Path("/proc/self/fd")
    found = 0
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # the one with which the folder is read
            found += os.readlink(folder / name).startswith("pipe:")
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell the kind of a descriptor in /proc")
def test_a_stopped_server_gives_its_descriptors_back(lab: Lab, client: MCPClient) -> None:
    """Whatever stopped it; those of a server that leaves a child behind, which has the other ends, with that child."""
    pid(client, "lab")
    running = pipes()
    for server in ("lab", "stubborn"):
        pid(client, server)
        stop_a_call(client, server, lab.root / "begun")
    before = running - PIPES
    assert until(lambda: pipes() == before)
    for _ in range(3):
        os.kill(pid(client, "lab"), signal.SIGKILL)
        assert until(lambda: pipes() == before)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = ["-c", WAITS, str(listener.getsockname()[1])]
        lab.write(
            "MCPServers/parent",
            python_file(
                f"import runpy, subprocess, sys\nsubprocess.Popen([sys.executable, *{child!r}], "
                f"start_new_session=True)\n"
                f"sys.argv = [{str(PLAIN)!r}]\nrunpy.run_path({str(PLAIN)!r}, run_name='__main__')"
            ),
        )
        server_id = pid(client, "parent")
        connection, _ = listener.accept()
        os.kill(server_id, signal.SIGKILL)
        assert pipes() == before + PIPES
        connection.close()
    assert until(lambda: pipes() == before)
