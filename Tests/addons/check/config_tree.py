"""A small configuration without mistakes, into which tests put one, and short ways to check it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.check.findings import Finding
from Middleware.addons.check.tree_check import CheckResult, TreeCheck
from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils

Files = dict[str, Any]
"""Path below the config root -> bytes, a text, or what is written as JSON."""

Mistake = Callable[[Files], None]


@dataclass(frozen=True)
class Link:
    """A symbolic link in place of a file."""

    target: str


USER, ENDPOINT, SPARE = "Users/alice.json", "Endpoints/home/Main.json", "Endpoints/home/Spare.json"
API_TYPE, PRESET, ROUTES = "ApiTypes/Chat.json", "Presets/OpenAi/home/Warm.json", "Routing/routes.json"
GENERAL, CODING, MEMORY = "Workflows/alice/General.json", "Workflows/alice/Coding.json", "Workflows/alice/Memory.json"
CHILD, MCP, SCHEMA = "Workflows/_common/Child.json", "MCPServers/files.json", "StructuredOutputs/Person.json"

TEMPLATE = {
    f"promptTemplate{role}{end}": "" for role in ("System", "User", "Assistant") for end in ("Prefix", "Suffix")
}


def llm(**keys: Any) -> dict[str, Any]:
    return {
        "title": "Answer",
        "type": "Standard",
        "endpointName": "Main",
        "preset": "Warm",
        "prompt": "",
        "returnToUser": True,
        **keys,
    }


def good_files() -> Files:
    endpoint = {
        "endpoint": "http://127.0.0.1:5001",
        "apiTypeConfigFileName": "Chat",
        "modelNameToSendToAPI": "m",
        "maxContextTokenSize": 8192,
        "presetSamplers": {"temperature": 0.7},
    }
    return {
        "Users/_current-user.json": {"currentUser": "alice"},
        USER: {
            "routingConfig": "routes",
            "categorizationWorkflow": "Categorize",
            "endpointConfigsSubDirectory": "home",
            "presetConfigsSubDirectoryOverride": "home",
            "workflowConfigsSubDirectoryOverride": "alice",
            "chatPromptTemplateName": "_chatonly",
            "discussionIdMemoryFileWorkflowSettings": "Memory",
            "recentMemoryToolWorkflow": "Remember",
        },
        ENDPOINT: endpoint,
        SPARE: {**endpoint, "endpoint": "http://127.0.0.1:5002"},
        API_TYPE: {
            "type": "openAIChatCompletion",
            "presetType": "OpenAi",
            "maxNewTokensPropertyName": "max_tokens",
            "streamPropertyName": "stream",
            "samplerFieldMap": {"temperature": "temperature", "top_p": "top_p"},
        },
        "ApiTypes/Text.json": {
            "type": "openAIV1Completion",
            "presetType": "OpenAi",
            "samplerFieldMap": {"temperature": "temperature"},
        },
        "ApiTypes/Vectors.json": {"type": "openAIEmbeddings"},
        PRESET: {"temperature": 1},
        "PromptTemplates/_chatonly.json": TEMPLATE,
        "PromptTemplates/chatml.json": {**TEMPLATE, "promptTemplateUserPrefix": "x"},
        ROUTES: {
            "CODE": {"description": "code", "workflow": "Coding"},
            "OTHER": {"description": "the rest", "workflow": "General"},
            # For answers that name no category, as there is no _DefaultWorkflow.
            "UNKNOWN": {"description": "not clear", "workflow": "General"},
        },
        "Workflows/alice/Categorize.json": {
            "nodes": [llm(prompt="{category_colon_descriptions}: {chat_user_prompt_last_one}")]
        },
        CODING: {
            "nodes": [
                {
                    "type": "CustomWorkflow",
                    "workflowName": "Child",
                    "workflowUserFolderOverride": "_common",
                    "scoped_variables": ["{chat_user_prompt_last_one}"],
                }
            ]
        },
        GENERAL: {"nodes": [llm(title="Think", returnToUser=False), llm(prompt="{agent1Output}")]},
        MEMORY: {
            "endpointName": "Main",
            "preset": "Warm",
            "prompt": "[TextChunk]",
            "lookbackStartTurn": 3,
            "followEdits": True,
        },
        "Workflows/alice/Remember.json": {"nodes": [{"type": "QualityMemory"}, llm()]},
        CHILD: {"nodes": [llm(prompt="{agent1Input}")]},
        MCP: {"transport": "stdio", "command": "python3", "args": []},
        SCHEMA: {"type": "object"},
    }


def changed(file: str, **keys: Any) -> Mistake:
    """Other values for some keys of a file."""
    return lambda files: files.__setitem__(file, {**files[file], **keys})


def without(file: str, *keys: str) -> Mistake:
    """A file without some of its keys."""
    return lambda files: files.__setitem__(file, {key: value for key, value in files[file].items() if key not in keys})


def renamed(file: str, key: str, name: str) -> Mistake:
    """A file with another name for one of its keys."""
    return lambda files: files.__setitem__(
        file, {name if one == key else one: value for one, value in files[file].items()}
    )


def put(file: str, content: Any) -> Mistake:
    """A file with other content, or a new file."""
    return lambda files: files.__setitem__(file, content)


def nodes(*all_nodes: dict[str, Any]) -> Mistake:
    """Other nodes for the workflow General."""
    return put(GENERAL, {"nodes": list(all_nodes)})


def write_tree(public: Path, *mistakes: Mistake) -> Path:
    """Write the configuration with these mistakes below ``public``; returns its root."""
    files = good_files()
    for mistake in mistakes:
        mistake(files)
    for name, content in files.items():
        path = public / "Configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.target)
            continue
        if not isinstance(content, bytes):
            content = (content if isinstance(content, str) else json.dumps(content, indent=2)).encode("utf-8")
        path.write_bytes(content)
    return public / "Configs"


class TreeLab:
    """Checks configurations in a temporary folder."""

    def __init__(self, public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.public = public
        for name in ("CONFIG_DIRECTORY", "DISCUSSION_DIRECTORY", "USER_LEVEL_SQLITE_DIRECTORY", "USERS"):
            monkeypatch.setattr(instance, name, None)
        monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", str(public))

    def next_row(self) -> None:
        """Leave nothing to the next row of a table."""
        shutil.rmtree(self.public, ignore_errors=True)

    def result(self, *mistakes: Mistake, users: Iterable[str] | None = None, port: int | None = None) -> CheckResult:
        write_tree(self.public, *mistakes)
        config_utils.reset_config_store()
        return TreeCheck(None if users is None else list(users), port=port).run()

    def check(self, *mistakes: Mistake, users: Iterable[str] | None = None, port: int | None = None) -> list[Finding]:
        return self.result(*mistakes, users=users, port=port).findings
