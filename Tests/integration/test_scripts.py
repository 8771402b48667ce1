"""Python scripts in workflows, over sockets: they hold nobody up, and nobody's slot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from Tests.integration.launcher import USER, Backend, Launcher, standard_tree, streamed_text
from Tests.workflows.engine_lab import until

SLEEPS = """
import os, time
def Invoke(wakes):
    while not os.path.exists(wakes):
        time.sleep(0.1)
    return "slept"
"""
WORDS = """
import sqlite3
def Invoke():
    database = sqlite3.connect(":memory:")
    for word in ("one ", "two ", "three"):
        yield {"token": database.execute("SELECT ?", (word,)).fetchone()[0], "finish_reason": None}
"""


@pytest.fixture(scope="module")
def alarm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file for which the script ``Sleep`` waits."""
    return tmp_path_factory.mktemp("alarm") / "rings"


@pytest.fixture(scope="module")
def gated(
    script: str, shared_backend: Backend, alarm: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Launcher]:
    """Each launcher in turn, serving two requests at a time."""
    tree = standard_tree(tmp_path_factory.mktemp("scripts") / "Public", shared_backend.url)
    for name, code, args in (("Sleep", SLEEPS, [str(alarm)]), ("Words", WORDS, [])):
        path = tree.public / f"{name}.py"
        path.write_text(code, encoding="utf-8")
        tree.shared(name, {"type": "PythonModule", "module_path": str(path), "args": args, "returnToUser": True})
    with Launcher(
        script, "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "2", backend=shared_backend
    ) as server:
        yield server


def wait_for_calls(server: Launcher, count: int, since: int) -> None:
    assert until(lambda: server.output(since).count("Running the script") >= count)


def test_a_script_that_hangs_frees_its_slot_when_its_client_leaves(
    gated: Launcher, backend: Backend, alarm: Path
) -> None:
    since = gated.output_size()
    with gated.open("Sleep", stream=False), gated.open("Sleep", stream=True):
        wait_for_calls(gated, 2, since)
    assert gated.ask("Single").text == "single says hello."
    assert until(lambda: gated.output(since).count(" does not end at a stop") == 2)
    alarm.touch()
    gated.wait_output("left alone at a stop, has ended after", since=since)
    assert "Sleep.py of request " in gated.output(since)


@pytest.mark.contract
def test_a_script_that_sleeps_keeps_nobody_else_waiting(gated: Launcher, backend: Backend, alarm: Path) -> None:
    alarm.unlink(missing_ok=True)
    since = gated.output_size()
    with gated.open("Sleep", stream=False):
        wait_for_calls(gated, 1, since)
        assert gated.ask("Single").text == "single says hello."
        alarm.touch()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_steps_of_a_generator_stay_on_their_thread(gated: Launcher, backend: Backend, stream: bool) -> None:
    answer = gated.ask("Words", stream)
    assert (streamed_text(answer.body) if stream else answer.text) == "one two three"
