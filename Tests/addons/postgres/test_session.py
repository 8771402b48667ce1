"""The number of a worker, whether it is alive, and locks between workers, with a real server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.session import WorkerSession
from Middleware.exceptions import EarlyTerminationException, StateUnavailableError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import Process, install, process
from Tests.postgres_lab import Server, eventually, impatient, open_database

pytestmark = pytest.mark.slow
Worker = tuple[Database, WorkerSession]


@pytest.fixture
def workers(database_url: str) -> Iterator[Callable[[], Worker]]:
    """Makes a worker more."""
    with contextlib.ExitStack() as stack:

        def another() -> Worker:
            database = open_database(database_url)
            stack.callback(database.close)
            session = WorkerSession(database)
            session.open()
            stack.callback(session.close)
            return database, session

        yield another


def alive(database: Database) -> list[int]:
    return sorted(number for (number,) in database.read("SELECT wilmer.live_workers()"))


def end_session(database: Database, session: WorkerSession) -> None:
    database.read(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = %s "
        "AND datname = current_database() AND pid <> pg_backend_pid() "
        "AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')",
        [f"wilmer-{session.number}"],
    )


@contextlib.contextmanager
def another_process() -> Iterator[None]:
    """What is done in here does not know the locks between the threads of this process."""
    before = install(Process())
    try:
        yield
    finally:
        install(before)


def test_the_smallest_free_number_is_taken(workers: Callable[[], Worker]) -> None:
    (database, first), (_, second), (_, third) = workers(), workers(), workers()
    assert (first.number, second.number, third.number) == (1, 2, 3) and alive(database) == [1, 2, 3]
    second.close()
    eventually(lambda: alive(database) == [1, 3])
    assert workers()[1].number == 2
    assert database.application_name == "wilmer-1"


def test_one_database_does_not_count_the_workers_of_another(workers: Callable[[], Worker], postgres: Server) -> None:
    database, session = workers()
    other = open_database(postgres.new_database())
    assert alive(database) == [1] and alive(other) == []
    other.close()


def test_a_lock_is_held_by_one_worker_at_a_time(workers: Callable[[], Worker]) -> None:
    (_, first), (_, second) = workers(), workers()
    with first.lock("a", 17):
        with another_process():
            with pytest.raises(TimeoutError), second.lock("a", 17, timeout=0):
                pass
            with pytest.raises(TimeoutError), second.lock("a", 17, timeout=0.3):
                pass
            with second.lock("a", -17, timeout=0):
                pass
        with pytest.raises(TimeoutError), first.lock("a", 17, timeout=0):
            pass
    with another_process(), second.lock("a", 17, timeout=0):
        pass


def test_waiting_for_a_lock_ends_with_it_or_with_the_request(workers: Callable[[], Worker]) -> None:
    (_, first), (_, second) = workers(), workers()
    got = threading.Event()

    def wait() -> None:
        with second.lock("b", 17):
            got.set()

    # Another name stands for another process.
    with first.lock("a", 17):
        thread = threading.Thread(target=wait)
        thread.start()
        assert not got.wait(0.3)
        scope = CancelScope()
        threading.Timer(0.2, scope.cancel).start()
        with pytest.raises(EarlyTerminationException), second.lock("c", 17, scope):
            pass
    assert got.wait(60)
    thread.join(60)


def test_locks_of_a_worker_that_ends_are_free(workers: Callable[[], Worker]) -> None:
    (database, first), (_, second) = workers(), workers()
    assert first.try_lock(17) and not second.try_lock(17)
    end_session(database, first)
    assert second.try_lock(17)


def test_a_lost_session_is_replaced_with_the_same_number_and_told(workers: Callable[[], Worker]) -> None:
    (database, session), (_, other) = workers(), workers()
    told: list[int] = []
    session.on_number(lambda: told.append(session.number))
    session.look()
    assert told == []
    held = session.try_lock(17)
    end_session(database, session)
    session.look()
    assert told == [1] and alive(database) == [1, 2]
    # The lock is another's now, and the release of the lost one must not free it.
    taken = other.try_lock(17)
    assert taken
    session.unlock(17, held)
    assert not session.try_lock(17)
    other.unlock(17, taken)
    assert session.try_lock(17)


def test_a_number_that_is_taken_meanwhile_is_another_workers(workers: Callable[[], Worker]) -> None:
    (database, first), (_, second) = workers(), workers()
    end_session(database, first)
    with database.connect() as connection:
        connection.execute(f"SELECT pg_advisory_lock({0x57494C4D}, 1)")
        first.look()
        assert first.number == 3 and second.number == 2


def test_shared_locks(workers: Callable[[], Worker]) -> None:
    (_, first), (_, second) = workers(), workers()
    one, two = first.try_lock(17, shared=True), second.try_lock(17, shared=True)
    assert one and two and not first.try_lock(17)
    second.unlock(17, two, shared=True)
    alone = first.try_lock(17)
    assert alone and not second.try_lock(17, shared=True)
    first.unlock(17, alone)
    first.unlock(17, one, shared=True)
    assert second.try_lock(17)


def test_a_release_that_could_not_be_sent_follows(workers: Callable[[], Worker]) -> None:
    (database, first), (_, second) = workers(), workers()
    taken = first.try_lock(17)
    database.fail("a test says so")
    first.unlock(17, taken)
    assert not second.try_lock(17)
    # Nobody asks for anything but the return of the database.
    eventually(lambda: second.try_lock(17) > 0)


def test_while_the_database_is_down_nobody_waits_for_a_lock(own_postgres: Server) -> None:
    database = open_database(own_postgres.new_database())
    session = WorkerSession(database)
    session.open()
    renewed = threading.Event()
    session.on_number(renewed.set)
    database.read("SELECT 1")
    impatient(database)
    own_postgres.kill()
    with pytest.raises(StateUnavailableError):
        database.read("SELECT 1")
    with pytest.raises(StateUnavailableError), session.lock("a", 17):
        pass
    own_postgres.start()
    assert renewed.wait(60)
    assert session.number == 1 and session.try_lock(17)
    session.close()
    database.close()


def test_two_that_start_at_once_get_different_numbers(database_url: str) -> None:
    databases = [open_database(database_url) for _ in range(4)]
    sessions = [WorkerSession(database) for database in databases]
    threads = [threading.Thread(target=session.open) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(session.number for session in sessions) == [1, 2, 3, 4]
    for session, database in zip(sessions, databases, strict=True):
        session.close()
        database.close()


def test_an_unreachable_server_is_an_error_of_the_start() -> None:
    with pytest.raises(psycopg.OperationalError):
        WorkerSession(Database("postgresql://nobody@127.0.0.1:1/nothing")).open()
    assert process() is process()
