"""An add-on is its folder and one line: each can be taken away, and one can be added, with nothing else changed."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from Middleware import addons
from Middleware.cli import addon as protocol
from Middleware.cli.arguments import build_parser
from Middleware.cli.commands import all_commands
from Tests.integration.launcher import PROJECT, clean_environment
from Tests.stub_backend import StubBackend, json_reply

ADDONS = PROJECT / "Middleware" / "addons"
ANSWER = "Without it, too."
# Prints the flags and commands that a copy of the program knows.
KNOWN = """
import json
from Middleware import addons
from Middleware.cli.arguments import build_parser
from Middleware.cli.commands import all_commands
addons.load()
flags = [option for action in build_parser()._actions for option in action.option_strings]
print(json.dumps([flags, list(all_commands())]))
"""
BIRDS = """
from Middleware.cli.addon import AddOn, Command

class Listener:
    def request_finished(self, request, *_):
        print("heard", request.request_id, flush=True)

class Page:
    def refuses(self, environ):
        return False
    def __call__(self, environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"a page of birds"]

class Birds(AddOn):
    def add_flags(self, flags):
        flags.add("--birds", type=int, default=0, metavar="N", help="how many birds there are")
    def check_flags(self, flags, refuse):
        if flags.birds < 0:
            refuse("--birds must be >= 0")
    def commands(self):
        return {"sing": Command("sing", lambda words: print("tweet") or 0)}
    def prepare(self, launch):
        launch.listeners.append(Listener())
        launch.mounts["/birds"] = lambda site: Page()
        launch.routes.append(lambda app: app.add_url_rule("/nests", "nests", lambda: "three nests"))
        launch.lines.append(f"  Birds:          {launch.arguments.flags.birds}")

ADDON = Birds
"""


def modules_named(path: Path) -> set[str]:
    """The modules that a file imports, for types and in functions, too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@cache
def imported(name: str) -> set[str]:
    """The other add-ons that an add-on imports."""
    files = (ADDONS / name).rglob("*.py")
    found = {
        match[1]
        for path in files
        for one in modules_named(path)
        if (match := re.match(r"Middleware\.addons\.(\w+)", one))
    }
    return found - {name}


def standing_on(name: str) -> set[str]:
    """The add-ons that cannot be there without this one, itself among them."""
    found = {name}
    while more := {one for one in addons.NAMES if one not in found and imported(one) & found}:
        found |= more
    return found


