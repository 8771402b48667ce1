"""The servers' patience with clients and with the system, made small so that its end can be seen."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from Tests.integration.client_faults import START, body, chat, connect, listen
from Tests.integration.launcher import USER, Backend, Launcher, run_launcher, slow, standard_tree
from Tests.integration.prelude import launcher_after, patience
from Tests.integration.test_client_faults import open_with_small_window
from Tests.integration.test_crowds import send_in_vain
from Tests.stub_backend import chat_reply
from Tests.workflows.engine_lab import until

pytestmark = pytest.mark.slow

SECONDS = 1.0
PATIENCE = 30.0  # the limits that were replaced are a minute and more
FILES = 64
ADDRESS_SPACE = 1_000_000_000  # some hundred stacks of threads


@pytest.fixture(scope="module")
def impatient(script: str, shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    folder = tmp_path_factory.mktemp("impatient")
    tree = standard_tree(folder / "Public", shared_backend.url)
    script = launcher_after(
        folder,
        script,
        *patience(IDLE_SECONDS=SECONDS, STALLED_SECONDS=SECONDS, EVENTLET_SECONDS=SECONDS, SWEEP_SECONDS=0.2),
    )
    with Launcher(
        script, "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0", backend=shared_backend
    ) as server:
        yield server


def wait_until_closed(sock: socket.socket) -> None:
    """Wait until the server closes, whatever it says before."""
    sock.settimeout(PATIENCE)
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        pass


UNFINISHED = {"nothing": b"", "half a head": START, "half a body": START + b"Content-Length: 100\r\n\r\n{"}


@pytest.mark.parametrize("data", UNFINISHED.values(), ids=UNFINISHED.keys())
@pytest.mark.contract
def test_silent_clients_are_given_up(impatient: Launcher, data: bytes) -> None:
    began = time.monotonic()
    with connect(impatient.port) as sock:
        sock.sendall(data)
        wait_until_closed(sock)
    assert time.monotonic() - began > SECONDS * 0.8


def test_a_slow_and_steady_upload_is_served(impatient: Launcher, backend: Backend) -> None:
    """On a machine that itself stops for a second now and then, one of several is."""
    data = b"".join(body(b'{"model": "Single", "messages": [{"role": "user", "content": "x"}]}')())

    def served() -> bool:
        with connect(impatient.port) as sock:
            for at in range(0, len(data), 24):
                send_in_vain(sock, data[at : at + 24])
                time.sleep(0.3)
            return listen(sock).status == 200

    assert any(served() for _ in range(8))


def test_a_client_may_wait_long_for_its_answer(impatient: Launcher, backend: Backend) -> None:
    backend.replies["single"] = slow("single", 2.5 * SECONDS)
    assert impatient.ask("Single").text == "single says hello."


@pytest.mark.contract
def test_a_stalled_reader_is_given_up(impatient: Launcher, backend: Backend) -> None:
    with open_with_small_window(impatient, backend):
        call = backend.wait_call("single")
        assert call.wait_ended(PATIENCE) and call.client_left
        assert call.ended_at is not None and call.ended_at - call.received_at > SECONDS / 2
    assert "Traceback" not in impatient.output()


def test_a_stalled_reader_of_a_whole_answer_is_given_up(impatient: Launcher, backend: Backend) -> None:
    """Its work is done; its connection must not stay."""
    size = 8_000_000
    backend.replies["single"] = chat_reply("word " * (size // 5))
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", impatient.port))
        sock.sendall(b"".join(body(chat(backend.hello))()))
        call = backend.wait_call("single")
        assert until(lambda: call.answered_at is not None)
        time.sleep(4 * SECONDS)
        assert size_of_rest(sock) < size, "the server went on to send"


def size_of_rest(sock: socket.socket) -> int:
    """How many bytes come until the connection ends, whatever way it does."""
    total = 0
    sock.settimeout(PATIENCE)
    try:
        while piece := sock.recv(65536):
            total += len(piece)
    except ConnectionError:
        pass
    return total


# -- descriptors -------------------------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    if sys.platform == "win32":
        raise NotImplementedError
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.contract
def test_running_out_of_descriptors(script: str, tmp_path: Path, backend: Backend) -> None:
    tree = standard_tree(tmp_path / "Public", backend.url)
    changed = launcher_after(
        tmp_path, script, "import resource", f"resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))"
    )
    with Launcher(changed, "--PublicDirectory", tree.public, "--User", USER, backend=backend) as server:
        assert server.process is not None
        with ExitStack() as stack:
            for _ in range(FILES + 20):
                stack.enter_context(connect(server.port))
            server.wait_output("No more connections can be accepted")
            if sys.platform == "linux":
                before = cpu_seconds(server.process.pid)
                time.sleep(1)
                assert cpu_seconds(server.process.pid) - before < 0.3
        assert until(lambda: answers(server))
        output = server.output()
        assert server.process.poll() is None and "Traceback" not in output
        assert output.count("No more connections can be accepted") == 1
        server.wait_output("Connections are accepted again")


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on address space that other systems do not have")
@pytest.mark.parametrize("waitress", ["run_waitress.py", "server.py"])
def test_a_start_with_too_little_memory_says_so(waitress: str, tmp_path: Path, backend: Backend) -> None:
    tree = standard_tree(tmp_path / "Public", backend.url)
    changed = launcher_after(
        tmp_path,
        waitress,
        "import resource",
        f"resource.setrlimit(resource.RLIMIT_AS, ({ADDRESS_SPACE}, {ADDRESS_SPACE}))",
    )
    done = run_launcher(changed, "--PublicDirectory", tree.public, "--User", USER)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "ERROR: The address space of this process is too small for the stacks of 512 threads" in done.stderr


def answers(server: Launcher) -> bool:
    try:
        return server.ask("Single").status == 200
    except OSError:
        return False
