"""How texts and vectors look in the tables: in clear, or as tokens of a key."""
from __future__ import annotations

import re
from typing import Any

from Middleware.exceptions import DataKeyError
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher
from Middleware.utilities.vector_memory.schema import storable

_TOKEN = re.compile(r"gAAAA[A-Za-z0-9_-]{90,}={0,2}")  # 100 characters at least, so no memory is taken for one


def is_token(value: Any) -> bool:
    """Whether a stored value is encrypted, whatever the key."""
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


class Codec:
    """The two directions. Stored values in clear are read whatever the cipher; reading a token of another key, or
    any token without a key, raises DataKeyError. Tokens are stored as text, also those of vectors.
    """

    def __init__(self, cipher: Cipher = NO_CIPHER) -> None:
        self._cipher = cipher
        self.active = cipher.active

    def encode_text(self, text: str | None) -> str | None:
        if text is None:
            return None
        text = storable(text)
        return self._cipher.encrypt(text.encode()).decode("ascii") if self.active else text

    def decode_text(self, value: Any) -> Any:
        return self._plain(value).decode("utf-8") if is_token(value) else value

    def encode_vector(self, vector: bytes) -> bytes | str:
        return self._cipher.encrypt(vector).decode("ascii") if self.active else vector

    def decode_vector(self, value: Any) -> bytes:
        if isinstance(value, str) and not is_token(value):
            raise DataKeyError("a stored vector cannot be read")
        return self._plain(value) if isinstance(value, str) else bytes(value)

    def _plain(self, token: str) -> bytes:
        return self._cipher.decrypt(token.encode("ascii"))
