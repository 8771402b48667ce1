"""Every shipped endpoint loads without a warning, under keys that are known, and so do those of the documentation."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.llmapis import api_types
from Middleware.llmapis.endpoint_file import EndpointFile
from Middleware.llmapis.samplers import CANONICAL_SAMPLERS, SamplerResolver, inject_structure, normalise
from Middleware.utilities import config_utils
from Middleware.utilities.answers.text_cleaner import CleaningRules
from Middleware.utilities.text_utils import estimation_level_multiplier
from Tests.tables import table
from Tests.utilities.test_shipped_backends import (
    API_TYPES,
    EMBEDDINGS,
    PENALTIES,
    REPOSITORY,
    ROOT,
    STOP,
    VISION_EXTRA,
    document,
    load,
    names,
    rows,
)

FOLDERS: dict[str, tuple[str, ...]] = {
    "": ("DefaultEndpoint",),
    "_example-endpoints": (
        "chatgpt-4o-example",
        "claude-example",
        "koboldcpp_example",
        "llama-cpp-server",
        "llama-cpp-server-canonical-samplers",
        "mlx-lm-example",
        "ollama-api-chat-example",
        "ollama-api-generate-example",
        "ollama-openai-example",
        "openai-compatible-completions-example",
        "openai-compatible-example",
        "text-generation-webui-example",
        "embeddings-ollama-example",
        "embeddings-openai-compatible-example",
    ),
    "_example-endpoints/specific_examples": (
        "deepseek-r1-koboldcpp",
        "gemma-3-ollama-vision",
        "gpt-oss-ollama-low-effort",
        "mistral-small-vllm",
        "qwen3-llama-cpp-no-thinking",
    ),
    "demo": ("Demo-LLM",),
}
FIVE = ("General", "Fast", "General-Reasoning", "Fast-Reasoning", "Worker")
ROLES: dict[str, tuple[str, ...]] = {
    "_shared": FIVE,
    "_shared_discussionid": (*FIVE, "Vision"),
    "_simple_router_no_memory": (*FIVE, "Vision", "Rag-Fast"),
    "_shared_manual_cot": ("General", "Fast", "Worker"),
    "_shared_manual_cot_discussionid": ("General", "Fast", "Worker", "Vision"),
    "_example_users": ("Responder", "Thinker", "Worker", "Memory-Generation", "Vision", "Embedding"),
    "_example_wikipedia": ("Rag-Fast", "Vision"),
    "_archived/group-chat-example": ("General", "Fast", "Worker"),
    "isevendays-openwebui-norouting-general-offline-mcp": ("General", "Worker", "Image"),
}
FOLDERS |= {folder: tuple(f"{role}-Endpoint" for role in roles) for folder, roles in ROLES.items()}
SHIPPED = [(folder, name) for folder, members in FOLDERS.items() for name in members]
CLOUD = {"chatgpt-4o-example": "env:OPENAI_API_KEY", "claude-example": "env:ANTHROPIC_API_KEY"}
KEYS = (  # in the order in which a file is read: connection, model, template, context, samplers, cleaning
    "$schema",
    "modelNameForDisplayOnly",
    "endpoint",
    "apiPath",
    "apiTypeConfigFileName",
    "apiKey",
    "backupEndpointName",
    "backupPresetName",
    "allowRemoteBackup",
    "modelNameToSendToAPI",
    "dontIncludeModel",
    "parallelCalls",
    "loadingTimeoutInSeconds",
    "swapGroup",
    "swapStandIn",
    "swapPatienceInSeconds",
    "promptTemplate",
    "addGenerationPrompt",
    "alternateRoles",
    "addTextToStartOfSystem",
    "textToAddToStartOfSystem",
    "addTextToStartOfPrompt",
    "textToAddToStartOfPrompt",
    "addTextToStartOfCompletion",
    "textToAddToStartOfCompletion",
    "ensureTextAddedToAssistantWhenChatCompletion",
    "backendSupportsToolTurns",
    "maxContextTokenSize",
    "clampPromptToContextWindow",
    "wilmerContextEstimationLevel",
    "presetSamplers",
    "appendPresetName",
    "trimBeginningAndEndLineBreaks",
    "removeThinking",
    "startThinkTag",
    "endThinkTag",
    "openingTagGracePeriod",
    "expectOnlyClosingThinkTag",
    "removeCustomTextFromResponseStartEndpointWide",
    "responseStartTextToRemoveEndpointWide",
)


def path_of(folder: str, name: str) -> Path:
    return ROOT / "Endpoints" / folder / f"{name}.json"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shipped") / "Configs"
    shutil.copytree(ROOT, root)
    return root


@pytest.fixture
def use(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make a user current whose endpoints and presets are in ``folder``."""
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(tree))
    monkeypatch.setattr(instance, "USERS", ["tester"])
    for key in CLOUD.values():
        monkeypatch.setenv(key.removeprefix("env:"), "key")

    def choose(folder: str) -> None:
        (tree / "Users" / "tester.json").write_text(
            json.dumps({"endpointConfigsSubDirectory": folder, "presetConfigsSubDirectoryOverride": folder}),
            encoding="utf-8",
        )
        config_utils.reset_config_store()

    yield choose
    config_utils.reset_config_store()


