from __future__ import annotations

from typing import Any

import pytest

from Middleware.utilities.text_utils import (
    chunk_messages_by_token_size,
    clear_out_user_assistant_from_chunks,
    get_message_chunks,
    messages_into_chunked_text_of_token_size,
    messages_to_text_block,
    tokenize,
)


def messages(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content} for content in contents]


WORDS = "x" * 35
"""Eleven estimated tokens."""


@pytest.mark.parametrize(
    ("text", "tokens"), [("", []), ("a b", ["a", "b"]), ("don't, größe_1!", ["don", "t", "größe_1"]), ("-- ::", [])]
)
def test_tokenize(text: str, tokens: list[str]) -> None:
    assert tokenize(text) == tokens


@pytest.mark.parametrize(
    ("size", "sizes"),
    [
        (27, [1, 1, 1, 1, 1]),  # 80 % of it is 21.6, and two messages have 22
        (27.5, [1, 2, 2]),
        (1, [1, 1, 1, 1, 1]),
        (1000, [5]),
    ],
)
def test_chunks_are_filled_from_the_newest(size: float, sizes: list[int]) -> None:
    given = messages(*(WORDS[:-1] + str(number) for number in range(5)))
    groups = chunk_messages_by_token_size(given, size)
    assert [len(group) for group in groups] == sizes
    assert [message for group in groups for message in group] == given


@pytest.mark.parametrize(
    ("count", "size", "sizes"), [(7, 50, [1, 2, 2, 2]), (6, 60, [3, 3]), (6, 10, [1, 1, 1, 1, 1, 1])]
)
def test_chunks_of_messages_of_fifteen_tokens(count: int, size: int, sizes: list[int]) -> None:
    assert [len(group) for group in chunk_messages_by_token_size(messages(*["x" * 48] * count), size)] == sizes


def test_a_large_message_stays_whole() -> None:
    texts = messages_into_chunked_text_of_token_size(messages("a", WORDS * 20, "b", "c"), 50)
    assert texts == ["a", WORDS * 20, "b\nc"]


def test_braces_count_as_braces() -> None:
    assert messages_into_chunked_text_of_token_size(messages(*["__WILMER_L_CURLY__" * 7] * 2), 10) == [
        "\n".join(["__WILMER_L_CURLY__" * 7] * 2)
    ]


def test_nothing_gives_no_chunk() -> None:
    assert chunk_messages_by_token_size([], 100) == []
    assert messages_to_text_block([]) == ""


def test_text_block_has_no_roles() -> None:
    assert messages_to_text_block(messages("a", None, "b")) == "a\n\nb"


@pytest.mark.parametrize(
    ("lookback", "text"), [(0, ["a\nb\nc"]), (-1, ["a\nb\nc"]), (1, ["d"]), (2, ["c\nd"]), (9, ["a\nb\nc\nd"])]
)
def test_message_chunks(lookback: int, text: list[str]) -> None:
    assert get_message_chunks(messages("a", "b", "c", "d"), lookback, 400) == text


def test_message_chunks_of_one_message() -> None:
    assert get_message_chunks(messages("a"), 0, 400) == []
    assert get_message_chunks(messages("a"), 1, 400) == ["a"]


def test_clear_out_labels() -> None:
    chunks = ["User: a\nASSISTANT: b User: ", None, "systemMes: c SYSTEMMES: d", "user: e Assistant:f", ""]
    assert clear_out_user_assistant_from_chunks(chunks) == ["a\nb ", "c d", "user: e Assistant:f", ""]
