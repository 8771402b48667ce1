"""A recorded run of every shipped user, model and route becomes a workflow test that passes at once, without an LLM."""

from __future__ import annotations

import contextvars
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from Middleware.addons.console.exported_test import EXPECTATIONS, ExportedTest, exported
from Middleware.addons.console.replays import is_replaced
from Middleware.addons.records.model import RunDocument
from Middleware.addons.records.records import RunRecords, build_records
from Middleware.addons.records.run_texts import normalised
from Middleware.addons.workflow_tests.running import Result, run_tests
from Middleware.addons.workflow_tests.sandbox import sandbox_folder
from Middleware.addons.workflow_tests.suite_reader import read_tests
from Middleware.api.requests.messages import without_user_options
from Middleware.api.running.running_requests import running_requests
from Middleware.common import instance_global_variables as instance
from Middleware.models.process import Process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.workflows.handlers.registry import node_types
from Tests.api.record_lab import console_site
from Tests.integration.shipped_users import USERS, Model, copy_of_shipped
from Tests.stub_backend import RecordedRequest, Reply, status_reply
from Tests.workflows.engine_lab import until

CHAT = "/v1/chat/completions"
QUESTION = [
    {"role": "system", "content": "You are kind."},
    {"role": "user", "content": "Which {fish} live in the Baltic Sea?"},
]


class Server:
    """The application in this process, with its recorder, for one user after the other."""

    def __init__(self, public: Path, model: Model, records: RunRecords) -> None:
        self.public, self.model, self.records = public, model, records
        self.client = Client(console_site(records))

    def serve(self, user: str) -> None:
        instance.USERS = [user]
        config_utils.reset_config_store()

    def models(self) -> list[str]:
        return [entry["id"] for entry in json.loads(self.client.get("/v1/models").data)["data"]]

    def categories(self, user: str) -> list[str]:
        settings = json.loads((self.public / "Configs" / "Users" / f"{user}.json").read_text(encoding="utf-8"))
        if not settings.get("routingConfig"):
            return [""]
        file = self.public / "Configs" / "Routing" / f"{settings['routingConfig']}.json"
        return [name for name in json.loads(file.read_text(encoding="utf-8")) if name != "$schema"]

    def run(self, body: dict[str, Any]) -> RunDocument:
        with self.client.post(CHAT, json=body) as response:
            assert response.status_code == 200, response.data
            assert response.data
        assert until(lambda: running_requests().count() == 0, 20.0)
        return normalised(self.records.ring.documents()[0])

    def exported(self, document: RunDocument) -> ExportedTest:
        with request_scope(RequestContext(user=document.facts["user"])):
            return exported(document, "it goes on so", EXPECTATIONS, needs_stub, (), without_user_options)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch, Model() as model:
        public = copy_of_shipped(tmp_path_factory.mktemp("shipped") / "Public", model)
        patch.setattr("Middleware.models.process._process", Process())
        patch.setattr(instance, "PUBLIC_DIRECTORY", str(public))
        for name in (
            "CONFIG_DIRECTORY",
            "DISCUSSION_DIRECTORY",
            "USER_LEVEL_SQLITE_DIRECTORY",
            "USERS",
            "CONSOLE_DIRECTORY",
        ):
            patch.setattr(instance, name, None)
        records = build_records("on")
        yield Server(public, model, records)
        records.close()
    config_utils.reset_config_store()


def needs_stub(node_type: str) -> bool:
    return is_replaced(node_types()[node_type])


def result_of(test: ExportedTest, tmp_path: Path) -> Result:
    """Run a test as the command does, on a thread that knows no request."""
    path = str(Path(config_utils.get_root_config_directory(), *test.path.split("/")))
    text = json.dumps(test.file(), ensure_ascii=False).encode()
    tests, findings = read_tests([path], {path: text})
    assert not findings, findings
    with sandbox_folder() as folder:
        return contextvars.Context().run(run_tests, tests, folder, 1)[0]


