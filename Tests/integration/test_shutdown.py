"""The end of each launcher on a signal, while requests are in every state."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from Tests.api.front_dialects import FRONTS, Front, openai_message
from Tests.integration.launcher import (
    PROJECT,
    SERVER,
    START_SECONDS,
    USER,
    Backend,
    ConfigTree,
    Launcher,
    clean_environment,
    dechunked,
    llm_node,
    read_to_end,
    read_until,
    says,
    sse_payloads,
    standard_tree,
    stuck,
)
from Tests.integration.prelude import launcher_after, patience
from Tests.patience import CLIENT_PATIENCE, PATIENCE
from Tests.stub_backend import Reply
from Tests.workflows.engine_lab import until
from Tests.workflows.tools.mcp.mcp_lab import plain_file

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send these signals to one process")

STOPS = "The server is stopping."
LIMIT = 300.0
"""Seconds that nodes after an answer have at the end, instead of ten: a server that uses them up ends too late."""
HANGING = 300
QUIET_SECONDS = 1.0
SIGNALLED = """
import runpy, signal, sys
program, module, number = sys.argv[1:4]

class Finder:
    def find_spec(self, name, *rest):
        if name == module:
            signal.raise_signal(int(number))

sys.meta_path.insert(0, Finder())
sys.argv = [program, *sys.argv[4:]]
runpy.run_path(program, run_name="__main__")
"""
HANGS = """
import subprocess, sys, threading, time
def Invoke(folder):
    threading.Thread(target=time.sleep, args=(HANGING,), name="of a script").start()
    code = "import os, time; open(r'%s/child.new', 'w').write(str(os.getpid())); " \\
           "os.rename(r'%s/child.new', r'%s/child'); time.sleep(HANGING)" % ((folder,) * 3)
    child = subprocess.Popen([sys.executable, "-S", "-c", code])
    while True:
        time.sleep(HANGING)
""".replace("HANGING", str(HANGING))


@pytest.fixture(autouse=True)
def default_interrupt() -> Iterator[None]:
    """Have children react to Ctrl-C: a shell that starts the tests in the background has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def tree(tmp_path: Path, backend: Backend) -> ConfigTree:
    made = standard_tree(tmp_path / "Public", backend.url)
    script = made.public / "hangs.py"
    script.write_text(HANGS, encoding="utf-8")
    made.write("MCPServers/plain.json", plain_file())
    made.shared("Hang", {"type": "PythonModule", "module_path": str(script), "args": [str(tmp_path)]})
    made.shared("Tool", {"type": "MCPToolCall", "server": "plain", "tool": "pid"})
    made.shared(
        "Locked",
        llm_node("answer", returnToUser=True),
        {"type": "WorkflowLock", "workflowLockId": "memories"},
        llm_node("slow"),
        llm_node("late"),
    )
    return made


def launch(script: str, tree: ConfigTree, backend: Backend) -> Launcher:
    changed = launcher_after(tree.public.parent, script, *patience(SHUTDOWN_SECONDS=LIMIT))
    return Launcher(changed, "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0", backend=backend)


