"""The short form of the check at start: what is logged, when, and that it holds nothing up."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.addons.check import load_check
from Middleware.addons.check.findings import Finding
from Middleware.addons.check.load_check import MAX_LINES, LoadCheck, short_form
from Middleware.cli.program import program_name
from Middleware.common import instance_global_variables as instance
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Tests.addons.check.config_tree import ENDPOINT, USER, Mistake, changed, llm, nodes, put, write_tree
from Tests.integration.launcher import LAUNCHERS, Backend, Launcher, llm_node, standard_tree

ERROR = Finding("error", "Users/a.json", "x", 3, "it is bad", "good", "better", column=5)
WARNING = Finding("warning", "Users/a.json", "y", 3, "it is odd")
RUN = f"for all run: {program_name('check')}"


@pytest.mark.parametrize(
    ("findings", "lines"),
    [
        ([], []),
        ([Finding("note", "x", "", None, "x")], []),
        ([WARNING], [f"In the configuration there is 1 warning ({RUN})"]),
        ([WARNING, WARNING], [f"In the configuration there are 2 warnings ({RUN})"]),
        (
            [WARNING, ERROR],
            [
                f"In the configuration there is 1 error and 1 warning ({RUN}):",
                "  Users/a.json:3:5: x: it is bad. Expected: good. Did you mean 'better'?",
            ],
        ),
    ],
)
def test_short_form(findings: list[Finding], lines: list[str]) -> None:
    text, told = short_form(findings)
    assert text.splitlines() == lines
    assert told == [finding for finding in findings if finding.severity == "error"]


def test_the_command_looks_at_the_same_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", "/data/Public")
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", "/data/cfg")
    monkeypatch.setattr(instance, "USERS", ["ann", "bob"])
    assert short_form([WARNING])[0].endswith(
        f"({RUN} --ConfigDirectory /data/cfg --PublicDirectory /data/Public --User ann --User bob)"
    )


def test_many_errors() -> None:
    text, told = short_form([ERROR] * (MAX_LINES + 3))
    assert len(told) == MAX_LINES
    assert text.splitlines()[0] == f"In the configuration there are 13 errors ({RUN}):"
    assert text.splitlines()[-1] == "  ... and 3 errors more"
    assert len(text.splitlines()) == MAX_LINES + 2


# -- in a server -------------------------------------------------------------------------------------------------------


@pytest.fixture
def check() -> LoadCheck:
    return LoadCheck()


@pytest.fixture
def log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[pytest.LogCaptureFixture]:
    for name in ("CONFIG_DIRECTORY", "DISCUSSION_DIRECTORY", "USER_LEVEL_SQLITE_DIRECTORY", "USERS"):
        monkeypatch.setattr(instance, name, None)
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", str(tmp_path))
    caplog.set_level(logging.INFO)
    yield caplog
    config_utils.reset_config_store()


def started(check: LoadCheck, tmp_path: Path, *mistakes: Mistake) -> None:
    write_tree(tmp_path, *mistakes)
    config_utils.reset_config_store()
    check.check_start()


def first_request(check: LoadCheck, name: str = "General") -> None:
    with request_scope(RequestContext(request_id="r")):
        check.workflow_loaded(config_utils.load_workflow(name))


def told(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if "heck" in record.name]


def test_silence_if_all_is_well(tmp_path: Path, log: pytest.LogCaptureFixture, check: LoadCheck) -> None:
    started(check, tmp_path)
    first_request(check)
    assert told(log) == []


def test_a_folder_of_conversations_that_cannot_be_written(
    tmp_path: Path, log: pytest.LogCaptureFixture, check: LoadCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a-file").write_text("", "utf-8")
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "a-file" / "talks"))
    started(check, tmp_path)
    (text,) = told(log)
    assert text.startswith(f"In the configuration there is 1 error ({RUN} --PublicDirectory {tmp_path}):\n")
    assert "the directory of conversations: it cannot be created, as" in text


def test_an_endpoint_that_is_this_server(
    tmp_path: Path, log: pytest.LogCaptureFixture, check: LoadCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "PORT", 5999)
    started(check, tmp_path, changed(ENDPOINT, endpoint="http://localhost:5999"))
    (record,) = [record for record in log.records if "heck" in record.name]
    assert record.levelname == "WARNING" and f"  {ENDPOINT}" in record.getMessage()
    assert "leads back to this WilmerAI, which listens on port 5999" in record.getMessage()


def test_only_served_users_count(
    tmp_path: Path, log: pytest.LogCaptureFixture, check: LoadCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = (put("Users/bob.json", {"routingConfig": "none"}), put("Workflows/bob/x.json", {"nodes": [llm()]}))
    started(check, tmp_path, *bob)
    assert told(log) == []
    monkeypatch.setattr(instance, "USERS", ["bob", "alice"])
    started(check, tmp_path, *bob)
    assert "Users/bob.json:2:3: routingConfig" in told(log)[0]


def test_the_first_request_repeats_nothing(tmp_path: Path, log: pytest.LogCaptureFixture, check: LoadCheck) -> None:
    started(
        check,
        tmp_path,
        nodes(llm(endpointName="Mian")),
        changed(USER, categorizationWorkflow="Categorise"),
        put("Endpoints/home/Spare.json", "{"),
        changed(ENDPOINT, endpoint="nowhere"),
    )
    (text,) = told(log)
    assert text.splitlines()[0].startswith(f"In the configuration there are 4 errors ({RUN} ")
    assert "Workflows/alice/General.json:6:7: nodes[0].endpointName" in text
    first_request(check)
    first_request(check, "Coding")
    assert told(log) == [text]


def test_warnings_are_told_when_the_workflow_runs(
    tmp_path: Path, log: pytest.LogCaptureFixture, check: LoadCheck
) -> None:
    started(check, tmp_path, nodes(llm(endpointName="Mian", systmPrompt="x")))
    first_request(check)
    _, text = told(log)
    assert "systmPrompt" in text and "Mian" not in text


def test_a_new_version_is_told(tmp_path: Path, log: pytest.LogCaptureFixture, check: LoadCheck) -> None:
    started(check, tmp_path, nodes(llm(endpointName="Mian")))
    write_tree(tmp_path, nodes(llm(endpointName="Mian", prompt="other")))
    config_utils.reset_config_store()
    first_request(check)
    assert len(told(log)) == 2 and "Mian" in told(log)[1]


def test_nothing_that_goes_wrong_gets_out(
    tmp_path: Path, log: pytest.LogCaptureFixture, check: LoadCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(load_check, "TreeCheck", fail)
    started(check, tmp_path)
    assert told(log) == ["The configuration could not be checked"]


@pytest.mark.slow
@pytest.mark.parametrize("script", LAUNCHERS)
def test_in_a_launcher(script: str, tmp_path: Path) -> None:
    with Backend() as backend:
        tree = standard_tree(tmp_path / "Public", backend.url)
        tree.shared("Wrong", llm_node("wrong", endpointName="Stbu", returnToUser=True))
        with Launcher(script, "--PublicDirectory", tree.public, "--User", "ann", backend=backend) as server:
            printed = server.wait_output("for all run: ")
            assert printed.index("Listening on") < printed.index("for all run: ")
            assert f" check --PublicDirectory {tree.public} --User ann):" in printed
            assert "Workflows/_shared/Wrong.json:6:7: nodes[0].endpointName" in printed
            assert "Did you mean 'Stub'?" in printed
            assert server.ask("Single").status == 200
            assert server.ask("Wrong").status == 500
            time.sleep(0.2)
            assert "to look at" not in server.output()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "told", "users"),
    [
        ("Users/ann.json", '"', "", "Users/ann.json:", ["--User", "ann"]),
        ("Users/_current-user.json", "ann", "gost", "'gost'", []),
        ("Users/_current-user.json", "", '{"currentUser": "ann", "currentUser": "ann"}', "twice", []),
        ("Workflows/_shared/Single.json", "endpointName", "endpointNam", "endpointNam'", ["--User", "ann"]),
    ],
)
def test_a_launcher_reports_one_mistake_once(
    tmp_path: Path, file: str, old: str, new: str, told: str, users: list[str]
) -> None:
    with Backend() as backend:
        tree = standard_tree(tmp_path / "Public", backend.url)
        path = tree.public / "Configs" / file
        path.write_text(path.read_text("utf-8").replace(old, new, 1) if old else new, "utf-8")
        with Launcher("server.py", "--PublicDirectory", tree.public, *users, backend=backend) as server:
            server.wait_output("In the configuration")
            server.ask("Single")
            server.ask("Single")
            # What a request runs into is logged for that request.
            lines = [
                line
                for line in server.output().splitlines()
                if told in line and "Request " not in line and "cannot be listed" not in line
            ]
            assert len(lines) <= 1, lines
            assert len(lines) == 1 or "twice" in told


@pytest.mark.slow
def test_a_launcher_says_nothing_about_what_is_right(tmp_path: Path) -> None:
    with Backend() as backend:
        tree = standard_tree(tmp_path / "Public", backend.url)
        with Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", "ann", backend=backend) as server:
            assert server.ask("Single").status == 200
            time.sleep(0.5)
            assert "In the configuration" not in server.output() and "to look at" not in server.output()
