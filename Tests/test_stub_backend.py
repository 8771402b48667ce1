"""What the answers of the fake server are put together from."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any

import pytest

from Tests.stub_backend import (
    UNKNOWN_NODE,
    RecordedRequest,
    Reply,
    StubBackend,
    chat_answer,
    json_reply,
    node_of,
    page_of,
)


def request(body: Any, path: str = "/v1/chat/completions") -> RecordedRequest:
    return RecordedRequest("POST", path, {}, json.dumps(body).encode(), 0, 0.0)


@pytest.mark.parametrize(
    ("body", "node"),
    [
        ({"messages": [{"content": "node:first, be kind"}, {"content": "node:second"}]}, "first"),
        ({"messages": [{"content": "hello"}, {"content": "node:second"}]}, UNKNOWN_NODE),
        ({"messages": []}, UNKNOWN_NODE),
        ({"prompt": "Do it.\nnode:a-b"}, "a-b"),
        ({"input": "node:first"}, "embed"),
    ],
)
def test_the_node_that_calls(body: Any, node: str) -> None:
    assert node_of(request(body)) == node


def test_pages_and_chat_answers() -> None:
    moved = Reply(301)
    pages = {"/a": {"n": 1}, "/b": moved}
    assert page_of(pages, request({}, "/a")) == json_reply({"n": 1})
    assert page_of(pages, request({}, "/b")) is moved and page_of(pages, request({}, "/c")).status == 404
    whole, stream = (chat_answer(request({"stream": wanted}), ["a", "b"]) for wanted in (False, True))
    assert whole.pieces is None and whole.body["choices"][0]["message"]["content"] == "ab"
    assert stream.pieces is not None and stream.pieces[1] == chat_answer(request({"stream": True}), "a").pieces[1]  # type: ignore[index]


def test_raw_pieces_leave_as_they_come_and_the_connection_stays() -> None:
    more = threading.Semaphore(0)

    def pieces() -> Any:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na"
        more.acquire()
        yield b"b"

    with StubBackend() as backend:
        backend.responder = lambda request: Reply(raw=pieces())
        connection = http.client.HTTPConnection("127.0.0.1", backend.port, timeout=60)
        for _ in range(2):
            connection.request("GET", "/")
            response = connection.getresponse()
            assert response.read(1) == b"a"
            more.release()
            assert response.read() == b"b"
        connection.close()
        assert backend.connections == 1
