"""Prompts put together and cut to size."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from Middleware.utilities.prompt_manipulation_utils import (
    combine_initial_system_prompts,
    get_messages_within_index,
    reduce_messages_down_to_wilmer_acceptable_length,
    reduce_messages_to_fit_token_limit,
)
from Middleware.utilities.text_utils import escape_braces

Message = dict[str, Any]


def talk(*pairs: tuple[str, str]) -> list[Message]:
    return [{"role": role, "content": content} for role, content in pairs]


def texts(messages: list[Message]) -> list[str]:
    return [message["content"] for message in messages]


ELEVEN = "x" * 35  # eleven tokens
TALK = talk(("user", "a" + ELEVEN[1:]), ("assistant", "b" + ELEVEN[1:]), ("user", "c" + ELEVEN[1:]))


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([("system", "one"), ("system", "two"), ("user", "u"), ("system", "late")], "<one two>"),
        ([("system", "one")], "<one>"),
        ([("user", "u"), ("system", "late")], "<>"),
        ([], "<>"),
        ([("systemMes", "x"), ("system", "late")], "<>"),
    ],
)
def test_combine(messages: list[tuple[str, str]], expected: str) -> None:
    assert combine_initial_system_prompts(talk(*messages), "<", ">") == expected


@pytest.mark.parametrize(("n", "expected"), [(1, ["b"]), (2, ["a", "b"]), (9, ["a", "b"]), (0, []), (-1, [])])
def test_within_index(n: int, expected: list[str]) -> None:
    assert texts(get_messages_within_index(talk(("user", "a"), ("assistant", "b"), ("user", "c")), n)) == expected


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_before_the_last(count: int) -> None:
    assert get_messages_within_index(TALK[:count], 3) == []


@pytest.mark.parametrize(("limit", "kept"), [(44, 3), (43, 2), (33, 2), (32, 1), (22, 1), (21, 0), (0, 0), (-5, 0)])
def test_fit(limit: int, kept: int) -> None:
    assert reduce_messages_to_fit_token_limit(ELEVEN, TALK, limit) == TALK[3 - kept :]


def test_fit_stops_at_the_first_that_does_not_fit() -> None:
    messages = talk(("user", "s"), ("user", ELEVEN), ("user", "s"))
    assert texts(reduce_messages_to_fit_token_limit("", messages, 5)) == ["s"]


def test_braces_count_once() -> None:
    messages = talk(("user", escape_braces("{" * 35)))
    assert reduce_messages_to_fit_token_limit(escape_braces("{" * 35), messages, 22) == messages


@pytest.mark.parametrize(
    ("truncate", "new", "kept"),
    [(65, 10, 3), (64, 10, 2), (51, 10, 1), (11, 10, 0), (10, 10, 3), (5, 10, 3), (65, 0, 3), (65, -1, 3), (0, 0, 3)],
)
def test_acceptable_length(truncate: int, new: int, kept: int) -> None:
    assert reduce_messages_down_to_wilmer_acceptable_length(ELEVEN, TALK, truncate, new) == TALK[3 - kept :]


def test_inputs_stay_unchanged() -> None:
    messages = copy.deepcopy(TALK)
    combine_initial_system_prompts(messages, "", "")
    get_messages_within_index(messages, 2).clear()
    reduce_messages_to_fit_token_limit("", messages, 12).clear()
    reduce_messages_down_to_wilmer_acceptable_length("", messages, 40, 10).clear()
    assert messages == TALK
