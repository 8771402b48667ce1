"""The shipped prompt templates, to the letter: guides and users' endpoint files rely on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from Middleware.utilities import prompt_template_utils as templates
from Tests.tables import table

FOLDER = Path(__file__).resolve().parents[2] / "Public" / "Configs" / "PromptTemplates"
ENDS = ("Prefix", "Suffix")
KEYS = [f"promptTemplate{role}{end}" for role in ("System", "User", "Assistant") for end in ENDS]
KEYS += ["promptTemplateEndToken", "promptTemplateSystemmesPrefix", "promptTemplateSystemmesSuffix"]
EXTRA: dict[str, dict[str, str]] = {
    "phind-codellama-34b-v2-official": {"promptTemplateGenSeparator": "</s>"},
}
# in the order of KEYS; the last two are optional
TEMPLATES: dict[str, list[str]] = {
    "_chatonly": ["", "", "\n", "", "\n", "", ""],
    "alpaca": ["", "\n", "\n### Instruction\n", "\n", "\n### Response:\n", "\n", "\n"],
    "cerebrum": ["<s>", "\n", "User: ", "\n", "AI: ", "\n", ""],
    "chatml-variant": [
        "<|im_start|>system<|im_sep|>\n",
        "<|im_end|>\n",
        "<|im_start|>user<|im_sep|>\n",
        "<|im_end|>\n",
        "<|im_start|>assistant<|im_sep|>\n",
        "",
        "\n",
        "<|im_start|>system<|im_sep|>\n",
        "<|im_end|>\n",
    ],
    "chatml": [
        "<|im_start|>system\n",
        "<|im_end|>\n",
        "<|im_start|>user\n",
        "<|im_end|>\n",
        "<|im_start|>assistant\n",
        "",
        "\n",
        "<|im_start|>system\n",
        "<|im_end|>\n",
    ],
    "codefuse-deepseek-33b": ["<s>system\n ", "\n", "<s>human\n ", "\n", "<s>bot\n", "<|end_of_sentence|>", ""],
    "codegeex": ["[gMASK] <sop> <|system|>\n", " ", "<|user|>\n", " ", "<|assistant|>\n", " ", ""],
    "codellama-70b": [
        "Source: system\n\n ",
        " <step> ",
        "Source: user\n\n ",
        " <step> ",
        "Source: assistant\n",
        " <step> ",
        "Destination: user\n ",
    ],
    "codestral": ["<s> [INST] <<SYS>>\n", "\n<</SYS>> [/INST]\n\n", " [INST] ", " [/INST] ", "", " </s>", ""],
    "command-r": [
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>\n",
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>\n",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>\n",
        "",
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>\n",
    ],
    "deepseek-chat-v2": [
        "<|begin_of_sentence|>",
        "\n\n",
        "<\uff5cUser\uff5c>",
        "",
        "<\uff5cAssistant\uff5c>",
        "<|end_of_sentence|>",
        "",
    ],
    "deepseek-coder-33b": [" ", " ", "### Instruction:\n", "\n", "### Response:\n", "\n", ""],
    "deepseek-coder-lite-v2": [
        "<|begin_of_sentence|>",
        "\n\n",
        "User:",
        "\n\n",
        "Assistant:",
        "<|end_of_sentence|>",
        "",
    ],
    "deepseek-lite-v2": ["", "\n", "User: ", "\n", "Assistant:", "\n", ""],
    "deepseek-llm-67b": ["", "\n", "User:", "\n\n", "Assistant: ", "<|end_of_sentence|>", ""],
    "deepseek_r1": ["<\uff5cbegin_of_sentence\uff5c>", "", "<\uff5cUser\uff5c>", "", "<\uff5cAssistant\uff5c>", "", ""],
    "exaone": ["[|system|]", "[|endofturn|]", "[|user|]", "\n", "[|assistant|]", "\n", "\n"],
    "gemma-27b": [
        "",
        "",
        "<start_of_turn>user\n",
        "<end_of_turn>\n",
        "<start_of_turn>model\n",
        "<end_of_turn>model\n",
        "",
    ],
    "gemma": ["", "", "<start_of_turn>user\n", "<end_of_turn>\n", "<start_of_turn>model\n", "<end_of_turn>\n", ""],
    "glm-4": [
        "[gMASK] <sop> <|system|>\n",
        " <|user|>\n",
        "",
        " <|assistant|>",
        "",
        "",
        "",
        "[gMASK] <sop> <|system|>\n",
        " <|user|>\n",
    ],
    "guanaco": ["### System: ", "\n", "### Human: ", "\n", "### Assistant: ", "", ""],
    "llama3": [
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n",
        "<|eot_id|>",
        "<|start_header_id|>user<|end_header_id|>\n\n",
        "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|eot_id|>",
        "",
        "<|start_header_id|>system<|end_header_id|>\n\n",
        "<|eot_id|>",
    ],
    "midnight-miqu-user-assistant": ["", "\n", "USER:\n", "", "ASSISTANT:\n", "</s>", ""],
    "mistral-small-2501": [
        "<s>[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
        "[INST]",
        "[/INST]",
        "",
        "</s>",
        "",
        "<s>[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
    ],
    "mistral": [
        "<s>\n[INST]\n|SYSTEM PROMPT|\n",
        "\n|END OF SYSTEM PROMPT|",
        "\n[INST]",
        "",
        "\n[/INST]",
        "\n</s>",
        "",
        "\n[INST]",
        "",
    ],
    "openchat": ["", "", "", "<|end_of_turn|>", "", "<|end_of_turn|>", ""],
    "phi-4": [
        "<|im_start|>system<|im_sep|>",
        "<|im_end|>",
        "<|im_start|>user<|im_sep|>",
        "<|im_end|>",
        "<|im_start|>assistant<|im_sep|>",
        "<|im_end|>",
        "",
    ],
    "phi-medium": ["", "\n", "<|user|>\n", "<|end|>\n", "<|assistant|>\n", "<|end|>\n", ""],
    "phind-codellama-34b-v2-official": [
        "### System Prompt\n",
        "\n",
        "### User Message\n",
        "\n",
        "### Assistant\n",
        "",
        "</s>",
    ],
    "phind-codellama-34b-v2-recommended": ["", "\n\n", "### Instruction:\n", "\n\n", "### Response:\n", "", ""],
    "systemuserassistant": ["SYSTEM: ", "\n", "USER: ", "\n", "ASSISTANT: ", "\n", ""],
    "tulu": ["<|SYSTEM|>", "\n", "<|USER|>\n", "", "<|ASSISTANT|>\n", "", ""],
    "userassistant": ["", "\n", "USER: ", " ", "ASSISTANT:", "\n", ""],
    "userassistantwizard": ["BEGINNING OF CONVERSATION:\n", " ", "\nUSER: ", " ", "\nASSISTANT: ", "</s>", ""],
    "vicuna-1.1": ["", "\n\n", "USER: ", "\n", "ASSISTANT: ", "</s>\n", ""],
    "vicuna": ["", "", "### Human:", "", "### Assistant:", "", ""],
    "wilmerai": ["[Beg_Sys]", "", "[Beg_User]", "", "[Beg_Assistant]", "", "", "[Beg_SysMes]", ""],
}
BOS, EOS = "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"
# what these templates should have been; the old ones stay for those who tuned their prompts to them
FIXED: dict[str, list[str]] = {
    "alpaca-fixed": ["", "\n", "\n### Instruction:\n", "\n", "\n### Response:\n", "\n", ""],
    "chatml-fixed": [
        "<|im_start|>system\n",
        "<|im_end|>\n",
        "<|im_start|>user\n",
        "<|im_end|>\n",
        "<|im_start|>assistant\n",
        "<|im_end|>\n",
        "",
        "<|im_start|>system\n",
        "<|im_end|>\n",
    ],
    "chatml-variant-fixed": [
        "<|im_start|>system<|im_sep|>\n",
        "<|im_end|>\n",
        "<|im_start|>user<|im_sep|>\n",
        "<|im_end|>\n",
        "<|im_start|>assistant<|im_sep|>\n",
        "<|im_end|>\n",
        "",
        "<|im_start|>system<|im_sep|>\n",
        "<|im_end|>\n",
    ],
    "codefuse-deepseek-33b-fixed": ["<s>system\n", "\n", "<s>human\n", "\n", "<s>bot\n", EOS + "\n", ""],
    "deepseek-chat-v2-fixed": [BOS, "\n\n", "<\uff5cUser\uff5c>", "", "<\uff5cAssistant\uff5c>", EOS, ""],
    "deepseek-coder-lite-v2-fixed": [BOS, "\n\n", "User: ", "\n\n", "Assistant: ", EOS, ""],
    "deepseek-llm-67b-fixed": [BOS, "\n\n", "User: ", "\n\n", "Assistant: ", EOS, ""],
    "deepseek_r1-fixed": [BOS, "", "<\uff5cUser\uff5c>", "", "<\uff5cAssistant\uff5c>", EOS, ""],
    "gemma-27b-fixed": [
        "",
        "",
        "<start_of_turn>user\n",
        "<end_of_turn>\n",
        "<start_of_turn>model\n",
        "<end_of_turn>\n",
        "",
    ],
}
SHIPPED = {**TEMPLATES, **FIXED}


def load(name: str) -> dict[str, Any]:
    """A template without the path of its schema, which the program does not read."""
    content = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert content.pop("$schema")
    return content


def test_these_and_no_others_are_shipped() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.json" for name in SHIPPED}
    assert len(TEMPLATES) == 37


@table("name", SHIPPED)
def test_template(name: str) -> None:
    values = SHIPPED[name]
    assert load(name) == dict(zip(KEYS[: len(values)], values, strict=True)) | EXTRA.get(name, {})


@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_template_has_a_faulty_original(name: str) -> None:
    original = TEMPLATES[name.removesuffix("-fixed")]
    assert len(FIXED[name]) == len(original)
    assert FIXED[name] != original


@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_template_ends_the_assistant_turn(name: str) -> None:
    template = load(name)
    assert template["promptTemplateAssistantSuffix"].strip("\n") or name == "alpaca-fixed"
    assert not template["promptTemplateEndToken"]


def test_a_fixed_template_at_work() -> None:
    talk = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}]
    template = load("chatml-fixed")
    assert templates.add_generation_prompt(templates.flatten_messages(talk, template), template) == (
        "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
