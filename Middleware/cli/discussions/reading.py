"""Read the files of one stored conversation. Faults are raised as errors, not logged."""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from Middleware.cli.discussions.catalog import PAIR_FILES, StoredDiscussion, StoredFile
from Middleware.exceptions import ConfigSyntaxError, UnreadableDataError
from Middleware.services.memory.discussion_keys import NO_KEYS, DiscussionKeys
from Middleware.services.memory.memory_store import BACKUP, STATE_FILE
from Middleware.utilities.config.json_source import decode_text, parse_json
from Middleware.utilities.conversations.discussion_files import Pair, pairs_in, texts_in
from Middleware.utilities.conversations.discussion_folder import DiscussionFolder
from Middleware.utilities.encryption_utils import Cipher, cipher_for, is_token

ENCRYPTED = "encrypted (needs --api-key)"
WRONG_KEY = "encrypted for another API key or user"
SWITCHED_OFF = "encrypted, but encryptUsingApiKey of this user is off"


@dataclass(frozen=True)
class Reader:
    """The contents of a discussion's files; ``keys`` apply only to the files in their folder.

    Methods raise DataKeyError for files of another key, or of any key if none was given; UnreadableDataError for
    files with unexpected content; OSError.
    """

    discussion: StoredDiscussion
    keys: DiscussionKeys = NO_KEYS

    @property
    def encryption_key(self) -> bytes | None:
        return self.keys.encryption_key if self.discussion.key_hash == self.keys.key_hash else None

    @property
    def key_at_hand(self) -> bool:
        """Return whether an API key was given, and the discussion belongs to that key."""
        return self.keys.key_hash is not None and self.discussion.key_hash == self.keys.key_hash

    @property
    def why_locked(self) -> str:
        """Return the reason why data cannot be decrypted."""
        if not self.key_at_hand:
            return ENCRYPTED
        return WRONG_KEY if self.encryption_key else SWITCHED_OFF

    @property
    def cipher(self) -> Cipher:
        return cipher_for(self.encryption_key)

    @property
    def folder(self) -> DiscussionFolder:
        return DiscussionFolder(self.discussion.discussion_id, self.discussion.key_hash, self.encryption_key)

    def pairs(self, name: str) -> list[Pair]:
        """Return the texts and hashes in the file ``name``; none if there is no such file."""
        path = self.discussion.data(name)
        return [] if path is None else pairs_in(self.json(path, name), self.discussion.display(name))

    def object(self, name: str) -> dict[str, object]:
        """Return the object in the file ``name``; empty if there is no such file."""
        path = self.discussion.data(name)
        return {} if path is None else texts_in(self.json(path, name), self.discussion.display(name))

    def state_document(self) -> str:
        path = self.discussion.data(STATE_FILE)
        return "" if path is None else self.text(path)

    def json(self, path: str, name: str = "") -> Any:
        display = self.discussion.display(name or os.path.basename(path))
        try:
            return parse_json(self.bytes(path), display)
        except ConfigSyntaxError as error:
            raise UnreadableDataError(str(error)) from None

    def text(self, path: str) -> str:
        return decode_text(self.bytes(path), self.discussion.display(os.path.basename(path)))

    def bytes(self, path: str) -> bytes:
        """Return the content of a file, decrypted if it is encrypted."""
        with open(path, "rb") as file:
            data = file.read()
        return self.cipher.decrypt(data) if is_token(data) else data


def looks_encrypted(path: str) -> bool:
    """Return whether a file is encrypted, with whatever key. Raises OSError."""
    with open(path, "rb") as file:
        return is_token(file.read())


def shape_name(file: StoredFile) -> str:
    """Return the kind of a JSON file: its name without the discussion's name before it and ``.bak`` after it."""
    name = file.name.lower().removesuffix(BACKUP)
    return next((known for known in PAIR_FILES if name == known or name.endswith(f"_{known}")), name)
