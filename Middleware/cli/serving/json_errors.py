"""Errors of the HTTP servers themselves, which never reach the application, as JSON.

``JsonErrorsMixin`` is for Eventlet alone; Waitress has tasks and parsers of its own (``waitress_connections``).
"""
from __future__ import annotations

import json
import socket
import time
from email.message import Message
from typing import Any

from Middleware.api.edge.browser_safety import headers_of_every_answer
from Middleware.api.edge.request_bodies import BODY_LEFT_KEY, MAX_DIGITS
from Middleware.cli.serving import limits

MAX_MESSAGE = 500  # characters: it may repeat what the client sent
TLS_RECORD = b"\x16"  # the first byte of a TLS handshake, never of an HTTP request
TLS_REFUSED = "This port speaks HTTP, not HTTPS; use an address that begins with http://"
BOTH_FRAMINGS = "Content-Length and Transfer-Encoding are not allowed together"


def error_body(status: int, message: str) -> bytes:
    """An error as JSON; the dialect is not known where the request could not be read, so it is OpenAI's."""
    text = " ".join(message.split())[:MAX_MESSAGE]
    error: object = text if status == 400 else {"message": text, "type": "server_error", "code": status}
    return json.dumps({"error": error}).encode("utf-8")


def linger(connection: socket.socket) -> None:
    """End the sending half and discard what the client still sends, until it closes too or the time is up.

    Closing at once would reset a connection on which data is under way, and the client might lose the answer.
    """
    deadline = time.monotonic() + limits.LINGER_SECONDS
    try:
        connection.shutdown(socket.SHUT_WR)
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(65536):
                return
    except OSError:  # gone already, or silent for too long
        pass


def framing_error(headers: Message) -> str | None:
    """Return why the end of a request's body is not certain; None if it is."""
    lengths = headers.get_all("Content-Length") or []
    usable = [length for length in lengths if length.isascii() and length.isdigit() and len(length) <= MAX_DIGITS]
    if len(usable) < len(lengths) or len(set(lengths)) > 1:
        return "Content-Length is invalid"
    if lengths and "Transfer-Encoding" in headers:
        return BOTH_FRAMINGS
    return None


class _Head:
    """The lines of a request's head. A head that ends in the middle is not a request."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.complete = False

    def readline(self, size: int = -1) -> bytes:
        line: bytes = self._stream.readline(size)
        self.complete = line in (b"\r\n", b"\n")
        return line


class JsonErrorsMixin:
    """Answers what cannot be read as HTTP, in handlers built on ``http.server``. Logs nothing itself."""

    rfile: Any
    body_left = False  # the client may still be sending what was refused

    def handle_one_request(self: Any) -> None:
        try:
            first = self.rfile.peek(1)[:1]
        except OSError:  # the client has gone, or sends nothing
            first = b""
        if first == TLS_RECORD:
            self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
            self.send_error(400, TLS_REFUSED)
        elif first:
            super().handle_one_request()  # type: ignore[misc]
        else:
            self.close_connection = True

    def parse_request(self: Any) -> bool:
        plain, head = self.rfile, _Head(self.rfile)
        self.rfile = head
        try:
            understood = super().parse_request()  # type: ignore[misc]
        finally:
            self.rfile = plain
        if not understood:
            return False
        if not head.complete:
            self.close_connection = True
            return False
        wrong = "HTTP/0.9 is not spoken here" if self.request_version == "HTTP/0.9" else framing_error(self.headers)
        if wrong:
            self.send_error(400, wrong)
        return not wrong

    def send_error(self: Any, code: int, message: str | None = None, explain: str | None = None) -> None:
        body = error_body(code, message or self.responses.get(code, ("error",))[0])
        self.close_connection = True
        if self.request_version == "HTTP/0.9":  # also what an unreadable first line counts as; it had no status line
            self.request_version = "HTTP/1.0"
        self.body_left = True
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        for name, value in headers_of_every_answer():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def finish(self: Any) -> None:
        """Let a client whose body was refused read why, before the connection ends."""
        if self.body_left or BODY_LEFT_KEY in getattr(self, "environ", ()):
            self._flush()
            linger(self.connection)
        super().finish()  # type: ignore[misc]

    def _flush(self: Any) -> None:
        try:
            self.wfile.flush()
        except (OSError, ValueError):  # the client has gone
            pass

    def version_string(self) -> str:
        return "WilmerAI"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: the application logs its requests."""

    def log_error(self, format: str, *args: object) -> None:
        """Nothing: the client gets the error."""
