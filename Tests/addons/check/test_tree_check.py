"""The check of a whole configuration: each mistake is one finding, at its file and place, with what was meant."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.check.findings import Finding
from Middleware.addons.check.tree_check import TreeCheck
from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils
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
    SPARE,
    USER,
    Mistake,
    TreeLab,
    changed,
    llm,
    nodes,
    put,
    renamed,
    without,
)
from Tests.tables import table
from Tests.windows import needs_links

CONFIGS = Path(__file__).parents[3] / "Public" / "Configs"
OLD_CONFIGS = Path(__file__).parents[2] / "integration" / "old_configuration" / "Configs"


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, [f"{finding.file}: {finding}" for finding in findings]
    return findings[0]


def test_what_is_right_is_not_mentioned(tree: TreeLab) -> None:
    result = tree.result()
    assert result.findings == []
    assert result.users == ["alice"]
    assert set(result.workflows["alice"]) == {
        "Workflows/alice/Categorize.json",
        CODING,
        GENERAL,
        "Workflows/alice/Remember.json",
        CHILD,
    }
    assert result.files == 19


def test_the_shipped_configuration_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(CONFIGS))
    config_utils.reset_config_store()
    result = TreeCheck().run()
    assert [f"{finding.file}: {finding}" for finding in result.findings] == []
    assert result.files > 80


def test_an_older_configuration_that_runs_has_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(OLD_CONFIGS))
    config_utils.reset_config_store()
    result = TreeCheck().run()
    assert [f"{finding.file}: {finding}" for finding in result.findings if finding.severity == "error"] == []
    assert len(result.users) == 7


# -- files that are no JSON, whatever needs them -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "file",
    [
        USER,
        ENDPOINT,
        API_TYPE,
        PRESET,
        ROUTES,
        GENERAL,
        MEMORY,
        CHILD,
        MCP,
        SCHEMA,
        "PromptTemplates/chatml.json",
        "Users/_current-user.json",
    ],
)
def test_a_file_that_is_no_json_is_told_once(tree: TreeLab, file: str) -> None:
    found = only(tree.check(put(file, '{\n  "nodes": [],\n}')))
    assert (found.severity, found.file, found.line, found.column) == ("error", file, 2, 14)
    assert found.message == "not valid JSON: there is a comma before the closing '}'"


@pytest.mark.parametrize("file", [USER, ENDPOINT, API_TYPE, PRESET, ROUTES, MEMORY, MCP, SCHEMA])
def test_a_file_that_holds_a_list_is_told_once(tree: TreeLab, file: str) -> None:
    found = only(tree.check(put(file, "[]")))
    assert (found.severity, found.file, found.expected) == ("error", file, "an object: { ... }")


def test_a_key_that_stands_twice(tree: TreeLab) -> None:
    found = only(tree.check(put(PRESET, '{"temperature": 1,\n "temperature": 2}')))
    assert (found.severity, found.line, found.column) == ("warning", 2, 2)


def test_a_file_that_is_not_utf8(tree: TreeLab) -> None:
    found = only(tree.check(put("StructuredOutputs/x.json", '{\n"description": "ä"}'.encode("cp1252"))))
    assert (found.severity, found.line, found.column) == ("warning", 2, 17)
    assert "not UTF-8" in found.message


def test_a_byte_order_mark_is_no_mistake(tree: TreeLab) -> None:
    assert tree.check(put(PRESET, b'\xef\xbb\xbf{"temperature": 1}')) == []


# -- one mistake, one message ------------------------------------------------------------------------------------------

MISTAKES: list[tuple[str, Mistake, str, str, str, str]] = [
    ("user: key", renamed(USER, "routingConfig", "routingConfg"), "error", USER, "routingConfg", "routingConfig"),
    ("user: routing", changed(USER, routingConfig="rutes"), "error", USER, "routingConfig", "routes"),
    (
        "user: categorization",
        changed(USER, categorizationWorkflow="Categorise"),
        "error",
        USER,
        "categorizationWorkflow",
        "Categorize",
    ),
    (
        "user: custom workflow",
        changed(USER, customWorkflowOverride=True, customWorkflow="Genral"),
        "error",
        USER,
        "customWorkflow",
        "General",
    ),
    (
        "user: custom workflow without name",
        changed(USER, customWorkflowOverride=True),
        "error",
        USER,
        "customWorkflowOverride",
        "",
    ),
    (
        "user: background workflow",
        changed(USER, backgroundTaskWorkflow="Codng"),
        "error",
        USER,
        "backgroundTaskWorkflow",
        "Coding",
    ),
    (
        "user: endpoint folder",
        changed(USER, endpointConfigsSubDirectory="hoem"),
        "error",
        USER,
        "endpointConfigsSubDirectory",
        "home",
    ),
    (
        "user: workflow folder",
        changed(USER, workflowConfigsSubDirectoryOverride="alcie"),
        "error",
        USER,
        "workflowConfigsSubDirectoryOverride",
        "alice",
    ),
    (
        "user: preset folder",
        changed(USER, presetConfigsSubDirectoryOverride="hoem"),
        "warning",
        USER,
        "presetConfigsSubDirectoryOverride",
        "home",
    ),
    (
        "user: shared folder",
        changed(USER, allowSharedWorkflows=True, sharedWorkflowsSubDirectoryOverride="_comon"),
        "warning",
        USER,
        "sharedWorkflowsSubDirectoryOverride",
        "_common",
    ),
    (
        "user: template",
        changed(USER, chatPromptTemplateName="chatlm"),
        "error",
        USER,
        "chatPromptTemplateName",
        "chatml",
    ),
    ("user: embeddings", changed(USER, embeddingEndpointName="Mian"), "error", USER, "embeddingEndpointName", "Main"),
    (
        "user: embeddings by an LLM",
        changed(USER, embeddingEndpointName="Main"),
        "error",
        USER,
        "embeddingEndpointName",
        "",
    ),
    (
        "user: embeddings of several",
        lambda files: files.update(
            {
                "Endpoints/home/Emb.json": {"endpoint": "http://127.0.0.1:5003", "apiTypeConfigFileName": "Vectors"},
                USER: {**files[USER], "embeddingEndpointName": ["Emb", "Embb"]},
            }
        ),
        "error",
        USER,
        "embeddingEndpointName[1]",
        "Emb",
    ),
    (
        "user: embeddings by no name",
        changed(USER, embeddingEndpointName=[{}]),
        "warning",
        USER,
        "embeddingEndpointName[0]",
        "",
    ),
    (
        "user: memory settings",
        changed(USER, discussionIdMemoryFileWorkflowSettings="Memry"),
        "error",
        USER,
        "discussionIdMemoryFileWorkflowSettings",
        "Memory",
    ),
    (
        "user: memory workflow",
        changed(USER, recentMemoryToolWorkflow="Remembr"),
        "error",
        USER,
        "recentMemoryToolWorkflow",
        "Remember",
    ),
    (
        "user: memory workflow that nobody needs",
        changed(USER, chatSummaryToolWorkflow="Sumary"),
        "note",
        USER,
        "chatSummaryToolWorkflow",
        "",
    ),
    ("user: number", changed(USER, port="abc"), "warning", USER, "port", ""),
    ("user: limit", changed(USER, port=70000), "warning", USER, "port", ""),
    ("user: flag", changed(USER, useFileLogging="maybe"), "warning", USER, "useFileLogging", ""),
    (
        "user: name that is no text",
        changed(USER, recentMemoryToolWorkflow=7),
        "error",
        USER,
        "recentMemoryToolWorkflow",
        "",
    ),
    ("user: key of endpoints", changed(USER, maxContextTokenSize=5), "warning", USER, "maxContextTokenSize", ""),
    ("user: unknown key", changed(USER, zebra=5), "note", USER, "zebra", ""),
    (
        "user: inner key",
        changed(USER, livenessToolCall={"toolname": "x"}),
        "error",
        USER,
        "livenessToolCall.toolname",
        "toolName",
    ),
    ("user: directories", changed(USER, allowedFileDirectories="notes"), "warning", USER, "allowedFileDirectories", ""),
    (
        "user: blank directory",
        changed(USER, allowedFileDirectories=[" "]),
        "error",
        USER,
        "allowedFileDirectories[0]",
        "",
    ),
    (
        "current user",
        put("Users/_current-user.json", {"currentUser": "alicia"}),
        "error",
        "Users/_current-user.json",
        "currentUser",
        "alice",
    ),
    (
        "routing: workflow",
        changed(ROUTES, CODE={"description": "x", "workflow": "Codng"}),
        "error",
        ROUTES,
        "CODE.workflow",
        "Coding",
    ),
    (
        "routing: key",
        changed(ROUTES, CODE={"description": "x", "workfow": "Coding"}),
        "error",
        ROUTES,
        "CODE.workfow",
        "workflow",
    ),
    ("routing: missing key", changed(ROUTES, CODE={"workflow": "Coding"}), "error", ROUTES, "CODE", ""),
    ("routing: no object", changed(ROUTES, CODE="Coding"), "error", ROUTES, "CODE", ""),
    (
        "endpoint: address",
        changed(ENDPOINT, endpoint="127.0.0.1:5001"),
        "error",
        ENDPOINT,
        "endpoint",
        "http://127.0.0.1:5001",
    ),
    (
        "endpoint: path",
        changed(ENDPOINT, endpoint="http://h:1/v1/messages"),
        "warning",
        ENDPOINT,
        "endpoint",
        "",
    ),
    ("endpoint: missing key", without(ENDPOINT, "endpoint"), "error", ENDPOINT, "", ""),
    (
        "endpoint: key",
        renamed(ENDPOINT, "apiTypeConfigFileName", "apiTypeConfigFilename"),
        "error",
        ENDPOINT,
        "apiTypeConfigFilename",
        "apiTypeConfigFileName",
    ),
    (
        "endpoint: API type",
        changed(ENDPOINT, apiTypeConfigFileName="Chta"),
        "error",
        ENDPOINT,
        "apiTypeConfigFileName",
        "Chat",
    ),
    (
        "endpoint: sampler",
        changed(ENDPOINT, presetSamplers={"temprature": 1}),
        "warning",
        ENDPOINT,
        "presetSamplers.temprature",
        "temperature",
    ),
    (
        "endpoint: a quoted sampler",
        changed(ENDPOINT, presetSamplers={"temperature": "0.7"}),
        "warning",
        ENDPOINT,
        "presetSamplers.temperature",
        "",
    ),
    (
        "endpoint: a quoted window",
        changed(ENDPOINT, maxContextTokenSize="8192"),
        "warning",
        ENDPOINT,
        "maxContextTokenSize",
        "",
    ),
    (
        "endpoint: samplers that are not taken",
        changed(ENDPOINT, presetSamplers={"min_p": 0.1, "top_k": 1}),
        "warning",
        ENDPOINT,
        "presetSamplers.min_p",
        "",
    ),
    (
        "endpoint: sampler out of range",
        changed(ENDPOINT, presetSamplers={"temperature": -1}),
        "warning",
        ENDPOINT,
        "presetSamplers.temperature",
        "",
    ),
    ("endpoint: number", changed(ENDPOINT, maxContextTokenSize="many"), "warning", ENDPOINT, "maxContextTokenSize", ""),
    (
        "endpoint: choice",
        changed(ENDPOINT, wilmerContextEstimationLevel="balancd"),
        "warning",
        ENDPOINT,
        "wilmerContextEstimationLevel",
        "balanced",
    ),
    (
        "endpoint: backup",
        changed(ENDPOINT, backupEndpointName="Spar"),
        "error",
        ENDPOINT,
        "backupEndpointName",
        "Spare",
    ),
    (
        "endpoint: preset to add",
        changed(ENDPOINT, appendPresetName="Wrm"),
        "error",
        ENDPOINT,
        "appendPresetName",
        "Warm",
    ),
    (
        "endpoint: preset of the backup",
        changed(ENDPOINT, backupEndpointName="Spare", backupPresetName="Wrm"),
        "error",
        ENDPOINT,
        "backupPresetName",
        "Warm",
    ),
    (
        "endpoint: template",
        changed(ENDPOINT, apiTypeConfigFileName="Text", promptTemplate="chatlm"),
        "error",
        ENDPOINT,
        "promptTemplate",
        "chatml",
    ),
    ("endpoint: tags", changed(ENDPOINT, removeThinking=True), "warning", ENDPOINT, "removeThinking", ""),
    (
        "endpoint: closing tag alone",
        changed(ENDPOINT, removeThinking=True, expectOnlyClosingThinkTag=True, endThinkTag="</think>"),
        "warning",
        ENDPOINT,
        "removeThinking",
        "",
    ),
    (
        "endpoint: older tag beside a new one",
        changed(ENDPOINT, removeThinking=True, thinkTagText="think", startThinkTag="<think>"),
        "warning",
        ENDPOINT,
        "removeThinking",
        "",
    ),
    (
        "endpoint: key in the environment",
        changed(ENDPOINT, apiKey="env:NO_SUCH_VARIABLE"),
        "warning",
        ENDPOINT,
        "apiKey",
        "",
    ),
    (
        "API type: type",
        changed(API_TYPE, type="openAIChatCompletions"),
        "error",
        API_TYPE,
        "type",
        "openAIChatCompletion",
    ),
    (
        "API type: inner choice",
        changed(API_TYPE, thinking={"mode": "effrt", "field": "x"}),
        "warning",
        API_TYPE,
        "thinking.mode",
        "effort",
    ),
    (
        "API type: sampler",
        changed(API_TYPE, samplerFieldMap={"temperature": "t", "top_pp": "x"}),
        "warning",
        API_TYPE,
        "samplerFieldMap.top_pp",
        "top_p",
    ),
    ("preset: key", put(PRESET, {"temprature": 1}), "warning", PRESET, "temprature", "temperature"),
    (
        "template: key",
        renamed("PromptTemplates/chatml.json", "promptTemplateUserPrefix", "promptTemplateUserPrefx"),
        "warning",
        "PromptTemplates/chatml.json",
        "promptTemplateUserPrefx",
        "promptTemplateUserPrefix",
    ),
    ("MCP: transport", changed(MCP, transport="stdoi"), "error", MCP, "transport", "stdio"),
    ("MCP: command", without(MCP, "command"), "error", MCP, "", ""),
    ("MCP: address", put(MCP, {"transport": "sse", "url": "localhost"}), "error", MCP, "url", ""),
    ("memory: endpoint", changed(MEMORY, endpointName="Mian"), "error", MEMORY, "endpointName", "Main"),
    (
        "memory: key",
        renamed(MEMORY, "lookbackStartTurn", "lookBackStartTurn"),
        "warning",
        MEMORY,
        "lookBackStartTurn",
        "lookbackStartTurn",
    ),
    ("memory: number", changed(MEMORY, lookbackStartTurn="five"), "warning", MEMORY, "lookbackStartTurn", ""),
    ("schema: empty", put(SCHEMA, {}), "error", SCHEMA, "", ""),
    ("workflow: endpoint", nodes(llm(endpointName="Mian")), "error", GENERAL, "nodes[0].endpointName", "Main"),
    ("workflow: preset", nodes(llm(preset="Wram")), "error", GENERAL, "nodes[0].preset", "Warm"),
    (
        "workflow: child",
        put(CODING, {"nodes": [{"type": "CustomWorkflow", "workflowName": "Categrize"}]}),
        "error",
        CODING,
        "nodes[0].workflowName",
        "Categorize",
    ),
    (
        "workflow: folder of a child",
        put(
            CODING,
            {"nodes": [{"type": "CustomWorkflow", "workflowName": "Child", "workflowUserFolderOverride": "_comon"}]},
        ),
        "error",
        CODING,
        "nodes[0].workflowUserFolderOverride",
        "_common",
    ),
    (
        "workflow: schema",
        nodes(llm(structuredOutputFile="Persn")),
        "error",
        GENERAL,
        "nodes[0].structuredOutputFile",
        "Person",
    ),
    (
        "workflow: MCP server",
        nodes({"type": "MCPToolCall", "server": "fils", "tool": "x"}),
        "error",
        GENERAL,
        "nodes[0].server",
        "files",
    ),
    (
        "workflow: type",
        nodes({"type": "StaticRespons", "content": "x"}),
        "error",
        GENERAL,
        "nodes[0].type",
        "StaticResponse",
    ),
    ("workflow: key", nodes(llm(systmPrompt="x")), "warning", GENERAL, "nodes[0].systmPrompt", "systemPrompt"),
    (
        "workflow: key for the endpoint",
        nodes({"type": "Standard", "endpoint": "Main", "preset": "Warm"}),
        "error",
        GENERAL,
        "nodes[0].endpoint",
        "endpointName",
    ),
    (
        "workflow: later output",
        nodes(llm(prompt="{agent2Output}", returnToUser=False), llm()),
        "error",
        GENERAL,
        "nodes[0].prompt",
        "",
    ),
    (
        "workflow: variable",
        nodes(llm(prompt="{chat_user_prompt_last_on}")),
        "warning",
        GENERAL,
        "nodes[0].prompt",
        "chat_user_prompt_last_one",
    ),
    (
        "workflow: choice",
        nodes({"type": "MCPToolCall", "server": "files", "tool": "x", "onError": "rase"}),
        "warning",
        GENERAL,
        "nodes[0].onError",
        "raise",
    ),
    ("workflow: nodes", renamed(GENERAL, "nodes", "node"), "error", GENERAL, "node", "nodes"),
    ("workflow: a node that is none", put(GENERAL, {"nodes": ["x"]}), "error", GENERAL, "nodes[0]", ""),
    ("workflow: parallel", changed(GENERAL, parallelNode=True), "warning", GENERAL, "parallelNode", "parallelNodes"),
    ("folder", put("Endpoint/Main.json", {}), "warning", "Endpoint/Main.json", "", "Endpoints"),
    ("loose file", put("Main.json", {}), "warning", "Main.json", "", ""),
    ("ending", put("Endpoints/home/New.json.txt", {}), "warning", "Endpoints/home/New.json.txt", "", "New.json"),
    (
        "folder of servers",
        put("MCPServers/mine/x.json", {"transport": "stdio", "command": "x"}),
        "warning",
        "MCPServers/mine/x.json",
        "",
        "",
    ),
]


@table(
    ("mistake", "severity", "file", "path", "meant"),
    [entry[1:] for entry in MISTAKES],
    ids=[entry[0] for entry in MISTAKES],
)
def test_one_mistake_is_one_finding(
    tree: TreeLab, mistake: Mistake, severity: str, file: str, path: str, meant: str
) -> None:
    found = only(tree.check(mistake))
    assert (found.severity, found.file, found.json_path, found.suggestion) == (severity, file, path, meant)
    assert found.expected or found.suggestion or found.message


REACHED = [entry for entry in MISTAKES if entry[3].startswith(("Users/al", "Workflows", "Routing", "Endpoints/home/M"))]


@table(
    ("mistake", "severity", "file", "path", "meant"),
    [entry[1:] for entry in REACHED],
    ids=[entry[0] for entry in REACHED],
)
def test_it_is_found_for_one_user_alone(
    tree: TreeLab, mistake: Mistake, severity: str, file: str, path: str, meant: str
) -> None:
    found = only(tree.check(mistake, users=["alice"]))
    assert (found.severity, found.file, found.json_path, found.suggestion) == (severity, file, path, meant)


STATIC = {"nodes": [{"type": "StaticResponse", "content": "x"}]}


@pytest.mark.parametrize("name", ["DefaultWorkflow", "_Default_Workflow", "default-workflow"])
def test_a_misnamed_default_workflow(tree: TreeLab, name: str) -> None:
    found = only(tree.check(put(f"Workflows/alice/journal/{name}.json", STATIC)))
    assert (found.severity, found.suggestion) == ("warning", "_DefaultWorkflow.json")
    assert "the folder 'journal' as a model" in found.message


@pytest.mark.parametrize("names", [["_DefaultWorkflow", "DefaultWorkflow"], ["Workflow"]])
def test_names_beside_a_default_workflow_are_free(tree: TreeLab, names: list[str]) -> None:
    assert not tree.check(*(put(f"Workflows/alice/journal/{name}.json", STATIC) for name in names))


def test_places(tree: TreeLab) -> None:
    found = only(tree.check(nodes(llm(), llm(returnToUser=False, preset="Wram"))))
    lines = (tree.public / "Configs" / GENERAL).read_text("utf-8").split("\n")
    assert found.line is not None and found.column is not None
    assert lines[found.line - 1][found.column - 1 :].startswith('"preset": "Wram"')


@pytest.mark.parametrize(
    "content", [{"nodes": [], "_comment": "x", "description": "y", "$schema": "z"}, {"nodes": [llm()], "anything": 1}]
)
def test_remarks_and_variables_are_no_mistakes(tree: TreeLab, content: Any) -> None:
    found = tree.check(put("Workflows/elsewhere/Own.json", content), changed(USER, _comment="x", remarkOfMine=1))
    assert [one for one in found if "no nodes" not in one.message] == []


def test_backups_in_a_circle_are_told_once(tree: TreeLab) -> None:
    found = only(tree.check(changed(ENDPOINT, backupEndpointName="Spare"), changed(SPARE, backupEndpointName="Main")))
    assert (found.file, found.json_path) == (ENDPOINT, "backupEndpointName")
    assert "Main -> Spare -> Main" in found.message


def test_a_backup_far_away(tree: TreeLab) -> None:
    far = changed(SPARE, endpoint="http://8.8.8.8:1")
    found = only(tree.check(changed(ENDPOINT, backupEndpointName="Spare"), far))
    assert found.expected == '"allowRemoteBackup": true in the file of that endpoint'
    allowed = changed(SPARE, endpoint="http://8.8.8.8:1", allowRemoteBackup=True)
    assert tree.check(changed(ENDPOINT, backupEndpointName="Spare"), allowed) == []


@table(
    ("port", "user", "address", "own"),
    [
        (None, {}, "http://127.0.0.1:5000", True),
        (None, {}, "http://127.0.0.1:5001", False),
        (None, {"port": 5001}, "http://127.0.0.1:5001/v1", True),
        (None, {"port": 5001}, "http://127.0.0.1:5000", False),
        (None, {"port": 80}, "http://localhost", True),
        # What the command line says counts for all users.
        (5055, {"port": 5001}, "http://127.0.0.1:5001", False),
        (5055, {"port": 5001}, "HTTPS://User:Pass@LocalHost:5055/v1?x=y", True),
        *[
            (5055, {}, f"http://{host}:5055", own)
            for host, own in (
                ("0.0.0.0", True),
                ("[::1]", True),
                ("[::]", True),
                ("127.8.8.8", True),
                ("localhost.", True),
                (socket.gethostname(), True),
                ("192.0.2.7", False),
                ("llm.example", False),
                ("host.docker.internal", False),
            )
        ],
        (5055, {}, "127.0.0.1:5055", False),
        (0, {"port": 0}, "http://127.0.0.1", False),
    ],
)
def test_an_endpoint_that_is_this_server(
    tree: TreeLab, port: int | None, user: dict[str, Any], address: str, own: bool
) -> None:
    found = [
        one
        for one in tree.check(changed(USER, **user), changed(ENDPOINT, endpoint=address), port=port)
        if "leads back to this WilmerAI" in one.message
    ]
    assert len(found) == int(own)
    for one in found:
        assert (one.severity, one.file, one.json_path) == ("error", ENDPOINT, "endpoint") and one.line is not None


def test_a_backup_that_makes_embeddings(tree: TreeLab) -> None:
    vectors = put(SPARE, {"endpoint": "http://127.0.0.1:1", "apiTypeConfigFileName": "Vectors"})
    assert "cannot write text" in only(tree.check(changed(ENDPOINT, backupEndpointName="Spare"), vectors)).message


@pytest.mark.parametrize(
    ("node", "key"),
    [
        ({"type": "PythonModule", "module_path": "{agent1Output}.py"}, "module_path"),
        ({"type": "MCPToolCall", "server": "{chat_user_prompt_last_one}", "tool": "x"}, "server"),
        ({"type": "MCPToolCall", "server": "files", "tool": "{agent1Output}"}, "tool"),
        ({"type": "MCPToolCall", "server": "files", "tool": "{through}"}, "tool"),
        ({"type": "MCPToolCall", "server": "files", "tool": "{fixed}"}, None),
        ({"type": "MCPToolCall", "server": "files", "tool": "{Discussion_Id}"}, None),
    ],
)
def test_what_is_run_is_not_chosen_by_an_llm(tree: TreeLab, node: dict[str, Any], key: str | None) -> None:
    workflow = {"nodes": [llm(returnToUser=False), node], "through": "{agent1Output}", "fixed": "x"}
    found = [(one.severity, one.json_path) for one in tree.check(put(GENERAL, workflow))]
    assert found == ([("warning", f"nodes[1].{key}")] if key else [])


# -- users -------------------------------------------------------------------------------------------------------------

BOB = {"customWorkflowOverride": True, "customWorkflow": "Start", "userWideWorkflowVariables": {"motto": "x"}}
START = {
    "nodes": [
        {
            "type": "CustomWorkflow",
            "workflowName": "Child",
            "workflowUserFolderOverride": "_common",
            "scoped_variables": ["x"],
        }
    ]
}


def test_a_workflow_is_checked_with_the_settings_of_each_user(tree: TreeLab) -> None:
    bob = (put("Users/bob.json", BOB), put("Workflows/bob/Start.json", START))
    found = only(tree.check(*bob))
    assert (found.file, found.json_path, found.users) == (CHILD, "nodes[0].endpointName", ("bob",))
    assert "Endpoints/Main.json" in found.message
    assert only(tree.check(*bob, users=["bob"])).users == ()
    assert tree.check(*bob, users=["alice"]) == []
    everybody = only(
        tree.check(
            *bob,
            put("Endpoints/Main.json", good_endpoint()),
            put(CHILD, {"nodes": [llm(preset=None, prompt="{mottoo}")]}),
        )
    )
    assert everybody.users == ()


def good_endpoint() -> dict[str, Any]:
    return {"endpoint": "http://127.0.0.1:1", "apiTypeConfigFileName": "Chat"}


def test_a_workflow_that_nobody_reaches_is_checked_by_itself(tree: TreeLab) -> None:
    lost = {
        "nodes": [
            llm(endpointName="Elsewhere", preset="Any", structuredOutputFile="Any", prompt="{motto}"),
            {"type": "CustomWorkflow", "workflowName": "Any"},
            {"type": "QualityMemory"},
        ]
    }
    files = (
        put("Workflows/_archived/deep/Lost.json", lost),
        put("Users/bob.json", {**BOB, "endpointConfigsSubDirectory": "home"}),
        put("Workflows/bob/Start.json", {"nodes": [llm(preset="")]}),
    )
    assert tree.check(*files) == []
    lost["nodes"][0]["promt"] = "x"
    found = only(tree.check(*files))
    assert (found.file, found.json_path) == ("Workflows/_archived/deep/Lost.json", "nodes[0].promt")
    assert tree.check(*files, users=["alice", "bob"]) == []


def test_an_endpoint_that_nobody_uses(tree: TreeLab) -> None:
    example = {**good_endpoint(), "appendPresetName": "Warm", "apiKey": "env:NO_SUCH_VARIABLE"}
    assert tree.check(put("Endpoints/_examples/E.json", example)) == []
    example["appendPresetName"] = "Wrm"
    found = only(tree.check(put("Endpoints/_examples/E.json", example)))
    assert (found.json_path, found.suggestion) == ("appendPresetName", "Warm")


SHARED = {
    "Workflows/_shared/fast/_DefaultWorkflow.json",
    "Workflows/_shared/_hidden/_DefaultWorkflow.json",
    "Workflows/_shared/Single.json",
}


def share(**keys: Any) -> list[Mistake]:
    return [put(file, {"nodes": [llm(**keys)]}) for file in sorted(SHARED)]


def test_shared_workflows_belong_to_who_lists_them(tree: TreeLab) -> None:
    result = tree.result(*share(), changed(USER, allowSharedWorkflows=True))
    assert result.findings == []
    assert set(result.workflows["alice"]) >= SHARED


def test_shared_workflows_with_the_endpoints_of_others(tree: TreeLab) -> None:
    """All can be chosen by name, but nobody does who has workflows of their own and is shown no list of them."""
    others = [
        *share(endpointName="Fast", preset=""),
        put("Endpoints/fast/Fast.json", good_endpoint()),
        put("Users/bob.json", {"allowSharedWorkflows": True, "endpointConfigsSubDirectory": "fast"}),
    ]
    result = tree.result(*others)
    assert result.findings == []
    assert set(result.workflows["bob"]) >= SHARED
    assert not SHARED & set(result.workflows["alice"])
    assert {one.file for one in tree.check(*others, changed(USER, allowSharedWorkflows=True))} == SHARED


@pytest.mark.parametrize(
    "keys",
    [
        {"allowSharedWorkflows": "true"},
        {"customWorkflowOverride": True, "customWorkflow": "Start", "sharedWorkflowsSubDirectoryOverride": "_mine"},
        {},
        {"sharedWorkflowsSubDirectoryOverride": "_shared"},
        {"customWorkflow": "Start"},
    ],
    ids=["lists them", "names a folder", "has nothing else", "nor then", "nor then, too"],
)
def test_who_is_meant_to_choose_shared_workflows(tree: TreeLab, keys: dict[str, Any]) -> None:
    folder = "_mine" if "_mine" in keys.values() else "_shared"
    found = tree.check(
        put(f"Workflows/{folder}/One.json", {"nodes": [llm(endpointName="Mian", preset="")]}),
        put("Workflows/bob/Start.json", {"nodes": [llm(preset="")]}),
        put("Users/bob.json", {**keys, "endpointConfigsSubDirectory": "home"}),
    )
    assert [(one.file, one.json_path, one.suggestion) for one in found if one.severity == "error"] == [
        (f"Workflows/{folder}/One.json", "nodes[0].endpointName", "Main")
    ]


def test_overrides_come_first(tree: TreeLab) -> None:
    result = tree.result(put("Workflows/_overrides/alice/General.json", {"nodes": [llm(preset="Wram")]}))
    assert only(result.findings).file == "Workflows/_overrides/alice/General.json"
    assert GENERAL not in result.workflows["alice"]


def test_a_user_in_a_folder_and_one_with_an_underscore(tree: TreeLab) -> None:
    result = tree.result(
        put("Users/_old/bob.json", {**BOB, "customWorkflow": "Strt"}),
        put("Users/_carol.json", {**BOB, "customWorkflow": "Strt"}),
        put("Workflows/_carol/Start.json", {"nodes": []}),
        put("Workflows/_old/bob/Start.json", {"nodes": []}),
    )
    assert set(result.users) == {"alice", "_old/bob", "_carol"}
    assert {one.file for one in result.findings if one.severity == "error"} == {
        "Users/_old/bob.json",
        "Users/_carol.json",
    }


def test_a_user_without_any_workflow(tree: TreeLab) -> None:
    found = only(tree.check(put("Users/bob.json", {})))
    assert (found.severity, found.file) == ("error", "Users/bob.json")
    assert "no workflows" in found.message
    assert (
        tree.check(
            put("Users/bob.json", {}),
            put("Workflows/_shared/One.json", {"nodes": [{"type": "StaticResponse", "content": "x"}]}),
        )
        == []
    )


def test_settings_that_nobody_names_are_no_workflows(tree: TreeLab) -> None:
    spare = {"endpointName": "Main", "prompt": "[TextChunk]", "chunkEstimatedTokenSize": "many"}
    found = only(tree.check(put("Workflows/alice/Spare.json", spare)))
    assert (found.file, found.json_path) == ("Workflows/alice/Spare.json", "chunkEstimatedTokenSize")


def test_tests_of_workflows_are_no_workflows(tree: TreeLab) -> None:
    result = tree.result(put("Workflows/alice/General.test.json", {"tests": []}))
    assert result.findings == []
    assert "Workflows/alice/General.test.json" not in result.workflows["alice"]


def test_no_configuration_at_all(tree: TreeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(tree.public / "nothing"))
    found = only(TreeCheck().run().findings)
    assert (found.severity, found.file) == ("error", str(tree.public / "nothing"))


def test_secrets_are_never_shown(tree: TreeLab) -> None:
    findings = tree.check(
        changed(ENDPOINT, apiKey=["hunter2"], endpoint="tom:hunter2@127.0.0.1:1"),
        changed(SPARE, endpoint="http://tom:hunter2@h:1/v1/messages?key=hunter2#hunter2", apikey="hunter2"),
        put(MCP, {"transport": "sse", "url": "tom:hunter2@x", "headers": {"Authorization": ["hunter2"]}}),
        put("Endpoints/home/Third.json", {**good_endpoint(), "apiKey": "file:/no/such/hunter2"}),
        nodes(llm(endpointName="Third", preset="")),
    )
    assert len(findings) >= 6
    assert "hunter2" not in json.dumps([str(finding) for finding in findings])


@needs_links
def test_links_that_lead_back_are_not_followed(tree: TreeLab) -> None:
    expected = tree.result()
    folder = tree.public / "Configs" / "Workflows" / "alice"
    (folder / "here").symlink_to(".")
    (folder / "up").symlink_to("..")
    (folder / "elsewhere").symlink_to(tree.public / "elsewhere")
    (folder / "circle.json").symlink_to("circle.json")
    found = tree.result()
    assert {finding.file for finding in found.findings} == {"Workflows/alice/circle.json", "Workflows/alice/elsewhere"}
    assert (expected.findings, found.files) == ([], expected.files + 1)
