"""``benchmarks/size_budget.py``: what is a line of code, which room has it, and when a room is too large."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import size_budget
from benchmarks.size_budget import RECORDED, pure_code, room_of
from Tests.tables import table

MODULE = '''"""A module

of three lines."""
# a comment

VALUE = 1  # counts, with its comment
TEXT = """two lines of text, and a blank one

# is no comment"""
FORMATTED = f"""{VALUE}

{VALUE}"""
CALLED = max(
    1,

    # between
    2)


class Thing:
    """One line."""

    def act(self) -> str:
        """Two
        lines."""
        return "first" \\
            "second"

    async def wait(self) -> None:
        "a docstring, too"
        "a statement"
'''


def test_blank_lines_comments_and_docstrings_are_no_code() -> None:
    # VALUE 1, TEXT 2, FORMATTED 2, CALLED 3, class 1, act 3, wait 2.
    assert pure_code(MODULE) == 14


@table(
    "source, lines",
    [
        ("", 0),
        ("# only a comment", 0),
        ('"""Only a docstring."""', 0),
        ('x = """\n"""\n', 2),
        ("x = 1\n\n\n", 1),
        ('def f(): "A docstring."', 1),
        ('"""Doc.""" ; x = 1', 1),
        ("if x:\n    pass\n\nelse:\n    # why\n    y()\n", 4),
    ],
)
def test_a_line_counts_once(source: str, lines: int) -> None:
    assert pure_code(source) == lines


@table(
    "path, room",
    [
        ("api/app.py", "api"),
        ("api/requests/messages.py", "api"),
        ("models/events.py", "models, exceptions, common"),
        ("common/__init__.py", "models, exceptions, common"),
        ("addons/console/editing/assist.py", "addons/console"),
        ("addons/__init__.py", "addons"),
        ("__init__.py", "Middleware"),
    ],
)
def test_a_file_belongs_to_a_room(path: str, room: str) -> None:
    assert room_of(path) == room


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "benchmarks").mkdir()
    fill(tmp_path, "api", 100)
    fill(tmp_path, "addons/talk", 2000)
    assert size_budget.main(["--update", "--root", str(tmp_path)]) == 0
    return tmp_path


def fill(root: Path, room: str, lines: int) -> None:
    folder = root / "Middleware" / room
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "module.py").write_text("x = 1\n" * lines, encoding="utf-8")


def check(root: Path) -> int:
    return size_budget.main(["--check", "--root", str(root)])


@pytest.mark.parametrize(("room", "limit"), [("api", 130), ("addons/talk", 2040)])
def test_a_room_above_its_limit_fails_with_what_to_do(
    room: str, limit: int, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(checkout, room, limit)
    assert check(checkout) == 0
    fill(checkout, room, limit + 7)
    capsys.readouterr()
    assert check(checkout) == 1
    said = capsys.readouterr().out
    assert f"{room}: {limit + 7} lines of code, 7 above the limit of {limit}; " in said
    assert "size_budget.py --update in the commit that grows it, and give the reason in the commit's body" in said
    assert size_budget.main(["--update", "--root", str(checkout)]) == 0
    assert check(checkout) == 0


def test_a_new_room_needs_a_row(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(checkout, "addons/made", 1)
    assert check(checkout) == 1
    assert "addons/made: 1 lines of code, and no row in benchmarks/size.json" in capsys.readouterr().out


def test_a_room_that_goes_or_shrinks_is_named_and_passes(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "Middleware/addons/talk/module.py").unlink()
    fill(checkout, "api", 99)
    assert check(checkout) == 0
    said = capsys.readouterr().out
    assert "api: 99 lines of code, 100 are recorded" in said
    assert "addons/talk: 0 lines of code, 2000 are recorded" in said


def test_growth_within_the_limit_is_not_recorded(checkout: Path) -> None:
    """Else each change could take the limit a little further."""
    fill(checkout, "api", 120)
    fill(checkout, "addons/talk", 1990)
    assert size_budget.main(["--update", "--root", str(checkout)]) == 0
    recorded = json.loads((checkout / RECORDED).read_text(encoding="utf-8"))
    assert recorded == {"api": 100, "addons/talk": 1990}


@pytest.mark.parametrize("damage", ["<<<<<<< HEAD\n{}", "[]", '{"api": "100"}'])
def test_a_damaged_record_says_how_to_mend_it(damage: str, checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / RECORDED).write_text(damage, encoding="utf-8")
    assert check(checkout) == 1
    assert "Run: python benchmarks/size_budget.py --update" in capsys.readouterr().out
    assert size_budget.main(["--update", "--root", str(checkout)]) == 0
    assert check(checkout) == 0


def test_the_table_has_each_room_and_their_sum(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert size_budget.main(["--table", "--root", str(checkout)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| Room | Lines | Pure code | Files |",
        "|---|--:|--:|--:|",
        "| addons/talk | 2,000 | 2,000 | 1 |",
        "| api | 100 | 100 | 1 |",
        "| **sum** | 2,100 | 2,100 | 2 |",
    ]


def test_a_folder_without_the_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Middleware has no Python files"):
        size_budget.main(["--root", str(tmp_path)])
