"""Windows that jump by whole blocks of messages instead of sliding (``messageBlockSize``)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from Middleware.models.llm_handler import LlmHandler
from Middleware.models.messages import VisionNote
from Middleware.services.llm_dispatch_service import LLMDispatchService
from Middleware.utilities.prompt_extraction_utils import from_block
from Middleware.workflows.managers.workflow_variable_manager import WorkflowVariableManager
from Middleware.workflows.models.execution_context import ExecutionContext
from Tests.llmapis.lab import Lab
from Tests.properties import examples
from Tests.services.test_llm_dispatch_service import FakeLlm, m
from Tests.tables import table


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def talk(length: int, *sizes: int) -> list[dict[str, Any]]:
    """Return a conversation in turns, each message with its number; ``sizes`` are repeated."""
    return [
        m(("user", "assistant")[index % 2], f"#{index}#" + "x" * (sizes or (0,))[index % len(sizes or (0,))])
        for index in range(length)
    ]


def context(
    messages: list[dict[str, Any]], node: dict[str, Any], chat: bool = True, endpoint: dict[str, Any] | None = None
) -> ExecutionContext:
    handler = LlmHandler(FakeLlm(), "chatml", False, chat, "Main", endpoint or {}, 100)  # type: ignore[arg-type]
    return ExecutionContext(
        "r",
        "w",
        None,
        node,
        messages,
        False,
        llm_handler=handler,  # type: ignore[arg-type]
        workflow_variable_service=WorkflowVariableManager(),
    )


def numbers(text: object) -> list[int]:
    return [int(found) for found in re.findall(r"#(\d+)#", str(text))]


def sent(
    messages: list[dict[str, Any]], node: dict[str, Any], chat: bool = True, endpoint: dict[str, Any] | None = None
) -> list[int]:
    """Return the numbers of the messages that a node without a prompt sends."""
    out: Any = LLMDispatchService.dispatch(context(messages, node, chat, endpoint))
    return numbers(out["conversation"] if chat else out["prompt"])


def shown(
    name: str,
    messages: list[dict[str, Any]],
    node: dict[str, Any],
    chat: bool = True,
    endpoint: dict[str, Any] | None = None,
) -> list[int]:
    """Return the numbers of the messages in a variable."""
    return numbers(WorkflowVariableManager().apply_variables("{" + name + "}", context(messages, node, chat, endpoint)))


def clamped(tokens: int) -> dict[str, Any]:
    return {"clampPromptToContextWindow": True, "maxContextTokenSize": 612 + tokens}


COUNT, CAP = "lastMessagesToSendInsteadOfPrompt", "lastMessagesToSendInsteadOfPromptMaxTokenSize"
VARIABLES = [
    f"{form}_user_prompt_{rest}"
    for form in ("chat", "templated")
    for rest in (
        "last_five",
        "last_twenty",
        "n_messages",
        "estimated_token_limit",
        "min_n_max_tokens",
        "without_system",
    )
]


# -- the property ------------------------------------------------------------------------------------------------


def check(length: int, size: int, without: list[int], with_blocks: list[int], least: int = 1) -> None:
    assert without == list(range(length - len(without), length))
    possible = [number for number in without if number % size == 0 and length - number >= least]
    assert with_blocks == (without[without.index(possible[0]) :] if possible else without)
    assert size > 1 or with_blocks == without


def test_every_window_of_every_length() -> None:
    for length in range(201):
        messages = talk(length)
        for size in (1, 2, 3, 10, 50, 199, 200, 1000):
            for count in {0, 1, size - 1, size, 21, length // 2, length - 1, length} & set(range(length + 1)):
                for least in (1, 3, 9):
                    window = messages[length - count :]
                    found = from_block(window, messages, size, least)  # type: ignore[arg-type]
                    check(length, size, numbers(window), numbers(found), least)


@given(
    length=st.integers(0, 200),
    size=st.integers(1, 60),
    count=st.integers(1, 220),
    limit=st.integers(1, 3000),
    least=st.integers(1, 30),
    window=st.none() | st.integers(1, 4000),
    chat=st.booleans(),
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=4),
)
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_is_sent_and_what_variables_hold(
    length: int, size: int, count: int, limit: int, least: int, window: int | None, chat: bool, sizes: list[int]
) -> None:
    messages, endpoint = talk(length, *sizes), clamped(window) if window else {}
    node = {
        COUNT: count,
        "nMessagesToIncludeInVariable": count,
        "estimatedTokensToIncludeInVariable": limit,
        "minMessagesInVariable": least,
        "maxEstimatedTokensInVariable": limit,
    }
    for name in VARIABLES:
        floor = least if "min_n" in name else 1
        check(
            length,
            size,
            shown(name, messages, node, chat, endpoint),
            shown(name, messages, {**node, "messageBlockSize": size}, chat, endpoint),
            floor,
        )
    for keys in (node, {**node, CAP: limit}):
        # With a completion back-end the message behind an open assistant message is sent as well. With a chat
        # back-end a message of the user is added to a window that has none.
        least = 2 if length and length % 2 == 0 else 1
        if chat and least == 2:
            continue
        check(
            length,
            size,
            sent(messages, keys, chat, endpoint),
            sent(messages, {**keys, "messageBlockSize": size}, chat, endpoint),
            least,
        )


# -- the numbers -------------------------------------------------------------------------------------------------


@table(
    ("node", "user", "first"),
    [
        ({}, {}, 13),
        ({"messageBlockSize": 1}, {}, 13),
        ({"messageBlockSize": 10}, {}, 20),
        ({}, {"messageBlockSize": 10}, 20),
        ({"messageBlockSize": 4}, {"messageBlockSize": 10}, 16),
        ({"messageBlockSize": 1}, {"messageBlockSize": 10}, 13),
        ({"messageBlockSize": "10"}, {}, 20),
        ({"messageBlockSize": None}, {"messageBlockSize": "10"}, 20),
        ({"messageBlockSize": 0}, {}, 13),
        ({"messageBlockSize": "many"}, {"messageBlockSize": 4}, 16),
        ({"messageBlockSize": 100}, {}, 13),
        ({"messageBlockSize": True}, {"messageBlockSize": -3}, 13),
    ],
)
def test_the_size_is_that_of_the_node_or_of_the_user(
    lab: Lab, node: dict[str, Any], user: dict[str, Any], first: int
) -> None:
    lab.user(**user)
    messages = talk(25)
    for chat in (True, False):
        count = 12 if chat else 11
        assert sent(messages, {COUNT: count, **node}, chat)[0] == first
        assert (
            shown("chat_user_prompt_n_messages", messages, {"nMessagesToIncludeInVariable": 12, **node}, chat)[0]
            == first
        )


def test_a_size_for_all_nodes_leaves_short_windows_alone(lab: Lab) -> None:
    lab.user(messageBlockSize=10)
    for length in range(1, 60):
        messages = talk(length)
        for chat in (True, False):
            for name, count in (("last_three", 3), ("last_five", 5), ("last_ten", 10)):
                assert shown(f"chat_user_prompt_{name}", messages, {}, chat) == list(range(length))[-count:]
            assert len(sent(messages, {COUNT: 9}, chat)) >= min(length, 9)
    # Longer ones, and what a node says of itself.
    assert shown("chat_user_prompt_last_twenty", talk(31), {}) == list(range(20, 31))
    assert shown("chat_user_prompt_last_three", talk(31), {"messageBlockSize": 10}) == [30]


def test_the_beginning_stays_while_messages_are_added() -> None:
    firsts = [sent(talk(length), {COUNT: 21, "messageBlockSize": 10})[0] for length in range(21, 61)]
    assert firsts == [0] + [10] * 10 + [20] * 10 + [30] * 10 + [40] * 9


def test_numbers_are_those_of_the_client() -> None:
    messages = talk(30)
    # Not counted: system messages at the beginning, and what the engine says about an image.
    front = [m("system", "S"), m("system", "T"), *messages]
    noted = [*messages[:3], VisionNote.saying("an owl"), *messages[3:]]
    # Counted: a system message in the conversation, which completion back-ends do not get there.
    inner = [*messages[:5], m("system", "mid"), *messages[5:]]
    node = {COUNT: 15, "messageBlockSize": 10}
    for chat in (True, False):
        assert sent(front, node, chat)[0] == 20
        assert sent(noted, node, chat)[0] == 20  # type: ignore[arg-type]
        assert sent(inner, node, chat)[0] == 19
        for name in ("chat_user_prompt_last_twenty", "templated_user_prompt_last_twenty"):
            assert shown(name, front, node, chat)[0] == 10
            assert shown(name, inner, {"messageBlockSize": 15}, chat)[0] == 14


def test_a_note_is_still_one_in_a_copy_with_times() -> None:
    assert isinstance(VisionNote.saying("an owl").copy(), VisionNote)


def test_messages_that_are_joined_or_separated_count_as_the_client_sent_them() -> None:
    roles = ("user", "assistant", "assistant")
    messages = [m(roles[index % 3], f"#{index}#" + "x" * 100) for index in range(40)]
    for arranged in ("mergeConsecutiveAssistantMessages", "insertUserTurnBetweenAssistantMessages"):
        for tokens in range(60, 1400, 90):
            node = {COUNT: 35, arranged: True}
            without = sent(messages, node, endpoint=clamped(tokens))
            found = sent(messages, {**node, "messageBlockSize": 10}, endpoint=clamped(tokens))
            multiples = [number for number in without if number % 10 == 0]
            # Number 39 is the user's, and number 30 too; 10 and 20 are answers.
            assert found == (list(range(multiples[0], 40)) if multiples else without), (arranged, tokens)
            assert without == sent(messages, {**node, "messageBlockSize": 1}, endpoint=clamped(tokens))


def test_the_question_is_not_left_out_for_an_open_answer() -> None:
    messages = [*talk(20), m("assistant", "#20#")]
    messages[19]["role"] = "user"
    assert sent(messages, {COUNT: 5, "messageBlockSize": 10}, chat=False) == list(range(15, 21))
