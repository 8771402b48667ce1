"""The separation and encryption of the data of clients with an API key.

An API key is neither stored nor checked. A name derived from it is that of a folder; with the user's setting
``encryptUsingApiKey`` a key derived from it encrypts the files there, as Fernet tokens (AES-128-CBC with HMAC-SHA256).

In format 1, the name is a fast hash, and the key is stretched by PBKDF2 with a known salt. In format 2, both are
derived from the key after it was stretched by scrypt with a random salt (``KeySalt``), which is stored with the
discussions.
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
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from Middleware.exceptions import DataKeyError
from Middleware.models.process import process
from Middleware.models.request_context import first_logged
from Middleware.utilities.once import BoundedCache

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

logger = logging.getLogger(__name__)

# Existing data depends on this number; another one would make it unreadable.
ITERATIONS = 100_000
# A derivation takes some 50 ms, so keys are kept; clients may send any number of different ones.
MOST_DERIVED_KEYS = 256
# With more, clients that send ever new keys could take all processors from those that wait for an answer.
DERIVED_AT_ONCE = 2
SHORT_KEY = 16
"""Keys with fewer characters than this could be guessed."""
TOKEN_START = b"gAAAA"
# Stored data depends on these salts too. The second one is for keys without a user name.
_SALT = "WilmerAI-v1-"
_SALT_WITHOUT_USER = "WilmerAI-encryption-salt-v1"
# And, in format 2, on these; a name with this beginning is never one of format 1.
NAME_START = "v2-"
_FOLDER_LABEL, _DATA_LABEL = b"wilmer key folder", b"wilmer data key\0"
SALT_BYTES = 32
_BASE64 = re.compile(rb"[A-Za-z0-9_-]+={0,2}")
_AROUND_BLOCKS = 57
_SMALLEST = _AROUND_BLOCKS + 16
_WRONG_KEY = "stored data of this conversation belongs to another API key or user"
_NO_KEY = (
    "stored data of this conversation belongs to another API key or user, or was encrypted before "
    "'encryptUsingApiKey' was switched off"
)
_CUT_OFF = "stored data of this conversation is part of an encrypted text; the rest of it is lost"
_IN_CLEAR = "Stored data that is not encrypted yet was read; its next write encrypts it."


Keys = Callable[[], Iterable[bytes]]


class DataKey(bytes):
    """A key with other keys that may have encrypted older data; ``others`` derives them one by one.

    The object keeps the secrets that the others are derived from.
    """

    others: Keys

    def __new__(cls, key: bytes, others: Keys) -> DataKey:
        made = super().__new__(cls, key)
        made.others = others
        return made

    # Copies, and other processes, get only the key itself.
    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self),)

    def __repr__(self) -> str:
        return "DataKey(...)"


class Cipher:
    """The encoding of bytes on disk. This one leaves data in clear.

    Attributes:
        active: data is encrypted.
    """

    active = False

    @property
    def mark(self) -> Hashable:
        """A value that differs for each key."""
        return None

    def encrypt(self, data: bytes) -> bytes:
        """Return the data; with a space before it if it looks like a token, as a model may write anything."""
        return b" " + data if is_token(data) else data

    def decrypt(self, data: bytes) -> bytes:
        """Return the data. Raises DataKeyError for a token."""
        # A token is useless to the reader, and overwriting it would lose the data.
        if is_token(data):
            raise DataKeyError(_NO_KEY)
        return data

    def like(self, data: bytes) -> Cipher:
        """Return the cipher for the next write of such data. Raises DataKeyError for a token of no known key."""
        self.decrypt(data)
        return self


def warn_of_clear_data() -> None:
    """Say that data is read in clear although encryption is on."""
    if first_logged(_IN_CLEAR):
        logger.warning(_IN_CLEAR)


class FernetCipher(Cipher):
    """The cipher that encrypts data as tokens of one key. Data in clear is read too, and encrypted by its next write.

    Tokens of the other keys are read, and ``like`` returns the cipher of the key that fits.
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
        """Return the data in clear. Raises DataKeyError for a token that no key fits."""
        if not is_token(data):
            if data:
                warn_of_clear_data()
            return data
        return self._open(data)[1]

    def like(self, data: bytes) -> Cipher:
        if not is_token(data):
            return self
        key, _ = self._open(data)
        return self if key == self._key else FernetCipher(key, self._keys)

    def _open(self, token: bytes) -> tuple[bytes, bytes]:
        """Return the key that fits, and the decrypted data."""
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


NO_CIPHER = Cipher()


@contextlib.contextmanager
def file_named(file: str) -> Iterator[None]:
    """Add the file, as discussion and name, to a DataKeyError that is raised in the block."""
    try:
        yield
    except DataKeyError as error:
        error.file = error.file or file
        raise


def file_in_folder(path: str) -> str:
    """Return the name of a file with its folder, as ``file_named`` expects it."""
    folder, name = os.path.split(path)
    return f"{os.path.basename(folder)}/{name}"


def cipher_for(encryption_key: bytes | None) -> Cipher:
    """Return the cipher of a key; without a key, the one that leaves data in clear."""
    if encryption_key is None:
        return NO_CIPHER
    return FernetCipher(encryption_key, encryption_key.others if isinstance(encryption_key, DataKey) else tuple)


