"""Where an installed wheel keeps its data, and that a clone keeps its own folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.utilities import command_lines
from Middleware.utilities.config import paths

ROOT = Path(__file__).resolve().parents[3]
HOMES = {"HOME": "/home/ann", "USERPROFILE": "C:\\Users\\ann"}


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {}, "/home/ann/.local/share/wilmerai"),
        ("linux", {"XDG_DATA_HOME": "/data/ann"}, "/data/ann/wilmerai"),
        ("linux", {"XDG_DATA_HOME": ""}, "/home/ann/.local/share/wilmerai"),
        ("linux", {"XDG_DATA_HOME": "data"}, "/home/ann/.local/share/wilmerai"),
        ("linux", {"XDG_DATA_HOME": "~/data"}, "/home/ann/.local/share/wilmerai"),
        ("freebsd14", {"XDG_DATA_HOME": "./data"}, "/home/ann/.local/share/wilmerai"),
        ("darwin", {"XDG_DATA_HOME": "/data/ann"}, "/home/ann/Library/Application Support/wilmerai"),
        ("win32", {"LOCALAPPDATA": "D:\\Data"}, "D:\\Data\\wilmerai"),
        ("win32", {"LOCALAPPDATA": "", "XDG_DATA_HOME": "/data"}, "C:\\Users\\ann\\AppData\\Local\\wilmerai"),
    ],
)
def test_the_folder_for_data_of_each_system(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], folder: str
) -> None:
    for name in ("XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**HOMES, **variables}.items():
        monkeypatch.setenv(name, value)
    assert paths.user_data_directory(platform) == folder


@pytest.mark.parametrize(
    ("is_package", "flag", "variable", "folder"),
    [
        (True, "/flag", "/variable", "/flag"),
        (True, None, "/variable/", "/variable"),
        (True, " ", "~/own", "HOME/own"),
        (True, None, "  ", "DATA"),
        (True, None, None, "DATA"),
        (False, "/flag", "/variable", "/flag"),
        (False, None, "/variable", str(ROOT / "Public")),
        (False, None, None, str(ROOT / "Public")),
    ],
)
def test_the_public_root(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    is_package: bool,
    flag: str | None,
    variable: str | None,
    folder: str,
) -> None:
    monkeypatch.setattr(paths, "_IS_PACKAGE", is_package)
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", flag)
    monkeypatch.setattr(paths, "user_data_directory", lambda platform: "DATA" if platform == sys.platform else "")
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, "HOME")
    if variable is None:
        monkeypatch.delenv(paths.PUBLIC_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(paths.PUBLIC_VARIABLE, variable)
    assert paths.get_root_public_directory() == folder


@pytest.mark.skipif(os.name == "nt", reason="links; Windows has copies of the command, which are named by their path")
@pytest.mark.parametrize(
    ("on_path", "shown"),
    [(None, "PATH"), ("other", "PATH"), ("same", "wilmerai"), ("link", "wilmerai"), ("no command here", "wilmerai")],
)
def test_messages_name_the_command_by_which_the_shell_finds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on_path: str | None, shown: str
) -> None:
    """pipx and uv put a link into a folder that the shell knows; ``pip install --user`` puts the command elsewhere."""
    environment, elsewhere = tmp_path / "env", tmp_path / "bin"
    for folder in (environment, elsewhere):
        folder.mkdir()
    program = environment / "wilmerai"
    if on_path != "no command here":
        program.touch(0o755)
    if on_path == "link":
        (elsewhere / "wilmerai").symlink_to(program)
    elif on_path == "other":
        (elsewhere / "wilmerai").touch(0o755)
    monkeypatch.setattr(command_lines, "is_package", lambda: True)
    monkeypatch.setattr(sys, "executable", str(environment / "python"))
    monkeypatch.setenv("PATH", str(environment if on_path == "same" else elsewhere))
    for name in (command_lines.START_SCRIPT, "WILMER_CONTAINER"):
        monkeypatch.delenv(name, raising=False)
    assert command_lines.own_command("check") == f"{program if shown == 'PATH' else shown} check"
