"""What the configuration reference says of each kind of file in addition to its keys: where it lies, and an example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KindText:
    """Prose of one kind.

    Attributes:
        place: where such a file is looked for.
        example: what a short file may hold.
        more: further paragraphs, behind the keys.
    """

    place: str
    example: Any
    more: str = ""


INTRODUCTION = """\
# Configuration reference

Everything you configure is JSON below `Public/Configs` (or the folder given with `--ConfigDirectory`). This page lists
every kind of file with all its keys, as the program declares them (`python -m Scripts.generate` writes it). If you are
new here, read [files and commands](files-and-commands.md) first.

* Where one file names another, it uses the file name without `.json`. Names may lead into sub-folders
  (`"extra/Draft"`) unless stated otherwise, but never out of their folder.
* A missing key, `null` and, for names, `""` are the same: the default applies. *Required* keys have no default.
* You may write numbers as strings (`"8080"`), and `true` and `false` as well. But samplers and `maxContextTokenSize` of
  endpoints are sent as they are written, and many LLM servers refuse a string there.
* A key that begins with `_`, or has *comment*, *description*, *note*, *remark*, *todo*, *disabled*, *unused* or
  *backup* in its name, is your own remark. `description` and `"$schema"` are allowed everywhere.
* Changes take effect for requests that arrive a second or more later. If a changed file cannot be parsed, the log
  reports the line and column; the last valid version stays in use.
