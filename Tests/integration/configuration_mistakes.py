"""Mistakes that people make in configuration files, each with the one message that it must give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

USER, CURRENT = "Users/ann.json", "Users/_current-user.json"
MAIN, BACKUP, COMPLETER = "Endpoints/home/Main.json", "Endpoints/home/Backup.json", "Endpoints/home/Completer.json"
API_TYPE, PRESET = "ApiTypes/Chat.json", "Presets/Chat/Plain.json"
TEMPLATE, ROUTES, MCP = "PromptTemplates/Plain.json", "Routing/routes.json", "MCPServers/files.json"
CHAT, CATEGORIZE = "Workflows/ann/Chat.json", "Workflows/ann/Categorize.json"
TOOLS, FILES = "Workflows/_ours/Tools.json", "Workflows/_ours/Files.json"
MEMORY = "Workflows/ann/_Memory-MemoryFile-Workflow-Settings.json"


@dataclass(frozen=True)
class Mistake:
    """One mistake: in ``file`` stands ``new`` where ``old`` was.

    Attributes:
        old: stands in the file once; empty for the whole file.
        new: texts are written as UTF-8.
        at: where the message points: text that stands once in the broken file, with ``|`` before the very place if
            that is not its start; ``|`` alone: the start of the file. By default ``new`` itself.
        says: what the message has: what is wrong, and what was expected.
        nearest: the valid name that the message offers.
        more: other files that are written too.
        ask: the ``model`` of a request that needs the file.
        has_line: the message points into the file; else it is about the file or folder as a whole.
        unreadable: ``file`` stays as it is, and may not be read.
    """

    name: str
    file: str
    old: str
    new: str | bytes
    says: tuple[str, ...]
    nearest: str = ""
    at: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    ask: str | None = None
    has_line: bool = True
    unreadable: bool = False


NO_JSON = (
    Mistake("trailing-comma", MAIN, '"Backup"', '"Backup",', ("a comma before the closing '}'",), at='"Backup"|,'),
    Mistake("single-quotes", ROUTES, '"anything"', "'anything'", ("straight double quotation marks",)),
    Mistake("comment", USER, "5000,", "5000, // the usual one", ("JSON has no comments", '"_comment"'), at="// the"),
    Mistake(
        "missing-comma",
        CHAT,
        '"preset": "Plain",',
        '"preset": "Plain"',
        ("a comma is missing", "line 9"),
        at='"systemPrompt": "node:summary',
    ),
    Mistake("missing-bracket", CATEGORIZE, "\n  ]\n", "\n", ("'[' of line 2 is not closed by ']'",), at='"CHAT"}\n|}'),
    Mistake("cut-off", PRESET, "0.5\n}\n", "0.5\n", ("ends too early", "'{' of line 1 is not closed"), at="0.5\n|"),
    Mistake("empty-file", API_TYPE, "", "", ("the file is empty",), at="|"),
    Mistake(
        "backslashes", TOOLS, "@SCRIPTS@/count.py", "C:\\scripts\\count.py", ("backslash",), at="\\scripts", ask="Tools"
    ),
    Mistake(
        "open-text",
        CHAT,
        '"title": "Facts",',
        '"title": "Facts,',
        ("no closing quotation mark",),
        at='"title": "Facts,|',
    ),
    Mistake("nan", PRESET, "0.5", "NaN", ("NaN is not a JSON value",)),
    Mistake("python-literal", USER, "false", "False", ("'False' is written false in JSON",)),
)

OTHER_JSON = (
    Mistake("list-for-object", MAIN, "", '[\n  "http://127.0.0.1:5001"\n]\n', ("a list", "an object"), at="["),
    Mistake("text-for-workflow", CHAT, "", '"Chat"\n', ("'Chat'", "an object with 'nodes', or a list of nodes")),
    Mistake(
        "duplicate-key",
        MAIN,
        '"apiKey": ""',
        '"endpoint": "http://127.0.0.1:9"',
        ("appears twice in one object", "first in line 2", "counts"),
    ),
    Mistake("not-utf-8", CHAT, '"short"', '"kürzer"'.encode("latin-1"), ("not UTF-8", "saved as UTF-8"), at='"k|\xfc'),
)

USERS = (
    Mistake(
        "unknown-user-key",
        USER,
        "allowSharedWorkflows",
        "allowSharedWorkflow",
        ("unknown", "no effect"),
        "allowSharedWorkflows",
        at='"allowSharedWorkflow"',
    ),
    Mistake(
        "misspelt-routing-key",
        USER,
        "routingConfig",
        "routingConfg",
        ("unknown", "no effect"),
        "routingConfig",
        at='"routingConfg"',
    ),
    Mistake(
        "flag-that-is-text",
        USER,
        '"allowSharedWorkflows": true',
        '"allowSharedWorkflows": "maybe"',
        ("must be true or false", "'maybe'"),
    ),
    Mistake(
        "list-for-name",
        USER,
        '"routingConfig": "routes"',
        '"routingConfig": ["routes"]',
        ("must be a string", "a list"),
    ),
    Mistake("port-text", USER, '"port": 5000', '"port": "5000a"', ("must be a whole number", "'5000a'")),
    Mistake(
        "no-custom-workflow",
        USER,
        '"customWorkflowOverride": false',
        '"customWorkflowOverride": true',
        ("'customWorkflow' names no workflow", "the name of a workflow"),
    ),
    Mistake(
        "dangling-routing",
        USER,
        '"routingConfig": "routes"',
        '"routingConfig": "route"',
        ("routing configuration 'route' does not exist",),
        "routes",
    ),
    Mistake(
        "dangling-categorization",
        USER,
        '"categorizationWorkflow": "Categorize"',
        '"categorizationWorkflow": "Categorise"',
        ("workflow 'Categorise' does not exist",),
        "Categorize",
    ),
    Mistake(
        "dangling-custom-workflow",
        USER,
        '"customWorkflowOverride": false,',
        '"customWorkflowOverride": true,\n  "customWorkflow": "Chatt",',
        ("workflow 'Chatt' does not exist",),
        "Chat",
        at='"customWorkflow":',
    ),
    Mistake(
        "dangling-background-workflow",
        USER,
        '"backgroundTaskWorkflow": "Titles"',
        '"backgroundTaskWorkflow": "Title"',
        ("workflow 'Title' does not exist",),
        "Titles",
    ),
    Mistake(
        "dangling-memory-settings",
        USER,
        '"discussionIdMemoryFileWorkflowSettings": "_Memory-MemoryFile-Workflow-Settings"',
        '"discussionIdMemoryFileWorkflowSettings": "_Memory-MemoryFile-Workflow-Setting"',
        ("_Memory-MemoryFile-Workflow-Setting' does not exist",),
        "_Memory-MemoryFile-Workflow-Settings",
        ask="Remember",
    ),
    Mistake(
        "dangling-memory-workflow",
        USER,
        '"recentMemoryToolWorkflow": "Recall"',
        '"recentMemoryToolWorkflow": "Recal"',
        ("workflow 'Recal' does not exist",),
        "Recall",
        ask="Remember",
    ),
    Mistake(
        "dangling-user-template",
        USER,
        '"chatPromptTemplateName": "Plain"',
        '"chatPromptTemplateName": "Plane"',
        ("prompt template 'Plane' does not exist",),
        "Plain",
    ),
    Mistake(
        "dangling-endpoint-folder",
        USER,
        '"endpointConfigsSubDirectory": "home"',
        '"endpointConfigsSubDirectory": "hom"',
        ("no folder 'hom' in Endpoints",),
        "home",
    ),
    Mistake(
        "dangling-shared-folder",
        USER,
        '"sharedWorkflowsSubDirectoryOverride": "_ours"',
        '"sharedWorkflowsSubDirectoryOverride": "_our"',
        ("no folder '_our' in Workflows",),
        "_ours",
    ),
    Mistake(
        "dangling-workflow-folder",
        USER,
        '"endpointConfigsSubDirectory"',
        '"workflowConfigsSubDirectoryOverride": "anne",\n  "endpointConfigsSubDirectory"',
        ("no folder 'anne' in Workflows",),
        "ann",
        at='"workflowConfigsSubDirectoryOverride"',
    ),
    Mistake(
        "several-cases",
        CHAT,
        '"workflowName": "Facts"',
        '"workflowName": "FACTS"',
        ("several names differ from it only in upper and lower case", "Workflows/ann/facts.json"),
        more={"Workflows/ann/facts.json": '[{"title": "a", "type": "StaticResponse", "content": "b"}]\n'},
    ),
    Mistake("unknown-current-user", CURRENT, '"currentUser": "ann"', '"currentUser": "anna"', ("'anna'",), "ann"),
)

ENDPOINTS = (
    Mistake(
        "no-address",
        MAIN,
        '  "endpoint": "@URL@",\n',
        "",
        ("'endpoint' is missing", "http://127.0.0.1:5001"),
        at='{\n  "apiTypeConfigFileName"',
    ),
    Mistake(
        "no-scheme",
        MAIN,
        '"endpoint": "@URL@"',
        '"endpoint": "127.0.0.1:5001"',
        ("which is not an address", "an address such as http://127.0.0.1:5001"),
        "http://127.0.0.1:5001",
    ),
    Mistake(
        "unknown-api-type",
        MAIN,
        '"apiTypeConfigFileName": "Chat"',
        '"apiTypeConfigFileName": "Chatt"',
        ("ApiType 'Chatt' does not exist",),
        "Chat",
    ),
    Mistake(
        "unknown-template",
        COMPLETER,
        '"promptTemplate": "Plain"',
        '"promptTemplate": "Plane"',
        ("prompt template 'Plane' does not exist",),
        "Plain",
        ask="Tools",
    ),
    Mistake(
        "misspelt-endpoint-key",
        MAIN,
        '"maxContextTokenSize"',
        '"maxContextTokensSize"',
        ("unknown", "no effect"),
        "maxContextTokenSize",
    ),
    Mistake(
        "endpoint-flag",
        MAIN,
        '"trimBeginningAndEndLineBreaks": true',
        '"trimBeginningAndEndLineBreaks": "always"',
        ("must be true or false", "'always'"),
    ),
    Mistake(
        "missing-backup",
        MAIN,
        '"backupEndpointName": "Backup"',
        '"backupEndpointName": "Bakcup"',
        ("endpoint 'Bakcup' does not exist",),
        "Backup",
    ),
    Mistake(
        "backup-circle",
        BACKUP,
        '"wilmerContextEstimationLevel": "balanced"',
        '"backupEndpointName": "Main"',
        ("the backups form a circle: Backup -> Main -> Backup", "a last endpoint without a backup"),
    ),
    Mistake(
        "sampler-typo", MAIN, '"temperature"', '"temprature"', ("the sampler 'temprature' is unknown",), "temperature"
    ),
    Mistake(
        "unknown-level",
        BACKUP,
        '"wilmerContextEstimationLevel": "balanced"',
        '"wilmerContextEstimationLevel": "balance"',
        ("conservative, balanced, aggressive, xaggressive",),
        "balanced",
    ),
    Mistake(
        "missing-append-preset",
        MAIN,
        '"appendPresetName": "Plain"',
        '"appendPresetName": "Plan"',
        ("preset 'Plan' does not exist",),
        "Plain",
    ),
    Mistake(
        "key-not-in-environment",
        MAIN,
        '"apiKey": ""',
        '"apiKey": "env:NO_SUCH_KEY_HERE"',
        ("the environment variable 'NO_SUCH_KEY_HERE' is not set", "'env:' with the name"),
    ),
    Mistake(
        "unknown-dialect",
        API_TYPE,
        '"openAIChatCompletion"',
        '"openAIChatCompletions"',
        ("unknown", "koboldCppGenerate"),
        "openAIChatCompletion",
        at='"type"',
    ),
    Mistake(
        "misspelt-field",
        API_TYPE,
        '"maxNewTokensPropertyName"',
        '"maxNewTokenPropertyName"',
        ("unknown", "no effect"),
        "maxNewTokensPropertyName",
    ),
    Mistake(
        "preset-typo", PRESET, '"temperature"', '"temprature"', ("the server probably does not know it",), "temperature"
    ),
    Mistake(
        "misspelt-template-field",
        TEMPLATE,
        '"promptTemplateUserPrefix"',
        '"promptTemplateUserPrefx"',
        ("unknown", "no effect"),
        "promptTemplateUserPrefix",
        ask="Tools",
    ),
)

ROUTING = (
    Mistake(
        "no-description",
        ROUTES,
        '    "description": "anything",\n',
        "",
        ("'description' is missing", "category"),
        at='"CHAT"',
    ),
    Mistake(
        "no-workflow",
        ROUTES,
        '"description": "anything",\n    "workflow": "Chat"',
        '"description": "anything"',
        ("'workflow' is missing",),
        at='"CHAT"',
    ),
    Mistake(
        "dangling-route",
        ROUTES,
        '"workflow": "Chat"',
        '"workflow": "Chats"',
        ("workflow 'Chats' does not exist",),
        "Chat",
    ),
    Mistake(
        "misspelt-route-key", ROUTES, '"workflow": "Chat"', '"workfow": "Chat"', ("unknown", "no effect"), "workflow"
    ),
    Mistake(
        "route-that-is-text",
        ROUTES,
        '{\n    "description": "anything",\n    "workflow": "Chat"\n  }',
        '"Chat"',
        ("'CHAT' must be an object", "'description' and 'workflow'"),
        at='"CHAT"',
    ),
)

WORKFLOWS = (
    Mistake(
        "unknown-node-type",
        CHAT,
        '"type": "CustomWorkflow"',
        '"type": "CustomWorkflows"',
        ("is unknown",),
        "CustomWorkflow",
    ),
    Mistake(
        "misspelt-node-key",
        CHAT,
        '"systemPrompt": "node:summary',
        '"sytemPrompt": "node:summary',
        ("unknown", "no effect"),
        "systemPrompt",
    ),
    Mistake("misspelt-needed-key", CHAT, '"workflowName"', '"worflowName"', ("unknown", "no effect"), "workflowName"),
    Mistake(
        "dangling-endpoint",
        CHAT,
        '"Main",\n      "preset"',
        '"Mian",\n      "preset"',
        ("endpoint 'Mian' does not exist",),
        "Main",
        at='"endpointName": "Mian"',
    ),
    Mistake(
        "dangling-preset", CHAT, '"preset": "Plain"', '"preset": "Plane"', ("preset 'Plane' does not exist",), "Plain"
    ),
    Mistake(
        "dangling-child",
        CHAT,
        '"workflowName": "Facts"',
        '"workflowName": "Fact"',
        ("workflow 'Fact' does not exist",),
        "Facts",
    ),
    Mistake(
        "dangling-choice",
        CHAT,
        '{"Default": "Facts"}',
        '{"Default": "Fact"}',
        ("workflow 'Fact' does not exist",),
        "Facts",
        at='"Default": "Fact"',
    ),
    Mistake(
        "missing-node-key",
        CHAT,
        '      "workflowName": "Facts",\n',
        "",
        ("'workflowName' is missing",),
        at='|{\n      "title": "Facts"',
    ),
    Mistake(
        "no-endpoint",
        CHAT,
        '      "endpointName": "Main",\n      "preset": "Plain",\n',
        "",
        ("names no endpoint", "'endpointName' with the name of a file in Endpoints"),
        at='|{\n      "title": "Summary"',
    ),
    Mistake(
        "number-that-is-text",
        CHAT,
        '"maxResponseSizeInTokens": 100',
        '"maxResponseSizeInTokens": "many"',
        ("must be a number", "'many'"),
    ),
    Mistake(
        "node-flag",
        CHAT,
        '"returnToUser": true',
        '"returnToUser": "yes please"',
        ("must be true or false", "'yes please'"),
    ),
    Mistake(
        "unknown-choice",
        TOOLS,
        '"searchTarget": "CurrentConversation"',
        '"searchTarget": "CurrentChat"',
        ("CurrentConversation, RecentMemories",),
        "CurrentConversation",
        ask="Tools",
    ),
    Mistake(
        "later-output",
        CHAT,
        'Be {tone}.",\n      "prompt"',
        'Be {agent2Output}.",\n      "prompt"',
        ("{agent2Output}: node 2 runs after this node", "the output of an earlier node"),
        at='"systemPrompt": "node:summary',
    ),
    Mistake(
        "unknown-placeholder",
        CHAT,
        '"prompt": "{chat_user_prompt_last_one}"',
        '"prompt": "{chat_user_prompt_last_on}"',
        ("is not a variable",),
        "chat_user_prompt_last_one",
    ),
    Mistake("jinja-syntax", CHAT, "{% endif %}", "{% endf %}", ("not valid Jinja2", "'endif'"), at='"content": "{% if'),
    Mistake(
        "jinja-variable",
        CHAT,
        "{{ agent2Output }}",
        "{{ agent2Ouput }}",
        ("is unknown, and so empty",),
        "agent2Output",
        at='"content": "{% if',
    ),
    Mistake(
        "override-variable",
        CHAT,
        '"systemPromptOverride": "Be {tone}."',
        '"systemPromptOverride": "Be {tne}."',
        ("{tne} is not a variable",),
        "tone",
    ),
    Mistake(
        "missing-script",
        TOOLS,
        "count.py",
        "cuont.py",
        ("the Python script 'cuont.py' does not exist",),
        "@SCRIPTS@/count.py",
        at='"module_path"',
        ask="Tools",
    ),
    Mistake(
        "missing-mcp-server",
        FILES,
        '"server": "files"',
        '"server": "file"',
        ("MCP server 'file' does not exist",),
        "files",
        ask="Files",
    ),
    Mistake(
        "dependency-on-nothing",
        CHAT,
        '"Summary", "Facts"',
        '"Sumary", "Facts"',
        ("dependsOn names no node with 'Sumary'",),
        "Summary",
    ),
    Mistake(
        "missing-schema",
        CHAT,
        '"structuredOutputFile": "Shape"',
        '"structuredOutputFile": "Shap"',
        ("schema 'Shap' does not exist",),
        "Shape",
    ),
    Mistake(
        "nodes-not-a-list",
        CATEGORIZE,
        '"nodes": [\n    {"title": "Choose", "type": "StaticResponse", "content": "CHAT"}\n  ]',
        '"nodes": {"title": "Choose", "type": "StaticResponse", "content": "CHAT"}',
        ("'nodes' must be a list", "an object"),
    ),
    Mistake("misspelt-nodes", CATEGORIZE, '"nodes"', '"node"', ("no nodes",), "nodes"),
    Mistake(
        "two-answers",
        CHAT,
        '"maxResponseSizeInTokens": 100',
        '"returnToUser": true',
        ("several nodes are marked to answer",),
        at='|{\n      "title": "Answer"',
    ),
)

OTHERS = (
    Mistake(
        "misspelt-setting",
        MEMORY,
        '"chunkEstimatedTokenSize"',
        '"chunkEstimatedTokenSiz"',
        ("unknown", "no effect"),
        "chunkEstimatedTokenSize",
        ask="Remember",
    ),
    Mistake(
        "settings-endpoint",
        MEMORY,
        '"endpointName": "Main"',
        '"endpointName": "Mian"',
        ("endpoint 'Mian' does not exist",),
        "Main",
        ask="Remember",
    ),
    Mistake(
        "settings-number",
        MEMORY,
        '"maxMessagesBetweenChunks": 5',
        '"maxMessagesBetweenChunks": "five"',
        ("must be a whole number", "'five'", "5 is used"),
        ask="Remember",
    ),
    Mistake(
        "unknown-transport",
        MCP,
        '"streamable_http"',
        '"streamable-http"',
        ("stdio, sse, streamable_http",),
        "streamable_http",
        at='"transport"',
        ask="Files",
    ),
    Mistake(
        "no-command",
        MCP,
        '"streamable_http"',
        '"stdio"',
        ("needs 'command'", "the program that is the server"),
        at='{\n  "transport"',
        ask="Files",
    ),
)

MISTAKES = (*NO_JSON, *OTHER_JSON, *USERS, *ENDPOINTS, *ROUTING, *WORKFLOWS, *OTHERS)
