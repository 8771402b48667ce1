"""Memories in real SQLite files: writing, reading, the log of processed messages, vectors."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import DataKeyError, EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities import sqlite
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher
from Middleware.utilities.vector_math_utils import vector_to_blob
from Tests.patience import CLIENT_PATIENCE, PATIENCE
from Tests.utilities.discussions.vector_memory.lab import (
    CIPHER,
    OTHER,
    item,
    log_hashes,
    metadata,
    old_database,
    opened,
    texts,
)

INSTALL = Path(__file__).resolve().parents[4]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vector_memory.db"


@pytest.fixture(params=[NO_CIPHER, CIPHER], ids=["clear", "encrypted"])
def cipher(request: pytest.FixtureRequest) -> Cipher:
    return request.param


def test_reading_a_missing_database_creates_nothing(path: Path, cipher: Cipher) -> None:
    with opened(path, cipher, write=False) as memories:
        assert not memories.exists
        assert log_hashes(memories) == memories.keyword_search("a") == memories.by_ids([1]) == []
        assert memories.embeddings("m") == memories.without_embeddings("m") == memories.nearest([1.0], "m", 5) == []
        assert list(memories.all_memories()) == []
        assert memories.counts() == {"memories": 0, "embeddings": 0, "hashes": 0}
        with pytest.raises(sqlite3.Error):
            memories.log_hash("h")
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no database"])
def test_reading_changes_no_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    if content:
        with pytest.raises(sqlite3.DatabaseError):
            opened(path, write=False)
    else:
        with opened(path, write=False) as memories:
            assert memories.keyword_search("a") == []
    assert path.read_bytes() == content


def test_the_tables_are_those_of_old_installations_and_one_more(path: Path) -> None:
    with opened(path):
        pass
    with closing(sqlite3.connect(path)) as database:
        columns = {
            table: [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            for table in ("memories", "memories_fts", "vector_memory_hash_log", "memory_embeddings")
        }
    assert columns == {
        "memories": ["id", "discussion_id", "memory_text", "date_added", "metadata_json"],
        "memories_fts": ["title", "summary", "entities", "key_phrases", "memory_text_unweighted"],
        "vector_memory_hash_log": ["id", "discussion_id", "message_hash", "timestamp"],
        "memory_embeddings": ["memory_id", "model", "dim", "vector"],
    }


def test_a_chunk_is_stored_whole(path: Path, cipher: Cipher) -> None:
    with opened(path, cipher) as memories:
        assert memories.store_chunk([item("Mara hid the ledger"), item("The mill burned")], "h1") == [1, 2]
        assert log_hashes(memories) == ["h1"]
        row = memories.by_ids([1])[0]
    assert (row["discussion_id"], row["memory_text"]) == ("chat", "Mara hid the ledger")
    assert row["metadata_json"] == metadata("Mara hid the ledger")
    assert row["date_added"].endswith("+00:00")
    with opened(path, cipher, write=False) as memories:
        assert texts(memories.keyword_search("ledger")) == ["Mara hid the ledger"]
        assert texts(list(memories.all_memories())) == ["Mara hid the ledger", "The mill burned"]


@pytest.mark.parametrize("bad", ["{", "[]", "null", "1", "", "[" * 100_000])
def test_metadata_that_is_no_object_stores_nothing(path: Path, bad: str) -> None:
    with opened(path) as memories:
        with pytest.raises(ValueError):
            memories.store_chunk([item("a"), ("b", bad)], "h")
        assert memories.counts() == {"memories": 0, "embeddings": 0, "hashes": 0}


def test_a_failure_in_the_middle_stores_nothing(path: Path, cipher: Cipher) -> None:
    with opened(path, cipher) as memories:
        memories._db.execute(
            "CREATE TRIGGER no BEFORE INSERT ON vector_memory_hash_log BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        with pytest.raises(sqlite3.Error, match="full"):
            memories.store_chunk([item("lost")], "h")
        assert memories.counts()["memories"] == 0 and memories.keyword_search("lost") == []
        memories._db.execute("DROP TRIGGER no")
        assert memories.store_chunk([item("kept")], "h") == [1]


def test_a_killed_process_neither_loses_nor_doubles_a_chunk(path: Path) -> None:
    script = (
        "import os\nfrom Tests.utilities.discussions.vector_memory.lab import *\n"
        f"m = opened(Path({str(path)!r}))\n"
        "m.store_chunk([item('one')], 'h1')\nm._insert_hash = lambda *h: os._exit(9)\n"
        "m.store_chunk([item('two')], 'h2')"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=INSTALL, check=False).returncode == 9
    with opened(path) as memories:
        assert texts(list(memories.all_memories())) == ["one"] and log_hashes(memories) == ["h1"]


WILD: list[dict[str, Any]] = [
    {"title": 5, "summary": None, "entities": None, "key_phrases": None},
    {"title": ["x"], "summary": {"a": [1, {"b": "deepword"}]}, "entities": [1, None, ["deepword"], True]},
    {"title": "\ud800", "summary": "a\0b", "entities": "deepword", "key_phrases": {"k": "v"}},
    {"title": "x" * 1_000_000, "entities": ["y" * 1_000_000] * 3, "topics": 7},
    {},
]


@pytest.mark.parametrize("fields", WILD, ids=range(len(WILD)))
def test_metadata_may_hold_anything(path: Path, cipher: Cipher, fields: dict[str, Any]) -> None:
    text = json.dumps(fields)
    with opened(path, cipher) as memories:
        assert memories.store_chunk([("plain words \ud83d \0 end", text)], "h", True) == [1]
        assert memories.by_ids([1])[0]["metadata_json"] == text
        assert len(memories.keyword_search("plain words")) == 1
        assert len(memories.keyword_search("deepword")) == ("deepword" in text)


def test_only_so_much_of_a_text_is_indexed(path: Path) -> None:
    with opened(path) as memories:
        memories.store_chunk([("m", metadata("s", title="word " * 100_000))], None)
        sizes = memories._db.execute("SELECT length(title) FROM memories_fts").fetchone()
        assert sizes[0] == 100_000


@pytest.mark.parametrize(("asked", "expected"), [(10, ["b", "d", "c", "a"]), (2, ["b", "d"]), (0, []), (-1, [])])
def test_the_log_is_read_newest_first(path: Path, asked: int, expected: list[str]) -> None:
    with opened(path) as memories:
        for message_hash, time_stamp in [
            ("a", "2025-01-01"),
            ("b", "2025-03-01"),
            ("c", "2025-02-01"),
            ("d", "2025-02-01"),
        ]:
            memories.log_hash(message_hash)
            memories._db.execute(
                "UPDATE vector_memory_hash_log SET timestamp = ? WHERE message_hash = ?", (time_stamp, message_hash)
            )
        assert log_hashes(memories, asked) == expected


def test_the_log_grows_in_order_whatever_the_clock_says(path: Path) -> None:
    with opened(path) as memories:
        memories.log_hash("a")
        (stamp,) = memories._db.execute("SELECT timestamp FROM vector_memory_hash_log").fetchone()
        assert stamp <= datetime.now(UTC).isoformat()
        memories._db.execute("UPDATE vector_memory_hash_log SET timestamp = '2999-01-01T00:00:00+00:00'")
        memories.log_hash("b")
        memories.store_chunk([item("the mill")], "c")
        assert log_hashes(memories) == ["c", "b", "a"]


# -- old and foreign databases ------------------------------------------------------------------------------------


def changed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
        database.commit()


def test_an_old_database_is_read(path: Path) -> None:
    old_database(path, "the old mill")
    before = path.read_bytes()
    with opened(path, write=False) as memories:
        assert texts(memories.keyword_search("mill")) == ["the old mill"] == texts(memories.without_embeddings("m"))
        assert log_hashes(memories) == ["old"] and memories.embeddings("m") == []
        assert memories.nearest([1.0], "m", 3) == []
        assert memories.counts() == {"memories": 1, "embeddings": 0, "hashes": 1}
    assert path.read_bytes() == before


def test_an_old_database_is_written(path: Path) -> None:
    old_database(path, "the old mill")
    with opened(path) as memories:
        assert memories.store_chunk([item("the new mill")], "new") == [2]
        assert memories.add_embeddings([(1, vector_to_blob([1.0]))], "m") == 1
        assert len(memories.keyword_search("mill")) == 2 and log_hashes(memories) == ["new", "old"]


def test_a_missing_index_hides_nothing_and_is_made_with_the_next_write(path: Path, cipher: Cipher) -> None:
    old_database(path, "the old mill")
    changed(path, "DROP TABLE memories_fts")
    with opened(path, cipher, write=False) as memories:
        assert texts(memories.keyword_search("mill")) == ["the old mill"]
    with opened(path, cipher) as memories:
        memories.store_chunk([item("the new mill")], None)
        assert sorted(texts(memories.keyword_search("mill"))) == ["the new mill", "the old mill"]


def test_the_id_of_a_memory_that_somebody_deleted_is_free(path: Path, cipher: Cipher) -> None:
    """What the file still has of it must neither stand in the way of the next memory nor pass for its own."""
    with opened(path, cipher) as memories:
        memories.store_chunk([item("the mill"), item("a wrong ledger", topics=["zoo"])], None, index_topics=True)
        memories.add_embeddings([(2, vector_to_blob([1.0]))], "m")
        memories._db.execute("DELETE FROM memories WHERE id = 2")
        assert memories.store_chunk([item("the inspector", topics=["zoo"])], "h") == [2]
        assert memories.keyword_search("ledger") == memories.keyword_search("zoo") == []
        assert texts(memories.keyword_search("inspector")) == ["the inspector"]
        assert texts(memories.without_embeddings("m")) == ["the mill", "the inspector"]


def test_deleted_memories_take_no_places_in_a_result(path: Path, cipher: Cipher) -> None:
    with opened(path, cipher) as memories:
        memories.store_chunk([item("mill mill mill"), item("mill mill"), item("the mill of Tobias"), item("-")], None)
        memories.add_embeddings([(number, vector_to_blob([1.0, float(number)])) for number in (1, 2, 3)], "m")
        memories._db.execute("DELETE FROM memories WHERE id < 3")
        assert texts(memories.keyword_search("mill", 1)) == ["the mill of Tobias"]
        assert memories.nearest([1.0, 0.0], "m", 1) == [3]
        assert [number for number, _ in memories.embeddings("m")] == [1, 2, 3]


def test_more_columns_do_no_harm(path: Path, cipher: Cipher) -> None:
    old_database(path, "the old mill")
    changed(path, "ALTER TABLE memories ADD COLUMN mood TEXT DEFAULT 'calm'")
    with opened(path, cipher) as memories:
        memories.store_chunk([item("the new mill")], None)
        assert [row["mood"] for row in memories.keyword_search("mill")] == ["calm", "calm"]


def test_one_writer_waits_for_another(path: Path) -> None:
    with (
        opened(path) as memories,
        closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        ender = threading.Timer(0.4, lambda: other.execute("COMMIT"))
        ender.start()
        assert memories.store_chunk([item("a")], "h") == [1]
        ender.join()


def test_waiting_ends_with_the_request(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", CLIENT_PATIENCE)
    scope = CancelScope()
    with opened(path, scope=scope) as memories, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(0.2, scope.cancel).start()
        started = time.monotonic()
        with pytest.raises(EarlyTerminationException):
            memories.store_chunk([item("a")], "h")
        assert time.monotonic() - started < PATIENCE
        other.execute("COMMIT")
        assert memories.counts()["memories"] == 0


def test_waiting_ends_some_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.3)
    with opened(path) as memories, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            memories.log_hash("h")


def test_a_write_ahead_log_is_used(path: Path) -> None:
    with opened(path) as memories:
        assert memories._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_a_refused_write_ahead_log_is_done_without() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        sqlite.use_write_ahead_log(database)
        database.execute("CREATE TABLE t (a)")


def test_a_new_file_gets_its_mode(path: Path) -> None:
    with opened(path, mode=0o600) as memories:
        memories.log_hash("h")
        expected = 0o600 if os.name == "posix" else 0o666  # Windows has no such bits
        assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {expected}


# -- vectors ------------------------------------------------------------------------------------------------------


def test_vectors(path: Path, cipher: Cipher) -> None:
    with opened(path, cipher) as memories:
        ids = memories.store_chunk([item(text) for text in ("a", "b", "c")], None)
        assert memories.add_embeddings([(1, vector_to_blob([1, 0])), (3, vector_to_blob([0, 1]))], "m") == 2
        assert memories.add_embeddings([(2, vector_to_blob([0, 1]))], "other") == 1
        assert memories.embeddings("m") == [(1, vector_to_blob([1, 0])), (3, vector_to_blob([0, 1]))]
        assert texts(memories.without_embeddings("m")) == ["b"]
        assert texts(memories.without_embeddings("none", 2)) == ["a", "b"]
        assert memories.without_embeddings("none", 0) == []
        assert [memories.count_without_embeddings(model) for model in ("m", "other", "none")] == [1, 2, 3]
        assert memories.nearest([0.1, 1], "m", 5) == [3, 1] and memories.nearest([0.1, 1], "m", 1) == [3]
        assert memories.nearest([1, 1], "none", 5) == []
        memories.add_embeddings([(1, vector_to_blob([0.1, 1, 0]))], "m")
        assert memories.nearest([0.1, 1], "m", 5) == [3]  # what cannot be compared is not found
        assert memories.nearest([1, 0, 0, 0], "m", 5) == []
        assert (
            memories._db.execute("SELECT dim FROM memory_embeddings WHERE model = 'm' ORDER BY 1").fetchall()[1]["dim"]
            == 3
        )
    assert ids == [1, 2, 3]


def test_vectors_stay_unpacked_until_the_file_changes(
    path: Path, cipher: Cipher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path, cipher) as memories:
        memories.store_chunk([item("a"), item("b")], None)
        memories.add_embeddings([(1, vector_to_blob([1, 0]))], "m")
    time.sleep(0.1)
    with opened(path, cipher, write=False) as memories:
        assert memories.nearest([0, 1], "m", 2) == [1]
    with opened(path, cipher, write=False) as memories:
        monkeypatch.setattr(memories, "embeddings", None)  # not asked again
        assert memories.nearest([0, 1], "m", 2) == [1]
    with opened(path, cipher) as memories:
        memories.add_embeddings([(2, vector_to_blob([0, 1]))], "m")
        assert memories.nearest([0, 1], "m", 2) == [2, 1]


@pytest.mark.parametrize("limit", [2**31, 2**63, 10**30])
def test_no_limit_is_too_large(path: Path, cipher: Cipher, limit: int) -> None:
    with opened(path, cipher) as memories:
        memories.store_chunk([item("owl")], "h")
        memories.add_embeddings([(1, vector_to_blob([1, 0]))], "m")
        assert texts(memories.keyword_search("owl", limit)) == ["owl"] and memories.nearest([1, 0], "m", limit) == [1]
        assert log_hashes(memories, limit) == ["h"] and len(memories.without_embeddings("other", limit)) == 1
        assert len(list(memories.all_memories(limit))) == 1 and list(memories.all_memories(limit, limit)) == []


def test_rows_come_in_the_order_of_their_ids(path: Path, cipher: Cipher) -> None:
    with opened(path, cipher) as memories:
        memories.store_chunk([item(str(number)) for number in range(1100)], None)
        wanted = [1100, 3, 9999, *range(5, 1050)]
        assert [row["id"] for row in memories.by_ids(wanted)] == [number for number in wanted if number != 9999]


# -- care ---------------------------------------------------------------------------------------------------------


def test_the_index_can_be_made_anew(path: Path) -> None:
    with opened(path) as memories:
        memories.store_chunk([item("lion", topics=["zoo"])], None, True)
        memories.store_chunk([item("tiger", topics=["zoo"])], None, False)
        memories._db.execute("DELETE FROM memory_indexed_topics")  # as older programs write
        memories._db.execute("DELETE FROM memories_fts WHERE rowid = 2")
        assert memories.keyword_search("tiger") == []
        assert memories.rebuild_index() == 2
        assert texts(memories.keyword_search("tiger")) == ["tiger"]
        assert texts(memories.keyword_search("zoo")) == ["lion"]


@pytest.mark.parametrize("reader", [NO_CIPHER, OTHER], ids=["no key", "other key"])
@pytest.mark.parametrize("write", [False, True])
def test_data_of_another_key_is_refused(path: Path, reader: Cipher, write: bool) -> None:
    with opened(path, CIPHER) as memories:
        memories.store_chunk([item("secret")], None)
    before = path.read_bytes()
    with pytest.raises(DataKeyError):
        opened(path, reader, write=write)
    assert path.read_bytes() == before
