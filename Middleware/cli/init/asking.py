"""One GET (or a small POST) to a server that may be anything, with limits for time and size."""
from __future__ import annotations

import json
from dataclasses import dataclass

from Middleware.exceptions import ConfigurationError
from Middleware.utilities.http.client import HttpClient
from Middleware.utilities.http.problems import HttpError, HttpProblem, Kind
from Middleware.utilities.http.wire import HttpRequest, parse_target

# For one question, connecting included. Servers on this computer answer within milliseconds.
SECONDS = 2.0
# Lists of hundreds of models take some hundred kilobytes; what is larger is no such list.
MAX_BYTES = 4 * 1024 * 1024
_ADVICE = {
    Kind.UNKNOWN_HOST: "; check how it is spelled, or give the IP address",
    Kind.UNTRUSTED: "; if it is one of your own, name the file with the certificate in the environment variable "
                    "REQUESTS_CA_BUNDLE"}


class Unreachable(Exception):
    """There is no HTTP server, or it does not answer in time. The message follows the address."""


class NothingThere(Unreachable):
    """No connection was accepted. Windows takes seconds to report it, and firewalls never do."""


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
    """Ask ``address`` (scheme, host, port, perhaps a path) for ``path``. Redirects are not followed.

    Raises Unreachable.
    """
    headers = {"Accept": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode("utf-8")
    if data is not None:
        headers["Content-Type"] = "application/json"
    try:
        request = HttpRequest(parse_target(address + path), "GET" if data is None else "POST", headers, seconds,
                              seconds, max_bytes=MAX_BYTES)
        response = HttpClient().call(request, data, seconds=seconds)
    except HttpError as error:
        raise _unreachable(error.problem, seconds) from error
    except ConfigurationError as error:
        raise Unreachable(f"cannot be reached: {error}") from error
    found = _parse(response.body) if response.head.status == 200 and response.complete else None
    return Reply(response.head.status, found, response.head.headers.get("server", ""))


def _unreachable(problem: HttpProblem, seconds: float) -> Unreachable:
    """What it means that no answer came, in words that follow the address."""
    if problem.kind is Kind.REFUSED:
        return NothingThere("nothing runs there")
    if problem.kind is Kind.CONNECT_TIMEOUT:
        return NothingThere(f"did not answer within {seconds:g} s")
    if problem.kind is Kind.READ_TIMEOUT:
        return Unreachable(f"did not answer within {seconds:g} s")
    if problem.kind in (Kind.LOST, Kind.UNREADABLE):
        return Unreachable("does not speak HTTP")
    return Unreachable(f"cannot be reached: {problem.text}{_ADVICE.get(problem.kind, '')}")


def _parse(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
