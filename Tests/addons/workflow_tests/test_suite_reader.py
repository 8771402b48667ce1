"""Wrong test files: what is wrong, where, what was expected, and the nearest name."""

from __future__ import annotations

import json

import pytest

from Middleware.addons.workflow_tests.suite_reader import check_test_files, read_tests
from Tests.addons.workflow_tests.lab import says, static, test
from Tests.tables import table

WRONG = {
    "unknown key of a test": ({"replys": {}}, "tests[0].replys", "the key 'replys' is unknown", "'replies'"),
    "unknown expectation": ({"expect": {"anser": "x"}}, "tests[0].expect.anser", "'anser' is unknown", "'answer'"),
    "unknown operation": (
        {"expect": {"answer": {"contain": "x"}}},
        "tests[0].expect.answer.contain",
        "'contain' is unknown",
        "'contains'",
    ),
    "unknown part of a prompt": (
        {"expect": {"prompts": {"Greet": {"sytem": "x"}}}},
        "tests[0].expect.prompts.Greet.sytem",
        "'sytem' is unknown",
        "'system'",
    ),
    "unknown key of a rule": (
        {"replies": [{"nod": "Greet", "reply": "x"}]},
        "tests[0].replies[0].nod",
        "'nod' is unknown",
        "'node'",
    ),
    "unknown key of a reply": (
        {"replies": {"Greet": {"tool_call": []}}},
        "tests[0].replies.Greet.tool_call",
        "'tool_call' is unknown",
        "'tool_calls'",
    ),
    "unknown node in replies": (
        {"replies": {"Gret": "x"}},
        "tests[0].replies.Gret",
        "no workflow has a node 'Gret'",
        "'Greet'",
    ),
    "unknown node in a rule": (
        {"replies": [{"node": "Gret", "reply": "x"}]},
        "tests[0].replies[0].node",
        "no workflow has a node 'Gret'",
        "'Greet'",
    ),
    "unknown node in stubs": ({"stubs": {"Gret": "x"}}, "tests[0].stubs.Gret", "no workflow has a node", "'Greet'"),
    "unknown node in outputs": (
        {"expect": {"outputs": {"Gret": "x"}}},
        "tests[0].expect.outputs.Gret",
        "no workflow has a node",
        "'Greet'",
    ),
    "unknown node in prompts": (
        {"expect": {"prompts": {"Gret": {"system": "x"}}}},
        "tests[0].expect.prompts.Gret",
        "no workflow has a node",
        "'Greet'",
    ),
    "unknown node in endpoints": (
        {"expect": {"endpoints": {"Gret": "Main"}}},
        "tests[0].expect.endpoints.Gret",
        "no workflow has a node",
        "'Greet'",
    ),
    "unknown node in order": (
        {"expect": {"order": ["Greet", "Main/Gret"]}},
        "tests[0].expect.order[1]",
        "no workflow has a node 'Main/Gret'",
        "'Main/Greet'",
    ),
    "node in order that is an object": (
        {"expect": {"order": ["Greet", {}]}},
        "tests[0].expect.order[1]",
        "must be a string, not an object",
        "",
    ),
    "node in order that is a list": (
        {"expect": {"order": [["Greet"]]}},
        "tests[0].expect.order[0]",
        "must be a string, not a list",
        "",
    ),
    "wrong kind of messages": ({"messages": "hi"}, "tests[0].messages", "'messages' must be a list, not 'hi'", ""),
    "message without role": ({"messages": [{"content": "x"}]}, "tests[0].messages[0]", "the key 'role' is missing", ""),
    "message that is a text": ({"messages": ["hi"]}, "tests[0].messages[0]", "must be an object, not 'hi'", ""),
    "missing messages": ({"messages": None}, "tests[0]", "the key 'messages' is missing", ""),
    "missing name": ({"name": None}, "tests[0]", "the key 'name' is missing", ""),
    "unknown entry": ({"entry": "requests"}, "tests[0].entry", "'entry' is 'requests'", "'request'"),
    "stream as text": ({"stream": "yes"}, "tests[0].stream", "'stream' must be true or false, not 'yes'", ""),
    "replies as text": ({"replies": "x"}, "tests[0].replies", "'replies' must be an object or a list, not 'x'", ""),
    "reply that is a number": ({"replies": {"Greet": 3}}, "tests[0].replies.Greet", "3 is not a reply", ""),
    "no replies in a list": ({"replies": {"Greet": []}}, "tests[0].replies.Greet", "the list of replies is empty", ""),
    "rule without reply": ({"replies": [{"node": "Greet"}]}, "tests[0].replies[0]", "needs either 'reply' or", ""),
    "rule with both": ({"replies": [{"reply": "x", "fail": "y"}]}, "tests[0].replies[0]", "needs either", ""),
    "file that is a number": ({"files": {"a.txt": 3}}, 'tests[0].files["a.txt"]', "3 is not the content of a file", ""),
    "rule for no call": ({"replies": [{"reply": "x", "times": 0}]}, "tests[0].replies[0].times", "'times' is 0", ""),
    "times as flag": (
        {"replies": [{"reply": "x", "times": True}]},
        "tests[0].replies[0].times",
        "'times' must be a whole number, not true",
        "",
    ),
    "tool call without name": (
        {"replies": {"Greet": {"tool_calls": [{"arguments": {}}]}}},
        "tests[0].replies.Greet.tool_calls[0]",
        "a tool call needs a name",
        "",
    ),
    "tool call with broken arguments": (
        {"replies": {"Greet": {"tool_calls": [{"name": "x", "arguments": "{"}]}}},
        "tests[0].replies.Greet.tool_calls[0]",
        "arguments that are an object",
        "",
    ),
    "pattern that is a number": ({"expect": {"answer": 3}}, "tests[0].expect.answer", "3 is not a pattern", ""),
    "pattern without condition": (
        {"expect": {"answer": {}}},
        "tests[0].expect.answer",
        "the pattern demands nothing",
        "",
    ),
    "empty list of conditions": (
        {"expect": {"answer": []}},
        "tests[0].expect.answer",
        "the pattern demands nothing",
        "",
    ),
    "remark in place of a condition": (
        {"expect": {"answer": {"_comment": "x"}}},
        "tests[0].expect.answer",
        "the pattern demands nothing",
        "",
    ),
    "prompts without condition": (
        {"expect": {"prompts": {"Greet": {}}}},
        "tests[0].expect.prompts.Greet",
        "the pattern demands nothing",
        "",
    ),
    "empty text": (
        {"expect": {"outputs": {"Greet": ""}}},
        "tests[0].expect.outputs.Greet",
        "an empty text is found in every text",
        "",
    ),
    "empty text in a list": (
        {"expect": {"answer": ["x", ""]}},
        "tests[0].expect.answer[1]",
        "an empty text is found in every text",
        "",
    ),
    "empty part": (
        {"expect": {"answer": {"contains": ""}}},
        "tests[0].expect.answer.contains",
        "an empty text is found in every text",
        "",
    ),
    "empty expression": (
        {"expect": {"answer": {"matches": ""}}},
        "tests[0].expect.answer.matches",
        "an empty text is found in every text",
        "",
    ),
    "nothing to lack": (
        {"expect": {"answer": {"lacks": ""}}},
        "tests[0].expect.answer.lacks",
        "an empty text is found in every text",
        "",
    ),
    "rule for an empty prompt": (
        {"replies": [{"prompt": "", "reply": "x"}]},
        "tests[0].replies[0].prompt",
        "an empty text is found in every text",
        "",
    ),
    "rule for an unknown endpoint": (
        {"replies": [{"endpoint": "Mian", "reply": "x"}]},
        "tests[0].replies[0].endpoint",
        "there is no endpoint 'Mian'",
        "'Main'",
    ),
    "blank name": ({"name": " "}, "tests[0].name", "'name' is empty", ""),
    "list in a list": ({"expect": {"answer": [["x"]]}}, "tests[0].expect.answer[0]", "a list in a list", ""),
    "broken expression": (
        {"expect": {"route": {"matches": "("}}},
        "tests[0].expect.route.matches",
        "not a regular expression",
        "",
    ),
    "endpoint that is no text": (
        {"expect": {"endpoints": {"Greet": 3}}},
        "tests[0].expect.endpoints.Greet",
        "must be a string, not 3",
        "",
    ),
    "stub that is no text": ({"stubs": {"Greet": ["x", 1]}}, "tests[0].stubs.Greet", "is not an output", ""),
    "inputs of a request": (
        {"entry": "request", "scoped_variables": ["x"]},
        "tests[0].scoped_variables",
        "a request has no 'scoped_variables'",
        "",
    ),
    "model of a workflow": ({"model": "x"}, "tests[0].model", "'model' counts only in a request", ""),
}


