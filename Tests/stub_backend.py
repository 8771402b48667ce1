"""The fake server of tests and benchmarks, LLM or not: real sockets on a free loopback port, a thread per connection.

    with StubBackend() as backend:
        backend.script(status_reply(503), json_reply({"ok": True}))   # one reply per request, in order
        ...
        assert backend.requests[0].json["model"] == "x"
        assert backend.requests[1].wait_ended()                       # the client let go of that connection

Requests beyond the script get ``backend.default``; ``backend.responder`` (request -> Reply or None) comes before both.
A server that is more than a function overrides ``respond``. What such functions are put together from is below:
``chat_answer`` and other replies, ``page_of``, ``node_of``; ``backend_dialects`` speaks the other dialects. The LLM
server of the demo is another one, because it is a part of the program, which knows no tests.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from Tests.patience import CLIENT_PATIENCE, PATIENCE

BEFORE_STATUS = "before_status"
AFTER_HEADERS = "after_headers"
AFTER_PIECES = "after_pieces"
UNKNOWN_NODE = "?"
_NODE = re.compile(r"node:([\w-]+)")


@dataclass
class Reply:
    """What to do with one request.

    Attributes:
        body: JSON value, or bytes sent as they are; ignored if ``pieces`` is given.
        pieces: a streamed body, one HTTP chunk each.
        header_delay: seconds before the status line.
        held: the status line waits until this is set, or, with ``held_piece``, the piece of that number does.
        delay: seconds before each piece but the first; ``delays`` gives them one by one instead.
        never: read the request and say nothing until the client goes.
        hang: after the last piece, say nothing until the client goes.
        drop: close the connection at that point; ``reset`` does so with RST instead of FIN.
        framing: ``chunked``, ``length`` or ``close`` (body ends with the connection) for ``pieces``.
        keep_alive: False closes the connection after the answer and says so.
        raw: these bytes are the whole answer; the connection is closed after them. Or what they consist of, each piece
            sent as soon as there is one; then ``keep_alive`` holds.
    """

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: Sequence[bytes] | None = None
    header_delay: float = 0.0
    held: threading.Event | None = None
    held_piece: int | None = None
    delay: float = 0.0
    delays: Sequence[float] = ()
    never: bool = False
    hang: bool = False
    drop: str = ""
    reset: bool = False
    framing: str = "chunked"
    keep_alive: bool = True
    raw: bytes | Iterable[bytes] | None = None


def json_reply(body: Any, status: int = 200, **options: Any) -> Reply:
    return Reply(status=status, body=body, **options)


def status_reply(status: int, message: str = "scripted failure", **options: Any) -> Reply:
    return Reply(status=status, body={"error": {"message": message, "code": status}}, **options)


def chat_reply(text: str, finish_reason: str = "stop", usage: Mapping[str, int] | None = None, **options: Any) -> Reply:
    """A non-streaming OpenAI chat completion."""
    body: dict[str, Any] = {
        "id": "stub",
        "object": "chat.completion",
        "model": "stub",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}],
    }
    if usage is not None:
        body["usage"] = dict(usage)
    return Reply(body=body, **options)


def sse_event(data: Any) -> bytes:
    """One ``data:`` event; text is sent as it is, anything else as JSON."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def chat_chunk(delta: Mapping[str, Any], finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": "stub",
        "object": "chat.completion.chunk",
        "model": "stub",
        "choices": [{"index": 0, "delta": dict(delta), "finish_reason": finish_reason}],
        **more,
    }


def sse_reply(events: Iterable[Any], **options: Any) -> Reply:
    """A stream of the given events, each its own piece."""
    headers = {"Content-Type": "text/event-stream", **options.pop("headers", {})}
    return Reply(pieces=[sse_event(event) for event in events], headers=headers, **options)


def chat_stream_reply(
    tokens: Iterable[str], finish_reason: str | None = "stop", usage: Mapping[str, int] | None = None, **options: Any
) -> Reply:
    """An OpenAI chat stream: role, tokens, finish reason, usage if given, ``[DONE]``."""
    events: list[Any] = [chat_chunk({"role": "assistant", "content": ""})]
    events += [chat_chunk({"content": token}) for token in tokens]
    if finish_reason is not None:
        events.append(chat_chunk({}, finish_reason))
    if usage is not None:
        events.append({"id": "stub", "object": "chat.completion.chunk", "choices": [], "usage": dict(usage)})
    return sse_reply([*events, "[DONE]"], **options)