* `bash run_linux.sh check` finds mistakes in all files at once, and [editors](editor.md) show them while you type.
"""

TEXTS: Mapping[str, KindText] = {
    "user": KindText(
        "`Users/<name>.json`. `--User NAME` chooses it, or else `_current-user.json`. The name is compared in lower "
        "case first, then as given.",
        {
            "port": 5005,
            "description": "My own",
            "customWorkflowOverride": True,
            "customWorkflow": "Answer",
            "endpointConfigsSubDirectory": "home-gpu",
            "presetConfigsSubDirectoryOverride": "home-gpu",
            "clampPromptToContextWindow": True,
            "userWideWorkflowVariables": {"notes": "/srv/notes/{Discussion_Id}.md"},
        },
        "Without `customWorkflowOverride` and `routingConfig`, the workflow `_DefaultWorkflow` runs. The variables in "
        "`userWideWorkflowVariables` work in all workflows of the user; see [variables](variables.md).",
    ),
    "current-user": KindText(
        "`Users/_current-user.json`, read only if no `--User` is given. Without this file, the "
        "user is `demo`; `init` writes it.",
        {"currentUser": "demo"},
    ),
    "endpoint": KindText(
        "`Endpoints/<endpointConfigsSubDirectory of the user>/<name>.json`. It is looked up only in that folder, so "
        "that a prompt never goes to a server of the same name elsewhere.",
        {
            "endpoint": "http://127.0.0.1:8080",
            "apiTypeConfigFileName": "LlamaCppServer",
            "dontIncludeModel": True,
            "maxContextTokenSize": 16384,
            "presetSamplers": {"temperature": 0.7, "min_p": 0.05},
            "trimBeginningAndEndLineBreaks": True,
        },
        "See [connecting back-ends](connecting-backends.md) and [samplers and presets](samplers-and-presets.md).",
    ),
    "api-type": KindText(
        "`ApiTypes/<name>.json`. Those that come with the program work for all servers it supports; change one only "
        "for a server with other names for its fields.",
        {
            "type": "openAIChatCompletion",
            "presetType": "OpenAiCompatibleApis",
            "maxNewTokensPropertyName": "max_tokens",
            "streamPropertyName": "stream",
            "samplerFieldMap": {"temperature": "temperature", "top_p": "top_p"},
        },
    ),
    "preset": KindText(
        "`Presets/<presetType of the API type>/<presetConfigsSubDirectoryOverride, or the user's name>/<name>.json`, "
        "then `Presets/<presetType>/<name>.json`. An endpoint with `presetSamplers` works as a preset of its name and "
        "takes precedence.",
        {"temperature": 0.7, "top_p": 0.95, "stop": ["<|end|>"]},
        "Every other key is sent to the server as it is; see [samplers and presets](samplers-and-presets.md).",
    ),
    "prompt-template": KindText(
        "`PromptTemplates/<name>.json`. Only back-ends that take one text need one; `promptTemplate` of the endpoint "
        "names it.",
        {
            "promptTemplateSystemPrefix": "<|im_start|>system\n",
            "promptTemplateSystemSuffix": "<|im_end|>\n",
            "promptTemplateUserPrefix": "<|im_start|>user\n",
            "promptTemplateUserSuffix": "<|im_end|>\n",
            "promptTemplateAssistantPrefix": "<|im_start|>assistant\n",
            "promptTemplateAssistantSuffix": "<|im_end|>\n",
        },
    ),
    "routing": KindText(
        "`Routing/<routingConfig of the user>.json`. Each key is the name of a category, with these keys inside.",
        {
            "CODING": {"description": "Programming: writing, reviewing and mending code", "workflow": "Coding"},
            "GENERAL": {"description": "Everything else", "workflow": "General"},
        },
        "The workflow in `categorizationWorkflow` gets the descriptions and answers with the name of a category.",
    ),
    "workflow": KindText(
        "`Workflows/_overrides/<workflowConfigsSubDirectoryOverride>/<name>.json`, then "
        "`Workflows/<workflowConfigsSubDirectoryOverride>/<name>.json`; without that key "
        "`Workflows/<name of the user>/<name>.json`. Clients can choose what is in the folder of "
        "`sharedWorkflowsSubDirectoryOverride` as a model: a file, or a folder with `_DefaultWorkflow.json`.",
        {
            "description": "One step: answer directly.",
            "nodes": [
                {
                    "title": "Answer",
                    "type": "Standard",
                    "endpointName": "Main",
                    "systemPrompt": "You are helpful. Today is {todays_date_pretty}.",
                    "lastMessagesToSendInsteadOfPrompt": 21,
                    "maxResponseSizeInTokens": 1500,
                    "returnToUser": True,
                }
            ],
        },
        "All other keys at the top are [variables](variables.md) of the workflow. The keys of nodes are in [node "
        "types](nodes.md). A file can also be a bare list of nodes.",
    ),
    "memory-settings": KindText(
        "in the user's workflow folder, under the name in `discussionIdMemoryFileWorkflowSettings`.",
        {
            "useVectorForQualityMemory": False,
            "endpointName": "Memory-Generation-Endpoint",
            "lookbackStartTurn": 3,
            "systemPrompt": "You keep the memory of a conversation.",
            "prompt": "Write down what is worth keeping:\n[TextChunk]",
        },
        "For how they work together, see [settings of memory](memory-settings.md).",
    ),
    "compactor-settings": KindText(
        "in the user's workflow folder, under the name in `contextCompactorSettingsFile`.",
        {"endpointName": "Worker-Endpoint", "recentContextTokens": 8000, "oldContextTokens": 8000},
        "See [context compactor](context-compactor.md).",
    ),
    "mcp-server": KindText(
        "`MCPServers/<name>.json`, not in a sub-folder.",
        {
            "transport": "streamable_http",
            "url": "http://127.0.0.1:8000/mcp",
            "headers": {"Authorization": "Bearer my-key"},
        },
        "See [tools of MCP servers](mcp.md).",
    ),
    "structured-output": KindText(
        "`StructuredOutputs/<structuredOutputConfigsSubDirectory, or the user's name>/<name>.json`, then "
        "`StructuredOutputs/<name>.json`. A node names it in `structuredOutputFile`.",
        {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"]},
        "The file is a JSON Schema, which is sent to the server as it is.",
    ),
    "workflow-test": KindText(
        "next to the workflow, `<name>.test.json`. `bash run_linux.sh test` runs them.",
        {
            "user": "demo",
            "tests": [
                {
                    "name": "The answer comes from the model.",
                    "messages": [{"role": "user", "content": "hi"}],
                    "replies": {"Answer": "Hello!"},
                    "expect": {"answer": "Hello!"},
                }
            ],
        },
        "See [tests of workflows](workflow-tests.md).",
    ),
}