def _findings(path):
    return read_tests([str(path)])[1]


@pytest.mark.parametrize(("keys", "path", "message", "suggestion"), WRONG.values(), ids=list(WRONG))
def test_each_mistake_is_one_finding_that_says_where(lab, keys, path, message, suggestion):
    lab.workflow("Main", static("Greet", "x"))
    file = lab.suite("Main", test(**keys))

    [finding] = _findings(file)

    assert finding.file == "Workflows/tester/Main.test.json"
    assert finding.json_path == path
    assert message in finding.message
    assert f"Did you mean {suggestion}?" in str(finding) if suggestion else not finding.suggestion
    assert finding.line == 1  # all of the file


@pytest.mark.parametrize("text", ["", "[", '{"tests": [}', "nonsense"])
def test_a_file_that_is_no_json_is_a_finding(lab, text):
    lab.workflow("Main", static("Greet", "x"))

    [finding] = _findings(lab.text("Main.test.json", text))

    assert "not valid JSON" in finding.message


def test_a_syntax_error_has_line_and_column(lab):
    lab.workflow("Main", static("Greet", "x"))

    [finding] = _findings(lab.text("Main.test.json", '{\n  "tests": [\n    {"name" "x"}\n  ]\n}'))

    assert (finding.line, finding.column) == (3, 13)
    assert check_test_files([str(lab.root / "Workflows/tester/Main.test.json")]) == []  # others say so


