"""The JSON files of a conversation.

Texts with the hash of a message each (``[{"text_block": ..., "hash": ...}, ...]``), and objects from hash to text. A
file that does not hold what it should is nobody's to change: readers raise or, where they say so, act as if it were
absent, and writers refuse. Files are replaced in one step; the case of their names does not count.
"""
from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from Middleware.exceptions import ConfigSyntaxError, DataKeyError, UnreadableDataError
from Middleware.models.request_context import first_logged
from Middleware.utilities.config.json_source import parse_json
from Middleware.utilities.encryption_utils import (
    NO_CIPHER,
    TOKEN_START,
    Cipher,
    cipher_for,
    file_in_folder,
    file_named,
    is_token,
    refuse_cut_off,
)
from Middleware.utilities.files.file_access import (
    atomic_write,
    find_file_ignoring_case,
    ordinary_file,
    resolve_file_path,
)

logger = logging.getLogger(__name__)

Pair = tuple[str, str]
"""A text and the hash that belongs to it."""
T = TypeVar("T")


# -- any JSON ----------------------------------------------------------------------------------------------------------

def read_json(path: str, cipher: Cipher = NO_CIPHER, display: str = "") -> Any:
    """The content of the file that ``path`` means; None if there is none. ``display`` names it in messages.

    Raises UnreadableDataError with file and line, DataKeyError, and OSError.
    """
    found = _existing(path)
    if ordinary_file(found) is None:
        return None
    with open(found, "rb") as file:
        data = file.read()
    with file_named(display or file_in_folder(found)):
        data = cipher.decrypt(data)
    display = display or os.path.basename(path)
    if data.startswith(TOKEN_START):  # no JSON begins like that: it is a token that was cut off
        raise DataKeyError(f"{display} is encrypted, and not with the present key")
    try:
        data.decode("utf-8")
        return parse_json(data, display)
    except UnicodeDecodeError as error:  # guessing the encoding could lose what is there at the next write
        raise UnreadableDataError(f"{display} is not UTF-8 (byte {error.start}). The file is left as it is.") from None
    except ConfigSyntaxError as error:
        raise UnreadableDataError(f"{error}. The file is left as it is.") from None


def write_json(path: str, content: object, cipher: Cipher = NO_CIPHER, mode: int | None = None) -> None:
    """Replace the file that ``path`` means, folders included. Raises OSError and DataKeyError, with everything as it
    was.

    A file that one of the cipher's other keys fits goes on with that. ``mode`` is for a new file. Whoever may not lose
    what is in the file has read it before.
    """
    data, found = _indented(content).encode("ascii"), _existing(path)
    atomic_write(found, cipher_of_file(found, cipher).encrypt(data), mode)


def cipher_of_file(path: str, cipher: Cipher) -> Cipher:
    """The cipher that exactly this file goes on with: that of its key, else the given one.

    Raises OSError, and DataKeyError if no key fits: then the file must stay as it is.
    """
    if ordinary_file(path) is None:
        return cipher
    with open(path, "rb") as file:
        data = file.read(len(TOKEN_START))
        if data != TOKEN_START:
            return cipher
        data += file.read()
    with file_named(file_in_folder(path)):
        refuse_cut_off(data)
        return cipher.like(data)


def _indented(content: Any) -> str:
    """What ``json.dumps(content, indent=4)`` gives, many times faster for objects of texts and lists of them."""
    if _is_plain(content):
        return _plain_object(content, "")
    if isinstance(content, list) and content and all(map(_is_plain, content)):
        return "[\n    " + ",\n    ".join(_plain_object(entry, "    ") for entry in content) + "\n]"
    return json.dumps(content, indent=4)


def _is_plain(content: object) -> bool:
    return isinstance(content, dict) and bool(content) and all(type(value) is str for value in content.values())


def _plain_object(content: Mapping[str, str], indent: str) -> str:
    text = json.dumps(content, separators=(f",\n{indent}    ", ": "))  # without ``indent`` it is not done in Python
    return f"{{\n{indent}    {text[1:-1]}\n{indent}}}"


def _existing(path: str) -> str:
    path = resolve_file_path(path)
    return find_file_ignoring_case(path) or path


def copy_file(path: str, suffix: str, cipher: Cipher = NO_CIPHER, mode: int | None = None) -> None:
    """Copy the file that ``path`` means, if there is one, to the same name with ``suffix``, never in clear if the
    cipher is active. Raises OSError and DataKeyError."""
    found = _existing(path)
    if ordinary_file(found) is not None:
        with open(found, "rb") as file:
            data = file.read()
        with file_named(file_in_folder(found)):
            copy = cipher.like(data).encrypt(cipher.decrypt(data))
        atomic_write(found + suffix, copy, mode)


def hide_file(path: str, cipher: Cipher, mode: int | None = None) -> None:
    """Encrypt a file that is still in clear, as backups of the time before are. Raises OSError."""
    if not cipher.active or ordinary_file(path) is None:
        return
    with open(path, "rb") as file:
        data = file.read()
    if data and not is_token(data):
        atomic_write(path, cipher.encrypt(data), mode)


