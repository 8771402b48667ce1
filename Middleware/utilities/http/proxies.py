"""The proxy that a request goes through, if any."""

from __future__ import annotations

import importlib
import socket
from urllib.parse import unquote
from urllib.request import (  # type: ignore[attr-defined]
    getproxies_environment,
    proxy_bypass_environment,
)

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, make_headers, parse_url

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.http.addresses import is_loopback
from Middleware.utilities.http.wire import Route, Target

_DEFAULT_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks5": 1080, "socks5h": 1080}


def find_proxy(target: Target, route: Route) -> Url | None:
    """Return the proxy for a target, None for a direct connection. Raises ConfigValueError for an unusable proxy."""
    url = proxy_address(target, route)
    if not url:
        return None
    try:
        proxy = parse_url(url if "://" in url else f"http://{url}")
    except LocationParseError:
        proxy = Url()
    if proxy.scheme not in _DEFAULT_PORTS or not proxy.host:
        raise ConfigValueError("The proxy of the environment cannot be used", expected="an http:// proxy URL")
    return proxy


def proxy_address(target: Target, route: Route) -> str | None:
    """Return the proxy that the route or the environment names, without checking it."""
    if route.proxy or not route.environment:
        return route.proxy
    # A proxy on another computer would resolve a loopback address to itself.
    if is_loopback(target.host):
        return None
    proxies = getproxies_environment()
    if proxy_bypass_environment(f"{target.host}:{target.port}", proxies):
        return None
    return proxies.get(target.scheme) or proxies.get("all")


def authorization_headers(proxy: Url) -> dict[str, str]:
    """Return the headers for the user and password in a proxy's URL."""
    return dict(make_headers(proxy_basic_auth=unquote(proxy.auth))) if proxy.auth else {}


def proxy_host(proxy: Url) -> str:
    return str(proxy.host).strip("[]")


def proxy_port(proxy: Url) -> int:
    return proxy.port or _DEFAULT_PORTS[str(proxy.scheme)]


def is_socks(proxy: Url) -> bool:
    return str(proxy.scheme).startswith("socks")


def connect_by_socks(proxy: Url, host: str, port: int, timeout: float | None) -> socket.socket:
    """Connect to ``host`` through a SOCKS proxy. Raises OSError, and ConfigValueError if PySocks is missing."""
    # Imported on first use: such proxies are rare, and the package is optional.
    try:
        socks = importlib.import_module("socks")
    except ImportError:
        raise ConfigValueError(
            "A SOCKS proxy needs the Python package PySocks; install it with: pip install PySocks"
        ) from None
    user, _, password = map(unquote, (proxy.auth or "").partition(":"))
    try:
        connection: socket.socket = socks.create_connection(
            (host, port),
            timeout=timeout,
            proxy_type=socks.SOCKS4 if proxy.scheme == "socks4" else socks.SOCKS5,
            proxy_addr=proxy_host(proxy),
            proxy_port=proxy_port(proxy),
            proxy_username=user or None,
            proxy_password=password or None,
            proxy_rdns=proxy.scheme == "socks5h",
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        )
    except socks.ProxyError as error:
        raise OSError(f"the SOCKS proxy refused: {error.msg}") from None
    return connection
