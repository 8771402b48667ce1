"""Nodes behind the responder: the answer does not wait for them, and they do not need the client."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from Tests.integration.launcher import (
    USER,
    Backend,
    Launcher,
    read_to_end,
    read_until,
    says,
    slow,
    standard_tree,
    streamed_text,
    stuck,
)
from Tests.stub_backend import RecordedRequest, Reply, status_reply
from Tests.workflows.engine_lab import until

SLOW = 0.4
TIMEOUT = 3.0
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def line_of(server: Launcher, request_id: str) -> str:
    """What the log says when all work of a request is done."""
    done = re.compile(rf".*Request {request_id}: route .* done after .*")
    assert until(lambda: done.search(server.output()) is not None)
    found = done.search(server.output())
    assert found is not None
    return found[0].rstrip()


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What the slow node waits for."""
    event = threading.Event()
    yield event
    event.set()


def until_set(event: threading.Event, name: str = "slow") -> Callable[[RecordedRequest], Reply]:
    return lambda request: says(request, name, held=event)


@STREAM
def test_answer_comes_before_a_slow_node(
    server: Launcher, backend: Backend, release: threading.Event, stream: bool
) -> None:
    backend.replies["slow"] = until_set(release)
    response = server.ask("Background", stream)
    slow_call = backend.wait_call("slow")
    assert (streamed_text(response.body) if stream else response.text) == "answer says hello."
    release.set()
    backend.wait_call("late")
    assert slow_call.answered_at is not None and not slow_call.client_left
    assert backend.nodes() == ["answer", "slow", "late"]


@STREAM
def test_later_nodes_see_the_answer(server: Launcher, backend: Backend, stream: bool) -> None:
    server.ask("Remember", stream)
    call = backend.wait_call("remember")
    assert "<answer says hello.>" in call.json["messages"][0]["content"]


@STREAM
@pytest.mark.contract
def test_client_that_closes_after_its_answer_stops_nothing(
    server: Launcher, backend: Backend, release: threading.Event, stream: bool
) -> None:
    backend.replies["slow"] = until_set(release)
    wanted = b"[DONE]" if stream else b"hello."
    with server.open("Background", stream) as sock:
        data = b""
        while wanted not in data:
            data += sock.recv(65536)
    slow_call = backend.wait_call("slow")
    assert not slow_call.wait_ended(SLOW)  # a client that leaves is noticed sooner
    release.set()
    backend.wait_call("late")
    assert slow_call.answered_at is not None and not slow_call.client_left


@STREAM
@pytest.mark.parametrize("late", [b"", b"\r\n"], ids=["silent", "late-bytes"])
@pytest.mark.parametrize("reset", [False, True], ids=["stays", "resets"])
def test_how_a_client_ends_does_not_matter_after_its_answer(
    server: Launcher, backend: Backend, stream: bool, late: bytes, reset: bool
) -> None:
    """It may send more than its request, keep the connection open, or cut it off."""
    backend.replies["answer"] = slow("answer", SLOW)
    with server.open("Background", stream) as sock:
        backend.wait_call("answer")
        sock.sendall(late)
        read_until(sock, b"[DONE]" if stream else b"hello.")
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        backend.wait_call("late")
    assert backend.nodes() == ["answer", "slow", "late"]


@pytest.mark.contract
def test_stream_is_closed_before_the_slow_node_ends(
    server: Launcher, backend: Backend, release: threading.Event
) -> None:
    backend.replies["slow"] = until_set(release)
    with server.open("Background", stream=True) as sock:
        read_to_end(sock)
    release.set()
    backend.wait_call("late")


@STREAM
def test_failure_of_a_later_node_is_not_the_clients(server: Launcher, backend: Backend, stream: bool) -> None:
    backend.replies["slow"] = status_reply(400, f"not now, {backend.hello}")
    response = server.ask("Background", stream)
    assert response.status == 200
    assert b"error" not in response.body and b"hello" in response.body
    output = server.wait_output(f"not now, {backend.hello}")
    (line,) = [line for line in output.splitlines() if backend.hello in line and "failed after the answer" in line]
    assert response.headers["x-request-id"] in line and "ERROR" in line
    assert backend.nodes() == ["answer", "slow"]


