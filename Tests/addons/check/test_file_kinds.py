"""Which kind of configuration file a path has."""

from __future__ import annotations

from pathlib import Path

import pytest

from Middleware.addons.check.file_check import KINDS, check_content, kind_of
from Tests.tables import table

ROOT = Path(__file__).resolve().parents[3] / "Public" / "Configs"
NAMES = {
    "user",
    "current-user",
    "endpoint",
    "api-type",
    "preset",
    "prompt-template",
    "routing",
    "workflow",
    "memory-settings",
    "compactor-settings",
    "mcp-server",
    "structured-output",
    "workflow-test",
}


def test_all_kinds_are_there() -> None:
    assert set(KINDS) == NAMES and all(kind.name == name for name, kind in KINDS.items())


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_kind_is_explained_and_knows_the_reference_of_editors(name: str) -> None:
    kind = KINDS[name]
    assert kind.meaning.endswith(".") and kind.title and kind.pattern.endswith(".json")
    assert "$schema" in {key.name for key in (*kind.keys, *kind.top)} or name == "structured-output"
    assert kind.keys or kind.is_open


@table(
    ("path", "name"),
    [
        ("Users/ann.json", "user"),
        ("Users/_current-user.json", "current-user"),
        ("Users/_archived/bob.json", "user"),
        ("Endpoints/DefaultEndpoint.json", "endpoint"),
        ("Endpoints/a/b/c.json", "endpoint"),
        ("ApiTypes/Claude.json", "api-type"),
        ("Presets/KoboldCpp/x/y.json", "preset"),
        ("Routing/demo.json", "routing"),
        ("PromptTemplates/alpaca.json", "prompt-template"),
        ("MCPServers/_examples/x.json", "mcp-server"),
        ("StructuredOutputs/answer.json", "structured-output"),
        ("Workflows/demo/Coding.json", "workflow"),
        ("Workflows/demo/Coding.test.json", "workflow-test"),
        ("Workflows/a/_overrides/b/C.json", "workflow"),
        ("Workflows/demo/_DiscussionId-MemoryFile-Workflow-Settings.json", "memory-settings"),
        ("Workflows/demo/_Compactor-Settings.json", "compactor-settings"),
        ("Users/ann.txt", None),
        ("ann.json", None),
        ("Elsewhere/ann.json", None),
        ("Xsers/ann.json", None),
    ],
)
def test_the_kind_of_a_path(path: str, name: str | None) -> None:
    kind = kind_of(path)
    assert (kind and kind.name) == name


def test_every_shipped_file_is_of_a_kind() -> None:
    paths = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.json")]
    assert len(paths) > 100 and [path for path in paths if kind_of(path) is None] == []


@pytest.mark.parametrize("name", ["_Compactor-Settings", "X-MemoryFile-Workflow-Settings"])
def test_a_workflow_must_not_have_a_name_of_settings(name: str) -> None:
    display = f"Workflows/demo/{name}.json"
    kind = kind_of(display)
    assert kind is not None
    (found,) = check_content(display, kind, {"nodes": []})
    assert (found.severity, found.json_path) == ("error", "nodes") and "not run as a workflow" in found.message
    assert (
        check_content(display, kind, {"nodez": 1}) == check_content("Workflows/demo/X.json", kind, {"nodes": []}) == []
    )
