"""The rows by which workers know of each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.presence import Presence, configuration_hash
from Middleware.addons.postgres.session import NUMBERS
from Tests.postgres_lab import Server, impatient, open_database
from Tests.workflows.engine_lab import until

pytestmark = pytest.mark.slow


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "Configs"
    (folder / "Users").mkdir(parents=True)
    (folder / "Users" / "ann.json").write_text("{}", "utf-8")
    monkeypatch.setattr("Middleware.common.instance_global_variables.CONFIG_DIRECTORY", str(folder))
    return folder


def rows(database: Database) -> list[int]:
    return [number for (number,) in database.read("SELECT number FROM wilmer.workers ORDER BY number")]


def test_the_hash_knows_names_and_bytes_of_json_files_only(configs: Path) -> None:
    first = configuration_hash()
    (configs / "notes.txt").write_text("x", "utf-8")
    assert configuration_hash() == first and len(first) == 64
    (configs / "Users" / "bob.json").write_text("", "utf-8")
    second = configuration_hash()
    (configs / "Users" / "bob.json").rename(configs / "Users" / "bot.json")
    assert len({first, second, configuration_hash()}) == 3


def test_a_row_for_each_worker_and_one_warning_of_a_difference(
    database: Database, configs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # What tells that three workers are alive.
    session = database.connect()
    session.execute("SELECT pg_advisory_lock(%s, number) FROM generate_series(1, 3) AS number", [NUMBERS])
    presences = [Presence(database, lambda number=number: number) for number in (1, 2)]
    for presence in presences:
        presence.enter()
    assert rows(database) == [1, 2] and caplog.text == ""
    (configs / "Users" / "ann.json").write_text('{"port": 1}', "utf-8")
    third = Presence(database, lambda: 3, "concurrency=2/wilmer")
    third.enter()
    third.compare()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"Worker {number} has another configuration than this one, worker 3" for number in (1, 2)
    ]
    # A dead worker's row is nobody's configuration.
    caplog.clear()
    session.execute("SELECT pg_advisory_unlock(%s, number) FROM generate_series(2, 3) AS number", [NUMBERS])
    Presence(database, lambda: 1).enter()
    assert caplog.text == ""
    session.close()


def test_the_row_of_an_earlier_worker_is_no_difference(
    database: Database, configs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its number belongs to a worker that is starting and has not written its own row yet."""
    session = database.connect()
    session.execute("SELECT pg_advisory_lock(%s, number) FROM generate_series(1, 2) AS number", [NUMBERS])
    Presence(database, lambda: 1, "concurrency=8/wilmer").enter()
    database.write("UPDATE wilmer.workers SET last_seen = now() - interval '2 minutes'")
    second = Presence(database, lambda: 2)
    second.enter()
    assert caplog.text == ""
    database.write("UPDATE wilmer.workers SET last_seen = now() - interval '30 seconds'")
    second.compare()
    assert "Worker 1 has another configuration" in caplog.text
    session.close()


def test_a_row_that_was_lost_or_has_another_number_is_written_anew(database: Database, configs: Path) -> None:
    number = [1]
    presence = Presence(database, lambda: number[0])
    presence.beat()
    assert rows(database) == [1]
    database.write("DELETE FROM wilmer.workers")
    presence.beat()
    assert rows(database) == []
    number[0] = 2
    presence.beat()
    assert rows(database) == [2]
    presence.leave()
    assert rows(database) == []


def test_a_database_that_goes_between_two_statements_is_no_error(
    own_postgres: Server, configs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database = open_database(own_postgres.new_database())
    presence = Presence(database, lambda: 1)
    compare = presence.compare

    def killed_before() -> None:
        own_postgres.kill()
        impatient(database)
        compare()

    monkeypatch.setattr(presence, "compare", killed_before)
    presence.enter()
    assert [record for record in caplog.records if record.levelname == "ERROR" and record.exc_info] == []
    monkeypatch.undo()
    own_postgres.start()
    assert until(lambda: not database.down, 60)
    presence.beat()
    assert rows(database) == [1]
    database.close()


def test_a_worker_that_drains_says_so_until_it_starts_again(database: Database, configs: Path) -> None:
    presence = Presence(database, lambda: 1)
    presence.enter()

    def drains() -> bool:
        [(flag,)] = database.read("SELECT draining FROM wilmer.workers")
        return bool(flag)

    assert not drains()
    presence.drain()
    assert until(drains, 60)
    presence.enter()
    assert not drains()
    database.close()
    presence.drain()