@STREAM
def test_they_can_be_stopped_by_the_id_of_their_request(server: Launcher, backend: Backend, stream: bool) -> None:
    backend.replies["slow"] = Reply(never=True)
    request_id = server.ask("Background", stream).headers["x-request-id"]
    slow_call = backend.wait_call("slow")
    response = server.request("DELETE", "/api/chat", {"request_id": request_id})
    assert response.status == 200
    assert slow_call.wait_ended() and slow_call.client_left
    line = line_of(server, request_id)
    assert line.endswith(", cancelled")
    assert backend.nodes() == ["answer", "slow"]


def test_the_log_tells_of_a_client_that_left_before_its_answer(server: Launcher, backend: Backend) -> None:
    backend.replies["single"] = stuck("Once ", "upon ")
    with server.open("Single", stream=True) as client:
        head = read_until(client, b"upon").lower()
    found = re.search(rb"x-request-id: (\S+)", head)
    assert found is not None
    request_id = found[1].decode()
    line = line_of(server, request_id)
    assert re.search(r" cancelled after \d+\.\d\d s, done after \d+\.\d\d s$", line) and "endpoint -" not in line
    assert f"Request {request_id} is cancelled: the client went away" in server.output()
    assert "Client disconnected" not in server.output()


@STREAM
def test_the_log_tells_of_them(server: Launcher, backend: Backend, stream: bool) -> None:
    backend.replies["slow"] = slow("slow", SLOW)
    began = time.monotonic()
    request_id = server.ask("Background", stream).headers["x-request-id"]
    begun = server.wait_output(f"Request {request_id}: nodes after its answer: 2; ")
    assert re.search(rf"{request_id}: nodes after its answer: 2; requests at work in the background: [1-9]", begun)
    seconds = re.search(r", nodes after the answer (\d+\.\d+) s, done after", line_of(server, request_id))
    assert seconds is not None and SLOW <= float(seconds[1]) <= time.monotonic() - began


def test_no_word_of_them_without_any(server: Launcher, backend: Backend) -> None:
    request_id = server.ask("Single").headers["x-request-id"]
    assert "nodes after the answer" not in line_of(server, request_id)
    assert f"{request_id}: nodes after" not in server.output()


def test_they_are_cancelled_when_their_time_is_up(script: str, backend: Backend, tmp_path: Path) -> None:
    tree = standard_tree(tmp_path / "Public", backend.url)
    user = json.loads((tree.configs / f"Users/{USER}.json").read_text(encoding="utf-8"))
    tree.write(f"Users/{USER}.json", {**user, "backgroundNodesTimeoutInSeconds": TIMEOUT})
    backend.replies["slow"] = Reply(never=True)
    with Launcher(script, "--PublicDirectory", tree.public, "--User", USER, backend=backend) as server:
        began = time.monotonic()
        request_id = server.ask("Background").headers["x-request-id"]
        slow_call = backend.wait_call("slow")
        assert slow_call.wait_ended() and slow_call.client_left
        assert slow_call.ended_at is not None and slow_call.ended_at - began >= TIMEOUT
        assert f"{request_id} is cancelled: background nodes took too long" in server.output()
        assert line_of(server, request_id).endswith(", cancelled")
    assert backend.nodes() == ["answer", "slow"]


@STREAM
def test_background_nodes_hold_no_slot(
    gated_server: Launcher, backend: Backend, release: threading.Event, stream: bool
) -> None:
    backend.replies["slow"] = until_set(release)
    gated_server.ask("Background", stream)
    assert gated_server.ask("Single").text == "single says hello."
    release.set()
    backend.wait_call("late")


@STREAM
def test_later_nodes_of_a_nested_responder_run(
    server: Launcher, backend: Backend, release: threading.Event, stream: bool
) -> None:
    """The child's own later node, then the parent's."""
    backend.replies["speaker-next"] = until_set(release, "speaker-next")
    response = server.ask("NestedSpeaker", stream)
    assert (streamed_text(response.body) if stream else response.text) == "speaker says hello."
    release.set()
    backend.wait_call("outer-next")
    assert backend.nodes() == ["speaker", "speaker-next", "outer-next"]
