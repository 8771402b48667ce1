"""How data of a client with an API key is kept apart from others', and unreadable to them.

An API key is neither stored nor checked. Its hash names a folder; with the user's setting ``encryptUsingApiKey`` a key
derived from it encrypts what lies there, as Fernet tokens (AES-128-CBC with HMAC-SHA256).
"""
from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from Middleware.exceptions import DataKeyError
from Middleware.models.process import process
from Middleware.models.request_context import first_logged
from Middleware.utilities.once import BoundedCache

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

logger = logging.getLogger(__name__)

ITERATIONS = 100_000
MOST_DERIVED_KEYS = 256
TOKEN_START = b"gAAAA"
_SALT = "WilmerAI-v1-"
_SALT_WITHOUT_USER = "WilmerAI-encryption-salt-v1"
_BASE64 = re.compile(rb"[A-Za-z0-9_-]+={0,2}")
_AROUND_BLOCKS = 57
_SMALLEST = _AROUND_BLOCKS + 16
_WRONG_KEY = "stored data of this conversation belongs to another API key or user"
_NO_KEY = ("stored data of this conversation belongs to another API key or user, or was encrypted before "
           "'encryptUsingApiKey' was switched off")
_CUT_OFF = "stored data of this conversation is part of an encrypted text; the rest of it is lost"
_IN_CLEAR = "Stored data that is not encrypted yet was read; its next write encrypts it."


Keys = Callable[[], Iterable[bytes]]


class DataKey(bytes):
    """A key that knows others, with which data may have been encrypted before; ``others`` derives them one by one.

    Who keeps such a key keeps what the others are derived from.
    """

    others: Keys

    def __new__(cls, key: bytes, others: Keys) -> DataKey:
        made = super().__new__(cls, key)
        made.others = others
        return made

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:  # copies, and other processes, get the key alone
        return bytes, (bytes(self),)

    def __repr__(self) -> str:
        return "DataKey(...)"


class Cipher(Protocol):
    """How bytes look on disk. ``active`` says whether they are encrypted; ``mark`` differs with the key.

    ``decrypt`` gives back what ``encrypt`` was given, but for the space that ``NoCipher`` puts before what would be
    taken for a token. ``like`` is the cipher with which data that looks like this goes on; both raise DataKeyError
    for a token that cannot be decrypted.
    """

    @property
    def active(self) -> bool: ...

    @property
    def mark(self) -> Hashable: ...

    def encrypt(self, data: bytes) -> bytes: ...

    def decrypt(self, data: bytes) -> bytes: ...

    def like(self, data: bytes) -> Cipher: ...


class NoCipher:
    """Data in clear. ``decrypt`` takes whatever ``encrypt`` gave."""

    active = False
    mark = None

    def encrypt(self, data: bytes) -> bytes:
        """The data; with a space before it if it would be taken for a token, as a model may write anything."""
        return b" " + data if is_token(data) else data

    def decrypt(self, data: bytes) -> bytes:
        """Raises DataKeyError for an encrypted token: showing or overwriting it helps nobody."""
        if is_token(data):
            raise DataKeyError(_NO_KEY)
        return data

    def like(self, data: bytes) -> Cipher:
        self.decrypt(data)
        return self


class FernetCipher:
    """Data as tokens of one key. Data in clear is read too: it becomes a token when it is written next.

    Tokens of the other keys are read, and ``like`` goes on with the one that fits.
    """

    active = True

    def __init__(self, key: bytes, others: Keys = tuple) -> None:
        self._key, self._others = bytes(key), others
        self._fernet = _fernet(self._key)

    @property
    def mark(self) -> Hashable:
        return self._key

    def encrypt(self, data: bytes) -> bytes:
        return self._fernet.encrypt(data)

    def decrypt(self, data: bytes) -> bytes:
        """Raises DataKeyError for a token that no key fits."""
        if not is_token(data):
            if data and first_logged(_IN_CLEAR):
                logger.warning(_IN_CLEAR)
            return data
        return self._open(data)[1]

    def like(self, data: bytes) -> Cipher:
        if not is_token(data):
            return self
        key, _ = self._open(data)
        return self if key == self._key else FernetCipher(key, self._keys)

    def _open(self, token: bytes) -> tuple[bytes, bytes]:
        """The key that fits, and what it gives."""
        from cryptography.fernet import InvalidToken

        token = token.strip()
        for key in self._keys():
            try:
                return key, _fernet(key).decrypt(token)
            except InvalidToken:
                continue
        raise DataKeyError(_WRONG_KEY)

    def _keys(self) -> Iterator[bytes]:
        yield self._key
        yield from self._others()


