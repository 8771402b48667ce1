"""Reads a Dockerfile into steps: comments, continued lines, flags, variables, words in JSON or shell form."""
from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?\s*")
_VARIABLE = re.compile(r"\\(.)|\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")


class DockerfileError(Exception):
    """A step cannot be understood or carried out; the text names file and line."""


@dataclass(frozen=True)
class Step:
    """One instruction.

    Attributes:
        keyword: in capitals.
        text: what follows the flags, lines joined.
        flags: ``--name=value`` in front of it.
        place: file and line, for messages.
    """

    keyword: str
    text: str
    flags: Mapping[str, str] = field(default_factory=dict)
    place: str = ""

    @property
    def listed(self) -> list[str] | None:
        """The words of the JSON form; None if the text is not of that form."""
        if not self.text.startswith("["):
            return None
        try:
            words = json.loads(self.text)
        except ValueError:
            return None
        return words if all(isinstance(word, str) for word in words) else None

    def command(self) -> list[str]:
        """What a process gets: the JSON form as it is, any other through the shell."""
        words = self.listed
        return ["/bin/sh", "-c", self.text] if words is None else words

    def words(self, variables: Mapping[str, str]) -> list[str]:
        """The words of a step that takes words, its variables replaced."""
        if self.listed is not None:
            return [expand(word, variables) for word in self.listed]
        return shlex.split(expand(self.text, variables))


def read_steps(file: Path) -> list[Step]:
    """The steps of a Dockerfile in order. Raises DockerfileError."""
    steps: list[Step] = []
    parts: list[str] = []
    started = 0
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("#") or (not parts and not line.strip()):
            continue  # comments may stand within a continued step, too
        started = started if parts else number
        parts.append(line.strip().removesuffix("\\"))
        if not line.rstrip().endswith("\\"):
            steps.append(_step(" ".join(parts), f"{file.name}, line {started}"))
            parts = []
    if parts:
        raise DockerfileError(f"{file.name}, line {started}: the step has no end")
    return steps


def _step(line: str, place: str) -> Step:
    keyword, _, rest = line.strip().partition(" ")
    rest, flags = rest.strip(), {}
    while found := _FLAG.match(rest):
        flags[found[1]] = found[2] or ""
        rest = rest[found.end():]
    if not re.fullmatch("[A-Za-z]+", keyword):
        raise DockerfileError(f"{place}: '{keyword}' is no instruction")
    return Step(keyword.upper(), rest, flags, place)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """``$NAME``, ``${NAME}`` and ``${NAME:-otherwise}`` replaced; unknown names count as empty."""
    def value(found: re.Match[str]) -> str:
        if found[1]:
            return found[0]
        return variables.get(found[2] or found[3], "") or found[4] or ""
    return _VARIABLE.sub(value, text)