def locks(tree: ConfigTree) -> list[Any]:
    (file,) = tree.public.rglob(f"WilmerDb.{USER}.sqlite")
    with contextlib.closing(sqlite3.connect(file)) as database:
        return database.execute("SELECT WorkflowLockId FROM WorkflowLocks").fetchall()


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_by(server: Launcher, number: int) -> None:
    """Send a signal, upon which the process has to end, with status 0."""
    assert server.process is not None
    server.process.send_signal(number)
    assert server.process.wait(PATIENCE) == 0


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What the slow node after an answer waits for."""
    event = threading.Event()
    yield event
    event.set()


def body_of(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def assert_refused(answer: bytes) -> None:
    """A whole answer that was not complete."""
    assert answer.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 5" in answer
    assert openai_message(body_of(answer), 503) == STOPS


@pytest.mark.contract(SERVER)
def test_requests_in_every_state(
    script: str, tree: ConfigTree, backend: Backend, tmp_path: Path, release: threading.Event
) -> None:
    """A stream, a whole answer and a script are cut short; the nodes after an answer come to their end."""
    backend.replies.update(
        single=stuck("Once ", "upon ", "a "),
        first=Reply(never=True),
        slow=lambda request: says(request, "slow", held=release),
    )
    with launch(script, tree, backend) as server:
        tool = int(server.ask("Tool").text)
        with (
            server.open("Single", stream=True) as streamed,
            server.open("Chain", stream=False) as whole,
            server.open("Hang", stream=False) as hanging,
        ):
            begun = read_until(streamed, b"upon")
            backend.wait_call("first")
            assert until((tmp_path / "child").exists)
            child = int((tmp_path / "child").read_text(encoding="utf-8"))
            assert runs(tool) and runs(child)
            server.ask("Locked")
            slow = backend.wait_call("slow")
            assert locks(tree) == [("memories",)]
            assert server.process is not None
            server.process.send_signal(signal.SIGTERM)
            server.wait_output("stopping: requests cancelled: ")
            payloads = sse_payloads(begun + read_to_end(streamed))
            assert not slow.wait_ended(QUIET_SECONDS) and server.process.poll() is None
            release.set()
            assert server.process.wait(PATIENCE) == 0
            assert_refused(read_to_end(whole))
            assert_refused(read_to_end(hanging))
        assert openai_message(json.loads(payloads[-2]), 503) == STOPS and payloads[-1] == "[DONE]"
        assert slow.answered_at is not None and not slow.client_left and backend.calls("late")
        assert locks(tree) == []
        assert not runs(tool) and not runs(child)
        output = server.output()
    assert (
        "stopping: requests cancelled: 3, finishing their background nodes (up to 300 s): 1; Ctrl-C again ends at once"
    ) in output
    assert output.rstrip().endswith("stopped")
    assert re.search(r"hangs\.py of request \S+ does not end", output)
    assert "Traceback" not in output and "ERROR" not in output


@pytest.mark.contract
def test_no_answer_that_was_cut_looks_complete(script: str, tree: ConfigTree, backend: Backend) -> None:
    """In every dialect: a stream with text, one of which only heartbeats came, and a whole answer."""
    backend.replies.update(single=stuck("Once ", "upon ", "a "), first=Reply(never=True))
    with launch(script, tree, backend) as server, contextlib.ExitStack() as open_:

        def started(model: str, stream: bool) -> list[tuple[Front, socket.socket]]:
            return [(front, open_.enter_context(server.open_front(front, model, stream))) for front in FRONTS]

        begun = started("Single", True)
        silent = started("Chain", True)
        whole = started("Chain", False)
        heads = [read_until(sock, b"upon") for _, sock in begun] + [read_until(sock, b"200 OK") for _, sock in silent]
        assert until(lambda: len(backend.calls("first")) == 2 * len(FRONTS))
        end_by(server, signal.SIGTERM)
        for (front, sock), head in zip(begun + silent, heads, strict=True):
            items = front.items(dechunked(head + read_to_end(sock)))
            assert front.error(items[-1], 503) == STOPS and not any(map(front.finish, items[:-1]))
        for front, sock in whole:
            answer = read_to_end(sock)
            assert answer.startswith(b"HTTP/1.1 503 ") and front.error(body_of(answer), 503) == STOPS
        assert "Traceback" not in server.output()


@pytest.mark.contract
def test_a_second_signal_ends_it_at_once(script: str, tree: ConfigTree, backend: Backend, tmp_path: Path) -> None:
    """Nodes after an answer are waited for, but only until the operator asks again."""
    backend.replies["slow"] = Reply(never=True)
    with launch(script, tree, backend) as server:
        assert server.process is not None
        server.ask("Locked")
        backend.wait_call("slow")
        with server.open("Hang", stream=True):
            assert until((tmp_path / "child").exists)
            server.process.send_signal(signal.SIGTERM)
            server.wait_output("stopping: requests cancelled: 1, finishing their background nodes (up to 300 s): 1")
            time.sleep(0.2)
            assert server.process.poll() is None
            end_by(server, signal.SIGINT)
        # It was killed, but may need a turn of the processor to end.
        child = int((tmp_path / "child").read_text(encoding="utf-8"))
        assert until(lambda: not runs(child)), server.output()
        assert locks(tree) == []
        output = server.output()
    assert output.rstrip().endswith("stopped")
    assert "Traceback" not in output and "Exception ignored" not in output and "ERROR" not in output


def test_a_second_signal_leaves_no_mcp_server(tree: ConfigTree, backend: Backend) -> None:
    """Also of one that does not end when its input does."""
    tree.write("MCPServers/plain.json", plain_file(env={"LINGER": str(HANGING)}))
    with launch("run_waitress.py", tree, backend) as server:
        assert server.process is not None
        tool = int(server.ask("Tool").text)
        server.process.send_signal(signal.SIGINT)
        # The run's own end may still be under way on a busy machine.
        server.wait_output("stopping: ")
        end_by(server, signal.SIGINT)
        assert until(lambda: not runs(tool))


@pytest.mark.parametrize(("module", "number"), [("Middleware.cli.startup", signal.SIGINT), ("flask", signal.SIGTERM)])
@pytest.mark.contract
def test_a_signal_during_the_start(module: str, script: str, number: signal.Signals, tree: ConfigTree) -> None:
    """It comes while ``module`` is looked for."""
    program = PROJECT / script
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            SIGNALLED,
            str(program),
            module,
            str(int(number)),
            "--port",
            "0",
            "--PublicDirectory",
            str(tree.public),
        ],
        capture_output=True,
        timeout=START_SECONDS,
        cwd=PROJECT,
        env=clean_environment(),
    )
    assert (ended.returncode, ended.stderr.count(b"Traceback")) == (0, 0), ended.stderr.decode()
    assert b"Listening" not in ended.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
@pytest.mark.contract
def test_closing_the_terminal_is_an_orderly_stop(
    script: str, tree: ConfigTree, backend: Backend, release: threading.Event
) -> None:
    """A terminal may say so twice: that is no second wish."""
    hang_up: int = signal.SIGHUP  # type: ignore[attr-defined,unused-ignore]
    backend.replies["slow"] = lambda request: says(request, "slow", held=release)
    with launch(script, tree, backend) as server:
        assert server.process is not None
        server.ask("Locked")
        slow = backend.wait_call("slow")
        server.process.send_signal(hang_up)
        server.wait_output("Ctrl-C again ends at once")
        server.process.send_signal(hang_up)
        assert not slow.wait_ended(QUIET_SECONDS)  # a second wish would end it at once
        release.set()
        assert server.process.wait(PATIENCE) == 0
        assert slow.answered_at is not None and not slow.client_left and locks(tree) == []
        assert server.output().rstrip().endswith("stopped")


def test_an_idle_server_ends_on_ctrl_c(script: str, tree: ConfigTree, backend: Backend) -> None:
    with launch(script, tree, backend) as server:
        server.ask("Single")
        server.wait_output("done after")
        end_by(server, signal.SIGINT)
        output = server.output()
    assert "stopping: no request is under way" in output and "Traceback" not in output


def test_a_request_on_a_kept_connection_is_refused_while_the_server_stops(
    tree: ConfigTree, backend: Backend, release: threading.Event
) -> None:
    backend.replies["slow"] = lambda request: says(request, "slow", held=release)
    with launch("run_waitress.py", tree, backend) as server:
        assert server.process is not None
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=CLIENT_PATIENCE)
        connection.request("GET", "/v1/models")
        connection.getresponse().read()
        server.ask("Background")
        backend.wait_call("slow")
        server.process.send_signal(signal.SIGTERM)
        server.wait_output("stopping: requests cancelled: 0, finishing")
        for path, message in (
            ("/v1/chat/completions", {"message": "The server is stopping."}),
            ("/api/chat", "The server is stopping."),
        ):
            connection.request(
                "POST", path, json.dumps({"model": "Single", "messages": []}), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            error = json.loads(response.read())["error"]
            assert response.status == 503 and response.headers["Retry-After"] == "5"
            assert error == message if isinstance(message, str) else error["message"] == message["message"]
        with pytest.raises(ConnectionError):
            server.request("GET", "/v1/models")
        release.set()
        assert server.process.wait(PATIENCE) == 0
        connection.close()
        assert backend.nodes() == ["answer", "slow", "late"]
