"""Command lines in messages mean the same to every shell of the system: on Windows, to cmd and PowerShell."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from Middleware.utilities import quoting
from Middleware.utilities.command_lines import command
from Tests.patience import CLIENT_PATIENCE
from Tests.tables import table

NAMES = (
    "plain",
    "my programs",
    "Jörg's",
    "R&D",
    "a & b",
    "x (x86)",
    "(x86)",
    "100%",
    "%TEMP% x",
    "a^b",
    "wow!",
    "a,b;c=d",
    "#1",
    "@home",
    "[1]",
    "a{b}",
    "~",
    "-",
    "’s",
    "猫 🐈",
    "semi;",
    "PROGRA~1",
)
FOLDERS = ("C:\\", "D:\\a b\\", "\\\\server\\share\\", "\\", "..\\", ".\\", "", "C:", "C:/", "a b\\")
ARGUMENTS = ("check", "--PublicDirectory", "me:chat", "", "a b\\", "C:\\", 'say "x y"', "a\\\\b", "x & y")


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quoting, "os", SimpleNamespace(name="nt"))
    monkeypatch.setattr("Middleware.utilities.command_lines.os", SimpleNamespace(name="nt"))


def outside(line: str) -> str:
    """What is not between quotation marks."""
    return re.sub(r'"[^"]*"', "", line)


def name_for_cmd(line: str) -> str:
    """The program that cmd runs: it ends where a separator is in no quotation marks, which are then left out."""
    found = re.match(r'(?:[^"\s,;=&|<>()^]|"[^"]*")+', line)
    assert found and (found.end() == len(line) or line[found.end()] == " ")
    return found.group().replace('"', "")


def words_for_powershell(line: str) -> list[str]:
    """The words of a line. It must not begin with a mark: that would be a text, and not a command."""
    assert re.match(r"[\w.\\-]", line), line
    assert not re.search(r"""['`$,;|&(){}@#<>’]""", outside(line)), line
    return [word.replace('"', "") for word in re.findall(r'(?:[^"\s]|"[^"]*")+', line)]


def words_of_program(line: str) -> list[str]:
    """What a C program gets in argv: in the first word, a backslash has no meaning."""
    first = re.match(r'(?:[^"\s]|"[^"]*")*', line)
    assert first
    words = [first.group().replace('"', "")]
    for word in re.findall(r'(?:[^"\s\\]|\\+"?|"(?:[^"\\]|\\+"?)*")+', line[first.end() :]):
        plain, quoted = "", False
        for backslashes, other in re.findall(r"(\\*)([^\\]|$)", word):
            if other == '"':
                plain += "\\" * (len(backslashes) // 2) + ('"' if len(backslashes) % 2 else "")
                quoted ^= not len(backslashes) % 2
            else:
                plain += backslashes + other
        assert not quoted
        words.append(plain)
    return words


@table("folder", FOLDERS)
def test_both_shells_of_windows_start_the_program(windows: None, folder: str) -> None:
    for name in NAMES:
        for program in (f"{folder}{name}\\run_windows.bat", f"{folder}{name}"):
            line = command([program, "check"])
            same = {program, f".\\{program}"}
            assert name_for_cmd(line) in same, line
            assert words_for_powershell(line)[0] in same and words_for_powershell(line)[1:] == ["check"]
            assert words_of_program(line)[0] in same, line


@table("argument", [*ARGUMENTS, *NAMES, *(f"C:\\{name}\\" for name in NAMES)])
def test_a_program_gets_what_was_meant(windows: None, argument: str) -> None:
    line = command(["C:\\a b\\python.exe", argument, "last"])
    assert words_of_program(line) == ["C:\\a b\\python.exe", argument, "last"]
    if '"' not in argument:
        assert not re.search(r"[&|<>()^,;@#{}'$`%!~]", outside(line))


def test_what_needs_no_marks_has_none(windows: None) -> None:
    line = r"C:\Größe\run_windows.bat chat me:chat --PublicDirectory D:\Bücher\x.y_z --port=5001"
    assert command(line.split()) == line
    assert command([r".\run_windows.bat", "init"]) == r".\run_windows.bat init"


def shells() -> list[list[str] | None]:
    """The shells of this system, each as the words before a command line; None is the one of ``shell=True``."""
    powershells = filter(None, map(shutil.which, ("powershell", "pwsh"))) if os.name == "nt" else ()
    # That of Wine does nothing.
    calls = [[program, "-NoProfile", "-Command"] for program in powershells]
    return [None, *(call for call in calls if subprocess.check_output([*call, "echo 1"], text=True).strip() == "1")]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if "%TEMP%" not in name])
def test_the_shells_of_this_system_agree(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    script = folder / "show.bat"
    shown = f'"{sys.executable}" -c "import sys; print(ascii(sys.argv[1:]))"'
    script.write_text(f"@{shown} %*\n" if os.name == "nt" else f'#!/bin/sh\nexec {shown} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    arguments = ["check", "a b", "me:chat", "x & y"]
    for shell in shells():
        line = command([str(script), *arguments])
        done = subprocess.run(
            [*shell, line] if shell else line,
            shell=not shell,
            capture_output=True,
            text=True,
            check=True,
            timeout=CLIENT_PATIENCE,
        )
        assert done.stdout, (shell, line, done.stderr)
        assert ast.literal_eval(done.stdout) == arguments, (shell, line)
