"""The server with a thread per connection, driven with clients that do not behave."""
from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from Middleware.cli.serving import limits, serve_threaded

PIECE = b"x" * 65536
PIECES = 1000  # more than the buffers of any system take


class Answer:
    """A WSGI body that tells when it was closed; ``pieces`` may raise."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    def close(self) -> None:
        self.closed.set()


class Application:
    """Takes the body of a request, then sends ``answer``."""

    def __init__(self, pieces: Callable[[], Iterable[bytes]]) -> None:
        self.answer = Answer(pieces())
        self.body = b""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Answer:
        self.body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response("200 OK", [("Content-Type", "text/plain")])
        return self.answer


@pytest.fixture
def connect() -> Iterator[Callable[[Application], socket.socket]]:
    """Serve an application, and connect to it."""
    servers, clients = [], []

    def begin(application: Application) -> socket.socket:
        server = serve_threaded._Server("127.0.0.1", 0, application, serve_threaded.RequestHandler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
        client = socket.create_connection(("127.0.0.1", server.port), timeout=5)
        clients.append(client)
        return client

    yield begin
    for client in clients:
        client.close()
    for server in servers:
        server.shutdown()
        server.server_close()


def request(size: int = 0) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALLED_SECONDS", 1)


@pytest.mark.usefixtures("impatient")
def test_a_client_that_stops_reading_counts_as_gone(connect: Callable[[Application], socket.socket],
                                                    caplog: pytest.LogCaptureFixture) -> None:
    application = Application(lambda: (PIECE for _ in range(PIECES)))
    threads = threading.active_count() + 1  # that of the server
    client = connect(application)
    client.sendall(request())
    assert client.recv(12) == b"HTTP/1.1 200"
    assert not application.answer.closed.wait(0.5)
    assert application.answer.closed.wait(8)  # buffers that grow meanwhile take something now and then
    deadline = time.monotonic() + 0.5  # what is left to send is not tried again
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= threads
    assert caplog.records == []


@pytest.mark.usefixtures("impatient")
def test_a_slow_reader_gets_everything(connect: Callable[[Application], socket.socket]) -> None:
    """Whoever takes something within the time is there, however long the whole takes."""
    application = Application(lambda: [PIECE * PIECES])
    client = connect(application)
    client.sendall(request())
    data = 0
    for _ in range(4):
        time.sleep(0.6)
        goal = data + len(PIECE) * PIECES // 5
        while data < goal:
            data += len(client.recv(65536))
    while piece := client.recv(65536):
        data += len(piece)
    assert data > len(PIECE) * PIECES


@pytest.mark.usefixtures("impatient")
def test_a_slow_upload_and_a_long_silence_before_the_answer_are_fine(
        connect: Callable[[Application], socket.socket]) -> None:
    def late() -> Iterator[bytes]:
        time.sleep(1.3)
        yield b"late"

    application = Application(late)
    client = connect(application)
    client.sendall(request(4))
    for letter in (b"ab", b"cd"):
        time.sleep(1.3)
        client.sendall(letter)
    assert b"late" in b"".join(iter(lambda: client.recv(4096), b""))
    assert application.body == b"abcd"


def broken() -> Iterator[bytes]:
    time.sleep(0.2)
    raise ConnectionError
    yield b""


@pytest.mark.parametrize("pieces", [lambda: [b"ok"], broken], ids=["answers", "fails-before-its-answer"])
def test_bytes_after_the_request_do_not_keep_an_answer_from_its_end(
        connect: Callable[[Application], socket.socket], pieces: Callable[[], Iterable[bytes]]) -> None:
    application = Application(lambda: pieces())
    client = connect(application)
    client.sendall(request(4) + b"abc")
    time.sleep(0.1)
    client.sendall(b"d" + b"late" * 5000)
    assert application.answer.closed.wait(2)
    assert (b"ok" in b"".join(iter(lambda: client.recv(4096), b""))) is (pieces is not broken)


# -- what an answer looks like on the wire -----------------------------------------------------------------------------

PLAIN = [("Content-Type", "text/plain")]
Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def plain(*pieces: bytes, status: str = "200 OK", headers: tuple[tuple[str, str], ...] = ()) -> Wsgi:
    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response(status, [*PLAIN, *headers])
        return list(pieces)
    return application


def never_starts(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    return [b"x"]


def raises(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    raise ValueError("a secret")


def breaks_off(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", PLAIN)
    yield b"one"
    raise ValueError("a secret")


def writes(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", PLAIN)(b"one")
    return [b"", b"two"]


def changes_its_mind(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", PLAIN)
    try:
        raise KeyError
    except KeyError:
        start_response("418 Teapot", PLAIN, sys.exc_info())
    return [b"tea"]


def too_late(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", PLAIN)(b"one")
    try:
        raise KeyError
    except KeyError:
        start_response("418 Teapot", PLAIN, sys.exc_info())
    return [b"never"]


def starts_late(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", PLAIN)
    yield b"one"


def takes_body(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", PLAIN)
    return [environ["wsgi.input"].read(2)]


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = GET.replace(b"GET", b"HEAD")
OLD = b"GET / HTTP/1.0\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
LENGTH = (("Content-Length", "2"),)
END = b"0\r\n\r\n"


@pytest.mark.parametrize(("application", "data", "status", "body"), [
    (plain(b"ok", headers=LENGTH), GET, 200, b"ok"),
    (plain(b"o", b"", b"k"), GET, 200, b"1\r\no\r\n1\r\nk\r\n" + END),
    (plain(), GET, 200, END),
    (plain(b"o", b"k"), OLD, 200, b"ok"),
    (plain(b"ok"), HEAD, 200, b""),
    (plain(b"ok", headers=LENGTH), HEAD, 200, b""),
    (plain(status="204 No Content"), GET, 204, b""),
    (plain(b"ok", status="304 Not Modified"), GET, 304, b""),
    (starts_late, GET, 200, b"3\r\none\r\n" + END),
    (writes, GET, 200, b"3\r\none\r\n3\r\ntwo\r\n" + END),
    (changes_its_mind, GET, 418, b"3\r\ntea\r\n" + END),
    (too_late, GET, 200, b"3\r\none\r\n"),
    (breaks_off, GET, 200, b"3\r\none\r\n"),
    (takes_body, CHUNKED, 200, b"2\r\nok\r\n" + END),
    (plain(b"ok", headers=LENGTH), b"\r\n\r\n" + GET, 200, b"ok"),
], ids=["length", "chunks", "nothing", "http10", "head", "head-length", "204", "304", "late", "write", "mind",
        "too-late", "broken-off", "chunked-body", "empty-lines-before"])
def test_the_framing_of_an_answer(connect: Callable[..., socket.socket], application: Wsgi, data: bytes, status: int,
                                  body: bytes) -> None:
    client = connect(application)
    client.sendall(data)
    head, _, rest = b"".join(iter(lambda: client.recv(4096), b"")).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status and rest == body
    assert b"connection: close" in head.lower()
    assert (b"transfer-encoding" in head.lower()) is body.endswith((END, b"one\r\n"))


@pytest.mark.parametrize("application", [never_starts, raises])
def test_a_failure_before_the_answer_is_told_in_json(connect: Callable[..., socket.socket], application: Wsgi) -> None:
    client = connect(application)
    client.sendall(GET)
    head, _, body = b"".join(iter(lambda: client.recv(4096), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ") and json.loads(body)["error"]["code"] == 500 and b"secret" not in body


ASKS = request(2).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")


@pytest.mark.parametrize(("application", "data", "permitted"), [
    (takes_body, ASKS, True), (plain(b"no"), ASKS, False), (takes_body, ASKS + b"ok", False),
    (takes_body, ASKS.replace(b"HTTP/1.1", b"HTTP/1.0"), False),
    (takes_body, ASKS.replace(b"Host: x", b"Content-Length: x"), False)],
    ids=["wanted", "refused", "there-already", "http10", "unreadable"])
def test_permission_to_send_the_body_is_given_when_it_is_wanted(connect: Callable[..., socket.socket],
                                                                application: Wsgi, data: bytes,
                                                                permitted: bool) -> None:
    client = connect(application)
    client.sendall(data)
    time.sleep(0.1)
    if not data.endswith(b"ok") and application is takes_body:
        client.sendall(b"ok")
    answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200") is permitted
    assert answer.count(b"HTTP/1.1 ") == 1 + permitted
