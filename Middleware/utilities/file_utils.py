"""Reading and writing whole files: plain text, and the files that workflows name.

Paths are used as given, without any restriction: the author of a workflow decides where it writes.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.config.json_source import decode_text, legacy_code_page
from Middleware.utilities.discussions.discussion_files import (
    ensure_json_file_exists,
    load_timestamp_file,
    read_chunks_with_hashes,
    read_condensation_tracker,
    read_vision_responses,
    save_timestamp_file,
    update_chunks_with_hashes,
    write_chunks_with_hashes,
    write_condensation_tracker,
    write_vision_responses,
)
from Middleware.utilities.discussions.stored_files import cipher_of_file
from Middleware.utilities.encryption_utils import (
    NO_CIPHER,
    Cipher,
    cipher_for,
    file_in_folder,
    file_named,
    is_cut_off,
    refuse_cut_off,
)
from Middleware.utilities.files.file_access import (
    atomic_write,
    find_file_ignoring_case,
    folder_lock,
    open_to_read,
    ordinary_file,
    path_lock,
    resolve_file_path,
)
from Middleware.utilities.text_utils import encode_text, first_pieces, last_pieces, lines_without

logger = logging.getLogger(__name__)

MISSING_TEXT = "Custom instruction file did not exist"
EMPTY_TEXT = "No additional information added"
CUSTOM_FILE_MODES = ("overwrite", "append", "replace", "remove", "trim")
# In bytes: of a larger file only the needed part is read, such as the last lines of a log.
LARGE_FILE = 1 << 20
TAIL_BLOCK = 1 << 16

_BOM = "\ufeff"


# -- plain text --------------------------------------------------------------------------------------------------------


def read_plain_text_file(path: str, cipher: Cipher = NO_CIPHER, *, encryption_key: bytes | None = None) -> str:
    """Return the text of this file; empty without one. A key selects its cipher.

    Raises OSError, and DataKeyError for a token of another key, and for a part of any token.
    """
    found = resolve_file_path(path)
    cipher = cipher_for(encryption_key) if encryption_key else cipher
    data = _read(found)
    with file_named(file_in_folder(found)):
        return "" if data is None else decode_text(_decrypted(data, cipher), path)


def write_plain_text_file(
    path: str,
    text: str,
    cipher: Cipher = NO_CIPHER,
    backup_suffix: str | None = None,
    mode: int | None = None,
    *,
    encryption_key: bytes | None = None,
) -> None:
    """Replace the file's content. With a suffix, the present content is first copied to ``path`` + suffix.

    A key selects its cipher; ``mode`` is for a new file. A text that looks like a token, or part of one, gets a space
    before it. Raises OSError, and DataKeyError if the present content cannot be decrypted; if the copy fails, nothing
    is written. It takes no lock: a caller that reads, changes and writes holds ``path_lock`` or ``process_lock``.
    """
    path = resolve_file_path(path)
    cipher = cipher_of_file(path, cipher_for(encryption_key) if encryption_key else cipher)
    known = ordinary_file(path) if backup_suffix else None
    if known is not None:
        data = _read(path)
        if data is not None:
            # A file in clear must not be copied in clear if the cipher is active.
            copy = _encrypted(_decrypted(data, cipher), cipher)
            atomic_write(f"{path}{backup_suffix}", copy, known.st_mode & 0o777)
    atomic_write(path, _encrypted(encode_text(text), cipher), mode)


def _decrypted(data: bytes, cipher: Cipher) -> bytes:
    refuse_cut_off(data)
    return cipher.decrypt(data)


def _encrypted(data: bytes, cipher: Cipher) -> bytes:
    stored = cipher.encrypt(data)
    return b" " + stored if is_cut_off(stored) else stored


def _read(path: str) -> bytes | None:
    if ordinary_file(path) is None:
        return None
    with open_to_read(path) as file:
        return file.read()


# -- reading custom files ----------------------------------------------------------------------------------------------


def load_custom_file(
    path: str,
    delimiter: str | None = None,
    custom_delimiter: str | None = None,
    head_count: int | None = None,
    tail_count: int | None = None,
    chunk_delimiter: str = "\n",
) -> str:
    """Return the text of a file that a workflow names, with line feeds as line ends; the case of its name is ignored.

    The counts keep the first or the last pieces between chunk delimiters, none for a count below 1; the last ones take
    precedence. Then ``delimiter`` is replaced by ``custom_delimiter`` if neither is empty. The result is
    ``MISSING_TEXT`` or ``EMPTY_TEXT`` for a missing or empty file. Raises OSError for a file that must not be read.
    """
    found = find_file_ignoring_case(resolve_file_path(path))
    if found is None:
        return MISSING_TEXT
    chunk_delimiter = chunk_delimiter or "\n"
    try:
        with open_to_read(found) as file:
            data = _needed_part(file, head_count, tail_count) if chunk_delimiter == "\n" else file.read()
    # The file was removed after the lookup.
    except FileNotFoundError:
        return MISSING_TEXT
    text = decode_text(data, found).replace("\r\n", "\n").replace("\r", "\n")
    if not text:
        return EMPTY_TEXT
    if tail_count is not None:
        text = last_pieces(text, chunk_delimiter, tail_count)
    elif head_count is not None:
        text = first_pieces(text, chunk_delimiter, head_count)
    return text.replace(delimiter, custom_delimiter) if delimiter and custom_delimiter else text


def _needed_part(file: BinaryIO, first_lines: int | None, last_lines: int | None) -> bytes:
    """Return the whole file; of a large one only the start or end, if it contains the needed lines."""
    part, size = b"", os.fstat(file.fileno()).st_size
    if size > LARGE_FILE and last_lines is not None:
        part = _end(file, size, last_lines)
    elif size > LARGE_FILE and first_lines is not None:
        part = b"".join(itertools.islice(file, max(first_lines, 1)))
    # Only the whole file shows whether it is UTF-8, but ASCII lines are the same in any encoding.
    if part and part.isascii():
        return part
    file.seek(0)
    return file.read()


def _end(file: BinaryIO, size: int, lines: int) -> bytes:
    """Return the end of the file with its last lines; empty if they may be the whole file."""
    block = TAIL_BLOCK
    while lines > 0 and block < size:
        file.seek(size - block)
        end = file.read(block)
        # The first line of the block is incomplete, so it must not be one of the last lines.
        if end.count(b"\n") >= lines or not end.isascii():
            return end
        block *= 4
    return b""


# -- writing custom files ----------------------------------------------------------------------------------------------


def save_custom_file(
    path: str, content: str = "", mode: str = "overwrite", find: str | None = None, scope: CancelScope | None = None
) -> int | None:
    """Write or change a file that a workflow names, under a lock between processes too. Line ends stay as given.

    ``overwrite`` and ``append`` create the file and its folders. ``replace`` (every ``find`` by ``content``),
    ``remove`` (lines with ``find``) and ``trim`` (blank lines) create nothing, return the number of changes, and write
    only if it is not 0.

    Raises ValueError for unusable arguments and for a file to change that is not text; OSError, about ``path``, if it
    cannot be written; EarlyTerminationException if ``scope`` is cancelled while it waits for the lock.
    """
    if mode not in CUSTOM_FILE_MODES:
        raise ValueError(f"unknown mode '{mode}'; known are {', '.join(CUSTOM_FILE_MODES)}")
    # An empty string is found everywhere, so every line would be removed.
    if mode in ("replace", "remove") and not find:
        raise ValueError(f"'find' is empty, and mode '{mode}' needs a text to look for")
    if not path.strip():
        raise ValueError("the file path is empty")
    path = resolve_file_path(path)
    with _file_locked(path, mode in ("overwrite", "append"), scope):
        if mode == "overwrite":
            atomic_write(path, encode_text(content))
            return None
        if mode == "append":
            atomic_write(path, encode_text((_text_to_change(path) or "") + content))
            return None
        return _edit(path, _editor(mode, content, find or ""))


@contextlib.contextmanager
def _file_locked(path: str, create: bool, scope: CancelScope | None) -> Iterator[None]:
    folder = os.path.dirname(os.path.realpath(path))
    with contextlib.ExitStack() as stack:
        stack.enter_context(path_lock(path, scope))
        # A folder that cannot be made or opened: the write itself reports it, if it fails too.
        with contextlib.suppress(OSError, ValueError):
            # A path that ends in a separator names a folder: the write refuses it, and nothing is created.
            if create and os.path.basename(path):
                os.makedirs(folder, exist_ok=True)
            stack.enter_context(folder_lock(folder, scope))
        yield


def _editor(mode: str, content: str, find: str) -> Callable[[str], tuple[str, int]]:
    """Return a function from the old text to the new text and the number of changes."""
    if mode == "replace":
        return lambda text: (text.replace(find, content), text.count(find))
    if mode == "remove":
        return lambda text: lines_without(text, lambda line: find in line)
    return lambda text: lines_without(text, lambda line: not line.strip())


def _edit(path: str, change: Callable[[str], tuple[str, int]]) -> int:
    text = _text_to_change(path)
    if text is None:
        return 0
    bom = _BOM if text.startswith(_BOM) else ""
    changed, count = change(text[len(bom) :])
    if count:
        atomic_write(path, encode_text(bom + changed))
    return count


def _text_to_change(path: str) -> str | None:
    """Return the file's text with its line ends unchanged; None if there is no file. Raises ValueError."""
    data = _read(path)
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        encoding = legacy_code_page()
    try:
        text = data.decode(encoding)
    # Writing back a text with replaced characters would destroy the file.
    except UnicodeDecodeError:
        raise ValueError(f"the file is neither UTF-8 nor {encoding} text, so it is left alone") from None
    logger.warning("A file that is not UTF-8 was read as %s; it will be UTF-8 from now on.", encoding)
    return text
