"""The check at the first run of a workflow file: what is logged, when, and with whose settings."""

from __future__ import annotations

import builtins
import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from Middleware.addons.check import load_check, lookups
from Middleware.addons.check.load_check import LoadCheck
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.workflows.events import Listeners
from Tests.addons.check.checking import without_excerpts, workflow
from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import EngineLab, llm, static

LOGGER = "Middleware.addons.check.load_check"


class CheckedLab(EngineLab):
    """A lab whose requests have the check as their listener."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, backend: StubBackend) -> None:
        super().__init__(root, monkeypatch, backend)
        self.check = LoadCheck()
        self.new_request()

    def new_request(self) -> None:
        self.request = RequestContext(request_id="r-2", listeners=Listeners([self.check]))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[CheckedLab]:
    caplog.set_level(logging.INFO, LOGGER)
    with StubBackend() as backend:
        yield CheckedLab(tmp_path, monkeypatch, backend)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.name == LOGGER]


def test_one_record_at_the_first_run(lab: CheckedLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.workflow("Main", [static("{zebra} {agent1Output}"), static("x", isResponder=False)])
    assert lab.run_named("Main") == lab.run_named("Main") == "x"
    ((level, text),) = told(caplog)
    assert level == logging.WARNING
    assert text.splitlines()[0] == "Workflow tester/Main: 3 things to look at"
    assert "nodes[0].content (line 1)" in text


def test_a_new_version_is_checked_anew(lab: CheckedLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.run([static("{zebra}")])
    lab.run([static("{yak}")])
    lab.run([static("fine")])
    assert ["{zebra}" in text for _, text in told(caplog)] == [True, False]


def test_notes_are_information(lab: CheckedLab, caplog: pytest.LogCaptureFixture) -> None:
    assert lab.run([static('{"a": 1}')]) == '{"a": 1}'
    assert [level for level, _ in told(caplog)] == [logging.INFO]


def test_a_clean_workflow_is_not_mentioned(lab: CheckedLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.user(userWideWorkflowVariables={"motto": "x"})
    lab.workflow("Child", [static("{agent1Input}")])
    lab.run([llm("{motto}", preset=""), {"type": "CustomWorkflow", "workflowName": "Child", "scoped_variables": ["a"]}])
    assert told(caplog) == []


def test_children_are_checked_when_they_run(lab: CheckedLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.workflow("Child", [static("{zebra}")])
    lab.run([{"type": "CustomWorkflow", "workflowName": "Child"}])
    assert [text.splitlines()[0] for _, text in told(caplog)] == ["Workflow tester/Child: 1 thing to look at"]


@pytest.mark.parametrize(
    ("node", "where", "near"),
    [
        (llm("x", endpointName="Mian"), "nodes[0].endpointName", "Main"),
        (llm("x", preset="Brigt"), "nodes[0].preset", "Bright"),
        ({"type": "CustomWorkflow", "workflowName": "Chidl"}, "nodes[0].workflowName", "Child"),
        (llm("x", structuredOutputFile="Peron"), "nodes[0].structuredOutputFile", "Person"),
    ],
)
def test_missing_files(
    lab: CheckedLab, caplog: pytest.LogCaptureFixture, node: dict[str, Any], where: str, near: str
) -> None:
    lab.preset("OpenAiCompatibleApis", "Bright", {"temperature": 1})
    lab.write("StructuredOutputs/Person", {"type": "object"})
    lab.workflow("Child", [static("x")])
    with pytest.raises(FileNotFoundError):
        lab.run([node])
    ((level, text),) = told(caplog)
    assert level == logging.WARNING
    assert f"error    {where}" in text
    assert f"Did you mean '{near}'?" in text


def test_files_that_exist(lab: CheckedLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.preset("OpenAiCompatibleApis", "Bright", {"temperature": 1})
    lab.endpoint("Donor", {"presetSamplers": {"temperature": 1}}, lab.backend.url)
    lab.write("StructuredOutputs/Person", {"type": "object"})
    script = lab.root / "script.py"
    script.write_text("def Invoke():\n    return 'done'\n", encoding="utf-8")
    assert (
        lab.run(
            [
                llm("x", preset="Bright"),
                llm("x", preset="Donor", structuredOutputFile="Person"),
                {"type": "PythonModule", "module_path": str(script)},
            ]
        )
        == "done"
    )
    assert told(caplog) == []


def test_a_child_beside_its_parent_is_found(lab: CheckedLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.workflow("Start", [{"type": "CustomWorkflow", "workflowName": "Next"}], folder="_common")
    lab.workflow("Next", [static("x")], folder="_common")
    assert lab.run_named("Start", workflow_user_folder_override="_common") == "x"
    assert told(caplog) == []


def test_a_script_that_is_missing(lab: CheckedLab, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FileNotFoundError):
        lab.run([{"type": "PythonModule", "module_path": "no/such.py"}])
    assert "module_path" in told(caplog)[0][1]


def test_a_check_that_fails_stops_nothing(
    lab: CheckedLab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(load_check, "check_workflow", fail)
    assert lab.run([static("x")]) == "x"
    assert "could not be checked" in told(caplog)[0][1]


def test_what_was_checked_is_remembered_within_bounds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    check = LoadCheck(size=2)
    first = workflow([{"type": "StaticResponse", "content": "{zebra}"}])
    for _ in range(3):
        check.workflow_loaded(first)
    assert len(told(caplog)) == 1
    for _ in range(3):
        check.workflow_loaded(workflow([{"type": "StaticResponse", "content": "{zebra}"}]))
    assert len(told(caplog)) == 4
    assert len(check._checked.keys()) <= 2


# -- users and other files ---------------------------------------------------------------------------------------------

MEMORY_KEY = "discussionIdMemoryFileWorkflowSettings"
REMEMBER = {"type": "QualityMemory"}


class Clock:
    """Stands in for the clock of the configuration store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(config_utils.config_store(), "clock", lambda: self.now)
        config_utils.reset_config_store()


