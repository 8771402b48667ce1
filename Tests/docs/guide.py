"""The developer guide, carried out: what its pages write, change, type and see.

A block belongs to a file if the paragraph above it ends with that file's path in bold and a colon, for example
``A new file, **Middleware/api/new.py**:``. It is the whole file; in a block ``diff``, changes to it instead: lines that
begin with a blank must stand there, together and once, those with ``-`` go, those with ``+`` come, and ``@@`` stands
between two places. What is changed must exist, what is new must not.

Blocks ``bash`` are typed, line by line. What then appears stands in the block ``text`` below, where ``...`` is
anything; without one, only the exit status counts. ``curl`` asks the server, all other lines are programs.
"""

from __future__ import annotations

import http.client
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from Tests.docs.markdown import Fence, Page
from Tests.integration.launcher import PROJECT, clean_environment

COPIED = (
    "Middleware",
    "Scripts",
    "Docs",
    "Tests",
    ".vscode",
    "Public/Schemas",
    "server.py",
    "run_waitress.py",
    "pyproject.toml",
    "pytest.ini",
)
LEFT_OUT = ("clients", "corpora", "venv*", "node_modules", ".hypothesis", ".pytest_cache")
PYTEST = "bash Scripts/developer/run_tests.sh "
NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # loading them takes longer than the tests of a page
# The tests of a page take 10 s, and on a busy machine have taken more than 120.
PROGRAM_SECONDS = 400.0
ANSWER_SECONDS = 150.0
_PATH = re.compile(r"\*\*([\w./-]+\.[a-z]+)\*\*[^*]*:\s*\Z")


class GuideError(AssertionError):
    """The page is not true; the text says where."""


@dataclass(frozen=True)
class Written:
    """A file of a page, whole or as changes."""

    page: Page
    fence: Fence
    path: str

    @property
    def is_change(self) -> bool:
        return self.fence.language == "diff"

    def apply(self, root: Path) -> None:
        """Write or change the file. Raises GuideError."""
        file = root / self.path
        if not self.is_change:
            if file.exists():
                raise error(self.page, self.fence, f"{self.path} exists already")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.fence.text, encoding="utf-8", newline="\n")
            return
        if not file.is_file():
            raise error(self.page, self.fence, f"there is no {self.path} to change")
        text = file.read_text(encoding="utf-8")
        for old, new in _places(self.fence.text):
            found = len(re.findall(f"^{re.escape(old)}", text, re.MULTILINE))
            if not old or found != 1:
                raise error(self.page, self.fence, f"these lines stand {found} times in {self.path}:\n{old}")
            text = text.replace(old, new) if text.startswith(old) else text.replace(f"\n{old}", f"\n{new}")
        file.write_text(text, encoding="utf-8", newline="\n")


@dataclass(frozen=True)
class Typed:
    """A line that a reader types, and what then appears."""

    page: Page
    fence: Fence
    line: str
    shown: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.fence.line}"

    @property
    def is_request(self) -> bool:
        return self.line.startswith("curl ")

    def check(self, output: str) -> None:
        """Raises GuideError unless the output is what the page shows."""
        pattern = r".*?".join(re.escape(part) for part in self.shown.strip().split("..."))
        if self.shown and not re.fullmatch(pattern, output.strip(), re.DOTALL):
            raise error(self.page, self.fence, f"{self.line}\nshows\n{output}\nand not\n{self.shown}")


def written(page: Page) -> list[Written]:
    """The files of a page in order. Raises GuideError for changes that do not say of what."""
    lines, found, begin = page.prose.split("\n"), [], 0
    for fence in page.fences:
        path = _PATH.search(_last_paragraph(lines[begin : fence.line - 1]))
        begin = fence.line + fence.text.count("\n") + 1
        if path:
            found.append(Written(page, fence, path[1]))
        elif fence.language == "diff":
            raise error(page, fence, "the paragraph above does not end with the path of the file in bold and a colon")
    return found


def typed(page: Page) -> Iterator[Typed]:
    """The lines of a page's ``bash`` blocks."""
    for index, fence in enumerate(page.fences):
        if fence.language == "bash":
            after = page.fences[index + 1] if index + 1 < len(page.fences) else None
            lines = re.sub(r"\\\n\s*", "", fence.text).splitlines()
            for line in lines:
                shown = after.text if after and after.language == "text" and line == lines[-1] else ""
                yield Typed(page, fence, line, shown)


def error(page: Page, fence: Fence, message: str) -> GuideError:
    return GuideError(f"{page.name}:{fence.line}: {message}")


def copy_project(root: Path) -> None:
    """What the pages work on, as the project has it, into a folder that may have a configuration already."""
    for name in COPIED:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, root / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        else:
            shutil.copy2(source, root / name)


class Program:
    """Runs lines that start a program in a folder, each once, whichever page it stands on."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._done: dict[str, subprocess.CompletedProcess[str]] = {}

    def run(self, step: Typed) -> None:
        """Raises GuideError."""
        if step.line not in self._done:
            self._done[step.line] = self._run(step)
        done = self._done[step.line]
        if done.returncode:
            raise error(step.page, step.fence, f"{step.line}\nfails:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}")
        step.check(done.stdout)

    def _run(self, step: Typed) -> subprocess.CompletedProcess[str]:
        line = step.line
        if not line.startswith((PYTEST, "python ")):
            raise error(step.page, step.fence, f"nobody knows how to type this in a test: {line}")
        words = (
            ["-m", "pytest", "-q", "-p", "no:cacheprovider", *shlex.split(line.removeprefix(PYTEST))]
            if line.startswith(PYTEST)
            else shlex.split(line)[1:]
        )
        return subprocess.run(
            [sys.executable, *words],
            cwd=self._root,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=PROGRAM_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**clean_environment(), **NO_PLUGINS},
        )


def ask(step: Typed, port: int) -> None:
    """Send what a ``curl`` line sends, to the server at ``port``. Raises GuideError."""
    words = shlex.split(step.line)[1:]
    url = urlsplit(next(word for word in words if word.startswith("http://")))
    body = words[words.index("-d") + 1] if "-d" in words else None
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    try:
        connection.request("POST" if body else "GET", url.path, body.encode() if body else None)
        step.check(connection.getresponse().read().decode("utf-8"))
    finally:
        connection.close()


def _last_paragraph(lines: list[str]) -> str:
    text = "\n".join(lines).rstrip()
    return re.split(r"\n[ \t]*\n", text)[-1]


def _places(text: str) -> Iterator[tuple[str, str]]:
    """Old and new text of each place in a diff."""
    for place in re.split(r"^@@.*\n", text, flags=re.MULTILINE):
        lines = [line if line else " " for line in place.splitlines()]
        if lines:
            yield tuple("".join(f"{line[1:]}\n" for line in lines if line[0] in kept) for kept in (" -", " +"))  # type: ignore[misc]
