"""What clients may do to a server, as data: the bytes they send, on how many connections, and what they may read."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from Tests.integration.gate_cases import CHAT

MEGABYTE = 1024 * 1024
LINGER = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
PIECE = 65536
ANSWER_SECONDS = 60.0

START = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n".encode()
Pieces = Callable[[], Iterable[bytes]]


@dataclass(frozen=True)
class Fault:
    """One thing that a client does.

    Attributes:
        pieces: what it sends; it stops sending when the server closes.
        statuses: what the first answer's status may be; empty: there is no answer, the server waits for more.
        count: on how many connections at a time.
        pause: seconds the client waits between pieces.
    """

    name: str
    pieces: Pieces
    statuses: tuple[int, ...] = ()
    count: int = 1
    pause: float = 0.0


def raw(data: bytes) -> Pieces:
    return lambda: [data]


def body(data: bytes, *headers: str) -> Pieces:
    """A POST with that body and its right length."""
    lines = "".join(f"{line}\r\n" for line in (*headers, f"Content-Length: {len(data)}"))
    return lambda: [START + lines.encode() + b"\r\n", data]


def head(*headers: str, path: bytes = b"", rest: bytes = b"") -> Pieces:
    """A POST (or a GET of ``path``) with these headers; ``rest`` follows."""
    start = b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n" if path else START
    lines = "".join(f"{line}\r\n" for line in headers)
    return lambda: [start + lines.encode("latin-1") + b"\r\n" + rest]


def chat(text: str) -> bytes:
    return json.dumps({"model": "Single", "messages": [{"role": "user", "content": text}]}).encode()


def endless_headers() -> Iterator[bytes]:
    yield START
    for number in range(2000):
        yield b"".join(b"X-%d-%d: %s\r\n" % (number, line, b"v" * 80) for line in range(100))


def with_permission(data: bytes) -> Pieces:
    """A body that waits for ``100 Continue``, or not very long for it."""
    return lambda: [START + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(data), data]


SMALL = chat("hello")
HEAD_TOO_LARGE = (400, 431)
BAD = (400,)
HELLO_TLS = bytes.fromhex("16030100c8010000c40303") + bytes(range(200))

FAULTS = (
    Fault("half a head", raw(START + b"Content-Ty"), count=20),
    Fault("half a body", head("Content-Length: 1000", rest=b'{"mess'), count=20),
    Fault("500 idle connections", raw(b""), count=500),
    Fault("500 half heads", raw(START), count=500),
    Fault("a header of 1 MB", head("X-Big: " + "v" * MEGABYTE), HEAD_TOO_LARGE),
    Fault("a header of 60 KB", head("X-Big: " + "v" * 60_000, path=b"/health"), (200,)),
    Fault("a query of 60 KB", head(path=b"/health?" + b"q" * 60_000), (200,)),
    Fault("10,000 headers", head(*(f"X-{number}: v" for number in range(10_000))), HEAD_TOO_LARGE),
    Fault("endless headers", endless_headers, HEAD_TOO_LARGE),
    Fault("a path of 1 MB", head(path=b"/" + b"p" * MEGABYTE), (400, 414, 431)),
    Fault("10 MB in one message", body(chat('some words and "quotes" ' * (10 * MEGABYTE // 24))), (200,)),
    Fault("10 MB of garbage", body(b"\xf0garbage" * (10 * MEGABYTE // 8)), BAD),
    Fault("10 MB of white space", body(b" " * 10 * MEGABYTE), BAD),
    Fault("bytes that are no UTF-8", body(SMALL.replace(b"hello", b"h\xc3\x28\xff")), BAD),
    Fault("a path that is no UTF-8", head(path=b"/v1/\xc3\x28\xff%ff%c3"), (400, 404)),
    Fault(
        "a header that is no UTF-8", head("X-Name: \xc3\x28\xff", "Authorization: Bearer \xff", path=b"/health"), (200,)
    ),
    Fault("a NUL in a header", head("X-Name: a\0b", path=b"/health"), (200, 400)),
    Fault("100,000 brackets", body(b"[" * 100_000), BAD),
    Fault(
        "100,000 braces in a message", body(SMALL.replace(b'"hello"', b'{"a":' * 100_000 + b"1" + b"}" * 100_000)), BAD
    ),
    Fault("a number of 100,000 digits", body(SMALL.replace(b'"hello"', b"9" * 100_000)), BAD),
    Fault("waits for permission", with_permission(SMALL), (200,), pause=0.1),
    Fault("a negative length", head("Content-Length: -5", rest=SMALL), BAD),
    Fault("a length that is no number", head("Content-Length: 0x10", rest=SMALL), BAD),
    Fault("a huge length", head("Content-Length: 1" + "0" * 30, rest=SMALL), (400, 413)),
    Fault("a length of 5000 digits", head("Content-Length: 1" + "0" * 5000, rest=SMALL), (400, 413)),
    Fault("two lengths", head(f"Content-Length: {len(SMALL)}", "Content-Length: 7", rest=SMALL), BAD),
    Fault("length and chunks", head("Content-Length: 7", "Transfer-Encoding: chunked", rest=b"0\r\n\r\n"), BAD),
    Fault("an unknown coding", head("Transfer-Encoding: gzip, chunked", rest=b"0\r\n\r\n"), (400, 501)),
    Fault("a chunk size that is none", head("Transfer-Encoding: chunked", rest=b"zz\r\n{}\r\n0\r\n\r\n"), BAD),
    Fault("a chunk without its end", head("Transfer-Encoding: chunked", rest=b"2\r\n{}xx0\r\n\r\n"), BAD),
    Fault("a negative chunk", head("Transfer-Encoding: chunked", rest=b"-2\r\n{}\r\n0\r\n\r\n"), BAD),
    Fault("a header without a colon", head("nonsense", path=b"/health"), (200, 400)),
    Fault("HTTP/0.9", raw(b"GET /health\r\n\r\n"), (200, 400)),
    Fault("HTTP/3.7", raw(b"GET /health HTTP/3.7\r\nHost: x\r\n\r\n"), (200, 400, 505)),
    Fault("one word", raw(b"hello\r\n\r\n"), BAD),
    Fault("a method of its own", raw(b"BREW /health HTTP/1.1\r\nHost: x\r\n\r\n"), (405, 501)),
    Fault("TLS", raw(HELLO_TLS), BAD),
)


@dataclass(frozen=True)
class Heard:
    """The first final answer on a connection; status 0: the connection was closed, or is still open, without one."""

    status: int
    head: bytes = b""
    body: bytes = b""


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)


def send(sock: socket.socket, fault: Fault) -> None:
    """Send what the fault has to send, as far as the server takes it; says nothing if the server closes."""
    try:
        for number, piece in enumerate(fault.pieces()):
            if number and fault.pause:
                select.select([sock], [], [], fault.pause)
            sock.sendall(piece)
    except OSError:
        pass


def listen(sock: socket.socket) -> Heard:
    """Read the answer to its end: its declared length, or the end of the connection."""
    data = b""
    try:
        while not _complete(data) and (piece := sock.recv(PIECE)):
            data += piece
    except ConnectionError:
        pass
    return _heard(data)


def reset(sock: socket.socket) -> None:
    """Leave without a farewell."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
    sock.close()


def _heard(data: bytes) -> Heard:
    top, _, rest = _final(data).partition(b"\r\n\r\n")
    words = top.split(b" ", 2)
    status = int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") else 0
    return Heard(status, top, rest) if status else Heard(0, b"", data)


def _final(data: bytes) -> bytes:
    """Without the interim answer that gives the permission to go on."""
    return data.partition(b"\r\n\r\n")[2] if data.startswith(b"HTTP/1.1 100 ") else data


def _complete(data: bytes) -> bool:
    top, end, rest = _final(data).partition(b"\r\n\r\n")
    for line in top.lower().split(b"\r\n"):
        if end and line.startswith(b"content-length:"):
            return len(rest) >= int(line.partition(b":")[2])
    return False
