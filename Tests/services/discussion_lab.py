"""Stored conversations of every kind, made by the stores that the server uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from Middleware.addons.discussions import catalog
from Middleware.addons.discussions.discussion_reader import Reader
from Middleware.common import instance_global_variables as instance
from Middleware.services.memory.discussion_keys import NO_KEYS, DiscussionKeys
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities import config_utils
from Middleware.utilities.config import paths
from Middleware.utilities.discussions.client_keys import data_key, key_place
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.encryption_utils import derive_encryption_key, hash_api_key
from Middleware.utilities.hashing_utils import hash_content
from Tests.llmapis.lab import Lab

KEY = "sk-very-secret-17"
HASH = hash_api_key(KEY)


class DiscussionLab:
    """A config tree with the user ``tester``, whose discussions lie in ``root``."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in (
            "PUBLIC_DIRECTORY",
            "DISCUSSION_DIRECTORY",
            "CONCURRENCY_LIMIT",
            "CONCURRENCY_TIMEOUT",
            "CONCURRENCY_LEVEL",
            "MAX_REQUEST_MB",
            "USER_LEVEL_SQLITE_DIRECTORY",
            "PORT",
            "LISTEN_ADDRESS",
            "FILE_LOGGING",
        ):
            monkeypatch.setattr(instance, name, getattr(instance, name))  # put back afterwards
        monkeypatch.delenv("WILMER_API_KEY", raising=False)
        self.config = Lab(tmp_path / "Configs", monkeypatch)
        self.root, self.install = tmp_path / "D", tmp_path / "install"
        monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(self.root))
        for module in (config_utils, paths):
            monkeypatch.setattr(module, "get_project_root_directory_path", lambda: str(self.install))
        monkeypatch.chdir(tmp_path)

    def folder(self, discussion_id: str, api_key: str | None = None, encrypt: bool = True) -> DiscussionFolder:
        if api_key is None:
            return DiscussionFolder(discussion_id)
        encryption_key = derive_encryption_key(api_key, "tester") if encrypt else None
        return DiscussionFolder(discussion_id, hash_api_key(api_key), encryption_key)

    def store(
        self,
        discussion_id: str,
        api_key: str | None = None,
        encrypt: bool = True,
        texts: tuple[str, ...] = ("Mara hid the ledger.", "The inspector came."),
    ) -> DiscussionFolder:
        """A discussion with everything: memories, summary, state document, searchable memories and vectors."""
        folder = self.folder(discussion_id, api_key, encrypt)
        memories = MemoryStore(folder)
        for text in texts:
            memories.append_memory(text, hash_content(text))
        memories.save_summary("All that happened.", hash_content(texts[-1]))
        memories.save_state_document("Mara: at the mill")
        with folder.memories(write=True) as searchable:
            for text in texts:
                metadata = {"title": f"About {text.split()[0]}", "summary": text, "entities": [], "key_phrases": []}
                searchable.store_chunk([(text, json.dumps(metadata))], hash_content(text))
            searchable.add_embeddings([(1, b"\0\0\x80\x3f" * 3)], "embedder")
        return folder

    def find(self, discussion_id: str, key_folder: str | None = None) -> catalog.StoredDiscussion:
        return catalog.choose(catalog.all_discussions(), discussion_id, key_folder)

    def reader(self, discussion_id: str, api_key: str | None = None) -> Reader:
        keys = NO_KEYS
        if api_key:
            keys = DiscussionKeys(key_place(api_key, "tester").name, data_key(api_key, "tester"))
        return Reader(self.find(discussion_id), keys)

    def everything(self) -> dict[str, bytes]:
        """All files below the root with their content."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }
