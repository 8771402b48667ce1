"""Several real servers on one socket: requests spread over them, and they are replaced without a cut answer."""
from __future__ import annotations

import contextlib
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from Tests.integration.launcher import (
    PROJECT,
    USER,
    Backend,
    Launcher,
    dechunked,
    read_to_end,
    says,
    sse_payloads,
    standard_tree,
    streamed_text,
)
from Tests.workflows.engine_lab import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send these signals to one process")

COUNT = 3
LONG = 600
PROGRAM = textwrap.dedent("""
    import os, runpy, socket, sys
    sys.path.insert(0, {root!r})
    from Middleware.cli.worker_processes import become_parent
    from Middleware.common.constants import CHILD_VARIABLE
    if CHILD_VARIABLE not in os.environ:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        sys.exit(become_parent(sock, {count}))
    sys.argv[0] = {program!r}
    runpy.run_path(sys.argv[0], run_name="__main__")
""")


@pytest.fixture
def server(tmp_path: Path, backend: Backend) -> Iterator[Launcher]:
    tree = standard_tree(tmp_path / "Public", backend.url)
    program = tmp_path / "several.py"
    launcher = str(PROJECT / "run_waitress.py")
    program.write_text(PROGRAM.format(root=str(PROJECT), count=COUNT, program=launcher), encoding="utf-8")
    with Launcher(str(program), "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0",
                  "--drain-seconds", str(LONG), "--file-logging", "--LoggingDirectory", tmp_path / "logs",
                  backend=backend) as server:
        assert server.process is not None
        children = []
        try:
            # Each says once that it listens.
            assert until(lambda: server.output().count("Listening on:") == COUNT, 120)
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


def test_three_processes_serve_and_a_signal_leaves_none(server: Launcher, backend: Backend, tmp_path: Path) -> None:
    assert server.process is not None
    children = _children(server)
    assert len(children) == COUNT
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
