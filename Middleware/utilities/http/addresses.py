"""Classify addresses, and guard against requests that a model or a user redirects to the local network.

The guard checks a URL by its host and, if private addresses are refused, by every address of that host. Connect to the
checked addresses (``UrlDecision.addresses``) only, because a second look-up may return different ones.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_START = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://([^/?#]*)")
# User, host and port in the only form that all programs parse the same way: no second "@", no backslash, no glob.
_AUTHORITY = re.compile(
    r"(?:[^@\[\]{}\\\s]*@)?(?:\[[0-9a-fA-F:.]+(?:%[\w.~%-]+)?\]|[^@:\[\]{}\\\s%\"<>^`|]+)(?::\d{0,5})?"
)

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")
# Listed here because only later Python versions exclude some of them from ``is_global``.
_NOT_GLOBAL = tuple(
    map(
        ipaddress.ip_network, ("100.64.0.0/10", "192.0.0.0/24", "fec0::/10", "64:ff9b:1::/48", "3fff::/20", "5f00::/16")
    )
)
# Loopback, private, link-local. Listed here because ``is_private`` includes 0.0.0.0 and, in some versions, others.
_LOCAL = tuple(
    map(
        ipaddress.ip_network,
        (
            "127.0.0.0/8",
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "169.254.0.0/16",
            "::1/128",
            "fc00::/7",
            "fe80::/10",
        ),
    )
)
# Shared by the customers of a carrier, who are not reachable from outside. VPNs such as Tailscale use it as well.
_CARRIER = ipaddress.ip_network("100.64.0.0/10")


@dataclass(frozen=True)
class UrlDecision:
    """The guard's decision about a URL.

    Attributes:
        reason: the reason for refusing it, a clause without a full stop; None if it is allowed.
        addresses: the IP addresses that were checked and allowed; empty if no address had to be checked.
    """

    reason: str | None = None
    addresses: tuple[str, ...] = ()


def is_loopback(host: str) -> bool:
    """Return whether a host is this computer, judged by its name or address without resolving it."""
    name = host.lower().strip("[]").rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = parse_address(name)
    return address is not None and unmapped(address).is_loopback


def is_local_address(text: str) -> bool:
    """Return whether an IP address is loopback, private or link-local. Raises ValueError for an invalid address."""
    address = unmapped(ipaddress.ip_address(text))
    return any(address in network for network in _LOCAL)


def is_private_address(text: str) -> bool:
    """Return whether an IP address is local, or one of 100.64.0.0/10. Raises ValueError for an invalid address.

    It is for clients. A back-end in 100.64.0.0/10 is not local: it may belong to anyone.
    """
    return is_local_address(text) or unmapped(ipaddress.ip_address(text)) in _CARRIER


def is_own_address(host: str) -> bool:
    """Return whether a host is an address of this computer. Connections to 0.0.0.0 reach it, too, on most systems."""
    address = parse_address(host)
    if address is None:
        return False
    plain = unmapped(address)
    try:
        with socket.socket(socket.AF_INET if plain.version == 4 else socket.AF_INET6) as probe:
            # Only the addresses of the own interfaces can be bound, so that none of them has to be listed.
            probe.bind((str(plain), 0))
    except OSError:
        return False
    return True


def parse_address(host: str) -> IPAddress | None:
    """Return the IP address that a host consists of, None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def check_url(
    url: str, block_private_addresses: bool = False, allowed_hosts: Iterable[str] | None = None
) -> UrlDecision:
    """Decide whether an absolute http or https URL may be requested.

    Args:
        block_private_addresses: refuse a host that is, or resolves to, any address that is not globally routable.
            Resolves names and so may block.
        allowed_hosts: the only hosts allowed, without port, any case. None: all; a list without a usable entry: none.
    """
    if not block_private_addresses and allowed_hosts is None:
        return UrlDecision()
    try:
        host = _host_of(url)
    except ValueError as problem:
        return UrlDecision(str(problem))
    if allowed_hosts is not None and host not in usable_hosts(allowed_hosts):
        return UrlDecision(f"host '{host}' is not one of the allowed hosts")
    return _check_host(host) if block_private_addresses else UrlDecision()


