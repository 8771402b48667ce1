"""Waitress asks about a request when its head is there, and reads no body of one that will be refused.

So the admission is asked twice: about the head, and about the request. Every request here is sent over a real socket,
its peer's address replaced, and both answers are compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.edge.access_keys import AccessKeys
from Middleware.api.edge.admission_middleware import AdmissionMiddleware
from Middleware.cli.program import StartError
from Middleware.cli.serving import serve_waitress
from Middleware.cli.serving.listening import bind_socket
from Tests.amounts import amount
from Tests.cli.serving.test_serve_waitress import Running
from Tests.patience import PATIENCE

KEY = "the-key-of-everyone"
CHAT = "/v1/chat/completions"
PAGE = "https://chat.example.com"
BODY = b'{"messages": []}'
PUBLIC = ("8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "")
PEERS = (
    "127.0.0.1",
    "::1",
    "::ffff:127.0.0.1",
    "10.1.2.3",
    "192.168.1.5",
    "fd00::1",
    "fe80::1%eth0",
    "::ffff:192.168.1.5",
    "100.64.0.1",
    *PUBLIC,
)
FORWARDED: tuple[dict[str, str], ...] = (
    {},
    {"X-Forwarded-For": "192.168.1.5"},
    {"X-Forwarded-For": "8.8.8.8"},
    {"X-Forwarded-For": "10.0.0.1, 8.8.8.8"},
    {"Forwarded": 'for="[2001:db8::1]:4711"'},
    {"Forwarded": "for=10.0.0.1"},
    {"X-Real-IP": "8.8.8.8"},
    {"X-Real-IP": ""},
    {"Via": "1.1 proxy"},
)
KEYS: tuple[dict[str, str], ...] = (
    {},
    {"Authorization": f"Bearer {KEY}"},
    {"Authorization": "Bearer wrong"},
    {"X-Api-Key": KEY},
)
BROWSERS: tuple[dict[str, str], ...] = (
    {},
    {"Origin": "http://localhost:3000"},
    {"Origin": PAGE},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-origin"},
    {"User-Agent": "Mozilla/5.0"},
    {"Origin": "http://localhost", "Access-Control-Request-Method": "POST"},
)
CONTENT: tuple[dict[str, str], ...] = ({"Content-Type": "application/json"}, {"Content-Type": "text/plain"}, {})
REQUESTS = (
    ("POST", CHAT),
    ("POST", "/v1/messages"),
    ("POST", f"http://127.0.0.1{CHAT}?a=b"),
    ("GET", "/health"),
    ("GET", "//health"),
    ("GET", "/v1/models"),
    ("OPTIONS", CHAT),
    ("DELETE", "/api/chat"),
    ("HEAD", "/health"),
    ("POST", "/console/api/a?key=1"),
    ("POST", "//console/api/a"),
    ("POST", "/%63onsole"),
)


def chunks(body: bytes) -> bytes:
    return b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"


# How the body comes: the fields, and the bytes behind the head.
FRAMINGS: dict[str, tuple[dict[str, str], bytes]] = {
    "length": ({"Content-Length": str(len(BODY))}, BODY),
    "chunks": ({"Transfer-Encoding": "chunked"}, chunks(BODY)),
    "no chunks": ({"Transfer-Encoding": "chunked"}, chunks(b"")),
    "expect": ({"Content-Length": str(len(BODY)), "Expect": "100-continue"}, BODY),
    "long length": ({"Content-Length": "00000" + str(len(BODY))}, BODY),
    "none": ({}, b""),
}


class OddConsole:
    """Refuses by all that an environ says, and not only by its path."""

    @staticmethod
    def refuses(environ: dict[str, Any]) -> bool:
        return not environ["QUERY_STRING"] or environ.get("CONTENT_TYPE") == "text/plain"

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("403 Forbidden" if self.refuses(environ) else "200 OK", [("Content-Length", "0")])
        return []


def comparable(environ: dict[str, Any]) -> dict[str, Any]:
    """Return what the admission may decide by: all but the body."""
    return {
        key: value
        for key, value in environ.items()
        if key not in ("wsgi.input", "CONTENT_LENGTH") and not key.startswith("wilmer.")
    }


def answered(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    start_response("200 OK", [("Content-Length", "0")])
    return []


class Compared(AdmissionMiddleware):
    """An admission that is asked by a test what it was asked by the server."""

    head: tuple[bool, dict[str, Any]] | None = None
    later: tuple[bool, dict[str, Any]] | None = None

    def refuses(self, environ: dict[str, Any]) -> bool:
        refused = super().refuses(environ)
        self.head = refused, comparable(environ)
        return refused

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.later = super().refuses(dict(environ)), comparable(environ)
        return super().__call__(environ, start_response)


class Door:
    """A server that takes ``peer`` for the address of its clients."""

    peer = "127.0.0.1"

    def __init__(self, **options: Any) -> None:
        self.bodies: list[bytes] = []
        self.admission = Compared(self._answer, max_request_mb=1, mounts={"/console": OddConsole()}, **options)
        self.running = Running(self.admission)
        accept = self.running.server.accept

        def accept_from_peer() -> Any:
            accepted = accept()
            return accepted and (accepted[0], (self.peer, 4711))

        self.running.server.accept = accept_from_peer

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        self.bodies.append(environ["wsgi.input"].read())
        assert "HTTP_TRANSFER_ENCODING" not in environ
        assert int(environ.get("CONTENT_LENGTH") or 0) == len(self.bodies[-1])
        return answered(environ, start_response)

    def check(self, peer: str, method: str, path: str, framing: str, *fields: dict[str, str]) -> None:
        """Send a request; both answers must agree with each other and with what the client gets."""
        self.peer, self.admission.head, self.admission.later, self.bodies = peer, None, None, []
        length, body = FRAMINGS[framing]
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: 127.0.0.1",
            "Connection: close",
            *(f"{name}: {value}" for group in (*fields, length) for name, value in group.items()),
        ]
        client = self.running.client(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        response = HTTPResponse(client, method=method)
        response.begin()
        response.read()
        client.close()
        self.running.clients.remove(client)
        status, head, later = response.status, self.admission.head, self.admission.later
        assert later is not None and status in ((401, 403, 415) if later[0] else (200,)), (status, later)
        assert (head is None) == (framing == "none") or head == later, (head, later)
        if status == 200 and not later[1]["PATH_INFO"].startswith("/console") and method != "OPTIONS":
            assert self.bodies == [BODY if framing not in ("no chunks", "none") else b""]


@pytest.fixture(params=["private only", "keys", "private only and keys", "everyone"])
def door(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr(serve_waitress, "allowed_threads", lambda: 4)
    file = tmp_path / "keys.txt"
    file.write_text(f"{KEY}\n", "utf-8")
    options: dict[str, Any] = {"private_only": "private" in request.param}
    if "keys" in request.param:
        options["keys"] = AccessKeys(str(file), list)
    opened = Door(**options)
    yield opened
    opened.running.close()


def test_every_origin_of_a_request(door: Door) -> None:
    for peer, forwarded, key in itertools.product(PEERS, FORWARDED, KEYS):
        door.check(peer, "POST", CHAT, "length", forwarded, key, CONTENT[0])


@pytest.mark.amounts
def test_every_kind_of_request(door: Door) -> None:
    browsers = itertools.cycle(itertools.product(BROWSERS, CONTENT))
    for peer, (method, path), framing in itertools.product(("::1", "8.8.8.8"), REQUESTS, FRAMINGS):
        # Five of the 24; the next request goes on with the sixth, so that all come many times.
        for browser, content in itertools.islice(browsers, amount(5, len(BROWSERS) * len(CONTENT))):
            door.check(peer, method, path, framing, browser, content, KEYS[1])
        for key in KEYS:
            door.check(peer, method, path, framing, key, CONTENT[0])


@pytest.mark.parametrize(
    ("host", "called"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")],
)
def test_the_address_of_the_peer_is_that_of_the_socket(monkeypatch: pytest.MonkeyPatch, host: str, called: str) -> None:
    monkeypatch.setattr(serve_waitress, "allowed_threads", lambda: 4)
    admission = Compared(answered, private_only=True)
    try:
        sock = bind_socket(host, 0)
    except StartError as error:
        pytest.skip(f"no IPv6 here: {error}")
    running = Running(admission, sock)
    try:
        connection = HTTPConnection(called, sock.getsockname()[1], timeout=PATIENCE)
        connection.request("POST", CHAT, BODY, {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        connection.close()
        assert admission.head == admission.later and admission.head is not None
        mapped = host == "::" and called == "127.0.0.1"
        assert admission.head[1]["REMOTE_ADDR"] == (f"::ffff:{called}" if mapped else called)
    finally:
        running.close()


def test_a_key_that_is_added_between_head_and_body(door: Door) -> None:
    """The body is gone, so the client is told to send it again, and the application is not asked."""
    door.running.server.is_unwelcome = lambda environ: True
    client = door.running.client(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer " + KEY.encode() + b"\r\n\r\n"
    )
    answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 503 ") and b"Send it again" in answer and b"Retry-After" in answer
    assert door.bodies == []
