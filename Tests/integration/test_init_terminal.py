"""``init`` and the offer of a first start, with a person at a terminal."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.addons.init import llm_servers
from Tests.free_ports import free_port
from Tests.integration.launcher import PROJECT, clean_environment
from Tests.patience import PATIENCE
from Tests.stub_backend import StubBackend

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

from Tests.integration.terminal import Terminal

START = """
import runpy, sys
from Middleware.addons.init import probing, servers
script, port, *words = sys.argv[1:]
servers.USUAL_PORTS = {int(port): "a server"}
probing.SECONDS = 60.0
sys.argv = [script, *words]
runpy.run_path(script, run_name="__main__")
"""
OFFER = "Look for one on this computer now? [Y/n]"


class Clone:
    """A fresh clone, as far as a start needs it; ``usual`` is the one port at which servers are looked for."""

    def __init__(self, folder: Path, usual: int) -> None:
        self.folder = folder
        self.usual = usual
        self.configs = folder / "Public" / "Configs"
        shutil.copytree(PROJECT / "Public" / "Configs", self.configs)
        for name in ("Middleware", "Scripts"):
            (folder / name).symlink_to(PROJECT / name)
        for name in ("server.py", "run_waitress.py"):
            shutil.copy(PROJECT / name, folder / name)

    def start(self, *words: str, script: str = "run_waitress.py") -> Terminal:
        return Terminal(["-c", START, script, str(self.usual), *words], self.folder)

    def files(self) -> dict[str, bytes]:
        return {
            path.relative_to(self.configs).as_posix(): path.read_bytes()
            for path in self.configs.rglob("*")
            if path.is_file()
        }

    def written(self, path: str) -> Any:
        return json.loads((self.configs / path).read_text("utf-8"))


@pytest.fixture
def ollama() -> Iterator[StubBackend]:
    with llm_servers.serving(llm_servers.ollama("llama3.2:3b", "qwen3:14b"), say=lambda body: "Good day.") as backend:
        yield backend


@pytest.fixture
def clone(tmp_path: Path, ollama: StubBackend) -> Clone:
    return Clone(tmp_path, ollama.port)


@pytest.fixture
def lonely_clone(tmp_path: Path) -> Clone:
    port = free_port()
    return Clone(tmp_path, port)


def models_at(port: str) -> list[str]:
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE)
    try:
        connection.request("GET", "/v1/models")
        return [entry["id"] for entry in json.loads(connection.getresponse().read())["data"]]
    finally:
        connection.close()


# -- init --------------------------------------------------------------------------------------------------------------


def test_a_person_chooses(clone: Clone) -> None:
    with clone.start("init", script="server.py") as terminal:
        terminal.wait("Which model?")
        terminal.type("2\n")
        terminal.wait("Name of the new user [me]")
        terminal.type("ann\n")
        assert terminal.wait_end() == 0
        assert f"Next:\n  {sys.executable} server.py\n" in terminal.text
    assert clone.written("Endpoints/ann/Main.json")["modelNameToSendToAPI"] == "qwen3:14b"
    assert clone.written("Users/_current-user.json")["currentUser"] == "ann"


@pytest.mark.parametrize("typed, status", [("\x03", 130), ("\x04", 1)])
@pytest.mark.parametrize("question, earlier", [("Which model?", ""), ("Name of the new user", "1\n")])
def test_an_end_at_a_question_writes_nothing(
    clone: Clone, question: str, earlier: str, typed: str, status: int
) -> None:
    before = clone.files()
    with clone.start("init", script="server.py") as terminal:
        terminal.wait("Which model?")
        terminal.type(earlier)
        terminal.wait(question)
        if typed == "\x03":
            assert terminal.interrupt() == status
        else:
            terminal.type(typed)
            assert terminal.wait_end() == status
        assert "othing was written." in terminal.text and "Traceback" not in terminal.text
    assert clone.files() == before


def test_bytes_that_are_no_text_are_a_wrong_answer(clone: Clone) -> None:
    with clone.start("init", script="server.py") as terminal:
        terminal.wait("Which model?")
        terminal.type_bytes(b"\xff\xfe\n")
        terminal.wait("enter a number from 1 to 2")
        terminal.type("\n")
        terminal.wait("Name of the new user")
        terminal.type_bytes(b"J\xf6rg\n")
        terminal.wait("cannot be the name of a user")
        terminal.type("ann\n")
        assert terminal.wait_end() == 0
    assert clone.written("Users/_current-user.json")["currentUser"] == "ann"


# -- the first start ---------------------------------------------------------------------------------------------------


def test_a_first_start_connects_a_model_and_goes_on(clone: Clone) -> None:
    with clone.start("--port", "0") as terminal:
        terminal.wait(OFFER)
        terminal.type("\n")
        terminal.wait("Which model?")
        terminal.type("\n")
        terminal.wait("Name of the new user")
        terminal.type("\n")
        text = terminal.wait("Only programs on this machine can connect")
        assert "Demo mode" not in text and "Next:" not in text
        port = re.search(r"Listening on: .*:(\d+)", text)[1]
        assert models_at(port) == ["me:agent", "me:assistant", "me:chat", "me:memory"]
        assert terminal.interrupt() == 0


@pytest.mark.parametrize("answer", ["n\n", "\x04"])
def test_without_a_yes_the_demo_begins(clone: Clone, ollama: StubBackend, answer: str) -> None:
    before = clone.files()
    with clone.start("--port", "0") as terminal:
        terminal.wait(OFFER)
        terminal.type(answer)
        text = terminal.wait("To connect a real LLM:")
        assert "Demo mode" in text
        terminal.wait(" init\n")
    assert clone.files() == before
    assert ollama.requests == []


def test_without_a_server_the_demo_begins(lonely_clone: Clone) -> None:
    with lonely_clone.start("--port", "0") as terminal:
        terminal.wait(OFFER)
        terminal.type("y\n")
        terminal.wait("Address of your LLM server")
        terminal.type("\n")
        assert "ollama serve" in terminal.wait("Demo mode")


def test_an_end_at_the_offer_ends_the_start(clone: Clone) -> None:
    with clone.start("--port", "0") as terminal:
        terminal.wait(OFFER)
        assert terminal.interrupt() == 130
        assert "Interrupted; nothing was written." in terminal.text and "Traceback" not in terminal.text


def test_the_port_of_the_command_line_is_named(clone: Clone) -> None:
    port = free_port()
    with clone.start("--port", str(port)) as terminal:
        terminal.wait(OFFER)
        terminal.type("y\n1\nme\n")
        assert f"URL http://127.0.0.1:{port}/v1" in terminal.wait("Only programs on this machine can connect")


def test_who_has_chosen_a_user_is_not_asked(clone: Clone) -> None:
    with clone.start("--port", "0", "--User", "demo") as terminal:
        terminal.wait("Listening on")
        assert OFFER not in terminal.text


def test_without_a_terminal_nothing_is_asked(clone: Clone) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", START, "run_waitress.py", str(clone.usual), "--port", "0"],
        cwd=clone.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean_environment(),
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("To connect a real LLM:" in line and line.endswith(" init\n") for line in lines)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.stdout.close()
    assert not any("/me/" in path for path in clone.files())
