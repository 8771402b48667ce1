"""Which discussions are in the state database, in a few statements for all of them, and their removal."""

from __future__ import annotations

from functools import partial

from Middleware.addons.postgres.database import Database, StateConnection
from Middleware.utilities.discussion_state import ListedDiscussion, ListedDocument, Searchable
from Middleware.utilities.discussions.vector_memory.schema import is_token

_DOCUMENTS = """\
SELECT d.id, c.name, octet_length(c.content), extract(epoch FROM c.changed_at)::float8
FROM wilmer.discussions d JOIN wilmer.documents c ON c.discussion = d.id WHERE d.space = %s ORDER BY d.id, c.name"""
_MEMORIES = """\
SELECT d.id, d.key_hash, d.discussion_id, (SELECT count(*) FROM wilmer.memories WHERE discussion = d.id),
       (SELECT memory_text FROM wilmer.memories WHERE discussion = d.id ORDER BY id DESC LIMIT 1),
       (SELECT count(*) FROM wilmer.messages WHERE discussion = d.id)
FROM wilmer.discussions d WHERE d.space = %s ORDER BY d.key_hash, d.discussion_id"""
_VECTORS = """\
SELECT d.id, e.model, count(*) FROM wilmer.discussions d JOIN wilmer.memory_embeddings e ON e.discussion = d.id
JOIN wilmer.memories m ON m.discussion = d.id AND m.id = e.memory_id
WHERE d.space = %s GROUP BY d.id, e.model ORDER BY d.id, e.model"""
_COUNT = """\
SELECT (SELECT count(*) FROM wilmer.documents WHERE discussion = d.id)
       + EXISTS (SELECT FROM wilmer.memories WHERE discussion = d.id)::int
       + EXISTS (SELECT FROM wilmer.messages WHERE discussion = d.id)::int
FROM wilmer.discussions d WHERE id = %s FOR UPDATE"""


def list_discussions(database: Database, space: str) -> list[ListedDiscussion]:
    """Return the discussions of a space in which anything is stored, by key and id."""
    documents: dict[int, list[ListedDocument]] = {}
    for number, name, size, modified in database.read(_DOCUMENTS, [space]):
        documents.setdefault(number, []).append(ListedDocument(name, size, modified))
    vectors: dict[int, dict[str, int]] = {}
    for number, model, count in database.read(_VECTORS, [space]):
        vectors.setdefault(number, {})[model] = count
    return [
        ListedDiscussion(
            f"{database.place}/{space}",
            key_hash or None,
            discussion_id,
            tuple(documents.get(number, ())),
            Searchable(count, vectors.get(number, {}), is_token(newest), messages),
            partial(_remove, database, number),
        )
        for number, key_hash, discussion_id, count, newest, messages in database.read(_MEMORIES, [space])
        if count or messages or number in documents
    ]


def _remove(database: Database, number: int) -> int:
    def work(connection: StateConnection) -> int:
        with connection.transaction():
            row = connection.execute(_COUNT, [number]).fetchone()
            connection.execute("DELETE FROM wilmer.discussions WHERE id = %s", [number])
            return row[0] if row is not None else 0

    return database.run(work, again=True)
