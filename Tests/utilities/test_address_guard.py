"""Which hosts a node may connect to."""
from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest

from Middleware.utilities.address_guard import check_url_allowed, forbidden_kind, judge_url, usable_hosts


def answer(*addresses: str) -> Any:
    """A stand-in for name resolution that gives these addresses for every name."""
    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    return getaddrinfo


@pytest.mark.parametrize("host", [
    "127.0.0.1", "127.0.0.1.", "[::1]", "169.254.169.254", "100.64.0.1", "0.0.0.0", "[::ffff:10.0.0.1]", "2130706433",
    "0x7f.1", "[2002:7f00:1::]", "[64:ff9b::7f00:1]", "[::127.0.0.1]", "[fe80::1%25eth0]", "224.0.0.1", "198.18.0.1",
    "192.0.2.7", "192.0.0.8", "[2001:db8::1]", "[3fff::1]", "[fec0::1]", "[fc00::1]", "[::]", "255.255.255.255",
    "172.16.0.1:8080", "user:secret@192.168.1.1", "8.8.8.8@127.0.0.1", "localhost", "LocalHost.", "name.invalid",
    "x" * 64 + ".example"])
def test_blocked_hosts(host: str) -> None:
    assert check_url_allowed(f"http://{host}/", True)


@pytest.mark.parametrize("url", [
    "8.8.8.8", "", "http://", "http:///x", "https://?", "//8.8.8.8/", "ftp://8.8.8.8/", "file:///etc/hosts",
    "http:8.8.8.8",
    "http://8.8.8.8\\@127.0.0.1/", "http://a@8.8.8.8@127.0.0.1/", "http://8.8.8.8:x/", "http://[::1/", "http://[zz]/",
    "http://{8.8.8.8,127.0.0.1}/", "http://8.8.8.[1-8]/", "http://a{@8.8.8.8/,@127.0.0.1/}", "http://8.8.8.8 /",
    "http://%31%32%37.0.0.1/", "http://8.8.8.8:99999/"])
def test_blocked_urls(url: str) -> None:
    assert check_url_allowed(url, True)
    assert check_url_allowed(url, False, ["8.8.8.8"])


@pytest.mark.parametrize("host", [
    "8.8.8.8", "8.8.8.8.", "8.8.8.8:8080", "[2606:4700::1]", "[::ffff:8.8.8.8]", "u:p@8.8.8.8"])
def test_allowed_hosts_of_the_internet(host: str) -> None:
    assert check_url_allowed(f"http://{host}/a?b#c", True) is None


def test_off_means_no_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("resolved"))
    assert check_url_allowed("http://anything.example/") is None
    assert check_url_allowed("no url at all") is None
    assert check_url_allowed("http://a.example/", False, ["A.example"]) is None


@pytest.mark.parametrize(("addresses", "blocked"), [
    (["8.8.8.8"], False), (["8.8.8.8", "1.1.1.1"], False), (["8.8.8.8", "10.0.0.1"], True), (["::ffff:10.0.0.1"], True),
    (["fe80::1%eth0"], True), ([], True)])
def test_every_address_of_a_name_is_judged(monkeypatch: pytest.MonkeyPatch, addresses: list[str],
                                           blocked: bool) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answer(*addresses))
    verdict = judge_url("http://a.example/", True)
    assert bool(verdict.reason) is blocked
    assert verdict.addresses == (() if blocked else tuple(addresses))


def test_addresses_are_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answer("8.8.8.8", "8.8.8.8"))
    assert judge_url("http://a.example/", True).addresses == ("8.8.8.8",)


@pytest.mark.parametrize(("url", "allowed"), [
    ("http://a.example/", True), ("https://A.EXAMPLE:8443/", True), ("http://a.example./", True),
    ("http://b.a.example/", False), ("http://a.example.org/", False), ("http://a.example@b.example/", False),
    ("http://[::1]/", True), ("http://bücher.example/", True), ("http://xn--bcher-kva.example/", True)])
def test_allow_list(url: str, allowed: bool) -> None:
    assert (check_url_allowed(url, False, [" a.Example ", "", "[::1]", "BÜCHER.example"]) is None) is allowed


@pytest.mark.parametrize("entries", [[], ["", "  "]])
def test_an_allow_list_without_entries_allows_nothing(entries: list[str]) -> None:
    assert check_url_allowed("http://a.example/", False, entries)
    assert usable_hosts(entries) == []


def test_both_controls_must_pass() -> None:
    assert check_url_allowed("http://127.0.0.1/", True, ["127.0.0.1"])
    assert check_url_allowed("http://8.8.8.8/", True, ["127.0.0.1"])
    assert check_url_allowed("http://8.8.8.8/", True, ["8.8.8.8"]) is None


@pytest.mark.parametrize(("url", "words"), [
    ("http://127.0.0.1/", ["127.0.0.1", "loopback"]), ("http://10.1.2.3/", ["10.1.2.3", "private"]),
    ("http://169.254.169.254/", ["link-local"]), ("http://100.64.0.1/", ["not a globally routable"])])
def test_the_reason_names_host_and_family(url: str, words: list[str]) -> None:
    reason = check_url_allowed(url, True) or ""
    assert all(word in reason for word in words)


def test_the_reason_names_the_address_that_dns_gave_and_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answer("192.168.0.9"))
    reason = check_url_allowed("http://me:secret@a.example/", True) or ""
    assert "a.example" in reason and "192.168.0.9" in reason and "private" in reason
    assert "secret" not in reason


@pytest.mark.parametrize(("text", "kind"), [
    ("8.8.8.8", None), ("0.0.0.0", "an unspecified address"), ("::8.8.8.8", None), ("2002:808:808::", None),
    ("64:ff9b::808:808", None), ("64:ff9b:1::808:808", "a private address")])
def test_forbidden_kind(text: str, kind: str | None) -> None:
    found = forbidden_kind(ipaddress.ip_address(text))
    assert (found is None) is (kind is None)
