"""``init`` from its words to its files and its exit status, against servers on real sockets."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.init import init_command, init_output, probing, servers, writing
from Middleware.addons.init.plan import port_for
from Middleware.addons.init.probing import KEY_VARIABLE
from Middleware.addons.workflow_tests.tests_command import main as run_tests
from Middleware.cli.commands import all_commands
from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils
from Middleware.utilities.config import paths
from Tests.addons.init import llm_servers
from Tests.addons.init.conftest import Lab
from Tests.free_ports import free_port
from Tests.stub_backend import StubBackend
from Tests.tables import table

WRITTEN = {
    "Users/me.json",
    "Users/_current-user.json",
    "Endpoints/me/Main.json",
    "Endpoints/me/Worker.json",
    *(
        f"Workflows/me/{name}.json"
        for name in (
            "_Coding",
            "_Writing",
            "_DefaultWorkflow",
            "_BackgroundTask",
            "_Memory-Settings",
            "chat/_DefaultWorkflow",
            "agent/_DefaultWorkflow",
            "assistant/_DefaultWorkflow",
            "assistant/_DefaultWorkflow.test",
            "memory/_DefaultWorkflow",
        )
    ),
}
EVERY_SERVER: dict[str, tuple[llm_servers.Routes, dict[str, Any]]] = {
    "Ollama": (
        llm_servers.ollama("llama3.2:3b"),
        {
            "apiTypeConfigFileName": "OllamaApiChat",
            "modelNameToSendToAPI": "llama3.2:3b",
            "dontIncludeModel": False,
            "maxContextTokenSize": 16384,
        },
    ),
    "llama.cpp": (
        llm_servers.llama_cpp(window=4096),
        {"apiTypeConfigFileName": "LlamaCppServer", "dontIncludeModel": True, "maxContextTokenSize": 4096},
    ),
    "KoboldCpp": (
        llm_servers.koboldcpp(window=8192),
        {"apiTypeConfigFileName": "Open-AI-API", "dontIncludeModel": True, "maxContextTokenSize": 8192},
    ),
    "LM Studio": (
        llm_servers.lm_studio(),
        {"apiTypeConfigFileName": "Open-AI-API", "modelNameToSendToAPI": "qwen3-14b", "maxContextTokenSize": 32768},
    ),
    "vLLM": (
        llm_servers.vllm(),
        {
            "apiTypeConfigFileName": "Open-AI-API",
            "modelNameToSendToAPI": "mistralai/Mistral-7B",
            "dontIncludeModel": False,
            "maxContextTokenSize": 32768,
        },
    ),
    "text-generation-webui": (
        llm_servers.text_generation_webui(),
        {"apiTypeConfigFileName": "Text-Generation-WebUI", "dontIncludeModel": True, "maxContextTokenSize": 8192},
    ),
    "another": (
        {"/v1/models": llm_servers.openai_list("m")},
        {"apiTypeConfigFileName": "Open-AI-API", "modelNameToSendToAPI": "m", "maxContextTokenSize": 8192},
    ),
}


@pytest.fixture
def ollama() -> Any:
    with llm_servers.serving(llm_servers.ollama("llama3.2:3b", "qwen3:14b", running=("qwen3:14b",))) as backend:
        yield backend


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have these ports taken for the usual ones."""

    def put(*ports: int) -> None:
        monkeypatch.setattr(servers, "USUAL_PORTS", dict.fromkeys(ports, "a server"))
        monkeypatch.setattr("Middleware.addons.init.init_output.USUAL_PORTS", dict.fromkeys(ports, "a server"))

    return put


def content(lab: Lab, path: str) -> Any:
    return json.loads(lab.files()[path])


# -- what is written ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY_SERVER)
def test_every_server_gets_a_configuration_without_a_finding(lab: Lab, kind: str) -> None:
    routes, endpoint = EVERY_SERVER[kind]
    with llm_servers.serving(routes) as backend:
        status, output = lab.init("--yes", "--backend", f"{backend.url}/v1")
    assert status == 0, output
    assert set(lab.files()) - WRITTEN == {
        f"ApiTypes/{endpoint['apiTypeConfigFileName']}.json",
        "PromptTemplates/_chatonly.json",
        "Workflows/_common/_MessagesToSend.json",
    }
    for name in ("Main", "Worker"):
        written = content(lab, f"Endpoints/me/{name}.json")
        assert {**endpoint, "endpoint": backend.url, "apiKey": ""}.items() <= written.items()
    assert content(lab, "Users/_current-user.json")["currentUser"] == "me"
    assert content(lab, "Users/me.json")["contextLengthForClients"] == endpoint["maxContextTokenSize"]
    assert all_commands()["check"].run(["--ConfigDirectory", str(lab.configs)]) == 0
    assert "nothing wrong found" in lab.capture.readouterr().out


def test_what_is_printed(lab: Lab, ollama: StubBackend) -> None:
    status, output = lab.init("--yes", "--backend", ollama.url)
    lines = output.splitlines()
    assert status == 0
    assert lines[0] == f"Asking {ollama.url}, and nothing else."
    assert f"  1  {ollama.url}  Ollama  qwen3:14b (in memory), llama3.2:3b" in lines
    assert any(line.startswith(f"Using qwen3:14b of Ollama at {ollama.url}; context window 16384") for line in lines)
    assert all(any(f" {path} " in line for line in lines) for path in WRITTEN)
    assert "me:chat, me:assistant, me:memory; for coding agents me:agent" in output


