"""The examples of the page about workflow tests do what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from Middleware.utilities.config.keys.workflow_test import EXPECT_KEYS, OPERATIONS, RULE_KEYS, TEST_KEYS
from Tests.addons.workflow_tests.lab import run
from Tests.llmapis.lab import OPEN_AI

PAGE = (Path(__file__).resolve().parents[3] / "Docs" / "User" / "workflow-tests.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"```json file=Workflows/me/(\S+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def example(lab):
    lab.write("Users/me", {"endpointConfigsSubDirectory": "me"})
    lab.write("ApiTypes/OpenAI", OPEN_AI)
    for endpoint in ("Main", "Worker"):
        lab.write(f"Endpoints/me/{endpoint}", {"endpoint": "http://127.0.0.1:1", "apiTypeConfigFileName": "OpenAI"})
    for name, text in EXAMPLE.findall(PAGE):
        lab.write(f"Workflows/me/{name.removesuffix('.json')}", json.loads(text))
    return lab


def test_the_example_passes(example, capsys):
    status, out, _ = run(capsys, "me/Translate")

    assert status == 0
    assert out.startswith("ok    Workflows/me/Translate.test.json: 1 passed\n1 passed in ")


def test_the_broken_example_fails_as_the_page_shows(example, capsys):
    file = example.root / "Workflows" / "me" / "Translate.json"
    example.write(
        "Workflows/me/Translate",
        json.loads(file.read_text(encoding="utf-8").replace("{agent1Output}", "{agent2Output}")),
    )

    status, out, _ = run(capsys, "me/Translate")

    shown = PAGE[PAGE.index("FAIL  Workflows") :].partition("0 passed")[0]
    assert status == 1
    assert out.startswith(shown)


@pytest.mark.parametrize("name", [*(key.name for key in (*TEST_KEYS, *EXPECT_KEYS, *RULE_KEYS)), *OPERATIONS])
def test_every_key_is_explained(name):
    assert f"`{name}`" in PAGE or f'"{name}"' in PAGE
