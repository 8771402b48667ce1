"""The files for a forge: README's commands on every Python, actions that nobody can exchange, and no rights."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from Scripts.generate.lock_platforms import PYTHONS
from Tests.free_ports import free_port
from Tests.integration.launcher import standard_tree
from Tests.stub_backend import StubBackend, chat_reply

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / ".github" / "workflows").iterdir())}
WORKFLOW, RELEASE = WORKFLOWS["test"], WORKFLOWS["release"]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_actions_are_pinned_by_the_commit_of_a_release() -> None:
    used = [line for text in WORKFLOWS.values() for line in re.findall(r"uses: (.*)", text)]
    assert len(used) == 10
    assert [line for line in used if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_no_workflow_may_do_more_than_it_does() -> None:
    assert set(WORKFLOWS) == {"release", "test"}
    assert re.findall(r"^ *permissions:(?:.*)\n((?: +.*\n)*)", WORKFLOW, re.MULTILINE) == ["  contents: read\n"]
    # Nothing at all, but for what each job needs.
    assert re.findall(r"^permissions: (.*)$", RELEASE, re.MULTILINE) == ["{}"]
    jobs = re.findall(r"^    permissions:\n((?:      .*\n)+)", RELEASE, re.MULTILINE)
    assert [re.findall(r"([\w-]+: \w+)", re.sub(r" #.*", "", job)) for job in jobs] == [
        ["contents: read", "id-token: write", "attestations: write"],
        ["contents: write"],
    ]


def test_a_release_is_made_from_locked_packages_and_never_published_by_itself() -> None:
    assert re.findall(r"pip install (.*)", RELEASE) == ["--require-hashes -r requirements-release.lock"]
    assert "gh release create" in RELEASE and "--draft" in RELEASE
    # A name that somebody gives a tag is data for the shell, never a part of a script.
    scripts = re.findall(r"run: (?:\|\n((?: {10}.*\n)+)|(.+)\n)", RELEASE)
    assert len(scripts) == 3 and not [text for text in scripts if "${{" in "".join(text)]
    page = (ROOT / "Docs" / "User" / "verifying-a-release.md").read_text(encoding="utf-8")
    commands = re.findall(r"(pip install --require-hashes .*|-m Scripts\.\S+)", RELEASE)
    assert len(commands) == 2 and all(command in page for command in commands)


def test_it_runs_the_commands_of_the_readme_with_every_served_python() -> None:
    tests = "bash Scripts/developer/run_tests.sh --quick"
    for command in ("run_linux.sh", "run_macos.sh", "run_windows.bat", tests):
        assert command in WORKFLOW and command in README
    jobs = re.split(r"^  (?=[\w-]+:\n)", WORKFLOW.partition("\njobs:\n")[2], flags=re.MULTILINE)[1:]
    assert len(jobs) == 2
    for job in jobs:
        assert re.findall(r"run: (.*)", job)[1:] == [tests] and "run: python .ci/try_start.py " in job
    # In other shells of that system, bash is the one of WSL.
    assert f"shell: bash\n        run: {tests}" in jobs[1]
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