NO_CIPHER = NoCipher()


@contextlib.contextmanager
def file_named(file: str) -> Iterator[None]:
    """A DataKeyError out of this block says, to the log, of which file it is: discussion and name."""
    try:
        yield
    except DataKeyError as error:
        error.file = error.file or file
        raise


def file_in_folder(path: str) -> str:
    """A file as ``file_named`` wants it: with the folder it lies in."""
    folder, name = os.path.split(path)
    return f"{os.path.basename(folder)}/{name}"


def cipher_for(encryption_key: bytes | None) -> Cipher:
    """The cipher of a key; without one, data stays in clear."""
    if encryption_key is None:
        return NO_CIPHER
    return FernetCipher(encryption_key, encryption_key.others if isinstance(encryption_key, DataKey) else tuple)


def is_token(data: bytes) -> bool:
    """Whether all of this, but for line ends behind it, is shaped like a token of some key.

    A token is URL-safe base64 of a version byte, 8 bytes of time, 16 bytes to start from, blocks of 16 bytes, and 32
    bytes to check it by.
    """
    if not data.startswith(TOKEN_START):
        return False
    text = data.rstrip(b"\r\n")
    size = len(text) * 3 // 4 - text.count(b"=")
    return (len(text) % 4 == 0 and size >= _SMALLEST and (size - _AROUND_BLOCKS) % 16 == 0
            and _BASE64.fullmatch(text) is not None)


def is_cut_off(data: bytes) -> bool:
    """Whether all of this, but for line ends behind it, may be a token whose end, or more, is missing."""
    return (data.startswith(TOKEN_START) and _BASE64.fullmatch(data.rstrip(b"\r\n")) is not None
            and not is_token(data))


def refuse_cut_off(data: bytes) -> None:
    """Raises DataKeyError for what ``is_cut_off``, which ``decrypt`` takes for data in clear."""
    if is_cut_off(data):
        raise DataKeyError(_CUT_OFF)


def hash_api_key(api_key: str) -> str:
    """The name of the folder that holds the data of clients with this key: 16 hexadecimal digits."""
    return hashlib.sha256(api_key.encode()).hexdigest()[:16]


def derive_encryption_key(api_key: str, user_name: str | None = None) -> bytes:
    """The Fernet key of an API key and a user, whose name counts as it is spelled. Takes some 50 ms the first time."""
    return process().one(_derived_keys).get(api_key, user_name)


class DerivedKeys:
    """The keys derived last, at most ``size``; thread-safe. API keys themselves are not kept, not even their hashes."""

    def __init__(self, size: int) -> None:
        self._secret = secrets.token_bytes(32)
        self._kept: BoundedCache[bytes, bytes] = BoundedCache(size)

    def get(self, api_key: str, user_name: str | None) -> bytes:
        mark = hmac.digest(self._secret, f"{user_name or ''}\0{api_key}".encode(), "sha256")
        known = self._kept.get(mark)
        if known is None:
            # Without a lock, so that other keys need not wait; the same work done twice does no harm.
            known = _derive(api_key, user_name)
            self._kept.put(mark, known)
        return known


def _derived_keys() -> DerivedKeys:
    return DerivedKeys(MOST_DERIVED_KEYS)


def _derive(api_key: str, user_name: str | None) -> bytes:
    salt = _SALT + hashlib.sha256(user_name.encode()).hexdigest() if user_name else _SALT_WITHOUT_USER
    raw = hashlib.pbkdf2_hmac("sha256", api_key.encode(), salt.encode("ascii"), ITERATIONS, 32)
    return base64.urlsafe_b64encode(raw)


@lru_cache(maxsize=MOST_DERIVED_KEYS)
def _fernet(key: bytes) -> Fernet:
    from cryptography.fernet import Fernet  # only clients with keys pay for loading it

    return Fernet(key)
