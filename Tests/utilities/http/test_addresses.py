"""Which hosts a node may connect to."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest

from Middleware.utilities.http.addresses import (
    check_url,
    forbidden_kind,
    is_loopback,
    usable_hosts,
)
from Tests.corpora import cases


def refusal(url: str, block_private_addresses: bool = False, allowed_hosts: list[str] | None = None) -> str | None:
    return check_url(url, block_private_addresses, allowed_hosts).reason


def answer(*addresses: str) -> Any:
    """A fake name resolution that gives these addresses for every name."""

    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    return getaddrinfo


@pytest.mark.parametrize("entry", cases("ssrf_addresses", kind="host"))
def test_hosts(entry: dict[str, Any]) -> None:
    reason = refusal(f"http://{entry['input']}/a?b#c", True)
    assert bool(reason) is (entry["expected"] == "blocked"), reason


@pytest.mark.parametrize("entry", cases("ssrf_addresses", kind="url", expected="blocked"))
def test_blocked_urls(entry: dict[str, Any]) -> None:
    assert refusal(entry["input"], True)
    assert refusal(entry["input"], False, ["8.8.8.8"])


def test_off_means_no_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("resolved"))
    assert refusal("http://anything.example/") is None
    assert refusal("no url at all") is None
    assert refusal("http://a.example/", False, ["A.example"]) is None


@pytest.mark.parametrize("entry", cases("ssrf_addresses", kind="answers"))
def test_every_address_of_a_name_is_checked(monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any]) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answer(*entry["input"]))
    decision = check_url("http://a.example/", True)
    blocked = entry["expected"] == "blocked"
    assert bool(decision.reason) is blocked
    assert decision.addresses == (() if blocked else tuple(entry["input"]))


def test_addresses_are_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answer("8.8.8.8", "8.8.8.8"))
    assert check_url("http://a.example/", True).addresses == ("8.8.8.8",)


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://a.example/", True),
        ("https://A.EXAMPLE:8443/", True),
        ("http://a.example./", True),
        ("http://b.a.example/", False),
        ("http://a.example.org/", False),
        ("http://a.example@b.example/", False),
        ("http://[::1]/", True),
        ("http://bücher.example/", True),
        ("http://xn--bcher-kva.example/", True),
    ],
)
def test_allow_list(url: str, allowed: bool) -> None:
    assert (refusal(url, False, [" a.Example ", "", "[::1]", "BÜCHER.example"]) is None) is allowed


@pytest.mark.parametrize("entries", [[], ["", "  "]])
def test_an_allow_list_without_entries_allows_nothing(entries: list[str]) -> None:
    assert refusal("http://a.example/", False, entries)
    assert usable_hosts(entries) == []


def test_both_controls_must_pass() -> None:
    assert refusal("http://127.0.0.1/", True, ["127.0.0.1"])
    assert refusal("http://8.8.8.8/", True, ["127.0.0.1"])
    assert refusal("http://8.8.8.8/", True, ["8.8.8.8"]) is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1/", ["127.0.0.1", "loopback"]),
        ("http://10.1.2.3/", ["10.1.2.3", "private"]),
        ("http://169.254.169.254/", ["link-local"]),
        ("http://100.64.0.1/", ["not a globally routable"]),
    ],
)
def test_the_reason_names_host_and_family(url: str, words: list[str]) -> None:
    reason = refusal(url, True) or ""
    assert all(word in reason for word in words)


def test_the_reason_names_the_address_that_dns_gave_and_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answer("192.168.0.9"))
    reason = refusal("http://me:secret@a.example/", True) or ""
    assert "a.example" in reason and "192.168.0.9" in reason and "private" in reason
    assert "secret" not in reason


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("8.8.8.8", None),
        ("0.0.0.0", "an unspecified address"),
        ("::8.8.8.8", None),
        ("2002:808:808::", None),
        ("64:ff9b::808:808", None),
        ("64:ff9b:1::808:808", "a private address"),
    ],
)
def test_forbidden_kind(text: str, kind: str | None) -> None:
    found = forbidden_kind(ipaddress.ip_address(text))
    assert (found is None) is (kind is None)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]", "::ffff:127.0.0.1"]
)
def test_loopback_names_and_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "127.example.com", "localhost.example.com", "192.168.1.5", "fe80::1"]
)
def test_other_names_and_addresses_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)
