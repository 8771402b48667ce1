"""Commands and servers whose output nobody reads: a pipe whose reader goes, a stream that is closed, a full disk."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.cli.commands import all_commands
from Middleware.cli.standard_streams import READER_GONE
from Tests.amounts import alternate
from Tests.free_ports import free_port
from Tests.integration.launcher import (
    LAUNCHERS,
    PROJECT,
    START_SECONDS,
    USER,
    Backend,
    ConfigTree,
    Launcher,
    clean_environment,
    standard_tree,
    stuck,
)
from Tests.tables import table

pytestmark = pytest.mark.slow
posix = pytest.mark.skipif(sys.platform == "win32", reason="closed descriptors, /dev/full")

SCRIPTS = sorted(path.name for path in (PROJECT / "Scripts").glob("*.py") if path.name != "__init__.py")

# Each prints something on standard output. {...}: a place of the test.
LINES = {
    "help": "help",
    "init": "init --yes --backend {backend} --user new",
    "check": "check",
    "test": "test",
    "try": "try Single Hello",
    "chat": "chat Single",
    "keys": "keys new",
    "console": "console --help",
    "memory": "memory list --json",
    "rekey": "rekey --help",
    "state": "state --help",
    "access_key.py": "",
    "memory_tool.py": "list {place}",
    "rekey_encrypted_files.py": "--help",
    "backfill_embeddings.py": "--help",
    "config_schemas.py": "--vscode {public}",
}
# A server, which nothing but its end ends.
SERVERS = ("demo_backend.py",)


@pytest.fixture
def backend() -> Iterator[Backend]:
    with Backend() as backend:
        yield backend


@pytest.fixture
def tree(backend: Backend, tmp_path: Path) -> ConfigTree:
    tree = standard_tree(tmp_path / "Public", backend.url)
    tree.write(
        "Workflows/_shared/Single.test.json",
        {
            "tests": [
                {
                    "name": "one",
                    "messages": [{"role": "user", "content": "Hello"}],
                    "replies": {"Hello": "Hi"},
                    "expect": {"answer": "Hi"},
                }
            ]
        },
    )
    return tree


def command_line(name: str, words: str, tree: ConfigTree, backend: Backend) -> list[str]:
    place = ["--PublicDirectory", str(tree.public)]
    filled = [
        piece
        for word in shlex.split(words)
        for piece in (place if word == "{place}" else [word.format(backend=backend.url, public=tree.public)])
    ]
    program = ["-m", f"Scripts.{Path(name).stem}"] if name in SCRIPTS else [str(PROJECT / "run_waitress.py")]
    return [sys.executable, *program, *filled, *(place if name in all_commands() and name != "help" else [])]


def run(command: list[str], stdout: int, **options: object) -> tuple[int, str]:
    """Run to the end, and return its status and its standard error."""
    ended = subprocess.run(
        command,
        stdout=stdout,
        stderr=subprocess.PIPE,
        input="Hello\n",
        encoding="utf-8",
        cwd=PROJECT,
        env=clean_environment(),
        timeout=120,
        **options,
    )  # type: ignore[call-overload]
    return ended.returncode, ended.stderr


def without_notes(errors: str) -> str:
    """The lines of standard error without those that ``try`` and ``chat`` print about their connection."""
    return "".join(line for line in errors.splitlines(True) if not line.startswith(("[", "Chat with ")))


def test_every_command_and_script_has_a_row() -> None:
    assert sorted(LINES) == sorted({*all_commands(), *SCRIPTS}.difference(SERVERS))


@pytest.mark.amounts
@table("name", alternate(LINES, 2))
def test_it_ends_without_a_word_when_its_reader_has_gone(name: str, tree: ConfigTree, backend: Backend) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        status, errors = run(command_line(name, LINES[name], tree, backend), writer)
    finally:
        os.close(writer)
    assert (status, without_notes(errors)) == (READER_GONE, "")


@posix
@pytest.mark.amounts
@table("name", alternate(LINES, 2, 1))
def test_a_stream_that_is_closed_from_the_beginning_is_none_of_its_business(
    name: str, tree: ConfigTree, backend: Backend
) -> None:
    command = command_line(name, LINES[name], tree, backend)
    status, errors = run(["sh", "-c", 'exec "$@" >&-', "sh", *command], subprocess.DEVNULL)
    # What the command has found may be a mistake.
    assert status in (0, 1, 2)
    assert all(line.startswith("ERROR: No LLM server") for line in without_notes(errors).splitlines())


@posix
@table("name", ["check", "try", "memory", "access_key.py"])
def test_an_output_that_cannot_be_written_is_said_once(name: str, tree: ConfigTree, backend: Backend) -> None:
    with open("/dev/full", "wb") as full:
        status, errors = run(command_line(name, LINES[name], tree, backend), full.fileno())
    assert (status, without_notes(errors)) == (1, "ERROR: The output cannot be written: No space left on device.\n")


@pytest.mark.parametrize("where", ["engine", "engine under Eventlet", "server"])
def test_the_reader_of_an_answer_goes_in_the_middle(where: str, tree: ConfigTree, backend: Backend) -> None:
    """``try ... | head -c 30``: the call of the LLM ends, too."""
    # More than a pipe holds, so that the answer is under way when its reader goes.
    backend.replies["single"] = stuck(*["many words " * 10] * 2000)
    with contextlib.ExitStack() as stack:
        if where == "server":
            stack.enter_context(Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER))
        command = command_line("try", f"try Single '{backend.hello}'", tree, backend)
        if where == "engine under Eventlet":
            command[1] = str(PROJECT / "run_eventlet.py")
        process = stack.enter_context(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=tempfile.gettempdir(),
                env=clean_environment(),
            )
        )
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(30).startswith(b"many words")
        process.stdout.close()
        try:
            status = process.wait(60)
        finally:
            process.kill()
        assert (status, without_notes(process.stderr.read().decode("utf-8"))) == (READER_GONE, "")
    assert backend.calls("single")[-1].wait_ended(60)


@table("script", LAUNCHERS)
def test_a_server_goes_on_without_a_reader(script: str, tree: ConfigTree, backend: Backend) -> None:
    """The reader of its banner goes (``bash run_linux.sh | head -1``)."""
    port, (reader, writer) = free_port(), os.pipe()
    os.close(reader)
    command = [
        sys.executable,
        str(PROJECT / script),
        "--port",
        str(port),
        "--User",
        USER,
        "--PublicDirectory",
        str(tree.public),
    ]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=tempfile.gettempdir(),
        env=clean_environment(),
    ) as process:
        os.close(writer)
        try:
            answer = answer_of(port, process)
        finally:
            process.terminate()
        assert process.stderr is not None
        errors = process.stderr.read().decode("utf-8")
    assert b"says hello" in answer
    assert process.returncode == (0 if os.name != "nt" else 1) and "Traceback" not in errors and "Pipe" not in errors


def answer_of(port: int, process: subprocess.Popen[bytes]) -> bytes:
    """The answer of a server to a chat, as soon as it listens. Raises AssertionError if it ends before."""
    body = {"model": "Single", "messages": [{"role": "user", "content": "Hello"}]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                data: bytes = response.read()
                return data
        except urllib.error.URLError:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
