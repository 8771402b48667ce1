"""The progress of an installation: what is shown of pip's lines, and what a failure leaves on the screen."""
from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from Middleware.cli.installing import WIDTH, Progress, count_requirements

PROJECT = Path(__file__).resolve().parents[2]
LINES = ["Ignoring pywin32: markers 'sys_platform == \"win32\"' don't match your environment",
         "Collecting flask==3.1.2 (from -r requirements.lock (line 5))",
         "  Downloading flask-3.1.2-py3-none-any.whl (103 kB)", "Looking in indexes: https://pypi.org",
         "Requirement already satisfied: h11>=0.16 in ./venv (from x)",
         "Processing /opt/wheels/charset_normalizer-3.4-py3.whl (from -r requirements.lock (line 6))",
         "Collecting typing-extensions>=4 (from x)", "Collecting flask==3.1.2 (from again)",
         "Installing collected packages: flask", "Successfully installed flask-3.1.2"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wheel(folder: Path, name: str) -> None:
    """Write the smallest package that pip installs."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", "")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


def install(folder: Path, requirements: str) -> subprocess.CompletedProcess[str]:
    (folder / "wanted.txt").write_text(requirements, "utf-8")
    return subprocess.run(
        [sys.executable, "-m", "Middleware.cli.installing", "--no-index", "--find-links", str(folder), "--no-deps",
         "--target", str(folder / "target"), "-r", str(folder / "wanted.txt")], cwd=PROJECT, capture_output=True,
        text=True, timeout=120, check=False)


def test_without_a_terminal_each_package_has_a_line() -> None:
    output = io.StringIO()
    progress = Progress(output, 4)
    for line in LINES:
        progress.read(line)
    progress.end()
    assert output.getvalue().splitlines() == [
        "  1 of 4: pywin32", "  2 of 4: flask", "  3 of 4: h11", "  4 of 4: charset_normalizer",
        "  5: typing-extensions", "  5: flask", "  Unpacking and compiling them ..."]
    assert progress.problems == []


def test_a_terminal_has_one_line_that_is_rewritten() -> None:
    output = Terminal()
    progress = Progress(output, 4)
    for line in (*LINES, "Collecting " + "x" * 200):
        progress.read(line)
    progress.end()
    shown = output.getvalue()
    assert "\n" not in shown and shown.endswith(" \r")
    assert max(map(len, shown.split("\r"))) == WIDTH


def test_what_is_wrong_is_kept_and_a_retry_is_shown() -> None:
    output = io.StringIO()
    progress = Progress(output, 1)
    for line in ("WARNING: Retrying (Retry(total=4)) after connection broken", "WARNING: a location is ignored",
                 "ERROR: No matching distribution found for flask"):
        progress.read(line)
    assert output.getvalue().startswith("WARNING: Retrying")
    assert progress.problems == ["WARNING: a location is ignored", "ERROR: No matching distribution found for flask"]


def test_requirements_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("flask==3.1 \\\n    --hash=sha256:1 \\\n    # via x\n-r b.txt\n# h11==1\n", "utf-8")
    (tmp_path / "b.txt").write_text('jinja2>=3 ; sys_platform == "win32"\nmcp[cli]==1\n\n--no-index\n', "utf-8")
    assert count_requirements(str(tmp_path / "a.txt")) == 3
    assert count_requirements(str(PROJECT / "requirements.lock")) > 20


def test_packages_are_installed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        wheel(tmp_path, name)
    done = install(tmp_path, "one==1.0\ntwo==1.0\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["  1 of 2: one", "  2 of 2: two", "  Unpacking and compiling them ..."]
    assert (tmp_path / "target" / "two.py").is_file()


@pytest.mark.parametrize("requirements", ["three==1.0\n", "one==2.0\n"])
def test_a_failure_says_why(tmp_path: Path, requirements: str) -> None:
    wheel(tmp_path, "one")
    done = install(tmp_path, requirements)
    assert done.returncode == 1 and "ERROR: No matching distribution found for" in done.stderr
