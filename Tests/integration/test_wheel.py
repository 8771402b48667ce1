"""The wheel: what is in it, and the program that is installed from it, where it may write nothing of its own.

The wheel is built of a repository with this project's tracked files, in which a user has added some.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.common.constants import VERSION
from Tests.addons.init import llm_servers
from Tests.doors.calls import CALLS, QUESTION, problem_of
from Tests.integration.launcher import PROJECT
from Tests.integration.wheel_lab import Installation, InstalledServer, build, git, repository, tracked
from Tests.stub_backend import StubBackend

pytestmark = pytest.mark.skipif(shutil.which("git") is None or not (PROJECT / ".git").exists(), reason="needs a clone")
NAME = f"wilmerai-{VERSION}"
SHIPPED = "Middleware/shipped/Public"
# What a user, an editor and an earlier build leave in a clone.
ADDED = [
    "Public/Configs/Users/me.json",
    "Public/Configs/Endpoints/me/Main.json",
    "Public/accepted-keys.txt",
    "Public/DiscussionIds/mill/memories.json",
    "Public/Scripts/me/tool.py",
    "Docs/notes.md",
    "Middleware/notes.py",
    "Middleware/addons/console/static/app.js.orig",
    "Middleware/addons/init/templates/Users/MINE.json",
    "build/lib/Middleware/removed.py",
    "build/lib/Middleware/shipped/Public/Configs/Users/removed.json",
]
# A shipped file that the user edits, and one that only an update brings.
EDITED, NEW = "Configs/Endpoints/demo/Demo-LLM.json", "Configs/Presets/New.json"


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = repository(tmp_path_factory.mktemp("clone"))
    for name in ADDED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(clone, tmp_path_factory.mktemp("wheel"))


def expected(names: list[str]) -> set[str]:
    """The paths in the wheel of a project's files."""
    moved = {"Public/": SHIPPED + "/", "Docs/": "Middleware/shipped/Docs/"}
    taken = {name for name in names if name.startswith("Middleware/")} | {
        "run_waitress.py",
        "run_eventlet.py",
        "server.py",
    }
    return taken | {
        place + name.removeprefix(folder)
        for folder, place in moved.items()
        for name in names
        if name.startswith(folder) and (folder == "Public/" or name.endswith(".md"))
    }


def test_the_wheel_has_what_git_tracks_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if not name.startswith(f"{NAME}.dist-info/")]
        metadata = file.read(f"{NAME}.dist-info/METADATA").decode("utf-8")
        assert f"{NAME}.dist-info/licenses/LICENSE" in file.namelist()
    assert wheel.name == f"{NAME}-py3-none-any.whl" and wheel.stat().st_size < 10_000_000
    assert sorted(names) == sorted(expected(tracked(PROJECT)))
    assert "Provides-Extra: database\n" in metadata and "Requires-Dist: psycopg_pool" in metadata


def test_another_clone_of_the_commit_makes_the_same_wheel(wheel: Path, clone: Path, tmp_path: Path) -> None:
    """At another time, in another folder, and of files that others must not read."""
    other = tmp_path / "other"
    git(tmp_path, "clone", "-q", str(clone), str(other))
    for path in filter(Path.is_file, other.rglob("*")):
        path.chmod(0o700)
    assert build(other, tmp_path / "built").read_bytes() == wheel.read_bytes()


@pytest.mark.deep  # only releases have one
def test_the_source_archive_makes_the_same_wheel(wheel: Path, clone: Path, tmp_path: Path) -> None:
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=clone, check=True, capture_output=True, timeout=300)
    with tarfile.open(tmp_path / f"{NAME}.tar.gz") as file:
        names = {name.partition("/")[2] for name in file.getnames()}
        file.extractall(tmp_path, filter="data")
    assert not names.intersection(ADDED) and not [name for name in names if name.startswith("Tests/")]
    time = git(clone, "log", "-1", "--format=%ct").strip()
    built = build(tmp_path / NAME, tmp_path / "built", SOURCE_DATE_EPOCH=time)
    assert built.read_bytes() == wheel.read_bytes()


def test_a_clone_that_git_cannot_read_makes_no_wheel(clone: Path, tmp_path: Path) -> None:
    """Otherwise the owner's files could be in it, or none of the program's."""
    shutil.copytree(clone, tmp_path / "clone", ignore=shutil.ignore_patterns(".git", "Public", "Docs"))
    (tmp_path / "clone" / ".git").mkdir()
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=tmp_path / "clone", capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 1
    assert "ERROR: To build a clone, git must tell which files are the project's: " in done.stderr


# -- installed ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture
def installed(environment: Installation, tmp_path: Path) -> Iterator[Installation]:
    """The installation on a new computer. The test fails if something is written to it, or where it was started."""
    environment.move(tmp_path)
    with environment.read_only():
        yield environment
    assert not list(environment.elsewhere.iterdir())


@pytest.fixture(scope="module")
def backend() -> Iterator[StubBackend]:
    def say(body: dict[str, Any]) -> str:
        return f"You said: {QUESTION}" if QUESTION in json.dumps(body, ensure_ascii=False) else "You said nothing."

    with llm_servers.serving(llm_servers.llama_cpp(window=4096), say=say) as backend:
        yield backend


def shipped(wheel: Path) -> dict[str, bytes]:
    """The files that a first start copies, by their paths below the public root."""
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if name.startswith(SHIPPED)]
        return {name.removeprefix(SHIPPED + "/"): file.read(name) for name in names}


