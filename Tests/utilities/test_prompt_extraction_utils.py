"""Selecting messages and turning them into text."""

import copy

import pytest

from Middleware.utilities import prompt_extraction_utils as e


def messages(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


TALK = messages(("system", "S"), ("user", "hi"), ("assistant", "yo"), ("system", "mid"), ("user", "bye"))


def texts(chosen):
    return [message["content"] for message in chosen]


def test_only_leading_systems_go():
    assert texts(e.extract_last_n_turns(TALK, 9)) == ["hi", "yo", "mid", "bye"]
    assert texts(e.extract_last_n_turns(TALK, 2)) == ["mid", "bye"]
    assert texts(e.extract_last_n_turns(TALK, 9, include_sysmes=False)) == ["hi", "yo", "bye"]
    assert texts(e.extract_last_n_turns(TALK, 9, remove_all_systems_override=True)) == ["hi", "yo", "bye"]


def test_a_conversation_of_systems_is_kept():
    only = messages(("system", "a"), ("system", "b"))
    assert texts(e.extract_last_n_turns(only, 5)) == ["a", "b"]
    assert e.extract_last_n_turns(only, 5, include_sysmes=False) == []


@pytest.mark.parametrize("n", [0, -1])
def test_no_turns(n):
    assert e.extract_last_n_turns(TALK, n) == []
    assert e.extract_last_n_turns([], 3) == []


def test_role_is_exact():
    assert texts(e.extract_last_n_turns(messages(("systemMes", "a"), ("user", "b")), 5, False)) == ["a", "b"]


def test_token_limit_keeps_the_newest():
    talk = messages(("user", "one two three"), ("assistant", "x" * 35), ("user", "hello world"))
    assert texts(e.extract_last_turns_by_estimated_token_limit(talk, 1)) == ["hello world"]
    assert len(e.extract_last_turns_by_estimated_token_limit(talk, 14)) == 2
    assert len(e.extract_last_turns_by_estimated_token_limit(talk, 13)) == 1
    assert len(e.extract_last_turns_by_estimated_token_limit(talk, 100)) == 3
    assert e.extract_last_turns_by_estimated_token_limit([], 5) == []


def test_braces_count_as_one_character():
    talk = messages(("user", "b"), ("user", "__WILMER_L_CURLY____WILMER_R_CURLY__"))
    assert len(e.extract_last_turns_by_estimated_token_limit(talk, 2)) == 2


def test_minimum_of_messages():
    talk = messages(*[("user", "x" * 35)] * 4)  # 11 tokens each
    select = e.extract_last_turns_with_min_messages_and_token_limit
    assert len(select(talk, 2, 1)) == 2
    assert len(select(talk, 1, 33)) == 3
    assert len(select(talk, 9, 1)) == 4
    assert len(select(talk, 3, 22, budget_overrides_min=True)) == 2
    assert len(select(talk, 3, 1, budget_overrides_min=True)) == 1


def test_selection_stops_at_the_first_that_does_not_fit():
    talk = messages(("user", "a"), ("user", "x" * 350), ("user", "b"))
    assert texts(e.extract_last_turns_by_estimated_token_limit(talk, 20)) == ["b"]


def test_as_strings():
    assert e.extract_last_n_turns_as_string(TALK, 2) == "mid\nbye"
    assert e.extract_last_n_turns_as_string(TALK, 2, separator=" | ", add_role_tags=True) == "System: mid | User: bye"
    assert e.extract_last_turns_by_estimated_token_limit_as_string(TALK, 1) == "bye"
    assert e.extract_last_turns_with_min_messages_and_token_limit_as_string(TALK, 2, 1) == "mid\nbye"
    assert e.join_contents(messages(("tool", "t"), ("other", "o")), add_role_tags=True) == "Tool Result: t\no"


def test_separate():
    assert e.separate_messages(TALK) == ("S mid", messages(("user", "hi"), ("assistant", "yo"), ("user", "bye")))
    assert e.separate_messages(TALK, separate_sysmes=True) == ("S", TALK[1:])
    with pytest.raises(ValueError):
        e.separate_messages([{"role": "user"}])


def test_visible_tool_calls():
    talk = [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "ok",
            "tool_calls": [
                {"id": "1", "function": {"name": "find", "arguments": '{"n": 3, "q": "' + "w" * 300 + '"}'}},
                {"id": "2", "function": {"name": "now", "arguments": "not json"}},
            ],
        },
        {"role": "assistant", "content": "", "tool_calls": [{"id": "3", "function": {"name": "nil", "arguments": ""}}]},
        {"role": "tool", "content": "A", "tool_call_id": "2"},
        {"role": "tool", "content": "B", "tool_call_id": "9", "name": "own"},
        {"role": "tool", "content": "C"},
        {"role": "tool", "content": "D", "tool_call_id": "3"},
    ]
    before = copy.deepcopy(talk)
    assert texts(e.with_visible_tool_calls(talk)) == [
        "go",
        f"ok\n[Tool Call: find] {'w' * 200}\n[Tool Call: now] not json",
        "[Tool Call: nil] ",
        "[Tool Result: now not json] A",
        "[Tool Result: own] B",
        "[Tool Result: unknown_tool] C",
        "[Tool Result: nil] D",
    ]
    assert talk == before


