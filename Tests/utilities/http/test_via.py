"""The header by which requests that come back are recognised, and addresses that are this server's own."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import Process, install, process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities.http import via
from Middleware.utilities.http.via import OwnServer, chain, comes_back, own_server, via_headers
from Tests.tables import table


@pytest.fixture(autouse=True)
def own_process() -> Any:
    replaced = install(Process())
    yield
    install(replaced)


def test_a_token_belongs_to_one_process() -> None:
    sent = chain("")
    assert comes_back(sent) and len(sent) == 32
    mine = process()
    install(Process())
    assert not comes_back(sent)
    passed_on = chain(sent)
    assert comes_back(passed_on) and passed_on.endswith(f", {sent}")
    install(mine)
    assert comes_back(passed_on)


def test_no_token_comes_twice() -> None:
    """Its random half is one of many that are drawn at once, by whichever thread needs it."""
    server = OwnServer()
    with ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(lambda _: server.token(), range(4 * via._DRAWN)))
    assert len(set(tokens)) == len(tokens) and all(map(server.has_made, tokens))
    # A secret that is shared later counts for tokens whose half was drawn before.
    server.secret = OwnServer().secret
    assert server.has_made(server.token()) and not server.has_made(tokens[0])


def test_processes_with_one_secret_are_one_server() -> None:
    first, second = OwnServer(), OwnServer()
    assert not second.has_made(first.token())
    second.secret = first.secret
    assert second.has_made(first.token()) and first.has_made(second.token())


def test_a_changed_token_is_foreign() -> None:
    token = chain("")
    for position in range(len(token)):
        changed = f"{token[:position]}{'0' if token[position] != '0' else '1'}{token[position + 1 :]}"
        assert not comes_back(changed)


def test_the_calls_of_a_request_have_one_token_and_requests_differ() -> None:
    values = []
    for _ in range(2):
        with request_scope(RequestContext()):
            values.append(via_headers())
            assert via_headers() == values[-1]
    assert values[0] != values[1]
    assert via_headers() != via_headers()


def test_the_header_never_grows_beyond_sixteen() -> None:
    value = ""
    for _ in range(20):
        install(Process())
        value = chain(value)
    assert value.count(",") == 15


def resolved(*addresses: str) -> Any:
    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        if not addresses:
            raise OSError("no such name")
        return [(0, 0, 0, "", (address, 0)) for address in addresses]

    return getaddrinfo


@table(
    ("host", "addresses", "own"),
    [
        *[(host, [], True) for host in ("127.0.0.1", "127.1.2.3", "localhost", "Localhost", "0.0.0.0", "::1", "::")],
        ("::ffff:127.0.0.1", [], True),
        ("llm.lan", ["127.0.0.1"], True),
        ("llm.lan", ["192.0.2.7", "::1"], True),
        ("llm.lan", ["0.0.0.0"], True),
        ("llm.lan", ["192.0.2.7"], False),
        ("llm.lan", [], False),
        ("192.0.2.7", [], False),
        ("2001:db8::7", [], False),
        ("8.8.8.8", [], False),
    ],
)
def test_own_addresses(monkeypatch: pytest.MonkeyPatch, host: str, addresses: list[str], own: bool) -> None:
    if host == "llm.lan":
        monkeypatch.setattr(via.socket, "getaddrinfo", resolved(*addresses))
    server = OwnServer()
    assert not server.is_at(host, 5000, CancelScope())
    server.port = 5000
    assert server.is_at(host, 5000, CancelScope()) is own and not server.is_at(host, 5001, CancelScope())


def test_the_address_of_an_interface_is_own() -> None:
    server = own_server()
    server.port = 5000
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Nothing is sent; the system only chooses the interface.
        probe.connect(("192.0.2.1", 9))
        assert server.is_at(probe.getsockname()[0], 5000, CancelScope())
    assert server.is_at(socket.gethostname(), 5000, CancelScope())


def test_a_name_is_resolved_once_and_only_at_the_own_port(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        return [(0, 0, 0, "", ("192.0.2.7", 0))]

    monkeypatch.setattr(via.socket, "getaddrinfo", getaddrinfo)
    server = OwnServer()
    server.port = 5000
    assert not server.is_at("llm.lan", 8080, CancelScope()) and asked == []
    assert not server.is_at("llm.lan", 5000, CancelScope()) and not server.is_at("llm.lan", 5000, CancelScope())
    assert asked == ["llm.lan"]
