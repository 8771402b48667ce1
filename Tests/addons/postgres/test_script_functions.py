"""What users' scripts call, where conversations are in the state database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from Middleware.exceptions import WilmerError
from Middleware.utilities import config_utils
from Middleware.utilities import vector_db_utils as db
from Middleware.utilities.vector_math_utils import vector_to_blob
from Tests.addons.postgres.test_documents import Worker
from Tests.utilities.discussions.vector_memory.lab import KEY, metadata

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def at_work(database_url: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(Worker(database_url, stack).at_work())
        yield


@pytest.mark.parametrize(
    "key", [{}, {"api_key_hash": "0123456789abcdef", "encryption_key": KEY}], ids=["no key", "encrypted"]
)
def test_functions_of_searchable_memories_keep_their_results(key: dict[str, object]) -> None:
    assert db.get_memories_by_ids("chat", [1], **key) == [] == db.search_memories_by_keyword("chat", "zoo", **key)
    assert db.initialize_vector_db("chat", **key) is True
    assert db.add_memory_to_vector_db("chat", "Mara hid it", metadata("Mara hid it", topics=["zoo"]), **key) == 1
    assert (
        db.add_memory_to_vector_db("chat", "It burned", metadata("It burned", topics=["zoo"]), index_topics=True, **key)
        == 2
    )
    assert db.add_memory_to_vector_db("chat", "text", "no metadata", **key) is None
    assert [row["id"] for row in db.search_memories_by_keyword("chat", "mara;zoo", **key)] in ([1, 2], [2, 1])
    for message_hash in ("h1", "h2"):
        db.add_vector_check_hash("chat", message_hash, **key)
    assert db.get_vector_check_hash_history("chat", 1, **key) == ["h2"]
    blob = vector_to_blob([1, 0])
    assert db.add_embeddings_to_db("chat", [(2, blob)], "m", **key) == 1
    assert db.get_all_embeddings("chat", "m", **key) == [(2, blob)]
    assert [row["id"] for row in db.get_memories_without_embeddings("chat", "m", **key)] == [1]
    assert [row["memory_text"] for row in db.get_memories_by_ids("chat", [2, 7, 1], **key)] == [
        "It burned",
        "Mara hid it",
    ]
    assert db.get_db_connection("chat", **key) is None
    assert db.initialize_vector_db("../chat", **key) is False


PATHS = [
    getattr(config_utils, name)
    for name in dir(config_utils)
    if name.startswith("get_discussion_") and name.endswith("_file_path")
]


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_files_that_nobody_writes_are_refused(path: object) -> None:
    with pytest.raises(WilmerError, match="MemoryStore"):
        path("chat")
