"""Which connections go when those that do not get on are many."""

from __future__ import annotations

from functools import partial

import pytest

from Middleware.cli.serving.crowd import Crowd, Stage, Unfinished, peer_of
from Tests.tables import table

A, B, NETWORK = "10.0.0.1", "10.0.0.2", "2001:db8:1:2::%d"


def one(name: str, host: str = A, phase: object = None, stage: Stage = Stage.HEAD) -> Unfinished[str]:
    return Unfinished(name, host, phase, stage)


def several(stage: Stage, count: int, host: str = A, start: int = 0) -> list[Unfinished[str]]:
    return [one(f"{host}-{number}", host, stage=stage) for number in range(start, start + count)]


bodies, answers, refusals = (partial(several, stage) for stage in (Stage.BODY, Stage.ANSWER, Stage.REFUSAL))


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
        # Answers count once nothing of them was taken for ten seconds, of however many peers.
        ([answers(9)], 9, []),
        ([answers(9)], 10, [f"{A}-{number}" for number in range(5)]),
        ([answers(4)], 1000, []),
        ([answers(2, B), answers(3, A)], 10, [f"{A}-0"]),
        ([answers(1, B), answers(3, A, 3), answers(3, A)], 10, [f"{A}-{number}" for number in (3, 4, 5)]),
        # Together with what else is unfinished, each alone less than half.
        ([answers(3, A), bodies(3, B)], 10, [f"{A}-0", f"{B}-0"]),
        ([answers(3, A), bodies(3, B)], 8, []),
        ([bodies(3, B), answers(4, A)], 10, [f"{A}-0", f"{A}-1", f"{B}-0"]),
        ([answers(4, A), [one("late", B)]], 10, ["late"]),
        # Those that may read why they were refused, for a moment; for them nobody else has to go.
        ([refusals(4, B), bodies(4, A)], 0, []),
        ([refusals(4, B), bodies(4, A)], 1, [f"{B}-{number}" for number in range(4)]),
        ([refusals(2, B), bodies(2, A)], 1000, []),
    ],
)
def test_who_must_go(found: list[list[Unfinished[str]]], seconds: float, gone: list[str]) -> None:
    assert seen_for(seconds, *found) == gone


def test_each_request_has_its_own_time() -> None:
    crowd, first, second = Crowd[str](6), object(), object()
    others = [one("b", stage=Stage.BODY), one("c", phase=first)]
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


def test_whoever_reads_on_is_never_in_a_crowd() -> None:
    """However slowly, and whatever the others do: here one that takes something every nine seconds."""
    crowd = Crowd[str](2)
    slow = [crowd.leaving([one("slow", phase=second // 9, stage=Stage.ANSWER)], second) for second in range(60)]
    assert slow == [[]] * 60 and not crowd.is_there
    crowd = Crowd[str](4)
    for second in range(60):
        others = [one("stuck", phase=0, stage=Stage.ANSWER), one("body", B, stage=Stage.BODY)]
        gone = crowd.leaving([one("slow", B, second // 9, Stage.ANSWER), *others], second)
        assert [left.connection for left in gone] == ([] if second < 10 else ["stuck"])


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
