"""Late texts and example turns: specification section 3 of prefix cache and scheduling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from Middleware.exceptions import ConfigValueError
from Middleware.models.outside import REAL, Outside
from Middleware.models.process import Process
from Middleware.models.request_context import RequestContext
from Middleware.services.llm_calls.prompt_parts import NO_PARTS, PromptParts, prompt_templates
from Middleware.workflows.models.execution_context import RunRequest
from Tests.llmapis.lab import CHATML, Lab
from Tests.services.dispatch_lab import conversation, dispatch, m
from Tests.tables import table

CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
LATE = {"lateSystemPrompt": " N {count}\n", "lateInstruction": "\nI {count} "}
EXAMPLES = {"exampleTurns": [{"user": "2+2 {count}", "assistant": "4"}, {"user": "3+3", "assistant": "6"}]}
STRICT = {"alternateRoles": True}


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab = Lab(tmp_path, monkeypatch)
    lab.write("PromptTemplates/chatml", {**CHATML, "promptTemplateAssistantSuffix": "<|im_end|>\n"})
    return lab


def late(text: str, seen: int) -> str:
    return f"N {seen}\n\n{text}\n\nI {seen}" if text else f"N {seen}\n\nI {seen}"


def examples(seen: int) -> list[dict[str, Any]]:
    return [m("user", f"2+2 {seen}"), m("assistant", "4"), m("user", "3+3"), m("assistant", "6")]


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [f"{message['role'][0]}:{message['content']}" for message in messages]


# -- late texts, chat back-ends -----------------------------------------------------------------------------------


@table(
    "messages, sent",
    [
        ([m("user", "a"), m("assistant", "b"), m("user", "c")], [0, 1, 2]),
        # Continued: the newest user message before it.
        ([m("user", "a"), m("user", "c"), m("assistant", "beginning")], [0, 1, 2]),
        # The newest one that is sent, behind which the tool exchange of this and of the next round follow.
        ([m("user", "c"), m("assistant", "", tool_calls=CALLS), m("tool", "r")], [0, 1, 2]),
        (
            [
                m("user", "c"),
                m("assistant", "", tool_calls=CALLS),
                m("tool", "r"),
                m("assistant", "", tool_calls=CALLS),
                m("tool", "s"),
            ],
            [0, 1, 2, 3, 4],
        ),
        ([m("user", "c", images=["x"], name="Ann"), m("system", "later")], [0, 1]),
        # Outside of the window, the newest user message is sent before the others.
        ([m("user", "a"), m("user", "c"), *(m("tool", str(index)) for index in range(6))], [1, 3, 4, 5, 6, 7]),
    ],
)
def test_late_texts_are_in_the_newest_user_message(messages: list[dict[str, Any]], sent: list[int]) -> None:
    node = {"systemPrompt": "S", **LATE}
    found = conversation(messages, node, options={"llm_takes_images": True})
    expected = [messages[index] for index in sent]
    place = max(index for index, message in enumerate(expected) if message["role"] == "user")
    expected[place] = {**expected[place], "content": late(expected[place]["content"], len(messages))}
    assert found == [m("system", "S"), *expected]


@table(
    "messages, before",
    [
        ([], 1),
        ([m("system", "x")], 2),
        ([m("assistant", "Hello")], 1),
        ([m("system", "x"), m("assistant", "Hello")], 1),
    ],
)
def test_without_a_user_message_late_texts_follow_the_system_messages(
    messages: list[dict[str, Any]], before: int
) -> None:
    found = conversation(messages, {"systemPrompt": "S", **LATE})
    assert found[before] == m("user", late("", len(messages)))
    assert [message["role"] for message in found[:before]] == ["system"] * before


@table(
    "node, expected",
    [
        ({"lateSystemPrompt": "N"}, "N\n\na"),
        ({"lateInstruction": "I"}, "a\n\nI"),
        ({"lateSystemPrompt": " {nothing}\n", "lateInstruction": ""}, "a"),
        ({"lateSystemPrompt": None}, "a"),
        ({"lateSystemPrompt": "{nothing}", "lateInstruction": "\n\nI\n"}, "a\n\nI"),
        ({"lateSystemPrompt": 5}, "5\n\na"),
        ({"lateSystemPromptForNow": "R"}, "R\n\na"),
        ({"lateSystemPromptForNow": "{nothing}"}, "a"),
        ({"lateSystemPrompt": "N", "lateSystemPromptForNow": "R", "lateInstruction": "I"}, "N\n\nR\n\na\n\nI"),
    ],
)
def test_what_is_blank_is_left_out(node: dict[str, Any], expected: str) -> None:
    assert conversation([m("user", "a")], node) == [m("user", expected)]
    assert conversation([m("user", "x")], {**node, "prompt": "a"}) == [m("user", expected)]
    prompt = dispatch([m("user", "a")], node, chat=False)["prompt"]
    assert prompt == f"<|im_start|>user\n{expected}<|im_end|>\n"


def test_an_empty_message_leaves_no_blank_lines() -> None:
    assert conversation([m("user", " ")], LATE) == [m("user", late("", 1))]
    assert conversation([m("user", "a")], {"prompt": "{nothing}", **LATE}) == [m("user", late("", 1))]


def test_late_texts_around_a_prompt_and_before_the_tool_exchange() -> None:
    exchange = [m("assistant", "", tool_calls=CALLS), m("tool", "r1")]
    node = {"systemPrompt": "S", "prompt": "P {count}", "appendNativeToolExchange": True, **LATE}
    assert conversation([m("user", "q"), *exchange], node) == [m("system", "S"), m("user", late("P 1", 1)), *exchange]


def test_content_in_blocks_gets_blocks_of_text() -> None:
    blocks = [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "see"}]
    found = conversation([m("user", blocks)], {"lateSystemPrompt": "N", "lateInstruction": "I"})
    contents = [block.get("text") for block in found[0]["content"]]
    assert contents == ["N", "\n\n", None, "see", "\n\n", "I"]


# -- late texts, completion back-ends -----------------------------------------------------------------------------

USER, ASSISTANT = "<|im_start|>user\n{}<|im_end|>\n", "<|im_start|>assistant\n{}<|im_end|>\n"


@table(
    "messages, expected",
    [
        (
            [m("user", "a"), m("assistant", "b"), m("user", "c")],
            USER.format("a") + ASSISTANT.format("b") + USER.format(late("c", 3)),
        ),
        ([m("user", "c"), m("assistant", "begin")], USER.format(late("c", 2)) + "<|im_start|>assistant\nbegin"),
        ([m("system", "x"), m("assistant", "Hello")], USER.format(late("", 2)) + "<|im_start|>assistant\nHello"),
    ],
)
def test_late_texts_are_inside_the_turn_of_a_completion(messages: list[dict[str, Any]], expected: str) -> None:
    assert dispatch(messages, LATE, chat=False)["prompt"] == expected
    found = dispatch(messages, {"systemPrompt": "S", **LATE}, chat=False, endpoint=STRICT)
    assert (found["system_prompt"], found["prompt"]) == ("<|im_start|>system\nS<|im_end|>\n", expected)


def test_late_texts_around_the_prompt_of_a_completion() -> None:
    node = {"prompt": "P", "addUserTurnTemplate": True, **LATE}
    assert dispatch([], node, chat=False, generation_prompt=True)["prompt"] == (
        USER.format(late("P", 0)) + "<|im_start|>assistant\n"
    )
    assert dispatch([], {"prompt": "P", **LATE}, chat=False)["prompt"] == late("P", 0)


# -- nothing else changes -----------------------------------------------------------------------------------------

ROLES = st.sampled_from(["user", "user", "assistant", "assistant", "system", "tool"])
NODES = st.fixed_dictionaries(
    {},
    optional={
        "systemPrompt": st.just("S"),
        "lastMessagesToSendInsteadOfPrompt": st.integers(0, 12),
        "messageBlockSize": st.sampled_from([1, 4]),
        "mergeConsecutiveAssistantMessages": st.booleans(),
        "insertUserTurnBetweenAssistantMessages": st.booleans(),
        "addUserTurnTemplate": st.booleans(),
    },
)


@given(st.lists(ROLES, max_size=12), NODES, st.booleans(), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_the_newest_user_message_is_another_one(
    roles: list[str], node: dict[str, Any], chat: bool, strict: bool
) -> None:
    messages = [m(role, f"{index}.") for index, role in enumerate(roles)]
    endpoint = STRICT if strict else {}
    without, found = (
        dispatch(messages, {**node, **more}, chat, endpoint)
        for more in ({}, {"lateSystemPrompt": "<<", "lateInstruction": ">>"})
    )
    if not chat:
        assert (found["prompt"].count("<<"), found["prompt"].count(">>")) == (1, 1)
        if "<<\n\n>>" not in found["prompt"]:
            assert found["prompt"].replace("<<\n\n", "").replace("\n\n>>", "") == without["prompt"]
        return
    sent, before = found["conversation"], without["conversation"]
    [place] = [index for index, message in enumerate(sent) if "<<" in message["content"]]
    assert not any(message["role"] == "user" for message in sent[place + 1 :])
    if sent[place] == m("user", "<<\n\n>>"):
        assert [*sent[:place], *sent[place + 1 :]] == before
    else:
        assert sent[place] == {**before[place], "content": f"<<\n\n{before[place]['content']}\n\n>>"}
        assert [*sent[:place], *sent[place + 1 :]] == [*before[:place], *before[place + 1 :]]


# -- example turns ------------------------------------------------------------------------------------------------


def test_examples_stand_between_the_system_prompt_and_the_rest() -> None:
    messages = [m("user", "a"), m("assistant", "b"), m("user", "c")]
    node = {"systemPrompt": "S", **EXAMPLES}
    assert conversation(messages, node) == [m("system", "S"), *examples(3), *messages]
    assert conversation(messages, {**node, "prompt": "P"}) == [m("system", "S"), *examples(3), m("user", "P")]
    assert conversation(messages, EXAMPLES) == [*examples(3), *messages]
    assert conversation(messages, {**EXAMPLES, "prompt": "P"}) == [*examples(3), m("user", "P")]


def test_examples_are_no_place_for_late_texts_and_are_not_joined_with_the_conversation() -> None:
    merge = {"mergeConsecutiveAssistantMessages": True}
    found = conversation([m("assistant", "Hello")], {**EXAMPLES, **LATE, **merge})
    assert found == [*examples(1), m("user", late("", 1)), m("assistant", "Hello")]
    messages = [m("assistant", "Hello"), m("user", "a")]
    assert conversation(messages, {**EXAMPLES, **merge}) == [*examples(2), *messages]
    # Where roles must alternate, a beginning of the assistant is dropped, as it is without examples.
    assert conversation(messages, EXAMPLES, endpoint=STRICT) == [*examples(2), m("user", "a")]
    assert conversation(
        [m("system", "x"), m("user", "a"), m("system", "y"), m("user", "b")],
        {"systemPrompt": "S", **EXAMPLES},
        endpoint=STRICT,
    ) == [m("system", "S"), *examples(4), m("user", "a\n\ny\n\nb")]


@pytest.mark.parametrize("endpoint", [{}, STRICT])
def test_examples_of_a_completion_are_rendered_with_its_template(endpoint: dict[str, Any]) -> None:
    shown = USER.format("2+2 2") + ASSISTANT.format("4") + USER.format("3+3") + ASSISTANT.format("6")
    node = {"systemPrompt": "S", **EXAMPLES}
    messages = [m("user", "a"), m("assistant", "b")]
    found = dispatch(messages, node, chat=False, endpoint=endpoint, generation_prompt=True)
    end = "" if endpoint else "<|im_start|>assistant\n"
    assert found["prompt"] == shown + USER.format("a") + "<|im_start|>assistant\nb" + end
    assert found["system_prompt"] == "<|im_start|>system\nS<|im_end|>\n"
    wrapped = {**node, "prompt": "P", "addUserTurnTemplate": True}
    found = dispatch(messages, wrapped, chat=False, endpoint=endpoint, generation_prompt=True)
    assert found["prompt"] == shown + USER.format("P") + "<|im_start|>assistant\n"


def test_a_template_without_a_turn_of_the_system_has_its_prompt_in_the_first_example(lab: Lab) -> None:
    lab.write(
        "PromptTemplates/chatml",
        {
            "promptTemplateUserPrefix": "<u>",
            "promptTemplateUserSuffix": "</u>",
            "promptTemplateAssistantPrefix": "<a>",
            "promptTemplateAssistantSuffix": "</a>",
        },
    )
    node = {"systemPrompt": "S", **EXAMPLES, **LATE}
    shown = "<u>S\n\n2+2 2</u><a>4</a><u>3+3</u><a>6</a>"
    messages = [m("assistant", "Hello"), m("user", "a")]
    found = dispatch(messages, node, chat=False, endpoint=STRICT)
    assert (found["system_prompt"], found["prompt"]) == ("", f"{shown}<u>{late('a', 2)}</u>")
    found = dispatch(messages, {**node, "prompt": "P", "addUserTurnTemplate": True}, chat=False, endpoint=STRICT)
    assert (found["system_prompt"], found["prompt"]) == ("", f"{shown}<u>{late('P', 2)}</u>")


def test_a_number_in_an_example_is_a_text() -> None:
    """``check`` accepts it, as it does in all texts of a node."""
    found = conversation([m("user", "3+3")], {"exampleTurns": [{"user": "2+2", "assistant": 4}]})
    assert m("assistant", "4") in found


@table(
    "turns, path, message",
    [
        ("{count}", "exampleTurns", "not a list"),
        ({"user": "a"}, "exampleTurns", "not a list"),
        (["a"], "exampleTurns[0]", "entry 1 of exampleTurns is not an object"),
        ([{"user": "a", "assistant": "b"}, {"user": "a"}], "exampleTurns[1]", "entry 2 .* no text under 'assistant'"),
        ([{"usr": "a", "assistant": "b"}], "exampleTurns[0]", "under 'user', but one under 'usr'.*Did you mean 'user'"),
        ([{"user": ["a"], "assistant": "b"}], "exampleTurns[0]", "no text under 'user'"),
        ([{"user": "a", "assistant": ""}], "exampleTurns[0]", "no text under 'assistant'"),
    ],
)
def test_other_shapes_are_refused(turns: Any, path: str, message: str) -> None:
    with pytest.raises(ConfigValueError, match=message) as caught:
        conversation([m("user", "a")], {"exampleTurns": turns})
    assert caught.value.json_path == path and '"assistant": "its answer"' in caught.value.expected


# -- the context window -------------------------------------------------------------------------------------------


@table(
    "node, dropped",
    [
        ({}, 0),
        ({"lateSystemPrompt": "n" * 350}, 1),
        ({"lateInstruction": "n" * 350}, 1),
        ({"exampleTurns": [{"user": "n" * 350, "assistant": "n" * 350}]}, 2),
    ],
)
@pytest.mark.parametrize("chat", [True, False])
def test_parts_count_against_the_window(node: dict[str, Any], dropped: int, chat: bool) -> None:
    messages = [m("user", f"{index}" * 350) for index in range(6)]  # 110 estimated tokens and 8 more each
    endpoint = {"maxContextTokenSize": 400 + 512 + 4 * 118, "clampPromptToContextWindow": True}
    found = dispatch(messages, {"lastMessagesToSendInsteadOfPrompt": 9, **node}, chat, endpoint)
    whole = found["prompt"] or "".join(texts(found["conversation"]))
    assert [index for index in range(6) if f"{index}" * 350 in whole] == list(range(2 + dropped, 6))


# -- what is written ----------------------------------------------------------------------------------------------


def test_nodes_without_parts_share_none() -> None:
    assert PromptParts.of({"systemPrompt": "S", "lateInstruction": "", "exampleTurns": []}, str) is NO_PARTS
    for nothing in (None, "", [], {}):
        assert PromptParts.of({"lateInstruction": "I", "exampleTurns": nothing}, str) == PromptParts("", "I")


def test_all_templates_of_a_node() -> None:
    node = {"systemPrompt": "S", **LATE, "exampleTurns": [{"user": "a", "assistant": 5}, "x", {"assistant": "b"}]}
    assert prompt_templates(node) == ["S", "", LATE["lateSystemPrompt"], LATE["lateInstruction"], "a", "5", "b"]
    assert prompt_templates({"prompt": 5, "exampleTurns": "x"}) == ["", "5"]


# -- a text that stays ---------------------------------------------------------------------------------------------


class Talk:
    """A conversation that grows, and the messages that the node sends each time; its notes are ``text``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **node: Any) -> None:
        monkeypatch.setattr("Middleware.models.process._process", Process())
        self.text, self.messages, self.outside = "N", [m("user", "1")], REAL
        self.node = {
            "systemPrompt": "S",
            "lateSystemPromptStays": True,
            "lateInstruction": "I",
            "lastMessagesToSendInsteadOfPrompt": 6,
            **node,
        }

    def sent(self, *more: str, discussion: str | None = "d", chat: bool = True) -> list[str] | str:
        for text in more:
            role = "assistant" if self.messages[-1]["role"] == "user" else "user"
            self.messages.append(m(role, text))
        request = RequestContext(outside=self.outside)
        run = RunRequest(
            request=request,
            workflow_id="w",
            workflow_name="W",
            nodes=[],
            variables={},
            folder="f",
            messages=[],
            discussion_id=discussion,
        )
        arguments = dispatch(
            self.messages,
            {**self.node, "lateSystemPrompt": self.text},
            chat=chat,
            request=request,
            run=run,
            discussion=discussion,
        )
        return texts(arguments["conversation"])[1:] if chat else str(arguments["prompt"])


