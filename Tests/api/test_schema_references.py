"""A ``$schema`` at the top of any configuration file is for editors and changes nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.app import create_app
from Middleware.services.memory.compactor_settings import load_compactor_settings
from Middleware.services.memory.memory_settings import load_memory_settings
from Middleware.utilities import config_utils
from Middleware.workflows.tools.mcp.server_file import load_server
from Tests.llmapis.lab import LLAMA_CPP, Lab
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_reply

OURS = {"$schema": "../../Schemas/any.schema.json"}
DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
ANSWER = {"type": "object", "properties": {"city": {"type": "string"}}}
BODY = {"messages": [{"role": "user", "content": "Write some code"}]}


class Tree(Lab):
    """Files of every kind, each with the same reference, or without any."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, reference: dict[str, str]) -> None:
        self.reference = reference
        super().__init__(root, monkeypatch)

    def write(self, name: str, content: Any) -> None:
        super().write(name, {**self.reference, **content} if isinstance(content, dict) else content)

    def fill(self, url: str) -> None:
        self.user(
            routingConfig="routes",
            categorizationWorkflow="Sort",
            contextCompactorSettingsFile="compactor",
            discussionIdMemoryFileWorkflowSettings="memory",
            chatPromptTemplateName="chatml",
        )
        self.write("ApiTypes/OpenAI", LLAMA_CPP)
        self.endpoint("Main", {"appendPresetName": "Warm"}, url)
        self.preset("LlamaCppServer", "Warm", {"temperature": 0.5})
        self.write(
            "Routing/routes",
            {
                "CODING": {"description": "Programs", "workflow": "Code"},
                "OTHER": {"description": "Rest", "workflow": "Code"},
            },
        )
        call = {"endpointName": "Main", "preset": "Warm", "prompt": "{tone}", "maxResponseSizeInTokens": 9}
        self.write("Workflows/tester/Sort", {"tone": "!", "nodes": [{**call, "systemPrompt": "{category_list}"}]})
        self.write(
            "Workflows/tester/Code",
            {"tone": "?", "nodes": [{**call, "prompt": "{tone}", "structuredOutputFile": "answer"}]},
        )
        self.write("StructuredOutputs/answer", ANSWER)
        self.write("Workflows/tester/memory", {"endpointName": "Main", "chunkEstimatedTokenSize": 7})
        self.write("Workflows/tester/compactor", {"endpointName": "Main", "oldContextTokens": 7})
        self.write("MCPServers/tools", {"transport": "stdio", "command": "tool"})


def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: dict[str, str]) -> Tree:
    return Tree(tmp_path, monkeypatch, reference)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    config_utils.reset_config_store()


def answer(request: RecordedRequest) -> Reply:
    return chat_reply("CODING" if len(request.json["messages"]) > 1 else "Done.")


def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: dict[str, str]) -> list[dict[str, Any]]:
    """The payloads of a request that is sorted into a category and answered."""
    with StubBackend() as backend:
        backend.responder = answer
        tree(tmp_path, monkeypatch, reference).fill(backend.url)
        reply = create_app().test_client().post("/v1/chat/completions", json=BODY, buffered=True)
        assert reply.json["choices"][0]["message"]["content"] == "Done.", reply.text
        return [request.json for request in backend.requests]


def test_back_ends_get_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = sent(tmp_path / "plain", monkeypatch, {})
    said = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    caplog.clear()
    referring = sent(tmp_path / "referring", monkeypatch, OURS)
    assert len(plain) == 2 and referring == plain
    assert "$schema" not in json.dumps(referring) and plain[0]["temperature"] == 0.5
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == said


def test_a_schema_for_answers_keeps_the_reference_to_the_draft_that_it_is_written_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coding = sent(tmp_path, monkeypatch, DRAFT)[1]
    assert coding["response_format"]["json_schema"]["schema"] == {**DRAFT, **ANSWER}
    assert "$schema" not in {key for key in coding if key != "response_format"}


@pytest.mark.parametrize("reference", [OURS, DRAFT], ids=["ours", "draft"])
def test_files_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: dict[str, str]) -> None:
    made = tree(tmp_path, monkeypatch, reference)
    made.fill("http://127.0.0.1:1")
    memory, compactor = load_memory_settings(), load_compactor_settings()
    assert memory is not None and memory.raw == {"endpointName": "Main", "chunkEstimatedTokenSize": 7}
    assert compactor is not None and compactor.raw == {"endpointName": "Main", "oldContextTokens": 7}
    assert load_server("tools").command == "tool"
    assert list(config_utils.load_routing("routes")) == ["CODING", "OTHER"]
    assert config_utils.load_workflow("Code").variables == {"tone": "?"}
    assert set(config_utils.load_prompt_template("chatml")) == {
        f"promptTemplate{part}"
        for part in (
            "SystemPrefix",
            "SystemSuffix",
            "UserPrefix",
            "UserSuffix",
            "AssistantPrefix",
            "AssistantSuffix",
            "EndToken",
        )
    }
    for settings in (
        config_utils.get_user_config(),
        config_utils.get_endpoint_config("Main"),
        config_utils.get_api_type_config("OpenAI"),
        config_utils.find_preset("Warm", "LlamaCppServer"),
    ):
        assert settings and "$schema" not in settings


def test_a_script_that_opens_a_file_by_its_path_gets_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, monkeypatch, DRAFT).write("chart", {"mark": "bar"})
    assert config_utils.load_config(str(tmp_path / "chart.json")) == {**DRAFT, "mark": "bar"}
    tree(tmp_path, monkeypatch, OURS).write("chart", {"mark": "bar"})
    assert config_utils.load_config(str(tmp_path / "chart.json")) == {"mark": "bar"}
