"""What a container runs first, and its health check."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.container import health, start
from deploy.container.start import is_program, launcher_words
from Tests.patience import CLIENT_PATIENCE
from Tests.stub_backend import Reply, StubBackend


@pytest.fixture
def public(tmp_path: Path) -> Path:
    folder = tmp_path / "Public"
    folder.mkdir()
    return folder


def test_a_folder_that_cannot_be_filled_is_explained(
    public: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (public.parent / "Defaults").mkdir()
    monkeypatch.setattr(start, "ROOT", public.parent)
    public.rmdir()
    public.write_text("a file", encoding="utf-8")
    assert start.main([]) == 1
    assert f"ERROR: {public} is empty and cannot be filled" in (message := capsys.readouterr().err)
    assert "--user UID:GID" in message


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], ["--listen=0.0.0.0", "--port=5000"]),
        (["--User", "ann"], ["--listen=0.0.0.0", "--port=5000", "--User", "ann"]),
        (["--port", "80"], ["--listen=0.0.0.0", "--port", "80"]),
        (["--port=80", "--listen"], ["--port=80", "--listen"]),
        (["check", "--User", "ann"], ["check", "--User", "ann"]),
    ],
)
def test_command_lines_of_the_launcher(words: list[str], line: list[str]) -> None:
    assert launcher_words(words, "5000") == line


def test_tells_programs_from_flags_and_commands() -> None:
    assert is_program([sys.executable, "x.py"])
    assert not any(map(is_program, ([], ["--listen"], ["check"], ["no-such-program"], [os.path.dirname(__file__)])))


def test_a_program_takes_the_place_of_the_server(public: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "deploy.container.start",
            sys.executable,
            "-c",
            "import sys; print('mine'); sys.exit(7)",
        ],
        cwd=Path(start.ROOT),
        capture_output=True,
        text=True,
        timeout=CLIENT_PATIENCE,
    )
    assert (done.stdout.strip(), done.returncode) == ("mine", 7)


@pytest.fixture
def server() -> Iterator[StubBackend]:
    with StubBackend() as server:
        yield server
        assert {request.path for request in server.requests} == {"/health"}


@pytest.mark.parametrize(
    ("status", "problem"), [(200, None), (401, "status 401"), (500, "status 500"), (404, "status 404")]
)
def test_health_is_the_status_of_the_server(
    server: StubBackend, status: int, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    server.script(Reply(status))
    assert health.problem_at(f"{server.url}/health", 5) == problem


def test_health_of_a_closed_port_and_of_one_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "timed out" in str(health.problem_at(f"http://127.0.0.1:{silent.getsockname()[1]}/", 0.1))
        port = silent.getsockname()[1]
    assert health.problem_at(f"http://127.0.0.1:{port}/", 5)


def test_health_command_asks_the_port_of_the_environment(server: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "FIRST_PROCESS", Path("missing"))
    monkeypatch.setenv("WILMER_PORT", str(server.port))
    assert health.main() == 0
    monkeypatch.setenv("WILMER_PORT", "no number")
    assert health.main() == 1


@pytest.mark.parametrize(
    ("line", "port"),
    [
        ("python -m deploy.container.start --port 80 --User ann", "80"),
        ("/sbin/docker-init -- python -m deploy.container.start --port=80", "80"),
        ("python -m deploy.container.start --port 80 --port 81", "81"),
        ("python -m deploy.container.start", None),
        ("/sbin/init --port 80", None),
    ],
)
def test_port_on_the_command_line_of_the_container(line: str, port: str | None, tmp_path: Path) -> None:
    file = tmp_path / "cmdline"
    file.write_bytes(line.replace(" ", "\0").encode() + b"\0")
    assert health.port_of(health.first_command_line(file)) == port
    assert health.first_command_line(tmp_path / "missing") == []