@pytest.mark.parametrize("user", USERS)
def test_every_route_and_model_becomes_a_test_that_passes_until_something_breaks(
    server: Server, tmp_path: Path, user: str
) -> None:
    server.serve(user)
    seen = set[str]()
    for category in server.categories(user):
        server.model.categories, server.model.category = tuple(filter(None, server.categories(user))), category
        for number, name in enumerate(["gpt-4o", *server.models()]):
            document = server.run({"model": name, "messages": QUESTION, "stream": bool(number % 2)})
            test = server.exported(document)
            result = result_of(test, tmp_path)
            assert result.passed, (
                name,
                [(failure.json_path, failure.lines) for failure in result.failures],
                json.dumps(test.test, indent=1),
            )
            assert {"answer", "route", "order", "prompts", "endpoints"} <= set(test.test["expect"])  # type: ignore[call-overload]
            if test.path not in seen:
                seen.add(test.path)
                _notices_what_is_broken(server, test, document, category, tmp_path)


def _notices_what_is_broken(
    server: Server, test: ExportedTest, document: RunDocument, category: str, tmp_path: Path
) -> None:
    """Break a title, a variable and the route, one after the other: the test must fail each time."""
    configs = server.public / "Configs"
    # The titles of a workflow that only runs another one are not in the test.
    workflows = [
        configs / version["path"] for version in document.facts["config"] if version["path"].startswith("Workflows/")
    ]
    told = json.dumps({name: test.test.get(name) for name in ("replies", "stubs")}, ensure_ascii=False)
    prompts: Any = test.test["expect"]["prompts"]  # type: ignore[index,call-overload]
    changes = list[tuple[Path, str]]()

    def changed(change: Callable[[dict[str, Any]], bool]) -> None:
        """Change the first node that can be changed so."""
        for workflow in workflows:
            whole = json.loads(workflow.read_text(encoding="utf-8"))
            nodes = whole.get("nodes", []) if isinstance(whole, dict) else whole
            if any(isinstance(node, dict) and change(node) for node in nodes):
                changes.append((workflow, json.dumps(whole, ensure_ascii=False)))
                return

    def retitle(node: dict[str, Any]) -> bool:
        if not node.get("title") or json.dumps(node["title"], ensure_ascii=False)[1:-1] not in told:
            return False
        node["title"] += " anew"
        return True

    def misspell(node: dict[str, Any]) -> bool:
        for key in ("prompt", "systemPrompt"):
            variable = re.search(r"\{\w+\}", node.get(key) or "") if node.get("title") in prompts else None
            if variable and key in prompts[node["title"]]:
                node[key] = node[key].replace(variable[0], "{no_such_variable}")
                return True
        return False

    changed(retitle)
    changed(misspell)
    settings = json.loads((configs / "Users" / f"{document.facts['user']}.json").read_text(encoding="utf-8"))
    if category and "route" in test.test["expect"]:  # type: ignore[operator]
        routing = configs / "Routing" / f"{settings['routingConfig']}.json"
        routes = json.loads(routing.read_text(encoding="utf-8"))
        if f"/{routes[category]['workflow']}.test.json" in test.path:
            routes[category]["workflow"] += "2"
            changes.append((routing, json.dumps(routes)))
    # A title at least; not every prompt has a variable.
    assert len(changes) >= (2 if category else 1), test.path
    for path, text in changes:
        before = path.read_bytes()
        path.write_text(text, encoding="utf-8")
        config_utils.reset_config_store()
        assert not passes(test, tmp_path), (path, text)
        path.write_bytes(before)
        config_utils.reset_config_store()


def passes(test: ExportedTest, tmp_path: Path) -> bool:
    """Return whether a test passes; it does not if it names what is not there."""
    path = str(Path(config_utils.get_root_config_directory(), *test.path.split("/")))
    tests, findings = read_tests([path], {path: json.dumps(test.file(), ensure_ascii=False).encode()})
    if findings:
        return False
    with sandbox_folder() as folder:
        return contextvars.Context().run(run_tests, tests, folder, 1)[0].passed


# -- unusual runs ------------------------------------------------------------------------------------------------------


def node(title: str, prompt: str, **more: Any) -> dict[str, Any]:
    return {"title": title, "type": "Standard", "endpointName": "Demo-LLM", "prompt": prompt, **more}


