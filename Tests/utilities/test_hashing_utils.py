from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import hashing_utils
from Middleware.utilities.hashing_utils import (
    chunk_messages_with_hashes,
    extract_text_blocks_from_hashed_chunks,
    find_last_matching_hash_message,
    hash_content,
    hash_message_with_images,
    hash_messages,
    hash_single_message,
    recognition_keys,
)
from Middleware.utilities.text_utils import replace_brackets_in_list
from Tests.tables import table


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def conversation(count: int, *system_at: int) -> list[dict[str, Any]]:
    return [{"role": "system" if number in system_at else "user", "content": f"m{number}"} for number in range(count)]


def stored(*numbers: int) -> list[tuple[str, str]]:
    return [("block", sha(f"m{number}")) for number in numbers]


def test_hash_of_a_text() -> None:
    assert hash_content("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert hash_content("Grüße") == sha("Grüße")
    assert hash_content("hello") == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


def test_hash_of_braces_is_that_of_stored_data() -> None:
    messages = replace_brackets_in_list([{"role": "user", "content": "a{b}"}])
    assert hash_single_message(messages[0]) == "4b16edada62bacf05a9fd2ecce27eb6143d71cc153bad51aacdfb9dbb582bd8b"


def test_half_a_surrogate_pair_has_a_hash() -> None:
    assert len({hash_content("\ud800"), hash_content("\udc00"), hash_content("?")}) == 3


@pytest.mark.parametrize(
    ("message", "hashed"),
    [
        ({"role": "user", "content": "a"}, "a"),
        ({"role": "assistant", "content": "a"}, "a"),
        ({"content": "a", "images": ["i"]}, "a"),
        ({"content": "", "images": ["j", "i"]}, "ij"),
        ({"content": " ", "images": ["j", "i"]}, " ij"),
        ({"content": "  ", "images": ["b", "a"]}, "  ab"),
        ({"content": None, "images": ["i"]}, "i"),
        ({"content": None}, ""),
        ({"content": "", "images": None}, ""),
        ({"content": "__WILMER_L_CURLY__x__WILMER_R_CURLY__"}, "__WILMER_L_CURLY__x__WILMER_R_CURLY__"),
    ],
)
def test_hash_of_a_message(message: dict[str, Any], hashed: str) -> None:
    assert hash_single_message(message) == sha(hashed)


@pytest.mark.parametrize(
    ("message", "hashed"),
    [
        ({"role": "user", "content": "a"}, "usera"),
        ({"role": "user", "content": "a", "images": ["j", "i"]}, "useraij"),
        ({"role": "user", "content": None, "images": ["i"]}, "useri"),
    ],
)
def test_hash_with_images(message: dict[str, Any], hashed: str) -> None:
    assert hash_message_with_images(message) == sha(hashed)


def test_chunks_carry_the_hash_of_their_last_or_first_message() -> None:
    messages = [{"role": "user", "content": text} for text in ("a", "b" * 300, "c", "d")]
    assert chunk_messages_with_hashes(messages, 20) == [
        ("a", sha("a")),
        ("b" * 300, sha("b" * 300)),
        ("c\nd", sha("d")),
    ]
    assert chunk_messages_with_hashes(messages, 20, use_first_message_hash=True)[-1] == ("c\nd", sha("c"))
    assert chunk_messages_with_hashes([]) == []
    assert extract_text_blocks_from_hashed_chunks(chunk_messages_with_hashes(messages)) == [f"a\n{'b' * 300}\nc\nd"]


@pytest.mark.parametrize(
    ("count", "known", "turns", "new"),
    [
        (10, (), 4, 6),
        (10, (5,), 4, 0),
        (10, (3,), 4, 2),
        (10, (3, 0), 4, 2),
        (10, (6,), 4, 0),  # the oldest of the newest few is looked at
        (10, (7,), 4, 6),  # the others are not
        (10, (9,), 0, 0),
        (10, (0,), 0, 9),
        (10, (0, 3), 3, 3),
        (3, (), 4, 0),
        (3, (0,), 4, 0),
        (0, (0,), 4, 0),
        (10, (99,), 4, 6),
    ],
)
def test_new_messages(count: int, known: tuple[int, ...], turns: int, new: int) -> None:
    assert find_last_matching_hash_message(conversation(count), stored(*known), turns_to_skip_looking_back=turns) == new


@pytest.mark.parametrize(("skip", "new"), [(False, 3), (True, 2)])
def test_new_messages_without_system_messages(skip: bool, new: int) -> None:
    messages = conversation(8, 0, 3)
    assert find_last_matching_hash_message(messages, stored(2), skip, 2) == new


@given(st.integers(0, 12), st.sets(st.integers(0, 12)), st.integers(0, 12))
def test_new_messages_stay_within_the_conversation(count: int, known: set[int], turns: int) -> None:
    new = find_last_matching_hash_message(conversation(count), stored(*known), turns_to_skip_looking_back=turns)
    assert 0 <= new <= max(0, count - turns)


IMAGE_ONLY = {"role": "user", "content": " ", "images": ["b", "a"]}


@pytest.mark.parametrize(
    "message",
    [
        {"content": "a text"},
        {"content": ""},
        {"content": None},
        {},
        {"content": 5},
        {"content": " "},
        IMAGE_ONLY,
        {"content": "a text", "images": ["a"]},
    ],
)
def test_a_request_changes_no_hash(message: dict[str, Any]) -> None:
    expected = hash_single_message(message)
    with request_scope(RequestContext()):
        assert hash_messages([message, message]) == [expected] * 2
        assert hash_single_message(message) == expected


def test_a_request_hashes_a_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    monkeypatch.setattr(hashing_utils, "hash_content", lambda text: hashed.append(text) or f"hash of {text}")
    with request_scope(RequestContext()):
        assert hash_messages([{"content": text} for text in "aba"]) == ["hash of a", "hash of b", "hash of a"]
        assert hash_single_message({"content": "b", "role": "user"}) == "hash of b"
    assert hashed == ["a", "b"]


def test_images_without_text_are_told_apart() -> None:
    with request_scope(RequestContext()):
        assert len(set(hash_messages([IMAGE_ONLY, {**IMAGE_ONLY, "images": ["c"]}, {"content": " "}]))) == 3


@table(
    ("then", "now"),
    [
        (["Kim: a", "Sera: b", "Kim: c", "Sera: d"], ["a", "b", "c", "d"]),
        (["User: Kim: a", "Assistant: Sera: b", "User: Kim: c", "Assistant: Sera: d"], ["a", "b", "c", "d"]),
        (["User: a", "Assistant: b"], ["a", "b"]),
        (["Dr. Ann Lee:\na ", "x", "Dr. Ann Lee: b"], ["a", "x", "b"]),
    ],
)
def test_what_is_said_is_recognized_without_names(then: list[str], now: list[str]) -> None:
    assert recognition_keys([{"content": text} for text in then]) == [hash_content(text) for text in now]


@table(
    "texts",
    [
        ["Note: a", "b"],  # a single time: not a speaker
        ["http://a", "http://b"],
        ["Kim:", "Kim:"],
        ["so I said: a", "b"],
        ["a line that is too long for the name of anybody: a", "a line that is too long for the name of anybody: b"],
        ["two\nlines: a", "two\nlines: b"],
        ["", ""],
    ],
)
def test_what_is_no_name_is_kept(texts: list[str]) -> None:
    messages = [{"content": text} for text in texts]
    assert recognition_keys(messages) == hash_messages(messages)
