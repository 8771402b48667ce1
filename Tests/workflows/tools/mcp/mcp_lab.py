"""Real MCP servers for tests, and the files that name them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from Tests.free_ports import free_port

SERVER = Path(__file__).with_name("mcp_server.py")
PLAIN = Path(__file__).with_name("plain_mcp_server.py")


def sdk_file(**changes: Any) -> dict[str, Any]:
    """The file of the server that the ``mcp`` package makes, as a child process."""
    return {"transport": "stdio", "command": sys.executable, "args": [str(SERVER), "stdio"], **changes}


def plain_file(*result: str, **changes: Any) -> dict[str, Any]:
    """The file of the small server, as a child process."""
    return {"transport": "stdio", "command": sys.executable, "args": ["-S", str(PLAIN), *result], **changes}


def python_file(code: str, **changes: Any) -> dict[str, Any]:
    """The file of a child process that runs ``code``, whatever that does."""
    return {"transport": "stdio", "command": sys.executable, "args": ["-c", code], **changes}


class HttpServer:
    """A server process on a port of its own that can be killed and started again there."""

    def __init__(self, transport: str, demanded_header: str = "") -> None:
        self.transport, self._demanded = transport, demanded_header
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> HttpServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{'sse' if self.transport == 'sse' else 'mcp'}"

    def file(self, **more: Any) -> dict[str, Any]:
        return {"transport": self.transport, "url": self.url, **more}

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER), self.transport.replace("_", "-"), str(self.port), self._demanded],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == b"listening"

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


def ends(pid: int, seconds: float = 60.0) -> bool:
    """Wait for a process to be gone, and to be waited for; returns whether it is."""
    end = time.monotonic() + seconds
    while psutil.pid_exists(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not psutil.pid_exists(pid)
