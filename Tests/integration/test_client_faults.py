"""Whatever clients do, the server goes on, says in JSON what was wrong, and keeps answering ``/health`` at once."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from Tests.integration.client_faults import (
    ANSWER_SECONDS,
    FAULTS,
    SMALL,
    START,
    Fault,
    Heard,
    body,
    connect,
    head,
    listen,
    reset,
    send,
)
from Tests.integration.conftest import Servers
from Tests.integration.health_poller import MOST_SECONDS, HealthPoller, Seen, ask
from Tests.integration.launcher import Backend, Launcher, read_until
from Tests.patience import PATIENCE
from Tests.stub_backend import Reply, chat_stream_reply
from Tests.tables import check_all

HOLD_SECONDS = 0.3  # for faults that keep the server waiting
# A client that leaves unnoticed is noticed when the back-end ends, which it never does here.
LEFT_SECONDS = PATIENCE
TOKEN = "word " * 2000
TOKENS = 4000  # 40 MB, more than the buffers of any system take


@pytest.fixture(scope="module")
def watched(script: str, servers: Servers) -> Iterator[tuple[Launcher, HealthPoller]]:
    """A launcher, and what asks after its health."""
    server = servers.get(script)
    with HealthPoller(server.port) as poller:
        yield server, poller


def commit(port: int, poller: HealthPoller, fault: Fault) -> tuple[Heard, Seen]:
    """Do it once, with the poller watching from the first connection to the last farewell."""
    heard = Heard(0)
    with poller.watching() as seen, ExitStack() as stack:
        connections = [stack.enter_context(connect(port)) for _ in range(fault.count)]
        for sock in connections:
            send(sock, fault)
        if fault.statuses:
            heard = listen(connections[0])
        else:
            time.sleep(HOLD_SECONDS)
            # While the server still waits for the rest.
            assert not ask(port)
            connections[0].setblocking(False)
            with pytest.raises(BlockingIOError):
                connections[0].recv(1)
    return heard, seen


def check_answer(fault: Fault, heard: Heard) -> None:
    assert heard.status in fault.statuses, heard
    assert b"application/json" in heard.head.lower(), heard
    assert heard.status == 200 or json.loads(heard.body)["error"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(watched: tuple[Launcher, HealthPoller], fault: Fault) -> None:
    server, poller = watched
    traces = server.output().count("Traceback")
    heard, seen = commit(server.port, poller, fault)
    if fault.statuses:
        check_answer(fault, heard)
    assert not seen.failed
    assert seen.count > 0 and seen.worst < MOST_SECONDS, seen
    assert server.ask("Single").text == "single says hello."
    assert server.output().count("Traceback") == traces


@pytest.mark.contract
def test_every_fault_is_answered_in_json(server: Launcher) -> None:
    """The same faults once more, without a look at the server's health."""

    def check(fault: Fault) -> None:
        with connect(server.port) as sock:
            send(sock, fault)
            check_answer(fault, listen(sock))

    check_all([fault for fault in FAULTS if fault.statuses], check, lambda fault: fault.name)
    assert server.ask("Single").text == "single says hello."
    output = server.output()
    # Whole, because it is seldom and only its last line says what it was.
    assert "Traceback" not in output, output


def test_resets_at_every_moment(watched: tuple[Launcher, HealthPoller], backend: Backend) -> None:
    server, poller = watched
    backend.replies["single"] = chat_stream_reply(["a ", "b ", "c "], delay=0.01)
    whole = body(SMALL.replace(b'"messages"', b'"stream": true, "messages"'))
    data, moments = b"".join(whole()), random.Random(7)
    with poller.watching() as seen:
        for size in (0, 1, 30, len(START), len(data) - 1, *[len(data)] * 25):
            sock = connect(server.port)
            sock.sendall(data[:size])
            time.sleep(moments.uniform(0, 0.06) if size == len(data) else 0.005)
            reset(sock)
    assert not seen.failed
    backend.replies.clear()
    assert server.ask("Single").status == 200


# -- what follows a request on its connection --------------------------------------------------------------------------


def chat_request(model: str, hello: str) -> bytes:
    data = json.dumps({"model": model, "messages": [{"role": "user", "content": hello}]}).encode()
    return b"".join(body(data)())


FOLLOWING = {"a line end": b"\r\n", "half a request": START, "garbage": b"\x00\xff" * 50_000}