def test_a_text_stays_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(monkeypatch)
    assert talk.sent() == ["u:N\n\n1\n\nI"]
    assert talk.sent("2", "3") == ["u:N\n\n1", "a:2", "u:3\n\nI"]
    assert talk.sent() == ["u:N\n\n1", "a:2", "u:3\n\nI"]
    talk.text = "M"
    assert talk.sent("4", "5") == ["u:1", "a:2", "u:3", "a:4", "u:M\n\n5\n\nI"]
    assert talk.sent("6") == ["u:1", "a:2", "u:3", "a:4", "u:M\n\n5\n\nI", "a:6"]
    talk.text = ""
    assert talk.sent("7")[-1] == "u:7\n\nI"


def test_it_moves_to_the_newest_message_if_its_own_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(monkeypatch)
    talk.sent()
    talk.messages[0] = m("user", "edited")
    assert talk.sent("2", "3") == ["u:edited", "a:2", "u:N\n\n3\n\nI"]
    # The window of six messages slides.
    assert talk.sent("4", "5", "6", "7")[-1] == "u:N\n\n7\n\nI"
    assert talk.sent("8", "9")[-1] == "u:N\n\n9\n\nI"
    del talk.messages[1:]
    assert talk.sent() == ["u:N\n\nedited\n\nI"]


@table("discussion, stays", [("d", True), (None, False), ("e", False)])
def test_it_stays_in_its_own_discussion(monkeypatch: pytest.MonkeyPatch, discussion: str | None, stays: bool) -> None:
    talk = Talk(monkeypatch)
    talk.sent()
    assert talk.sent("2", "3", discussion=discussion)[0] == ("u:N\n\n1" if stays else "u:1")


def test_it_moves_on_where_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(monkeypatch)
    talk.outside = type("Forgetful", (Outside,), {"remembers": False})()
    talk.sent()
    assert talk.sent("2", "3") == ["u:1", "a:2", "u:N\n\n3\n\nI"]


def test_it_stays_in_the_prompt_of_a_completion_back_end(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(monkeypatch)
    talk.sent(chat=False)
    prompt = str(talk.sent("2", "3", chat=False))
    assert prompt.index("N\n\n1") < prompt.index("3\n\nI") and prompt.count("N\n\n") == 1
