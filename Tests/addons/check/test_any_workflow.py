"""The check takes every JSON, changes nothing, and says nothing about good workflows."""

from __future__ import annotations

import copy
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.addons.check.findings import report
from Middleware.addons.check.lookups import ConfigFile, Lookups, Problem
from Middleware.addons.check.workflow_check import check_workflow
from Middleware.common import instance_global_variables as instance
from Middleware.services.memory.compactor_settings import CompactorSettings
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.utilities import config_utils
from Middleware.utilities.json_data import freeze
from Middleware.workflows.handlers.registry import node_types
from Tests.addons.check.checking import FakeLookups, check, llm, static, workflow
from Tests.properties import examples

DEMO = Path(__file__).parents[3] / "Public" / "Configs"

TEXTS = (
    st.text(max_size=12)
    | st.text(alphabet="{}[].!:% agent12Output", max_size=20)
    | st.sampled_from(
        [
            "{agent1Output}",
            "{agent5Output}",
            "{% if",
            "{{ x",
            "{p}",
            "missing",
            "../x",
            "\0",
            "\ud800",
            "{" * 50,
            "{agent" + "9" * 5000 + "Output}",
            "x.py",
            "~nobody",
            "{a[" + "b]" * 9 + "}",
        ]
    )
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    sorted(
        {key.name for node_type, handler in node_types().items() for key in handler.KEYS[node_type]}
        | {
            "type",
            "title",
            "agentName",
            "returnToUser",
            "is_responder",
            "isResponder",
            "jinja2",
            "endpointName",
            "preset",
            "presetName",
            "dependsOn",
            "promt",
            "workflow_name",
        }
    )
)
NODES = st.fixed_dictionaries(
    {}, optional={"type": st.sampled_from([*node_types(), "Sandard", "ConversationMemory"]), "jinja2": st.booleans()}
).flatmap(lambda node: st.dictionaries(KEYS | TEXTS, JSON, max_size=6).map(lambda more: {**more, **node}))


@examples(300)
@given(st.lists(NODES, max_size=4), st.dictionaries(TEXTS, JSON, max_size=3), st.booleans())
def test_any_json(nodes: list[dict[str, Any]], variables: dict[str, Any], partly: bool) -> None:
    before = copy.deepcopy((nodes, variables))
    lookups = FakeLookups({"u": 1}, partly, source=json.dumps({**variables, "nodes": nodes}, indent=1))
    found = check_workflow(workflow(freeze(nodes), freeze(variables)), lookups)
    text = report(found)
    assert (nodes, variables) == before
    assert bool(text) is bool(found)
    assert all(line.isprintable() for line in text.split("\n"))
    assert all(one.line is not None for one in found)


@examples(100)
@given(st.lists(NODES, max_size=3), st.dictionaries(TEXTS, JSON, max_size=2))
def test_any_json_with_real_files(nodes: list[dict[str, Any]], variables: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instance, "CONFIG_DIRECTORY", str(DEMO))
        patch.setattr(instance, "USERS", ["demo"])
        check_workflow(workflow(nodes, variables), Lookups())


MEMORY_NODES = [
    {"type": name}
    for name in ("QualityMemory", "RecentMemory", "FullChatSummary", "ConversationMemory", "ContextCompactor")
]
SETTINGS_KEYS = st.sampled_from(
    sorted(
        field.metadata["key"].name
        for cls in (MemorySettings, CompactorSettings)
        for field in dataclasses.fields(cls)
        if "key" in field.metadata
    )
)
SETTINGS = st.dictionaries(SETTINGS_KEYS | TEXTS, JSON | st.sampled_from([True, "true", "missing", "Vectors"]))


@examples(200)
@given(SETTINGS, st.text(max_size=5) | JSON)
def test_any_settings(content: dict[str, Any], name: Any) -> None:
    class Given(FakeLookups):
        def user_name(self, key: str) -> str | Problem:
            return name if isinstance(name, str) else Problem("must be text")

        def settings_file(self, name: str) -> ConfigFile | Problem:
            return ConfigFile(freeze(content), "Workflows/x.json")

    found = check_workflow(workflow(MEMORY_NODES), Given(source=json.dumps(content, indent=1)))
    assert all(line.isprintable() for line in report(found).split("\n"))
    assert all(one.line is not None for one in found)


@pytest.mark.parametrize("deep", [5_000])
def test_deep_json(deep: int) -> None:
    value: Any = "{zebra}"
    for _ in range(deep):
        value = [value]
    assert check({"type": "PythonModule", "module_path": "x.py", "args": value})


@pytest.mark.parametrize(
    "name",
    sorted(path.stem for path in (DEMO / "Workflows" / "demo").glob("*.json") if not path.name.endswith(".test.json")),
)
def test_shipped_workflows_are_clean(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(DEMO))
    monkeypatch.setattr(instance, "USERS", ["demo"])
    config_utils.reset_config_store()
    found = check_workflow(config_utils.load_workflow(name), Lookups())
    assert report(found) == ""


def test_twenty_nodes_take_milliseconds() -> None:
    """Generous: the point is that nothing grows with the square of something."""
    nodes = [
        llm(
            f"{{agent{number}Output}} " + "word " * 500 if number else "",
            systemPrompt="{todays_date_iso} " * 20,
            preset="P",
            somethingElse=1,
            another="x",
            returnToUser=False,
        )
        for number in range(20)
    ]
    check(*nodes)
    began = time.thread_time()
    assert check(*nodes, static("{agent20Output}")) == []
    assert time.thread_time() - began < 2
