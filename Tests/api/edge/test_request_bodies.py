"""Taking a body off the socket, within the limit."""

from __future__ import annotations

import io
from typing import Any

import pytest

from Middleware.api.edge.admission_middleware import BODY_LEFT_KEY, take_body
from Middleware.api.edge.browser_safety import Refusal


class Stream(io.RawIOBase):
    """``data`` in pieces, then the end or ``error``; counts what was taken."""

    def __init__(self, data: bytes, error: Exception | None = None, piece: int = 1 << 30) -> None:
        self._data, self._error, self._piece = io.BytesIO(data), error, piece
        self.taken = 0

    def read(self, size: int = -1) -> bytes:
        data = self._data.read(min(size, self._piece) if size >= 0 else -1)
        if not data and size and self._error is not None:
            raise self._error
        self.taken += len(data)
        return data


def assert_refused(refusal: Refusal | None, status: str) -> None:
    assert refusal is not None and refusal.status.startswith(status)


def environ_of(stream: Any, **more: Any) -> dict[str, Any]:
    return {"wsgi.input": stream, **more}


CHUNKED = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
EVENTLET = {"HTTP_TRANSFER_ENCODING": "chunked", "eventlet.input": object()}


@pytest.mark.parametrize("more", [{"CONTENT_LENGTH": "5"}, CHUNKED, EVENTLET], ids=["length", "chunked", "eventlet"])
@pytest.mark.parametrize("limit", [None, 5])
def test_the_body_is_in_memory_afterwards(more: dict[str, Any], limit: int | None) -> None:
    stream = Stream(b"hello" if "CONTENT_LENGTH" not in more else b"hello and more", piece=2)
    environ = environ_of(stream, **more)
    take_body(environ, limit)
    assert environ["wsgi.input"].read() == b"hello" and stream.taken == 5
    assert (environ["CONTENT_LENGTH"], environ["wsgi.input_terminated"]) == ("5", True)
    assert "HTTP_TRANSFER_ENCODING" not in environ and BODY_LEFT_KEY not in environ


@pytest.mark.parametrize("more", [{"CONTENT_LENGTH": "6"}, CHUNKED, EVENTLET], ids=["length", "chunked", "eventlet"])
def test_a_body_above_the_limit_is_not_read_on(more: dict[str, Any]) -> None:
    stream = Stream(b"x" * 6_000_000)
    environ = environ_of(stream, **more)
    assert_refused(take_body(environ, 5), "413")
    assert stream.taken <= (0 if "CONTENT_LENGTH" in more else 100_000)
    assert environ[BODY_LEFT_KEY]


@pytest.mark.parametrize(
    ("stream", "more"),
    [
        (Stream(b"hal"), {"CONTENT_LENGTH": "5"}),
        (Stream(b"hal", OSError("reset")), {"CONTENT_LENGTH": "5"}),
        (Stream(b"", ValueError("bad chunk")), CHUNKED),
        (Stream(b"h", OSError("bad chunk")), EVENTLET),
    ],
)
def test_a_body_that_ends_early(stream: Stream, more: dict[str, Any]) -> None:
    environ = environ_of(stream, **more)
    assert_refused(take_body(environ, 100), "400")
    assert environ[BODY_LEFT_KEY]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"CONTENT_LENGTH": ""},
        {"CONTENT_LENGTH": "0"},
        {"CONTENT_LENGTH": "x"},
        {"CONTENT_LENGTH": "-4"},
        {"HTTP_TRANSFER_ENCODING": "chunked"},
        {"CONTENT_LENGTH": "5", "waitress.client_disconnected": lambda: False},
    ],
)
def test_what_is_left_to_the_server(more: dict[str, Any]) -> None:
    stream = Stream(b"hello")
    environ = environ_of(stream, **more)
    take_body(environ, 5)
    assert stream.taken == 0 and environ["wsgi.input"] is stream


def test_a_length_beside_chunks_does_not_count() -> None:
    environ = environ_of(Stream(b"hello"), CONTENT_LENGTH="999", **CHUNKED)
    take_body(environ, 100)
    assert environ["wsgi.input"].read() == b"hello"


def test_a_length_of_thousands_of_digits_is_too_large() -> None:
    assert_refused(take_body(environ_of(Stream(b"hello"), CONTENT_LENGTH="1" + "0" * 5000), 5), "413")
