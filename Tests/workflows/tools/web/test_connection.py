"""Connections of web requests: TLS, tunnels and SOCKS proxies, each against a real server."""
from __future__ import annotations

import datetime
import socket
import socketserver
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.workflows.tools.web import connection as web_connection
from Middleware.workflows.tools.web.connection import tls_settings
from Middleware.workflows.tools.web.errors import WebFetchConnectionError
from Middleware.workflows.tools.web.fetch import fetch
from Middleware.workflows.tools.web.request import WebRequest
from Tests.stub_backend import Reply, StubBackend

OK = b'{"ok": true}'


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PEM file with key and certificate for 127.0.0.1 and far.example."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stub")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(1)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("far.example")])
    built = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
             .serial_number(1).not_valid_before(now - day).not_valid_after(now + day).add_extension(names, False)
             .add_extension(x509.BasicConstraints(True, None), True)
             .add_extension(x509.KeyUsage(True, False, False, False, False, True, True, False, False), True)
             .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
             .sign(key, hashes.SHA256()))
    path = tmp_path_factory.mktemp("tls") / "stub.pem"
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                       serialization.NoEncryption()) + built.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def secure(certificate: Path) -> Iterator[StubBackend]:
    with StubBackend(tls=_server_tls(certificate)) as server:
        yield server


@pytest.fixture
def plain() -> Iterator[StubBackend]:
    with StubBackend() as server:
        yield server


def _server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def body(url: str, **keys: Any) -> bytes:
    return fetch(WebRequest(url, timeout=3, **keys), CancelScope()).body


# -- TLS ---------------------------------------------------------------------------------------------------------------

def test_an_unknown_certificate(secure: StubBackend) -> None:
    with pytest.raises(WebFetchConnectionError, match="certificate was not accepted"):
        body(secure.url)
    assert secure.requests == []


def test_a_ca_bundle(secure: StubBackend, certificate: Path) -> None:
    assert body(secure.url, tls=tls_settings(True, str(certificate))) == OK


