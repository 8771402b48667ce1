"""Workflow locks in real SQLite files, among sessions, threads and processes."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.services import lock_database
from Middleware.services.locking_service import LockingService
from Middleware.utilities import sqlite
from Tests.llmapis.lab import Lab
from Tests.patience import PATIENCE
from Tests.utilities.shortages import no_more_threads
from Tests.workflows.engine_lab import until

INSTALL = Path(__file__).resolve().parents[2]


class Clock:
    """Local time that a test moves."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 11, 3, 17, 6, 9, 123456)

    def __call__(self) -> datetime:
        return self.moment

    def forward(self, **span: float) -> None:
        self.moment += timedelta(**span)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    Lab(tmp_path / "config", monkeypatch)
    monkeypatch.setattr(instance, "USER_LEVEL_SQLITE_DIRECTORY", str(tmp_path / "locks"))
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", PATIENCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "locks"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(folder: Path, clock: Clock) -> Iterator[Callable[..., LockingService]]:
    """Makes services, each a session of its own."""
    made: list[LockingService] = []

    def service(session: str = "", **options: Any) -> LockingService:
        made.append(LockingService(session or str(uuid.uuid4()), **{"now": clock, **options}))
        return made[-1]

    yield service
    for one in made:
        for run in list(one._held):
            one.release(run)


def path_of(folder: Path, user: str = "tester") -> Path:
    return folder / f"WilmerDb.{user}.sqlite"


def rows(path: Path, query: str = "SELECT WilmerSessionId, WorkflowId, WorkflowLockId FROM WorkflowLocks") -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def change(path: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement, values)


def sessions(path: Path) -> dict[str, str]:
    return dict(rows(path, "SELECT WilmerSessionId, LastSeen FROM WorkflowSessions"))


# -- taking and giving back --------------------------------------------------------------------------------------------


def test_schema_and_row(make: Callable[..., LockingService], folder: Path, clock: Clock) -> None:
    assert make("s1").acquire("gate", "run 1")
    columns = rows(path_of(folder), "SELECT name, type, pk FROM pragma_table_info('WorkflowLocks')")
    assert columns == [
        ("Id", "INTEGER", 1),
        ("WilmerSessionId", "NVARCHAR(50)", 0),
        ("WorkflowId", "NVARCHAR(50)", 0),
        ("WorkflowLockId", "NVARCHAR(500)", 0),
        ("ExpirationDate", "DATETIME", 0),
    ]
    columns = rows(path_of(folder), "SELECT name, type, pk FROM pragma_table_info('WorkflowSessions')")
    assert columns == [("WilmerSessionId", "NVARCHAR(50)", 1), ("LastSeen", "DATETIME", 0)]
    assert rows(path_of(folder), "SELECT * FROM WorkflowLocks") == [
        (1, "s1", "run 1", "gate", "2026-11-03 17:16:09.123456")
    ]
    assert sessions(path_of(folder)) == {"s1": "2026-11-03 17:06:09.123456"}
    assert rows(path_of(folder), "PRAGMA journal_mode") == [("wal",)]


def test_whole_seconds_are_written_in_full(make: Callable[..., LockingService], folder: Path, clock: Clock) -> None:
    clock.moment = datetime(2026, 11, 3, 17, 6, 9)
    make("s1").acquire("gate", "run 1")
    assert sessions(path_of(folder)) == {"s1": "2026-11-03 17:06:09.000000"}


def test_a_lock_is_held_once(make: Callable[..., LockingService]) -> None:
    one, other = make(), make()
    assert one.acquire("gate", "run 1")
    assert not one.acquire("gate", "run 1")  # not re-entrant
    assert not one.acquire("gate", "run 2")
    assert not other.acquire("gate", "run 3")
    assert other.acquire("other gate", "run 3")


