"""Opens a client of the official ``mcp`` package on one server. Everything here runs on the sessions' event loop."""
from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from Middleware.common.constants import VERSION
from Middleware.workflows.tools.mcp.server_file import McpServer, MCPToolCallError

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0
LAST_WORDS = 2000  # characters of a server's error output that are kept
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

    transport: Any = _Watched(_streams(server, errors, on_response), on_end)
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


class _Watched:
    """A transport whose read stream tells when it ends."""

    def __init__(self, transport: AbstractAsyncContextManager[Any], on_end: Callable[[], object]) -> None:
        self._transport, self._on_end = transport, on_end

    async def __aenter__(self) -> tuple[Any, Any]:
        reading, writing = await self._transport.__aenter__()
        return _WatchedStream(reading, self._on_end), writing

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._transport.__aexit__(*error)


class _WatchedStream:
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

    def collecting(self) -> _Pipe:
        """A file for the server to write to, as a context manager on the running loop."""
        return _Pipe(self.feed)

    def feed(self, data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        self._kept = (self._kept + text)[-LAST_WORDS:]
        *lines, rest = (self._rest + text).split("\n")
        self._rest = rest[-LAST_WORDS:]
        if self.redacted or not logger.isEnabledFor(logging.DEBUG):
            return
        for line in lines:
            logger.debug("MCP server '%s': %s", self._server.name, self._server.masked(line.rstrip()))


class _Pipe:
    """An operating system pipe whose other end is read by the event loop, or by a thread where loops cannot."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Any:
        self._reading, writing = os.pipe()
        self._file = os.fdopen(writing, "wb", buffering=0)
        if sys.platform == "win32":
            threading.Thread(target=self._read_all, name="mcp-stderr", daemon=True).start()
        else:
            os.set_blocking(self._reading, False)
            self._loop.add_reader(self._reading, self._read_some)
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if sys.platform != "win32":
            self._read_some()  # what a server that just ended has left
            self._stop()

    def _read_some(self) -> None:
        """Read what is there, until the pipe is empty or ended."""
        while self._reading >= 0:
            try:
                data = os.read(self._reading, 65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._stop()
                return
            self._take(data)

    def _stop(self) -> None:
        if self._reading >= 0:
            self._loop.remove_reader(self._reading)
            os.close(self._reading)
            self._reading = -1

    def _read_all(self) -> None:
        with os.fdopen(self._reading, "rb", buffering=0) as file:
            while data := file.read(65536):
                self._take(data)
