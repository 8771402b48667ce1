"""Searchable memories in the state database: several workers, connections that break, the index that each worker keeps.

What they have in common with files is in ``Tests/utilities/discussions/vector_memory/test_contract.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from Middleware.addons.postgres import memory_rows
from Middleware.addons.postgres.database import Database
from Middleware.exceptions import EarlyTerminationException, StateConflictError, StateUnavailableError
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.discussions.vector_memory import SearchableMemories, encrypted_index
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher
from Middleware.utilities.vector_math_utils import vector_to_blob
from Tests.addons.postgres.test_database import end_connections
from Tests.postgres_lab import Server, name_in, open_database
from Tests.utilities.discussions.vector_memory.lab import CIPHER, OTHER, item, log_hashes, texts

pytestmark = pytest.mark.slow


@pytest.fixture
def other(database: Database, database_url: str) -> Iterator[Database]:
    """The same database as another worker has it."""
    opened = open_database(database_url)
    yield opened
    opened.close()


def opened(database: Database, cipher: Cipher = NO_CIPHER, **options: Any) -> SearchableMemories:
    memories: SearchableMemories = memory_rows.PostgresMemories(
        database, "", "", "chat", **{"write": True, **options}, cipher=cipher
    )
    return memories


def found(memories: SearchableMemories, query: str = "mill") -> list[int]:
    return sorted(row["id"] for row in memories.keyword_search(query))


# -- several workers ----------------------------------------------------------------------------------------------


def test_the_same_pass_elsewhere_doubles_nothing(database: Database, other: Database) -> None:
    """The worker of the first pass has lost its lock with its connections, without noticing."""
    with opened(database) as first, opened(other) as second:
        assert log_hashes(first) == []
        end_connections(database)
        assert log_hashes(second) == [] and second.store_chunk([item("mill")], "h1") == [1]
        for chunk in ("h1", "h2"):
            with pytest.raises(StateConflictError):
                first.store_chunk([item("mill")], chunk)
        assert second.store_chunk([item("bridge")], "h2") == [2]
        # The next pass begins with the log.
        assert log_hashes(first) == ["h2", "h1"] and first.store_chunk([item("owl")], "h3") == [3]
        assert texts(list(second.all_memories())) == ["mill", "bridge", "owl"]
        with pytest.raises(StateConflictError):
            second.store_chunk([item("owl")], "h3")


def test_vectors_of_the_own_pass_are_no_conflict(database: Database) -> None:
    with opened(database) as memories:
        assert log_hashes(memories) == []
        for number in range(1, 4):
            assert memories.store_chunk([item("mill")], f"h{number}") == [number]
            memories.add_embeddings([(number, vector_to_blob([1.0]))], "m")
            memories.count_failure("h")


def test_vectors_do_not_hide_what_another_worker_has_stored(database: Database, other: Database) -> None:
    with opened(database) as first, opened(other) as second:
        first.store_chunk([item("mill")], "h1")
        log_hashes(second)
        second.store_chunk([item("bridge")], "h2")
        first.add_embeddings([(1, vector_to_blob([1.0]))], "m")
        with pytest.raises(StateConflictError):
            first.store_chunk([item("bridge")], "h2")


def test_a_connection_that_breaks_in_the_middle_of_a_chunk(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(database) as memories:
        log, attempts = memories._insert_hash, []

        def interrupted(*arguments: Any) -> None:
            attempts.append(memories._transaction)
            if len(attempts) == 1:
                memories._transaction.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            log(*arguments)

        monkeypatch.setattr(memories, "_insert_hash", interrupted)
        assert memories.store_chunk([item("mill"), item("owl")], "h") == [1, 2] and len(attempts) == 2
        assert memories.counts() == {"memories": 2, "embeddings": 0, "hashes": 1}
        assert memories.store_chunk([item("bridge")], "i") == [3]


def test_a_chunk_whose_end_nobody_learned_is_not_stored_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = database.run

    def twice(work: Callable[[Any], object], **options: Any) -> object:
        run(work, **options)
        return run(work, **options)

    with opened(database) as memories:
        with monkeypatch.context() as patch:
            patch.setattr(database, "run", twice)
            with pytest.raises(StateConflictError):
                memories.store_chunk([item("mill")], "h")
        assert memories.counts() == {"memories": 1, "embeddings": 0, "hashes": 1}


def test_six_turns_at_once_store_a_chunk_once(database: Database, other: Database) -> None:
    ready = threading.Barrier(6)

    def turn(worker: Database) -> int:
        with opened(worker) as memories:
            ready.wait(60)
            if "h" in log_hashes(memories):
                return 0
            try:
                return len(memories.store_chunk([item("mill")], "h"))
            except StateConflictError:
                return 0

    with ThreadPoolExecutor(6) as threads:
        assert sum(threads.map(turn, [database, other] * 3)) == 1
    with opened(database) as memories:
        assert memories.counts() == {"memories": 1, "embeddings": 0, "hashes": 1}


def test_what_scripts_add_at_once_is_all_stored(
    database: Database, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_rows, "_LOCK_MILLISECONDS", 60_000)

    def add(number: int) -> list[int]:
        with opened(other if number % 2 else database) as memories:
            return memories.store_chunk([item(f"mill {number}")], None)

    with ThreadPoolExecutor(6) as threads:
        numbers = [number for stored in threads.map(add, range(24)) for number in stored]
    assert sorted(numbers) == list(range(1, 25))


def test_a_change_of_the_key_elsewhere_ends_the_pass(database: Database, other: Database) -> None:
    with opened(database, CIPHER) as first, opened(other, CIPHER) as second:
        first.store_chunk([item("mill")], "h1")
        log_hashes(second)
        first.change_cipher(OTHER)
        for write in (
            lambda: second.store_chunk([item("owl")], None),
            lambda: second.add_embeddings([(1, vector_to_blob([1.0]))], "m"),
        ):
            with pytest.raises(StateConflictError):
                write()
        assert found(first) == [1] and first.store_chunk([item("mill")], "h2") == [2]
    with opened(other, OTHER, write=False) as again:
        assert found(again) == [1, 2]


def test_a_write_does_not_wait_for_long_while_all_is_changed(
    database: Database, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_rows, "_LOCK_MILLISECONDS", 50)
    with opened(database) as first, opened(other) as second:

        def elsewhere() -> None:
            with pytest.raises(StateConflictError, match="just now"):
                second.store_chunk([item("owl")], None)

        first._rewrite(elsewhere)
        assert second.counts()["memories"] == 0 and not other.down


def test_what_belongs_to_the_discussion_is_stored_meanwhile(database: Database, other: Database) -> None:
    with opened(database) as memories:
        memories._rewrite(
            lambda: (
                other.write(
                    "INSERT INTO wilmer.documents (discussion, name, content, version) SELECT id, 'a', 'b', 1 "
                    "FROM wilmer.discussions"
                )
                and None
            )
        )
    assert database.read("SELECT count(*) FROM wilmer.documents") == [(1,)]


def test_discussions_of_other_spaces_and_keys_are_others(database: Database) -> None:
    names = [("", "", "chat"), ("", "", "Chat"), ("", "0123456789abcdef", "chat"), ("team", "", "chat")]
    for number, name in enumerate(names):
        with memory_rows.PostgresMemories(database, *name, write=True) as memories:
            memories.store_chunk([item(f"mill {number}")], "h")
            assert texts(memories.keyword_search("mill")) == [f"mill {number}"]
            assert memories.by_ids([1])[0]["discussion_id"] == name[2]
    assert len({memory_rows.PostgresMemories(database, *name).place for name in names}) == 4


def test_a_discussion_that_is_deleted(database: Database) -> None:
    with opened(database) as memories:
        memories.store_chunk([item("mill")], "h")
        assert found(memories) == [1]
        database.write("DELETE FROM wilmer.discussions")
        assert memories.keyword_search("mill") == [] == log_hashes(memories)
        with pytest.raises(StateConflictError):
            memories.store_chunk([item("mill")], "h")
    with opened(database) as memories:
        memories.store_chunk([item("bridge")], "h")
        assert found(memories) == [] and found(memories, "bridge") == [1]


# -- no database --------------------------------------------------------------------------------------------------


def test_a_database_that_does_not_answer(database: Database) -> None:
    with opened(database) as memories:
        memories.store_chunk([item("mill")], "h")
        database.close()
        uses: list[Callable[[], object]] = [
            lambda: opened(database),
            lambda: memories.keyword_search("mill"),
            lambda: log_hashes(memories),
            lambda: memories.store_chunk([item("owl")], None),
            lambda: memories.count_failure("h"),
            lambda: memories.nearest([1.0], "m", 1),
            lambda: list(memories.all_memories()),
        ]
        for use in uses:
            with pytest.raises(StateUnavailableError):
                use()


def test_a_cancelled_request_asks_nothing(database: Database) -> None:
    scope = CancelScope()
    with opened(database, scope=scope) as memories:
        scope.cancel()
        for use in (lambda: memories.keyword_search("mill"), lambda: memories.store_chunk([item("owl")], None)):
            with pytest.raises(EarlyTerminationException):
                use()


# -- the index of each worker -------------------------------------------------------------------------------------


def test_the_index_is_filled_in_batches_and_then_with_newer_rows_only(
    database: Database, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    read = memory_rows.PostgresMemories._stored_rows

    def counted(self: SearchableMemories, after: int, limit: int) -> object:
        asked.append(after)
        return read(self, after, limit)

    monkeypatch.setattr(memory_rows.PostgresMemories, "_stored_rows", counted)
    monkeypatch.setattr(encrypted_index, "BATCH", 3)
    with opened(database) as writer, opened(database, write=False) as reader:
        writer.store_chunk([item("mill")] * 7, "h")
        assert found(reader) == list(range(1, 8)) and asked[1:] == [3, 6]
        asked.clear()
        assert found(reader) == list(range(1, 8)) and asked == []
        writer.store_chunk([item("mill")] * 2, "i")
        assert found(reader) == list(range(1, 10)) and asked == [7]
        asked.clear()
        writer.delete(9)
        writer.store_chunk([item("owl")], "j")
        assert found(reader) == list(range(1, 9)) and found(reader, "owl") == [9] and len(asked) == 4


def test_each_key_has_an_index_of_its_own(database: Database) -> None:
    with opened(database, CIPHER) as memories:
        memories.store_chunk([item("mill")], "h")
        assert found(memories) == [1]
        place = memories.place
    assert encrypted_index.index_of(place, OTHER) is not encrypted_index.index_of(place, CIPHER)


# -- what the database shows --------------------------------------------------------------------------------------


def test_no_text_of_an_encrypted_conversation_is_in_the_database(
    postgres: Server, database: Database, database_url: str
) -> None:
    with opened(database) as memories:
        memories.store_chunk([item("Quellcode")], "h")
        memories.add_embeddings([(1, b"Quellcode...")], "m")
    with opened(database, CIPHER) as memories:
        memories.store_chunk([item("Quellcode")], "i")
        memories.add_embeddings([(2, b"Quellcode...")], "m")
        assert [vector for _, vector in memories.embeddings("m")] == [b"Quellcode..."] * 2
    rows = "".join(
        postgres.sql(
            f"SELECT t::text, encode(convert_to(t::text, 'UTF8'), 'hex') FROM wilmer.{table} t", name_in(database_url)
        )
        for table in ("memories", "memory_embeddings", "memory_hash_log", "discussions")
    )
    assert "chat" in rows and "Quellcode" not in rows and b"Quellcode".hex() not in rows
