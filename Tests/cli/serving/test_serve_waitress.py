"""Waitress as it is set up here, driven with clients that do not behave."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from waitress.adjustments import Adjustments
from waitress.buffers import OverflowableBuffer

from Middleware.api.edge.admission_middleware import AdmissionMiddleware
from Middleware.api.edge.body_budget import Body, BodyBudget
from Middleware.cli.serving import limits, serve_waitress
from Middleware.cli.serving.listening import bind_socket
from Middleware.cli.serving.serve_waitress import make_server
from Middleware.cli.serving.waitress_connections import Channel, Parser, SlowClients
from Middleware.models.process import Process, install, process
from Tests.api.front_dialects import openai_message
from Tests.patience import PATIENCE
from Tests.tables import table
from Tests.workflows.engine_lab import until

PIECE = b"x" * 65536


class Running:
    """A server and the thread that turns its loop. It listens on ``listener``, which is bound."""

    def __init__(self, application: Callable[..., Any], listener: socket.socket | None = None) -> None:
        listener = listener or bind_socket("127.0.0.1", 0)
        self.channels: dict[int, Any] = {}
        self.server = make_server(application, listener, self.channels)
        self.slow_clients = SlowClients()
        self.turns = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.clients: list[socket.socket] = []

    def _run(self) -> None:
        while not self._stopping:
            serve_waitress.loop_once(self.channels, 0.05)
            if self.server.draining:
                for channel in list(self.channels.values()):
                    if isinstance(channel, Channel):
                        channel.close_if_idle()
            self.slow_clients.sweep(self.channels.values())
            self.turns += 1

    def client(self, data: bytes = b"") -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(PATIENCE)
        sock.connect(("127.0.0.1", self.server.effective_port and int(self.server.effective_port)))
        sock.sendall(data)
        self.clients.append(sock)
        return sock

    def stop(self) -> None:
        """End the loop."""
        self._stopping = True
        self._thread.join(PATIENCE)

    def close(self) -> None:
        for sock in self.clients:
            sock.close()
        self.stop()
        serve_waitress.wasyncore.close_all(self.channels)
        self.server.task_dispatcher.shutdown()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[..., Any]], Running]]:
    monkeypatch.setattr(serve_waitress, "allowed_threads", lambda: 4)
    running: list[Running] = []

    def start(application: Callable[..., Any]) -> Running:
        running.append(Running(application))
        return running[-1]

    yield start
    for server in running:
        server.close()


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def crashing(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
    raise KeyError("a secret")


def test_a_crash_is_told_in_json(run: Callable[..., Running]) -> None:
    client = run(crashing).client(GET)
    answer = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ") and b"application/json" in head
    assert openai_message(json.loads(body), 500) and b"secret" not in body


def test_a_head_that_drips_is_given_up_and_a_slow_body_is_not(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.6)
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.1)

    def length(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [str(len(environ["wsgi.input"].read())).encode()]

    server = run(length)
    head = server.client(b"GET / HTTP/1.1\r\nX: ")
    body = server.client(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\nConnection: close\r\n\r\n")
    head.settimeout(0.1)
    given_up, sent = False, 0
    while not given_up and sent < 500:
        sent += body.send(b"x")
        with contextlib.suppress(TimeoutError):
            try:
                head.sendall(b"x")
                given_up = given_up or head.recv(100) == b""
            except ConnectionError:
                given_up = True
    assert given_up
    body.sendall(b"x" * (500 - sent))
    assert b"".join(iter(lambda: body.recv(4096), b"")).endswith(b"\r\n\r\n500")


def test_a_stalled_reader_frees_its_thread_and_a_slow_one_is_kept(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STALLED_SECONDS", 3.0)
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.1)
    closed: dict[str, float] = {}

    def endless(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        try:
            while True:
                yield PIECE
        finally:
            closed[environ["PATH_INFO"]] = time.monotonic()

    server = run(endless)
    started = time.monotonic()
    slow = server.client(GET.replace(b" / ", b" /slow "))
    server.client(GET.replace(b" / ", b" /stalled "))
    while "/stalled" not in closed and time.monotonic() - started < PATIENCE:
        slow.recv(1_000_000)
        time.sleep(0.01)
    assert closed["/stalled"] - started > 2.9
    assert "/slow" not in closed
    assert max(channel.total_outbufs_len for channel in server.server.active_channels.values()) < 3 * 1024 * 1024
    slow.close()
    assert until(lambda: "/slow" in closed)


def test_a_shortage_of_descriptors_is_waited_out(run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    failure: list[OSError] = [OSError(errno.EMFILE, "Too many open files")]
    accepts = []
    accept = serve_waitress.wasyncore.dispatcher.accept

    def refuse(self: Any) -> Any:
        accepts.append(1)
        if failure:
            raise failure[0]
        return accept(self)

    monkeypatch.setattr(serve_waitress.wasyncore.dispatcher, "accept", refuse)
    server = run(crashing)
    client = server.client(GET)
    turns, began = server.turns, time.monotonic()
    time.sleep(0.6)
    assert until(lambda: len(accepts) > 1)
    most = 1 + (time.monotonic() - began) / 0.6  # of what fits into 0.6 s
    assert len(accepts) < 10 * most and server.turns - turns < 50 * most
    failure.clear()
    assert client.recv(12) == b"HTTP/1.1 500"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\x05hello",
        b"GET\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1" + b"0" * 5000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["tls", "word", "digits", "both-framings"],
)
def test_what_cannot_be_read_gets_one_answer_and_the_end(run: Callable[..., Running], data: bytes) -> None:
    """Whatever follows is no request."""
    client = run(crashing).client(data + GET)
    answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.count(b"HTTP/1.") == 1 and b" 400 " in answer.splitlines()[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


# Waitress drops the socket, and the garbage collector closes it.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_connection_that_fails_while_it_is_taken_ends_alone(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some systems refuse to speak of a socket whose peer has gone already."""
    server = run(crashing)
    failing = [True]

    class Refused(Channel):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            if failing:
                failing.clear()
                raise OSError(errno.EINVAL, "Invalid argument")
            super().__init__(*arguments, **options)

    monkeypatch.setattr(server.server, "channel_class", Refused)
    assert server.client().recv(1) == b""
    assert server.client(GET).recv(12) == b"HTTP/1.1 500"


