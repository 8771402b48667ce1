"""How texts and vectors look in the tables: in clear, or as tokens of a key."""
from __future__ import annotations

from typing import Any

from Middleware.exceptions import DataKeyError
from Middleware.utilities import encryption_utils
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher
from Middleware.utilities.text_utils import without_surrogates

_START = encryption_utils.TOKEN_START.decode("ascii")


def is_token(value: object) -> bool:
    """Whether a stored value is encrypted, whatever the key."""
    return (isinstance(value, str) and value.startswith(_START) and value.isascii()
            and encryption_utils.is_token(value.encode("ascii")))


def sql_is_clear(column: str) -> str:
    """An expression that is true where a text is not encrypted; nearly ``not is_token``, and never false for a null.

    It looks at what SQLite can tell fast, and errs only for texts without any space.
    """
    body = f"rtrim({column}, '=')"
    size = f"(length({column}) / 4 * 3 - length({column}) + length({body}))"
    return (f"({column} IS NOT NULL AND (substr({column}, 1, {len(_START)}) <> '{_START}' OR length({column}) < 100 "
            f"OR length({column}) % 4 <> 0 OR {size} % 16 <> 9 OR {body} GLOB '*[^A-Za-z0-9_-]*'))")


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
        return self._cipher.encrypt(without_surrogates(text).encode()).decode("utf-8")

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
