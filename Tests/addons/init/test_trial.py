"""The token that ``init`` asks for before it writes: what it changes in the files, and what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from Middleware.addons.init import trial
from Middleware.addons.init.probing import KEY_VARIABLE
from Middleware.cli.commands import all_commands
from Tests.addons.init import llm_servers
from Tests.addons.init.conftest import Lab
from Tests.addons.init.services import Service, openai_error, services
from Tests.stub_backend import Reply, json_reply, status_reply

LISTED = {"/v1/models": llm_servers.openai_list("m")}


def main_file(lab: Lab) -> Any:
    return json.loads(lab.files()["Endpoints/me/Main.json"])


def worker_file(lab: Lab) -> Any:
    return json.loads(lab.files()["Endpoints/me/Worker.json"])


@pytest.mark.parametrize("key", ["", "sesame"])
@pytest.mark.parametrize("name", services())
def test_what_is_written_for_servers_that_people_have(
    lab: Lab, name: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = services()[name]
    service.key = key
    monkeypatch.setenv(KEY_VARIABLE, "sesame")
    with service.running() as backend:
        status, output = lab.init("--yes", "--backend", backend.url + service.path)
        assert status == 0 and "It answers." in output, output
        assert service.expected.items() <= main_file(lab).items()
        assert main_file(lab)["apiKey"] == (f"env:{KEY_VARIABLE}" if key else "")
        assert all_commands()["check"].run(["--ConfigDirectory", str(lab.configs), "--strict"]) == 0
    assert "sesame" not in output
    # Exactly the samplers, the limit and the model of the file, without a stream.
    first = service.calls[0]
    assert first["messages"][-1] == {"role": "user", "content": "Hi"} and not first.get("stream")
    assert 1 in (first.get("max_tokens"), first.get("max_completion_tokens"), first.get("n_predict"))
    assert first["temperature"] == 0.7


def test_what_gpt_5_refuses_is_left_out_of_the_files(lab: Lab) -> None:
    service = services()["OpenAI"]
    with service.running() as backend:
        _, output = lab.init("--yes", "--backend", backend.url)
    assert "The server refuses max_tokens, temperature; the files are written for that." in output
    for file in (main_file(lab), worker_file(lab)):
        assert (file["apiTypeConfigFileName"], file["presetSamplers"]) == ("OpenAI", {})
    assert "ApiTypes/OpenAI.json" in lab.files()


@pytest.mark.parametrize(
    ("refusal", "sampler_kept", "api_type"),
    [
        (lambda body: "temperature" in body, False, "Open-AI-API"),
        (lambda body: "max_tokens" in body, True, "OpenAI"),
    ],
    ids=["sampler", "limit"],
)
def test_one_refused_field(lab: Lab, refusal: Any, sampler_kept: bool, api_type: str) -> None:
    field = "temperature" if not sampler_kept else "max_tokens"
    hint = " Use 'max_completion_tokens' instead." if sampler_kept else ""
    error = openai_error(f"Unsupported parameter: '{field}' is not supported.{hint}", field, "unsupported_parameter")
    service = Service("", LISTED, {}, refuse=lambda body: error if refusal(body) else None)
    with service.running() as backend:
        assert lab.init("--yes", "--backend", backend.url)[0] == 0
    assert ("temperature" in main_file(lab)["presetSamplers"]) is sampler_kept
    assert ("temperature" in worker_file(lab)["presetSamplers"]) is sampler_kept
    assert main_file(lab)["apiTypeConfigFileName"] == api_type


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (json_reply({"error": {"message": "You exceeded your current quota"}}, 402), "You exceeded your current quota"),
        (json_reply({"error": "the GPU is on fire"}), "the GPU is on fire"),
        (status_reply(404, "no such model"), "no such model"),
        (Reply(body=b"<html><title>Welcome</title></html>"), "not JSON"),
        (Reply(raw=b""), "server"),
    ],
    ids=["status", "error with success", "404", "page", "no answer"],
)
def test_a_failure_is_shown_and_the_files_are_written(lab: Lab, answer: Reply, words: str) -> None:
    service = Service("", LISTED, {}, refuse=lambda body: answer)
    with service.running() as backend:
        status, output = lab.init("--yes", "--backend", backend.url)
    assert status == 0 and main_file(lab)["presetSamplers"] == {"temperature": 0.7}
    assert "  No answer: Endpoint 'Main'" in output
    last = output.strip().splitlines()[-1]
    assert last.startswith("To fix before you start: Endpoints/me/Main.json") and words in last


def test_a_model_that_says_nothing_in_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "SECONDS", 0.2)
    service = Service("", LISTED, {}, refuse=lambda body: Reply(never=True))
    with service.running() as backend:
        status, output = lab.init("--yes", "--backend", backend.url)
    assert status == 0 and "No answer: it did not answer within 0.2 s" in output
    assert "To fix" in output.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "routes",
    [
        llm_servers.ollama("llama3.2:3b"),
        llm_servers.llama_router({"id": "m", "status": {"value": "unloaded", "args": ["-c", "4096"]}}),
        {
            "/v1/models": llm_servers.openai_list("m"),
            "/api/v0/models": {"data": [{"id": "m", "type": "llm", "state": "not-loaded"}]},
        },
        llm_servers.llama_swap("m"),
    ],
    ids=["Ollama", "router", "LM Studio", "llama-swap"],
)
def test_no_model_is_loaded_for_it(lab: Lab, routes: llm_servers.Routes) -> None:
    with llm_servers.serving(routes) as backend:
        status, output = lab.init("--yes", "--backend", backend.url)
        assert not [one for one in backend.requests if one.method == "POST" and one.path != "/api/show"]
    assert status == 0 and "it is not in memory" in output and "for one token" not in output and "To fix" not in output


def test_an_unloaded_model_of_a_router_has_its_own_window(lab: Lab) -> None:
    service = services()["llama.cpp's router"]
    with service.running() as backend:
        status, output = lab.init("--yes", "--backend", backend.url, "--model", "small")
    assert status == 0 and "small is not asked for a token" in output and service.calls == []
    keys = {"modelNameToSendToAPI": "small", "maxContextTokenSize": 2048, "dontIncludeModel": False}
    assert keys.items() <= main_file(lab).items()


def test_a_failed_model_of_a_router_is_named(lab: Lab) -> None:
    with services()["llama.cpp's router"].running() as backend:
        _, output = lab.init("--yes", "--backend", backend.url)
    assert "  big could not be loaded there (exit code 1)" in output


def test_a_list_without_chat_models_is_offered_and_said_so(lab: Lab) -> None:
    service = Service("", {"/v1/models": llm_servers.openai_list("tts-1", "*")}, {})
    with service.running() as backend:
        status, output = lab.init("--yes", "--backend", backend.url)
    assert status == 0 and "no model of" in output and "all are offered" in output
    assert main_file(lab)["modelNameToSendToAPI"] == "tts-1"


def test_nothing_is_left_of_the_trial(lab: Lab, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with Service("", LISTED, {}).running() as backend:
        lab.init("--yes", "--backend", backend.url)
    assert list(folder.iterdir()) == []
