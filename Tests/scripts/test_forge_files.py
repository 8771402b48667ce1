"""The files for a forge: README's commands on every Python, actions that nobody can exchange, and no rights."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from Scripts.generate.lock_platforms import PYTHONS
from Tests.integration.launcher import standard_tree
from Tests.postgres_lab import free_port
from Tests.stub_backend import StubBackend, chat_reply

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_actions_are_pinned_by_the_commit_of_a_release() -> None:
    used = re.findall(r"uses: (.*)", WORKFLOW)
    assert len(used) == 4
    assert [line for line in used if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_the_workflow_may_only_read() -> None:
    assert re.findall(r"^ *permissions:\n((?: +.*\n)+)", WORKFLOW, re.MULTILINE) == ["  contents: read\n"]


def test_it_runs_the_commands_of_the_readme_with_every_served_python() -> None:
    tests = "bash Scripts/developer/run_tests.sh --quick"
    for command in ("run_linux.sh", "run_macos.sh", "run_windows.bat", tests):
        assert command in WORKFLOW and command in README
    listed = re.findall(r'python: \["3\.11".*\]', WORKFLOW)[0]
    assert re.findall(r"\d+\.\d+", listed) == [f"{major}.{minor}" for major, minor in PYTHONS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        ([], 0, r"-- The chat: 'rain'\n(?:.*\n)*-- It stopped\.\n"),
        (["--no-such-flag"], 1, r"It ended with status \d before it answered\."),
    ],
)
def test_the_start_is_tried(tmp_path: Path, flags: list[str], status: int, said: str) -> None:
    with StubBackend(chat_reply("rain")) as backend:
        standard_tree(tmp_path, backend.url)
        done = subprocess.run(
            [
                sys.executable,
                ".ci/try_start.py",
                sys.executable,
                "run_waitress.py",
                "--PublicDirectory",
                str(tmp_path),
                "--port",
                str(free_port()),
                *flags,
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=300,
            check=False,
        )
    assert done.returncode == status, done.stderr
    assert re.search(said, done.stdout + done.stderr)
