"""The codes in sign-in links: signed random parts with the time of the signature, so that no list of them is kept."""

from __future__ import annotations

import hashlib
import re
import secrets
import time

from itsdangerous import BadSignature, TimestampSigner

from Middleware.addons.records.console_folder import ConsoleFolder

PATH = "/console/"

# Of the link from the terminal: long enough to walk to another room, short for what may stay in a scrollback.
CODE_SECONDS = 600
_NONCE_BYTES = 12
# The library takes UTF-8, and passes over characters that are not of Base64.
_CODE = re.compile(r"[\w.-]+", re.ASCII)


class _CodeSigner(TimestampSigner):
    """Signs with the secret of the console's folder, at a time that the caller gives."""

    def __init__(self, secret: bytes, now: float) -> None:
        super().__init__(secret, salt=b"wilmer console sign-in", key_derivation="hmac", digest_method=hashlib.sha256)
        self._now = int(now)

    def get_timestamp(self) -> int:
        return self._now


def make_code(secret: bytes, now: float) -> str:
    """Return a code that is good once, for ten minutes."""
    return _CodeSigner(secret, now).sign(secrets.token_urlsafe(_NONCE_BYTES)).decode("ascii")


def sign_in_link(url: str, folder: ConsoleFolder) -> str:
    """Return a new sign-in link for a server at ``url``. Raises OSError if the folder's secret cannot be used."""
    return f"{url.rstrip('/')}{PATH}#signin={make_code(folder.secret(), time.time())}"


def read_code(secret: bytes, code: str, now: float) -> tuple[bytes, int] | None:
    """Return the random part of a valid code and the end of its time, in seconds; None if the code is not valid.

    A code of the future is not valid: a clock that was set back must not make an old code last longer.
    """
    if not _CODE.fullmatch(code):
        return None
    try:
        nonce, made = _CodeSigner(secret, now).unsign(code, max_age=CODE_SECONDS, return_timestamp=True)
    except BadSignature:
        return None
    return nonce, int(made.timestamp()) + CODE_SECONDS
