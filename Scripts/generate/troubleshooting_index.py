"""The index in Docs/User/troubleshooting.md: every message and symptom of the pages about troubleshooting.

An entry of those pages is a paragraph that begins in bold. Messages stand in bold, as inline code or in double
quotes; a bold beginning without one is a symptom.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from Scripts.generate import generated_files

PATH = generated_files.ROOT / "Docs" / "User" / "troubleshooting.md"
PAGES = PATH.with_suffix("")
BEGIN = "<!-- index: written by python -m Scripts.generate -->\n"
END = "<!-- end of index -->"
MESSAGE = re.compile(r"\*\*(`+)(.+?)\1\*\*|\*\*\"(.+?)\"\*\*", re.DOTALL)
"""In group 2 what is the program's, word for word; in group 3 an example."""
_SYMPTOM = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
_TITLE = re.compile(r"# Troubleshooting: (.+)")


@dataclass(frozen=True)
class Entry:
    """Something that a reader looks for. ``place``: where it is explained, as a link."""

    text: str
    is_message: bool
    place: str

    @property
    def row(self) -> str:
        text = self.text.replace("|", "\\|")
        return f"| {f'`{text}`' if self.is_message else text} | {self.place} |"

    @property
    def order(self) -> tuple[str, str]:
        """By the first letters: what varies at the beginning and quotation marks do not count."""
        return re.sub(r"^[^a-z]+", "", self.text.casefold()), self.place


def entries(page: Path) -> Iterator[Entry]:
    """What a page explains, in its order; raises ValueError if its title is not of the form that the index shows."""
    title = _TITLE.match(text := page.read_text(encoding="utf-8"))
    if title is None:
        raise ValueError(f"{page} does not begin with '# Troubleshooting: ...'")
    for section in text.split("\n## ")[1:]:
        heading, _, paragraphs = section.partition("\n")
        place = f"[{title[1]}: {heading}]({PAGES.name}/{page.name}#{_anchor(heading)})"
        for paragraph in re.split(r"\n{2,}", paragraphs.strip()):
            yield from (Entry(words, is_message, place) for words, is_message in _texts(paragraph))


def _texts(paragraph: str) -> Iterator[tuple[str, bool]]:
    found = [" ".join((match[2] or match[3]).split()) for match in MESSAGE.finditer(paragraph)]
    if (symptom := _SYMPTOM.match(paragraph)) and not MESSAGE.match(paragraph):
        yield " ".join(symptom[1].split()).rstrip("."), False
    yield from ((text, True) for text in found)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def index(pages: Path) -> str:
    """The two tables, of symptoms and of messages."""
    found = sorted({entry for page in pages.glob("*.md") for entry in entries(page)}, key=lambda entry: entry.order)
    return (f"## Without a message\n\n{_table('What you see', found, False)}\n"
            f"## By message\n\n{_table('Message', found, True)}")


def _table(title: str, found: list[Entry], messages: bool) -> str:
    rows = [f"| {title} | Explained in |", "|---|---|", *(entry.row for entry in found if entry.is_message == messages)]
    return "\n".join(rows) + "\n"


def files() -> dict[Path, str]:
    """The page with a current index."""
    text = PATH.read_text(encoding="utf-8")
    return {PATH: generated_files.with_part(PATH, text, (BEGIN, END), index(PAGES))}
