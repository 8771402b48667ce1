"""Several real servers on one socket: requests spread over them, and they are replaced without a cut answer."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from Middleware.common.constants import VERSION
from Tests.integration.console_server import Console
from Tests.integration.launcher import (
    LAUNCHERS,
    USER,
    Backend,
    Launcher,
    dechunked,
    read_to_end,
    run_launcher,
    says,
    sse_payloads,
    standard_tree,
    streamed_text,
)
from Tests.workflows.engine_lab import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send these signals to one process")

COUNT = 2
LONG = 600


@pytest.fixture
def server(tmp_path: Path, backend: Backend, database_url: str) -> Iterator[Launcher]:
    tree = standard_tree(tmp_path / "Public", backend.url)
    with Launcher(
        "run_waitress.py",
        "--PublicDirectory",
        tree.public,
        "--User",
        USER,
        "--concurrency",
        "0",
        "--drain-seconds",
        str(LONG),
        "--file-logging",
        "--LoggingDirectory",
        tmp_path / "logs",
        "--database",
        database_url,
        "--workers",
        str(COUNT),
        backend=backend,
    ) as server:
        assert server.process is not None
        children = []
        try:
            assert until(lambda: server.output().count(") serves\n") == COUNT, 120)
            children = psutil.Process(server.process.pid).children()
            yield server
        finally:
            for child in [*children, *_children(server)]:
                with contextlib.suppress(psutil.Error):
                    child.kill()


def _children(server: Launcher) -> list[psutil.Process]:
    assert server.process is not None
    with contextlib.suppress(psutil.Error):
        return psutil.Process(server.process.pid).children()
    return []


def test_all_processes_serve_and_a_signal_leaves_none(server: Launcher, backend: Backend, tmp_path: Path) -> None:
    assert server.process is not None
    children = _children(server)
    assert len(children) == COUNT and psutil.Process(server.process.pid).memory_info().rss < 25 * 1024 * 1024
    # What holds for all is said once.
    output = server.output()
    assert output.count(f"WilmerAI {VERSION}\n") == output.count("Listening on:") == output.count("Console:") == 1
    assert f", {COUNT} workers on this address\n" in output
    assert sorted(int(number) for number in re.findall(r"^Worker (\d+) \(process \d+\) serves$", output, re.M)) == list(
        range(1, COUNT + 1)
    )
    for _ in range(20):
        assert server.ask("Single").status == 200
    logs = {file.name: file.read_text("utf-8") for file in (tmp_path / "logs").iterdir()}
    assert sorted(logs) == [f"wilmerai-{number}.log" for number in range(1, COUNT + 1)]
    assert sum(text.count("POST /v1/chat/completions") for text in logs.values()) == 20
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert not any(child.is_running() for child in children)
    output = server.output()
    assert output.count("stopping: no request is under way") == COUNT and "Traceback" not in output


def test_all_are_replaced_without_a_cut_answer(server: Launcher, backend: Backend) -> None:
    roll: int = signal.SIGUSR1  # type: ignore[attr-defined,unused-ignore]
    assert server.process is not None
    released = threading.Event()
    before = {child.pid for child in _children(server)}
    backend.replies.update(first=lambda request: says(request, "first", held=released))
    with contextlib.ExitStack() as open_:
        open_.callback(released.set)
        streams = [open_.enter_context(server.open("Chain", stream=True)) for _ in range(9)]
        backend.wait_call("first", 60, count=9)
        server.process.send_signal(roll)
        server.wait_output("stopping: requests that may go on", 60)
        assert server.ask("Single").status == 200
        released.set()
        answers = [dechunked(read_to_end(stream, 60)) for stream in streams]
    for answer in answers:
        assert sse_payloads(answer)[-1] == "[DONE]" and "second" in streamed_text(answer)
    while server.output().count("was replaced") < COUNT:
        assert server.ask("Single").status == 200
    after = {child.pid for child in _children(server)}
    assert len(after) == COUNT and not before & after


def test_a_browser_is_signed_in_with_all_of_them(tmp_path: Path, backend: Backend, database_url: str) -> None:
    """Each call may get to another process: after all were replaced, it does."""
    roll: int = signal.SIGUSR1  # type: ignore[attr-defined,unused-ignore]
    console = Console(tmp_path, backend, "run_waitress.py", "--database", database_url, "--workers", str(COUNT))
    with console.server as server:
        assert server.process is not None
        try:
            assert until(lambda: server.output().count(") serves\n") == COUNT, 120)
            tokens = [console.call("POST", "session", {"key": "a-key-of-a-client"})["token"]]
            console.sign_in()
            tokens.append(console.token)
            assert server.ask("Single").status == 200
            assert until(lambda: [run["status"] for run in console.runs()] == ["ok"], 60)
            server.process.send_signal(roll)
            assert until(lambda: server.output().count("was replaced") == COUNT, 120)
            for token in tokens:
                console.token = token
                assert {console.call("GET", "session")["role"] for _ in range(20)} == {
                    "own" if token == tokens[0] else "operator"
                }
            assert len(console.runs()) == 1
            console.token = tokens[0]
            console.call("DELETE", "session")
            for _ in range(20):
                console.call("GET", "session", status=401)
        finally:
            for child in _children(server):
                with contextlib.suppress(psutil.Error):
                    child.kill()


@pytest.mark.parametrize("launcher", LAUNCHERS[1:])
def test_other_launchers_start_one_process_only(launcher: str) -> None:
    done = run_launcher(launcher, "--workers", "2", "--database", "postgresql://localhost/none", timeout=120)
    assert done.returncode == 1 and "run_waitress.py" in done.stderr and "Traceback" not in done.stderr


def test_several_processes_need_a_database() -> None:
    done = run_launcher("run_waitress.py", "--workers", "2", timeout=120)
    assert done.returncode == 2 and "--workers needs --database" in done.stderr


def test_a_database_that_cannot_be_used_ends_all(tmp_path: Path, backend: Backend) -> None:
    tree = standard_tree(tmp_path / "Public", backend.url)
    done = run_launcher(
        "run_waitress.py",
        "--PublicDirectory",
        tree.public,
        "--User",
        USER,
        "--port",
        "0",
        "--workers",
        "2",
        "--database",
        "mysql://localhost/none",
        timeout=120,
    )
    assert done.returncode == 1 and "--database" in done.stderr and "Traceback" not in done.stderr
