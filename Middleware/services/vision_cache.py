"""What vision models said about images: kept with a discussion on disk, or for a while in memory."""
from __future__ import annotations

import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from Middleware.exceptions import ConfigSyntaxError
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities import config_utils
from Middleware.utilities.config_text import parse_json
from Middleware.utilities.file_access import atomic_write, find_file_ignoring_case, process_lock
from Middleware.utilities.file_utils import Cipher, NoCipher
from Middleware.utilities.path_utils import is_flat_name

logger = logging.getLogger(__name__)

FILE_NAME = "vision_responses.json"
LOCK_NAME = ".lock"
MAX_ENTRIES = 512
MAX_CHARACTERS = 4_000_000


class VisionResponses:
    """The file ``vision_responses.json`` of one discussion: descriptions by the hash of their message.

    ``key_hash`` is the folder of a client's API key; nobody but the owner may read new files there. Raises ValueError
    for an id that is no folder name. Reading creates nothing.
    """

    def __init__(self, discussion_id: str, key_hash: str | None = None, cipher: Cipher | None = None) -> None:
        if not is_flat_name(discussion_id) or (key_hash and not is_flat_name(key_hash)):
            raise ValueError("a discussion id must be usable as the name of a folder")
        self._id, self._key_hash = discussion_id, key_hash or ""
        self._cipher: Cipher = cipher or NoCipher()

    def read(self) -> dict[str, str]:
        """All descriptions; empty if there is no file, or none that can be read, which the log tells."""
        return {key: text for key, text in (self._load(self._path()) or {}).items() if isinstance(text, str)}

    def add(self, descriptions: Mapping[str, str], scope: CancelScope | None = None) -> None:
        """Keep ``descriptions`` whose hash is not in the file yet.

        A file that cannot be read is left as it is. A failure to write is logged: it costs no more than a new
        description next time. Raises EarlyTerminationException if ``scope`` is cancelled while waiting for the file.
        """
        if not descriptions:
            return
        try:
            path = self._path()
            self._make_folders(os.path.dirname(path))
            with process_lock(os.path.join(os.path.dirname(path), LOCK_NAME), scope):
                self._merge(path, descriptions)
        except OSError as error:
            logger.error("Descriptions of images in discussion %s were not saved: %s", self._id,
                         error.strerror or type(error).__name__)

    def _merge(self, path: str, descriptions: Mapping[str, str]) -> None:
        known = self._load(path)
        if known is None or descriptions.keys() <= known.keys():
            return
        data = json.dumps({**descriptions, **known}, indent=4).encode("ascii")
        atomic_write(path, self._cipher.encrypt(data), 0o600 if self._key_hash else None)

    def _load(self, path: str) -> dict[str, Any] | None:
        """The object in the file; None if there is something else, which nobody may overwrite."""
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return {}
        except OSError as error:
            logger.error("%s cannot be read: %s", self._display, error.strerror)
            return None
        try:
            content = parse_json(self._cipher.decrypt(data), self._display)
        except ConfigSyntaxError as error:
            logger.error("%s. The file is left as it is.", error)
            return None
        if not isinstance(content, dict):
            logger.error("%s, line 1: holds no JSON object. The file is left as it is.", self._display)
            return None
        return content

    # -- where it lies -------------------------------------------------------------------------------------------
    @property
    def _display(self) -> str:
        return f"{self._id}/{FILE_NAME}"

    def _path(self) -> str:
        """The file in the discussion's folder, else an older flat one, which clients without a key may have."""
        folder = self._folder()
        path = os.path.join(folder, FILE_NAME)
        flat = os.path.join(os.path.dirname(folder), f"{self._id}_{FILE_NAME}")
        found = find_file_ignoring_case(path)
        if found is None and not self._key_hash and os.path.isfile(flat):
            return flat
        return found or path

    def _folder(self) -> str:
        parts = (self._key_hash, self._id) if self._key_hash else (self._id,)
        folder = os.path.join(config_utils.get_discussions_root_directory(), *parts)
        older = os.path.join(config_utils.get_project_root_directory_path(), "Public", "DiscussionIds", *parts)
        return older if not os.path.isdir(folder) and os.path.isdir(older) else folder

    def _make_folders(self, folder: str) -> None:
        if self._key_hash:
            os.makedirs(os.path.dirname(os.path.dirname(folder)), exist_ok=True)
            for private in (os.path.dirname(folder), folder):
                if not os.path.isdir(private):
                    os.makedirs(private, 0o700, exist_ok=True)
        os.makedirs(folder, exist_ok=True)


class RecentDescriptions:
    """Descriptions by a key that says all they depend on; the least recently used ones go first. Thread-safe."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_entries, self._max_characters = max_entries, max_characters
        self._lock = threading.Lock()
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._characters = 0

    def __len__(self) -> int:
        return len(self._texts)

    def get(self, key: str) -> str | None:
        with self._lock:
            text = self._texts.get(key)
            if text is not None:
                self._texts.move_to_end(key)
            return text

    def put(self, key: str, text: str) -> None:
        with self._lock:
            self._characters += len(text) - len(self._texts.pop(key, ""))
            self._texts[key] = text
            while len(self._texts) > self._max_entries or self._characters > self._max_characters:
                self._characters -= len(self._texts.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._texts.clear()
            self._characters = 0


recent_descriptions = RecentDescriptions()
"""The one of this process."""
