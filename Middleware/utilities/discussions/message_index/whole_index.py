"""A whole message index, row for row as it is stored, for moving it between a file and a state database."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Any

from Middleware.utilities import sqlite
from Middleware.utilities.discussions.message_index import message_tables as tables
from Middleware.utilities.discussions.message_index.message_tables import FileStatements, MessageCodec, Statements
from Middleware.utilities.discussions.vector_memory.schema import is_token
from Middleware.utilities.discussions.vector_memory.whole import replacing
from Middleware.utilities.text_utils import storable

# The columns of each table, those that order its rows first, and how many these are.
_TABLES = {
    "messages": (tables.COLUMNS, 1),
    "conversations": ("id, used, tentative", 1),
    "meta": ("name, value", 1),
    "message_embeddings": ("message_id, model, vector", 2),
}
_NOT_MOVED = (tables.VERSION, tables.GENERATION)
_BATCH = 2_000

Rows = Iterable[tuple[str, list[tuple[Any, ...]]]]
"""Names of tables, each with some of its rows."""


def stored_rows(rows: Statements | None) -> Rows:
    """Yield all rows in an order that is the same in each place; none without an index."""
    if rows is None:
        return
    for table, (columns, count) in _TABLES.items():
        key, marks = ", ".join(columns.split(", ")[:count]), ", ".join("?" * count)
        some = rows.all(f"SELECT {columns} FROM {table} ORDER BY {key} LIMIT ?", (_BATCH,))
        while some:
            last = some[-1][:count]
            if plain := [_plain(table, row) for row in some if row[0] not in _NOT_MOVED]:
                yield table, plain
            where = f"({key}) > ({marks})"
            some = rows.all(f"SELECT {columns} FROM {table} WHERE {where} ORDER BY {key} LIMIT ?", (*last, _BATCH))


def write_rows(target: Statements, rows: Rows) -> None:
    """Store rows in an index that has none."""
    for table, some in rows:
        marks = ", ".join("?" * (_TABLES[table][0].count(",") + 1))
        target.do(f"INSERT INTO {table} VALUES ({marks})", some)


@contextlib.contextmanager
def file_of_a_moment(path: str | None) -> Iterator[Statements | None]:
    """Open a file so that all that is read is of one moment; None without an index there. Raises sqlite3.Error."""
    if not path or not os.path.isfile(path):
        yield None
        return
    with contextlib.closing(tables.connect(path)) as database:
        database.execute("BEGIN")
        yield FileStatements(database, None, sqlite.BUSY_SECONDS) if tables.table_names(database) else None


def write_file(path: str, rows: Rows, mode: int) -> None:
    """Write an index with these rows, and the index of words if they are in clear, in place of what is there.

    Raises sqlite3.Error and OSError.
    """
    with replacing(path, mode) as database:
        database.row_factory = None
        with sqlite.transaction(database):
            for statement in tables.TABLES:
                database.execute(statement)
            tables.begin_to_count(database)
            write_rows(FileStatements(database, None, 0), rows)
            found = database.execute("SELECT value FROM meta WHERE name = ?", (tables.HASH_KEY,)).fetchone()
            if found is None or not is_token(found[0]):
                database.execute(tables.INDEX_TABLE)
                tables.write_words(database, MessageCodec())


def _plain(table: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row with values of the types that each place can store."""
    if table == "conversations":
        return (*row[:2], bool(row[2]))
    plain = tuple(storable(value) if isinstance(value, str) else value for value in row)
    # A token is text in a file.
    if table == "message_embeddings" and isinstance(plain[2], str):
        return (*plain[:2], plain[2].encode("ascii"))
    return plain
