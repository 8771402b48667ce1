"""Whether ``check --online`` says that a server lacks a model, against servers on real sockets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.check import check_command
from Middleware.cli.commands import all_commands
from Middleware.utilities import config_utils
from Middleware.utilities.http.via import comes_back
from Tests.addons.check.config_tree import ENDPOINT, changed, write_tree
from Tests.stub_backend import Reply, StubBackend
from Tests.tables import table

OPENAI = {"data": [{"id": "qwen3-14b"}, {"id": "mistral-7b"}]}
OLLAMA = {"models": [{"name": "qwen3:14b"}, {"name": "phi4:latest"}]}


def serve(server: StubBackend, lists: dict[str, Any], key: tuple[str, str] | None = None) -> None:
    """Have the server answer with these lists of models by path, to requests with this header only."""

    def respond(request: Any) -> Reply:
        if request.path not in lists:
            return Reply(status=404)
        if key and request.headers.get(key[0]) != key[1]:
            return Reply(status=401, body=b"{}")
        return Reply(body=json.dumps(lists[request.path]).encode())

    server.responder = respond


def findings(
    server: StubBackend, type_: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], **endpoint: Any
) -> list[dict[str, Any]]:
    write_tree(tmp_path, changed(ENDPOINT, endpoint=server.url, **endpoint), changed("ApiTypes/Chat.json", type=type_))
    config_utils.reset_config_store()
    all_commands()["check"].run(["--PublicDirectory", str(tmp_path), "--online", "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert all(comes_back(request.headers["x-wilmer-via"]) for request in server.requests)
    return [one for one in found if server.url in one["message"]]


@pytest.mark.parametrize(
    ("type_", "lists", "model", "suggestion"),
    [
        ("openAIChatCompletion", {"/v1/models": OPENAI}, "qwen3-14", "qwen3-14b"),
        ("openAIV1Completion", {"/v1/models": OPENAI}, "gpt-9", None),
        ("ollamaApiChat", {"/api/tags": OLLAMA}, "qwen3:13b", "qwen3:14b"),
        ("claudeMessages", {"/v1/models": OPENAI}, "mistral-8b", "mistral-7b"),
    ],
)
def test_a_model_that_is_not_there(
    type_: str,
    lists: dict[str, Any],
    model: str,
    suggestion: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with StubBackend() as server:
        serve(server, lists)
        (found,) = findings(server, type_, tmp_path, capsys, modelNameToSendToAPI=model)
    assert (found["severity"], found["file"], found["jsonPath"]) == ("warning", ENDPOINT, "modelNameToSendToAPI")
    assert found["line"] and f"has no model '{model}'" in found["message"].replace('"', "'")
    assert (found["suggestion"] or None) == suggestion and "one of its models: " in found["expected"]


@pytest.mark.parametrize(
    ("type_", "lists", "endpoint"),
    [
        ("openAIChatCompletion", {"/v1/models": OPENAI}, {"modelNameToSendToAPI": "qwen3-14b"}),
        ("openAIChatCompletion", {"/v1/models": OPENAI}, {"modelNameToSendToAPI": ""}),
        ("openAIChatCompletion", {"/v1/models": OPENAI}, {"modelNameToSendToAPI": "x", "dontIncludeModel": True}),
        (
            "openAIChatCompletion",
            {"/v1/models": {"data": [{"id": "openai/*"}]}},
            {"modelNameToSendToAPI": "openai/gpt"},
        ),
        (
            "openAIChatCompletion",
            {"/v1/models": {"data": [{"id": "a.gguf", "owned_by": "llamacpp"}]}},
            {"modelNameToSendToAPI": "any"},
        ),
        ("openAIChatCompletion", {}, {"modelNameToSendToAPI": "any"}),
        ("openAIChatCompletion", {"/v1/models": []}, {"modelNameToSendToAPI": "any"}),
        ("openAIChatCompletion", {"/v1/models": {"data": [1, {"id": 2}]}}, {"modelNameToSendToAPI": "any"}),
        ("ollamaApiChat", {"/api/tags": OLLAMA}, {"modelNameToSendToAPI": "Phi4"}),
        ("koboldCppGenerate", {"/v1/models": OPENAI}, {"modelNameToSendToAPI": "any"}),
    ],
)
def test_nothing_is_said_of_a_model_that_is_there_or_cannot_be_judged(
    type_: str, lists: dict[str, Any], endpoint: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StubBackend() as server:
        serve(server, lists)
        assert findings(server, type_, tmp_path, capsys, **endpoint) == []


@pytest.mark.parametrize(
    ("type_", "path", "endpoint", "list_"),
    [
        ("openAIChatCompletion", "/v1beta/openai", {}, "/v1beta/openai/models"),
        ("openAIChatCompletion", "/v1/chat/completions", {}, "/v1/models"),
        ("openAIChatCompletion", "/inference", {}, "/inference/models"),
        ("openAIChatCompletion", "/x", {"apiPath": "/v9"}, "/x/v9/models"),
        ("openAIEmbeddings", "/x/v1/embeddings?a=b", {}, "/x/v1/models?a=b"),
        ("claudeMessages", "/anthropic/v1/messages", {}, "/anthropic/v1/models"),
        ("ollamaApiChat", "/proxy", {"apiPath": ""}, "/proxy/tags"),
    ],
)
def test_lists_are_asked_for_where_calls_go(
    type_: str,
    path: str,
    endpoint: dict[str, Any],
    list_: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for listed in ({"data": [{"id": "a"}]}, {"models": [{"name": "a"}]}, [{"id": "a"}]):
        with StubBackend() as server:
            serve(server, {list_: listed})
            keys = {"modelNameToSendToAPI": "b", "endpoint": server.url + path, **endpoint}
            write_tree(tmp_path, changed(ENDPOINT, **keys), changed("ApiTypes/Chat.json", type=type_))
            config_utils.reset_config_store()
            all_commands()["check"].run(["--PublicDirectory", str(tmp_path), "--online", "--json"])
            said = [one["message"] for one in json.loads(capsys.readouterr().out)["findings"]]
            assert any("has no model" in one for one in said), said


@pytest.mark.parametrize(
    ("type_", "header"),
    [("openAIChatCompletion", ("authorization", "Bearer hunter2")), ("claudeMessages", ("x-api-key", "hunter2"))],
)
@pytest.mark.parametrize(
    ("key", "model", "message"),
    [
        ("hunter2", "qwen3-14b", None),
        ("hunter2", "other", "has no model"),
        ("hunter3", "qwen3-14b", "does not accept the API key of this file"),
        ("", "qwen3-14b", "wants an API key"),
    ],
)
def test_a_key_is_sent_where_it_is_needed(
    type_: str,
    header: tuple[str, str],
    key: str,
    model: str,
    message: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with StubBackend() as server:
        serve(server, {"/v1/models": OPENAI}, header)
        found = findings(server, type_, tmp_path, capsys, modelNameToSendToAPI=model, apiKey=key)
        assert [message in one["message"] for one in found] == ([True] if message else [])
        assert "hunter" not in str(server.requests[0].headers) and "hunter" not in str(found)


def test_a_server_is_asked_once_for_several_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StubBackend() as server:
        serve(server, {"/v1/models": OPENAI})
        endpoint = {"endpoint": f"{server.url}/v1", "apiTypeConfigFileName": "Chat", "modelNameToSendToAPI": "x"}
        config_utils.reset_config_store()
        configs = write_tree(tmp_path)
        files = {f"Endpoints/home/{name}.json": endpoint for name in ("a", "b", "c")}
        for name, content in files.items():
            (configs / name).write_text(json.dumps(content), "utf-8")
        all_commands()["check"].run(["--PublicDirectory", str(tmp_path), "--online", "--json"])
        capsys.readouterr()
        assert [request.path for request in server.requests].count("/v1/models") == 1


@table(
    ("model", "names", "has"),
    [
        ("a", ["a"], True),
        ("A", ["a"], False),
        ("a", ["a:latest"], True),
        ("a:latest", ["a"], True),
        ("ab", ["a"], False),
        ("p/x", ["p/*"], True),
        ("x", ["*"], True),
        ("q/x", ["p/*"], False),
    ],
)
def test_names(model: str, names: list[str], has: bool) -> None:
    assert check_command.has_model(model, "openAIChatCompletion", names) == has