def test_every_file_says_what_it_is_for_and_no_place_is_left_unfilled(lab: Lab, ollama: StubBackend) -> None:
    lab.init("--yes", "--backend", ollama.url, "--user", "ann")
    for path, data in lab.files().items():
        if "/ann" in path and not path.endswith(".test.json"):
            assert json.loads(data)["description"], path
        assert b"@" not in data, path
        assert b"$schema" in data, path


def test_the_schemas_that_files_name_exist(lab: Lab, ollama: StubBackend) -> None:
    lab.init("--yes", "--backend", ollama.url)
    public = Path(__file__).resolve().parents[3] / "Public"
    for path in WRITTEN:
        named = content(lab, path)["$schema"]
        assert (public / "Configs" / path).parent.joinpath(named).resolve().is_file(), path


def test_the_model_in_memory_is_the_first_choice(lab: Lab, ollama: StubBackend) -> None:
    lab.init("--yes", "--backend", ollama.url)
    assert content(lab, "Endpoints/me/Main.json")["modelNameToSendToAPI"] == "qwen3:14b"


@pytest.mark.parametrize("named", ["llama3.2:3b", "LLAMA3.2:3B"])
def test_a_named_model(lab: Lab, ollama: StubBackend, named: str) -> None:
    assert lab.init("--yes", "--backend", ollama.url, "--model", named)[0] == 0
    assert content(lab, "Endpoints/me/Main.json")["modelNameToSendToAPI"] == "llama3.2:3b"


def test_the_tag_latest_may_be_left_out(lab: Lab) -> None:
    with llm_servers.serving(llm_servers.ollama("other", "phi4:latest")) as backend:
        assert lab.init("--yes", "--backend", backend.url, "--model", "phi4")[0] == 0
    assert content(lab, "Endpoints/me/Main.json")["modelNameToSendToAPI"] == "phi4:latest"


def test_a_model_that_is_not_there(lab: Lab, ollama: StubBackend) -> None:
    status, output = lab.init("--yes", "--backend", ollama.url, "--model", "qwen3:13b\x1b[2J")
    assert status == 1
    assert "Did you mean 'qwen3:14b'?" in output and "\x1b" not in output
    assert lab.files() == {}


@pytest.mark.parametrize(
    "abilities, window, images, tools",
    [
        (["completion", "vision", "tools"], 131072, True, True),
        (["completion", "tools"], 8192, False, False),
        (["completion"], 131072, False, False),
    ],
)
def test_pictures_and_tools_go_where_the_server_says_they_can(
    lab: Lab, abilities: list[str], window: int, images: bool, tools: bool
) -> None:
    show = {"model_info": {"gemma3.context_length": window}, "capabilities": abilities}
    with llm_servers.serving(llm_servers.ollama("m", show=show)) as backend:
        lab.init("--yes", "--backend", backend.url)
    for name in ("chat", "memory"):
        answer = next(
            node
            for node in content(lab, f"Workflows/me/{name}/_DefaultWorkflow.json")["nodes"]
            if node["title"] == "Answer"
        )
        assert answer["acceptImages"] is images
        assert answer.get("allowTools", False) is (tools and name == "chat")
    # A coding agent does nothing without tools, and its own prompt alone takes thousands of tokens.
    assert ("Workflows/me/agent/_DefaultWorkflow.json" in lab.files()) is tools
    assert ("agent" in content(lab, "Users/me.json")["description"]) is tools
    if tools:
        (work,) = content(lab, "Workflows/me/agent/_DefaultWorkflow.json")["nodes"]
        assert (work["acceptImages"], work["allowTools"]) == (images, True)


@pytest.mark.parametrize(
    "server, places",
    [(llm_servers.llama_cpp(total_slots=4), 4), (llm_servers.ollama("m"), 1), (llm_servers.koboldcpp(), 0)],
)
def test_few_calls_at_a_time_where_the_server_has_few_places(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, server: Any, places: int
) -> None:
    monkeypatch.setattr(probing, "GPU_DEVICES", (os.devnull,))
    with llm_servers.serving(server) as backend:
        lab.init("--yes", "--backend", backend.url)
    for name in ("Main", "Worker"):
        assert content(lab, f"Endpoints/me/{name}.json")["parallelCalls"] == places
    assert content(lab, "Users/me.json")["backgroundNodesYield"] is True


