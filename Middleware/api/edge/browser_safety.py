"""Keeps foreign web pages out, and lets known ones in.

Any page that a browser shows may send requests to any address that the browser reaches, this server's included. The
browser says in ``Origin`` which page it was, and pages cannot change that. Programs that are no browsers send none.
"""
from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from wsgiref.types import WSGIEnvironment

from Middleware.models.request_context import new_request_id
from Middleware.utilities.http.addresses import is_loopback, parse_address

Headers = list[tuple[str, str]]

ANY = "*"
NULL = "null"
REQUEST_ID_HEADER = "X-Request-Id"
PREFLIGHT_SECONDS = "600"  # for which a browser remembers the answer to a preflight
METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
SECURITY_HEADERS: Headers = [
    ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")]
_SHOWN = 100  # characters of a foreign origin in a message
_DEFAULT_PORTS = {"http": "80", "https": "443"}
# Browsers let names hold more than this. Nobody's own computer has such a name, and messages show it in a command.
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[\w.~\u0080-\U0010ffff-]*)(?::(\d{1,5}))?", re.ASCII)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[\w.~-]+)(?::\d{1,5})?", re.ASCII)
_FIELD_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2000}", re.ASCII)
_PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".lan", ".home.arpa", ".localdomain")


@dataclass(frozen=True)
class Refusal:
    """A request that is not served: HTTP status line, and what the client is told."""

    status: str
    message: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Judgement:
    """What becomes of a request. ``preflight``: answer it at once; ``headers``: for its answer, whatever it is."""

    refusal: Refusal | None = None
    preflight: bool = False
    headers: tuple[tuple[str, str], ...] = ()


WELCOME = Judgement()


class BrowserSafety:
    """Judges requests by what browsers say of the page that makes them.

    Args:
        allowed: origins that are let in beside the own and local ones, as ``normal_origin`` spells them, or ``*``.
        machine: this computer's name; by default the system is asked.
    """

    def __init__(self, allowed: Iterable[str] = (), machine: str | None = None) -> None:
        self._allowed = frozenset(allowed)
        names = {(machine if machine is not None else socket.gethostname()).lower()}
        self._own_names = names | {host for host in map(_host_of, self._allowed) if host}

    def judge(self, environ: WSGIEnvironment) -> Judgement:
        """Whether a request may be served, judged by its method and headers alone (of a WSGI environ)."""
        origin = environ.get("HTTP_ORIGIN")
        if origin is None:
            refusal = self._refusal_without_origin(environ)
            return WELCOME if refusal is None else Judgement(refusal)
        normal = normal_origin(origin)
        if normal is None or not self._lets_in(normal, environ):
            return Judgement(_foreign_page(origin))
        headers = tuple(self._headers_for(origin.strip(), normal))
        if environ.get("REQUEST_METHOD") == "OPTIONS" and "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in environ and headers:
            return Judgement(None, True, (*headers, *_preflight_headers(environ)))
        return Judgement(_wrong_content_type(environ), headers=headers)

    def _lets_in(self, normal: str, environ: WSGIEnvironment) -> bool:
        if normal in self._allowed or ANY in self._allowed:
            return True
        if normal == NULL:
            return False
        if not _is_web(normal):
            return True  # an application's or an extension's own scheme, which no web page can have
        host = _host_of(normal)
        return _is_own_computer(host) or (host == _host_in(environ) and self._is_own(host))

    def _headers_for(self, origin: str, normal: str) -> Headers:
        """What lets the page read the answer. Applications with schemes of their own are to be named for that."""
        if not _is_web(normal) and normal not in self._allowed and ANY not in self._allowed:
            return []
        return [("Access-Control-Allow-Origin", origin), ("Vary", "Origin"),
                ("Access-Control-Expose-Headers", "X-Request-Id, X-Wilmer-Route, Retry-After")]

    def _is_own(self, host: str) -> bool:
        """Whether a page of this host can only come from this computer or its own network.

        The address bar is no proof: whoever owns a domain can have its name lead to this computer after the page was
        loaded. That needs a name which the owner controls, so addresses and names without a public owner are safe.
        """
        return parse_address(host) is not None or "." not in host or host.endswith(_PRIVATE_ENDINGS) \
            or host in self._own_names

    def _refusal_without_origin(self, environ: WSGIEnvironment) -> Refusal | None:
        site = environ.get("HTTP_SEC_FETCH_SITE")
        if site is None:
            return self._refusal_of_name(environ)
        if site == "cross-site" and environ.get("REQUEST_METHOD") in ("POST", "DELETE"):
            return _foreign_page("")
        return _wrong_content_type(environ)

    def _refusal_of_name(self, environ: WSGIEnvironment) -> Refusal | None:
        """For a browser that does not trust the connection, which is plain HTTP to a name other than ``localhost``."""
        name = environ.get("HTTP_HOST", "").strip()
        if not name or not environ.get("HTTP_USER_AGENT", "").startswith("Mozilla/"):
            return None
        host = _host_in(environ)
        if host is not None and (_is_own_computer(host) or self._is_own(host)):
            return None
        hint = f" If that is its name, start WilmerAI with --allow-origin http://{host[:_SHOWN]}" if host else ""
        return Refusal("403 Forbidden", f"This server does not know itself as {host or name[:_SHOWN]!a}.{hint}")


