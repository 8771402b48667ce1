"""One mistake, one message: what follows from another finding is left out, and each has a place and a nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from Middleware.addons.check.findings import Finding, distinct
from Middleware.addons.check.lookups import Lookups
from Middleware.utilities.config.check import Severity


def finding(message: str, severity: Severity = "error", path: str = "a") -> Finding:
    return Finding(severity, "F.json", path, 1, message)


@pytest.mark.parametrize(
    ("findings", "kept"),
    [
        ([finding("x", "warning"), finding("x")], [finding("x")]),
        ([finding("x"), finding("x", "note"), finding("x", "warning")], [finding("x")]),
        ([finding("x"), finding("x")], [finding("x")]),
        ([finding("x"), finding("x, so that y", "warning")], [finding("x, so that y", "warning")]),
        ([finding("x"), finding("x", path="b")], [finding("x"), finding("x", path="b")]),
        ([finding("x"), finding("y")], [finding("x"), finding("y")]),
    ],
)
def test_the_same_said_twice(findings: list[Finding], kept: list[Finding]) -> None:
    assert distinct(findings, ()) == kept


@pytest.mark.parametrize(
    ("name", "near"), [("cuont.py", "count.py"), ("count.txt", "count.py"), ("quite_other.py", "")]
)
def test_the_nearest_script(tmp_path: Path, name: str, near: str) -> None:
    (tmp_path / "count.py").touch()
    (tmp_path / "counts.md").touch()
    problem = Lookups().script(f"{tmp_path.as_posix()}/{name}")
    assert problem is not None and problem.message == f"the Python script '{name}' does not exist"
    assert problem.suggestion == (f"{tmp_path.as_posix()}/{near}" if near else "")


def test_a_file_that_is_no_script(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    problem = Lookups().script(f"{tmp_path.as_posix()}/notes.txt")
    assert problem is not None and problem.message == "'notes.txt' is not a Python script, whose name ends in .py"


@pytest.mark.parametrize(
    ("source", "mistake"),
    [
        ("def Invoke(text):\n    return text\n", ""),
        ("from helpers import run as Invoke\n", ""),
        ("from helpers import *\n", ""),
        ("globals()['Invoke'] = len\n", ""),
        ("def invoke(text):\n    return text\n", "defines no function Invoke; is 'invoke' meant to be it?"),
        ("def other():\n    pass\n", "defines no function Invoke"),
        ("", "defines no function Invoke"),
        ("x = 1\n  def Invoke(): pass\n", "cannot be loaded: line 2: unexpected indent"),
        ("# coding: nonsense\n", "cannot be loaded: unknown encoding: nonsense"),
    ],
)
def test_what_a_script_lacks(tmp_path: Path, source: str, mistake: str) -> None:
    path = tmp_path / "count.py"
    path.write_text(source, encoding="utf-8")
    problem = Lookups().script(path.as_posix())
    assert (problem.message if problem else "") == (f"the Python script 'count.py' {mistake}" if mistake else "")


def test_a_script_is_looked_at_again_after_an_edit(tmp_path: Path) -> None:
    path = tmp_path / "count.py"
    path.write_text("def Invok(): pass\n", encoding="utf-8")
    assert Lookups().script(path.as_posix()) is not None
    path.write_text("def Invoke(): pass\n", encoding="utf-8")
    assert Lookups().script(path.as_posix()) is None


def test_a_script_in_no_folder() -> None:
    problem = Lookups().script("no/such/folder/x.py")
    assert problem is not None and problem.suggestion == ""
