"""The parts of a Markdown page that tests look at: code blocks, comments, headings, links and inline code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
_CODE = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\n[ \t]*\n).)+?)(?<!`)\1(?!`)", re.DOTALL)
_TEXT = r"(?:[^\[\]]|\[[^\[\]]*\](?:\([^()]*\))?)*"
_TITLE = r"(?:\s+(?:\"[^\"]*\"|'[^']*'))?"
_LINK = re.compile(rf"(!?)\[{_TEXT}\]\(\s*<?([^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*)>?{_TITLE}\s*\)")
_IMAGE = re.compile(r"(!)\[[^\[\]]*\]\(\s*<?([^\s()<>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:()[ \t]*<?([^\s>]+)", re.MULTILINE)
_HTML_LINK = re.compile(r"<(img)?[^<>]*?\s(?:src|href)=\"([^\"]+)\"")
_HTML_ANCHOR = re.compile(r"<\w+[^<>]*?\s(?:id|name)=\"([^\"]+)\"")


@dataclass(frozen=True)
class Fence:
    """A code block.

    Attributes:
        line: of its opening fence, from 1; line ``n`` of the text is line ``line + n`` of the page.
        info: what stands behind the fence.
        text: without the indentation of the fence.
        comments: those directly above it.
    """

    line: int
    info: str
    text: str
    comments: tuple[str, ...] = ()

    @property
    def language(self) -> str:
        return (self.info.split() or [""])[0].lower()

    @property
    def marks(self) -> list[str]:
        """The words behind the language."""
        return self.info.split()[1:]


@dataclass(frozen=True)
class Link:
    """A link or picture as it is written."""

    line: int
    target: str
    is_image: bool


@dataclass(frozen=True)
class Code:
    """Inline code, as one line."""

    line: int
    text: str


@dataclass
class Page:
    """A page. ``name``: relative to the project, with forward slashes."""

    name: str
    source: str
    fences: list[Fence] = field(default_factory=list)
    prose: str = ""
    """The page with blank lines in place of code blocks and comments."""

    def __post_init__(self) -> None:
        lines = _Splitter(self.source.splitlines())
        self.fences, self.prose = lines.fences, "\n".join(lines.prose)

    def __str__(self) -> str:
        return self.name

    @cached_property
    def anchors(self) -> set[str]:
        """What a link to a place of this page can end in, as GitHub makes them."""
        found: dict[str, int] = {}
        anchors = set(_HTML_ANCHOR.findall(self.prose))
        for line in self.prose.split("\n"):
            if heading := _HEADING.match(line):
                name = slug(heading[2])
                count = found[name] = found.get(name, -1) + 1
                anchors.add(f"{name}-{count}" if count else name)
        return anchors

    @cached_property
    def links(self) -> list[Link]:
        text = _CODE.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), self.prose)
        found = {
            (match.start(2), match[2]): Link(_line(text, match.start(2)), match[2], bool(match[1]))
            for kind in (_LINK, _IMAGE, _DEFINITION, _HTML_LINK)
            for match in kind.finditer(text)
        }
        return [link for _, link in sorted(found.items())]

    @cached_property
    def codes(self) -> list[Code]:
        return [
            Code(_line(self.prose, match.start()), re.sub(r"\s*\n\s*", " ", match[2]).strip())
            for match in _CODE.finditer(self.prose)
        ]


def read(path: Path, project: Path) -> Page:
    return Page(path.relative_to(project).as_posix(), path.read_text(encoding="utf-8"))


def slug(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"<[^<>]+>", "", text) if "`" not in heading else text
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


class _Splitter:
    """Goes through the lines once, and takes them apart."""

    def __init__(self, lines: list[str]) -> None:
        self.fences: list[Fence] = []
        self.prose: list[str] = []
        self._above: list[str] = []
        rest = iter(enumerate(lines, 1))
        for number, line in rest:
            self.prose.append("")
            if opening := _FENCE.match(line):
                self._fence(number, opening, rest)
            elif line.lstrip().startswith("<!--"):
                self._comment(line, rest)
            else:
                self.prose[-1] = line
                self._above = self._above if not line.strip() else []

    def _fence(self, number: int, opening: re.Match[str], rest: Iterator[tuple[int, str]]) -> None:
        indent, fence, info = opening.groups()
        text: list[str] = []
        for _, line in rest:
            self.prose.append("")
            stripped = line.strip()
            if stripped.startswith(fence) and not stripped.strip(fence[0]):
                break
            text.append(line[len(indent) :] if line.startswith(indent) else line.lstrip())
        self.fences.append(Fence(number, info.strip(), "\n".join(text) + "\n", tuple(self._above)))
        self._above = []

    def _comment(self, line: str, rest: Iterator[tuple[int, str]]) -> None:
        text = line
        while "-->" not in text:
            following = next(rest, None)
            if following is None:
                break
            self.prose.append("")
            text += "\n" + following[1]
        comment, _, behind = text.strip().removeprefix("<!--").partition("-->")
        self._above = [] if behind.strip() else [*self._above, comment.strip()]
        self.prose[-1] = behind
