"""KoboldCpp's API on real sockets, with every launcher: a stream that is asked about, and aborted."""

from __future__ import annotations

import json
import socket

import pytest

from Tests.integration.launcher import Backend, Launcher, dechunked, read_to_end, read_until
from Tests.patience import CLIENT_PATIENCE
from Tests.stub_backend import chat_chunk, sse_reply
from Tests.workflows.engine_lab import until


@pytest.mark.contract
def test_a_stream_that_is_aborted(server: Launcher, backend: Backend) -> None:
    backend.replies["plain"] = sse_reply([chat_chunk({"content": text}) for text in ("Once", " upon")], hang=True)
    body = json.dumps({"prompt": backend.hello, "max_length": 300}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=CLIENT_PATIENCE) as sock:
        sock.sendall(
            b"POST /api/extra/generate/stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        begun = read_until(sock, b"upon")
        assert until(
            lambda: server.request("POST", "/api/extra/generate/check").json == {"results": [{"text": "Once upon"}]}
        )
        assert server.request("POST", "/api/extra/abort").json == {"success": "true"}
        assert backend.wait_call("plain").wait_ended()
        blocks = dechunked(begun + read_to_end(sock)).decode().split("\n\n")
    assert blocks.pop() == ""
    told = [block.split("\n") for block in blocks]
    assert {name for name, _ in told} == {"event: message"}
    events = [json.loads(data.removeprefix("data: ")) for _, data in told]
    assert "".join(event["token"] for event in events) == "Once upon"
    assert [event["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["stop"]
