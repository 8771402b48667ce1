"""What the scripts print, and the arguments that they take."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from Tests.integration.launcher import LAUNCHERS
from Tests.manual.lab import Call


class Report:
    """Runs checks, prints a line for each, and counts the failures."""

    def __init__(self) -> None:
        self.failures = 0
        self.on_failure: Callable[[str], None] = lambda name: None

    def check(self, name: str, steps: Callable[[], str | None]) -> None:
        """Run steps that assert; their result is printed as detail."""
        started = time.monotonic()
        try:
            detail = steps() or ""
        except Exception as error:  # whatever stops one check must not stop the others
            self.failures += 1
            where = traceback.extract_tb(error.__traceback__)[1:2]
            line = f" (line {where[0].lineno})" if where else ""
            print(f"FAIL  {name}: {type(error).__name__}{line}: {error}", flush=True)
            self.on_failure(name)
            return
        print(f"PASS  {name}  [{time.monotonic() - started:.1f} s]  {detail}".rstrip(), flush=True)

    def end(self) -> None:
        """End this process; its status is 1 after a failure."""
        print(f"{self.failures} failed" if self.failures else "all passed")
        sys.exit(1 if self.failures else 0)


def argument_parser(description: str | None, screenshots: bool = True) -> argparse.ArgumentParser:
    """The arguments that all scripts take. ``screenshots``: whether a folder for them is one."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--chromium", default=os.environ.get("CHROMIUM", "chromium"), type=program_path)
    parser.add_argument("--chromedriver", default=os.environ.get("CHROMEDRIVER", "chromedriver"), type=program_path)
    if screenshots:
        parser.add_argument("--screenshots", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--launcher", choices=LAUNCHERS, default=LAUNCHERS[0], help="which of WilmerAI's to run")
    return parser


def program_path(name: str) -> str:
    """The path of an installed program, for argparse."""
    path = shutil.which(name)
    if path is None:
        raise argparse.ArgumentTypeError(f"no program '{name}'")
    return path


def stopped(call: Call, clicked: float) -> str:
    """Assert that the stop button ended a call, and say how fast."""
    assert call.request.wait_ended(10), "the model was still asked for tokens 10 s after the click"
    assert call.request.client_left and call.request.ended_at, "the answer was read to its end"
    seconds = call.request.ended_at - clicked
    assert seconds < 3, f"the call ended {seconds:.2f} s after the click"
    return f"the model's connection closed {seconds * 1000:.0f} ms after the click"
