"""Changing the key of the discussions in a state database: each in one transaction, with its key's name."""

from __future__ import annotations

from contextlib import closing

import psycopg

from Middleware.addons.discussions.rekey.folder import WRONG_KEY, Result, SkippedError, changed, is_data
from Middleware.addons.discussions.rekey.keys import KeyChange
from Middleware.addons.postgres.database import StateConnection, first_line
from Middleware.addons.postgres.database_conversations import database_for_command
from Middleware.addons.postgres.migrations import SchemaError, migrate
from Middleware.addons.postgres.stored_discussions import DiscussionName, claim, discussion_names
from Middleware.exceptions import DataKeyError, StateUnavailableError
from Middleware.utilities.config.users import get_discussions_space
from Middleware.utilities.conversations.vector_memory.schema import Codec, is_token
from Middleware.utilities.text_utils import counted, storable


def change_in_database(url: str, change: KeyChange) -> tuple[int, Result]:
    """Change the discussions of the old key; return how many it has, and what was done.

    A discussion of which a part cannot be changed stays as it is, under the old key. After an interruption, start
    again: the others are under the new key already. Raises StateUnavailableError.
    """
    result = Result()
    try:
        with closing(database_for_command(url, "rekey").connect()) as connection:
            migrate(connection)
            if workers := connection.execute("SELECT count(*) FROM wilmer.live_workers()").fetchall()[0][0]:
                raise StateUnavailableError(
                    f"The state database is in use by {counted(workers, 'running server')}. "
                    "Stop all servers, then run this again. Nothing was changed."
                )
            space = storable(get_discussions_space())
            names = [
                name
                for name in discussion_names(connection)
                if (name.space, name.key_hash) == (space, change.operation.old)
            ]
            for name in names:
                _change(connection, name, change, result)
            return len(names), result
    except psycopg.Error as error:
        raise StateUnavailableError(f"The state database: {first_line(error)}. Run it again to go on.") from None
    except SchemaError as error:
        raise StateUnavailableError(f"The state database: {error}.") from None


def _change(connection: StateConnection, name: DiscussionName, change: KeyChange, result: Result) -> None:
    try:
        with connection.transaction():
            owners = _changed_owners(connection, name, change)
    except SkippedError as error:
        result.skipped[name.discussion_id] = str(error)
    except DataKeyError:
        result.skipped[name.discussion_id] = WRONG_KEY
    else:
        result.changed += 1
        result.owners |= owners


def _changed_owners(connection: StateConnection, name: DiscussionName, change: KeyChange) -> set[str]:
    """Change a discussion and return whose it is. Raises SkippedError, DataKeyError."""
    stored, owners = claim(connection, name), set[str]()
    for document in filter(is_data, stored.document_names()):
        content, owner = changed(document, stored.document(document), change)
        owners |= {owner} if owner else set()
        if content is not None:
            stored.write_document(document, content)
    newest = stored.newest_text()
    if newest is not None:
        cipher = change.source.like(newest.encode("ascii")) if is_token(newest) else change.source
        target = change.target(cipher.mark)
        owners.add(change.owner(cipher.mark))
        if cipher.mark != target.mark:
            stored.convert_memories(Codec(change.source), Codec(target))
    new = change.operation.new
    if new and not stored.give_to(new):
        raise SkippedError("has the name of a conversation that the new key has already")
    return owners
