"""Where connections wait until the head of their request is there, so that silent clients cost no thread."""
from __future__ import annotations

import logging
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from Middleware.cli.serving import limits
from Middleware.cli.serving.json_errors import TLS_RECORD
from Middleware.cli.serving.shortage import Shortage

logger = logging.getLogger(__name__)

PIECE_BYTES = 65536
ACCEPTS = 100  # in one go, before those who are here are looked at again
ROOM = 400 if sys.platform == "win32" else 1_000_000  # select() ends at 512 sockets on Windows

Admit = Callable[[socket.socket, Any, bytes], None]


def head_is_complete(data: bytes | bytearray, start: int = 0) -> bool:
    """Whether the blank line after the headers is there; ``start``: how many bytes were searched before."""
    start = max(start - 3, 0)
    return data.find(b"\n\r\n", start) >= 0 or data.find(b"\n\n", start) >= 0


@dataclass(eq=False)
class _Guest:
    sock: socket.socket
    address: object
    came: float  # monotonic
    heard: float
    data: bytearray = field(default_factory=bytearray)

    def is_late(self, now: float) -> bool:
        return now - self.heard > limits.IDLE_SECONDS or now - self.came > limits.HEAD_SECONDS


class Lobby:
    """Accepts connections and reads the heads of their requests, all on one thread.

    Args:
        listener: the listening socket.
        admit: takes a connection (blocking), its peer's address and the bytes read so far: a whole head and perhaps
            more, or what can be refused already. Must not wait.
    """

    def __init__(self, listener: socket.socket, admit: Admit) -> None:
        self._listener = listener
        self._admit = admit
        self._guests: set[_Guest] = set()
        self._selector = selectors.DefaultSelector()
        self._shortage = Shortage()
        self._stopping = False
        self._ended = threading.Event()

    def run(self, interval: float) -> None:
        """Work until ``stop`` is called, which is noticed within ``interval`` seconds."""
        swept = time.monotonic()
        try:
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ)
            while not self._stopping:
                for key, _ in self._selector.select(interval):
                    if key.data is None:
                        self._open_the_door()
                    else:
                        self._hear(key.data)
                if time.monotonic() - swept > limits.SWEEP_SECONDS:
                    swept = time.monotonic()
                    self._sweep(swept)
        finally:
            for guest in list(self._guests):
                self._turn_out(guest)
            self._selector.close()
            self._ended.set()

    def stop(self) -> None:
        """End ``run`` and wait for its end; whoever is here is turned out."""
        self._stopping = True
        self._ended.wait()

    def _open_the_door(self) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, address = self._listener.accept()
            except OSError as error:  # nobody is left, or the peer has gone again
                if self._shortage.begins(error):
                    time.sleep(limits.SHORTAGE_SECONDS)  # the listener stays readable
                return
            self._shortage.ends()
            now = time.monotonic()
            guest = _Guest(sock, address, now, now)
            if len(self._guests) >= ROOM:
                self._let_in(guest)
                continue
            sock.setblocking(False)
            self._guests.add(guest)
            self._selector.register(sock, selectors.EVENT_READ, guest)

    def _hear(self, guest: _Guest) -> None:
        try:
            piece = guest.sock.recv(PIECE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            piece = b""
        if not piece:  # gone before the request was complete
            self._turn_out(guest)
            return
        guest.heard = time.monotonic()
        if not guest.data:
            piece = piece.lstrip(b"\r\n")  # empty lines before a request mean nothing
        guest.data += piece
        if (head_is_complete(guest.data, len(guest.data) - len(piece)) or len(guest.data) >= limits.HEAD_BYTES
                or guest.data.startswith(TLS_RECORD)):
            self._forget(guest)
            self._let_in(guest)

    def _let_in(self, guest: _Guest) -> None:
        guest.sock.setblocking(True)
        self._admit(guest.sock, guest.address, bytes(guest.data))

    def _sweep(self, now: float) -> None:
        for guest in [guest for guest in self._guests if guest.is_late(now)]:
            self._turn_out(guest)

    def _forget(self, guest: _Guest) -> None:
        self._guests.discard(guest)
        self._selector.unregister(guest.sock)

    def _turn_out(self, guest: _Guest) -> None:
        self._forget(guest)
        guest.sock.close()