@pytest.mark.contract
@pytest.mark.parametrize("late", [False, True], ids=["at-once", "late"])
def test_bytes_behind_a_request_do_not_hide_that_its_client_leaves(
    server: Launcher, backend: Backend, late: bool
) -> None:
    for name, extra in FOLLOWING.items():
        backend.reset()
        backend.replies["single"] = Reply(never=True)
        with connect(server.port) as sock:
            sock.sendall(chat_request("Single", backend.hello) + (b"" if late else extra))
            call = backend.wait_call("single")
            if late:
                sock.sendall(extra)
            assert not call.wait_ended(0.2), name
        assert call.wait_ended(LEFT_SECONDS) and call.client_left, name


@pytest.mark.parametrize("queued", range(1, 9))
def test_a_client_that_leaves_with_requests_in_line(server: Launcher, backend: Backend, queued: int) -> None:
    """Its running request is stopped, and those in line never run."""
    backend.replies["first"] = Reply(never=True)
    with connect(server.port) as sock:
        sock.sendall(chat_request("Chain", backend.hello) + chat_request("Single", backend.hello) * queued)
        call = backend.wait_call("first")
        assert not call.wait_ended(0.1)
    assert call.wait_ended(LEFT_SECONDS) and call.client_left
    time.sleep(0.15)
    assert backend.nodes() == ["first"]


def test_a_client_that_leaves_the_gate_with_requests_in_line(gated_server: Launcher, backend: Backend) -> None:
    backend.replies["first"] = Reply(never=True)
    with gated_server.open("Chain", stream=False) as running:
        backend.wait_call("first")
        with connect(gated_server.port) as sock:
            since = gated_server.output_size()
            sock.sendall(chat_request("Single", backend.hello) * 3)
            gated_server.wait_output("all slots are taken", since=since)
        gated_server.wait_output("has gone", since=since)
        running.close()
    assert gated_server.ask("Nested").status == 200
    assert "single" not in backend.nodes()


def test_requests_in_line_are_answered_in_order(server: Launcher, backend: Backend) -> None:
    wanted = ["Single", "Chain", "Background"] * 3
    with connect(server.port) as sock:
        sock.sendall(b"".join(chat_request(model, backend.hello) for model in wanted))
        answer = b""
        while answer.count(b"says hello.") < len(wanted):
            piece = sock.recv(65536)
            assert piece, answer
            answer += piece
    heads = answer.split(b"HTTP/1.1 200 OK")[1:]
    said = [part.split(b" says hello.")[0].rsplit(b'"', 1)[1].decode() for part in heads]
    assert said == ["single", "second", "answer"] * 3


def test_eventlet_takes_one_request_per_connection(servers: Servers, backend: Backend) -> None:
    with connect(servers.get("run_eventlet.py").port) as sock:
        sock.sendall(chat_request("Single", backend.hello) * 3)
        sock.settimeout(ANSWER_SECONDS)
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 200") == 1 and b"connection: close" in answer.lower()
    assert backend.nodes() == ["single"]


# -- slow readers ------------------------------------------------------------------------------------------------------


def open_with_small_window(server: Launcher, backend: Backend) -> socket.socket:
    """Ask for a fast stream of many megabytes with a receive buffer of a few kilobytes."""
    backend.replies["single"] = chat_stream_reply([TOKEN] * TOKENS)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(ANSWER_SECONDS)
    sock.connect(("127.0.0.1", server.port))
    data = json.dumps({"model": "Single", "stream": True, "messages": [{"role": "user", "content": backend.hello}]})
    sock.sendall(b"".join(body(data.encode())()))
    return sock


@pytest.mark.contract
def test_a_slow_reader_harms_nobody_and_its_leave_is_noticed(
    watched: tuple[Launcher, HealthPoller], backend: Backend
) -> None:
    server, poller = watched
    with poller.watching() as seen, open_with_small_window(server, backend) as sock:
        read_until(sock, b"word")
        call = backend.wait_call("single")
        for _ in range(10):
            sock.recv(10)
            time.sleep(0.1)
        assert (
            server.request(
                "POST",
                "/v1/chat/completions",
                {"model": "Chain", "messages": [{"role": "user", "content": backend.hello}]},
            ).status
            == 200
        )
        assert call.ended_at is None and call.answered_at is None, "it was all taken from the back-end"
    assert call.wait_ended(LEFT_SECONDS) and call.client_left
    assert not seen.failed


def test_a_body_that_never_ends_can_be_waited_for_by_many(watched: tuple[Launcher, HealthPoller]) -> None:
    """And a request that comes meanwhile is served at once."""
    server, _ = watched
    fault = Fault("", head("Content-Length: 100000", rest=b"{"))
    with ExitStack() as stack:
        for _ in range(200):
            send(stack.enter_context(connect(server.port)), fault)
        started = time.monotonic()
        assert server.ask("Single").status == 200
        assert time.monotonic() - started < MOST_SECONDS
