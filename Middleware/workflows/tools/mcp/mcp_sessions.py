"""Sessions with MCP servers: kept between calls, all on one event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextvars
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from Middleware.exceptions import EarlyTerminationException, WilmerError
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.sensitive_logging_utils import is_encryption_active
from Middleware.workflows.tools.mcp.server_file import McpServer
from Middleware.workflows.tools.mcp.transports import (
    ErrorOutput,
    end_processes,
    load_sdk,
    new_client,
    note_processes,
    started_loop,
)

logger = logging.getLogger(__name__)

IDLE_SECONDS = 300.0
# An HTTP server is notified that its session has ended; one that does not answer must not keep the session.
END_SECONDS = 10.0
# The package kills a server that ignores the end of its input after four seconds.
CLOSE_SECONDS = 5.0
# A server whose call was stopped is busy with an unwanted result, so it gets less time than the two seconds
# that the package waits before it terminates one.
TERMINATE_SECONDS = 0.15
KILL_SECONDS = 0.6
# A call whose time is up ends on the event loop. After this time the loop itself must be blocked.
STUCK_SECONDS = 5.0
# More rounds of the event loop than the end of a pipe needs to travel through all layers.
_TURNS = 25
# Characters of an error in a message: servers send whole pages.
LONGEST = 500

Action = Callable[[Any], Awaitable[Any]]


class SessionError(WilmerError):
    """A call failed; the text says why."""

    private = True


class SessionTimeoutError(WilmerError):
    """The time was up; the text says during what."""


class _UnreachedError(SessionError):
    """The request certainly started no tool, because the session had ended before."""


class McpSessions:
    """Runs calls for any thread. A session is opened by the first call to a server and closed after idling."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._current: dict[McpServer, _Session] = {}
        self._all: set[_Session] = set()

    def run(self, server: McpServer, action: Action, timeout: float, scope: CancelScope | None = None) -> object:
        """Return ``await action(client)`` within ``timeout`` seconds, which cover connecting and the handshake too.

        Raises SessionError, SessionTimeoutError, and EarlyTerminationException once ``scope`` is cancelled.
        """
        load_sdk()
        loop, call = self._running_loop(), _Call(server, is_encryption_active())
        # An empty context: what the loop keeps must not keep the request of the first call alive.
        future = contextvars.Context().run(asyncio.run_coroutine_threadsafe, self._use(call, action, timeout), loop)

        def cancel() -> None:
            # Before the next call can be sent to a server that is busy.
            loop.call_soon_threadsafe(call.give_up)
            future.cancel()

        token = scope.add_callback(cancel) if scope else None
        try:
            return future.result(timeout + STUCK_SECONDS)
        except concurrent.futures.TimeoutError:
            self._abandon(loop)
            raise SessionTimeoutError("waiting for all MCP servers, since one of them blocked the others") from None
        except concurrent.futures.CancelledError:
            if scope and scope.cancelled:
                raise EarlyTerminationException("The MCP call was cancelled") from None
            raise SessionError("the session was closed") from None
        finally:
            if scope and token is not None:
                scope.remove_callback(token)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """End all sessions and the processes behind them."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        atexit.unregister(self.close)
        closing = asyncio.run_coroutine_threadsafe(self._close_all(seconds), loop)
        try:
            closing.result(seconds + 1)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            logger.warning("Some MCP servers did not end in time")
        loop.call_soon_threadsafe(loop.stop)
        thread.join(1)
        if not thread.is_alive():
            loop.close()

    def kill(self) -> None:
        """End the processes behind all sessions at once, also while ``close`` waits for them. Calls under way fail."""
        for session in list(self._all):
            session.kill()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop, self._thread = started_loop()
                atexit.register(self.close)
            return self._loop

    def _abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leave a loop that a call has blocked to itself, so that the next call gets another one."""
        with self._lock:
            if self._loop is not loop:
                return
            self._loop = self._thread = None
            sessions, self._current, self._all = self._all, {}, set()
        atexit.unregister(self.close)
        logger.error("The thread of the MCP sessions is blocked; another one takes its place.")
        for session in list(sessions):
            session.kill()
        loop.call_soon_threadsafe(loop.stop)

    # -- on the loop ---------------------------------------------------------------------------------------------
    async def _use(self, call: _Call, action: Action, timeout: float) -> object:
        session = self._take(call)
        renewed = False
        try:
            async with asyncio.timeout(timeout) as limit:
                while True:
                    reused = session.connected
                    try:
                        return await session.use(action)
                    except _UnreachedError:
                        session.retire()
                        if renewed or not reused:
                            raise
                        session.release()
                        session, renewed = self._take(call), True
        except TimeoutError as error:
            if not limit.expired():
                raise SessionError(describe(error)) from None
            call.give_up()
            raise SessionTimeoutError(
                "waiting for the tool" if session.connected else "connecting to the server"
            ) from None
        finally:
            session.release()

    def _take(self, call: _Call) -> _Session:
        server = call.server
        session = self._current.get(server)
        if session is None or session.retired:
            # The file of the server was changed.
            for known in [known for known in self._current if known.name == server.name]:
                self._current.pop(known).retire()
            session = self._current[server] = _Session(server, self._idle_seconds, self._all.discard)
            self._all.add(session)
        session.take()
        session.errors.redacted |= call.redacted
        call.session = session
        return session

    async def _close_all(self, seconds: float) -> None:
        tasks = [session.close() for session in list(self._all)]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)


