"""How a connection waits: in slices, with one system call for each wait where that is possible."""

from __future__ import annotations

import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.utilities.http.connection import (
    SLICE_PASSED,
    SLICE_SECONDS,
    Connection,
    open_connection,
)
from Middleware.utilities.http.wire import Route, parse_target
from Tests.patience import PATIENCE
from Tests.stub_backend import StubBackend
from Tests.utilities.http.lab import certificate, tls_backend

__all__ = ["certificate", "tls_backend"]

# Many times a slice, for a machine that is busy.
SOON = PATIENCE


@pytest.fixture
def silent() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection, and its other end, which says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = open_connection(parse_target(f"http://127.0.0.1:{listener.getsockname()[1]}"), SOON, Route())
        far, _ = listener.accept()
        with far:
            yield connection, far
        connection.close()


def test_a_silent_read_ends_after_a_slice_and_loses_nothing(silent: tuple[Connection, socket.socket]) -> None:
    connection, far = silent
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(SLICE_PASSED):
            connection.receive(10)
    # The system counts in ticks of its clock, of at most 10 ms.
    assert 2 * SLICE_SECONDS - 0.05 < time.monotonic() - began < SOON
    far.sendall(b"late")
    assert connection.receive(10) == b"late"


def test_a_write_that_the_peer_does_not_take_ends_after_a_slice(silent: tuple[Connection, socket.socket]) -> None:
    connection, far = silent
    piece, sent, began = memoryview(bytes(1024 * 1024)), 0, time.monotonic()
    with pytest.raises(SLICE_PASSED):
        while True:
            sent += connection.send(piece, SOON)
    assert time.monotonic() - began < SOON
    while sent:
        sent -= len(far.recv(1024 * 1024))


@pytest.mark.skipif(sys.platform == "win32", reason="a socket is in an undefined state after such a timeout")
def test_a_plain_socket_waits_in_one_system_call(silent: tuple[Connection, socket.socket]) -> None:
    # With a timeout of its own, Python asks the system twice: whether there is something, and what it is.
    assert silent[0].sock.gettimeout() is None


def test_tls_waits_with_the_timeout_of_python(tls_backend: StubBackend, certificate: Path) -> None:
    route = Route(tls=ssl.create_default_context(cafile=str(certificate)))
    connection = open_connection(parse_target(tls_backend.url), SOON, route)
    try:
        assert connection.sock.gettimeout() == SLICE_SECONDS
        with pytest.raises(SLICE_PASSED):
            connection.receive(10)
    finally:
        connection.close()


def test_a_socket_with_methods_of_its_own_keeps_the_timeout_of_python() -> None:
    class Green(socket.socket):
        """Like Eventlet's, it waits in Python."""

        def recv(self, size: int, flags: int = 0) -> bytes:
            return super().recv(size, flags)

    with Green() as sock:
        Connection(sock, None).wait_in_slices()  # type: ignore[arg-type]
        assert sock.gettimeout() == SLICE_SECONDS
