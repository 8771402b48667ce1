"""The start scripts for Linux and macOS find their folder, wherever and however they are called."""
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The scripts in a folder whose environment is there already; its Python tells where and with what it was called.
    """
    project = tmp_path / "my project"
    (project / "venv" / "bin").mkdir(parents=True)
    for name in ("run_linux.sh", "run_macos.sh"):
        shutil.copy(PROJECT / name, project)
    for name in ("requirements.lock", "venv/installed-requirements.lock"):
        (project / name).write_text("x", encoding="utf-8")
    python = project / "venv" / "bin" / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || echo "$PWD|$WILMER_START_SCRIPT|$*"\n', encoding="utf-8")
    python.chmod(0o755)
    return project


@pytest.mark.skipif(os.name == "nt", reason="scripts of other systems")
@pytest.mark.parametrize("script", ["run_linux.sh", "run_macos.sh"])
@pytest.mark.parametrize("way", ["absolute", "relative", "link", "link to a link"])
def test_the_folder_is_found(installed: Path, script: str, way: str) -> None:
    elsewhere = installed.parent / "bin"
    elsewhere.mkdir()
    (elsewhere / "wilmer").symlink_to(f"../{installed.name}/{script}")
    (elsewhere / "again").symlink_to(elsewhere / "wilmer")
    (elsewhere / installed.name).mkdir()  # what CDPATH would lead to
    called = {"absolute": installed / script, "relative": Path(installed.name) / script, "link": "bin/wilmer",
              "link to a link": elsewhere / "again"}[way]
    ended = subprocess.run(["bash", str(called), "check", "a b"], cwd=installed.parent, capture_output=True, text=True,
                           env={**os.environ, "CDPATH": str(elsewhere)}, timeout=30, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == (
        f"{installed}|bash {script}|run_waitress.py check a b\n", "", 0)
