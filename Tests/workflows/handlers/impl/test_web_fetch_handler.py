"""WebFetch against real servers: what is asked, what comes out, what is refused, and how it ends."""

from __future__ import annotations

import gzip
import json
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.utilities.http import addresses, connection
from Middleware.workflows.handlers.impl.web_fetch_handler import WebFetchHandler
from Middleware.workflows.tools.web import fetch as web_fetch_tool
from Tests.corpora import cases
from Tests.free_ports import free_port
from Tests.integration.launcher import PROJECT
from Tests.patience import PATIENCE
from Tests.stub_backend import AFTER_PIECES, BEFORE_STATUS, RecordedRequest, Reply, StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, start, static, tried_with, user
from Tests.workflows.url_values import ROWS

PAGE = b"<html><head><title>T</title></head><body><h1>Ferry</h1><p>Leaves at <b>nine</b>.</p></body></html>"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


@pytest.fixture
def web() -> Iterator[StubBackend]:
    with StubBackend() as server:
        yield server


def fetch(url: str, **keys: Any) -> dict[str, Any]:
    return {"type": "WebFetch", "title": "Fetch", "url": url, **keys}


def items(lab: EngineLab, *nodes: dict[str, Any], said: str = "ferry boats", stream: bool = False) -> list[Any]:
    lab.workflow("Main", list(nodes), site="custom")
    return list(start(lab, "Main", user(said), probes={"WebFetch": WebFetchHandler()}, stream=stream))


def run(lab: EngineLab, *nodes: dict[str, Any], said: str = "ferry boats") -> Any:
    return items(lab, *nodes, said=said)[-1]


def html(body: bytes = PAGE, **options: Any) -> Reply:
    return Reply(body=body, headers={"Content-Type": "text/html"}, **options)


def redirect(status: int, location: str) -> Reply:
    return Reply(status=status, body=b"", headers={"Location": location})


def localhost(server: StubBackend, path: str = "/") -> str:
    return f"http://localhost:{server.port}{path}"


# -- what is asked -----------------------------------------------------------------------------------------------------


def test_a_page(lab: EngineLab, web: StubBackend) -> None:
    web.script(html())
    assert run(lab, fetch(f"{web.url}/page?q={{chat_user_prompt_last_one}}#top")) == PAGE.decode()
    request = web.requests[0]
    assert (request.method, request.path, request.body) == ("GET", "/page?q=ferry%20boats", b"")
    assert request.headers["host"] == f"127.0.0.1:{web.port}"


@table(("url", "value", "target"), ROWS.values(), ids=list(ROWS))
def test_values_in_the_url_are_encoded(lab: EngineLab, web: StubBackend, url: str, value: str, target: str) -> None:
    web.script(html())
    run(lab, static(value), fetch(web.url + url))
    assert web.requests[0].path == target


def documented_requests() -> list[tuple[str, str, str]]:
    """The rows of the page: URL, value, and target of the request."""
    page = (PROJECT / "Docs" / "User" / "web-nodes.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `(\S+)` \| `(.+)` \| `GET (\S+)` \|$", page, re.MULTILINE)


def test_the_page_shows_what_is_requested(lab: EngineLab, web: StubBackend) -> None:
    rows = documented_requests()
    assert len(rows) == 4
    web.script(*(html() for _ in rows))
    for url, value, _ in rows:
        here = [re.sub(r"^https://[a-z.]+", web.url, text) for text in (url, value)]
        run(lab, static(here[1]), fetch(here[0]))
    assert [request.path for request in web.requests] == [target for _, _, target in rows]


@table("switch", [False, "false", "False"])
def test_values_that_are_not_to_be_encoded(lab: EngineLab, web: StubBackend, switch: object) -> None:
    web.script(html())
    run(lab, static("a&b=c"), fetch(f"{web.url}/s?q={{agent1Output}}", encodeUrlValues=switch))
    assert web.requests[0].path == "/s?q=a&b=c"


def test_a_whole_url_and_one_that_begins_with_a_value(lab: EngineLab, web: StubBackend) -> None:
    web.script(html(), html())
    run(lab, static(f"  {web.url}/s?q=a%20b&c=d#e\n"), fetch("{agent1Output}"))
    run(lab, static(f"{web.url}/s?q="), static("a&b"), fetch("{agent1Output}{agent2Output}"))
    assert [request.path for request in web.requests] == ["/s?q=a%20b&c=d", "/s?q=a%26b"]


def test_values_of_the_workflow_that_hold_variables(lab: EngineLab, web: StubBackend) -> None:
    """Ready-made parameters are the author's; what they insert, and a value in its place, are encoded."""
    web.script(html(), html())
    lab.workflow(
        "Main",
        [static("a&b"), fetch(f"{web.url}/s?{{parameters}}&about={{topic}}")],
        site="custom",
        parameters="lang=de&q={agent1Output}",
        topic="K\u00f6ln & {agent1Output}",
    )
    list(start(lab, "Main", user("Hi"), probes={"WebFetch": WebFetchHandler()}))
    assert web.requests[0].path == "/s?lang=de&q=a%26b&about=K%C3%B6ln%20%26%20a%26b"