def chat_answer(request: RecordedRequest, text: str | Iterable[str], **options: Any) -> Reply:
    """An OpenAI chat answer, whole or as a stream of tokens (a string is one), as the request wants it."""
    tokens = [text] if isinstance(text, str) else list(text)
    if request.json.get("stream"):
        return chat_stream_reply(tokens, **options)
    return chat_reply("".join(tokens), **options)


def page_of(pages: Mapping[str, Any], request: RecordedRequest) -> Reply:
    """The page at the path of a request: a Reply, or the JSON of one; status 404 for all others."""
    found = pages.get(request.path)
    return status_reply(404) if found is None else found if isinstance(found, Reply) else json_reply(found)


def node_of(request: RecordedRequest) -> str:
    """The node that calls: it names itself (``node:first``) in the first message, or in a completion's prompt.

    ``embed`` for a call for vectors; ``UNKNOWN_NODE`` if there is no name.
    """
    body = request.json
    if "input" in body:
        return "embed"
    found = _NODE.search(json.dumps(body["messages"][:1] if "messages" in body else body))
    return found[1] if found else UNKNOWN_NODE


@dataclass
class RecordedRequest:
    """A request as it arrived.

    Attributes:
        connection: number of the connection, counted from 0 per backend.
        received_at, answered_at, ended_at: ``time.monotonic()`` when the request was read, fully answered, and when
            its connection ended, noticed within milliseconds also while the stub waits.
        client_left: the client ended the connection before the answer was complete.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    received_at: float
    answered_at: float | None = None
    ended_at: float | None = None
    client_left: bool = False
    _ended: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def wait_ended(self, timeout: float = PATIENCE) -> bool:
        return self._ended.wait(timeout)

    def end(self) -> None:
        if self.ended_at is None:
            self.ended_at = time.monotonic()
        self._ended.set()


class _ClientGone(Exception):
    pass


class _Drop(Exception):
    pass


class StubBackend:
    """The server; see the module's text. ``tls``: an ``ssl.SSLContext`` for https. ``port``: 0 = a free one."""

    def __init__(self, default: Reply | None = None, tls: Any = None, port: int = 0) -> None:
        self.default = default or json_reply({"ok": True})
        self.responder: Callable[[RecordedRequest], Reply | None] | None = None
        self.requests: list[RecordedRequest] = []
        self.connections = 0
        self._script: list[Reply] = []
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._server = _Server(("127.0.0.1", port), _Handler) if port else _server_on_a_new_port()
        self._server.backend = self
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.scheme = "https" if tls is not None else "http"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        return len(self._sockets)

    def script(self, *replies: Reply) -> Self:
        """Add replies for the next requests."""
        with self._changed:
            self._script.extend(replies)
        return self

    def respond(self, request: RecordedRequest) -> Reply | None:
        """The answer to a request while there is no ``responder``; None: the script has it.

        Called for one request at a time.
        """
        return None

    def next_row(self) -> None:
        """Forget the requests of one row of a table before the next."""
        with self._changed:
            self.requests.clear()

    def wait_requests(self, count: int = 1, timeout: float = PATIENCE) -> list[RecordedRequest]:
        """Wait until ``count`` requests have arrived. Raises AssertionError after ``timeout`` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.requests) >= count, timeout):
                raise AssertionError(f"{len(self.requests)} of {count} requests arrived")
            return list(self.requests)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close the listener and all connections."""
        self._stopping.set()
        # The listener looks ten times a second whether it is to end, and on Linux at once when its socket ends.
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._server.server_close()
        self.drop_connections()
        self._thread.join(5)

    def drop_connections(self) -> None:
        """End every open connection from the server's side."""
        with self._changed:
            sockets = list(self._sockets)
        for sock in sockets:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _opened(self, sock: socket.socket) -> int:
        with self._changed:
            self._sockets.add(sock)
            self.connections += 1
            return self.connections - 1

    def _closed(self, sock: socket.socket) -> None:
        with self._changed:
            self._sockets.discard(sock)

    def _next(self, request: RecordedRequest) -> Reply:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
            return (self.responder or self.respond)(request) or (self._script.pop(0) if self._script else self.default)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    backend: StubBackend

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients of tests break connections on purpose


_used_ports: set[int] = set()