def test_release(make: Callable[..., LockingService], folder: Path) -> None:
    one, other = make("s1"), make("s2")
    one.acquire("a", "run 1")
    one.acquire("b", "run 1")
    one.acquire("c", "run 2")
    other.release("run 1")  # not its own
    assert len(rows(path_of(folder))) == 3
    one.release("run 1")
    assert rows(path_of(folder)) == [("s1", "run 2", "c")]
    assert other.acquire("a", "run 3") and not other.acquire("c", "run 3")


def test_sessions_without_locks_are_forgotten(make: Callable[..., LockingService], folder: Path) -> None:
    one, other = make("s1"), make("s2")
    one.acquire("a", "run 1")
    other.acquire("b", "run 2")
    one.release("run 1")
    assert list(sessions(path_of(folder))) == ["s2"]


def test_nothing_is_touched_without_a_lock(make: Callable[..., LockingService], folder: Path) -> None:
    service = make()
    service.release("run 1")
    service.delete(workflow_id="run 1")
    service.delete_dead_locks()
    assert not service.is_locked("gate")
    assert not folder.exists()
    service.acquire("gate", "run 1")
    service.release("run 1")
    path_of(folder).unlink()
    service.release("run 1")
    assert not path_of(folder).exists()


def test_users_have_locks_of_their_own(
    make: Callable[..., LockingService], folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lab = Lab(tmp_path / "config", monkeypatch)
    lab.write("Users/anna", {})
    service = make()
    assert service.acquire("gate", "run 1") and service.acquire("gate", "run 2", user="anna")
    assert path_of(folder, "anna").exists()
    service.release("run 2")
    assert service.is_locked("gate") and not service.is_locked("gate", user="anna")


# -- expiry ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("minutes", "acquired"), [(9, False), (9.99, False), (10, True), (11, True)])
def test_expiry(
    make: Callable[..., LockingService], folder: Path, clock: Clock, minutes: float, acquired: bool
) -> None:
    one = make("s1")
    one.acquire("gate", "run 1")
    one.acquire("other", "run 1")
    change(path_of(folder), "DELETE FROM WorkflowSessions")  # written by an earlier version
    clock.forward(minutes=minutes)
    assert one.is_locked("gate") is not acquired
    assert make("s2").acquire("gate", "run 2") is acquired
    assert ("s1", "run 1", "other") in rows(path_of(folder))


def test_an_expired_lock_is_deleted_by_a_look(make: Callable[..., LockingService], folder: Path, clock: Clock) -> None:
    one = make()
    one.acquire("gate", "run 1")
    one.acquire("other", "run 1")
    clock.forward(minutes=11)
    assert not one.is_locked("gate")
    assert [row[2] for row in rows(path_of(folder))] == ["other"]


@pytest.mark.parametrize("date", ["", "soon", None, "2026-11-03 17:00:00", "2030-01-01T00:00:00+00:00"])
def test_a_date_that_is_past_or_none(make: Callable[..., LockingService], folder: Path, date: Any) -> None:
    one = make()
    one.acquire("gate", "run 1")
    change(path_of(folder), "UPDATE WorkflowLocks SET ExpirationDate = ?", date)
    assert one.acquire("gate", "run 2")
    assert len(rows(path_of(folder))) == 1


@pytest.mark.parametrize(("seconds", "acquired"), [(59, False), (60, True), (500, True)])
def test_a_dead_session_loses_its_locks(
    make: Callable[..., LockingService], folder: Path, clock: Clock, seconds: float, acquired: bool
) -> None:
    one = make("s1")
    one.acquire("gate", "run 1")
    one.acquire("other", "run 1")
    clock.forward(seconds=seconds)
    assert make("s2").acquire("gate", "run 2") is acquired
    assert len(rows(path_of(folder))) == 2


def test_a_session_does_not_take_itself_for_dead(make: Callable[..., LockingService], clock: Clock) -> None:
    one = make()
    one.acquire("gate", "run 1")
    clock.forward(seconds=300)  # for example after the machine slept
    assert not one.acquire("gate", "run 2")


# -- deleting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("criteria", "left"),
    [
        ({"session_id": "s1"}, [("s2", "w1", "c")]),
        ({"workflow_id": "w1"}, [("s1", "w2", "b")]),
        ({"lock_id": "b"}, [("s1", "w1", "a"), ("s2", "w1", "c")]),
        ({"session_id": "s1", "workflow_id": "w1"}, [("s1", "w2", "b"), ("s2", "w1", "c")]),
        ({"session_id": "s2", "workflow_id": "w2"}, [("s1", "w1", "a"), ("s1", "w2", "b"), ("s2", "w1", "c")]),
        ({}, [("s1", "w1", "a"), ("s1", "w2", "b"), ("s2", "w1", "c")]),
    ],
)
def test_delete(
    make: Callable[..., LockingService], folder: Path, criteria: dict[str, str], left: list[tuple[str, str, str]]
) -> None:
    one, other = make("s1"), make("s2")
    one.acquire("a", "w1")
    one.acquire("b", "w2")
    other.acquire("c", "w1")
    make().delete(**criteria)
    assert rows(path_of(folder)) == left


