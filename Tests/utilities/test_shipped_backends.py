"""The shipped API types and presets hold what the tables say, and the documentation says the same."""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from Middleware.llmapis.samplers import CANONICAL_SAMPLERS, FOR_THE_SERVER

REPOSITORY = Path(__file__).resolve().parents[2]
ROOT = REPOSITORY / "Public" / "Configs"
DOCS = REPOSITORY / "Docs" / "User"
STOP = "<|END_RESPONSE|>"


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def names(folder: Path, pattern: str = "*.json") -> set[str]:
    return {path.relative_to(folder).as_posix().removesuffix(".json") for path in folder.glob(pattern)}


# -- API types ------------------------------------------------------------------------------------------------------

CHAT_SCHEMA = {"field": "response_format", "style": "openaiJsonSchema"}
OLLAMA_THINK = {"mode": "bool", "location": "top", "field": "think"}
LLAMA_THINK = {"mode": "bool", "location": "chat_template_kwargs", "field": "enable_thinking"}
EFFORT = {"mode": "effort", "location": "top", "field": "reasoning_effort"}
NO_THINK = {"mode": "unsupported"}
# type, presetType, keys of context size and response limit, thinking, structuredOutput
API_TYPES: dict[str, tuple[str, str, str | None, str, dict[str, str], dict[str, Any] | None]] = {
    "Claude": ("claudeMessages", "ClaudeMessages", "", "max_tokens", NO_THINK, None),
    "KoboldCpp": ("koboldCppGenerate", "KoboldCpp", "max_context_length", "max_length", NO_THINK, None),
    "LlamaCppServer": (
        "openAIChatCompletion",
        "LlamaCppServer",
        "truncation_length",
        "n_predict",
        LLAMA_THINK,
        CHAT_SCHEMA,
    ),
    "OllamaApiChat": (
        "ollamaApiChat",
        "OllamaApiChat",
        "num_ctx",
        "num_predict",
        OLLAMA_THINK,
        {"field": "format", "style": "raw"},
    ),
    "OllamaApiGenerate": ("ollamaApiGenerate", "OllamaApiGenerate", "num_ctx", "num_predict", OLLAMA_THINK, None),
    "Open-AI-API": (
        "openAIChatCompletion",
        "OpenAiCompatibleApis",
        "",
        "max_tokens",
        EFFORT,
        {**CHAT_SCHEMA, "strict": False},
    ),
    "OpenAI": (
        "openAIChatCompletion",
        "OpenAiCompatibleApis",
        "",
        "max_completion_tokens",
        EFFORT,
        {**CHAT_SCHEMA, "strict": False},
    ),
    "OpenAI-Compatible-Completions": ("openAIV1Completion", "OpenAiCompatibleApis", "", "max_tokens", NO_THINK, None),
    "Text-Generation-WebUI": (
        "openAIChatCompletion",
        "Text-Generation-WebUI",
        "truncation_length",
        "max_tokens",
        NO_THINK,
        None,
    ),
    "mlx-lm": ("openAIChatCompletion", "OpenAiCompatibleApis", None, "max_tokens", NO_THINK, None),
}
EMBEDDINGS = {"OpenAI-Embeddings": "openAIEmbeddings", "Ollama-Embeddings": "ollamaEmbeddings"}
COLUMNS = ("LlamaCppServer", "KoboldCpp", "Text-Generation-WebUI", "OllamaApiChat", "Open-AI-API", "mlx-lm", "Claude")
SAME_SAMPLERS = {"OllamaApiGenerate": "OllamaApiChat"}
SAME_SAMPLERS |= dict.fromkeys(("OpenAI", "OpenAI-Compatible-Completions"), "Open-AI-API")
# "=": the same name, "-": not supported
SAMPLERS = """
temperature, top_p | = | = | = | = | = | = | =
dynatemp_range, dynatemp_exponent, dry_penalty_last_n | = | = | - | - | - | - | -
top_k | = | = | = | = | - | = | =
min_p | = | = | = | = | - | = | -
top_n_sigma | = | nsigma | = | - | - | - | -
typical_p | = | typical | = | = | - | - | -
repeat_penalty | = | rep_pen | repetition_penalty | = | - | repetition_penalty | -
repeat_last_n | = | rep_pen_range | repetition_penalty_range | = | - | repetition_context_size | -
presence_penalty, frequency_penalty | = | = | = | = | = | = | -
dry_multiplier, dry_base, dry_allowed_length, dry_sequence_breakers | = | = | = | - | - | - | -
xtc_probability, xtc_threshold | = | = | = | - | - | - | -
mirostat | = | = | mirostat_mode | = | - | - | -
mirostat_tau, mirostat_eta | = | = | = | = | - | - | -
seed | = | sampler_seed | = | = | = | - | -
stop | = | stop_sequence | = | = | = | = | stop_sequences
samplers, ignore_eos, n_probs, min_keep, json_schema | = | - | - | - | - | - | -
logit_bias | = | - | - | - | = | = | -
grammar | = | - | grammar_string | - | - | - | -
id_slot, cache_prompt, n_cache_reuse | = | - | - | - | - | - | -
keep_alive | - | - | - | = | - | - | -
"""


def sampler_maps(table: str) -> dict[str, dict[str, str]]:
    """The ``samplerFieldMap`` of each column of a table of canonical names."""
    maps: dict[str, dict[str, str]] = {column: {} for column in COLUMNS}
    for line in table.strip().splitlines():
        cells = [cell.strip(" `") for cell in line.strip("| ").split("|")]
        for canonical in (name.strip(" `") for name in cells[0].split(",")):
            for column, cell in zip(COLUMNS, cells[1:], strict=True):
                if cell != "-":
                    maps[column][canonical] = canonical if cell == "=" else cell
    return maps


