"""Noticing clients that have gone, on real sockets."""

from __future__ import annotations

import io
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import ClassVar

import pytest

from Middleware.api.running.disconnect_watcher import (
    INTERVAL,
    LAST_REQUEST_KEY,
    DisconnectWatcher,
    has_been_closed,
    probe_for,
)
from Middleware.models.request_context import RequestContext
from Middleware.services.cancellation_service import cancellation_service
from Tests.utilities.shortages import no_more_threads
from Tests.workflows.engine_lab import until


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Server's and client's end of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with client, server:
        yield server, client


def test_an_open_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    assert not has_been_closed(server)
    client.sendall(b"POST")
    assert until(lambda: server.recv(4, socket.MSG_PEEK) == b"POST")
    assert not has_been_closed(server)
    assert server.recv(10) == b"POST"  # nothing was read


def test_a_closed_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    client.close()
    assert until(lambda: has_been_closed(server))


def test_a_half_closed_connection_counts_as_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    client.shutdown(socket.SHUT_WR)
    assert until(lambda: has_been_closed(server))


def test_a_reset_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert until(lambda: has_been_closed(server))


def test_a_connection_closed_on_our_side(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].close()
    assert has_been_closed(pair[0])


def test_probes(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    assert probe_for({}) is None
    assert probe_for({"eventlet.input": io.BytesIO()}) is None

    class EventletInput:
        def get_socket(self) -> socket.socket:
            return server

    probes = [probe_for({"werkzeug.socket": server}), probe_for({"eventlet.input": EventletInput()})]
    assert [probe() for probe in probes if probe] == [False, False]
    client.close()
    assert until(lambda: all(probe is not None and probe() for probe in probes))
    answers = iter([False, True])
    waitress = probe_for({"waitress.client_disconnected": lambda: next(answers)})
    assert waitress is not None and [waitress(), waitress()] == [False, True]


@pytest.mark.parametrize(
    "left", [b"\r\n", b"GET / HTTP/1.1\r\n\r\n" * 8, b"x" * 300_000], ids=["line", "requests", "much"]
)
def test_bytes_that_follow_hide_nothing_where_no_request_does(
    pair: tuple[socket.socket, socket.socket], left: bytes
) -> None:
    server, client = pair
    probe = probe_for({"werkzeug.socket": server, LAST_REQUEST_KEY: True})
    assert probe is not None
    sender = threading.Thread(target=client.sendall, args=(left,))
    sender.start()
    assert until(lambda: not probe() and not sender.is_alive())
    assert not probe()
    client.close()
    assert until(probe)


def test_a_foreign_server_keeps_its_next_request(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    probe = probe_for({"werkzeug.socket": server})
    client.sendall(b"GET / HTTP/1.1")
    time.sleep(0.02)
    assert probe is not None and not probe()
    assert server.recv(100) == b"GET / HTTP/1.1"


def test_one_look_takes_a_bounded_time(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            try:
                client.send(b"x" * 65536)
            except OSError:
                return

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    probe = probe_for({"werkzeug.socket": server, LAST_REQUEST_KEY: True})
    assert probe is not None
    try:
        assert not any(probe() for _ in range(20))
    finally:
        stop.set()
        probe()
        thread.join(60)


@pytest.fixture(autouse=True)
def _ended_requests() -> Iterator[None]:
    """Whatever a test has cancelled ends with it, so that tests after it find no trace."""
    yield
    while Watched.requests:
        cancellation_service.acknowledge_cancellation(Watched.requests.pop().request_id)


class Watched:
    requests: ClassVar[list[RequestContext]] = []

    def __init__(self, watcher: DisconnectWatcher, gone: bool = False, broken: bool = False) -> None:
        self.request = RequestContext()
        self.requests.append(self.request)
        self.gone = threading.Event()
        self.broken = broken
        self.asked = 0
        if gone:
            self.gone.set()
        cancellation_service.adopt(self.request.request_id, self.request.cancel_scope)
        watcher.watch(self.request, self.probe)

    def probe(self) -> bool:
        self.asked += 1
        if self.broken:
            raise OSError("cannot tell")
        return self.gone.is_set()

    @property
    def cancelled(self) -> bool:
        return self.request.cancel_scope.cancelled


@pytest.fixture
def watcher() -> DisconnectWatcher:
    return DisconnectWatcher(interval=0.01)


def test_a_client_that_goes_cancels_its_request_only(watcher: DisconnectWatcher) -> None:
    leaves, stays = Watched(watcher), Watched(watcher)
    assert until(lambda: stays.asked > 2)
    assert not leaves.cancelled
    leaves.gone.set()
    assert until(lambda: leaves.cancelled)
    assert leaves.request.cancel_scope.reason == "the client went away"
    assert not stays.cancelled
    asked = leaves.asked
    time.sleep(0.05)
    assert leaves.asked == asked
    watcher.forget(stays.request)


def test_a_shortage_of_threads_passes(
    watcher: DisconnectWatcher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        no_more_threads(patch, "disconnect-watcher")
        first = Watched(watcher, gone=True)
    assert [record.levelname for record in caplog.records] == ["WARNING"] and not first.cancelled
    second = Watched(watcher, gone=True)
    assert until(lambda: first.cancelled and second.cancelled)


def test_default_interval_is_quick_enough() -> None:
    watched = Watched(DisconnectWatcher(), gone=True)
    assert until(lambda: watched.cancelled) and INTERVAL <= 0.1


def test_forgotten_requests_are_left_alone(watcher: DisconnectWatcher) -> None:
    watched = Watched(watcher)
    assert until(lambda: watched.asked > 0)
    watcher.forget(watched.request)
    watcher.forget(watched.request)
    watched.gone.set()
    time.sleep(0.05)
    assert not watched.cancelled


def test_an_answered_request_is_not_cancelled(watcher: DisconnectWatcher) -> None:
    watched = Watched(watcher)
    watched.request.answered_at = 1.0
    watched.gone.set()
    time.sleep(0.05)
    assert not watched.cancelled
    watcher.forget(watched.request)


def test_an_answer_that_became_complete_meanwhile_is_not_cancelled(watcher: DisconnectWatcher) -> None:
    request = RequestContext()
    asked = threading.Event()

    def probe() -> bool:
        request.answered_at = 1.0  # the client read the end of the answer and left
        asked.set()
        return True

    watcher.watch(request, probe)
    assert asked.wait(20)
    time.sleep(0.03)
    assert not request.cancel_scope.cancelled
    watcher.forget(request)


def test_a_request_that_ended_meanwhile_leaves_no_flag(watcher: DisconnectWatcher) -> None:
    request = RequestContext()
    cancellation_service.adopt(request.request_id, request.cancel_scope)

    def probe() -> bool:
        cancellation_service.acknowledge_cancellation(request.request_id)  # its end, in the middle of a round
        return True

    watcher.watch(request, probe)
    assert until(lambda: request.cancel_scope.cancelled)
    assert request.request_id not in cancellation_service.get_all_cancelled_requests()


def test_a_broken_probe_spares_the_others(watcher: DisconnectWatcher, caplog: pytest.LogCaptureFixture) -> None:
    broken, leaves = Watched(watcher, broken=True), Watched(watcher, gone=True)
    assert until(lambda: leaves.cancelled)
    assert not broken.cancelled
    assert "cannot tell" in caplog.text
    watcher.forget(broken.request)


def test_requests_without_a_probe_are_not_watched(watcher: DisconnectWatcher) -> None:
    watcher.watch(RequestContext(), None)
    assert watcher._watched == {}


def test_the_watch_resumes_after_a_pause(watcher: DisconnectWatcher) -> None:
    for _ in range(2):
        watched = Watched(watcher, gone=True)
        assert until(lambda: watched.cancelled)  # noqa: B023
        time.sleep(0.03)
