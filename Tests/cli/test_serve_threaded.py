"""The server with a thread per connection, driven with clients that do not behave."""
from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from Middleware.cli import serve_threaded

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
    monkeypatch.setattr(serve_threaded, "SEND_SECONDS", 1)


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
