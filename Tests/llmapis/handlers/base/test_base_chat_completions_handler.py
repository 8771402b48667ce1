"""Payloads of chat back-ends: order of keys, text injection, sentinels, schema."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from Middleware.llmapis.api_types import canonical_type
from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.handlers.base.base_chat_completions_handler import inject_texts
from Middleware.llmapis.handlers.impl.openai_api_handler import OpenAiApiHandler
from Middleware.llmapis.transport import Transport
from Tests.tables import table


def payload(prompt: Prompt, endpoint: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    settings = {"model": "m", "api_type": {}, **settings}
    return OpenAiApiHandler(BackendSettings("E", "http://h", endpoint=endpoint or {}, **settings), Transport()).payload(
        prompt
    )


def messages(*conversation: dict[str, Any], **endpoint: Any) -> list[dict[str, Any]]:
    return payload(Prompt(list(conversation)), endpoint)["messages"]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def completion(text: str, ensure: bool = False) -> dict[str, Any]:
    return {
        "addTextToStartOfCompletion": True,
        "textToAddToStartOfCompletion": text,
        "ensureTextAddedToAssistantWhenChatCompletion": ensure,
    }


def test_order_of_the_payload() -> None:
    body = payload(Prompt([user("hi")], tools=[{"type": "function"}], tool_choice="auto"), samplers={"top_p": 1})
    assert list(body) == ["model", "messages", "top_p", "tools", "tool_choice"]
    assert list(payload(Prompt([user("hi")]), model=None)) == ["messages"]


def test_samplers_may_override_earlier_keys() -> None:
    assert payload(Prompt([user("hi")]), samplers={"model": "other"})["model"] == "other"


def test_bare_strings_become_messages_and_are_injected_once() -> None:
    endpoint = {
        "addTextToStartOfSystem": True,
        "textToAddToStartOfSystem": "S ",
        "addTextToStartOfPrompt": True,
        "textToAddToStartOfPrompt": "P ",
    }
    body = payload(Prompt(None, "sys", "hi"), endpoint)
    assert body["messages"] == [system("S sys"), user("P hi")]
    assert payload(Prompt(None, "", "hi"))["messages"] == [user("hi")]


def test_mid_conversation_system_messages_are_sent_as_system() -> None:
    assert messages({"role": "systemMes", "content": "x"}, user("y")) == [system("x"), user("y")]


def test_sentinels_become_braces_everywhere() -> None:
    text = "__WILMER_L_CURLY__a__WILMER_R_CURLY__"
    assert messages(system(text), user([{"type": "text", "text": text}])) == [
        system("{a}"),
        user([{"type": "text", "text": "{a}"}]),
    ]


def test_the_callers_messages_stay_unchanged() -> None:
    conversation = [{"role": "systemMes", "content": "__WILMER_L_CURLY__"}, user("hi"), assistant("")]
    before = copy.deepcopy(conversation)
    endpoint = {"addTextToStartOfPrompt": True, "textToAddToStartOfPrompt": "P ", **completion("X")}
    assert messages(*conversation, **endpoint) == [system("{"), user("P hi"), assistant("X")]
    assert conversation == before


def test_trailing_empty_assistant_message_is_dropped_unless_it_calls_tools() -> None:
    assert messages(user("a"), assistant("")) == [user("a")]
    assert messages(user("a"), assistant(None)) == [user("a")]
    kept = assistant("", tool_calls=[{"id": "1"}])
    assert messages(user("a"), kept) == [user("a"), kept]


def test_completion_text_goes_to_the_last_message() -> None:
    assert messages(user("hi"), **completion("X")) == [user("hiX")]
    assert messages(user("hi"), **completion("X", ensure=True)) == [user("hi"), assistant("X")]
    assert messages(user("hi"), assistant("yo "), **completion("X", ensure=True)) == [user("hi"), assistant("yo X")]
    assert messages(**completion("X")) == [assistant("X")]


def test_system_text() -> None:
    endpoint = {"addTextToStartOfSystem": True, "textToAddToStartOfSystem": "S"}
    assert messages(user("a"), **endpoint) == [system("S"), user("a")]
    assert messages(user("a"), system("b"), system("c"), **endpoint) == [user("a"), system("Sb"), system("c")]


def test_prompt_text_goes_to_the_last_user_message() -> None:
    endpoint = {"addTextToStartOfPrompt": True, "textToAddToStartOfPrompt": "P"}
    assert messages(user("a"), user("b"), assistant("c"), **endpoint) == [user("a"), user("Pb"), assistant("c")]
    assert messages(system("a"), **endpoint) == [system("a"), user("P")]


@pytest.mark.parametrize("flag", [False, None, "false"])
def test_injection_needs_its_flag(flag: Any) -> None:
    assert messages(user("a"), addTextToStartOfPrompt=flag, textToAddToStartOfPrompt="P") == [user("a")]
    assert messages(user("a"), addTextToStartOfPrompt=True, textToAddToStartOfPrompt="") == [user("a")]


def test_null_and_block_contents_are_tolerated() -> None:
    conversation = [system(None), user([{"type": "text", "text": "a"}])]
    inject_texts(
        conversation,
        {
            "addTextToStartOfSystem": "true",
            "textToAddToStartOfSystem": "S",
            "addTextToStartOfPrompt": True,
            "textToAddToStartOfPrompt": "P",
            **completion("X"),
        },
    )
    text = [{"type": "text", "text": part} for part in ("P", "a", "X")]
    assert conversation == [system("S"), user(text)]


@pytest.mark.parametrize(
    "endpoint",
    [
        {},
        {"alternateRoles": True},
        {"addTextToStartOfSystem": True, "textToAddToStartOfSystem": "S"},
        {"addTextToStartOfPrompt": True, "textToAddToStartOfPrompt": "P"},
        completion("X"),
    ],
)
def test_changed_messages_are_copies_and_others_are_not(endpoint: dict[str, Any]) -> None:
    plain = [user("a"), assistant("b")]
    conversation = [
        system("s"),
        {"role": "systemMes", "content": "m"},
        *plain,
        assistant("", tool_calls=[]),
        user([{"type": "text", "text": "__WILMER_L_CURLY__"}]),
        {**user("__WILMER_R_CURLY__"), "images": ["data:image/png;base64,QUJD"]},
        assistant("c"),
    ]
    before = copy.deepcopy(conversation)
    sent = payload(Prompt(conversation), endpoint)["messages"]
    assert conversation == before
    if not endpoint:
        assert [message for message in sent if any(message is given for given in conversation)] == [
            system("s"),
            *plain,
            assistant("c"),
        ]


def test_schema_styles(caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "object"}

    def sent(**descriptor: Any) -> dict[str, Any]:
        body = payload(Prompt([user("a")], schema=schema), api_type={"structuredOutput": descriptor}, samplers={"a": 1})
        return {key: value for key, value in body.items() if key not in ("model", "messages")}

    assert sent(field="a.b", style="raw") == {"a": {"b": schema}}
    assert sent(field="response_format", style="openaiJsonSchema", strict=False) == {
        "a": 1,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "wilmer_structured_output", "strict": False, "schema": schema},
        },
    }
    assert "not constrained" not in caplog.text
    assert sent(field="", style="raw") == {"a": 1} and "not constrained" in caplog.text


def test_type_names() -> None:
    assert canonical_type({"type": "openAIApiChatImageSpecific"}) == "openAIChatCompletion"
    with pytest.raises(ValueError, match="openAIChatCompletion") as caught:
        canonical_type({"type": "openAIChatCompletions"}, "ApiTypes/X.json")
    assert "ApiTypes/X.json" in str(caught.value) and "Did you mean 'openAIChatCompletion'" in str(caught.value)
    with pytest.raises(ValueError, match="no 'type'"):
        canonical_type({})


def call(name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}


def result(name: str) -> dict[str, Any]:
    return {"role": "tool", "content": "r", "tool_call_id": name}


def image(content: str, *images: str) -> dict[str, Any]:
    return {"role": "user", "content": content, "images": list(images)}


PICTURE = "data:image/png;base64,iVBORw0KGgo="
SHOWN = {"type": "image_url", "image_url": {"url": PICTURE}}


@table(
    "given, sent",
    [
        ([system("S"), user("a"), assistant("b"), user("c")], [system("S"), user("a"), assistant("b"), user("c")]),
        ([], []),
        # Adjacent messages of one role.
        ([user("a"), user("b"), user("c")], [user("a\n\nb\n\nc")]),
        ([system("S"), system("T"), user("a")], [system("S\n\nT"), user("a")]),
        ([user("a"), assistant("b"), assistant("c"), user("d")], [user("a"), assistant("b\n\nc"), user("d")]),
        ([user("a"), user(""), assistant("b")], [user("a"), assistant("b")]),
        # Empty answers are dropped before that.
        ([user("a"), assistant(""), user("b")], [user("a\n\nb")]),
        ([user("a"), assistant(" \n"), user("b")], [user("a\n\nb")]),
        ([user("a"), assistant(None), user("b"), assistant("")], [user("a\n\nb")]),
        ([user("a"), assistant("b"), assistant("")], [user("a"), assistant("b")]),
        # A later system message is part of the next user message, else of a user message in its place.
        ([user("a"), system("S"), user("b")], [user("a\n\nS\n\nb")]),
        ([user("a"), system("S"), assistant("b"), user("c")], [user("a"), assistant("b"), user("S\n\nc")]),
        (
            [user("a"), assistant("b"), system("S"), system("T"), user("c")],
            [user("a"), assistant("b"), user("S\n\nT\n\nc")],
        ),
        ([user("a"), assistant("b"), system("S")], [user("a"), assistant("b"), user("S")]),
        ([user("a"), system("S")], [user("a\n\nS")]),
        ([user("a"), system("S"), assistant("b")], [user("a\n\nS"), assistant("b")]),
        # The user begins.
        ([assistant("hello"), user("a")], [user("a")]),
        ([system("S"), assistant("hello"), assistant("!"), system("T"), user("a")], [system("S\n\nT"), user("a")]),
        ([assistant("", tool_calls=[call("x")]), result("x"), user("a")], [user("a")]),
        ([system("S"), assistant("hello")], [system("S"), assistant("hello")]),
        # Tool calls and their results keep their order, images and blocks their place.
        (
            [user("a"), assistant("", tool_calls=[call("x"), call("y")]), result("x"), result("y"), user("b")],
            [user("a"), assistant("", tool_calls=[call("x"), call("y")]), result("x"), result("y"), user("b")],
        ),
        (
            [
                user("a"),
                assistant("I look."),
                assistant(None, tool_calls=[call("x")]),
                assistant("", tool_calls=[call("y")]),
            ],
            [user("a"), assistant("I look.", tool_calls=[call("x"), call("y")])],
        ),
        ([image("a", PICTURE), image("b", PICTURE)], [user([{"type": "text", "text": "a\n\nb"}, SHOWN, SHOWN])]),
        (
            [user([{"type": "text", "text": "a"}]), user("b")],
            [user([{"type": "text", "text": "a"}, {"type": "text", "text": "\n\n"}, {"type": "text", "text": "b"}])],
        ),
        ([{**user("a"), "name": "Kim"}, {**user("b"), "name": "Kim"}], [{**user("a\n\nb"), "name": "Kim"}]),
        ([{**user("a"), "name": "Kim"}, {**user("b"), "name": "Odo"}], [user("a\n\nb")]),
    ],
)
def test_roles_alternate_for_an_endpoint_that_asks_for_it(given: list[Any], sent: list[Any]) -> None:
    before = copy.deepcopy(given)
    assert messages(*given, alternateRoles=True) == sent
    assert given == before
    assert len(messages(*given)) >= len(sent)


def test_the_texts_of_the_endpoint_stand_around_the_joined_messages() -> None:
    texts = {"addTextToStartOfPrompt": True, "textToAddToStartOfPrompt": "P ", "alternateRoles": True}
    assert messages(user("a"), user("b"), **texts) == [user("P a\n\nb")]
    for ensure in (False, True):
        begun = completion("So", ensure)
        assert messages(user("a"), assistant(" "), **begun, alternateRoles=True) == [user("a"), assistant("So")]
    assert messages(user("a"), assistant(""), user("b"), **completion("So", True), alternateRoles=True) == [
        user("a\n\nb"),
        assistant("So"),
    ]