@pytest.mark.parametrize(
    "platform, address, places",
    [
        ("linux", "http://127.0.0.1:8080", 1),
        ("linux", "http://[::1]:8080", 1),
        ("linux", "http://localhost", 1),
        ("linux", "http://192.168.1.5:8080", 4),
        ("darwin", "http://127.0.0.1:8080", 4),
        ("win32", "http://127.0.0.1:8080", 4),
    ],
)
def test_one_call_at_a_time_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, address: str, places: int
) -> None:
    """Only of this computer is it known, and there only of Linux."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(probing, "GPU_DEVICES", (str(tmp_path / "nvidiactl"),))
    ask = lambda path: probing.Reply(200, {"total_slots": 4}, "")  # noqa: E731
    assert probing._places("llama.cpp", address, ask) == places
    (tmp_path / "nvidiactl").touch()
    assert probing._places("llama.cpp", address, ask) == 4


@pytest.mark.parametrize(
    "abilities, samplers",
    [
        (["thinking"], {"temperature": 0.2, "thinkingMode": "off", "keep_alive": "30m"}),
        (["completion"], {"temperature": 0.2, "keep_alive": "30m"}),
    ],
)
def test_small_jobs_are_done_without_thinking(lab: Lab, abilities: list[str], samplers: dict[str, Any]) -> None:
    show = {"model_info": {"q.context_length": 4096}, "capabilities": abilities}
    with llm_servers.serving(llm_servers.ollama("m", show=show)) as backend:
        lab.init("--yes", "--backend", backend.url)
    assert content(lab, "Endpoints/me/Worker.json")["presetSamplers"] == samplers
    assert content(lab, "Endpoints/me/Main.json")["presetSamplers"] == {"temperature": 0.7, "keep_alive": "30m"}


@pytest.mark.parametrize(
    "template, tokens",
    [
        ("{{ bos }}{% for m in messages %}<start_of_turn>{{ m.role }}{% endfor %}", 50),
        ("{% if enable_thinking is false %}<think></think>{% endif %}", 2050),
        ("{{ '<think>' }}", 2050),
        ("{{ message.reasoning_content }}", 2050),
        ("", 2050),
        (None, 2050),
    ],
)
def test_a_route_gets_room_for_thoughts_if_the_model_has_some(lab: Lab, template: str | None, tokens: int) -> None:
    """By the chat template of llama.cpp's server; without one, it may think."""
    with llm_servers.serving(llm_servers.llama_cpp(window=16384, chat_template=template)) as backend:
        lab.init("--yes", "--backend", backend.url)
    route = content(lab, "Workflows/me/assistant/_DefaultWorkflow.json")["nodes"][0]
    assert route["maxResponseSizeInTokens"] == tokens


