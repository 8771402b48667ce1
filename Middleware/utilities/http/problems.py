"""The reasons for which an HTTP call can fail, with one wording for every caller.

A caller adds the name of the server before the text and advice after it; the text itself only says what happened.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import socket
import ssl
from dataclasses import dataclass

from Middleware.exceptions import ConfigValueError, WilmerError

# Enough for any system error; a proxy's own text may be a whole page.
MAX_REASON_CHARACTERS = 100


class Kind(enum.Enum):
    """The kinds of failure that callers distinguish."""

    SETTINGS = enum.auto()
    NOT_LOCAL = enum.auto()
    REFUSED = enum.auto()
    UNKNOWN_HOST = enum.auto()
    UNTRUSTED = enum.auto()
    NO_TLS = enum.auto()
    NO_CONNECTION = enum.auto()
    CONNECT_TIMEOUT = enum.auto()
    READ_TIMEOUT = enum.auto()
    LOST = enum.auto()
    UNREADABLE = enum.auto()
    TOO_LARGE = enum.auto()


PERMANENT = frozenset({Kind.SETTINGS, Kind.NOT_LOCAL, Kind.UNTRUSTED, Kind.NO_TLS})
"""The kinds of connection failure that another attempt cannot fix."""


@dataclass(frozen=True)
class HttpProblem:
    """A failure: its kind, and a clause without a full stop that contains nothing the server sent."""

    kind: Kind
    text: str


class HttpError(WilmerError):
    """A failed call. ``problem`` is the reason; callers convert it into an error of their own.

    ``beginning`` is the last usable part of a body that is too large.
    """

    def __init__(self, problem: HttpProblem, beginning: bytes = b"") -> None:
        super().__init__(problem.text)
        self.problem = problem
        self.beginning = beginning


class NotLocalError(WilmerError, OSError):
    """The connected host is neither this machine nor in its local network; the text is its address."""


def connect_problem(host: str, cause: BaseException) -> HttpProblem:
    """Return the problem for the root cause of a failed connection to ``host``."""
    if isinstance(cause, TimeoutError):
        return connect_timeout_problem()
    if isinstance(cause, ConfigValueError):
        return HttpProblem(Kind.SETTINGS, str(cause))
    if isinstance(cause, NotLocalError):
        return HttpProblem(
            Kind.NOT_LOCAL, f"the backup's address ({cause}) is not local any more, so nothing was sent to it"
        )
    if isinstance(cause, ConnectionRefusedError):
        return HttpProblem(Kind.REFUSED, "connection refused")
    # UnicodeError: an invalid label fails before the name is looked up.
    if isinstance(cause, (socket.gaierror, UnicodeError)):
        return HttpProblem(Kind.UNKNOWN_HOST, f"the host name '{host}' cannot be resolved")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return HttpProblem(Kind.UNTRUSTED, f"the server's TLS certificate was not accepted ({cause.verify_message})")
    if isinstance(cause, ssl.SSLError):
        return HttpProblem(
            Kind.NO_TLS,
            "no TLS connection came about. Does the server speak https, or should the URL start with http://?",
        )
    return HttpProblem(Kind.NO_CONNECTION, f"no connection ({_reason(cause)})")


def connect_timeout_problem() -> HttpProblem:
    return HttpProblem(Kind.CONNECT_TIMEOUT, "could not connect in time")


def remembered_problem(problem: HttpProblem, seconds: float) -> HttpProblem:
    """Return the cached failure, which is not tried again for ``seconds``."""
    return dataclasses.replace(problem, text=f"not tried again for {math.ceil(seconds)} s after: {problem.text}")


def read_timeout_problem(seconds: float) -> HttpProblem:
    return HttpProblem(Kind.READ_TIMEOUT, f"no data for {seconds:g} seconds")


def lost_problem(answered: bool) -> HttpProblem:
    """Return the problem of a connection that ended before or within the answer."""
    when = "in the middle of its answer" if answered else "before it answered"
    return HttpProblem(Kind.LOST, f"the server closed the connection {when}")


def unreadable_problem(reason: str) -> HttpProblem:
    return HttpProblem(Kind.UNREADABLE, f"the answer is not proper HTTP ({reason})")


def too_large_problem(reason: str) -> HttpProblem:
    return HttpProblem(Kind.TOO_LARGE, f"the answer is too large ({reason})")


def root_cause(error: BaseException) -> BaseException:
    """Return the system error at the bottom of a chain of wrapped exceptions."""
    seen = set()
    while id(error) not in seen:
        seen.add(id(error))
        inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if (isinstance(error, OSError) and error.errno is not None) or inner is None:
            break
        if isinstance(error, (TimeoutError, ssl.SSLError, socket.gaierror, ConfigValueError)):
            break
        error = inner
    return error


def _reason(cause: BaseException) -> str:
    """Return the text of a system error, or of a proxy that refused, as one short line."""
    text = getattr(cause, "strerror", None) or (str(cause) if type(cause) is OSError else "")
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line[:MAX_REASON_CHARACTERS] or type(cause).__name__
