"""Whatever becomes of the folder of the run console, requests are answered as before and the log says it once."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from Tests.integration.console_server import Console
from Tests.integration.launcher import Backend
from Tests.patience import PATIENCE
from Tests.workflows.engine_lab import until

if sys.platform != "linux":
    pytest.skip("limits of other processes are set on Linux only", allow_module_level=True)
import resource


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    with Backend() as backend:
        console = Console(tmp_path, backend, "run_waitress.py", "--record", "texts")
        with console.server:
            console.sign_in()
            yield console


def ask(console: Console, count: int = 3) -> str:
    """Send requests, which are all answered; return the id of the last one."""
    answers = [console.server.ask("Single") for _ in range(count)]
    assert [(answer.status, answer.text) for answer in answers] == [(200, "single says hello.")] * count
    return str(answers[-1].headers["x-request-id"])


def on_disk(console: Console) -> int:
    runs: int = console.call("GET", "settings")["used"]["runs"]
    return runs


def test_a_deleted_folder_a_damaged_file_and_a_full_disk_harm_no_request(console: Console) -> None:
    folder = console.tree.public / "Console"
    first = ask(console)
    assert until(lambda: on_disk(console) == 3)
    segment = next(folder.glob("seg-*.db"))
    with segment.open("r+b") as file:
        file.write(b"nothing like a database" * 500)
    for path in folder.glob("seg-*.db-*"):
        path.write_bytes(b"nor this")
    ask(console)
    assert console.call("GET", f"runs/{first}")["run"]["status"] == "ok"

    shutil.rmtree(folder)
    last = ask(console)
    # The sessions were in the folder, too.
    assert console.call("GET", "session", status=401)
    assert until(lambda: any(folder.glob("seg-*.db")))
    console.token = ""
    console.sign_in()
    assert until(lambda: on_disk(console) >= 3) and console.call("GET", f"runs/{last}")["run"]["texts"] == "kept"

    # As on a full disk, no file grows any more.
    assert console.server.process is not None
    _, hard = resource.prlimit(console.server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(console.server.process.pid, resource.RLIMIT_FSIZE, (131_072, hard))
    # What is asked quickly is written together, which the files have room for: only some pieces of writing fill them.
    end = time.monotonic() + 60
    while "Runs are not written" not in console.server.output() and time.monotonic() < end:
        last = ask(console)
        time.sleep(0.1)
    assert console.call("GET", f"runs/{last}")["run"]["status"] == "ok"
    output = console.server.wait_output("Runs are not written", timeout=PATIENCE)
    assert output.count("Runs are not written") == 1 and "Traceback" not in output
    # The page is still served, and the list is that of the memory.
    assert last in [run["id"] for run in console.runs()]
