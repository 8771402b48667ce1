"""One open connection: opening it, writing to it, and shutting it down from another thread.

``urllib3`` opens it (addresses, TLS, proxy tunnel). After that the client reads and writes the socket itself, in
slices (see ``exchange.py``).
"""

from __future__ import annotations

import functools
import os
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import BuiltinMethodType
from typing import Any

import certifi
from urllib3.connection import HTTPConnection, HTTPSConnection, ProxyConfig
from urllib3.util import Url
from urllib3.util.connection import create_connection
from urllib3.util.ssltransport import SSLTransport
from urllib3.util.wait import wait_for_read

from Middleware.utilities.http.addresses import is_local_address
from Middleware.utilities.http.problems import NotLocalError
from Middleware.utilities.http.proxies import (
    authorization_headers,
    connect_by_socks,
    find_proxy,
    is_socks,
    proxy_host,
    proxy_port,
)
from Middleware.utilities.http.wire import Route, Target

# The longest single wait on a socket. A stop takes effect after this time if shutting the socket down wakes no thread.
SLICE_SECONDS = 0.2
# What a read or a write raises after a slice: the system's own timeout is reported as a call that would block.
SLICE_PASSED = (TimeoutError, BlockingIOError)
# The maximum size of a TLS record.
RECORD_BYTES = 16384

_SOCKET_OPTIONS: list[tuple[int, int, int | bytes]] = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
]


@dataclass
class Connection:
    """An open connection.

    Attributes:
        sock: the connected socket or TLS transport, which waits in slices.
        absolute: requests contain the whole URL, because the peer is a plain HTTP proxy.
        proxy_headers: headers that this proxy requires on each request.
        proxied: the peer is a proxy of any kind.
        expires: moment (monotonic) from which the pool must not hand it out.
    """

    sock: socket.socket
    owner: HTTPConnection
    absolute: bool = False
    proxy_headers: Mapping[str, str] = field(default_factory=dict)
    proxied: bool = False
    expires: float = 0.0

    def wait_in_slices(self) -> None:
        """Make each read and write raise one of SLICE_PASSED after a slice without progress."""
        if not _limit_by_system(self.sock):
            self.sock.settimeout(SLICE_SECONDS)

    @property
    def receive(self) -> Callable[[int], bytes]:
        """The function that reads at most so many bytes, ``b""`` at the end of the connection; it waits in slices."""
        # The method of the socket itself: a method around it would cost a call for each token.
        return self.sock.recv

    def close(self) -> None:
        """Close the socket. Only the thread that reads it may call this."""
        self.owner.close()

    def shutdown(self) -> None:
        """End both directions, from any thread: a blocked read returns, and the server notices the end."""
        try:
            sock = self._system_socket
            if isinstance(sock, ssl.SSLSocket):
                # SSLSocket.shutdown would remove the TLS object while another thread reads from it.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            else:
                sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The connection has already ended.
            pass

    @property
    def tls_in_tls(self) -> bool:
        """The server's TLS runs within that of a proxy."""
        return isinstance(self.sock, SSLTransport)

    @property
    def _system_socket(self) -> socket.socket:
        sock: Any = self.sock
        system: socket.socket = sock.socket if self.tls_in_tls else sock
        return system

    def send(self, data: memoryview, timeout: float) -> int:
        """Write a part of ``data`` and return how many bytes. Raises SLICE_PASSED after a slice; call it again then.

        TLS within TLS writes a whole record or breaks the connection, so it waits for ``timeout`` seconds instead.
        """
        if not self.tls_in_tls:
            return self.sock.send(data)
        self.sock.settimeout(timeout)
        try:
            return self.sock.send(data[:RECORD_BYTES])
        finally:
            self.wait_in_slices()

    def require_local(self) -> None:
        """Raise NotLocalError unless the connection leads directly to a peer in the local network."""
        address = str(self._system_socket.getpeername()[0]).partition("%")[0]
        if self.proxied or not is_local_address(address):
            raise NotLocalError(address)

    def is_fresh(self, local_only: bool = False) -> bool:
        """Return whether an idle connection can be used: not expired, not closed, without unread data."""
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
        # Session tickets make an intact TLS connection readable.
        self.sock.settimeout(0.0)
        try:
            self.sock.recv(1)
            return False
        except ssl.SSLWantReadError:
            return True
        finally:
            self.wait_in_slices()


