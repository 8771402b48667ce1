"""Keys of nodes: spelling, presence, kinds of values, types."""

from __future__ import annotations

from typing import Any

import pytest

from Tests.addons.check.checking import brief, check, llm, only, static

FILE = {"type": "GetCustomFile", "filepath": "/x"}


# -- types -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("Sandard", "Standard"),
        ("standard", "Standard"),
        ("ChatSummarySummarizer", "chatSummarySummarizer"),
        ("custom_workflow", "CustomWorkflow"),
        ("Zebra", ""),
    ],
)
def test_unknown_type_runs_as_standard(written: str, near: str) -> None:
    found = only(check(llm("x", type=written)))
    assert (found.severity, found.json_path, found.suggestion) == ("warning", "nodes[0].type", near)
    assert "runs as Standard" in found.message


@pytest.mark.parametrize("written", [None, 5, ["Standard"], {}])
def test_type_that_is_no_text(written: Any) -> None:
    assert brief(check(llm("x", type=written))) == [("warning", "nodes[0].type")]


def test_no_type_is_standard() -> None:
    assert check({"endpointName": "Main", "prompt": "x"}) == []


# -- spelling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("promt", "prompt"),
        ("SystemPrompt", "systemPrompt"),
        ("system_prompt", "systemPrompt"),
        ("retrunToUser", "returnToUser"),
        ("maxResponseSizeInToken", "maxResponseSizeInTokens"),
        ("presett", "preset"),
    ],
)
def test_misspelt_key(key: str, meant: str) -> None:
    found = only(check({"type": "Standard", "endpointName": "Main", key: "1"}))
    assert (found.severity, found.json_path, found.suggestion) == ("warning", f"nodes[0].{key}", meant)


@pytest.mark.parametrize(
    "key",
    [
        "displayOnlyComment",
        "multiModelList",
        "_prompt",
        "//prompt",
        "# prompt",
        "promptComment",
        "myOwnThing",
        "model",
        "",
        "content",
        "filepath",
        "lookbackStart",
        "limit",
        "percentile",
    ],
)
def test_harmless_unknown_key(key: str) -> None:
    assert check(llm("x", **{key: "1"})) == []


@pytest.mark.parametrize(
    ("key", "home"),
    [
        ("parallelCalls", "it in an endpoint file (Endpoints/**/*.json)"),
        ("swapGroup", "it in an endpoint file (Endpoints/**/*.json)"),
        ("samplerFieldMap", "it in an API type file (ApiTypes/**/*.json)"),
        ("backgroundNodesYield", "it in a user file (Users/**/*.json)"),
    ],
)
def test_key_of_another_file(key: str, home: str) -> None:
    found = only(check(llm("x", **{key: 1})))
    assert (found.severity, found.json_path, found.expected) == ("warning", f"nodes[0].{key}", home)
    assert f"the key '{key}' has no effect here" in found.message
    assert check(llm("x", metadata={key: 1})) == []


def test_spelling_of_a_key_that_is_also_there() -> None:
    found = only(check(llm("x", promt="old")))
    assert found.severity == "note"
    assert "'prompt' counts" in found.message


def test_endpoint_for_endpoint_name() -> None:
    found = only(check({"type": "Standard", "endpoint": "Main", "preset": "P"}))
    assert (found.severity, found.json_path, found.suggestion) == ("error", "nodes[0].endpoint", "endpointName")


@pytest.mark.parametrize(
    ("node", "severity"),
    [
        (llm("x", isResponder=True), "warning"),
        (llm("x", isResponder=False), "note"),
        (llm("x", isResponder=True, returnToUser=True), "note"),
        (llm("x", isResponder=True, is_responder=False), "note"),
    ],
)
def test_is_responder_is_never_honoured(node: dict[str, Any], severity: str) -> None:
    found = only(check(node))
    assert (found.severity, found.json_path) == (severity, "nodes[0].isResponder")
    assert found.expected == "'returnToUser' or 'is_responder'"


# -- presence ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", [{"type": "GetCustomFile"}, {"type": "GetCustomFile", "filepath": None}])
def test_required_key_is_missing(node: dict[str, Any]) -> None:
    found = only(check(node))
    assert (found.severity, found.json_path) == ("error", "nodes[0]")
    assert "'filepath' is missing" in found.message


@pytest.mark.parametrize("key", ["filePath", "file_path", "filpath"])
def test_required_key_is_misspelt(key: str) -> None:
    found = only(check({"type": "GetCustomFile", key: "/x"}))
    assert (found.severity, found.suggestion) == ("error", "filepath")


def test_required_key_is_empty() -> None:
    assert brief(check({"type": "GetCustomFile", "filepath": " "})) == [("warning", "nodes[0].filepath")]


@pytest.mark.parametrize(("delimiter", "paths"), [("\n", []), (" ", []), ("", ["nodes[0].delimiter"])])
def test_blank_text_is_a_delimiter(delimiter: str, paths: list[str]) -> None:
    found = check({"type": "DelimitedChunker", "content": "a b", "delimiter": delimiter, "mode": "head", "count": 1})
    assert [finding.json_path for finding in found] == paths


# -- kinds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, False, None, "true", "False", " TRUE ", ""])
def test_good_flags(value: Any) -> None:
    assert check(llm("x", allowTools=value)) == []


@pytest.mark.parametrize("value", ["yes", "{flag}", 1, [], "on"])
def test_bad_flags(value: Any) -> None:
    found = only(check(llm("x", allowTools=value), flag=True))
    assert (found.severity, found.json_path) == ("warning", "nodes[0].allowTools")
    assert "true or false" in found.message


