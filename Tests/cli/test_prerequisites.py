"""What old Pythons and Pythons without the packages are told."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys

import pytest

from Middleware.cli import prerequisites
from Middleware.utilities import config_utils
from Tests.patience import CLIENT_PATIENCE

ROOT = config_utils.get_project_root_directory_path()
LAUNCHERS = ["server.py", "run_waitress.py", "run_eventlet.py"]
OLD = """
import runpy, sys
sys.argv = sys.argv[1:]
sys.version_info = (3, 9, 6, "final", 0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*words: str, folder: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=CLIENT_PATIENCE,
        stdin=subprocess.DEVNULL,
    )


def last_word(line: str) -> str:
    """The last word of a command line; the project's folder may have a space in its name."""
    if os.name != "nt":
        return shlex.split(line)[-1]
    # On Windows, quotation marks begin anywhere in a word, and a backslash is part of it.
    return re.findall(r'(?:"[^"]*"|[^\s"])+', line)[-1].replace('"', "")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_python_that_is_too_old(launcher, tmp_path):
    ended = run("-c", OLD, os.path.join(ROOT, launcher), "--help", folder=ROOT)
    assert (ended.returncode, ended.stdout) == (1, "")
    first, second = ended.stderr.splitlines()
    assert first == f"ERROR: WilmerAI needs Python 3.11 or later; this is Python 3.9.6 ({sys.executable})."
    assert second.startswith("Start it with: ") and os.path.isfile(last_word(second))


@pytest.mark.parametrize(
    "file",
    [
        *LAUNCHERS,
        "Middleware/__init__.py",
        "Middleware/cli/__init__.py",
        "Middleware/cli/prerequisites.py",
        "Middleware/utilities/__init__.py",
        "Middleware/utilities/quoting.py",
    ],
)
def test_old_pythons_can_read_what_tells_them(file):
    with open(os.path.join(ROOT, file), encoding="utf-8") as source:
        tree = ast.parse(source.read(), feature_version=(3, 6))
    assert not [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        or isinstance(node, (ast.Match, ast.NamedExpr))
    ]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_python_without_the_packages(launcher, tmp_path):
    """-S leaves the installed packages out, as another Python than that of the environment would."""
    ended = run("-S", os.path.join(ROOT, launcher), "--help", folder=str(tmp_path))
    assert (ended.returncode, ended.stdout) == (1, "")
    missing, start, install, *_ = ended.stderr.splitlines()
    assert missing.startswith("ERROR: Python packages are missing: flask, jinja2, urllib3, h11, certifi")
    assert ("waitress" in missing) == (launcher != "run_eventlet.py") and sys.executable in missing
    assert os.path.isfile(last_word(start)) and os.path.isfile(last_word(install)) and "-m pip install -r" in install


@pytest.mark.parametrize(
    ("is_complete", "is_running", "is_named"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_the_python_of_the_environment(tmp_path, monkeypatch, capsys, is_complete, is_running, is_named):
    """It is named if it has the packages, and is not the one that runs."""
    project = tmp_path / "my programs"
    python = project / "venv" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    python.parent.mkdir(parents=True)
    python.touch()
    (project / "requirements.lock").touch()
    if is_complete:
        (project / "venv" / "installed-requirements.lock").touch()
    if is_running:
        monkeypatch.setattr(sys, "prefix", str(project / "venv"))
    monkeypatch.setattr(prerequisites, "_in_project", lambda name: str(project / name))
    with pytest.raises(SystemExit):
        prerequisites.require_packages("no_such_package_anywhere")
    last = capsys.readouterr().err.splitlines()[-1]
    assert ("has them" in last) == is_named
    assert not is_named or os.path.samefile(last_word(last), python)


def test_a_script_without_the_packages(tmp_path):
    ended = run("-S", os.path.join(ROOT, "Scripts", "memory_tool.py"), "list", folder=str(tmp_path))
    assert (ended.returncode, ended.stdout) == (1, "") and ended.stderr.startswith("ERROR: Python packages are missing")


def test_one_package_that_is_missing(capsys):
    with pytest.raises(SystemExit) as ended:
        prerequisites.require_packages("json", "no_such_package_anywhere")
    assert ended.value.code == 1
    assert "missing: no_such_package_anywhere." in capsys.readouterr().err


def test_nothing_is_said_if_all_is_there(capsys):
    prerequisites.require_python()
    prerequisites.require_packages("waitress")
    assert capsys.readouterr() == ("", "")
