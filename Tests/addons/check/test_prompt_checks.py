"""Prompts that a server reads again with each message, and models whose template needs ``alternateRoles``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from Middleware.cli.commands import all_commands
from Middleware.utilities import config_utils
from Tests.addons.check.config_tree import (
    API_TYPE,
    CHILD,
    CODING,
    ENDPOINT,
    GENERAL,
    SPARE,
    USER,
    Mistake,
    TreeLab,
    changed,
    llm,
    nodes,
    put,
    write_tree,
)
from Tests.stub_backend import Reply, StubBackend
from Tests.tables import table

Expected = tuple[str, str, str, str, str]
"""Severity, file, JSON path, part of the message, part of what is expected."""


def answer(**keys: Any) -> dict[str, Any]:
    return llm(endpointName="Main", **keys)


def workflow(*all_nodes: dict[str, Any], **variables: str) -> Mistake:
    """Other nodes for the workflow General, with variables of the file."""
    return put(GENERAL, {**variables, "nodes": list(all_nodes)})


PLAN = llm(title="Plan", prompt="Plan it.", returnToUser=False)
SUMMARY = {"type": "GetCurrentSummaryFromFile", "title": "Summary"}
LONG = "Do not forget. " * 21
RELATIVE = {"addDiscussionIdTimestampsForLLM": True, "useRelativeTimestamps": True}
TIME = "the time in 'lateSystemPrompt'"
OUTPUT = "that output in 'lateSystemPrompt'"
BLOCKS = "'messageBlockSize' in the node or the user file, such as 10"
FIRST = "text that never changes in 'systemPrompt', or at the beginning of 'prompt'"
ADVICE = re.compile("reads? .*again|which changes from call to call|is loaded between two calls")
"""What costs time only. The other findings are about prompts that a model refuses, and about names."""
FOUND: dict[str, tuple[tuple[Mistake, ...], Expected]] = {
    "time": (
        (nodes(answer(systemPrompt="It is {current_time_24h}.")),),
        ("note", GENERAL, "nodes[0].systemPrompt", "holds the time ({current_time_24h})", TIME),
    ),
    "time in a template": (
        (nodes(answer(jinja2=True, systemPrompt="{% if 1 %}It is {{ current_time_12h }}.{% endif %}")),),
        ("note", GENERAL, "nodes[0].systemPrompt", "holds the time ({current_time_12h})", TIME),
    ),
    "time since the last message": (
        (nodes(answer(systemPrompt="{time_context_summary}")),),
        ("note", GENERAL, "nodes[0].systemPrompt", "holds the time ({time_context_summary})", TIME),
    ),
    "time of a static text": (
        (
            nodes(
                {"type": "StaticResponse", "content": "Now: {current_time_12h}"}, answer(systemPrompt="{agent1Output}")
            ),
        ),
        ("note", GENERAL, "nodes[1].systemPrompt", "holds the time ({current_time_12h})", TIME),
    ),
    "time in a variable of the file": (
        (workflow(answer(systemPrompt="{clock}"), clock="It is {current_time_24h}."),),
        ("note", GENERAL, "nodes[0].systemPrompt", "holds the time ({current_time_24h})", TIME),
    ),
    "time in a variable of the user": (
        (
            nodes(answer(systemPrompt="{clock}")),
            changed(USER, userWideWorkflowVariables={"clock": "{current_time_24h}"}),
        ),
        ("note", GENERAL, "nodes[0].systemPrompt", "holds the time ({current_time_24h})", TIME),
    ),
    "plan": (
        (nodes(PLAN, answer(systemPrompt="Keep to this plan: {agent1Output}")),),
        (
            "note",
            GENERAL,
            "nodes[1].systemPrompt",
            "node 2 'Answer': the system prompt holds the output of node 1 'Plan', which changes from call to call",
            OUTPUT,
        ),
    ),
    "joined summary": (
        (
            nodes(
                SUMMARY,
                {"type": "StringConcatenator", "strings": ["So far: ", "{agent1Output}"]},
                answer(systemPrompt="{agent2Output}"),
            ),
        ),
        ("note", GENERAL, "nodes[2].systemPrompt", "the output of node 1 'Summary'", OUTPUT),
    ),
    # Each way through such nodes is one of millions.
    "summary joined with all that was joined from it": (
        (
            nodes(
                SUMMARY,
                *(
                    {"type": "StringConcatenator", "strings": [f"{{agent{one}Output}}" for one in range(1, last)]}
                    for last in range(2, 31)
                ),
                answer(systemPrompt="{agent30Output}"),
            ),
        ),
        ("note", GENERAL, "nodes[30].systemPrompt", "the output of node 1 'Summary'", OUTPUT),
    ),
    "child": (
        (
            nodes(
                {
                    "type": "CustomWorkflow",
                    "workflowName": "Child",
                    "workflowUserFolderOverride": "_common",
                    "scoped_variables": ["x"],
                    "title": "Recall",
                },
                answer(systemPrompt="{agent1Output}"),
            ),
        ),
        ("note", GENERAL, "nodes[1].systemPrompt", "the output of node 1 'Recall'", OUTPUT),
    ),
    "input of a child": (
        (
            nodes(
                PLAN,
                {
                    "type": "CustomWorkflow",
                    "workflowName": "Child",
                    "workflowUserFolderOverride": "_common",
                    "scoped_variables": ["x", "Plan: {agent1Output}"],
                    "returnToUser": True,
                },
            ),
            put(CHILD, {"nodes": [answer(systemPrompt="{agent1Input} {agent2Input}")]}),
            put(CODING, {"nodes": [answer()]}),
        ),
        ("note", CHILD, "nodes[0].systemPrompt", "the output of node 1 'Plan' of workflow 'alice/General'", OUTPUT),
    ),
    "time of a child's input": (
        (
            nodes(
                {
                    "type": "CustomWorkflow",
                    "workflowName": "Child",
                    "workflowUserFolderOverride": "_common",
                    "jinja2": True,
                    "scoped_variables": "{{ current_time_24h }}",
                    "returnToUser": True,
                }
            ),
            put(CHILD, {"nodes": [answer(systemPrompt="{agent1Input}")]}),
        ),
        ("note", CHILD, "nodes[0].systemPrompt", "the system prompt holds the time ({current_time_24h})", TIME),
    ),
    "input that a child passes back": (
        (
            nodes(
                PLAN,
                {
                    "type": "CustomWorkflow",
                    "workflowName": "Child",
                    "workflowUserFolderOverride": "_common",
                    "scoped_variables": ["{agent1Output}"],
                    "title": "Join",
                },
                answer(systemPrompt="{agent2Output}"),
            ),
            put(CHILD, {"nodes": [{"type": "StaticResponse", "content": "Plan: {agent1Input}"}]}),
        ),
        ("note", GENERAL, "nodes[2].systemPrompt", "the output of node 2 'Join'", OUTPUT),
    ),
    "plan in an example": (
        (
            nodes(
                PLAN,
                answer(exampleTurns=[{"user": "a", "assistant": "b"}, {"user": "{agent1Output}", "assistant": "c"}]),
            ),
        ),
        ("note", GENERAL, "nodes[1].exampleTurns", "an example holds the output of node 1 'Plan'", OUTPUT),
    ),
    "time in an example": (
        (nodes(answer(exampleTurns=[{"user": "What time is it?", "assistant": "{current_time_24h}"}])),),
        ("note", GENERAL, "nodes[0].exampleTurns", "an example holds the time ({current_time_24h})", TIME),
    ),
    "examples behind the conversation": (
        (
            nodes(
                answer(
                    exampleTurns=[
                        {"user": "{chat_user_prompt_last_five}", "assistant": "b"},
                        {"user": LONG, "assistant": "c"},
                    ],
                    prompt="Hello",
                )
            ),
        ),
        (
            "note",
            GENERAL,
            "nodes[0].exampleTurns",
            "322 characters that never change stand behind {chat_user_prompt_last_five}",
            "examples that never change, or that one as the last",
        ),
    ),
    "examples behind a plan": (
        (nodes(PLAN, answer(exampleTurns=[{"user": "{agent1Output}", "assistant": LONG}], prompt="Hello")),),
        (
            "note",
            GENERAL,
            "nodes[1].exampleTurns",
            "320 characters that never change stand behind {agent1Output}",
            "as the last",
        ),
    ),
    "summary for a model with no other work": (
        (nodes(SUMMARY, llm(endpointName="Spare", systemPrompt="{agent1Output}")),),
        ("note", GENERAL, "nodes[1].systemPrompt", "the output of node 1 'Summary'", OUTPUT),
    ),
    "count": (
        (nodes(answer(lastMessagesToSendInsteadOfPrompt=6)),),
        ("note", GENERAL, "nodes[0].lastMessagesToSendInsteadOfPrompt", "with more than 6 messages", BLOCKS),
    ),
    "count as text": (
        (nodes(answer(lastMessagesToSendInsteadOfPrompt="21", messageBlockSize=1)), changed(USER, messageBlockSize=10)),
        ("note", GENERAL, "nodes[0].lastMessagesToSendInsteadOfPrompt", "with more than 21 messages", BLOCKS),
    ),
    "token limit": (
        (nodes(answer(lastMessagesToSendInsteadOfPromptMaxTokenSize=4000)),),
        (
            "note",
            GENERAL,
            "nodes[0].lastMessagesToSendInsteadOfPromptMaxTokenSize",
            "with more than 4000 tokens",
            BLOCKS,
        ),
    ),
    "token limit of a node": (
        (
            nodes(
                {"type": "StaticResponse", "content": "4000"},
                answer(
                    lastMessagesToSendInsteadOfPrompt=100000,
                    lastMessagesToSendInsteadOfPromptMaxTokenSize="{agent1Output}",
                ),
            ),
        ),
        (
            "note",
            GENERAL,
            "nodes[1].lastMessagesToSendInsteadOfPromptMaxTokenSize",
            "in a conversation with more tokens than {agent1Output}",
            BLOCKS,
        ),
    ),
    "rules behind the conversation": (
        (nodes(answer(prompt="{chat_user_prompt_last_five}" + LONG)),),
        (
            "note",
            GENERAL,
            "nodes[0].prompt",
            "315 characters that never change stand behind {chat_user_prompt_last_five}",
            FIRST,
        ),
    ),
    "rules of the file behind the conversation": (
        (workflow(answer(prompt="{templated_user_prompt_n_messages} {rules}"), rules=LONG),),
        ("note", GENERAL, "nodes[0].prompt", "316 characters that never change", FIRST),
    ),
    "rules behind messages in a template": (
        (nodes(answer(jinja2=True, prompt="{% for one in messages %}{{ one.content }}{% endfor %}{# x #}" + LONG)),),
        ("note", GENERAL, "nodes[0].prompt", "315 characters that never change stand behind {messages}", FIRST),
    ),
    "different beginnings on one place": (
        (
            nodes(
                llm(title="Plan", prompt="x", systemPrompt="You plan.", returnToUser=False),
                llm(title="Draft", prompt="y", systemPrompt="You plan.", returnToUser=False),
                answer(systemPrompt="You answer."),
                answer(systemPrompt="You check.", returnToUser=False),
            ),
            changed(ENDPOINT, parallelCalls=1),
        ),
        (
            "note",
            GENERAL,
            "nodes[2].systemPrompt",
            "node 3 'Answer': the node begins with another system prompt than node 1 'Plan'",
            "'lateInstruction'",
        ),
    ),
    "models alternate": (
        (
            nodes(
                llm(title="Plan", prompt="x", returnToUser=False),
                llm(title="Look", prompt="y", endpointName="Spare", returnToUser=False),
                answer(),
            ),
            changed(ENDPOINT, swapGroup="gpu"),
            changed(SPARE, swapGroup="gpu", modelNameToSendToAPI="n"),
        ),
        (
            "note",
            GENERAL,
            "nodes[1].endpointName",
            "node 2 'Look': the model of endpoint 'Spare' is loaded between two "
            "calls of endpoint 'Main', which has the same memory ('swapGroup' 'gpu')",
            "'swapStandIn' in the file of",
        ),
    ),
    "stand-in outside the group": (
        (changed(SPARE, swapGroup="gpu", swapStandIn="Main"),),
        ("error", SPARE, "swapStandIn", "endpoint 'Main' is not in the same group", "the 'swapGroup' 'gpu'"),
    ),
    "stand-in in another group": (
        (changed(ENDPOINT, swapGroup="my card"), changed(SPARE, swapGroup="my crad", swapStandIn="Main")),
        ("error", SPARE, "swapStandIn", "endpoint 'Main' is not in the same group but in 'my card'", "'my crad'"),
    ),
    "group that looks like a typo": (
        (changed(ENDPOINT, swapGroup="my card"), changed(SPARE, swapGroup="my crad")),
        (
            "note",
            SPARE,
            "swapGroup",
            "no other endpoint is in 'my crad', so that the key has no effect; there is a group 'my card'",
            "",
        ),
    ),
    "stand-in without a group": (
        (changed(SPARE, swapStandIn="Main"),),
        ("error", SPARE, "swapStandIn", "endpoint 'Main' is not in the same group", "which has none"),
    ),
    "stand-in of itself": (
        (changed(SPARE, swapGroup="gpu", swapStandIn="Spare"),),
        ("error", SPARE, "swapStandIn", "the endpoint names itself", "another endpoint with the 'swapGroup' 'gpu'"),
    ),
    "stand-ins in a circle": (
        (changed(ENDPOINT, swapGroup="gpu", swapStandIn="Spare"), changed(SPARE, swapGroup="gpu", swapStandIn="Main")),
        ("error", ENDPOINT, "swapStandIn", "stand in for each other: Main -> Spare -> Main", "a last endpoint"),
    ),
    "stand-in that makes embeddings": (
        (
            put(
                "Endpoints/home/Vectors.json",
                {"endpoint": "http://127.0.0.1:5003", "apiTypeConfigFileName": "Vectors", "swapGroup": "gpu"},
            ),
            changed(SPARE, swapGroup="gpu", swapStandIn="Vectors"),
        ),
        ("error", SPARE, "swapStandIn", "endpoint 'Vectors' makes embeddings", "endpoints that write text"),
    ),
    "stand-in that does not exist": (
        (changed(SPARE, swapGroup="gpu", swapStandIn="Mian"),),
        ("error", SPARE, "swapStandIn", "endpoint 'Mian' does not exist in Endpoints/home", ""),
    ),
    "relative times": (
        (nodes(answer(**RELATIVE)),),
        (
            "note",
            GENERAL,
            "nodes[0].useRelativeTimestamps",
            "node 1 'Answer': the messages say how long ago",
            "without 'useRelativeTimestamps'",
        ),
    ),
    "odd block size": (
        (nodes(answer(messageBlockSize=7)),),
        (
            "note",
            GENERAL,
            "nodes[0].messageBlockSize",
            "node 1 'Answer': 'messageBlockSize' is 7, which is odd",
            "an even number, such as 8",
        ),
    ),
    "odd block size as text": (
        (nodes(answer(messageBlockSize="11")),),
        ("note", GENERAL, "nodes[0].messageBlockSize", "is 11, which is odd", "such as 12"),
    ),
    "odd block size of the user": (
        (changed(USER, messageBlockSize=9),),
        ("note", USER, "messageBlockSize", "'messageBlockSize' is 9, which is odd", "such as 10"),
    ),
    "text before the newest message": (
        (changed(ENDPOINT, addTextToStartOfPrompt=True, textToAddToStartOfPrompt="/no_think "),),
        ("note", ENDPOINT, "addTextToStartOfPrompt", "before the newest message of the user only", "'lateInstruction'"),
    ),
    "a model of Gemma's": (
        (changed(ENDPOINT, modelNameToSendToAPI="Gemma-3-12b"),),
        (
            "note",
            ENDPOINT,
            "modelNameToSendToAPI",
            "accepts only users and assistants in turn",
            "'alternateRoles': true",
        ),
    ),
    "a model of Mistral's": (
        (changed(ENDPOINT, modelNameToSendToAPI="mistral-small", alternateRoles=False),),
        ("note", ENDPOINT, "modelNameToSendToAPI", "two messages of the user in a row", "'alternateRoles': true"),
    ),
}

FINE: dict[str, tuple[Mistake, ...]] = {
    "date": (nodes(answer(systemPrompt="Today is {todays_date_pretty}, {current_day_of_week}.")),),
    "time at the end": (nodes(answer(lateSystemPrompt="{current_time_24h}")),),
    "time in front of a prompt": (nodes(answer(systemPrompt="{current_time_24h}", prompt="Hello")),),
    "plan at the end": (nodes(PLAN, answer(lateSystemPrompt="{agent1Output}")),),
    "plan in front of a prompt": (nodes(PLAN, answer(systemPrompt="{agent1Output}", prompt="Hello")),),
    "static text": (nodes({"type": "StaticResponse", "content": "Be kind."}, answer(systemPrompt="{agent1Output}")),),
    "constant input of a child": (
        nodes(
            {
                "type": "CustomWorkflow",
                "workflowName": "Child",
                "workflowUserFolderOverride": "_common",
                "scoped_variables": ["Be kind."],
                "returnToUser": True,
            }
        ),
        put(CHILD, {"nodes": [answer(systemPrompt="{agent1Input}")]}),
    ),
    "child that passes a constant back, run twice": (
        nodes(
            PLAN,
            {
                "type": "CustomWorkflow",
                "workflowName": "Child",
                "workflowUserFolderOverride": "_common",
                "scoped_variables": ["{agent1Output}"],
            },
            {
                "type": "CustomWorkflow",
                "workflowName": "Child",
                "workflowUserFolderOverride": "_common",
                "scoped_variables": ["Be kind."],
            },
            answer(systemPrompt="{agent3Output}"),
        ),
        put(CHILD, {"nodes": [{"type": "StaticResponse", "content": "Rule: {agent1Input}"}]}),
    ),
    "examples that stay": (workflow(answer(exampleTurns=[{"user": "Hi {x}", "assistant": LONG}]), x="there"),),
    "plan in the last example": (
        nodes(PLAN, answer(exampleTurns=[{"user": LONG, "assistant": "{agent1Output}"}], prompt="Hello")),
    ),
    "persona of a file": (
        nodes({"type": "GetCustomFile", "filepath": "x", "title": "Persona"}, answer(systemPrompt="{agent1Output}")),
    ),
    "a node that comes later": (workflow(answer(systemPrompt="{x}"), x="{agent2Output}"),),
    "all messages": (nodes(answer(lastMessagesToSendInsteadOfPrompt=100000)),),
    "few messages": (nodes(answer(lastMessagesToSendInsteadOfPrompt=5)),),
    "count of a node": (
        nodes({"type": "StaticResponse", "content": "9"}, answer(lastMessagesToSendInsteadOfPrompt="{agent1Output}")),
    ),
    "blocks of the user": (nodes(answer(lastMessagesToSendInsteadOfPrompt=21)), changed(USER, messageBlockSize=10)),
    "blocks of the node": (nodes(answer(lastMessagesToSendInsteadOfPrompt=21, messageBlockSize=10)),),
    "count without messages": (nodes(answer(lastMessagesToSendInsteadOfPrompt=21, prompt="Hello")),),
    "rules before the conversation": (nodes(answer(prompt=LONG + "{chat_user_prompt_last_five}")),),
    "a few words behind the conversation": (nodes(answer(prompt="{chat_user_prompt_last_five}" + LONG[:300])),),
    "rules at times": (
        nodes(
            answer(jinja2=True, prompt="{{ chat_user_prompt_last_five }}{% if agent1Input %}" + LONG + "{% endif %}")
        ),
    ),
    "rules behind something else": (nodes(PLAN, answer(prompt="{agent1Output} {chat_system_prompt}" + LONG)),),
    "one beginning": (
        nodes(llm(title="Plan", prompt="x", systemPrompt="S", returnToUser=False), answer(systemPrompt="S")),
        changed(ENDPOINT, parallelCalls=1),
    ),
    "different beginnings on two places": (
        nodes(llm(prompt="x", systemPrompt="A", returnToUser=False), answer(systemPrompt="B")),
        changed(ENDPOINT, parallelCalls=2),
    ),
    "different beginnings of two models": (
        nodes(llm(prompt="x", systemPrompt="A", endpointName="Spare", returnToUser=False), answer(systemPrompt="B")),
        changed(ENDPOINT, parallelCalls=1),
        changed(SPARE, parallelCalls=1, endpoint="http://127.0.0.1:5001", modelNameToSendToAPI="n"),
    ),
    "models one after the other": (
        nodes(
            llm(prompt="y", endpointName="Spare", returnToUser=False), llm(title="Plan", returnToUser=False), answer()
        ),
        changed(ENDPOINT, swapGroup="gpu"),
        changed(SPARE, swapGroup="gpu", modelNameToSendToAPI="n"),
    ),
    "a stand-in": (
        nodes(
            llm(title="Plan", prompt="x", returnToUser=False),
            llm(title="Look", prompt="y", endpointName="Spare", returnToUser=False),
            answer(),
        ),
        changed(ENDPOINT, swapGroup="gpu"),
        changed(SPARE, swapGroup="gpu", modelNameToSendToAPI="n", swapStandIn="Main"),
    ),
    "models with memory of their own": (
        nodes(
            llm(title="Plan", prompt="x", returnToUser=False),
            llm(title="Look", prompt="y", endpointName="Spare", returnToUser=False),
            answer(),
        ),
        changed(ENDPOINT, swapGroup="gpu"),
        changed(SPARE, swapGroup="other", modelNameToSendToAPI="n"),
    ),
    "groups with numbers": (
        changed(ENDPOINT, swapGroup="graphics card 0"),
        changed(SPARE, swapGroup="graphics card 1"),
    ),
    "times that are not shown": (nodes(answer(useRelativeTimestamps=True)),),
    "relative times without messages": (nodes(answer(prompt="Hello", **RELATIVE)),),
    "even block size": (nodes(answer(messageBlockSize=10)), changed(USER, messageBlockSize=1)),
    "block size of a caller": (put(CHILD, {"nodes": [answer(messageBlockSize="{agent1Input}")]}),),
    "text before the prompt of a completion type": (
        changed(API_TYPE, type="openAIV1Completion"),
        changed(ENDPOINT, addTextToStartOfPrompt=True, textToAddToStartOfPrompt="/no_think "),
    ),
    "no text before the newest message": (changed(ENDPOINT, addTextToStartOfPrompt=True),),
    "roles that alternate": (changed(ENDPOINT, modelNameToSendToAPI="gemma3:12b", alternateRoles=True),),
    "embeddings of Gemma's": (
        changed(SPARE, apiTypeConfigFileName="Vectors", modelNameToSendToAPI="embeddinggemma", presetSamplers={}),
    ),
}


@table(("mistakes", "expected"), list(FOUND.values()), ids=list(FOUND))
def test_what_is_found(tree: TreeLab, mistakes: tuple[Mistake, ...], expected: Expected) -> None:
    found = tree.check(*mistakes)
    assert [(one.severity, one.file, one.json_path) for one in found] == [expected[:3]], found
    assert found[0].is_advice == bool(ADVICE.search(found[0].message)), found
    assert found[0].line is not None
    assert expected[3] in found[0].message and expected[4] in found[0].expected, found


@table("mistakes", list(FINE.values()), ids=list(FINE))
def test_what_is_fine(tree: TreeLab, mistakes: tuple[Mistake, ...]) -> None:
    assert [str(finding) for finding in tree.check(*mistakes)] == []


# -- what only a server knows ----------------------------------------------------------------------------------------

STRICT = "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"


@table(
    ("type_", "props", "endpoint", "notes"),
    [
        ("openAIChatCompletion", {"chat_template": STRICT}, {}, 1),
        ("openAIV1Completion", {"chat_template": STRICT}, {}, 1),
        ("openAIChatCompletion", {"chat_template": STRICT}, {"apiKey": "hunter2"}, 1),
        ("openAIChatCompletion", {"chat_template": STRICT}, {"alternateRoles": True}, 0),
        ("openAIChatCompletion", {"chat_template": "{{ messages }}"}, {}, 0),
        ("openAIChatCompletion", {"chat_template": 5}, {}, 0),
        ("openAIChatCompletion", [STRICT], {}, 0),
        ("openAIChatCompletion", None, {}, 0),
        ("ollamaApiChat", {"chat_template": STRICT}, {}, 0),
        # The name of the model says so already, and that is one note.
        ("openAIChatCompletion", {"chat_template": STRICT}, {"modelNameToSendToAPI": "gemma"}, 1),
    ],
)
def test_the_template_that_a_server_has_loaded(
    type_: str, props: Any, endpoint: dict[str, Any], notes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def respond(request: Any) -> Reply:
        if request.path != "/props" or props is None:
            return Reply(status=404)
        if "apiKey" in endpoint and request.headers.get("authorization") != "Bearer hunter2":
            return Reply(status=401, body=b"{}")
        return Reply(body=json.dumps(props).encode())

    with StubBackend() as server:
        server.responder = respond
        again = put("Endpoints/home/Again.json", {"endpoint": server.url, "apiTypeConfigFileName": "Chat", **endpoint})
        write_tree(tmp_path, changed(ENDPOINT, endpoint=server.url, **endpoint), changed(API_TYPE, type=type_), again)
        config_utils.reset_config_store()
        all_commands()["check"].run(["--PublicDirectory", str(tmp_path), "--online", "--json"])
        found = [one for one in json.loads(capsys.readouterr().out)["findings"] if "in turn" in one["message"]]
        # Both files name the server, which is asked once, and once more with its key.
        asked = [request.headers.get("authorization") for request in server.requests if request.path == "/props"]
        assert len(asked) <= 1 or asked == [None, "Bearer hunter2"]
    assert [one["severity"] for one in found] == ["note"] * 2 * notes and "hunter2" not in str(found)
    assert all(one["expected"].startswith("'alternateRoles': true") and one["line"] for one in found)
