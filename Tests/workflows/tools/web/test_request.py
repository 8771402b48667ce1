"""What a redirect makes of a request."""

from __future__ import annotations

import pytest

from Middleware.workflows.tools.web.fetch import (
    WebRequest,
    WebResponse,
    origin_text,
    redirected,
    split_url,
)
from Tests.tables import table


def follow(url: str, location: str, status: int = 302, **keys: object) -> WebRequest | None:
    return redirected(WebRequest(url, **keys), WebResponse(status, "", {"Location": location}, b""))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "location", "there"),
    [
        ("http://a/b/c?d", "e", "http://a/b/e"),
        ("http://a/b", "//z/y", "http://z/y"),
        ("http://a/b", "?q", "http://a/b?q"),
        ("http://a", "https://a/", "https://a/"),
        ("http://a", " /x y ", "http://a/x%20y"),
        ("http://a/", "/caf\u00c3\u00a9", "http://a/caf%C3%A9"),
        ("http://a/", "/caf\u00e9", "http://a/caf%C3%A9"),
        ("http://a/", "/caf%C3%A9", "http://a/caf%C3%A9"),
    ],
)
def test_locations(url: str, location: str, there: str) -> None:
    following = follow(url, location)
    assert following is not None and following.url == there


@pytest.mark.parametrize("location", ["file:///x", "javascript:1", "http://[", "ftp://a/"])
def test_locations_that_lead_nowhere(location: str) -> None:
    with pytest.raises(ValueError):
        follow("http://a/", location)


FOR_ALL = {
    "ACCEPT": "a",
    "accept-charset": "b",
    "Accept-Encoding": "c",
    "Accept-Language": "d",
    "Cache-Control": "e",
    "Content-Language": "f",
    "content-type": "g",
    "If-Modified-Since": "h",
    "If-None-Match": "i",
    "PRAGMA": "j",
    "Range": "k",
    "user-agent": "l",
}
OWN = {
    "AUTHORIZATION": "x",
    "Proxy-Authorization": "x",
    "x-api-key": "x",
    "api-key": "x",
    "PRIVATE-TOKEN": "x",
    "X-Auth-Token": "x",
    "Host": "v",
    "Referer": "http://a/secret",
    "Origin": "http://a",
    "Accept-Encodings": "x",
    "If-Match": "x",
}


@table(
    ("url", "location", "kept"),
    [
        ("http://a/", "http://a/b", True),
        ("http://a/", "http://a:80/b", True),
        ("http://a:80/", "//a/b", True),
        ("http://a/", "http://A/", True),
        ("http://m\u00fcller.example/", "http://xn--mller-kva.example/", True),
        ("https://a:443/", "https://a", True),
        ("http://a/", "https://a/", True),
        ("http://a:80/", "https://A:443/b", True),
        ("http://a:8080/", "https://a/", False),
        ("http://a/", "https://a:8443/", False),
        ("https://a/", "http://a/", False),
        ("https://a/", "http://a:443/", False),
        ("http://a:443/", "https://a:443/", False),
        ("http://a/", "http://a:81/", False),
        ("http://a:8080/", "http://a/", False),
        ("http://a/", "http://b/", False),
        ("http://a/", "https://b/", False),
        ("http://a.example/", "http://b.a.example/", False),
        ("http://b.a.example/", "http://a.example/", False),
        ("http://a.example/", "http://a.example.evil.example/", False),
        ("http://a.example/", "http://a.example@evil.example/", False),
        ("http://127.0.0.1/", "http://localhost/", False),
        ("http://[::1]/", "http://[::1]:81/", False),
    ],
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_headers_stay_with_their_origin(url: str, location: str, kept: bool, status: int) -> None:
    headers = {**FOR_ALL, **OWN}
    following = follow(url, location, status, headers=headers)
    assert following is not None
    assert following.headers == (headers if kept else FOR_ALL)


def test_what_was_left_behind_does_not_come_back() -> None:
    first = follow("http://a/", "http://b/", headers={"X-Key": "x", "Accept": "z"})
    assert first is not None
    back = redirected(first, WebResponse(302, "", {"Location": "http://a/"}, b""))
    assert back is not None and back.headers == {"Accept": "z"}


@table(
    ("url", "location", "there"),
    [
        ("http://me:pw@a/", "/b", "http://me:pw@a/b"),
        ("http://me:pw@a/", "http://a/b", "http://me:pw@a/b"),
        ("http://me:pw@a/", "//A:80/b", "http://me:pw@a:80/b"),
        ("http://me:pw@a/", "http://you:no@a/b", "http://you:no@a/b"),
        ("http://me:pw@a/", "http://a:81/b", "http://a:81/b"),
        ("http://me:pw@a/", "http://b/", "http://b/"),
        ("http://me:pw@a/", "https://a/", "https://a/"),
        ("https://me:pw@a/", "http://a/", "http://a/"),
        ("http://a/", "http://you:no@b/", "http://you:no@b/"),
    ],
)
def test_a_password_in_the_url_stays_with_its_origin(url: str, location: str, there: str) -> None:
    following = follow(url, location)
    assert following is not None and following.url == there


METHODS = {
    301: {"GET": "GET", "HEAD": "HEAD", "POST": "GET", "PUT": "PUT", "PATCH": "PATCH", "DELETE": "DELETE"},
    302: {"GET": "GET", "HEAD": "HEAD", "POST": "GET", "PUT": "GET", "PATCH": "GET", "DELETE": "GET", "OPTIONS": "GET"},
    307: {method: method for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "PROPFIND")},
}
METHODS |= {303: METHODS[302], 308: METHODS[307]}


@table(
    ("status", "method", "then", "has_body"),
    [(status, *pair, has) for status, pairs in METHODS.items() for pair in pairs.items() for has in (True, False)],
)
def test_methods_and_bodies(status: int, method: str, then: str, has_body: bool) -> None:
    content = {"Content-Type": "a", "content-length": "3", "TRANSFER-ENCODING": "b"}
    rest = {"Accept": "z", "Content-Encoding": "gzip"}
    body = b"abc" if has_body else None
    following = follow("http://a/", "/", status, headers={**content, **rest}, method=method, body=body)
    assert following is not None
    keeps = status in (307, 308)
    assert (following.method, following.body) == (then, body if keeps else None)
    assert following.headers == ({**content, **rest} if keeps or (not has_body and method == then) else rest)


@pytest.mark.parametrize("location", ["/b", "http://b/", "https://a/"])
def test_a_cookie_header_is_for_the_first_request(location: str) -> None:
    following = follow("http://a/", location, 307, headers={"COOKIE": "x", "Accept": "z"})
    assert following is not None and following.headers == {"Accept": "z"}


@pytest.mark.parametrize("keys", [{"status": 200}, {"status": 304}, {"allow_redirects": False}, {"location": " "}])
def test_no_redirect(keys: dict[str, object]) -> None:
    assert follow("http://a/", **{"location": "/b", **keys}) is None  # type: ignore[arg-type]


def test_what_messages_show() -> None:
    assert origin_text(split_url("http://me:secret@A.example:81/private?q#f")) == "http://a.example:81"
    assert "secret" not in repr(WebRequest("http://a/", headers={"A": "secret"}, body=b"secret", proxy="secret"))
