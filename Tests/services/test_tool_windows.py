"""A window of messages never begins between a tool call and its results, wherever the newest messages are taken."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from Middleware.services.llm_calls.message_selection import merge_assistant_runs
from Middleware.services.memory_service import recent_message_blocks
from Middleware.utilities.prompt_extraction_utils import extract_last_n_turns, newest, newest_within, outside_exchange
from Middleware.utilities.prompt_manipulation_utils import (
    get_messages_within_index,
    reduce_messages_to_fit_token_limit,
)
from Tests.llmapis.lab import Lab
from Tests.properties import examples
from Tests.services.test_llm_dispatch_service import m
from Tests.services.test_message_blocks import CAP, COUNT, clamped, sent, shown
from Tests.tables import table


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def calls(*ids: object) -> list[dict[str, Any]]:
    return [{"id": str(one), "type": "function", "function": {"name": "read", "arguments": "{}"}} for one in ids]


def agent(*rounds: int, size: int = 0) -> list[dict[str, Any]]:
    """Return a conversation whose rounds have so many parallel calls (0: an answer, a user), each message numbered."""
    out: list[dict[str, Any]] = [m("user", "")]
    for number in rounds:
        if not number:
            out += [m("assistant", ""), m("user", "")]
            continue
        ids = range(len(out), len(out) + number)
        out += [m("assistant", "", tool_calls=calls(*ids)), *(m("tool", "", tool_call_id=str(one)) for one in ids)]
    for index, message in enumerate(out):
        message["content"] = f"#{index}#" + "x" * size
    return out


def whole(messages: list[dict[str, Any]], chosen: Iterable[int]) -> bool:
    """Return whether the chosen messages have each call with all of its results, and each result with its call."""
    kept = set(chosen)
    for index, message in enumerate(messages):
        if message["role"] == "assistant" and message.get("tool_calls"):
            exchange = {index, *range(index + 1, index + 1 + len(message["tool_calls"]))}
            if kept & exchange not in (set(), exchange):
                return False
    return True


def test_thirteen_rounds_of_one_tool() -> None:
    messages = [m("system", "Be kind."), *agent(*[1] * 13)]
    assert len(messages) == 28
    # The node puts the user's message in front of a window that has none. Message 6 is a result, and 5 its call.
    assert sent(messages, {COUNT: 20}) == [0, *range(7, 27)]
    assert sent(messages, {COUNT: 21}) == [0, *range(5, 27)]
    assert sent(messages, {COUNT: 20}, chat=False) == list(range(5, 27))


@given(
    rounds=st.lists(st.integers(0, 4), max_size=12),
    size=st.integers(0, 120),
    count=st.integers(1, 40),
    limit=st.integers(1, 1500),
    window=st.none() | st.integers(1, 1500),
    block=st.integers(1, 12),
    chat=st.booleans(),
)
@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_window_cuts_an_exchange(
    rounds: list[int], size: int, count: int, limit: int, window: int | None, block: int, chat: bool
) -> None:
    messages, endpoint = agent(*rounds, size=size), clamped(window) if window else {}
    node = {COUNT: count, "messageBlockSize": block}
    found = [sent(messages, keys, chat, endpoint) for keys in (node, {**node, CAP: limit})]
    for chosen in found:
        assert chosen[-1] == len(messages) - 1 and whole(messages, chosen)
    # A variable is a text, of which no server refuses a part: it has as many messages as its name says.
    for form in ("chat", "templated"):
        assert len(shown(f"{form}_user_prompt_last_one", messages, {}, chat)) == 1


def test_the_clamp_drops_an_exchange_that_it_has_no_room_for(caplog: pytest.LogCaptureFixture) -> None:
    # Question 0, calls 1, results 2 to 4, answer 5, question 6.
    messages, cost = agent(3, 0, size=70), 31
    for room, kept in ((7, [0, 1, 2, 3, 4, 5, 6]), (6, [1, 2, 3, 4, 5, 6]), (5, [5, 6]), (3, [5, 6]), (2, [5, 6])):
        assert sent(messages, {COUNT: 99}, endpoint=clamped(cost * room)) == kept
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    # The newest message is sent whole if it is too large, and so is the exchange that it ends.
    assert sent(agent(0, 3, size=700), {COUNT: 99}, endpoint=clamped(400)) == [2, 3, 4, 5, 6]
    assert "its newest tool exchange alone" in caplog.text


OPEN = [m("user", "q"), m("assistant", "", tool_calls=calls("a", "b")), m("tool", "1"), m("tool", "2")]


@table(
    ("index", "least", "cut"),
    [
        (0, None, 0),
        (1, None, 1),
        (2, None, 1),
        (3, None, 1),
        (4, None, 4),
        (5, None, 5),
        (2, 0, 4),
        (3, 1, 4),
        (3, 2, 1),
        (-1, None, -1),
        (9, None, 9),
    ],
)
def test_where_a_conversation_is_cut(index: int, least: int | None, cut: int) -> None:
    assert outside_exchange([*OPEN, m("user", "x")], index, least) == cut  # type: ignore[list-item]


@table("before", [m("user", "q"), m("assistant", "a"), m("assistant", "a", tool_calls=[]), m("tool", "t")])
def test_a_result_whose_call_was_not_sent_stays_as_it_is(before: dict[str, Any]) -> None:
    messages: Any = [before, m("tool", "1"), m("tool", "2")]
    assert newest(messages, 1) == messages[-1:]
    assert newest_within(messages, 1) == messages[-1:]


def test_scripts_get_whole_exchanges() -> None:
    messages: Any = [m("user", "q"), *OPEN]
    answered: Any = [*messages, m("assistant", "end")]
    assert extract_last_n_turns(messages, 2) == messages[2:]
    assert get_messages_within_index(answered, 1) == messages[2:]
    assert reduce_messages_to_fit_token_limit("", messages, 1) == []
    # Blocks are texts. The newest of the messages is never one of them.
    assert recent_message_blocks(answered, 2) == ["2"]


def test_merged_messages_keep_all_calls() -> None:
    first, second = m("assistant", "a", tool_calls=calls("1")), m("assistant", "b", tool_calls=calls("2"))
    merged = merge_assistant_runs([m("assistant", "x"), second], "-")  # type: ignore[list-item]
    assert merged == [m("assistant", "x-b", tool_calls=calls("2"))]
    merged = merge_assistant_runs([first, second], "-")  # type: ignore[list-item]
    assert merged == [m("assistant", "a-b", tool_calls=calls("1", "2"))]
