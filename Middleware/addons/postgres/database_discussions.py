"""Let a command work on the discussions of a state database, and change their key. Imported only where one is named."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg

from Middleware.addons.discussions.rekey.folder_keys import KeyChange
from Middleware.addons.discussions.rekey.key_folder import WRONG_KEY, Result, SkippedError, changed, is_data
from Middleware.addons.postgres.database import Database, StateConnection, first_line
from Middleware.addons.postgres.documents import DatabaseDiscussions
from Middleware.addons.postgres.migrations import SchemaError, migrate
from Middleware.addons.postgres.session import WorkerSession
from Middleware.addons.postgres.stored_discussions import DiscussionName, StoredRows, claim, discussion_names
from Middleware.exceptions import DataKeyError, StateUnavailableError
from Middleware.models.process import process
from Middleware.utilities.config.users import get_discussions_space
from Middleware.utilities.discussion_state import Discussions
from Middleware.utilities.discussions.discussion_folder import discussions
from Middleware.utilities.discussions.message_index.message_tables import MessageCodec
from Middleware.utilities.discussions.vector_memory.schema import Codec, is_token
from Middleware.utilities.text_utils import counted, storable

# A command waits longer than a client: a document may be large, or the machine busy.
SECONDS = 60.0


def database_for_command(url: str, name: str) -> Database:
    """Return a database that is waited for longer than by a server. Raises psycopg.Error for an impossible address."""
    database = Database(url, f"wilmer-{name}")
    database.statement_seconds = database.checkout_seconds = SECONDS
    return database


@contextlib.contextmanager
def discussions_of(url: str, name: str) -> Iterator[None]:
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


# -- changing the key --------------------------------------------------------------------------------------------------


def change_in_database(url: str, change: KeyChange) -> tuple[int, Result]:
    """Change the discussions of the old key, each in one transaction; return how many it has, and what was done.

    A discussion of which a part cannot be changed stays as it is, under the old key. After an interruption, start
    again: the others are under the new key already. Raises StateUnavailableError.
    """
    result = Result()
    try:
        with contextlib.closing(database_for_command(url, "rekey").connect()) as connection:
            migrate(connection)
            if workers := connection.execute("SELECT count(*) FROM wilmer.live_workers()").fetchall()[0][0]:
                raise StateUnavailableError(
                    f"The state database is in use by {counted(workers, 'running server')}. "
                    "Stop all servers, then run this again. Nothing was changed."
                )
            with discussions_of(url, "rekey"):
                change = change.placed()
                space = storable(get_discussions_space())
                names = [
                    (name, one)
                    for name in discussion_names(connection)
                    for one in change.sources()
                    if name[:2] == (space, one.operation.old)
                ]
                if names:
                    change.keep_salt()
            for name, one in names:
                _change(connection, name, one, result)
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
    owners |= _changed_messages(stored, change)
    new = change.operation.new
    if new and not stored.give_to(new):
        raise SkippedError("has the name of a conversation that the new key has already")
    return owners


def _changed_messages(stored: StoredRows, change: KeyChange) -> set[str]:
    """Change the message index of a discussion, and return whose it is. Raises DataKeyError."""
    if not any(rows for _, rows in stored.messages()):
        return set()
    hash_key = stored.message_hash_key()
    source = MessageCodec.read(change.source, hash_key)
    target = change.target(source.cipher.mark)
    if source.cipher.mark != target.mark or is_token(hash_key) != target.active:
        stored.convert_messages(source, target)
    return {change.owner(source.cipher.mark)}