@pytest.fixture
def clock(lab: CheckedLab, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def edit(lab: CheckedLab, name: str, content: Any) -> None:
    """Change a file without the configuration being told."""
    (lab.root / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def test_every_user_is_checked_with_the_own_settings(
    lab: CheckedLab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "USERS", ["tester", "bob"])
    lab.user(userWideWorkflowVariables={"motto": "x"})
    lab.write("Users/bob", {"endpointConfigsSubDirectory": "lab", "chatPromptTemplateName": "chatml"})
    lab.workflow("Shared", [static("{motto}")], folder="_common")
    for user in ("tester", "bob", "tester", "bob"):
        lab.request.user = user
        lab.run_named("Shared", workflow_user_folder_override="_common")
    ((_, text),) = told(caplog)
    assert text.startswith("With the settings of user bob:\nWorkflow _common/Shared: 1 thing")


def test_settings_are_told_once_for_all_workflows(lab: CheckedLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.workflow("Other", [REMEMBER, {"type": "ContextCompactor"}])
    lab.workflow("Third", [REMEMBER, static("x")])
    lab.run([REMEMBER])
    lab.run_named("Other")
    lab.run_named("Third")
    texts = [text for _, text in told(caplog)]
    assert [text.splitlines()[0] for text in texts] == [
        f"Users/tester.json, needed by workflow tester/{name}: 1 thing to look at" for name in ("Main", "Other")
    ]
    assert [MEMORY_KEY in text for text in texts] == [True, False]


def test_a_new_version_of_the_settings_is_told_again(
    lab: CheckedLab, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    lab.user(**{MEMORY_KEY: "Memory"})
    good = {"endpointName": "Main", "prompt": "[TextChunk]"}
    lab.write("Workflows/tester/Memory", {**good, "preset": "Clam"})
    lab.workflow("Main", [REMEMBER])
    counts = []
    for content in (None, good, {**good, "preset": "Clam"}, {**good, "preset": "Clam", "lookbackStartTurn": 4}, None):
        if content is not None:
            edit(lab, "Workflows/tester/Memory", content)
        clock.now += 1.5
        lab.run_named("Main")
        lab.run_named("Main")
        counts.append(len(told(caplog)))
    assert counts == [1, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("file", "content", "count"),
    [
        ("Endpoints/lab/Extra", {"endpoint": "http://127.0.0.1:1", "apiTypeConfigFileName": "None"}, 1),
        ("Endpoints/lab/Extra", {"endpoint": "http://127.0.0.1:1", "apiTypeConfigFileName": "OpenAI", "more": 1}, 0),
        (
            "Users/tester",
            {
                "endpointConfigsSubDirectory": "lab",
                "chatPromptTemplateName": "chatml",
                "conversationMemoryToolWorkflow": "None",
            },
            1,
        ),
        ("Users/tester", {"endpointConfigsSubDirectory": "lab", "chatPromptTemplateName": "chatml", "more": 1}, 0),
    ],
)
def test_what_a_workflow_names_may_break_later(
    lab: CheckedLab, clock: Clock, caplog: pytest.LogCaptureFixture, file: str, content: dict[str, Any], count: int
) -> None:
    lab.endpoint("Extra", {})
    lab.workflow("Main", [{"type": "ConversationMemory"}, static("x", endpointName="Extra")])
    lab.run_named("Main")
    assert told(caplog) == []
    edit(lab, file, content)
    clock.now += 1.5
    lab.new_request()  # a request keeps the user's settings that it started with
    with contextlib.suppress(ConfigurationError):  # the node itself fails
        lab.run_named("Main")
    assert len(told(caplog)) == count


def test_a_warm_run_asks_nothing_again(lab: CheckedLab, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.user(**{MEMORY_KEY: "Memory"})
    lab.write("Workflows/tester/Memory", {"endpointName": "Main", "prompt": "[TextChunk]"})
    asked: list[Any] = []
    changed, stat, opened = load_check.Lookups.changed, os.stat, builtins.open
    monkeypatch.setattr(load_check.Lookups, "changed", lambda lookups: asked.append("changed") or changed(lookups))
    loaded = workflow([REMEMBER, llm("x")])
    check = LoadCheck()
    for path in lab.root.rglob("*.json"):
        os.utime(path, (1e9 + 0.1, 1e9 + 0.1))  # the store reads a file that was just written once more
    with request_scope(lab.request):
        check.workflow_loaded(loaded)
        for name, real in (("stat", stat), ("open", opened)):
            monkeypatch.setattr(
                os if name == "stat" else builtins,
                name,
                lambda *arguments, real=real, **options: (asked.append(arguments[0]), real(*arguments, **options))[1],
            )
        for _ in range(50):
            check.workflow_loaded(loaded)
        assert asked == []
        for _ in range(2):
            clock.now += 1.5
            check.workflow_loaded(loaded)
            check.workflow_loaded(loaded)
        paths = [one for one in asked if one != "changed"]
        assert asked.count("changed") == 2
        assert len(paths) <= 2 * len(set(paths))  # each file and folder at most once in a second
        assert not any(isinstance(path, int) for path in paths)


def test_one_of_many_threads_checks(lab: CheckedLab, caplog: pytest.LogCaptureFixture) -> None:
    check, loaded, together = LoadCheck(), workflow([static("{zebra}"), REMEMBER]), Barrier(8)

    def run() -> None:
        with request_scope(RequestContext(request_id="r")):
            together.wait()
            check.workflow_loaded(loaded)

    threads = [Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told(caplog)) == 1


def test_a_comparison_that_fails_is_told_once(
    lab: CheckedLab, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.workflow("Main", [llm("x"), static("x")])
    lab.run_named("Main")
    monkeypatch.setattr(lookups.EndpointFile, "load", lambda name: {}["broken"])
    with request_scope(lab.request):
        for _ in range(3):
            clock.now += 1.5
            lab.check.workflow_loaded(config_utils.load_workflow("Main"))
    assert ["could not be checked" in text for _, text in told(caplog)] == [True]


def teardown_module() -> None:
    config_utils.reset_config_store()


@pytest.mark.parametrize(
    ("directories", "path", "place", "problem"),
    [
        (["notes"], "/elsewhere/x", "nodes[0].filepath", "the path leads out of the directories"),
        ("notes", "{agent1Input}", "allowedFileDirectories (line", "must be a list"),
        ([""], "/elsewhere/x", "allowedFileDirectories[0]", "is blank, so that no file can be used"),
        (["/elsewhere"], "/elsewhere/x", "", ""),
        (["notes"], "{agent1Input}", "", ""),
        (None, "/elsewhere/x", "", ""),
    ],
)
def test_directories_of_files(
    lab: CheckedLab, caplog: pytest.LogCaptureFixture, directories: Any, path: str, place: str, problem: str
) -> None:
    lab.user(allowedFileDirectories=directories)
    lab.workflow("Main", [{"type": "GetCustomFile", "filepath": path}])
    with contextlib.suppress(ConfigurationError):
        lab.run_named("Main")
    texts = [text for _, text in told(caplog) if "allowedFileDirectories" in text]
    assert len(texts) == bool(problem) and all(problem in text and place in text for text in texts)
    assert sum(len(without_excerpts(text)) for text in texts) == 2 * len(texts)  # one mistake, one message


# -- files that a workflow names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "content", "line"),
    [
        (
            "Endpoints/lab/Main",
            {"endpoint": "{url}", "apiTypeConfigFileName": "OpenAI", "maxContextTokenSize": "many"},
            "warning  maxContextTokenSize (line 1): 'maxContextTokenSize' must be a whole number, not 'many'",
        ),
        (
            "Endpoints/lab/Main",
            {"endpoint": "{url}", "apiTypeConfigFileName": "OpenAI", "remveThinking": True},
            "warning  remveThinking (line 1): the key 'remveThinking' is unknown and has no effect. "
            "Did you mean 'removeThinking'?",
        ),
        (
            "ApiTypes/OpenAI",
            {
                "type": "openAIChatCompletion",
                "presetType": "OpenAiCompatibleApis",
                "maxNewTokensPropertyName": "max_tokens",
                "streamPropertyNam": "stream",
            },
            "warning  streamPropertyNam (line 1): the key 'streamPropertyNam' is unknown and has no effect. "
            "Did you mean 'streamPropertyName'?",
        ),
        (
            "Presets/OpenAiCompatibleApis/tester/Bright",
            [1],
            "error    the file (line 1): the file holds a list. Expected: an object: { ... }.",
        ),
        (
            "Users/tester",
            {"endpointConfigsSubDirectory": "lab", "chatPromptTemplateName": "chatlm"},
            "error    chatPromptTemplateName (line 1): prompt template 'chatlm' does not exist. "
            "Looked for: PromptTemplates/chatlm.json. Did you mean 'chatml'?",
        ),
        (
            "StructuredOutputs/Person",
            {},
            "error    the file (line 1): the schema is empty. "
            "Expected: a JSON schema such as an object with 'type' and 'properties'.",
        ),
    ],
)
def test_files_that_a_workflow_names_are_checked(
    lab: CheckedLab, caplog: pytest.LogCaptureFixture, file: str, content: Any, line: str
) -> None:
    lab.preset("OpenAiCompatibleApis", "Bright", {"temperature": 1})
    lab.write("StructuredOutputs/Person", {"type": "object"})
    if isinstance(content, dict) and "endpoint" in content:
        content = {**content, "endpoint": lab.backend.url}
    lab.write(file, content)
    lab.workflow("Main", [llm("x", preset="Bright", structuredOutputFile="Person")])
    lab.workflow("Other", [llm("x", preset="Bright")])
    for name in ("Main", "Other", "Main", "Other"):
        with contextlib.suppress(ConfigurationError):
            lab.run_named(name)
    ((_, text),) = told(caplog)
    assert without_excerpts(text) == [f"{file}.json, needed by workflow tester/Main: 1 thing to look at", f"  {line}"]


def test_a_broken_child_is_told_at_its_file(lab: CheckedLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.workflow("Main", [static("x"), {"type": "CustomWorkflow", "workflowName": "Child"}])
    (lab.root / "Workflows" / "tester" / "Child.json").write_text('{"nodes": [],\n}', encoding="utf-8")
    with contextlib.suppress(ConfigurationError):
        lab.run_named("Main")
    ((_, text),) = told(caplog)
    assert without_excerpts(text) == [
        "Workflows/tester/Child.json, needed by workflow tester/Main: 1 thing to look at",
        "  error    the file (line 1): not valid JSON: there is a comma before the closing '}'",
    ]


def test_an_edited_endpoint_is_told_once_per_version(
    lab: CheckedLab, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    good = {"endpoint": lab.backend.url, "apiTypeConfigFileName": "OpenAI"}
    lab.write("Endpoints/lab/Main", good)
    lab.workflow("Main", [llm("x", promt="y")])
    counts = []
    for content in (None, {**good, "removeThinkin": True}, None, {**good, "removeThinkin": False}, good):
        if content is not None:
            edit(lab, "Endpoints/lab/Main", content)
        clock.now += 1.5
        lab.run_named("Main")
        lab.run_named("Main")
        counts.append(len(told(caplog)))
    assert counts == [1, 2, 2, 3, 3]
    assert sum("promt" in text for _, text in told(caplog)) == 1  # of the workflow itself nothing is repeated
