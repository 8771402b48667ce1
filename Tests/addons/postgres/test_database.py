"""The pool, its limits, and what "down" means, with a real server."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from Middleware.addons.postgres.database import Database, StateConnection, call_back
from Middleware.exceptions import EarlyTerminationException, StateConflictError, StateUnavailableError
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.config import paths
from Tests.patience import CLIENT_PATIENCE
from Tests.postgres_lab import Server, eventually, impatient, name_in, open_database

pytestmark = pytest.mark.slow
# Ends all connections to this database but the one that says it.
END_OTHERS = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


def end_connections(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(END_OTHERS)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What was logged, all loggers together, from INFO on."""
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.levelno >= logging.INFO]


def test_the_errors_are_those_of_a_disk() -> None:
    error = StateUnavailableError()
    assert isinstance(error, OSError) and error.strerror == str(error) == "the state database does not answer"
    assert isinstance(StateConflictError(), StateUnavailableError) and StateConflictError().strerror


def test_reading_and_writing(database: Database) -> None:
    written = database.write("INSERT INTO wilmer.sessions VALUES (%s, now()) RETURNING session_id", ["a"])
    assert written == database.read("SELECT session_id FROM wilmer.sessions") == [("a",)]
    assert database.write("DELETE FROM wilmer.sessions") == []
    assert not database.down


def test_settings_of_each_connection(database: Database) -> None:
    names = ("application_name", "statement_timeout", "client_encoding", "tcp_keepalives_idle")
    [row] = database.read("SELECT " + ", ".join(f"current_setting('{name}')" for name in names))
    assert row == ("wilmer", "61s", "UTF8", "5")


def test_a_transaction_is_all_or_nothing(database: Database) -> None:
    def half(connection: StateConnection) -> None:
        with connection.transaction():
            connection.execute("INSERT INTO wilmer.sessions VALUES ('a', now())")
            raise KeyError

    with pytest.raises(KeyError):
        database.run(half)
    assert database.read("SELECT 1 FROM wilmer.sessions") == []


def test_what_the_server_refuses_does_not_make_it_down_and_shows_no_values(database: Database) -> None:
    with pytest.raises(StateUnavailableError, match="InvalidTextRepresentation 22P02") as refused:
        database.read("SELECT %s::text::int", ["a secret"])
    assert "secret" not in str(refused.value)
    with pytest.raises(StateUnavailableError, match='relation "wilmer.nothing" does not exist'):
        database.read("SELECT 1 FROM wilmer.nothing")
    assert not database.down


