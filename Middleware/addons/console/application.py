"""The WSGI application of the console: it decides who may make which call, before it looks at anything else.

The page and its files are public and hold nothing. Every call of the API needs a token in ``Authorization``, which no
foreign page can send, and is refused unless it comes from the page that this server itself has sent.
"""

from __future__ import annotations

import contextvars
import json
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from io import BytesIO
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from Middleware.addons.console.calls import (
    Call,
    ConsoleError,
    Download,
    Events,
    Forward,
    Headers,
    Reply,
    Role,
    Route,
    Routes,
    error_type,
    require_known,
)
from Middleware.addons.console.sessions import Session, Sessions
from Middleware.addons.console.static_files import StaticFiles
from Middleware.api.app import Gate, no_gate
from Middleware.api.dialects import api_type_of
from Middleware.api.edge.access_keys import KEY_NAME_KEY, PERMITTED_USERS_KEY, AccessKeys
from Middleware.api.edge.admission_middleware import BODY_LEFT_KEY, MEGABYTE, admit, take_body
from Middleware.api.edge.browser_safety import (
    SECURITY_HEADERS,
    BrowserSafety,
    called_origins,
    has_body,
    normal_origin,
    refusal_of_content,
)
from Middleware.api.errors import describe_error
from Middleware.api.running.disconnect_watcher import probe_for
from Middleware.api.running.running_requests import REQUEST_ID_KEY
from Middleware.exceptions import WilmerError
from Middleware.models.llm_call import Observer
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.response_builder_service import to_json
from Middleware.utilities.daemon_threads import run_in_pool
from Middleware.utilities.once import Once

if TYPE_CHECKING:
    from _typeshed import OptExcInfo

    from Middleware.addons.records.records import RunRecords

logger = logging.getLogger(__name__)

