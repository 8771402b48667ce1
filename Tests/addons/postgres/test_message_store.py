"""Messages in the state database: several workers, and what is particular to PostgreSQL.

What they have in common with files is in ``Tests/utilities/discussions/message_index``.
"""

from __future__ import annotations

from typing import Any

import pytest

from Middleware.addons.postgres import memory_rows
from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.message_store import PostgresMessages, translated
from Middleware.exceptions import StateConflictError
from Middleware.services.memory.recall import Recall, recall
from Middleware.utilities.discussions.message_index.message_tables import PUT_META
from Tests.addons.postgres.test_database import end_connections
from Tests.postgres_lab import Server, StatementLog, open_database
from Tests.tables import table
from Tests.utilities.discussions.message_index.lab import another_process, request

pytestmark = pytest.mark.slow
OWN = "WHERE discussion = %(discussion)s"
SAID = [(("user", "assistant")[number % 2], f"heron number {number}") for number in range(40)]


@table(
    ("statement", "expected"),
    [
        (
            "SELECT id FROM messages WHERE id = ?",
            f"SELECT id FROM (SELECT * FROM wilmer.messages {OWN}) AS messages WHERE id = %(0)s",
        ),
        (
            "SELECT m.id FROM messages m JOIN conversations c ON c.id = ?",
            f"SELECT m.id FROM (SELECT * FROM wilmer.messages {OWN}) m JOIN (SELECT * FROM "
            f"wilmer.message_conversations {OWN}) c ON c.id = %(0)s",
        ),
        (
            "SELECT (SELECT max(id) FROM messages)",
            f"SELECT (SELECT max(id) FROM (SELECT * FROM wilmer.messages {OWN}) AS messages)",
        ),
        (
            "UPDATE messages SET state = ? WHERE id = ? OR id = ?",
            f"UPDATE wilmer.messages SET version = %(version)s, state = %(0)s {OWN} AND (id = %(1)s OR id = %(2)s)",
        ),
        ("DELETE FROM meta WHERE name = ?", f"DELETE FROM wilmer.message_meta {OWN} AND (name = %(0)s)"),
        (
            PUT_META,
            "INSERT INTO wilmer.message_meta VALUES (%(discussion)s, %(0)s, %(1)s) ON CONFLICT (discussion, name) DO "
            "UPDATE SET value = excluded.value",
        ),
        (
            "INSERT INTO messages VALUES (?, ?)",
            "INSERT INTO wilmer.messages VALUES (%(discussion)s, %(version)s, %(0)s, %(1)s)",
        ),
        (
            "INSERT OR REPLACE INTO message_embeddings SELECT id, ?, ? FROM messages WHERE id = ?",
            f"INSERT INTO wilmer.message_embeddings SELECT %(discussion)s, id, %(0)s, %(1)s FROM (SELECT * FROM "
            f"wilmer.messages {OWN}) AS messages WHERE id = %(2)s ON CONFLICT (discussion, message_id, model) DO "
            "UPDATE SET vector = excluded.vector",
        ),
    ],
)
def test_statements_are_those_of_one_discussion(statement: str, expected: str) -> None:
    assert translated(statement) == expected


def opened(database: Database, key_hash: str = "", **options: Any) -> PostgresMessages:
    return PostgresMessages(database, "", key_hash, "chat", **{"write": True, **options})


def found(index: PostgresMessages, question: str) -> list[str]:
    return recall(index, Recall(question, who_said_it="off")).lines


def test_a_worker_reads_only_what_was_written_since(postgres: Server, database_url: str, database: Database) -> None:
    with opened(database) as mine:
        request(mine, SAID)
        assert found(mine, "heron")
    log = StatementLog(postgres, database_url)
    worker = open_database(database_url)
    try:
        with opened(worker, write=False) as again:
            # What this process keeps of the first worker's writing is its own, too.
            assert found(again, "heron")
            with another_process(), opened(database) as another:
                request(another, [*SAID, ("user", "an egret")])
            log.take()
            assert found(again, "egret")[0] == "User: an egret"
            statements = [one for one in log.take() if "wilmer.messages" in one]
            texts = [one for one in statements if "text, when_words" in one]
            # The rows that are new, the check that none has gone, the words of one row, and the result.
            assert len(statements) == 4 and all(one.count("$") <= 4 for one in texts)
    finally:
        worker.close()


def test_owners_do_not_see_each_other(database: Database) -> None:
    with opened(database) as one, opened(database, "0123456789abcdef") as two:
        request(one, SAID)
        request(two, [("user", "an egret"), ("assistant", "where"), ("user", "there")])
        assert (found(one, "egret"), found(two, "heron")) == ([], [])
        two.forget([1, 2, 3])
        assert found(one, "heron") and two.all("SELECT DISTINCT text FROM messages") == [("",)]


def test_workers_wait_for_each_other(database: Database, other: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(database) as mine, opened(other) as another:
        request(mine, SAID)
        with monkeypatch.context() as patch:
            patch.setattr(memory_rows, "_LOCK_MILLISECONDS", 50)
            with another.writing() as writing:
                writing.set_state([1], 1)
                with pytest.raises(StateConflictError):
                    request(mine, [*SAID, ("user", "an egret")])
    # The next request fills.
    end_connections(database)
    with opened(database) as mine:
        request(mine, [*SAID, ("user", "an egret")])
        assert (found(mine, "egret")[0], mine.message_count()) == ("User: an egret", 41)


def test_a_discussion_that_is_removed_under_a_request(database: Database) -> None:
    with opened(database) as index:
        request(index, SAID)
        database.write("DELETE FROM wilmer.discussions")
        with pytest.raises(StateConflictError):
            request(index, SAID)
        assert found(index, "heron") == []
    with opened(database) as index:
        request(index, SAID[:4])
        assert len(found(index, "heron")) == 4
