"""The listening socket."""

from __future__ import annotations

import socket
import sys

import pytest

from Middleware.api.edge.body_budget import BodyBudget
from Middleware.api.running.running_requests import RunningRequests
from Middleware.cli.program import StartError
from Middleware.cli.serving import listening
from Middleware.cli.serving.listening import (
    bind_socket,
    outward_addresses,
    return_memory_of_bodies,
    start_listening,
    url_of,
    urls_elsewhere,
)
from Middleware.cli.serving.serve_waitress import make_server
from Middleware.cli.serving.waitress_connections import SlowClients
from Middleware.models.process import Process, install
from Middleware.models.request_context import RequestContext
from Middleware.utilities.http.addresses import is_loopback
from Tests.patience import PATIENCE


def test_a_taken_port_is_one_clear_sentence():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StartError, match=f"Port {port} on 127.0.0.1 is already in use.*--port"):
            bind_socket("127.0.0.1", port)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (10048, "Port 5000 on 0.0.0.0 is already in use. Stop the program"),
        (10013, "Port 5000 on 0.0.0.0 is in use by another program (perhaps a WilmerAI that is still running), or "),
    ],
)
def test_what_windows_says_of_a_port_is_one_clear_sentence(monkeypatch, code, text):
    class Refusing(socket.socket):
        def bind(self, address):
            error = OSError(13, "An attempt was made to access a socket in a way forbidden by its access permissions")
            error.winerror = code
            raise error

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(StartError) as refused:
        bind_socket("0.0.0.0", 5000)
    assert str(refused.value).startswith(text) and "--port" in str(refused.value)


@pytest.mark.skipif(sys.platform != "win32", reason="elsewhere the option means another thing")
def test_no_program_takes_a_port_along():
    """With SO_REUSEADDR, a second program would get some of the connections."""
    with bind_socket("127.0.0.1", 0) as one, socket.socket() as two:
        start_listening(one)
        two.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError):
            two.bind(one.getsockname())


def test_an_address_of_another_machine():
    with pytest.raises(StartError, match="192.0.2.1"):
        bind_socket("192.0.2.1", 0)


@pytest.mark.skipif(sys.platform == "win32", reason="the second one cannot even bind there")
def test_a_port_on_which_another_program_listens_meanwhile():
    with bind_socket("127.0.0.1", 0) as one, bind_socket("127.0.0.1", one.getsockname()[1]) as two:
        start_listening(one)
        with pytest.raises(StartError, match=str(one.getsockname()[1])):
            make_server(lambda environ, start_response: [], two, {})


def test_a_name_that_does_not_exist():
    with pytest.raises(StartError, match="no-such-host.invalid"):
        bind_socket("no-such-host.invalid", 0)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_all_ipv6_addresses_include_ipv4():
    with bind_socket("::", 0) as sock:
        start_listening(sock)
        socket.create_connection(("127.0.0.1", sock.getsockname()[1]), timeout=PATIENCE).close()


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("10.0.0.4", "http://10.0.0.4:80"),
        ("fe80::1", "http://[fe80::1]:80"),
    ],
)
def test_url(host, url):
    assert url_of(host, 80) == url


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1:5000", "127.0.0.1"), ("[::1]:5000", "::1"), ("localhost:5000", "localhost")]
)
def test_an_address_with_a_port(host, address):
    with pytest.raises(StartError) as error:
        bind_socket(host, 0)
    assert str(error.value).endswith(f"The port goes into --port: --listen {address} --port 5000")


def test_the_addresses_that_other_devices_can_type():
    for address in outward_addresses(ipv6=True):
        assert not is_loopback(address) and address not in ("0.0.0.0", "::")
        with bind_socket(address, 0) as sock:  # no other machine's
            assert sock.getsockname()[0] == address


def test_addresses_are_found_without_sending(monkeypatch):
    """A datagram socket that is connected has sent nothing yet; one that would send fails here."""
    for name in ("send", "sendto", "sendall", "sendmsg"):
        if hasattr(socket.socket, name):
            monkeypatch.setattr(socket.socket, name, None)
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert len(outward_addresses(ipv6=True)) == len(set(outward_addresses(ipv6=True)))


def test_every_address_has_its_url(monkeypatch):
    monkeypatch.setattr(listening, "in_container", lambda: False)
    monkeypatch.setattr(listening, "outward_addresses", lambda ipv6: ["192.168.1.5", *(["fd00::5"] if ipv6 else [])])
    assert urls_elsewhere("0.0.0.0", 5000) == ["http://192.168.1.5:5000"]
    assert urls_elsewhere("::", 5000) == ["http://192.168.1.5:5000", "http://[fd00::5]:5000"]


def test_without_a_network_there_is_the_name(monkeypatch):
    monkeypatch.setattr(listening, "in_container", lambda: False)
    monkeypatch.setattr(listening, "outward_addresses", lambda ipv6: [])
    assert urls_elsewhere("0.0.0.0", 5000) == [f"http://{socket.gethostname()}:5000"]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "192.168.1.5"])
def test_one_address_needs_no_others(address):
    assert urls_elsewhere(address, 5000) == []


def test_a_container_does_not_know_its_address_outside(monkeypatch):
    monkeypatch.setattr(listening, "in_container", lambda: True)
    assert urls_elsewhere("0.0.0.0", 5000) == []


@pytest.mark.parametrize("look", [return_memory_of_bodies, lambda: SlowClients().sweep([])], ids=["itself", "Waitress"])
def test_memory_of_bodies_is_given_back_when_nothing_is_at_work(look, monkeypatch):
    made, budget, requests, request = Process(), BodyBudget(), RunningRequests(), RequestContext()
    made.put(BodyBudget, budget)
    made.put(RunningRequests, requests)
    given = []
    monkeypatch.setattr(listening, "return_small_blocks", lambda: given.append(requests.at_work))
    replaced = install(made)
    try:
        look()
        requests.arrive(request)
        body = budget.begin(lambda: None)
        budget.hold(body, 100 << 20)
        look()
        budget.leave(body)
        # The body is parsed now, and takes memory in other forms.
        look()
        assert not given
        requests.leave(request)
        look()
        look()
        assert given == [False]
    finally:
        install(replaced)
