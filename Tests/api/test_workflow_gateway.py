"""From a conversation to the workflow that answers it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.api.requests.background_tasks import limit_in
from Middleware.api.requests.messages import chat_messages
from Middleware.api.workflow_gateway import handle_user_prompt, prepared_messages
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ClientError, ConfigNotFoundError, ConfigValueError, EarlyTerminationException
from Middleware.llmapis.backend_errors import log_text
from Middleware.models.request_context import request_scope
from Middleware.services.cancellation_service import cancellation_service
from Middleware.utilities.discussions.discussion_id import extract_discussion_id, remove_discussion_id_tag
from Middleware.utilities.text_utils import replace_brackets_in_list
from Middleware.workflows.managers.workflow_manager import is_blank
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, Message, assistant, llm, reply_to, static, user

ROUTING = {
    "RECIPES": {"description": "cooking and food", "workflow": "Cook"},
    "OTHER": {"description": "anything else", "workflow": "Chat"},
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        lab = EngineLab(tmp_path, monkeypatch, backend)
        for name, text in (("_DefaultWorkflow", "default"), ("Cook", "cooked"), ("Chat", "chatted"), ("Mine", "mine")):
            lab.workflow(name, [static(text)])
        yield lab


@pytest.fixture
def routed(lab: EngineLab) -> EngineLab:
    lab.user(routingConfig="routes", categorizationWorkflow="Categorize")
    lab.write("Routing/routes", ROUTING)
    lab.workflow("Categorize", [llm("{categoriesSeparatedByOr}? {chat_user_prompt_last_one}")])
    lab.backend.responder = lambda request: reply_to(request, "**recipes**.")
    return lab


def ask(lab: EngineLab, *messages: Message, stream: bool = False, **options: Any) -> Any:
    with request_scope(lab.request):
        result = handle_user_prompt("r-1", list(messages) or [user("hi")], stream, **options)
        return "".join(chunk["token"] for chunk in result) if stream else result


# -- the order of choice -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_routing(routed: EngineLab, stream: bool) -> None:
    assert ask(routed, user("soup"), stream=stream) == "cooked"
    assert routed.prompts == ["RECIPES or OTHER? soup"]
    assert routed.backend.requests[0].json["stream"] is False
    assert routed.request.route == "RECIPES -> Cook"


@pytest.mark.parametrize("answer", ["", "no idea"])
def test_no_match_runs_the_default(routed: EngineLab, answer: str) -> None:
    routed.backend.responder = lambda request: reply_to(request, answer)
    assert ask(routed) == "default"


@table(
    ("answer", "shown"),
    [
        ("", "answered ''"),
        ("no idea", "answered 'no idea'"),
        ("  a\nb ", "answered 'a b'"),
        ("y" * 70, f"answered '{'y' * 57}...'"),
    ],
)
def test_no_match_without_a_default(routed: EngineLab, answer: str, shown: str) -> None:
    (routed.root / "Workflows" / "tester" / "_DefaultWorkflow.json").unlink()
    routed.backend.responder = lambda request: reply_to(request, answer)
    with pytest.raises(ConfigNotFoundError) as caught:
        ask(routed)
    assert str(caught.value) == (
        f"workflow 'Categorize' {shown}, which is not one of the categories of the routing 'routes' (RECIPES, OTHER), "
        "and there is no workflow '_DefaultWorkflow', which would run for every other answer. Looked for: "
        "Workflows/tester/_DefaultWorkflow.json."
    )
    # The answer may quote the conversation.
    assert log_text(caught.value, redact=True) == "ConfigNotFoundError, whose text may quote the conversation"


def test_a_match_needs_no_default(routed: EngineLab) -> None:
    (routed.root / "Workflows" / "tester" / "_DefaultWorkflow.json").unlink()
    assert ask(routed) == "cooked"


def test_no_routing_runs_the_default(lab: EngineLab) -> None:
    assert ask(lab) == "default"


@pytest.mark.parametrize("flag", [True, "true"])
def test_custom_workflow_goes_before_routing(routed: EngineLab, flag: Any) -> None:
    routed.user(
        routingConfig="routes", categorizationWorkflow="Categorize", customWorkflowOverride=flag, customWorkflow="Mine"
    )
    assert ask(routed) == "mine"
    assert routed.backend.requests == []


@pytest.mark.parametrize("flag", [False, "false", None])
def test_custom_workflow_switched_off(lab: EngineLab, flag: Any) -> None:
    lab.user(customWorkflowOverride=flag, customWorkflow="Mine")
    assert ask(lab) == "default"


def test_selected_workflow_goes_before_all(lab: EngineLab) -> None:
    lab.user(customWorkflowOverride=True, customWorkflow="Mine")
    lab.workflow("_DefaultWorkflow", [{"type": "CustomWorkflow", "workflowName": "Neighbour"}], folder="_shared/fast")
    lab.workflow("Neighbour", [static("neighbour")], folder="_shared/fast")
    lab.request.workflow_override = "fast"
    assert ask(lab) == "neighbour"


def test_selected_file(lab: EngineLab) -> None:
    lab.workflow("solo", [static("solo")], folder="_shared")
    lab.request.workflow_override = "solo"
    assert ask(lab) == "solo"


def test_selected_folder_goes_before_a_file_of_that_name(lab: EngineLab) -> None:
    lab.workflow("both", [static("file")], folder="_shared")
    lab.workflow("_DefaultWorkflow", [static("folder")], folder="_shared/both")
    lab.request.workflow_override = "both"
    assert ask(lab) == "folder"


def test_selected_workflow_that_has_gone(lab: EngineLab) -> None:
    lab.request.workflow_override = "gone"
    with pytest.raises(ClientError, match="gone"):
        ask(lab)


def test_other_shared_folder(lab: EngineLab) -> None:
    lab.user(sharedWorkflowsSubDirectoryOverride="team/flows")
    lab.workflow("_DefaultWorkflow", [static("team")], folder="team/flows/fast")
    lab.request.workflow_override = "fast"
    assert ask(lab) == "team"


def test_no_default_workflow(lab: EngineLab) -> None:
    (lab.root / "Workflows" / "tester" / "_DefaultWorkflow.json").unlink()
    lab.user()
    with pytest.raises(ConfigNotFoundError, match="Workflows/tester/_DefaultWorkflow.json"):
        ask(lab)
    lab.workflow("_DefaultWorkflow", [static("x")], folder="_shared/fast")
    with pytest.raises(ClientError, match="tester:fast"):
        ask(lab)


# -- what the runs are given -------------------------------------------------------------------------------------------


def test_categorization_sees_the_conversation_key_and_discussion_but_no_tools(routed: EngineLab) -> None:
    routed.workflow("Categorize", [llm("", allowTools=True), llm("{Discussion_Id}|{category_list}|{agent1Output}")])
    routed.workflow("Cook", [llm("", allowTools=True)])
    tools = [{"type": "function", "function": {"name": "f"}}]
    ask(routed, user("soup[DiscussionId]d1[/DiscussionId]"), tools=tools, tool_choice="auto", api_key="k")
    first, second, third = routed.backend.requests
    assert first.json["messages"] == [user("soup")] and "tools" not in first.json
    assert second.json["messages"] == [user("d1|['RECIPES', 'OTHER']|**recipes**.")]
    assert third.json["messages"] == [user("soup")]
    assert (third.json["tools"], third.json["tool_choice"]) == (tools, "auto")


def test_categorization_may_answer_with_a_tool_call(routed: EngineLab) -> None:
    def responder(request: RecordedRequest) -> Reply:
        return json_reply(
            {
                "choices": [
                    {
                        "finish_reason": "tool_calls",
                        "message": {
                            "content": "other",
                            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}],
                        },
                    }
                ]
            }
        )

    routed.backend.responder = responder
    assert ask(routed) == "chatted"


def test_category_variables_reach_children_of_the_categorization_only(routed: EngineLab) -> None:
    routed.workflow("Categorize", [{"type": "CustomWorkflow", "workflowName": "Level1"}])
    routed.workflow("Level1", [{"type": "CustomWorkflow", "workflowName": "Level2"}])
    routed.workflow("Level2", [llm("pick {categoriesSeparatedByOr}")])
    routed.workflow("Cook", [{"type": "CustomWorkflow", "workflowName": "CookChild"}])
    routed.workflow("CookChild", [static("cooked {categoriesSeparatedByOr}")])
    assert ask(routed, user("soup")) == "cooked {categoriesSeparatedByOr}"
    assert routed.prompts == ["pick RECIPES or OTHER"]


def test_category_variables_do_not_reach_the_chosen_workflow(routed: EngineLab) -> None:
    routed.workflow("Cook", [static("{category_list}")])
    assert ask(routed) == "{category_list}"


def test_usage_of_the_categorization_is_not_that_of_the_answer(routed: EngineLab) -> None:
    routed.backend.responder = lambda request: reply_to(request, "recipes", usage={"total_tokens": 99})
    ask(routed)
    assert routed.request.outcome.usage is None


@pytest.mark.parametrize("text", ["{a}", "{agent1Output}", "{", "}{", "{{x}}"])
def test_braces_of_the_conversation(lab: EngineLab, text: str) -> None:
    lab.workflow("_DefaultWorkflow", [static("secret"), llm("", systemPrompt="{chat_user_prompt_last_one}")])
    ask(lab, user(text))
    assert lab.backend.requests[0].json["messages"] == [{"role": "system", "content": text}, user(text)]


def test_the_folder_of_a_key_is_no_discussion(lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    lab.workflow("_DefaultWorkflow", [static("<{Discussion_Id}>")])
    message = user("[DiscussionId]ad165b11320bc915[/DiscussionId]hi")
    assert ask(lab, message) == "<ad165b11320bc915>"
    (tmp_path / "D" / "ad165b11320bc915" / "their chat").mkdir(parents=True)
    assert ask(lab, message) == "<>"


def test_the_callers_messages_are_not_changed(lab: EngineLab) -> None:
    messages = [user("{a}[DiscussionId]d[/DiscussionId]"), user("")]
    before = [dict(message) for message in messages]
    with request_scope(lab.request):
        handle_user_prompt("r-1", messages, False)
    assert messages == before


@pytest.mark.parametrize(
    ("contents", "seen"),
    [
        (["x[DiscussionId]d1[/DiscussionId]y"], "d1|xy"),
        (["[DiscussionId]../z[/DiscussionId]a", "b[DiscussionId]ok[/DiscussionId]"], "|b"),
        (["[DiscussionId][/DiscussionId]a"], "|a"),
        (["a"], "|a"),
        (["[DiscussionId]{a}[/DiscussionId]b"], "{a}|b"),
        (["[DiscussionId]a\nb[/DiscussionId]c"], "|[DiscussionId]a\nb[/DiscussionId]c"),
    ],
)
def test_discussion_id(lab: EngineLab, contents: list[str], seen: str) -> None:
    lab.workflow("_DefaultWorkflow", [static("{Discussion_Id}|{chat_user_prompt_last_one}")])
    assert ask(lab, *map(user, contents)) == seen


def test_the_tag_in_a_tool_result_goes_and_selects_nothing(lab: EngineLab) -> None:
    lab.workflow("_DefaultWorkflow", [llm("", systemPrompt="<{Discussion_Id}>")])
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = {"role": "tool", "tool_call_id": "c1", "content": "[DiscussionId]evil[/DiscussionId]x"}
    ask(lab, assistant(None, tool_calls=[call]), tool, user("[DiscussionId]d1[/DiscussionId]hi"))
    assert lab.backend.requests[0].json["messages"] == [
        {"role": "system", "content": "<d1>"},
        assistant("", tool_calls=[call]),
        {**tool, "content": "x"},
        user("hi"),
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_braces_reach_the_back_end_and_the_client(lab: EngineLab, stream: bool) -> None:
    lab.workflow("_DefaultWorkflow", [llm()])
    assert ask(lab, user("{a}"), stream=stream) == "<{a}>"
    assert lab.prompts == ["{a}"]


TEXTS = st.lists(
    st.sampled_from(["[DiscussionId]", "[/DiscussionId]", "[", "{", "}", "a", " ", "\n", "\u2028"]), max_size=8
).map("".join)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "tool"]), "content": TEXTS},
            optional={"images": st.sampled_from([[], ["x"]]), "tool_call_id": st.just("c1")},
        ),
        max_size=5,
    )
)
def test_one_loop_does_what_its_steps_would_do_one_by_one(messages: list[Any]) -> None:
    before = [dict(message) for message in messages]
    expected: list[Any] = [dict(message) for message in messages]
    remove_discussion_id_tag(replace_brackets_in_list(expected))
    prepared, tagged = prepared_messages(messages)
    assert prepared == [message for message in expected if not is_blank(message)]
    assert extract_discussion_id(tagged) == extract_discussion_id(messages)
    assert messages == before


@pytest.mark.parametrize("content", ["", " \n", None, "[DiscussionId]d1[/DiscussionId]"])
def test_blank_messages_are_dropped_unless_they_hold_something_else(lab: EngineLab, content: str | None) -> None:
    lab.workflow("_DefaultWorkflow", [llm(acceptImages=True)])
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    kept = [
        assistant(content, tool_calls=[call]),
        {"role": "tool", "tool_call_id": "c1", "content": content},
        {**user("x"), "content": content, "images": ["data:image/png;base64,QUJD"]},
    ]
    ask(
        lab,
        {"role": "system", "content": content},
        {**user(""), "content": content},
        assistant(content),
        {"role": "tool", "content": content},
        *kept,
    )
    sent = lab.backend.requests[0].json["messages"]
    assert [message["role"] for message in sent] == ["assistant", "tool", "user"]
    assert sent[0]["tool_calls"] == [call] and "QUJD" in str(sent[2]["content"])


# -- liveness calls of earlier answers ---------------------------------------------------------------------------------


def exchange(call_id: str, name: str = "f", content: str = "ok") -> list[Message]:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
    return [assistant("", tool_calls=[call]), {"role": "tool", "tool_call_id": call_id, "content": content}]


AGENT_CHAT = [
    user("hi"),
    *exchange("wilmer_liveness_1", content="[DiscussionId]x[/DiscussionId]"),
    *exchange("a", "look"),
    *exchange("b", "look"),
    *exchange("c", "look"),
    user("[DiscussionId]d1[/DiscussionId]go on {x}"),
]


@pytest.mark.parametrize("setting", [{"toolName": "ping"}, {"toolName": " ping ", "arguments": "none"}])
def test_liveness_calls_are_cleaned_up_first(lab: EngineLab, setting: Any) -> None:
    lab.user(livenessToolCall=setting)
    lab.workflow("_DefaultWorkflow", [llm("", systemPrompt="{Discussion_Id}", lastMessagesToSendInsteadOfPrompt=99)])
    ask(lab, *chat_messages(AGENT_CHAT))
    _, first, call, result, last = lab.backend.requests[0].json["messages"]
    assert (first, call["tool_calls"][0]["id"], last) == (user("hi"), "a", user("go on {x}"))
    assert result["content"].startswith("ok\n\n[Wilmer note:") and "3 consecutive times" in result["content"]


@pytest.mark.parametrize("setting", [None, {}, "ping", {"toolName": " "}, {"arguments": {}}])
def test_others_are_not_rewritten(lab: EngineLab, setting: Any) -> None:
    lab.user(livenessToolCall=setting)
    lab.workflow("_DefaultWorkflow", [llm(lastMessagesToSendInsteadOfPrompt=99)])
    ask(lab, *AGENT_CHAT)
    sent = lab.backend.requests[0].json["messages"]
    assert [message["role"] for message in sent] == [message["role"] for message in AGENT_CHAT]
    assert "[Wilmer" not in str(sent)


# -- what front-ends ask on their own ----------------------------------------------------------------------------------

TASK = (
    '### Task:\nGenerate a title.\n### Output:\nJSON format: { "title": "x" }\n### Chat History:\n<chat_history>\n'
    "USER: soup[DiscussionId]d1[/DiscussionId]\n</chat_history>"
)


@pytest.fixture
def with_tasks(routed: EngineLab) -> EngineLab:
    routed.user(routingConfig="routes", categorizationWorkflow="Categorize", backgroundTaskWorkflow="Small")
    routed.workflow("Small", [static("small<{Discussion_Id}>{chat_user_prompt_last_one}")])
    return routed


def test_a_background_task_runs_its_workflow(with_tasks: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert ask(with_tasks, user(TASK)) == "small<>" + TASK.replace("[DiscussionId]d1[/DiscussionId]", "")
    assert with_tasks.backend.requests == []
    assert with_tasks.request.route == "background task -> Small"
    lines = [record.getMessage() for record in caplog.records if "background task" in record.getMessage()]
    assert len(lines) == 1 and "r-1" in lines[0] and "soup" not in caplog.text


@pytest.mark.parametrize("change", [{"stream": True}, {"text": "Why? " + TASK}])
def test_other_requests_are_routed(with_tasks: EngineLab, change: dict[str, Any]) -> None:
    assert ask(with_tasks, user(change.get("text", TASK)), stream=change.get("stream", False)) == "cooked"


def test_a_background_task_goes_before_all_other_choices(with_tasks: EngineLab) -> None:
    with_tasks.user(customWorkflowOverride=True, customWorkflow="Mine", backgroundTaskWorkflow="Small")
    with_tasks.workflow("_DefaultWorkflow", [static("fast")], folder="_shared/fast")
    with_tasks.workflow("Small", [static("wrong")], folder="_shared/fast")
    with_tasks.request.workflow_override = "fast"
    assert ask(with_tasks, user(TASK)).startswith("small")
    assert ask(with_tasks, user("soup")) == "fast"


def test_a_background_task_may_use_tools_and_the_key(with_tasks: EngineLab) -> None:
    with_tasks.workflow("Small", [llm("", allowTools=True)])
    with_tasks.backend.responder = lambda request: reply_to(request, "title")
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert ask(with_tasks, user(TASK), tools=tools, api_key="k") == "title"
    assert with_tasks.backend.requests[0].json["tools"] == tools


@pytest.mark.parametrize("setting", [None, "", "  "])
def test_without_a_workflow_for_them_background_tasks_are_ordinary(lab: EngineLab, setting: Any) -> None:
    lab.user(backgroundTaskWorkflow=setting)
    lab.workflow("_DefaultWorkflow", [static("<{Discussion_Id}>")])
    assert ask(lab, user(TASK)) == "<d1>"


def test_the_workflow_for_background_tasks_may_be_an_override(with_tasks: EngineLab) -> None:
    with_tasks.user(backgroundTaskWorkflow="Small", workflowConfigsSubDirectoryOverride="mine")
    with_tasks.workflow("Small", [static("overridden")], folder="_overrides/mine")
    assert ask(with_tasks, user(TASK)) == "overridden"


def test_the_workflow_for_background_tasks_is_missing(with_tasks: EngineLab) -> None:
    with_tasks.user(backgroundTaskWorkflow="Smal")
    with pytest.raises(ConfigNotFoundError, match="'Smal'.*tester/Smal.json.*backgroundTaskWorkflow.*'Small'") as info:
        ask(with_tasks, user(TASK))
    assert str(with_tasks.root) not in str(info.value)


@pytest.mark.parametrize("setting", [3, ["Small"]])
def test_the_workflow_for_background_tasks_has_no_name(lab: EngineLab, setting: Any) -> None:
    lab.user(backgroundTaskWorkflow=setting)
    with pytest.raises(ConfigValueError, match="backgroundTaskWorkflow"):
        ask(lab, user(TASK))


def test_nodes_after_the_answer_run_for_direct_callers(lab: EngineLab) -> None:
    lab.workflow("_DefaultWorkflow", [static("now", returnToUser=True), llm("later")])
    assert ask(lab) == "now"
    assert lab.prompts == ["later"]


def test_no_output_is_an_empty_answer(lab: EngineLab) -> None:
    lab.workflow("_DefaultWorkflow", [])
    assert ask(lab) == ""
    assert ask(lab, stream=True) == ""


@pytest.mark.parametrize("stream", [False, True])
def test_a_direct_caller_is_cancelled_by_its_id(lab: EngineLab, stream: bool) -> None:
    lab.workflow("_DefaultWorkflow", [llm("hi")])
    lab.backend.responder = lambda request: Reply(never=True)

    def cancel() -> None:
        lab.backend.wait_requests(1)
        cancellation_service.request_cancellation("direct")

    threading.Thread(target=cancel, daemon=True).start()
    with contextlib.nullcontext() if stream else pytest.raises(EarlyTerminationException):
        assert not any(chunk["token"] for chunk in handle_user_prompt("direct", [user("hi")], stream))
    assert lab.backend.requests[0].wait_ended() and not cancellation_service.get_all_cancelled_requests()


TAGS, FOLLOW_UPS, QUERIES = (
    TASK.replace('"title": "x"', f'"{key}": ["x"]') for key in ("tags", "follow_ups", "queries")
)


@table(
    ("prompt", "limit", "client", "sent"),
    [
        (TASK, 1000, None, 64),
        (TAGS, 1000, None, 64),
        (FOLLOW_UPS, 1000, None, 256),
        (QUERIES, 1000, None, 1000),
        (TASK, 1000, 1000, 64),
        (FOLLOW_UPS, 1000, 100, 100),
        (QUERIES, 1000, 100, 1000),
        (TASK, 50, None, 50),
        (TASK, None, None, 64),
        (TASK, 3000, None, 2064),
    ],
    ids=[
        "title",
        "tags",
        "follow-ups",
        "others",
        "a high limit",
        "a low limit",
        "no limit of others",
        "a low node",
        "no limit",
        "a model that thinks",
    ],
)
def test_the_answer_to_a_task_is_as_long_as_it_needs_to_be(
    with_tasks: EngineLab, prompt: str, limit: int | None, client: int | None, sent: int
) -> None:
    with_tasks.workflow("Small", [llm("", maxResponseSizeInTokens=limit)])
    with_tasks.backend.requests.clear()
    with_tasks.backend.responder = lambda request: reply_to(request, "{}")
    with_tasks.request.client_limit = client
    assert ask(with_tasks, user(prompt)) == "{}"
    assert with_tasks.backend.requests[0].json["max_tokens"] == sent


@table(
    ("body", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7, "max_tokens": 5}, 7),
        ({"options": {"num_predict": 9}}, 9),
        ({"options": {"num_predict": -1}}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": "5", "options": []}, None),
    ],
)
def test_the_limit_of_the_client(body: dict[str, Any], limit: int | None) -> None:
    assert limit_in(body) == limit