def files_in(public: Path) -> dict[str, bytes]:
    return {path.relative_to(public).as_posix(): path.read_bytes() for path in public.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["check", "--json"], 0),
        (["test", "demo"], 0),
        (["memory", "list"], 0),
        (["keys", "list"], 1),
        (["console"], 1),
        (["try", "demo", "Hello", "--trace"], 0),
        (["rekey", "--user", "demo", "--api-key", "old", "--new-api-key", "new"], 1),
    ],
)
def test_each_command_finds_the_configuration_on_a_new_computer(
    installed: Installation, wheel: Path, words: list[str], status: int
) -> None:
    done = installed.run(*words)
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith(f"The configuration that comes with WilmerAI has been copied to {installed.public}\n")
    assert "Traceback" not in done.stderr and (words[-1] != "--json" or done.stdout.startswith("{"))
    assert shipped(wheel).items() <= files_in(installed.public).items()


def test_help_and_version_write_nothing(installed: Installation) -> None:
    for words, begins in (
        (["--version"], f"WilmerAI {VERSION}"),
        (["--help"], "usage: wilmerai ["),
        (["help", "check"], "usage: wilmerai check ["),
        (["keys", "--help"], "usage: wilmerai keys ["),
    ):
        done = installed.run(*words)
        assert done.returncode == 0 and done.stderr == "" and done.stdout.startswith(begins), words
        assert not installed.public.exists()


def test_a_user_is_written_and_answers_and_an_update_leaves_what_was_edited(
    wheel: Path, clone: Path, backend: StubBackend, tmp_path: Path
) -> None:
    installation = Installation(tmp_path / "installed", wheel)
    with installation.read_only():
        done = installation.run("init", "--yes", "--backend", backend.url)
        assert done.returncode == 0 and "\n  wilmerai\n" in done.stdout, done.stdout + done.stderr
        assert_answers(installation)
        assert installation.run("check").returncode == 0
    (installation.public / EDITED).write_text("{}", encoding="utf-8")
    before = files_in(installation.public)

    changed = tmp_path / "changed"
    git(tmp_path, "clone", "-q", str(clone), str(changed))
    for name in (EDITED, NEW):
        (changed / "Public" / name).write_text('{"temperature": 0.1}', encoding="utf-8")
    git(changed, "add", "--force", ".")
    git(changed, "commit", "-qm", "Change what is shipped")
    installation.install(build(changed, tmp_path / "update"))

    with installation.read_only():
        assert (installation.packages / SHIPPED / NEW).is_file()
        output = assert_answers(installation)
    assert "has been copied" not in output and f"Configuration:  {installation.public / 'Configs'}" in output
    written = ("Console/", "SqlLiteDBs/", "logs/")
    kept = {name: data for name, data in before.items() if not name.startswith(written)}
    assert {name: data for name, data in files_in(installation.public).items() if not name.startswith(written)} == kept
    assert not list(installation.elsewhere.iterdir())


def assert_answers(installation: Installation) -> str:
    """Start the server, make each call of a client, read a page and the console; return what it printed."""
    with InstalledServer(installation) as server:
        for call in CALLS:
            answer = server.request("POST", call.path, {"model": "me:chat", **call.body})
            assert not problem_of(call, answer.status, answer.body, 200)
        assert server.request("GET", "/docs/User/check.md").body.startswith(b"# Checking")
        page = server.request("GET", "/console/").body.decode("utf-8")
        names = re.findall(r"static/[^\"]+\.(?:css|m?js)", page)
        assert len(names) > 20 and any("/vendor/" in name for name in names)
        assert {server.request("GET", f"/console/{name}").status for name in names} == {200}
        return server.output()


@pytest.mark.parametrize("way", ["flag", "variable"])
def test_the_folder_may_be_named(installed: Installation, tmp_path: Path, way: str) -> None:
    folder = tmp_path / "named"
    done = (
        installed.run("check", "--PublicDirectory", folder)
        if way == "flag"
        else installed.run("check", WILMER_PUBLIC_DIRECTORY=str(folder))
    )
    assert done.returncode == 0 and f"has been copied to {folder}\n" in done.stderr
    assert (folder / "Configs" / "Users").is_dir() and not installed.public.exists()


def test_a_wrong_folder_is_not_filled(installed: Installation) -> None:
    installed.run("check")
    named = installed.public / "Configs"
    done = installed.run("check", "--PublicDirectory", named)
    assert done.returncode == 1 and f"Did you mean '{installed.public}'?" in done.stdout
    assert not (named / "Configs").exists()


def test_a_folder_that_cannot_be_made_is_named(installed: Installation) -> None:
    (installed.home / "file").touch()
    done = installed.run("check", "--PublicDirectory", installed.home / "file" / "Public")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"ERROR: {installed.home / 'file' / 'Public'} is empty and cannot be filled")


def test_scripts_below_public_are_found_and_import_each_other(installed: Installation) -> None:
    installed.run("check")
    folder = installed.public / "Scripts" / "mine"
    folder.mkdir()
    (folder / "helper.py").write_text("WORD = 'helped'", encoding="utf-8")
    (folder / "script.py").write_text(
        "from Public.Scripts.mine.helper import WORD\ndef Invoke(): return WORD", encoding="utf-8"
    )
    code = (
        "from Middleware.workflows.tools.dynamic_module_loader import run_dynamic_module\n"
        "print(run_dynamic_module('Public/Scripts/mine/script.py'))"
    )
    done = installed.run_python("-c", code)
    assert done.stdout == "helped\n", done.stderr


def test_other_wsgi_servers_find_the_configuration(installed: Installation) -> None:
    code = "from server import application\nprint(callable(application))"
    done = installed.run_python("-c", code)
    assert done.stdout == "True\n", done.stderr
    assert (installed.public / "Configs" / "Users").is_dir()
