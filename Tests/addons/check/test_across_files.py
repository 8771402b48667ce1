"""Mistakes that need two files to be seen: inputs that nobody passes, categories that nobody names, tests of nobody."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from Middleware.cli.commands import all_commands
from Middleware.utilities import config_utils
from Tests.addons.check.config_tree import (
    API_TYPE,
    CHILD,
    CODING,
    GENERAL,
    USER,
    Mistake,
    TreeLab,
    changed,
    good_files,
    llm,
    nodes,
    put,
)
from Tests.tables import table

CATEGORIZE, DEFAULT, GRAND = (
    "Workflows/alice/Categorize.json",
    "Workflows/alice/_DefaultWorkflow.json",
    "Workflows/_common/Grand.json",
)
TEST, STRAY = "Workflows/alice/General.test.json", "Workflows/alice/Gone.test.json"


def runs(name: str, folder: str = "_common", **keys: Any) -> dict[str, Any]:
    return {
        "title": "Run",
        "type": "CustomWorkflow",
        "workflowName": name,
        "workflowUserFolderOverride": folder,
        "returnToUser": True,
        **keys,
    }


def file(path: str, *all_nodes: dict[str, Any], **variables: Any) -> Mistake:
    return put(path, {**variables, "nodes": list(all_nodes)})


def suite(path: str = TEST, **keys: Any) -> Mistake:
    return put(path, {"tests": [{"name": "It answers", "messages": [{"role": "user", "content": "Hi"}], **keys}]})


def chooser(**keys: Any) -> Mistake:
    return file(CATEGORIZE, llm(**keys))


@dataclass(frozen=True)
class Row:
    """A configuration with one mistake. ``more``: part of the text of its finding, which is in ``file``."""

    name: str
    mistakes: tuple[Mistake, ...]
    file: str
    path: str
    more: str
    severity: str = "warning"


BY = "{chat_user_prompt_last_one}"
NONE = "is never filled in: the nodes that run this workflow pass none"
SOME = "is not filled in when this node runs it: it passes no inputs"
NOT_BY_REQUEST = "{agent1Input} is never filled in where a request runs this workflow"
UNGUIDED = "tells the LLM what the categories are (CODE, OTHER, UNKNOWN)"
NOWHERE = "neither 'General' nor a workflow that it runs has a node 'Run'"
ROWS = (
    # -- inputs
    Row("a parent passes nothing", (file(CODING, runs("Child")),), CHILD, "nodes[0].prompt", "{agent1Input} " + NONE),
    Row(
        "a parent passes fewer",
        (file(CODING, runs("Child", scoped_variables=["a"])), file(CHILD, llm(prompt="{agent1Input} {agent2Input}"))),
        CHILD,
        "nodes[0].prompt",
        "{agent2Input} is never filled in: the nodes that run this workflow pass 1 at most",
    ),
    Row(
        "a grandchild",
        (file(CHILD, runs("Grand", scoped_variables=["{agent1Input}"])), file(GRAND, llm(prompt="{agent2Input}"))),
        GRAND,
        "nodes[0].prompt",
        "{agent2Input} is never filled in: the nodes that run this workflow pass 1 at most",
    ),
    Row(
        "what is handed on was never passed",
        (
            file(CODING, runs("Child")),
            file(CHILD, runs("Grand", scoped_variables=["{agent1Input}"])),
            file(GRAND, llm(prompt="{agent1Input}")),
        ),
        CHILD,
        "nodes[0].scoped_variables[0]",
        "{agent1Input} " + NONE,
    ),
    Row(
        "a template",
        (file(CODING, runs("Child")), file(CHILD, llm(jinja2=True, prompt="{{ agent1Input }}"))),
        CHILD,
        "nodes[0].prompt",
        NONE,
    ),
    Row(
        "a variable of the file",
        (file(CODING, runs("Child")), file(CHILD, llm(prompt="{x}"), x="{agent1Input}")),
        CHILD,
        "nodes[0].prompt",
        NONE,
    ),
    Row("only one of two parents passes it", (nodes(runs("Child")),), GENERAL, "nodes[0].workflowName", SOME),
    Row(
        "one of them passes fewer",
        (
            file(CODING, runs("Child", scoped_variables=["x", "y", "z"])),
            nodes(runs("Child", scoped_variables=["x"])),
            file(CHILD, llm(prompt="{agent1Input} {agent2Input} {agent3Input}")),
        ),
        GENERAL,
        "nodes[0].scoped_variables",
        "{agent2Input}, {agent3Input} in node 1 'Answer' of workflow '_common/Child' are not filled in when this node "
        "runs it: it passes 1 input. Expected: 'scoped_variables' with 3 entries.",
    ),
    Row(
        "a value that chooses",
        (
            nodes(
                {
                    **runs("x"),
                    "type": "ConditionalCustomWorkflow",
                    "conditionalKey": BY,
                    "conditionalWorkflows": {"A": "Child", "Default": "Grand"},
                }
            ),
            file(GRAND, llm()),
        ),
        GENERAL,
        "nodes[0].conditionalWorkflows.A",
        SOME,
    ),
    Row(
        "only the other prompt is replaced",
        (nodes(runs("Child", systemPromptOverride="Be kind.")),),
        GENERAL,
        "nodes[0].workflowName",
        SOME,
    ),
    Row("a workflow of the routing", (nodes(llm(prompt="{agent1Input}")),), GENERAL, "nodes[0].prompt", NOT_BY_REQUEST),
    Row(
        "a default workflow", (file(DEFAULT, llm(prompt="{agent1Input}")),), DEFAULT, "nodes[0].prompt", NOT_BY_REQUEST
    ),
    Row(
        "a workflow that always runs",
        (
            changed(USER, customWorkflowOverride=True, customWorkflow="Own"),
            file("Workflows/alice/Own.json", llm(prompt="{agent1Input}")),
        ),
        "Workflows/alice/Own.json",
        "nodes[0].prompt",
        NOT_BY_REQUEST,
    ),
    Row(
        "a helper of memories",
        (file("Workflows/alice/Remember.json", llm(prompt="{agent1Input}")),),
        "Workflows/alice/Remember.json",
        "nodes[0].prompt",
        "where a memory node runs this workflow",
    ),
    # -- categories
    Row("no category", (chooser(prompt="{chat_user_prompt_last_one}"),), CATEGORIZE, "nodes[0].prompt", UNGUIDED),
    Row(
        "other words for them",
        (chooser(systemPrompt="Say PROGRAM or TALK."),),
        CATEGORIZE,
        "nodes[0].systemPrompt",
        UNGUIDED,
    ),
    Row(
        "only the one for the rest",
        (chooser(prompt="Say UNKNOWN if you do not know."),),
        CATEGORIZE,
        "nodes[0].prompt",
        UNGUIDED,
    ),
    Row(
        "a child that is told nothing",
        (file(CATEGORIZE, runs("Grand")), file(GRAND, llm(prompt="Choose."))),
        CATEGORIZE,
        "nodes[0]",
        UNGUIDED,
    ),
    Row(
        "the default workflow chooses",
        (changed(USER, categorizationWorkflow="_DefaultWorkflow"), file(DEFAULT, llm(prompt="Hm?"))),
        DEFAULT,
        "nodes[0].prompt",
        UNGUIDED,
    ),
    # -- tests
    Row(
        "unknown key",
        (suite(replys={}),),
        TEST,
        "tests[0].replys",
        "the key 'replys' is unknown and has no effect",
        "error",
    ),
    Row(
        "no such node",
        (suite(replies={"Answr": "x"}),),
        TEST,
        "tests[0].replies.Answr",
        "no workflow has a node 'Answr'. Expected: the title of a node, or Workflow/title. Did you mean 'Answer'?",
        "error",
    ),
    Row(
        "a node of another workflow",
        (suite(replies={"Run": "x"}), file(CODING, runs("Child", scoped_variables=["x"]))),
        TEST,
        "tests[0].replies.Run",
        NOWHERE,
    ),
    Row(
        "a rule for it",
        (suite(replies=[{"node": "Run", "reply": "x"}]), file(CODING, runs("Child", scoped_variables=["x"]))),
        TEST,
        "tests[0].replies[0].node",
        NOWHERE,
    ),
    Row(
        "an expectation of it",
        (suite(expect={"order": ["Coding/Run"]}), file(CODING, runs("Child", scoped_variables=["x"]))),
        TEST,
        "tests[0].expect.order[0]",
        "neither 'General' nor a workflow that it runs has a node 'Coding/Run'",
    ),
    Row(
        "a request that leads elsewhere",
        (
            suite(entry="request", replies={"Far": "x"}),
            file("Workflows/_common/Alone.json", llm(title="Far", endpointName="{x}", preset="", prompt="x"), x="Main"),
        ),
        TEST,
        "tests[0].replies.Far",
        "no workflow that a request can lead to has a node 'Far'",
    ),
    Row("a test of nothing", (suite(STRAY),), STRAY, "", "there is no workflow 'Gone.json' next to this file", "error"),
    # -- presets
    Row(
        "no folder of presets",
        (put("ApiTypes/New.json", {**good_files()[API_TYPE], "presetType": "NewServer"}),),
        "ApiTypes/New.json",
        "presetType",
        "there is no folder 'NewServer' in Presets, so that endpoints of this API "
        "type have no presets. Expected: the name of a folder in Presets.",
    ),
    Row(
        "a misspelt folder of presets",
        (put("ApiTypes/New.json", {**good_files()[API_TYPE], "presetType": "OpenAy"}),),
        "ApiTypes/New.json",
        "presetType",
        "Did you mean 'OpenAi'?",
    ),
    Row(
        "no folder for an unused type of embeddings",
        (changed("ApiTypes/Vectors.json", presetType="x"),),
        "ApiTypes/Vectors.json",
        "presetType",
        "there is no folder 'x' in Presets",
    ),
)

FINE = {
    "a key of the file in place of an input": (
        file(CODING, runs("Child")),
        file(CHILD, llm(prompt="{agent1Input}"), agent1Input="nothing"),
    ),
    "the prompt is replaced": (file(CODING, runs("Child", firstNodePromptOverride="Hi")),),
    "the prompts of a value are replaced": (
        nodes(
            {
                **runs("x"),
                "type": "ConditionalCustomWorkflow",
                "conditionalKey": BY,
                "conditionalWorkflows": {"Default": "Child"},
                "routeOverrides": {"Default": {"promptOverride": "Hi"}},
            }
        ),
    ),
    "a workflow that no request runs": (put("Workflows/alice/Spare.json", {"nodes": [llm(prompt="{agent1Input}")]}),),
    "names of categories": (chooser(systemPrompt="Is it code, or something else?"),),
    "a list in a template": (chooser(jinja2=True, prompt="{% for one in category_list %}{{ one }} {% endfor %}"),),
    "a list in an earlier node": (
        file(
            CATEGORIZE,
            llm(prompt="{categoryNameBulletpoints}", returnToUser=False),
            llm(prompt="Which one? {agent1Output}"),
        ),
    ),
    "a list in a child": (file(CATEGORIZE, runs("Grand")), file(GRAND, llm(prompt="{categoriesSeparatedByOr}"))),
    "a list in a variable of the user": (
        chooser(prompt="{x}"),
        changed(USER, userWideWorkflowVariables={"x": "CODE or OTHER"}),
    ),
    "choices": (chooser(prompt="Choose.", answerChoices=["CODE", "OTHER"]),),
    "a schema": (chooser(prompt="Choose.", structuredOutputFile="Person"),),
    "no LLM chooses": (file(CATEGORIZE, {"type": "StaticResponse", "content": "CODE"}),),
    "a text file": (file(CATEGORIZE, {"type": "GetCustomFile", "filepath": "x"}, llm(prompt="{agent1Output}")),),
    "the routing is not in use": (
        chooser(prompt="x"),
        changed(USER, customWorkflowOverride=True, customWorkflow="General"),
    ),
    "a test": (
        suite(
            replies={"Think": "x", "Answer": "y", "General/Answer": "z"}, expect={"order": ["General/Think", "Answer"]}
        ),
    ),
    "a test of a request": (suite(entry="request", replies=[{"node": "Categorize/Answer", "reply": "x"}]),),
    "a test with a node of a child": (suite("Workflows/alice/Coding.test.json", replies={"Child/Answer": "x"}),),
    "spelled differently": (changed(API_TYPE, presetType="OPENAI"),),
}


def found_by(
    tree: TreeLab, capsys: pytest.CaptureFixture[str], *mistakes: Mistake, word: str = ""
) -> list[dict[str, Any]]:
    """Return what the command says, of everything or of one user."""
    tree.result(*mistakes)
    config_utils.reset_config_store()
    all_commands()["check"].run(["--json", "--PublicDirectory", str(tree.public), *filter(None, [word])])
    findings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
    return [one for one in findings if "upper and lower case" not in one["message"]]


@table("row", ROWS, ids=lambda row: row.name)
def test_found(tree: TreeLab, capsys: pytest.CaptureFixture[str], row: Row) -> None:
    """Once, at the place where it is mended, by the check of everything and by that of the user."""
    for word in ("", "alice"):
        # What no user reaches is part of the check of everything only.
        if word and row.file.startswith("ApiTypes"):
            continue
        found = found_by(tree, capsys, *row.mistakes, word=word)
        assert [(one["severity"], one["file"], one["jsonPath"]) for one in found] == [
            (row.severity, row.file, row.path)
        ], (word, found)
        text = f"{found[0]['message']}. Expected: {found[0]['expected']}. Did you mean '{found[0]['suggestion']}'?"
        assert row.more in text, (word, found)
        assert found[0]["line"], (word, found)
        tree.next_row()


@table("mistakes", list(FINE.values()), ids=list(FINE))
def test_fine(tree: TreeLab, capsys: pytest.CaptureFixture[str], mistakes: tuple[Mistake, ...]) -> None:
    for word in ("", "alice"):
        assert found_by(tree, capsys, *mistakes, word=word) == [], word
        tree.next_row()


def test_a_missing_folder_of_presets_does_not_hide_what_fails(tree: TreeLab) -> None:
    """A warning alone would say that requests with presets work."""
    found = tree.check(changed(API_TYPE, presetType="OpenA"))
    assert [(one.severity, one.file) for one in found if one.file == API_TYPE] == [("warning", API_TYPE)]
    assert found[0].severity == "error" and "preset 'Warm' does not exist" in found[0].message
