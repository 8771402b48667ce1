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


@pytest.mark.parametrize(
    ("url", "location", "kept"),
    [
        ("http://a/", "http://a/b", True),
        ("http://a/", "https://a/", True),
        ("https://a/", "http://a/", False),
        ("http://a/", "http://A/", True),
        ("http://a/", "http://b/", False),
    ],
)
def test_secrets(url: str, location: str, kept: bool) -> None:
    headers = {"AUTHORIZATION": "x", "cookie": "y", "Host": "v", "Accept": "z"}
    following = follow(url, location, headers=headers)
    assert following is not None
    assert following.headers == (headers if kept else {"Accept": "z"})


def test_content_headers_go_with_the_content() -> None:
    headers = {"Content-Type": "a", "content-length": "3", "Accept": "z"}
    following = follow("http://a/", "/", headers=headers, method="POST", body=b"abc")
    assert following is not None
    assert (following.method, following.body, following.headers) == ("GET", None, {"Accept": "z"})


@pytest.mark.parametrize("keys", [{"status": 200}, {"status": 304}, {"allow_redirects": False}, {"location": " "}])
def test_no_redirect(keys: dict[str, object]) -> None:
    assert follow("http://a/", **{"location": "/b", **keys}) is None  # type: ignore[arg-type]


def test_what_messages_show() -> None:
    assert origin_text(split_url("http://me:secret@A.example:81/private?q#f")) == "http://a.example:81"
    assert "secret" not in repr(WebRequest("http://a/", headers={"A": "secret"}, body=b"secret", proxy="secret"))
