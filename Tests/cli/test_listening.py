"""The listening socket."""
from __future__ import annotations

import socket

import pytest

from Middleware.cli.errors import StartError
from Middleware.cli.listening import bind_socket, is_loopback, start_listening, url_of


def test_a_taken_port_is_one_clear_sentence():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StartError, match=f"Port {port} on 127.0.0.1 is already in use.*--port"):
            bind_socket("127.0.0.1", port)


def test_an_address_of_another_machine():
    with pytest.raises(StartError, match="192.0.2.1"):
        bind_socket("192.0.2.1", 0)


def test_a_name_that_does_not_exist():
    with pytest.raises(StartError, match="no-such-host.invalid"):
        bind_socket("no-such-host.invalid", 0)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_all_ipv6_addresses_include_ipv4():
    with bind_socket("::", 0) as sock:
        start_listening(sock)
        socket.create_connection(("127.0.0.1", sock.getsockname()[1]), timeout=2).close()


@pytest.mark.parametrize(("host", "url"), [
    ("0.0.0.0", "http://127.0.0.1:80"), ("::", "http://[::1]:80"), ("10.0.0.4", "http://10.0.0.4:80"),
    ("fe80::1", "http://[fe80::1]:80")])
def test_url(host, url):
    assert url_of(host, 80) == url


def test_loopback():
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("::")


@pytest.mark.parametrize(("host", "address"), [
    ("127.0.0.1:5000", "127.0.0.1"), ("[::1]:5000", "::1"), ("localhost:5000", "localhost")])
def test_an_address_with_a_port(host, address):
    with pytest.raises(StartError) as error:
        bind_socket(host, 0)
    assert str(error.value).endswith(f"The port goes into --port: --listen {address} --port 5000")
