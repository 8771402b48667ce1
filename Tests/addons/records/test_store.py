"""The store: what is on disk when, how it stays small, and what damage and full disks do to it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from Middleware.addons.records.archive import RunArchive
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.addons.records.queries import RunQuery
from Middleware.addons.records.settings import RecordSettings, StoredSettings
from Middleware.addons.records.store import disk, store_files, writer
from Middleware.addons.records.store.disk import DAY, Retention
from Middleware.addons.records.store.index import Reader
from Middleware.addons.records.store.writer import RunStore
from Middleware.addons.records.viewers import Viewer
from Middleware.exceptions import ClientError
from Middleware.utilities import config_utils, sqlite
from Middleware.utilities.encryption_utils import derive_encryption_key, hash_api_key
from Tests.addons.records.records_lab import Ring, ended, facts, message, run, run_id
from Tests.tables import table

ROOT = config_utils.get_project_root_directory_path()
OPERATOR = Viewer("operator")
KEY = "sk-0123456789abcdef"
SECRET_WORDS = "the duck is in the shed"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(writer, "GATHER_SECONDS", 0.01)


class Lab:
    """A store in a folder, which can be closed and opened again."""

    def __init__(self, path, mode="texts", ring=None, **settings):
        self.folder = ConsoleFolder(str(path))
        self.ring = ring or Ring()
        self.settings = RecordSettings(self.folder, mode)
        if settings:
            self.settings.change(settings)
        self.store = RunStore(self.folder, self.ring, self.settings)
        self.archive = RunArchive(self.ring, self.store)

    def record(self, *documents):
        for one in documents:
            self.store.finished(one)
        self.store.flush()

    def ids(self, **query):
        return [one["id"] for one in self.archive.runs(RunQuery(limit=200, **query), OPERATOR).runs]

    def files(self):
        return sorted(os.listdir(self.folder.path)) if os.path.exists(self.folder.path) else []

    def content(self):
        data = b""
        for place, _, names in os.walk(self.folder.path):
            for name in names:
                with open(os.path.join(place, name), "rb") as file:
                    data += file.read()
        return data

    def close(self):
        self.store.close()


@pytest.fixture
def lab(tmp_path):
    made = Lab(tmp_path / "Console")
    yield made
    made.close()


# -- what is on disk ---------------------------------------------------------------------------------------------------


def test_nothing_is_made_before_the_first_run(lab):
    assert lab.ids() == [] and lab.store.reader.used() == {"bytes": 0, "runs": 0, "oldest": None}
    assert not os.path.exists(lab.folder.path)


@pytest.mark.skipif(sys.platform == "win32", reason="permission bits")
def test_all_files_are_the_owners_alone(lab):
    lab.record(run())
    lab.folder.secret()
    lab.settings.change({"days": 3})
    assert stat.S_IMODE(os.stat(lab.folder.path).st_mode) == 0o700
    for name in lab.files():
        assert stat.S_IMODE(os.stat(lab.folder.file(name)).st_mode) == 0o600, name


def test_a_run_reads_as_it_was_written_after_a_restart(lab, tmp_path):
    one = run(
        origin={"run": run_id(7), "span": 3},
        conversation="0123456789abcdef",
        key_hash=hash_api_key(KEY),
        config=[{"path": "Endpoints/Main.json", "hash": "ab" * 16}],
    )
    one.config_texts = {"ab" * 16: '{"endpoint": "x"}'}
    one.spans_left_out, one.text_bytes_left_out = 3, 99
    lab.record(one)
    lab.close()
    again = Lab(tmp_path / "Console")
    found = again.archive.run(one.facts["id"], OPERATOR)
    assert {key: found.facts[key] for key in one.facts} == one.facts
    assert [span.as_row() for span in found.spans] == [span.as_row() for span in one.spans]
    assert (found.spans_left_out, found.text_bytes_left_out) == (3, 99)
    assert again.archive.config_body("ab" * 16) == '{"endpoint": "x"}'
    assert again.archive.config_body("nonsense") is None
    again.close()


@pytest.mark.parametrize("mode", ["facts", "texts and encryption", "redacted", "off"])
def test_no_text_of_a_conversation_reaches_the_disk_in_clear(tmp_path, mode):
    lab = Lab(tmp_path / "Console", mode.partition(" ")[0] if mode != "redacted" else "texts")
    private = mode in ("texts and encryption", "redacted")
    key = derive_encryption_key(KEY, "me") if mode == "texts and encryption" else None
    one = run(
        key,
        [message("user", SECRET_WORDS)],
        SECRET_WORDS,
        question=SECRET_WORDS,
        error=SECRET_WORDS,
        private=private,
        key_hash=hash_api_key(KEY),
    )
    for span in one.spans:
        span.texts["error"] = SECRET_WORDS
    lab.record(one)
    lab.store.flush()
    content = lab.content()
    # Compressed texts are not plain either, so no text is long enough to be compressed.
    assert SECRET_WORDS.encode() not in content
    assert ("seg-000001.db" in lab.files()) == (mode != "off")
    assert b'"server.port":8080' in content or mode == "off"
    owner = Viewer("own", frozenset({hash_api_key(KEY)}), None, KEY)
    found = lab.archive.run(one.facts["id"], owner)
    if mode == "texts and encryption":
        assert found.facts["question"] == SECRET_WORDS and found.spans[2].texts["answer"] == SECRET_WORDS
        assert lab.archive.runs(RunQuery(), owner).runs[0]["answer"] == SECRET_WORDS
        another = lab.archive.run(one.facts["id"], replace(owner, api_key="sk-another-key-0123"))
        assert another.facts["question"] is None and another.spans[2].texts == {}
    elif mode != "off":
        assert found.facts["question"] is None and found.spans[2].texts == {}
    lab.close()


def test_a_growing_conversation_costs_a_message_for_each_turn(lab):
    texts = [f"message {number} " + "of some length, as people write them. " * 20 for number in range(40)]
    for turns in range(1, 40):
        lab.record(run(messages=[message("user", text) for text in texts[:turns]], answer=texts[turns]))
    with contextlib.closing(sqlite3.connect(lab.folder.file("seg-000001.db"))) as database:
        assert database.execute("SELECT count(*) FROM text").fetchone()[0] < 3 * 40
    lab.close()
    assert os.path.getsize(lab.folder.file("seg-000001.db")) < 40 * 4096


def test_a_long_conversation_is_stored_by_what_is_new_of_it(lab):
    said = [
        message("user" if number % 2 else "assistant", f"message {number} with some words") for number in range(200)
    ]
    turns = []
    for turn in range(6):
        # Each turn is read anew, its system prompt has the time, and a window begins later after the third one.
        conversation = [message("system", f"it is {turn} o'clock"), *(dict(one) for one in said)]
        turns.append(run(messages=conversation[5 if turn > 3 else 0 :]))
        lab.record(turns[-1])
        said += [message("assistant", f"answer {turn} is longer"), message("user", f"question {turn} is longer, too")]
    with contextlib.closing(sqlite3.connect(lab.folder.file("seg-000001.db"))) as database:
        assert database.execute("SELECT count(*) FROM text").fetchone()[0] < 235
        assert database.execute("SELECT max(length(body)) FROM tree").fetchone()[0] < 900
    lab.archive.pin(turns[2].facts["id"], OPERATOR, True)
    lab.archive.delete(turns[1].facts["id"], OPERATOR)
    for turn, one in enumerate(turns):
        if turn != 1:
            texts = lab.archive.texts(one.facts["id"], 4, OPERATOR)
            assert texts["payload"] == one.spans[3].texts["payload"]


def test_long_texts_are_found_by_a_search_that_goes_on_where_it_stopped(lab, monkeypatch):
    all_runs = [
        run(messages=[message("user", f'{"x" * 5000} needle{number % 3} "quoted"')], started=number)
        for number in range(1, 31)
    ]
    lab.record(*all_runs)
    assert lab.ids(q="needle1") == []
    expected = [one.facts["id"] for one in reversed(all_runs) if one.facts["started"] % 3 == 1]
    assert lab.ids(q='NEEDLE1 "quoted"', all_texts=True) == expected
    monkeypatch.setattr("Middleware.addons.records.archive.SEARCH_SECONDS", 0.0)
    found, before, searched = [], None, 0
    while True:
        page = lab.archive.runs(RunQuery(q="needle1", all_texts=True, before=before), OPERATOR)
        found += [one["id"] for one in page.runs]
        assert page.searched == searched + 1 and page.total == 30
        searched = page.searched
        if page.next is None:
            break
        before = RunQuery.parse({"before": page.next}).before
    assert found == expected


# -- runs at work ------------------------------------------------------------------------------------------------------


def test_a_long_run_is_written_before_its_end_and_interrupted_by_a_crash(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "LONG_SECONDS", 0.1)
    at_work = run(status="running", started=int((time.time() - 5) * 1e6), ended=None)
    lab = Lab(tmp_path / "Console", ring=Ring(at_work))
    lab.store.began()
    assert eventually(lambda: lab.store.reader.one(at_work.facts["id"]) is not None)
    assert lab.store.reader.one(at_work.facts["id"]).facts["status"] == "running"
    # Another process sees that its writer lives.
    other = Lab(tmp_path / "Console")
    assert other.archive.run(at_work.facts["id"], OPERATOR).facts["status"] == "running"
    other.close()
    # The end replaces it; there is one row.
    lab.ring.all = []
    lab.record(ended(at_work, status="ok"))
    assert lab.archive.run(at_work.facts["id"], OPERATOR).facts["status"] == "ok"
    assert lab.store.reader.used()["runs"] == 1
    lab.close()


def test_runs_at_work_are_interrupted_at_an_orderly_end(tmp_path):
    at_work = run(status="answered", ended=None)
    lab = Lab(tmp_path / "Console", ring=Ring(at_work))
    lab.record(run())
    lab.close()
    again = Lab(tmp_path / "Console")
    assert again.archive.run(at_work.facts["id"], OPERATOR).facts["status"] == "interrupted"
    again.close()


WRITER = """
import sys, time
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.addons.records.settings import RecordSettings
from Middleware.addons.records.store.writer import RunStore
from Tests.addons.records.records_lab import Ring, message, run

