"""Signals as flags, in a process of their own each."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from Middleware.utilities import config_utils
from Tests.patience import CLIENT_PATIENCE

SETTING = """
import logging, os, signal, sys, threading, time
from Middleware.cli import signals as module
from Middleware.cli.signals import StopSignals, end_on_signals, end_orderly
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
signal.signal(signal.SIGINT, signal.default_int_handler)
send = lambda: signal.raise_signal(signal.SIGINT)
"""


def run(code: str) -> tuple[int, list[str]]:
    """Exit status and what was printed."""
    ended = subprocess.run(
        [sys.executable, "-c", SETTING + textwrap.dedent(code)],
        capture_output=True,
        timeout=CLIENT_PATIENCE,
        encoding="utf-8",
        cwd=config_utils.get_project_root_directory_path(),
    )
    assert ended.stderr == ""
    return ended.returncode, ended.stdout.split("\n")[:-1]


def test_the_first_is_a_wish() -> None:
    assert run("""
        with StopSignals(wake=lambda: print("woken")) as signals:
            print(signals.requested)
            send()
            print(signals.requested, signals.forced)
        send()  # too late to break anything
        end_orderly()
        """) == (0, ["False", "woken", "True False", "woken", "stopped"])


def test_handlers_come_back_if_there_was_none() -> None:
    assert run("""
        with StopSignals():
            pass
        try:
            send()
        except KeyboardInterrupt:
            print("as before")
        """) == (0, ["as before"])


def test_the_second_ends_the_process_with_its_block() -> None:
    status, printed = run("""
        threading.Thread(target=time.sleep, args=(60,)).start()
        with StopSignals() as signals:
            send(); send()
            print(signals.forced)
        print("never reached")
        """)
    assert (status, printed) == (0, ["True", "stopping at once", "stopped"])


@pytest.mark.parametrize(
    ("stuck", "pause", "printed"),
    [(60.0, 0.0, ["goes on", "stopping at once", "stopped"]), (0.1, 0.2, [])],
    ids=["at-once", "later"],
)
def test_one_more_ends_a_process_that_is_held_up(stuck: float, pause: float, printed: list[str]) -> None:
    assert run(f"""
        module.STUCK_SECONDS = {stuck}
        with StopSignals() as signals:
            send(); send()
            time.sleep({pause})
            send()
            print("goes on")
        """) == (0, printed)


def test_threads_that_do_not_end_hold_nothing_up() -> None:
    assert run("""
        threading.Thread(target=time.sleep, args=(60,)).start()
        end_orderly()
        print("never reached")
        """) == (0, ["stopped"])


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"])
def test_before_a_server_is_there_they_end_the_process(name: str) -> None:
    assert run(f"""
        end_on_signals()
        if hasattr(signal, "{name}"):
            signal.raise_signal(signal.{name})
            print("goes on")
        """) == (0, [])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
def test_a_terminal_that_hangs_up_twice_forces_no_end() -> None:
    assert run("""
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)
            print(signals.requested, signals.forced)
        """) == (0, ["True False"])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
def test_nohup_is_respected() -> None:
    assert run("""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        end_on_signals()
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGHUP)
            print(signals.requested)
        """) == (0, ["False"])


def test_ignored_signals_stay_ignored() -> None:
    """As by ``nohup``, and in the background of a shell script."""
    assert run("""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_on_signals()
        send()
        with StopSignals() as signals:
            send()
            print(signals.requested)
        """) == (0, ["False"])
