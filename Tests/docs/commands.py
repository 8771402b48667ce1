"""Command lines in pages: programs of this project that they name, and the options they give them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from Middleware.cli.arguments import build_parser
from Middleware.cli.commands import all_commands
from Middleware.workflows.tools.curl.options import Argument
from Tests.docs.markdown import Page
from Tests.integration.launcher import PROJECT, clean_environment

LAUNCHERS = ("server.py", "run_waitress.py", "run_eventlet.py", "run_linux.sh", "run_macos.sh", "run_windows.bat")
SHELLS = frozenset(
    {"", "bash", "sh", "console", "shell", "powershell", "bat", "cmd", "text", "ini", "yaml", "dockerfile"}
)
_PROGRAM = re.compile(
    r"""
    (?: (?<=\s) | (?<=^) | (?<=[/\\"'`=(]) )
    (?: -m\s+(?P<module>Scripts(?:\.\w+)+)
      | (?P<path>(?:(?:Scripts|benchmarks)[/\\](?:developer[/\\])?)?[\w-]+\.(?:py|sh|bat)) )
    (?= [\s"'`,;:)] | $ )
    (?P<rest> [^\n|;&\#]* )""",
    re.MULTILINE | re.VERBOSE,
)
_OPTION = re.compile(r"(?:(?<=\s)|(?<=\[))--[A-Za-z][\w-]*")
_ALONE = re.compile(r"--[A-Za-z][\w-]*")
_TO_PYTEST = re.compile(r'pytest.*"\$@"')


@dataclass(frozen=True)
class Use:
    """A program that a page runs. ``name``: relative to the project; ``words``: what stands behind it."""

    line: int
    name: str
    words: tuple[str, ...]


def uses(page: Page) -> Iterator[Use]:
    """The programs of this project in command lines and inline code."""
    for fence in page.fences:
        if fence.language in SHELLS:
            text = re.sub(r"[\\^`][ \t]*\n", "  ", fence.text)  # a line may go on in the next
            for match in _PROGRAM.finditer(text):
                yield from _use(match, fence.line + 1 + text.count("\n", 0, match.start()))
    for code in page.codes:
        for match in _PROGRAM.finditer(code.text):
            yield from _use(match, code.line)


def _use(match: re.Match[str], line: int) -> Iterator[Use]:
    name = match["path"] or _module_file(match["module"])
    name = name.replace("\\", "/")
    if "/" in name or name in LAUNCHERS:
        yield Use(line, name, tuple(match["rest"].split()))


def _module_file(module: str) -> str:
    """The file that ``python -m`` runs: the module's own, or that of a package."""
    path = module.replace(".", "/")
    return f"{path}/__main__.py" if (PROJECT / path / "__main__.py").is_file() else f"{path}.py"


def problems(page: Page) -> list[str]:
    """What is wrong with the command lines of a page."""
    found = [f"{page.name}:{use.line}: {problem}" for use in uses(page) for problem in _problems(use)]
    for code in page.codes:
        option = (code.text.split() or [""])[0].partition("=")[0]
        if _ALONE.fullmatch(option) and option not in own_options() and not Argument(option[2:], 0).allowed:  # of curl
            found += [
                f"{page.name}:{code.line}: {option} is probably meant to be {near}"
                for near in get_close_matches(option, own_options(), 1, 0.8)
            ]
    return found


def _problems(use: Use) -> Iterator[str]:
    if not (PROJECT / use.name).is_file():
        yield f"there is no program {use.name}"
        return
    if use.name.endswith(".sh") and _TO_PYTEST.search((PROJECT / use.name).read_text(encoding="utf-8")):
        return  # its options are those of pytest
    for option in _OPTION.findall(" " + " ".join(use.words)):
        if option not in options(use.name, next((word for word in use.words[:1] if word in all_commands()), "")):
            yield f"{use.name} has no option {option}"


@cache
def options(name: str, command: str = "") -> frozenset[str]:
    """The long options that a program takes; ``command``: the word that stands first on its command line."""
    if name in LAUNCHERS:
        launch = {option for action in build_parser()._actions for option in action.option_strings}
        return frozenset(launch | (_from_help("server.py", command) if command else set()))
    path = PROJECT / name
    if path.suffix == ".py":
        return frozenset(_from_help(name))
    source = path.read_text(encoding="utf-8")
    same = path.with_suffix(".py")
    return frozenset({*re.findall(r"--[A-Za-z][\w-]*", source), *(_from_help(_name(same)) if same.is_file() else ())})


@cache
def own_options() -> frozenset[str]:
    """Every long option of a program of this project, for options that stand without their program."""
    found = set(options("server.py"))
    for folder in ("Middleware/cli", "Middleware/addons", "Scripts", "benchmarks"):
        for path in (PROJECT / folder).rglob("*.*"):
            if path.suffix in (".py", ".sh"):
                found.update(re.findall(r"--[A-Za-z][\w-]*", path.read_text(encoding="utf-8")))
    return frozenset(found)


def _name(path: Path) -> str:
    return path.relative_to(PROJECT).as_posix()


def _from_help(name: str, *words: str) -> set[str]:
    """What the program itself says."""
    script = [str(PROJECT / name)] if "/" not in name else ["-m", name.removesuffix(".py").replace("/", ".")]
    told = subprocess.run(
        [sys.executable, *script, *words, "--help"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
        stdin=subprocess.DEVNULL,
        env={**clean_environment(), "COLUMNS": "120", "NO_COLOR": "1", "PYTHONPATH": os.fspath(PROJECT)},
    )
    assert told.returncode == 0, f"{name} --help: {told.stderr}"
    return set(re.findall(r"--[A-Za-z][\w-]*", told.stdout))