def test_an_answer_that_ends_while_it_is_written_is_followed_by_a_farewell(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing at once might cost the client the answer: it is still sending."""
    server = run(crashing).server
    near, far = socket.socketpair()
    with near, far:
        channel = Channel(server, near, ("127.0.0.1", 1), server.adj, map={})
        channel.received(b"nonsense\r\n\r\n")  # the server's threads write the answer
        far.settimeout(PATIENCE)
        assert far.recv(12) == b"HTTP/1.0 400"
        assert until(lambda: channel.close_when_flushed)
        channel.close_when_flushed = False

        def end_meanwhile(do_close: bool = True) -> None:
            channel.close_when_flushed = True

        monkeypatch.setattr(channel, "_flush_some_if_lockable", end_meanwhile)
        monkeypatch.setattr(channel, "requests", [object()])
        channel.handle_write()
        assert not channel.will_close
        channel.handle_write()
        assert b"error" in b"".join(iter(lambda: far.recv(4096), b""))
        assert channel.readable() and not channel.will_close


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_no_conversation_is_kept_in_a_temporary_file(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, framing: str
) -> None:
    files: list[Any] = []
    monkeypatch.setattr("waitress.buffers.TempfileBasedBuffer.newfile", lambda self: files.append(self))

    def echo(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        data = environ["wsgi.input"].read()
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(data)))])
        yield data

    body, length = PIECE * 64, b"Content-Length: %d" % (64 * len(PIECE))
    if framing == "chunks":
        body, length = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), b"Transfer-Encoding: chunked"
    client = run(echo).client(b"POST / HTTP/1.1\r\nConnection: close\r\n" + length + b"\r\n\r\n" + body)
    time.sleep(0.2)
    answer = b"".join(iter(lambda: client.recv(1_000_000), b""))
    assert len(answer.partition(b"\r\n\r\n")[2]) == 64 * len(PIECE)
    assert files == []


@pytest.mark.parametrize(
    ("headers", "body", "pieces"),
    [
        ([("Content-Length", "2")], [b"ab"], [b"\r\n\r\nab"]),
        ([], [b"a", b"b"], [b"\r\n\r\n1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n"]),
        ([("Content-Length", "1")], [b"ab"], [b"\r\n\r\n", b"a"]),
        ([("Content-Length", "3")], [b"a", b"bcd"], [b"\r\n\r\na", b"bc"]),
    ],
)
def test_a_head_is_sent_together_with_the_beginning_of_the_body(
    run: Callable[..., Running],
    monkeypatch: pytest.MonkeyPatch,
    headers: list[tuple[str, str]],
    body: list[bytes],
    pieces: list[bytes],
) -> None:
    written: list[bytes] = []
    write_soon = Channel.write_soon

    def note(channel: Channel, data: bytes) -> Any:
        written.append(bytes(data))
        return write_soon(channel, data)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", headers)
        return iter(body)

    monkeypatch.setattr(Channel, "write_soon", note)
    client = run(answer).client(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    received = b"".join(iter(lambda: client.recv(65536), b""))
    assert len(written) == len(pieces)
    assert all(data.endswith(end) for data, end in zip(written, pieces, strict=True))
    assert written[1:] == pieces[1:] and received == b"".join(written)


def test_a_piece_that_the_client_takes_needs_no_buffer_and_the_rest_keeps_its_order(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffered: list[int] = []
    append = OverflowableBuffer.append
    monkeypatch.setattr(
        OverflowableBuffer, "append", lambda self, data: (buffered.append(len(data)), append(self, data))[1]
    )
    pieces = [b"%07d\n" % number for number in range(100_000)]

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        body = pieces if environ["PATH_INFO"] == "/long" else pieces[:3]
        start_response("200 OK", [("Content-Length", str(sum(map(len, body))))])
        return body

    server = run(answer)
    close = b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    short = server.client(b"GET /short" + close)
    assert b"0000002" in b"".join(iter(lambda: short.recv(65536), b""))
    assert buffered == []
    long = server.client(b"GET /long" + close)
    # The client takes nothing until the buffers of the system are full.
    assert until(lambda: bool(buffered))
    body = b"".join(iter(lambda: long.recv(65536), b"")).partition(b"\r\n\r\n")[2]
    assert body == b"".join(pieces)


def test_a_connection_that_ends_just_before_a_piece_is_sent(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served: list[Channel] = []
    service = Channel.service

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"a"
        channel = next(iter(server.server.active_channels.values()))
        lock = channel.outbuf_lock
        acquire = lock.acquire

        def close_first(*arguments: Any) -> Any:
            lock.acquire = acquire
            channel.handle_close()
            return acquire(*arguments)

        lock.acquire = close_first
        yield b"b"

    def serve_and_note(channel: Channel) -> None:
        service(channel)
        served.append(channel)

    monkeypatch.setattr(Channel, "service", serve_and_note)
    server = run(answer)
    client = server.client(GET)
    assert b"".join(iter(lambda: client.recv(65536), b"")).endswith(b"1\r\na\r\n")
    assert until(lambda: bool(served)) and "Exception while serving" not in caplog.text


def test_a_connection_that_is_new_when_the_server_drains_may_send_its_request(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer says that the connection ends, and so it does. One that stays silent is closed, too."""

    def whole(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    monkeypatch.setattr(limits, "FIRST_REQUEST_SECONDS", 600)
    server = run(whole)
    new, silent, kept, old = server.client(), server.client(), server.client(GET), server.client(GET)
    for sock in (new, silent, kept, old):
        sock.settimeout(60)
    for sock in (kept, old):
        assert b"connection" not in sock.recv(4096).lower()
    assert until(lambda: len(server.channels) == 6, 60)
    old.sendall(GET[:10])
    assert until(lambda: any(getattr(channel, "request", None) for channel in list(server.channels.values())), 60)
    server.server.draining = True
    assert kept.recv(4096) == b""
    new.sendall(GET.replace(b"1.1", b"1.0").replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n"))
    old.sendall(GET[10:])
    for sock in (new, old):
        answer = read_whole(sock)
        assert answer.endswith(b"ok") and answer.lower().count(b"connection: ") == 1
        assert b"connection: close" in answer.lower()
    monkeypatch.setattr(limits, "FIRST_REQUEST_SECONDS", 0)
    assert silent.recv(4096) == b""


def read_whole(sock: socket.socket) -> bytes:
    data = b""
    while piece := sock.recv(4096):
        data += piece
    return data


def test_a_thread_that_is_late_may_wake_the_loop_after_its_end(run: Callable[..., Running]) -> None:
    running = run(crashing)
    assert running.client(GET).recv(12) == b"HTTP/1.1 500"
    running.stop()
    # As at the end of a server, which stops listening first.
    serve_waitress.wasyncore.dispatcher.close(running.server)
    serve_waitress.close_connections(running.server, running.channels)
    assert not running.channels
    running.server.pull_trigger()
    running.server.trigger.close()


@contextlib.contextmanager
def budget_of(limit: int) -> Iterator[None]:
    """A process whose bodies share ``limit`` bytes."""
    made = Process()
    made.put(BodyBudget, BodyBudget(limit))
    replaced = install(made)
    try:
        yield
    finally:
        install(replaced)


def echo_length(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    data = str(len(environ["wsgi.input"].read())).encode()
    start_response("200 OK", [("Content-Length", str(len(data)))])
    return [data]


LATE = b"POST /x HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "data",
    [
        LATE + b"Content-Length: 9000000\r\n\r\n" + PIECE * 20,
        LATE + b"Transfer-Encoding: chunked\r\n\r\nffffff\r\n" + PIECE * 20,
        LATE + b"Expect: 100-continue\r\nContent-Length: 9000000\r\n\r\n" + PIECE,
        LATE + b"A: b",
        b"",
        LATE + b"Content-Length: 3\r\n\r\nabc" + LATE + b"Content-Length: 9000000\r\n\r\n" + PIECE * 5,
    ],
    ids=["length", "chunks", "permission", "half a head", "nothing", "a second request"],
)
@pytest.mark.parametrize("ends", ["client", "server"])
def test_a_closed_connection_leaves_nothing_behind(run: Callable[..., Running], data: bytes, ends: str) -> None:
    """Not even until the garbage collector runs: bodies are large."""
    running = run(AdmissionMiddleware(echo_length))
    with budget_of(1 << 30):
        gc.collect()
        gc.disable()
        try:
            client = running.client()
            assert until(lambda: any(isinstance(channel, Channel) for channel in running.channels.values()))
            [channel] = [weakref.ref(one) for one in running.channels.values() if isinstance(one, Channel)]
            client.settimeout(1.0)
            with contextlib.suppress(OSError):
                client.sendall(data)
            turns = running.turns
            assert until(lambda: running.turns > turns + 3)
            found = channel()
            parser = found.request and weakref.ref(found.request)  # type: ignore[union-attr]
            assert (parser is not None) == (data != b"")
            if ends == "client":
                client.close()
            else:
                found.will_close = True  # type: ignore[union-attr]
                running.server.pull_trigger()
            del found
            assert until(lambda: channel() is None and (parser is None or parser() is None))
            assert process().one(BodyBudget)._held == 0
        finally:
            gc.enable()


@table(
    ("sent", "status"),
    [
        (b"Content-Length: 5\r\n\r\nabcde", b"200"),
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\nA: b\r\n\r\n", b"200"),
        # A line of a chunk, and trailers, of which Waitress keeps what has come.
        (b"Transfer-Encoding: chunked\r\n\r\n5;a=" + PIECE * 4, b"400"),
        (b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 200_000, b"400"),
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n" + b"A: b\r\n" * 40_000, b"400"),
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\nA: " + PIECE * 4, b"400"),
    ],
)
def test_the_framing_of_a_body_has_an_end(run: Callable[..., Running], sent: bytes, status: bytes) -> None:
    client = run(AdmissionMiddleware(echo_length)).client()
    client.settimeout(PATIENCE)
    with contextlib.suppress(OSError):
        client.sendall(LATE + b"Connection: close\r\n" + sent)
    assert read_whole(client).split(b" ")[1] == status


def test_what_ends_for_want_of_room_is_answered_in_its_order(run: Callable[..., Running]) -> None:
    """A body behind a request that runs gets its answer after that one, and the connection ends."""
    begun, go_on = threading.Event(), threading.Event()

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        begun.set()
        assert go_on.wait(60)
        return echo_length(environ, start_response)

    running = run(AdmissionMiddleware(application))
    with budget_of(100_000):
        client = running.client(
            LATE + b"Content-Length: 3\r\n\r\nabc" + LATE + b"Content-Length: 900000\r\n\r\n" + PIECE
        )
        client.settimeout(60)
        assert begun.wait(60)
        other = running.client(LATE + b"Content-Length: 900000\r\n\r\n" + PIECE[:50_000])
        assert until(lambda: process().one(BodyBudget)._held <= 50_000)
        go_on.set()
        data = read_whole(client)
        assert data.count(b"HTTP/1.1 ") == 2 and b" 503 Service" in data and b"Retry-After" in data
        assert data.index(b" 200 OK") < data.index(b" 503 ")
        other.close()


def test_a_body_that_has_become_whole_ends_no_other_request(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget may choose a body on one thread while it becomes whole on another, and the next head begins."""
    ends, begin = list[Callable[[], None]](), BodyBudget.begin

    def noted(budget: BodyBudget, end: Callable[[], None]) -> Body | None:
        ends.append(end)
        return begin(budget, end)

    monkeypatch.setattr(BodyBudget, "begin", noted)
    running = run(AdmissionMiddleware(echo_length))
    client = running.client(LATE + b"Content-Length: 3\r\n\r\nabc" + LATE)
    client.settimeout(60)
    assert client.recv(5) == b"HTTP/"
    channels = [one for one in running.channels.values() if isinstance(one, Channel)]
    assert until(lambda: channels[0].request is not None)
    ends[0]()
    client.sendall(b"Connection: close\r\nContent-Length: 2\r\n\r\nab")
    assert read_whole(client).count(b"1.1 200 OK") == 2


@table(
    ("first", "rest"),
    [
        (b"Content-Length: 9\r\n\r\nabc", b"defghi"),
        (b"Transfer-Encoding: chunked\r\n\r\n9\r\nabc", b"defghi\r\n0\r\n\r\n"),
        # The next one has begun.
        (b"Content-Length: 9\r\n\r\nabc", b"defghi" + LATE),
    ],
)
def test_a_whole_body_has_left_before_its_request_is_at_work(
    run: Callable[..., Running], first: bytes, rest: bytes
) -> None:
    """The request may come to the gate at once, where its body is counted: with both, others would have to go."""
    held, running = list[int](), run(AdmissionMiddleware(echo_length))
    add_task = running.server.add_task

    def noted(channel: Channel) -> None:
        held.append(process().one(BodyBudget)._held)
        add_task(channel)

    running.server.add_task = noted
    with budget_of(100):
        client = running.client(LATE + first)
        client.settimeout(60)
        assert until(lambda: process().one(BodyBudget)._held > 0)
        client.sendall(rest)
        assert client.recv(12) == b"HTTP/1.1 200"
    assert held == [0]


def test_a_body_that_is_given_up_while_its_connection_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that gives it up takes it between two looks of the one that closes, which serves all others, too."""
    ours, client = socket.socketpair()
    server = SimpleNamespace(active_channels={}, is_unwelcome=None)
    channel = Channel(server, ours, ("127.0.0.1", 1), Adjustments(), {})
    channel.received(LATE + b"Content-Length: 9\r\n\r\na")
    parser = channel.request
    assert parser is not None and parser.body_rcv is not None

    def taken(channel: Channel) -> Parser | None:
        return channel.__dict__.pop("request", None)

    monkeypatch.setattr(Channel, "request", property(taken), raising=False)
    channel.handle_close()
    assert parser.body_rcv is None
    client.close()


@table("blank", [b"\r\n", b"\r\n\r\n", b"\n\n", b" \r\n\r\n", b"\r\n" * 40_000])
def test_blank_lines_give_a_head_no_more_time(blank: bytes) -> None:
    """The time is that of a parser, so these must neither end one nor become a part of its head."""
    parser = Parser(Adjustments(), lambda: None)
    for _ in range(3):
        assert parser.received(blank) == len(blank) and not parser.completed
    assert parser.received(blank + GET + b"GET") == len(blank + GET)
    assert parser.completed and not parser.empty and parser.error is None and parser.path == "/"


def test_no_others_must_go_for_those_that_have_their_answer(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay for a while, so that their clients can read it."""
    shorter = {"CONNECTIONS": 20, "CONNECTIONS_WITH_SELECT": 20, "CROWDED_GRACE_SECONDS": 0.3}
    for name, value in {**shorter, "SWEEP_SECONDS": 0.05, "CROWDED_SWEEP_SECONDS": 0.05}.items():
        monkeypatch.setattr(limits, name, value)
    running = run(AdmissionMiddleware(echo_length))
    clients = [running.client(LATE + b"Content-Length: 9\r\n\r\na") for _ in range(12)]

    def answered() -> list[socket.socket]:
        return select.select(clients, [], [], 0)[0]

    assert until(lambda: len(answered()) >= 3)
    assert until(lambda: sum(isinstance(one, Channel) for one in list(running.channels.values())) <= 9)
    assert len(answered()) == 3
    assert all(client.recv(12) == b"HTTP/1.1 503" for client in answered())
