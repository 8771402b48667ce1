"""Which messages are new, as a pure function."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities.hashing_utils import find_last_matching_hash_message, hash_single_message
from Middleware.workflows.tools.new_messages import chunks_of, first_new

TEN = [f"m{number}" for number in range(10)]


@pytest.mark.parametrize(("hashes", "stored", "end", "start"), [
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
    ([], ["a"], 0, 0)])
def test_first_new(hashes: list[str], stored: list[str], end: int, start: int) -> None:
    assert first_new(hashes, stored, end, {}) == start


@pytest.mark.parametrize(("before", "start"), [
    ({"k": "b"}, 3), ({"k": "d"}, 6), ({"k": "?"}, 6), ({}, 6), ({"k": ""}, 6)])
def test_equal_messages_are_told_apart(before: dict[str, str], start: int) -> None:
    assert first_new(["a", "b", "k", "c", "d", "k", "e"], ["k"], 7, before) == start


def test_first_message_has_none_before_it() -> None:
    assert first_new(["k", "a", "k"], ["k"], 3, {"k": ""}) == 1


@given(st.lists(st.text("abcdefgh", min_size=2, max_size=6), unique=True, max_size=12), st.data())
def test_ordinary_histories(texts: list[str], data: st.DataObject) -> None:
    """Without equal messages, and with memories in the order of the messages, the answer is the well-known one."""
    messages = [{"role": "user", "content": text} for text in texts]
    hashes = [hash_single_message(message) for message in messages]
    lookback = data.draw(st.integers(0, 13))
    end = max(0, len(messages) - lookback)
    ends = sorted(data.draw(st.sets(st.sampled_from(range(end)))) if end else [])
    stored = [hashes[index] for index in ends]
    before = {hashes[index]: hashes[index - 1] if index else "" for index in ends}
    expected = find_last_matching_hash_message(
        messages, [("", found) for found in stored], turns_to_skip_looking_back=lookback)
    for known in ({}, before):
        assert end - first_new(hashes, stored, end, known) == expected


@given(st.lists(st.sampled_from("abc"), max_size=10), st.lists(st.sampled_from("abcd"), max_size=4),
       st.integers(0, 10), st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["", *"abc"])))
def test_never_beyond_the_end(hashes: list[str], stored: list[str], end: int, before: dict[str, str]) -> None:
    end = min(end, len(hashes))
    start = first_new(hashes, stored, end, before)
    assert 0 <= start <= end
    if start and not set(stored) & set(hashes[end:]):
        assert hashes[start - 1] in stored


@given(st.lists(st.text("ab ", max_size=30), max_size=12), st.integers(0, 12), st.integers(-1, 60))
def test_chunks_cover_everything_once(texts: list[str], start: int, size: int) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    hashes = [f"{number}" for number in range(len(texts))]
    start = min(start, len(texts))
    chunks = chunks_of(messages, hashes, start, len(texts), size)
    assert "\n".join(chunk.text for chunk in chunks) == "\n".join(texts[start:])
    for chunk in chunks:
        assert chunk.before == (str(int(chunk.hash) - 1) if int(chunk.hash) else "")
    assert [chunk.hash for chunk in chunks][-1:] == hashes[start:][-1:]
