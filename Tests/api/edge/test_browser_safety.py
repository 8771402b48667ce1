"""Which requests of browsers are served, and what their pages may read."""

from __future__ import annotations

import re
from typing import Any

import pytest

from Middleware.api.edge.browser_safety import BrowserDecision, BrowserSafety, is_loopback_name, normal_origin
from Tests.tables import table

CHAT = "https://chat.example.com"
CHECK = "/api/extra/generate/check"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def decide(method: str = "POST", allowed: tuple[str, ...] = (), **fields: str) -> BrowserDecision:
    """The decision about a request; the keywords are fields of the WSGI environ, mostly without ``HTTP_``."""
    environ = {"CONTENT_TYPE": "application/json", "CONTENT_LENGTH": "2"} if method == "POST" else {}
    plain = ("CONTENT_TYPE", "CONTENT_LENGTH")
    environ.update({name if name in plain else f"HTTP_{name}": value for name, value in fields.items()})
    environ.setdefault("HTTP_HOST", "127.0.0.1:5000")
    return BrowserSafety(allowed, machine="mybox").decide({"REQUEST_METHOD": method, **environ})


def status(decision: BrowserDecision) -> int:
    return int(decision.refusal.status[:3]) if decision.refusal else 200


# -- programs that are no browsers -------------------------------------------------------------------------------------


@table(
    "host", ["127.0.0.1:5000", "mybox:5000", "host.docker.internal:5000", "wilmer", "llm.home.example.com", "", "a b"]
)
@table("content_type", ["application/json", "text/plain", "application/x-www-form-urlencoded", ""])
def test_programs_call_by_any_name_and_with_any_content_type(host: str, content_type: str) -> None:
    assert decide(HOST=host, CONTENT_TYPE=content_type, USER_AGENT="Python/3.12 aiohttp/3.11") == BrowserDecision()
    node = {"USER_AGENT": "node", "SEC_FETCH_MODE": "cors", "ACCEPT_LANGUAGE": "*"}
    assert decide(HOST=host, CONTENT_TYPE=content_type, **node) == BrowserDecision()
    assert decide("GET", HOST=host, **node) == BrowserDecision()


# A page can change or leave out some of a browser's headers, but not those that begin with Sec-.
SIGNS = (
    {"USER_AGENT": FIREFOX},
    {"USER_AGENT": "x", "REFERER": "http://evil.example/"},
    {"REFERER": ""},
    {"ACCEPT_LANGUAGE": "en-US,en;q=0.5"},
    {"USER_AGENT": "x", "ACCEPT_LANGUAGE": "de"},
    {"ACCEPT_LANGUAGE": ""},
    {"SEC_GPC": "1"},
    {"SEC_CH_UA": '"Chromium"', "ACCEPT_LANGUAGE": "*"},
    {"SEC_FETCH_MODE": "cors"},
    {"SEC_FETCH_MODE": "cors", "SEC_FETCH_DEST": "empty", "ACCEPT_LANGUAGE": "*"},
    {"SEC_PURPOSE": "prefetch", "SEC_FETCH_MODE": "cors", "ACCEPT_LANGUAGE": "*"},
)


@table("signs", SIGNS)
@table("method", ["GET", "HEAD", "POST"])
def test_signs_of_a_browser_have_the_host_name_checked(signs: dict[str, str], method: str) -> None:
    assert status(decide(method, HOST="evil.example:5000", **signs)) == 403
    assert status(decide(method, HOST="192.168.1.5:5000", **signs)) == 200


TELLING = ("/v1/responses/resp_1", "/responses/resp_1", "/v1/responses/r/input_items", "/metrics", "/metrics/", CHECK)


@table("path", TELLING)
@table(
    "headers",
    [{}, {"USER_AGENT": "x"}, {"ACCEPT_LANGUAGE": "*"}, {"SEC_FETCH_MODE": "cors"}, {"AUTHORIZATION": "Bearer x"}],
)
def test_what_clients_said_is_told_under_known_names_only(path: str, headers: dict[str, str]) -> None:
    def refused(method: str, host: str, **more: str) -> bool:
        fields = {f"HTTP_{name}": value for name, value in {"HOST": host, **headers, **more}.items()}
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, **fields}
        return BrowserSafety((CHAT,), machine="mybox").refusal_of_reader(environ) is not None

    for method in ("GET", "HEAD"):
        for host in ("evil.example", "evil.example:5000", "a b", "127.0.0.1.evil.example"):
            assert refused(method, host)
            # Its own origin is a foreign one, which is refused before.
            assert not refused(method, host, ORIGIN="http://localhost:3000")
        for host in ("localhost:5000", "192.168.1.5", "mybox", "wilmer:5000", "nas.local", "chat.example.com", ""):
            assert not refused(method, host)
    assert not refused("POST", "evil.example")


