"""Where the data of a client with an API key is stored, and what encrypts it: the one place that chooses the format.

Format 2 applies where its salt is stored with the discussions, except to a key whose data is in format 1 there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from Middleware.exceptions import ConfigurationError, WilmerError
from Middleware.models.process import process
from Middleware.utilities.config.users import configured_users, find_user_file
from Middleware.utilities.discussions.discussion_folder import discussions
from Middleware.utilities.encryption_utils import DataKey, KeySalt, derive_encryption_key, hash_api_key, key_folder_name
from Middleware.utilities.files.file_access import listed_name


@dataclass(frozen=True)
class KeyPlace:
    """The folder of a key's discussions; ``salt``: that of format 2, None in format 1."""

    name: str
    salt: KeySalt | None = field(default=None, repr=False)


def key_place(api_key: str, user: str | None = None) -> KeyPlace:
    """Return where the data of a key is among the discussions of ``user`` (None: the current one).

    Raises KeySaltError, and ConfigurationError for a user file that cannot be read.
    """
    stored, old = process().one(discussions), hash_api_key(api_key)
    salt = stored.key_salt(user)
    if salt is None:
        return KeyPlace(old)
    new = key_folder_name(api_key, salt)
    # Data in format 2 comes first: an older program, or a backup, may have put a folder of format 1 next to it. But the
    # installation's folder, which is used while the disk with the data is away, does not come before that disk.
    return KeyPlace(old) if stored.first_name((new, old), user) == old else KeyPlace(new, salt)


def key_name(api_key: str | None, user: str | None) -> str | None:
    """Return the name of a key's folder, which also stands for the key wherever something is kept of it.

    ``user``: whose; None: unknown as yet. None without a key, and if the name cannot be known, which the request itself
    reports.
    """
    with contextlib.suppress(WilmerError, OSError):
        return key_place(api_key, user or next(iter(configured_users()), None)).name if api_key else None
    return None


def key_names(api_key: str, users: Iterable[str] | None) -> frozenset[str]:
    """Return all names that the key has or had among the discussions of the users; None: of all users served here.

    Raises KeySaltError.
    """
    names = {hash_api_key(api_key)}
    whose: list[str | None] = [*(configured_users() if users is None else users)]
    # In legacy mode, the current user has no name on the command line.
    for user in whose or [None]:
        # The broken file of one of several users must not hide what the others have.
        with contextlib.suppress(ConfigurationError):
            names.add(key_folder_name(api_key, process().one(discussions).key_salt(user)))
    return frozenset(names)


def use_format_2(api_key: str, users: Iterable[str]) -> list[str]:
    """Let a key of these users have format 2, unless it has data in format 1; return those for whom a salt was made.

    Raises KeySaltError and OSError.
    """
    stored, made = process().one(discussions), []
    for user in users:
        if stored.key_salt(user) is None and not stored.has_key(hash_api_key(api_key), user):
            stored.keep_key_salt(KeySalt.new(), user)
            made.append(user)
    return made


def data_key(api_key: str, user: str, place: KeyPlace | None = None) -> DataKey:
    """Return the encryption key of a client's key for a user, which knows the others that may have been used.

    ``place``: that of the key, if it is known. Raises as ``key_place`` does.
    """
    salt = (place or key_place(api_key, user)).salt
    return DataKey(derive_encryption_key(api_key, user, salt), partial(_other_keys, api_key, user, salt))


def _other_keys(api_key: str, user: str, salt: KeySalt | None) -> Iterator[bytes]:
    """Yield the keys for other spellings of the name, for other users, who share the folder of an API key, and in the
    other format: files may have been moved into the folder, or a change of format may have been interrupted."""
    names = [name for one in (user, *configured_users()) for name in user_spellings(one)]
    # Deriving a key takes long, so only as many are derived as are needed.
    for one in dict.fromkeys((salt, process().one(discussions).key_salt(user), None)):
        for name in dict.fromkeys(names):
            if (name, one) != (user, salt):
                yield derive_encryption_key(api_key, name, one)


def user_spellings(user: str) -> list[str]:
    """Return the possible spellings of a user's name: unchanged, in lower case, and like its file."""
    file = find_user_file(user)
    # The user may have been spelled in another way when the data was written.
    names = [user, user.lower(), *([os.path.splitext(listed_name(file.path))[0]] if file else [])]
    return list(dict.fromkeys(names))
