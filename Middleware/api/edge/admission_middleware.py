"""The outermost middleware: admit or refuse requests, give each an id, read its body, and cancel the earlier attempt
of a retried request."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from Middleware.api.dialects import OTHER_API, Dialect, api_type_of, dialect_of, plain_path, request_label
from Middleware.api.edge.access_keys import (
    KEY_NAME_KEY,
    PERMITTED_USERS_KEY,
    AccessKeys,
    api_key_of,
    authorization_of,
    idempotency_key_in,
)
from Middleware.api.edge.body_budget import BodyBudget, NoRoomError
from Middleware.api.edge.browser_safety import (
    ANTHROPIC_ID_HEADER,
    REQUEST_ID_HEADER,
    SECURITY_HEADERS,
    BrowserSafety,
    Headers,
    Refusal,
    has_body,
)
from Middleware.api.edge.client_addresses import peer_of, public_address, refusal_of_public
from Middleware.api.edge.content_codings import coding_of, decoded, refusal_of
from Middleware.api.errors import NO_RETRY, RETRY_AFTER, PublicError, error_body
from Middleware.api.running.running_requests import REQUEST_ID_KEY, REQUEST_KEY, running_requests
from Middleware.common.constants import ANTHROPIC_MESSAGES, OPENAI_CHAT, OPENAI_COMPLETION, OPENAI_RESPONSES
from Middleware.exceptions import ServerStoppingError
from Middleware.models.llm_call import Observer
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, new_request_id
from Middleware.services.cancellation_service import get_cancellation_service
from Middleware.services.idempotency_service import get_idempotency_service
from Middleware.services.response_builder_service import to_json
from Middleware.utilities.http.inflater import PIECE_BYTES
from Middleware.utilities.http.via import ENVIRON_KEY, chain, comes_back
from Middleware.utilities.once import Once

if TYPE_CHECKING:
    from _typeshed import OptExcInfo

logger = logging.getLogger(__name__)

MEGABYTE = 1024 * 1024
# The digits of a length. A longer number exceeds any memory, and Python refuses to convert thousands of digits.
MAX_DIGITS = 20
NO_ROOM_KEY = "wilmer.no_room"
"""Set in the WSGI environ, with ``BODY_LEFT_KEY``, if there was no room for the body."""
BODY_WHOLE_KEY = "wilmer.body_whole"
"""The key of a function in the WSGI environ that is called when the body is whole. Servers may set it."""
STOP_READING_KEY = "wilmer.stop_reading"
"""The key of a function in the WSGI environ that ends a wait for the next piece of the body: reading it raises
NoRoomError then. Servers may set it."""
BODY_LEFT_KEY = "wilmer.body_left"
"""Set in the WSGI environ if part of the body was not read, so that the connection cannot carry another request."""
NOT_STORED = [*SECURITY_HEADERS, ("Cache-Control", "no-store")]
NO_KEY = Refusal(
    "401 Unauthorized",
    "This server requires a key, and the request has none that it accepts. Send "
    "'Authorization: Bearer KEY'; in most programs that is the API key.",
    (("WWW-Authenticate", "Bearer"),),
)
IDEMPOTENT_APIS = frozenset((OPENAI_CHAT, OPENAI_COMPLETION, OPENAI_RESPONSES, ANTHROPIC_MESSAGES))
"""The API types in which a retry with the same idempotency key replaces the earlier attempt."""

HEALTH_PATH = "/health"
WORKER_HEADER = "X-Wilmer-Worker"
FORKED = Refusal(
    "500 Internal Server Error",
    "This process was forked from one that had connected to the state database, and has no connection of "
    "its own. Let each process of the WSGI server load the application itself: gunicorn without "
    "--preload, uWSGI with lazy-apps = true",
)
ADMITTED_TOO_LATE = Refusal(
    "503 Service Unavailable",
    "This server did not accept the request when its head arrived, and would accept it now; "
    "its body was not read. Send it again.",
    (RETRY_AFTER,),
)
NO_ROOM = Refusal(
    "503 Service Unavailable",
    "The bodies of the requests that arrive now take all the memory that is set apart for them. Send it again later.",
    (RETRY_AFTER,),
)
# Answered even without a key: the request is one of this server's own, and might wait for itself for ever.
LOOP = Refusal("508 Loop Detected", "this WilmerAI is already answering this request", (NO_RETRY,))
BLIND = (
    "Pages of %s are answered, but their browser does not let them read the answers. If they are yours, start "
    "WilmerAI with --allow-origin %s"
)
STOPPING = Refusal("503 Service Unavailable", str(ServerStoppingError()), (RETRY_AFTER,))


class OwnAdmission(Protocol):
    """A part of the server with an admission of its own, which decides which requests it accepts."""

    def refuses(self, environ: WSGIEnvironment) -> bool:
        """Return whether the request will be refused, decided by its head alone."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request, whose body has not been read."""


class AdmissionMiddleware:
    """Admits or refuses requests before they wait for a slot and before their bodies are read.

    Args:
        app: the WSGI application behind it, including the concurrency gate.
        max_request_mb: largest body in units of 1024 * 1024 bytes; 0 for any size.
        keys: the accepted keys; None if no key is required.
        browsers: the web pages that are admitted; by default those of this computer.
        private_only: refuse clients with public addresses.
        listeners: get the events of each request.
        mounts: answer the requests for their path and all below it.
        worker: returns the number of this process among several, which answers to POST name; None without others.
    """

    def __init__(
        self,
        app: WSGIApplication,
        max_request_mb: int = 0,
        keys: AccessKeys | None = None,
        browsers: BrowserSafety | None = None,
        private_only: bool = False,
        mounts: Mapping[str, OwnAdmission] | None = None,
        listeners: Observer | None = None,
        worker: Callable[[], int] | None = None,
    ) -> None:
        self.app = app
        self._worker = worker
        self._process = os.getpid()
        self._listeners = listeners
        self._limit = max_request_mb * MEGABYTE or None
        self._keys = keys
        self._browsers = browsers or BrowserSafety()
        self._private_only = private_only
        self._mounts = tuple((prefix.rstrip("/"), mounted) for prefix, mounted in (mounts or {}).items())
        # The addresses that were refused. Scanners come back for hours, and would fill the log.
        self._outsiders: Once[str] = Once()
        # The origins of pages that cannot read the answers.
        self._blind: Once[str] = Once()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        # Flask converts the method to upper case too, so the checks must see the same.
        method = environ["REQUEST_METHOD"] = environ.get("REQUEST_METHOD", "").upper()
        is_post, request_id = method == "POST", new_request_id()
        environ[REQUEST_ID_KEY] = request_id
        if (path := environ.get("PATH_INFO", "")) != plain_path(path):
            self._use_plain_path(environ, path)
        if (refused := self._unchecked_refusal(environ)) is not None:
            return _refuse_connection(*refused, environ, start_response)
        if (mounted := self._mounted(environ.get("PATH_INFO", ""))) is not None:
            return mounted(environ, _with_headers(start_response, id_headers(environ), True))
        if is_post:
            logger.info("Request %s arrived: POST %s", request_id, ascii(environ.get("PATH_INFO", ""))[1:-1][:200])
        decision = self._browsers.decide(environ)
        is_news = not decision.blind or self._blind.first(decision.blind)
        if is_news and decision.blind and decision.refusal is None:
            logger.warning(BLIND, ascii(decision.blind), decision.blind)
        headers = [*id_headers(environ), *decision.headers]
        if self._worker is not None and is_post:
            headers.append((WORKER_HEADER, str(self._worker())))
        start_response = _with_headers(start_response, headers, is_post)
        # A preflight never carries the key, so it is answered before the key is checked.
        if decision.preflight:
            start_response("200 OK", [("Content-Length", "0")])
            return [b""]
        refusal = decision.refusal or self._check_key(environ)
        if refusal is None:
            refusal = take_body(environ, self._limit)
        # The body of a refused request stays unread, so the connection cannot be used again.
        elif has_body(environ):
            environ[BODY_LEFT_KEY] = True
        if refusal is not None:
            if is_news or refusal is not decision.refusal:
                _log_refusal(environ, refusal)
            return _refuse(environ, start_response, refusal)
        if not is_post:
            return self.app(environ, start_response)
        request = RequestContext(
            request_id=request_id,
            api_type=api_type_of(environ),
            key_name=environ.get(KEY_NAME_KEY, ""),
            api_key=api_key_of(environ),
            peer=peer_of(environ),
        )
        request.listeners = self._listeners
        return admit(self.app, request, environ, start_response)

    def _unchecked_refusal(self, environ: WSGIEnvironment) -> tuple[Refusal, bool] | None:
        """Return the refusal of a request before anything else is checked, and whether it is logged, or None."""
        if ENVIRON_KEY in environ and comes_back(environ[ENVIRON_KEY]):
            return LOOP, True
        outsider = public_address(environ) if self._private_only else None
        if outsider is not None:
            return refusal_of_public(outsider), self._outsiders.first(outsider)
        # A forked process shares the sockets of the one before it, has its number, and none of its threads. So not even
        # the check of a load balancer is answered.
        return (FORKED, True) if self._worker is not None and os.getpid() != self._process else None

    def refuses(self, environ: WSGIEnvironment) -> bool:
        """Return whether the request will be refused, decided by its head alone; for servers that read bodies first."""
        if ENVIRON_KEY in environ and comes_back(environ[ENVIRON_KEY]):
            return True
        if self._private_only and public_address(environ) is not None:
            return True
        if (path := environ.get("PATH_INFO", "")) != plain_path(path):
            self._use_plain_path(environ, path)
        if (mounted := self._mounted(environ.get("PATH_INFO", ""))) is not None:
            return mounted.refuses(environ)
        decision = self._browsers.decide(environ)
        return not decision.preflight and (decision.refusal or self._check_key(environ)) is not None

    def _use_plain_path(self, environ: WSGIEnvironment, path: str) -> None:
        """Write a path as the routes do, for all that looks at it from now on. Parts of the server have their own."""
        plain = plain_path(path)
        # What another spelling of such a part's path led to nowhere, as a rule of a proxy may close that part.
        if self._mounted(path) is self._mounted(plain) is None:
            environ["PATH_INFO"] = plain

    def _mounted(self, path: str) -> OwnAdmission | None:
        """Return the part of the server that a path is of; None for the rest of it."""
        for prefix, mounted in self._mounts:
            if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
                return mounted
        return None

    def _check_key(self, environ: WSGIEnvironment) -> Refusal | None:
        if self._keys is None:
            return self._browsers.refusal_of_reader(environ)
        if _is_health_check(environ):
            return None
        grant = self._keys.grant(authorization_of(environ))
        if grant is None:
            return NO_KEY
        environ[PERMITTED_USERS_KEY], environ[KEY_NAME_KEY] = grant.users, grant.name
        return None


