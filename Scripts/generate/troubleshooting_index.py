"""The index in Docs/User/troubleshooting.md: every message and symptom of the pages about troubleshooting.

An entry of those pages is a paragraph that begins in bold. Messages stand in bold, as inline code or in double
quotes; a bold beginning without one is a symptom. In tables, messages are the inline code of a column with that title.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from Scripts.generate import generated_files

PATH = generated_files.ROOT / "Docs" / "User" / "troubleshooting.md"
PAGES = PATH.with_suffix("")
BEGIN = "<!-- index: written by python -m Scripts.generate -->\n"
END = "<!-- end of index -->"
MESSAGE = re.compile(r"\*\*(`+)(.+?)\1\*\*|\*\*\"(.+?)\"\.?\*\*", re.DOTALL)
"""In group 2 what is the program's, word for word; in group 3 examples, with ``", "`` between them."""
_SYMPTOM = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
_CODE = re.compile(r"(`+)(.+?)\1")
_TITLE = re.compile(r"# (?:Troubleshooting: )?(.+)")


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
    """What a page explains, in its order; raises ValueError if the page does not begin with a title."""
    title = _TITLE.match(text := page.read_text(encoding="utf-8"))
    if title is None:
        raise ValueError(f"{page} does not begin with a title: '# ...'")
    name = title[1][:1].lower() + title[1][1:]
    path = f"{PAGES.name}/{page.name}"
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        heading, _, paragraphs = section.partition("\n")
        place = f"[{name}]({path})" if heading.startswith("# ") else f"[{name}: {heading}]({path}#{_anchor(heading)})"
        for paragraph in re.split(r"\n{2,}", paragraphs.strip()):
            yield from (Entry(words, is_message, place) for words, is_message in _texts(paragraph))


def _texts(paragraph: str) -> Iterator[tuple[str, bool]]:
    if paragraph.startswith("|"):
        yield from ((text, True) for text in _in_table(paragraph.splitlines()))
        return
    if (symptom := _SYMPTOM.match(paragraph)) and not MESSAGE.match(paragraph):
        yield _one_line(symptom[1]).rstrip("."), False
    for match in MESSAGE.finditer(paragraph):
        yield from ((_one_line(text), True) for text in ([match[2]] if match[2] else match[3].split('", "')))


def _in_table(lines: Sequence[str]) -> Iterator[str]:
    """The messages of a table; a key alone, which has no blank, is not a message."""
    titles, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines)
    if "Message" in titles:
        column = titles.index("Message")
        yield from (code[2] for cells in rows for code in _CODE.finditer(cells[column]) if " " in code[2])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def index(*pages: Path) -> str:
    """The two tables, of symptoms and of messages."""
    found = sorted({entry for page in pages for entry in entries(page)}, key=lambda entry: entry.order)
    return (
        f"## Without a message\n\n{_table('What you see', found, False)}\n"
        f"## By message\n\n{_table('Message', found, True)}"
    )


def _table(title: str, found: list[Entry], messages: bool) -> str:
    rows = [f"| {title} | Explained in |", "|---|---|", *(entry.row for entry in found if entry.is_message == messages)]
    return "\n".join(rows) + "\n"


def files() -> dict[Path, str]:
    """The page with a current index."""
    text = PATH.read_text(encoding="utf-8")
    return {PATH: generated_files.with_part(PATH, text, (BEGIN, END), index(*PAGES.glob("*.md")))}
