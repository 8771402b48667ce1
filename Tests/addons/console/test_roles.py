"""The table of who may see and do what: a role, a call, a run, and what comes of it, for every cell."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from Middleware.addons.console.api import load_routes
from Middleware.addons.console.application import PREFIX, ConsoleApplication
from Middleware.addons.console.calls import Role
from Middleware.addons.records.archive import RunArchive
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.addons.records.model import RunOwner
from Middleware.addons.records.queries import RunQuery
from Middleware.addons.records.settings import RecordSettings
from Middleware.addons.records.store.writer import RunStore
from Middleware.addons.records.viewers import Viewer
from Middleware.api.edge.admission_middleware import AdmissionMiddleware
from Middleware.api.edge.browser_safety import BrowserSafety
from Middleware.utilities.encryption_utils import hash_api_key
from Tests.addons.console.console_lab import Browser, accepted
from Tests.addons.records.records_lab import Ring, run
from Tests.tables import table

OWN_KEY, ALL_KEY, OTHER_KEY = "the-key-of-anns-phone", "the-key-of-anns-desk", "a-key-of-somebody-else"
SAID = "a sentence of a conversation"
# Each run: the key that made it ("viewer": that of whoever looks), its user, and whether it is private.
RUNS: dict[str, tuple[str | None, str, bool]] = {
    "own": ("viewer", "ann", False),
    "same-user": (OTHER_KEY, "ann", False),
    "keyless": (None, "ann", False),
    "other-user": (OTHER_KEY, "bob", False),
    "private-own": ("viewer", "ann", True),
    "private-same-user": (OTHER_KEY, "ann", True),
    "private-other-user": (OTHER_KEY, "bob", True),
}
OF_ANN = {"own", "same-user", "keyless", "private-own", "private-same-user"}
OWN = {"own", "private-own"}
EVERY = set(RUNS)
SEEN = {"own": OWN, "all": OF_ANN, "operator": EVERY}
READ = {
    "own": OWN,
    "all": {"own", "same-user", "keyless", "private-own"},
    "operator": {"own", "same-user", "keyless", "other-user"},
}
CHANGED = {"own": OWN, "all": OWN, "operator": EVERY}


class NumberedRing(Ring):
    """Numbers the changes, as the recorder's ring does."""

    def __init__(self) -> None:
        super().__init__()
        self.first = 1
        self.counter = itertools.count(self.first)
        self.removed: deque[tuple[int, str, RunOwner]] = deque()


class Lab:
    """The console of an archive with all runs: one of each in memory, and a copy that has left it for the disk."""

    def __init__(self, folder: Path) -> None:
        keys = accepted(
            folder / "keys.txt", f"{OWN_KEY} console=own user=ann", f"{ALL_KEY} console=all user=ann", OTHER_KEY
        )
        self.ring = NumberedRing()
        console = ConsoleFolder(str(folder / "Console"))
        self.settings = RecordSettings(console, "texts")
        self.store = RunStore(console, self.ring, self.settings)
        self.archive = RunArchive(self.ring, self.store)
        records = SimpleNamespace(
            mode="on",
            recording="texts",
            folder=console,
            settings=self.settings,
            ring=self.ring,
            store=self.store,
            archive=self.archive,
        )
        console_app = ConsoleApplication(records, keys, BrowserSafety(), lambda environ, start: [])  # type: ignore[arg-type]
        application = AdmissionMiddleware(lambda environ, start: [], 1, keys, mounts={PREFIX: console_app})
        self.browsers = {
            "own": Browser(application).sign_in_with(OWN_KEY),
            "all": Browser(application).sign_in_with(ALL_KEY),
            "operator": Browser(application).sign_in(time.time(), console.secret()),
        }
        self.console_app = console_app

    def fill(self, role: str, where: str, status: str = "ok") -> None:
        """Make all runs anew as the viewer's own key would have it, in memory or on disk."""
        viewer = {"own": OWN_KEY, "all": ALL_KEY, "operator": "the operator has none"}[role]
        self.archive.delete_all(Viewer("operator"))
        self.ring.all.clear()
        for name, (key, user, private) in RUNS.items():
            key = viewer if key == "viewer" else key
            made = run(
                id=f"{role}-{where}-{name}",
                user=user,
                private=private,
                status=status,
                key_hash=hash_api_key(key) if key else None,
                question=SAID,
                answer=SAID,
            )
            if where == "memory":
                self.ring.all.append(made)
            else:
                self.store.finished(made)
        self.store.flush()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("roles"))
    yield lab
    lab.store.close()