def test_at_most_eight_connections(database: Database) -> None:
    inside, go_on = threading.Semaphore(0), threading.Event()

    def work(connection: StateConnection) -> None:
        inside.release()
        go_on.wait(60)
        connection.execute("SELECT 1")

    threads = [threading.Thread(target=database.run, args=(work,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert inside.acquire(timeout=60)
    with database.connect() as connection:
        [(count,)] = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert count == 8


def test_reading_survives_that_all_connections_are_ended(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(3):
        database.read("SELECT 1")
        end_connections(database)
        assert database.read("SELECT 2") == [(2,)]
    assert not database.down and lines(caplog) == []


def test_writing_is_not_repeated(database: Database) -> None:
    calls: list[int] = []

    def work(connection: StateConnection) -> None:
        calls.append(1)
        end_connections(database)
        connection.execute("INSERT INTO wilmer.sessions VALUES ('a', now())")

    with pytest.raises(StateUnavailableError):
        database.run(work)
    assert calls == [1] and not database.down
    assert database.read("SELECT 1 FROM wilmer.sessions") == []


def test_a_connection_that_breaks_twice_means_down_until_it_is_back(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    returned = threading.Event()
    database.on_return(returned.set)

    def work(connection: StateConnection) -> None:
        end_connections(database)
        connection.execute("SELECT 1")

    with pytest.raises(StateUnavailableError):
        database.run(work, again=True)
    assert database.down
    assert returned.wait(60) and database.read("SELECT 1") == [(1,)]
    [(down, problem), (up, back)] = lines(caplog)
    assert (down, up) == ("ERROR", "INFO")
    assert problem.startswith("The state database (") and "terminating connection" in problem
    assert back.startswith("The state database answers again after ")


def _no_database() -> None:
    raise StateUnavailableError


def _mistake() -> None:
    raise ValueError("wrong")


@pytest.mark.parametrize(
    ("first", "logged"),
    [
        (_no_database, []),  # the database has reported it
        (_mistake, [("ERROR", "Something that follows a test failed")]),
    ],
    ids=["no database", "a mistake"],
)
def test_what_follows_an_event_keeps_nobody_from_learning_it(
    first: Callable[[], None], logged: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []
    for function, arguments in ((first, ()), (called.append, ("second",))):
        call_back("a test", function, *arguments)
    assert called == ["second"] and lines(caplog) == logged


def test_a_cancelled_request_waits_no_longer(database: Database) -> None:
    scope = CancelScope()
    timer = threading.Timer(0.3, scope.cancel)
    timer.start()
    with pytest.raises(EarlyTerminationException):
        database.read("SELECT pg_sleep(60)", scope=scope)
    with pytest.raises(EarlyTerminationException):
        database.read("SELECT 1", scope=scope)
    assert database.read("SELECT 1") == [(1,)] and not database.down


def test_a_slow_statement_is_waited_for_and_one_without_answer_given_up(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    impatient(database)
    assert database.read("SELECT 1 FROM pg_sleep(1)") == [(1,)]
    with pytest.raises(StateUnavailableError):
        database.read("SELECT pg_sleep(60)")
    assert "was not answered within 4 s" in caplog.text
    eventually(lambda: not database.down)


def test_whoever_waits_when_it_goes_down_gives_up_with_the_first(database: Database) -> None:
    errors: list[BaseException] = []
    first_asks = threading.Event()

    def wait(connection: StateConnection) -> None:
        first_asks.set()
        connection.execute("SELECT pg_sleep(120)")

    def other() -> None:
        try:
            database.run(wait)
        except StateUnavailableError as error:
            errors.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    assert first_asks.wait(60)
    database.fail("a test says so")
    thread.join(50)
    assert not thread.is_alive() and len(errors) == 1


def test_a_server_that_ends_and_starts_again(own_postgres: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    database = open_database(own_postgres.new_database())
    database.write("INSERT INTO wilmer.sessions VALUES ('a', now())")
    impatient(database)
    own_postgres.kill()
    with pytest.raises(StateUnavailableError):
        database.read("SELECT 1")
    eventually(lambda: database.down)
    for _ in range(100):
        with pytest.raises(StateUnavailableError):
            database.read("SELECT 1")
    own_postgres.start()
    eventually(lambda: not database.down)
    database.checkout_seconds = 60
    assert database.read("SELECT session_id FROM wilmer.sessions") == [("a",)]
    assert [level for level, _ in lines(caplog)] == ["ERROR", "INFO"]
    database.close()


def test_a_frozen_server_is_given_up_by_all_at_once(own_postgres: Server) -> None:
    database = open_database(own_postgres.new_database())
    database.read("SELECT 1")
    impatient(database)
    seconds: list[float] = []

    def ask() -> None:
        started = time.monotonic()
        try:
            database.read("SELECT 1")
        except StateUnavailableError:
            seconds.append(time.monotonic() - started)

    own_postgres.freeze()
    try:
        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(seconds) == 12 and max(seconds) < 20 and database.down
        started = time.monotonic()
        for _ in range(100):
            with pytest.raises(StateUnavailableError):
                database.read("SELECT 1")
        # Each of them would wait for two seconds or more.
        assert time.monotonic() - started < 60
    finally:
        own_postgres.thaw()
    eventually(lambda: not database.down)
    database.checkout_seconds = 60
    assert database.read("SELECT 1") == [(1,)]
    database.close()


def test_too_many_connections_are_named(
    postgres: Server, database: Database, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    database.read("SELECT 1")
    impatient(database)
    name = name_in(database_url)
    postgres.sql(f"ALTER DATABASE {name} CONNECTION LIMIT 0")
    postgres.sql(END_OTHERS, name)
    with pytest.raises(StateUnavailableError):
        database.read("SELECT 1")
    assert "too many connections" in caplog.text and "each worker needs 10" in caplog.text
    postgres.sql(f"ALTER DATABASE {name} CONNECTION LIMIT -1")
    eventually(lambda: not database.down)


def test_the_database_is_named_without_its_password(database_url: str) -> None:
    database = Database(database_url)
    assert "Geheim" not in database.place and " at 127.0.0.1:" in database.place


def test_nothing_that_file_mode_uses_imports_psycopg() -> None:
    """Not even the factory of discussions, which knows both modes."""
    code = (
        "import sys, Middleware.utilities.discussions.discussion_folder, Middleware.api.app; "
        "sys.exit(any(name.startswith('psycopg') for name in sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=paths.get_project_root_directory_path(), timeout=CLIENT_PATIENCE
        ).returncode
        == 0
    )
