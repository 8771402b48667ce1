"""Reading and writing whole files: plain text, and the files that workflows name.

Paths are taken as they are, without any containment: who writes a workflow decides where it writes.
"""
from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import BinaryIO, Protocol

from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.config_text import decode_text, legacy_code_page
from Middleware.utilities.file_access import (
    atomic_write,
    encode_text,
    find_file_ignoring_case,
    ordinary_file,
    path_lock,
    resolve_file_path,
)
from Middleware.utilities.text_extraction import first_pieces, last_pieces, lines_without

__all__ = [
    "CUSTOM_FILE_MODES", "Cipher", "EMPTY_TEXT", "MISSING_TEXT", "NoCipher", "atomic_write", "load_custom_file",
    "read_plain_text_file", "resolve_file_path", "save_custom_file", "write_plain_text_file",
]

logger = logging.getLogger(__name__)

MISSING_TEXT = "Custom instruction file did not exist"
EMPTY_TEXT = "No additional information added"
CUSTOM_FILE_MODES = ("overwrite", "append", "replace", "remove", "trim")
LARGE_FILE = 1 << 20  # bytes; of larger files only the end is read where that is all that counts
TAIL_BLOCK = 1 << 16  # bytes

_BOM = "\ufeff"


class Cipher(Protocol):
    """How a file's bytes look on disk; ``decrypt`` undoes ``encrypt``."""

    def encrypt(self, data: bytes) -> bytes: ...

    def decrypt(self, data: bytes) -> bytes: ...


class NoCipher:
    """Files in clear."""

    def encrypt(self, data: bytes) -> bytes:
        return data

    def decrypt(self, data: bytes) -> bytes:
        return data


_PLAIN = NoCipher()


# -- plain text --------------------------------------------------------------------------------------------------------

def read_plain_text_file(path: str, cipher: Cipher = _PLAIN) -> str:
    """The text of exactly this file; empty if there is none."""
    data = _read(resolve_file_path(path))
    return "" if data is None else decode_text(cipher.decrypt(data), path)


def write_plain_text_file(path: str, text: str, cipher: Cipher = _PLAIN, backup_suffix: str | None = None) -> None:
    """Replace the file's content. With a suffix, the present content is first copied to ``path`` + suffix.

    Raises OSError; if it is the copy that fails, nothing is written. Takes no lock: who reads, changes and writes holds
    ``path_lock`` or ``process_lock`` around all of it.
    """
    path = resolve_file_path(path)
    known = ordinary_file(path) if backup_suffix else None
    if known is not None:
        data = _read(path)
        if data is not None:
            atomic_write(f"{path}{backup_suffix}", data, known.st_mode & 0o777)
    atomic_write(path, cipher.encrypt(encode_text(text)))


def _read(path: str) -> bytes | None:
    if ordinary_file(path) is None:
        return None
    with open(path, "rb") as file:
        return file.read()


# -- reading custom files ----------------------------------------------------------------------------------------------

def load_custom_file(path: str, delimiter: str | None = None, custom_delimiter: str | None = None,
                     head_count: int | None = None, tail_count: int | None = None, chunk_delimiter: str = "\n") -> str:
    """The text of a file that a workflow names, with line feeds as line ends; the case of its name does not count.

    Counts keep the first or last (which wins) pieces between chunk delimiters, none for a count below 1. After that,
    ``delimiter`` becomes ``custom_delimiter`` if neither is empty. ``MISSING_TEXT`` and ``EMPTY_TEXT`` stand for what
    their names say. Raises OSError for a file that must not be read.
    """
    found = find_file_ignoring_case(resolve_file_path(path))
    if found is None:
        return MISSING_TEXT
    chunk_delimiter = chunk_delimiter or "\n"
    try:
        with open(found, "rb") as file:
            data = _needed_part(file, tail_count if chunk_delimiter == "\n" else None)
    except FileNotFoundError:  # removed just now
        return MISSING_TEXT
    text = decode_text(data, found).replace("\r\n", "\n").replace("\r", "\n")
    if not text:
        return EMPTY_TEXT
    if tail_count is not None:
        text = last_pieces(text, chunk_delimiter, tail_count)
    elif head_count is not None:
        text = first_pieces(text, chunk_delimiter, head_count)
    return text.replace(delimiter, custom_delimiter) if delimiter and custom_delimiter else text


def _needed_part(file: BinaryIO, last_lines: int | None) -> bytes:
    """The whole file; of a large one only the end, if that surely holds the last lines unchanged.

    Whether a file is UTF-8 is a matter of all its bytes, but ASCII lines read the same either way.
    """
    size = os.fstat(file.fileno()).st_size
    block = TAIL_BLOCK
    while last_lines is not None and last_lines > 0 and size > LARGE_FILE and block < size:
        file.seek(size - block)
        end = file.read(block)
        if not end.isascii():
            break
        if end.count(b"\n") >= last_lines:  # so the first line, which is cut, is not among the last
            return end
        block *= 4
    file.seek(0)
    return file.read()


# -- writing custom files ----------------------------------------------------------------------------------------------

def save_custom_file(path: str, content: str = "", mode: str = "overwrite", find: str | None = None,
                     scope: CancelScope | None = None) -> int | None:
    """Write a file that a workflow names, or change it; one at a time for each file. Line ends stay as given.

    ``overwrite`` and ``append`` create the file and its folders. ``replace`` (every ``find`` by ``content``),
    ``remove`` (lines with ``find``) and ``trim`` (blank lines) create nothing, return how many they found, and write
    only if that is not 0.

    Raises ValueError for unusable arguments and for a file to change that is no text; OSError, about ``path``, if it
    cannot be written; EarlyTerminationException if ``scope`` is cancelled before it is this call's turn.
    """
    if mode not in CUSTOM_FILE_MODES:
        raise ValueError(f"unknown mode '{mode}'; known are {', '.join(CUSTOM_FILE_MODES)}")
    if mode in ("replace", "remove") and not find:
        raise ValueError(f"'find' is empty, and mode '{mode}' needs a text to look for")
    if not path.strip():
        raise ValueError("the file path is empty")
    path = resolve_file_path(path)
    with path_lock(path, scope):
        if mode == "overwrite":
            atomic_write(path, encode_text(content))
            return None
        if mode == "append":
            atomic_write(path, encode_text((_text_to_change(path) or "") + content))
            return None
        return _edit(path, _editor(mode, content, find or ""))


def _editor(mode: str, content: str, find: str) -> Callable[[str], tuple[str, int]]:
    """What makes the new text and the number of changes from the old text."""
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
    changed, count = change(text[len(bom):])
    if count:
        atomic_write(path, encode_text(bom + changed))
    return count


def _text_to_change(path: str) -> str | None:
    """The file's text with every character and line end in place; None if there is no file.

    Raises ValueError rather than to write back something else than was read.
    """
    data = _read(path)
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        encoding = legacy_code_page()
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise ValueError(f"the file is neither UTF-8 nor {encoding} text, so it is left alone") from None
    logger.warning("A file that is not UTF-8 was read as %s; it will be UTF-8 from now on.", encoding)
    return text
