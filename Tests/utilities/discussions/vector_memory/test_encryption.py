"""Nothing of a conversation lies on the disk in clear while a key is active."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.exceptions import DataKeyError
from Middleware.utilities import sqlite
from Middleware.utilities.discussions.vector_memory import conversion, encrypted_index
from Middleware.utilities.discussions.vector_memory.schema import is_token, sql_is_clear
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher
from Middleware.utilities.vector_math_utils import vector_to_blob
from Tests.properties import examples
from Tests.utilities.discussions.vector_memory.lab import (
    CIPHER,
    OTHER,
    bytes_on_disk,
    item,
    log_hashes,
    old_database,
    opened,
    texts,
)

WORD = "Quetzalcoatl"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vector_memory.db"


def in_clear(folder: Path) -> bool:
    """FTS5 keeps words in lower case and shares their beginnings."""
    found = bytes_on_disk(folder).lower()
    return WORD.lower().encode() in found or b"uetzalcoatl" in found


def test_memories_are_tokens(path: Path) -> None:
    with opened(path, CIPHER) as memories:
        memories.store_chunk([item(WORD, entities=[WORD], topics=[WORD])], "h", True)
        memories.add_embeddings([(1, vector_to_blob([1.5, 2.5]))], "m")
        assert len(memories.keyword_search(WORD)) == 1
        assert not in_clear(path.parent)
    assert not in_clear(path.parent) and vector_to_blob([1.5, 2.5]) not in bytes_on_disk(path.parent)
    with closing(sqlite3.connect(path)) as database:
        row = database.execute("SELECT memory_text, metadata_json FROM memories").fetchone()
        assert all(value.startswith("gAAAA") for value in row)
        assert database.execute("SELECT vector FROM memory_embeddings").fetchone()[0].startswith("gAAAA")
        assert database.execute("SELECT count(*) FROM memories_fts").fetchone()[0] == 0


def test_old_rows_are_read_and_left_alone(path: Path) -> None:
    old_database(path, f"the {WORD} stone", topics="zoo")
    before = path.read_bytes()
    with opened(path, CIPHER, write=False) as memories:
        assert texts(memories.keyword_search("stones")) == [f"the {WORD} stone"]
        assert len(memories.keyword_search("zoo")) == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize("write_ahead", [True, False])
def test_old_rows_are_encrypted_at_the_next_write(path: Path, write_ahead: bool) -> None:
    old_database(path, *[f"the {WORD} stone {number}" for number in range(300)], topics="zoo")
    with closing(sqlite3.connect(path)) as database:  # leftovers of deleted rows, and vectors
        database.execute(f"PRAGMA journal_mode = {'WAL' if write_ahead else 'DELETE'}")
        database.execute("PRAGMA secure_delete = OFF")
        database.execute("DELETE FROM memories WHERE id > 200")
        database.execute("DELETE FROM memories_fts WHERE rowid > 200")
        database.commit()
    with opened(path) as memories:
        memories.add_embeddings([(1, vector_to_blob([1.5, 2.5]))], "m")
    assert in_clear(path.parent)
    with opened(path, CIPHER) as memories:
        memories.store_chunk([item(f"new {WORD}")], "h")
        assert not in_clear(path.parent)
        assert len(memories.keyword_search("stone", 1000)) == 200 and len(memories.keyword_search("zoo", 1000)) == 200
        assert memories.embeddings("m") == [(1, vector_to_blob([1.5, 2.5]))]
        assert log_hashes(memories) == ["h", "old"]
    assert not in_clear(path.parent) and vector_to_blob([1.5, 2.5]) not in bytes_on_disk(path.parent)


def test_old_pages_go_as_soon_as_nobody_is_in_the_way(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody reads while the database is encrypted, so that it cannot be made anew."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    old_database(path, *[f"the {WORD} stone {number}" for number in range(2000)])
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA secure_delete = OFF")
        database.execute("DELETE FROM memories WHERE id > 100")
        database.execute("DELETE FROM memories_fts WHERE rowid > 100")
        database.commit()
    when_free, waiting = conversion.when_free, []

    def busy(action: Any, scope: Any) -> Any:
        """A writer that comes between the encryption and what follows it."""
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            if not waiting:
                waiting.append(other.execute("BEGIN IMMEDIATE"))
            return when_free(action, scope)

    monkeypatch.setattr(conversion, "when_free", busy)
    with opened(path, CIPHER) as memories:
        assert len(list(memories.all_memories())) == 100
    assert in_clear(path.parent) and "tried again at its next write" in caplog.text
    caplog.clear()
    with opened(path, CIPHER, write=False) as memories:
        assert len(list(memories.all_memories())) == 100
    assert in_clear(path.parent)
    with opened(path, CIPHER) as memories:
        memories.store_chunk([item("new")], "h")
    assert not in_clear(path.parent) and caplog.text == ""
    monkeypatch.setattr(conversion, "when_free", None)  # nothing is left to do
    with opened(path, CIPHER) as memories:
        assert len(list(memories.all_memories())) == 101


def test_a_row_in_clear_among_tokens_is_read_and_encrypted(path: Path) -> None:
    with opened(path, CIPHER) as memories:
        memories.store_chunk([item("first")], None)
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO memories VALUES (2, 'chat', ?, '2025-01-01', NULL)", (WORD,))
        database.commit()
    with opened(path, CIPHER, write=False) as memories:
        assert texts(memories.keyword_search(WORD)) == [WORD]
    with opened(path, CIPHER) as memories:
        assert texts(list(memories.all_memories())) == ["first", WORD]
    assert not in_clear(path.parent)


@pytest.mark.parametrize("target", [NO_CIPHER, OTHER], ids=["clear", "other key"])
def test_the_key_can_be_changed(path: Path, target: Cipher) -> None:
    with opened(path, CIPHER) as memories:
        memories.store_chunk([item("lion", topics=["zoo"])], None, True)
        memories.store_chunk([item("tiger", topics=["zoo"])], None)
        memories.add_embeddings([(1, vector_to_blob([1.0]))], "m")
        memories.change_cipher(target)
        assert texts(memories.keyword_search("zoo")) == ["lion"]
    with opened(path, target, write=False) as memories:
        assert texts(memories.keyword_search("zoo")) == ["lion"] and len(memories.keyword_search("lion;tiger")) == 2
        assert memories.embeddings("m") == [(1, vector_to_blob([1.0]))]


TOKEN = OTHER.encrypt(b"x").decode()
LOOKALIKES = st.one_of(
    st.text(max_size=20),
    st.text("AZaz09-_", max_size=130).map(lambda text: f"gAAAA{text}"),
    st.binary(max_size=60).map(lambda data: OTHER.encrypt(data).decode()),
).flatmap(lambda text: st.sampled_from([text, f"{text}\n", f"\n{text}", f"{text}=", text[:-1]]))


@pytest.mark.slow
@examples(60)
@given(st.lists(LOOKALIKES, min_size=1, max_size=4))
def test_no_text_in_clear_makes_a_database_unusable(lookalikes: list[str]) -> None:
    """Whatever a model writes is stored, read, and encrypted later on."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vector_memory.db")
        with opened(path) as memories:
            memories.store_chunk([item(text) for text in lookalikes], "h")
        for cipher, write in ((NO_CIPHER, False), (CIPHER, False), (CIPHER, True), (CIPHER, False)):
            with opened(path, cipher, write=write) as memories:
                found = texts(list(memories.all_memories()))
                assert [text.removeprefix(" ") for text in found] == [text.removeprefix(" ") for text in lookalikes]
        with closing(sqlite3.connect(path)) as database:
            assert all(is_token(row[0]) for row in database.execute("SELECT memory_text FROM memories"))


