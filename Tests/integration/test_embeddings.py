"""Embeddings on real sockets, with every launcher."""

from __future__ import annotations

import json
import socket

import pytest

from Tests.backend_dialects import openai_embeddings
from Tests.integration.launcher import Backend, Launcher, read_until, stuck
from Tests.patience import CLIENT_PATIENCE
from Tests.stub_backend import Reply, json_reply

# Each with its field for the text.
PATHS = {
    "/v1/embeddings": "input",
    "/api/embed": "input",
    "/api/embeddings": "prompt",
    "/api/extra/embeddings": "input",
}


@pytest.mark.contract
def test_beside_a_chat_that_has_the_only_slot(gated_server: Launcher, backend: Backend) -> None:
    backend.replies.update(single=stuck("Once "), embed=json_reply(openai_embeddings([[0.5, -1.0]])))
    with gated_server.open("Single", stream=True) as chat:
        read_until(chat, b"Once")
        for path, field in PATHS.items():
            answer = gated_server.request("POST", path, {"model": "any", field: backend.hello})
            assert answer.status == 200 and b"[0.5,-1.0]" in answer.body


@pytest.mark.contract
def test_a_client_that_leaves_ends_the_call(server: Launcher, backend: Backend) -> None:
    backend.replies["embed"] = Reply(never=True)
    body = json.dumps({"model": "any", "input": backend.hello}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=CLIENT_PATIENCE) as sock:
        sock.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        call = backend.wait_call("embed")
    assert call.wait_ended() and call.client_left
