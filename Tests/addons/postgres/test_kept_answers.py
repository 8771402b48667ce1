"""What LLMs must get back with their tool calls, among several workers."""

from __future__ import annotations

import pytest

from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.kept_answers import SharedKeepsakes
from Middleware.llmapis.keepsakes import MAX_ANSWER_BYTES, KeptAnswer


@pytest.fixture
def one(database: Database) -> SharedKeepsakes:
    return SharedKeepsakes(database)


@pytest.fixture
def two(other: Database) -> SharedKeepsakes:
    return SharedKeepsakes(other)


def answer(kept: bytes = b"", ids: tuple[str, ...] = ("call_0",), question: str = "q", user: str = "ann") -> KeptAnswer:
    return KeptAnswer((user, "key"), ids, "shape", question, kept)


def found(store: SharedKeepsakes, wanted: KeptAnswer, is_running: bool = True) -> list[bytes]:
    return [one.kept for one in store.find(wanted, is_running)]


def test_another_worker_finds_it(one: SharedKeepsakes, two: SharedKeepsakes, database: Database) -> None:
    one.put(answer(b"first"))
    one.put(answer(b"second", question="other"))
    one.put(answer(b"third", ids=("call_9\0",)))
    assert found(two, answer()) == [b"first"] and found(two, answer(question="other")) == [b"second"]
    assert found(two, answer(question="unknown")) == []
    assert found(two, answer(user="bob")) == []
    # Only a miss of the running exchange is worth a question.
    assert found(two, answer(), is_running=False) == []
    assert "ann" not in repr(database.read("SELECT owner FROM wilmer.keepsakes"))


def test_what_must_not_or_need_not_leave_the_process(one: SharedKeepsakes, two: SharedKeepsakes) -> None:
    for kept, secret in ((b"", False), (b"secret", True), (b"x" * (MAX_ANSWER_BYTES + 1), False)):
        one.put(KeptAnswer(("ann", "key"), ("call_0",), "shape", "q", kept, secret))
    assert found(two, answer()) == []


def test_it_is_forgotten_after_12_hours(one: SharedKeepsakes, two: SharedKeepsakes, database: Database) -> None:
    one.put(answer(b"first"))
    database.write("UPDATE wilmer.keepsakes SET at = at - interval '11 hours 59 minutes'")
    assert found(two, answer()) == [b"first"]
    database.write("UPDATE wilmer.keepsakes SET at = at - interval '2 minutes'")
    assert found(two, answer()) == []
    two.tidy()
    assert len(database.read("SELECT 1 FROM wilmer.keepsakes")) == 1
    two._tidied -= 3600
    two.tidy()
    assert database.read("SELECT 1 FROM wilmer.keepsakes") == []
