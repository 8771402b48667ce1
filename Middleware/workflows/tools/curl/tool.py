"""Runs the system's curl: without a shell, bounded in time and output, and killed with its children on a stop."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from Middleware.exceptions import BackendError, EarlyTerminationException, WilmerError
from Middleware.models.cancel_scope import CancelScope

BLOCK_BYTES = 64 * 1024
EXIT_SLICE_SECONDS = 0.02
READERS_END_SECONDS = 0.05


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

    def __init__(self, result: CurlResult) -> None:
        super().__init__(f"CurlCommand exited with status {result.returncode}: {result.stderr.strip()}", result)


class CurlTimeoutError(CurlError, TimeoutError):
    """curl took too long and was killed."""

    def __init__(self, seconds: float, result: CurlResult) -> None:
        super().__init__(f"curl timed out after {seconds:g} seconds", result)


class CurlOutputTooLargeError(CurlError):
    """curl wrote too much and was killed."""

    def __init__(self, max_bytes: int | None, result: CurlResult) -> None:
        super().__init__(f"CurlCommand response exceeded the {max_bytes}-byte cap (maxResponseBytes).", result)


class CurlMissingError(WilmerError, FileNotFoundError):
    """There is no curl."""


def run_curl(args: Sequence[str], timeout: float, max_bytes: int | None, scope: CancelScope,
             use_environment_proxies: bool = True) -> CurlResult:
    """Run ``curl ARGS...`` to its end.

    Args:
        timeout: seconds on the wall clock.
        max_bytes: most bytes taken from either output; more on stdout kills curl, more on stderr is dropped.

    Raises CurlMissingError, CurlError subclasses, EarlyTerminationException when ``scope`` is cancelled.
    """
    if scope.cancelled:
        raise EarlyTerminationException("The request was cancelled")
    run = _Run(_start(args, use_environment_proxies), max_bytes, scope)
    token = scope.add_callback(run.wake.set)
    try:
        run.wait(timeout)
    finally:
        scope.remove_callback(token)
        run.end()
    if scope.cancelled:
        raise EarlyTerminationException("The request was cancelled")
    result = run.result()
    if run.stdout.full:
        raise CurlOutputTooLargeError(max_bytes, result)
    if result.returncode is None:
        raise CurlTimeoutError(timeout, result)
    if result.returncode != 0:
        raise CurlExitError(result)
    return result


def _start(args: Sequence[str], use_environment_proxies: bool) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items()
                   if use_environment_proxies or not name.lower().endswith("_proxy")}
    options: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    try:
        return subprocess.Popen(["curl", *args], bufsize=0, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=environment, **options)
    except FileNotFoundError:
        raise CurlMissingError("CurlCommand needs the program 'curl', which was not found. Install it, or add its "
                               "folder to PATH") from None
    except OSError as error:
        raise CurlError(f"CurlCommand could not start curl: {error.strerror}") from error


class _Output:
    """Reads one output of the process on a thread of its own, the only way that works with pipes everywhere.

    Attributes:
        full: there was more than the cap.
        ended: nothing more is read.
    """

    def __init__(self, pipe: IO[bytes], cap: int | None, drop_excess: bool) -> None:
        self.full = False
        self.ended = False
        self._data = bytearray()
        self._pipe, self._cap, self._drop_excess = pipe, cap, drop_excess
        self._thread = threading.Thread(target=self._read, name="curl-output", daemon=True)
        self._tell: Callable[[], object] = lambda: None

    def start(self, tell: Callable[[], object]) -> None:
        """``tell`` is called at the end."""
        self._tell = tell
        self._thread.start()

    def join(self) -> None:
        self._thread.join(READERS_END_SECONDS)

    def text(self) -> str:
        return bytes(self._data).decode("utf-8", "replace")

    def _read(self) -> None:
        try:
            with self._pipe:  # only this thread closes it: a close elsewhere would not end a read
                while (block := self._pipe.read(BLOCK_BYTES)) and self._take(block):
                    pass
        except (OSError, ValueError):
            pass  # the process is gone
        self.ended = True
        self._tell()

    def _take(self, block: bytes) -> bool:
        room = len(block) if self._cap is None else self._cap - len(self._data)
        self._data += block[:max(room, 0)]
        self.full = self.full or len(block) > room
        return self._drop_excess or not self.full


class _Run:
    """A running curl.

    Attributes:
        wake: set when there is something to decide.
        killed: it did not end by itself.
    """

    def __init__(self, process: subprocess.Popen[bytes], max_bytes: int | None, scope: CancelScope) -> None:
        assert process.stdout is not None and process.stderr is not None
        self.wake = threading.Event()
        self.killed = False
        self._process, self._scope = process, scope
        self.stdout = _Output(process.stdout, max_bytes, drop_excess=False)
        self.stderr = _Output(process.stderr, max_bytes, drop_excess=True)
        for output in (self.stdout, self.stderr):
            output.start(self._output_ended)

    def _output_ended(self) -> None:
        if self._outputs_ended() or self.stdout.full:
            self.wake.set()

    def _outputs_ended(self) -> bool:
        return self.stdout.ended and self.stderr.ended

    def wait(self, timeout: float) -> None:
        """Until it ended, wrote too much, was cancelled or took too long."""
        deadline = time.monotonic() + timeout
        self.wake.wait(timeout)
        if not self._outputs_ended() or self.stdout.full:
            return
        while self._process.poll() is None and time.monotonic() < deadline:  # outputs closed: it is about to end
            if self._scope.wait(EXIT_SLICE_SECONDS):
                return

    def end(self) -> None:
        """Kill it with all its children, if it has not ended."""
        if self._process.returncode is None:  # not reaped, so its id cannot be that of another process yet
            self.killed = True
            _kill_tree(self._process)
            self._process.wait()
        for output in (self.stdout, self.stderr):
            output.join()

    def result(self) -> CurlResult:
        return CurlResult(self.stdout.text(), self.stderr.text(), None if self.killed else self._process.returncode)


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(process.pid)], capture_output=True, check=False)
        process.kill()
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()  # macOS refuses a group of which only the ended leader is left
