"""Commands of this program, such as ``test``, in a process of their own, as they may take long."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from Middleware.addons.console.calls import ConsoleError
from Middleware.api.errors import RETRY_AFTER
from Middleware.exceptions import WilmerError
from Middleware.utilities.config.paths import (
    get_project_root_directory_path,
    get_root_config_directory,
    get_root_public_directory,
)

# As for all background work: requests come first.
NICENESS = 10
# Calls that wait while a command of the same kind runs, each on a thread of the server, and how long they do.
MOST_WAITING = 4
WAIT_SECONDS = 30.0


class CommandTooSlowError(WilmerError):
    """A command did not end in time and was stopped."""


class Turns:
    """Lets one call at a time run commands. A few others wait for a while, further ones are refused."""

    def __init__(self) -> None:
        self._places = threading.Semaphore(1 + MOST_WAITING)
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def taken(self, what: str) -> Iterator[None]:
        """Wait for the turn, and keep it during the block. Raises ConsoleError with the status 503."""
        busy = ConsoleError(503, f"{what} is at work already. Try again later.", headers=(RETRY_AFTER,))
        if not self._places.acquire(blocking=False):
            raise busy
        try:
            if not self._turn.acquire(timeout=WAIT_SECONDS):
                raise busy
            try:
                yield
            finally:
                self._turn.release()
        finally:
            self._places.release()


@dataclass(frozen=True)
class CommandResult:
    status: int
    output: str
    errors: str


def run_command(arguments: Sequence[str], text: bytes = b"", seconds: float = 120) -> CommandResult:
    """Run a command of this program on the server's configuration, with low priority.

    Args:
        arguments: its name and its arguments, without the folders.
        text: the standard input.

    Raises CommandTooSlowError after ``seconds``, and OSError if the process cannot be started.
    """
    line = [
        sys.executable,
        os.path.join(get_project_root_directory_path(), "server.py"),
        *arguments,
        "--ConfigDirectory",
        get_root_config_directory(),
        "--PublicDirectory",
        get_root_public_directory(),
    ]
    # The output may quote a conversation, so it stays in memory.
    with subprocess.Popen(
        line,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONUTF8": "1"},
        creationflags=_flags(),
    ) as child:
        _lower_priority(child.pid)
        # The end of the server does not wait for it.
        atexit.register(child.kill)
        try:
            output, errors = child.communicate(text, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise CommandTooSlowError(f"'{arguments[0]}' was stopped after {seconds:g} s") from None
        finally:
            child.kill()
            atexit.unregister(child.kill)
    return CommandResult(child.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


def _flags() -> int:
    """Return the flags of Windows for a process of low priority without a window; 0 elsewhere."""
    if sys.platform != "win32":
        return 0
    return subprocess.BELOW_NORMAL_PRIORITY_CLASS | subprocess.CREATE_NO_WINDOW


def _lower_priority(pid: int) -> None:
    if sys.platform == "win32":
        return
    try:
        os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
    # It has ended already, or the system does not allow it.
    except OSError:
        pass