def test_the_table_knows_every_name() -> None:
    named = {name for fields in sampler_maps(SAMPLERS).values() for name in fields}
    assert named == CANONICAL_SAMPLERS | FOR_THE_SERVER


def test_these_api_types_are_shipped() -> None:
    assert names(ROOT / "ApiTypes") == {*API_TYPES, *EMBEDDINGS}


@pytest.mark.parametrize("name", API_TYPES)
def test_api_type(name: str) -> None:
    kind, preset_type, window, limit, thinking, schema = API_TYPES[name]
    data = load(ROOT / "ApiTypes" / f"{name}.json")
    assert data.pop("$schema") and data.pop("nameForDisplayOnly")
    assert data.pop("samplerFieldMap") == sampler_maps(SAMPLERS)[SAME_SAMPLERS.get(name, name)]
    assert data.pop("structuredOutput", None) == schema
    assert data.pop("requestUsageInStreams", False) == (name in ("Open-AI-API", "OpenAI"))
    assert data == {
        "type": kind,
        "presetType": preset_type,
        "truncateLengthPropertyName": window,
        "maxNewTokensPropertyName": limit,
        "streamPropertyName": "stream",
        "supportsChatTemplateKwargs": name == "LlamaCppServer",
        "thinking": thinking,
    }


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embeddings_api_type(name: str) -> None:
    data = load(ROOT / "ApiTypes" / f"{name}.json")
    assert data.pop("$schema") and data.pop("nameForDisplayOnly")
    assert data == {"type": EMBEDDINGS[name]}


# -- presets --------------------------------------------------------------------------------------------------------

MIROSTAT = {"mirostat_tau": 5, "mirostat_eta": 0.1}
PENALTIES = {"presence_penalty": 0, "frequency_penalty": 0}
OLLAMA_PRESET = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0,
    "typical_p": 1,
    "repeat_last_n": 64,
    "repeat_penalty": 1.1,
    **PENALTIES,
    "mirostat": 0,
    **MIROSTAT,
    "stop": [STOP],
    "think": False,
}
ORDER = [6, 0, 1, 3, 4, 2, 5]
VISION_EXTRA = {"top_a": 0, "tfs": 1, "smoothing_factor": 0, "rep_pen_slope": 1, "sampler_order": ORDER, "images": []}
VISION_FOLDERS = ("_example_users", "_example_wikipedia", "_shared_discussionid", "_shared_manual_cot_discussionid")
PRESETS: dict[str, dict[str, Any]] = {
    "ClaudeMessages/_example_preset/Example-Preset": {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "stop_sequences": [STOP],
    },
    "KoboldCpp/_example_preset/Example-Preset": {
        "temperature": 0.7,
        "top_k": 100,
        "top_a": 0,
        "top_p": 0.92,
        "min_p": 0,
        "typical": 1,
        "tfs": 1,
        "rep_pen": 1.1,
        "rep_pen_range": 320,
        "rep_pen_slope": 1,
        **PENALTIES,
        "mirostat": 0,
        **MIROSTAT,
        "sampler_order": ORDER,
        "stop_sequence": [STOP],
    },
    "LlamaCppServer/_example_preset/Example-Preset": {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "typical_p": 1,
        "repeat_penalty": 1,
        "repeat_last_n": 64,
        **PENALTIES,
        "mirostat": 0,
        **MIROSTAT,
        "chat_template_kwargs": {"enable_thinking": False},
        "stop": [STOP],
    },
    "OllamaApiChat/_example_preset/Example-Preset": OLLAMA_PRESET,
    "OllamaApiGenerate/_example_preset/Example-Preset": OLLAMA_PRESET,
    "OpenAiCompatibleApis/_example_preset/Example-Preset": {
        "temperature": 0.7,
        "top_p": 1,
        **PENALTIES,
        "stop": [STOP],
    },
    "Text-Generation-WebUI/_example_preset/Example-Preset": {
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.05,
        "typical_p": 1,
        "repetition_penalty": 1.1,
        "repetition_penalty_range": 1024,
        **PENALTIES,
        "mirostat_mode": 0,
        **MIROSTAT,
        "stop": [STOP],
    },
    **{f"KoboldCpp/{folder}/Vision-Endpoint-extra": VISION_EXTRA for folder in VISION_FOLDERS},
}
CATALOGUE = "ClaudeMessages/_Available_Presets"


def test_these_presets_are_shipped() -> None:
    assert names(ROOT / "Presets", "**/*.json") == {*PRESETS, CATALOGUE}


@pytest.mark.parametrize("name", PRESETS)
def test_preset(name: str) -> None:
    assert load(ROOT / "Presets" / f"{name}.json") == PRESETS[name]


def test_catalogue_of_claude_fields() -> None:
    assert list(load(ROOT / "Presets" / f"{CATALOGUE}.json")) == [
        "temperature",
        "top_p",
        "top_k",
        "stop_sequences",
        "metadata",
        "tool_choice",
        "thinking",
    ]


# -- documentation --------------------------------------------------------------------------------------------------


def document(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def rows(text: str, first: str) -> list[str]:
    """The body of the table whose first heading is ``first``."""
    return list(takewhile(str, text.split(f"| {first} |", 1)[1].splitlines()[2:]))


def test_the_sampler_table_of_the_documentation() -> None:
    table = "\n".join(rows(document("samplers-and-presets.md"), "Sampler"))
    assert sampler_maps(table) == sampler_maps(SAMPLERS)