@pytest.mark.parametrize("value", [5, 5.5, "5", "{size}", None])
def test_good_numbers(value: Any) -> None:
    assert check(llm("x", maxResponseSizeInTokens=value), size=3) == []


@pytest.mark.parametrize("value", ["abc", "", "5.5", True, [5], {}])
def test_bad_numbers(value: Any) -> None:
    found = only(check(llm("x", maxResponseSizeInTokens=value)))
    assert (found.severity, found.json_path) == ("warning", "nodes[0].maxResponseSizeInTokens")
    assert "number" in found.message


@pytest.mark.parametrize(
    ("keys", "findings"),
    [
        ({"answerChoices": ["A", "B {tone}"], "rememberChoice": True}, []),
        ({"answerChoices": "{categoryNameBulletpoints}"}, []),
        ({"answerChoices": {"A": "a"}}, [("warning", "nodes[0].answerChoices")]),
        ({"answerChoices": ["A"], "allowTools": True}, [("error", "nodes[0].allowTools")]),
        ({"rememberChoice": True}, [("note", "nodes[0].rememberChoice")]),
    ],
)
def test_choices_for_the_answer(keys: dict[str, Any], findings: list[tuple[str, str]]) -> None:
    assert brief(check(llm("x", **keys), tone="warm")) == findings


@pytest.mark.parametrize(("value", "bad"), [(2, False), ("{n}", False), ("2", True), ("x", True)])
def test_counts_of_pieces_are_no_texts(value: Any, bad: bool) -> None:
    assert bool(check({**FILE, "headCount": value}, n=2)) is bad


@pytest.mark.parametrize(
    ("node", "path"),
    [
        ({"type": "StringConcatenator", "strings": "x"}, "nodes[0].strings"),
        ({"type": "PythonModule", "module_path": "x.py", "kwargs": []}, "nodes[0].kwargs"),
        ({"type": "ConditionalCustomWorkflow", "conditionalWorkflows": ["x"]}, "nodes[0].conditionalWorkflows"),
        (llm(prompt=["a", "b"]), "nodes[0].prompt"),  # type: ignore[arg-type]
        (static({"a": 1}), "nodes[0].content"),
    ],
)
def test_list_object_and_text(node: dict[str, Any], path: str) -> None:
    assert brief(check(node)) == [("warning", path)]


def test_one_scoped_variable_needs_no_list() -> None:
    assert check({"type": "CustomWorkflow", "workflowName": "C", "scoped_variables": "x"}) == []


# -- what findings show ------------------------------------------------------------------------------------------------


def test_a_node_is_named() -> None:
    assert "node 2 'Greet   you':" in only(check(static(), llm("x", title="Greet \n you", allowTools="no"))).message


def test_values_are_shortened() -> None:
    message = only(check(llm("x", maxResponseSizeInTokens="z" * 500))).message
    assert "z" * 77 + "..." in message
    assert "z" * 78 not in message


def test_passwords_stay_out() -> None:
    args = "-u tom:hunter2 https://example.org"
    assert all("hunter2" not in str(finding) for finding in check({"type": "StringConcatenator", "strings": args}))
    found = check({"type": "PythonModule", "module_path": "x.py", "kwargs": {"apiKey": "a{hunter2}b", "x": "{y}"}})
    assert brief(found) == [("warning", "nodes[0].kwargs.apiKey"), ("warning", "nodes[0].kwargs.x")]
    assert all("hunter2" not in str(finding) for finding in found)
    assert "{y}" in found[1].message


# -- example turns -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turns", "severity", "path", "suggestion"),
    [
        ([{"user": "a"}], "error", "nodes[0].exampleTurns[0]", ""),
        ([{"user": "a", "assistent": "b"}], "error", "nodes[0].exampleTurns[0].assistent", "assistant"),
        ([{"user": "a", "assistant": " "}], "warning", "nodes[0].exampleTurns[0].assistant", ""),
        (["a"], "warning", "nodes[0].exampleTurns[0]", ""),
        ("a", "warning", "nodes[0].exampleTurns", ""),
        ([{"user": "{agnt1Output}", "assistant": "b"}], "warning", "nodes[0].exampleTurns[0].user", "agent1Output"),
    ],
)
def test_mistakes_in_example_turns(turns: Any, severity: str, path: str, suggestion: str) -> None:
    found = check(static("x"), llm("x", exampleTurns=turns))
    assert [(one.severity, one.json_path, one.suggestion) for one in found] == [
        (severity, path.replace("[0]", "[1]", 1), suggestion)
    ]


def test_example_turns_and_late_texts() -> None:
    turns = [{"user": "{chat_user_prompt_last_one}", "assistant": "b", "_why": "c", "system": "d"}]
    assert check(llm("", exampleTurns=turns, lateSystemPrompt="{todays_date_iso}", lateInstruction="x")) == []
    assert only(check(llm("", lateSystmPrompt="x"))).suggestion == "lateSystemPrompt"


@pytest.mark.parametrize(
    ("sources", "wrong"),
    [
        (["messages", "facts"], []),
        (["facts"], []),
        ([], []),
        (["messages", "fact"], [("nodes[0].sources[1]", "facts")]),
        (["Messages"], [("nodes[0].sources[0]", "messages")]),
        (["", "zebra"], [("nodes[0].sources[0]", ""), ("nodes[0].sources[1]", "")]),
    ],
)
def test_an_entry_of_a_list_that_is_no_choice(sources: list[str], wrong: list[tuple[str, str]]) -> None:
    found = [finding for finding in check({"type": "Recall", "sources": sources}) if "unknown" in finding.message]
    assert [(finding.json_path, finding.suggestion) for finding in found] == wrong