@dataclass
class _Call:
    server: McpServer
    redacted: bool
    session: _Session | None = None

    def give_up(self) -> None:
        # No new calls to a server that may go on with this one, and no more time for it than others need.
        if self.session:
            self.session.retire(interrupt=True)


class _Session:
    """One connection and the task that owns it. It serves any number of calls at a time.

    Attributes:
        retired: takes no new calls; it ends when those under way have.
    """

    def __init__(self, server: McpServer, idle_seconds: float, on_end: Callable[[_Session], object]) -> None:
        from anyio import CancelScope as ConnectScope

        self.server, self.retired = server, False
        self.errors = ErrorOutput(server)
        self._idle_seconds, self._on_end = idle_seconds, on_end
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None
        self._client: object = None
        self._settled, self._over = asyncio.Event(), asyncio.Event()
        self._failure: BaseException | None = None
        self._lost, self._status = False, 0
        self._connecting = ConnectScope()
        self._processes: list[asyncio.SubprocessTransport] = []
        self._interrupt = False
        self._task = asyncio.create_task(self._live())

    @property
    def connected(self) -> bool:
        return self._client is not None

    def take(self) -> None:
        self._users += 1
        if self._idle:
            self._idle.cancel()
            self._idle = None

    def release(self) -> None:
        self._users -= 1
        if self._users:
            return
        if self.retired:
            self.close()
        else:
            self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, self.retire)

    def retire(self, interrupt: bool = False) -> None:
        """``interrupt``: the server is not given time to end well."""
        self.retired = True
        self._interrupt = self._interrupt or interrupt
        if not self._users:
            self.close()

    def close(self) -> asyncio.Task[None]:
        """Begin to end; the task ends with the connection."""
        self.retired = True
        if self._idle:
            self._idle.cancel()
        self._over.set()
        if not self.connected:
            self._connecting.cancel()
        if self._interrupt:
            for seconds, hard in ((TERMINATE_SECONDS, False), (KILL_SECONDS, True)):
                asyncio.get_running_loop().call_later(seconds, end_processes, self._processes, hard)
        return self._task

    def kill(self) -> None:
        """Kill the server. Any thread may do that."""
        self.retired = True
        end_processes(self._processes, True)

    async def use(self, action: Action) -> object:
        """Return the result of ``action(client)``. Raises SessionError."""
        await self._settled.wait()
        if not self.connected:
            raise SessionError(self._why())
        # A server that has died already is noticed before it is sent anything.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if self._over.is_set():
            raise _UnreachedError("the server ended the connection")
        from mcp.shared.exceptions import MCPError

        try:
            return await action(self._client)
        except MCPError as error:
            raise await self._explained(error) from None
        # The package raises what its libraries raise.
        except Exception as error:
            raise SessionError(self._said(error)) from None

    async def _explained(self, error: Any) -> SessionError:
        from mcp_types import CONNECTION_CLOSED

        if self._lost:
            return _UnreachedError(self._said(error))
        if error.code != CONNECTION_CLOSED:
            return SessionError(self._said(error))
        # The connection's own failure, which comes a moment later, says more.
        await asyncio.wait({self._task}, timeout=0.5)
        kind = _UnreachedError if is_refused_connection(self._failure) else SessionError
        return kind(self._said(self._failure or error))

    async def _live(self) -> None:
        note_processes(self._processes)
        try:
            with self._connecting:
                async with new_client(self.server, self.errors, self._over.set, self._look_at) as client:
                    self._client = client
                    self._settled.set()
                    await self._over.wait()
                    self._connecting.deadline = asyncio.get_running_loop().time() + END_SECONDS
        # The package raises what its libraries raise, often in groups.
        except (Exception, BaseExceptionGroup) as error:
            self._failure = error
        finally:
            self.retired = True
            self._over.set()
            self._settled.set()
            self._processes.clear()
            self._on_end(self)
            self._log_end()

    async def _look_at(self, response: Any) -> None:
        # The package passes on neither the status, nor that the server has forgotten the session.
        request = response.request
        if request.method != "POST":
            return
        self._status = response.status_code if response.status_code >= 400 else 0
        if response.status_code in (400, 404) and "mcp-session-id" in request.headers:
            self._lost = True

    def _why(self) -> str:
        return self._said(self._failure) if self._failure else "the connection was given up"

    def _said(self, error: BaseException) -> str:
        text = describe(error, "" if self.connected else self.server.command)
        return self.server.masked(f"{text} (HTTP status {self._status})" if self._status else text)

    def _log_end(self) -> None:
        if self.connected:
            logger.info("The session with MCP server '%s' has ended", self.server.name)
            return
        # No call has been made yet, so no conversation is in it.
        output = self.errors.last
        logger.warning(
            "No session with MCP server '%s': %s%s",
            self.server.name,
            self._why(),
            f"\nIts last output:\n{output}" if output else "",
        )


def describe(error: BaseException, command: str = "") -> str:
    """Return why a call failed. ``command`` is the program of a stdio server, which an OSError is about."""
    cause = _leaf(error)
    kind = type(cause).__name__
    if kind == "MCPError":
        text = str(getattr(cause, "message", cause))
        return "the server ended the connection" if text == "Connection closed" else _short(text)
    if kind == "ValidationError":
        return "the server's answer does not follow the protocol"
    if isinstance(cause, OSError) and command:
        return f"'{os.path.basename(command)}' cannot be started: {cause.strerror or kind}"
    if is_refused_connection(error):
        return "the server cannot be reached"
    return _short(f"{kind}: {cause}" if str(cause) else kind)


def is_refused_connection(error: BaseException | None) -> bool:
    """Return whether no connection came about, so that the server has seen nothing."""
    return error is not None and type(_leaf(error)).__name__ in ("ConnectError", "ConnectTimeout")


def _leaf(error: BaseException) -> BaseException:
    # Of grouped exceptions the closed connection is the last to blame: it follows from another.
    while isinstance(error, BaseExceptionGroup):
        inner = [_leaf(part) for part in error.exceptions]
        error = next((part for part in inner if type(part).__name__ != "MCPError"), inner[0])
    return error


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