def _server_on_a_new_port() -> _Server:
    """No stub of this process had its port before: what is left of a connection to another is not taken for its own."""
    while (server := _Server(("127.0.0.1", 0), _Handler)).server_port in _used_ports and len(_used_ports) < 10_000:
        server.server_close()
    _used_ports.add(server.server_port)
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._number = self.server.backend._opened(self.connection)
        self._served: list[RecordedRequest] = []

    def finish(self) -> None:
        for request in self._served:
            request.end()
        self.server.backend._closed(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            self._gone()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = RecordedRequest(
            self.command, self.path, headers, self.rfile.read(length), self._number, time.monotonic()
        )
        self._served.append(request)
        reply = self.server.backend._next(request)
        try:
            self._answer(reply)
            request.answered_at = time.monotonic()
        except (_ClientGone, OSError):
            self._gone()
        except _Drop:
            self.close_connection = True
            self._flush()
            if reply.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()  # takes effect, as RST, when the handler lets go of its files
            else:
                self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_POST = do_DELETE = do_PUT = _serve

    def _gone(self) -> None:
        self.close_connection = True
        for request in self._served:
            request.client_left = request.client_left or request.answered_at is None
            request.end()

    def _flush(self) -> None:
        with contextlib.suppress(OSError):
            self.wfile.flush()

    def _answer(self, reply: Reply) -> None:
        self._pause(reply.header_delay)
        if reply.held_piece is None:
            self._wait(reply)
        if reply.never:
            self._pause(float("inf"))
        if reply.drop == BEFORE_STATUS:
            raise _Drop
        if not reply.keep_alive or isinstance(reply.raw, bytes):
            self.close_connection = True
        if reply.raw is not None:
            for piece in [reply.raw] if isinstance(reply.raw, bytes) else reply.raw:
                self.wfile.write(piece)
                self.wfile.flush()
        elif reply.pieces is None:
            self._answer_whole(reply)
        else:
            self._answer_pieces(reply, list(reply.pieces))

    def _head(self, reply: Reply, extra: Mapping[str, str]) -> None:
        self.send_response(reply.status)
        for name, value in {**extra, **reply.headers}.items():
            self.send_header(name, value)
        if not reply.keep_alive:
            self.send_header("Connection", "close")
        self.end_headers()

    def _answer_whole(self, reply: Reply) -> None:
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body, ensure_ascii=False).encode()
        self._head(reply, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        if reply.drop:
            self.wfile.write(body[: len(body) // 2] if reply.drop == AFTER_PIECES else b"")
            raise _Drop
        self.wfile.write(body)
        self.wfile.flush()

    def _answer_pieces(self, reply: Reply, pieces: list[bytes]) -> None:
        chunked = reply.framing == "chunked"
        framing = {
            "chunked": {"Transfer-Encoding": "chunked"},
            "close": {"Connection": "close"},
            "length": {"Content-Length": str(sum(map(len, pieces)))},
        }[reply.framing]
        self.close_connection = self.close_connection or reply.framing == "close"
        self._head(reply, framing)
        self.wfile.flush()
        if reply.drop == AFTER_HEADERS:
            raise _Drop
        for number, piece in enumerate(pieces):
            delay = reply.delays[number] if number < len(reply.delays) else reply.delay if number else 0.0
            if delay or number == reply.held_piece:
                self.wfile.flush()
                self._pause(delay)
            if number == reply.held_piece:
                self._wait(reply)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        self.wfile.flush()
        if reply.hang:
            self._pause(float("inf"))
        if reply.drop:
            raise _Drop
        if chunked:
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()

    def _wait(self, reply: Reply) -> None:
        """Wait until the reply may go on. Hundreds of threads that looked more often would keep each other busy.

        It goes on by itself when no client waits any more, so that a test fails in which nothing lets it go on.
        """
        end = time.monotonic() + 2 * CLIENT_PATIENCE
        while reply.held is not None and time.monotonic() < end and not reply.held.wait(0.1):
            self._pause(0.001)

    def _pause(self, seconds: float) -> None:
        """Wait, and notice within milliseconds when the client goes."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self.server.backend._stopping.is_set():
                raise _ClientGone
            readable, _, _ = select.select([self.connection], [], [], min(left, 0.1))
            if readable:
                if not self._peek():
                    raise _ClientGone
                time.sleep(min(left, 0.01))  # a pipelined request waits its turn

    def _peek(self) -> bytes:
        try:
            # not SSLSocket.recv, which refuses flags
            return (
                socket.socket.recv(self.connection, 1, socket.MSG_PEEK)
                if self.server.backend.scheme == "http"
                else self.connection.recv(1)
            )
        except (OSError, ValueError):
            return b""