@table(
    ("url", "target"),
    [
        ("/s?q={{ agent1Output }}&x=1", "/s?q=a%20%26%20b&x=1"),
        ("/s?q={{ agent1Output | urlencode }}", "/s?q=a%20%26%20b"),
        ("/s?q={{ agent1Output ~ '#' }}", "/s?q=a%20%26%20b%23"),
        ("/s{% if agent1Output %}?q={{ agent1Output | upper }}&y=1{% endif %}", "/s?q=A%20%26%20B&y=1"),
        ("/s?{% for word in agent1Output.split() %}w={{ word }}&{% endfor %}z=1", "/s?w=a&w=%26&w=b&z=1"),
        ("/s?{{ 'q=1&r=2' }}", "/s?q=1&r=2"),
        ("/s?q={{ missing }}", "/s?q="),
    ],
)
def test_values_of_templates_are_encoded(lab: EngineLab, web: StubBackend, url: str, target: str) -> None:
    web.script(html())
    run(lab, static("a & b"), fetch(web.url + url, jinja2=True))
    assert web.requests[0].path == target


def test_a_url_that_is_filled_in_only_where_possible(lab: EngineLab, web: StubBackend) -> None:
    lab.user(partialVariableSubstitution=True)
    web.script(html())
    run(lab, static("a&b"), fetch(f"{web.url}/s?q={{agent1Output}}&r={{nothing}}"))
    assert web.requests[0].path == "/s?q=a%26b&r=%7Bnothing%7D"


def test_streamed_word_by_word(lab: EngineLab, web: StubBackend) -> None:
    web.script(Reply(body=b"two words"))
    chunks = items(lab, fetch(web.url), stream=True)
    assert [chunk["token"] for chunk in chunks if chunk["token"]] == ["two", " ", "words"]


def test_method_headers_and_body(lab: EngineLab, web: StubBackend) -> None:
    node = fetch(
        web.url,
        method="put",
        body="b={chat_user_prompt_last_one} é",
        headers={"X-Test": "{chat_user_prompt_last_one}\n", "X-None": None, "X-N": 5},
    )
    run(lab, node)
    request = web.requests[0]
    assert (request.method, request.body) == ("PUT", "b=ferry boats é".encode())
    assert (request.headers["x-test"], request.headers["x-n"]) == ("ferry boats", "5")
    assert "x-none" not in request.headers


def test_header_names_take_no_variables(lab: EngineLab, web: StubBackend) -> None:
    with pytest.raises(ValueError, match=r"WebFetch node 'Fetch': 'headers'"):
        run(lab, fetch(web.url, onError="return", headers={"X-{site}": "1"}))


def test_header_values_beyond_latin_1(lab: EngineLab, web: StubBackend) -> None:
    run(lab, fetch(web.url, headers={"X-Test": "日"}))
    assert web.requests[0].headers["x-test"].encode("latin-1").decode() == "日"


@pytest.mark.parametrize("said", ["a\r\nX-Evil: 1", "a\n two", "a\r\n\ttwo", "a\0b", "a\rb"])
def test_a_line_break_in_a_header_is_a_failure(lab: EngineLab, web: StubBackend, said: str) -> None:
    node = fetch(web.url, headers={"X-Test": "{chat_user_prompt_last_one}"}, onError="return")
    assert "HTTP cannot carry" in run(lab, node, said=said)
    assert web.requests == []


def test_a_line_break_in_a_url_is_encoded(lab: EngineLab, web: StubBackend) -> None:
    run(lab, fetch(f"{web.url}/{{chat_user_prompt_last_one}}"), said="a HTTP/1.1\r\nX-Evil: 1")
    assert web.requests[0].path == "/a%20HTTP/1.1%0D%0AX-Evil:%201"


@pytest.mark.parametrize(("headers", "sent"), [({}, "Basic bWU6cDo="), ({"authorization": "Bearer x"}, "Bearer x")])
def test_a_password_in_the_url_is_sent_and_not_logged(
    lab: EngineLab, web: StubBackend, caplog: pytest.LogCaptureFixture, headers: dict[str, str], sent: str
) -> None:
    caplog.set_level(logging.DEBUG)
    run(lab, fetch(f"http://me:p%3A@127.0.0.1:{web.port}/", headers=headers))
    assert web.requests[0].headers["authorization"] == sent
    logged = [record.getMessage() for record in caplog.records if "WebFetch:" in record.getMessage()]
    assert logged and "p%3A" not in caplog.text


def test_conversations_are_not_logged(lab: EngineLab, web: StubBackend, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    web.script(Reply(status=500, body=b"broken"))
    run(lab, fetch(f"{web.url}/{{chat_user_prompt_last_one}}", onError="return"), said="mysecret")
    assert "Fetch" in caplog.text and "mysecret" not in caplog.text


# -- what comes out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output_format", "output"), [("text", PAGE.decode()), ("html-stripped", "Ferry\nLeaves at\nnine\n.")]
)
def test_formats(lab: EngineLab, web: StubBackend, output_format: str, output: str) -> None:
    web.script(html())
    assert run(lab, fetch(web.url, outputFormat=output_format)) == output


def test_json(lab: EngineLab, web: StubBackend) -> None:
    web.script(Reply(body='{"a" :[1,2], "b": "é"}'.encode()))
    assert run(lab, fetch(web.url, outputFormat="json")) == '{"a": [1, 2], "b": "é"}'


def test_full(lab: EngineLab, web: StubBackend) -> None:
    web.script(Reply(status=201, body=b"made", headers={"X-A": "1"}))
    result = json.loads(run(lab, fetch(web.url, outputFormat="full")))
    assert set(result) == {"status_code", "headers", "body"}
    assert (result["status_code"], result["headers"]["X-A"], result["body"]) == (201, "1", "made")


