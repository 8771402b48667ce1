"""The salts of format 2 in the state database, one for each space, and their way from files and back."""

from __future__ import annotations

import os
from collections.abc import Sequence

from Middleware.addons.postgres.database import StateConnection
from Middleware.utilities.discussions.key_salts import SALT_FILE, SaltFiles, missing_salt, parse_salt, salt_text
from Middleware.utilities.encryption_utils import NAME_START, KeySalt

_PLACE = "table wilmer.key_salts"
# A command may look at a database that no server of this version has used yet.
_HAS_TABLE = "SELECT to_regclass('wilmer.key_salts') IS NOT NULL"
_FIND = "SELECT content FROM wilmer.key_salts WHERE space = %s"
_KEYS = "SELECT count(DISTINCT key_hash) FROM wilmer.discussions WHERE space = %s AND starts_with(key_hash, %s)"
_OTHER = (
    f"the folder has another {SALT_FILE} than the database, so that keys would not lead to their data; decrypt it with "
    "rekey, and move it into an export of the database first"
)
_ADD = """\
WITH added AS (INSERT INTO wilmer.key_salts VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING 3 AS program)
UPDATE wilmer.schema_version SET oldest_program = program FROM added WHERE version = program"""


def stored_salt(connection: StateConnection, space: str) -> KeySalt | None:
    """Return the salt of a space; None in format 1. Raises KeySaltError."""
    if not connection.execute(_HAS_TABLE).fetchall()[0][0]:
        return None
    rows = connection.execute(_FIND, [space]).fetchall()
    if rows:
        return parse_salt(rows[0][0], _PLACE)
    [(keys,)] = connection.execute(_KEYS, [space, NAME_START]).fetchall()
    if keys:
        raise missing_salt(keys, _PLACE)
    return None


def store_salt(connection: StateConnection, space: str, salt: KeySalt) -> None:
    """Store a salt, unless the space has one. No server may run: it would not see it."""
    connection.execute(_ADD, [space, salt_text(salt)])


def salt_in(connection: StateConnection, space: str, roots: Sequence[str], *, dry_run: bool = False) -> None:
    """Store the salt of folders of discussions, that of the first one that has any, as that of a space.

    Raises ValueError if that has another one, or if running servers would not see it, and KeySaltError.
    """
    root = next((root for root in roots if os.path.lexists(os.path.join(root, SALT_FILE))), roots[0])
    salt, stored = SaltFiles().read([root]), stored_salt(connection, space)
    if salt is None or salt == stored:
        return
    if stored is not None:
        raise ValueError(_OTHER)
    if connection.execute("SELECT count(*) FROM wilmer.live_workers()").fetchall()[0][0]:
        raise ValueError(f"running servers would not see the new {SALT_FILE}; stop them, then run this again")
    if not dry_run:
        store_salt(connection, space, salt)


def salt_out(connection: StateConnection, space: str, root: str) -> None:
    """Store the salt of a space in a folder of discussions. Raises ValueError if that has another one, KeySaltError,
    and OSError."""
    salt = stored_salt(connection, space)
    if salt is not None and SaltFiles().keep([root], salt) != salt:
        raise ValueError(_OTHER)