def if_readable(read: Callable[[], T], otherwise: T) -> T:
    """What ``read`` returns; ``otherwise`` where a file cannot be read or holds something else.

    The log gets an error, the same one once in a request.
    """
    try:
        return read()
    except UnreadableDataError as error:
        _tell_once(str(error))
    except OSError as error:
        name = os.path.basename(str(error.filename or "a file"))
        _tell_once(f"{name} of a discussion cannot be read: {error.strerror or type(error).__name__}")
    return otherwise


def _tell_once(text: str) -> None:
    if first_logged(text):
        logger.error("%s", text)


# -- shapes ------------------------------------------------------------------------------------------------------------

def pairs_in(content: object, display: str) -> list[Pair]:
    """The texts and hashes of a list as read. Raises UnreadableDataError for anything else."""
    if not isinstance(content, list):
        raise UnreadableDataError(f"{display}: a list was expected, not {type(content).__name__}. "
                                  "The file is left as it is.")
    for number, entry in enumerate(content):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("text_block", "hash")):
            raise UnreadableDataError(f"{display}: entry {number + 1} has no text 'text_block' and 'hash'. "
                                      "The file is left as it is.")
    return [(entry["text_block"], entry["hash"]) for entry in content]


def pairs_as_json(pairs: Iterable[Pair]) -> list[dict[str, str]]:
    return [{"text_block": text, "hash": stored} for text, stored in pairs]


def texts_in(content: object, display: str) -> dict[str, object]:
    """An object as read. Raises UnreadableDataError for anything else."""
    if not isinstance(content, dict):
        raise UnreadableDataError(f"{display}: an object was expected, not {type(content).__name__}. "
                                  "The file is left as it is.")
    return content


# -- by path -----------------------------------------------------------------------------------------------------------

def ensure_json_file_exists(path: str, initial: list[object] | None = None, encryption_key: bytes | None = None,
                            mode: int | None = None) -> list[object]:
    """The list in the file, which is created with ``initial`` (empty) if it is missing.

    Raises TypeError, with path and type, for another content; UnreadableDataError for none.
    """
    cipher = cipher_for(encryption_key)
    content = read_json(path, cipher)
    if content is None:
        content = [] if initial is None else initial
        write_json(path, content, cipher, mode)
    if not isinstance(content, list):
        raise TypeError(f"{path} holds {type(content).__name__}, not a list")
    return content


def read_chunks_with_hashes(path: str, encryption_key: bytes | None = None) -> list[Pair]:
    """The texts and hashes in a file, in order; it is created empty if it is missing.

    Raises UnreadableDataError for another content.
    """
    content = read_json(path, cipher_for(encryption_key))
    if content is None:
        content = ensure_json_file_exists(path, encryption_key=encryption_key)
    return pairs_in(content, os.path.basename(path))


def write_chunks_with_hashes(chunks: Iterable[Pair], path: str, overwrite: bool = False,
                             encryption_key: bytes | None = None, mode: int | None = None) -> None:
    """Append to what is in the file, or replace it. Raises UnreadableDataError if the file holds something else."""
    cipher = cipher_for(encryption_key)
    content = read_json(path, cipher)
    if content is None:
        content = []
    pairs_in(content, os.path.basename(path))
    write_json(path, [*([] if overwrite else content), *pairs_as_json(chunks)], cipher, mode)


def update_chunks_with_hashes(chunks: Iterable[Pair], path: str, mode: str = "append",
                              encryption_key: bytes | None = None) -> None:
    """``write_chunks_with_hashes`` by the name of the mode: ``append`` or ``overwrite``; ValueError for others."""
    if mode not in ("append", "overwrite"):
        raise ValueError(f"unknown mode '{mode}'; known are append, overwrite")
    write_chunks_with_hashes(chunks, path, mode == "overwrite", encryption_key)


def _read_object(path: str, encryption_key: bytes | None = None) -> dict[str, object]:
    content = read_json(path, cipher_for(encryption_key))
    return {} if content is None else texts_in(content, os.path.basename(path))


def _write_object(content: Mapping[str, object], path: str, encryption_key: bytes | None = None) -> None:
    _read_object(path, encryption_key)  # raises rather than to replace something else
    write_json(path, dict(content), cipher_for(encryption_key))


def load_timestamp_file(path: str, encryption_key: bytes | None = None) -> dict[str, object]:
    """The times of messages by their hash; empty if there is no file. Raises UnreadableDataError."""
    return _read_object(path, encryption_key)


def save_timestamp_file(path: str, timestamps: Mapping[str, object], encryption_key: bytes | None = None) -> None:
    _write_object(timestamps, path, encryption_key)


def read_condensation_tracker(path: str, encryption_key: bytes | None = None) -> dict[str, object]:
    """``{"lastCondensationHash": hash}``; empty if there is no file. Raises UnreadableDataError."""
    return _read_object(path, encryption_key)


def write_condensation_tracker(path: str, tracker: Mapping[str, object], encryption_key: bytes | None = None) -> None:
    _write_object(tracker, path, encryption_key)


def read_vision_responses(path: str, encryption_key: bytes | None = None) -> dict[str, object]:
    """Descriptions of images by the hash of their message; empty if there is no file. Raises UnreadableDataError."""
    return _read_object(path, encryption_key)


def write_vision_responses(path: str, responses: Mapping[str, object], encryption_key: bytes | None = None) -> None:
    _write_object(responses, path, encryption_key)
