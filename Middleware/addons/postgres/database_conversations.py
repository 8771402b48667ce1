"""Let a command work on the discussions of a state database. Imported only where one is named."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg

from Middleware.addons.postgres.database import Database, first_line
from Middleware.addons.postgres.documents import DatabaseDiscussions
from Middleware.addons.postgres.session import WorkerSession
from Middleware.exceptions import StateUnavailableError
from Middleware.models.process import process
from Middleware.utilities.conversations.discussion_folder import discussions
from Middleware.utilities.discussion_state import Discussions

# A command waits longer than a client: a document may be large, or the machine busy.
SECONDS = 60.0


def database_for_command(url: str, name: str) -> Database:
    """Return a database that is waited for longer than by a server. Raises psycopg.Error for an impossible address."""
    database = Database(url, f"wilmer-{name}")
    database.statement_seconds = database.checkout_seconds = SECONDS
    return database


@contextlib.contextmanager
def conversations_of(url: str, name: str) -> Iterator[None]:
    """Let everything that reads or changes discussions use the database in this block.

    ``name``: of the command, which the database shows next to its connections. Raises StateUnavailableError.
    """
    before = process().one(discussions)
    try:
        database = database_for_command(url, name)
        # A mistake in the address is reported here; later, the reason is not asked for.
        database.connect().close()
    except psycopg.Error as error:
        raise StateUnavailableError(f"The state database cannot be used: {first_line(error)}") from None
    with contextlib.closing(database), contextlib.closing(WorkerSession(database)) as session:
        database.open()
        # Only a command that takes a lock connects the session.
        stored: Discussions = DatabaseDiscussions(database, session)
        process().put(discussions, stored)
        try:
            yield
        finally:
            process().put(discussions, before)
