"""Who may come in without a key: clients with private addresses, also behind a proxy."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from werkzeug.test import Client
from werkzeug.wrappers import Response

from Middleware.api.edge.access_keys import AccessKeys
from Middleware.api.edge.admission_middleware import AdmissionMiddleware
from Middleware.api.edge.client_addresses import is_same_peer, peer_of, public_address
from Tests.tables import table

PUBLIC = "203.0.113.5"
PRIVATE = [
    "127.0.0.1",
    "127.8.8.8",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.5",
    "100.64.0.1",
    "100.127.255.255",
    "169.254.3.4",
    "::1",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fdff::1",
    "::ffff:192.168.1.5",
    "::ffff:100.64.0.1",
]
OTHERS = [
    "8.8.8.8",
    PUBLIC,
    "172.32.0.1",
    "172.15.255.255",
    "192.169.0.1",
    "11.0.0.1",
    "100.63.255.255",
    "100.128.0.1",
    "0.0.0.0",
    "::",
    "2001:4860:4860::8888",
    "::ffff:8.8.8.8",
    "2002:a00:1::",
    "64:ff9b::10.0.0.1",
    "fec0::1",
    "224.0.0.1",
    "",
    "unix:",
    "localhost",
    "10.0.0.1, 10.0.0.2",
    "0x7f.1",
]


@table(("address", "private"), [*((address, True) for address in PRIVATE), *((address, False) for address in OTHERS)])
def test_the_peer(address: str, private: bool) -> None:
    assert (public_address({"REMOTE_ADDR": address}) is None) == private


@table(
    ("header", "text", "private"),
    [
        ("X_FORWARDED_FOR", "192.168.1.5", True),
        ("X_FORWARDED_FOR", PUBLIC, False),
        ("X_FORWARDED_FOR", "10.0.0.1, 192.168.1.5", True),
        # The client can write the first ones himself, and the last one is that of a proxy.
        ("X_FORWARDED_FOR", f"127.0.0.1, {PUBLIC}", False),
        ("X_FORWARDED_FOR", f"{PUBLIC}, 10.0.0.1", False),
        ("X_FORWARDED_FOR", "192.168.1.5:4711", True),
        ("X_FORWARDED_FOR", f"{PUBLIC}:4711", False),
        ("X_FORWARDED_FOR", "[fd00::1]:4711", True),
        ("X_FORWARDED_FOR", "unknown", False),
        ("X_FORWARDED_FOR", "", False),
        ("X_REAL_IP", "10.2.3.4", True),
        ("X_REAL_IP", PUBLIC, False),
        ("FORWARDED", "for=192.168.1.5;proto=https", True),
        ("FORWARDED", f"for={PUBLIC};proto=https", False),
        ("FORWARDED", 'proto=http;FOR="[fd00::1]:4711", for=10.0.0.1', True),
        ("FORWARDED", 'for=10.0.0.1, for="[2001:db8::1]:4711"', False),
        ("FORWARDED", 'for="10.0.0.1:_p1", for="[fd00::1]:_p.2"', True),
        ("FORWARDED", f'for="{PUBLIC}:_p1"', False),
        ("FORWARDED", 'for="10.0.0.1:p1"', False),
        ("FORWARDED", "for=_hidden", False),
        ("FORWARDED", "proto=https", True),
        ("VIA", "1.1 proxy", True),
    ],
)
def test_the_client_of_a_proxy(header: str, text: str, private: bool) -> None:
    assert (public_address({"REMOTE_ADDR": "127.0.0.1", f"HTTP_{header}": text}) is None) == private
    # From outside, no header admits anyone.
    assert public_address({"REMOTE_ADDR": PUBLIC, f"HTTP_{header}": text}) == PUBLIC


PROXY = {"REMOTE_ADDR": "10.0.0.1"}
V6 = '"[2001:db8::1]:443"'


def forwarded_for(text: str) -> dict[str, str]:
    return {**PROXY, "HTTP_X_FORWARDED_FOR": text}


def forwarded(text: str) -> dict[str, str]:
    return {**PROXY, "HTTP_FORWARDED": text}


def real_ip(text: str) -> dict[str, str]:
    return {**PROXY, "HTTP_X_REAL_IP": text}


def direct(address: str) -> dict[str, str]:
    return {"REMOTE_ADDR": address}


@table(
    ("one", "other", "same"),
    [
        # Each connection has another port.
        (forwarded_for("1.2.3.4:56789"), forwarded_for("1.2.3.4:1"), True),
        (forwarded_for("1.2.3.4:56789"), forwarded_for("1.2.3.4"), True),
        (forwarded_for("[2001:db8::1]:443"), forwarded_for("[2001:db8::1]:9"), True),
        (forwarded_for("[2001:db8::1]:443"), forwarded_for("2001:db8::1"), True),
        (forwarded_for(V6), forwarded_for("2001:DB8:0:0::1"), True),
        (forwarded_for("9.9.9.9:1, 1.2.3.4:2"), forwarded_for("9.9.9.9:3,1.2.3.4:4"), True),
        (forwarded_for("::ffff:1.2.3.4"), forwarded_for("1.2.3.4:7"), True),
        (real_ip("1.2.3.4:5"), real_ip("1.2.3.4:6"), True),
        (forwarded(f"for={V6};proto=https"), forwarded('for="[2001:db8::1]:9";proto=https'), True),
        (forwarded("For=1.2.3.4, for=5.6.7.8"), forwarded('for="1.2.3.4:5", for="5.6.7.8:6"'), True),
        (forwarded('for="1.2.3.4:_a"'), forwarded('for="1.2.3.4:_b"'), True),
        # What "localhost" leads to on one machine, at one call or another.
        (direct("127.0.0.1"), direct("::1"), True),
        (direct("127.0.0.1"), direct("::ffff:127.0.0.1"), True),
        (direct("10.0.0.7"), direct("::ffff:10.0.0.7"), True),
        # A chain of proxies has an end.
        (forwarded_for("1.2.3.4:5," * 90), forwarded_for("1.2.3.4:6," * 90), True),
        (forwarded_for("1.2.3.4:5," * 101), forwarded_for("1.2.3.4:5," * 101), True),
        (forwarded_for("1.2.3.4:5," * 101), forwarded_for("1.2.3.4:6," * 101), False),
        (forwarded_for("1.2.3.4:5," * 101), forwarded_for("1.2.3.4," * 101), False),
        (forwarded("for=1.2.3.4:5," * 90), forwarded("for=1.2.3.4," * 90), False),
        (real_ip("1.2.3.4" + " " * 1000), real_ip("1.2.3.4"), False),
        # Others, whatever the ports are.
        (direct("127.0.0.1"), direct("127.0.0.2"), False),
        (direct("::1"), direct("::2"), False),
        (direct("10.0.0.7"), direct("10.0.0.8"), False),
        (direct(""), direct("::1"), False),
        (forwarded_for("1.2.3.4:5"), forwarded_for("1.2.3.5:5"), False),
        (forwarded_for("1.2.3.4:5"), direct("10.0.0.1"), False),
        (forwarded_for("1.2.3.4:5"), direct("1.2.3.4"), False),
        (forwarded_for("1.2.3.4:5"), {**forwarded_for("1.2.3.4:5"), "REMOTE_ADDR": "10.0.0.2"}, False),
        # An address that only a header names may be that of another machine than the proxy's.
        (forwarded_for("127.0.0.1"), forwarded_for("::1"), False),
        (forwarded("for=127.0.0.1"), forwarded('for="[::1]"'), False),
        # What the client has written itself stands before what the proxy says.
        (forwarded_for("1.2.3.4"), forwarded_for("1.2.3.4, 6.6.6.6"), False),
        (forwarded_for("1.2.3.4"), forwarded_for("1.2.3.4:5 6.6.6.6"), False),
        (forwarded("for=1.2.3.4"), forwarded("for=1.2.3.4, for=6.6.6.6"), False),
        (forwarded("for=1.2.3.4"), forwarded('for="1.2.3.4, for=6.6.6.6"'), False),
        (forwarded("for=a, for=1.2.3.4"), forwarded('for="a, for=1.2.3.4"'), False),
        (forwarded("for=1.2.3.4"), forwarded("by=1.2.3.4"), False),
        (forwarded("for=1.2.3.4;by=1.1.1.1"), forwarded("for=1.2.3.4;by=1.1.1.2"), False),
        # Without a port, the end of an address may look like one.
        (forwarded_for("2001:db8::1:443"), forwarded_for("2001:db8::1"), False),
        (forwarded_for("fe80::1%eth0"), forwarded_for("fe80::1%eth1"), False),
        # No address: each is what it says.
        (forwarded_for("unknown:1"), forwarded_for("unknown:2"), False),
        (forwarded("for=_a"), forwarded("for=_b"), False),
        (forwarded_for("01.2.3.4"), forwarded_for("1.2.3.4"), False),
        (forwarded_for("1.2.3.4:x"), forwarded_for("1.2.3.4:y"), False),
        ({**PROXY, "HTTP_VIA": "1.1 a:1"}, {**PROXY, "HTTP_VIA": "1.1 a:2"}, False),
    ],
)
def test_who_is_the_same_peer(one: dict[str, str], other: dict[str, str], same: bool) -> None:
    peers = peer_of(one), peer_of(other)
    assert is_same_peer(*peers) is is_same_peer(*reversed(peers)) is same
    assert all(is_same_peer(peer, peer) and not is_same_peer(peer, ()) for peer in peers)


def served(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"served"]


def ask(app: Any, address: str, path: str = "/v1/models", method: str = "GET", **headers: str) -> Response:
    with Client(app).open(
        path, method=method, headers=headers, buffered=True, environ_overrides={"REMOTE_ADDR": address}
    ) as response:
        return response


@table(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/health"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/api/chat"),
        ("OPTIONS", "/v1/models"),
        ("DELETE", "/api/chat"),
        ("GET", "/nowhere"),
    ],
)
def test_a_public_address_is_refused_on_every_route(method: str, path: str) -> None:
    app = AdmissionMiddleware(served, private_only=True)
    refused = ask(app, PUBLIC, path, method, **{"Access-Control-Request-Method": "POST", "Origin": "http://localhost"})
    error = json.loads(refused.get_data())["error"]
    message = error if isinstance(error, str) else error["message"]
    assert refused.status_code == 403 and refused.headers["X-Request-Id"]
    assert PUBLIC in message and "--accepted-keys-file" in message and "--allow-public" in message
    assert app.refuses({"REQUEST_METHOD": method, "PATH_INFO": path, "REMOTE_ADDR": PUBLIC})
    assert ask(app, "192.168.1.5", path, method).get_data() == b"served"


def test_only_where_it_is_wanted(tmp_path: Any) -> None:
    assert ask(AdmissionMiddleware(served), PUBLIC).status_code == 200
    file = tmp_path / "keys.txt"
    file.write_text("a-key-of-some-length\n", "utf-8")
    app = AdmissionMiddleware(served, keys=AccessKeys(str(file), list))
    assert ask(app, PUBLIC, Authorization="Bearer a-key-of-some-length").status_code == 200
    assert ask(app, "192.168.1.5").status_code == 401


def test_each_address_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    app = AdmissionMiddleware(served, private_only=True)
    for address in (PUBLIC, "8.8.8.8", PUBLIC, "8.8.8.8"):
        ask(app, address, "/v1/chat/completions", "POST")
    ask(app, "127.0.0.1", "/", X_Forwarded_For="9.9.9.9\x1b[31m")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3 and PUBLIC in lines[0] and "8.8.8.8" in lines[1]
    assert all("--allow-public" in line and "\x1b" not in line for line in lines)