def test_only_the_name_of_the_keys_variable_is_written(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sesame")
    with llm_servers.serving(llm_servers.vllm(), key="sesame") as backend:
        status, output = lab.init("--yes", "--backend", backend.url)
    assert status == 0
    assert content(lab, "Endpoints/me/Main.json")["apiKey"] == f"env:{KEY_VARIABLE}"
    assert f"the environment variable {KEY_VARIABLE} must hold it" in output
    assert "sesame" not in output and all(b"sesame" not in data for data in lab.files().values())


# -- what is not written -----------------------------------------------------------------------------------------------


def test_a_user_that_exists_is_left_alone(lab: Lab, ollama: StubBackend) -> None:
    lab.init("--yes", "--backend", ollama.url)
    before, asked = lab.files(), len(ollama.requests)
    status, output = lab.init("--yes", "--backend", ollama.url)
    assert (status, lab.files()) == (1, before)
    assert "There is a user 'me' already" in output and "--user me2" in output
    assert len(ollama.requests) == asked  # it is known before anybody is asked


@pytest.mark.parametrize("path", ["Users/ME.json", "Workflows/me/chat/_DefaultWorkflow.json", "Endpoints/me/Main.json"])
def test_parts_of_a_user_are_left_alone_too(lab: Lab, ollama: StubBackend, path: str) -> None:
    (lab.configs / path).parent.mkdir(parents=True)
    (lab.configs / path).write_text("{}", "utf-8")
    before = lab.files()
    assert lab.init("--yes", "--backend", ollama.url)[0] == 1
    assert lab.files() == before


def test_other_users_are_not_touched(lab: Lab, ollama: StubBackend) -> None:
    lab.init("--yes", "--backend", ollama.url)
    before = lab.files()
    status, output = lab.init("--yes", "--backend", ollama.url, "--user", "ann")
    assert status == 0
    assert {path: data for path, data in lab.files().items() if path in before and "_current" not in path} == {
        path: data for path, data in before.items() if "_current" not in path
    }
    assert content(lab, "Users/_current-user.json")["currentUser"] == "ann"
    assert "Users/_current-user.json.bak" not in lab.files()  # it held nothing but the name, which is printed
    assert "'me' was the current user" in output and "serves 'ann' from now on" in output


@pytest.mark.parametrize("name", ["", "_me", "a/b", "..", "con", "COM1", "a b", "{user}", "me:x", "x" * 61, "a.json"])
def test_names_that_no_user_can_have(lab: Lab, ollama: StubBackend, name: str) -> None:
    status, output = lab.init("--yes", "--backend", ollama.url, "--user", name)
    assert (status, lab.files()) == (1, {})
    assert "cannot be the name of a user" in output


def test_no_server_at_the_named_address(lab: Lab) -> None:
    address = f"127.0.0.1:{free_port()}"
    status, output = lab.init("--yes", "--backend", address)
    assert (status, lab.files()) == (1, {})
    assert f"http://{address}: nothing runs there." in output
    assert "Check the address, port included" in output and "Ollama usually has port 11434" in output


def test_a_host_name_that_leads_nowhere(lab: Lab) -> None:
    status, output = lab.init("--yes", "--backend", "http://no-such-host.invalid:1234")
    assert (status, lab.files()) == (1, {})
    assert (
        "the host name 'no-such-host.invalid' cannot be resolved; check how it is spelled, or give the IP address"
        in output
    )
    assert "endpoint" not in output


def test_no_server_at_the_usual_ports(lab: Lab, usual: Callable[..., None]) -> None:
    port = free_port()
    usual(port)
    status, output = lab.init("--yes")
    assert (status, lab.files()) == (1, {})
    assert str(port) in output
    for hint in (
        "ollama serve",
        "llama-server -m model.gguf -c 16384 --jinja --port 8080",
        "--backend http://192.168.1.20:11434",
    ):
        assert hint in output


def test_the_usual_ports_are_asked_unless_an_address_is_given(lab: Lab, usual: Callable[..., None]) -> None:
    with llm_servers.serving(llm_servers.vllm("there")) as one, llm_servers.serving(llm_servers.vllm()) as other:
        usual(one.port)
        assert lab.init("--yes", "--backend", other.url)[0] == 0
        assert one.requests == []
        assert lab.init("--yes", "--user", "ann")[0] == 0
    assert content(lab, "Endpoints/ann/Main.json")["modelNameToSendToAPI"] == "there"


def test_an_ollama_without_models(lab: Lab) -> None:
    with llm_servers.serving(llm_servers.ollama("nomic-embed-text")) as backend:
        status, output = lab.init("--yes", "--backend", backend.url)
    assert (status, lab.files()) == (1, {})
    assert "ollama pull" in output
    assert "no model to chat with (only for embeddings or the like)" in output


def test_a_model_for_embeddings_is_not_taken(lab: Lab, answers: Callable[..., list[str]]) -> None:
    routes = llm_servers.ollama("phi4", "nomic-embed-text:latest", "qwen3:8b")
    with llm_servers.serving(routes) as backend:
        status, output = lab.init("--yes", "--backend", backend.url, "--model", "nomic-embed-text")
        assert (status, lab.files()) == (1, {})
        assert "has a model 'nomic-embed-text' to chat with. There are: phi4, qwen3:8b." in output
        assert "phi4, qwen3:8b (and 1 for embeddings or the like)" in output
        answers("nomic-embed-text", "2", "me")
        assert lab.init("--backend", backend.url)[0] == 0
    assert content(lab, "Endpoints/me/Main.json")["modelNameToSendToAPI"] == "qwen3:8b"


def test_part_of_a_models_name(lab: Lab, ollama: StubBackend, answers: Callable[..., list[str]]) -> None:
    status, output = lab.init("--yes", "--backend", ollama.url, "--model", "Llama")
    assert (status, lab.files()) == (1, {})
    assert "Did you mean 'llama3.2:3b'?" in output
    answers("Llama", "me")
    assert lab.init("--backend", ollama.url)[0] == 0
    assert content(lab, "Endpoints/me/Main.json")["modelNameToSendToAPI"] == "llama3.2:3b"


def test_part_of_several_names(lab: Lab, answers: Callable[..., list[str]]) -> None:
    with llm_servers.serving(llm_servers.ollama("qwen3:14b", "phi4", "qwen3:8b")) as backend:
        status, output = lab.init("--yes", "--backend", backend.url, "--model", "qwen")
        assert (status, lab.files()) == (1, {})
        assert "Did you mean 'qwen3:14b' or 'qwen3:8b'?" in output
        answers("qwen", "9", "qwen3:8", "me")
        status, output = lab.init("--backend", backend.url)
    assert status == 0
    assert "More than one fits; enter a number from 1 to 3, or a name: qwen3:14b, phi4, qwen3:8b." in output
    assert "There is no such one; enter a number from 1 to 3, or a name:" in output  # '9' is no part of a name
    assert content(lab, "Endpoints/me/Main.json")["modelNameToSendToAPI"] == "qwen3:8b"


def test_a_wilmer_is_no_back_end(lab: Lab) -> None:
    with llm_servers.serving(llm_servers.wilmer()) as backend:
        status, output = lab.init("--yes", "--backend", backend.url)
    assert (status, lab.files()) == (1, {})
    assert "is a WilmerAI itself" in output


NO_ADDRESSES = {
    "ftp://host": "it does not begin with http:// or https://",
    "foo bar": "it has a blank in it",
    "http://me:secret@host:1": "names and passwords have no place in it",
    "host:port": "its host or port",
    "http://": "it does not begin",
    "h\u200bost": "it has a character in it that cannot be shown",
}


@table(("address", "reason"), NO_ADDRESSES.items())
def test_what_is_no_address(lab: Lab, address: str, reason: str) -> None:
    status, output = lab.init("--yes", "--backend", address)
    assert (status, lab.files()) == (1, {})
    assert f"is not an address of a server: {reason}" in output and output.endswith("Nothing was written.\n")


def test_an_address_is_asked_for_until_there_is_a_server(
    lab: Lab, usual: Callable[..., None], answers: Callable[..., list[str]]
) -> None:
    usual()
    with llm_servers.serving(llm_servers.vllm()) as backend:
        # What is typed on a terminal can always be shown.
        wrong = [address for address in NO_ADDRESSES if address.isprintable()]
        asked = answers(*wrong, "127.0.0.1:1", backend.url, "me")
        status, output = lab.init()
    assert status == 0 and len(asked) == len(wrong) + 3, output
    assert output.count("is not an address of a server") == len(wrong) and "nothing runs there" in output
    assert content(lab, "Endpoints/me/Main.json")["endpoint"] == backend.url


@table("last", [EOFError(), ""])
def test_the_end_of_the_addresses(
    lab: Lab, usual: Callable[..., None], answers: Callable[..., list[str]], last: object
) -> None:
    usual()
    asked = answers("foo bar", last)
    status, output = lab.init()
    assert (status, lab.files(), len(asked)) == (1, {}, 2)
    assert output.splitlines()[-1] == "Nothing was written."


def test_without_a_terminal_the_flags_are_named(lab: Lab, ollama: StubBackend) -> None:
    status, output = lab.init("--backend", ollama.url)
    assert (status, lab.files()) == (1, {})
    assert "--model NAME" in output and "--yes" in output and "qwen3:14b" in output


def test_without_a_terminal_flags_that_say_all_are_enough(lab: Lab, ollama: StubBackend) -> None:
    assert lab.init("--backend", ollama.url, "--model", "qwen3:14b", "--user", "ann")[0] == 0


def test_a_folder_that_cannot_be_written(lab: Lab, ollama: StubBackend) -> None:
    (lab.configs / "Workflows").write_text("in the way", "utf-8")
    before = lab.files()
    status, output = lab.init("--yes", "--backend", ollama.url)
    assert (status, lab.files()) == (1, before)
    assert "Nothing was changed" in output
    assert [path.name for path in lab.configs.iterdir()] == ["Workflows"]


def test_an_older_configuration_that_lacks_what_the_program_comes_with(
    lab: Lab, ollama: StubBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "get_project_root_directory_path", lambda: str(tmp_path / "elsewhere"))
    status, text = lab.init("--yes", "--backend", ollama.url)
    assert (status, lab.files()) == (1, {})
    assert "ApiTypes/OllamaApiChat.json is missing" in text and "fresh" in text and "Nothing was written" in text


def test_what_an_older_volume_of_a_container_lacks_comes_from_the_image(
    lab: Lab, ollama: StubBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "app"
    (image / "Public").mkdir(parents=True)
    shutil.copytree(Path(__file__).resolve().parents[3] / "Public" / "Configs", image / "Defaults" / "Configs")
    monkeypatch.setattr(paths, "get_project_root_directory_path", lambda: str(image))
    assert lab.init("--yes", "--backend", ollama.url)[0] == 0
    assert "Workflows/_common/_MessagesToSend.json" in lab.files()


def test_a_choice_of_user_with_more_in_it_is_kept(lab: Lab, ollama: StubBackend) -> None:
    (lab.configs / "Users").mkdir()
    for text in ('{"currentUser": "ann", "note": "mine"}', '{"currentUser": ["ann"]}', "["):
        (lab.configs / "Users/_current-user.json").write_text(text, "utf-8")
        user = f"u{len(text)}"
        assert lab.init("--yes", "--backend", ollama.url, "--user", user)[0] == 0
        assert text.encode() in lab.files().values()
    assert "Users/_current-user.json.bak3" in lab.files()


# -- a smaller model ---------------------------------------------------------------------------------------------------


@table(
    ("names", "proposed"),
    [
        (["big:14b", "small:3b"], "small:3b"),
        (["big:14b", "a:7b", "b:4b", "c:1b"], "b:4b"),
        (["big:14b", "other:8b"], None),
        (["big:14b", "tiny:0.5b", "mini:270m"], None),
        (["big:14b", "coder:3b", "guard:2b"], None),
        (["big", "small:3b"], None),
        (["big:14b"], None),
        (["qwen3:30b-a3b", "qwen3:1.7b"], "qwen3:1.7b"),
        (["Mixtral-8x7B", "phi-3b"], None),
    ],
)
def test_a_smaller_model_for_small_jobs(names: list[str], proposed: str | None) -> None:
    with llm_servers.serving(llm_servers.ollama(*names, sized=True)) as backend:
        server = probing.probe(backend.url)
        assert isinstance(server, servers.Server)
        main = probing.look_closer(server, server.models[0])
        found = probing.smaller_model(server, main)
    assert (found and found.name) == proposed


def test_the_smaller_model_is_proposed_and_not_taken(lab: Lab) -> None:
    with llm_servers.serving(llm_servers.ollama("big:14b", "small:3b", sized=True)) as backend:
        status, printed = lab.init("--yes", "--backend", backend.url)
        assert status == 0 and '"modelNameToSendToAPI": "small:3b" in Endpoints/me/Worker.json' in printed
        assert content(lab, "Endpoints/me/Worker.json")["modelNameToSendToAPI"] == "big:14b"
        status, printed = lab.init("--yes", "--backend", backend.url, "--worker", "small:3b", "--user", "ann")
        assert status == 0 and "the model for small jobs: small:3b" in printed and "could do" not in printed
        worker, main = (content(lab, f"Endpoints/ann/{name}.json") for name in ("Worker", "Main"))
        assert (main["modelNameToSendToAPI"], worker["modelNameToSendToAPI"]) == ("big:14b", "small:3b")
        assert worker["maxContextTokenSize"] == main["maxContextTokenSize"] and "small:3b" in str(worker)
        assert "No server" in lab.init("--yes", "--backend", backend.url, "--worker", "other", "--user", "bob")[1]


# -- questions ---------------------------------------------------------------------------------------------------------


def test_a_word_without_its_flag_becomes_no_folder(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in ("http://192.168.1.20:11434", "qwen3:8b"):
        with pytest.raises(SystemExit) as stop:
            init_command.main(["--yes", word])
        assert stop.value.code == 2
        errors = capsys.readouterr().err
        assert f"'{word}'" in errors and "--backend" in errors and "--model" in errors
    assert sorted(tmp_path.iterdir()) == [lab.configs]


def test_the_older_short_form_of_the_flags(lab: Lab, ollama: StubBackend) -> None:
    assert init_command.main([str(lab.configs), "ann", "--yes", "--backend", ollama.url]) == 0
    assert content(lab, "Users/_current-user.json")["currentUser"] == "ann"


def test_help_shows_each_flag_once_and_how_the_command_is_typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WILMER_START_SCRIPT", "bash run_linux.sh")
    with pytest.raises(SystemExit):
        init_command.main(["--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: bash run_linux.sh init ")
    assert text.count("--user NAME") == 2 and "--User" not in text
    for name in ("--LoggingDirectory", "--DiscussionDirectory", "older short form"):
        assert name not in text


def test_commands_are_shown_as_the_program_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/wilmer ai/server.py", "init"])
    monkeypatch.setattr("sys.orig_argv", ["python3", "/opt/wilmer ai/server.py", "init"])
    words = init_output.init_command_line("--user", "me2")
    assert words.startswith("python3 ") and words.endswith(
        "server.py' init --user me2" if os.name != "nt" else 'server.py" init --user me2'
    )


def test_commands_are_shown_for_the_folders_of_this_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", str(tmp_path))
    assert init_output.init_command_line("--user", "me2").endswith(f"--user me2 --PublicDirectory {tmp_path}")


def test_the_port_of_the_command_line_is_the_users(lab: Lab, ollama: StubBackend) -> None:
    status, text = lab.init("--yes", "--backend", ollama.url, "--port", "5001")
    assert status == 0
    assert content(lab, "Users/me.json")["port"] == 5001
    assert "http://127.0.0.1:5001/v1" in text


@pytest.mark.parametrize("port", ["0", "-1", "65536", "x"])
def test_what_is_no_port(lab: Lab, port: str) -> None:
    with pytest.raises(SystemExit) as stop:
        lab.init("--yes", "--port", port)
    assert stop.value.code == 2


def test_four_questions_at_most(lab: Lab, usual: Callable[..., None], answers: Callable[..., list[str]]) -> None:
    asked = answers("2", "llama3.2:3b", "me", "replace")
    with (
        llm_servers.serving(llm_servers.vllm()) as first,
        llm_servers.serving(llm_servers.ollama("phi4", "llama3.2:3b")) as second,
    ):
        assert lab.init("--yes", "--backend", first.url)[0] == 0
        before = lab.files()
        usual(first.port, second.port)
        status, output = lab.init()
    assert status == 0, output
    assert len(asked) == 4
    assert content(lab, "Endpoints/me/Main.json")["modelNameToSendToAPI"] == "llama3.2:3b"
    assert lab.files()["Endpoints/me/Main.json.bak"] == before["Endpoints/me/Main.json"]
    kept = [path for path in lab.files() if path.endswith(".bak")]
    assert [line for line in output.splitlines() if ".bak" in line] == [
        f"  What was there before is kept next to them: Endpoints/me/Main.json.bak and {len(kept) - 1} others"
    ]


@pytest.fixture
def three(usual: Callable[..., None]) -> Any:
    """An Ollama and two servers of llama.cpp at the usual ports."""
    with (
        llm_servers.serving(llm_servers.ollama("llama3.2:3b", "phi4")) as first,
        llm_servers.serving(llm_servers.llama_cpp("/models/tiny.gguf")) as second,
        llm_servers.serving(llm_servers.llama_cpp("/models/phi4.gguf")) as third,
    ):
        usual(first.port, second.port, third.port)
        yield first, second, third


@pytest.mark.parametrize(
    "typed, number, model",
    [
        ("Ollama", 0, "phi4"),
        ("OLLAMA", 0, "phi4"),
        ("{port}", 1, "/models/tiny.gguf"),
        ("127.0.0.1:{port}", 1, "/models/tiny.gguf"),
        ("http://127.0.0.1:{port}", 1, "/models/tiny.gguf"),
    ],
)
def test_a_server_by_what_is_shown_of_it(
    lab: Lab, three: Any, answers: Callable[..., list[str]], typed: str, number: int, model: str
) -> None:
    asked = answers(typed.format(port=three[number].port), *(["phi4"] if number == 0 else []), "me")
    status, output = lab.init()
    assert status == 0, output
    assert len(asked) == (3 if number == 0 else 2)
    endpoint = content(lab, "Endpoints/me/Main.json")
    assert (endpoint["endpoint"], endpoint["modelNameToSendToAPI"]) == (three[number].url, model)


def test_a_name_that_fits_several_servers_or_none(lab: Lab, three: Any, answers: Callable[..., list[str]]) -> None:
    answers("llama.cpp", "127.0.0.1", "vLLM", "0", "4", "2", "me")
    status, output = lab.init()
    assert status == 0
    names = f"{three[0].url} Ollama, {three[1].url} llama.cpp, {three[2].url} llama.cpp."
    assert output.count(f"More than one fits; enter a number from 1 to 3, or a name: {names}") == 2
    assert output.count(f"There is no such one; enter a number from 1 to 3, or a name: {names}") == 3
    assert content(lab, "Endpoints/me/Main.json")["endpoint"] == three[1].url


def test_nothing_is_asked_that_is_clear(lab: Lab, answers: Callable[..., list[str]]) -> None:
    asked = answers("")
    with llm_servers.serving(llm_servers.vllm()) as backend:
        assert lab.init("--backend", backend.url)[0] == 0
    assert asked == ["Name of the new user [me]: "]


def test_an_address_is_asked_for_where_no_server_was_found(
    lab: Lab, usual: Callable[..., None], answers: Callable[..., list[str]]
) -> None:
    usual()
    with llm_servers.serving(llm_servers.vllm()) as backend:
        answers(backend.url.removeprefix("http://"), "me")
        assert lab.init()[0] == 0
    assert content(lab, "Endpoints/me/Main.json")["endpoint"] == backend.url


def test_wrong_answers_are_asked_again(lab: Lab, ollama: StubBackend, answers: Callable[..., list[str]]) -> None:
    asked = answers("0", "3", "\u00b2", "nonsense", "2", "a/b", "me")
    assert lab.init("--backend", ollama.url)[0] == 0
    assert len(asked) == 7
    assert content(lab, "Endpoints/me/Main.json")["modelNameToSendToAPI"] == "llama3.2:3b"


@pytest.mark.parametrize("answer, status", [(KeyboardInterrupt(), 130), (EOFError(), 1)])
@pytest.mark.parametrize("earlier", [[], ["1"]])
def test_an_end_at_a_question_leaves_nothing(
    lab: Lab,
    ollama: StubBackend,
    answers: Callable[..., list[str]],
    earlier: list[str],
    answer: BaseException,
    status: int,
) -> None:
    answers(*earlier, answer)
    ended, output = lab.init("--backend", ollama.url)
    assert (ended, lab.files()) == (status, {})
    assert "othing was written" in output


@pytest.mark.parametrize(
    "replies, user",
    [([""], "me2"), (["ann"], "ann"), (["n", "no", "y", "yes", "ann"], "ann"), (["me", "ME", "a/b", ""], "me2")],
)
def test_without_the_word_nothing_is_replaced(
    lab: Lab, ollama: StubBackend, answers: Callable[..., list[str]], replies: list[str], user: str
) -> None:
    lab.init("--yes", "--backend", ollama.url)
    before = lab.files()
    asked = answers("1", "me", *replies)
    status, text = lab.init("--backend", ollama.url)
    assert status == 0, text
    assert asked[2].startswith("There is a user 'me' already (Users/me.json and 12 more).") and "[me2]" in asked[2]
    assert len(asked) == 2 + len(replies)
    assert {path: data for path, data in lab.files().items() if path in before and "_current" not in path} == {
        path: data for path, data in before.items() if "_current" not in path
    }
    assert content(lab, "Users/_current-user.json")["currentUser"] == user
    assert f"Users/{user}.json" in lab.files()


def test_another_name_that_is_taken_as_well(lab: Lab, ollama: StubBackend, answers: Callable[..., list[str]]) -> None:
    for name in ("me", "ann"):
        lab.init("--yes", "--backend", ollama.url, "--user", name)
    before = lab.files()
    asked = answers("1", "ANN", "")
    assert lab.init("--backend", ollama.url, "--user", "me")[0] == 0
    assert asked[1].startswith("There is a user 'me' already") and "[me2]" in asked[1]
    assert asked[2].startswith("There is a user 'ann' already") and "[ann2]" in asked[2]
    assert {path: lab.files()[path] for path in before if "_current" not in path} == {
        path: data for path, data in before.items() if "_current" not in path
    }
    assert content(lab, "Users/_current-user.json")["currentUser"] == "ann2"


def test_a_name_that_differs_in_case_is_the_same_user(
    lab: Lab, ollama: StubBackend, answers: Callable[..., list[str]]
) -> None:
    lab.init("--yes", "--backend", ollama.url)
    before = set(lab.files())
    answers("1", "ME", "Replace")
    assert lab.init("--backend", ollama.url)[0] == 0
    assert {path for path in lab.files() if ".bak" not in path} == before
    assert content(lab, "Users/_current-user.json")["currentUser"] == "me"
    assert all_commands()["check"].run(["--ConfigDirectory", str(lab.configs)]) == 0


@pytest.mark.parametrize("typed", ["qwen3-8b-Q4.gguf", "QWEN3-8B-q4.gguf"])
def test_a_name_is_typed_as_it_is_shown(lab: Lab, answers: Callable[..., list[str]], typed: str) -> None:
    answers(typed, "me")
    routes = {"/v1/models": llm_servers.openai_list("C:\\models\\a.gguf", "C:\\models\\qwen3-8b-Q4.gguf")}
    with llm_servers.serving(routes) as backend:
        assert lab.init("--backend", backend.url)[0] == 0
    assert content(lab, "Endpoints/me/Main.json")["modelNameToSendToAPI"] == "C:\\models\\qwen3-8b-Q4.gguf"


def test_an_end_after_everything_was_written_does_not_deny_it(
    lab: Lab, ollama: StubBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(init_output, "summary", interrupted)
    status, text = lab.init("--yes", "--backend", ollama.url)
    assert status == 130 and "Users/me.json" in lab.files()
    assert "othing was written" not in text


def test_of_two_at_the_same_time_one_writes(lab: Lab, ollama: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    look_closer, files = init_command.look_closer, {}

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(init_command, "look_closer", look_closer)
        assert lab.init("--yes", "--backend", ollama.url, "--model", "llama3.2:3b")[0] == 0
        files.update(lab.files())
        return look_closer(*arguments)

    monkeypatch.setattr(init_command, "look_closer", slow)
    status, text = lab.init("--yes", "--backend", ollama.url, "--model", "qwen3:14b")
    assert (status, lab.files()) == (1, files)
    assert "ERROR: There is a user 'me' already" in text


@pytest.mark.parametrize("moment", range(1, 40, 3))
def test_an_end_while_files_are_written_leaves_none(
    lab: Lab, ollama: StubBackend, answers: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    lab.init("--yes", "--backend", ollama.url, "--model", "llama3.2:3b")
    (lab.configs / "Workflows/me/_Coding.json").unlink()
    before, calls = lab.files(), itertools.count(1)
    write = writing.atomic_write

    def interrupted(path: str, data: bytes, mode: int | None = None) -> None:
        number = next(calls)
        if number == moment and moment % 2:
            raise KeyboardInterrupt
        write(path, data, mode)
        if number == moment:
            raise KeyboardInterrupt

    monkeypatch.setattr(writing, "atomic_write", interrupted)
    answers("2", "me", "replace")
    status, text = lab.init("--backend", ollama.url)
    if next(calls) > moment:  # a later one never came
        assert (status, lab.files()) == (130, before)
    else:
        assert status == 0


@pytest.mark.skipif(os.name == "nt", reason="files have no such permissions there")
def test_only_the_owner_reads_a_new_endpoint(lab: Lab, ollama: StubBackend, answers: Callable[..., list[str]]) -> None:
    lab.init("--yes", "--backend", ollama.url)
    files = [lab.configs / "Endpoints/me/Main.json", lab.configs / "Endpoints/me/Main.json.bak"]
    assert files[0].stat().st_mode & 0o777 == 0o600
    # An existing one keeps its permissions, and so does the copy of it.
    files[0].chmod(0o640)
    files[0].write_text("{}", "utf-8")
    answers("1", "me", "replace")
    assert lab.init("--backend", ollama.url)[0] == 0
    assert [file.stat().st_mode & 0o777 for file in files] == [0o640, 0o640]


def test_every_earlier_version_is_kept(lab: Lab, ollama: StubBackend, answers: Callable[..., list[str]]) -> None:
    path = "Users/me.json"
    lab.init("--yes", "--backend", ollama.url)
    for text in ("first", "second"):
        (lab.configs / path).write_text(text, "utf-8")
        (lab.configs / "Workflows/me/Mine.json").write_text('{"nodes": []}', "utf-8")
        answers("1", "me", "replace")
        assert lab.init("--backend", ollama.url)[0] == 0
    assert (lab.files()[f"{path}.bak"], lab.files()[f"{path}.bak2"]) == (b"first", b"second")
    assert lab.files()["Workflows/me/Mine.json"] == b'{"nodes": []}'


def test_a_replacement_that_fails_restores_everything(
    lab: Lab, ollama: StubBackend, answers: Callable[..., list[str]]
) -> None:
    (lab.configs / "Users").mkdir()
    (lab.configs / "Users/me.json").write_text("mine", "utf-8")
    (lab.configs / "Workflows/me").mkdir(parents=True)
    (lab.configs / "Workflows/me/memory").write_text("in the way", "utf-8")
    before = lab.files()
    answers("1", "me", "replace")
    status, output = lab.init("--backend", ollama.url)
    assert (status, lab.files()) == (1, before)
    assert "Nothing was changed" in output
    assert sorted(path.name for path in lab.configs.iterdir()) == ["Users", "Workflows"]


@pytest.mark.parametrize(
    "found, port",
    [
        (servers.Server("http://127.0.0.1:5001", "KoboldCpp"), 5000),
        (servers.Server("http://127.0.0.1:5000", "TabbyAPI"), 5010),
        (servers.Server("http://10.0.0.7:5000", "TabbyAPI"), 5000),
        (servers.NoServer("http://127.0.0.1:5000", "is the AirPlay Receiver", known_as="AirPlay"), 5010),
        (servers.NoServer("http://127.0.0.1:5000", "nothing runs there", silent=True), 5000),
        (servers.NoServer("http://127.0.0.1:5000", "is a WilmerAI itself", known_as="WilmerAI"), 5000),
    ],
)
def test_a_port_that_another_program_has_is_left_to_it(found: Any, port: int) -> None:
    assert port_for([servers.Server("http://127.0.0.1:11434", "Ollama"), found]) == port


def test_what_the_client_is_told_beside_the_address(lab: Lab, ollama: StubBackend) -> None:
    _, text = lab.init("--yes", "--backend", ollama.url)
    assert "Docs/User/connecting-clients.md" in text and "WILMER_PUBLISH" not in text


def tried_line(text: str) -> str:
    [line] = [line.strip() for line in text.splitlines() if "curl -N" in line]
    return line[line.index("curl") :]


@pytest.mark.parametrize("user", ["me", "J\u00f6rg"])
def test_the_line_to_try(lab: Lab, ollama: StubBackend, user: str) -> None:
    _, text = lab.init("--yes", "--backend", ollama.url, "--user", user, "--port", "5001")
    line = tried_line(text)
    assert line.isascii() and not set("!%$`'") & set(line)  # each means something to bash, or in cmd
    words = shlex.split(line)
    assert words[:5] == [
        "curl",
        "-N",
        "http://127.0.0.1:5001/v1/chat/completions",
        "-H",
        "Content-Type: application/json",
    ]
    assert json.loads(words[-1]) == {
        "model": f"{user}:memory",
        "stream": True,
        "messages": [
            {"role": "system", "content": "[DiscussionId]kitchen[/DiscussionId]"},
            {"role": "user", "content": "Hello"},
        ],
    }


def test_the_documentation_shows_the_line_to_try(lab: Lab, ollama: StubBackend) -> None:
    _, text = lab.init("--yes", "--backend", ollama.url)
    page = Path(__file__).resolve().parents[3] / "Docs/User/getting-started.md"
    assert tried_line(text) in page.read_text("utf-8").splitlines()


def test_the_tests_of_the_new_workflows_pass(lab: Lab, ollama: StubBackend, capsys: pytest.CaptureFixture[str]) -> None:
    lab.init("--yes", "--backend", ollama.url, "--user", "ann")
    assert run_tests(["ann", "--ConfigDirectory", str(lab.configs)]) == 0
    assert "passed" in capsys.readouterr().out
    path = lab.configs / "Workflows/ann/assistant/_DefaultWorkflow.json"
    path.write_text(path.read_text("utf-8").replace('"CODING": "_Coding"', '"CODING": "_Writing"'), "utf-8")
    config_utils.reset_config_store()
    assert run_tests(["ann", "--ConfigDirectory", str(lab.configs)]) == 1