@given(LOOKALIKES)
def test_the_database_tells_tokens_like_the_program(text: str) -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        (clear,) = database.execute(f"SELECT {sql_is_clear('t')} FROM (SELECT ? AS t)", (text,)).fetchone()
        assert bool(clear) is not (is_token(text) and not text.endswith("\n"))
        assert database.execute(f"SELECT {sql_is_clear('NULL')}").fetchone() == (0,)


def test_a_token_of_another_key_is_not_text(path: Path) -> None:
    with opened(path, OTHER) as memories:
        memories.store_chunk([item("secret")], None)
    for cipher in (NO_CIPHER, CIPHER):
        with pytest.raises(DataKeyError), opened(path, cipher, write=False) as memories:
            list(memories.all_memories())


def test_the_index_in_memory_ranks_like_the_one_on_disk(tmp_path: Path) -> None:
    items = [
        item(
            f"{'mill ' * (number % 5)}stone {number}",
            title="mill" if number % 7 == 0 else "x",
            entities=["Ann"] * (number % 3),
        )
        for number in range(60)
    ]
    found = []
    for name, cipher in (("clear.db", NO_CIPHER), ("tokens.db", CIPHER)):
        with opened(tmp_path / name, cipher) as memories:
            memories.store_chunk(items, None)
            found.append(
                [
                    [row["id"] for row in memories.keyword_search("mill;ann", 20, weights, False)]
                    for weights in (None, [5, 1, 3, 1, 1])
                ]
            )
    assert found[0] == found[1] and found[0][0] != found[0][1]


def test_the_index_in_memory_is_kept_and_grows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added = []
    add = encrypted_index.EncryptedIndex._add
    monkeypatch.setattr(
        encrypted_index.EncryptedIndex, "_add", lambda self, row, codec: (added.append(row.id), add(self, row, codec))
    )
    with opened(path, CIPHER) as memories:
        memories.store_chunk([item("one mill"), item("two mills")], None)
    time.sleep(0.1)
    for _ in range(2):
        with opened(path, CIPHER, write=False) as memories:
            assert len(memories.keyword_search("mill")) == 2
    assert added == [1, 2]
    with opened(path, CIPHER) as memories:
        memories.store_chunk([item("three mills")], None)
        assert len(memories.keyword_search("mill")) == 3
        assert added == [1, 2, 3]
        memories._db.execute("DELETE FROM memories WHERE id = 1")
        assert [row["id"] for row in memories.keyword_search("mill")] == [2, 3]


def test_other_keys_do_not_share_the_index(path: Path) -> None:
    with opened(path, CIPHER) as memories:
        memories.store_chunk([item("mill")], None)
        assert memories.keyword_search("mill")
    assert encrypted_index.index_of(str(path), OTHER) is not encrypted_index.index_of(str(path), CIPHER)
    assert encrypted_index.index_of(str(path), CIPHER) is encrypted_index.index_of(str(path), CIPHER)
