"""Mistakes that a newcomer makes: each is one finding, at its file and line, with what is wrong and the cure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from Tests.addons.check.config_tree import (
    API_TYPE,
    ENDPOINT,
    GENERAL,
    MCP,
    MEMORY,
    USER,
    Link,
    Mistake,
    TreeLab,
    changed,
    good_files,
    llm,
    nodes,
    put,
)
from Tests.tables import table


@dataclass(frozen=True)
class Row:
    """A mistake and the finding about it: ``file:line:column: severity: `` and the beginning of its text."""

    name: str
    mistakes: tuple[Mistake, ...]
    finding: str
    more: str = ""


def node(**keys: Any) -> Mistake:
    return nodes(llm(**keys))


def samplers(**keys: Any) -> Mistake:
    return changed(ENDPOINT, presetSamplers=keys)


WORDS = (
    Row(
        "keep_alive",
        (samplers(keep_alive="30m"),),
        f"{ENDPOINT}:7:5: warning: API type 'Chat' does not take keep_alive; not sent",
        "",
    ),
    Row(
        "thinkingMode",
        (samplers(thinkingMode="offf"), changed(API_TYPE, thinking={"mode": "bool", "field": "think"})),
        f"{ENDPOINT}:7:5: warning: 'thinkingMode' is 'offf', which is unknown. Expected: off,",
        "Did you mean 'off'?",
    ),
    Row(
        "searchTarget",
        (nodes({"type": "MemoryKeywordSearchPerformerTool", "keywords": "x", "searchTarget": "recentmemories"}),),
        f"{GENERAL}:6:7: warning: node 1: 'searchTarget' is 'recentmemories', which is unknown. Expected: "
        "CurrentConversation, RecentMemories.",
        "Did you mean 'RecentMemories'?",
    ),
    Row(
        "searchMode",
        (nodes({"type": "VectorMemorySearch", "input": "x", "searchMode": "semantics"}),),
        f"{GENERAL}:6:7: warning: node 1: 'searchMode' is 'semantics', which is unknown. Expected: keyword, ",
        "Did you mean 'semantic'?",
    ),
    Row(
        "mode",
        (nodes({"type": "DelimitedChunker", "content": "x", "delimiter": ",", "count": 1, "mode": "Head"}),),
        f"{GENERAL}:8:7: warning: node 1: 'mode' is 'Head', which is unknown. Expected: head, tail. Did you mean "
        "'head'?",
    ),
    Row(
        "outputFormat",
        (nodes({"type": "WebFetch", "url": "http://x", "outputFormat": "txt"}),),
        f"{GENERAL}:6:7: warning: node 1: 'outputFormat' is 'txt', which is unknown.",
        "Did you mean 'text'?",
    ),
    Row(
        "onError",
        (nodes({"type": "WebFetch", "url": "http://x", "onError": "ignore"}),),
        f"{GENERAL}:6:7: warning: node 1: 'onError' is 'ignore', which is unknown. Expected: raise, return.",
    ),
    Row(
        "level",
        (changed(ENDPOINT, wilmerContextEstimationLevel="generous"),),
        f"{ENDPOINT}:9:3: warning: 'wilmerContextEstimationLevel' is 'generous', which is unknown.",
    ),
    Row(
        "reasoning to the back-end",
        (changed(ENDPOINT, reasoningToBackend="exchang"),),
        f"{ENDPOINT}:9:3: error: 'reasoningToBackend' is 'exchang', which is unknown. Expected: auto, none, exchange,",
    ),
    Row(
        "transport",
        (changed(MCP, transport="studio"),),
        f"{MCP}:2:3: error: 'transport' is 'studio', which is unknown. Expected: stdio,",
    ),
    Row(
        "API type",
        (changed(API_TYPE, thinking={"mode": "boolean", "field": "think"}),),
        f"{API_TYPE}:11:5: warning: 'mode' is 'boolean', which is unknown. Expected: bool, effort, unsupported.",
    ),
)

LIMIT = "'maxResponseSizeInTokens' is"
LIMITS = (
    Row(
        "negative",
        (node(maxResponseSizeInTokens=-1),),
        f"{GENERAL}:10:7: warning: node 1 'Answer': {LIMIT} -1, which is out of range. Expected: 1 to 10000000.",
    ),
    Row(
        "absurd",
        (node(maxResponseSizeInTokens="4000000000"),),
        f"{GENERAL}:10:7: warning: node 1 'Answer': {LIMIT} '4000000000', which is out of range.",
    ),
    Row(
        "beyond the window",
        (node(maxResponseSizeInTokens=20000),),
        f"{GENERAL}:10:7: warning: node 1 'Answer': "
        f"{LIMIT} 20000, but the context window of endpoint 'Main' has 8192 tokens for the prompt and the answer "
        "together; no room is left for the prompt. Expected: a number well below 8192.",
    ),
    Row(
        "window",
        (changed(ENDPOINT, maxContextTokenSize=-4096),),
        f"{ENDPOINT}:5:3: warning: 'maxContextTokenSize' is -4096, which is out of range.",
    ),
    Row("huge window", (changed(ENDPOINT, maxContextTokenSize=10**12),), f"{ENDPOINT}:5:3: warning: "),
    Row("messages", (node(lastMessagesToSendInsteadOfPromptMaxTokenSize=-5),), f"{GENERAL}:10:7: warning: "),
    Row("variable", (node(estimatedTokensToIncludeInVariable=-5),), f"{GENERAL}:10:7: warning: "),
    Row(
        "memory",
        (changed(MEMORY, maxResponseSizeInTokens=-5),),
        f"{MEMORY}:7:3: warning: {LIMIT} -5, which is out of range; 1 is used. Expected: 1 to 10000000.",
    ),
)

ELSEWHERE = "does not exist where it is looked for; it lies in"


def linked(link: str, target: str) -> Mistake:
    """A link in place of a file, or beside the others."""
    return put(link, Link(target))


def child_named(name: str) -> Mistake:
    return nodes({"type": "CustomWorkflow", "workflowName": name})


PLACES = (
    Row(
        "child in another folder",
        (child_named("Child"),),
        f"{GENERAL}:5:7: error: node 1: workflow 'Child' {ELSEWHERE} "
        "Workflows/_common: move it, or name the folder. Looked for: Workflows/_overrides/alice/Child.json,",
    ),
    Row(
        "endpoint in another folder",
        (node(endpointName="Far"), put("Endpoints/Far.json", good_files()[ENDPOINT])),
        f"{GENERAL}:6:7: error: node 1 'Answer': endpoint 'Far' {ELSEWHERE} Endpoints: move it, or name the folder.",
    ),
    Row(
        "preset in another folder",
        (node(preset="Cold"), put("Presets/OpenAi/away/Cold.json", {})),
        f"{GENERAL}:7:7: error: node 1 'Answer': preset 'Cold' {ELSEWHERE} Presets/OpenAi/away: move it,",
    ),
    Row(
        "settings in another folder",
        (
            changed(USER, discussionIdMemoryFileWorkflowSettings="Far"),
            put("Workflows/_common/Far.json", good_files()[MEMORY]),
        ),
        f"{USER}:8:3: error: ",
        f"settings file 'Far' {ELSEWHERE} Workflows/_common:",
    ),
)
OTHER = "Workflows/alice/Other.json"


def run(name: str, **keys: Any) -> dict[str, Any]:
    return {"type": "CustomWorkflow", "workflowName": name, **keys}


def child(name: str, *all_nodes: dict[str, Any]) -> Mistake:
    return put(f"Workflows/alice/{name}.json", {"nodes": list(all_nodes)})


CALLS = (
    Row(
        "runs itself",
        (child_named("General"),),
        f"{GENERAL}:5:7: error: node 1: the workflow runs itself again and "
        "again, without a condition: alice/General -> alice/General. Expected: a ConditionalCustomWorkflow that ends",
    ),
    Row(
        "circle",
        (child_named("Other"), child("Other", run("Third")), child("Third", llm(returnToUser=False), run("General"))),
        f"{GENERAL}:5:7: error: node 1: ",
        "condition: alice/General -> alice/Other -> alice/Third -> alice/General.",
    ),
    Row(
        "answer in the child",
        (
            nodes(run("Other"), {"type": "SaveCustomFile", "filepath": "x", "content": "y", "title": "Keep"}),
            child("Other", llm()),
        ),
        f"{GENERAL}:3:5: warning: node 1: a node of the child workflow 'alice/Other' is marked to answer, but no node "
        "of this workflow is, so that node 2 'Keep' answers and the child's text goes nowhere.",
        'Expected: "returnToUser": true',
    ),
    Row(
        "input",
        (nodes(run("Other", scoped_variables=["a"])), child("Other", llm(prompt="{agent1Input} {agent2Input}"))),
        f"{OTHER}:8:7: warning: node 1 'Answer': {{agent2Input}} is never filled in: the nodes that run this workflow "
        "pass 1 at most. Expected: 'scoped_variables' with 2 entries in the node that runs it.",
    ),
    Row(
        "no input",
        (nodes(run("Other")), child("Other", llm(jinja2=True, prompt="Is {{ agent1Input }} it?"))),
        f"{OTHER}:8:7: warning: node 1 'Answer': {{agent1Input}} is never filled in: the nodes that run this workflow "
        "pass none.",
    ),
    Row(
        "input that another caller passes",
        (
            nodes(run("Other"), run("Other", scoped_variables="x")),
            child("Other", llm(prompt="{agent1Input}", returnToUser=False)),
        ),
        f"{GENERAL}:5:7: warning: node 1: {{agent1Input}} in node 1 'Answer' of workflow 'alice/Other' is not filled "
        "in when this node runs it: it passes no inputs. Expected: 'scoped_variables' with 1 entry.",
    ),
)

FINE = {
    "a condition ends the loop": (
        nodes(
            {
                "type": "ConditionalCustomWorkflow",
                "conditionalKey": "{chat_user_prompt_last_one}",
                "conditionalWorkflows": {"Default": "General"},
            }
        ),
    ),
    "a lock ends the loop": (nodes({"type": "WorkflowLock", "workflowLockId": "x"}, run("General")),),
    "the child's text is used": (
        nodes(run("Other"), llm(prompt="{agent1Output}", returnToUser=False)),
        child("Other", llm()),
    ),
    "this node answers": (nodes(run("Other", returnToUser=True), llm(returnToUser=False)), child("Other", llm())),
    "an input that may be missing": (
        nodes(run("Other")),
        child(
            "Other",
            llm(jinja2=True, prompt="{{ agent1Input | default('') }}{% if agent2Input %}{{ agent2Input }}{% endif %}"),
        ),
    ),
    "blocks of messages": (
        nodes(
            {
                "type": "ConversationChunkProcessor",
                "id": "a",
                "workflowName": "Other",
                "cursorDirectory": "x",
                "scoped_variables": ["x"],
            }
        ),
        child("Other", llm(prompt="{agent1Input} {agent2Input}")),
    ),
    "a workflow without a caller": (child("Other", llm(prompt="{agent1Input}")),),
}


@table("mistakes", list(FINE.values()), ids=list(FINE))
def test_what_is_fine(tree: TreeLab, mistakes: tuple[Mistake, ...]) -> None:
    assert [str(finding) for finding in tree.check(*mistakes)] == []


# Windows lets only some users make links.
LINKS = (
    ()
    if os.name == "nt"
    else (
        Row(
            "link to no file",
            (linked("Workflows/alice/Gone.json", "away/Gone.json"), child_named("Gone")),
            (
                "Workflows/alice/Gone.json: error: the file is a link that points to 'away/Gone.json', which does "
                "not exist."
            ),
        ),
        Row(
            "link to no folder",
            (linked("Workflows/friends", "/nowhere/at/all"),),
            "Workflows/friends: warning: the link points to '/nowhere/at/all', which does not exist",
        ),
    )
)


@table("row", (*WORDS, *LIMITS, *PLACES, *LINKS, *CALLS), ids=lambda row: row.name)
def test_named_once(tree: TreeLab, row: Row) -> None:
    found = [
        f"{finding.file}{finding.position}: {finding.severity}: {finding.text}"
        for finding in tree.check(*row.mistakes)
        # A hint for each user of a node of that type, which is right here as well.
        if "Recall nodes would find more" not in finding.message
    ]
    assert len(found) == 1, found
    assert found[0].startswith(row.finding), found
    assert row.more in found[0]
