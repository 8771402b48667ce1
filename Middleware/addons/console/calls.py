"""What the routes of the console's API are made of: roles, routes, calls, answers and errors.

A module of routes has one function, ``register(routes)``, and its name is in ``ROUTE_MODULES`` of ``api.py``.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from wsgiref.types import WSGIEnvironment

from werkzeug.exceptions import NotFound
from werkzeug.routing import BaseConverter, Map

from Middleware.api.api_server import MatchedRule
from Middleware.exceptions import ClientError
from Middleware.models.request_context import RequestContext
from Middleware.services.response_builder_service import to_json
from Middleware.utilities.json_data import MOST_VALUES, has_too_many_values
from Middleware.utilities.text_utils import did_you_mean

if TYPE_CHECKING:
    from Middleware.addons.console.application import ConsoleApplication
    from Middleware.addons.console.sessions import Session
    from Middleware.addons.records.records import RunRecords
    from Middleware.addons.records.viewers import Viewer

Headers = tuple[tuple[str, str], ...]


class Role(enum.IntEnum):
    """What a session may do; each role may do what the ones below it may, in a wider circle."""

    # Before the sign-in.
    ANONYMOUS = 0
    OWN = 1
    ALL = 2
    OPERATOR = 3

    @property
    def word(self) -> str:
        """The role as the keys file and the API write it."""
        return self.name.lower()


class ConsoleError(ClientError):
    """A call that fails: ``{"error": {"message", "type", "where"}}``, and the ``further`` fields next to it.

    Args:
        status: the HTTP status, which also gives the type.
        message: one or two sentences for a user.
        where: the field, query name or file that is wrong; "" for the whole call.
    """

    def __init__(self, status: int, message: str, where: str = "", headers: Headers = (), **further: object) -> None:
        super().__init__(message, status)
        self.headers = headers
        self.where = where
        self.further = further

    @property
    def body(self) -> dict[str, object]:
        """The JSON of the answer."""
        return {"error": {"message": str(self), "type": error_type(self.status), "where": self.where}, **self.further}


def error_type(status: int) -> str:
    """Return the type of an error, the reason phrase of its status in one word: ``not_found``."""
    return HTTPStatus(status).phrase.lower().replace(" ", "_").replace("-", "_")


@dataclass(frozen=True)
class Reply:
    """An answer in JSON with a status or headers of its own."""

    value: object
    status: int = 200
    headers: Headers = ()


@dataclass(frozen=True)
class Download:
    """An answer that browsers offer to save."""

    body: bytes
    name: str
    content_type: str = "application/json"


@dataclass(frozen=True)
class Event:
    """One server-sent event; ``number`` becomes its id."""

    name: str
    value: object
    number: int | None = None

    def framed(self) -> bytes:
        identity = f"id: {self.number}\n" if self.number is not None else ""
        return f"{identity}event: {self.name}\ndata: ".encode() + to_json(self.value) + b"\n\n"


@dataclass(frozen=True)
class Events:
    """An answer as a stream of events. None among them is a heartbeat.

    ``events`` is closed when the stream ends in any way, also before its first event, if it has a ``close``.
    """

    events: Iterable[Event | None]


@dataclass(frozen=True)
class Forward:
    """A call that is answered as if a client had sent ``body`` to ``path``, with the session's key.

    Attributes:
        kind: the kind of the run.
    """

    path: str
    body: Mapping[str, object]
    kind: str


Answer = Callable[["Call"], object]


@dataclass(frozen=True, slots=True)
class Route:
    """A line of the API.

    Attributes:
        path: below ``/console/api/``; a word in capitals stands for any text, and ``FOLDER`` for any number of words.
        least: the least role that may call it.
        query: the names that may stand in the query.
        edit: it changes a file of the configuration, and needs ``--console edit``.
        runs: it runs the engine: the call becomes a request and passes the gate.
    """

    method: str
    path: str
    least: Role
    answer: Answer
    query: tuple[str, ...] = ()
    edit: bool = False
    runs: bool = False


class _Part(BaseConverter):
    """A word of a path, which may be empty: the answer then says what was not found."""

    regex = "[^/]*"


class _Folder(BaseConverter):
    """Any number of words, each with the slash behind it."""

    regex = "(?s:(?:.*/)?)"
    part_isolating = False

    def to_python(self, value: str) -> str:
        return value.removesuffix("/")


class Routes:
    """The table of all routes."""

    def __init__(self) -> None:
        self.all: list[Route] = []
        # By its path: what a call with another method gets is decided below.
        self._methods: dict[str, dict[str, Route]] = {}
        self._map = Map(converters={"part": _Part, "folder": _Folder}, merge_slashes=False)
        self._matcher = self._map.bind("")

    def add(
        self,
        method: str,
        path: str,
        least: Role,
        answer: Answer,
        *,
        query: tuple[str, ...] = (),
        edit: bool = False,
        runs: bool = False,
    ) -> None:
        """Add a route; ``path`` is relative, with parts in capitals: ``runs/ID/texts/SPAN``."""
        route = Route(method, path, least, answer, query, edit, runs)
        self.all.append(route)
        if path not in self._methods:
            self._methods[path] = {}
            rule = re.sub("[A-Z]+", r"<part:\g<0>>", path).replace("<part:FOLDER>/", "<folder:FOLDER>")
            self._map.add(MatchedRule(f"/api/{rule}", endpoint=path))
        self._methods[path][method] = route

    def find(self, method: str, words: Sequence[str]) -> tuple[Route, Mapping[str, str]]:
        """Return the route of a call and the parts of its path, which begins with ``api``. Raises ConsoleError."""
        try:
            path, parts = self._matcher.match("/".join(words))
        except NotFound:
            name = "/".join(words[1:])[:100]
            raise ConsoleError(404, f"There is no call {name!r}. Docs/User/console-api.md lists all.") from None
        methods = self._methods[path]
        if method not in methods:
            names = ", ".join(sorted(methods))
            raise ConsoleError(405, f"This call takes {names}, not {method[:20]!r}.", headers=(("Allow", names),))
        return methods[method], parts


@dataclass
class Call:
    """One call of the API, of a session that may make it.

    Attributes:
        request: the request that a route with ``runs`` has become.
    """

    application: ConsoleApplication
    environ: WSGIEnvironment
    session: Session
    parts: Mapping[str, str]
    query: Mapping[str, str]
    request: RequestContext | None = None
    _body: dict[str, Any] | None = field(default=None, init=False, repr=False)

    @property
    def records(self) -> RunRecords:
        """The console's object of the process."""
        return self.application.records

    @property
    def role(self) -> Role:
        return self.session.role

    @property
    def viewer(self) -> Viewer:
        """Who asks, for the archive of runs."""
        return self.session.viewer()

    @property
    def body(self) -> dict[str, Any]:
        """The body, which must be a JSON object. Raises ConsoleError."""
        if self._body is None:
            self._body = _object_in(self.environ)
        return self._body

    def checked_body(self, *names: str) -> dict[str, Any]:
        """Return the body if it has no other fields than ``names``. Raises ConsoleError."""
        require_known(self.body, names, "field")
        return self.body


def require_known(given: Iterable[str], known: Iterable[str], thing: str) -> None:
    """Refuse a name that is not known, with the nearest one that is."""
    known = list(known)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known, f" Known: {', '.join(known)}." if known else "", 0.6)
            raise ConsoleError(400, f"The {thing} {name[:60]!r} is not known here.{hint}", where=name[:60])


def _object_in(environ: WSGIEnvironment) -> dict[str, Any]:
    data = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    if has_too_many_values(data):
        raise ConsoleError(400, f"The body has more than {MOST_VALUES:,} arrays, objects and texts.")
    try:
        body = json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        where = f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConsoleError(400, "The body is not valid JSON.", where=where) from None
    if not isinstance(body, dict):
        raise ConsoleError(400, "The body must be a JSON object.")
    return body
