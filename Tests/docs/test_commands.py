"""Every program of this project that the documentation runs is there and takes the options it is given."""

from __future__ import annotations

import re

import pytest

from Middleware.cli.arguments import build_parser
from Middleware.cli.commands import all_commands
from Tests.docs.commands import problems
from Tests.docs.markdown import Page
from Tests.docs.pages import all_pages


@pytest.mark.parametrize("page", list(all_pages().values()), ids=str)
def test_command_lines(page: Page) -> None:
    found = problems(page)
    assert not found, "\n" + "\n".join(found)


def test_the_reference_has_every_flag_and_command() -> None:
    text = all_pages()["Docs/User/files-and-commands.md"].prose.replace("\\|", "/")
    rows = re.findall(r"^\| (`[^|]+?) \|", text, re.MULTILINE)
    words = {word for row in rows for code in re.findall(r"`([^`]+)`", row) for word in code.split()[:1]}
    flags = {option for action in build_parser()._actions for option in action.option_strings}

    assert flags - words == set(), "not in the table of flags"
    assert set(all_commands()) | {"help"} <= words, "not in the table of commands"
    assert {word for word in words if word.startswith("-")} <= flags, "flags that there are not"
