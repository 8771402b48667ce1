"""From a conversation to the workflow that answers it."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.workflow_gateway import handle_user_prompt
from Middleware.exceptions import ClientError, ConfigNotFoundError
from Middleware.models.request_context import request_scope
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply
from Tests.workflows.engine_lab import EngineLab, Message, llm, reply_to, static, user

ROUTING = {"RECIPES": {"description": "cooking and food", "workflow": "Cook"},
           "OTHER": {"description": "anything else", "workflow": "Chat"}}


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


def test_no_routing_runs_the_default(lab: EngineLab) -> None:
    assert ask(lab) == "default"


@pytest.mark.parametrize("flag", [True, "true"])
def test_custom_workflow_goes_before_routing(routed: EngineLab, flag: Any) -> None:
    routed.user(routingConfig="routes", categorizationWorkflow="Categorize", customWorkflowOverride=flag,
                customWorkflow="Mine")
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
        return json_reply({"choices": [{"finish_reason": "tool_calls", "message": {
            "content": "other", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]}}]})

    routed.backend.responder = responder
    assert ask(routed) == "chatted"


def test_category_variables_do_not_reach_the_chosen_workflow(routed: EngineLab) -> None:
    routed.workflow("Cook", [static("{category_list}")])
    assert ask(routed) == "{category_list}"


def test_usage_of_the_categorization_is_not_that_of_the_answer(routed: EngineLab) -> None:
    routed.backend.responder = lambda request: reply_to(request, "recipes", usage={"total_tokens": 99})
    ask(routed)
    assert routed.request.usage is None


@pytest.mark.parametrize("text", ["{a}", "{agent1Output}", "{", "}{", "{{x}}"])
def test_braces_of_the_conversation(lab: EngineLab, text: str) -> None:
    lab.workflow("_DefaultWorkflow", [static("secret"), llm("", systemPrompt="{chat_user_prompt_last_one}")])
    ask(lab, user(text))
    assert lab.backend.requests[0].json["messages"] == [{"role": "system", "content": text}, user(text)]


def test_the_callers_messages_are_not_changed(lab: EngineLab) -> None:
    messages = [user("{a}[DiscussionId]d[/DiscussionId]"), user("")]
    before = [dict(message) for message in messages]
    with request_scope(lab.request):
        handle_user_prompt("r-1", messages, False)
    assert messages == before


@pytest.mark.parametrize(("contents", "seen"), [
    (["x[DiscussionId]d1[/DiscussionId]y"], "d1|xy"), (["[DiscussionId]../z[/DiscussionId]a",
                                                        "b[DiscussionId]ok[/DiscussionId]"], "|b"),
    (["[DiscussionId][/DiscussionId]a"], "|a"), (["a"], "|a")])
def test_discussion_id(lab: EngineLab, contents: list[str], seen: str) -> None:
    lab.workflow("_DefaultWorkflow", [static("{Discussion_Id}|{chat_user_prompt_last_one}")])
    assert ask(lab, *map(user, contents)) == seen


def test_nodes_after_the_answer_run_for_direct_callers(lab: EngineLab) -> None:
    lab.workflow("_DefaultWorkflow", [static("now", returnToUser=True), llm("later")])
    assert ask(lab) == "now"
    assert lab.prompts == ["later"]


def test_no_output_is_an_empty_answer(lab: EngineLab) -> None:
    lab.workflow("_DefaultWorkflow", [])
    assert ask(lab) == ""
    assert ask(lab, stream=True) == ""