def test_a_run_with_a_backup_equal_titles_and_nodes_side_by_side(
    server: Server, tmp_path: Path, coding: ExportedTest
) -> None:
    configs = server.public / "Configs"
    endpoint = configs / "Endpoints" / "demo" / "Demo-LLM.json"
    working = json.loads(endpoint.read_text(encoding="utf-8"))
    _write(endpoint.with_name("Spare.json"), working)
    _write(
        endpoint.with_name("Broken.json"),
        {**working, "endpoint": working["endpoint"].replace("Demo-LLM", "Broken"), "backupEndpointName": "Spare"},
    )
    inner = configs / "Workflows" / "demo" / "Inner.json"
    _write(inner, {"nodes": [node("Analyse", "part {agent1Input}"), node("Say", "say {agent1Output}")]})
    _write(
        configs / CODING,
        {
            "parallelNodes": True,
            "nodes": [
                node("Analyse", "whole"),
                *(
                    {
                        "title": f"Run {name}",
                        "type": "CustomWorkflow",
                        "workflowName": "Inner",
                        "scoped_variables": [name],
                    }
                    for name in ("alpha", "beta")
                ),
                node(
                    "Answer", "{agent1Output} {agent2Output} {agent3Output}", endpointName="Broken", returnToUser=True
                ),
            ],
        },
    )
    config_utils.reset_config_store()

    def reply(request: RecordedRequest) -> Reply:
        # Long enough that the nodes run side by side.
        time.sleep(0.05)
        return status_reply(500) if "/Broken/" in request.path else server.model.respond(request)

    server.model.responder = reply
    try:
        test = server.exported(server.run({"model": "demo", "messages": QUESTION}))
    finally:
        server.model.responder = None
    rules = test.test["replies"]
    assert isinstance(rules, list)
    assert [(rule["endpoint"], rule.get("fail") is not None) for rule in rules if rule["node"] == "Answer"] == [
        ("Broken", True),
        ("Spare", False),
    ]
    assert {rule["node"] for rule in rules} >= {"Coding/Analyse", "Inner/Analyse", "Say"}
    result = result_of(test, tmp_path)
    assert result.passed, [(failure.json_path, failure.lines) for failure in result.failures]
    for path in (inner, endpoint.with_name("Spare.json"), endpoint.with_name("Broken.json")):
        path.unlink()


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


# -- what a made test notices ------------------------------------------------------------------------------------------

CODING = "Workflows/demo/Coding.json"


@pytest.fixture
def coding(server: Server) -> Iterator[ExportedTest]:
    """The test of a run of a workflow of two nodes, chosen by a category."""
    server.serve("demo")
    server.model.categories, server.model.category = tuple(server.categories("demo")), "CODING"
    files = [path for path in (server.public / "Configs").rglob("*.json") if "demo" in str(path)]
    before = {path: path.read_bytes() for path in files}
    yield server.exported(server.run({"model": "demo", "messages": QUESTION}))
    for path, data in before.items():
        path.write_bytes(data)
    config_utils.reset_config_store()


@pytest.mark.parametrize(
    ("file", "old", "new", "expectation"),
    [
        (CODING, "{{ agent1Output | trim }}", "{{ agent2Output | trim }}", "expect.prompts['Answer with code'].prompt"),
        (CODING, '"Analyse the task"', '"Look at the task"', "replies"),
        ("Routing/demo.json", '"workflow": "Coding"', '"workflow": "Coding2"', ""),
    ],
)
def test_a_made_test_fails_when_the_workflow_is_broken(
    server: Server, tmp_path: Path, coding: ExportedTest, file: str, old: str, new: str, expectation: str
) -> None:
    assert coding.path == "Workflows/demo/Coding.test.json" and not coding.user
    assert result_of(coding, tmp_path).passed
    path = server.public / "Configs" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    config_utils.reset_config_store()
    path = server.public / "Configs" / "Workflows" / "demo" / "Coding.test.json"
    tests, findings = read_tests([str(path)], {str(path): json.dumps(coding.file()).encode()})
    if findings:
        # A title that no workflow has any more.
        assert "no workflow has a node 'Analyse the task'" in findings[0].text
        return
    with sandbox_folder() as folder:
        result = contextvars.Context().run(run_tests, tests, folder, 1)[0]
    assert expectation in [failure.json_path for failure in result.failures]


def test_a_run_keeps_the_versions_of_the_files_that_it_used(server: Server, coding: ExportedTest) -> None:
    document = server.run({"model": "demo", "messages": QUESTION})
    before = [dict(version) for version in document.facts["config"]]
    path = server.public / "Configs" / CODING
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    # A file is looked at again after a second.
    time.sleep(1.1)
    assert [dict(version) for version in normalised(server.records.ring.documents()[0]).facts["config"]] == before
