"""Notifications between workers, and what is missed while a connection is lost."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator

import pytest

from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.listener import CANCEL, GATE, NOTIFY, Listener, notifications_arrive
from Tests.postgres_lab import Server, eventually, impatient, open_database

pytestmark = pytest.mark.slow
END_LISTENER = (
    "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND query LIKE 'LISTEN%%'"
)


class Heard:
    """A listener, what it has heard, and what gaps it has told of."""

    def __init__(self, database: Database) -> None:
        self.heard: queue.Queue[str] = queue.Queue()
        self.gaps: queue.Queue[float] = queue.Queue()
        self.beats: queue.Queue[None] = queue.Queue()
        self.listener = Listener(database)
        self.listener.on(CANCEL, self.heard.put)
        self.listener.on(GATE, lambda rest: self.heard.put(f"gate:{rest}"))
        self.listener.on_gap(self.gaps.put)
        self.listener.on_beat(lambda: self.beats.put(None))
        self.listener.start()

    def hears(self, database: Database) -> bool:
        database.read(NOTIFY, ["gate"])
        return self.heard.get(timeout=60) == "gate:"


@pytest.fixture
def listening(database: Database) -> Iterator[Heard]:
    heard = Heard(database)
    yield heard
    heard.listener.stop()


def test_what_another_worker_says_is_heard(listening: Heard, database_url: str) -> None:
    other = open_database(database_url)
    other.read(NOTIFY, ["cancel abc def"])
    other.read(NOTIFY, ["gate"])
    other.read(NOTIFY, ["something new"])
    other.read(NOTIFY, ["cancel last"])
    assert [listening.heard.get(timeout=60) for _ in range(3)] == ["abc def", "gate:", "last"]
    other.close()


def test_the_test_at_the_start(listening: Heard, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with database.connect() as connection:
        assert notifications_arrive(database, connection, 60)
        # A pooler that passes them to somebody else.
        monkeypatch.setattr("Middleware.addons.postgres.listener.NOTIFY", "SELECT %s")
        assert not notifications_arrive(database, connection, 0.1)
    # For other workers it means nothing.
    assert listening.hears(database)


def test_a_function_that_fails_ends_nothing(
    listening: Heard, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    listening.listener.on("bad", lambda rest: 1 / 0)
    database.read(NOTIFY, ["bad"])
    database.read(NOTIFY, ["cancel a"])
    assert listening.heard.get(timeout=60) == "a"
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == ["ERROR"]


def test_it_beats(listening: Heard) -> None:
    for _ in range(2):
        listening.beats.get(timeout=60)


def test_after_a_lost_connection_it_listens_again_and_tells_of_the_gap(listening: Heard, database: Database) -> None:
    database.read(END_LISTENER)
    # Five seconds before the loss, at least.
    assert listening.gaps.get(timeout=60) >= 5
    assert listening.hears(database) and not database.down
    # And at the start there was no gap.
    assert listening.gaps.empty()


def test_it_comes_back_with_the_database(own_postgres: Server) -> None:
    database = open_database(own_postgres.new_database())
    listening = Heard(database)
    database.read("SELECT 1")
    impatient(database)
    own_postgres.kill()
    # The listener finds it out by itself.
    eventually(lambda: database.down)
    own_postgres.start()
    assert listening.gaps.get(timeout=60) >= 5
    database.checkout_seconds = 60
    assert listening.hears(database)
    listening.listener.stop()
    database.close()


def test_a_frozen_server_is_noticed_by_its_proofs(own_postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("Middleware.addons.postgres.listener._PROOF_SECONDS", 0.5)
    database = open_database(own_postgres.new_database())
    impatient(database)
    listening = Heard(database)
    own_postgres.freeze()
    # The proof is given up, and its replacement cannot connect within the time limit of the start of this test.
    eventually(lambda: listening.listener._connection is None)
    own_postgres.thaw()
    assert listening.gaps.get(timeout=60) >= 5
    listening.listener.stop()
    database.close()
