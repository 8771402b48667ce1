"""Refuse clients outside the local network while no key is required.

The peer of the connection decides. The headers in which a proxy names its client can only take the right away: a client
that sends them itself gains nothing by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from wsgiref.types import WSGIEnvironment

from Middleware.api.edge.browser_safety import Refusal
from Middleware.utilities.http.addresses import IPAddress, is_private_address, parse_address, unmapped

FORWARDED = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_VIA", "HTTP_X_REAL_IP")
"""Headers that proxies add, as the WSGI environ names them."""
_PEER = ("REMOTE_ADDR", *FORWARDED)
# A header can hold any text; messages show only this many characters of it. IPv6 addresses have at most 45.
_SHOWN = 60
# The addresses of 20 proxies. Longer text is the same only letter by letter.
_LONGEST = 1000
_FOR = re.compile(r"\bfor\s*=\s*(\"[^\"]*\"|[^;,\s]*)", re.IGNORECASE)
# An address, in brackets if it is an IPv6 one with a port, which may have a name in place of a number (RFC 7239, 6).
_PORT = r"(?::(?:\d+|_[\w.-]+))?"
_ADDRESS = re.compile(rf"\[([^\]]*)\]{_PORT}|(\d+(?:\.\d+){{3}}){_PORT}")
# Where "localhost" leads, in the connections of one program now to the one and now to the other.
_LOCALHOST = {"::1": "127.0.0.1"}


def peer_of(environ: WSGIEnvironment) -> tuple[str | None, ...]:
    """Return the address of the connection with what proxies say of its client, for ``is_same_peer``."""
    return tuple(map(environ.get, _PEER))


def is_same_peer(one: tuple[str | None, ...], other: tuple[str | None, ...]) -> bool:
    """Return whether two results of ``peer_of`` have the same addresses: of the connection, and in each header.

    So a header, which a client can send itself, never makes it the same as a client with another address. Ports do not
    count: each connection has its own, and some proxies put it into the headers.
    """
    if one == other or not (one and other):
        return one == other
    # To read 64 KB of commas takes 0.15 s, for each running request that they are compared with.
    is_long = max(len(text or "") for text in (*one, *other)) > _LONGEST
    return not is_long and _plain_peer(*one) == _plain_peer(*other)


def _plain_peer(connection: str | None, *headers: str | None) -> tuple[str | None, ...]:
    address = _plain_address(connection or "")
    forwarded_for, forwarded, via, real_ip = headers
    return (
        # Only here: an address in a header may be that of a proxy's own machine.
        _LOCALHOST.get(address, address),
        forwarded_for and ",".join(map(_plain_address, forwarded_for.split(","))),
        forwarded and _FOR.sub(_with_plain_address, forwarded),
        via,
        real_ip and _plain_address(real_ip),
    )


def _with_plain_address(found: re.Match[str]) -> str:
    # Text that is not an address stays as it is, with its quotes: they may contain what looks like a second element.
    return found[0] if _address_in(found[1]) is None else f"for={_plain_address(found[1])}"


def _plain_address(text: str) -> str:
    """Return an address without its port, in the spelling that all have here; other text as it is."""
    address = _address_in(text)
    return text.strip() if address is None else str(unmapped(address))


def _address_in(text: str) -> IPAddress | None:
    return parse_address(_bare(text.strip().strip('"')))


def public_address(environ: WSGIEnvironment) -> str | None:
    """Return the first address of a request's origin that is not a private one; None if all are private.

    Text that is not an address counts as public. The peer comes first, then the addresses in the headers of proxies.
    """
    for address in _addresses(environ):
        try:
            is_private = is_private_address(address)
        except ValueError:
            is_private = False
        if not is_private:
            return address[:_SHOWN]
    return None


def refusal_of_public(address: str) -> Refusal:
    """Return the refusal of a client with this address. It names the ways to let the client in."""
    return Refusal(
        "403 Forbidden",
        (
            f"This server admits only clients in its own network, and {address or 'an unknown address'!a} is not "
            f"a private "
            "address. To let it in, start WilmerAI with --accepted-keys-file FILE and give the client a key, or with "
            "--allow-public, which lets in everyone."
        ),
    )


def _addresses(environ: WSGIEnvironment) -> Iterator[str]:
    # On a Unix socket there is no address, and whether others reach the socket is not known.
    yield environ.get("REMOTE_ADDR", "")
    for name in ("HTTP_X_FORWARDED_FOR", "HTTP_X_REAL_IP"):
        for text in environ.get(name, "").split(",") if name in environ else ():
            yield _bare(text)
    for text in _FOR.findall(environ.get("HTTP_FORWARDED", "")):
        yield _bare(text.strip('"'))


def _bare(text: str) -> str:
    """Return an address without brackets and port."""
    text = text.strip()
    found = _ADDRESS.fullmatch(text)
    return (found[1] or found[2] or "") if found else text
