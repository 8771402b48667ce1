"""The table leaves nothing out: no flag, no command line of a page, no client because this machine forbids it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.cli.arguments import build_parser
from Tests.docs.markdown import Page
from Tests.doors.network import missing
from Tests.doors.pages import flag_groups, starts, user_pages
from Tests.doors.places import nginx_blocks
from Tests.doors.rows import ELSEWHERE, PROXIED, ROWS, TOGETHER, flags_of
from Tests.tables import table

PROJECT = Path(__file__).resolve().parents[2]
NO_SERVER = frozenset({"--help", "--version"})


def every_flag() -> dict[str, frozenset[str]]:
    """Return the long name of each flag that starts a server, with all its names."""
    actions = [action.option_strings for action in build_parser()._actions if action.option_strings]
    return {names[-1]: frozenset(names) for names in actions if names[-1] not in NO_SERVER}


def uncovered(page: Page) -> Iterator[str]:
    """Return the starts of a page that no row covers, with their lines."""
    known = {*ELSEWHERE, *(row.flags for row in ROWS), *(text for row in ROWS for text in row.pages)}
    groups = {flags_of(row) for row in ROWS}
    yield from (f"{page.name}:{line}: {text}" for line, text in starts(page) if text not in known)
    yield from (
        f"{page.name}:{line}: {' '.join(sorted(flags))}" for line, flags in flag_groups(page) if flags not in groups
    )


def test_every_flag_has_a_row_of_its_own() -> None:
    alone = {flags_of(row) for row in ROWS if len(flags_of(row)) == 1}
    assert not [name for name, names in every_flag().items() if not any({one} in alone for one in names)]


def test_every_flag_is_in_a_row_with_all_that_go_together() -> None:
    together = frozenset().union(*map(flags_of, TOGETHER))
    assert not [name for name, names in every_flag().items() if not names & together]


@table("page", user_pages(), ids=str)
def test_every_command_line_that_starts_the_server_has_a_row(page: Page) -> None:
    found = list(uncovered(page))
    assert not found, "add a row to Tests/doors/rows.py:\n" + "\n".join(found)


@table(
    ("text", "missed"),
    [
        ("```\nbash run_linux.sh --listen 10.0.0.7\n```", "--listen 10.0.0.7"),
        ("```\nrun_windows.bat --port 99 --console off\n```", "--port 99 --console off"),
        ("Type `python server.py --allow-public --port 5001`.", "--allow-public --port 5001"),
        ("Add `--console off --metrics`.", "--console --metrics"),
        ("```\ndocker compose up -d other\n```", "docker compose up -d other"),
        ("```\ndocker run -d \\\n  wilmerai --listen\n```", "docker run -d wilmerai --listen"),
        ('Write `command: ["--metrics"]`.', 'command: ["--metrics"]'),
        ("```\nsudo systemctl enable --now other\n```", "systemctl enable --now other"),
        ("```powershell\n-Argument 'run_waitress.py --metrics'\n```", "-Argument 'run_waitress.py --metrics'"),
        ("Use `waitress-serve --port 1 server:application`.", "waitress-serve --port 1 server:application"),
    ],
)
def test_a_new_command_line_of_a_page_is_noticed(text: str, missed: str) -> None:
    assert [line.partition(": ")[2] for line in uncovered(Page("Docs/User/new.md", text))][:1] == [missed]


@table(
    "text",
    [
        "```\nbash run_linux.sh check --strict\n```",
        "`bash run_linux.sh --version`",
        "`--online`",
        "`python server.py --help`",
        "**`--workers is for run_waitress.py only: start that instead.`**",
        "`docker compose run --rm wilmerai init`",
    ],
)
def test_what_starts_no_server_needs_no_row(text: str) -> None:
    assert not list(uncovered(Page("Docs/User/new.md", text)))


def test_no_row_stands_for_what_no_page_says() -> None:
    said = {text for page in user_pages() for _, text in starts(page)}
    assert not {*ELSEWHERE, *(text for row in ROWS for text in row.pages)} - said


def test_every_block_for_nginx_is_tried() -> None:
    assert len(nginx_blocks()) == len({client.port for client in PROXIED})


@table(
    ("file", "pattern", "title"),
    [
        ("deploy/several-workers/compose.yaml", r"^  command: (\[.*\])$", "one of several containers"),
        ("deploy/wilmerai.service", r"add (--.*)$", "service with the flags that it proposes"),
    ],
)
def test_the_files_of_engines_have_the_flags_of_their_rows(file: str, pattern: str, title: str) -> None:
    found = re.search(pattern, (PROJECT / file).read_text("utf-8"), re.MULTILINE)
    assert found is not None
    [row] = [row for row in ROWS if row.title == title]
    assert row.flags == (" ".join(json.loads(found[1])) if found[1].startswith("[") else found[1])


def test_clients_come_from_other_addresses() -> None:
    """Where they cannot, all rows are tried without them, and this line says so."""
    if missing():
        pytest.skip(f"clients with other addresses are left out: {missing()}")
