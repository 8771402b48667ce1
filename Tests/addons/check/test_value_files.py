"""Preset files, prompt templates and structured outputs, whose values nothing checked."""

from __future__ import annotations

from typing import Any

import pytest

from Middleware.addons.check.file_check import KINDS, check_content
from Middleware.common import instance_global_variables as instance
from Middleware.utilities.config.lookup import reset_config_store
from Tests.addons.check.config_tree import TEMPLATE
from Tests.tables import table


@pytest.fixture(autouse=True)
def shipped_api_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", None)
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", None)
    reset_config_store()


@table(
    ("folder", "content", "path", "says"),
    [
        ("KoboldCpp", {"rep_pen": "high"}, "rep_pen", "'rep_pen' must be a number, not 'high'"),
        ("KoboldCpp", {"rep_pen_range": 1.5}, "rep_pen_range", "must be a whole number"),
        ("LlamaCppServer", {"top_p": 1.5}, "top_p", "out of range"),
        ("LlamaCppServer", {"top_k": ["40"]}, "top_k", "must be a whole number, not a list"),
        ("LlamaCppServer", {"min_p": " "}, "min_p", "is blank"),
        ("LlamaCppServer", {"ignore_eos": "sometimes"}, "ignore_eos", "must be true or false"),
        ("OllamaApiChat", {"temperature": "0.7"}, "temperature", "is sent as one"),
        ("Text-Generation-WebUI", {"mirostat_mode": 3}, "mirostat_mode", "out of range"),
        ("OpenAiCompatibleApis", {"temprature": 1}, "temprature", "probably does not know it"),
    ],
)
def test_presets(folder: str, content: dict[str, Any], path: str, says: str) -> None:
    (found,) = check_content(f"Presets/{folder}/me/x.json", KINDS["preset"], content)
    assert (found.severity, found.json_path) == ("warning", path)
    assert says in found.message


@table(
    ("folder", "content"),
    [
        ("KoboldCpp", {"rep_pen": 1.1, "temperature": None, "stop_sequence": "x", "anything": [1]}),
        ("LlamaCppServer", {"seed": "__wilmer_null__", "keep_alive": -1, "cache_prompt": True, "logit_bias": {"1": 2}}),
        ("Unknown", {"top_p": "x"}),
        ("OpenAiCompatibleApis", {"repetition_penalty": 1, "_temperature": "warm"}),
    ],
)
def test_right_presets(folder: str, content: dict[str, Any]) -> None:
    assert check_content(f"Presets/{folder}/x.json", KINDS["preset"], content) == []


@table(
    ("content", "says"),
    [
        ({}, "the template has no marks"),
        ({"$schema": "x"}, "the template has no marks"),
        ({"promptTemplateUserPrefix": "U"}, "nothing marks the system prompt and a message of the assistant"),
        (
            {**TEMPLATE, "promptTemplateUserPrefix": None, "promptTemplateUserSuffix": None},
            "nothing marks a message of the user: promptTemplateUserPrefix, promptTemplateUserSuffix are missing",
        ),
        ({**dict.fromkeys(list(TEMPLATE)[:4], ""), "promptTemplateAsistantPrefix": ""}, "is unknown and has no effect"),
    ],
)
def test_templates(content: dict[str, Any], says: str) -> None:
    (found,) = check_content("PromptTemplates/x.json", KINDS["prompt-template"], content)
    assert found.severity == "warning"
    assert says in found.message


@table(
    ("content", "path", "says", "hint"),
    [
        ({}, "", "the schema is empty", ""),
        ({"type": "objekt"}, "type", "not a type of JSON Schema", "object"),
        (
            {"type": "object", "properties": {"a": {"type": "int"}}},
            "properties.a.type",
            "'int' is not a type",
            "integer",
        ),
        ({"type": "object", "required": "a"}, "required", "this is not a JSON Schema", ""),
        ({"properties": {"a": {"minimum": "1"}}}, "properties.a.minimum", "this is not a JSON Schema", ""),
        ({"name": "Ann", "age": 5}, "", "none of the keys is a keyword", ""),
        ({"name": "x", "strict": True, "schema": {"type": "object"}}, "", "none of the keys is a keyword", ""),
        ({"type": "object", "proprties": {}}, "proprties", "is unknown and has no effect", "properties"),
    ],
)
def test_schemas(content: dict[str, Any], path: str, says: str, hint: str) -> None:
    (found,) = check_content("StructuredOutputs/x.json", KINDS["structured-output"], content)
    assert (found.json_path, found.suggestion) == (path, hint)
    assert says in found.message
    assert ("the value of 'schema'" in found.expected) == ("schema" in content)


@table(
    "content",
    [
        {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]},
        {"anyOf": [True]},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {}, "$ref": "#"},
        {"enum": [1, 2]},
    ],
)
def test_right_schemas(content: dict[str, Any]) -> None:
    assert check_content("StructuredOutputs/x.json", KINDS["structured-output"], content) == []