def check_proxy(
    proxy: str, authored: str, block_private_addresses: bool, allowed_hosts: Iterable[str] | None
) -> UrlDecision:
    """Decide whether a request may go through a proxy: its address is judged as that of a URL.

    Host and port that the author of the node or the configuration chose are allowed, also with a user name that others
    wrote.

    Args:
        proxy: a URL of any scheme, or a host without one.
        authored: the same with a stand-in for what users, models and tools wrote.
    """
    url, own = (f"http://{text.partition('://')[2] or text}" for text in (proxy, authored))
    if proxy == authored:
        return UrlDecision()
    with contextlib.suppress(LocationParseError):
        parts = parse_url(own)
        if parts.host and check_url(url, False, [parts.host]).reason is None and parse_url(url).port == parts.port:
            return UrlDecision()
    return check_url(url, block_private_addresses, allowed_hosts)


def usable_hosts(entries: Iterable[str]) -> list[str]:
    """Return host names as the guard compares them: trimmed, in lower case, without blank entries."""
    return [host for entry in entries if (host := _plain_host(entry.strip()))]


def forbidden_kind(address: IPAddress) -> str | None:
    """Return the kind of a forbidden address ("a loopback address", ...), None if it is globally routable."""
    address = _unwrapped(address)
    for kind, is_kind in (
        ("an unspecified", address.is_unspecified),
        ("a loopback", address.is_loopback),
        ("a link-local", address.is_link_local),
        ("a multicast", address.is_multicast),
        ("a reserved", address.is_reserved),
        ("a private", address.is_private),
    ):
        if is_kind:
            return f"{kind} address"
    if not address.is_global or any(address in network for network in _NOT_GLOBAL):
        return "not a globally routable address"
    return None


def _check_host(host: str) -> UrlDecision:
    literal = parse_address(host)
    if literal is not None:
        kind = forbidden_kind(literal)
        return UrlDecision(f"'{host}' is {kind}") if kind else UrlDecision(addresses=(str(literal),))
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        # getaddrinfo raises ValueError for a label that is invalid in any host name.
        return UrlDecision(f"host '{host}' cannot be resolved")
    addresses = list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
    for address in addresses:
        kind = forbidden_kind(ipaddress.ip_address(address))
        if kind:
            return UrlDecision(f"host '{host}' resolves to {address}, which is {kind}")
    return UrlDecision(addresses=tuple(addresses)) if addresses else UrlDecision(f"host '{host}' cannot be resolved")


def _host_of(url: str) -> str:
    """Return the host of a URL as the guard compares it. Raises ValueError with the reason to refuse the URL."""
    start = _START.match(url.strip())
    if start is None or not start[2]:
        raise ValueError("the URL has no host")
    if start[1].lower() not in ("http", "https"):
        raise ValueError("only http and https URLs are allowed")
    if not _AUTHORITY.fullmatch(start[2]):
        raise ValueError("the URL is malformed")
    try:
        host = parse_url(url.strip()).host
    except LocationParseError:
        raise ValueError("the URL is malformed") from None
    if not host or not (plain := _plain_host(host)):
        raise ValueError("the URL has no host")
    return plain


def _plain_host(host: str) -> str:
    """Return a host in lower case and DNS form, without brackets, zone id and one trailing dot."""
    host = host.lower()
    if host.startswith("[") or ":" in host:
        return host.strip("[]").partition("%")[0]
    if not host.isascii():
        try:
            host = parse_url(f"http://{host}/").host or host
        except LocationParseError:
            # The host stays as it is: no connection to it is possible anyway.
            pass
    return host[:-1] if host.endswith(".") else host


def unmapped(address: IPAddress) -> IPAddress:
    """Return the IPv4 address that a dual-stack socket reports as an IPv6 one, else the address itself."""
    return getattr(address, "ipv4_mapped", None) or address


def _unwrapped(address: IPAddress) -> IPAddress:
    """Return the IPv4 address embedded in an IPv6 address that is routed to it, else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and (address in _NAT64 or (address in _COMPATIBLE and int(address) > 1)):
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address if inner is None else inner
