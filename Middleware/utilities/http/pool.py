"""Open connections to servers, kept between requests: one stack per origin.

``urllib3`` makes the connection (addresses, TLS, proxy tunnel); from then on the client reads and writes the socket
itself, in slices (see ``exchange.py``).
"""
from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection, ProxyConfig
from urllib3.util import parse_url
from urllib3.util.ssltransport import SSLTransport
from urllib3.util.wait import wait_for_read

from Middleware.utilities.http.addresses import is_local_address
from Middleware.utilities.http.problems import HttpProblem, NotLocalError
from Middleware.utilities.http.proxies import authorization_headers, is_proxied, proxy_host, proxy_of, proxy_port
from Middleware.utilities.http.tls import default_context
from Middleware.utilities.http.unreachable import UnreachableOrigins
from Middleware.utilities.http.wire import Target

SLICE_SECONDS = 0.2
"""Longest single wait on a socket: where shutting it down wakes nobody, a stop is seen after this time."""

MAX_IDLE_PER_ORIGIN = 256
PLAIN_IDLE_SECONDS = 4.0
"""Common local servers close an idle connection after 5 s without saying so; a new one there costs next to nothing."""
TLS_IDLE_SECONDS = 50.0
SWEEP_SECONDS = 1.0
RECORD_BYTES = 16384  # most that a TLS record holds

_SOCKET_OPTIONS: list[tuple[int, int, int | bytes]] = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]


@dataclass
class Connection:
    """An open connection.

    Attributes:
        sock: the connected socket, or what stands for one, with a timeout of one slice.
        absolute: requests name the whole URL, because a plain HTTP proxy is at the other end.
        proxy_headers: headers that this proxy wants on each request.
        proxied: a proxy of any kind is at the other end.
        expires: moment (monotonic) from which it must not be taken from the pool.
    """

    sock: socket.socket
    owner: HTTPConnection
    absolute: bool = False
    proxy_headers: Mapping[str, str] = field(default_factory=dict)
    proxied: bool = False
    expires: float = 0.0

    def close(self) -> None:
        """Close the socket. Only for the thread that reads it."""
        self.owner.close()

    def shutdown(self) -> None:
        """End both directions, from any thread: a blocked read returns and the back-end sees the end."""
        try:
            sock = self._system_socket
            if isinstance(sock, ssl.SSLSocket):
                # not SSLSocket.shutdown: it takes the TLS object away under the reading thread
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            else:
                sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # not connected any more

    @property
    def tls_in_tls(self) -> bool:
        """The server's TLS runs within that of a proxy."""
        return isinstance(self.sock, SSLTransport)

    @property
    def _system_socket(self) -> socket.socket:
        sock: Any = self.sock
        return sock.socket if self.tls_in_tls else sock

    def send(self, data: memoryview, patience: float) -> int:
        """Write a part of ``data``; returns how many bytes. Raises TimeoutError after a slice, and can be called again.

        TLS within TLS cannot: it writes a record wholly or breaks the connection, so it waits for ``patience`` seconds.
        """
        if not self.tls_in_tls:
            return self.sock.send(data)
        self.sock.settimeout(patience)
        try:
            return self.sock.send(data[:RECORD_BYTES])
        finally:
            self.sock.settimeout(SLICE_SECONDS)

    def require_local(self) -> None:
        """Raise NotLocalError unless the peer itself is at the other end and in the local network."""
        address = str(self._system_socket.getpeername()[0]).partition("%")[0]
        if self.proxied or not is_local_address(address):
            raise NotLocalError(address)

    def is_fresh(self, local_only: bool = False) -> bool:
        """Whether an idle connection can be used: not expired, not closed, nothing unread in it."""
        if time.monotonic() >= self.expires:
            return False
        try:
            if local_only:
                self.require_local()
            if not wait_for_read(self.sock, timeout=0.0):
                return True
            if not isinstance(self.sock, ssl.SSLSocket):
                return False
            return self._only_tls_housekeeping()
        except (OSError, ValueError):
            return False

    def _only_tls_housekeeping(self) -> bool:
        self.sock.settimeout(0.0)  # session tickets make a healthy TLS connection readable
        try:
            self.sock.recv(1)
            return False
        except ssl.SSLWantReadError:
            return True
        finally:
            self.sock.settimeout(SLICE_SECONDS)


