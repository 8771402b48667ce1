"""The end of a launcher with ``--drain-seconds``: what is under way goes on, and nothing new is accepted."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from Tests.integration.launcher import (
    USER,
    Backend,
    ConfigTree,
    Launcher,
    dechunked,
    read_to_end,
    read_until,
    says,
    sse_payloads,
    standard_tree,
    streamed_text,
    stuck,
)
from Tests.stub_backend import RecordedRequest, Reply
from Tests.workflows.engine_lab import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send these signals to one process")

# Far longer than any test takes.
LONG = 600
DRAINS = "stopping: requests that may go on for up to"


@pytest.fixture
def tree(tmp_path: Path, backend: Backend) -> ConfigTree:
    return standard_tree(tmp_path / "Public", backend.url)


def launch(script: str, tree: ConfigTree, backend: Backend, seconds: float) -> Launcher:
    return Launcher(
        script,
        "--PublicDirectory",
        tree.public,
        "--User",
        USER,
        "--concurrency",
        "0",
        "--drain-seconds",
        str(seconds),
        backend=backend,
    )


def stop(server: Launcher) -> None:
    """Ask the server to end, and return when it no longer accepts connections."""
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    assert until(lambda: is_refused(server), 60)


def is_refused(server: Launcher) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=10).close()
    except ConnectionError:
        return True
    return False


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Replies of the back-end wait for it."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.contract
def test_what_is_under_way_comes_to_its_end(
    script: str, tree: ConfigTree, backend: Backend, released: threading.Event
) -> None:
    """A stream, a whole answer and the nodes after an answer; the process ends when they have."""

    def later(request: RecordedRequest) -> Reply:
        return says(request, "late", held=released)

    backend.replies.update(single=later, first=later, slow=later)
    with launch(script, tree, backend, LONG) as server:
        assert server.process is not None
        server.ask("Background")
        backend.wait_call("slow", 60)
        with server.open("Single", stream=False) as whole, server.open("Chain", stream=True) as streamed:
            backend.wait_call("single", 60)
            backend.wait_call("first", 60)
            stop(server)
            assert server.process.poll() is None
            released.set()
            answer, stream = read_to_end(whole, 60), dechunked(read_to_end(streamed, 60))
        assert server.process.wait(60) == 0
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ") and b"connection: close" in head.lower()
        assert json.loads(body)["choices"][0]["message"]["content"] == "late says hello."
        assert sse_payloads(stream)[-1] == "[DONE]" and streamed_text(stream)
        assert {"slow", "late", "third"} <= set(backend.nodes())
        output = server.output()
    assert f"{DRAINS} {LONG} s: 3; Ctrl-C again ends at once" in output
    assert "stopping: no request is under way" in output and output.rstrip().endswith("stopped")
    assert "Traceback" not in output and "ERROR" not in output


@pytest.mark.contract
def test_when_the_time_is_up_the_rest_is_cancelled(script: str, tree: ConfigTree, backend: Backend) -> None:
    backend.replies.update(single=stuck("Once ", "upon ", "a "))
    with launch(script, tree, backend, 0.5) as server, server.open("Single", stream=True) as streamed:
        assert server.process is not None
        begun = read_until(streamed, b"upon", 60)
        stop(server)
        payloads = sse_payloads(begun + read_to_end(streamed, 60))
        assert json.loads(payloads[-2])["error"]["message"] == "The server is stopping."
        assert server.process.wait(60) == 0
        assert f"{DRAINS} 0.5 s: 1" in server.output() and "stopping: requests cancelled: 1" in server.output()


@pytest.mark.contract
def test_a_second_signal_ends_it_at_once(script: str, tree: ConfigTree, backend: Backend) -> None:
    backend.replies.update(single=Reply(never=True))
    with launch(script, tree, backend, LONG) as server, server.open("Single", stream=False):
        assert server.process is not None
        backend.wait_call("single", 60)
        stop(server)
        server.wait_output(DRAINS, 60)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert "stopping at once" in server.output() and "requests cancelled" not in server.output()


def test_an_idle_server_and_its_kept_connections_end(tree: ConfigTree, backend: Backend) -> None:
    with launch("run_waitress.py", tree, backend, LONG) as server:
        assert server.process is not None
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("GET", "/health")
        assert connection.getresponse().read() and connection.sock is not None
        stop(server)
        assert connection.sock.recv(1) == b""
        assert server.process.wait(60) == 0
        connection.close()
        assert DRAINS not in server.output()
