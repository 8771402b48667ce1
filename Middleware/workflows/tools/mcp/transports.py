"""Opens a client of the official ``mcp`` package on one server. Everything here runs on the sessions' event loop."""
from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, BinaryIO

from Middleware.common.constants import VERSION
from Middleware.workflows.tools.mcp.server_file import McpServer, MCPToolCallError

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0

# Characters of a server's error output that are kept for the message about its end.
LAST_WORDS = 2000

# How long the event loop, and with it all sessions, may wait for the last of that output.
LAST_WORDS_SECONDS = 0.1

_CHATTY = ("mcp", "client", "httpx2", "httpcore2")  # they log messages, URLs and session ids

ResponseHook = Callable[[Any], Awaitable[None]]


def load_sdk() -> None:
    """Import the ``mcp`` package, which is large, at the first call. Raises MCPToolCallError if it is missing."""
    if "mcp.client.client" in sys.modules:
        return
    try:
        import mcp.client.client
        import mcp.client.sse  # noqa: F401
    except ImportError as error:
        logger.error("The package mcp cannot be imported: %s", error)
        raise MCPToolCallError("MCP needs the Python package 'mcp', which is not installed "
                               "(pip install -r requirements.txt)") from None
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.CRITICAL)


@asynccontextmanager
async def open_client(server: McpServer, errors: ErrorOutput, on_end: Callable[[], object],
                      on_response: ResponseHook) -> AsyncIterator[Any]:
    """A client that has shaken hands.

    ``on_end`` is called when the server's stream ends, ``on_response`` with every HTTP response.
    """
    from mcp.client.client import Client
    from mcp_types import Implementation

    transport: Any = _watched(_streams(server, errors, on_response), on_end)
    client = Client(transport, cache=None, client_info=Implementation(name="WilmerAI", version=VERSION))
    async with client:
        yield client


@asynccontextmanager
async def _streams(server: McpServer, errors: ErrorOutput, on_response: ResponseHook) -> AsyncIterator[Any]:
    """The transport's pair of streams, to read from and to write to."""
    import httpx2
    from mcp.client.sse import sse_client
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    def http_client(headers: Any = None, timeout: Any = None, auth: Any = None) -> Any:
        # no read timeout: the call's own deadline decides how long a tool may be silent
        return httpx2.AsyncClient(headers=headers, auth=auth, timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
                                  event_hooks={"response": [on_response]})

    if server.transport == "stdio":
        # The package hands down only a short list of harmless variables; the file's own come on top.
        parameters = StdioServerParameters(command=server.command, args=list(server.args), env=dict(server.env),
                                           cwd=server.cwd)
        with errors.collecting() as file:
            async with stdio_client(parameters, errlog=file) as streams:
                yield streams
    elif server.transport == "sse":
        async with sse_client(server.url, dict(server.headers), httpx_client_factory=http_client) as streams:
            yield streams
    else:
        async with (http_client(dict(server.headers)) as http,
                    streamable_http_client(server.url, http_client=http) as streams):
            yield streams


@asynccontextmanager
async def _watched(transport: AbstractAsyncContextManager[Any], on_end: Callable[[], object]) -> AsyncIterator[Any]:
    """The streams of a transport, of which the one to read from reports its end."""
    async with transport as (reading, writing):
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
        self._rest = ""
        self._kept = ""
        self.redacted = False

    @property
    def last_words(self) -> str:
        return self._server.masked(self._kept).strip()

    @contextmanager
    def collecting(self) -> Iterator[Any]:
        """Open a file for the server to write to."""
        source, target = os.pipe()
        reading, writing = os.fdopen(source, "rb", buffering=0), os.fdopen(target, "wb", buffering=0)
        reader = threading.Thread(target=self._read, args=(reading,), name="mcp-stderr", daemon=True)
        with writing:
            reader.start()
            try:
                yield writing
            finally:
                writing.close()
                # What a server that just ended has left. Its children may keep the pipe open: do not wait for its end.
                reader.join(LAST_WORDS_SECONDS)

    def _read(self, reading: BinaryIO) -> None:
        with reading:
            while data := reading.read(65536):
                self.feed(data)

    def feed(self, data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        self._kept = (self._kept + text)[-LAST_WORDS:]
        *lines, rest = (self._rest + text).split("\n")
        self._rest = rest[-LAST_WORDS:]
        if self.redacted or not logger.isEnabledFor(logging.DEBUG):
            return
        for line in lines:
            logger.debug("MCP server '%s': %s", self._server.name, self._server.masked(line.rstrip()))
