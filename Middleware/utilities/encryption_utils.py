"""How data of a client with an API key is kept apart from others', and unreadable to them.

An API key is neither stored nor checked. Its hash names a folder; with the user's setting ``encryptUsingApiKey`` a key
derived from it encrypts what lies there, as Fernet tokens (AES-128-CBC with HMAC-SHA256).
"""
from __future__ import annotations

import base64
import hashlib
import logging
import re
from functools import lru_cache
from typing import Protocol

from Middleware.exceptions import DataKeyError
from Middleware.models.request_context import first_time_told

logger = logging.getLogger(__name__)

ITERATIONS = 100_000
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


class Cipher(Protocol):
    """How bytes look on disk. ``active`` says whether they are encrypted.

    ``decrypt`` gives back what ``encrypt`` was given, but for the space that ``NoCipher`` puts before what would be
    taken for a token.
    """

    @property
    def active(self) -> bool: ...

    def encrypt(self, data: bytes) -> bytes: ...

    def decrypt(self, data: bytes) -> bytes: ...


class NoCipher:
    """Data in clear. ``decrypt`` takes whatever ``encrypt`` gave."""

    active = False

    def encrypt(self, data: bytes) -> bytes:
        """The data; with a space before it if it would be taken for a token, as a model may write anything."""
        return b" " + data if is_token(data) else data

    def decrypt(self, data: bytes) -> bytes:
        """Raises DataKeyError for an encrypted token: showing or overwriting it helps nobody."""
        if is_token(data):
            raise DataKeyError(_NO_KEY)
        return data


class FernetCipher:
    """Data as tokens of one key. Data in clear is read too: it becomes a token when it is written next."""

    active = True

    def __init__(self, key: bytes) -> None:
        from cryptography.fernet import Fernet  # only clients with keys pay for loading it

        self._fernet = Fernet(key)

    def encrypt(self, data: bytes) -> bytes:
        return self._fernet.encrypt(data)

    def decrypt(self, data: bytes) -> bytes:
        """Raises DataKeyError for a token of another key."""
        from cryptography.fernet import InvalidToken

        if not is_token(data):
            if data and first_time_told(_IN_CLEAR):
                logger.warning(_IN_CLEAR)
            return data
        try:
            return self._fernet.decrypt(data.strip())
        except InvalidToken:
            raise DataKeyError(_WRONG_KEY) from None


NO_CIPHER = NoCipher()


def cipher_for(encryption_key: bytes | None) -> Cipher:
    """The cipher of a key; without one, data stays in clear."""
    return NO_CIPHER if encryption_key is None else _fernet_cipher(encryption_key)


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


@lru_cache(maxsize=64)
def derive_encryption_key(api_key: str, user_name: str | None = None) -> bytes:
    """The Fernet key of an API key and a user, whose name counts as it is spelled. Takes some 50 ms the first time."""
    salt = _SALT + hashlib.sha256(user_name.encode()).hexdigest() if user_name else _SALT_WITHOUT_USER
    raw = hashlib.pbkdf2_hmac("sha256", api_key.encode(), salt.encode("ascii"), ITERATIONS, 32)
    return base64.urlsafe_b64encode(raw)


@lru_cache(maxsize=64)
def _fernet_cipher(encryption_key: bytes) -> FernetCipher:
    return FernetCipher(encryption_key)
