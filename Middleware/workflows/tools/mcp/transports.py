"""Opens a client of the official ``mcp`` package on one server. Everything here runs on the sessions' event loop."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, BinaryIO

from Middleware.common.constants import VERSION
from Middleware.workflows.tools.mcp.server_file import McpServer, MCPToolCallError

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0
# Characters of a server's error output that are kept for the message about its end.
LAST_OUTPUT = 2000
# How long the event loop, and with it all sessions, may wait for the last of that output.
LAST_OUTPUT_SECONDS = 0.1
# These loggers write messages, URLs and session ids.
_CHATTY = ("mcp", "client", "httpx2", "httpcore2")

ResponseHook = Callable[[Any], Awaitable[None]]


def load_sdk() -> None:
    """Import the ``mcp`` package, which is large, at the first call. Raises MCPToolCallError if it is missing."""
    # A script may have imported it before.
    if "mcp.client.client" in sys.modules and logging.getLogger(_CHATTY[0]).level == logging.CRITICAL:
        return
    try:
        import mcp.client.client
        import mcp.client.sse  # noqa: F401
    except ImportError as error:
        logger.error("The package mcp cannot be imported: %s", error)
        raise MCPToolCallError(
            "MCP needs the Python package 'mcp', which is not installed (pip install -r requirements.txt)"
        ) from None
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def new_client(server: McpServer, errors: ErrorOutput, on_end: Callable[[], object], on_response: ResponseHook) -> Any:
    """Return a client, which connects as an asynchronous context manager.

    ``on_end`` is called when the server's stream ends, ``on_response`` with every HTTP response.
    """
    from mcp.client.client import Client
    from mcp_types import Implementation

    transport: Any = _streams(server, errors, on_end, on_response)
    return Client(transport, cache=None, client_info=Implementation(name="WilmerAI", version=VERSION))


@asynccontextmanager
async def _streams(
    server: McpServer, errors: ErrorOutput, on_end: Callable[[], object], on_response: ResponseHook
) -> AsyncIterator[Any]:
    """Yield the transport's pair of streams, to read from and to write to."""
    import httpx2
    from mcp.client.sse import sse_client
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    def http_client(headers: Any = None, timeout: Any = None, auth: Any = None) -> Any:
        # Without a read timeout: the call's own deadline limits how long a tool may be silent.
        return httpx2.AsyncClient(
            headers=headers,
            auth=auth,
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
            event_hooks={"response": [on_response]},
        )

    async with AsyncExitStack() as stack:
        if server.transport == "stdio":
            # The package passes on only a short list of harmless variables; the file's own are added to them.
            parameters = StdioServerParameters(
                command=server.command, args=list(server.args), env=dict(server.env), cwd=server.cwd
            )
            opened: Any = stdio_client(parameters, errlog=stack.enter_context(errors.collecting()))
        elif server.transport == "sse":
            opened = sse_client(server.url, dict(server.headers), httpx_client_factory=http_client)
        else:
            http = await stack.enter_async_context(http_client(dict(server.headers)))
            opened = streamable_http_client(server.url, http_client=http)
        reading, writing = await stack.enter_async_context(opened)
        yield _WatchedStream(reading, on_end), writing


class _WatchedStream:
    """A stream to read from that reports its end: the package reports it to calls under way only."""

    def __init__(self, stream: Any, on_end: Callable[[], object]) -> None:
        self._stream, self._on_end = stream, on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._stream.__aexit__(*error)  # type: ignore[no-any-return]

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        # A cancelled read ends the stream just as its normal end does.
        except BaseException:
            self._on_end()
            raise


class ErrorOutput:
    """What a stdio server writes to its standard error: logged at DEBUG, the last of it kept.

    Attributes:
        redacted: a request that keeps its text out of the log has used the server.
    """

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._rest = self._kept = ""
        self.redacted = False

    @property
    def last(self) -> str:
        return self._server.masked(self._kept).strip()

    @contextmanager
    def collecting(self) -> Iterator[Any]:
        """Open a file for the server to write to."""
        source, target = os.pipe()
        # FileIO for the server's end: with run_eventlet.py, os.fdopen() would make it non-blocking for the server, too,
        # which would then fail, or lose what it writes, as soon as the pipe is full.
        reading, writing = os.fdopen(source, "rb", buffering=0), io.FileIO(target, "wb")
        reader = threading.Thread(target=self._read, args=(reading,), name="mcp-stderr", daemon=True)
        with writing:
            reader.start()
            try:
                yield writing
            finally:
                writing.close()
                # What a server that just ended has left. Its children may keep the pipe open: do not wait for its end.
                reader.join(LAST_OUTPUT_SECONDS)

    def _read(self, reading: BinaryIO) -> None:
        with reading:
            while data := reading.read(65536):
                self._feed(data.decode("utf-8", "replace"))

    def _feed(self, text: str) -> None:
        self._kept = (self._kept + text)[-LAST_OUTPUT:]
        *lines, rest = (self._rest + text).split("\n")
        self._rest = rest[-LAST_OUTPUT:]
        if not self.redacted and logger.isEnabledFor(logging.DEBUG):
            for line in lines:
                logger.debug("MCP server '%s': %s", self._server.name, self._server.masked(line.rstrip()))


# -- processes of stdio servers ----------------------------------------------------------------------------------------

# What the current session has started: the package starts a server's process without handing it out.
_started: ContextVar[list[asyncio.SubprocessTransport] | None] = ContextVar("mcp_processes", default=None)


def note_processes(started: list[asyncio.SubprocessTransport]) -> None:
    """Add to ``started`` whatever process the current task starts from now on."""
    _started.set(started)


def started_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    """Return an event loop on which processes are noted, and the daemon thread on which it runs.

    Raises OSError or RuntimeError if the system has no more descriptors or threads.
    """
    loop = asyncio.new_event_loop()
    start = loop.subprocess_exec

    async def start_and_note(*args: Any, **options: Any) -> Any:
        transport, protocol = await start(*args, **options)
        if (started := _started.get()) is not None:
            started.append(transport)
        return transport, protocol

    loop.subprocess_exec = start_and_note  # type: ignore[method-assign]
    thread = threading.Thread(target=loop.run_forever, name="mcp", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        loop.close()
        raise
    return loop, thread


def end_processes(started: Sequence[asyncio.SubprocessTransport], hard: bool) -> None:
    """Terminate or kill the processes that still run, with their children. Any thread may do that.

    On Windows the package ends the children when the process has ended.
    """
    for transport in list(started):
        # Not reaped, so its id cannot be that of another process yet.
        if transport.get_returncode() is not None:
            continue
        try:
            if sys.platform == "win32":
                transport.kill()
            # The package makes each server the leader of a group.
            else:
                os.killpg(transport.get_pid(), signal.SIGKILL if hard else signal.SIGTERM)
        except (ProcessLookupError, PermissionError) as error:
            logger.debug("An MCP server could not be signalled: %s", error)