def allowed(lab: Lab, role: str, where: str, method: str, path: str, body: object = None) -> set[str]:
    """Return the runs for which a call of a role is answered; all others must be refused with 403 or 404."""
    answered = set()
    for name in RUNS:
        answer = lab.browsers[role].call(method, path.replace("ID", f"{role}-{where}-{name}"), body)
        assert answer.status in (200, 403, 404, 409), answer.data
        if answer.status in (200, 409):
            answered.add(name)
        elif name not in SEEN[role] and "save" not in path:
            assert answer.status == 404, "whoever may not see a run does not learn that it exists"
    return answered


@table(("role", "where"), [(role, where) for role in SEEN for where in ("memory", "disk")])
def test_facts_and_texts(lab: Lab, role: str, where: str) -> None:
    lab.fill(role, where)
    listed = lab.browsers[role].get("runs").json
    assert {line["id"].removeprefix(f"{role}-{where}-") for line in listed["runs"]} == SEEN[role]
    assert listed["total"] == len(SEEN[role])
    for line in listed["runs"]:
        name = line["id"].removeprefix(f"{role}-{where}-")
        # A private run on disk has no text without an encryption key.
        told = SAID if name in READ[role] and not (where == "disk" and RUNS[name][2]) else None
        assert line["question"] == line["answer"] == told, name
    assert allowed(lab, role, where, "GET", "runs/ID") == SEEN[role]
    for path in ("runs/ID", "runs/ID/texts/2", "runs/ID/export?texts=1"):
        for name in SEEN[role]:
            answer = lab.browsers[role].get(path.replace("ID", f"{role}-{where}-{name}"))
            kept = name in READ[role] and not (where == "disk" and RUNS[name][2])
            assert (SAID.encode() in answer.data) == kept, (path, name)


@table("role", [*SEEN])
def test_searching_finds_no_text_that_cannot_be_read(lab: Lab, role: str) -> None:
    lab.fill(role, "memory")
    for words in ("q=conversation", "q=conversation&all=1"):
        found = {
            line["id"].removeprefix(f"{role}-memory-") for line in lab.browsers[role].get(f"runs?{words}").json["runs"]
        }
        assert found == READ[role]


@table("role", [*SEEN])
def test_stop_and_export(lab: Lab, role: str) -> None:
    lab.fill(role, "memory")
    # 409: they have ended already.
    assert allowed(lab, role, "memory", "POST", "runs/ID/stop") == SEEN[role]
    assert allowed(lab, role, "memory", "GET", "runs/ID/export") == SEEN[role]


@table("role", [*SEEN])
def test_once_more_compare_and_tests(lab: Lab, role: str) -> None:
    lab.fill(role, "memory")
    # 409: the request of these runs was not recorded, so that there is nothing to repeat.
    for method, path, body in (
        ("GET", "runs/ID/replay", None),
        ("POST", "runs/ID/replay", {}),
        ("POST", "runs/ID/test", {"name": "x"}),
        ("POST", "runs/ID/test/run", {"name": "x"}),
        ("GET", "compare/ID/ID", None),
        ("GET", "again/choices?run=ID", None),
    ):
        assert allowed(lab, role, "memory", method, path, body) == SEEN[role], path
    # Without --console edit, nobody saves a test.
    assert allowed(lab, role, "memory", "POST", "runs/ID/test/save", {"name": "x"}) == set()


@table("role", [*SEEN])
def test_pin_note_and_delete(lab: Lab, role: str) -> None:
    lab.fill(role, "disk")
    assert allowed(lab, role, "disk", "PUT", "runs/ID", {"pinned": True, "note": "mine"}) == CHANGED[role]
    assert allowed(lab, role, "disk", "DELETE", "runs/ID") == CHANGED[role]
    left = {line["id"] for line in lab.archive.runs(RunQuery(), Viewer("operator")).runs}
    assert left == {f"{role}-disk-{name}" for name in EVERY - CHANGED[role]}


