"""The file with the salt of format 2, in the folder of all discussions. It is not secret, but nothing replaces it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict

from Middleware.exceptions import KeySaltError
from Middleware.utilities.discussions.stored_files import PRIVATE_FILE
from Middleware.utilities.encryption_utils import NAME_START, SALT_BYTES, KeySalt
from Middleware.utilities.files.file_access import (
    Signature,
    atomic_write,
    file_signature,
    folder_lock,
    is_unsettled,
    open_to_read,
)
from Middleware.utilities.once import BoundedCache
from Middleware.utilities.text_utils import counted

SALT_FILE = "key-salt.json"
_VERSION, _METHOD = 2, "scrypt"
KEY_FOLDER_2 = re.compile(f"{NAME_START}[0-9a-f]{{32}}")
# Less work would be no protection; with more memory, one who can write the file could stop the server.
_COST = {"n": [2**power for power in range(14, 18)], "r": [8], "p": range(1, 17)}
_EXPECTED = (
    f"Expected: a JSON object with 'version' {_VERSION}, 'method' '{_METHOD}', its numbers 'n', 'r' and 'p', and "
    f"'salt' with {2 * SALT_BYTES} hexadecimal digits, as it was made"
)
_UNCHANGED = "Nothing was changed, and no other salt is made, as it could not open the data"


def salt_text(salt: KeySalt) -> str:
    """Return a salt as it is stored."""
    content = {"version": _VERSION, "method": _METHOD, **asdict(salt), "salt": salt.salt.hex()}
    return json.dumps(content, indent=2) + "\n"


def parse_salt(text: str, where: str) -> KeySalt:
    """Return a stored salt; ``where``: what the log calls the place. Raises KeySaltError."""
    try:
        content = json.loads(text)
        version = content["version"]
        if isinstance(version, int) and version > _VERSION:
            raise KeySaltError(f"{SALT_FILE} is of a newer version of WilmerAI ({version}). {_UNCHANGED}", where)
        cost = {name: content[name] for name in _COST}
        salt = KeySalt(bytes.fromhex(content["salt"]), **cost)
        if (version, content["method"], len(salt.salt)) == (_VERSION, _METHOD, SALT_BYTES) and all(
            type(number) is int and number in _COST[name] for name, number in cost.items()
        ):
            return salt
    # RecursionError: of what is nested thousands of times.
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise KeySaltError(f"{SALT_FILE} is damaged. {_EXPECTED}: restore it from a backup. {_UNCHANGED}", where)


class SaltFiles:
    """The salts of the folders of discussions, each read again when its file has changed."""

    def __init__(self) -> None:
        self._known: BoundedCache[str, tuple[Signature | None, KeySalt | None]] = BoundedCache(16)

    def read(self, roots: Sequence[str]) -> KeySalt | None:
        """Return the salt of the first folder, which gets a copy of that of the next one if it has none; None without.

        Raises KeySaltError for one that cannot be used, and for one that is missing while folders in format 2 exist.
        """
        path = os.path.join(roots[0], SALT_FILE)
        signature = file_signature(path)
        known = self._known.get(path)
        # A disk that was unmounted takes the folder along, and brings it back with the same salt.
        if known is not None and (known[0] == signature or not os.path.isdir(roots[0])):
            return known[1]
        salt = self._found(path, roots)
        if not is_unsettled(signature):
            self._known.put(path, (signature, salt))
        return salt

    def keep(self, roots: Sequence[str], salt: KeySalt) -> KeySalt:
        """Store a salt in the first folder, unless it has one; return the one that it has. Raises as ``read``,
        and OSError."""
        return self.read(roots) or _store(os.path.join(roots[0], SALT_FILE), salt)

    def _found(self, path: str, roots: Sequence[str]) -> KeySalt | None:
        salt = _read(path, roots[0])
        for root in roots[1:] if salt is None else ():
            other = os.path.join(root, SALT_FILE)
            # Without a salt there, its folders of keys were made with that of the first folder.
            salt = _read(other, root, path)
            if salt is not None:
                # The first folder is about to get data by this salt. One that cannot be written gets none.
                with contextlib.suppress(OSError):
                    return _store(path, salt)
                break
        return salt


def _store(path: str, salt: KeySalt) -> KeySalt:
    """Store a salt, unless there is one; return the one that is there. Raises KeySaltError and OSError."""
    root = os.path.dirname(path)
    os.makedirs(root, exist_ok=True)
    with folder_lock(root):
        # Another process may have made it in the meantime.
        known = _read(path, root)
        if known is None:
            atomic_write(path, salt_text(salt).encode("ascii"), PRIVATE_FILE)
    return known or salt


def holds_folders(path: str) -> bool:
    """Return whether a folder holds others, as that of a key does, and that of a discussion does not. Raises OSError,
    and ValueError for what cannot be a path."""
    with os.scandir(path) as entries:
        return any(map(os.path.isdir, entries))


def _is_of_a_key(path: str) -> bool:
    # Clients without a key may call their discussions as they like.
    try:
        return holds_folders(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _read(path: str, root: str, missed: str = "") -> KeySalt | None:
    """``missed``: what errors call a salt that is missing; by default ``path``."""
    try:
        with open_to_read(path) as file:
            return parse_salt(file.read().decode("utf-8"), path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except UnicodeDecodeError:
        return parse_salt("", path)
    except OSError as error:
        raise KeySaltError(f"{SALT_FILE} cannot be read: {error.strerror}. {_UNCHANGED}", path) from None
    names = os.listdir(root) if os.path.isdir(root) else ()
    lost = [name for name in names if KEY_FOLDER_2.fullmatch(name) and _is_of_a_key(os.path.join(root, name))]
    if lost:
        raise missing_salt(len(lost), missed or path)
    return None


def missing_salt(keys: int, where: str) -> KeySaltError:
    """Return the error about a salt that is lost, with the number of keys that lead to data by it."""
    whose = counted(keys, "API key")
    return KeySaltError(
        f"{SALT_FILE} is missing, and the conversations of {whose} cannot be opened without it: restore it from a "
        f"backup. {_UNCHANGED}",
        where,
    )
