"""The command lines of README.md and ``Docs/User`` that start the server: of a person, an engine or an init system."""

from __future__ import annotations

import re
from collections.abc import Iterator

from Middleware.cli.arguments import build_parser
from Middleware.cli.commands import all_commands
from Tests.docs.commands import LAUNCHERS, SHELLS, uses
from Tests.docs.markdown import Page
from Tests.docs.pages import all_pages

# What starts it in place of a launcher's command line: engines, init systems and other WSGI servers.
_STARTERS = re.compile(
    r"""
    docker\ compose(?:\ --profile\ \S+)?\ up\b[^\n`|]*
  | docker\ run\ -d\b[^\n`]*
  | network_mode:\ host
  | systemctl(?:\ --user)?\ enable\ --now\ [^\n`]*
  | launchctl\ bootstrap\ [^\n`]*
  | -Argument\ '[^'\n]*'
  | (?:gunicorn|waitress-serve)\ [^\n`]*server:application
  | lazy-apps\ =\ true
""",
    re.VERBOSE,
)
_COMPOSE_COMMAND = re.compile(r"command: (\[[^\]]*\])")
_ENDS = frozenset({"-h", "--help", "--version"})


def user_pages() -> list[Page]:
    """README.md and the pages below ``Docs/User``."""
    return [page for name, page in all_pages().items() if name == "README.md" or name.startswith("Docs/User/")]


def starts(page: Page) -> Iterator[tuple[int, str]]:
    """Return the line number and the text of each start: a launcher's flags alone, else what stands there.

    The flags of several files with one page, such as ``run_linux.sh`` and ``run_macos.sh``, are the same start.
    """
    for use in uses(page):
        words = tuple(word for word in _up_to_quote(use.words) if word)
        if use.name in LAUNCHERS and _starts_server(words):
            yield use.line, " ".join(words)
    for line, text in _texts(page):
        for match in _STARTERS.finditer(text):
            yield line + text.count("\n", 0, match.start()), " ".join(match[0].partition("#")[0].split())
        for match in _COMPOSE_COMMAND.finditer(text):
            yield line, match[0]


def flag_groups(page: Page) -> Iterator[tuple[int, frozenset[str]]]:
    """Return the flags of each piece of inline code that proposes some, such as ``--listen --allow-public``."""
    known = {option for action in build_parser()._actions for option in action.option_strings}
    for code in page.codes:
        flags = [word.partition("=")[0] for word in code.text.split() if word.startswith("--")]
        if code.text.startswith("--") and known.issuperset(flags) and not _ENDS.intersection(flags):
            yield code.line, frozenset(flags)


def _texts(page: Page) -> Iterator[tuple[int, str]]:
    """Command lines, each continued one as a single line, and inline code."""
    for fence in page.fences:
        if fence.language in SHELLS:
            yield fence.line + 1, re.sub(r"\\\n\s*", "", fence.text)
    for code in page.codes:
        yield code.line, code.text


def _up_to_quote(words: tuple[str, ...]) -> Iterator[str]:
    """Return the words up to the end of the text in quotes that the command line is in, without punctuation."""
    for word in words:
        bare = word.strip("\"'`.,;:)")
        yield bare
        if word.endswith(("'", '"', "`")) and bare.count(word[-1]) == 0:
            return


def _starts_server(words: tuple[str, ...]) -> bool:
    """Return whether a launcher is called with flags or nothing, or with a folder and a user: else it is a command, or
    a sentence in which it stands."""
    if _ENDS.intersection(words) or (words and words[0] in all_commands()):
        return False
    return not words or words[0].startswith("--") or len(words) == 2
