"""The kinds of configuration files, each with its position below the config root and its keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from Middleware.services.memory.compactor_settings import CompactorSettings
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.utilities.config.declarations import DESCRIPTION_KEY, SCHEMA_KEY, ConfigKey, KeyTable, settings_keys
from Middleware.utilities.config.keys.api_type import API_TYPE_KEYS, PROMPT_TEMPLATE_KEYS
from Middleware.utilities.config.keys.endpoint import ENDPOINT_KEYS
from Middleware.utilities.config.keys.mcp_server import MCP_SERVER_KEYS
from Middleware.utilities.config.keys.node import WORKFLOW_FILE_KEYS
from Middleware.utilities.config.keys.user import CURRENT_USER_KEYS, ROUTING_KEYS, USER_KEYS
from Middleware.utilities.config.keys.workflow_test import WORKFLOW_TEST_KEYS

_REMARKS = (SCHEMA_KEY, DESCRIPTION_KEY)


@dataclass(frozen=True)
class FileKind:
    """One kind of configuration file.

    Attributes:
        title: the usual name of such a file.
        pattern: glob below the config root, where ``**`` stands for any number of folders, none included.
        meaning: one sentence about the purpose of such files.
        keys: the keys of the file, or, with ``entries``, of each of its entries.
        is_open: other keys are allowed.
        top: the other keys at the top of a file with ``entries``.
        entries: every key but those of ``top`` is a name of the author's, and its value an object with ``keys``.
    """

    name: str
    title: str
    pattern: str
    meaning: str
    keys: tuple[ConfigKey, ...]
    is_open: bool = False
    top: tuple[ConfigKey, ...] = ()
    entries: bool = False
    key: Mapping[str, ConfigKey] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", KeyTable(self.keys))


_ALL = (
    FileKind(
        "current-user",
        "current user",
        "Users/_current-user.json",
        "Names the user that is served when the command line names none.",
        (*_REMARKS, *CURRENT_USER_KEYS),
    ),
    FileKind(
        "user",
        "user",
        "Users/**/*.json",
        "The settings of one user. Clients see a user as one model or several.",
        (SCHEMA_KEY, *USER_KEYS),
    ),
    FileKind(
        "endpoint", "endpoint", "Endpoints/**/*.json", "One model on one LLM server.", (*_REMARKS, *ENDPOINT_KEYS)
    ),
    FileKind(
        "api-type", "API type", "ApiTypes/**/*.json", "The API of one kind of LLM server.", (*_REMARKS, *API_TYPE_KEYS)
    ),
    FileKind(
        "preset",
        "preset",
        "Presets/**/*.json",
        "Samplers in the back-end's own names, sent as they are.",
        (SCHEMA_KEY,),
        is_open=True,
    ),
    FileKind(
        "prompt-template",
        "prompt template",
        "PromptTemplates/**/*.json",
        "The texts around messages with which the model of a completion back-end was trained.",
        (*_REMARKS, *PROMPT_TEMPLATE_KEYS),
    ),
    FileKind(
        "routing",
        "routing",
        "Routing/**/*.json",
        "The categories of requests, each with its workflow.",
        ROUTING_KEYS,
        top=(SCHEMA_KEY,),
        entries=True,
    ),
    FileKind(
        "mcp-server",
        "MCP server",
        "MCPServers/**/*.json",
        "A server with tools for MCPToolCall nodes.",
        (*_REMARKS, *MCP_SERVER_KEYS),
    ),
    FileKind(
        "structured-output",
        "structured output",
        "StructuredOutputs/**/*.json",
        "A JSON schema that answers must follow.",
        (),
        is_open=True,
    ),
    FileKind(
        "memory-settings",
        "memory settings",
        "Workflows/**/*MemoryFile-Workflow-Settings.json",
        "Settings for writing memories; the user file names this file.",
        (*_REMARKS, *settings_keys(MemorySettings).values()),
        is_open=True,
    ),
    FileKind(
        "compactor-settings",
        "compactor settings",
        "Workflows/**/*Compactor-Settings.json",
        "Settings for compacting long conversations; the user file names this file.",
        (*_REMARKS, *settings_keys(CompactorSettings).values()),
        is_open=True,
    ),
    FileKind(
        "workflow-test",
        "workflow test",
        "Workflows/**/*.test.json",
        "Tests of the workflow next to it, which need no LLM.",
        (*_REMARKS, *WORKFLOW_TEST_KEYS),
    ),
    FileKind(
        "workflow",
        "workflow",
        "Workflows/**/*.json",
        "The steps that answer a request, and the variables that they use.",
        (SCHEMA_KEY, *WORKFLOW_FILE_KEYS),
        is_open=True,
    ),
)

# By name. A file is of the first kind whose pattern matches, unless a user file names it as settings.
KINDS: Mapping[str, FileKind] = MappingProxyType({kind.name: kind for kind in _ALL})

# By key: the file that it belongs in, for those who write it in another one.
HOMES: Mapping[str, str] = {
    key.name: f"{'a' if kind.name == 'user' else 'an'} {kind.title} file ({kind.pattern})"
    for kind in (KINDS["endpoint"], KINDS["api-type"], KINDS["user"])
    for key in kind.keys
}


def kind_of(path: str) -> FileKind | None:
    """Return the kind of a file. ``path`` is relative to the config root, with forward slashes."""
    return next((kind for kind in _ALL if _expression(kind.pattern).fullmatch(path)), None)


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    parts = {"**/": "(?:[^/]+/)*", "*": "[^/]*"}
    pieces = re.split(r"(\*\*/|\*)", pattern)
    return re.compile("".join(parts.get(piece) or re.escape(piece) for piece in pieces))
