"""The schema of the state database: numbered SQL files, applied in order by whichever worker starts first.

Each must leave the release before it working: add and fill, and only a release later remove. The first line of each
file names the oldest program that works with the schema after it, by the number of the newest file that it has.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import cache
from importlib import resources

from psycopg import errors

from Middleware.addons.postgres.database import StateConnection
from Middleware.exceptions import OperatorError

_FILE = re.compile(r"(\d{4})_\w+\.sql")
_OLDEST = re.compile(r"-- oldest program: (\d+)\n")
# For the lock that one migrating worker holds: any number that nothing else locks.
_LOCK = 0x57494C4D5F534348
# Another worker that migrates a large database.
_WAIT_SECONDS = 60.0
_ATTEMPTS = 3


class SchemaError(OperatorError):
    """The schema cannot be used or made. The text is one sentence for the administrator."""


@dataclass(frozen=True)
class Migration:
    number: int
    name: str
    oldest_program: int
    statements: str


@cache
def migrations() -> tuple[Migration, ...]:
    """Return what this program knows, in order."""
    found = []
    for file in resources.files(__package__).iterdir():
        match = _FILE.fullmatch(file.name)
        if match:
            text = file.read_text(encoding="utf-8")
            oldest = _OLDEST.match(text)
            assert oldest is not None, f"{file.name} names no oldest program"
            found.append(Migration(int(match[1]), file.name.removesuffix(".sql"), int(oldest[1]), text))
    return tuple(sorted(found, key=lambda one: one.number))


def migrate(connection: StateConnection) -> list[str]:
    """Bring the schema up to date and return the names of what was applied.

    Raises SchemaError if it is too new for this program or cannot be changed, psycopg.Error if the database fails.
    """
    if not _missing(connection):
        return []
    # What a migration fills may take its time, as no client is served yet.
    connection.seconds = None
    connection.execute("SET statement_timeout = 0")
    try:
        _wait_for_lock(connection)
        try:
            # Another worker may have done it in the meantime.
            return [_apply(connection, migration) for migration in _missing(connection)]
        finally:
            if not connection.closed:
                connection.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])
    except errors.InsufficientPrivilege as error:
        raise SchemaError(
            f"the role {connection.info.user} may not make the tables of the schema wilmer: "
            f"{error.diag.message_primary}"
        ) from None


def has_schema(connection: StateConnection) -> bool:
    """Return whether anything was applied. Raises psycopg.Error."""
    return bool(connection.execute("SELECT to_regclass('wilmer.schema_version') IS NOT NULL").fetchall()[0][0])


def _missing(connection: StateConnection) -> list[Migration]:
    """Return what is not applied yet."""
    version, oldest = 0, 0
    if has_schema(connection):
        [(version, oldest)] = connection.execute(
            "SELECT coalesce(max(version), 0), coalesce(max(oldest_program), 0) FROM wilmer.schema_version"
        ).fetchall()
    known = migrations()
    if oldest > known[-1].number:
        raise SchemaError(
            f"its schema has number {version}, for programs that know at least number {oldest}; this one "
            f"knows {known[-1].number}. Install the release that the other workers have"
        )
    return [migration for migration in known if migration.number > version]


def _wait_for_lock(connection: StateConnection) -> None:
    ends = time.monotonic() + _WAIT_SECONDS
    while not connection.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK]).fetchall()[0][0]:
        if time.monotonic() >= ends:
            raise SchemaError(f"another program has been changing its schema for {_WAIT_SECONDS:g} s")
        time.sleep(0.1)


def _apply(connection: StateConnection, migration: Migration) -> str:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with connection.transaction():
                # Workers of the release before may use the tables at this moment.
                connection.execute("SET LOCAL lock_timeout = '3s'")
                connection.execute(migration.statements)
                connection.execute(
                    "INSERT INTO wilmer.schema_version (version, oldest_program) VALUES (%s, %s)",
                    [migration.number, migration.oldest_program],
                )
            break
        except errors.LockNotAvailable:
            if attempt == _ATTEMPTS:
                raise SchemaError(f"its tables are in use, so that {migration.name} could not be applied") from None
    return migration.name
