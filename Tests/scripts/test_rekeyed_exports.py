"""Exports of the run console belong to their discussion under its new key, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from Middleware.addons.discussions import exports
from Middleware.addons.discussions.rekey import rekey_command
from Middleware.addons.discussions.removal import Removal
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import DataKeyError
from Tests.integration.launcher import PROJECT
from Tests.patience import CLIENT_PATIENCE
from Tests.scripts.rekey_lab import NEW, OLD, RekeyLab, cipher_of
from Tests.windows import needs_links

NAME = "The mill-0123456789abcdef-1"
DAY = 86_400
THIRD = "sk-third-geheim-0123"


class ExportLab(RekeyLab):
    """Two discussions of the old key, each with an export that is a day old, and an export of somebody else."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(tmp_path, monkeypatch)
        monkeypatch.setattr(instance, "CONSOLE_DIRECTORY", str(tmp_path / "Console"))
        self.console = ConsoleFolder(str(tmp_path / "Console"))
        for name, key in ((NAME, OLD), ("stays", OLD), ("other", THIRD)):
            self.store(name, key)
            exports.save(self.console, self.reader(name, key))
        self.made = time.time() - DAY
        for path in self.exports():
            os.utime(path, (self.made, self.made))

    def exports(self, name: str = "*") -> list[Path]:
        return sorted(Path(self.console.file("exports")).glob(f"{name}-*"))

    @property
    def own(self) -> Path:
        [path] = self.exports(exports.file_name(NAME))
        return path

    def rekey(self, old: str = OLD, new: str | None = NEW) -> int:
        return rekey_command.main(
            self.arguments("--yes", "--api-key", old, *(["--new-api-key", new] if new else [])),
        )

    def delete(self, key: str) -> list[str]:
        removal = Removal()
        exports.remove(self.console, self.reader(NAME, key), removal)
        return removal.left


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExportLab:
    return ExportLab(tmp_path, monkeypatch)


def _to_a_new_key(lab: ExportLab) -> str:
    assert lab.rekey() == 0
    return NEW


def _twice(lab: ExportLab) -> str:
    assert lab.rekey() == 0 == lab.rekey(NEW, THIRD + "-2")
    return THIRD + "-2"


def _and_back(lab: ExportLab) -> str:
    assert lab.rekey() == 0 == lab.rekey(NEW, OLD)
    return OLD


def _to_itself(lab: ExportLab) -> str:
    assert lab.rekey(OLD, OLD) == 0
    return OLD


def _an_export_in_clear(lab: ExportLab) -> str:
    """From before the user's texts were encrypted."""
    lab.own.write_bytes(cipher_of(OLD).decrypt(lab.own.read_bytes()))
    os.utime(lab.own, (lab.made, lab.made))
    return _to_a_new_key(lab)


def _the_folder_is_a_link(lab: ExportLab) -> str:
    """Its exports were made before it was moved away, and are made again afterwards."""
    lab.own.unlink()
    lab.old.rename(lab.root.parent / "elsewhere")
    lab.old.symlink_to(lab.root.parent / "elsewhere", target_is_directory=True)
    exports.save(lab.console, lab.reader(NAME, OLD))
    os.utime(lab.own, (lab.made, lab.made))
    return _to_a_new_key(lab)


def _the_new_key_has_a_folder(lab: ExportLab) -> str:
    """The two are merged by hand."""
    lab.new.mkdir()
    assert lab.rekey() == 1
    for path in lab.old.iterdir():
        path.rename(lab.new / path.name)
    lab.old.rmdir()
    return NEW


def _interrupted_before_the_folder_gets_its_name(lab: ExportLab) -> str:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rekey_command, "_rename", stop)
        assert lab.rekey() == 1
    return _to_a_new_key(lab)


def _interrupted_among_the_exports(lab: ExportLab) -> str:
    """The new file is complete, and the old one is still there."""
    old, content = lab.own.name, lab.own.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rekey_command, "_rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert lab.rekey() == 1
    again = lab.own.with_name(old)
    again.write_bytes(content)
    os.utime(again, (lab.made, lab.made))
    return _to_a_new_key(lab)


def _in_a_folder_that_is_named(lab: ExportLab) -> str:
    flags = ["--yes", "--api-key", OLD, "--new-api-key", NEW, "--ConsoleDirectory", lab.console.path]
    script = [sys.executable, str(PROJECT / "Scripts/rekey_encrypted_files.py")]
    subprocess.run([*script, *lab.arguments(*flags)], check=True, timeout=CLIENT_PATIENCE)
    return NEW


WAYS = (
    _to_a_new_key,
    _twice,
    _and_back,
    _to_itself,
    _an_export_in_clear,
    pytest.param(_the_folder_is_a_link, marks=needs_links),
    _the_new_key_has_a_folder,
    _interrupted_before_the_folder_gets_its_name,
    _interrupted_among_the_exports,
    _in_a_folder_that_is_named,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_exports_follow_to_the_new_key(lab: ExportLab, way: Callable[[ExportLab], str]) -> None:
    others = {path.name: path.read_bytes() for path in lab.exports("other")}
    key = way(lab)
    assert json.loads(lab.reader(NAME, key).cipher.decrypt(lab.own.read_bytes()))["discussionId"] == NAME
    if key != OLD:
        with pytest.raises(DataKeyError):
            cipher_of(OLD).decrypt(lab.own.read_bytes())
    assert abs(lab.own.stat().st_mtime - lab.made) < 1
    # No file that was being written is left.
    assert len(list(Path(lab.console.file("exports")).iterdir())) == 3
    assert {path.name: path.read_bytes() for path in lab.exports("other")} == others
    assert lab.delete(key) == [] == lab.exports(exports.file_name(NAME))
    assert len(lab.exports("stays")) == 1


def test_exports_are_decrypted_with_their_discussion(lab: ExportLab) -> None:
    assert lab.rekey(OLD, None) == 0
    assert json.loads(lab.own.read_bytes())["discussionId"] == NAME
    assert lab.delete(OLD) == [] == lab.exports(exports.file_name(NAME))


@pytest.mark.parametrize(
    "content",
    [b"\xff{", b"", b"[" * 100_000, cipher_of(THIRD).encrypt(b"{}")],
    ids=["not a text", "empty", "a deep list", "of another key"],
)
def test_an_export_that_no_key_reads_goes_with_its_discussion(
    lab: ExportLab, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.own.write_bytes(content)
    assert lab.rekey() == 0
    assert lab.own.read_bytes() == content
    assert f"WARNING: exports/{exports.file_name(NAME)}-" in capsys.readouterr().err
    assert lab.delete(NEW) == [] == lab.exports(exports.file_name(NAME))


@needs_links
def test_links_and_folders_among_the_exports(lab: ExportLab, capsys: pytest.CaptureFixture[str]) -> None:
    aside, folder = lab.root.parent / "aside.json", lab.own.with_name(lab.own.name.replace("-20", "-19", 1))
    lab.own.rename(aside)
    link = Path(lab.console.file("exports")) / folder.name.replace("-19", "-20", 1)
    link.symlink_to(aside)
    folder.mkdir()
    before = aside.read_bytes()
    assert lab.rekey() == 0
    assert link.is_symlink() and folder.is_dir() and aside.read_bytes() == before
    assert f"exports/{link.name}: is a link to {aside}" in capsys.readouterr().err


def test_the_folder_of_the_exports_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rekey_command.main(["--help"])
    assert "--ConsoleDirectory P" in capsys.readouterr().out
