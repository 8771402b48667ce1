"""How an empty public root is filled: a container's volume, and the folder of an installed wheel."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from Middleware.cli import shipped_configuration
from Middleware.cli.arguments import LaunchArguments, apply_arguments
from Middleware.cli.shipped_configuration import fill
from Middleware.common import instance_global_variables as instance
from Middleware.utilities.config import paths


@pytest.fixture
def defaults(tmp_path: Path) -> Path:
    for name in ("Configs/Users/demo.json", "Schemas/user.json", "WorkflowFiles/README.md"):
        file = tmp_path / "Defaults" / name
        file.parent.mkdir(parents=True)
        file.write_text("shipped", encoding="utf-8")
    return tmp_path / "Defaults"


@pytest.fixture
def public(tmp_path: Path) -> Path:
    folder = tmp_path / "Public"
    folder.mkdir()
    return folder


def files(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_fills_an_empty_folder(public: Path, defaults: Path) -> None:
    assert fill(public, defaults)
    assert files(public) == files(defaults)


def test_fills_only_once(public: Path, defaults: Path) -> None:
    fill(public, defaults)
    (public / "Schemas/user.json").unlink()
    (public / "Configs/Users/demo.json").write_text("mine", encoding="utf-8")
    assert not fill(public, defaults)
    assert files(public) == {"Configs/Users/demo.json": "mine", "WorkflowFiles/README.md": "shipped"}


def test_overwrites_nothing_in_a_folder_without_configuration(public: Path, defaults: Path) -> None:
    (public / "Schemas").mkdir()
    (public / "Schemas/user.json").write_text("mine", encoding="utf-8")
    (public / "accepted-keys.txt").write_text("key", encoding="utf-8")
    assert fill(public, defaults)
    assert files(public) == {**files(defaults), "Schemas/user.json": "mine", "accepted-keys.txt": "key"}


def test_an_interrupted_copy_is_made_again(public: Path, defaults: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def fail_at_configs(self: Path, target: Path) -> Path:
        if self.name == "Configs":
            raise OSError("power failure")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_at_configs)
    with pytest.raises(OSError, match="power failure"):
        fill(public, defaults)
    assert not (public / "Configs").exists() and (public / "Schemas").exists()
    monkeypatch.undo()
    assert fill(public, defaults)
    assert files(public) == files(defaults)


def test_a_read_only_installation_makes_files_that_can_be_edited(public: Path, defaults: Path) -> None:
    """As a package manager or an administrator leaves it; pip compiles the scripts, too."""
    (defaults / "Scripts" / "__pycache__").mkdir(parents=True)
    (defaults / "Scripts" / "__pycache__" / "tool.pyc").touch()
    (defaults / "Scripts" / "tool.py").touch()
    for path in (*defaults.rglob("*"), defaults):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert fill(public, defaults)
    finally:
        for path in (defaults, *defaults.rglob("*")):
            path.chmod(0o755)
    copied = {name: text for name, text in files(defaults).items() if not name.endswith(".pyc")}
    assert files(public) == copied and "Scripts/tool.py" in copied
    assert all(path.stat().st_mode & stat.S_IWUSR for path in public.rglob("*"))


def test_starts_at_the_same_time_fill_it_once_and_leave_nothing_behind(tmp_path: Path, defaults: Path) -> None:
    for number in range(200):
        (defaults / "Schemas" / f"{number}.json").write_text("shipped", encoding="utf-8")
    public = tmp_path / "new" / "Public"
    with ThreadPoolExecutor(4) as pool:
        filled = list(pool.map(lambda _: fill(public, defaults), range(4)))
    assert any(filled) and files(public) == files(defaults)
    assert sorted(os.listdir(public)) == sorted(os.listdir(defaults))


def test_a_start_whose_copy_a_quicker_one_has_removed_goes_on(
    public: Path, defaults: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shipped_configuration._copy

    def copy_and_be_overtaken(source: Path, target: Path) -> None:
        copy(source, target)
        monkeypatch.setattr(shipped_configuration, "_copy", copy)
        assert fill(public, source)

    monkeypatch.setattr(shipped_configuration, "_copy", copy_and_be_overtaken)
    assert not fill(public, defaults)
    assert files(public) == files(defaults)


def test_what_a_killed_start_has_left_is_removed(public: Path, defaults: Path) -> None:
    left = public / ".filling-of-a-killed-start" / "Configs"
    left.mkdir(parents=True)
    assert fill(public, defaults) and files(public) == files(defaults) and not left.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_a_folder_that_is_made_is_private(tmp_path: Path, defaults: Path) -> None:
    fill(tmp_path / "share" / "wilmerai", defaults)
    assert stat.S_IMODE((tmp_path / "share" / "wilmerai").stat().st_mode) == 0o700


# -- an installed wheel ------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, defaults: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of an installed wheel; it does not exist yet."""
    monkeypatch.setattr(paths, "_IS_PACKAGE", True)
    monkeypatch.setattr(paths, "_PACKAGED", str(tmp_path / "shipped"))
    shutil.copytree(defaults, tmp_path / "shipped" / "Public")
    monkeypatch.setenv(paths.PUBLIC_VARIABLE, str(tmp_path / "data"))
    for name in ("CONFIG_DIRECTORY", "PUBLIC_DIRECTORY"):
        monkeypatch.setattr(instance, name, None)
    return tmp_path / "data"


def test_a_configuration_that_is_named_needs_none_of_that(package: Path, tmp_path: Path) -> None:
    apply_arguments(LaunchArguments(config_directory=str(tmp_path / "Configs")))
    assert not package.exists()


def test_a_clone_is_never_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", str(tmp_path / "none"))
    shipped_configuration.provide()
    assert not (tmp_path / "none").exists()


def test_an_account_without_a_home_is_told_to_name_a_folder(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(paths.PUBLIC_VARIABLE)
    monkeypatch.setattr("posixpath.expanduser", lambda path: path)
    monkeypatch.setattr("ntpath.expanduser", lambda path: path)
    for name in ("XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit, match="1"):
        apply_arguments(LaunchArguments())
    assert "--PublicDirectory or the environment variable WILMER_PUBLIC_DIRECTORY" in capsys.readouterr().err