def admit(
    app: WSGIApplication, request: RequestContext, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    """Let ``app`` answer as a request that can be cancelled by its id from now on."""
    environ[REQUEST_KEY] = request
    if not running_requests().arrive(request):
        _log_refusal(environ, STOPPING)
        return _refuse(environ, start_response, STOPPING)
    try:
        if request.api_type != OTHER_API:
            request.body_bytes = _declared_length(environ) or 0
            request.via = chain(environ[ENVIRON_KEY]) if ENVIRON_KEY in environ else ""
            request.traceparent = environ.get("HTTP_TRACEPARENT", "")
            request.report("request_arrived", request)
        _displace_earlier_attempt(request, environ)
        return app(environ, start_response)
    # Before the answer goes out: the next request must find nothing of this one.
    finally:
        running_requests().leave(request)


def id_headers(environ: Mapping[str, Any]) -> Headers:
    """Return the headers with the id of a request: the one for all clients, and that of Anthropic's."""
    request_id = environ[REQUEST_ID_KEY]
    own = [(REQUEST_ID_HEADER, request_id)]
    return [*own, (ANTHROPIC_ID_HEADER, request_label(request_id))] if dialect_of(environ) is Dialect.ANTHROPIC else own


def _with_headers(start_response: StartResponse, added: list[tuple[str, str]], is_post: bool) -> StartResponse:
    """Return a ``start_response`` that adds the headers of every answer, unless the application has set them."""
    added += NOT_STORED if is_post else SECURITY_HEADERS

    def start(status: str, headers: list[tuple[str, str]], *exc_info: OptExcInfo | None) -> Callable[[bytes], object]:
        names = {name.lower() for name, _ in headers}
        return start_response(status, [*headers, *(pair for pair in added if pair[0].lower() not in names)], *exc_info)

    return start


def _displace_earlier_attempt(request: RequestContext, environ: WSGIEnvironment) -> None:
    """Cancel the running request that has the same idempotency key, and register this one for it."""
    if request.api_type not in IDEMPOTENT_APIS:
        return
    key = idempotency_key_in(environ)
    if key is None:
        return
    sent = key.partition(":")[2]
    # Only a hash is logged: clients may put private data into a key.
    logger.info(
        "Request %s is admitted with idempotency key #%s",
        request.request_id,
        hashlib.sha256(sent.encode("utf-8")).hexdigest()[:8],
    )
    earlier = get_idempotency_service().register(key, request.request_id)
    if earlier:
        reason = f"displaced by request {request.request_id}"
        if running_requests().knows(earlier):
            running_requests().cancel(earlier, reason)
        else:
            get_cancellation_service().cancel_elsewhere(earlier, reason)


def _is_health_check(environ: WSGIEnvironment) -> bool:
    """Return whether a request is one of a load balancer or monitor, which need no key.

    One with a body does not count: nothing is read for a client without a key.
    """
    return (
        environ.get("PATH_INFO", "").rstrip("/") == HEALTH_PATH
        and environ.get("REQUEST_METHOD") in ("GET", "HEAD")
        and not has_body(environ)
    )


def _log_refusal(environ: WSGIEnvironment, refusal: Refusal) -> None:
    logger.warning(
        "Request %s of %s refused with %s: %s",
        environ[REQUEST_ID_KEY],
        environ.get("REMOTE_ADDR", "-"),
        refusal.status[:3],
        refusal.message,
    )


def _refuse_connection(
    refusal: Refusal, is_logged: bool, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    """Refuse a request before anything of it is checked."""
    if has_body(environ):
        environ[BODY_LEFT_KEY] = True
    if is_logged:
        _log_refusal(environ, refusal)
    return _refuse(environ, _with_headers(start_response, id_headers(environ), True), refusal)


def _refuse(environ: WSGIEnvironment, start_response: StartResponse, refusal: Refusal) -> Iterable[bytes]:
    """Answer in the dialect of the path, without calling the application."""
    body = to_json(error_body(PublicError(int(refusal.status[:3]), refusal.message), environ))
    start_response(
        refusal.status, [("Content-Type", "application/json"), ("Content-Length", str(len(body))), *refusal.headers]
    )
    # The answer to HEAD has the headers of the body, but not the body.
    return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]


class _BodyTooLargeError(Exception):
    """The body has more bytes than allowed."""


def take_body(environ: WSGIEnvironment, limit: int | None) -> Refusal | None:
    """Read the whole body into memory, so that the socket afterwards shows whether the client is still connected.

    Returns the refusal of an incomplete body, or of one with more than ``limit`` bytes; its rest has not been read.
    """
    # Waitress has asked about the head, and since then the list of keys has changed, or a browser has signed in.
    if BODY_LEFT_KEY in environ:
        return NO_ROOM if NO_ROOM_KEY in environ else ADMITTED_TOO_LATE
    coding = coding_of(environ) if "HTTP_CONTENT_ENCODING" in environ and has_body(environ) else ""
    refusal = (coding and refusal_of(coding)) or _refusal_in_reading(environ, limit, coding)
    if refusal is not None:
        environ[BODY_LEFT_KEY] = True
    elif BODY_WHOLE_KEY in environ:
        environ[BODY_WHOLE_KEY]()
    return refusal


def _refusal_in_reading(environ: WSGIEnvironment, limit: int | None, coding: str) -> Refusal | None:
    try:
        _read_body(environ, limit, coding)
    except _BodyTooLargeError:
        return Refusal(
            "413 Content Too Large",
            f"The request body is larger than {(limit or 0) // MEGABYTE} MB (--max-request-mb).",
        )
    except NoRoomError:
        return NO_ROOM
    except zlib.error:
        return Refusal("400 Bad Request", f"The request body is not what its content coding '{coding}' says.")
    # The last two are the servers' errors for a lost connection and wrong framing.
    except (EOFError, OSError, ValueError):
        return Refusal("400 Bad Request", "The request body is incomplete.")
    return None


def _read_body(environ: WSGIEnvironment, limit: int | None, coding: str) -> None:
    # Waitress has read the body already, and knows the length of a chunked one too.
    is_read = "waitress.client_disconnected" in environ
    if is_read:
        environ.pop("HTTP_TRANSFER_ENCODING", None)
    is_chunked = "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower()
    length = None if is_chunked else _declared_length(environ)
    # What cannot be compressed becomes a little longer, and the limit is that of the decoded body.
    most = limit + limit // 1000 + PIECE_BYTES if coding and limit is not None else limit
    if most is not None and length is not None and length > most:
        raise _BodyTooLargeError
    # Reading to the end of the input is safe only where the server decodes the chunks.
    ends_by_itself = is_chunked and ("wsgi.input_terminated" in environ or "eventlet.input" in environ)
    if (is_read and not coding) or not (length or ends_by_itself):
        return
    pieces = _within(_pieces(environ["wsgi.input"], length), most)
    if coding:
        pieces = _within(decoded(pieces, coding), limit)
        del environ["HTTP_CONTENT_ENCODING"]
    body = _gathered(pieces, environ)
    environ.pop("HTTP_TRANSFER_ENCODING", None)
    environ.update({"wsgi.input": body, "wsgi.input_terminated": True, "CONTENT_LENGTH": str(body.tell())})
    body.seek(0)


def _gathered(pieces: Iterable[bytes], environ: WSGIEnvironment) -> io.BytesIO:
    """Return a body in one piece. Raises NoRoomError."""
    budget, body = process().one(BodyBudget), io.BytesIO()
    # Where the server cannot end the wait for the next piece, that piece does.
    held = budget.begin(environ.get(STOP_READING_KEY, lambda: None))
    if held is None:
        raise NoRoomError
    try:
        for piece in pieces:
            body.write(piece)
            budget.hold(held, body.tell())
            # Under Eventlet, a fast upload would otherwise keep other green threads from running.
            time.sleep(0)
            if held.ended:
                break
    finally:
        budget.leave(held)
    if held.ended:
        raise NoRoomError
    return body


def _declared_length(environ: WSGIEnvironment) -> int | None:
    text = environ.get("CONTENT_LENGTH") or ""
    if not text.isascii() or not text.isdigit():
        return None
    return int(text) if len(text) <= MAX_DIGITS else 10**MAX_DIGITS


def _pieces(stream: Any, length: int | None) -> Iterator[bytes]:
    """Yield ``length`` bytes of ``stream``, or all of them if it is None."""
    while length is None or length:
        piece = stream.read(PIECE_BYTES if length is None else min(PIECE_BYTES, length))
        if not piece and length is None:
            return
        if not piece:
            raise EOFError
        yield piece
        length = None if length is None else length - len(piece)


def _within(pieces: Iterable[bytes], limit: int | None) -> Iterator[bytes]:
    """Yield pieces, of which the last may exceed the limit; the next one is not asked for then."""
    taken = 0
    for piece in pieces:
        taken += len(piece)
        if limit is not None and taken > limit:
            raise _BodyTooLargeError
        yield piece
