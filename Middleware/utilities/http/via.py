"""Recognise requests that come back: an endpoint may lead to this server, directly or through other servers.

A request to a back-end carries the header ``X-Wilmer-Via``: a token of this server, then those of the request that is
being served. Each request of a client has a new token, so other servers cannot connect a client's requests by them.
"""

from __future__ import annotations

import hmac
import itertools
import re
import secrets
import socket
from collections.abc import Iterator

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.models.request_context import current_request
from Middleware.utilities.daemon_threads import DeadlineError, run_interruptible
from Middleware.utilities.http.addresses import is_loopback, is_own_address
from Middleware.utilities.once import BoundedCache

HEADER, ENVIRON_KEY = "X-Wilmer-Via", "HTTP_X_WILMER_VIA"
# Longer chains of servers are not useful. It also limits what a client can make of the header.
MAX_TOKENS = 16
# A name that does not resolve in this time is not known to lead here.
RESOLVE_SECONDS = 1.0
# More hosts than any configuration has at this server's port.
MAX_HOSTS = 256
_HALF = 8
# Random halves of tokens that are drawn at once, which costs one call of the system.
_DRAWN = 256
_TOKEN = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{32}(?![0-9A-Za-z])")


class OwnServer:
    """What this process knows itself by.

    Attributes:
        secret: signs its tokens. Servers with one state database have the same.
        port: the port that it listens on; None if it does not listen, or if another program does that for it.
    """

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(32)
        self.port: int | None = None
        self._halves: list[bytes] = []
        self._hosts: BoundedCache[str, bool] = BoundedCache(MAX_HOSTS)

    def token(self, half: bytes = b"") -> str:
        """Return a token: random bytes, which ``half`` may give, and as many bytes of their signature."""
        try:
            half = half or self._halves.pop()
        except IndexError:
            drawn = secrets.token_bytes(_HALF * _DRAWN)
            half, *self._halves = [drawn[at : at + _HALF] for at in range(0, len(drawn), _HALF)]
        return (half + hmac.digest(self.secret, half, "sha256")[:_HALF]).hex()

    def has_made(self, token: str) -> bool:
        return hmac.compare_digest(self.token(bytes.fromhex(token)[:_HALF]), token)

    def is_at(self, host: str, port: int, scope: CancelScope) -> bool:
        """Return whether an address is that of this server. Resolves a name, once, if the port is its own."""
        if port != self.port:
            return False
        if is_loopback(host):
            return True
        known = self._hosts.get(host)
        if known is None:
            try:
                found = run_interruptible(lambda _: socket.getaddrinfo(host, port), scope, RESOLVE_SECONDS)
            # A call to it fails in the same way. ValueError: a name that IDNA cannot encode.
            except (OSError, ValueError, DeadlineError):
                return False
            known = any(is_own_address(str(entry[4][0])) for entry in found)
            self._hosts.put(host, known)
        return known


def own_server() -> OwnServer:
    return process().one(OwnServer)


def via_headers(own: OwnServer | None = None) -> dict[str, str]:
    """Return the header for a request to a back-end, made for the current request if there is one."""
    request = current_request()
    value = (request is not None and request.via) or (own or own_server()).token()
    if request is not None:
        request.via = value
    return {HEADER: value}


def chain(received: str) -> str:
    """Return the value of the header for the back-ends of a request that came with the value ``received``."""
    return ", ".join(itertools.islice((own_server().token(), *_tokens(received)), MAX_TOKENS))


def comes_back(received: str) -> bool:
    """Return whether a request with this value of the header was sent by this server while it served another."""
    return any(map(own_server().has_made, _tokens(received)))


def _tokens(received: str) -> Iterator[str]:
    return (found[0] for found in itertools.islice(_TOKEN.finditer(received), MAX_TOKENS))


def is_own_host(host: str) -> bool:
    """Return whether a host is this computer, judged without resolving a name."""
    return is_loopback(host) or is_own_address(host) or host.rstrip(".").lower() == socket.gethostname().lower()
