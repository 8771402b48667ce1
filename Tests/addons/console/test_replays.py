"""The trial of a replay: which nodes run, which answer from the recording, and which stop it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from Middleware.addons.console.replays import NodePlace, NotRecordedError, Recording, ReplayTrial
from Middleware.addons.records.model import RunDocument
from Middleware.models.process import Process, process
from Middleware.models.request_context import request_scope
from Middleware.utilities.discussions.discussion_folder import discussions, stored_discussion
from Tests.addons.records.made_up import Made
from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import EngineLab, llm, static

MAIN, INNER = "tester/Main", "tester/Main > tester/Inner"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        yield EngineLab(tmp_path / "configs", monkeypatch, backend)


@pytest.fixture
def written(lab: EngineLab, tmp_path: Path) -> Path:
    """A workflow that reads and writes files, also in a workflow that it runs; returns the file that it writes."""
    target = tmp_path / "kept.txt"
    lab.workflow(
        "Inner",
        [
            llm("inner {agent1Input}", title="Read"),
            {"title": "Keep", "type": "SaveCustomFile", "filepath": str(target), "content": "{agent1Output}"},
            static("inner: {agent1Output}, {agent2Output}", title="Say"),
        ],
    )
    lab.workflow(
        "Main",
        [
            llm("first", title="Analyse"),
            {"title": "Fetch", "type": "GetCustomFile", "filepath": str(tmp_path / "none.txt")},
            {"title": "Run", "type": "CustomWorkflow", "workflowName": "Inner", "scoped_variables": ["{agent2Output}"]},
            llm("last {agent1Output} {agent3Output}", title="Answer"),
        ],
    )
    return target


def recording(**changed: Any) -> RunDocument:
    """The run of that workflow, with outputs that say where they are from."""
    run = Made()
    main = run.workflow("Main", 0, 9, folder="tester")
    run.node(1, "Analyse", 0, 1, main, texts={"output": "recorded analysis"})
    run.node(2, "Fetch", 1, 2, main, node__type="GetCustomFile", texts={"output": "recorded file"})
    outer = run.node(3, "Run", 2, 5, main, node__type="CustomWorkflow", texts={"output": "recorded child"})
    inner = run.workflow("Inner", 2, 5, outer, folder="tester")
    run.node(1, "Read", 2, 3, inner, texts={"output": "recorded reading"})
    run.node(2, "Keep", 3, 4, inner, node__type="SaveCustomFile", texts={"output": "recorded write"})
    run.node(3, "Say", 4, 5, inner, node__type="StaticResponse", texts={"output": "recorded saying"})
    run.node(4, "Answer", 5, 9, main, texts={"output": "recorded answer"})
    for span in run.spans:
        span.status = changed.get(span.name, span.status)
    return run.document(9)


def replayed(
    lab: EngineLab,
    tmp_path: Path,
    place: NodePlace | None = None,
    also: tuple[str, ...] = (),
    document: RunDocument | None = None,
) -> Any:
    known = Recording(document or recording())
    start = known.at(place) if place is not None else None
    assert place is None or start is not None
    lab.request.outside = ReplayTrial(known, tmp_path / "trial", "tester", start, also)
    return lab.run_named("Main")


@pytest.mark.parametrize(
    ("place", "prompts"),
    [
        (None, ["first", "inner recorded file", "last <first> inner: <inner recorded file>, recorded write"]),
        (
            NodePlace(MAIN, 1, 1),
            ["first", "inner recorded file", "last <first> inner: <inner recorded file>, recorded write"],
        ),
        (
            NodePlace(MAIN, 3, 1),
            ["inner recorded file", "last recorded analysis inner: <inner recorded file>, recorded write"],
        ),
        (NodePlace(INNER, 3, 1), ["last recorded analysis inner: recorded reading, recorded write"]),
        (NodePlace(MAIN, 4, 1), ["last recorded analysis recorded child"]),
    ],
    ids=["beginning", "first node", "workflow", "node in a workflow", "last node"],
)
def test_the_llm_is_called_from_the_chosen_node_on(
    lab: EngineLab, tmp_path: Path, written: Path, place: NodePlace | None, prompts: list[str]
) -> None:
    assert replayed(lab, tmp_path, place) == f"<{prompts[-1]}>"
    assert lab.prompts == prompts and not written.exists()


def test_a_chosen_node_acts(lab: EngineLab, tmp_path: Path, written: Path) -> None:
    replayed(lab, tmp_path, None, ("Inner/Keep",))
    assert written.read_text(encoding="utf-8") == "<inner recorded file>"


@pytest.mark.parametrize("status", ["error", "cancelled", "running"])
def test_a_node_that_acts_and_has_no_output_stops_the_replay(
    lab: EngineLab, tmp_path: Path, written: Path, status: str
) -> None:
    with pytest.raises(NotRecordedError, match="stops at node 'Inner/Keep' .SaveCustomFile.: it writes data"):
        replayed(lab, tmp_path, document=recording(Keep=status))
    assert not written.exists()


def test_a_node_that_moved_is_found_by_its_title(lab: EngineLab, tmp_path: Path, written: Path) -> None:
    lab.workflow(
        "Main",
        [
            llm("new", title="New"),
            llm("first", title="Analyse"),
            {"title": "Fetch", "type": "GetCustomFile", "filepath": str(tmp_path / "none.txt")},
            llm("last {agent2Output} {agent3Output}", title="Answer"),
        ],
    )
    replayed(lab, tmp_path, NodePlace(MAIN, 4, 1))
    assert lab.prompts == ["new", "last recorded analysis recorded file"]


def test_each_run_of_a_repeated_node_has_its_own_output() -> None:
    run = Made()
    outer = run.workflow("Main", 0, 9)
    for number in (1, 2):
        node = run.node(number, "Run", 0, 1, outer, node__type="CustomWorkflow")
        run.node(1, "Fetch", 0, 1, run.workflow("Inner", 0, 1, node), texts={"output": f"page {number}"})
    known = Recording(run.document(9))
    first = known.take(("me/Main",), 1, "Run", "CustomWorkflow")
    assert first is not None
    # Its nodes are not asked for, as it does not run.
    known.pass_over(first)
    found = known.take(("me/Main", "me/Inner"), 1, "Fetch", "Standard")
    assert found is not None and (found.output, found.place.occurrence) == ("page 2", 2)
    assert known.take(("me/Main", "me/Inner"), 1, "Fetch", "Standard") is None


def test_a_replay_reads_and_changes_no_conversation_of_a_user(
    lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they are stored: in a database, a replay has files of its own."""
    monkeypatch.setattr("Middleware.models.process._process", Process())
    process().put(discussions, SimpleNamespace(state=lambda *_: "in a database"))
    with request_scope(lab.request):
        assert stored_discussion("talk") == "in a database"
        lab.request.outside = ReplayTrial(Recording(recording()), tmp_path / "trial", "tester")
        assert stored_discussion("talk").place.startswith(str(tmp_path / "trial"))


def test_the_folders_are_those_of_the_trial(lab: EngineLab, tmp_path: Path) -> None:
    trial = ReplayTrial(Recording(recording()), tmp_path / "trial", "tester")
    assert trial.calls_servers and Path(trial.discussions_root).is_dir() and Path(trial.locks_root).is_dir()
