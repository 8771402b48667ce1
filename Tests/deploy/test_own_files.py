"""What a user adds below Public is safe from git, and what comes with the program is tracked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
OWN = [
    "Configs/Users/_current-user.json",
    "Configs/Users/me.json",
    "Configs/Endpoints/me/Main.json",
    "Configs/Workflows/me/chat/_DefaultWorkflow.json",
    "Configs/Presets/Mine/a.json",
    "WorkflowFiles/me/notes.txt",
    "Scripts/tool.py",
    "DiscussionIds/mill/memories.json",
    "SqlLiteDBs/WilmerDb.me.sqlite",
    "logs/wilmerai.log",
    "accepted-keys.txt",
    "other/x",
    "Configs/Users/me.json.bak",
]
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=n@example.com", *words],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_clean_and_pull_leave_them_alone(tmp_path: Path) -> None:
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    shipped = origin / "Public" / "Configs" / "Users" / "demo.json"
    shipped.parent.mkdir(parents=True)
    shutil.copy(PROJECT / ".gitignore", origin)
    shipped.write_text("{}\n", "utf-8")
    git(origin, "init", "-q")
    git(origin, "add", "-f", ".")
    git(origin, "commit", "-qm", "one")
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    for name in OWN:
        path = clone / "Public" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine", "utf-8")
    assert git(clone, "status", "--porcelain") == ""
    # A shipped file changes, and another one is added beside those of the user.
    shipped.write_text('{"port": 1}\n', "utf-8")
    (shipped.parent / "new.json").write_text("{}\n", "utf-8")
    git(origin, "add", "-f", ".")
    git(origin, "commit", "-qm", "two")
    git(clone, "pull", "-q")
    git(clone, "clean", "-fdq")
    assert {name: (clone / "Public" / name).read_text("utf-8") for name in OWN} == dict.fromkeys(OWN, "mine")
    assert "port" in (clone / "Public/Configs/Users/demo.json").read_text("utf-8")
    assert (clone / "Public/Configs/Users/new.json").is_file()


@pytest.mark.skipif(not (PROJECT / ".git").exists(), reason="not a clone")
def test_the_current_user_is_not_tracked_and_the_demo_is() -> None:
    tracked = git(PROJECT, "ls-files", "Public").split("\n")
    assert "Public/Configs/Users/_current-user.json" not in tracked
    assert {
        "Public/Configs/Users/demo.json",
        "Public/Configs/Endpoints/demo/Demo-LLM.json",
        "Public/Schemas/user.schema.json",
    } <= set(tracked)