def test_a_finding_names_the_line_of_its_key(lab):
    lab.workflow("Main", static("Greet", "x"))
    file = lab.text("Main.test.json", json.dumps({"tests": [test(expect={"answr": "x"})]}, indent=1))

    [finding] = _findings(file)

    assert file.read_text(encoding="utf-8").splitlines()[(finding.line or 0) - 1].strip() == '"answr": "x"'


@pytest.mark.parametrize("content", [[], "x", 3, None], ids=["list", "text", "number", "null"])
def test_the_root_must_be_an_object(lab, content):
    lab.workflow("Main", static("Greet", "x"))
    lab.write("Workflows/tester/Main.test", content)

    [finding] = _findings(lab.root / "Workflows/tester/Main.test.json")

    assert "must be an object" in finding.message


@pytest.mark.parametrize("tests", [[], None], ids=["none", "null"])
def test_a_file_needs_tests(lab, tests):
    lab.workflow("Main", static("Greet", "x"))
    lab.write("Workflows/tester/Main.test", {"tests": tests})

    assert len(lab.findings(lab.root / "Workflows/tester/Main.test.json")) == 1


def test_the_workflow_must_lie_beside_the_file(lab):
    lab.workflow("Main", static("Greet", "x"))

    [finding] = _findings(lab.suite("Mian", test()))

    assert "there is no workflow 'Mian.json' next to this file" in finding.message
    assert finding.suggestion == "Main"


def test_a_user_that_does_not_exist_is_told(lab):
    lab.workflow("Main", static("Greet", "x"))

    [finding] = _findings(lab.suite("Main", test(), user="testr"))

    assert (finding.json_path, finding.suggestion) == ("user", "tester")
    assert "there is no user 'testr'" in finding.message