@pytest.fixture(scope="module")
def backend() -> Iterator[StubBackend]:
    message = {"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}
    with StubBackend(json_reply({"choices": [message]})) as running:
        yield running


@pytest.fixture
def copy(tmp_path: Path, backend: StubBackend) -> Path:
    """The program with a configuration of one user."""
    root = tmp_path / "copy"
    # With the compiled modules: otherwise each copy would compile all of them.
    shutil.copytree(PROJECT / "Middleware", root / "Middleware")
    for name in ("run_waitress.py", "requirements.txt", "requirements.lock"):
        shutil.copy2(PROJECT / name, root)
    configs = root / "Public" / "Configs"
    shutil.copytree(PROJECT / "Public" / "Configs" / "ApiTypes", configs / "ApiTypes")
    for path, content in {
        "Users/ann.json": {"endpointConfigsSubDirectory": "ann", "discussionDirectory": ""},
        "Endpoints/ann/Main.json": {
            "apiTypeConfigFileName": "Open-AI-API",
            "endpoint": backend.url,
            "modelNameToSendToAPI": "m",
        },
        "Workflows/ann/_DefaultWorkflow.json": [
            {"type": "Standard", "title": "Answer", "endpointName": "Main", "prompt": "{chat_user_prompt_last_one}"}
        ],
    }.items():
        (configs / path).parent.mkdir(parents=True, exist_ok=True)
        (configs / path).write_text(json.dumps(content), encoding="utf-8")
    return root


@contextmanager
def served(root: Path, *flags: str) -> Iterator[tuple[str, list[str]]]:
    """Serve from a copy; yield the address, and the lines that the server prints."""
    command = [sys.executable, "run_waitress.py", "--User", "ann", "--port", "0", *flags]
    lines: list[str] = []
    with subprocess.Popen(
        command,
        cwd=root,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                if "Only programs on this machine" in line:
                    break
            address = next((line.split(": ")[-1] for line in lines if "Listening on:" in line), "")
            assert address, "\n".join(lines)
            yield address, lines
        finally:
            process.terminate()
            lines += process.stdout.read().splitlines()


def chat(address: str) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": False}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(json.loads(response.read())["choices"][0]["message"]["content"])


def get(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def known(root: Path) -> tuple[set[str], set[str]]:
    """The flags and the commands of a copy."""
    done = subprocess.run(
        [sys.executable, "-c", KNOWN],
        cwd=root,
        env={**clean_environment(), "PYTHONPATH": str(root)},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    flags, commands = json.loads(done.stdout)
    return set(flags), set(commands)


def brought_by(names: set[str]) -> tuple[set[str], set[str]]:
    """The flags and the commands of add-ons."""
    everyone = protocol.addons()
    parser, all_of_them = build_parser(), all_commands()
    try:
        protocol.use(*(one for one in everyone if type(one).__module__.split(".")[2] not in names))
        left, commands = build_parser(), all_commands()
    finally:
        protocol.use(*everyone)

    def options(one: object) -> set[str]:
        return {option for action in one._actions for option in action.option_strings}  # type: ignore[attr-defined]

    return options(parser) - options(left), set(all_of_them) - set(commands)


@pytest.mark.slow
@pytest.mark.parametrize("name", addons.NAMES)
def test_the_program_serves_without_it(name: str, copy: Path) -> None:
    gone = standing_on(name)
    for one in gone:
        shutil.rmtree(copy / "Middleware" / "addons" / one)
    line = copy / "Middleware" / "addons" / "__init__.py"
    text = line.read_text(encoding="utf-8")
    for one in gone:
        assert text.count(f'    "{one}",\n') == 1
        text = text.replace(f'    "{one}",\n', "")
    line.write_text(text, encoding="utf-8")
    with served(copy) as (address, _):
        assert chat(address) == ANSWER
    flags, commands = brought_by(gone)
    left_flags, left_commands = known(copy)
    assert not flags & left_flags and not commands & left_commands
    assert {"--User", "--listen"} <= left_flags and {"keys", "help"} <= left_commands


def test_what_add_ons_bring_is_known() -> None:
    """Otherwise the test above would look for nothing."""
    flags, commands = brought_by(set(addons.NAMES))
    assert {"--console", "--metrics", "--database"} <= flags and {"init", "check", "test", "chat"} <= commands


@pytest.mark.slow
def test_a_folder_that_is_missing_is_an_add_on_that_is_not_there(copy: Path) -> None:
    shutil.rmtree(copy / "Middleware" / "addons" / "talk")
    flags, commands = known(copy)
    assert "chat" not in commands and "check" in commands and "--console" in flags


@pytest.mark.slow
def test_one_is_added_by_its_folder_and_a_line(copy: Path) -> None:
    folder = copy / "Middleware" / "addons" / "birds"
    folder.mkdir()
    (folder / "__init__.py").write_text("", encoding="utf-8")
    (folder / "addon.py").write_text(BIRDS, encoding="utf-8")
    line = folder.parent / "__init__.py"
    text = line.read_text(encoding="utf-8")
    line.write_text(text.replace('    "talk",\n', '    "talk",\n    "birds",\n'), encoding="utf-8")
    flags, commands = known(copy)
    assert "--birds" in flags and "sing" in commands

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "run_waitress.py", *words]
        return subprocess.run(command, cwd=copy, env=clean_environment(), capture_output=True, encoding="utf-8")

    assert (done := run("sing")).stdout == "tweet\n" and done.returncode == 0
    assert (done := run("--birds", "-1")).returncode == 2 and "--birds must be >= 0" in done.stderr
    with served(copy, "--birds", "3") as (address, lines):
        assert "  Birds:          3" in lines
        assert chat(address) == ANSWER
        assert get(f"{address}/birds") == get(f"{address}/birds/nests") == (200, "a page of birds")
        assert get(f"{address}/nests") == (200, "three nests")
        assert get(f"{address}/birdsong")[0] == 404
    assert any(line.startswith("heard ") for line in lines)


def test_core_and_command_line_know_no_add_on() -> None:
    """In no import, and in no text: ``importlib`` with a name that is spelled out is the same arrow."""
    files = [
        path
        for path in (PROJECT / "Middleware").rglob("*.py")
        if ADDONS not in path.parents and "shipped" not in path.parts
    ]
    spelled = re.compile(r"Middleware[./]addons|\baddons/\w")
    found = {path.relative_to(PROJECT).as_posix() for path in files if spelled.search(path.read_text(encoding="utf-8"))}
    assert len(files) > 250 and found == set()


def test_an_add_on_imports_those_below_it_only() -> None:
    above: list[str] = []
    for name in addons.NAMES:
        assert not {one for one in imported(name) if name in imported(one)}, name
        above += [f"{name} -> {one}" for one in imported(name) if one not in addons.NAMES]
    assert above == []
    folders = {path.parent.name for path in ADDONS.glob("*/addon.py")}
    assert folders == set(addons.NAMES) and os.sep not in "".join(addons.NAMES)
