"""Refuse requests of foreign web pages, and accept those of known pages.

Any page in a browser can send requests to any address that the browser reaches, including this server's. The browser
names the page in ``Origin``, which pages cannot change. Programs other than browsers do not send it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from wsgiref.types import WSGIEnvironment

from Middleware.utilities.http.addresses import is_loopback, parse_address

Headers = list[tuple[str, str]]

ANY = "*"
NULL = "null"
REQUEST_ID_HEADER = "X-Request-Id"
ANTHROPIC_ID_HEADER = "request-id"
# Browsers cache the answer to a preflight for this time. Chromium allows at most 7200, Safari 600.
PREFLIGHT_SECONDS = "600"
METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
SECURITY_HEADERS: Headers = [
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
]
# A foreign origin can be of any length; messages show only this many characters of it.
_SHOWN = 100
_DEFAULT_PORTS = {"http": "80", "https": "443"}
# Browsers allow more characters in host names. Own computers do not have such names, and messages show the name as
# part of a command. Forbidden are all of ASCII but letters, digits and "-._~"; naming what is allowed, up to U+10FFFF,
# takes twenty times as long to compile.
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[^\x00-,/:-@\[-^`{-}\x7f]*)(?::(\d{1,5}))?", re.ASCII)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[\w.~-]+)(?::\d{1,5})?", re.ASCII)
_FIELD_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2000}", re.ASCII)
# The paths whose GET returns what a client said or did. A page under a foreign name can choose most headers that it
# sends there, so none of them decides whether the name is checked.
_TELLING = re.compile(r"(?:/v1)?/responses/.+|/api/extra/generate/check|/metrics")
_PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".lan", ".home.arpa", ".localdomain")


@dataclass(frozen=True)
class Refusal:
    """The answer to a request that is not served: the HTTP status line, the message, and headers."""

    status: str
    message: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class BrowserDecision:
    """The decision about a request.

    Attributes:
        preflight: answer it at once.
        headers: add these to any answer.
        blind: the origin of the page, if that cannot read the answer: the browser does not tell its user why.
    """

    refusal: Refusal | None = None
    preflight: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    blind: str = ""


class BrowserSafety:
    """Decides about requests by the headers in which browsers name the page that makes them.

    Args:
        allowed: origins that are accepted in addition to local ones, as ``normal_origin`` spells them, or ``*``.
        machine: this computer's name; by default the system's host name.
    """

    def __init__(self, allowed: Iterable[str] = (), machine: str | None = None) -> None:
        self._allowed = frozenset(allowed)
        names = {(machine if machine is not None else socket.gethostname()).lower()}
        self._own_names = names | {host for host in map(_host_of, self._allowed) if host}

    def decide(self, environ: WSGIEnvironment) -> BrowserDecision:
        """Return the decision about a request, by the method and headers in its WSGI environ alone."""
        origin = environ.get("HTTP_ORIGIN")
        if origin is None:
            return BrowserDecision(self._refusal_without_origin(environ))
        normal = normal_origin(origin)
        if normal is None or not self._is_allowed(normal, environ):
            return BrowserDecision(_foreign_page(origin), blind=(normal or origin)[:_SHOWN])
        headers = tuple(self._headers_for(origin.strip(), normal))
        if environ.get("REQUEST_METHOD") == "OPTIONS" and "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in environ and headers:
            return BrowserDecision(None, True, (*headers, *_preflight_headers(environ)))
        refusal = _wrong_content_type(environ)
        return BrowserDecision(refusal, headers=headers, blind="" if headers or refusal else normal[:_SHOWN])

    def _is_allowed(self, normal: str, environ: WSGIEnvironment) -> bool:
        if normal in self._allowed or ANY in self._allowed:
            return True
        if normal == NULL:
            return False
        # The scheme of an application or a browser extension, which web pages cannot have.
        if not _is_web(normal):
            return True
        host = _host_of(normal)
        return _is_own_computer(host) or (host == _host_in(environ) and self._is_own(host))

    def _headers_for(self, origin: str, normal: str) -> Headers:
        """Return the headers that let the page read the answer. Origins with other schemes get them only if allowed."""
        if not _is_web(normal) and normal not in self._allowed and ANY not in self._allowed:
            return []
        return [
            ("Access-Control-Allow-Origin", origin),
            ("Vary", "Origin"),
            ("Access-Control-Expose-Headers", "X-Request-Id, X-Wilmer-Route, Retry-After"),
        ]

    def _is_own(self, host: str) -> bool:
        """Return whether a page of this host can only come from this computer or its own network.

        The host name alone proves nothing: the owner of a domain can point its name at this computer after the page
        has been loaded (DNS rebinding). Addresses, and names without a public owner, are not open to that.
        """
        return (
            parse_address(host) is not None
            or "." not in host
            or host.endswith(_PRIVATE_ENDINGS)
            or host in self._own_names
        )

    def _refusal_without_origin(self, environ: WSGIEnvironment) -> Refusal | None:
        site = environ.get("HTTP_SEC_FETCH_SITE")
        if site is None:
            return self._refusal_of_name(environ)
        if site == "cross-site" and environ.get("REQUEST_METHOD") in ("POST", "DELETE"):
            return _foreign_page("")
        return _wrong_content_type(environ)

    def _refusal_of_name(self, environ: WSGIEnvironment) -> Refusal | None:
        """Refuse an unknown host name from browsers that omit Sec-Fetch-Site, as they do on plain HTTP connections."""
        # Programs other than browsers cannot be made to send requests by a web page.
        if not environ.get("HTTP_HOST", "").strip() or not _has_signs_of_browser(environ):
            return None
        return self.refusal_of_host(environ)

    def refusal_of_reader(self, environ: WSGIEnvironment) -> Refusal | None:
        """Refuse to tell what clients said or did under an unknown host name, whatever sends the request.

        For servers without a list of keys: an accepted key proves that the request is not one of a foreign page. That
        the origin is accepted proves it, too, and browsers always name the host.
        """
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD") or "HTTP_ORIGIN" in environ:
            return None
        if not environ.get("HTTP_HOST", "").strip() or not _TELLING.fullmatch(environ.get("PATH_INFO", "").rstrip("/")):
            return None
        return self.refusal_of_host(environ)

    def refusal_of_host(self, environ: WSGIEnvironment) -> Refusal | None:
        """Refuse a request that calls this server by a name whose owner could point it anywhere (DNS rebinding)."""
        name, host = environ.get("HTTP_HOST", "").strip(), _host_in(environ)
        if host is not None and (_is_own_computer(host) or self._is_own(host)):
            return None
        hint = f" If that is its name, start WilmerAI with --allow-origin http://{host[:_SHOWN]}" if host else ""
        return Refusal("403 Forbidden", f"This server does not know itself as {host or name[:_SHOWN]!a}.{hint}")


def normal_origin(text: str) -> str | None:
    """Return an origin in its normal spelling, lower case and without a default port; None if it is not an origin."""
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


def called_origins(environ: WSGIEnvironment) -> frozenset[str]:
    """Return the origins of pages that this server itself has sent, as the client called it; a proxy may add TLS."""
    host = environ.get("HTTP_HOST", "").strip()
    return frozenset(origin for scheme in _DEFAULT_PORTS if (origin := normal_origin(f"{scheme}://{host}")))


def is_loopback_name(environ: WSGIEnvironment) -> bool:
    """Return whether the client addressed this server by a loopback name or address."""
    host = _host_in(environ)
    return host is not None and _is_own_computer(host)


def has_body(environ: WSGIEnvironment) -> bool:
    """Return whether the head of a request announces a body."""
    return environ.get("CONTENT_LENGTH", "") not in ("", "0") or "HTTP_TRANSFER_ENCODING" in environ


def _wrong_content_type(environ: WSGIEnvironment) -> Refusal | None:
    """Refuse a browser's POST with another content type than JSON: browsers send those without a preflight."""
    return refusal_of_content(environ) if environ.get("REQUEST_METHOD") == "POST" else None


