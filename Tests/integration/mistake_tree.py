"""A small configuration in which everything is in use and nothing is wrong: what mistakes are made in.

The files are texts as a person writes them, so that a mistake has a line. A request without ``model`` is routed to
``Chat``; the shared workflows ``Tools``, ``Files`` and ``Remember`` are chosen by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

USER = "ann"
URL, SCRIPTS = "@URL@", "@SCRIPTS@"
SCRIPT = "def Invoke(*args, **kwargs):\n    return 'counted'\n"

_USER = """{
  "port": 5000,
  "routingConfig": "routes",
  "categorizationWorkflow": "Categorize",
  "customWorkflowOverride": false,
  "backgroundTaskWorkflow": "Titles",
  "endpointConfigsSubDirectory": "home",
  "allowSharedWorkflows": true,
  "sharedWorkflowsSubDirectoryOverride": "_ours",
  "chatPromptTemplateName": "Plain",
  "recentMemoryToolWorkflow": "Recall",
  "discussionIdMemoryFileWorkflowSettings": "_Memory-MemoryFile-Workflow-Settings"
}
"""

_MAIN = """{
  "endpoint": "@URL@",
  "apiTypeConfigFileName": "Chat",
  "modelNameToSendToAPI": "small",
  "apiKey": "",
  "maxContextTokenSize": 8192,
  "trimBeginningAndEndLineBreaks": true,
  "presetSamplers": {
    "temperature": 0.5
  },
  "appendPresetName": "Plain",
  "backupEndpointName": "Backup"
}
"""

_BACKUP = """{
  "endpoint": "@URL@",
  "apiTypeConfigFileName": "Chat",
  "wilmerContextEstimationLevel": "balanced"
}
"""

_COMPLETER = """{
  "endpoint": "@URL@",
  "apiTypeConfigFileName": "Text",
  "promptTemplate": "Plain"
}
"""

_CHAT_TYPE = """{
  "type": "openAIChatCompletion",
  "presetType": "Chat",
  "streamPropertyName": "stream",
  "maxNewTokensPropertyName": "max_tokens",
  "samplerFieldMap": {
    "temperature": "temperature"
  },
  "structuredOutput": {
    "field": "response_format",
    "style": "openaiJsonSchema"
  }
}
"""

_TEXT_TYPE = """{
  "type": "openAIV1Completion",
  "presetType": "Chat",
  "streamPropertyName": "stream",
  "maxNewTokensPropertyName": "max_tokens"
}
"""

_TEMPLATE = """{
  "promptTemplateSystemPrefix": "",
  "promptTemplateUserPrefix": "<user>",
  "promptTemplateUserSuffix": "</user>",
  "promptTemplateAssistantSuffix": "\\n"
}
"""

_ROUTES = """{
  "CHAT": {
    "description": "anything",
    "workflow": "Chat"
  },
  "TALK": {
    "description": "small talk",
    "workflow": "Titles"
  }
}
"""

_CATEGORIZE = """{
  "nodes": [
    {"title": "Choose", "type": "StaticResponse", "content": "CHAT"}
  ]
}
"""

_TITLES = """[
  {"title": "Title", "type": "StaticResponse", "content": "A title"}
]
"""

_RECALL = """{
  "nodes": [
    {"title": "Recall", "type": "GetCurrentMemoryFromFile"}
  ]
}
"""

_FACTS = """{
  "nodes": [
    {"title": "Facts", "type": "StaticResponse", "content": "Facts about {agent1Input}"}
  ]
}
"""

_CHAT = """{
  "tone": "short",
  "parallelNodes": true,
  "nodes": [
    {
      "title": "Summary",
      "type": "Standard",
      "endpointName": "Main",
      "preset": "Plain",
      "systemPrompt": "node:summary Be {tone}.",
      "prompt": "{chat_user_prompt_last_one}",
      "maxResponseSizeInTokens": 100
    },
    {
      "title": "Facts",
      "type": "CustomWorkflow",
      "workflowName": "Facts",
      "scoped_variables": ["{agent1Output}"]
    },
    {
      "title": "Choice",
      "type": "ConditionalCustomWorkflow",
      "conditionalKey": "{agent1Output}",
      "conditionalWorkflows": {"Default": "Facts"},
      "routeOverrides": {
        "Default": {"systemPromptOverride": "Be {tone}."}
      },
      "scoped_variables": ["{agent1Output}"]
    },
    {
      "title": "Template",
      "type": "StaticResponse",
      "jinja2": true,
      "content": "{% if agent1Output %}{{ agent2Output }}{% endif %}"
    },
    {
      "title": "Answer",
      "type": "Standard",
      "endpointName": "Main",
      "systemPrompt": "node:answer",
      "lateSystemPrompt": "{agent2Output}",
      "lastMessagesToSendInsteadOfPrompt": 5,
      "structuredOutputFile": "Shape",
      "returnToUser": true,
      "dependsOn": ["Summary", "Facts"]
    }
  ]
}
"""

_TOOLS = """{
  "nodes": [
    {
      "title": "Count",
      "type": "PythonModule",
      "module_path": "@SCRIPTS@/count.py"
    },
    {
      "title": "Search",
      "type": "ConversationalKeywordSearchPerformerTool",
      "keywords": "{agent1Output}",
      "searchTarget": "CurrentConversation"
    },
    {
      "title": "Old server",
      "type": "Standard",
      "endpointName": "Completer",
      "systemPrompt": "node:old",
      "prompt": "Say {agent1Output}.",
      "returnToUser": true
    }
  ]
}
"""

_FILES = """{
  "nodes": [
    {"title": "List", "type": "MCPToolCall", "server": "files", "tool": "list", "onError": "return"}
  ]
}
"""

_MCP = """{
  "transport": "streamable_http",
  "url": "@URL@/mcp"
}
"""

_REMEMBER = """{
  "nodes": [
    {"title": "Memory", "type": "QualityMemory"},
    {"title": "Reply", "type": "StaticResponse", "content": "Remembered", "returnToUser": true}
  ]
}
"""

_MEMORY = """{
  "endpointName": "Main",
  "preset": "Plain",
  "systemPrompt": "node:memory",
  "prompt": "Sum up: [TextChunk]",
  "chunkEstimatedTokenSize": 1000,
  "followEdits": true,
  "maxMessagesBetweenChunks": 5
}
"""

FILES: Mapping[str, str] = {
    "Users/_current-user.json": '{\n  "currentUser": "ann"\n}\n',
    "Users/ann.json": _USER,
    "Endpoints/home/Main.json": _MAIN,
    "Endpoints/home/Backup.json": _BACKUP,
    "Endpoints/home/Completer.json": _COMPLETER,
    "ApiTypes/Chat.json": _CHAT_TYPE,
    "ApiTypes/Text.json": _TEXT_TYPE,
    "Presets/Chat/Plain.json": '{\n  "temperature": 0.5\n}\n',
    "PromptTemplates/Plain.json": _TEMPLATE,
    "Routing/routes.json": _ROUTES,
    "StructuredOutputs/Shape.json": '{\n  "type": "object",\n  "properties": {"text": {"type": "string"}}\n}\n',
    "MCPServers/files.json": _MCP,
    "Workflows/ann/Categorize.json": _CATEGORIZE,
    "Workflows/ann/Chat.json": _CHAT,
    "Workflows/ann/Facts.json": _FACTS,
    "Workflows/ann/Recall.json": _RECALL,
    "Workflows/ann/Titles.json": _TITLES,
    "Workflows/ann/_Memory-MemoryFile-Workflow-Settings.json": _MEMORY,
    "Workflows/_ours/Files.json": _FILES,
    "Workflows/_ours/Remember.json": _REMEMBER,
    "Workflows/_ours/Tools.json": _TOOLS,
}
"""Texts by path below ``Configs``, with ``URL`` for the LLM server and ``SCRIPTS`` for the folder of scripts."""


class MistakeTree:
    """The configuration on disk, in ``public``, and scripts beside it."""

    def __init__(self, public: Path, url: str) -> None:
        self.public, self.configs = public, public / "Configs"
        scripts = public / "Scripts"
        scripts.mkdir(parents=True)
        (scripts / "count.py").write_text(SCRIPT, encoding="utf-8")
        self._values = {URL: url, SCRIPTS: scripts.as_posix()}
        for path in FILES:
            self.mend(path)

    def filled(self, text: str) -> str:
        """``text`` with the address and the folder of this tree."""
        for name, value in self._values.items():
            text = text.replace(name, value)
        return text

    def text(self, path: str) -> str:
        """A file as it is when nothing is wrong; empty if there is no such file then."""
        return self.filled(FILES.get(path, ""))

    def write(self, path: str, data: bytes | None) -> None:
        """Write a file; None deletes it."""
        file = self.configs / path
        if data is None:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def mend(self, path: str) -> None:
        """Make a file what it was."""
        self.write(path, self.text(path).encode("utf-8") or None)
