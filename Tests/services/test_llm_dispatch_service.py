"""From a node to the arguments of its LLM call."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from Middleware.exceptions import ConfigValueError, EarlyTerminationException
from Middleware.models.llm_handler import LlmHandler
from Middleware.services.llm_dispatch_service import LLMDispatchService
from Middleware.services.llm_service import LlmHandlerService
from Middleware.utilities.text_utils import rough_estimate_token_length
from Middleware.workflows.models.execution_context import ExecutionContext
from Tests.llmapis.lab import Lab
from Tests.services.dispatch_lab import FakeLlm, conversation, dispatch, m
from Tests.stub_backend import StubBackend, chat_reply
from Tests.tables import table

CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def last(count: int, **more: Any) -> dict[str, Any]:
    return {"lastMessagesToSendInsteadOfPrompt": count, **more}


# -- chat back-ends -----------------------------------------------------------------------------------------------


def test_authored_prompt() -> None:
    out = dispatch([m("user", "a")], {"systemPrompt": "S {count}", "prompt": "P {count}"})
    assert out["conversation"] == [m("system", "S 1"), m("user", "P 1")]
    assert (out["system_prompt"], out["prompt"], out["request_id"]) == (None, None, "r")


def test_authored_prompt_that_becomes_empty_stays_authored() -> None:
    assert conversation([m("user", "a")], {"prompt": "{nothing}"}) == [m("user", "")]


@pytest.mark.parametrize(("prompt", "warned"), [("{nothing}", 1), (" {nothing}\n", 1), ("", 0), ("x{nothing}", 0)])
@pytest.mark.parametrize("chat", [True, False])
def test_a_prompt_that_becomes_blank_is_reported(
    caplog: pytest.LogCaptureFixture, prompt: str, warned: int, chat: bool
) -> None:
    dispatch([m("user", "a")], {"prompt": prompt, "title": "Ask"}, chat=chat)
    found = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(found) == warned
    assert all("'Ask'" in record.getMessage() and "blank" in record.getMessage() for record in found)


def test_conversation_sends_the_last_messages() -> None:
    messages = [m("user", str(index)) for index in range(8)]
    assert conversation(messages, last(2)) == messages[-2:]
    assert conversation(messages) == messages[-5:]
    assert conversation(messages, {"systemPrompt": "S", **last(1)}) == [m("system", "S"), messages[-1]]


def test_zero_messages_still_hold_the_question() -> None:
    assert conversation([m("user", "a"), m("user", "b")], last(0)) == [m("user", "b")]


def test_mid_conversation_system_message_stays_and_the_leading_one_goes() -> None:
    messages = [m("system", "1"), m("user", "2"), m("system", "3"), m("assistant", "4")]
    assert conversation(messages, last(2)) == [m("system", "3"), m("user", "2"), m("assistant", "4")]
    assert conversation(messages, last(9)) == messages[1:]


def test_window_without_a_user_message_gets_the_latest_one() -> None:
    messages = [m("user", "old"), m("user", "q"), m("assistant", "", tool_calls=CALLS), m("tool", "r")]
    assert conversation(messages, {"systemPrompt": "S", **last(2)}) == [m("system", "S"), m("user", "q"), *messages[2:]]


def test_token_cap_keeps_the_newest_message_at_least() -> None:
    messages = [m("user", "word " * 100), m("user", "two words"), m("user", "word " * 50)]
    capped = {"lastMessagesToSendInsteadOfPromptMaxTokenSize": 10}
    assert conversation(messages, last(3, **capped)) == messages[-1:]
    capped = {"lastMessagesToSendInsteadOfPromptMaxTokenSize": "100"}
    assert conversation(messages, last(3, **capped)) == messages[-2:]


def test_merge_and_insert_between_assistant_messages() -> None:
    messages = [m("user", "q"), m("assistant", "a"), m("assistant", None), m("tool", "t"), m("assistant", "b")]
    merge = {"mergeConsecutiveAssistantMessages": True, "insertUserTurnBetweenAssistantMessages": True}
    assert conversation(messages, merge) == [messages[0], m("assistant", "a\n"), *messages[3:]]
    insert = {"insertUserTurnBetweenAssistantMessages": "true"}
    assert conversation(messages, insert) == [*messages[:2], m("user", "Continue."), *messages[2:]]


def test_a_merged_message_keeps_its_tool_calls() -> None:
    merge = {"mergeConsecutiveAssistantMessages": True, "mergeConsecutiveAssistantMessagesDelimiter": "\n"}
    called = m("assistant", "a", tool_calls=CALLS)
    messages = [m("user", "q"), called, m("assistant", "b", name="x")]
    assert conversation(messages, merge) == [messages[0], m("assistant", "a\nb", tool_calls=CALLS)]
    apart = [m("user", "q"), called, m("tool", "r", tool_call_id="c1"), m("assistant", "b")]
    assert conversation(apart, merge) == apart


def test_images_of_the_conversation_are_limited_from_the_newest() -> None:
    messages = [m("user", "1", images=["a", "b"]), m("user", "2", images=["c"]), m("user", "3")]
    seeing = {"llm_takes_images": True, "max_images": 2}
    assert conversation(messages, options=seeing) == [m("user", "1", images=["b"]), *messages[1:]]
    seeing["max_images"] = 1
    assert conversation(messages, options=seeing) == [m("user", "1"), *messages[1:]]
    seeing["max_images"] = 0
    assert conversation(messages, options=seeing) == messages


def test_images_for_an_authored_prompt() -> None:
    messages = [m("user", "0", images=["z"]), m("user", "1", images=["a", "b"]), m("user", "2", images=["c"])]
    node = {"prompt": "P", **last(2)}
    assert conversation(messages, node, options={"llm_takes_images": True}) == [m("user", "P", images=["a", "b", "c"])]
    assert conversation(messages, node, options={"llm_takes_images": True, "max_images": 2}) == [
        m("user", "P", images=["b", "c"])
    ]
    assert conversation(messages, {"prompt": "P", **last(0)}, options={"llm_takes_images": True}) == [m("user", "P")]
    assert conversation(messages, node) == [m("user", "P")]


def test_tools_need_permission() -> None:
    tools = [{"type": "function"}]
    denied = dispatch([m("user", "a")], tools=tools, tool_choice="auto")
    allowed = dispatch([m("user", "a")], {"allowTools": True}, tools=tools, tool_choice="auto")
    assert (denied["tools"], denied["tool_choice"]) == (None, None)
    assert (allowed["tools"], allowed["tool_choice"]) == (tools, "auto")


def test_native_tool_exchange_is_hidden_from_variables_and_appended() -> None:
    exchange = [m("assistant", "", tool_calls=CALLS), m("tool", "r1"), m("tool", "r2")]
    messages = [m("user", "q"), *exchange, m("assistant", "Assistant:")]
    node = {"prompt": "{count}", "appendNativeToolExchange": True}
    assert conversation(messages, node) == [m("user", "1"), *exchange]
    assert conversation(messages, node, endpoint={"backendSupportsToolTurns": False}) == [m("user", "5")]
    assert conversation([*messages[:1], m("tool", "r")], node) == [m("user", "2")]


def test_the_images_of_results_belong_to_their_exchange() -> None:
    """They stand behind it in a message of the user, which is no question and holds them alone."""
    shown = m("user", "", images=["x", "y"])
    exchange = [m("assistant", "", tool_calls=CALLS), m("tool", "r1"), m("tool", "r2"), shown]
    messages = [m("user", "q", images=["a"]), *exchange]
    node = {"prompt": "{count}", "appendNativeToolExchange": True, **last(9)}
    seeing = {"llm_takes_images": True}
    for filler in ([], [m("assistant", "Assistant:")]):
        assert conversation([*messages, *filler], node, options=seeing) == [m("user", "1", images=["a"]), *exchange]
    for most, own, theirs in ((2, [], ["x", "y"]), (1, [], ["y"]), (3, ["a"], ["x", "y"])):
        sent = conversation(messages, node, options={**seeing, "max_images": most})
        assert sent == [m("user", "1", **({"images": own} if own else {})), *exchange[:3], {**shown, "images": theirs}]
    # A question of the user is none of them, and neither is an image behind something else.
    for other in (m("user", "look", images=["x"]), m("user", "")):
        assert conversation([*messages[:-1], other], node)[0]["content"] == "5"
    # Where the newest images are elsewhere, nothing is left of the message.
    later = [*messages, m("assistant", "ok"), m("user", "and?", images=["z"])]
    limited = conversation(later, last(9), options={**seeing, "max_images": 1})
    assert limited == [m("user", "q"), *exchange[:3], *later[-2:]]


def test_a_completion_has_no_empty_turn_for_the_images_of_results() -> None:
    messages = [m("user", "q"), m("assistant", "a"), m("tool", "r"), m("user", "", images=["x"])]
    out = dispatch(messages, last(9), chat=False, options={"llm_takes_images": True})
    assert out["prompt"].count("<|im_start|>user") == 1 and out["conversation"] == [m("user", "", images=["x"])]


# -- completion back-ends -----------------------------------------------------------------------------------------


def test_completion_conversation_sends_one_message_more_and_no_system() -> None:
    messages = [m("user", "0"), m("system", "s"), m("user", "1"), m("assistant", "2"), m("user", "3")]
    out = dispatch(messages, {"systemPrompt": "S", **last(2)}, chat=False)
    assert out["conversation"] is None
    assert out["system_prompt"] == "<|im_start|>system\nS<|im_end|>\n"
    assert out["prompt"] == "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n2<|im_start|>user\n3<|im_end|>\n"


def test_completion_turns_around_an_authored_prompt() -> None:
    node = {"prompt": "P", "addUserTurnTemplate": True}
    assert dispatch([], node, chat=False, generation_prompt=True)["prompt"] == (
        "<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\n"
    )
    node = {"prompt": "P", "addOpenEndedAssistantTurnTemplate": True}
    assert dispatch([], node, chat=False)["prompt"] == "<|im_start|>assistant\nP"


def test_completion_images_travel_in_a_message_without_text() -> None:
    out = dispatch([m("user", "a", images=["x"])], {"prompt": "P"}, chat=False, options={"llm_takes_images": True})
    assert out["conversation"] == [m("user", "", images=["x"])]


# -- the context window -------------------------------------------------------------------------------------------


def test_clamp_drops_the_oldest(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    messages = [m("user", "x" * 350) for _ in range(10)]  # 110 estimated tokens and 8 more each
    endpoint = {"maxContextTokenSize": 512 + 400 + 3 * 118, "clampPromptToContextWindow": True}
    assert rough_estimate_token_length("x" * 350) == 110
    assert conversation(messages, last(10), endpoint=endpoint) == messages[-3:]
    assert "dropped 7 of 10 messages" in caplog.text
    assert conversation(messages, last(10, clampPromptToContextWindow=False), endpoint=endpoint) == messages
    assert len(conversation(messages, last(10, systemPrompt="s"), endpoint=endpoint)) == 1 + 2


def test_budget_of_the_window() -> None:
    endpoint = {
        "maxContextTokenSize": 4096,
        "clampPromptToContextWindow": True,
        "wilmerContextEstimationLevel": "balanced",
    }
    messages = [m("user", "old"), m("user", "x" * 13035)]  # estimate 4096, cost 4104; "old" costs 9
    assert rough_estimate_token_length("x" * 13035) == 4096
    assert conversation(messages, endpoint=endpoint) == messages[-1:]  # the budget is 4108
    messages[1] = m("user", "x" * 13000)
    assert conversation(messages, endpoint=endpoint) == messages


def test_newest_message_is_sent_whole_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    messages = [m("user", "old"), m("user", "x" * 9000)]
    endpoint = {"maxContextTokenSize": 1024, "clampPromptToContextWindow": "yes"}
    assert conversation(messages, endpoint=endpoint) == messages[-1:]
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1


def test_authored_prompt_is_never_shortened(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = {"maxContextTokenSize": 1024, "clampPromptToContextWindow": True}
    assert conversation([m("user", "a")], {"prompt": "x" * 9000}, endpoint=endpoint) == [m("user", "x" * 9000)]
    assert "larger than the context window" in caplog.text


LIMIT = "'maxResponseSizeInTokens'"


@table(
    "node, limit, text",
    [
        ({}, 1000, f"its response limit of 1000 tokens ({LIMIT}) leaves no room for its newest message alone"),
        ({}, 20000, f"its response limit of 20000 tokens ({LIMIT}) leaves no room for its newest message"),
        (
            {"prompt": "x" * 350},
            20000,
            f"its response limit of 20000 tokens ({LIMIT}) leaves no room for its prompt; it is sent whole (endpoint",
        ),
        ({}, 100, "its newest message alone is larger than the context window allows; it is sent whole"),
        ({}, -5, f"{LIMIT} is -5, which servers refuse or take for no limit; expected is 1 or more, or null"),
    ],
)
def test_the_response_limit_is_named_where_it_is_the_reason(
    node: dict[str, Any], limit: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = {"maxContextTokenSize": 1024, "clampPromptToContextWindow": True}
    size = 9000 if limit == 100 else 350
    conversation([m("user", "x" * size)], node, endpoint=endpoint, max_tokens=limit)
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(found) == 1
    assert text in found[0]


def test_user_may_switch_the_clamp_on(lab: Lab) -> None:
    lab.user(clampPromptToContextWindow=True)
    messages = [m("user", "old"), m("user", "x" * 9000)]
    assert conversation(messages, endpoint={"maxContextTokenSize": 1024}) == messages[-1:]
    assert conversation(messages, endpoint={"maxContextTokenSize": True}) == messages


# -- refusals -----------------------------------------------------------------------------------------------------


def test_messages_are_required() -> None:
    with pytest.raises(ValueError):
        dispatch(None)


def test_an_endpoint_is_required() -> None:
    with pytest.raises(ConfigValueError, match="'Lost'"):
        LLMDispatchService.dispatch(ExecutionContext("r", "w", None, {"title": "Lost"}, [], False))


def test_cancelled_request_prepares_nothing() -> None:
    context = ExecutionContext("r", "w", None, {}, [], False, llm_handler=LlmHandler(FakeLlm()))
    context.request.cancel_scope.cancel()
    with pytest.raises(EarlyTerminationException):
        LLMDispatchService.dispatch(context)


# -- schemas ------------------------------------------------------------------------------------------------------

MOOD = {"type": "object", "properties": {"mood": {"type": "string"}}}
RAW = {"field": "format", "style": "raw"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


class TypedLlm(FakeLlm):
    """A fake whose endpoint has an API type."""

    def __init__(self, **api_type: Any) -> None:
        self.settings = SimpleNamespace(api_type={"type": "openAIChatCompletion", **api_type})


@pytest.fixture
def mood(lab: Lab) -> dict[str, Any]:
    lab.write("StructuredOutputs/Mood", MOOD)
    return {"structuredOutputFile": "Mood", "allowTools": True}


def test_a_schema_is_passed_on(mood: dict[str, Any]) -> None:
    out = dispatch([m("user", "a")], mood, llm=TypedLlm(structuredOutput=RAW))
    assert out["structured_output_schema"] == MOOD
    assert dispatch([m("user", "a")])["structured_output_schema"] is None


@pytest.mark.parametrize("name", [None, ""])
def test_no_name_is_no_schema(name: Any) -> None:
    assert dispatch([m("user", "a")], {"structuredOutputFile": name})["structured_output_schema"] is None


@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_a_schema_wins_over_tools(mood: dict[str, Any], caplog: pytest.LogCaptureFixture, choice: Any) -> None:
    out = dispatch([m("user", "a")], mood, llm=TypedLlm(structuredOutput=RAW), tools=TOOLS, tool_choice=choice)
    assert (out["structured_output_schema"], out["tools"], out["tool_choice"]) == (MOOD, None, None)
    assert "'N/A'" in caplog.text and "tools" in caplog.text


def test_tools_stay_where_no_schema_can_be_sent(mood: dict[str, Any]) -> None:
    out = dispatch([m("user", "a")], mood, llm=TypedLlm(), tools=TOOLS, tool_choice="auto")
    assert (out["structured_output_schema"], out["tools"]) == (MOOD, TOOLS)


def test_claude_cannot_be_held_to_a_schema(mood: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    claude = TypedLlm(type="claudeMessages", structuredOutput=RAW)
    out = dispatch([m("user", "a")], mood, llm=claude, tools=TOOLS, tool_choice="auto")
    assert (out["structured_output_schema"], out["tools"], out["tool_choice"]) == (MOOD, TOOLS, "auto")
    assert "structuredOutputFile" in caplog.text
    out = dispatch([m("user", "a")], {"allowTools": True}, llm=claude, tools=TOOLS, tool_choice="required")
    assert (out["structured_output_schema"], out["tools"], out["tool_choice"]) == (None, TOOLS, "required")


def test_completion_types_take_a_schema_if_their_api_type_declares_where(
    mood: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    llm = TypedLlm(type="koboldCppGenerate", structuredOutput=RAW)
    assert dispatch([m("user", "a")], mood, chat=False, llm=llm)["structured_output_schema"] == MOOD
    assert caplog.text == ""
    llm = TypedLlm(type="koboldCppGenerate")
    assert dispatch([m("user", "a")], mood, chat=False, llm=llm)["structured_output_schema"] is None
    assert "structuredOutputFile" in caplog.text


def test_completion_types_are_never_asked_for_a_demanded_call() -> None:
    llm = TypedLlm(type="koboldCppGenerate", structuredOutput=RAW)
    out = dispatch([m("user", "a")], {"allowTools": True}, chat=False, llm=llm, tools=TOOLS, tool_choice="required")
    assert (out["tools"], out["tool_choice"], out["structured_output_schema"]) == (TOOLS, "required", None)


@pytest.mark.parametrize("name", ["a/b", "..", 5, "a:b", " "])
def test_unusable_schema_names(name: Any) -> None:
    with pytest.raises(ValueError):
        dispatch([m("user", "a")], {"structuredOutputFile": name}, llm=TypedLlm(structuredOutput=RAW))


def test_a_missing_schema_names_the_paths_tried() -> None:
    with pytest.raises(FileNotFoundError, match="StructuredOutputs/tester/No.json, StructuredOutputs/No.json"):
        dispatch([m("user", "a")], {"structuredOutputFile": "No"}, llm=TypedLlm(structuredOutput=RAW))


def test_a_schema_of_the_caller_counts_like_one_of_the_node() -> None:
    options = {"structured_output_schema": MOOD}
    llm = TypedLlm(structuredOutput=RAW)
    out = dispatch([m("user", "a")], {"allowTools": True}, llm=llm, options=options, tools=TOOLS, tool_choice="auto")
    assert (out["structured_output_schema"], out["tools"]) == (MOOD, None)
    with pytest.raises(ConfigValueError):
        dispatch([m("user", "a")], {"allowTools": True}, llm=llm, options=options, tools=TOOLS, tool_choice="required")


def test_a_schema_on_the_wire(lab: Lab, mood: dict[str, Any]) -> None:
    lab.write("ApiTypes/Llama", {"type": "openAIChatCompletion", "structuredOutput": {"field": "a.b", "style": "raw"}})
    with StubBackend(chat_reply('{"mood": "calm"}')) as backend:
        lab.endpoint("Main", {"apiTypeConfigFileName": "Llama"}, backend.url)
        handler = LlmHandlerService().load_model_from_config("Main")
        context = ExecutionContext("r", "w", None, mood, [m("user", "a")], False, llm_handler=handler, tools=TOOLS)
        assert LLMDispatchService.dispatch(context) == '{"mood": "calm"}'
    assert backend.requests[0].json["a"] == {"b": MOOD}
    assert "tools" not in backend.requests[0].json


def test_the_window_counts_the_words_about_demanded_tools_instead_of_the_tools() -> None:
    messages = [m("user", "old"), m("user", "x" * 350)]
    wordy = [{"type": "function", "function": {"name": "f", "description": "d" * 3500}}]
    endpoint = {"clampPromptToContextWindow": True}
    llm = TypedLlm(structuredOutput=RAW)
    # the description is estimated at 1100 tokens: the larger window holds it once, and would not hold it twice
    for window, expected in ((2400, messages), (2000, messages[-1:])):
        sent = conversation(
            messages,
            {"allowTools": True},
            endpoint={**endpoint, "maxContextTokenSize": window},
            llm=llm,
            tools=wordy,
            tool_choice="required",
        )
        assert sent[0]["role"] == "system" and sent[1:] == expected


# -- odd numbers and texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [float("inf"), float("nan"), "many", None])
def test_a_cap_that_is_no_number_is_none(cap: Any) -> None:
    messages = [m("user", "word " * 100), m("user", "b")]
    assert conversation(messages, last(3, lastMessagesToSendInsteadOfPromptMaxTokenSize=cap)) == messages


def test_the_cap_grows_with_the_level_only_where_the_clamp_is_on() -> None:
    messages = [m("user", "x" * 35), m("user", "x" * 35)]  # 11 estimated tokens each
    capped = last(3, lastMessagesToSendInsteadOfPromptMaxTokenSize=18)
    endpoint = {"maxContextTokenSize": 9000, "wilmerContextEstimationLevel": "balanced"}
    assert conversation(messages, capped, endpoint=endpoint) == messages[-1:]
    clamped = {**endpoint, "clampPromptToContextWindow": True}
    assert conversation(messages, capped, endpoint=clamped) == messages  # 18 becomes 22


def test_an_inserted_user_message_keeps_to_the_image_limit() -> None:
    messages = [m("user", "q", images=["a", "b"]), m("assistant", "", tool_calls=CALLS), m("tool", "r")]
    options = {"llm_takes_images": True, "max_images": 1}
    assert conversation(messages, last(2), options=options)[0] == m("user", "q", images=["b"])


def test_a_budget_below_nothing_leaves_the_newest_message() -> None:
    messages = [m("user", "old"), m("user", "new")]
    endpoint = {"maxContextTokenSize": 100, "clampPromptToContextWindow": 1}
    assert conversation(messages, endpoint=endpoint) == messages[1:]


@pytest.mark.parametrize("limit", [None, -400])
def test_a_response_limit_that_says_nothing_takes_nothing_of_the_window(limit: int | None) -> None:
    messages = [m("user", "x" * 350) for _ in range(4)]
    endpoint = {"maxContextTokenSize": 512 + 3 * 118, "clampPromptToContextWindow": True}
    assert conversation(messages, endpoint=endpoint, max_tokens=limit) == messages[-3:]


def test_tools_take_part_of_the_window() -> None:
    messages = [m("user", "x" * 350) for _ in range(4)]
    tools = [{"function": {"description": "d" * 3500}}]
    endpoint = {"maxContextTokenSize": 400 + 512 + 4 * 118 + 1000, "clampPromptToContextWindow": True}
    assert conversation(messages, {"allowTools": True}, endpoint=endpoint) == messages
    assert conversation(messages, {"allowTools": True}, endpoint=endpoint, tools=tools) == messages[-3:]


@pytest.mark.parametrize("node", [{"clampPromptToContextWindow": "off"}, {"clampPromptToContextWindow": "false"}])
def test_a_node_may_switch_the_clamp_off_with_a_word(node: dict[str, Any]) -> None:
    messages = [m("user", "old"), m("user", "x" * 9000)]
    endpoint = {"maxContextTokenSize": 1024, "clampPromptToContextWindow": True}
    assert conversation(messages, node, endpoint=endpoint) == messages


def test_completion_token_cap_comes_before_the_template() -> None:
    messages = [m("user", "word " * 100), m("user", "1"), m("assistant", "2"), m("user", "3")]
    capped = last(3, lastMessagesToSendInsteadOfPromptMaxTokenSize=2)
    out = dispatch(messages, capped, chat=False)
    assert out["prompt"] == "<|im_start|>assistant\n2<|im_start|>user\n3<|im_end|>\n"


@pytest.mark.parametrize(("cap", "expected"), [(1000, "123"), (0, "3"), (2, "23")])
def test_completion_token_cap_removes_from_the_newest_messages_that_are_not_system(cap: int, expected: str) -> None:
    messages = [
        m("user", "old"),
        m("user", "0"),
        m("system", "s" * 3500),
        m("user", "1"),
        m("user", "2"),
        m("system", "t"),
        m("user", "3"),
    ]  # one token each, but for the first system message
    prompt = dispatch(messages, last(3, lastMessagesToSendInsteadOfPromptMaxTokenSize=cap), chat=False)["prompt"]
    assert prompt == "".join(f"<|im_start|>user\n{text}<|im_end|>\n" for text in expected)


def test_completion_token_cap_of_any_size_makes_the_count_that_of_chat_types() -> None:
    messages = [m("user", str(number)) for number in range(5)]
    capped = last(2, lastMessagesToSendInsteadOfPromptMaxTokenSize=1000)
    assert [message["content"] for message in conversation(messages, capped)] == ["3", "4"]
    prompt = dispatch(messages, capped, chat=False)["prompt"]
    assert prompt == "<|im_start|>user\n3<|im_end|>\n<|im_start|>user\n4<|im_end|>\n"
    assert dispatch(messages, last(2), chat=False)["prompt"] == "<|im_start|>user\n2<|im_end|>\n" + prompt


def test_completion_clamp_counts_what_would_be_sent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    messages = [m("system", "s" * 350), *(m("user", f"{index}" * 350) for index in range(9)), m("system", "t" * 350)]
    endpoint = {"maxContextTokenSize": 512 + 400 + 2 * 118, "clampPromptToContextWindow": True}
    prompt = dispatch(messages, last(3, title="Ask"), chat=False, endpoint=endpoint)["prompt"]
    assert prompt.count("<|im_start|>user") == 2 and "7" * 350 in prompt and "8" * 350 in prompt
    assert "dropped 2 of 4 messages" in caplog.text
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert len(told) == 1 and "3 + 1" in told[0] and "'Ask'" in told[0]


def test_completion_conversation_is_clamped() -> None:
    messages = [m("user", "x" * 350), m("user", "y" * 350)]
    endpoint = {"maxContextTokenSize": 512 + 400 + 118, "clampPromptToContextWindow": True}
    assert dispatch(messages, chat=False, endpoint=endpoint)["prompt"] == f"<|im_start|>user\n{'y' * 350}<|im_end|>\n"


def test_template_wilmerai_is_bare_contents(lab: Lab) -> None:
    lab.write(
        "PromptTemplates/chatml",
        {"promptTemplateUserPrefix": "[Beg_User]", "promptTemplateAssistantPrefix": "[Beg_Assistant]"},
    )
    assert dispatch([m("user", "a"), m("assistant", "b")], chat=False)["prompt"] == "ab"


def test_wraps_of_a_completion_prompt_stack() -> None:
    node = {"prompt": "P", "addUserTurnTemplate": True, "addOpenEndedAssistantTurnTemplate": True}
    assert dispatch([], node, chat=False)["prompt"] == "<|im_start|>assistant\n<|im_start|>user\nP<|im_end|>\n"
    assert dispatch([], {"prompt": "P"}, chat=False)["system_prompt"] == "<|im_start|>system\n<|im_end|>\n"


def test_chat_types_know_no_turn_templates() -> None:
    node = {"prompt": "P", "addUserTurnTemplate": True, "addOpenEndedAssistantTurnTemplate": True}
    assert conversation([m("user", "a")], node, generation_prompt=True) == [m("user", "P")]