def normal_origin(text: str) -> str | None:
    """An origin in its one spelling: lower case, without the default port of http and https; None if it is none."""
    text = text.strip().lower()
    if text == NULL:
        return NULL
    found = _ORIGIN.fullmatch(text)
    if found is None:
        return None
    scheme, host, port = found.groups()
    if scheme in _DEFAULT_PORTS and not host:
        return None
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            return None
    return f"{scheme}://{host}" if port in (None, _DEFAULT_PORTS.get(scheme)) else f"{scheme}://{host}:{port}"


def headers_of_every_answer() -> Headers:
    """For answers of the HTTP servers themselves, with a fresh request id."""
    return [(REQUEST_ID_HEADER, new_request_id()), *SECURITY_HEADERS, ("Cache-Control", "no-store")]


def is_loopback_name(environ: WSGIEnvironment) -> bool:
    """Whether the client called this server by a name or address that leads no further than its own computer."""
    host = _host_in(environ)
    return host is not None and _is_own_computer(host)


def has_body(environ: WSGIEnvironment) -> bool:
    """Whether the head of a request announces a body."""
    return environ.get("CONTENT_LENGTH", "") not in ("", "0") or "HTTP_TRANSFER_ENCODING" in environ


def _wrong_content_type(environ: WSGIEnvironment) -> Refusal | None:
    """A browser's POST must say that it is JSON: what says otherwise may be sent without asking us first."""
    if environ.get("REQUEST_METHOD") != "POST":
        return None
    kind = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return None
    if not kind and not has_body(environ):
        return None
    return Refusal("415 Unsupported Media Type", "Web pages must send JSON, with Content-Type: application/json.")


def _foreign_page(origin: str) -> Refusal:
    shown = ascii(origin.strip()[:_SHOWN]) if origin else "another site"
    hint = ""
    if (normal := normal_origin(origin)) and normal != NULL:
        hint = f" If the page is yours, start WilmerAI with --allow-origin {normal[:_SHOWN]}"
    return Refusal("403 Forbidden", f"Requests of web pages from {shown} are not accepted.{hint}")


def _preflight_headers(environ: WSGIEnvironment) -> Headers:
    wanted = environ.get("HTTP_ACCESS_CONTROL_REQUEST_HEADERS", "")
    headers = [("Access-Control-Allow-Methods", METHODS), ("Access-Control-Max-Age", PREFLIGHT_SECONDS)]
    if _FIELD_NAMES.fullmatch(wanted):
        headers.append(("Access-Control-Allow-Headers", wanted))
    if environ.get("HTTP_ACCESS_CONTROL_REQUEST_PRIVATE_NETWORK") == "true":
        headers.append(("Access-Control-Allow-Private-Network", "true"))
    return headers


def _is_web(normal: str) -> bool:
    return normal.startswith(("http://", "https://"))


def _host_of(normal: str) -> str:
    found = _ORIGIN.fullmatch(normal)
    return found[2].rstrip(".") if found else ""


def _host_in(environ: WSGIEnvironment) -> str | None:
    """The ``Host`` header without its port; None if there is none that makes sense."""
    found = _HOST.fullmatch(environ.get("HTTP_HOST", "").strip().lower())
    return found[1].rstrip(".") if found else None


def _is_own_computer(host: str) -> bool:
    address = parse_address(host)
    # 0.0.0.0 leads to this computer, too, where a system lets anybody connect to it.
    return is_loopback(host) or (address is not None and address.is_unspecified)
