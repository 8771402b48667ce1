"""A config tree for tests of the LLM layer: one user, one API type, one endpoint, one preset, all changeable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils

LLAMA_CPP: dict[str, Any] = {
    "type": "openAIChatCompletion",
    "presetType": "LlamaCppServer",
    "truncateLengthPropertyName": "truncation_length",
    "maxNewTokensPropertyName": "n_predict",
    "streamPropertyName": "stream",
    "samplerFieldMap": {"temperature": "temperature", "min_p": "min_p", "stop": "stop", "top_k": "top_k"},
    "supportsChatTemplateKwargs": True,
    "thinking": {"mode": "bool", "location": "chat_template_kwargs", "field": "enable_thinking"},
    "structuredOutput": {"field": "response_format", "style": "openaiJsonSchema"},
}
OPEN_AI: dict[str, Any] = {
    "type": "openAIChatCompletion",
    "presetType": "OpenAiCompatibleApis",
    "truncateLengthPropertyName": "",
    "maxNewTokensPropertyName": "max_tokens",
    "streamPropertyName": "stream",
    "samplerFieldMap": {"temperature": "temperature", "top_p": "top_p", "stop": "stop"},
    "thinking": {"mode": "effort", "location": "top", "field": "reasoning_effort"},
}
OLLAMA: dict[str, Any] = {
    "type": "ollamaApiChat",
    "presetType": "OllamaApiChat",
    "samplerFieldMap": {"temperature": "temperature"},
    "thinking": {"mode": "bool", "location": "top", "field": "think"},
}
CLAUDE: dict[str, Any] = {
    "type": "claudeMessages",
    "presetType": "ClaudeMessages",
    "samplerFieldMap": {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "stop": "stop_sequences"},
}
CHATML: dict[str, str] = {
    "promptTemplateSystemPrefix": "<|im_start|>system\n",
    "promptTemplateSystemSuffix": "<|im_end|>\n",
    "promptTemplateUserPrefix": "<|im_start|>user\n",
    "promptTemplateUserSuffix": "<|im_end|>\n",
    "promptTemplateAssistantPrefix": "<|im_start|>assistant\n",
    "promptTemplateAssistantSuffix": "",
    "promptTemplateEndToken": "",
}


class Lab:
    """Writes config files below ``root`` and makes the process use them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._first: dict[Path, bytes] = {}
        monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(root))
        monkeypatch.setattr(instance, "USERS", ["tester"])
        self.write("Users/_current-user", {"currentUser": "tester"})
        self.user()
        self.write("ApiTypes/Llama", LLAMA_CPP)
        self.write("ApiTypes/OpenAI", OPEN_AI)
        self.write("PromptTemplates/chatml", CHATML)
        self.endpoint("Main", {})

    def write(self, name: str, content: Any) -> None:
        path = self.root / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        config_utils.reset_config_store()

    def next_row(self) -> None:
        """Give the next row of a table the files that the first one had."""
        files = {path: path.read_bytes() for path in self.root.rglob("*.json") if path.is_file()}
        self._first = self._first or files
        for path in files.keys() - self._first.keys():
            path.unlink()
        for path, content in self._first.items():
            if files.get(path) != content:
                path.write_bytes(content)
        config_utils.reset_config_store()

    def user(self, **settings: Any) -> None:
        self.write(
            "Users/tester", {"endpointConfigsSubDirectory": "lab", "chatPromptTemplateName": "chatml", **settings}
        )

    def endpoint(self, name: str, changes: dict[str, Any], url: str = "http://127.0.0.1:1") -> None:
        self.write(
            f"Endpoints/lab/{name}",
            {"endpoint": url, "apiTypeConfigFileName": "OpenAI", "modelNameToSendToAPI": "model-x", **changes},
        )

    def preset(self, preset_type: str, name: str, fields: dict[str, Any], folder: str = "tester") -> None:
        self.write("/".join(part for part in ("Presets", preset_type, folder, name) if part), fields)
