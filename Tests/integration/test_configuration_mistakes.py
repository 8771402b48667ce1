"""Each mistake of the table gives one message with its place, what was expected and the nearest name.

It does so in ``check``, when a server starts with it, and when it is made while a server runs. The server stays up and
works again once the mistake is mended.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from Middleware.cli.commands import all_commands
from Middleware.common import instance_global_variables as instance
from Middleware.utilities.config.json_source import decode
from Middleware.utilities.config.lookup import reset_config_store
from Tests.integration.configuration_mistakes import MISTAKES, NO_JSON, Mistake
from Tests.integration.launcher import Launcher, run_launcher
from Tests.integration.mistake_lab import (
    ANSWERS,
    Lab,
    MistakeBackend,
    Outcome,
    make,
    mend,
    names_place,
    place,
    tells,
)
from Tests.integration.mistake_tree import MistakeTree
from Tests.integration.newcomer_mistakes import FORBIDDEN, NEWCOMERS
from Tests.integration.permissions import without_root_rights

NOTICED_SECONDS = 1.15
CASE_MATTERS = not os.path.exists(__file__.upper())
ROWS = [row for row in MISTAKES if CASE_MATTERS or row.name != "several-cases"]
# Windows has other permissions.
NEWCOMER_ROWS = [row for row in NEWCOMERS if not row.unreadable or os.name != "nt"]
every_mistake = pytest.mark.parametrize("mistake", ROWS, ids=lambda mistake: mistake.name)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    saved = {name: value for name, value in vars(instance).items() if name.isupper()}
    public = tmp_path_factory.mktemp("mistakes") / "Public"
    with MistakeBackend() as backend, pytest.MonkeyPatch.context() as monkeypatch:
        instance.PUBLIC_DIRECTORY = str(public)
        instance.CONFIG_DIRECTORY = instance.USERS = None
        instance.LOGGING_DIRECTORY = str(public / "logs")
        monkeypatch.delenv("NO_SUCH_KEY_HERE", raising=False)
        with Lab(MistakeTree(public, backend.url), monkeypatch) as lab:
            yield lab
        for name, value in saved.items():
            setattr(instance, name, value)
    reset_config_store()


@pytest.fixture
def lab(world: Lab) -> Iterator[Lab]:
    world.restart()
    yield world
    for mistake in world.made:
        mend(world.tree, mistake)
    world.made.clear()


def findings(lab: Lab, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What ``check --json`` finds."""
    public = str(lab.tree.public)
    all_commands()["check"].run(["--json", "--PublicDirectory", public, "--LoggingDirectory", public])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
    return found


