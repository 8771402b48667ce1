"""The commands for a backup in files-and-commands.md take what is the user's, and restore it over newer files."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from Tests.docs.pages import all_pages
from Tests.patience import CLIENT_PATIENCE

PAGE = all_pages()["Docs/User/files-and-commands.md"]
OWN = (
    "Configs/Users/me.json",
    "Configs/Presets/OllamaApiChat/Größe 2.json",
    "DiscussionIds/mill/.lock",
    "Console/index.db",
)
SHIPPED = "Configs/ApiTypes/OllamaApiChat.json"
# The first on PATH: without a path, Windows starts the one of WSL.
BASH = shutil.which("bash") or ""
pytestmark = pytest.mark.skipif(not BASH or shutil.which("git") is None, reason="needs bash and git")


def command(begin: str) -> str:
    """The one command line of the page that begins like this."""
    lines = [line for fence in PAGE.fences for line in fence.text.splitlines() if line.startswith(begin)]
    assert len(lines) == 1, f"{len(lines)} lines begin with {begin!r}"
    return lines[0]


def run(line: str, folder: Path) -> None:
    quiet = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):  # set where a hook runs the tests
        quiet.pop(name, None)
    subprocess.run([BASH, "-c", f"set -o pipefail; {line}"], cwd=folder, env=quiet, check=True, timeout=CLIENT_PATIENCE)


def installation(folder: Path, version: str) -> Path:
    """A clone with one shipped file."""
    write(folder / "Public" / SHIPPED, version)
    (folder / ".gitignore").write_text("/Public/\n", encoding="utf-8")
    run("git init -q . && git add -f . && git -c user.name=a -c user.email=a@b commit -q -m shipped", folder)
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def files(folder: Path) -> dict[str, str]:
    public = folder / "Public"
    return {
        path.relative_to(public).as_posix(): path.read_text(encoding="utf-8")
        for path in public.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = installation(tmp_path / "old", "old")
    for name in OWN:
        write(folder / "Public" / name, "mine")
    return folder


def test_a_backup_has_the_users_files_and_restores_them(old: Path, tmp_path: Path) -> None:
    run(command("git ls-files"), old)
    new = installation(tmp_path / "new", "new")
    run(command("tar xzf"), new)

    assert files(new) == {SHIPPED: "new", **dict.fromkeys(OWN, "mine")}


def test_a_copy_of_the_whole_folder_keeps_the_new_shipped_files(old: Path, tmp_path: Path) -> None:
    assert any(code.text == "git checkout -- Public" for code in PAGE.codes)
    new = installation(tmp_path / "new", "new")
    run("cp -r ../old/Public/. Public/", new)
    assert files(new)[SHIPPED] == "old"
    run("git checkout -- Public", new)

    assert files(new) == {SHIPPED: "new", **dict.fromkeys(OWN, "mine")}
