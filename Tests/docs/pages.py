"""The pages of the documentation."""
from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from Tests.docs.blocks import Block, blocks
from Tests.docs.markdown import Page, read
from Tests.integration.launcher import PROJECT

AT_THE_TOP = ("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md")


@cache
def all_pages() -> dict[str, Page]:
    """By name."""
    paths = [*(PROJECT / name for name in AT_THE_TOP), *sorted((PROJECT / "Docs").rglob("*.md"))]
    return {page.name: page for page in (read(path, PROJECT) for path in paths if path.is_file())}


def all_blocks(language: str) -> list[Block]:
    return [block for page in all_pages().values() for block in blocks(page, language)]


def places(found: Iterable[Block]) -> list[str]:
    """The ids of tests about blocks."""
    return [block.place for block in found]