def payload_of(name: str, preset: str | None = None) -> dict[str, Any]:
    """The samplers of a call as they are sent, with a response limit of 300."""
    file = EndpointFile.load(name)
    samplers = SamplerResolver().resolve(name, file.config, file.api_type, preset)
    return normalise(inject_structure(samplers, file.config, file.api_type, True, 300))


def test_these_endpoints_are_shipped() -> None:
    assert names(ROOT / "Endpoints", "**/*.json") == {"/".join(filter(None, place)) for place in SHIPPED}


@table(("folder", "name"), SHIPPED)
def test_keys_are_known_and_in_order(folder: str, name: str) -> None:
    keys = list(load(path_of(folder, name)))
    assert not set(keys) - set(KEYS)
    assert keys == sorted(keys, key=KEYS.index)


@pytest.mark.parametrize(("folder", "name"), SHIPPED)
def test_endpoint_loads_without_a_warning(folder: str, name: str, use: Any, caplog: pytest.LogCaptureFixture) -> None:
    use(folder)
    file = EndpointFile.load(name)
    assert file.config["apiTypeConfigFileName"] in {*API_TYPES, *EMBEDDINGS}, "spelled as the file is"
    assert file.settings({}).model or file.config["dontIncludeModel"] is True
    with caplog.at_level(logging.WARNING):
        if file.type not in api_types.EMBEDDINGS_TYPES:
            payload = payload_of(name)
            assert payload == payload_of(name, name), "the endpoint's own name means its own samplers"
            assert payload[file.api_type["maxNewTokensPropertyName"]] == 300
            assert payload["stream"] is True
            assert estimation_level_multiplier(file.config.get("wilmerContextEstimationLevel")) >= 1
            config_utils.load_prompt_template(file.config.get("promptTemplate") or "_chatonly")
        rules = CleaningRules.build(file.config, {})
    assert (rules.think is not None) is bool(file.config.get("removeThinking"))
    assert not caplog.records


@table(("folder", "name"), SHIPPED)
def test_nothing_leaves_this_machine_unasked(folder: str, name: str) -> None:
    data = load(path_of(folder, name))
    assert data["apiKey"] == CLOUD.get(name, "")
    local = re.fullmatch(r"http://127\.0\.0\.1:\d+", data["endpoint"])
    assert bool(local) is (name not in CLOUD)
    assert data["endpoint"].startswith("http://127.") or data["endpoint"].startswith("https://api.")


def test_every_api_type_has_an_example() -> None:
    folder = ROOT / "Endpoints" / "_example-endpoints"
    assert {load(path)["apiTypeConfigFileName"] for path in folder.glob("*.json")} == {*API_TYPES, *EMBEDDINGS}


# what the roles share, and where they differ
KWARGS_OFF = {"enable_thinking": False, "thinking_budget": 0}
PLAIN = {"temperature": 0.3, "top_p": 1, "min_p": 0.01, "stop": [STOP], "chat_template_kwargs": KWARGS_OFF}
THINKING = {
    "temperature": 0.6,
    "top_p": 0.95,
    "min_p": 0,
    "stop": [STOP],
    "chat_template_kwargs": {"thinking_budget": 16384},
}
ROLE_SAMPLERS = {
    "Responder": {**PLAIN, "temperature": 0.7},
    "Worker": {**PLAIN, "min_p": 0.05},
    "Thinker": THINKING,
    "General-Reasoning": THINKING,
    "Fast-Reasoning": THINKING,
}
KOBOLD_VISION = {"_shared_discussionid", "_shared_manual_cot_discussionid", "_example_users"}
MCP = "isevendays-openwebui-norouting-general-offline-mcp"
LLAMA_ROLES = [
    (folder, role)
    for folder, roles in ROLES.items()
    for role in roles
    if folder != MCP and role != "Embedding" and not (role == "Vision" and folder in KOBOLD_VISION)
]


@table(("folder", "role"), LLAMA_ROLES)
def test_role_endpoint(folder: str, role: str) -> None:
    data = load(path_of(folder, f"{role}-Endpoint"))
    assert data["endpoint"] == "http://127.0.0.1:5001"
    assert data["apiTypeConfigFileName"] == "LlamaCppServer"
    assert data["maxContextTokenSize"] == 32786
    assert data["promptTemplate"] == "llama3"
    assert data["dontIncludeModel"] is data["addGenerationPrompt"] is data["trimBeginningAndEndLineBreaks"] is True
    assert data["presetSamplers"] == ROLE_SAMPLERS.get(role, PLAIN)
    assert bool(data.get("removeThinking")) is (ROLE_SAMPLERS.get(role) is THINKING)
    assert "appendPresetName" not in data


