"""The patterns that strings are compared with: whole strings, parts, regular expressions, and absent parts."""
from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Failures are read in a terminal: one prompt must not push all others off the screen.
MAX_SHOWN_LINES = 40
MAX_SHOWN_CHARACTERS = 300
NEAREST_LINES = 3
# The lines that difflib shows around a change.
CONTEXT_LINES = 3


@dataclass(frozen=True)
class Condition:
    """One condition on a string. ``operation`` is ``equals``, ``contains``, ``matches`` or ``lacks``."""

    operation: str
    text: str

    def holds(self, value: str) -> bool:
        if self.operation == "equals":
            return value == self.text
        if self.operation == "matches":
            return re.search(self.text, value) is not None
        return (self.text in value) is (self.operation == "contains")

    def explain(self, value: str) -> list[str]:
        """Return lines that explain why the condition is false for ``value``."""
        if self.operation == "equals":
            return ["expected exactly this text (-), there was (+):", *_diff(self.text, value)]
        if self.operation == "lacks":
            return [f"expected without {shown(self.text)}; it stands in:", *_indented(_lines_with(self.text, value))]
        expected = shown(self.text)
        wanted = f"expected to contain {expected}" if self.operation == "contains" else f"expected to match {expected}"
        if not value:
            return [f"{wanted}; the text is empty"]
        near = _nearest_lines(self.text, value) if self.operation == "contains" else []
        if near:
            return [f"{wanted}; the nearest lines there:", *_indented(near)]
        return [f"{wanted}; there was:", *_indented(clipped(value))]


Pattern = tuple[Condition, ...]


def broken(pattern: Pattern, values: Sequence[str]) -> list[str]:
    """Return lines that explain why ``values`` do not match; empty if they do.

    ``lacks`` must be true for each value, the other conditions together for at least one.
    """
    lines: list[str] = []
    for condition in pattern:
        if condition.operation == "lacks":
            lines += next((condition.explain(value) for value in values if not condition.holds(value)), [])
    wanted = [condition for condition in pattern if condition.operation != "lacks"]
    best = max(values, key=lambda value: sum(condition.holds(value) for condition in wanted), default="")
    for condition in wanted:
        if not condition.holds(best):
            lines += condition.explain(best)
    return lines


def fits(pattern: Pattern, value: str) -> bool:
    return all(condition.holds(value) for condition in pattern)


def shown(text: str, limit: int = MAX_SHOWN_CHARACTERS) -> str:
    """Return a string in quotes, on one line, cut if it is long."""
    quoted = repr(text if len(text) <= limit else text[:limit])
    return quoted if len(text) <= limit else f"{quoted}... ({len(text)} characters)"


def clipped(text: str, lines: int = MAX_SHOWN_LINES) -> list[str]:
    """Return the first lines of a string, each cut if it is long."""
    found = text.splitlines() or [""]
    cut = [line if len(line) <= MAX_SHOWN_CHARACTERS else f"{line[:MAX_SHOWN_CHARACTERS]}..." for line in found[:lines]]
    return cut if len(found) <= lines else [*cut, f"... and {len(found) - lines} more lines"]


def _indented(lines: Sequence[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _diff(expected: str, value: str) -> list[str]:
    # Only the line ends differ, which a diff of lines would not show.
    if expected.splitlines() == value.splitlines():
        return [f"- {shown(expected)}", f"+ {shown(value)}"]
    before, after = expected.splitlines(), value.splitlines()
    lines = list(difflib.unified_diff(before, after, lineterm=""))[2:]
    whole = len(before) <= CONTEXT_LINES and len(after) <= CONTEXT_LINES
    # Line numbers are only useful where lines are left out.
    return clipped("\n".join(lines[1:] if whole else lines))


def _lines_with(part: str, value: str) -> list[str]:
    if "\n" in part:
        return clipped(part, 5)
    return [f"line {number}: {_around(part, line)}" for number, line in enumerate(value.splitlines(), 1)
            if part in line][:5]


def _around(part: str, line: str) -> str:
    """Return the section of a long line around ``part``."""
    position = max(line.find(part) - MAX_SHOWN_CHARACTERS // 3, 0)
    piece = line[position:position + max(MAX_SHOWN_CHARACTERS, len(part))]
    return f"{'...' if position else ''}{piece}{'...' if position + len(piece) < len(line) else ''}"


def _nearest_lines(wanted: str, value: str) -> list[str]:
    """Return the lines of ``value`` that are most similar to a line of ``wanted``, in their order."""
    lines = value.splitlines()
    if len(lines) <= 1 and len(value) <= MAX_SHOWN_CHARACTERS:
        return []
    targets = [line.casefold() for line in wanted.splitlines() if line.strip()][:5]
    scored = sorted(((_similarity(target, line), number) for target in targets for number, line in enumerate(lines)),
                    reverse=True)[:NEAREST_LINES]
    numbers = sorted({number for score, number in scored if score > 0.3})
    return [f"line {number + 1}: {_most_similar(targets[0], lines[number])}" for number in numbers]


def _similarity(target: str, line: str) -> float:
    """Return the share of ``target`` that is found in ``line``, from 0 to 1."""
    matcher = difflib.SequenceMatcher(None, target, line.casefold()[:4 * MAX_SHOWN_CHARACTERS], autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks() if block.size > 2) / max(len(target), 1)


def _most_similar(target: str, line: str) -> str:
    if len(line) <= MAX_SHOWN_CHARACTERS:
        return line
    match = difflib.SequenceMatcher(None, target, line.casefold(), autojunk=False).find_longest_match()
    return _around(line[match.b:match.b + match.size], line)
