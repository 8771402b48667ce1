"""Asks a server for ``/health`` without a pause, in a process of its own so that the tests' work does not count.

    with HealthPoller(port) as poller:
        with poller.watching() as seen:
            ...
        assert seen.worst < 0.1
"""
from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

PAUSE_SECONDS = 0.01
TIMEOUT_SECONDS = 10.0
REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


@dataclass
class Seen:
    """What the poller saw.

    Attributes:
        worst: seconds from the attempt to connect to the end of the slowest answer.
        noise: the same of a server that has nothing to do, asked in turn: what the machine's other work costs.
        failed: the first thing that was no 200, empty if there was none.
    """

    count: int = 0
    worst: float = 0.0
    noise: float = 0.0
    failed: str = ""


ONE_THREAD = 2.0  # everything has its turn on one thread there, large bodies included


def overbooked() -> float:
    """How many times more work the machine has than it can do, as far as it says; 1 if it can do it all.

    Tests that run side by side count: each has a server, clients and a back-end of its own.
    """
    load = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 1.0
    return max(1.0, load, float(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def patience_with(script: str) -> float:
    """By what a limit for a launcher's answers is multiplied."""
    return overbooked() * (ONE_THREAD if script == "run_eventlet.py" else 1.0)


def ask(port: int) -> str:
    """One request on a new connection; what was wrong with the answer, or nothing if it was well."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS) as sock:
            sock.sendall(REQUEST)
            answer = b"".join(iter(lambda: sock.recv(65536), b""))
    except OSError as error:
        return repr(error)
    return "" if answer.startswith(b"HTTP/1.1 200 ") else repr(answer[:200])


class HealthPoller:
    """The parent's side of the process; its pauses and its work follow ``watching``."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen([sys.executable, "-S", __file__, str(port)], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> HealthPoller:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._process.communicate()

    @contextmanager
    def watching(self) -> Iterator[Seen]:
        """Poll while the block runs; its result is filled in when the block ends."""
        seen = Seen()
        self._say("begin")
        try:
            yield seen
        finally:
            seen.__dict__.update(json.loads(self._say("end")))

    def _say(self, word: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


def _serve_idly(listener: socket.socket) -> None:
    while True:
        sock, _ = listener.accept()
        with sock:
            sock.recv(65536)
            sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")


def _timed(port: int) -> tuple[float, str]:
    started = time.monotonic()
    wrong = ask(port)
    return time.monotonic() - started, wrong


def _poll(port: int, idle_port: int, wanted: threading.Event, seen: Seen) -> None:
    while wanted.is_set():
        seconds, wrong = _timed(port)
        seen.worst = max(seen.worst, seconds)
        seen.failed = seen.failed or wrong
        seen.noise = max(seen.noise, _timed(idle_port)[0])
        seen.count += 1
        time.sleep(PAUSE_SECONDS)


def main(port: int) -> None:
    seen, wanted = Seen(), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve_idly, args=(listener,), daemon=True).start()
    idle_port = listener.getsockname()[1]
    thread: threading.Thread | None = None
    for line in sys.stdin:
        if line.strip() == "begin":
            seen = Seen()
            wanted.set()
            thread = threading.Thread(target=_poll, args=(port, idle_port, wanted, seen))
            thread.start()
        elif thread is not None:
            wanted.clear()
            thread.join()
        print(json.dumps(vars(seen)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
