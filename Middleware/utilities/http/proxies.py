"""The proxy that a request goes through, if any."""
from __future__ import annotations

from urllib.parse import unquote
from urllib.request import (  # type: ignore[attr-defined]
    getproxies_environment,
    proxy_bypass_environment,
)

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, make_headers, parse_url

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.http.addresses import is_loopback
from Middleware.utilities.http.wire import Target

_DEFAULT_PORTS = {"http": 80, "https": 443}


def proxy_of(target: Target) -> Url | None:
    """The proxy that the environment names for a target, None for a direct connection.

    Raises ConfigValueError for one that cannot be used.
    """
    url = _environment_proxy(target)
    if not url:
        return None
    try:
        proxy = parse_url(url if "://" in url else f"http://{url}")
    except LocationParseError:
        proxy = Url()
    if proxy.scheme not in _DEFAULT_PORTS or not proxy.host:
        raise ConfigValueError("The proxy of the environment cannot be used", expected="an http:// proxy URL")
    return proxy


def is_proxied(target: Target) -> bool:
    """Whether the environment names a proxy for a target, usable or not."""
    return bool(_environment_proxy(target))


def authorization_headers(proxy: Url) -> dict[str, str]:
    """The headers that a proxy wants for the user and password in its URL."""
    return dict(make_headers(proxy_basic_auth=unquote(proxy.auth))) if proxy.auth else {}


def proxy_host(proxy: Url) -> str:
    return str(proxy.host).strip("[]")


def proxy_port(proxy: Url) -> int:
    return proxy.port or _DEFAULT_PORTS[str(proxy.scheme)]


def _environment_proxy(target: Target) -> str | None:
    # A proxy elsewhere would look for loopback addresses on its own computer.
    if is_loopback(target.host):
        return None
    proxies = getproxies_environment()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if not proxy or proxy_bypass_environment(f"{target.host}:{target.port}", proxies):
        return None
    return proxy
