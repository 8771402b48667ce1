"""What the engine tells its listeners, and the execution summary in the log."""
from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.workflows.events import EngineListener, Listeners, LogSummary, RunRecord
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Tests.stub_backend import StubBackend, status_reply
from Tests.workflows.engine_lab import EngineLab, Recorder, llm, start, static, user


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


def test_events_of_a_run(lab: EngineLab) -> None:
    recorder = Recorder()
    lab.workflow("Main", [static("a", title="First"), static("b")])
    assert list(start(lab, listener=recorder)) == ["b"]
    assert recorder.events == [
        ("run_started", "Main"), ("node_started", 1, "StaticResponse", "First"), ("node_finished", 1),
        ("node_started", 2, "StaticResponse", "N/A"), ("node_finished", 2), ("run_finished", "")]
    assert recorder.finished[0].seconds >= sum(info.execution_time_seconds for info in recorder.infos) > 0


def test_events_of_a_failure(lab: EngineLab) -> None:
    recorder = Recorder()
    lab.backend.responder = lambda request: status_reply(400)
    lab.workflow("Main", [static("a"), llm("x"), static("b")])
    with pytest.raises(Exception, match="scripted failure"):
        list(start(lab, listener=recorder))
    assert recorder.events[-2:] == [("node_failed", 2, "BackendStatusError"), ("run_finished", "BackendStatusError")]
    assert [info.node_index for info in recorder.finished[0].nodes] == [1]


def test_children_report_too(lab: EngineLab) -> None:
    recorder = Recorder()
    lab.workflow("Child", [static("c")])
    lab.workflow("Main", [{"type": "CustomWorkflow", "workflowName": "Child"}])
    list(start(lab, listener=recorder))
    assert [event for event in recorder.events if event[0].startswith("run")] == [
        ("run_started", "Main"), ("run_started", "Child"), ("run_finished", ""), ("run_finished", "")]


class Broken(EngineListener):
    def node_started(self, record: RunRecord, index: int, node_type: str, name: str) -> None:
        raise RuntimeError("observer broke")


def test_a_broken_listener_is_logged_and_the_run_goes_on(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    lab.workflow("Main", [static("x")])
    manager = WorkflowManager("Main", listeners=[Broken(), recorder])
    assert list(manager.start(lab.request, [user("hi")])) == ["x"]
    assert "Broken" in caplog.text and "observer broke" in caplog.text
    assert ("node_finished", 1) in recorder.events


def test_base_listener_takes_every_event(lab: EngineLab) -> None:
    lab.workflow("Main", [static("x")])
    assert list(start(lab, listener=EngineListener())) == ["x"]
    Listeners().tell("run_started")


def test_summary_in_the_log(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.workflow("Main", [static("private words", title="Say"), static("b")])
    with caplog.at_level(logging.INFO):
        list(start(lab, listener=LogSummary()))
    summary, total = [record.getMessage() for record in caplog.records if record.name.endswith("events")]
    lines = summary.splitlines()
    assert lines[0] == "=== Workflow Node Execution Summary: Main ==="
    assert lines[1].startswith("Node 1: StaticResponse || 'Say' || N/A || N/A || 0.0")
    assert lines[2].startswith("Node 2: StaticResponse || 'N/A' || ") and lines[2].endswith(" seconds")
    assert lines[3] == "=== End of Summary: Main ===" and len(lines) == 4
    assert total.startswith("Execution time: 0.") and total.endswith(" seconds")
    assert "private" not in caplog.text


def test_summary_is_the_default(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        lab.run([static("x")])
    assert "Execution Summary: Main" in caplog.text


def test_no_summary_when_no_node_finished(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.backend.responder = lambda request: status_reply(400)
    with caplog.at_level(logging.INFO):
        with pytest.raises(Exception, match="scripted failure"):
            lab.run([llm("x")])
        lab.run([])
    assert "Execution Summary" not in caplog.text
    assert caplog.text.count("Execution time:") == 2
