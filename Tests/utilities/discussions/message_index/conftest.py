"""The places of message indexes: the same cases over an SQLite file and over PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from Tests.postgres_lab import Server, open_database
from Tests.utilities.discussions.message_index import lab

if TYPE_CHECKING:
    from Middleware.addons.postgres.database import Database


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest) -> Iterator[Database]:
    """One database for all cases, as making one takes longer than a case; each has its own space in it."""
    server: Server = request.getfixturevalue("postgres")
    database = open_database(server.new_database())
    yield database
    database.close()


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.slow)])
def anywhere(request: pytest.FixtureRequest) -> Iterator[str]:
    """Let the test run in each place, which it gets; without this fixture, indexes are files."""
    if request.param == "postgres":
        lab.databases.append(request.getfixturevalue("shared"))
    yield str(request.param)
    lab.databases.clear()