def test_braces_in_a_page_stay_text(lab: EngineLab, web: StubBackend) -> None:
    web.script(Reply(body=b"{site} {{x}} {nope}"))
    assert run(lab, fetch(web.url), static("<{agent1Output}>")) == "<{site} {{x}} {nope}>"


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("é".encode(), "text/plain", "é"),
        ("é".encode("latin-1"), "text/plain; charset=ISO-8859-1", "é"),
        ("é".encode("latin-1"), "text/plain", "é"),
        ("日".encode("shift_jis"), 'text/plain; charset="Shift_JIS"', "日"),
        (b'<meta charset="shift_jis">' + "日".encode("shift_jis"), "text/html", '<meta charset="shift_jis">日'),
        ("\ufeffé".encode(), "text/plain; charset=latin-1", "é"),
        ("é".encode("utf-16"), "text/plain", "é"),
        ("é".encode(), "text/plain; charset=nonsense", "é"),
        ("é".encode(), "text/plain; charset=base64", "é"),
        (b"a\xff", "text/plain; charset=utf-8", "a\ufffd"),
        (b"", "text/plain", ""),
    ],
)
def test_charsets(lab: EngineLab, web: StubBackend, body: bytes, content_type: str, text: str) -> None:
    web.script(Reply(body=body, headers={"Content-Type": content_type}))
    assert run(lab, fetch(web.url)) == text


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
def test_compressed_and_framed(lab: EngineLab, web: StubBackend, framing: str) -> None:
    body = gzip.compress(b"hello " * 1000)
    web.script(Reply(pieces=[body[:20], body[20:]], headers={"Content-Encoding": "gzip"}, framing=framing, delay=0.01))
    assert run(lab, fetch(web.url)) == "hello " * 1000
    assert "gzip" in web.requests[0].headers["accept-encoding"]


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_status_is_raised(lab: EngineLab, web: StubBackend) -> None:
    web.script(Reply(status=404, body=b"nothing here"))
    with pytest.raises(Exception, match=f"WebFetch got status 404 .* from {web.url}"):
        run(lab, fetch(f"{web.url}/secret/path"))


@pytest.mark.parametrize(
    ("output_format", "body", "output"),
    [
        ("text", PAGE, PAGE.decode()),
        ("json", b"no json", "no json"),
        ("html-stripped", PAGE, "Ferry\nLeaves at\nnine\n."),
        ("text", b"", "WebFetch got status 500"),
    ],
)
def test_a_status_is_returned(lab: EngineLab, web: StubBackend, output_format: str, body: bytes, output: str) -> None:
    web.script(html(body, status=500))
    assert run(lab, fetch(web.url, onError="return", outputFormat=output_format)).startswith(output)


def test_a_status_is_returned_in_full(lab: EngineLab, web: StubBackend) -> None:
    web.script(Reply(status=500, body=b"broken", headers={"X-A": "1"}))
    result = json.loads(run(lab, fetch(web.url, onError="return", outputFormat="full")))
    assert (result["status_code"], result["headers"]["X-A"], result["body"]) == (500, "1", "broken")
    assert "500" in result["error"]


def test_the_body_of_a_failure_is_read_up_to_the_cap(lab: EngineLab, web: StubBackend) -> None:
    web.script(Reply(status=500, body=b"x" * 100))
    assert run(lab, fetch(web.url, onError="return", maxResponseBytes=10)) == "x" * 10


def test_no_json(lab: EngineLab, web: StubBackend) -> None:
    web.default = Reply(body=b"{half")
    with pytest.raises(Exception, match="expected JSON"):
        run(lab, fetch(web.url, outputFormat="json"))
    assert run(lab, fetch(web.url, outputFormat="json", onError="return")) == "{half"


def test_no_server(lab: EngineLab) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionError, match=f"could not get an answer from {url}"):
        run(lab, fetch(f"{url}/path"))
    assert json.loads(run(lab, fetch(url, onError="return", outputFormat="full"))).keys() == {
        "error",
        "status_code",
        "headers",
        "body",
    }
    result = json.loads(run(lab, fetch(url, onError="return", outputFormat="full")))
    assert result["status_code"] is result["headers"] is result["body"] is None
    assert run(lab, fetch(url, onError="return")) == result["error"]


@pytest.mark.parametrize("url", ["http://name.invalid/", "ftp://127.0.0.1/", "127.0.0.1:80", "http://", "http://[/"])
def test_urls_that_lead_nowhere(lab: EngineLab, url: str) -> None:
    assert run(lab, fetch(url, onError="return")).startswith("WebFetch c")
    with pytest.raises(Exception, match="WebFetch c"):
        run(lab, fetch(url))


@pytest.mark.parametrize(
    "reply",
    [
        Reply(drop=BEFORE_STATUS),
        Reply(body=b"x" * 100, drop=AFTER_PIECES),
        Reply(pieces=[b"x"], drop=AFTER_PIECES),
        Reply(raw=b"SSH-2.0 hello\r\n"),
        Reply(body=b"no gzip", headers={"Content-Encoding": "gzip"}),
        Reply(raw=b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300),
    ],
)
def test_broken_answers(lab: EngineLab, web: StubBackend, reply: Reply) -> None:
    web.script(reply)
    with pytest.raises(ConnectionError, match="could not get an answer"):
        run(lab, fetch(web.url))


def test_a_redirect_to_a_path_in_plain_utf_8(lab: EngineLab, web: StubBackend) -> None:
    moved = "HTTP/1.1 302 Found\r\nLocation: /caf\u00e9\r\nContent-Length: 0\r\n\r\n"
    web.script(Reply(raw=moved.encode()), Reply(body=b"in"))
    assert run(lab, fetch(web.url)) == "in"
    assert web.requests[1].path == "/caf%C3%A9"