class ConnectionPool:
    """Idle connections by origin. Thread-safe; the newest is taken first.

    Attributes:
        unreachable: the origins that new connections are not tried to for a moment.
    """

    def __init__(self) -> None:
        self.unreachable: UnreachableOrigins[HttpProblem] = UnreachableOrigins()
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str, int], list[Connection]] = {}
        self._next_sweep = 0.0

    def take(self, target: Target, local_only: bool = False) -> Connection | None:
        """An idle connection that is still good, or None. ``local_only``: and whose peer is in the local network."""
        while True:
            with self._lock:
                stack = self._idle.get(target.origin)
                connection = stack.pop() if stack else None
                expired = self._expired(time.monotonic())
            for old in expired:
                old.close()
            if connection is None:
                return None
            if connection.is_fresh(local_only):
                return connection
            connection.close()

    def give_back(self, target: Target, connection: Connection, idle_seconds: float | None = None) -> None:
        """Keep a connection whose response was read to its end. ``idle_seconds``: the server's own limit, if known."""
        default = TLS_IDLE_SECONDS if target.scheme == "https" else PLAIN_IDLE_SECONDS
        keep = default if idle_seconds is None else min(max(idle_seconds - 1.0, 0.0), TLS_IDLE_SECONDS)
        now = time.monotonic()
        connection.expires = now + keep
        with self._lock:
            dropped = self._expired(now)
            stack = self._idle.setdefault(target.origin, [])
            while stack and (stack[0].expires <= now or len(stack) >= MAX_IDLE_PER_ORIGIN):
                dropped.append(stack.pop(0))
            if keep <= 0:
                dropped.append(connection)
            else:
                stack.append(connection)
        for old in dropped:
            old.close()

    def _expired(self, now: float) -> list[Connection]:
        """Take out the idle connections whose time is over, of all origins, once in a while. Needs the lock."""
        if now < self._next_sweep:
            return []
        self._next_sweep = now + SWEEP_SECONDS
        expired = [connection for stack in self._idle.values() for connection in stack if connection.expires <= now]
        self._idle = {origin: kept for origin, stack in self._idle.items()
                      if (kept := [connection for connection in stack if connection.expires > now])}
        return expired

    def idle_count(self) -> int:
        with self._lock:
            return sum(map(len, self._idle.values()))

    def close_all(self) -> None:
        """Close every idle connection; those in use are closed when their call ends."""
        with self._lock:
            idle = [connection for stack in self._idle.values() for connection in stack]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def open(self, target: Target, timeout: float, local_only: bool = False) -> Connection:
        """Connect, through the proxy of the environment if one applies. Blocks; raises OSError or urllib3 errors.

        ``local_only`` goes without a proxy, as only the peer's own address tells, and raises NotLocalError.
        """
        proxy = None if local_only else proxy_of(target)
        absolute, proxy_headers = False, {}
        if proxy is None:
            owner = _make(target.scheme, target.host, target.port, timeout)
        elif target.scheme == "https":
            owner = _make("https", proxy_host(proxy), proxy_port(proxy), timeout, str(proxy.scheme))
            owner.set_tunnel(target.host, target.port, headers=authorization_headers(proxy), scheme=str(proxy.scheme))
        else:
            owner = _make(str(proxy.scheme), proxy_host(proxy), proxy_port(proxy), timeout)
            absolute, proxy_headers = True, authorization_headers(proxy)
        try:
            owner.connect()
            owner.sock.settimeout(SLICE_SECONDS)
            connection = Connection(sock=owner.sock, owner=owner, absolute=absolute, proxy_headers=proxy_headers,
                                    proxied=proxy is not None)
            if local_only:
                connection.require_local()
        except BaseException:
            owner.close()
            raise
        return connection


def _make(scheme: str, host: str, port: int, timeout: float, proxy_scheme: str = "") -> HTTPConnection:
    if scheme == "https":
        proxy = parse_url(f"{proxy_scheme}://{host}:{port}") if proxy_scheme else None
        context = default_context()
        through = ProxyConfig(context, False, None, None) if proxy_scheme == "https" else None
        return HTTPSConnection(host, port, timeout=timeout, socket_options=_SOCKET_OPTIONS, proxy=proxy,
                               proxy_config=through, ssl_context=context)
    return HTTPConnection(host, port, timeout=timeout, socket_options=_SOCKET_OPTIONS)


def way_to(target: Target, local_only: bool = False) -> tuple[str, str, int]:
    """Under what name it is remembered that a target cannot be reached: directly and by proxy are two ways."""
    scheme, host, port = target.origin
    return f"{scheme} by proxy" if not local_only and is_proxied(target) else scheme, host, port