ring, folder = Ring(), ConsoleFolder(sys.argv[1])
store = RunStore(folder, ring, RecordSettings(folder, "texts"))
at_work = run(status="running", started=int((time.time() - 60) * 1e6), ended=None)
ring.all.append(at_work)
store.began()
print(at_work.facts["id"], flush=True)
number = int(sys.argv[2])
while True:
    number += 1
    one = run(id=f"{sys.argv[3]}-{number:06}", messages=[message("user", f"{number} {'y' * 3000}")])
    at = time.time()
    store.finished(one)
    print(one.facts["id"], at, flush=True)
    time.sleep(0.002)
"""


def started_writer(path, name, first=0):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(first), name], cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8"
    )


def test_a_killed_server_keeps_what_ended_a_second_before(tmp_path):
    path = tmp_path / "Console"
    for attempt in range(4):
        child = started_writer(path, f"k{attempt}")
        at_work = child.stdout.readline().split()[0]
        lines = [child.stdout.readline().split() for _ in range(200 + 97 * attempt)]
        # What is not read would stop the child; the moment of the kill is as good as random.
        child.kill()
        killed = time.time()
        lines += [line.split() for line in child.stdout.read().splitlines()]
        child.wait()
        child.stdout.close()
        lab = Lab(path)
        if at_work in lab.ids():
            assert lab.archive.run(at_work, OPERATOR).facts["status"] == "interrupted"
        for name, at in (line for line in lines if len(line) == 2):
            if float(at) < killed - 2:
                found = lab.archive.run(name, OPERATOR)
                assert found is not None and len(found.spans) == 4 and found.spans[3].texts["payload"], name
        lab.record(run())
        lab.close()


def test_two_processes_write_to_one_folder(tmp_path):
    path = tmp_path / "Console"
    children = [started_writer(path, name) for name in ("a", "b")]
    names = []
    for child in children:
        child.stdout.readline()
        names += [child.stdout.readline().split()[0] for _ in range(100)]
    lab = Lab(path)
    lab.record(run())
    assert eventually(lambda: all(lab.store.reader.one(name) for name in names))
    assert len({lab.store.reader.one(name).segment for name in names}) == 2
    assert all(lab.archive.run(name, OPERATOR).spans for name in names)
    # Nobody removes what another process writes to.
    lab.settings.change({"runs": 100})
    with lab.store.index() as database:
        Retention(lab.folder.path, database).apply(StoredSettings(runs=1), time.time())
    for child in children:
        child.kill()
        child.wait()
        child.stdout.close()
    assert {"seg-000001.db", "seg-000002.db"} <= set(lab.files())
    lab.close()


def test_a_file_is_opened_although_another_process_holds_it_for_a_while(tmp_path):
    path = str(tmp_path / "index.db")
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    # Longer than SQLite itself waits.
    end = threading.Timer(3 * sqlite.SLICE_SECONDS, other.close)
    end.start()
    store_files.open_index(path).close()
    end.join()


def test_an_index_without_tables_is_one_that_is_being_created(tmp_path, caplog):
    suspected = []
    (tmp_path / "index.db").touch()
    reader = Reader(str(tmp_path), lambda: suspected.append(True))
    assert reader.used()["runs"] == 0 and reader.one("none") is None
    assert not suspected and not caplog.records


# -- retention ---------------------------------------------------------------------------------------------------------


def apply_retention(lab, keep, now=None):
    lab.store.flush()
    with lab.store._guard:
        lab.store._disk._close_segment()
        Retention(lab.folder.path, lab.store._disk.open()).apply(keep, now)


def test_runs_that_are_too_old_or_too_many_go_with_their_files(lab):
    now = time.time()
    by_age = {days: run(started=int((now - days * DAY) * 1e6)) for days in (20, 15, 13, 1, 0)}
    for one in by_age.values():
        lab.record(one)
        lab.store._disk._close_segment()
    pinned = run(started=int((now - 30 * DAY) * 1e6))
    lab.record(pinned)
    lab.archive.pin(pinned.facts["id"], OPERATOR, True)
    os.utime(lab.folder.file("seg-000006.db"), (now - 3600, now - 3600))
    apply_retention(lab, StoredSettings(days=14), now)
    left = [by_age[days].facts["id"] for days in (0, 1, 13)]
    assert lab.ids() == [*left, pinned.facts["id"]]
    assert [name for name in lab.files() if name.startswith("seg") and name.endswith(".db")] == [
        "seg-000003.db",
        "seg-000004.db",
        "seg-000005.db",
    ]
    assert lab.archive.run(pinned.facts["id"], OPERATOR).spans[2].texts == {"answer": "Late."}
    apply_retention(lab, StoredSettings(runs=2), now)
    assert lab.ids() == [*left[:2], pinned.facts["id"]]
    lab.archive.pin(pinned.facts["id"], OPERATOR, False)
    apply_retention(lab, StoredSettings(days=14), now)
    assert lab.ids() == left[:2]
    with open(lab.folder.file("pinned.db"), "rb") as file:
        assert b"Late" not in file.read()


def test_the_folder_keeps_to_its_megabytes_and_the_log_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "SEGMENT_BYTES", 1024 * 1024)
    lab = Lab(tmp_path / "Console", megabytes=16)
    largest = 0
    for _ in range(40):
        lab.record(*(run(messages=[message("user", os.urandom(150_000).hex())]) for _ in range(4)))
        sizes = {
            name: os.path.getsize(lab.folder.file(name))
            for name in lab.files()
            if os.path.exists(lab.folder.file(name))
        }
        largest = max(largest, max((size for name, size in sizes.items() if name.endswith("-wal")), default=0))
        assert sum(sizes.values()) < 20 * 1024 * 1024, sizes
    assert largest < 8 * 1024 * 1024
    known = lab.ids()
    assert 0 < len(known) < 240
    assert all(lab.archive.run(one, OPERATOR).spans for one in known)
    lab.close()


def test_short_trees_are_compressed_when_the_server_is_idle(lab, monkeypatch):
    monkeypatch.setattr(writer, "IDLE_SECONDS", 0.05)
    for number in range(5):
        one = run(question=str(number))
        one.spans[1].attributes["node.title"] = "a title " * 60
        lab.record(one)

    def coded():
        with contextlib.closing(sqlite3.connect(lab.folder.file("seg-000001.db"))) as database:
            return {row[0] for row in database.execute("SELECT coding FROM tree")}

    assert eventually(lambda: coded() == {1})
    assert lab.archive.run(lab.ids()[0], OPERATOR).spans[2].texts == {"answer": "Late."}


# -- deleting ----------------------------------------------------------------------------------------------------------


def test_a_deleted_run_leaves_nothing_but_what_others_share(lab):
    shared, own = "everybody says this, in a sentence that is long enough " * 3, "nobody else says " + SECRET_WORDS * 5
    first = run(messages=[message("user", shared), message("user", own)], question=SECRET_WORDS)
    second = run(messages=[message("user", shared)], discussion="mill")
    lab.record(first, second)
    assert SECRET_WORDS.encode() in lab.content()
    lab.archive.delete(first.facts["id"], OPERATOR)
    assert SECRET_WORDS.encode() not in lab.content()
    assert lab.archive.texts(second.facts["id"], 4, OPERATOR)["payload"]["messages"][0]["content"] == shared
    with pytest.raises(ClientError) as raised:
        lab.archive.delete(first.facts["id"], OPERATOR)
    assert raised.value.status == 404
    # What was removed is written anew, not referred to.
    third = run(messages=[message("user", own)])
    lab.record(third)
    assert lab.archive.texts(third.facts["id"], 4, OPERATOR)["payload"]["messages"][0]["content"] == own
    assert lab.archive.delete_discussion("mill", OPERATOR) == 1
    assert lab.ids() == [third.facts["id"]]


def test_all_runs_of_a_viewer_are_deleted(lab):
    mine = Viewer("own", frozenset({hash_api_key(KEY)}), None, KEY)
    own, others = run(key_hash=hash_api_key(KEY)), run()
    lab.record(own, others)
    assert lab.archive.delete_all(mine) == 1
    assert lab.ids() == [others.facts["id"]]
    lab.archive.pin(others.facts["id"], OPERATOR, True)
    at_work = run(status="running")
    lab.ring.all.append(at_work)
    assert lab.archive.delete_all(OPERATOR) == 1
    assert lab.ids() == [at_work.facts["id"]]
    assert not [name for name in lab.files() if name.startswith(("seg-", "pinned")) and name.endswith(".db")]
    with pytest.raises(ClientError) as raised:
        lab.archive.delete(at_work.facts["id"], OPERATOR)
    assert raised.value.status == 409


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_damaged_segment_is_skipped_with_one_line(lab, caplog):
    first, second = run(), run()
    lab.record(first)
    lab.store._disk._close_segment()
    lab.record(second)
    with open(lab.folder.file("seg-000001.db"), "r+b") as file:
        file.write(b"\0" * 5000)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            found = lab.archive.run(first.facts["id"], OPERATOR)
            assert found.spans == [] and found.facts["texts"] == "none"
            assert lab.ids(q="late", all_texts=True) == [second.facts["id"], first.facts["id"]]
    assert len([record for record in caplog.records if "seg-000001.db" in record.getMessage()]) == 1


DAMAGE = (
    ("run", "origin", "{"),
    ("run", "endpoints", '["Main'),
    ("run", "endpoints", "5"),
    ("run", "endpoints", b"\0"),
    ("run", "started", "x"),
    ("run", "conversation", 5),
    ("run", "question", b"\xff"),
    ("run", "id", b"\xff"),
    ("tree", "body", 5),
    ("tree", "body", b'{"v":1,"sqans":[]}'),
    ("tree", "body", b'{"v":1,"spans":[[1]]}'),
    ("tree", "body", b'{"v":1,"spans":5}'),
    ("tree", "coding", 9),
)


@pytest.mark.parametrize(("table", "column", "value"), DAMAGE)
def test_a_damaged_row_is_left_out_and_all_others_are_shown(tmp_path, table, column, value, caplog):
    """SQLite keeps no checksums, so a bit that the disk has lost can be in any value."""
    lab = Lab(tmp_path / "Console")
    first, second = run(), run()
    lab.record(first, second)
    lab.close()
    with contextlib.closing(
        sqlite3.connect(lab.folder.file("index.db" if table == "run" else "seg-000001.db"))
    ) as file:
        file.execute(f"UPDATE {table} SET {column} = ? WHERE n = (SELECT min(n) FROM {table})", (value,))
        file.commit()
    again = Lab(tmp_path / "Console")
    known = {first.facts["id"], second.facts["id"]} if table == "tree" else {second.facts["id"]}
    for _ in range(3):
        assert set(again.ids()) == known
        assert second.facts["id"] in again.ids(q="late", all_texts=True)
        assert again.archive.choices(OPERATOR)["endpoint"]
        found = again.archive.run(first.facts["id"], OPERATOR)
        assert (found is None) if table == "run" else (found.spans == [])
        assert again.archive.run(second.facts["id"], OPERATOR).spans
    assert len([record for record in caplog.records if "cannot be read" in record.getMessage()]) == 1
    again.close()


@pytest.mark.parametrize("damage", ["zeros", "text", "version"])
def test_a_damaged_index_is_set_aside_and_a_new_one_begun(tmp_path, damage, caplog):
    lab = Lab(tmp_path / "Console")
    lab.record(run())
    lab.close()
    path = lab.folder.file("index.db")
    if damage == "version":
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA user_version = 99")
    else:
        with open(path, "r+b") as file:
            file.write(b"\0" * 20_000 if damage == "zeros" else b"nothing like a database" * 500)
    again = Lab(tmp_path / "Console")
    one = run()
    again.record(one)
    assert again.ids() == [one.facts["id"]]
    assert f"index.db.{'old' if damage == 'version' else 'damaged'}" in again.files()
    # The number of the first segment is not given again.
    assert again.store.reader.one(one.facts["id"]).segment == 2
    again.archive.delete_all(OPERATOR)
    assert not [name for name in again.files() if "damaged" in name or "old" in name]
    again.close()


def test_a_text_that_is_damaged_is_shown_as_far_as_it_can_be_read(lab):
    lab.record(run())
    lab.store._disk._index.execute("UPDATE run SET question = CAST(X'61FF62' AS TEXT), workflow = CAST(X'FF' AS TEXT)")
    [shown] = lab.archive.runs(RunQuery(), OPERATOR).runs
    assert (shown["question"], shown["workflow"]) == ("a\ufffdb", "\ufffd")
    assert lab.archive.choices(OPERATOR)["workflow"] == ["\ufffd"]


def test_an_index_whose_schema_is_not_text_is_set_aside(tmp_path):
    lab = Lab(tmp_path / "Console")
    lab.record(run())
    lab.close()
    path = pathlib.Path(lab.folder.file("index.db"))
    data = path.read_bytes()
    assert b"tablerunrun" in data
    # SQLite quotes the name in its message.
    path.write_bytes(
        data.replace(b"tablerunrun", b"table\xd5\xffnrun").replace(b"CREATE TABLE run", b"CREATZ TABLE run")
    )
    again = Lab(tmp_path / "Console")
    assert again.ids() == []
    one = run()
    again.record(one)
    assert again.ids() == [one.facts["id"]] and "index.db.damaged" in again.files()
    again.close()


def test_an_index_that_is_damaged_at_work_is_replaced(lab):
    lab.record(run())
    with lab.store._guard:
        store_files.truncate_log(lab.store._disk._index)
    with open(lab.folder.file("index.db"), "r+b") as file:
        file.write(b"\0" * 50_000)
    lab.record(run())
    assert lab.ids() == []
    one = run()
    lab.record(one)
    assert lab.ids() == [one.facts["id"]]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps files in their place while they are open")
def test_a_deleted_folder_costs_what_was_in_it(lab):
    lab.record(run())
    for name in lab.files():
        os.unlink(lab.folder.file(name))
    os.rmdir(lab.folder.path)
    one = run()
    lab.record(one)
    assert lab.ids() == [one.facts["id"]]
    assert lab.archive.run(one.facts["id"], OPERATOR).spans


def test_a_folder_that_cannot_be_written_is_told_once_and_tried_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.2)
    # A file in the place of the folder fails for every user, root too.
    (tmp_path / "Console").write_text("in the way", "utf-8")
    lab = Lab(tmp_path / "Console")
    all_runs = [run() for _ in range(20)]
    with caplog.at_level(logging.INFO):
        for one in all_runs:
            lab.record(one)
            time.sleep(0.03)
        assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
        os.unlink(tmp_path / "Console")
        assert eventually(lambda: lab.store.reader.used()["runs"] == 20)
    assert lab.store.dropped() == {"texts": 0, "runs": 0}
    assert "again" in caplog.records[-1].getMessage()
    lab.close()


def test_a_file_that_another_process_locks_is_tried_again_soon(lab, monkeypatch, caplog):
    monkeypatch.setattr("Middleware.utilities.sqlite.BUSY_SECONDS", 0.1)
    lab.record(run())
    with contextlib.closing(sqlite3.connect(lab.folder.file("index.db"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        late = run()
        lab.store.finished(late)
        assert eventually(lambda: lab.store._try_at > 0)
        other.execute("ROLLBACK")
    # Far below the 30 seconds of a disk that fails.
    assert eventually(lambda: lab.store.reader.one(late.facts["id"]), 15)
    assert "not written" not in caplog.text


class Unwritable:
    """A value that is not JSON."""


@table(
    "bad",
    [
        {"usage_input_tokens": 10**23},
        {"usage_output_tokens": -(2**70)},
        {"workflow": ["a", "list"]},
        {"discussion": {"an": "object"}},
        {"endpoints": [Unwritable()]},
        {"conversation": "no hexadecimal digits"},
        {"answer": Unwritable()},
        {"id": None},
    ],
)
def test_a_run_that_cannot_be_written_costs_no_other_one(tmp_path, bad, caplog):
    caplog.set_level(logging.INFO)
    lab = Lab(tmp_path / "Console")
    good = [run() for _ in range(3)]
    wrong = run()
    wrong.facts.update(facts(**bad) | {"id": bad.get("id", wrong.facts["id"])})
    lab.record(good[0], wrong, good[1], replace(run(), spans=[wrong]), good[2])
    assert {one.facts["id"] for one in good} <= set(lab.ids())
    assert lab.store.dropped() == {"texts": 0, "runs": 2} and caplog.text.count("A run could not be recorded") == 2
    # Nothing waits, and what comes next is written at once.
    after = run()
    lab.record(after)
    assert after.facts["id"] in lab.ids() and "Runs are not written" not in caplog.text
    lab.close()


def test_what_waits_for_the_disk_is_limited(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(writer, "MOST_WAITING", 5)
    monkeypatch.setattr(writer, "MOST_WAITING_BYTES", 10_000)
    monkeypatch.setattr(writer, "RETRY_SECONDS", 1.0)
    (tmp_path / "Console").write_text("in the way", "utf-8")
    lab = Lab(tmp_path / "Console")
    all_runs = [run(messages=[message("user", "z" * 6000)]) for _ in range(8)]
    for one in all_runs:
        lab.record(one)
    assert lab.store.dropped() == {"texts": 7, "runs": 3}
    assert len([record for record in caplog.records if "More runs wait" in record.getMessage()]) == 1
    os.unlink(tmp_path / "Console")
    assert eventually(lambda: lab.store.reader.used()["runs"] == 5)
    texts = [lab.archive.run(one.facts["id"], OPERATOR).facts["texts"] for one in all_runs[3:]]
    assert texts == ["none"] * 4 + ["kept"]
    lab.close()


def test_what_waits_for_the_disk_without_its_texts_does_not_keep_them_in_memory(tmp_path, monkeypatch):
    (tmp_path / "Console").write_text("in the way", "utf-8")
    lab = Lab(tmp_path / "Console", mode="facts")
    taken = []
    monkeypatch.setattr(
        lab.store,
        "_limit",
        lambda limit=lab.store._limit: (
            limit(),
            taken.append([span.texts for document in lab.store._waiting for span in document.spans]),
        ),
    )
    lab.record(run(messages=[message("user", "z" * 6000)]))
    assert taken and taken[-1] == [{}] * 4 and lab.store.dropped() == {"texts": 0, "runs": 0}
    lab.close()


FULL_DISK = """
import resource, signal, sys, time
from Middleware.addons.records.store import writer
from Tests.addons.records.test_store import Lab, OPERATOR
from Tests.addons.records.records_lab import message, run
import os

