"""The JSON files of a discussion.

They hold either texts with the hash of a message (``[{"text_block": ..., "hash": ...}, ...]``) or objects from hash to
text. A file with unexpected content is never changed: readers raise an error or, if documented, treat the file as
absent, and writers refuse. Files are replaced in one step; the case of their names is ignored.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from Middleware.exceptions import ConfigSyntaxError, DataKeyError, StateConflictError, UnreadableDataError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import first_logged
from Middleware.utilities.config.json_source import decode_text, parse_json
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.stored_files import (
    PRIVATE_FILE,
    existing_file,
    read_stored,
    write_stored,
)
from Middleware.utilities.encryption_utils import (
    NO_CIPHER,
    TOKEN_START,
    Cipher,
    cipher_for,
    file_in_folder,
    file_named,
    refuse_cut_off,
)

logger = logging.getLogger(__name__)

Pair = tuple[str, str]
"""A text and the hash that belongs to it."""
T = TypeVar("T")


# -- any JSON ----------------------------------------------------------------------------------------------------------


def read_json(path: str, cipher: Cipher = NO_CIPHER, display: str = "") -> Any:
    """Return the content of the file at ``path``, or None. ``display`` names it in messages.

    Raises UnreadableDataError with file and line, DataKeyError, and OSError.
    """
    data = read_stored(path)
    if data is None:
        return None
    return _parsed(data, cipher, display or file_in_folder(existing_file(path)), display or os.path.basename(path))


def _parsed(stored: bytes, cipher: Cipher, where: str, display: str) -> Any:
    """Return the JSON in a file; ``where`` names it in errors of the encryption, ``display`` in others."""
    with file_named(where):
        data = cipher.decrypt(stored)
    # JSON never begins like this, so it is a token that was cut off.
    if data.startswith(TOKEN_START):
        raise DataKeyError(f"{display} is encrypted, and not with the present key")
    try:
        data.decode("utf-8")
        return parse_json(data, display)
    # With a guessed encoding the next write could destroy the content.
    except UnicodeDecodeError as error:
        raise UnreadableDataError(f"{display} is not UTF-8 (byte {error.start}). The file is left as it is.") from None
    except ConfigSyntaxError as error:
        raise UnreadableDataError(f"{error}. The file is left as it is.") from None


def write_json(path: str, content: object, cipher: Cipher = NO_CIPHER, mode: int | None = PRIVATE_FILE) -> None:
    """Replace the file at ``path`` and create its folders. Raises OSError and DataKeyError without any change.

    A file that is encrypted with one of the cipher's other keys keeps that key. ``mode`` is for a new file. The present
    content is not checked; a caller that must not lose it reads it first.
    """
    write_stored(path, json_bytes(content), cipher, mode)


def json_bytes(content: object) -> bytes:
    """Return JSON as the files of discussions contain it, not encrypted."""
    return _indented(content).encode("ascii")


def _indented(content: Any) -> str:
    """Return ``json.dumps(content, indent=4)``, many times faster for objects of strings and lists of them."""
    if _is_plain(content):
        return _plain_object(content, "")
    if isinstance(content, list) and content and all(map(_is_plain, content)):
        return "[\n    " + ",\n    ".join(_plain_object(entry, "    ") for entry in content) + "\n]"
    return json.dumps(content, indent=4)


def _is_plain(content: object) -> bool:
    return isinstance(content, dict) and bool(content) and all(type(value) is str for value in content.values())


def _plain_object(content: Mapping[str, str], indent: str) -> str:
    # With ``indent`` the encoder is the slow one in Python, so the line breaks are put into the separator.
    text = json.dumps(content, separators=(f",\n{indent}    ", ": "))
    return f"{{\n{indent}    {text[1:-1]}\n{indent}}}"


def if_readable(read: Callable[[], T], otherwise: T) -> T:
    """Return the result of ``read``; ``otherwise`` if a file cannot be read or has unexpected content.

    Each error is logged once per request.
    """
    try:
        return read()
    except UnreadableDataError as error:
        log_unreadable(error)
    except OSError as error:
        if not logged_as_conflict(error):
            name = os.path.basename(str(error.filename or "a file"))
            _log_once(f"{name} of a discussion cannot be read: {error.strerror or type(error).__name__}")
    return otherwise


def logged_as_conflict(error: BaseException) -> bool:
    """Return whether an error only says that another worker was faster; log that then, once per request.

    It is not an error: nothing was overwritten, and the work is done again.
    """
    if not isinstance(error, StateConflictError):
        return False
    if first_logged(type(error).__name__):
        logger.warning("Something of this turn is not stored, as %s; the next message makes up for it", error)
    return True


def log_unreadable(error: UnreadableDataError) -> None:
    """Log why a document cannot be read, once per request."""
    _log_once(str(error))


def _log_once(text: str) -> None:
    if first_logged(text):
        logger.error("%s", text)


# -- shapes ------------------------------------------------------------------------------------------------------------


def pairs_in(content: object, display: str) -> list[Pair]:
    """Return the texts and hashes of a parsed list. Raises UnreadableDataError for anything else."""
    if not isinstance(content, list):
        raise UnreadableDataError(
            f"{display}: a list was expected, not {type(content).__name__}. The file is left as it is."
        )
    for number, entry in enumerate(content):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("text_block", "hash")):
            raise UnreadableDataError(
                f"{display}: entry {number + 1} has no text 'text_block' and 'hash'. The file is left as it is."
            )
    return [(entry["text_block"], entry["hash"]) for entry in content]


def pairs_as_json(pairs: Iterable[Pair]) -> list[dict[str, str]]:
    return [{"text_block": text, "hash": stored} for text, stored in pairs]


def texts_in(content: object, display: str) -> dict[str, object]:
    """Return a parsed object. Raises UnreadableDataError for anything else."""
    if not isinstance(content, dict):
        raise UnreadableDataError(
            f"{display}: an object was expected, not {type(content).__name__}. The file is left as it is."
        )
    return content


# -- of a discussion -------------------------------------------------------------------------------------------------


def read_pairs(state: DiscussionState, name: str) -> list[Pair] | None:
    """Return the texts and hashes in the document ``name`` of a discussion, or None.

    Raises UnreadableDataError for other content, DataKeyError, and OSError.
    """
    content = read_content(state, name)
    return None if content is None else pairs_in(content, state.display(name))


def read_object(state: DiscussionState, name: str) -> dict[str, object]:
    """Return the object in the document ``name``; empty without one. Raises like ``read_pairs``."""
    content = read_content(state, name)
    return {} if content is None else texts_in(content, state.display(name))


def read_content(state: DiscussionState, name: str) -> Any:
    """Return the JSON in the document ``name``, or None.

    Raises UnreadableDataError for a document that is not JSON, DataKeyError, and OSError.
    """
    return _content_of(state, name, state.read(name))


def _content_of(state: DiscussionState, name: str, stored: bytes | None) -> Any:
    return None if stored is None else _parsed(stored, state.cipher, state.display(name), state.display(name))


def write_content(state: DiscussionState, name: str, content: object) -> None:
    """Replace the document ``name`` of a discussion by JSON. Raises OSError and DataKeyError without any change."""
    state.write(name, json_bytes(content))


def read_text(state: DiscussionState, name: str) -> str:
    """Return the text of the document ``name``; empty without one.

    Raises OSError, and DataKeyError for a token of another key, and for a part of any token.
    """
    stored = state.read(name)
    if stored is None:
        return ""
    with file_named(state.display(name)):
        refuse_cut_off(stored)
        return decode_text(state.cipher.decrypt(stored), state.display(name))


def change_content(
    state: DiscussionState,
    name: str,
    change: Callable[[Any], object | None],
    scope: CancelScope | None = None,
    timeout: float | None = None,
) -> None:
    """Replace the JSON in the document ``name`` by what ``change`` makes of it; None leaves it.

    ``change`` gets None if there is no document, and may be called more than once. Raises like ``read_pairs``, what
    ``change`` raises, and what ``DiscussionState.change`` raises.
    """

    def changed(stored: bytes | None) -> bytes | None:
        after = change(_content_of(state, name, stored))
        return None if after is None else json_bytes(after)

    state.change(name, changed, scope, timeout)


def change_object(
    state: DiscussionState,
    name: str,
    change: Callable[[dict[str, object]], dict[str, object]],
    scope: CancelScope | None = None,
) -> None:
    """Replace the object in the document ``name`` by what ``change`` makes of it, if that differs from it.

    ``change`` may be called more than once. Raises like ``read_pairs``, what ``change`` raises, and
    EarlyTerminationException if ``scope`` is cancelled while others change the document.
    """

    def changed(content: object) -> object | None:
        before = {} if content is None else texts_in(content, state.display(name))
        after = change(dict(before))
        return None if after == before else after

    change_content(state, name, changed, scope)


# -- by path -----------------------------------------------------------------------------------------------------------


def ensure_json_file_exists(
    path: str, initial: list[object] | None = None, encryption_key: bytes | None = None, mode: int | None = PRIVATE_FILE
) -> list[object]:
    """Return the list in the file, which is created with ``initial`` (empty) if it is missing.

    Raises TypeError, with path and type, for other JSON; UnreadableDataError for invalid JSON.
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
    """Return the texts and hashes in a file, in order; it is created empty if it is missing.

    Raises UnreadableDataError for other content.
    """
    content = read_json(path, cipher_for(encryption_key))
    if content is None:
        content = ensure_json_file_exists(path, encryption_key=encryption_key)
    return pairs_in(content, os.path.basename(path))


