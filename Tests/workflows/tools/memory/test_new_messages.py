"""Which messages are new, as a pure function."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities.discussions.message_places import CONTEXT, MessagePlace, place_from_json, place_of
from Middleware.utilities.hashing_utils import find_last_matching_hash_message, hash_single_message
from Middleware.workflows.tools.memory.shared import KnownMessages, chunks_of, first_new
from Tests.tables import table

TEN = [f"m{number}" for number in range(10)]


@pytest.mark.parametrize(
    ("hashes", "stored", "end", "start"),
    [
        (TEN, ["m3"], 6, 4),
        (TEN, ["m5"], 6, 6),
        (TEN, ["m6"], 6, 6),  # the oldest message that is left alone counts too
        (TEN, ["m7"], 6, 6),  # newer messages were deleted
        (TEN, ["?"], 6, 0),
        (TEN, [], 6, 0),
        (TEN, ["m0", "m3"], 7, 4),
        (TEN, ["m3", "?"], 7, 4),  # the newest is gone: the one before it counts
        (TEN, ["m1", "m9"], 7, 7),
        (TEN, ["m5", "m2"], 7, 3),  # the newest memory decides, wherever it stands
        (list("abcab"), ["b"], 5, 5),  # the last of equal ones
        (list("abcab"), ["b"], 3, 2),  # ... that is old enough
        (["a"], ["a"], 0, 0),
        ([], ["a"], 0, 0),
    ],
)
def test_first_new(hashes: list[str], stored: list[str], end: int, start: int) -> None:
    assert first_new(KnownMessages(hashes), stored, end, {}) == start


@pytest.mark.parametrize(("before", "start"), [("b", 3), ("d", 6), ("?", 0), (None, 6), ("", 0)])
def test_equal_messages_are_told_apart(before: str | None, start: int) -> None:
    """The message may be gone if it is nowhere behind the right one; what nobody noted is a guess as ever."""
    places = {} if before is None else {"k": MessagePlace((before,))}
    assert first_new(KnownMessages(["a", "b", "k", "c", "d", "k", "e"]), ["k"], 7, places) == start


def test_first_message_has_none_before_it() -> None:
    assert first_new(KnownMessages(["k", "a", "k"]), ["k"], 3, {"k": MessagePlace(("",))}) == 1


@table(
    ("then", "at", "now", "start"),
    [
        ("okkkcd", 1, "okkkcde", 2),
        ("okkkcd", 2, "okkkcde", 3),
        ("okkkcd", 3, "okkkcde", 4),  # nothing before changed
        ("kkkk", 1, "kkkkkkkk", 2),
        ("kakaka", 4, "kakakakaka", 5),
        ("kakaka", 0, "kaka", 1),
        ("abkcdk", 5, "cdkef", 3),
        ("abkcdk", 5, "kefk", 1),  # the beginning was cut off
        ("kkkkkkkkkkkkkk", 12, "kkkkkkkkkkkkk", 13),  # nobody can tell
        ("abkcdk", 5, "abkcxk", 6),
        ("abkcdk", 5, "abkxdk", 6),
        ("abkcdk", 2, "axkcdk", 3),  # one message before changed
        ("abkcdk", 5, "abkck", 5),
        ("abkcdk", 5, "abkcydk", 7),  # ... deleted, or added
        ("abcdkfgh", 4, "abcdxkyz", 0),  # taken up again before the message, which was said once more
        ("abcdkfgh", 4, "abcdxykz", 0),
        ("abcdkfgh", 4, "abcdxkyh", 6),  # added: what followed it is still there
        ("abcdkfgh", 4, "abcdxk", 6),  # nothing follows yet that could tell
        ("abkcdk", 5, "abkxyk", 0),
        ("akbkckdk", 7, "akbkxyzk", 0),  # so much changed that it may be another one
        ("abcdef", 3, "acdef", 3),
        ("abcdef", 3, "abxdef", 4),
        ("abcdef", 3, "xyzdef", 4),
        ("abcdef", 3, "def", 1),
        ("abkcde", 2, "abcdek", 0),
        ("abcdefkkkgkhi", 8, "abcdefkkgkhi", 8),  # one equal to it was deleted, and so near it that its beginning shows
        ("abcdefkkkgkhi", 8, "abcdefkkgkhxy", 8),
        ("abcdefkkkgkhi", 8, "abcdefkkgk", 8),
        ("abcdef", 3, "abcef", 0),  # it was deleted
    ],
)
def test_where_a_memory_ends_now(then: str, at: int, now: str, start: int) -> None:
    place = place_from_json(json.loads(json.dumps(place_of(list(then), at).as_json())))
    assert place is not None
    assert first_new(KnownMessages(list(now)), [then[at]], len(now), {then[at]: place}) == start


def test_a_text_that_is_said_again_when_the_first_has_left_the_window_is_another_message() -> None:
    history = [text for number in range(3) for text in (f"q{number}", "ok", "ok")] + [
        text for number in range(3, 6) for text in (f"q{number}", "blank", "ok")
    ]
    place = place_of(history[:11], 10)
    assert first_new(KnownMessages(history[14:]), ["blank"], 4, {"blank": place}) == 0


def test_a_message_is_known_among_others_that_change_each_time() -> None:
    """As texts do that a client inserts between the messages of the chat."""
    chat = [f"m{number}" for number in range(12)]
    then = [*chat[:4], "note 1", *chat[4:8], "lore 1", *chat[8:]]
    now = [*chat[:4], "note 2", *chat[4:8], "lore 2", *chat[8:], "m12"]
    at = then.index("m11")
    assert first_new(KnownMessages(now), ["m11"], len(now), {"m11": place_of(then, at)}) == len(now) - 1


@pytest.mark.parametrize("cut", [0, 3, 6])
def test_a_text_that_is_said_often_is_known_among_others_that_change_each_time(cut: int) -> None:
    chat = [text for number in range(6) for text in (f"m{number}", f"n{number}", "ok")]
    then = [*chat[:13], "note 1", "lore 1", *chat[13:]]
    now = [*chat[cut:15], "note 2", "lore 1", *chat[15:], "m6", "n6"]
    at = len(then) - 4
    assert then[at] == "ok"
    assert first_new(KnownMessages(now), ["ok"], len(now), {"ok": place_of(then, at)}) == 15 - cut


def test_a_text_that_is_said_again_soon_is_another_message_if_the_first_is_gone() -> None:
    then = [*(f"m{number}" for number in range(12)), "ok"]
    now = [*then[:8], "x", "y", "z", "ok", "w"]
    assert first_new(KnownMessages(now), ["ok"], len(now), {"ok": place_of(then, 12)}) == 0


@pytest.mark.parametrize("at", [2, 8, 12, 20])
@pytest.mark.parametrize("added", [0, 1, 6])
def test_a_message_is_known_though_all_answers_before_it_have_changed(at: int, added: int) -> None:
    """As they do when a client begins to rewrite what it shows."""
    chat = [f"{role}{number}" for number in range(15) for role in ("u", "a")]
    now = [text.replace("a", "A") for text in chat] + [f"m{number}" for number in range(added)]
    assert first_new(KnownMessages(now), [chat[at]], len(now), {chat[at]: place_of(chat, at)}) == at + 1


def test_the_first_message_is_not_taken_for_a_later_one_with_its_text() -> None:
    """The later one was deleted: the memory before it decides, or all of the conversation would be remembered twice."""
    chat = ["ok", *(f"m{number}" for number in range(1, 15)), "ok", "m16"]
    places = {chat[at]: place_from_json(place_of(chat[: at + 1], at).as_json()) for at in (8, 15)}
    now = [*chat[:12], "other", "words", "follow"]
    assert first_new(KnownMessages(now), ["m8", "ok"], len(now), places) == 9  # type: ignore[arg-type]
    assert first_new(KnownMessages(chat), ["m8", "ok"], len(chat), places) == 16  # type: ignore[arg-type]
    assert first_new(KnownMessages(chat[15:]), ["m8", "ok"], 2, places) == 0  # type: ignore[arg-type]


@table(
    ("then", "at", "now", "start"),
    [
        (TEN, 4, ["m3", "x", "m4", "y"], 3),
        (TEN, 4, ["m0", "m4", "x"], 2),  # one is still beside it
        (TEN, 4, ["x", "y", "m4", "m5"], 3),
        (TEN, 4, ["x", "m4", "z", "m5"], 2),
    ],
)
def test_a_message_is_known_by_what_stood_beside_it(then: list[str], at: int, now: list[str], start: int) -> None:
    assert first_new(KnownMessages(now), [then[at]], len(now), {then[at]: place_of(then, at)}) == start


@table(
    ("now", "start"),
    [
        (["m3", "x", "m4", "y"], 0),  # after the same messages, but for a new one
        ([*TEN[1:4], "x", "m4", "y"], 0),
        ([*TEN[:4], "x", "m4", "y", "z"], 0),
        ([*TEN[:4], "m4", "y"], 5),  # nothing new stands before it
        ([*TEN[:4], "x", "m4"], 6),  # nothing follows yet that could tell
        (["m3", "x", "m4", "m7"], 3),  # something is left of what followed
        ([*TEN[:4], "x", "m4", "m4", "y"], 0),  # the same text twice
    ],
)
def test_a_short_text_after_a_new_message_may_be_another_one(now: list[str], start: int) -> None:
    """The conversation was taken up again before it, and the same short text was said once more."""
    assert first_new(KnownMessages(now), ["m4"], len(now), {"m4": place_of(TEN, 4, 2)}) == start


@table(
    ("then", "now", "start"),
    [
        ("gaog", "gbocde", 0),  # what followed it stands before it as well
        ("aoob", "acogo", 0),  # the second time, nothing follows yet
        ("gaog", "gboxg", 3),
        ("aoob", "acogob", 5),
    ],
)
def test_what_followed_a_short_text_must_follow_it(then: str, now: str, start: int) -> None:
    place = place_of(list(then), 2, 2)
    assert first_new(KnownMessages(list(now)), ["o"], len(now), {"o": place}) == start


@table(
    ("now", "start"),
    [(["x", "y", "z", "TEXT", "w"], 4), (["x", "TEXT"], 2), (["x", "y", "z"], 0), (["x", "TEXT", "y", "TEXT"], 0)],
)  # it is said twice: nothing tells which one it is
def test_a_long_text_is_known_whatever_was_done_around_it(now: list[str], start: int) -> None:
    then = [*TEN, "TEXT", *TEN]
    for length, expected in ((40, start), (39, 0)):
        places = {"TEXT": place_of(then, 10, length)}
        assert first_new(KnownMessages(now), ["TEXT"], len(now), places) == expected


def test_of_many_repeats_the_first_that_fits_counts() -> None:
    """Half of the repeats were deleted, and more came: what may be new is looked at."""
    history = [*"xyz", *"ab" * 10]
    place = place_of(history, 20)
    assert first_new(KnownMessages([*"ab" * 10]), [history[20]], 20, {history[20]: place}) == 10


@pytest.mark.parametrize("value", [None, 5, [], {}, {"before": "x"}, {"before": [1]}])
def test_places_that_are_none(value: Any) -> None:
    assert place_from_json(value) is None


@pytest.mark.parametrize(
    "value",
    [
        {"before": ["a"]},
        {"before": ["a"], "index": True, "history": 5},
        {"before": ["a"], "repeatsFirst": 1},
        {"before": ["a"], "key": 1, "length": True, "after": [1]},
    ],
)
def test_places_of_which_little_is_known(value: Any) -> None:
    assert place_from_json(value) == MessagePlace(("a",)) == place_from_json("a")


@given(st.lists(st.sampled_from(["blank", "ok", "a", "b"]), min_size=1, max_size=30), st.data())
def test_whatever_is_repeated_a_growing_history_is_known_exactly(hashes: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(hashes) - 1))
    place = place_of(hashes[: index + 1], index)
    assert first_new(KnownMessages(hashes), [hashes[index]], len(hashes), {hashes[index]: place}) == index + 1


@given(st.lists(st.sampled_from(["blank", "ok", "a", "b"]), max_size=30), st.integers(0, 60), st.data())
def test_a_sliding_window_passes_nothing_over(rest: list[str], cut: int, data: st.DataObject) -> None:
    """Questions are unique, the rest is repeated, and the client sends the end of it all only."""
    history = [text for number, other in enumerate(rest) for text in (f"q{number}", other, "ok")]
    if not history:
        return
    index = data.draw(st.integers(min(CONTEXT, len(history) - 1), len(history) - 1))
    now = history[min(cut, len(history) - 1) :]
    places = {history[index]: place_of(history[: index + 1], index)}
    start = first_new(KnownMessages(now), [history[index]], len(now), places)
    gone = len(history) - len(now)
    assert not [text for text in now[:start] if text in history[index + 1 :] and text.startswith("q")]
    assert start == index + 1 - gone or index < gone


@given(st.lists(st.text("abcdefgh", min_size=2, max_size=6), unique=True, max_size=12), st.data())
def test_ordinary_histories(texts: list[str], data: st.DataObject) -> None:
    """Without equal messages, and with memories in the order of the messages, the answer is the well-known one."""
    messages = [{"role": "user", "content": text} for text in texts]
    hashes = [hash_single_message(message) for message in messages]
    lookback = data.draw(st.integers(0, 13))
    end = max(0, len(messages) - lookback)
    ends = sorted(data.draw(st.sets(st.sampled_from(range(end)))) if end else [])
    stored = [hashes[index] for index in ends]
    noted = {hashes[index]: place_of(hashes, index) for index in ends}
    short = {hashes[index]: MessagePlace((hashes[index - 1] if index else "",)) for index in ends}
    expected = find_last_matching_hash_message(
        messages, [("", found) for found in stored], turns_to_skip_looking_back=lookback
    )
    for known in ({}, noted, short):
        assert end - first_new(KnownMessages(hashes), stored, end, known) == expected


@given(
    st.lists(st.sampled_from("abc"), max_size=10),
    st.lists(st.sampled_from("abcd"), max_size=4),
    st.integers(0, 10),
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["", *"abc"])),
)
def test_never_beyond_the_end(hashes: list[str], stored: list[str], end: int, before: dict[str, str]) -> None:
    end = min(end, len(hashes))
    places = {key: MessagePlace((value,)) for key, value in before.items()}
    start = first_new(KnownMessages(hashes), stored, end, places)
    assert 0 <= start <= end
    if start and not set(stored) & set(hashes[end:]):
        assert hashes[start - 1] in stored


@given(st.lists(st.text("ab ", max_size=30), max_size=12), st.integers(0, 12), st.integers(-1, 60))
def test_chunks_cover_everything_once(texts: list[str], start: int, size: int) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    hashes = [f"{number}" for number in range(len(texts))]
    start = min(start, len(texts))
    chunks = chunks_of(messages, KnownMessages(hashes), start, len(texts), size)
    assert "\n".join(chunk.text for chunk in chunks) == "\n".join(texts[start:])
    for chunk in chunks:
        at = int(chunk.hash)
        assert chunk.place == place_of(hashes, at, len(texts[at])) and chunk.place.index == at
    assert [chunk.hash for chunk in chunks][-1:] == hashes[start:][-1:]