def test_the_bundle_of_the_environment(secure: StubBackend, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    assert body(secure.url) == OK


def test_unchecked(secure: StubBackend) -> None:
    assert body(secure.url, tls=tls_settings(False, None)) == OK
    assert tls_settings(True, None) is None


def test_a_server_without_tls(plain: StubBackend) -> None:
    with pytest.raises(WebFetchConnectionError, match="the TLS connection failed"):
        body(plain.url.replace("http:", "https:"))


def test_a_chosen_address_keeps_the_name(secure: StubBackend, certificate: Path) -> None:
    """Certificate and Host are those of the name; the second address serves when the first does not."""
    tls = tls_settings(True, str(certificate))
    request = WebRequest(f"https://far.example:{secure.port}/", timeout=3, tls=tls)
    target = web_connection.parse_url(request.url)
    connection = web_connection.find_way(request, target, ("127.0.0.2", "127.0.0.1")).connection
    with pytest.raises(OSError):
        web_connection.find_way(request, target, ("127.0.0.2",)).connection.connect()
    connection.request("GET", "/")
    assert connection.getresponse().data == OK
    assert secure.requests[0].headers["host"] == f"far.example:{secure.port}"
    connection.close()


def test_a_stop_reaches_a_tls_server(secure: StubBackend) -> None:
    secure.default = Reply(pieces=[b"a"], hang=True)
    scope = CancelScope()
    moments: list[float] = []

    def cancel() -> None:
        secure.wait_requests(1)
        time.sleep(0.1)
        moments.append(time.monotonic())
        scope.cancel()

    threading.Thread(target=cancel).start()
    with pytest.raises(EarlyTerminationException):
        fetch(WebRequest(secure.url, timeout=30, tls=tls_settings(False, None)), scope)
    assert time.monotonic() - moments[0] < 0.25
    assert secure.requests[0].wait_ended(0.25)


# -- tunnels -----------------------------------------------------------------------------------------------------------

class _Tunnels(socketserver.ThreadingTCPServer):
    """A proxy that leads every tunnel to ``leads_to``: by CONNECT, or by SOCKS 4 and 5."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, leads_to: int, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self.leads_to, self.tls = leads_to, tls
        self.asked: list[str] = []
        self.refuses = False
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _Tunnel(socketserver.BaseRequestHandler):
    server: _Tunnels

    def handle(self) -> None:
        client = self.server.tls.wrap_socket(self.request, server_side=True) if self.server.tls else self.request
        with client:
            first = client.recv(1)
            {b"\x04": self._socks4, b"\x05": self._socks5}.get(first, self._connect)(client, first)
            if not self.server.refuses:
                self._lead(client)

    def _lead(self, client: Any) -> None:
        with socket.create_connection(("127.0.0.1", self.server.leads_to)) as target:
            threading.Thread(target=_pump, args=(client, target), daemon=True).start()
            _pump(target, client)

    def _connect(self, client: Any, first: bytes) -> None:
        head = first
        while b"\r\n\r\n" not in head:
            head += client.recv(1)
        self.server.asked.append(head.decode())
        client.sendall(b"HTTP/1.0 403 Forbidden\r\n\r\n" if self.server.refuses else b"HTTP/1.0 200 OK\r\n\r\n")

    def _socks5(self, client: Any, _: bytes) -> None:
        methods = client.recv(client.recv(1)[0])
        client.sendall(b"\x05\x02" if b"\x02" in methods else b"\x05\x00")
        if b"\x02" in methods:
            client.recv(1)
            user, password = (client.recv(client.recv(1)[0]).decode() for _ in range(2))
            self.server.asked.append(f"{user}:{password}")
            client.sendall(b"\x01\x00")
        kind = client.recv(4)[3]
        host = client.recv(client.recv(1)[0]).decode() if kind == 3 else socket.inet_ntoa(client.recv(4))
        self.server.asked.append(f"{host}:{struct.unpack('!H', client.recv(2))[0]}")
        client.sendall((b"\x05\x02" if self.server.refuses else b"\x05\x00") + b"\x00\x01" + b"\x00" * 6)

    def _socks4(self, client: Any, _: bytes) -> None:
        data = client.recv(7)
        while client.recv(1) != b"\x00":
            pass
        self.server.asked.append(f"{socket.inet_ntoa(data[3:7])}:{struct.unpack('!H', data[1:3])[0]}")
        client.sendall(b"\x00\x5a" + b"\x00" * 6)


def _pump(source: Any, to: Any) -> None:
    try:
        while data := source.recv(65536):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.fixture
def tunnels(secure: StubBackend) -> Iterator[_Tunnels]:
    with _Tunnels(secure.port) as proxy:
        yield proxy
        proxy.shutdown()


def test_https_through_a_proxy(tunnels: _Tunnels, secure: StubBackend, certificate: Path) -> None:
    tls = tls_settings(True, str(certificate))
    assert body("https://far.example/x", tls=tls, proxy=f"http://me:p%40ss@{tunnels.address}") == OK
    assert tunnels.asked[0].startswith("CONNECT far.example:443 ")
    assert "Basic bWU6cEBzcw==" in tunnels.asked[0]
    assert "proxy-authorization" not in secure.requests[0].headers


def test_https_through_an_https_proxy(secure: StubBackend, certificate: Path) -> None:
    tls = tls_settings(True, str(certificate))
    with _Tunnels(secure.port, _server_tls(certificate)) as proxy:
        assert body("https://far.example/x", tls=tls, proxy=f"https://{proxy.address}") == OK
        proxy.shutdown()


def test_http_through_an_https_proxy(secure: StubBackend, certificate: Path) -> None:
    assert body("http://far.example/x", tls=tls_settings(True, str(certificate)), proxy=secure.url) == OK
    assert secure.requests[0].path == "http://far.example/x"


def test_a_proxy_that_refuses(tunnels: _Tunnels) -> None:
    tunnels.refuses = True
    with pytest.raises(WebFetchConnectionError, match="403 Forbidden"):
        body("https://far.example/x", proxy=f"http://{tunnels.address}")


# -- SOCKS -------------------------------------------------------------------------------------------------------------

@pytest.fixture
def socks(plain: StubBackend) -> Iterator[_Tunnels]:
    with _Tunnels(plain.port) as proxy:
        yield proxy
        proxy.shutdown()


@pytest.mark.parametrize(("scheme", "host", "asked"), [
    ("socks5h", "far.invalid", "far.invalid:80"), ("socks5", "localhost", "127.0.0.1:80"),
    ("socks4", "localhost", "127.0.0.1:80")])
def test_a_socks_proxy(socks: _Tunnels, scheme: str, host: str, asked: str) -> None:
    assert body(f"http://{host}/x", proxy=f"{scheme}://{socks.address}") == OK
    assert socks.asked == [asked]


def test_a_socks_proxy_with_a_password(socks: _Tunnels) -> None:
    assert body("http://far.invalid/x", proxy=f"socks5h://me:p%40ss@{socks.address}") == OK
    assert socks.asked == ["me:p@ss", "far.invalid:80"]


def test_a_socks_proxy_that_refuses(socks: _Tunnels) -> None:
    socks.refuses = True
    with pytest.raises(WebFetchConnectionError, match="the SOCKS proxy refused"):
        body("http://far.invalid/x", proxy=f"socks5h://{socks.address}")
