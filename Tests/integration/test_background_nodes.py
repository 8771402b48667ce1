"""Nodes behind the responder: the answer does not wait for them, and they do not need the client."""
from __future__ import annotations

import socket
import struct
import time

import pytest

from Tests.integration.launcher import (
    Backend,
    Launcher,
    read_to_end,
    read_until,
    says,
    slow,
    streamed_text,
)
from Tests.stub_backend import RecordedRequest, Reply, status_reply

SLOW = 0.4
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@STREAM
def test_answer_comes_before_a_slow_node(server: Launcher, backend: Backend, stream: bool) -> None:
    backend.replies["slow"] = slow("slow", SLOW)
    response = server.ask("Background", stream)
    slow_call = backend.wait_call("slow")
    assert slow_call.answered_at is None, "the slow node had ended before the answer was there"
    assert (streamed_text(response.body) if stream else response.text) == "answer says hello."
    backend.wait_call("late")
    assert slow_call.answered_at is not None and not slow_call.client_left
    assert backend.nodes() == ["answer", "slow", "late"]


@STREAM
def test_later_nodes_see_the_answer(server: Launcher, backend: Backend, stream: bool) -> None:
    server.ask("Remember", stream)
    call = backend.wait_call("remember")
    assert "<answer says hello.>" in call.json["messages"][0]["content"]


@STREAM
def test_client_that_closes_after_its_answer_stops_nothing(server: Launcher, backend: Backend, stream: bool) -> None:
    backend.replies["slow"] = slow("slow", SLOW)
    wanted = b"[DONE]" if stream else b"hello."
    with server.open("Background", stream) as sock:
        data = b""
        while wanted not in data:
            data += sock.recv(65536)
    left = time.monotonic()
    slow_call = backend.wait_call("slow")
    backend.wait_call("late")
    assert slow_call.answered_at is not None and slow_call.answered_at > left
    assert not slow_call.client_left


@STREAM
@pytest.mark.parametrize("late", [b"", b"\r\n"], ids=["silent", "late-bytes"])
@pytest.mark.parametrize("reset", [False, True], ids=["stays", "resets"])
def test_how_a_client_ends_does_not_matter_after_its_answer(server: Launcher, backend: Backend, stream: bool,
                                                            late: bytes, reset: bool) -> None:
    """It may send more than its request, keep the connection open, or cut it off."""
    backend.replies["answer"] = slow("answer", SLOW)
    with server.open("Background", stream) as sock:
        backend.wait_call("answer")
        sock.sendall(late)
        read_until(sock, b"[DONE]" if stream else b"hello.")
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        backend.wait_call("late", 3)
    assert backend.nodes() == ["answer", "slow", "late"]


def test_stream_is_closed_before_the_slow_node_ends(server: Launcher, backend: Backend) -> None:
    backend.replies["slow"] = slow("slow", SLOW)
    with server.open("Background", stream=True) as sock:
        read_to_end(sock)
    assert backend.wait_call("slow").answered_at is None
    backend.wait_call("late")


@STREAM
def test_failure_of_a_later_node_is_not_the_clients(server: Launcher, backend: Backend, stream: bool) -> None:
    backend.replies["slow"] = status_reply(400, f"not now, {backend.hello}")
    response = server.ask("Background", stream)
    assert response.status == 200
    assert b"error" not in response.body and b"hello" in response.body
    server.wait_output(f"not now, {backend.hello}")
    assert backend.nodes() == ["answer", "slow"]


@STREAM
def test_background_nodes_hold_no_slot(gated_server: Launcher, backend: Backend, stream: bool) -> None:
    backend.replies["slow"] = slow("slow", SLOW)
    gated_server.ask("Background", stream)
    assert gated_server.ask("Single").text == "single says hello."
    assert backend.wait_call("slow").answered_at is None
    backend.wait_call("late")


@STREAM
def test_later_nodes_of_a_nested_responder_run(server: Launcher, backend: Backend, stream: bool) -> None:
    """The child's own later node, then the parent's."""
    def delayed(request: RecordedRequest) -> Reply:
        return says(request, "speaker-next", header_delay=0.3)

    backend.replies["speaker-next"] = delayed
    response = server.ask("NestedSpeaker", stream)
    assert (streamed_text(response.body) if stream else response.text) == "speaker says hello."
    assert backend.wait_call("speaker-next").answered_at is None
    backend.wait_call("outer-next")
    assert backend.nodes() == ["speaker", "speaker-next", "outer-next"]