def open_connection(target: Target, timeout: float, route: Route) -> Connection:
    """Connect, through a proxy if the route or the environment names one. Blocks; raises OSError or urllib3 errors.

    A ``local_only`` route uses no proxy, because the peer's own address must be checked, and raises NotLocalError.
    """
    proxy = None if route.local_only else find_proxy(target, route)
    secure = target.scheme == "https" or (proxy is not None and proxy.scheme == "https")
    tls = route.tls or (_default_context() if secure else None)
    absolute, proxy_headers = False, {}
    owner: _PlainConnection | _TlsConnection
    if proxy is None or is_socks(proxy):
        owner = _make(target.scheme, target.host, target.port, timeout, tls)
        owner.socks = proxy
        # The scheme socks5h means that the proxy resolves the name.
        owner.addresses = () if proxy is not None and proxy.scheme == "socks5h" else route.addresses
    elif target.scheme == "https":
        within = ProxyConfig(tls, False, None, None) if proxy.scheme == "https" else None
        owner = _TlsConnection(
            proxy_host(proxy),
            proxy_port(proxy),
            timeout=timeout,
            socket_options=_SOCKET_OPTIONS,
            proxy=proxy,
            proxy_config=within,
            ssl_context=tls,
        )
        owner.set_tunnel(target.host, target.port, headers=authorization_headers(proxy), scheme=str(proxy.scheme))
    else:
        owner = _make(str(proxy.scheme), proxy_host(proxy), proxy_port(proxy), timeout, tls)
        absolute, proxy_headers = True, authorization_headers(proxy)
    try:
        owner.connect()
        connection = Connection(
            sock=owner.sock, owner=owner, absolute=absolute, proxy_headers=proxy_headers, proxied=proxy is not None
        )
        connection.wait_in_slices()
        if route.local_only:
            connection.require_local()
    except BaseException:
        owner.close()
        raise
    return connection


def _limit_by_system(sock: socket.socket) -> bool:
    """Let the system limit each wait on a socket to a slice; return False if that is not possible.

    A wait is then one system call. Python's own timeout needs two, ``poll`` and ``recv``, and takes the interpreter's
    lock after each of them.
    """
    # Windows documents that a socket is in an undefined state after such a timeout: data may be lost.
    if sys.platform == "win32":
        return False
    # TLS and Eventlet have their own methods in Python, which need Python's timeout.
    if not isinstance(sock.recv, BuiltinMethodType):
        return False
    sock.settimeout(None)
    seconds, microseconds = divmod(round(SLICE_SECONDS * 1_000_000), 1_000_000)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        # The C library chooses the size of ``struct timeval``, which may be 16 bytes on a 32-bit system too.
        size = len(sock.getsockopt(socket.SOL_SOCKET, option, 16))
        sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("=qq" if size == 16 else "=ii", seconds, microseconds))
    return True


class _ChosenAddresses:
    """Mixin that connects to ``addresses`` one after the other if there are any, and through the proxy ``socks`` if
    given."""

    addresses: tuple[str, ...] = ()
    socks: Url | None = None
    host: Any
    port: Any
    timeout: Any

    def _new_conn(self) -> socket.socket:
        if self.socks is not None:
            return connect_by_socks(
                self.socks, self.addresses[0] if self.addresses else self.host, self.port, self.timeout
            )
        if not self.addresses:
            return super()._new_conn()  # type: ignore[misc, no-any-return]
        # The time is divided equally: an address that never answers must not use up the time of the others.
        timeout = self.timeout / len(self.addresses)
        problem: OSError | None = None
        for address in self.addresses:
            try:
                return create_connection((address, self.port), timeout, socket_options=_SOCKET_OPTIONS)
            except OSError as error:
                problem = error
        raise problem or OSError("no address")


class _PlainConnection(_ChosenAddresses, HTTPConnection):
    """A connection without TLS."""


class _TlsConnection(_ChosenAddresses, HTTPSConnection):
    """A connection with TLS; the certificate is checked against the host name, whatever the address."""


def _make(
    scheme: str, host: str, port: int, timeout: float, tls: ssl.SSLContext | None
) -> _PlainConnection | _TlsConnection:
    if scheme == "https":
        return _TlsConnection(host, port, timeout=timeout, socket_options=_SOCKET_OPTIONS, ssl_context=tls)
    return _PlainConnection(host, port, timeout=timeout, socket_options=_SOCKET_OPTIONS)


# -- TLS --------------------------------------------------------------------------------------------------------------


def _default_context() -> ssl.SSLContext:
    """Trust the certificates of the system and certifi, or those of the bundle that the environment names."""
    return _context(os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or certifi.where())


def custom_context(verify: bool, ca_bundle: str | None) -> ssl.SSLContext | None:
    """Return TLS settings that differ from the default, else None. Raises OSError for a bundle that cannot be used."""
    if not verify:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    return ssl.create_default_context(cafile=ca_bundle) if ca_bundle else None


# Creating a context takes about 20 ms. There is more than one bundle only if the environment changes, as in tests.
@functools.lru_cache(maxsize=4)
def _context(bundle: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.load_verify_locations(**{"capath" if os.path.isdir(bundle) else "cafile": bundle})
    context.set_alpn_protocols(["http/1.1"])
    return context
