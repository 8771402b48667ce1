"""Preset resolution, translation, structural fields, normalisation."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import ConfigNotFoundError
from Middleware.llmapis.samplers import (
    CANONICAL_SAMPLERS,
    SamplerResolver,
    deep_merge,
    inject_structure,
    normalise,
    thinking_fields,
    translate,
)
from Middleware.utilities import config_utils
from Tests.llmapis.lab import CLAUDE, LLAMA_CPP, OLLAMA, OPEN_AI, Lab
from Tests.tables import table


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def resolve(endpoint: str, preset: str | None, resolver: SamplerResolver | None = None) -> dict[str, Any]:
    config = config_utils.load_endpoint(endpoint)
    api_type = config_utils.load_api_type(config["apiTypeConfigFileName"])
    return (resolver or SamplerResolver()).resolve(endpoint, config, api_type, preset)


# -- translation --------------------------------------------------------------------------------------------------


def test_donor_block_for_claude() -> None:
    assert translate({"temperature": 0.6, "min_p": 0.05, "stop": ["x"]}, CLAUDE) == {
        "temperature": 0.6,
        "stop_sequences": ["x"],
    }


def test_unsupported_and_unknown_samplers_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    assert translate({"mirostat": 1, "temprature": 1}, OPEN_AI, "E") == {}
    assert "does not support sampler 'mirostat'" in caplog.text
    assert "unknown sampler 'temprature'" in caplog.text


def test_custom_map_may_add_private_keys() -> None:
    assert translate({"speed": 2}, {"samplerFieldMap": {"speed": "x_speed"}}) == {"x_speed": 2}


def test_there_are_31_canonical_samplers() -> None:
    assert len(CANONICAL_SAMPLERS) == 31


def test_thinking_off_merges_with_template_arguments() -> None:
    block = {"thinkingMode": "off", "chat_template_kwargs": {"thinking_budget": 0}}
    assert translate(block, LLAMA_CPP) == {"chat_template_kwargs": {"enable_thinking": False, "thinking_budget": 0}}
    assert translate(block, OLLAMA) == {"think": False}
    assert translate(block, OPEN_AI) == {}


def test_own_template_arguments_beat_the_thinking_mode() -> None:
    block = {"thinkingMode": "off", "chat_template_kwargs": {"enable_thinking": True}}
    assert translate(block, LLAMA_CPP) == {"chat_template_kwargs": {"enable_thinking": True}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("on", {"reasoning_effort": "medium"}),
        (True, {"reasoning_effort": "medium"}),
        (" HIGH ", {"reasoning_effort": "high"}),
        ("off", {}),
        (False, {}),
        (0, {}),
        ("disabled", {}),
    ],
)
def test_thinking_as_effort(value: Any, expected: dict[str, Any]) -> None:
    assert thinking_fields(value, OPEN_AI["thinking"]) == expected


@table("value", ["offf", "maximum", 2, "ON!"])
def test_an_unknown_word_for_thinking(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    for api_type in (OLLAMA, LLAMA_CPP):
        assert translate({"thinkingMode": value}, api_type, "E") == {}
    assert translate({"thinkingMode": value}, OPEN_AI, "E") == {"reasoning_effort": "medium"}
    shown = f"'{value}'" if isinstance(value, str) else value
    known = (
        "Known: off, on, minimal, low, medium, high, xhigh, max, none, false, no, 0, disabled, true, yes, 1, enabled"
    )
    assert {record.getMessage() for record in caplog.records} == {
        f"Endpoint 'E': thinkingMode is {shown}, which is unknown; it is not sent. {known}",
        f"Endpoint 'E': thinkingMode is {shown}, which is unknown; it counts as medium. {known}",
    }


@table("value", ["off", "FALSE", "no", 0, " disabled ", False])
def test_an_effort_that_switches_thinking_off(value: Any) -> None:
    assert thinking_fields(value, {**OPEN_AI["thinking"], "offValue": "none"}) == {"reasoning_effort": "none"}
    assert thinking_fields(value, {**OPEN_AI["thinking"], "offValue": ""}) == {}


@table("value", ["minimal", "low", "medium", "high", "xhigh", "max", "none"])
def test_efforts(value: str) -> None:
    for descriptor in (OPEN_AI["thinking"], {**OPEN_AI["thinking"], "offValue": "none"}):
        assert thinking_fields(value.upper(), descriptor) == {"reasoning_effort": value}
    assert thinking_fields(value, OLLAMA["thinking"]) == {"think": value != "none"}


def test_a_blank_thinking_mode_is_none(caplog: pytest.LogCaptureFixture) -> None:
    assert translate({"thinkingMode": " "}, OLLAMA, "E") == {}
    assert caplog.text == ""


@pytest.mark.parametrize(
    "descriptor", [{}, {"mode": "unsupported", "field": "x"}, {"mode": "odd", "field": "x"}, {"mode": "bool"}]
)
def test_thinking_that_cannot_be_switched_is_dropped_with_a_warning(
    descriptor: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert thinking_fields("on", descriptor, "E") == {}
    assert "thinkingMode is not sent" in caplog.text


# -- structure and nulls ------------------------------------------------------------------------------------------


def test_node_limit_beats_the_preset() -> None:
    assert inject_structure({"max_tokens": 9000}, {}, OPEN_AI, False, 300)["max_tokens"] == 300


def test_null_in_the_preset_keeps_fields_out() -> None:
    samplers = {"n_predict": None, "truncation_length": None}
    out = normalise(inject_structure(samplers, {"maxContextTokenSize": 4096}, LLAMA_CPP, True, 300))
    assert out == {"stream": True}


@pytest.mark.parametrize(
    ("samplers", "stream", "asks", "sent"),
    [
        ({}, True, True, {"include_usage": True}),
        ({}, False, True, None),
        ({}, True, False, None),
        ({"stream_options": None}, True, True, None),
        ({"stream_options": {"chunks": 1}}, True, True, {"include_usage": True, "chunks": 1}),
        ({"stream_options": {"include_usage": False}}, True, True, {"include_usage": False}),
    ],
)
def test_token_counts_are_asked_for_in_streams_only(
    samplers: dict[str, Any], stream: bool, asks: bool, sent: dict[str, Any] | None
) -> None:
    out = normalise(inject_structure(samplers, {}, {"requestUsageInStreams": asks}, stream, None))
    assert out.get("stream_options") == sent


def test_no_limit_from_the_node_sends_none() -> None:
    assert inject_structure({"max_tokens": 9000}, {}, OPEN_AI, False, None) == {"stream": False}


def test_context_size_needs_both_sides() -> None:
    assert "truncation_length" not in inject_structure({}, {}, LLAMA_CPP, False, 1)
    assert inject_structure({}, {"maxContextTokenSize": 8192}, LLAMA_CPP, False, 1)["truncation_length"] == 8192
    assert inject_structure({}, {"maxContextTokenSize": 8192}, {}, False, 1) == {}


def test_normalise() -> None:
    before = {
        "a": None,
        "b": "__wilmer_null__",
        "c": {"d": None},
        "s": ["__wilmer_null__"],
        "z": 0,
        "e": "",
        "f": False,
    }
    assert normalise(before) == {"b": None, "s": ["__wilmer_null__"], "z": 0, "e": "", "f": False}
    assert before["c"] == {"d": None}


def test_schemas_pass_unchanged() -> None:
    samplers = {"json_schema": {"default": None}, "x": {"grammar": {"y": None}}}
    assert normalise(samplers) == samplers


def test_deep_merge_leaves_its_inputs_alone() -> None:
    base, override = {"a": {"b": 1, "c": [1]}, "d": 1}, {"a": {"c": [2]}, "d": {"e": 2}}
    assert deep_merge(base, override) == {"a": {"b": 1, "c": [2]}, "d": {"e": 2}}
    assert base == {"a": {"b": 1, "c": [1]}, "d": 1}


# -- resolution ---------------------------------------------------------------------------------------------------


def test_preset_file_is_sent_verbatim(lab: Lab) -> None:
    lab.preset("OpenAiCompatibleApis", "P", {"anything": [1], "x": None})
    assert resolve("Main", "P") == {"anything": [1], "x": None}


def test_sub_folder_wins_over_the_type_root(lab: Lab) -> None:
    lab.preset("OpenAiCompatibleApis", "P", {"from": "root"}, folder="")
    assert resolve("Main", "P") == {"from": "root"}
    lab.preset("OpenAiCompatibleApis", "P", {"from": "user"})
    assert resolve("Main", "P") == {"from": "user"}


def test_donor_endpoint_is_translated_for_the_caller(lab: Lab) -> None:
    lab.endpoint("Donor", {"apiTypeConfigFileName": "Llama", "presetSamplers": {"temperature": 0.3, "min_p": 0.1}})
    assert resolve("Main", "Donor") == {"temperature": 0.3}


def test_endpoint_without_samplers_is_no_donor(lab: Lab) -> None:
    lab.endpoint("P", {"presetSamplers": {}})
    lab.preset("OpenAiCompatibleApis", "P", {"top_p": 0.5})
    assert resolve("Main", "P") == {"top_p": 0.5}


def test_append_preset_replaces_lists(lab: Lab) -> None:
    lab.preset("OpenAiCompatibleApis", "P", {"stop": ["a"], "top_p": 1})
    lab.preset("OpenAiCompatibleApis", "Extra", {"stop": ["b"]})
    lab.endpoint("Main", {"appendPresetName": "Extra"})
    assert resolve("Main", "P") == {"stop": ["b"], "top_p": 1}


@pytest.mark.parametrize("preset", [None, "", "  "])
def test_without_a_preset_the_endpoint_lends_its_own(lab: Lab, preset: str | None) -> None:
    lab.preset("OpenAiCompatibleApis", "Extra", {"top_p": 0.2})
    assert resolve("Main", preset) == {}
    lab.endpoint("Main", {"presetSamplers": {"temperature": 0.4}, "appendPresetName": "Extra"})
    assert resolve("Main", preset) == {"temperature": 0.4, "top_p": 0.2}


def test_missing_preset_names_the_places_looked_at(lab: Lab) -> None:
    lab.preset("OpenAiCompatibleApis", "Steady", {})
    with pytest.raises(ConfigNotFoundError) as caught:
        resolve("Main", "Steddy")
    assert "Presets/OpenAiCompatibleApis/tester/Steddy.json" in str(caught.value)
    assert caught.value.suggestion == "Steady"


def test_missing_append_preset_names_the_endpoint_that_wants_it(lab: Lab) -> None:
    lab.preset("OpenAiCompatibleApis", "Extra", {})
    lab.endpoint("Main", {"presetSamplers": {"temperature": 0.4}, "appendPresetName": "Extr"})
    with pytest.raises(ConfigNotFoundError) as caught:
        resolve("Main", None)
    error = caught.value
    assert str(error).startswith(
        "Endpoints/lab/Main.json: preset 'Extr' does not exist. Looked for: "
        "Presets/OpenAiCompatibleApis/tester/Extr.json, "
    )
    assert (error.file, error.json_path, error.suggestion) == ("Endpoints/lab/Main.json", "appendPresetName", "Extra")
    assert "Presets/OpenAiCompatibleApis/Extr.json" in error.tried


def test_results_are_remembered_until_a_file_changes(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    lab.endpoint("Main", {"presetSamplers": {"temperature": 0.4, "odd": 1}})
    resolver = SamplerResolver()
    first = resolve("Main", None, resolver)
    assert resolve("Main", None, resolver) is first
    assert caplog.text.count("unknown sampler 'odd'") == 1
    lab.endpoint("Main", {"presetSamplers": {"temperature": 0.5}})
    assert resolve("Main", None, resolver) == {"temperature": 0.5}
