"""The pages of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from Tests.docs.blocks import Block, blocks
from Tests.docs.markdown import Page, read
from Tests.integration.launcher import PROJECT

AT_THE_TOP = ("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md")


@cache
def all_pages() -> dict[str, Page]:
    """By name."""
    paths = [
        *(PROJECT / name for name in AT_THE_TOP),
        *sorted((PROJECT / "Docs").rglob("*.md")),
        *sorted((PROJECT / "Middleware/addons").glob("*/README.md")),
    ]
    return {page.name: page for page in (read(path, PROJECT) for path in paths if path.is_file())}


def moved_names() -> set[str]:
    """The names of the design documents whose jobs are done elsewhere: the first column of their table."""
    table = all_pages()["Docs/Developer/where-to-change.md"].source.split("## Names of the design documents\n")[1]
    return {
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([^`]+)`", line.split("|")[1])
    }


def all_blocks(language: str) -> list[Block]:
    return [block for page in all_pages().values() for block in blocks(page, language)]


def places(found: Iterable[Block]) -> list[str]:
    """The ids of tests about blocks."""
    return [block.place for block in found]
