"""A folder of runs as an earlier version wrote it, kept as SQL: it is read, changed and written to."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from Middleware.addons.records.archive import RunArchive
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.addons.records.queries import RunQuery
from Middleware.addons.records.settings import RecordSettings
from Middleware.addons.records.store.writer import RunStore
from Middleware.addons.records.viewers import Viewer
from Middleware.utilities.encryption_utils import hash_api_key
from Tests.addons.records.records_lab import Ring, run, run_id

STORED = Path(__file__).with_name("stored_console")
KEY = "sk-0123456789abcdef"
OPERATOR = Viewer("operator")
VIEWERS = {"operator": OPERATOR, "own": Viewer("own", frozenset({hash_api_key(KEY)}), None, KEY)}
FIRST, WITH_CONFIG, PRIVATE, PINNED = map(run_id, (1, 2, 4, 6))


@pytest.fixture
def archive(tmp_path):
    folder = ConsoleFolder(str(tmp_path / "Console"))
    folder.made()
    for dump in STORED.glob("*.sql"):
        with contextlib.closing(sqlite3.connect(folder.file(f"{dump.stem}.db"))) as database:
            database.executescript(dump.read_text("utf-8"))
    store = RunStore(folder, Ring(), RecordSettings(folder, "texts"))
    yield RunArchive(Ring(), store), store
    store.close()


def shown(archive, viewer):
    documents = [archive.run(one["id"], viewer) for one in archive.runs(RunQuery(limit=50), viewer).runs]
    return [
        {
            "facts": document.facts,
            "spans": [span.as_row() for span in document.spans],
            "left out": [document.spans_left_out, document.text_bytes_left_out],
        }
        for document in documents
    ]


@pytest.mark.parametrize("role", VIEWERS)
def test_the_runs_are_shown_as_that_version_showed_them(archive, role):
    expected = json.loads((STORED / "runs.json").read_text("utf-8"))[role]
    assert json.loads(json.dumps(shown(archive[0], VIEWERS[role]))) == expected


def test_the_runs_are_searched_changed_and_added_to(archive):
    archive, store = archive
    before = {one["facts"]["id"]: one for one in shown(archive, VIEWERS["own"])}
    found = archive.runs(RunQuery(q="message 39 of a long", all_texts=True), OPERATOR)
    assert [one["id"] for one in found.runs] == [WITH_CONFIG]
    assert archive.config_body("ab" * 16) == '{"endpoint": "http://x"}'
    store.finished(run(id=run_id(9)))
    store.flush()
    archive.pin(PRIVATE, VIEWERS["own"], True)
    archive.delete(FIRST, OPERATOR)
    archive.pin(PINNED, OPERATOR, False)
    assert {one["id"] for one in archive.runs(RunQuery(), OPERATOR).runs} == {*map(run_id, (2, 3, 4, 5, 6, 9))}
    # The texts of the deleted run that others refer to are still there.
    assert archive.run(WITH_CONFIG, OPERATOR).span(4).texts == payload_of(WITH_CONFIG)
    assert archive.run(PRIVATE, VIEWERS["own"]).facts == {**before[PRIVATE]["facts"], "pinned": True}
    assert archive.run(PRIVATE, VIEWERS["own"]).span(3).texts == {"answer": "a private answer"}
    assert archive.run(PINNED, OPERATOR).span(4).texts == payload_of(PINNED)


def payload_of(name):
    """Return the texts of the request to the server in a run, as the earlier version showed them."""
    runs = json.loads((STORED / "runs.json").read_text("utf-8"))["operator"]
    return next(one["spans"][3][8] for one in runs if one["facts"]["id"] == name)