def is_token(data: bytes) -> bool:
    """Return whether the data, except for line ends at its end, has the form of a token of any key."""
    # A token is URL-safe base64 of a version byte, an 8-byte time, a 16-byte initialization vector, 16-byte blocks and
    # a 32-byte signature.
    if not data.startswith(TOKEN_START):
        return False
    text = data.rstrip(b"\r\n")
    size = len(text) * 3 // 4 - text.count(b"=")
    return (
        len(text) % 4 == 0
        and size >= _SMALLEST
        and (size - _AROUND_BLOCKS) % 16 == 0
        and _BASE64.fullmatch(text) is not None
    )


def is_cut_off(data: bytes) -> bool:
    """Return whether the data, except for line ends at its end, may be an incomplete token."""
    return data.startswith(TOKEN_START) and _BASE64.fullmatch(data.rstrip(b"\r\n")) is not None and not is_token(data)


def refuse_cut_off(data: bytes) -> None:
    """Raise DataKeyError for data that ``is_cut_off``, which ``decrypt`` would return as data in clear."""
    if is_cut_off(data):
        raise DataKeyError(_CUT_OFF)


@dataclass(frozen=True)
class KeySalt:
    """What format 2 stretches API keys with: a random salt, and the cost of scrypt, which takes 128 * n * r bytes.

    The cost is one that OWASP's Password Storage Cheat Sheet recommends, with the least memory: 32 MiB.
    """

    salt: bytes
    n: int = 2**15
    r: int = 8
    p: int = 3

    @staticmethod
    def new() -> KeySalt:
        return KeySalt(secrets.token_bytes(SALT_BYTES))


def hash_api_key(api_key: str) -> str:
    """Return the name of the folder for the data of clients with this key in format 1: 16 hexadecimal digits."""
    return hashlib.sha256(api_key.encode()).hexdigest()[:16]


def key_folder_name(api_key: str, salt: KeySalt | None) -> str:
    """Return the name of the folder for the data of clients with this key, in format 1 without a salt."""
    if salt is None:
        return hash_api_key(api_key)
    stretched = process().one(DerivedKeys).get(api_key, None, salt)
    return NAME_START + hmac.digest(stretched, _FOLDER_LABEL, "sha256").hex()[:32]


def derive_encryption_key(api_key: str, user_name: str | None = None, salt: KeySalt | None = None) -> bytes:
    """Return the Fernet key of an API key and a user name (with its case), in format 1 without a salt.

    Takes some 50 ms the first time, in format 2 some 200.
    """
    if salt is None:
        return process().one(DerivedKeys).get(api_key, user_name)
    stretched = process().one(DerivedKeys).get(api_key, None, salt)
    return base64.urlsafe_b64encode(hmac.digest(stretched, _DATA_LABEL + (user_name or "").encode(), "sha256"))


def owner_mark(api_key: str) -> str:
    """Return what stands for a key in the memory of this process; another process has another mark for it."""
    return process().one(DerivedKeys).mark(None, api_key).hex()


class DerivedKeys:
    """The derived keys used last; thread-safe. Neither API keys nor their plain hashes are kept.

    Each is derived once, however many requests come with it at the same time, and only a few are derived at once.
    """

    def __init__(self, size: int = MOST_DERIVED_KEYS) -> None:
        self._secret = secrets.token_bytes(32)
        self._kept: BoundedCache[bytes, bytes] = BoundedCache(size)
        self._turns = threading.BoundedSemaphore(DERIVED_AT_ONCE)
        self._guard = threading.Lock()
        self._derived: dict[bytes, threading.Lock] = {}

    def mark(self, user_name: str | None, api_key: str, salt: KeySalt | None = None) -> bytes:
        """Return a value that differs for each combination, and that only this object can make."""
        parts = salt.salt.hex() if salt else "", user_name or "", api_key
        return hmac.digest(self._secret, "\0".join(parts).encode(), "sha256")

    def get(self, api_key: str, user_name: str | None, salt: KeySalt | None = None) -> bytes:
        """Return the key of format 1; with a salt, the stretched key of format 2, which is the same for all users."""
        mark = self.mark(user_name, api_key, salt)
        known = self._kept.get(mark)
        if known is not None:
            return known
        with self._guard:
            first = self._derived.setdefault(mark, threading.Lock())
        try:
            # Requests with one key wait for the first of them here, and take no turn from other keys.
            with first, self._turns:
                known = self._kept.get(mark)
                if known is None:
                    known = _stretch(api_key, salt) if salt else _derive(api_key, user_name)
                    self._kept.put(mark, known)
                return known
        finally:
            with self._guard:
                self._derived.pop(mark, None)


def _derive(api_key: str, user_name: str | None) -> bytes:
    salt = _SALT + hashlib.sha256(user_name.encode()).hexdigest() if user_name else _SALT_WITHOUT_USER
    raw = hashlib.pbkdf2_hmac("sha256", api_key.encode(), salt.encode("ascii"), ITERATIONS, 32)
    return base64.urlsafe_b64encode(raw)


def _stretch(api_key: str, salt: KeySalt) -> bytes:
    # OpenSSL refuses to take more than 32 MiB unless it is allowed to.
    most = 128 * salt.r * (salt.n + salt.p + 2)
    return hashlib.scrypt(api_key.encode(), salt=salt.salt, n=salt.n, r=salt.r, p=salt.p, maxmem=most, dklen=32)


@lru_cache(maxsize=MOST_DERIVED_KEYS)
def _fernet(key: bytes) -> Fernet:
    # Loading it takes long, and only clients with keys need it.
    from cryptography.fernet import Fernet

    return Fernet(key)
