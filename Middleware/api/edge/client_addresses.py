"""Refuse clients outside the local network while no key is required.

The peer of the connection decides. The headers in which a proxy names its client can only take the right away: a client
that sends them itself gains nothing by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from wsgiref.types import WSGIEnvironment

from Middleware.api.edge.browser_safety import Refusal
from Middleware.utilities.http.addresses import is_private_address

FORWARDED = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_VIA", "HTTP_X_REAL_IP")
"""Headers that proxies add, as the WSGI environ names them."""
_PEER = ("REMOTE_ADDR", *FORWARDED)
# A header can hold any text; messages show only this many characters of it. IPv6 addresses have at most 45.
_SHOWN = 60
_FOR = re.compile(r"\bfor\s*=\s*(\"[^\"]*\"|[^;,\s]*)", re.IGNORECASE)
# An address, in brackets if it is an IPv6 one with a port.
_ADDRESS = re.compile(r"\[([^\]]*)\](?::\d+)?|(\d+(?:\.\d+){3})(?::\d+)?")


def peer_of(environ: WSGIEnvironment) -> tuple[str | None, ...]:
    """Return the address of the connection with what proxies say of its client: both must be equal for the same peer.

    So a header, which a client can send itself, never makes it the same as a client with another address.
    """
    return tuple(map(environ.get, _PEER))


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
