"""The check at the first run of a workflow file: what is logged, when, and with whose settings."""
from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.utilities import config_utils
from Middleware.workflows.managers import workflow_manager
from Middleware.workflows.managers.workflow_manager import BUILT_IN_VARIABLES
from Middleware.workflows.validation import load_check
from Middleware.workflows.validation.load_check import LoadCheck
from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import EngineLab, llm, static
from Tests.workflows.validation.checking import REGISTRY, workflow

LOGGER = "Middleware.workflows.validation.load_check"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[EngineLab]:
    monkeypatch.setattr(workflow_manager, "_load_check", LoadCheck(BUILT_IN_VARIABLES))
    caplog.set_level(logging.INFO, LOGGER)
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.name == LOGGER]


def test_one_record_at_the_first_run(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.workflow("Main", [static("{zebra} {agent1Output}"), static("x", isResponder=False)])
    assert lab.run_named("Main") == lab.run_named("Main") == "x"
    (level, text), = told(caplog)
    assert level == logging.WARNING
    assert text.splitlines()[0] == "Workflow tester/Main: 3 things to look at"
    assert "nodes[0].content (line 1)" in text


def test_a_new_version_is_checked_anew(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.run([static("{zebra}")])
    lab.run([static("{yak}")])
    lab.run([static("fine")])
    assert ["{zebra}" in text for _, text in told(caplog)] == [True, False]


def test_notes_are_information(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    assert lab.run([static('{"a": 1}')]) == '{"a": 1}'
    assert [level for level, _ in told(caplog)] == [logging.INFO]


def test_a_clean_workflow_is_not_mentioned(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.user(userWideWorkflowVariables={"motto": "x"})
    lab.workflow("Child", [static("{agent1Input}")])
    lab.run([llm("{motto}", preset=""), {"type": "CustomWorkflow", "workflowName": "Child", "scoped_variables": ["a"]}])
    assert told(caplog) == []


def test_children_are_checked_when_they_run(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.workflow("Child", [static("{zebra}")])
    lab.run([{"type": "CustomWorkflow", "workflowName": "Child"}])
    assert [text.splitlines()[0] for _, text in told(caplog)] == ["Workflow tester/Child: 1 thing to look at"]


@pytest.mark.parametrize(("node", "where", "near"), [
    (llm("x", endpointName="Mian"), "nodes[0].endpointName", "Main"),
    (llm("x", preset="Brigt"), "nodes[0].preset", "Bright"),
    ({"type": "CustomWorkflow", "workflowName": "Chidl"}, "nodes[0].workflowName", "Child"),
    (llm("x", structuredOutputFile="Peron"), "nodes[0].structuredOutputFile", "Person")])
def test_missing_files(lab: EngineLab, caplog: pytest.LogCaptureFixture, node: dict[str, Any], where: str,
                       near: str) -> None:
    lab.preset("OpenAiCompatibleApis", "Bright", {"temperature": 1})
    lab.write("StructuredOutputs/Person", {"type": "object"})
    lab.workflow("Child", [static("x")])
    with pytest.raises(FileNotFoundError):
        lab.run([node])
    (level, text), = told(caplog)
    assert level == logging.WARNING
    assert f"error    {where}" in text
    assert f"Did you mean '{near}'?" in text


def test_files_that_exist(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.preset("OpenAiCompatibleApis", "Bright", {"temperature": 1})
    lab.endpoint("Donor", {"presetSamplers": {"temperature": 1}}, lab.backend.url)
    lab.write("StructuredOutputs/Person", {"type": "object"})
    script = lab.root / "script.py"
    script.write_text("def Invoke():\n    return 'done'\n", encoding="utf-8")
    assert lab.run([llm("x", preset="Bright"), llm("x", preset="Donor", structuredOutputFile="Person"),
                    {"type": "PythonModule", "module_path": str(script)}]) == "done"
    assert told(caplog) == []


def test_a_child_beside_its_parent_is_found(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.workflow("Start", [{"type": "CustomWorkflow", "workflowName": "Next"}], folder="_common")
    lab.workflow("Next", [static("x")], folder="_common")
    assert lab.run_named("Start", workflow_user_folder_override="_common") == "x"
    assert told(caplog) == []


def test_a_script_that_is_missing(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FileNotFoundError):
        lab.run([{"type": "PythonModule", "module_path": "no/such.py"}])
    assert "module_path" in told(caplog)[0][1]


def test_a_check_that_fails_stops_nothing(lab: EngineLab, caplog: pytest.LogCaptureFixture,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(load_check, "check_workflow", fail)
    assert lab.run([static("x")]) == "x"
    assert "could not be checked" in told(caplog)[0][1]


def test_what_was_checked_is_remembered_within_bounds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    check = LoadCheck(BUILT_IN_VARIABLES, size=2)
    first = workflow([{"type": "StaticResponse", "content": "{zebra}"}])
    for _ in range(3):
        check.check(first, REGISTRY)
    assert len(told(caplog)) == 1
    for _ in range(3):
        check.check(workflow([{"type": "StaticResponse", "content": "{zebra}"}]), REGISTRY)
    assert len(told(caplog)) == 4
    assert len(check._seen) <= 2


def teardown_module() -> None:
    config_utils.reset_config_store()
