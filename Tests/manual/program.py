"""Another program as a process: started, watched through its address, ended by its own process id."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

_LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    """A loopback port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Program:
    """``environment`` is added to the one of this process, without its proxies."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> None:
        self._command = list(command)
        inherited = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper()}
        self._environment = {**inherited, **(environment or {})}
        self._cwd = folder or Path(tempfile.gettempdir())
        self._log = tempfile.TemporaryFile()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Program:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            self._command,
            cwd=self._cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def output(self) -> str:
        """What it has printed so far."""
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")

    def wait_answer(self, url: str, timeout: float) -> None:
        """Wait until a GET of the address is answered, whatever the status. Raises AssertionError."""
        assert self._process is not None
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                _LOCAL.open(url, timeout=5).close()
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.2)
        raise AssertionError(f"{self._command[0]} did not start:\n{self.output()[-3000:]}")

    def stop(self) -> None:
        """End it."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
        self._log.close()