# -- pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost",
        "http://localhost:3000",
        "https://localhost:8443",
        "http://LOCALHOST:3000",
        "http://127.0.0.1:8080",
        "http://127.3.2.1",
        "http://[::1]:8000",
        "http://app.localhost:5173",
        "http://0.0.0.0:8080",
        "http://[::ffff:127.0.0.1]:1",
        "http://localhost.:80",
    ],
)
def test_pages_of_this_computer_are_served_and_may_read(origin: str) -> None:
    decision = decide(ORIGIN=origin)
    assert status(decision) == 200
    assert ("Access-Control-Allow-Origin", origin) in decision.headers and ("Vary", "Origin") in decision.headers


@table(
    "origin",
    [
        "null",
        "NULL",
        " null ",
        "http://evil.example",
        "https://evil.example",
        "http://127.0.0.1.evil.example",
        "http://localhost.evil.example",
        "http://127.evil.example",
        "http://evil.example:5000",
        "http://192.168.1.9:5000",
        "http://chat.example.com",
        "https://chat.example.com:444",
        "https://chat.example.com.evil.example",
        "https://notchat.example.com",
        "https://chat.example.com/",
        "https://chat.example.com/x",
        "http://localhost@evil.example",
        "http://localhost:3000, http://evil.example",
        "http://",
        "http://:80",
        "//localhost",
        "localhost",
        "",
        "http://local host",
        "http://localhost:x",
        "http://localhost#.evil.example",
        "http://[::1",
        "http://\u212aey",
        "http://127.1",
        "http://2130706433",
        "http://[::ffff:10.0.0.1]",
        "http://;x.evil.example",
    ],
)
@table("method", ["GET", "HEAD", "POST", "DELETE", "OPTIONS"])
def test_other_pages_are_refused_and_may_read_nothing(origin: str, method: str) -> None:
    decision = decide(method, allowed=(CHAT,), ORIGIN=origin, ACCESS_CONTROL_REQUEST_METHOD="POST")
    assert status(decision) == 403 and decision.headers == () and not decision.preflight


def test_the_refusal_names_the_page_and_the_flag() -> None:
    refusal = decide(ORIGIN="https://Evil.example:443").refusal
    assert refusal is not None and refusal.message.endswith("--allow-origin https://evil.example")
    for origin in ("null", "http://x\x1b[31m", "http://x\x1bx", "http://" + "x" * 5000):
        refusal = decide(ORIGIN=origin).refusal
        assert refusal is not None and len(refusal.message) < 400 and refusal.message.isprintable()


@pytest.mark.parametrize("origin", [CHAT, "HTTPS://CHAT.example.com", CHAT + ":443"])
def test_a_page_that_was_allowed(origin: str) -> None:
    decision = decide(allowed=(CHAT,), ORIGIN=origin)
    assert status(decision) == 200
    assert dict(decision.headers) == {
        "Access-Control-Allow-Origin": origin,
        "Vary": "Origin",
        "Access-Control-Expose-Headers": "X-Request-Id, X-Wilmer-Route, Retry-After",
    }


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("192.168.1.5:5000", "http://192.168.1.5:3000"),
        ("192.168.1.5", "https://192.168.1.5"),
        ("[fd00::5]:5000", "http://[fd00::5]:3000"),
        ("mybox:5000", "http://mybox:3000"),
        ("MyBox:5000", "http://mybox"),
        ("nas.local:5000", "http://nas.local"),
        ("wilmer.lan", "http://wilmer.lan:80"),
        ("llm.home.arpa:5000", "http://llm.home.arpa:8080"),
        ("host.docker.internal:5000", "http://host.docker.internal"),
    ],
)
def test_pages_of_the_own_host_are_served(host: str, origin: str) -> None:
    assert status(decide(HOST=host, ORIGIN=origin)) == 200
    assert status(decide(HOST="other" + host.strip("["), ORIGIN=origin)) == 403


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:5000",
        "evil.example",
        "mybox.evil.example",
        "127.0.0.1.evil.example",
        "local.example",
        "internal.example",
        "evil.nonlocal",
    ],
)
def test_a_name_that_was_led_here_is_not_the_own_host(host: str) -> None:
    """DNS rebinding: the page's own name now leads to this computer, so that ``Origin`` and ``Host`` agree."""
    assert status(decide(HOST=host, ORIGIN=f"http://{host}")) == 403
    assert status(decide("GET", HOST=host, USER_AGENT=FIREFOX)) == 403