def test_an_answer_that_is_not_compressed_as_it_says(lab: EngineLab, web: StubBackend) -> None:
    web.script(Reply(body=b"no gzip", headers={"Content-Encoding": "gzip"}))
    text = run(lab, fetch(web.url, onError="return"))
    assert text == (
        f"WebFetch could not get an answer from {web.url}: the answer is not proper HTTP (the compressed "
        "body is broken)."
    )


def test_silence(lab: EngineLab, web: StubBackend) -> None:
    web.default = Reply(never=True)

    def check(seconds: float) -> None:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=f"no data for {seconds:g} seconds"):
            run(lab, fetch(web.url, timeout=seconds))
        assert seconds <= time.monotonic() - began < 60

    tried_with(check, 0.2, 2.0, 20.0)
    assert web.wait_requests()[0].wait_ended()


def test_silence_in_the_body(lab: EngineLab, web: StubBackend) -> None:
    web.default = Reply(pieces=[b"a", b"b"], delay=PATIENCE)

    def check(seconds: float) -> None:
        assert "no data" in run(lab, fetch(web.url, timeout=str(seconds), onError="return"))

    tried_with(check, 0.2, 2.0, 20.0)


def test_a_trickling_server_meets_the_deadline(
    lab: EngineLab, web: StubBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_fetch_tool, "MIN_TOTAL_SECONDS", 0.1)
    monkeypatch.setattr(web_fetch_tool, "TOTAL_TIMEOUTS", 0.1)
    web.script(Reply(pieces=[b"a"] * 4000, delay=0.05))
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="gave up after 1 seconds in all"):
        run(lab, fetch(web.url, timeout=10))
    assert 0.9 < time.monotonic() - began < 60
    assert web.wait_requests()[0].wait_ended()


# -- the cap -----------------------------------------------------------------------------------------------------------

CAP_TEXT = "WebFetch response exceeded the 10-byte cap (maxResponseBytes)."


@pytest.mark.parametrize("cap", [10, "10", "{limit}"])
@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_the_cap(lab: EngineLab, web: StubBackend, cap: Any, framing: str) -> None:
    web.default = Reply(pieces=[b"12345"] * 3, framing=framing, hang=True)
    lab.write("Workflows/tester/Main", {"nodes": [fetch(web.url, maxResponseBytes=cap)], "limit": "10"})
    with pytest.raises(Exception) as caught:
        list(start(lab, "Main", probes={"WebFetch": WebFetchHandler()}))
    assert str(caught.value) == CAP_TEXT
    assert web.requests[0].wait_ended()


def test_the_cap_returned(lab: EngineLab, web: StubBackend) -> None:
    web.default = Reply(body=b"x" * 11)
    assert run(lab, fetch(web.url, maxResponseBytes=10, onError="return")) == CAP_TEXT
    result = json.loads(run(lab, fetch(web.url, maxResponseBytes=10, onError="return", outputFormat="full")))
    assert (result["error"], result["status_code"]) == (CAP_TEXT, 200)


@pytest.mark.parametrize(("cap", "size"), [(10, 10), (0, 100), (-1, 100), ("0", 100), (None, 100)])
def test_within_the_cap(lab: EngineLab, web: StubBackend, cap: Any, size: int) -> None:
    web.script(Reply(body=b"x" * size))
    assert run(lab, fetch(web.url, maxResponseBytes=cap)) == "x" * size


def test_the_default_cap(lab: EngineLab, web: StubBackend) -> None:
    web.script(Reply(body=gzip.compress(b"x" * 10485761), headers={"Content-Encoding": "gzip"}))
    with pytest.raises(Exception, match="exceeded the 10485760-byte cap"):
        run(lab, fetch(web.url))


# -- redirects ---------------------------------------------------------------------------------------------------------

SECRETS = {"Authorization": "Bearer a", "Cookie": "b", "Proxy-Authorization": "c", "X-Kept": "d"}


@pytest.mark.parametrize("guard", [{}, {"allowedHosts": ["127.0.0.1", "LOCALHOST"]}])
@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "POST", "GET"),
        (301, "PUT", "PUT"),
        (302, "PUT", "GET"),
        (303, "DELETE", "GET"),
        (303, "GET", "GET"),
        (307, "POST", "POST"),
        (308, "PUT", "PUT"),
    ],
)
def test_redirects_change_methods(
    lab: EngineLab, web: StubBackend, guard: dict[str, Any], status: int, method: str, then: str
) -> None:
    web.script(redirect(status, "../b?c=d"), Reply(body=b"there"))
    node = fetch(f"{web.url}/x/a", method=method, body="data", headers={"Content-Type": "text/x", **SECRETS}, **guard)
    assert run(lab, node) == "there"
    first, second = web.requests
    assert (second.path, second.method) == ("/b?c=d", then)
    assert second.body == (b"data" if status in (307, 308) else b"")
    assert ("content-type" in second.headers) is (status in (307, 308))
    assert second.headers["authorization"] == "Bearer a"


