"""The calls of the Configuration page over HTTP: who may save, what is refused, and that nothing else writes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.console import command_process, config_routes, made_test_routes
from Middleware.addons.console.api import load_routes
from Middleware.addons.console.application import PREFIX, ConsoleApplication
from Middleware.addons.console.calls import Role
from Middleware.addons.console.command_process import CommandResult
from Middleware.addons.console.editing import editor
from Middleware.addons.console.exported_test import ExportedTest
from Middleware.addons.records.records import build_records
from Middleware.api.edge.admission_middleware import AdmissionMiddleware
from Middleware.api.edge.browser_safety import BrowserSafety
from Middleware.common import instance_global_variables as instance
from Middleware.models.process import Process, process
from Middleware.utilities import config_utils
from Tests.addons.check.config_tree import CODING, GENERAL, TreeLab, write_tree
from Tests.addons.console.console_lab import Answer, Browser, accepted
from Tests.addons.records.records_lab import run
from Tests.tables import table

KEYS = {"own": "the-key-of-alices-phone", "all": "the-key-of-alices-desk"}
RUN = "a-run"


class Consoles:
    """Two consoles of one configuration, with and without ``--console edit``, and a session of each role at both."""

    def __init__(self, public: Path) -> None:
        self.configs = write_tree(public)
        keys = accepted(
            public / "keys.txt", *(f"{key} console={role} user=alice" for role, key in KEYS.items()), users=("alice",)
        )
        self.records, self.browsers = [], {}
        for mode in ("on", "edit"):
            records = build_records(mode, "texts")
            self.records.append(records)
            records.store.finished(run(id=RUN, user="alice"))
            records.store.flush()
            console_app = ConsoleApplication(records, keys, BrowserSafety(), lambda environ, start: [])
            application = AdmissionMiddleware(lambda environ, start: [], 1, keys, mounts={PREFIX: console_app})
            for role, key in KEYS.items():
                self.browsers[role, mode] = Browser(application).sign_in_with(key)
            self.browsers["operator", mode] = Browser(application).sign_in(time.time(), records.folder.secret())

        shown = self.browsers["operator", "on"].get(f"config/file?path={GENERAL}").json
        self.saving = {"path": GENERAL, "base": shown["base"], "text": shown["text"].replace('"Think"', '"Ponder"')}

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.configs.rglob("*") if path.is_file()}

    def save(self, role: str, mode: str, **changes: Any) -> Answer:
        """Save a workflow with another title of its first node."""
        return self.browsers[role, mode].call("PUT", "config/file", {**self.saving, **changes})


@pytest.fixture
def consoles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Consoles]:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    TreeLab(tmp_path / "Public", monkeypatch)
    monkeypatch.setattr(instance, "CONSOLE_DIRECTORY", str(tmp_path / "Console"))
    config_utils.reset_config_store()
    made = Consoles(tmp_path / "Public")
    yield made
    for records in made.records:
        records.close()
    config_utils.reset_config_store()


def test_a_save_over_http(consoles: Consoles) -> None:
    saved = consoles.save("operator", "edit")
    assert saved.status == 200 and "Ponder" in (consoles.configs / GENERAL).read_text("utf-8")
    assert consoles.save("operator", "edit", base="0" * 64).status == 409
    # Everybody who looks at the console sees what was changed.
    [change] = consoles.browsers["operator", "on"].get("settings").json["changes"]
    assert change["path"] == GENERAL


@table(
    ("changes", "where"),
    [
        ({"path": 3}, "path"),
        ({"text": None}, "text"),
        ({"base": []}, "base"),
        ({"confirm": 1}, "confirm"),
        ({"more": "x"}, "more"),
        ({"path": "Users/../../x.json"}, "path"),
    ],
)
def test_a_save_that_is_not_understood(consoles: Consoles, changes: dict[str, Any], where: str) -> None:
    before = consoles.files()
    answer = consoles.save("operator", "edit", **changes)
    assert (answer.status, answer.json["error"]["where"]) == (400, where), answer.data
    assert consoles.files() == before


@table(
    ("method", "path", "body", "status"),
    [
        ("GET", "config/file", None, 400),
        ("GET", "config/file?path=Users/no.json", None, 404),
        ("GET", f"config/history?path={GENERAL}&version=x", None, 400),
        ("GET", f"config/history?path={GENERAL}&version=1", None, 404),
        ("POST", "config/assist", {"path": GENERAL, "text": "", "offset": True}, 400),
        ("POST", "config/assist", {"path": GENERAL, "text": "", "offset": -1}, 400),
        ("POST", "config/check", {"path": GENERAL}, 400),
        ("POST", "config/check-all", {"path": GENERAL}, 400),
        ("GET", "config/files?x=1", None, 400),
    ],
)
def test_other_calls_that_are_not_understood(
    consoles: Consoles, method: str, path: str, body: Any, status: int
) -> None:
    assert consoles.browsers["operator", "on"].call(method, path, body).status == status


def test_everything_is_checked_in_a_process_of_its_own(consoles: Consoles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_process, "NICENESS", 0)  # for other work of this machine it would wait very long
    text = (consoles.configs / CODING).read_text("utf-8")
    (consoles.configs / CODING).write_text(text.replace('"Child"', '"Chold"'), encoding="utf-8")
    result = consoles.browsers["operator", "on"].post("config/check-all", {}).json
    [finding] = [one for one in result["findings"] if one["severity"] == "error"]
    assert (finding["file"], finding["suggestion"]) == (CODING, "Child") and finding["line"]
    assert result["files"] > 10


@table("kind", ["check", "test"])
def test_one_command_of_a_kind_at_a_time(consoles: Consoles, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Four more wait, one after the other has its turn; further ones get 503, and so does who waits for too long."""
    at_work, most, leave = [0], [0], threading.Event()

    def command(*_arguments: object, **_options: object) -> CommandResult:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        assert leave.wait(60)
        at_work[0] -= 1
        return CommandResult(0, '{"findings": [], "tests": [], "mistakes": []}', "")

    made = ExportedTest("Workflows/x.test.json", "alice", {"title": "x", "expect": {}}, [])
    monkeypatch.setattr(made_test_routes, "_exported", lambda call: made)
    monkeypatch.setattr(editor, "run_command", command)
    monkeypatch.setattr(made_test_routes, "run_command", command)
    browser, answers = consoles.browsers["operator", "on"], queue.SimpleQueue[Answer]()
    calls: dict[str, Any] = {"check": ("config/check-all", {}), "test": (f"runs/{RUN}/test/run", {"name": "x"})}
    path, body = calls[kind]

    def call() -> None:
        answers.put(browser.post(path, body))

    callers = [threading.Thread(target=call) for _ in range(command_process.MOST_WAITING + 3)]
    for caller in callers:
        caller.start()
    refused = [answers.get(timeout=60) for _ in range(2)]
    assert [answer.status for answer in refused] == [503, 503]
    assert int(refused[0].headers["Retry-After"]) > 0 and "at work already" in refused[0].message
    leave.set()
    assert [answers.get(timeout=60).status for _ in range(len(callers) - 2)] == [200] * (len(callers) - 2)
    assert most == [1]
    monkeypatch.setattr(command_process, "WAIT_SECONDS", 0.01)
    turns = process().one(config_routes.check_turns if kind == "check" else made_test_routes.made_test_turns)
    with turns.taken("It"):
        assert browser.post(path, body).status == 503
        # The other kind has its own turn.
        assert browser.post(*calls["check" if kind == "test" else "test"]).status == 200
    assert browser.post(path, body).status == 200


