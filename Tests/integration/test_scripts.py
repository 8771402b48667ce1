"""Python scripts in workflows, over sockets: they hold nobody up, and nobody's slot."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from Tests.integration.launcher import USER, Backend, Launcher, standard_tree, streamed_text
from Tests.workflows.engine_lab import until

# Longer than a stop takes to arrive on a busy machine: a script that has ended by then is not left alone.
SLEEP_SECONDS = 10
SLEEPS = f"""
import time
def Invoke():
    time.sleep({SLEEP_SECONDS})
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
def gated(script: str, shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Each launcher in turn, serving two requests at a time."""
    tree = standard_tree(tmp_path_factory.mktemp("scripts") / "Public", shared_backend.url)
    for name, code in (("Sleep", SLEEPS), ("Words", WORDS)):
        path = tree.public / f"{name}.py"
        path.write_text(code, encoding="utf-8")
        tree.shared(name, {"type": "PythonModule", "module_path": str(path), "returnToUser": True})
    with Launcher(
        script, "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "2", backend=shared_backend
    ) as server:
        yield server


def wait_for_calls(server: Launcher, count: int, since: int) -> None:
    deadline = time.monotonic() + 60
    while server.output(since).count("Running the script") < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_script_that_hangs_frees_its_slot_when_its_client_leaves(gated: Launcher, backend: Backend) -> None:
    since = gated.output_size()
    began = time.monotonic()
    with gated.open("Sleep", stream=False), gated.open("Sleep", stream=True):
        wait_for_calls(gated, 2, since)
    assert gated.ask("Single").text == "single says hello."
    assert time.monotonic() - began < SLEEP_SECONDS - 0.3
    gated.wait_output("left alone at a stop, has ended after", since=since)
    assert until(lambda: gated.output(since).count(" does not end at a stop") == 2)
    assert "Sleep.py of request " in gated.output(since)


@pytest.mark.contract
def test_a_script_that_sleeps_keeps_nobody_else_waiting(gated: Launcher, backend: Backend) -> None:
    since = gated.output_size()
    with gated.open("Sleep", stream=False):
        wait_for_calls(gated, 1, since)
        began = time.monotonic()
        assert gated.ask("Single").text == "single says hello."
        assert time.monotonic() - began < SLEEP_SECONDS - 0.5


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_steps_of_a_generator_stay_on_their_thread(gated: Launcher, backend: Backend, stream: bool) -> None:
    answer = gated.ask("Words", stream)
    assert (streamed_text(answer.body) if stream else answer.text) == "one two three"
