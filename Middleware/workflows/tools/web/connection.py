"""Connections of web requests: direct, to addresses chosen before, and through proxies of every kind."""
from __future__ import annotations

import functools
import importlib
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote
from urllib.request import (  # type: ignore[attr-defined]
    getproxies_environment,
    proxy_bypass_environment,
)

import certifi
from urllib3._base_connection import ProxyConfig
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import LocationParseError
from urllib3.util import Url, make_headers, parse_url
from urllib3.util.connection import create_connection

from Middleware.utilities.http.addresses import is_loopback
from Middleware.workflows.tools.web.errors import WebFetchError
from Middleware.workflows.tools.web.request import WebRequest

_SOCKET_OPTIONS: list[tuple[int, int, int | bytes]] = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
_DEFAULT_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks5": 1080, "socks5h": 1080}


class _Dialling:
    """Connects to ``addresses`` in turn if there are any, and through ``socks`` if that is given."""

    addresses: tuple[str, ...] = ()
    socks: Url | None = None
    host: Any
    port: Any
    timeout: Any
    _response_options: Any

    def _new_conn(self) -> socket.socket:
        if self.socks is not None:
            return _dial_socks(self.socks, self.addresses[0] if self.addresses else self.host, self.port, self.timeout)
        if not self.addresses:
            return super()._new_conn()  # type: ignore[misc, no-any-return]
        problem: OSError | None = None
        for address in self.addresses:
            try:
                return create_connection((address, self.port), self.timeout, socket_options=_SOCKET_OPTIONS)
            except OSError as error:
                problem = error
        raise problem or OSError("no address")

    def getresponse(self) -> Any:
        options = self._response_options
        if options is not None:  # urllib3 would log the URL with a warning about odd headers
            self._response_options = options._replace(request_url="/")
        return super().getresponse()  # type: ignore[misc]


class PlainConnection(_Dialling, HTTPConnection):
    """A connection without TLS."""


class TlsConnection(_Dialling, HTTPSConnection):
    """A connection with TLS; names and certificates are those of the host, whatever address it goes to."""


@dataclass(frozen=True)
class Way:
    """How a request goes to its server.

    Attributes:
        connection: not connected yet.
        proxy_headers: headers that a proxy wants on the request.
        absolute: the request names the whole URL, because a proxy reads it.
    """

    connection: PlainConnection | TlsConnection
    proxy_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    absolute: bool = False


def find_way(request: WebRequest, target: Url, addresses: tuple[str, ...]) -> Way:
    """The way to ``target``: directly, or through the request's proxy or that of the environment.

    ``addresses``: connect to these only. A SOCKS proxy is given the first; other proxies resolve the name themselves.
    """
    proxy = _proxy_of(request, target)
    if proxy is None:
        return Way(_connection(request, target, addresses))
    if str(proxy.scheme).startswith("socks"):
        connection = _connection(request, target, () if proxy.scheme == "socks5h" else addresses)
        connection.socks = proxy
        return Way(connection)
    headers = make_headers(proxy_basic_auth=unquote(proxy.auth)) if proxy.auth else {}
    if target.scheme == "http":
        return Way(_connection(request, proxy, ()), headers, absolute=True)
    tls = request.tls or default_tls()
    tunnel = TlsConnection(_name(proxy), _port(proxy), timeout=request.timeout, socket_options=_SOCKET_OPTIONS,
                           ssl_context=tls, proxy=proxy, proxy_config=ProxyConfig(tls, False, None, None))
    tunnel.set_tunnel(_name(target), _port(target), headers=headers, scheme=str(proxy.scheme))
    return Way(tunnel)


def tls_settings(verify: bool, ca_bundle: str | None) -> ssl.SSLContext | None:
    """Settings for https servers; None: the usual ones. Raises OSError (ssl.SSLError too) for an unusable bundle."""
    if not verify:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    return ssl.create_default_context(cafile=ca_bundle) if ca_bundle else None


def default_tls() -> ssl.SSLContext:
    """Certificates are checked against those of the system and certifi, or the bundle that the environment names."""
    return _tls(os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or certifi.where())


@functools.lru_cache(maxsize=4)
def _tls(bundle: str) -> ssl.SSLContext:  # costs some 20 ms
    context = ssl.create_default_context()
    context.load_verify_locations(**{"capath" if os.path.isdir(bundle) else "cafile": bundle})
    return context


def _connection(request: WebRequest, to: Url, addresses: tuple[str, ...]) -> PlainConnection | TlsConnection:
    connection: PlainConnection | TlsConnection
    if to.scheme == "https":
        connection = TlsConnection(_name(to), _port(to), timeout=request.timeout, socket_options=_SOCKET_OPTIONS,
                                   ssl_context=request.tls or default_tls())
    else:
        connection = PlainConnection(_name(to), _port(to), timeout=request.timeout, socket_options=_SOCKET_OPTIONS)
    connection.addresses = addresses
    return connection


def _proxy_of(request: WebRequest, target: Url) -> Url | None:
    url = request.proxy or (None if request.guarded else _environment_proxy(target))
    if not url:
        return None
    try:
        proxy = parse_url(url if "://" in url else f"http://{url}")
    except LocationParseError:
        proxy = Url()
    if proxy.scheme not in _DEFAULT_PORTS or not proxy.host:
        raise WebFetchError("WebFetch cannot use the proxy that the environment names.")
    return proxy


def _environment_proxy(target: Url) -> str | None:
    host = _name(target)
    proxies = getproxies_environment()
    if is_loopback(host) or proxy_bypass_environment(f"{host}:{_port(target)}", proxies):
        return None
    return proxies.get(str(target.scheme)) or proxies.get("all")


def _dial_socks(proxy: Url, host: str, port: int, timeout: object) -> socket.socket:
    try:
        socks = importlib.import_module("socks")  # PySocks; on first use: hardly anybody needs it
    except ImportError:
        raise WebFetchError("WebFetch needs the Python package PySocks for a SOCKS proxy. "
                            "Install it with: pip install PySocks") from None
    user, _, password = map(unquote, (proxy.auth or "").partition(":"))
    try:
        connection: socket.socket = socks.create_connection(
            (host, port), timeout=timeout, socket_options=_SOCKET_OPTIONS,
            proxy_type=socks.SOCKS4 if proxy.scheme == "socks4" else socks.SOCKS5, proxy_addr=_name(proxy),
            proxy_port=_port(proxy), proxy_username=user or None, proxy_password=password or None,
            proxy_rdns=proxy.scheme == "socks5h")
    except socks.ProxyError as error:
        raise OSError(f"the SOCKS proxy refused: {error.msg}") from None
    return connection


def _name(url: Url) -> str:
    return str(url.host).strip("[]")


def _port(url: Url) -> int:
    return url.port or _DEFAULT_PORTS[str(url.scheme)]
