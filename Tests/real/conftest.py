"""Servers of other people, and WilmerAI in front of them; started once for all tests of this directory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from Tests.free_ports import free_port
from Tests.integration.launcher import PROJECT, USER, ConfigTree, Launcher
from Tests.real.servers import API_KEY, RealServer, litellm_proxy, llama_server

GRAMMAR = 'root ::= "yes" | "no"'
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Route:
    """A workflow of one node and its endpoint, which clients select by the route's name as ``model``."""

    server: str
    api_type: str
    samplers: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0.7})
    node: Mapping[str, Any] = field(default_factory=dict)
    endpoint: Mapping[str, Any] = field(default_factory=dict)


DIALECTS = {
    "llama-chat": Route("llama", "LlamaCppServer", {"temperature": 0.7, "ignore_eos": True}),
    "llama-text": Route("llama", "OpenAI-Compatible-Completions"),
    "litellm-openai": Route("litellm", "Open-AI-API"),
    "litellm-text": Route("litellm", "OpenAI-Compatible-Completions"),
    "litellm-claude": Route("litellm", "Claude"),
}
ROUTES = {
    **DIALECTS,
    "grammar": Route("llama", "LlamaCppServer", {"grammar": GRAMMAR}),
    "schema": Route("llama", "LlamaCppServer", node={"structuredOutputFile": "city", "maxResponseSizeInTokens": 60}),
    "tool": Route("llama", "LlamaCppServer", node={"allowTools": True, "maxResponseSizeInTokens": 200}),
    "endless": Route("llama", "LlamaCppServer", {"ignore_eos": True}, {"maxResponseSizeInTokens": 100000}),
    "wrong-key": Route("llama", "LlamaCppServer", endpoint={"apiKey": "sk-wrong"}),
    "wrong-model": Route("litellm", "Open-AI-API", endpoint={"modelNameToSendToAPI": "nobody"}),
    "dead": Route(
        "nobody",
        "LlamaCppServer",
        endpoint={"backupEndpointName": "litellm-openai", "backupPresetName": "litellm-openai"},
    ),
}


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with llama_server(tmp_path_factory.mktemp("llama"), key=API_KEY) as server:
        yield server


@pytest.fixture(scope="session")
def litellm(tmp_path_factory: pytest.TempPathFactory, llama: RealServer) -> Iterator[RealServer]:
    with litellm_proxy(tmp_path_factory.mktemp("litellm"), llama.url) as server:
        yield server


@pytest.fixture(scope="session")
def wilmer(tmp_path_factory: pytest.TempPathFactory, llama: RealServer, litellm: RealServer) -> Iterator[Launcher]:
    tree = ConfigTree(tmp_path_factory.mktemp("wilmer") / "Public")
    for folder in ("ApiTypes", "PromptTemplates"):
        shutil.copytree(PROJECT / "Public" / "Configs" / folder, tree.configs / folder)
    tree.write("Users/_current-user.json", {"currentUser": USER})
    tree.write(f"Users/{USER}.json", {"allowSharedWorkflows": True, "chatPromptTemplateName": "chatml"})
    tree.write(f"StructuredOutputs/{USER}/city.json", SCHEMA)
    urls = {"llama": llama.url, "litellm": litellm.url, "nobody": f"http://127.0.0.1:{free_port()}"}
    for name, route in ROUTES.items():
        _write(tree, name, route, urls[route.server])
    with Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0") as server:
        yield server


def _write(tree: ConfigTree, name: str, route: Route, url: str) -> None:
    tree.write(
        f"Endpoints/{name}.json",
        {
            "endpoint": url,
            "apiTypeConfigFileName": route.api_type,
            "modelNameToSendToAPI": "behind",
            "apiKey": API_KEY,
            "promptTemplate": "chatml",
            "presetSamplers": route.samplers,
            **route.endpoint,
        },
    )
    tree.shared(
        name,
        {
            "type": "Standard",
            "title": name,
            "endpointName": name,
            "preset": name,
            "prompt": "",
            "systemPrompt": "Be brief.",
            "maxResponseSizeInTokens": 12,
            "returnToUser": True,
            **route.node,
        },
    )