@pytest.mark.parametrize(
    "name",
    ["$(reboot).evil.example", "a,b.evil.example", "`x`;.evil.example", "a\x1b.example", "a&b.local", "\u00e9.local"],
)
def test_a_name_that_no_computer_has_is_refused_and_goes_into_no_command(name: str) -> None:
    """Attackers choose their names, which the refusal offers as a part of a command."""
    for decision in (decide("GET", HOST=name, USER_AGENT=FIREFOX), decide(HOST=name, ORIGIN=f"http://{name}")):
        assert decision.refusal is not None and decision.refusal.status.startswith("403")
        message = decision.refusal.message
        assert message.isprintable() and not re.search(r"--allow-origin \S*[^\w.:/-]", message, re.ASCII)


def test_the_names_that_were_allowed_are_own_ones() -> None:
    assert status(decide("GET", HOST="chat.example.com", USER_AGENT=FIREFOX)) == 403
    assert status(decide("GET", (CHAT,), HOST="chat.example.com", USER_AGENT=FIREFOX)) == 200
    assert status(decide(allowed=(CHAT,), HOST="chat.example.com", ORIGIN="https://chat.example.com:8443")) == 200


@pytest.mark.parametrize("host", ["127.0.0.1:5000", "localhost:5000", "192.168.1.5:5000", "mybox:5000", "nas.local"])
def test_a_person_looks_with_a_browser(host: str) -> None:
    assert decide("GET", HOST=host, USER_AGENT=FIREFOX) == BrowserDecision()
    navigation = decide("GET", HOST=host, USER_AGENT=FIREFOX, SEC_FETCH_SITE="none", SEC_FETCH_MODE="navigate")
    assert navigation == BrowserDecision()


def test_a_trusted_connection_is_no_rebinding() -> None:
    """Browsers send ``Sec-Fetch-Site`` to HTTPS addresses only, and a proxy there has a certificate for its name."""
    assert decide("GET", HOST="llm.example.com", USER_AGENT=FIREFOX, SEC_FETCH_SITE="none") == BrowserDecision()


@pytest.mark.parametrize(
    "origin",
    [
        "app://obsidian.md",
        "chrome-extension://abcdef",
        "tauri://localhost",
        "vscode-webview://1a2b",
        "file://",
        "capacitor://localhost",
    ],
)
def test_applications_are_served_and_may_read_once_they_are_named(origin: str) -> None:
    decision = decide(ORIGIN=origin)
    assert status(decision) == 200 and decision.headers == ()
    preflight = decide("OPTIONS", ORIGIN=origin, ACCESS_CONTROL_REQUEST_METHOD="POST")
    assert not preflight.preflight and preflight.headers == ()
    assert ("Access-Control-Allow-Origin", origin) in decide(allowed=(origin,), ORIGIN=origin).headers


@pytest.mark.parametrize("origin", ["null", "http://evil.example", "app://x"])
def test_every_page_may_be_allowed(origin: str) -> None:
    assert ("Access-Control-Allow-Origin", origin) in decide(allowed=("*",), ORIGIN=origin).headers
    assert status(decide(allowed=("*",), ORIGIN="rubbish")) == 403


def test_pages_without_an_address_may_be_allowed() -> None:
    assert ("Access-Control-Allow-Origin", "null") in decide(allowed=("null",), ORIGIN="null").headers


@pytest.mark.parametrize(
    ("method", "site", "expected"),
    [
        ("POST", "cross-site", 403),
        ("DELETE", "cross-site", 403),
        ("GET", "cross-site", 200),
        ("POST", "same-origin", 200),
        ("POST", "none", 200),
    ],
)
def test_a_browser_that_hides_where_it_comes_from(method: str, site: str, expected: int) -> None:
    assert status(decide(method, SEC_FETCH_SITE=site)) == expected


