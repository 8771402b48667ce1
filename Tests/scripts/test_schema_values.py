"""What the schemas refuse is what the program reports, and what they accept is what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft7Validator

from Middleware.addons.check.file_check import KINDS, SETTINGS, check_content
from Middleware.utilities.config.check import KeyCheck
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.workflows.handlers.registry import node_types
from Tests.scripts.schema_lab import mistakes, schemas
from Tests.tables import table

REGISTRY = node_types()

ENDPOINT = {"endpoint": "http://127.0.0.1:1", "apiTypeConfigFileName": "LlamaCppServer"}
TEST = {"name": "It answers.", "messages": [{"role": "user", "content": "hi"}]}


def node(**keys: Any) -> dict[str, Any]:
    return {"nodes": [{"type": "StaticResponse", "content": "x", **keys}]}


WRONG: list[tuple[str, str, Any, str]] = [
    ("user, not an object", "user", [], "$"),
    ("user, port a word", "user", {"port": "five"}, "$.port"),
    ("user, port too large", "user", {"port": 70000}, "$.port"),
    ("user, flag a word", "user", {"useFileLogging": "maybe"}, "$.useFileLogging"),
    ("user, flag a list", "user", {"redactLogOutput": []}, "$.redactLogOutput"),
    ("user, name an object", "user", {"customWorkflow": {}}, "$.customWorkflow"),
    ("user, paths no list", "user", {"allowedFileDirectories": "/tmp"}, "$.allowedFileDirectories"),
    ("user, no tool name", "user", {"livenessToolCall": {"arguments": {}}}, "$.livenessToolCall"),
    ("user, a misspelt key", "user", {"prot": 5000}, "$"),
    ("current user, nobody", "current-user", {}, "$"),
    ("current user, blank", "current-user", {"currentUser": " "}, "$.currentUser"),
    ("endpoint, half an address", "endpoint", {**ENDPOINT, "endpoint": "127.0.0.1:5001"}, "$.endpoint"),
    ("endpoint, no address", "endpoint", {"apiTypeConfigFileName": "KoboldCpp"}, "$"),
    ("endpoint, a misspelt key", "endpoint", {**ENDPOINT, "maxContextTokenSise": 1}, "$"),
    (
        "endpoint, unknown level",
        "endpoint",
        {**ENDPOINT, "wilmerContextEstimationLevel": "bold"},
        "$.wilmerContextEstimationLevel",
    ),
    (
        "endpoint, a sampler a word",
        "endpoint",
        {**ENDPOINT, "presetSamplers": {"temperature": "warm"}},
        "$.presetSamplers.temperature",
    ),
    ("API type, unknown", "api-type", {"type": "openAIChat"}, "$.type"),
    ("API type, none", "api-type", {"presetType": "KoboldCpp"}, "$"),
    ("API type, thinking", "api-type", {"type": "ollamaApiChat", "thinking": {"mode": "boolean"}}, "$.thinking.mode"),
    ("preset, a list", "preset", [], "$"),
    ("preset, a sampler a word", "preset", {"temperature": "warm"}, "$.temperature"),
    ("preset, a sampler a list", "preset", {"rep_pen": [1]}, "$.rep_pen"),
    (
        "prompt template, no marks for the assistant",
        "prompt-template",
        {"promptTemplateUserPrefix": "x", "promptTemplateSystemSuffix": ""},
        "$",
    ),
    (
        "prompt template, a number",
        "prompt-template",
        {"promptTemplateUserPrefix": 5, "promptTemplateSystemPrefix": "", "promptTemplateAssistantPrefix": ""},
        "$.promptTemplateUserPrefix",
    ),
    ("routing, no workflow", "routing", {"CODING": {"description": "Code"}}, "$.CODING"),
    ("routing, a text", "routing", {"CODING": "Coding"}, "$.CODING"),
    ("MCP server, transport", "mcp-server", {"transport": "http"}, "$.transport"),
    ("MCP server, no command", "mcp-server", {"transport": "stdio"}, "$"),
    ("MCP server, no address", "mcp-server", {"transport": "sse", "url": "localhost"}, "$.url"),
    ("MCP server, no list", "mcp-server", {"transport": "stdio", "command": "x", "args": "y"}, "$.args"),
    ("structured output, empty", "structured-output", {}, "$"),
    ("structured output, no schema", "structured-output", {"type": "text"}, "$.type"),
    ("workflow, no nodes", "workflow", {"description": "x"}, "$"),
    ("workflow, empty", "workflow", [], "$"),
    ("workflow, a node a text", "workflow", ["x"], "$[0]"),
    ("node, unknown type", "workflow", node(type="StaticRespone"), "$.nodes[0].type"),
    ("node, flag a number", "workflow", node(returnToUser=1), "$.nodes[0].returnToUser"),
    ("node, number a word", "workflow", node(maxResponseSizeInTokens="many"), "$.nodes[0].maxResponseSizeInTokens"),
    ("node, list a text", "workflow", node(dependsOn="x"), "$.nodes[0].dependsOn"),
    ("node, text a list", "workflow", node(content=[]), "$.nodes[0].content"),
    ("node, no endpoint", "workflow", [{"type": "Standard", "prompt": "x"}], "$[0]"),
    ("node without type, no endpoint", "workflow", [{"prompt": "x"}], "$[0]"),
    ("node, no workflow", "workflow", [{"type": "CustomWorkflow"}], "$[0]"),
    ("node, unknown choice", "workflow", [{"type": "SaveCustomFile", "filepath": "x", "mode": "write"}], "$[0].mode"),
    ("settings, a number", "memory-settings", {"maxResponseSizeInTokens": "many"}, "$.maxResponseSizeInTokens"),
    ("settings, too few", "compactor-settings", {"maxResponseSizeInTokens": 0}, "$.maxResponseSizeInTokens"),
    ("folder, memory settings", "workflow-folder", {"condenseMemories": 3}, "$.condenseMemories"),
    ("folder, compactor settings", "workflow-folder", {"recentContextTokens": "x"}, "$.recentContextTokens"),
    ("folder, either settings", "workflow-folder", {"lookbackStartTurn": -1}, "$"),
    ("folder, workflow", "workflow-folder", node(type="X"), "$.nodes[0].type"),
    ("folder, neither", "workflow-folder", {"description": "x"}, "$"),
    ("test, no name", "workflow-test", {"tests": [{"messages": []}]}, "$.tests[0]"),
    ("test, entry", "workflow-test", {"tests": [{**TEST, "entry": "client"}]}, "$.tests[0].entry"),
    ("test, expectation", "workflow-test", {"tests": [{**TEST, "expect": {"anser": "x"}}]}, "$.tests[0].expect"),
]

RIGHT: list[tuple[str, str, Any]] = [
    ("user, empty", "user", {}),
    ("user, texts for values", "user", {"port": "5000", "useFileLogging": "True", "customWorkflow": None}),
    ("user, yes and no", "user", {"useFileLogging": "yes", "redactLogOutput": 0}),
    ("endpoint, a level in capitals", "endpoint", {**ENDPOINT, "wilmerContextEstimationLevel": " Balanced "}),
    ("user, remarks", "user", {"_comment": 1, "myNotes": [], "description": "x", "$schema": "user.schema.json"}),
    ("endpoint", "endpoint", {**ENDPOINT, "maxContextTokenSize": "8192", "presetSamplers": {"stop": "x", "own": 1}}),
    ("endpoint, nulls", "endpoint", {**ENDPOINT, "promptTemplate": None, "presetSamplers": {"seed": None}}),
    (
        "endpoint, nulls to send",
        "endpoint",
        {
            **ENDPOINT,
            "presetSamplers": {
                "seed": "__wilmer_null__",
                "ignore_eos": "__wilmer_null__",
                "dry_sequence_breakers": "__wilmer_null__",
            },
        },
    ),
    ("preset", "preset", {"whatever": [1], "$schema": "x"}),
    ("MCP server", "mcp-server", {"transport": "stdio", "command": "x", "args": ["", 5], "env": {"A": 5}}),
    ("routing", "routing", {"$schema": "x", "_c": "x", "notes": ["x"], "A": {"description": "a", "workflow": "A"}}),
    ("workflow, variables", "workflow", {**node(), "Variable": {"a": [1]}, "other": 5}),
    ("workflow, a bare list", "workflow", node()["nodes"]),
    ("node, remarks", "workflow", node(comment="x", whatever=5)),
    ("node, texts for values", "workflow", node(returnToUser="true", maxResponseSizeInTokens="{tokens}")),
    ("node, a number for a text", "workflow", node(content=5, title=3)),
    (
        "node, one scoped variable",
        "workflow",
        [{"type": "CustomWorkflow", "workflowName": "x", "scoped_variables": "{agent1Output}"}],
    ),
    ("settings, texts for values", "memory-settings", {"maxResponseSizeInTokens": "300", "condenseMemories": "false"}),
    ("settings, keys of nodes", "memory-settings", {"addUserAssistantTags": True}),
    ("folder, memory settings", "workflow-folder", {"useVectorForQualityMemory": True, "endpointName": "x"}),
    ("folder, compactor settings", "workflow-folder", {"oldContextTokens": 100, "endpointName": "x"}),
    ("folder, either settings", "workflow-folder", {"endpointName": "x"}),
    ("folder, list of nodes", "workflow-folder", node()["nodes"]),
    ("folder, settings among variables", "workflow-folder", {**node(), "preset": [], "condenseMemories": 3}),
    (
        "test",
        "workflow-test",
        {
            "user": "demo",
            "tests": [{**TEST, "replies": {"A": "x", "B": ["x", "y"]}, "expect": {"answer": {"lacks": "x"}}}],
        },
    ),
]


@table(("schema", "data", "place"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_mistake_is_marked_where_it_is(schema: str, data: Any, place: str) -> None:
    assert [problem.split(": ")[0] for problem in mistakes(schema, data)] == [place]


@table(("schema", "data"), [row[1:] for row in RIGHT], ids=[row[0] for row in RIGHT])
def test_what_the_program_accepts_is_not_marked(schema: str, data: Any) -> None:
    assert mistakes(schema, data) == []


VALUES: tuple[Any, ...] = (
    True,
    0,
    3,
    2.5,
    -1,
    "",
    " ",
    "x",
    "true",
    "False",
    "7",
    " 7 ",
    "+1.5",
    "1e3",
    "{agent1Input}",
    "a {b}",
    [],
    ["x"],
    {},
    {"a": 1},
)


@table("node_type", sorted(REGISTRY))
def test_values_of_nodes_are_marked_when_the_check_reports_them(node_type: str) -> None:
    differing = []
    for key in REGISTRY[node_type].KEYS[node_type]:
        validator = Draft7Validator(schemas()["workflow"]["definitions"][node_type]["properties"][key.name])
        differing += [
            (key.name, value)
            for value in VALUES
            if not key.choices and validator.is_valid(value) is is_reported(key, value)
        ]
    assert differing == []


STRICTER = frozenset({"endpoint", "$schema", "description"})
"""Keys with rules of their own, and remarks."""


def is_reported(key: ConfigKey, value: Any) -> bool:
    """Whether the check finds a value of a wrong kind, a number out of range, or nothing where something is needed.

    Schemas know no limits of numbers that stand in texts.
    """
    blank = key.required and key.kind == "str" and isinstance(value, str) and not value.strip()
    unlimited = replace(key, least=None, most=None)
    wrong = bool([*KeyCheck(lambda *found: found, of_node=True).value(unlimited, value, "k")])
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    limits = (key.least if key.least is not None else value), (key.most if key.most is not None else value)
    return blank or wrong or (number and not limits[0] <= value <= limits[1])


PLAIN_KINDS = sorted(set(KINDS) - {"workflow", *SETTINGS})


@pytest.mark.parametrize("name", PLAIN_KINDS)
def test_values_in_files_are_marked_when_the_check_reports_them(name: str) -> None:
    kind = KINDS[name]
    schema = schemas()[name]["additionalProperties"] if kind.entries else schemas()[name]
    check = KeyCheck(lambda *found: found)

    def reports(key: ConfigKey, value: Any) -> bool:
        return any(check.findings({key.name: value}, {key.name: key}))

    assert differing(kind.keys, schema, reports) == []


@pytest.mark.parametrize("name", SETTINGS)
def test_values_in_settings_are_marked_when_the_check_reports_them(name: str) -> None:
    def reports(key: ConfigKey, value: Any) -> bool:
        return bool(check_content("Workflows/x.json", KINDS[name], {key.name: value}))

    assert differing(KINDS[name].keys, schemas()[name], reports) == []


def differing(
    keys: Iterable[ConfigKey], schema: Mapping[str, Any], reports: Callable[[ConfigKey, Any], bool]
) -> list[tuple[str, Any]]:
    """Keys and values of which the schema thinks otherwise than the check. Limits it knows for real numbers only, and
    what is more than the kind of a value it has from elsewhere."""
    return [
        (key.name, value)
        for key in keys
        for value in VALUES
        if not ((key.least, key.most) != (None, None) and isinstance(value, str))
        and key.name not in STRICTER
        and Draft7Validator(schema["properties"][key.name]).is_valid(value) is reports(key, value)
    ]
