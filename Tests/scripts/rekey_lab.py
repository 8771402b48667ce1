"""A key folder with everything that the server stores, and the re-key script on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from Middleware.addons.discussions.rekey import rekey_command as rekey_encrypted_files
from Middleware.services.memory.recall import Recall, recall
from Middleware.utilities.discussion_state import MESSAGE_INDEX
from Middleware.utilities.discussions.discussion_files import pairs_as_json, write_json
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.discussions.key_salts import SALT_FILE, salt_text
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.vector_memory import VectorMemories
from Middleware.utilities.encryption_utils import (
    NAME_START,
    NO_CIPHER,
    Cipher,
    KeySalt,
    cipher_for,
    derive_encryption_key,
    hash_api_key,
    key_folder_name,
)
from Middleware.utilities.files.file_access import atomic_write
from Tests.patience import CLIENT_PATIENCE
from Tests.services.discussion_lab import DiscussionLab
from Tests.utilities.discussions.message_index.lab import on_path, request

OLD, NEW, USER = "sk-old-geheim-0123", "sk-new-geheim-0123", "tester"
SECRET = "Quetzalcoatl"
FILES = (
    "memories.json",
    "memories.json.bak",
    "chat_summary.json",
    "timestamps.json",
    "condensation_tracker.json",
    "vision_responses.json",
    "context_compactor_old.json",
    "context_compactor_oldest.json",
    "state_document.md",
    "state_document.md.bak",
)
SAID = [("user", f"Where is {SECRET}?"), ("assistant", "Asleep."), ("user", "Fine.")]
CONTENT = json.dumps(pairs_as_json([(SECRET, "hash")])).encode()


# As cheap as a salt may be; made before the tests, so that they know the names of folders in format 2.
SALT = KeySalt(bytes(32), 2**14, 8, 1)


def cipher_of(api_key: str | None, user: str | None = USER, salt: KeySalt | None = None) -> Cipher:
    """The cipher of a key: of the new one in format 2, of any other in format 1 unless there is a salt."""
    if api_key is None:
        return NO_CIPHER
    return cipher_for(derive_encryption_key(api_key, user, SALT if api_key == NEW else salt))


def database_texts(path: Path, cipher: Cipher) -> list[str]:
    with VectorMemories(str(path), cipher=cipher) as memories:
        assert len(memories.embeddings("m")) == 1 and memories.keyword_search(SECRET)
        return [row["memory_text"] for row in memories.all_memories()]


class RekeyLab(DiscussionLab):
    """Discussions of the key ``OLD`` in the key folder ``old``; ``new`` is where they belong after the change.

    The old key has format 1, as it has a folder of that, and the new one format 2.
    """

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(tmp_path, monkeypatch)
        for name in (rekey_encrypted_files.OLD_VARIABLE, rekey_encrypted_files.NEW_VARIABLE):
            monkeypatch.delenv(name, raising=False)
        self.config.user(encryptUsingApiKey=True)
        self.root.mkdir()
        (self.root / SALT_FILE).write_text(salt_text(SALT), encoding="utf-8")
        self.old, self.new = self.root / hash_api_key(OLD), self.root / key_folder_name(NEW, SALT)

    def fill(self, name: str, cipher: Cipher) -> Path:
        """One discussion with every kind of file, encrypted or in clear."""
        folder = DiscussionFolder(name, hash_api_key(OLD))
        folder.create()
        for file in FILES:
            data = SECRET.encode() if file.startswith("state") else CONTENT
            atomic_write(folder.plain_file(file), cipher.encrypt(data), 0o600)
        with VectorMemories(folder.vector_database(), name, write=True, cipher=cipher, mode=0o600) as memories:
            memories.store_chunk([(SECRET, json.dumps({"title": SECRET}))], "h")
            memories.add_embeddings([(1, b"\0\0\x80\x3f" * 3)], "m")
        with MessageIndex(folder.plain_file(MESSAGE_INDEX), write=True, cipher=cipher, mode=0o600) as index:
            request(index, SAID)
        return Path(folder.folder)

    def write(self, path: str, data: object, cipher: Cipher = NO_CIPHER) -> Path:
        """A file in the key folder: JSON, or bytes as they are."""
        file = self.old / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, bytes):
            file.write_bytes(data)
        else:
            write_json(str(file), data, cipher)
        return file

    def copy_into_installation(self, folder: Path) -> Path:
        """The same key folder as that of a discussion, where the server looks besides."""
        target = self.install / "Public" / "DiscussionIds" / folder.parent.name
        shutil.copytree(folder.parent, target)
        return target

    def arguments(self, *more: str) -> list[str]:
        return [
            "--user",
            USER,
            "--ConfigDirectory",
            str(self.config.root),
            "--DiscussionDirectory",
            str(self.root),
            *more,
        ]

    def check(self, folder: Path, api_key: str | None, user: str = USER, salt: KeySalt | bool | None = True) -> None:
        """Everything that ``fill`` wrote is there, encrypted with this key, and nothing else."""
        if salt is True:
            salt = SALT if folder.parent.name.startswith(NAME_START) or api_key == NEW else None
        cipher = cipher_for(derive_encryption_key(api_key, user, salt or None)) if api_key else NO_CIPHER
        for file in FILES:
            data = (folder / file).read_bytes()
            assert data.startswith(b"gAAAA") is (api_key is not None), file
            assert SECRET.encode() in cipher.decrypt(data), file
        assert database_texts(folder / "vector_memory.db", cipher) == [SECRET]
        with MessageIndex(str(folder / MESSAGE_INDEX), cipher=cipher) as index:
            assert on_path(index) == [text for _, text in SAID] and recall(index, Recall(SECRET)).results
        odd = {path.name for path in folder.rglob("*")} - {*FILES, "vector_memory.db", MESSAGE_INDEX}
        assert all(name.endswith(".lock") for name in odd), odd

    def in_clear(self) -> list[str]:
        """Files below the root that hold a word of the conversations; the index of words keeps lower case."""
        words = (SECRET.lower().encode(), SECRET.lower().encode()[1:])
        return [
            str(path)
            for path in self.root.rglob("*")
            if path.is_file() and any(word in path.read_bytes().lower() for word in words)
        ]

    def start(self, *arguments: str, keys: dict[str, str], before: str = "") -> subprocess.CompletedProcess[str]:
        """The script as a process of its own, after some lines of Python."""
        script = Path(__file__).parents[2] / "Scripts" / "rekey_encrypted_files.py"
        code = (
            f"import runpy, sys\nfrom Middleware.utilities import config_utils\n"
            f"from Middleware.utilities.config import paths\n"
            f"for module in (config_utils, paths):\n"
            f"    module.get_project_root_directory_path = lambda: {str(self.install)!r}\n{before}\n"
            f"sys.argv = [{str(script)!r}, *{self.arguments(*arguments)!r}]\n"
            f"runpy.run_path({str(script)!r}, run_name='__main__')"
        )
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WILMER_")}
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, **keys},
            cwd=script.parents[1],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=CLIENT_PATIENCE,
            stdin=subprocess.DEVNULL,
            check=False,
        )
