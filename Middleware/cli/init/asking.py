"""One GET (or a small POST) to a server that may be anything, with limits for time and size."""
from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from dataclasses import dataclass

from urllib3.exceptions import HTTPError

from Middleware.exceptions import ConfigurationError
from Middleware.utilities.http.pool import Connection, ConnectionPool
from Middleware.utilities.http.problems import connect_problem, root_cause
from Middleware.utilities.http.wire import Target, parse_target

SECONDS = 2.0  # for one question
MAX_BYTES = 4 * 1024 * 1024


class Unreachable(Exception):
    """There is no HTTP server, or it says nothing in time. The text tells which, after the address."""


class NothingThere(Unreachable):
    """No connection was accepted. Windows takes seconds to say so, and firewalls never do."""


@dataclass(frozen=True)
class Reply:
    """An answer. ``data``: the JSON of a success, None for anything else; ``server``: the header of that name."""

    status: int
    data: object = None
    server: str = ""

    def part(self, name: str) -> object:
        """A value of the JSON object; None if there is none, or no object."""
        return self.data.get(name) if isinstance(self.data, dict) else None


def ask(address: str, path: str, key: str | None = None, body: object = None, seconds: float = SECONDS) -> Reply:
    """Ask ``address`` (scheme, host, port, perhaps a path) for ``path``, the way requests take later: by the proxy of
    the environment where one applies, trusting the same certificates. Redirects are not followed.

    Raises Unreachable.
    """
    deadline = time.monotonic() + seconds
    try:
        target = parse_target(address + path)
        opened = ConnectionPool().open(target, seconds)
    except (OSError, HTTPError, ConfigurationError, UnicodeError) as error:
        raise _unreachable(address, root_cause(error), seconds) from error
    late = threading.Timer(max(0.0, deadline - time.monotonic()), opened.shutdown)
    late.daemon = True
    late.start()
    try:
        return _exchange(opened, target, key, body, seconds)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
            raise Unreachable(f"did not answer within {seconds:g} s") from error
        raise Unreachable("does not speak HTTP") from error
    finally:
        late.cancel()
        opened.close()


def _unreachable(address: str, cause: BaseException, seconds: float) -> Unreachable:
    """What it means that no connection came about, in words that follow the address."""
    if isinstance(cause, ConnectionRefusedError):
        return NothingThere("nothing runs there")
    if isinstance(cause, TimeoutError):
        return NothingThere(f"did not answer within {seconds:g} s")
    if isinstance(cause, UnicodeError):
        return Unreachable("cannot be reached: its host name is none")
    if isinstance(cause, socket.gaierror):
        host = parse_target(address).host
        return Unreachable(f"cannot be reached: the host name '{host}' cannot be resolved; check how it is spelled, or "
                           "give the IP address")
    text = connect_problem(parse_target(address).host, cause).text.removesuffix(".")
    hint = "; if it is one of your own, name the file with the certificate in the environment variable " \
           "REQUESTS_CA_BUNDLE" if isinstance(cause, ssl.SSLCertVerificationError) else ""
    return Unreachable(f"cannot be reached: {text}{hint}")


def _exchange(opened: Connection, target: Target, key: str | None, body: object, seconds: float) -> Reply:
    headers = {"Host": target.host_header, "Accept": "application/json", "Connection": "close", **opened.proxy_headers,
               **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode("utf-8")
    if data is not None:
        headers["Content-Type"] = "application/json"
    connection = http.client.HTTPConnection(target.host, target.port)
    connection.sock = opened.sock
    opened.sock.settimeout(seconds)
    connection.request("GET" if data is None else "POST", target.display if opened.absolute else target.path, data,
                       headers)
    response = connection.getresponse()
    server = response.getheader("Server") or ""
    return Reply(response.status, _parse(_read(response)) if response.status == 200 else None, server)


def _read(response: http.client.HTTPResponse) -> bytes:
    """The body; empty if it is too large."""
    data = response.read(MAX_BYTES + 1)
    return data if len(data) <= MAX_BYTES else b""


def _parse(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