@pytest.mark.parametrize("folder", sorted(KOBOLD_VISION))
def test_vision_endpoint_on_koboldcpp(folder: str, use: Any) -> None:
    data = load(path_of(folder, "Vision-Endpoint"))
    assert (data["apiTypeConfigFileName"], data["promptTemplate"]) == ("KoboldCpp", "chatml")
    assert (data["maxContextTokenSize"], data["appendPresetName"]) == (65536, "Vision-Endpoint-extra")
    use(folder)
    payload = payload_of("Vision-Endpoint")
    assert (
        payload.items()
        >= {
            "temperature": 0.3,
            "min_p": 0.01,
            "rep_pen": 1.1,
            "rep_pen_range": 1024,
            "max_context_length": 65536,
            **VISION_EXTRA,
        }.items()
    )
    neutral = {"top_p": 1, "top_k": 0, "typical": 1, "mirostat": 0, "dynatemp_range": 0, **PENALTIES}
    assert payload.items() >= neutral.items()


@pytest.mark.parametrize("role", ROLES[MCP])
def test_endpoints_of_the_tool_user(role: str) -> None:
    data = load(path_of(MCP, f"{role}-Endpoint"))
    assert (data["apiTypeConfigFileName"], data["promptTemplate"]) == ("Open-AI-API", "mistral-small-2501")
    assert data["maxContextTokenSize"] == 32000


def test_default_endpoint() -> None:
    data = load(path_of("", "DefaultEndpoint"))
    assert (data["apiTypeConfigFileName"], data["promptTemplate"]) == ("KoboldCpp", "alpaca")
    assert data["maxContextTokenSize"] == 16384


def test_recipes(use: Any) -> None:
    use("_example-endpoints/specific_examples")
    assert payload_of("qwen3-llama-cpp-no-thinking")["chat_template_kwargs"] == {"enable_thinking": False}
    assert payload_of("gpt-oss-ollama-low-effort")["reasoning_effort"] == "low"
    assert payload_of("gemma-3-ollama-vision")["num_ctx"] == 16384
    assert payload_of("mistral-small-vllm")["temperature"] == 0.15
    think = CleaningRules.build(EndpointFile.load("deepseek-r1-koboldcpp").config, {}).think
    assert think is not None and think.closing_only


def test_an_example_shows_every_canonical_sampler(use: Any) -> None:
    use("_example-endpoints")
    block = load(path_of("_example-endpoints", "llama-cpp-server-canonical-samplers"))["presetSamplers"]
    assert set(block) == CANONICAL_SAMPLERS | {"thinkingMode", "chat_template_kwargs"}
    assert payload_of("llama-cpp-server-canonical-samplers")["chat_template_kwargs"]["enable_thinking"] is False


# -- documentation --------------------------------------------------------------------------------------------------


def test_the_server_table_of_the_documentation() -> None:
    servers = rows(document("connecting-backends.md"), "Server")
    assert len(servers) >= 12
    for row in servers:
        _, api_type, url, example = (cell.strip() for cell in row.strip("|").split("|"))
        copied = load(path_of("_example-endpoints", example.strip("`")))
        assert copied["apiTypeConfigFileName"] == api_type.strip("`"), row
        assert re.match(r"`https?://\S+`", url), row


def test_names_in_the_documentation_exist() -> None:
    known = {*KEYS, "thinkTagText"}
    text = document("connecting-backends.md")
    for row in [*rows(text, "Key"), *rows(text, "Cleaning key")]:
        assert set(re.findall(r"`(\w+)`", row.split("|")[1])) <= known, row
    recipes = names(ROOT / "Endpoints" / "_example-endpoints" / "specific_examples")
    assert {row.split("|")[1].strip(" `") for row in rows(text, "Recipe")} == recipes


def test_the_endpoint_files_of_the_documentation_load(use: Any, tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = re.compile(r"```json (?:file=Endpoints/|part=endpoint)[^\n]*\n({.*?)```", re.DOTALL)
    files = [
        json.loads(block)
        for name in ("connecting-backends.md", "samplers-and-presets.md", "shipped-users.md")
        for block in whole.findall(document(name))
    ]
    assert len(files) >= 3
    use("documented")
    (tree / "Endpoints" / "documented").mkdir(exist_ok=True)
    for number, block in enumerate(files):
        (tree / "Endpoints" / "documented" / f"E{number}.json").write_text(json.dumps(block), encoding="utf-8")
        with caplog.at_level(logging.WARNING):
            assert payload_of(f"E{number}")
        assert set(block) <= set(KEYS)
    assert not caplog.records


def test_the_messages_of_the_documentation_are_those_of_the_program() -> None:
    folders = (REPOSITORY / "Middleware" / "llmapis", REPOSITORY / "Middleware" / "utilities" / "http")
    sources = "".join(path.read_text(encoding="utf-8") for folder in folders for path in sorted(folder.glob("*.py")))
    said = re.sub(r'"\s*\n\s*f?"', "", sources).lower()
    for row in rows(document("connecting-backends.md"), "Message"):
        for message in re.findall(r"`([^`]+)`", row.split("|")[1]):
            if not re.fullmatch(r"status \d+", message):
                assert all(piece.strip(" ").lower() in said for piece in message.split("...")), message