PREFIX = "/console"
ANONYMOUS = Session(Role.ANONYMOUS)
# Of a sign-in, which anybody may send: a code or a key, and room around them.
SIGN_IN_BYTES = 16 * 1024
# A thread that has not begun by then belongs to an overloaded machine.
ARRIVAL_SECONDS = 5.0
PAGE_POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-{0}'; style-src 'self' 'nonce-{0}'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
OWN_HEADERS: Headers = (
    *SECURITY_HEADERS,
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


class ConsoleApplication:
    """Answers everything below ``/console``.

    Args:
        records: the console's object of the process.
        keys: the accepted keys; None if no key is required.
        browsers: knows the names of this server.
        app: what answers clients' requests, behind the gate.
        gate: lets a call that runs the engine through the gate.
        listeners: of the engine's events, for such calls.
        max_request_mb: largest body in units of 1024 * 1024 bytes; 0 for any size.
        modules: the modules of routes; by default all.
    """

    def __init__(
        self,
        records: RunRecords,
        keys: AccessKeys | None,
        browsers: BrowserSafety,
        app: WSGIApplication,
        gate: Gate = no_gate,
        listeners: Observer | None = None,
        max_request_mb: int = 0,
        modules: Sequence[str] | None = None,
        static: StaticFiles | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.records = records
        self.keys = keys
        self._browsers = browsers
        self._app = app
        self._gate = gate
        self._listeners = listeners
        self._limit = max_request_mb * MEGABYTE or None
        self._modules = modules
        self._static = static or StaticFiles()
        self._routes: Routes | None = None
        self._logged: Once[str] = Once()
        self.sessions = Sessions(records.store.index, records.folder.secret, keys, clock)

    def refuses(self, environ: WSGIEnvironment) -> bool:
        """Return whether a request will be refused, decided by its head alone."""
        try:
            self._require_own_host(environ)
            # Nothing but the API takes a body.
            self._admit(environ, _words(environ), count=False)
        except ConsoleError:
            return True
        return False

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self._guarded(self._answer, environ, start_response)

    def _guarded(
        self, answer: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer, and give every error the form of the API."""
        try:
            return answer(environ, start_response)
        except ConsoleError as error:
            self._log_refusal(environ, error)
            failed = error
        except WilmerError as error:
            public = describe_error(error)
            failed = ConsoleError(public.status, public.message, where=public.param or "")
        # A mistake in one route must not end the connection without a word.
        except Exception:
            logger.exception(
                "A call of the console failed: %s %s",
                environ["REQUEST_METHOD"],
                ascii(environ.get("PATH_INFO", ""))[1:-1][:200],
            )
            failed = ConsoleError(500, "Internal error; the server's log has the details.")
        # Unless it was read, the connection cannot be used again.
        if has_body(environ) and not isinstance(environ.get("wsgi.input"), BytesIO):
            environ[BODY_LEFT_KEY] = True
        return _send(environ, start_response, failed.status, to_json(failed.body), "application/json", failed.headers)

    def _log_refusal(self, environ: WSGIEnvironment, error: ConsoleError) -> None:
        peer = environ.get("REMOTE_ADDR", "-")
        # Pages ask again every few seconds, so each kind is logged once; nothing of what was sent is in the line.
        if error.status in (401, 403, 429) and self._logged.first(f"{peer} {error.status}"):
            logger.warning(
                "The console refused a call of %s with %d (%s)", peer, error.status, error_type(error.status)
            )

    # -- the rules -------------------------------------------------------------------------------------------------
    def _require_own_host(self, environ: WSGIEnvironment) -> None:
        refusal = self._browsers.refusal_of_host(environ)
        if refusal is not None:
            raise ConsoleError(403, refusal.message, where="Host")
        if environ["REQUEST_METHOD"] == "OPTIONS":
            raise ConsoleError(403, "Other pages may not call the console.")

    @staticmethod
    def _require_own_page(environ: WSGIEnvironment) -> None:
        origin, site = environ.get("HTTP_ORIGIN"), environ.get("HTTP_SEC_FETCH_SITE")
        if origin is not None and (normal_origin(origin) or "") not in called_origins(environ):
            raise ConsoleError(403, "Only the page of this server's own console may call it.", where="Origin")
        if site is not None and site not in ("same-origin", "none"):
            raise ConsoleError(403, "Only the page of this server's own console may call it.", where="Sec-Fetch-Site")
        # The method does not matter: a browser could be made to send any body with a plain type.
        if has_body(environ) and refusal_of_content(environ) is not None:
            raise ConsoleError(415, "A body must be JSON, with Content-Type: application/json.", where="Content-Type")

    def _admit(self, environ: WSGIEnvironment, words: tuple[str, ...], count: bool = True) -> tuple[Route, Call]:
        """Return the route of a call that its session may make. Raises ConsoleError."""
        self._require_own_page(environ)
        method = environ["REQUEST_METHOD"]
        find = partial(self.routes.find, "GET" if method == "HEAD" else method, words)
        authenticate = partial(
            self.sessions.of_call, environ.get("REMOTE_ADDR", ""), environ.get("HTTP_AUTHORIZATION"), count
        )
        if words[:1] != ("api",):
            raise ConsoleError(404, "There is no such page.")
        try:
            route, parts = find()
        except ConsoleError:
            # Only a caller that may make a call learns which calls there are.
            authenticate()
            raise
        if route.least is Role.ANONYMOUS:
            _require_small_body(environ)
            return route, Call(self, environ, ANONYMOUS, parts, self._query(environ, route))
        session = authenticate()
        if session.role < route.least:
            raise ConsoleError(
                403,
                f"This needs the role '{route.least.word}', and the session has "
                f"'{session.role.word}'.{_way_to(route.least)}",
            )
        if route.edit and self.records.mode != "edit":
            raise ConsoleError(403, "Saving is off: start WilmerAI with --console edit.")
        return route, Call(self, environ, session, parts, self._query(environ, route))

    @staticmethod
    def _query(environ: WSGIEnvironment, route: Route) -> dict[str, str]:
        pairs = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        query = dict(pairs)
        require_known(query, route.query, "query name")
        if len(query) < len(pairs):
            raise ConsoleError(400, "A query name stands there twice.")
        return query

    @property
    def routes(self) -> Routes:
        """The table of all routes. Their modules are imported at the first call."""
        if self._routes is None:
            from Middleware.addons.console.api import load_routes

            self._routes = load_routes(self._modules)
        return self._routes

    # -- answers ---------------------------------------------------------------------------------------------------
    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        self._require_own_host(environ)
        words = _words(environ)
        if words[:1] != ("api",):
            return self._send_file(environ, start_response, words)
        route, call = self._admit(environ, words)
        refusal = take_body(environ, SIGN_IN_BYTES if route.least is Role.ANONYMOUS else self._limit)
        if refusal is not None:
            raise ConsoleError(int(refusal.status[:3]), refusal.message, headers=refusal.headers)
        start_response = _as_api(start_response)
        if route.runs:
            return self._run(route, call, start_response)
        return self._reply(call, route.answer(call), start_response)

    def _send_file(
        self, environ: WSGIEnvironment, start_response: StartResponse, words: tuple[str, ...]
    ) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            raise ConsoleError(405, "Pages and files can only be read.", headers=(("Allow", "GET, HEAD"),))
        if environ["PATH_INFO"] == PREFIX:
            # Relative, as the address of a proxy in front is not known here. All addresses of the page are, too.
            return _send(environ, start_response, 308, b"", "text/plain", (("Location", "console/"),))
        if not words:
            data, nonce = self._static.page()
            return _send(
                environ,
                start_response,
                200,
                data,
                "text/html; charset=utf-8",
                (("Content-Security-Policy", PAGE_POLICY.format(nonce)), ("Cache-Control", "no-store")),
            )
        file = self._static.find(words[1], "/".join(words[2:])) if words[0] == "static" and len(words) > 2 else None
        if file is None:
            raise ConsoleError(404, "There is no such page.")
        return _send(
            environ, start_response, 200, file.data, file.content_type, (("Cache-Control", file.cache_control),)
        )

    def _reply(self, call: Call, value: object, start_response: StartResponse) -> Iterable[bytes]:
        if isinstance(value, Forward):
            return self._forward(call, value, start_response)
        if isinstance(value, Events):
            from Middleware.addons.console.streams import EventBody

            start_response(
                "200 OK",
                [("Content-Type", "text/event-stream; charset=utf-8"), ("X-Accel-Buffering", "no"), *OWN_HEADERS],
            )
            return EventBody(value.events, call.request, probe_for(call.environ), contextvars.copy_context())
        if isinstance(value, Download):
            return _send(
                call.environ,
                start_response,
                200,
                value.body,
                value.content_type,
                (("Content-Disposition", _disposition(value.name)),),
            )
        reply = value if isinstance(value, Reply) else Reply(value)
        return _send(
            call.environ, start_response, reply.status, to_json(reply.value), "application/json", reply.headers
        )

    def _run(self, route: Route, call: Call, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a call that runs the engine, as a request that passes the gate."""
        session, environ = call.session, call.environ
        request = RequestContext(request_id=environ[REQUEST_ID_KEY], api_key=session.key, key_name=session.key_name)
        request.listeners = self._listeners
        call.request = request

        def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            with request_scope(request):
                return self._reply(call, route.answer(call), start_response)

        return admit(partial(self._gate, partial(self._guarded, answer)), request, environ, start_response)

    def run_in_background(self, environ: WSGIEnvironment, request: RequestContext, app: WSGIApplication) -> None:
        """Let ``app`` answer a request without a reader, on a thread of its own. It passes the gate as any other."""
        request.listeners = self._listeners
        # What tells whether the client of this call is still there would end the request when it has its answer.
        copy: WSGIEnvironment = {
            key: value
            for key, value in environ.items()
            if isinstance(value, str) or key in ("wsgi.url_scheme", "wsgi.version")
        }
        copy.update({REQUEST_ID_KEY: request.request_id, "wsgi.input": BytesIO(b""), "CONTENT_LENGTH": "0"})
        arrived = threading.Event()
        run_in_pool(partial(self._answer_in_background, copy, request, app, arrived), "console-run")
        # The run is found under its id as soon as its caller knows that.
        arrived.wait(ARRIVAL_SECONDS)

    def _answer_in_background(
        self, environ: WSGIEnvironment, request: RequestContext, app: WSGIApplication, arrived: threading.Event
    ) -> None:
        def start(status: str, headers: list[tuple[str, str]], *exc_info: object) -> Callable[[bytes], object]:
            return bytes

        def gated(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            arrived.set()
            return self._gate(app, environ, start_response)

        body = admit(gated, request, environ, start)
        try:
            deque(body, 0)
        finally:
            close = getattr(body, "close", None)
            if close is not None:
                close()

    def _forward(self, call: Call, forward: Forward, start_response: StartResponse) -> Iterable[bytes]:
        """Answer as a client's request is answered, with the session's key and users."""
        environ, session = call.environ, call.session
        # ASCII alone: escapes carry what UTF-8 cannot, and the text must arrive as it was.
        body = json.dumps(forward.body).encode("ascii")
        environ.update(
            {
                "PATH_INFO": forward.path,
                "QUERY_STRING": "",
                "wsgi.input": BytesIO(body),
                "wsgi.input_terminated": True,
                "CONTENT_LENGTH": str(len(body)),
                PERMITTED_USERS_KEY: session.users,
                KEY_NAME_KEY: session.key_name,
            }
        )
        environ.pop("HTTP_AUTHORIZATION", None)
        if session.key is not None:
            environ["HTTP_AUTHORIZATION"] = f"Bearer {session.key}"
        request = RequestContext(
            request_id=environ[REQUEST_ID_KEY],
            api_type=api_type_of(environ),
            kind=forward.kind,
            api_key=session.key,
            key_name=session.key_name,
        )
        request.listeners = self._listeners
        return admit(self._app, request, environ, start_response)


def _disposition(name: str) -> str:
    """Return the header that names a download. Headers are Latin-1: other letters are only in ``filename*``."""
    plain = re.sub(r"[^ !#-\[\]-~]", "_", name)
    return f'attachment; filename="{plain}"' + (f"; filename*=UTF-8''{quote(name, '')}" if plain != name else "")


def _words(environ: WSGIEnvironment) -> tuple[str, ...]:
    """Return the words of the path below ``/console``."""
    # WSGI decodes the bytes of a path as Latin-1.
    path = environ["PATH_INFO"].encode("latin-1", "replace").decode("utf-8", "replace")[len(PREFIX) :].strip("/")
    return tuple(path.split("/")) if path else ()


def _require_small_body(environ: WSGIEnvironment) -> None:
    """Refuse a large body of a client that has not signed in."""
    length = environ.get("CONTENT_LENGTH") or "0"
    if "HTTP_TRANSFER_ENCODING" in environ or not length.isdigit() or int(length[:10]) > SIGN_IN_BYTES:
        raise ConsoleError(413, "The body is too large for a sign-in.")


def _way_to(role: Role) -> str:
    if role is Role.OPERATOR:
        return (
            " 'python server.py console' (installed from a wheel: 'wilmerai console') on the server's computer "
            "prints a sign-in link for it."
        )
    return " The key's line in the list of accepted keys would have to say 'console=all'."


def _as_api(start_response: StartResponse) -> StartResponse:
    """Return a ``start_response`` that forbids storing and sharing answers of the API, whichever code made them."""

    def start(status: str, headers: list[tuple[str, str]], *exc_info: OptExcInfo | None) -> Callable[[bytes], object]:
        names = {"cache-control", *(name.lower() for name, _ in OWN_HEADERS)}
        kept = [
            (name, value)
            for name, value in headers
            if name.lower() not in names and not name.lower().startswith("access-control-")
        ]
        return start_response(status, [*kept, ("Cache-Control", "no-store"), *OWN_HEADERS], *exc_info)

    return start


def _send(
    environ: WSGIEnvironment,
    start_response: StartResponse,
    status: int,
    body: bytes,
    content_type: str,
    headers: Headers = (),
) -> Iterable[bytes]:
    own = {name for name, _ in headers}
    added = [(name, value) for name, value in OWN_HEADERS if name not in own]
    if "Cache-Control" not in own:
        added.append(("Cache-Control", "no-store"))
    start_response(
        f"{status} {HTTPStatus(status).phrase}",
        [("Content-Type", content_type), ("Content-Length", str(len(body))), *headers, *added],
    )
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]
