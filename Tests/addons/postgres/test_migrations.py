"""The schema: made once, by whoever comes first, and refused if it is too new."""

from __future__ import annotations

import threading

import psycopg
import pytest

from Middleware.addons.postgres import migrations as module
from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.migrations import Migration, SchemaError, migrate, migrations
from Tests.postgres_lab import Server, name_in

TABLES = {
    "schema_version",
    "discussions",
    "documents",
    "memories",
    "memory_embeddings",
    "memory_hash_log",
    "chunk_failures",
    "workflow_locks",
    "sessions",
    "key_salts",
    "messages",
    "message_conversations",
    "message_meta",
    "message_embeddings",
}
UNLOGGED = {"workers", "gate", "idempotency", "cancellations", "keepsakes"}

pytestmark = pytest.mark.slow


def test_an_empty_database_gets_every_table_and_the_second_time_nothing(database_url: str) -> None:
    with Database(database_url).connect() as connection:
        assert migrate(connection) == [one.name for one in migrations()]
        assert migrate(connection) == []
        rows = connection.execute(
            "SELECT relname, relpersistence::text FROM pg_class JOIN pg_namespace n "
            "ON n.oid = relnamespace WHERE nspname = 'wilmer' AND relkind = 'r'"
        ).fetchall()
        assert dict(rows) == {**dict.fromkeys(TABLES, "p"), **dict.fromkeys(UNLOGGED, "u")}
        assert connection.execute("SELECT max(version) FROM wilmer.schema_version").fetchall() == [
            (migrations()[-1].number,)
        ]


def test_two_workers_that_start_at_once_make_it_once(database_url: str) -> None:
    done: list[list[str]] = []

    def start() -> None:
        with Database(database_url).connect() as connection:
            done.append(migrate(connection))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == [[], [], [], [one.name for one in migrations()]]


def test_a_migration_that_fails_leaves_nothing_behind(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    half = Migration(9000, "9000_half", 1, "CREATE TABLE wilmer.half (a int); SELECT 1 / 0")
    with Database(database_url).connect() as connection:
        migrate(connection)
        monkeypatch.setattr(module, "migrations", lambda: (*migrations(), half))
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate(connection)
        assert connection.execute("SELECT to_regclass('wilmer.half')").fetchall() == [(None,)]


@pytest.mark.parametrize(("oldest", "works"), [(1, True), (9000, False)])
def test_a_program_beside_a_newer_schema_works_or_refuses_in_words(database_url: str, oldest: int, works: bool) -> None:
    with Database(database_url).connect() as connection:
        migrate(connection)
        connection.execute("INSERT INTO wilmer.schema_version (version, oldest_program) VALUES (9001, %s)", [oldest])
        if works:
            assert migrate(connection) == []
        else:
            with pytest.raises(SchemaError, match="number 9001, for programs that know at least number 9000"):
                migrate(connection)


def test_tables_that_are_in_use_are_waited_for_and_then_named(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = Migration(9000, "9000_change", 1, "ALTER TABLE wilmer.documents ADD COLUMN more int")
    monkeypatch.setattr(module, "_ATTEMPTS", 1)
    with Database(database_url).connect() as connection, Database(database_url).connect() as other:
        migrate(connection)
        monkeypatch.setattr(module, "migrations", lambda: (*migrations(), change))
        with other.transaction():
            other.execute("LOCK TABLE wilmer.documents")
            with pytest.raises(SchemaError, match="9000_change could not be applied"):
                migrate(connection)
        assert migrate(connection) == ["9000_change"]


def test_a_role_that_may_not_make_tables_is_named(postgres: Server) -> None:
    url = postgres.new_database()
    name = name_in(url)
    postgres.sql(f"ALTER DATABASE {name} OWNER TO postgres")
    with Database(url).connect() as connection, pytest.raises(SchemaError, match="the role wilmer may not make"):
        migrate(connection)