def test_delete_without_criteria_warns(make: Callable[..., LockingService], caplog: pytest.LogCaptureFixture) -> None:
    make().delete()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_start_deletes_locks_of_the_dead(make: Callable[..., LockingService], folder: Path, clock: Clock) -> None:
    make("old").acquire("a", "w1")
    make("never seen").acquire("b", "w2")
    change(path_of(folder), "DELETE FROM WorkflowSessions WHERE WilmerSessionId = 'never seen'")
    change(path_of(folder), "INSERT INTO WorkflowLocks (WorkflowLockId, ExpirationDate) VALUES ('n', '2030-01-01')")
    clock.forward(seconds=60)
    make("alive").acquire("c", "w3")
    own = make("own")
    own.acquire("d", "w4")
    change(path_of(folder), "DELETE FROM WorkflowSessions WHERE WilmerSessionId = 'own'")
    clock.forward(seconds=59)
    own.delete_dead_locks()
    assert [row[2] for row in rows(path_of(folder))] == ["c", "d"]
    assert list(sessions(path_of(folder))) == ["alive"]


def test_start_with_a_database_of_an_earlier_version(make: Callable[..., LockingService], folder: Path) -> None:
    folder.mkdir()
    change(
        path_of(folder),
        "CREATE TABLE WorkflowLocks (Id INTEGER PRIMARY KEY AUTOINCREMENT, WilmerSessionId "
        "NVARCHAR(50), WorkflowId NVARCHAR(50), WorkflowLockId NVARCHAR(500), ExpirationDate "
        "DATETIME)",
    )
    change(
        path_of(folder),
        "INSERT INTO WorkflowLocks (WilmerSessionId, WorkflowId, WorkflowLockId, ExpirationDate) "
        "VALUES ('s', 'w', 'gate', '2030-01-01 00:00:00.000000')",
    )
    service = make()
    assert not service.acquire("gate", "run 1")
    service.delete_dead_locks()
    assert service.acquire("gate", "run 1")


# -- keeping alive -----------------------------------------------------------------------------------------------------


def locks_thread() -> bool:
    return any(thread.name == "workflow-locks" for thread in threading.enumerate())


def test_locks_are_renewed_while_their_run_lives(
    make: Callable[..., LockingService], folder: Path, clock: Clock
) -> None:
    one = make("s1", beat_seconds=0.01)
    one.acquire("gate", "run 1")
    one.acquire("left", "run 2")
    one._held.pop("run 2")
    for _ in range(3):
        clock.forward(minutes=9)
        wanted = [("2026-11-03 17:16:09.123456", "left"), ((clock() + timedelta(minutes=10)).isoformat(" "), "gate")]
        query = "SELECT ExpirationDate, WorkflowLockId FROM WorkflowLocks ORDER BY ExpirationDate"
        assert until(lambda: rows(path_of(folder), query) == wanted)  # noqa: B023
        assert until(lambda: sessions(path_of(folder))["s1"] == clock().isoformat(" "))
        assert not make().acquire("gate", "run 3")


