"""The processes of stdio servers. The ``mcp`` package starts them and tells nobody; the event loop knows.

The package gives a server seconds to end after its input has. A server whose call was stopped is busy with something
that nobody wants, and may hold connections open: it gets a moment.
"""
from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from contextvars import ContextVar
from typing import Any

logger = logging.getLogger(__name__)

TERMINATE_AFTER = 0.15  # seconds
KILL_AFTER = 0.6


class ServerProcesses:
    """What one session has started. Belongs to the event loop, but for ``kill``."""

    def __init__(self) -> None:
        self._transports: list[asyncio.SubprocessTransport] = []
        self._timers: list[asyncio.TimerHandle] = []

    def follow(self) -> None:
        """Count what the current task starts from now on."""
        _following.set(self)

    def add(self, transport: asyncio.SubprocessTransport) -> None:
        self._transports.append(transport)

    def end_soon(self) -> None:
        """Have them end, with their children, if they do not by themselves in a moment."""
        if self._timers:
            return
        later = asyncio.get_running_loop().call_later
        self._timers = [later(TERMINATE_AFTER, self._end, False), later(KILL_AFTER, self._end, True)]

    def kill(self) -> None:
        """Kill them now, with their children. Any thread may do that."""
        self._end(True)

    def forget(self) -> None:
        """They have ended."""
        for timer in self._timers:
            timer.cancel()
        self._transports.clear()

    def _end(self, hard: bool) -> None:
        for transport in list(self._transports):
            if transport.get_returncode() is None:  # not reaped, so its id cannot be that of another process yet
                _signal(transport, hard)


_following: ContextVar[ServerProcesses | None] = ContextVar("mcp_processes", default=None)


def started_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    """A loop that tells ``ServerProcesses`` of every process that it starts, and the daemon thread on which it runs.

    Raises OSError or RuntimeError if the system has no more descriptors or threads.
    """
    loop = asyncio.new_event_loop()
    watch_processes(loop)
    thread = threading.Thread(target=loop.run_forever, name="mcp", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        loop.close()
        raise
    return loop, thread


def watch_processes(loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop tell ``ServerProcesses`` of every process that it starts."""
    start = loop.subprocess_exec

    async def start_and_tell(*args: Any, **options: Any) -> Any:
        transport, protocol = await start(*args, **options)
        processes = _following.get()
        if processes is not None:
            processes.add(transport)
        return transport, protocol

    loop.subprocess_exec = start_and_tell  # type: ignore[method-assign]


def _signal(transport: asyncio.SubprocessTransport, hard: bool) -> None:
    """Signal a process and its children. On Windows the package ends the children when the process has ended."""
    try:
        if sys.platform == "win32":
            transport.kill()
        else:  # the package makes each server the leader of a group
            os.killpg(transport.get_pid(), signal.SIGKILL if hard else signal.SIGTERM)
    except (ProcessLookupError, PermissionError) as error:
        logger.debug("An MCP server could not be signalled: %s", error)
