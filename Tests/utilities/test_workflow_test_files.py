"""Files with tests, and with settings, lie among the workflows and are none: they cannot be listed, chosen or run."""

from __future__ import annotations

import pytest

from Middleware.exceptions import ConfigNotFoundError, ConfigValueError
from Middleware.utilities import config_utils
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Tests.llmapis.lab import Lab

NODES = {"nodes": [{"type": "StaticResponse", "content": "x"}]}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    lab = Lab(tmp_path, monkeypatch)
    lab.user(allowSharedWorkflows=True)
    for folder in ("tester", "_shared", "_shared/fast"):
        lab.write(f"Workflows/{folder}/_DefaultWorkflow", NODES)
        lab.write(f"Workflows/{folder}/_DefaultWorkflow.test", NODES)
    lab.write("Workflows/_shared/quick", NODES)
    lab.write("Workflows/_shared/quick.test", NODES)
    yield lab
    config_utils.reset_config_store()


def test_they_are_not_listed_as_models(lab):
    assert config_utils.model_ids() == ["tester:fast", "tester:quick"]


@pytest.mark.parametrize("name", ["quick.test", "_DefaultWorkflow.test"])
def test_they_cannot_be_selected(lab, name):
    assert config_utils.shared_selection(name) is None


@pytest.mark.parametrize("name", ["_DefaultWorkflow.test", "_defaultworkflow.TEST"])
def test_they_are_not_loaded(lab, name):
    with pytest.raises(ConfigNotFoundError, match="holds tests of a workflow") as caught:
        config_utils.load_workflow(name)

    assert caught.value.suggestion == name[: -len(".test")]


def test_they_are_not_run(lab):
    with pytest.raises(ConfigNotFoundError):
        WorkflowManager.run_custom_workflow(
            "quick.test", "r", None, [{"role": "user", "content": "hi"}], workflow_user_folder_override="_shared"
        )


def test_they_are_not_suggested(lab):
    lab.write("Workflows/tester/Summary.test", NODES)

    with pytest.raises(ConfigNotFoundError) as caught:
        config_utils.load_workflow("Summary.tst")

    assert caught.value.suggestion != "Summary.test"


def test_a_name_with_a_dot_is_still_a_workflow(lab):
    lab.write("Workflows/tester/version.testing", NODES)

    assert config_utils.load_workflow("version.testing").nodes == NODES["nodes"]


@pytest.mark.parametrize(
    "name",
    [
        "X-Compactor-Settings",
        "_DiscussionId-MemoryFile-Workflow-Settings",
        "Compactor-Settings",
        "x-compactor-SETTINGS",
    ],
)
def test_settings_are_not_run(lab, name):
    for folder in ("tester", "_shared"):
        lab.write(f"Workflows/{folder}/{name.replace('x-compactor-SETTINGS', 'x-Compactor-Settings')}", NODES)

    assert config_utils.model_ids() == ["tester:fast", "tester:quick"]
    assert config_utils.shared_selection(name) is None
    for folder in (None, "_shared"):
        with pytest.raises(ConfigValueError, match="holds settings"):
            config_utils.load_workflow(name, folder)


@pytest.mark.parametrize("name", ["Compactor-Settings-2", "Settings", "MemoryFile-Workflow-Settings.old"])
def test_names_that_only_contain_theirs_are_those_of_workflows(lab, name):
    lab.write(f"Workflows/tester/{name}", NODES)

    assert config_utils.load_workflow(name).nodes == NODES["nodes"]
