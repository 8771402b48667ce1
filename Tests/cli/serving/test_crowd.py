"""Which connections go when those without a whole request are many."""

from __future__ import annotations

import pytest

from Middleware.cli.serving.crowd import Crowd, Unfinished, peer_of
from Tests.tables import table

A, B, NETWORK = "10.0.0.1", "10.0.0.2", "2001:db8:1:2::%d"


def one(name: str, host: str = A, phase: object = None, has_head: bool = False) -> Unfinished[str]:
    return Unfinished(name, host, phase, has_head)


def bodies(count: int, host: str = A, start: int = 0) -> list[Unfinished[str]]:
    return [one(f"{host}-{number}", host, has_head=True) for number in range(start, start + count)]


def seen_for(seconds: float, *before: list[Unfinished[str]]) -> list[str]:
    """Who must go of ten places when the last group was seen so long ago, each group before it a second earlier."""
    crowd, found = Crowd[str](10), list[Unfinished[str]]()
    for number, group in enumerate(before):
        found += group
        crowd.leaving(found, float(number)) if number < len(before) - 1 else None
    crowd.leaving(found, float(len(before) - 1)) if seconds else None
    return sorted(gone.connection for gone in crowd.leaving(found, len(before) - 1 + seconds))


@table(
    ("found", "seconds", "gone"),
    [
        # Fewer than half of ten are no crowd, however long.
        ([bodies(4)], 1000, []),
        ([[one(str(number)) for number in range(4)]], 1000, []),
        # The oldest of the peer with the most, until fewer than half are left.
        ([bodies(2), bodies(3, start=2)], 5, [f"{A}-0"]),
        ([bodies(2, B), bodies(3, A)], 5, [f"{A}-0"]),
        ([bodies(2, B), bodies(5, A)], 5, [f"{A}-0", f"{A}-1", f"{A}-2"]),
        ([bodies(4, B), bodies(4, A)], 5, [f"{A}-0", f"{A}-1", f"{B}-0", f"{B}-1"]),
        # Each has a peer of its own: the oldest of all.
        ([bodies(1, f"10.0.1.{number}") for number in range(6)], 5, ["10.0.1.0-0", "10.0.1.1-0"]),
        # The addresses of an IPv6 network are one peer.
        ([bodies(1, B), *(bodies(1, NETWORK % number) for number in (1, 2)), bodies(2, A)], 9, [f"{NETWORK % 1}-0"]),
        # What has just come may only not have been read.
        ([bodies(9)], 0, []),
        ([bodies(9)], 1, []),
        # Heads have ten seconds, also of a peer with few.
        ([bodies(4, A), [one("late", B)]], 10, ["late"]),
        ([bodies(4, A), [one("soon", B)]], 9, [f"{A}-0"]),
    ],
)
def test_who_must_go(found: list[list[Unfinished[str]]], seconds: float, gone: list[str]) -> None:
    assert seen_for(seconds, *found) == gone


def test_each_request_has_its_own_time() -> None:
    crowd, first, second = Crowd[str](6), object(), object()
    others = [one("b", has_head=True), one("c", phase=first)]
    assert not crowd.leaving([one("a", phase=first), *others], 0)
    assert not crowd.leaving([one("a", phase=second), *others], 1)
    assert [gone.connection for gone in crowd.leaving([one("a", phase=second), *others], 10)] == ["c"]
    assert [gone.connection for gone in crowd.leaving([one("a", phase=second), *others], 11)] == ["a", "c"]


def test_new_requests_keep_no_connection_for_ever() -> None:
    """Each has the beginning of a head whenever somebody looks; the one whose head began last goes last."""
    crowd = Crowd[str](2)
    for second in range(2):
        assert not crowd.leaving([one("a", phase=object())], second)
    assert crowd.leaving([one("a", phase=object())], 2)
    crowd, phase = Crowd[str](4), object()
    gone = [crowd.leaving([one("new", phase=object()), one("old", phase=phase)], second) for second in range(4)]
    assert [left.connection for left in gone[-1]] == ["old"]


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:2", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("localhost", "localhost"),
        ("", ""),
    ],
)
def test_what_counts_as_one_peer(host: str, peer: str) -> None:
    assert peer_of(host) == peer
