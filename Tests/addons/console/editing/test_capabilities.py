"""What a new text of a configuration file lets the server do that the old one did not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from Middleware.addons.check.file_check import KINDS
from Middleware.addons.console.editing.capabilities import Capability, capabilities_in, capabilities_of, gained
from Middleware.addons.console.editing.flows import Contents, Flows
from Middleware.addons.records.kept_secrets import masked
from Middleware.workflows.handlers.registry import node_types

DISPLAYS = {
    "workflow": "Workflows/a/X.json",
    "endpoint": "Endpoints/X.json",
    "mcp-server": "MCPServers/x.json",
    "user": "Users/x.json",
}


def contents(kind: str, data: Any) -> Contents:
    return Contents(data, json.loads(masked(json.dumps(data), DISPLAYS[kind]).text))


def capabilities(kind: str, data: Any) -> list[Capability]:
    file, content = DISPLAYS[kind], contents(kind, data)
    # A workflow that uses the user-wide variable of the user below.
    user = flow({"type": "WebFetch", "url": "{base}"})
    flows = Flows(
        {"Workflows/a/User.json": (user, lambda: Contents(user, user)), file: (content.full, lambda: content)}
    )
    return [*capabilities_of(file, KINDS[kind], content, flows), *capabilities_in(flows)]


def new_capabilities(kind: str, before: Any, after: Any) -> list[str]:
    return [capability.sentence for capability in gained(capabilities(kind, before), capabilities(kind, after))]


def flow(*nodes: dict[str, Any], **variables: Any) -> dict[str, Any]:
    return {**variables, "nodes": [*nodes]}


SCRIPT = {"type": "PythonModule", "title": "Run", "module_path": "/home/me/a.py"}
CURL = {"type": "CurlCommand", "args": ["-H", "Authorization: Bearer sk-Canary", "{base}/x"]}
PROMPT = {"type": "Standard", "endpointName": "Main", "prompt": "Hi"}

GAINED = [
    ("workflow", flow(PROMPT), flow(PROMPT, SCRIPT), ["node 2 'Run' runs the script /home/me/a.py"]),
    ("workflow", flow(SCRIPT), flow({**SCRIPT, "module_path": "b.py"}), ["node 1 'Run' runs the script b.py"]),
    (
        "workflow",
        flow(SCRIPT),
        flow({**SCRIPT, "title": "Other", "args": ["x"]}, SCRIPT),
        ["node 1 'Other' gives its script the arguments x"],
    ),
    ("workflow", [PROMPT], [SCRIPT], ["node 1 'Run' runs the script /home/me/a.py"]),
    (
        "workflow",
        flow(CURL, base="http://a"),
        flow(CURL, base="http://b"),
        ["node 1 runs curl with -H Authorization: Bearer <kept secret 1> {base}/x, where {base} is http://b"],
    ),
    # A variable that names another one.
    (
        "workflow",
        flow(CURL, base="{host}", host="a"),
        flow(CURL, base="{host}", host="b"),
        [
            "node 1 runs curl with -H Authorization: Bearer <kept secret 1> {base}/x, where {base} is {host}, "
            "where {host} "
            "is b"
        ],
    ),
    (
        "workflow",
        flow(),
        flow({"type": "MCPToolCall", "server": "files", "tool": "write"}),
        ["node 1 uses the MCP server files", "node 1 calls the MCP tool write"],
    ),
    (
        "workflow",
        flow(),
        flow(
            {"type": "GetCustomFile", "filepath": "/etc/passwd"}, {"type": "SaveCustomFile", "filepath": "~/.profile"}
        ),
        ["node 1 reads the file /etc/passwd", "node 2 writes the file ~/.profile"],
    ),
    (
        "workflow",
        flow(),
        flow({"type": "WebFetch", "url": "http://me:pw@192.168.1.1/", "proxy": "http://p:1"}),
        ["node 1 sends requests to http://<kept secret 1>@192.168.1.1/", "node 1 sends requests through http://p:1"],
    ),
    (
        "endpoint",
        {"endpoint": "http://127.0.0.1:1"},
        {"endpoint": "http://elsewhere:1"},
        ["sends requests to http://elsewhere:1"],
    ),
    (
        "endpoint",
        {"endpoint": "http://127.0.0.1:1"},
        {"endpoint": "http://127.0.0.1:1", "apiPath": "/admin"},
        ["sends requests to the path /admin"],
    ),
    (
        "endpoint",
        {"apiKey": "a"},
        {"apiKey": "file:/etc/shadow"},
        ["sends the key that it takes from file:/etc/shadow"],
    ),
    (
        "mcp-server",
        {"command": "npx", "args": ["a"]},
        {"command": "npx", "args": ["b", "--token", "sk-Canary"]},
        ["starts its program with the arguments b --token <kept secret 1>"],
    ),
    (
        "mcp-server",
        {"command": "npx"},
        {"command": "sh", "env": {"LD_PRELOAD": "x.so"}, "url": "http://a", "cwd": "/"},
        [
            "starts the program sh",
            "starts its program with the environment variables LD_PRELOAD",
            "starts its program in /",
            "sends requests to http://a",
        ],
    ),
    (
        "user",
        {"allowedFileDirectories": ["/a"]},
        {"allowedFileDirectories": ["/a", "/b"]},
        ["lets nodes read and write files in /b"],
    ),
    ("user", {"allowedFileDirectories": []}, {}, ["lets nodes read and write files in every directory"]),
    (
        "user",
        {"userWideWorkflowVariables": {"base": "a"}},
        {"userWideWorkflowVariables": {"base": "b"}},
        ["changes what workflows run or reach, through the variables {base}: b"],
    ),
    (
        "user",
        {},
        {"offlineWikiApiHost": "example.org", "discussionDirectory": "/tmp"},
        ["stores conversations in /tmp", "sends requests to the host example.org"],
    ),
]

NOTHING = [
    ("workflow", flow(SCRIPT), flow({**SCRIPT, "title": "Other"}, SCRIPT)),
    ("workflow", flow(SCRIPT, PROMPT), flow(PROMPT, SCRIPT)),
    ("workflow", flow(SCRIPT), flow(PROMPT)),
    ("workflow", flow(CURL, base="a", unused="b"), flow(CURL, base="a", unused="c")),
    ("workflow", flow({**PROMPT, "module_path": "a.py"}), flow({**PROMPT, "module_path": "b.py"})),
    ("workflow", flow(), flow({**SCRIPT, "module_path": ""})),
    ("workflow", {"nodes": 3}, [3, None, {"type": ["x"]}]),
    ("endpoint", {"endpoint": "http://a", "apiKey": "a"}, {"endpoint": "http://a", "apiKey": "b"}),
    ("user", {}, {"allowedFileDirectories": ["/a"]}),
]


@pytest.mark.parametrize(("kind", "before", "after", "sentences"), GAINED)
def test_what_is_gained_is_named(kind: str, before: Any, after: Any, sentences: list[str]) -> None:
    assert new_capabilities(kind, before, after) == sentences


@pytest.mark.parametrize(("kind", "before", "after"), NOTHING)
def test_other_changes_gain_nothing(kind: str, before: Any, after: Any) -> None:
    assert new_capabilities(kind, before, after) == []


def test_each_type_that_reaches_outside_says_what_it_runs_or_reaches() -> None:
    assert [
        name
        for name, handler in node_types().items()
        if handler.reaches_outside and not any(key.capability for key in handler.KEYS[name])
    ] == []