@pytest.mark.parametrize("guard", [{}, {"allowedHosts": ["127.0.0.1", "localhost"]}])
@pytest.mark.parametrize("place", ["another host", "another port"])
def test_secrets_stay_with_their_origin(lab: EngineLab, web: StubBackend, guard: dict[str, Any], place: str) -> None:
    with StubBackend() as other:
        there = localhost(web, "/b") if place == "another host" else f"{other.url}/b"
        asked = web if place == "another host" else other
        back = [redirect(302, f"{web.url}/c")]
        web.script(redirect(302, there), *(back if asked is web else []), Reply(body=b"there"))
        other.script(*back)
        node = fetch(f"http://me:pw@127.0.0.1:{web.port}/a", headers={**SECRETS, "Accept": "text/x"}, **guard)
        assert run(lab, node) == "there"
        for request in (asked.requests[-2 if asked is web else -1], web.requests[-1]):
            assert request.headers["accept"] == "text/x"
            assert not {"authorization", "cookie", "proxy-authorization", "x-kept"} & set(request.headers)
        assert web.requests[0].headers["authorization"] == "Bearer a"


def sets(location: str, *cookies: str, status: int = 302) -> Reply:
    """A redirect that sets cookies, each with a header of its own."""
    lines = [f"HTTP/1.1 {status} Moved", f"Location: {location}", *[f"Set-Cookie: {one}" for one in cookies]]
    return Reply(raw="\r\n".join([*lines, "Content-Length: 0", "", ""]).encode("latin-1"))


@table(
    ("cookies", "path", "sent"),
    [
        (["a=1"], "/b", "a=1"),
        (["a=1; Expires=Wed, 21 Oct 2099 07:28:00 GMT; HttpOnly", "b=2; Max-Age=60"], "/b", "a=1; b=2"),
        (["a=1; Expires=Wed, 21 Oct 2015 07:28:00 GMT", "b=2; Max-Age=0"], "/b", None),
        (["a=1; Secure"], "/b", None),
        (["a=1; Path=/other"], "/b", None),
        (["a=1; Path=/b"], "/b/c", "a=1"),
        (["a=1; Path=/b"], "/bc", None),
        (["a=1"], "/elsewhere/x", "a=1"),
        (["a=1; Domain=evil.example"], "/b", None),
        (["a=1", "a=2"], "/b", "a=2"),
        (["a=1", "a=; Max-Age=0"], "/b", None),
        (['a="x y"; Path=/'], "/b", 'a="x y"'),
        (["a=\xe9"], "/b", "a=\xe9"),
        (["=", "", "; Path=/"], "/b", None),
    ],
)
def test_cookies_of_a_redirect(
    lab: EngineLab, web: StubBackend, cookies: list[str], path: str, sent: str | None
) -> None:
    web.script(sets(path, *cookies), Reply(body=b"there"))
    count = len(web.requests)
    run(lab, fetch(f"{web.url}/a", headers={"Cookie": "mine=1"}))
    first, second = web.requests[count:]
    got = second.headers.get("cookie")
    assert first.headers["cookie"] == "mine=1"
    assert got == sent or (got is not None and sent is not None and sorted(got.split("; ")) == sorted(sent.split("; ")))


def test_cookies_stay_with_their_origin_and_their_node(lab: EngineLab, web: StubBackend) -> None:
    with StubBackend() as other:
        web.script(sets("/b", "a=1"), sets(f"{other.url}/c", "b=2"), Reply(body=b"back"), Reply(body=b"again"))
        other.script(sets(f"{web.url}/d", "c=3"))
        assert run(lab, fetch(f"{web.url}/a")) == "back"
        assert run(lab, fetch(f"{web.url}/e")) == "again"
        assert [one.headers.get("cookie") for one in web.requests] == [None, "a=1", None, None]
        assert other.requests[0].headers.get("cookie") is None


def test_every_hop_is_checked_before_connecting(lab: EngineLab, web: StubBackend) -> None:
    with StubBackend() as other:
        web.script(redirect(302, localhost(other)))
        output = run(lab, fetch(web.url, allowedHosts=["127.0.0.1"], onError="return"))
        assert output.startswith("WebFetch blocked a request to a disallowed address: ") and "localhost" in output
        assert other.connections == 0


@pytest.mark.parametrize("guard", [{}, {"allowedHosts": ["127.0.0.1"]}])
def test_ten_redirects_and_no_more(lab: EngineLab, web: StubBackend, guard: dict[str, Any]) -> None:
    web.script(*[redirect(302, "/again")] * 10, Reply(body=b"there"))
    assert run(lab, fetch(web.url, **guard)) == "there"
    web.default = redirect(302, "/again")
    with pytest.raises(Exception, match="more than 10 times"):
        run(lab, fetch(web.url, **guard))
    assert len(web.requests) == 11 + 11


@pytest.mark.parametrize("reply", [redirect(304, "/x"), Reply(status=302, body=b""), Reply(status=300, body=b"")])
def test_what_is_no_redirect(lab: EngineLab, web: StubBackend, reply: Reply) -> None:
    web.script(reply)
    assert run(lab, fetch(web.url)) == ""
    assert len(web.requests) == 1


def test_redirects_not_followed(lab: EngineLab, web: StubBackend) -> None:
    web.script(redirect(302, "/b"))
    result = json.loads(run(lab, fetch(web.url, allowRedirects=False, outputFormat="full")))
    assert (result["status_code"], result["headers"]["Location"]) == (302, "/b")


def test_a_redirect_to_a_file(lab: EngineLab, web: StubBackend) -> None:
    web.default = redirect(302, "file:///etc/hosts")
    with pytest.raises(Exception, match="redirected to something that is not an http or https URL"):
        run(lab, fetch(web.url))