@table("role", [*SEEN])
def test_the_live_stream_shows_the_same_runs(lab: Lab, role: str) -> None:
    lab.fill(role, "memory")
    for document in lab.ring.all:
        document.touched = next(lab.ring.counter)
    events = lab.browsers[role].get("events?wait=0&after=0").json["events"]
    shown = {
        event["data"]["run"]["id"].removeprefix(f"{role}-memory-"): event["data"]["run"]["question"]
        for event in events
        if event["event"] == "run"
    }
    assert shown == {name: SAID if name in READ[role] else None for name in SEEN[role]}


# -- the rest of the table: by role alone ------------------------------------------------------------------------------

# The least role for each call; a call that is not here is one that nobody has thought of.
LEAST: dict[str, Role] = {
    "POST session": Role.ANONYMOUS,
    "POST session/proof": Role.ANONYMOUS,
    "GET session": Role.OWN,
    "DELETE session": Role.OWN,
    "GET sessions": Role.OPERATOR,
    "DELETE sessions/ID": Role.OPERATOR,
    "GET runs": Role.OWN,
    "GET runs/ID": Role.OWN,
    "PUT runs/ID": Role.OWN,
    "DELETE runs/ID": Role.OWN,
    "DELETE runs": Role.OPERATOR,
    "GET runs/ID/texts/SPAN": Role.OWN,
    "GET runs/ID/export": Role.OWN,
    "POST runs/ID/stop": Role.OWN,
    "GET runs/ID/replay": Role.OWN,
    "POST runs/ID/replay": Role.OWN,
    "GET again/choices": Role.OWN,
    "GET runs/ID/again/SPAN": Role.OWN,
    "POST runs/ID/again/SPAN": Role.OWN,
    "POST runs/ID/test": Role.OWN,
    "POST runs/ID/test/run": Role.OWN,
    "POST runs/ID/test/save": Role.OPERATOR,
    "GET compare/A/B": Role.OWN,
    "GET events": Role.OWN,
    "GET playground": Role.OWN,
    "POST playground": Role.OWN,
    "GET workflows": Role.ALL,
    "GET workflows/FOLDER/NAME": Role.ALL,
    "GET map": Role.ALL,
    "GET discussions": Role.OWN,
    "GET discussions/ID": Role.OWN,
    "DELETE discussions/ID": Role.OWN,
    "PUT discussions/ID/memories/KEY": Role.OWN,
    "DELETE discussions/ID/memories/KEY": Role.OWN,
    "GET discussions/ID/memories/KEY": Role.OWN,
    "GET discussions/ID/export": Role.OWN,
    "POST discussions/ID/rebuild": Role.OWN,
    "GET backends": Role.ALL,
    "POST backends/check": Role.OPERATOR,
    "GET config/files": Role.OPERATOR,
    "GET config/file": Role.OPERATOR,
    "GET config/history": Role.OPERATOR,
    "POST config/check": Role.OPERATOR,
    "POST config/assist": Role.OPERATOR,
    "POST config/check-all": Role.OPERATOR,
    "PUT config/file": Role.OPERATOR,
    "GET settings": Role.OPERATOR,
    "PUT settings": Role.OPERATOR,
}
# Those that change a file of the configuration.
SAVING = {"PUT config/file", "POST runs/ID/test/save"}


def test_every_call_has_its_least_role() -> None:
    routes = {f"{route.method} {route.path}": route for route in load_routes().all}
    assert {name: route.least for name, route in routes.items()} == {name: LEAST.get(name) for name in routes}
    assert {name for name, route in routes.items() if route.edit} == SAVING & set(routes)


@table("role", [*SEEN])
def test_a_role_may_not_call_what_needs_a_greater_one(lab: Lab, role: str) -> None:
    for route in load_routes().all:
        path = "/".join("1" if word.isupper() else word for word in route.path.split("/"))
        needs_more = route.least > Role[role.upper()]
        if needs_more or (route.edit and role == "operator"):
            answer = lab.browsers[role].call(route.method, path, {} if route.method in ("POST", "PUT") else None)
            assert answer.status == 403, (role, route.method, path)
