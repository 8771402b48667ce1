"""Completion and explanation in configuration files, also in texts that are not JSON yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from Middleware.addons.console.editing.assist import assist
from Tests.addons.check.config_tree import CODING, ENDPOINT, GENERAL, MCP, MEMORY, PRESET, ROUTES, USER

NODES = """{
  "motto": "be {kind",
  "nodes": [
    {"title": "One", "type": "Standard"},
    {"title": "Two", "type": "%s",
     %s
    }
  ]
}"""

# File, text with the cursor as ``|``, and some of what is proposed there.
PROPOSED = [
    (GENERAL, NODES % ("Standard", '"endp|"'), {"endpointName"}),
    (GENERAL, NODES % ("Standard", '"endp|'), {"endpointName", "prompt", "systemPrompt"}),
    (GENERAL, NODES % ("Standard", "|"), {"endpointName", "prompt"}),
    (GENERAL, NODES % ("PythonModule", '"|"'), {"module_path", "kwargs"}),
    (GENERAL, NODES % ("Sta|", ""), {"Standard", "StaticResponse", "PythonModule"}),
    (GENERAL, NODES % ("Standard", '"endpointName": "|"'), {"Main", "Spare"}),
    (GENERAL, NODES % ("Standard", '"endpointName": |'), {"Main", "Spare"}),
    (GENERAL, NODES % ("Standard", '"preset": "W|"'), {"Warm", "Main"}),
    (GENERAL, NODES % ("Standard", '"jinja2": |'), {"true", "false"}),
    (GENERAL, NODES % ("Standard", '"jinja2": tr|'), {"true", "false"}),
    (GENERAL, NODES % ("Standard", '"prompt": "Say {|'), {"agent1Output", "motto", "chat_user_prompt_last_one"}),
    (GENERAL, NODES % ("Standard", '"prompt": "Say {{ age|nt }}"'), {"agent1Output"}),
    (GENERAL, NODES % ("Standard", '"dependsOn": ["|"]'), {"One"}),
    (GENERAL, NODES % ("Standard", '"jinja2": true\n     "endpointName": "|"'), {"Main"}),
    (GENERAL, NODES % ("Standard", '"jinja2": true\n     "|"'), {"endpointName"}),
    (GENERAL, NODES % ("CustomWorkflow", '"workflowName": "|"'), {"General", "Coding", "Remember"}),
    (GENERAL, NODES % ("CustomWorkflow", '"workflowUserFolderOverride": "_common", "workflowName": "|"'), {"Child"}),
    (GENERAL, NODES % ("CustomWorkflow", '"workflowUserFolderOverride": "|"'), {"_common", "alice"}),
    (GENERAL, NODES % ("ConditionalCustomWorkflow", '"conditionalWorkflows": {"yes": "|"}'), {"General"}),
    (GENERAL, NODES % ("Standard", '"structuredOutputFile": "|"'), {"Person"}),
    (GENERAL, NODES % ("Standard", '"exampleTurns": [{"|"}]'), {"user", "assistant"}),
    (GENERAL, '[{"type": "Standard", "end|"}]', {"endpointName"}),
    (GENERAL, "{|}", {"nodes", "description"}),
    (CODING, NODES % ("MCPToolCall", '"server": "|"'), {"files"}),
    (ENDPOINT, '{"|"}', {"endpoint", "apiTypeConfigFileName", "apiKey"}),
    (ENDPOINT, '{"apiTypeConfigFileName": "|"}', {"Chat", "Text"}),
    (ENDPOINT, '{"presetSamplers": {"|"}}', {"temperature", "top_p"}),
    (ENDPOINT, '{"backupEndpointName": "|"}', {"Spare"}),
    (ENDPOINT, '{"wilmerContextEstimationLevel": "|"}', {"conservative"}),
    (ENDPOINT, '{"promptTemplate": "|"}', {"chatml"}),
    (PRESET, '{"|"}', {"temperature", "top_p"}),
    (ROUTES, '{"CODE": {"|"}}', {"description", "workflow"}),
    (ROUTES, '{"CODE": {"workflow": "|"}}', {"Coding", "General"}),
    (USER, '{"routingConfig": "|"}', {"routes"}),
    (USER, '{"endpointConfigsSubDirectory": "|"}', {"home"}),
    (MEMORY, '{"endpointName": "Main", "preset": "Warm", "lookbackStartTurn": 3, "|"}', {"prompt"}),
    (MCP, '{"transport": "|"}', {"stdio", "sse"}),
    ("Users/_current-user.json", '{"currentUser": "|"}', {"alice"}),
    ("Workflows/alice/General.test.json", '{"tests": [{"expect": {"|"}}]}', {"answer", "route"}),
]


@pytest.mark.parametrize("index", range(len(PROPOSED)))
def test_what_may_stand_here_is_proposed(configs: Path, index: int) -> None:
    file, marked, wanted = PROPOSED[index]
    found = assist(file, marked.replace("|", ""), marked.index("|"))
    assert wanted <= {one.label for one in found.completions}
    assert found.start <= marked.index("|")


def test_a_key_that_is_there_is_not_proposed(configs: Path) -> None:
    text = '{"endpoint": "http://a", ""}'
    assert "endpoint" not in {one.label for one in assist(ENDPOINT, text, len(text) - 2).completions}


@pytest.mark.parametrize(
    ("before", "written"),
    [
        ('{"endp', "endpoint"),
        ("{", '"endpoint": ""'),
        ('{"apiTypeConfigFileName": ', '"Chat"'),
        ('{"apiTypeConfigFileName": "', "Chat"),
    ],
)
def test_quotation_marks_are_added_where_there_are_none(configs: Path, before: str, written: str) -> None:
    found = assist(ENDPOINT, before + "\n}", len(before))
    assert written in {one.apply or one.label for one in found.completions}


@pytest.mark.parametrize(
    ("node_type", "written"),
    [
        ("Conditional", '"valueSafe": true'),
        ("ArithmeticProcessor", '"valueSafe": true'),
        ("CurlCommand", '"blockOptionInjection": true'),
        ("CurlCommand", '"allowSchemeInjection": false'),
    ],
)
def test_a_new_key_has_the_value_of_new_files(configs: Path, node_type: str, written: str) -> None:
    before = f'{{"nodes": [{{"type": "{node_type}", '
    found = assist(GENERAL, before + "\n}]}", len(before))
    assert written in {one.apply for one in found.completions}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"endpo|int": "x"}', "The address of the LLM server"),
        ('{"endpoint": "|x"}', "The address of the LLM server"),
        ('{"parallelCalls": |3}', "How many calls the server runs side by side"),
        ('{"presetSamplers": {"top|_p": 1}}', "Considers only the most likely words"),
    ],
)
def test_what_stands_here_is_explained(configs: Path, text: str, part: str) -> None:
    hover = assist(ENDPOINT, text.replace("|", ""), text.index("|")).hover
    assert hover is not None and part in hover.text and hover.start <= text.index("|") <= hover.end


def test_a_variable_is_explained(configs: Path) -> None:
    text = NODES % ("Standard", '"prompt": "Say {agent1Output} twice"')
    hover = assist(GENERAL, text, text.index("t1Out")).hover
    assert hover is not None and hover.text == "{agent1Output}: output of node 1, One"
    assert text[hover.start : hover.end] == "agent1Output"


@pytest.mark.parametrize(
    "text", ["", "[", "]", '"', "{{{{", '{"nodes": [[[', '{"nodes": [{"type": 3, "', "\n\n", "\ud83d"]
)
def test_any_text_at_any_place_has_an_answer(configs: Path, text: str) -> None:
    for offset in {0, len(text) // 2, len(text)}:
        for path in sorted(configs.rglob("*.json")):
            assist(path.relative_to(configs).as_posix(), text, offset)
