"""What a ``.dockerignore`` file keeps out of a build."""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    keeps: bool  # an exception, written with !


class Ignored:
    """Answers whether a path of the build's folder is left out: the last rule that fits it, or a folder above, counts.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._rules = [_rule(line.strip()) for line in lines if line.strip() and not line.lstrip().startswith("#")]

    @classmethod
    def of(cls, context: Path) -> Ignored:
        """The rules of a build's folder; without a file nothing is left out."""
        file = context / ".dockerignore"
        return cls(file.read_text(encoding="utf-8").splitlines() if file.exists() else [])

    def __contains__(self, path: str) -> bool:
        names = [path, *map(str, PurePosixPath(path).parents)][:-1]
        fitting = [rule for rule in self._rules if any(rule.pattern.fullmatch(name) for name in names)]
        return bool(fitting) and not fitting[-1].keeps

    def files(self, context: Path, source: str) -> Iterator[str]:
        """The files at or below ``source`` that are not left out, relative to ``context``, with forward slashes."""
        start = context / source
        found = sorted(start.rglob("*")) if start.is_dir() else [start]
        for file in found:
            path = file.relative_to(context).as_posix()
            if file.is_file() and path not in self:
                yield path


def _rule(line: str) -> _Rule:
    keeps = line.startswith("!")
    pattern = line[keeps:].strip().strip("/")
    return _Rule(re.compile(_expression(pattern)), keeps)


def _expression(pattern: str) -> str:
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(known.get(piece, re.escape(piece)) for piece in pieces)