@table(("role", "mode"), [("own", "on"), ("all", "on"), ("operator", "on"), ("own", "edit"), ("all", "edit")])
def test_without_the_right_no_call_changes_a_file(consoles: Consoles, role: str, mode: str) -> None:
    before = consoles.files()
    # What would save with the right; for other calls, what they take.
    bodies: dict[str, Any] = {
        "PUT config/file": consoles.saving,
        "POST runs/ID/test/save": {"name": "x"},
        "POST config/check": {"path": GENERAL, "text": "{}"},
        "POST config/assist": {"path": GENERAL, "text": "{}", "offset": 1},
        "PUT runs/ID": {"note": "mine"},
        "PUT settings": {"days": 7},
        "POST session": {"key": KEYS["own"]},
        "PUT discussions/ID/memories/KEY": {"text": "x"},
        "POST playground": {"messages": []},
    }
    queries = {"events": "?wait=0", "config/file": f"?path={GENERAL}", "config/history": f"?path={GENERAL}"}
    browser = consoles.browsers[role, mode]
    # The end of the session comes last.
    for route in sorted(load_routes().all, key=lambda one: one.path == "session"):
        name = route.path
        # Calls that run the engine need one, and a check of everything is a process that a test above starts.
        if route.runs or name == "config/check-all":
            continue
        path = name.replace("FOLDER/NAME", "alice/General").replace("ID", RUN).replace("SPAN", "1")
        body = bodies.get(f"{route.method} {name}", {}) if route.method in ("POST", "PUT") else None
        answer = browser.call(route.method, path + (queries.get(name, "") if route.method == "GET" else ""), body)
        if route.least > Role[role.upper()] or route.edit:
            assert answer.status == 403, (name, answer.data)
        assert answer.status < 500, (name, answer.data)
        assert consoles.files() == before, name