def refusal_of_content(environ: WSGIEnvironment) -> Refusal | None:
    """Refuse a body that is not declared as JSON."""
    kind = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return None
    # A POST without a body has no content type either.
    if not kind and not has_body(environ):
        return None
    return Refusal("415 Unsupported Media Type", "Web pages must send JSON, with Content-Type: application/json.")


def _foreign_page(origin: str) -> Refusal:
    shown = ascii(origin.strip()[:_SHOWN]) if origin else "another site"
    normal = normal_origin(origin)
    hint = " Pages opened as a file have no origin: serve yours from a web server, and name that with --allow-origin."
    if normal != NULL:
        hint = "" if normal is None else f" If the page is yours, start WilmerAI with --allow-origin {normal[:_SHOWN]}"
    return Refusal("403 Forbidden", f"Requests of web pages from {shown} are not accepted.{hint}")


def _preflight_headers(environ: WSGIEnvironment) -> Headers:
    wanted = environ.get("HTTP_ACCESS_CONTROL_REQUEST_HEADERS", "")
    headers = [("Access-Control-Allow-Methods", METHODS), ("Access-Control-Max-Age", PREFLIGHT_SECONDS)]
    if _FIELD_NAMES.fullmatch(wanted):
        headers.append(("Access-Control-Allow-Headers", wanted))
    # Chromium asks this before a public page may reach a private address.
    if environ.get("HTTP_ACCESS_CONTROL_REQUEST_PRIVATE_NETWORK") == "true":
        headers.append(("Access-Control-Allow-Private-Network", "true"))
    return headers


def _has_signs_of_browser(environ: WSGIEnvironment) -> bool:
    """Return whether the headers are those of a browser, of which a page can leave out or change some."""
    language = environ.get("HTTP_ACCEPT_LANGUAGE", "*").strip()
    if language != "*" or "HTTP_REFERER" in environ or environ.get("HTTP_USER_AGENT", "").startswith("Mozilla/"):
        return True
    signs = {name for name in environ if name.startswith("HTTP_SEC_")}
    # Node's own fetch sends this pair with each request. On plain HTTP, a page can send the second only.
    is_node = signs == {"HTTP_SEC_FETCH_MODE"} and "HTTP_ACCEPT_LANGUAGE" in environ
    return bool(signs) and not is_node


def _is_web(normal: str) -> bool:
    return normal.startswith(("http://", "https://"))


def _host_of(normal: str) -> str:
    found = _ORIGIN.fullmatch(normal)
    return found[2].rstrip(".") if found else ""


def _host_in(environ: WSGIEnvironment) -> str | None:
    """Return the ``Host`` header without its port; None if it is missing or malformed."""
    found = _HOST.fullmatch(environ.get("HTTP_HOST", "").strip().lower())
    return found[1].rstrip(".") if found else None


def _is_own_computer(host: str) -> bool:
    address = parse_address(host)
    # On most systems, connections to 0.0.0.0 reach this computer too.
    return is_loopback(host) or (address is not None and address.is_unspecified)
