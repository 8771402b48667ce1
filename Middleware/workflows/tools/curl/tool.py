"""Runs the system's curl: without a shell, bounded in time and output, and killed with its children on a stop."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from Middleware.exceptions import BackendError, EarlyTerminationException, WilmerError
from Middleware.models.cancel_scope import CancelScope

BLOCK_BYTES = 64 * 1024
# Killed processes close their pipes at once; one that left curl's process group may keep them open for as long as it
# likes.
READERS_END_SECONDS = 0.05
# ERROR_FILENAME_EXCED_RANGE of Windows, whose command lines have at most 32,766 characters.
_TOO_LONG = 206
CURL: Sequence[str] = ("curl",)
"""How the command line begins; tests put another program there."""


@dataclass(frozen=True)
class CurlResult:
    """What curl wrote, and its exit status (None if it was killed)."""

    stdout: str
    stderr: str
    returncode: int | None


class CurlError(BackendError, RuntimeError):
    """curl failed. ``result`` is what it had written."""

    def __init__(self, message: str, result: CurlResult | None = None) -> None:
        self.result = result or CurlResult("", "", None)
        super().__init__(message)


class CurlExitError(CurlError):
    """curl ended with a status other than 0."""


class CurlTimeoutError(CurlError, TimeoutError):
    """curl took too long and was killed."""


class CurlMissingError(WilmerError, FileNotFoundError):
    """There is no curl."""


def run_curl(
    args: Sequence[str], timeout: float, max_bytes: int | None, scope: CancelScope, use_environment_proxies: bool = True
) -> CurlResult:
    """Run ``curl ARGS...`` to its end.

    Args:
        timeout: seconds on the wall clock.
        max_bytes: most bytes taken from either output; more on stdout kills curl, more on stderr is dropped.

    Raises CurlMissingError, CurlError, EarlyTerminationException when ``scope`` is cancelled.
    """
    if scope.cancelled:
        raise EarlyTerminationException("The request was cancelled")
    run = _Run(_start(args, use_environment_proxies), max_bytes)
    token = scope.add_callback(run.wake.set)
    try:
        run.wake.wait(timeout)
    finally:
        scope.remove_callback(token)
        result = run.end()
    if scope.cancelled:
        raise EarlyTerminationException("The request was cancelled")
    if run.full:
        raise CurlError(f"CurlCommand response exceeded the {max_bytes}-byte cap (maxResponseBytes).", result)
    if result.returncode is None:
        raise CurlTimeoutError(f"curl timed out after {timeout:g} seconds", result)
    if result.returncode != 0:
        raise CurlExitError(f"CurlCommand exited with status {result.returncode}: {result.stderr.strip()}", result)
    return result


def _start(args: Sequence[str], use_environment_proxies: bool) -> subprocess.Popen[bytes]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if use_environment_proxies or not name.lower().endswith("_proxy")
    }
    # A group or session of its own, so that its children can be killed with it.
    options: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    try:
        return subprocess.Popen(
            [*CURL, *args],
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            **options,
        )
    except OSError as error:
        # Windows says the same of a command line that is too long.
        if isinstance(error, FileNotFoundError) and getattr(error, "winerror", None) != _TOO_LONG:
            raise CurlMissingError(
                "CurlCommand needs the program 'curl', which was not found. Install it, or add its folder to PATH"
            ) from None
        raise CurlError(f"CurlCommand could not start curl: {error.strerror}") from error


class _Run:
    """A running curl. Each output is read on a thread of its own, the only way that works with pipes everywhere.

    Attributes:
        wake: set when it has ended, wrote too much, or must be killed.
        full: it wrote more than ``max_bytes``.
    """

    def __init__(self, process: subprocess.Popen[bytes], max_bytes: int | None) -> None:
        assert process.stdout is not None and process.stderr is not None
        self.wake, self.full = threading.Event(), False
        self._process, self._tree, self._cap = process, _Tree(process), max_bytes
        self._stdout, self._stderr = bytearray(), bytearray()
        self._errors = _started(self._read, process.stderr, self._stderr)
        self._reader = _started(self._follow, process.stdout)

    def _follow(self, pipe: IO[bytes]) -> None:
        self._read(pipe, self._stdout)
        if not self.full:
            self._errors.join()
            self._process.wait()
        self.wake.set()

    def _read(self, pipe: IO[bytes], data: bytearray) -> None:
        # Only this thread closes the pipe: a close elsewhere would not end a read. An error means that the process is
        # gone.
        with contextlib.suppress(OSError, ValueError), pipe:
            while not self.full and (block := pipe.read(BLOCK_BYTES)):
                data += block
                if self._cap is not None and len(data) > self._cap:
                    del data[self._cap :]
                    self.full = data is self._stdout

    def end(self) -> CurlResult:
        """Return what it wrote; kill it with all its children if it has not ended."""
        # Not reaped, so its id cannot be that of another process yet.
        killed = self._process.returncode is None
        if killed:
            self._tree.kill()
            self._process.wait()
        for thread in (self._reader, self._errors):
            thread.join(READERS_END_SECONDS)
        stdout, stderr = (bytes(data).decode("utf-8", "replace") for data in (self._stdout, self._stderr))
        return CurlResult(stdout, stderr, None if killed else self._process.returncode)


def _started(target: Any, *args: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, name="curl-output", daemon=True)
    thread.start()
    return thread


if sys.platform == "win32":

    class _Tree:
        """A process with all that it starts, which may outlive it."""

        def __init__(self, process: subprocess.Popen[bytes]) -> None:
            import pywintypes  # type: ignore[import-untyped]
            import win32job  # type: ignore[import-untyped]

            self._process, job = process, win32job.CreateJobObject(None, "")
            self._kill_all = functools.partial(win32job.TerminateJobObject, job, 1)
            # It may have ended already.
            with contextlib.suppress(pywintypes.error):
                win32job.AssignProcessToJobObject(job, int(process._handle))  # type: ignore[attr-defined]

        def kill(self) -> None:
            self._kill_all()
            self._process.kill()
else:

    class _Tree:
        """A process with all that it starts, which may outlive it, but not leave its group."""

        def __init__(self, process: subprocess.Popen[bytes]) -> None:
            self._process = process

        def kill(self) -> None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            # macOS refuses a group of which only the ended leader is left.
            except (ProcessLookupError, PermissionError):
                self._process.kill()
