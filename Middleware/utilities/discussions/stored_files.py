"""Files of discussions as bytes, which may be encrypted.

Each is replaced in one step, and the case of its name is ignored.
"""

from __future__ import annotations

from Middleware.utilities.encryption_utils import (
    NO_CIPHER,
    TOKEN_START,
    Cipher,
    file_in_folder,
    file_named,
    is_cut_off,
    is_token,
    refuse_cut_off,
)
from Middleware.utilities.files.file_access import (
    atomic_write,
    find_file_ignoring_case,
    open_to_read,
    ordinary_file,
    resolve_file_path,
)

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
"""The permission bits of what is new: the computer's other users must not read conversations."""


def read_stored(path: str) -> bytes | None:
    """Return the content of the file at ``path`` as it is, or None. Raises OSError."""
    found = existing_file(path)
    if ordinary_file(found) is None:
        return None
    with open_to_read(found) as file:
        return file.read()


def write_stored(path: str, content: bytes, cipher: Cipher = NO_CIPHER, mode: int | None = PRIVATE_FILE) -> None:
    """Replace the file at ``path`` and create its folders. Raises OSError and DataKeyError without any change.

    A file that is encrypted with one of the cipher's other keys keeps that key. A text that looks like part of a token
    gets a space before it. ``mode`` is for a new file.
    """
    found = existing_file(path)
    atomic_write(found, encoded(content, cipher_of_file(found, cipher)), mode)


def encoded(content: bytes, cipher: Cipher) -> bytes:
    """Return ``content`` as it is stored."""
    stored = cipher.encrypt(content)
    return b" " + stored if is_cut_off(stored) else stored


def cipher_of_file(path: str, cipher: Cipher) -> Cipher:
    """Return the cipher for the next write of this file: that of its present key, else the given one.

    Raises OSError, and DataKeyError if no key fits: then the file must not be changed.
    """
    if ordinary_file(path) is None:
        return cipher
    with open_to_read(path) as file:
        data = file.read(len(TOKEN_START))
        # Most files are not encrypted, and some are large: the start is enough to know.
        if data != TOKEN_START:
            return cipher
        data += file.read()
    return cipher_of(data, cipher, file_in_folder(path))


def cipher_of(data: bytes, cipher: Cipher, name: str) -> Cipher:
    """Return the cipher for the next write of what is stored as ``data``. Raises DataKeyError, which has ``name``."""
    # Data in clear may look like anything, and is encrypted if the cipher is active.
    if not data.startswith(TOKEN_START):
        return cipher
    with file_named(name):
        refuse_cut_off(data)
        return cipher.like(data)


def existing_file(path: str) -> str:
    """Return the path of the file with this name, in whichever case; ``path`` without one."""
    path = resolve_file_path(path)
    return find_file_ignoring_case(path) or path


def copy_file(path: str, suffix: str, cipher: Cipher = NO_CIPHER, instead: bytes | None = None) -> None:
    """Copy the file at ``path``, if there is one, to the same name with ``suffix``. Raises OSError and DataKeyError.

    ``instead``: what the copy contains in place of the file, encrypted with the key of the file.
    """
    found = existing_file(path)
    if instead is not None:
        atomic_write(found + suffix, encoded(instead, cipher_of_file(found, cipher)), PRIVATE_FILE)
    elif ordinary_file(found) is not None:
        with open_to_read(found) as file:
            data = file.read()
        with file_named(file_in_folder(found)):
            # A file in clear must not be copied in clear if the cipher is active.
            copy = cipher.like(data).encrypt(cipher.decrypt(data))
        atomic_write(found + suffix, copy, PRIVATE_FILE)


def hide_file(path: str, cipher: Cipher) -> None:
    """Encrypt a file that is still in clear, such as a backup from before encryption. Raises OSError."""
    if not cipher.active or ordinary_file(path) is None:
        return
    with open_to_read(path) as file:
        data = file.read()
    if data and not is_token(data):
        atomic_write(path, cipher.encrypt(data))