def report(lab: Lab, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that ``check`` prints."""
    reset_config_store()
    all_commands()["check"].run(["--PublicDirectory", str(lab.tree.public), "--LoggingDirectory", str(lab.tree.public)])
    return capsys.readouterr().out.splitlines()


def assert_caret(printed: list[str], source: str, line: int, column: int) -> None:
    """The source line is printed below the message, and the caret is under the position."""
    text = source.split("\n")[line - 1]
    if not text.strip():
        return
    (number, shown), (_, mark) = (one.split(" | ") for one in printed[1:3])
    assert int(number) == line
    assert set(mark.strip()) == {"^"}
    assert shown[mark.index("^") :][:5] == text[column - 1 :].rstrip()[:5]


# -- the tests ---------------------------------------------------------------------------------------------------------


def test_the_table_is_long_and_its_names_are_unique() -> None:
    names = [mistake.name for mistake in (*MISTAKES, *NEWCOMERS)]
    assert len(names) == len(set(names)) >= 40
    assert len(NEWCOMERS) >= 30


def test_nothing_is_wrong_before_a_mistake_is_made(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert findings(lab, capsys) == []
    assert {model: lab.ask(model).answer for model in ANSWERS} == ANSWERS
    assert lab.warnings() == []


@pytest.mark.parametrize("mistake", (*ROWS, *NEWCOMER_ROWS), ids=lambda mistake: mistake.name)
def test_check_names_it_once(lab: Lab, capsys: pytest.CaptureFixture[str], mistake: Mistake) -> None:
    lab.make(mistake)
    with without_root_rights():
        found = findings(lab, capsys)
        printed = report(lab, capsys)
    assert len(found) == 1, found
    line, column = place(lab.tree, mistake) if mistake.has_line else (None, None)
    assert (found[0]["file"], found[0]["line"], found[0]["column"]) == (mistake.file, line, column)
    if line is not None and column is not None:
        assert_caret(printed, decode((lab.tree.configs / mistake.file).read_bytes())[0], line, column)
    assert [part for part in mistake.says if part not in f"{found[0]['message']} {found[0]['expected']}"] == []
    assert found[0]["suggestion"] == lab.tree.filled(mistake.nearest)
    assert found[0]["severity"] in ("error", "warning")


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
@pytest.mark.parametrize("mistake", FORBIDDEN, ids=lambda mistake: mistake.name)
def test_a_server_says_that_it_has_no_permission(lab: Lab, mistake: Mistake) -> None:
    """At the start, and to a request."""
    lab.make(mistake)
    with without_root_rights():
        lab.load_check.check_start()
        started = "\n".join(text for _, text in lab.log())
        outcome = lab.ask(None)
    later = "\n".join(text for _, text in lab.log())
    assert "no permission to read" in started
    assert outcome.answer == ANSWERS[None] or "no permission to read" in outcome.error + later
    assert "does not exist" not in started + outcome.error + later
    assert "to look at" not in later, "the start has said it"
    mend(lab.tree, mistake)
    lab.later()
    assert lab.ask(None).answer == ANSWERS[None]


def assert_told_once(lab: Lab, mistake: Mistake, outcomes: list[Outcome]) -> None:
    """The log tells it once, or else the client of every request that fails because of it."""
    texts = [text for _, text in lab.log()]
    naming = [text for text in texts if names_place(text, lab.tree, mistake)]
    if naming:
        assert [tells(text, lab.tree, mistake) for text in naming] == [True], naming
    else:
        assert all(tells(outcome.error, lab.tree, mistake) for outcome in outcomes), (outcomes, texts)
    assert not any("Internal error" in outcome.error for outcome in outcomes), outcomes


@every_mistake
def test_server_that_runs_names_it_once_and_works_again_when_it_is_mended(lab: Lab, mistake: Mistake) -> None:
    assert lab.ask(mistake.ask).answer == ANSWERS[mistake.ask]
    lab.log()
    lab.make(mistake)
    lab.later()
    outcomes = [lab.ask(mistake.ask), lab.ask(mistake.ask)]
    assert_told_once(lab, mistake, outcomes)
    if mistake in NO_JSON:
        assert {outcome.answer for outcome in outcomes} == {ANSWERS[mistake.ask]}, "the last good version stays in use"
    mend(lab.tree, mistake)
    lab.later()
    assert lab.ask(mistake.ask).answer == ANSWERS[mistake.ask]
    assert lab.warnings() == []


@every_mistake
def test_server_that_starts_with_it_names_it_once_and_works_when_it_is_mended(lab: Lab, mistake: Mistake) -> None:
    lab.make(mistake)
    lab.load_check.check_start()
    outcomes = [lab.ask(mistake.ask), lab.ask(mistake.ask)]
    assert_told_once(lab, mistake, outcomes)
    mend(lab.tree, mistake)
    lab.later()
    assert lab.ask(mistake.ask).answer == ANSWERS[mistake.ask]


# -- real processes ----------------------------------------------------------------------------------------------------

TOGETHER = (
    "trailing-comma",
    "dangling-background-workflow",
    "unknown-placeholder",
    "missing-script",
    "misspelt-setting",
)
"""Mistakes in different files, which can be made at the same time."""


def rows(names: tuple[str, ...]) -> list[Mistake]:
    by_name = {mistake.name: mistake for mistake in MISTAKES}
    return [by_name[name] for name in names]


def test_check_as_a_program(tmp_path: Path) -> None:
    def run(mistake: Mistake) -> subprocess.CompletedProcess[str]:
        tree = MistakeTree(tmp_path / mistake.name, "http://127.0.0.1:9")
        make(tree, mistake)
        return run_launcher("server.py", "check", "--json", "--PublicDirectory", tree.public)

    chosen = rows(("missing-comma", "dangling-endpoint", "misspelt-endpoint-key"))
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(run, chosen))
    for mistake, process in zip(chosen, ended, strict=True):
        (found,) = json.loads(process.stdout)["findings"]
        assert (found["file"], found["suggestion"]) == (mistake.file, mistake.nearest)
        assert process.returncode == (1 if found["severity"] == "error" else 0)


def test_server_as_a_program(tmp_path: Path) -> None:
    made = rows(TOGETHER)
    with MistakeBackend() as backend:
        tree = MistakeTree(tmp_path / "Public", backend.url)
        with Launcher("server.py", "--PublicDirectory", tree.public, backend=backend) as server:
            assert {model: server.ask(model).text for model in ANSWERS} == ANSWERS
            for mistake in made:
                make(tree, mistake)
            time.sleep(NOTICED_SECONDS)
            since = server.output_size()
            answers = {model: server.ask(model) for model in ANSWERS}
            assert server.ask("Tools").status == 500
            output = server.output(since)
            assert {model for model, answer in answers.items() if answer.status != 200} == {"Tools"}
            assert answers["Tools"].headers["content-type"].startswith("application/json")
            for mistake in made:
                mend(tree, mistake)
            time.sleep(NOTICED_SECONDS)
            assert {model: server.ask(model).text for model in ANSWERS} == ANSWERS
    assert "Traceback" not in output
    for mistake in made:
        told = [line for line in output.splitlines() if _tells_line(line, tree, mistake)]
        assert len(told) == 1, (mistake.name, output)


def _tells_line(line: str, tree: MistakeTree, mistake: Mistake) -> bool:
    return f"line {place(tree, mistake)[0]}" in line and all(part in line for part in mistake.says)