writer.RETRY_SECONDS, writer.GATHER_SECONDS = 0.2, 0.01
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
lab = Lab(sys.argv[1])
lab.record(run())
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
for _ in range(10):
    lab.record(run(messages=[message("user", os.urandom(60_000).hex())]))
stuck = lab.store.reader.used()["runs"]
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
end = time.monotonic() + 60
while lab.store.reader.used()["runs"] < 11 and time.monotonic() < end:
    time.sleep(0.1)
sound = all(lab.archive.run(one, OPERATOR).spans for one in lab.ids())
print(stuck < 11, lab.store.reader.used()["runs"], sound)
lab.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits of file sizes")
def test_a_full_disk_is_told_once_and_recovers_by_itself(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "Console")],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "11", "True"]
    assert done.stderr.count("Runs are not written") == 1


# -- settings ----------------------------------------------------------------------------------------------------------


def test_settings_that_are_changed_at_once_are_all_kept(lab: Lab) -> None:
    settings = RecordSettings(lab.folder)
    changes: list[dict[str, object]] = [{"record": "texts"}, {"days": 3}, {"megabytes": 99}, {"runs": 500}]
    for _ in range(20):
        settings.change({"record": "facts", "days": 14, "megabytes": 1024, "runs": 20_000})
        with ThreadPoolExecutor(len(changes)) as threads:
            list(threads.map(settings.change, changes))
        assert RecordSettings(lab.folder).current() == StoredSettings("texts", 3, 99, 500)
        # Each as in a process of its own.
        settings.change({"record": "facts", "days": 14, "megabytes": 1024, "runs": 20_000})
        with ThreadPoolExecutor(len(changes)) as threads:
            list(threads.map(lambda change: RecordSettings(lab.folder).change(change), changes))
        assert RecordSettings(lab.folder).current() == StoredSettings("texts", 3, 99, 500)


