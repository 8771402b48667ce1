"""Cancellations of requests that another worker has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from Middleware.addons.postgres import shared_objects as module
from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.shared_objects import MAX_ID, SharedCancellations
from Middleware.exceptions import StateUnavailableError
from Middleware.models.cancel_scope import CancelScope
from Middleware.services.cancellation_service import CancellationService


class Worker:
    def __init__(self, database: Database) -> None:
        self.service = CancellationService()
        self.owners: dict[str, str] = {}
        self.shared = SharedCancellations(database, self.service, self.owners.get)
        self.service.relay = self.shared.pass_on

    def run(self, request_id: str, user: str = "") -> CancelScope:
        """The scope of a request that this worker has."""
        self.owners[request_id] = user
        scope = CancelScope()
        self.service.adopt(request_id, scope)
        return scope


@pytest.fixture
def one(database: Database) -> Worker:
    return Worker(database)


@pytest.fixture
def two(other: Database) -> Worker:
    return Worker(other)


@pytest.fixture
def heard(database_url: str) -> Iterator[Callable[[], list[str]]]:
    """The notifications so far, since it was called last."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("LISTEN wilmer")

        def payloads() -> list[str]:
            # It arrives after all others.
            connection.execute("NOTIFY wilmer, 'last'")
            found: list[str] = []
            for notification in connection.notifies(timeout=60):
                if notification.payload == "last":
                    break
                found.append(notification.payload)
            return found

        yield payloads


def test_an_unknown_request_is_named_to_all(one: Worker, two: Worker, heard: Callable[[], list[str]]) -> None:
    scope = two.run("r 1")
    one.service.request_cancellation("r 1", "displaced")
    assert heard() == ["cancel r 1"]
    one.shared.notified("r 1")
    two.shared.notified("r 1")
    assert scope.cancelled


def test_a_known_request_is_nobody_elses_business(
    one: Worker, heard: Callable[[], list[str]], database: Database
) -> None:
    scope = one.run("r 1")
    one.service.request_cancellation("r 1")
    assert scope.cancelled and heard() == []
    with one.service.watched("script") as watched:
        one.service.request_cancellation("script")
        assert watched.cancelled and heard() == []
    one.service.request_cancellation("x" * (MAX_ID + 1))
    assert heard() == [] and database.read("SELECT 1 FROM wilmer.cancellations") == []


def test_what_was_not_heard_is_read(one: Worker, two: Worker, database: Database) -> None:
    early, late = two.run("early"), two.run("late")
    one.service.request_cancellation("early", "why")
    database.write("UPDATE wilmer.cancellations SET at = now() - interval '30 seconds'")
    one.service.request_cancellation("late", "why")
    two.shared.catch_up(20)
    assert late.reason == "why" and not early.cancelled
    two.shared.catch_up(300)
    assert early.cancelled


def test_a_key_for_some_users_stops_their_requests_only(
    one: Worker, two: Worker, heard: Callable[[], list[str]]
) -> None:
    own, foreign, unnamed = two.run("r 1", "zoë, b"), two.run("r 2", "ann"), two.run("r 3")
    for request_id in ("r 1", "r 2", "r 3", "r 4"):
        one.service.request_cancellation(request_id, users=frozenset({"zoë, b", "carl"}))
    words = heard()
    assert [word.partition(" ")[0] for word in words] == ["cancel-for"] * 4
    for word in words:
        two.shared.notified_for(word.partition(" ")[2])
    assert own.cancelled and not foreign.cancelled and not unnamed.cancelled
    # The same when a worker reads afterwards what it has missed.
    again, foreign_again = two.run("r 1", "carl"), two.run("r 2", "ann")
    two.shared.catch_up(300)
    assert again.cancelled and not foreign_again.cancelled


def test_a_notification_for_nobody_leaves_nothing(one: Worker) -> None:
    one.shared.notified("stranger")
    assert not one.service.is_cancelled("stranger")


def test_texts_that_postgresql_cannot_hold(one: Worker, heard: Callable[[], list[str]]) -> None:
    one.service.request_cancellation("a\0\ud800", "b\0")
    assert heard() == ["cancel a\ufffd\ufffd"]


def test_old_rows_go(one: Worker, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    one.service.request_cancellation("old")
    database.write("UPDATE wilmer.cancellations SET at = now() - interval '61 minutes'")
    one.service.request_cancellation("new")
    one.shared.tidy()
    assert len(database.read("SELECT 1 FROM wilmer.cancellations")) == 2
    monkeypatch.setattr(module, "_TIDY_SECONDS", 0)
    one.shared.tidy()
    assert database.read("SELECT request_id FROM wilmer.cancellations") == [("new",)]


def test_without_the_database_only_those_of_others_fail(one: Worker, database: Database) -> None:
    database.close()
    scope = one.run("r 1")
    one.service.request_cancellation("r 1")
    assert scope.cancelled
    with pytest.raises(StateUnavailableError):
        one.service.request_cancellation("r 2")
    one.service.cancel_elsewhere("r 2")