def test_the_thread_lives_while_locks_are_held(make: Callable[..., LockingService], folder: Path, clock: Clock) -> None:
    service = make(beat_seconds=0.01)
    assert until(lambda: not locks_thread())  # that of an earlier test may still be on its way out
    for _ in range(3):
        service.acquire("a", "run 1")
        service.acquire("b", "run 2")
        service.release("run 1")
        assert locks_thread()
        service.release("run 2")
        assert until(lambda: not locks_thread())
    clock.forward(minutes=1)
    time.sleep(0.05)
    assert sessions(path_of(folder)) == {}


def test_a_shortage_of_threads_passes(
    make: Callable[..., LockingService],
    folder: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = make("s1", beat_seconds=0.01)
    with monkeypatch.context() as patch:
        no_more_threads(patch, "workflow-locks")
        assert service.acquire("a", "run 1")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert service.acquire("b", "run 2")
    clock.forward(minutes=9)
    query = "SELECT DISTINCT ExpirationDate FROM WorkflowLocks"
    assert until(lambda: rows(path_of(folder), query) == [((clock() + timedelta(minutes=10)).isoformat(" "),)])


def test_a_beat_that_comes_late_leaves_no_session(
    make: Callable[..., LockingService], folder: Path, clock: Clock
) -> None:
    service = make("s1")
    service.acquire("gate", "run 1")
    service.release("run 1")
    lock_database.LockDatabase(str(path_of(folder)), clock).renew("s1", ["run 1"])
    assert sessions(path_of(folder)) == {}


def test_the_thread_survives_a_failing_database(
    make: Callable[..., LockingService], folder: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    one = make("s1", beat_seconds=0.01)
    one.acquire("gate", "run 1")
    hidden = path_of(folder).rename(folder / "hidden")
    path_of(folder).mkdir()
    assert until(lambda: any("kept alive" in record.message for record in caplog.records))
    path_of(folder).rmdir()
    hidden.rename(path_of(folder))
    clock.forward(minutes=9)
    assert until(lambda: sessions(path_of(folder)).get("s1") == clock().isoformat(" "))


# -- where the file is -------------------------------------------------------------------------------------------------


def test_directory_of_the_user_file(
    make: Callable[..., LockingService], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "USER_LEVEL_SQLITE_DIRECTORY", None)
    Lab(tmp_path / "config", monkeypatch).user(sqlLiteDirectory=str(tmp_path / "a" / "b"))
    assert make().acquire("gate", "run 1")
    assert path_of(tmp_path / "a" / "b").exists() and not folder.exists()


@pytest.mark.parametrize("where", ["working", "install"])
def test_a_file_where_earlier_versions_put_it_is_used(
    make: Callable[..., LockingService],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install = tmp_path / "install"
    install.mkdir()
    monkeypatch.setattr("Middleware.utilities.config_utils.get_project_root_directory_path", lambda: str(install))
    old = path_of(tmp_path if where == "working" else install)
    old.touch()
    with caplog.at_level(logging.INFO):
        service = make()
        assert service.acquire("gate", "run 1") and not service.acquire("gate", "run 2")
    assert len(rows(old)) == 1 and not folder.exists()
    assert [str(old) in record.message for record in caplog.records if "move" in record.message] == [True]


def test_a_file_in_its_place_wins(make: Callable[..., LockingService], folder: Path, tmp_path: Path) -> None:
    assert make().acquire("gate", "run 1")
    path_of(tmp_path).touch()
    assert not make().acquire("gate", "run 2")


# -- trouble -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def writer(make: Callable[..., LockingService], folder: Path) -> Iterator[sqlite3.Connection]:
    """Somebody who writes to the file and does not come to an end."""
    make().acquire("other", "run 0")
    with closing(sqlite3.connect(path_of(folder), isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield database


def test_busy_is_not_acquired(
    make: Callable[..., LockingService], writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.3)
    service = make()
    assert not service.acquire("gate", "run 1")
    writer.execute("ROLLBACK")
    assert service.acquire("gate", "run 1")


def test_a_short_wait_is_no_trouble(make: Callable[..., LockingService], folder: Path) -> None:
    make().acquire("other", "run 0")
    started, finish = threading.Event(), threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(path_of(folder), isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            started.set()
            finish.wait(60)
            database.execute("COMMIT")

    threading.Thread(target=write).start()
    assert started.wait(60)
    threading.Timer(0.4, finish.set).start()
    assert make().acquire("gate", "run 1")


def test_cancel_while_busy(make: Callable[..., LockingService], writer: sqlite3.Connection) -> None:
    scope, started = CancelScope(), time.monotonic()
    threading.Timer(0.2, scope.cancel).start()
    with pytest.raises(EarlyTerminationException) as caught:
        make().acquire("gate", "run 1", scope=scope)
    assert caught.value.is_cancellation
    assert time.monotonic() - started < PATIENCE / 2


def test_the_end_of_a_process_gives_all_back(
    make: Callable[..., LockingService], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Lab(tmp_path / "config", monkeypatch).write("Users/second", {})
    one, other = make("one"), make("other")
    assert one.acquire("A", "run 1") and one.acquire("B", "run 1") and one.acquire("C", "run 2", "second")
    assert other.acquire("D", "run 3")
    one.release_all()
    one.release_all()
    assert rows(path_of(folder)) == [("other", "run 3", "D")] and rows(path_of(folder, "second")) == []
    assert set(sessions(path_of(folder))) == {"other"}


def test_busy_release_is_logged(
    make: Callable[..., LockingService],
    writer: sqlite3.Connection,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    make().delete(lock_id="other")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert len(rows(path_of(folder))) == 1


def test_what_could_not_be_given_back_is_free_for_the_next(
    make: Callable[..., LockingService], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    service = make("s1")
    service.acquire("gate", "run 1")
    service.acquire("kept", "run 2")
    with closing(sqlite3.connect(path_of(folder), isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        service.release("run 1")
        assert not service.acquire("gate", "run 3")
    assert service.acquire("gate", "run 4") and not service.acquire("kept", "run 4")
    assert rows(path_of(folder)) == [("s1", "run 2", "kept"), ("s1", "run 4", "gate")]
    assert not service._ended


def test_the_thread_gives_back_what_could_not_be(
    make: Callable[..., LockingService], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make("s1", beat_seconds=0.01)
    service.acquire("gate", "run 1")
    service.acquire("kept", "run 2")
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    with closing(sqlite3.connect(path_of(folder), isolation_level=None, timeout=PATIENCE)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        service.release("run 1")
        assert service._ended
    assert until(lambda: rows(path_of(folder)) == [("s1", "run 2", "kept")])
    assert until(lambda: not service._ended)


def test_the_end_of_a_process_tries_again_to_give_back(
    make: Callable[..., LockingService], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    service = make("s1")
    service.acquire("gate", "run 1")
    with closing(sqlite3.connect(path_of(folder), isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        service.release("run 1")
    service.release_all()
    assert rows(path_of(folder)) == [] and not service._ended


@pytest.mark.parametrize("obstacle", ["folder is a file", "file is a folder", "no database"])
def test_a_database_that_cannot_be_opened_locks_nothing(
    make: Callable[..., LockingService], folder: Path, caplog: pytest.LogCaptureFixture, obstacle: str
) -> None:
    if obstacle == "folder is a file":
        folder.write_text("x", encoding="utf-8")
    elif obstacle == "file is a folder":
        path_of(folder).mkdir(parents=True)
    else:
        folder.mkdir()
        path_of(folder).write_text("this is no database " * 100, encoding="utf-8")
    service = make()
    assert service.acquire("gate", "run 1") and service.acquire("gate", "run 2")
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert not locks_thread()
    service.release("run 1")
    service.delete_dead_locks()
    assert not service.is_locked("gate")
    assert obstacle != "no database" or path_of(folder).read_text(encoding="utf-8").startswith("this is no database")


def test_other_errors_undo_everything(make: Callable[..., LockingService], folder: Path, clock: Clock) -> None:
    one = make("s1")
    one.acquire("gate", "run 1")
    clock.forward(minutes=11)
    change(path_of(folder), "CREATE TRIGGER t BEFORE INSERT ON WorkflowLocks BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(sqlite3.IntegrityError):
        make("s2").acquire("gate", "run 2")
    assert rows(path_of(folder)) == [("s1", "run 1", "gate")]


def test_a_full_disk_locks_nothing(
    make: Callable[..., LockingService], folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(sqlite3.Connection):
        """Stands for a disk with room for what is there."""

        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if sql.startswith("BEGIN"):
                super().execute("PRAGMA max_page_count = 1")  # SQLite takes the pages that the file has
            return super().execute(sql, *arguments)

    one = make("s1")
    one.acquire("held", "run 1")
    connect = sqlite3.connect
    monkeypatch.setattr(
        lock_database.sqlite3, "connect", lambda *arguments, **options: connect(*arguments, factory=Full, **options)
    )
    assert one.acquire("gate" * 10_000, "run 2")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "disk is full" in caplog.text
    monkeypatch.undo()
    assert rows(path_of(folder)) == [("s1", "run 1", "held")]


def test_without_a_write_ahead_log(
    make: Callable[..., LockingService], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(sqlite3.Connection):
        """Stands for a file system without shared memory."""

        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if "WAL" in sql:
                raise sqlite3.OperationalError("locking protocol")
            return super().execute(sql, *arguments)

    connect = sqlite3.connect
    monkeypatch.setattr(
        lock_database.sqlite3, "connect", lambda *arguments, **options: connect(*arguments, factory=Refusing, **options)
    )
    one, other = make(), make()
    assert one.acquire("gate", "run 1") and not other.acquire("gate", "run 2")
    one.release("run 1")
    assert other.acquire("gate", "run 2")
    assert rows(path_of(folder), "PRAGMA journal_mode") == [("delete",)]


def test_nothing_waits_for_the_disk(folder: Path, clock: Clock) -> None:
    """A lock that a power failure takes away is that of a run that it ended."""
    database = lock_database.LockDatabase(path_of(folder), clock)
    assert database.acquire("gate", "s1", "run 1")
    with database._transaction() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (0,)


# -- at once -----------------------------------------------------------------------------------------------------------


def test_threads_at_once(make: Callable[..., LockingService]) -> None:
    services = [make() for _ in range(3)]
    results: list[bool] = []
    barrier = threading.Barrier(12)

    def work(number: int) -> None:
        barrier.wait()
        results.append(services[number % 3].acquire("gate", f"run {number}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(results) == [False] * 11 + [True]


PROCESS = """
import sys
from Middleware.common import instance_global_variables as instance
from Middleware.services.locking_service import LockingService
instance.CONFIG_DIRECTORY, instance.USER_LEVEL_SQLITE_DIRECTORY, instance.USERS = sys.argv[1], sys.argv[2], ["tester"]
service = LockingService(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
print(service.acquire("gate", "run"), flush=True)
sys.stdin.readline()
"""


def test_processes_at_once(make: Callable[..., LockingService], folder: Path, tmp_path: Path) -> None:
    """The one that has the lock is killed; its lock gives way when it was not seen for a minute."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(tmp_path / "config"), str(folder), f"p{number}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(INSTALL)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        answers = [process.stdout.readline().strip() for process in processes if process.stdout]
        assert sorted(answers) == ["False"] * 3 + ["True"]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert not make(now=datetime.now).acquire("gate", "run 2")
    later = make(now=lambda: datetime.now() + timedelta(seconds=61))
    assert later.acquire("gate", "run 2")
