"""What ``check`` says about the address of an endpoint file, and about its ``apiPath``."""

from __future__ import annotations

from typing import Any

import pytest

from Tests.addons.check.config_tree import API_TYPE, ENDPOINT, TreeLab, changed
from Tests.tables import table

H = "http://192.168.1.9:8000"
NOTE, WARNING = "note", "warning"


@table(
    "type_, keys, severity, path, text",
    [
        # Nothing to say.
        ("openAIChatCompletion", {"endpoint": H}, "", "", ""),
        ("openAIChatCompletion", {"endpoint": f"{H}/v1/?key=x"}, "", "", ""),
        ("openAIChatCompletion", {"endpoint": f"{H}/v1/chat/completions"}, "", "", ""),
        ("openAIChatCompletion", {"endpoint": f"{H}/v1/models"}, "", "", ""),
        ("openAIChatCompletion", {"endpoint": f"{H}/api/paas/v4"}, "", "", ""),
        ("openAIChatCompletion", {"endpoint": f"{H}/llm", "apiPath": ""}, "", "", ""),
        ("openAIChatCompletion", {"endpoint": f"{H}/llm", "apiPath": "/v9"}, "", "", ""),
        ("ollamaApiChat", {"endpoint": f"{H}/v1"}, "", "", ""),
        ("koboldCppGenerate", {"endpoint": f"{H}/kobold"}, "", "", ""),
        # Two forms.
        (
            "openAIChatCompletion",
            {"endpoint": f"{H}/llm/gateway/"},
            NOTE,
            "endpoint",
            f"calls go to {H}/llm/gateway/v1/chat/completions or {H}/llm/gateway/chat/completions",
        ),
        ("claudeMessages", {"endpoint": f"{H}/a"}, NOTE, "endpoint", f"{H}/a/v1/messages or {H}/a/messages"),
        ("ollamaApiChat", {"endpoint": f"{H}/a?k=secret"}, NOTE, "endpoint", f"{H}/a/api/chat or {H}/a/chat,"),
        ("openAIEmbeddings", {"endpoint": f"{H}/a"}, NOTE, "endpoint", f"{H}/a/v1/embeddings or {H}/a/embeddings"),
        # Mistakes.
        ("openAIChatCompletion", {"endpoint": f"{H}/v1#chat"}, WARNING, "endpoint", "from '#' on"),
        ("openAIChatCompletion", {"endpoint": f"{H}/v1/messages"}, WARNING, "endpoint", "'/messages', which"),
        ("openAIV1Completion", {"endpoint": f"{H}/v1/chat/completions"}, WARNING, "endpoint", f"{H}/v1/completions"),
        ("ollamaApiChat", {"endpoint": f"{H}/v1/chat/completions"}, WARNING, "endpoint", f"{H}/api/chat"),
        ("openAIChatCompletion", {"endpoint": f"{H}/api/chat"}, WARNING, "endpoint", f"{H}/v1/chat/completions"),
        ("openAIChatCompletion", {"endpoint": f"{H}/v1/v1"}, WARNING, "endpoint", "'/v1' stands twice"),
        ("openAIChatCompletion", {"endpoint": f"{H}/v1/v2", "apiPath": "v2"}, WARNING, "apiPath", "'/v2' stands twice"),
        (
            "openAIChatCompletion",
            {"endpoint": f"{H}/v1/chat/completions", "apiPath": ""},
            WARNING,
            "apiPath",
            "'/chat/completions' stands twice",
        ),
        ("ollamaApiChat", {"endpoint": f"{H}/api/api"}, WARNING, "endpoint", "'/api' stands twice"),
    ],
)
def test_addresses(tree: TreeLab, type_: str, keys: dict[str, Any], severity: str, path: str, text: str) -> None:
    found = [
        one for one in tree.check(changed(API_TYPE, type=type_), changed(ENDPOINT, **keys)) if one.file == ENDPOINT
    ]
    said = [one for one in found if one.json_path in ("endpoint", "apiPath")]
    assert [(one.severity, one.json_path) for one in said] == ([(severity, path)] if severity else [])
    assert all(text in str(one) and "secret" not in str(one) for one in said)


@pytest.mark.parametrize("value", [7, ["v1"], True])
def test_an_api_path_is_a_text(tree: TreeLab, value: Any) -> None:
    found = tree.check(changed(ENDPOINT, apiPath=value))
    assert [(one.severity, one.json_path) for one in found] == [("warning", "apiPath")]