ODD_CALLS = [["x"], {"a": 1}, "x", 5, True, None, [], [None, 3]]


@pytest.mark.parametrize("calls", ODD_CALLS)
def test_tool_calls_that_are_none_stay_out_of_the_text(calls):
    talk = [
        {"role": "assistant", "content": "ok", "tool_calls": calls},
        {"role": "tool", "content": "A", "tool_call_id": "x"},
    ]
    assert texts(e.with_visible_tool_calls(talk)) == ["ok", "[Tool Result: unknown_tool] A"]


@pytest.mark.parametrize(
    "call, line",
    [
        ({}, "[Tool Call: None] "),
        ({"function": "f"}, "[Tool Call: None] "),
        ({"function": {"name": "f", "arguments": {"n": 1, "q": "w"}}}, "[Tool Call: f] w"),
        ({"function": {"name": "f", "arguments": ["w"]}}, '[Tool Call: f] ["w"]'),
        ({"function": {"name": "f", "arguments": "[1]"}}, "[Tool Call: f] [1]"),
    ],
)
def test_odd_calls_among_tool_calls(call, line):
    talk = [{"role": "assistant", "content": "", "tool_calls": ["x", call]}]
    assert texts(e.with_visible_tool_calls(talk)) == [line]


@pytest.mark.parametrize(
    "node, endpoint, user, budget, multiplier",
    [
        ({}, {}, None, None, 1.0),
        ({}, {"maxContextTokenSize": 4096}, True, 4096 - 400 - 512, 1.0),
        ({}, {"maxContextTokenSize": 4096, "clampPromptToContextWindow": False}, True, None, 1.0),
        (
            {"clampPromptToContextWindow": "yes"},
            {
                "maxContextTokenSize": 4096,
                "clampPromptToContextWindow": False,
                "wilmerContextEstimationLevel": "aggressive",
            },
            None,
            5544 - 512,
            1.5,
        ),
        ({"clampPromptToContextWindow": True}, {"maxContextTokenSize": True}, None, None, 1.0),
        ({"clampPromptToContextWindow": True}, {"maxContextTokenSize": "4096"}, None, None, 1.0),
        ({"clampPromptToContextWindow": "no"}, {"maxContextTokenSize": 4096}, True, None, 1.0),
    ],
)
def test_clamp(node, endpoint, user, budget, multiplier):
    assert e.context_clamp(node, endpoint, user, 400) == e.ContextClamp(budget, multiplier)


def test_clamp_limits():
    assert e.ContextClamp().limit(2048) == 2048
    assert e.ContextClamp(100, 1.25).limit(50) == 62
    assert e.ContextClamp(100, 1.25).limit(2048) == 100
    assert e.context_clamp({"clampPromptToContextWindow": 1}, {"maxContextTokenSize": 1000}, None, None).budget == 488


def test_the_discussion_id_and_its_tags():
    messages = [
        {"role": "user", "content": "[DiscussionId]k1[/DiscussionId] Hi[DiscussionId]k2[/DiscussionId]"},
        {"role": "tool", "content": "x[DiscussionId]k3[/DiscussionId]"},
        {"role": "assistant", "content": None},
    ]
    assert e.extract_discussion_id(messages) == "k1"
    assert e.remove_discussion_id_tag(messages) is None
    assert [message["content"] for message in messages] == [" Hi", "x", None]
