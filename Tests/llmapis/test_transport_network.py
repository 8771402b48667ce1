"""Proxies, TLS, and who is at the other end."""

from __future__ import annotations

import contextlib
import dataclasses
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.exceptions import BackendConnectionError, BackendTimeoutError
from Middleware.llmapis.transport import BackendRequest, Transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.http import connect, pool, proxies
from Middleware.utilities.http.addresses import is_local_address
from Tests.llmapis.transport_lab import KEY, SOON, ask, cancel_during, closed_port, idle_connections, open_sockets_to
from Tests.stub_backend import Reply, StubBackend, json_reply, sse_reply
from Tests.utilities.http.lab import certificate, tls_backend

__all__ = ["certificate", "tls_backend"]  # fixtures

pytestmark = pytest.mark.usefixtures("short_retry_waits")


def test_loopback_ignores_proxies(backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("no_proxy", "")
    assert transport.post_json(ask(backend)) == {"ok": True}


def test_other_hosts_go_through_the_proxy(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://me:word@127.0.0.1:{backend.port}")
    monkeypatch.setenv("no_proxy", "intern.invalid")
    assert transport.post_json(BackendRequest("e", "http://llm.invalid:8000/v1", {})) == {"ok": True}
    assert backend.requests[0].path == "http://llm.invalid:8000/v1"
    assert backend.requests[0].headers["host"] == "llm.invalid:8000"
    assert backend.requests[0].headers["proxy-authorization"].startswith("Basic ")
    with pytest.raises(BackendConnectionError):
        transport.post_json(BackendRequest("e", "http://intern.invalid/v1", {}, single_attempt=True))


def test_netrc_is_ignored(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (".netrc", "_netrc"):
        (tmp_path / name).write_text("default login someone password else\n", encoding="utf-8")
        (tmp_path / name).chmod(0o600)
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    transport.post_json(ask(backend))
    transport.post_json(BackendRequest("e", backend.url, {}))
    assert [request.headers.get("authorization") for request in backend.requests] == [f"Bearer {KEY}", None]


# ---- peers that must be local


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("10.1.2.3", True),
        ("192.168.1.5", True),
        ("172.16.0.1", True),
        ("169.254.1.1", True),
        ("fe80::1", True),
        ("fd00::1", True),
        ("::ffff:192.168.1.5", True),
        ("8.8.8.8", False),
        ("172.32.0.1", False),
        ("2001:4860:4860::8888", False),
        ("::ffff:8.8.8.8", False),
        ("0.0.0.0", False),
        ("::", False),
        ("100.64.0.1", False),
        ("203.0.113.5", False),
    ],
)
def test_local_addresses(address: str, local: bool) -> None:
    assert is_local_address(address) is local


def peers_are(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Make the next connections look as if they led to ``addresses``; the last one stays."""
    left = list(addresses)
    real = pool.Connection.require_local

    class Seen:
        def __init__(self, address: str) -> None:
            self.address = address

        def getpeername(self) -> tuple[str, int, int, int]:
            return self.address, 80, 0, 2

    def require_local(self: pool.Connection) -> None:
        address = left.pop(0) if len(left) > 1 else left[0]
        real(dataclasses.replace(self, sock=Seen(address)))  # type: ignore[arg-type]

    monkeypatch.setattr(pool.Connection, "require_local", require_local)


def test_local_only_reaches_a_local_server_again_and_again(backend: StubBackend, transport: Transport) -> None:
    for _ in range(2):
        assert transport.post_json(ask(backend, local_only=True)) == {"ok": True}
    assert backend.connections == 1


@pytest.mark.parametrize("address", ["fe80::1%eth0", "::ffff:10.0.0.7"])
def test_local_only_understands_addresses_as_sockets_tell_them(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    peers_are(monkeypatch, address)
    assert transport.post_json(ask(backend, local_only=True)) == {"ok": True}


def test_local_only_sends_nothing_to_a_remote_peer(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers_are(monkeypatch, "8.8.8.8")
    monkeypatch.setattr(connect, "CONNECT_WAITS", (1.2 * SOON,))
    started = time.monotonic()
    for work in (transport.post_json, lambda request: list(transport.open_stream(request))):
        with pytest.raises(BackendConnectionError, match=r"'my-llm'.*not local any more.*'allowRemoteBackup'"):
            work(ask(backend, local_only=True))
    assert time.monotonic() - started < SOON  # before another attempt to connect
    assert backend.requests == [] and open_sockets_to(backend) == 0
    assert transport.post_json(ask(backend)) == {"ok": True}  # a mistake of the address is no dead host


def test_local_only_takes_no_kept_connection_to_a_remote_peer(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport.post_json(ask(backend))
    peers_are(monkeypatch, "8.8.8.8", "127.0.0.1")  # the kept one, then a new one
    assert transport.post_json(ask(backend, local_only=True)) == {"ok": True}
    assert backend.connections == 2
    assert open_sockets_to(backend) == idle_connections(transport) == 1


def test_local_only_goes_past_proxies(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", backend.url)
    monkeypatch.setenv("no_proxy", "")
    request = BackendRequest("e", "http://llm.invalid:8000/v1", {}, single_attempt=True)
    assert transport.post_json(request) == {"ok": True}
    with pytest.raises(BackendConnectionError, match="cannot be resolved"):
        transport.post_json(dataclasses.replace(request, local_only=True))
    assert len(backend.requests) == 1


# ---- TLS


def test_tls_calls_streams_reuse_and_stop(
    tls_backend: StubBackend, transport: Transport, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    tls_backend.script(json_reply({"n": 1}), sse_reply(["a", "b" * 100_000, "c"], delay=0.3), json_reply({"n": 3}))
    assert transport.post_json(ask(tls_backend)) == {"n": 1}
    assert len(b"".join(transport.open_stream(ask(tls_backend)))) == 100_000 + 2 + 3 * len(b"data: \n\n")
    assert transport.post_json(ask(tls_backend)) == {"n": 3}
    assert tls_backend.connections == 1
    tls_backend.default = Reply(never=True)
    scope = CancelScope()
    result, moment, done = cancel_during(
        tls_backend, scope, 4, lambda: list(transport.open_stream(ask(tls_backend), scope))
    )
    assert result == []
    assert done - moment < SOON
    assert tls_backend.requests[3].wait_ended()
    assert (tls_backend.requests[3].ended_at or 0) - moment < SOON


class TlsProxy:
    """A proxy that itself speaks TLS; after the first data of each tunnel it reads nothing for ``pause`` seconds."""

    def __init__(self, certificate: Path, pause: float = 0.0) -> None:
        self.pause, self.tunnels = pause, 0
        self._ended = threading.Event()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._ended.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError):
                client = self._context.wrap_socket(self._listener.accept()[0], server_side=True)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: ssl.SSLSocket) -> None:
        with contextlib.suppress(OSError), client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(1000)
            host, _, port = head.split()[1].decode().partition(":")
            with socket.create_connection((host, int(port))) as server:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                self.tunnels += 1
                self._pump(client, server)

    def _pump(self, client: ssl.SSLSocket, server: socket.socket) -> None:
        moved, paused = 0, False
        while not self._ended.is_set():
            ready = select.select([client, server], [], [], 0.05)[0]
            for source, sink in ((client, server), (server, client)):
                if source in ready or (source is client and client.pending()):
                    data = source.recv(65536)
                    if not data:
                        return
                    sink.sendall(data)
                    moved += len(data)
            if moved > 100_000 and not paused:
                paused = True
                self._ended.wait(self.pause)


@pytest.fixture
def tls_proxy(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TlsProxy]:
    proxy = TlsProxy(certificate)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    monkeypatch.setenv("https_proxy", proxy.url)
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setattr(proxies, "is_loopback", lambda host: False)
    yield proxy
    proxy.close()


LARGE = {"text": "x" * 12_000_000}


def test_tls_through_a_tls_proxy_that_pauses(
    tls_backend: StubBackend, transport: Transport, tls_proxy: TlsProxy
) -> None:
    tls_proxy.pause = 0.7
    assert transport.post_json(ask(tls_backend, payload=LARGE, single_attempt=True)) == {"ok": True}
    assert transport.post_json(ask(tls_backend, single_attempt=True)) == {"ok": True}
    assert len(tls_backend.requests[0].body) > 12_000_000
    assert tls_backend.connections == tls_proxy.tunnels == 1


def test_a_stop_reaches_through_a_tls_proxy(
    tls_backend: StubBackend, transport: Transport, tls_proxy: TlsProxy
) -> None:
    tls_backend.default, scope = Reply(never=True), CancelScope()
    result, moment, done = cancel_during(
        tls_backend, scope, 1, lambda: list(transport.open_stream(ask(tls_backend), scope))
    )
    assert result == [] and done - moment < SOON
    assert tls_backend.requests[0].wait_ended()


@pytest.mark.skipif(sys.platform == "win32", reason="a shutdown wakes nobody who sends there")
def test_a_stop_ends_the_sending_through_a_tls_proxy(
    tls_backend: StubBackend, transport: Transport, tls_proxy: TlsProxy
) -> None:
    tls_proxy.pause, scope = 3 * SOON, CancelScope()
    threading.Timer(0.7, scope.cancel).start()
    started = time.monotonic()
    assert list(transport.open_stream(ask(tls_backend, payload=LARGE), scope)) == []
    assert time.monotonic() - started < SOON


def test_a_tls_proxy_that_reads_no_more_runs_into_the_read_timeout(
    tls_backend: StubBackend, transport: Transport, tls_proxy: TlsProxy
) -> None:
    tls_proxy.pause = 3 * SOON
    with pytest.raises(BackendTimeoutError, match="no data for 0.5 seconds"):
        transport.post_json(ask(tls_backend, payload=LARGE, single_attempt=True, read_timeout=0.5))


def test_untrusted_certificate(tls_backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "CONNECT_WAITS", (1.2 * SOON,))
    started = time.monotonic()
    with pytest.raises(BackendConnectionError, match="certificate was not accepted"):
        transport.post_json(ask(tls_backend))
    assert time.monotonic() - started < SOON  # before another attempt to connect


def test_https_to_a_plain_server(backend: StubBackend, transport: Transport) -> None:
    with pytest.raises(BackendConnectionError, match="https"):
        transport.post_json(BackendRequest("e", f"https://127.0.0.1:{backend.port}/", {}, single_attempt=True))
