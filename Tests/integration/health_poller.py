"""Asks a server for ``/health`` all the time, in a process of its own so that the tests' work does not count.

with HealthPoller(port) as poller:
    with poller.watching() as seen:
        ...
    assert not seen.failed and seen.worst < MOST_SECONDS
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

PAUSE_SECONDS = 0.03
TIMEOUT_SECONDS = 60.0
# Far more than an answer takes on a busy machine, far less than a fault whose end is waited for.
MOST_SECONDS = 20.0
REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


@dataclass
class Seen:
    """What the poller saw.

    Attributes:
        worst: seconds from the attempt to connect to the end of the slowest answer.
        failed: the first thing that was no 200, empty if there was none.
    """

    count: int = 0
    worst: float = 0.0
    failed: str = ""


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
        self._process = subprocess.Popen(
            [sys.executable, "-S", __file__, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> HealthPoller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


def _poll(port: int, wanted: threading.Event, seen: Seen) -> None:
    while wanted.is_set():
        started = time.monotonic()
        wrong = ask(port)
        seen.worst = max(seen.worst, time.monotonic() - started)
        seen.failed = seen.failed or wrong
        seen.count += 1
        time.sleep(PAUSE_SECONDS)


def main(port: int) -> None:
    seen, wanted = Seen(), threading.Event()
    thread: threading.Thread | None = None
    for line in sys.stdin:
        if line.strip() == "begin":
            seen = Seen()
            wanted.set()
            thread = threading.Thread(target=_poll, args=(port, wanted, seen))
            thread.start()
        elif thread is not None:
            wanted.clear()
            thread.join()
        print(json.dumps(vars(seen)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