def test_settings_are_read_again_and_wrong_ones_are_told(lab, caplog, monkeypatch):
    monkeypatch.setattr("Middleware.addons.records.settings.RECHECK_SECONDS", 0.0)
    settings = RecordSettings(lab.folder)
    assert settings.values() == {"record": "facts", "days": 14, "megabytes": 1024, "runs": 20_000, "decided": {}}
    assert settings.change({"record": "texts", "days": 7})["record"] == "texts"
    assert RecordSettings(lab.folder).mode() == "texts"
    assert RecordSettings(lab.folder, "off").values() == {
        "record": "off",
        "days": 7,
        "megabytes": 1024,
        "runs": 20_000,
        "decided": {"record": "--record off"},
    }
    for wrong, told in (
        ({"days": 0}, "from 1 to 3650"),
        ({"days": True}, "whole number"),
        ({"day": 1}, "'days'"),
        ({"record": "all"}, "off, facts, texts"),
        ({"megabytes": "9"}, "whole number"),
    ):
        with pytest.raises(ClientError, match=told):
            settings.change(wrong)
    with pytest.raises(ClientError, match="--record facts"):
        RecordSettings(lab.folder, "facts").change({"record": "texts"})
    with open(lab.folder.file("settings.json"), "w", encoding="utf-8") as file:
        json.dump({"record": "sometimes"}, file)
    assert settings.mode() == "texts" and len(caplog.records) == 1


def eventually(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False
