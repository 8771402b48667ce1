"""Which worker may abort what runs on a KoboldCpp server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.session import WorkerSession
from Middleware.addons.postgres.shared_objects import SharedCallCounter
from Tests.workflows.engine_lab import until

HERE, THERE = "http://here/api/extra/abort", "http://there/api/extra/abort"


@pytest.fixture
def sessions(database: Database, other: Database) -> Iterator[list[WorkerSession]]:
    opened = [WorkerSession(database), WorkerSession(other)]
    for session in opened:
        session.open()
    yield opened
    for session in opened:
        session.close()


@pytest.fixture
def one(sessions: list[WorkerSession]) -> SharedCallCounter:
    return SharedCallCounter(sessions[0])


@pytest.fixture
def two(sessions: list[WorkerSession]) -> SharedCallCounter:
    return SharedCallCounter(sessions[1])


def test_a_call_of_another_worker_keeps_a_server_busy(one: SharedCallCounter, two: SharedCallCounter) -> None:
    with one.counted(HERE):
        with one.counted(HERE), two.counted(HERE):
            assert one.busy(HERE) and two.busy(HERE) and not two.busy(THERE)
        assert one.busy(HERE) and two.busy(HERE)
    assert not one.busy(HERE) and not two.busy(HERE)


def test_a_call_that_fails_is_over(one: SharedCallCounter, two: SharedCallCounter) -> None:
    with pytest.raises(OSError), one.counted(HERE):
        raise OSError
    assert not two.busy(HERE)


def test_a_worker_that_is_killed_keeps_nothing_busy(
    one: SharedCallCounter, two: SharedCallCounter, sessions: list[WorkerSession]
) -> None:
    with one.counted(HERE):
        sessions[0].close()
        # The server may take a moment to notice.
        assert until(lambda: not two.busy(HERE), 60)


def test_a_lost_session_takes_the_locks_again(
    one: SharedCallCounter, two: SharedCallCounter, sessions: list[WorkerSession], database: Database
) -> None:
    sessions[0].on_number(one.renew)
    with one.counted(HERE):
        database.read(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 "
            "AND classid = 1464421453 AND objid = %s",
            [sessions[0].number],
        )
        assert until(lambda: not two.busy(HERE), 60)

        def is_busy_again() -> bool:
            # Once a second in a server; the end of the connection may not have arrived yet.
            sessions[0].look()
            return two.busy(HERE)

        assert until(is_busy_again, 60)
    assert not two.busy(HERE)


def test_without_the_database_nothing_is_aborted(one: SharedCallCounter, database: Database) -> None:
    database.close()
    with one.counted(HERE):
        assert one.busy(HERE)
    assert one.busy(HERE)