# -- the guard ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]"])
def test_private_addresses(lab: EngineLab, web: StubBackend, host: str) -> None:
    node = fetch(f"http://{host}:{web.port}/", blockPrivateAddresses=True)
    output = run(lab, {**node, "onError": "return"})
    assert output.startswith("WebFetch blocked a request to a disallowed address: ") and output.endswith(".")
    with pytest.raises(Exception) as caught:
        run(lab, node)
    assert str(caught.value) == output
    assert web.connections == 0


def test_a_refusal_in_full(lab: EngineLab) -> None:
    result = json.loads(
        run(lab, fetch("http://127.0.0.1/", blockPrivateAddresses="true", onError="return", outputFormat="full"))
    )
    assert result["error"].startswith("WebFetch blocked") and result["status_code"] is None


@pytest.mark.parametrize("url", ["127.0.0.1", "ftp://127.0.0.1/", "http://"])
def test_malformed_urls_are_refused(lab: EngineLab, url: str) -> None:
    assert run(lab, fetch(url, allowedHosts=["127.0.0.1"], onError="return")).startswith("WebFetch blocked")


def test_the_allow_list_takes_variables(lab: EngineLab, web: StubBackend) -> None:
    node = fetch(web.url, allowedHosts=["{chat_user_prompt_last_one}", " "], onError="return")
    assert run(lab, node, said="127.0.0.1") == '{"ok": true}'
    assert "WebFetch blocked" in run(lab, node, said="other.example")


