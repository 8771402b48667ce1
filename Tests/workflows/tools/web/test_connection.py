"""Connections of web requests: TLS, tunnels and SOCKS proxies, each against a real server."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.http.client import HttpClient
from Middleware.utilities.http.connection import custom_context
from Middleware.utilities.http.problems import HttpError
from Middleware.utilities.http.wire import HttpRequest, Route, parse_target
from Middleware.workflows.tools.web.fetch import WebFetchConnectionError, WebRequest, fetch
from Tests.stub_backend import Reply, StubBackend
from Tests.utilities.http.lab import Tunnels, certificate, server_tls, tls_backend

__all__ = ["certificate", "tls_backend"]  # fixtures

OK = b'{"ok": true}'


@pytest.fixture
def secure(tls_backend: StubBackend) -> StubBackend:
    return tls_backend


@pytest.fixture
def plain() -> Iterator[StubBackend]:
    with StubBackend() as server:
        yield server


def body(url: str, **keys: Any) -> bytes:
    return fetch(WebRequest(url, timeout=60, **keys), CancelScope()).body


# -- TLS ---------------------------------------------------------------------------------------------------------------


def test_an_unknown_certificate(secure: StubBackend) -> None:
    with pytest.raises(WebFetchConnectionError, match="certificate was not accepted"):
        body(secure.url)
    assert secure.requests == []


def test_a_ca_bundle(secure: StubBackend, certificate: Path) -> None:
    assert body(secure.url, tls=custom_context(True, str(certificate))) == OK


def test_the_bundle_of_the_environment(secure: StubBackend, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    assert body(secure.url) == OK


def test_unchecked(secure: StubBackend) -> None:
    assert body(secure.url, tls=custom_context(False, None)) == OK
    assert custom_context(True, None) is None


def test_a_server_without_tls(plain: StubBackend) -> None:
    with pytest.raises(WebFetchConnectionError, match="no TLS connection came about"):
        body(plain.url.replace("http:", "https:"))


def test_a_chosen_address_keeps_the_name(secure: StubBackend, certificate: Path) -> None:
    """Certificate and Host are those of the name; the second address serves when the first does not."""
    tls = custom_context(True, str(certificate))
    request = HttpRequest(
        parse_target(f"https://far.example:{secure.port}/"),
        "GET",
        connect_timeout=60,
        route=Route(addresses=("127.0.0.2",), tls=tls),
    )
    with pytest.raises(HttpError, match="connection refused"):
        HttpClient().call(request)
    both = dataclasses.replace(request, route=Route(addresses=("127.0.0.2", "127.0.0.1"), tls=tls))
    assert HttpClient().call(both).body == OK
    assert secure.requests[0].headers["host"] == f"far.example:{secure.port}"


def test_connections_of_another_route_are_not_shared(plain: StubBackend) -> None:
    """A connection to checked addresses serves that request alone, and takes none that somebody else has made."""
    client, request = HttpClient(), HttpRequest(parse_target(plain.url), "GET", keep_alive=True)
    checked = Route(addresses=("127.0.0.1",))
    for route in (Route(), checked, checked, Route(environment=False), Route()):
        assert client.call(dataclasses.replace(request, route=route)).body == OK
    assert plain.connections == 4


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
        fetch(WebRequest(secure.url, timeout=120, tls=custom_context(False, None)), scope)
    assert time.monotonic() - moments[0] < 60
    assert secure.requests[0].wait_ended()


# -- tunnels -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tunnels(secure: StubBackend) -> Iterator[Tunnels]:
    with Tunnels(secure.port) as proxy:
        yield proxy
        proxy.shutdown()


def test_https_through_a_proxy(tunnels: Tunnels, secure: StubBackend, certificate: Path) -> None:
    tls = custom_context(True, str(certificate))
    assert body("https://far.example/x", tls=tls, proxy=f"http://me:p%40ss@{tunnels.address}") == OK
    assert tunnels.asked[0].startswith("CONNECT far.example:443 ")
    assert "Basic bWU6cEBzcw==" in tunnels.asked[0]
    assert "proxy-authorization" not in secure.requests[0].headers


def test_https_through_an_https_proxy(secure: StubBackend, certificate: Path) -> None:
    tls = custom_context(True, str(certificate))
    with Tunnels(secure.port, server_tls(certificate)) as proxy:
        assert body("https://far.example/x", tls=tls, proxy=f"https://{proxy.address}") == OK
        proxy.shutdown()


def test_http_through_an_https_proxy(secure: StubBackend, certificate: Path) -> None:
    assert body("http://far.example/x", tls=custom_context(True, str(certificate)), proxy=secure.url) == OK
    assert secure.requests[0].path == "http://far.example/x"


def test_a_proxy_that_refuses(tunnels: Tunnels) -> None:
    tunnels.refuses = True
    with pytest.raises(WebFetchConnectionError, match="403 Forbidden"):
        body("https://far.example/x", proxy=f"http://{tunnels.address}")


# -- SOCKS -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def socks(plain: StubBackend) -> Iterator[Tunnels]:
    with Tunnels(plain.port) as proxy:
        yield proxy
        proxy.shutdown()


@pytest.mark.parametrize(
    ("scheme", "host", "asked"),
    [
        ("socks5h", "far.invalid", "far.invalid:80"),
        ("socks5", "localhost", "127.0.0.1:80"),
        ("socks4", "localhost", "127.0.0.1:80"),
    ],
)
def test_a_socks_proxy(socks: Tunnels, scheme: str, host: str, asked: str) -> None:
    assert body(f"http://{host}/x", proxy=f"{scheme}://{socks.address}") == OK
    assert socks.asked == [asked]


def test_a_socks_proxy_with_a_password(socks: Tunnels) -> None:
    assert body("http://far.invalid/x", proxy=f"socks5h://me:p%40ss@{socks.address}") == OK
    assert socks.asked == ["me:p@ss", "far.invalid:80"]


def test_a_socks_proxy_that_refuses(socks: Tunnels) -> None:
    socks.refuses = True
    with pytest.raises(WebFetchConnectionError, match="the SOCKS proxy refused"):
        body("http://far.invalid/x", proxy=f"socks5h://{socks.address}")
