"""Mistakes in a text that is not saved yet are found at their lines, with the other files as they are on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from Middleware.addons.console.editing.unsaved import check_unsaved
from Tests.addons.check.config_tree import (
    API_TYPE,
    CHILD,
    CODING,
    ENDPOINT,
    GENERAL,
    MCP,
    MEMORY,
    PRESET,
    ROUTES,
    SCHEMA,
    USER,
)

TEMPLATE, CURRENT = "PromptTemplates/chatml.json", "Users/_current-user.json"
TESTS = "Workflows/alice/General.test.json"

# File, what is replaced in it by what, and a part of the finding, which is on the line of the new text (or of the mark
# ``|`` in it, which is taken out).
PLANTED = [
    # What is not JSON.
    (GENERAL, '"Think",\n', '"Think"\n      |', "a comma is missing"),
    (GENERAL, '"Main",', '"Main,', "no closing quotation mark"),
    (ENDPOINT, "8192,", "8192,,", "a comma without an entry"),
    (ENDPOINT, '"temperature": 0.7', '"temperature": 0.7,|', "a comma before the closing"),
    (USER, '"home"', "'home'", "straight double quotation marks"),
    (USER, '"routingConfig": "routes"', '|// the routes\n"routingConfig": "routes"', "JSON has no comments"),
    (PRESET, '"temperature": 1', '"temperature": True', "is written true in JSON"),
    (GENERAL, '"prompt": "",', '"prompt": "",\n "prompt": "x",', "appears twice"),
    # Keys.
    (GENERAL, '"endpointName": "Main"', '"endpointNam": "Main"', "endpointName"),
    (GENERAL, '"returnToUser": true', '"returnToUsr": true', "returnToUser"),
    (ENDPOINT, '"maxContextTokenSize"', '"maxContextTokenSise"', "maxContextTokenSize"),
    (ENDPOINT, '"endpoint":', '"endpiont":', "endpoint"),
    (USER, '"routingConfig"', '"routingConfg"', "routingConfig"),
    (ROUTES, '"workflow": "Coding"', '"workflw": "Coding"', "workflow"),
    (API_TYPE, '"streamPropertyName"', '"streamPropertyNam"', "streamPropertyName"),
    (MEMORY, '"lookbackStartTurn"', '"lookbackStartTrun"', "lookbackStartTurn"),
    (TEMPLATE, '"promptTemplateUserPrefix"', '"promptTemplateUserPrefx"', "promptTemplateUserPrefix"),
    (MCP, '"command"', '"comand"', "command"),
    (CURRENT, '"currentUser"', '"curentUser"', "currentUser"),
    # Values.
    (ENDPOINT, "8192", '"many"', "must be a whole number"),
    (ENDPOINT, '"temperature": 0.7', '"temperature": -3', "out of range"),
    (ENDPOINT, '"http://127.0.0.1:5001"', '"localhost:5001"', "address"),
    (API_TYPE, '"openAIChatCompletion"', '"openAIChatCompletions"', "openAIChatCompletion"),
    (MCP, '"stdio"', '"studio"', "stdio"),
    (USER, '"chatPromptTemplateName": "_chatonly"', '"port": 99999', "out of range"),
    (GENERAL, '"returnToUser": true', '"returnToUser": "yes please"', "must be true or false"),
    (GENERAL, '"type": "Standard"', '"type": "Standrad"', "Standard"),
    (GENERAL, '"returnToUser": false', '"dependsOn": ["Thonk"]', "names no node"),
    (CODING, '"scoped_variables": [', '"scoped_variabels": [', "scoped_variables"),
    (SCHEMA, '"object"', '"objekt"', "objekt"),
    # Names.
    (GENERAL, '"endpointName": "Main"', '"endpointName": "Mian"', "Did you mean 'Main'?"),
    (GENERAL, '"preset": "Warm"', '"preset": "Wram"', "Did you mean 'Warm'?"),
    (CODING, '"Child"', '"Chold"', "Did you mean 'Child'?"),
    (CODING, '"_common"', '"_comon"', "_common"),
    (USER, '"routes"', '"ruotes"', "Did you mean 'routes'?"),
    (USER, '"endpointConfigsSubDirectory": "home"', '"endpointConfigsSubDirectory": "hom"', "home"),
    (ROUTES, '"Coding"', '"Codong"', "Did you mean 'Coding'?"),
    (ENDPOINT, '"Chat"', '"Chaat"', "Did you mean 'Chat'?"),
    (MEMORY, '"endpointName": "Main"', '"endpointName": "Mainn"', "Did you mean 'Main'?"),
    (CURRENT, '"alice"', '"alise"', "Did you mean 'alice'?"),
    # Texts.
    (GENERAL, "{agent1Output}", "{agent7Output}", "there is no node 7"),
    (GENERAL, "{agent1Output}", "{agent2Output}", "the output of this node itself"),
    (GENERAL, "{agent1Output}", "{chat_user_promt_last_one}", "chat_user_prompt_last_one"),
    (GENERAL, '"prompt": "{agent1Output}"', '"jinja2": true, "prompt": "{% if %}"', "is not valid Jinja2"),
    (CHILD, "{agent1Input}", "{agent1Inputs}", "agent1Input"),
    (TESTS, '"Think": "yes"', '"Thnk": "yes"', "Think"),
]

TEST_FILE = """{
  "user": "alice",
  "tests": [
    {"name": "It thinks", "messages": [{"role": "user", "content": "hi"}],
     "replies": {"Think": "yes"},
     "expect": {"answer": "yes"}}
  ]
}"""


def test_each_planted_mistake_is_found_at_its_line(configs: Path) -> None:
    (configs / TESTS).write_text(TEST_FILE, encoding="utf-8")
    missed = []
    for file, old, new, part in PLANTED:
        good = (configs / file).read_text(encoding="utf-8")
        assert old in good, (file, old)
        start = good.index(old)
        text = good.replace(old, new.replace("|", ""), 1)
        mark = new.index("|") if "|" in new else new.rindex("\n") + 1 if "\n" in new else 0
        line = text.count("\n", 0, start + mark) + 1
        found = check_unsaved(file, text, text)
        if not any(finding.line == line and part in finding.text for finding in found):
            missed.append((file, new, line, [f"{finding.position} {finding.text}" for finding in found]))
    assert missed == [] and len(PLANTED) >= 40


def test_the_files_of_a_good_configuration_have_no_finding(configs: Path) -> None:
    found = [
        f"{finding.file}{finding.position}: {finding.text}"
        for path in sorted(configs.rglob("*.json"))
        for text in [path.read_text(encoding="utf-8")]
        for finding in check_unsaved(path.relative_to(configs).as_posix(), text, text)
    ]
    assert found == []


@pytest.mark.parametrize("text", ["", "[", "null", "[]", "3", '{"nodes": 3}', '{"nodes": [3]}', "[[]]", '{"a": {}}'])
def test_any_text_has_findings_and_no_failure(configs: Path, text: str) -> None:
    for path in sorted(configs.rglob("*.json")):
        check_unsaved(path.relative_to(configs).as_posix(), text, text)


def test_a_workflow_is_seen_as_it_is_written_where_it_runs_itself(configs: Path) -> None:
    text = '{"nodes": [{"type": "CustomWorkflow", "workflowName": "General", "title": "Again", "returnToUser": true}]}'
    messages = [finding.text for finding in check_unsaved(GENERAL, text, text)]
    assert any("General" in message for message in messages), messages