def write_chunks_with_hashes(
    chunks: Iterable[Pair],
    path: str,
    overwrite: bool = False,
    encryption_key: bytes | None = None,
    mode: int | None = PRIVATE_FILE,
) -> None:
    """Append to the content of the file, or replace it. Raises UnreadableDataError if the file has other content."""
    cipher = cipher_for(encryption_key)
    content = read_json(path, cipher)
    if content is None:
        content = []
    pairs_in(content, os.path.basename(path))
    write_json(path, [*([] if overwrite else content), *pairs_as_json(chunks)], cipher, mode)


def update_chunks_with_hashes(
    chunks: Iterable[Pair], path: str, mode: str = "append", encryption_key: bytes | None = None
) -> None:
    """Call ``write_chunks_with_hashes`` in the mode ``append`` or ``overwrite``. Raises ValueError for others."""
    if mode not in ("append", "overwrite"):
        raise ValueError(f"unknown mode '{mode}'; known are append, overwrite")
    write_chunks_with_hashes(chunks, path, mode == "overwrite", encryption_key)


def _read_object(path: str, encryption_key: bytes | None = None) -> dict[str, object]:
    """Return the object in the file; empty without one. Raises UnreadableDataError for other content."""
    content = read_json(path, cipher_for(encryption_key))
    return {} if content is None else texts_in(content, os.path.basename(path))


def _write_object(path: str, content: Mapping[str, object], encryption_key: bytes | None = None) -> None:
    """Replace the object in the file. Raises UnreadableDataError if the file has other content."""
    _read_object(path, encryption_key)
    write_json(path, dict(content), cipher_for(encryption_key))


# The times of messages by the hash of the message, {"lastCondensationHash": hash}, and image descriptions by the hash
# of the message: users' scripts know a function for each of these files.
load_timestamp_file = read_condensation_tracker = read_vision_responses = _read_object
save_timestamp_file = write_condensation_tracker = write_vision_responses = _write_object
