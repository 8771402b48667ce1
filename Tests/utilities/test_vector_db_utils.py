"""Single operations on the memories of a discussion, found by its id."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import DataKeyError
from Middleware.utilities import vector_db_utils as db
from Middleware.utilities.vector_math_utils import vector_to_blob
from Tests.llmapis.lab import Lab
from Tests.utilities.discussions.vector_memory.lab import KEY, bytes_on_disk, metadata

KEY_HASH = "0123456789abcdef"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "discussions"
    Lab(tmp_path / "config", monkeypatch).user(discussionDirectory=str(root))
    monkeypatch.chdir(tmp_path)
    return root


READERS: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = [
    (db.get_db_connection, (), None),
    (db.search_memories_by_keyword, ("a",), []),
    (db.get_vector_check_hash_history, (), []),
    (db.get_all_embeddings, ("m",), []),
    (db.get_memories_without_embeddings, ("m",), []),
    (db.get_memories_by_ids, ([1],), []),
]
WRITERS: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = [
    (db.initialize_vector_db, (), False),
    (db.add_memory_to_vector_db, ("a", "{}"), None),
    (db.add_vector_check_hash, ("h",), None),
    (db.add_embeddings_to_db, ([(1, b"abcd")], "m"), 0),
]


def names(cases: list[tuple[Callable[..., Any], tuple[Any, ...], Any]]) -> list[str]:
    return [case[0].__name__ for case in cases]


@pytest.mark.parametrize(("function", "arguments", "nothing"), READERS, ids=names(READERS))
def test_reading_creates_nothing(
    root: Path, function: Callable[..., Any], arguments: tuple[Any, ...], nothing: Any
) -> None:
    assert function("chat", *arguments) == nothing and not root.exists()
    assert function("chat", *arguments, api_key_hash=KEY_HASH, encryption_key=KEY) == nothing and not root.exists()


@pytest.mark.parametrize(("function", "arguments", "nothing"), READERS[1:] + WRITERS, ids=names(READERS[1:] + WRITERS))
@pytest.mark.parametrize("discussion", ["chat", "../chat", ""])
def test_failures_are_logged(
    root: Path,
    caplog: pytest.LogCaptureFixture,
    discussion: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    nothing: Any,
) -> None:
    (root / "chat").mkdir(parents=True)
    (root / "chat" / "vector_memory.db").write_bytes(b"no database, but long enough for one " * 100)
    with caplog.at_level(logging.ERROR):
        assert function(discussion, *arguments) == nothing
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "key",
    [{}, {"api_key_hash": KEY_HASH}, {"api_key_hash": KEY_HASH, "encryption_key": KEY}],
    ids=["no key", "isolated", "encrypted"],
)
def test_all_operations(root: Path, key: dict[str, Any]) -> None:
    assert db.initialize_vector_db("chat", **key) is True
    assert db.add_memory_to_vector_db("chat", "Mara hid it", metadata("Mara hid it", topics=["zoo"]), **key) == 1
    assert (
        db.add_memory_to_vector_db("chat", "It burned", metadata("It burned", topics=["zoo"]), index_topics=True, **key)
        == 2
    )
    assert [row["id"] for row in db.search_memories_by_keyword("chat", "mara;zoo", **key)] in ([1, 2], [2, 1])
    assert [
        row["id"]
        for row in db.search_memories_by_keyword(
            "chat", "zoo", 5, bm25_weights=[1, 1, 1, 9, 1], use_recency=True, **key
        )
    ] == [2]
    assert db.add_vector_check_hash("chat", "h1", **key) is None
    db.add_vector_check_hash("chat", "h2", **key)
    assert db.get_vector_check_hash_history("chat", 1, **key) == ["h2"]
    blob = vector_to_blob([1, 0])
    assert db.add_embeddings_to_db("chat", [(2, blob)], "m", **key) == 1
    assert db.get_all_embeddings("chat", "m", **key) == [(2, blob)]
    assert [row["id"] for row in db.get_memories_without_embeddings("chat", "m", **key)] == [1]
    assert [row["memory_text"] for row in db.get_memories_by_ids("chat", [2, 7, 1], **key)] == [
        "It burned",
        "Mara hid it",
    ]
    folder = root / KEY_HASH if key else root
    assert (folder / "chat" / "vector_memory.db").is_file()
    assert (b"burned" in bytes_on_disk(root)) is ("encryption_key" not in key)
    assert db.search_memories_by_keyword("chat", "mara", api_key_hash=None if key else KEY_HASH) == []


@pytest.mark.parametrize("bad", ["{", "[1]", ""])
def test_bad_metadata_writes_nothing(root: Path, caplog: pytest.LogCaptureFixture, bad: str) -> None:
    assert db.add_memory_to_vector_db("chat", "Mara", bad) is None
    assert db.get_memories_by_ids("chat", [1]) == [] and "Mara" not in caplog.text and caplog.records


def test_data_of_another_key_is_no_empty_result(root: Path) -> None:
    db.add_memory_to_vector_db("chat", "a", "{}", KEY_HASH, encryption_key=KEY)
    with pytest.raises(DataKeyError):
        db.search_memories_by_keyword("chat", "a", api_key_hash=KEY_HASH)
    with pytest.raises(DataKeyError):
        db.add_vector_check_hash("chat", "h", KEY_HASH)


def test_a_connection_for_scripts(root: Path) -> None:
    db.add_memory_to_vector_db("chat", "a", "{}")
    connection = db.get_db_connection("chat")
    assert connection is not None
    with closing(connection):
        row = connection.execute("SELECT *, recency_score(date_added) AS recency FROM memories").fetchone()
    assert row["memory_text"] == "a" and row["recency"] == pytest.approx(2.5, abs=0.01)


def test_an_older_place_is_used(root: Path, tmp_path: Path) -> None:
    (tmp_path / "Public").mkdir()
    older = tmp_path / "Public" / "chat_vector_memory.db"
    sqlite3.connect(older).close()
    older.touch()
    assert db.add_memory_to_vector_db("chat", "a", "{}") == 1
    assert older.stat().st_size and db.get_memories_by_ids("chat", [1])
    assert not list(root.rglob("*.db"))
