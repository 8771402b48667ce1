"""The routes of the Workflows pages: who may ask, the figures of the last runs, and the map."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from Middleware.addons.console.application import PREFIX, ConsoleApplication
from Middleware.addons.console.workflow_catalog import WorkflowSummary, WorkflowUse
from Middleware.addons.console.workflow_routes import MOST_BOXES, map_of
from Middleware.addons.records.archive import RunArchive
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.addons.records.model import RunDocument, Span
from Middleware.addons.records.settings import RecordSettings
from Middleware.addons.records.store.writer import RunStore
from Middleware.api.edge.admission_middleware import AdmissionMiddleware
from Middleware.api.edge.browser_safety import BrowserSafety
from Tests.addons.console.console_lab import Browser, accepted
from Tests.addons.records.records_lab import Ring, run
from Tests.llmapis.lab import Lab

OWN_KEY, ALL_KEY, OTHER_KEY = "the-key-of-the-phone", "the-key-of-the-desk", "the-key-of-another-user"


class Console:
    """The console of a small configuration, signed in with each role."""

    def __init__(self, folder: Path, ring: Ring) -> None:
        keys = accepted(
            folder / "keys.txt",
            f"{OWN_KEY} console=own user=tester",
            f"{ALL_KEY} console=all user=tester",
            f"{OTHER_KEY} console=all user=other",
            users=("tester", "other"),
        )
        console = ConsoleFolder(str(folder / "Console"))
        settings = RecordSettings(console, "facts")
        self.store = store = RunStore(console, ring, settings)
        records = SimpleNamespace(
            mode="on",
            recording="facts",
            folder=console,
            archive=RunArchive(ring, store),
            settings=settings,
            store=store,
        )
        console_app = ConsoleApplication(records, keys, BrowserSafety(), lambda environ, start: [])  # type: ignore[arg-type]
        application = AdmissionMiddleware(lambda environ, start: [], 1, keys, mounts={PREFIX: console_app})
        self.own, self.all, self.other = (
            Browser(application).sign_in_with(key) for key in (OWN_KEY, ALL_KEY, OTHER_KEY)
        )
        self.operator = Browser(application).sign_in(time.time(), console.secret())


@pytest.fixture
def ring() -> Ring:
    return Ring()


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring: Ring) -> Iterator[Console]:
    lab = Lab(tmp_path / "Configs", monkeypatch)
    lab.write(
        "Workflows/tester/_DefaultWorkflow",
        {
            "nodes": [
                {"title": "Ask", "type": "Standard", "endpointName": "Main", "prompt": "x", "apiKey": "sk-very-secret"},
                {"title": "More", "type": "CustomWorkflow", "workflowName": "sub/Part"},
            ]
        },
    )
    lab.write("Workflows/tester/sub/Part", {"nodes": [{"type": "StaticResponse", "content": "x"}]})
    lab.write("Workflows/tester/Unused", {"nodes": []})
    made = Console(tmp_path, ring)
    yield made
    made.store.close()


def ran(folder: str, name: str, *nodes: tuple[int, int, str]) -> RunDocument:
    """A run of one workflow: number, microseconds and status of its nodes."""
    document = run(user="tester")
    document.spans[:] = [Span(1, None, "workflow", name, 0, 9, "ok", {"workflow.name": name, "folder": folder})]
    for number, took, status in nodes:
        document.spans.append(
            Span(
                len(document.spans) + 1,
                1,
                "node",
                "N",
                0,
                took,
                status,  # type: ignore[arg-type]
                {"node.index": number},
            )
        )
    return document


def test_who_may_read(console: Console) -> None:
    for path in ("workflows", "workflows/tester/_DefaultWorkflow", "map"):
        assert console.own.get(path).status == 403
        assert console.all.get(path).status == console.operator.get(path).status == 200
    assert (
        {one["path"] for one in console.operator.get("workflows").json["workflows"]}
        >= {one["path"] for one in console.all.get("workflows").json["workflows"]}
        != set()
    )
    # The user of this key has none of them.
    assert console.other.get("workflows").json["workflows"] == []
    assert console.other.get("workflows/tester/_DefaultWorkflow").status == 404
    assert "Nothing" in console.operator.get("workflows/Nothing").message
    assert "tester/Nothing" in console.operator.get("workflows/tester/Nothing").message


def test_figures_are_those_of_the_last_runs(console: Console, ring: Ring) -> None:
    ring.all.extend(
        [
            ran("tester", "_DefaultWorkflow", (1, 1000, "ok"), (2, 10, "ok")),
            ran("tester", "_DefaultWorkflow", (1, 3000, "ok"), (1, 5000, "error")),
            ran("other", "_DefaultWorkflow", (1, 9, "ok")),
        ]
    )
    answer = console.all.get("workflows/tester/_DefaultWorkflow").json
    assert answer["runs"] == 2
    assert [node["figures"] for node in answer["nodes"]] == [
        {"runs": 3, "failed": 1, "median_us": 3000},
        {"runs": 1, "failed": 0, "median_us": 10},
    ]
    assert [node["line"] for node in answer["nodes"]] == sorted(node["line"] for node in answer["nodes"])
    assert [child["path"] for child in answer["nodes"][1]["children"]] == ["Workflows/tester/sub/Part.json"]
    part = console.all.get("workflows/tester/sub/Part").json
    assert (part["runs"], part["folder"], part["nodes"][0]["figures"]) == (0, "tester/sub", None)


def test_a_recorded_call_as_it_can_be_sent_again(console: Console, ring: Ring) -> None:
    ring.all.append(document := run(user="tester"))
    found = console.all.get(f"runs/{document.facts['id']}/again/4").json
    assert found["messages"] == [{"role": "user", "content": "What is the time?"}]
    assert (found["endpoint"], found["endpoints"], found["recorded"]["text"]) == ("Main", ["Main"], "Late.")
    assert console.all.get(f"runs/{document.facts['id']}/again/3").json == found
    assert console.all.get(f"runs/{document.facts['id']}/again/2").status == 404
    document.spans[-1].texts.clear()
    assert "not kept" in console.all.get(f"runs/{document.facts['id']}/again/4").message


def test_secrets_stay_here(console: Console) -> None:
    assert b"sk-very-secret" not in console.operator.get("workflows/tester/_DefaultWorkflow").data


def test_the_map(console: Console) -> None:
    answer = console.all.get("map?user=tester").json
    assert {(arrow["source"], arrow["target"]) for arrow in answer["arrows"]} >= {
        ("user:tester", "workflow:Workflows/tester/_DefaultWorkflow.json"),
        ("workflow:Workflows/tester/_DefaultWorkflow.json", "workflow:Workflows/tester/sub/Part.json"),
        ("workflow:Workflows/tester/_DefaultWorkflow.json", "endpoint:Main"),
    }
    assert console.all.get("map?user=nobody").json == {"boxes": [], "arrows": []}
    assert console.all.get("map?usr=tester").status == 400


def test_a_large_map_has_folders() -> None:
    listed = [
        WorkflowSummary(
            f"Workflows/f{number % 3}/W{number}.json",
            f"f{number % 3}",
            f"W{number}",
            1,
            ["Main"],
            [f"Workflows/f0/W{number - number % 3}.json"],
            ["me"],
            [WorkflowUse("category", f"C{number}", "Routing/r.json")],
        )
        for number in range(MOST_BOXES)
    ]
    boxes, arrows = map_of(listed)
    assert sorted(box["id"] for box in boxes) == [
        "endpoint:Main",
        "folder:f0",
        "folder:f1",
        "folder:f2",
        "routing:Routing/r.json",
    ]
    to_first = next(arrow for arrow in arrows if arrow["target"] == "folder:f0" and arrow["source"].startswith("rou"))
    assert "C3" in to_first["labels"] and all(arrow["source"] != arrow["target"] for arrow in arrows)
