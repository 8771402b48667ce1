"""One test for a whole table: every row is checked, and all rows that fail are reported together."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

Row = TypeVar("Row")
Test = Callable[..., None]

# What a failing row says is cut here, so that a table that fails as a whole stays readable.
LONGEST_ERROR = 2000
LONGEST_NAME = 200


def check_all(rows: Collection[Row], check: Callable[[Row], object], name: Callable[[Row], str] = repr) -> None:
    """Call ``check`` with each row, and fail with the names and errors of all rows for which it raises.

    For rows that leave nothing behind. Rows that need fresh fixtures are parameters of the test instead.
    """
    assert rows, "a table without rows checks nothing"
    failures = []
    for row in rows:
        try:
            check(row)
        # A skip counts as well: nobody would see that one row of many is never checked.
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
            text = str(error)[:LONGEST_ERROR] or type(error).__name__
            failures.append(f"{name(row)[:LONGEST_NAME]}: {_place(error)}: {text}")
    if failures:
        pytest.fail(f"{len(failures)} of {len(rows)} rows:\n" + "\n".join(failures), pytrace=False)


def _place(error: BaseException) -> str:
    """Return the innermost line of a test at which the check failed."""
    tests = Path(__file__).parent
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if tests in Path(frame.filename).parents]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"


Ids = Callable[[Any], object] | Sequence[object] | None


def table(names: str | Sequence[str], rows: Iterable[Any], ids: Ids = None) -> Callable[[Test], Test]:
    """Give a test all rows of a table: ``pytest.mark.parametrize``, but as one case.

    Each row gets a ``monkeypatch`` and a ``tmp_path`` of its own, and an empty ``caplog`` and ``capsys``. All other
    fixtures are shared by the rows; those that have a method ``next_row`` are prepared for each row by it.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    known = list(rows)
    named: Sequence[Any] = [ids] * len(known) if ids is None or callable(ids) else ids
    table_rows = [_Row(row, len(wanted), name) for row, name in zip(known, named, strict=True)]

    def decorate(function: Test) -> Test:
        signature = inspect.signature(function)
        others = [parameter for name, parameter in signature.parameters.items() if name not in wanted]
        assert len(others) + len(wanted) == len(signature.parameters), f"{function.__name__} takes no {wanted}"

        def test(**fixtures: Any) -> None:
            def check(row: _Row) -> None:
                with _fresh(fixtures) as own:
                    function(**dict(zip(wanted, row.values, strict=True)), **own)

            check_all(table_rows, check, lambda row: row.name)

        functools.update_wrapper(test, function)
        # pytest follows __wrapped__ to the parameters that it would fill in, and place_as to the line that it names.
        del test.__dict__["__wrapped__"]
        test.__dict__.update(
            __signature__=signature.replace(parameters=others), place_as=getattr(function, "place_as", function)
        )
        return test

    return decorate


class _Row:
    """The values of one row and how a failure names it."""

    def __init__(self, row: Any, width: int, naming: object) -> None:
        name = None if callable(naming) else naming
        if isinstance(row, type(pytest.param())):
            assert not row.marks, "a row of a table has no marks"
            self.values, name = tuple(row.values), row.id or name
        else:
            self.values = (row,) if width == 1 else tuple(row)
        shown = naming if callable(naming) else repr
        self.name = str(name or ", ".join(str(shown(value)) for value in self.values))


@contextmanager
def _fresh(fixtures: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The fixtures of one row."""
    own = dict(fixtures)
    for fixture in fixtures.values():
        if hasattr(type(fixture), "next_row"):
            fixture.next_row()
    if "caplog" in own:
        own["caplog"].clear()
    if "capsys" in own:
        own["capsys"].readouterr()
    if "tmp_path" in own:
        parent: Path = own["tmp_path"]
        own["tmp_path"] = parent / f"row{sum(1 for _ in parent.iterdir())}"
        own["tmp_path"].mkdir()
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in own:
            own["monkeypatch"] = patch
        yield own