def test_without_a_user_the_folder_must_be_called_like_one(lab):
    lab.workflow("Main", static("Greet", "x"), folder="_shared")

    [finding] = _findings(lab.suite("Main", test(), folder="_shared"))

    assert "the key 'user' is missing, and no user is called '_shared'" in finding.message
    assert "Expected: one of tester" in str(finding)


@table(
    ("folder", "user"),
    [
        ("tester", "tester"),
        ("tester/x", "tester"),
        ("tester/x/y", "tester"),
        ("_overrides/tester/x", "tester"),
        ("tester/ann", "tester"),
        ("ann/tester", "ann"),
        ("team/bob/x", "team/bob"),
        ("team/tester", "tester"),
        ("group/ann/x", "ann"),
    ],
)
def test_the_user_of_a_folder(lab, folder, user):
    """The outermost folder with a user's name, which may itself be in folders; else the innermost."""
    lab.write("Users/ann", {})
    lab.write("Users/team/bob", {})
    lab.workflow("Main", static("Greet", "x"), folder=folder)
    [read], findings = read_tests([str(lab.suite("Main", test(), folder=folder))])
    assert (read.suite.user, read.suite.folder, findings) == (user, folder, [])


def test_a_file_for_another_folder_names_its_user(lab):
    lab.workflow("Main", static("Greet", "x"), folder="_shared")

    [read], findings = read_tests([str(lab.suite("Main", test(), folder="_shared", user="tester"))])

    assert (read.suite.user, read.suite.folder, read.suite.workflow, findings) == ("tester", "_shared", "Main", [])


def test_schema_and_description_are_welcome(lab):
    lab.workflow("Main", static("Greet", "x"))
    file = lab.suite("Main", test(), **{"$schema": "../x.json", "description": "remarks"})

    assert lab.findings(file) == []


def test_an_unknown_key_at_the_top_is_told(lab):
    lab.workflow("Main", static("Greet", "x"))

    [finding] = _findings(lab.suite("Main", test(), usr="tester"))

    assert (finding.json_path, finding.suggestion) == ("usr", "user")


def test_the_tests_without_mistake_are_kept(lab):
    lab.workflow("Main", static("Greet", "x"))
    file = lab.suite("Main", test(), test(messages=3), test(name="third"))

    tests, findings = read_tests([str(file)])

    assert [read.number for read in tests] == [0, 2]
    assert len(findings) == 1


def test_several_mistakes_are_all_told(lab):
    lab.workflow("Main", static("Greet", "x"))

    findings = lab.findings(lab.suite("Main", test(model="x", stubs={"Gret": "y"}), test(expect={"route": 3})))

    assert len(findings) == 3


def test_messages_may_have_further_keys_and_parts(lab):
    lab.workflow("Main", static("Greet", "x"))
    message = {"role": "user", "content": [{"type": "text", "text": "hi"}], "images": ["abc"], "name": "Ann"}

    assert lab.findings(lab.suite("Main", test(messages=[message, says("x", "assistant")]))) == []


def test_nodes_go_by_agent_name_and_type_without_a_title(lab):
    lab.workflow(
        "Main",
        {"agentName": "Bob", "type": "StaticResponse", "content": "x"},
        {"type": "StaticResponse", "content": "y"},
    )

    expect = {"order": ["Bob", "StaticResponse"], "outputs": {"Main/StaticResponse": "y"}}

    assert lab.findings(lab.suite("Main", test(expect=expect))) == []


def test_a_file_that_cannot_be_read_is_told(lab):
    lab.workflow("Main", static("Greet", "x"))
    path = lab.root / "Workflows" / "tester" / "Main.test.json"
    path.mkdir()

    [finding] = _findings(path)

    assert "the file cannot be read" in finding.message


def test_several_files_are_checked_at_once(lab):
    lab.workflow("Main", static("Greet", "x"))
    lab.workflow("Other", static("Greet", "x"))
    paths = [lab.suite("Main", test(model="x")), lab.suite("Other", test()), lab.suite("Nowhere", test())]

    findings = check_test_files(map(str, [*paths, lab.root / "missing.test.json"]))

    assert [finding.file.rpartition("/")[2] for finding in findings] == ["Main.test.json", "Nowhere.test.json"]