def test_the_connection_goes_to_the_checked_address(
    lab: EngineLab, web: StubBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that resolves otherwise the second time leads nowhere else."""
    original, asked = socket.getaddrinfo, []

    def rebinding(host: Any, *args: Any, **options: Any) -> Any:
        if host != "rebind.example":
            return original(host, *args, **options)
        asked.append(host)
        return original("127.0.0.1" if len(asked) == 1 else "203.0.113.9", *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(addresses, "forbidden_kind", lambda address: None)
    url = f"http://rebind.example:{web.port}/"
    assert run(lab, fetch(url, blockPrivateAddresses=True, timeout=60)) == '{"ok": true}'
    assert web.requests[0].headers["host"] == f"rebind.example:{web.port}"
    assert len(asked) == 1


@pytest.mark.parametrize("entry", cases("ssrf_addresses", kind="rebinding"))
def test_every_connection_goes_to_the_checked_addresses(
    lab: EngineLab, monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any]
) -> None:
    answers, dialled = list(entry["input"]), []

    def resolve(*_: Any, **__: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in answers.pop(0)]

    def dial(address: tuple[str, int], *_: Any, **__: Any) -> Any:
        dialled.append(address[0])
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(connection, "create_connection", dial)
    output = run(lab, fetch("http://rebind.example/", blockPrivateAddresses=True, onError="return"))
    assert dialled == entry["expected"] and len(answers) == 1
    assert output.startswith("WebFetch could not" if entry["expected"] else "WebFetch blocked")


@pytest.mark.parametrize("entry", cases("ssrf_addresses", kind="redirect"))
def test_no_redirect_leads_to_the_local_network(
    lab: EngineLab, web: StubBackend, monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any]
) -> None:
    check, checked = addresses.forbidden_kind, []

    def first_is_public(address: Any) -> str | None:
        checked.append(address)
        return check(address) if len(checked) > 1 else None

    monkeypatch.setattr(addresses, "forbidden_kind", first_is_public)
    web.script(redirect(302, entry["input"].replace("{port}", str(web.port))))
    output = run(lab, fetch(web.url, blockPrivateAddresses=True, onError="return"))
    assert output.startswith("WebFetch ") and output != '{"ok": true}'
    assert len(web.requests) == 1 and web.connections == 1


@table("entry", cases("hostile_headers", kind="outgoing"))
def test_headers_from_outside(lab: EngineLab, web: StubBackend, entry: dict[str, Any]) -> None:
    """A value that a model or user has filled in cannot begin a header of its own."""
    run(lab, fetch(web.url, headers={"X-Said": "{chat_user_prompt_last_one}"}, onError="return"), said=entry["input"])
    for request in web.requests:
        assert "x-injected" not in request.headers and request.method == "GET"
    if entry["expected"] == "sent":
        assert len(web.requests) == 1
    assert len(web.requests) <= 1


# -- proxies -----------------------------------------------------------------------------------------------------------


def test_a_proxy(lab: EngineLab, web: StubBackend) -> None:
    proxy = f"http://me:p%40ss@127.0.0.1:{web.port}"
    assert run(lab, fetch("http://far.invalid/a?b", proxy=proxy)) == '{"ok": true}'
    request = web.requests[0]
    assert (request.path, request.headers["host"]) == ("http://far.invalid/a?b", "far.invalid")
    assert request.headers["proxy-authorization"] == "Basic bWU6cEBzcw=="


@pytest.mark.parametrize("guard", [{"allowedHosts": ["8.8.8.8"]}, {"blockPrivateAddresses": True}, {}])
def test_a_proxy_that_a_text_brings(lab: EngineLab, web: StubBackend, guard: dict[str, Any]) -> None:
    def asked(proxy: str, said: str = "hello") -> str:
        node = fetch("http://8.8.8.8/x", proxy=proxy, headers={"Authorization": "mine"}, onError="return", **guard)
        lab.workflow("Main", [node], way=web.url, through="{chat_user_prompt_last_one}")
        return str(list(start(lab, "Main", user(said), probes={"WebFetch": WebFetchHandler()}))[-1])

    for proxy in (web.url, "{way}", f"http://{{chat_user_prompt_last_one}}:pw@127.0.0.1:{web.port}"):
        assert asked(proxy) == '{"ok": true}'
    for proxy, said in (
        ("{chat_user_prompt_last_one}", web.url),
        ("{through}", web.url),
        ("http://{chat_user_prompt_last_one}", f"127.0.0.1:{web.port}"),
        (f"http://{{chat_user_prompt_last_one}}:{web.port}", "127.0.0.1"),
        ("http://127.0.0.1:{chat_user_prompt_last_one}", str(web.port)),
    ):
        output = asked(proxy, said)
        assert output.startswith("WebFetch blocked a request to a disallowed address: " if guard else '{"ok"'), proxy
    assert len(web.requests) == (3 if guard else 8)


SAID = "{chat_user_prompt_last_one}"


@table(
    ("inputs", "said", "is_own"),
    [
        # What the author of the configuration wrote.
        (["URL"], "me", True),
        ("URL", "me", True),
        (["x", SAID, "URL"], "me", True),
        (["{way}"], "me", True),
        (["{everybodys}"], "me", True),
        (["http://{host}"], "me", True),
        ([f"http://{SAID}@{{host}}"], "me", True),
        (["{{ way }}"], "me", True),
        # What somebody said, or a node delivered.
        ([SAID], "URL", False),
        (["{through}"], "URL", False),
        ([f"http://{SAID}"], "HOST", False),
        ([f"http://me@{SAID}"], "HOST", False),
        (["{{ chat_user_prompt_last_one }}"], "URL", False),
        (["{{ way if chat_user_prompt_last_one == 'me' else 'http://elsewhere' }}"], "me", False),
        (["{agent1Output}"], "URL", False),
        (["URL", SAID], "URL", False),
    ],
)
def test_a_proxy_as_an_input(lab: EngineLab, web: StubBackend, inputs: Any, said: str, is_own: bool) -> None:
    """The last input is the proxy of a workflow, which is run directly and by another one."""
    host = f"127.0.0.1:{web.port}"
    given = json.loads(json.dumps(inputs).replace("URL", web.url))
    names = [f"{{agent{number}Input}}" for number in range(1, 2 if isinstance(inputs, str) else len(inputs) + 1)]
    guarded = {"headers": {"Authorization": "mine"}, "onError": "return", "allowedHosts": ["8.8.8.8"]}
    runs = {"type": "CustomWorkflow", "workflowName": "Kid", "jinja2": "{{" in str(inputs)}
    lab.user(userWideWorkflowVariables={"everybodys": web.url})
    lab.workflow("Kid", [fetch("http://8.8.8.8/x", proxy=names[-1], **guarded)])
    lab.workflow("Middle", [{**runs, "scoped_variables": names, "jinja2": False}])
    variables = {"way": web.url, "host": host, "through": SAID}
    web.next_row()
    for name in ("Kid", "Middle"):
        lab.workflow("Main", [static(SAID), {**runs, "workflowName": name, "scoped_variables": given}], **variables)
        output = str([*start(lab, "Main", user(said.replace("URL", web.url).replace("HOST", host)))][-1])
        assert output.startswith('{"ok"' if is_own else "WebFetch blocked a request to a disallowed address: "), output
    assert len(web.requests) == (2 if is_own else 0)


def test_a_proxy_as_an_input_of_each_block(lab: EngineLab, web: StubBackend, tmp_path: Path) -> None:
    """The first input of such a workflow is the block of messages."""
    kid = fetch("http://8.8.8.8/x", proxy="{agent2Input}", blockPrivateAddresses=True, onError="return")
    lab.workflow("Kid", [kid])
    for name, given, answered in (("a", [web.url], 1), ("b", [SAID], 1), ("c", [web.url, SAID], 2)):
        blocks = {"type": "ConversationChunkProcessor", "id": name, "chunkSize": 1, "lookbackMessages": 0}
        keys = {"workflowName": "Kid", "cursorDirectory": str(tmp_path), "scoped_variables": given}
        lab.workflow("Main", [{**blocks, **keys}])
        list(start(lab, "Main", user(web.url), discussion_id="d"))
        assert len(web.requests) == answered


def test_the_proxy_is_at_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["8.8.8.8", "127.0.0.1"])
    found = lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), 0))]  # noqa: E731
    monkeypatch.setattr(addresses.socket, "getaddrinfo", found)
    decision = addresses.check_proxy("http://me:pw@rebinds.example:3128", "stand-in.invalid", True, None)
    assert web_fetch_tool._pinned("http://me:pw@rebinds.example:3128", decision) == "http://me:pw@8.8.8.8:3128"
    assert web_fetch_tool._pinned("https://rebinds.example", decision) == "https://rebinds.example"


def test_the_proxy_of_the_environment(lab: EngineLab, web: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", web.url)
    assert run(lab, fetch("http://far.invalid/a")) == '{"ok": true}'
    guarded = fetch("http://far.invalid/", allowedHosts=["far.invalid"], onError="return")
    assert "cannot be resolved" in run(lab, guarded)
    assert len(web.requests) == 1


@pytest.mark.parametrize("proxy", ["", "  ", None, "{nothing}"])
def test_no_proxy(lab: EngineLab, web: StubBackend, proxy: Any) -> None:
    lab.write("Workflows/tester/Main", {"nodes": [fetch(web.url, proxy=proxy)], "nothing": ""})
    assert list(start(lab, "Main", probes={"WebFetch": WebFetchHandler()})) == ['{"ok": true}']


@pytest.mark.parametrize("scheme", ["socks4", "socks5", "socks5h"])
def test_a_socks_proxy_without_its_package(
    lab: EngineLab, web: StubBackend, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setitem(sys.modules, "socks", None)
    with pytest.raises(Exception, match="pip install PySocks"):
        run(lab, fetch(web.url, proxy=f"{scheme}://127.0.0.1:1080"))


# -- keys --------------------------------------------------------------------------------------------------------------


@table(
    ("key", "value"),
    [
        ("url", None),
        ("url", ""),
        ("url", "{empty}"),
        ("url", 5),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", True),
        ("timeout", "soon"),
        ("timeout", "0"),
        ("timeout", "nan"),
        ("timeout", "inf"),
        ("timeout", "{empty}"),
        ("timeout", [1]),
        ("outputFormat", "html"),
        ("outputFormat", 1),
        ("onError", "Return"),
        ("onError", "ignore"),
        ("method", "G ET"),
        ("method", 5),
        ("headers", "a: b"),
        ("headers", ["a"]),
        ("body", {"a": 1}),
        ("proxy", "127.0.0.1:8080"),
        ("proxy", "ftp://127.0.0.1"),
        ("proxy", 5),
        ("proxy", "http://"),
        ("verify", "maybe"),
        ("verify", 1),
        ("allowRedirects", "no"),
        ("blockPrivateAddresses", 0),
        ("maxResponseBytes", True),
        ("maxResponseBytes", "many"),
        ("maxResponseBytes", 1.5),
        ("maxResponseBytes", [1]),
        ("allowedHosts", []),
        ("allowedHosts", [""]),
        ("allowedHosts", ["{empty}"]),
        ("allowedHosts", "127.0.0.1"),
        ("allowedHosts", {}),
        ("caBundle", "/no/such/file.pem"),
        ("caBundle", __file__),
    ],
)
def test_invalid_keys(lab: EngineLab, web: StubBackend, key: str, value: Any) -> None:
    node = {**fetch(web.url, onError="return"), key: value}
    lab.write("Workflows/tester/Main", {"nodes": [node], "empty": ""})
    with pytest.raises(ValueError, match=f"WebFetch node 'Fetch': '{key}' must be ") as caught:
        list(start(lab, "Main", probes={"WebFetch": WebFetchHandler()}))
    assert "/no/such" not in str(caught.value)
    assert web.connections == 0


def test_a_misspelt_choice_is_pointed_out(lab: EngineLab) -> None:
    with pytest.raises(ValueError, match="Did you mean 'html-stripped'"):
        run(lab, fetch("http://a.example", outputFormat="html-striped"))


@pytest.mark.parametrize(
    "keys",
    [
        {"timeout": "5"},
        {"timeout": 0.5},
        {"timeout": 1e300},
        {"timeout": "{limit}"},
        {"verify": "FALSE"},
        {"method": None},
        {"method": ""},
        {"headers": None},
        {"allowedHosts": None},
        {"outputFormat": None},
        {"verify": False, "caBundle": "/no/such.pem"},
    ],
)
def test_valid_keys(lab: EngineLab, web: StubBackend, keys: dict[str, Any]) -> None:
    lab.write("Workflows/tester/Main", {"nodes": [fetch(web.url, **keys)], "limit": "7"})
    assert list(start(lab, "Main", probes={"WebFetch": WebFetchHandler()})) == ['{"ok": true}']


# -- stopping ----------------------------------------------------------------------------------------------------------


def cancelled_after(lab: EngineLab, node: dict[str, Any], ready: Any) -> float:
    """Seconds from the cancellation to the end of the run."""
    moments: list[float] = []

    def cancel() -> None:
        ready()
        moments.append(time.monotonic())
        lab.request.cancel_scope.cancel("test")

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(EarlyTerminationException):
        run(lab, node)
    ended = time.monotonic()
    thread.join()
    return ended - moments[0]


@pytest.mark.parametrize(
    "reply", [Reply(never=True), Reply(pieces=[b"a"], hang=True), Reply(pieces=[b"a"] * 8000, delay=0.02)]
)
def test_a_stop_reaches_the_server(lab: EngineLab, web: StubBackend, reply: Reply) -> None:
    web.default = reply

    def ready() -> None:
        web.wait_requests(1)
        time.sleep(0.1)

    assert cancelled_after(lab, fetch(web.url, onError="return"), ready) < 60
    assert web.requests[0].wait_ended()
    assert not [
        thread for thread in threading.enumerate() if thread.name in ("web-fetch", "http-connect") and _lives(thread)
    ]


def _lives(thread: threading.Thread) -> bool:
    thread.join(60)
    return thread.is_alive()


def test_a_stop_during_name_resolution(lab: EngineLab, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving, release = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        resolving.set()
        release.wait(120)
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        for keys in ({}, {"blockPrivateAddresses": True}):
            lab.request.cancel_scope.__init__()  # type: ignore[misc]
            resolving.clear()
            assert cancelled_after(lab, fetch("http://slow.example/", **keys), lambda: resolving.wait(60)) < 60
    finally:
        release.set()


def test_a_stop_before_the_request(lab: EngineLab, web: StubBackend) -> None:
    def cancel(request: RecordedRequest) -> Reply:
        lab.request.cancel_scope.cancel("test")
        return Reply(body=b"first")

    web.responder = cancel
    with pytest.raises(EarlyTerminationException):
        run(lab, fetch(web.url), fetch(web.url))
    assert len(web.requests) == 1
