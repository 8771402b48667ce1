"""Whose data a request may read: its user's, under any spelling of the name, and that of users who share the key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import DataKeyError
from Middleware.models.request_context import RequestContext, request_scope, set_current_request
from Middleware.services.memory.compactor_store import CompactorStore
from Middleware.services.memory.discussion_keys import NO_KEYS, discussion_keys
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.services.timestamp_service import TimestampService
from Middleware.services.vision_cache import VisionResponses
from Middleware.utilities.discussions.discussion_files import pairs_as_json, read_json, write_json
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.encryption_utils import cipher_for, derive_encryption_key, hash_api_key
from Tests.services.discussion_lab import DiscussionLab

KEY = "secretkey"
JSON_FILES = (
    "memories.json",
    "chat_summary.json",
    "timestamps.json",
    "condensation_tracker.json",
    "vision_responses.json",
    "context_compactor_old.json",
    "context_compactor_oldest.json",
)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiscussionLab]:
    lab = DiscussionLab(tmp_path, monkeypatch)
    for user in ("alice", "bob"):
        lab.config.write(f"Users/{user}", {"encryptUsingApiKey": True})
    monkeypatch.setattr(instance, "USERS", ["alice", "bob"])
    with request_scope(RequestContext(user="alice")):
        yield lab


def folder_of(user: str, api_key: str = KEY) -> DiscussionFolder:
    """The folder of a discussion, from now on in a request of this user."""
    set_current_request(RequestContext(user=user))
    keys = discussion_keys(api_key)
    return DiscussionFolder("d1", keys.key_hash, keys.encryption_key)


def fits(data: bytes, user: str) -> bool:
    try:
        cipher_for(derive_encryption_key(KEY, user)).decrypt(data)
    except DataKeyError:
        return False
    return True


@pytest.mark.parametrize("name", JSON_FILES)
def test_users_who_share_a_key_share_its_files(lab: DiscussionLab, name: str) -> None:
    for number, user in enumerate(("alice", "bob", "alice")):
        folder = folder_of(user)
        content = read_json(folder.file(name), folder.cipher) or []
        assert content == list(range(number))
        write_json(folder.file(name), [*content, number], folder.cipher)
        assert fits(Path(folder.file(name)).read_bytes(), "alice")  # whose file it was first


def test_the_state_document_and_its_copy_are_shared(lab: DiscussionLab) -> None:
    for user, before, after in (("alice", "", "one"), ("bob", "one", "two"), ("alice", "two", "three")):
        store = MemoryStore(folder_of(user))
        assert store.state_document() == before
        store.save_state_document(after)
        copy = ("state_document.md.bak",) if before else ()
        for name in ("state_document.md", *copy):
            assert fits(Path(store.state.plain_file(name)).read_bytes(), "alice")


def test_searchable_memories_are_shared(lab: DiscussionLab) -> None:
    for number, user in enumerate(("alice", "bob", "alice")):
        with folder_of(user).memories(write=True) as memories:
            memories.store_chunk([(f"the mill {number}", '{"title": "t"}')], f"h{number}")
            memories.add_embeddings([(number + 1, bytes(3) + b"\x40")], "m")
            assert len(memories.keyword_search("mill")) == number + 1 == len(memories.nearest([1.0], "m", 9))
    alone = DiscussionFolder("d1", hash_api_key(KEY), derive_encryption_key(KEY, "alice"))
    with alone.memories() as memories:  # no row was written with another key
        assert len(list(memories.all_memories())) == 3 == len(memories.embeddings("m"))


@pytest.mark.parametrize("stored, now", [("ann", "Ann"), ("Ann", "ann")], ids=["lower-cased", "as its file"])
def test_a_name_spelled_otherwise(lab: DiscussionLab, monkeypatch: pytest.MonkeyPatch, stored: str, now: str) -> None:
    lab.config.write(f"Users/{stored}", {"encryptUsingApiKey": True})
    monkeypatch.setattr(instance, "USERS", [stored])
    MemoryStore(folder_of(stored)).append_memory("text", "hash")
    monkeypatch.setattr(instance, "USERS", [now])
    assert [pair[0] for pair in MemoryStore(folder_of(now)).read_memories()] == ["text"]


STRANGERS: dict[str, Callable[[DiscussionFolder], Any]] = {
    "memories": lambda folder: MemoryStore(folder).append_memory("new", "hash"),
    "summary": lambda folder: MemoryStore(folder).summary(),
    "state": lambda folder: MemoryStore(folder).state_document(),
    "write state": lambda folder: MemoryStore(folder).save_state_document("new"),
    "times": lambda folder: TimestampService(folder.key_hash, folder.encryption_key).save_placeholder_timestamp("d1"),
    "compactor": lambda folder: CompactorStore(folder).read(),
    "images": lambda folder: VisionResponses(folder).read(),
    "vectors": lambda folder: folder.memories(write=True),
    "blind write": lambda folder: write_json(folder.file("chat_summary.json"), [], folder.cipher),
}


@pytest.mark.parametrize("switched_on", [True, False], ids=["another key", "no key"])
@pytest.mark.parametrize("use", list(STRANGERS.values()), ids=list(STRANGERS))
def test_nobody_else_reads_or_writes(
    lab: DiscussionLab, use: Callable[[DiscussionFolder], Any], switched_on: bool
) -> None:
    folder = DiscussionFolder("d1", hash_api_key(KEY), derive_encryption_key("another", "alice"))
    for name in JSON_FILES:
        write_json(folder.file(name), pairs_as_json([("old", "hash")]), folder.cipher)
    MemoryStore(folder).save_state_document("old")
    with folder.memories(write=True) as memories:
        memories.store_chunk([("old", "{}")], "hash")
    lab.config.write("Users/alice", {"encryptUsingApiKey": switched_on})
    stranger, before = folder_of("alice"), lab.everything()
    with pytest.raises(DataKeyError, match="another API key or user"):
        use(stranger)
    assert {name: data for name, data in lab.everything().items() if not name.endswith(".lock")} == before


def test_no_key_no_data_key(lab: DiscussionLab) -> None:
    assert discussion_keys(None) is NO_KEYS and discussion_keys("") is NO_KEYS
    with request_scope(RequestContext(user="alice")):
        assert KEY not in repr(discussion_keys(KEY)) + repr(discussion_keys(KEY).encryption_key)
