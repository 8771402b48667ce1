"""One connection under Waitress: it reads requests within limits, writes errors as JSON, and closes in order.

Waitress calls ``Channel``; the classes here override its methods.
"""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.task import ErrorTask, WSGITask
from waitress.utilities import BadRequest

from Middleware.api.edge.admission_middleware import BODY_LEFT_KEY, MEGABYTE, NO_ROOM_KEY
from Middleware.api.edge.body_budget import Body, BodyBudget
from Middleware.cli.serving import limits
from Middleware.cli.serving.crowd import Crowd, Stage, Unfinished
from Middleware.cli.serving.listening import BOTH_FRAMINGS, TLS_RECORD, TLS_REFUSED, own_error, return_memory_of_bodies
from Middleware.common import instance_global_variables as instance
from Middleware.models.process import process

logger = logging.getLogger(__name__)

UNLIMITED = sys.maxsize  # bytes

# A chunk of one byte takes six. Framing counts only where it is more than that, as with endless chunk extensions; small
# chunks do not make a small body too large.
FRAMING_WEIGHT = 8


def _nothing() -> None:
    """Take the place of a function that is not needed any more."""


class Parser(HTTPRequestParser):
    """Reads a request. Stops at a body above the limit, or of a request that ``is_unwelcome`` by its head.

    The application gets such a request without its body and with its length, and answers it.

    Args:
        on_refusal: called then, and for a request that cannot be read. The client may still be sending, and no request
            can follow.
        is_unwelcome: takes this parser, which has read the head and nothing else.
        on_whole: called when the whole request has been read, before any thread may work on it.
    """

    # Until the first line of the head has been read.
    path = ""
    # Of a request with a body from the end of its head on, of others from the start of their task on.
    environ: dict[str, Any] | None = None

    def __init__(
        self,
        adj: object,
        on_refusal: Callable[[], None],
        is_unwelcome: Callable[[Parser], bool] | None = None,
        on_whole: Callable[[], None] = _nothing,
    ) -> None:
        super().__init__(adj)
        self._is_unwelcome = is_unwelcome
        self._limit = instance.MAX_REQUEST_MB * MEGABYTE or UNLIMITED
        self._on_refusal, self._on_whole = on_refusal, on_whole

    def received(self, data: bytes) -> int:
        # Otherwise the client of https:// would get an error about a malformed request line.
        if not self.headers_finished and not self.header_plus and data[:1] == TLS_RECORD:
            self._refuse(BadRequest(TLS_REFUSED))
            return len(data)
        # Blank lines before a request do not belong to it. Waitress takes two of them for a request without content,
        # and the time for a head would begin again.
        rest = data if self.headers_finished or self.header_plus else data.lstrip()
        if not rest:
            return len(data)
        consumed: int = len(data) - len(rest) + super().received(rest)
        if self._size() > self._limit or self._is_refused():
            self._leave_body()
            return len(data)
        if self._framing > limits.HEAD_BYTES:
            self._refuse(BadRequest("The framing of the body is too long"))
            return len(data)
        if self.error is not None:
            self._on_refusal()
        if self.completed:
            self._on_whole()
        return consumed

    def give_up(self) -> None:
        """End a request whose body has no room. The application answers it."""
        # Read once: the connection may be closed on another thread.
        environ = self.environ
        if environ is not None:
            environ.update({BODY_LEFT_KEY: True, NO_ROOM_KEY: True})
        self._leave_body()

    def release(self) -> None:
        """Forget the body and the connection, which is closed, and refers to this parser."""
        self.completed = self.empty = True
        self.close()
        self.body_rcv = self.environ = self._is_unwelcome = None
        self._on_refusal = self._on_whole = _nothing

    @property
    def held(self) -> int:
        """Bytes of the body that are in memory."""
        # Read once: another thread may give the body up.
        receiver = self.body_rcv
        return 0 if receiver is None else len(receiver) + self._framing

    @property
    def _framing(self) -> int:
        # Waitress keeps a line that does not end, and trailers. Each piece of them is copied with all before it.
        receiver = self.body_rcv
        return len(receiver.control_line) + len(receiver.trailer) if self.chunked and receiver is not None else 0

    def _is_refused(self) -> bool:
        # Asked once, when the head is complete and a body is to come.
        if self._is_unwelcome is None or self.completed or not self.headers_finished:
            return False
        asked, self._is_unwelcome = self._is_unwelcome, None
        return asked(self)

    def _leave_body(self) -> None:
        self.error, self.expect_continue = None, False
        self.headers.update(CONTENT_LENGTH=str(self._size()), CONNECTION="close")
        self._refuse(None)

    def _refuse(self, error: BadRequest | None) -> None:
        self.completed = True
        self.error = error
        self.close()
        self.body_rcv = None
        self._on_refusal()

    def parse_header(self, header_plus: bytes) -> None:
        try:
            super().parse_header(header_plus)
        # Python refuses to convert thousands of digits.
        except ValueError as error:
            raise ParsingError("Content-Length is invalid") from error
        # Two lengths for one body: a proxy in front may believe the other one, and see another request in it.
        if self.chunked and "CONTENT_LENGTH" in self.headers:
            raise ParsingError(BOTH_FRAMINGS)

    def _size(self) -> int:
        """Bytes of the body: as announced, else so far."""
        receiver = self.body_rcv
        if not self.chunked or receiver is None:
            return int(self.content_length)
        return max(len(receiver), self.body_bytes_received // FRAMING_WEIGHT)


class Task(WSGITask):
    """Sends the head of an answer in one piece with the beginning of its body."""

    # Declared by Waitress without a type.
    wrote_header: bool

    def get_environment(self) -> dict[str, Any]:
        """Return the environ of the request: the one with which its head was judged, if it was, now with the body."""
        request: Parser = self.request
        if request.environ is not None:
            request.environ["wsgi.input"] = request.get_body_stream()
            # Of a chunked body, the length was not known before.
            request.environ["CONTENT_LENGTH"] = request.headers["CONTENT_LENGTH"]
            return request.environ
        environ: dict[str, Any] = super().get_environment()
        # Waitress hides how the body comes. That there is one decides about requests, even if it is empty in the end.
        if request.chunked:
            environ["HTTP_TRANSFER_ENCODING"] = "chunked"
        request.environ = environ
        return environ

    def build_response_header(self) -> bytes:
        # While the server drains, the connection ends with the answer, and the answer says so.
        if self.channel.server.draining:
            self.request.headers["CONNECTION"] = "close"
        head: bytes = super().build_response_header()
        return head

    def write(self, data: bytes) -> None:
        length = self.content_length
        # Waitress knows what to do with a body that is not wanted, or is longer than announced.
        if (
            not data
            or not self.complete
            or not self.has_body
            or (length is not None and not self.chunked_response and self.content_bytes_written + len(data) > length)
        ):
            super().write(data)
            return
        head = b"" if self.wrote_header else self.build_response_header()
        self.channel.write_soon(head + (b"%X\r\n%b\r\n" % (len(data), data) if self.chunked_response else data))
        self.wrote_header = True
        self.content_bytes_written += len(data)


class JsonErrorTask(ErrorTask):
    """Answers what Waitress itself refuses (a malformed request, a crash) with JSON."""

    def execute(self) -> None:
        error = self.request.error
        self.status = f"{error.code} {error.reason}"
        headers, body = own_error(error.code, f"{error.reason}: {error.body}", self.request.path)
        self.response_headers += headers
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class Channel(HTTPChannel):
    """A connection. After a refused body it lets the client read the answer before it closes.

    Closing at once would reset a connection on which data is under way, and the client might lose the answer.
    """

    task_class = Task
    error_task_class = JsonErrorTask
    # Whose head or body still comes.
    request: Parser | None
    # The number of times that the client has taken some bytes.
    sends = 0
    _discards_input = False
    # The body that comes.
    _body: Body | None = None
    # Monotonic time; set once the answer has been sent and the sending half is closed.
    _lingers_until: float | None = None

    def parser_class(self, adj: object) -> Parser:
        """Make the parser of a request; Waitress calls it as it would call the class."""
        is_unwelcome = self._is_unwelcome if self.server.is_unwelcome is not None else None
        # At the gate, it is counted again, on another thread.
        return Parser(adj, self._discard_input, is_unwelcome, self._leave_body)

    def _is_unwelcome(self, head: Parser) -> bool:
        """Return whether a request will be refused. Its task will use the same environ, so that the answers agree."""
        environ = Task(self, head).get_environment()
        if self.server.is_unwelcome(environ):
            environ[BODY_LEFT_KEY] = True
            return True
        self._body = process().one(BodyBudget).begin(partial(self._give_up_body, head))
        if self._body is None:
            environ.update({BODY_LEFT_KEY: True, NO_ROOM_KEY: True})
        return self._body is None

    def _leave_body(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            process().one(BodyBudget).leave(body)

    def _give_up_body(self, request: Parser) -> None:
        """Answer a request whose body has no room. Called on any thread."""
        with self.requests_lock:
            # It has become whole in the meantime, and another one may come, or the connection has been closed.
            if request is not self.request or request.completed:
                return
            self._leave_body()
            self.request = None
            request.give_up()
            self.requests.append(request)
            if len(self.requests) == 1:
                self.server.add_task(self)

    @property
    def unfinished(self) -> Unfinished[Channel] | None:
        """What the client has to do next; None while its request is at work, or its answer leaves."""
        found = partial(Unfinished, self, self.addr[0])
        if self.total_outbufs_len:
            return found(self.sends, Stage.ANSWER)
        if self.requests:
            return None
        if self._discards_input:
            return found(self._lingers_until, Stage.REFUSAL)
        head = self.request
        return found(head, Stage.BODY if head is not None and head.headers_finished else Stage.HEAD)

    def drop(self) -> None:
        """End a connection for others; with an answer, if a body comes on it."""
        if self._body is not None and self.request is not None and not self.total_outbufs_len:
            self._give_up_body(self.request)
        else:
            self.handle_close()

    def handle_close(self) -> None:
        super().handle_close()
        self._leave_body()
        # Read once: a thread for whose body there is no room may give this one up.
        request = self.request
        if request is not None:
            request.release()
        # Those that wait would not be answered any more. The first one belongs to its thread, which may hold the lock.
        if self.requests_lock.acquire(blocking=False):
            try:
                for waiting in self.requests[1:]:
                    waiting.release()
                del self.requests[1:]
            finally:
                self.requests_lock.release()

    def _discard_input(self) -> None:
        self._discards_input = True

    def received(self, data: bytes) -> bool:
        taken = self._discards_input or bool(super().received(data))
        body, request = self._body, self.request
        if body is not None and request is not None and request.headers_finished:
            process().one(BodyBudget).hold(body, request.held)
        else:
            self._leave_body()
        return taken

    def readable(self) -> bool:
        if self._lingers_until is not None:
            return True
        # The body of a request that waits behind another is in no budget once it is whole. The system keeps its rest.
        head = self.request
        return super().readable() and not (self.requests and head is not None and head.body_rcv is not None)

    def writable(self) -> bool:
        return self.will_close if self._lingers_until is not None else super().writable()

    def handle_write(self) -> None:
        if not self._discards_input or self.will_close:
            super().handle_write()
            return
        # Read once: a worker thread may set it at any time, and writes no more afterwards.
        at_end = self.close_when_flushed
        self._flush_exception(self._flush_some if at_end else self._flush_some_if_lockable)
        if at_end and not self.total_outbufs_len and not self.will_close:
            self._linger()

    def _linger(self) -> None:
        self.close_when_flushed = False
        self._lingers_until = time.monotonic() + limits.LINGER_SECONDS
        try:
            self.socket.shutdown(socket.SHUT_WR)
        # The client has disconnected.
        except OSError:
            self.will_close = True

    def write_soon(self, data: bytes) -> int:
        """Send a piece of an answer, or keep what the client does not take now; return its length."""
        length = len(data)
        # A piece for which nothing has to wait needs no buffer, which would cost as much as sending it. Whatever is
        # unusual, the end of the connection too, is left to Waitress.
        if self.connected and not self.total_outbufs_len and type(data) is bytes:
            self.outbuf_lock.acquire()
            try:
                # Under the lock, as the loop may have closed the connection in the meantime: then there is no socket.
                if self.connected and not self.total_outbufs_len:
                    try:
                        sent = self.socket.send(data)
                    except OSError:
                        sent = 0
                    if sent:
                        self.sends += 1
                        self.last_activity = time.time()
                    if sent == length:
                        return length
                    data = data[sent:]
                super().write_soon(data)
            finally:
                self.outbuf_lock.release()
        else:
            super().write_soon(data)
        return length

    def _flush_some(self, do_close: bool = True) -> bool:
        sent: bool = super()._flush_some(do_close)
        self.sends += sent
        return sent

    def close_if_idle(self) -> None:
        """Close the connection if no request is under way on it, and none can be expected on a new one."""
        if self.requests or self.request is not None or self.total_outbufs_len or self._discards_input:
            return
        is_new = self.last_activity == self.creation_time
        if not is_new or time.time() - self.creation_time >= limits.FIRST_REQUEST_SECONDS:
            self.handle_close()

    def handle_read(self) -> None:
        super().handle_read()
        if self._lingers_until is not None and time.monotonic() > self._lingers_until:
            self.will_close = True


class SlowClients:
    """Disconnects clients that take nothing of their answer, or whose request's head does not come to its end, and some
    of those without a whole request when there are many.

    Waitress itself only closes idle connections, and waits until it can write before it does.
    """

    def __init__(self) -> None:
        self._last_seen: dict[Channel, tuple[int, float]] = {}
        self._heads: dict[Parser, float] = {}
        self._next_sweep = 0.0
        self._crowd: Crowd[Channel] | None = None

    def sweep(self, channels: Iterable[object]) -> None:
        """Check all connections if the last check was ``SWEEP_SECONDS`` ago. Call it after each round of the loop."""
        now = time.monotonic()
        if now < self._next_sweep:
            return
        self._next_sweep = now + limits.SWEEP_SECONDS
        clients = [channel for channel in list(channels) if isinstance(channel, Channel)]
        self._close_stalled([channel for channel in clients if channel.total_outbufs_len], now)
        self._close_unfinished(clients, now)
        self._make_room(clients, now)
        return_memory_of_bodies()

    def _make_room(self, clients: list[Channel], now: float) -> None:
        if self._crowd is None:
            if not clients:
                return
            self._crowd = Crowd(clients[0].adj.connection_limit)
        leaving = self._crowd.leaving([one for client in clients if (one := client.unfinished) is not None], now)
        for one in leaving:
            one.connection.drop()
        if leaving:
            logger.info("%d connections whose clients do not get on are closed to make room for others", len(leaving))
        if self._crowd.is_there:
            self._next_sweep = now + limits.CROWDED_SWEEP_SECONDS

    def _close_stalled(self, clients: list[Channel], now: float) -> None:
        seen: dict[Channel, tuple[int, float]] = {}
        for channel in clients:
            sends, since = self._last_seen.get(channel, (-1, now))
            seen[channel] = (channel.sends, since if sends == channel.sends else now)
            if now - seen[channel][1] >= limits.STALLED_SECONDS:
                logger.info("A client that has stopped reading is disconnected")
                channel.handle_close()
        self._last_seen = seen

    def _close_unfinished(self, clients: list[Channel], now: float) -> None:
        heads: dict[Parser, float] = {}
        for channel in clients:
            head = channel.request
            if head is None or head.headers_finished or head.completed:
                continue
            heads[head] = self._heads.get(head, now)
            if now - heads[head] >= limits.HEAD_SECONDS:
                channel.handle_close()
        self._heads = heads
