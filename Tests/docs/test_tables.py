"""Each row of a table has as many cells as its head: GitHub drops the others without a word."""

from __future__ import annotations

import re

from Tests.docs.markdown import Page
from Tests.docs.pages import all_pages
from Tests.tables import table

_CELL_END = re.compile(r"(?<!\\)\|")


def _cells(row: str) -> int:
    return len(_CELL_END.findall(row.removeprefix("|").removesuffix("|"))) + 1


def _uneven(page: Page) -> list[str]:
    found, head = [], 0
    for number, line in enumerate(page.prose.split("\n"), 1):
        row = line.strip()
        head = (head or _cells(row)) if row.startswith("|") else 0
        if head and _cells(row) != head:
            found.append(f"{page}, line {number}: {_cells(row)} cells below a head of {head}: {row[:80]}")
    return found


@table("page", list(all_pages().values()), ids=str)
def test_rows_have_the_cells_of_their_head(page: Page) -> None:
    assert not _uneven(page), "\n" + "\n".join(_uneven(page))


def test_uneven_rows_are_found() -> None:
    text = r"""
| a | b |
|---|---|
| `x\|y` | two |
| one | two | three |
| one |

|one|
"""
    assert [line.partition(":")[0] for line in _uneven(Page("Page.md", text))] == ["Page.md, line 5", "Page.md, line 6"]
