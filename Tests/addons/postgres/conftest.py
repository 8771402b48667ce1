"""The state database as two workers have it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from Middleware.addons.postgres.database import Database
from Tests.postgres_lab import open_database


@pytest.fixture
def other(database: Database, database_url: str) -> Iterator[Database]:
    """The same database, as another worker has it."""
    opened = open_database(database_url)
    yield opened
    opened.close()
