"""Where connections wait for the head of their request."""
from __future__ import annotations

import errno
import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from Middleware.cli.serving import limits, lobby
from Middleware.cli.serving.lobby import Lobby, head_is_complete

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Listener:
    """The listening socket; its ``accept`` raises ``failure`` while that is set."""

    def __init__(self) -> None:
        self._sock = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.failure: OSError | None = None
        self.accepts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def accept(self) -> Any:
        self.accepts += 1
        if self.failure is not None:
            raise self.failure
        return self._sock.accept()


class Room:
    """A lobby at work, and who was let in."""

    def __init__(self) -> None:
        self.listener = Listener()
        self.admitted: queue.Queue[tuple[socket.socket, bytes]] = queue.Queue()
        self.lobby = Lobby(self.listener, lambda sock, _, head: self.admitted.put((sock, head)))  # type: ignore[arg-type]
        self.thread = threading.Thread(target=self.lobby.run, args=(0.02,), daemon=True)
        self.thread.start()
        self.clients: list[socket.socket] = []

    def client(self, data: bytes = b"") -> socket.socket:
        sock = socket.create_connection(self.listener.getsockname(), timeout=3)
        self.clients.append(sock)
        sock.sendall(data)
        return sock

    def next(self) -> tuple[socket.socket, bytes]:
        return self.admitted.get(timeout=2)

    def close(self) -> None:
        self.lobby.stop()
        self.thread.join(2)
        for sock in self.clients:
            sock.close()
        while not self.admitted.empty():
            self.admitted.get()[0].close()
        self.listener.close()


@pytest.fixture
def room() -> Iterator[Room]:
    found = Room()
    yield found
    found.close()


@pytest.mark.parametrize("pieces", [[HEAD], [HEAD[:5], HEAD[5:]], [HEAD[:-1], HEAD[-1:]], [HEAD[:-3], HEAD[-3:] + b"x"],
                                    [b"GET /\n", b"\n"], [b"\x16\x03\x01"]],
                         ids=["whole", "halves", "last-byte", "more", "bare-lines", "tls"])
def test_a_head_is_waited_for_and_handed_over_whole(room: Room, pieces: list[bytes]) -> None:
    client = room.client()
    for piece in pieces:
        assert room.admitted.empty()
        client.sendall(piece)
        time.sleep(0.06)
    sock, head = room.next()
    assert head == b"".join(pieces)
    assert sock.gettimeout() is None  # it blocks


def test_a_head_that_is_too_large_is_handed_over_for_its_answer(room: Room) -> None:
    room.client(b"GET / HTTP/1.1\r\nX: " + b"x" * limits.HEAD_BYTES)
    assert len(room.next()[1]) >= limits.HEAD_BYTES


def test_those_who_leave_before_are_never_let_in(room: Room) -> None:
    for data in (b"", HEAD[:7]):
        room.client(data).close()
    room.client(HEAD)
    assert room.next()[1] == HEAD
    time.sleep(0.05)
    assert room.admitted.empty() and not room.lobby._guests


@pytest.mark.parametrize("limit", ["IDLE_SECONDS", "HEAD_SECONDS"])
def test_the_patience_ends(room: Room, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of silence, and of a head that comes byte by byte."""
    monkeypatch.setattr(limits, limit, 0.4)
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.02)
    client, started = room.client(), time.monotonic()
    client.settimeout(0.1)
    while time.monotonic() - started < 3:
        try:
            if limit == "HEAD_SECONDS":
                client.sendall(b"G")
            if not client.recv(1):
                break
        except TimeoutError:
            continue
        except ConnectionError:
            break
    assert 0.3 < time.monotonic() - started < 2


def test_a_full_lobby_lets_in_at_once(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lobby, "ROOM", 1)
    room.client(b"G")
    time.sleep(0.06)
    room.client()
    assert room.next()[1] == b""


def test_a_shortage_of_descriptors_is_waited_out(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SHORTAGE_SECONDS", 0.05)
    room.listener.failure = OSError(errno.EMFILE, "Too many open files")
    room.client(HEAD)
    time.sleep(0.4)
    assert 1 < room.listener.accepts < 20
    room.listener.failure = None
    assert room.next()[1] == HEAD


def test_the_end_turns_out_who_waits(room: Room) -> None:
    client = room.client(b"GET")
    time.sleep(0.06)
    room.lobby.stop()
    assert client.recv(1) == b""


def test_the_end_of_one_that_never_worked_is_no_wait() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.close()
    closed = Lobby(listener, lambda *_: None)
    with pytest.raises((OSError, ValueError)):
        closed.run(0.02)
    stopper = threading.Thread(target=closed.stop, daemon=True)
    stopper.start()
    stopper.join(2)
    assert not stopper.is_alive()


@pytest.mark.parametrize(("data", "start", "complete"), [
    (HEAD, 0, True), (HEAD[:-1], 0, False), (HEAD, len(HEAD) - 1, True), (b"a\n\n", 2, True), (b"\r\n", 0, False)])
def test_the_end_of_a_head(data: bytes, start: int, complete: bool) -> None:
    assert head_is_complete(data, start) is complete
