"""What the servers share: the listening socket, its addresses, errors that never reach the application, and what
they do while no request is at work."""

from __future__ import annotations

import errno
import logging
import re
import socket
import sys

from Middleware.api.edge.admission_middleware import NOT_STORED, id_headers
from Middleware.api.edge.body_budget import BodyBudget
from Middleware.api.edge.browser_safety import Headers
from Middleware.api.errors import PublicError, error_body, one_line
from Middleware.api.running.running_requests import REQUEST_ID_KEY, running_requests
from Middleware.cli.program import StartError
from Middleware.cli.serving import limits
from Middleware.models.process import process
from Middleware.models.request_context import new_request_id
from Middleware.services.response_builder_service import to_json
from Middleware.utilities.command_lines import in_container
from Middleware.utilities.free_memory import return_small_blocks
from Middleware.utilities.http.addresses import is_loopback
from Middleware.utilities.once import Once

logger = logging.getLogger(__name__)

# Connections that the system keeps until they are accepted. A burst of clients must not be refused.
BACKLOG = 1024
_WITH_PORT = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+)):(\d+)")
ALL_ADDRESSES = ("0.0.0.0", "::")

# Addresses that the default route leads to, or that of a private network. Nothing needs to be there.
_FAR_IPV4 = ("192.0.2.1", "10.254.254.254", "172.31.254.254", "192.168.254.254")
_FAR_IPV6 = ("2001:db8::1", "fd00:db8::1")

_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
if sys.platform == "win32":
    # Winsock's numbers of the same errors.
    _EXHAUSTED |= {10024, 10055}
_WINDOWS_IN_USE = 10048
# The error of an address that another program holds exclusively, and of ports that Windows keeps for others.
_WINDOWS_NO_ACCESS = 10013

# Characters of a message, which may repeat what the client sent.
MAX_MESSAGE = 500

# The first byte of a TLS handshake, never of an HTTP request.
TLS_RECORD = b"\x16"
TLS_REFUSED = "This port speaks HTTP, not HTTPS; use an address that begins with http://"
BOTH_FRAMINGS = "Content-Length and Transfer-Encoding are not allowed together"


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket that does not listen yet; port 0 takes a free one.

    ``::`` serves IPv4 clients too where the system can. Raises StartError.
    """
    family, address = _resolve(host, port)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform == "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            _accept_ipv4_too(sock)
        sock.bind(address)
    except (OSError, OverflowError) as error:
        sock.close()
        raise StartError(_explain(error, host, port)) from error
    return sock


def start_listening(sock: socket.socket) -> None:
    """Begin to accept connections. Raises StartError if another program was faster."""
    host, port = sock.getsockname()[:2]
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise StartError(_explain(error, host, port)) from error


class DescriptorExhaustion:
    """Logs when connections cannot be accepted because the process may open no more files, and when they can again."""

    def __init__(self, quiet_seconds: float = limits.EXHAUSTION_QUIET_SECONDS) -> None:
        self._reports: Once[str] = Once(1, quiet_seconds)

    def begins(self, error: OSError) -> bool:
        """Note a failure to accept; False if it has another cause."""
        if error.errno not in _EXHAUSTED:
            return False
        if self._reports.first("accept"):
            logger.warning(
                "No more connections can be accepted (%s). New ones wait until others end. Raise the limit "
                "of open files (ulimit -n) if this happens often.",
                error.strerror,
            )
        return True

    def ends(self) -> None:
        """Note that a connection was accepted."""
        if self._reports.over("accept"):
            logger.info("Connections are accepted again")


def return_memory_of_bodies() -> None:
    """Give back what large bodies have left behind, once no request is at work. Call it every second or so."""
    if not running_requests().at_work and process().one(BodyBudget).has_freed_much():
        return_small_blocks()


def own_error(status: int, message: str, path: str) -> tuple[Headers, bytes]:
    """Return headers and body of an error that never reaches the application. ``path``: "" if it could not be read."""
    environ = {"PATH_INFO": path, REQUEST_ID_KEY: new_request_id()}
    body = to_json(error_body(PublicError(status, one_line(message)[:MAX_MESSAGE]), environ))
    return [("Content-Type", "application/json"), *id_headers(environ), *NOT_STORED], body


def url_of(host: str, port: int) -> str:
    """Return the URL under which a program on this machine reaches the server."""
    if host in ("0.0.0.0", ""):
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def urls_elsewhere(address: str, port: int) -> list[str]:
    """Return the URLs under which other devices reach a server that listens on all addresses of this machine.

    Empty if ``address`` is a single one, and in a container, which does not know its host's address.
    """
    if address not in ALL_ADDRESSES or in_container():
        return []
    return [url_of(host, port) for host in outward_addresses(ipv6=address == "::") or [socket.gethostname()]]


def outward_addresses(ipv6: bool) -> list[str]:
    """Return this machine's own addresses in the networks around it, IPv4 first. Nothing is sent to find them."""
    ways = [(socket.AF_INET, host) for host in _FAR_IPV4]
    if ipv6 and socket.has_ipv6:
        ways += [(socket.AF_INET6, host) for host in _FAR_IPV6]
    found = dict.fromkeys(_own_address(family, host) for family, host in ways)
    return [host for host in found if host and host not in ALL_ADDRESSES and not is_loopback(host)]


def _own_address(family: socket.AddressFamily, far: str) -> str:
    """Return the address that datagrams to ``far`` would come from; "" if there is no route. Connecting sends none."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((far, 9))
            return str(sock.getsockname()[0])
    except OSError:
        return ""


def _resolve(host: str, port: int) -> tuple[int, tuple[object, ...]]:
    """Return family and address of ``host``, the IPv4 one where a name has both."""
    if both := _WITH_PORT.fullmatch(host):
        raise StartError(
            f"--listen takes an address alone, not '{host}'. The port goes into --port: "
            f"--listen {both[1] or both[2]} --port {both[3]}"
        )
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise StartError(
            f"Cannot listen on '{host}': no such address. Use --listen alone for all addresses of this machine."
        ) from error
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, address


def _accept_ipv4_too(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    # The system has no mapped addresses, so only IPv6 clients are served.
    except OSError:
        pass


def _explain(error: Exception, host: str, port: int) -> str:
    # Windows puts its own numbers into winerror, and translates only some of them to errno.
    code = getattr(error, "winerror", None) or getattr(error, "errno", None)
    if code in (errno.EADDRINUSE, _WINDOWS_IN_USE):
        return (
            f"Port {port} on {host} is already in use. Stop the program that uses it (perhaps a WilmerAI that "
            "is still running), or choose another port with --port."
        )
    if code == _WINDOWS_NO_ACCESS:
        return (
            f"Port {port} on {host} is in use by another program (perhaps a WilmerAI that is still running), or "
            "Windows keeps it for Hyper-V, WSL or Docker. Choose another port with --port."
        )
    if code in (errno.EACCES, errno.EPERM):
        return f"Port {port} on {host} needs administrator rights. Choose a port above 1023 with --port."
    if code == errno.EADDRNOTAVAIL:
        return f"Cannot listen on {host}: this machine has no such address."
    return f"Cannot listen on {host}, port {port}: {error}"
