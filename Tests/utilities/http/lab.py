"""What tests of the HTTP client and its users share: certificates, and proxies that lead tunnels."""

from __future__ import annotations

import datetime
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from Tests.stub_backend import StubBackend


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
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(names, False)
        .add_extension(x509.BasicConstraints(True, None), True)
        .add_extension(x509.KeyUsage(True, False, False, False, False, True, True, False, False), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "stub.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + built.public_bytes(serialization.Encoding.PEM)
    )
    return path


def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def tls_backend(certificate: Path) -> Iterator[StubBackend]:
    with StubBackend(tls=server_tls(certificate)) as stub:
        yield stub


class Tunnels(socketserver.ThreadingTCPServer):
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
    server: Tunnels

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