# -- content types -----------------------------------------------------------------------------------------------------


@table("browser", [{"ORIGIN": "http://localhost:3000"}, {"SEC_FETCH_SITE": "same-origin"}], ids=["origin", "fetch"])
@table(
    ("content_type", "length", "expected"),
    [
        ("application/json", "2", 200),
        ("Application/JSON; charset=utf-8", "2", 200),
        ("application/x+json", "2", 200),
        ("text/plain", "2", 415),
        ("text/plain;charset=UTF-8", "2", 415),
        ("multipart/form-data; boundary=x", "2", 415),
        ("application/x-www-form-urlencoded", "2", 415),
        ("text/plain; application/json", "2", 415),
        ("", "2", 415),
        ("", "", 200),
        ("", "0", 200),
        ("text/plain", "0", 415),
    ],
)
def test_pages_must_send_json(browser: Any, content_type: str, length: str, expected: int) -> None:
    assert status(decide(CONTENT_TYPE=content_type, CONTENT_LENGTH=length, **browser)) == expected


def test_a_page_without_type_that_sends_chunks() -> None:
    assert (
        status(decide(ORIGIN="http://localhost", CONTENT_TYPE="", CONTENT_LENGTH="", TRANSFER_ENCODING="chunked"))
        == 415
    )


def test_a_page_may_read_that_its_content_type_was_wrong() -> None:
    assert decide(ORIGIN="http://localhost", CONTENT_TYPE="text/plain").headers


# -- preflights --------------------------------------------------------------------------------------------------------


def test_preflight() -> None:
    decision = decide(
        "OPTIONS",
        (CHAT,),
        ORIGIN=CHAT,
        ACCESS_CONTROL_REQUEST_METHOD="POST",
        ACCESS_CONTROL_REQUEST_HEADERS="authorization, content-type, x-stainless-os",
    )
    headers = dict(decision.headers)
    assert decision.preflight and decision.refusal is None
    assert headers["Access-Control-Allow-Origin"] == CHAT and headers["Vary"] == "Origin"
    assert headers["Access-Control-Allow-Headers"] == "authorization, content-type, x-stainless-os"
    assert {"POST", "DELETE", "GET"} <= set(headers["Access-Control-Allow-Methods"].split(", "))
    assert "Access-Control-Allow-Credentials" not in headers and "Access-Control-Allow-Private-Network" not in headers


def test_preflight_of_a_page_on_another_network() -> None:
    decision = decide(
        "OPTIONS",
        (CHAT,),
        ORIGIN=CHAT,
        ACCESS_CONTROL_REQUEST_METHOD="POST",
        ACCESS_CONTROL_REQUEST_PRIVATE_NETWORK="true",
        ACCESS_CONTROL_REQUEST_HEADERS="a\u00e9<b>",
    )
    headers = dict(decision.headers)
    assert headers["Access-Control-Allow-Private-Network"] == "true" and "Access-Control-Allow-Headers" not in headers


def test_a_plain_options_request_is_no_preflight() -> None:
    assert not decide("OPTIONS", ORIGIN="http://localhost").preflight
    assert not decide("OPTIONS", ACCESS_CONTROL_REQUEST_METHOD="POST").preflight


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("http://A.b:80", "http://a.b"),
        ("https://a.b:443", "https://a.b"),
        ("http://a.b:443", "http://a.b:443"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("app://X", "app://x"),
        ("http://[::1]:80", "http://[::1]"),
        ("null", "null"),
        ("http://a/", None),
        ("http://a?x", None),
        ("http://u@a", None),
        ("a.b", None),
        ("*", None),
        ("http://a:123456", None),
        ("", None),
    ],
)
def test_spelling_of_origins(text: str, normal: str | None) -> None:
    assert normal_origin(text) == normal


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost:5000", True),
        ("127.0.0.1", True),
        ("[::1]:5000", True),
        ("192.168.1.5", False),
        ("mybox", False),
        ("", False),
    ],
)
def test_loopback_names(host: str, local: bool) -> None:
    environ: dict[str, Any] = {"HTTP_HOST": host}
    assert is_loopback_name(environ) == local