def test_a_key_that_stands_twice_is_told_where_it_stands_again(lab):
    lab.workflow("Main", static("Greet", "x"))
    file = lab.text(
        "Main.test.json",
        '{"tests": [{"name": "a", "messages": [],\n"expect": {"answer": "no"},\n "expect": {"answer": "x"}}]}',
    )

    tests, [finding] = read_tests([str(file)])

    assert tests == []
    assert (finding.json_path, finding.line, finding.column) == ("tests[0].expect", 3, 2)
    assert "appears twice in one object, first in line 2" in finding.message
    assert check_test_files([str(file)]) == []  # others say so


def test_remarks_are_welcome_everywhere(lab):
    lab.workflow("Main", static("Greet", "x"))
    remark = {"_comment": "why"}
    keys = {
        **remark,
        "messages": [{**says(), **remark}],
        "replies": [{**remark, "reply": {**remark, "content": "x"}}],
        "expect": {**remark, "answer": {**remark, "contains": "x"}, "prompts": {"Greet": {**remark, "system": "x"}}},
    }

    assert lab.findings(lab.suite("Main", test(**keys), **remark)) == []


@pytest.mark.parametrize("endpoint", ["Main", "main", "inner/Deep", "Deep"])
def test_a_rule_may_name_any_endpoint_that_exists(lab, endpoint):
    lab.workflow("Main", static("Greet", "x"))
    lab.write("Endpoints/inner/Deep", {})

    assert lab.findings(lab.suite("Main", test(replies=[{"endpoint": endpoint, "reply": "x"}]))) == []


def test_a_file_beside_no_users_folder_needs_a_user(lab):
    lab.write("Workflows/Main", {"nodes": [static("Greet", "x")]})
    lab.write("Workflows/Main.test", {"tests": [test()]})

    [finding] = _findings(lab.root / "Workflows" / "Main.test.json")

    assert finding.message == "the key 'user' is missing"
    assert finding.expected == "one of tester"


FULL = test(
    replies=[
        {
            "node": "Greet",
            "endpoint": "Main",
            "prompt": [{"contains": "x"}],
            "times": 1,
            "reply": [{"content": "x", "tool_calls": [{"name": "x", "arguments": {"x": "y"}}]}],
        }
    ],
    stubs={"Greet": "x"},
    files={"/x": "y"},
    tools=[{"type": "function"}],
    entry="request",
    model="x",
    stream=True,
    expect={
        "answer": {"equals": "x"},
        "route": "x",
        "order": ["Greet"],
        "outputs": {"Greet": ["x", {"lacks": "y"}]},
        "prompts": {"Greet": {"system": "x", "prompt": "y"}},
        "endpoints": {"Greet": "Main"},
        "files": {"/x": "x"},
        "error": {"matches": "x"},
    },
)


def _places(value, path=()):
    yield path
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _places(entry, (*path, key))


@pytest.mark.parametrize(
    "odd", [None, True, -1, 0.5, "", "\0", "\ud800", [], {}, [[]], [None], [{}], {"": ""}], ids=ascii
)
def test_whatever_stands_anywhere_is_read_or_told(lab, odd):
    lab.workflow("Main", static("Greet", "x"))
    path = lab.suite("Main", FULL, user="tester")
    assert read_tests([str(path)])[1] == []
    whole = json.loads(path.read_text(encoding="utf-8"))

    for place in _places(whole):
        path.write_text(json.dumps(_replaced(whole, place, odd)), encoding="utf-8")

        tests, findings = read_tests([str(path)])

        assert tests or findings, place


def _replaced(value, place, odd):
    """A copy of ``value`` with ``odd`` in one place."""
    if not place:
        return odd
    copy = value.copy()
    copy[place[0]] = _replaced(value[place[0]], place[1:], odd)
    return copy
