"""The codes in sign-in links: an HMAC over the end of their time and a random part, so that no list of them is kept."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import time

from Middleware.addons.records.folder import ConsoleFolder

PATH = "/console/"

# Of the link from the terminal: long enough to walk to another room, short for what may stay in a scrollback.
CODE_SECONDS = 600
_TIME_BYTES, _NONCE_BYTES, _MAC_BYTES = 5, 12, 24
_CODE = re.compile(r"[\w-]+", re.ASCII)
_PURPOSE = b"wilmer console sign-in"


def make_code(secret: bytes, now: float) -> str:
    """Return a code that is good once, for ten minutes."""
    head = int(now + CODE_SECONDS).to_bytes(_TIME_BYTES, "big") + secrets.token_bytes(_NONCE_BYTES)
    return base64.urlsafe_b64encode(head + _mac(secret, head)).rstrip(b"=").decode("ascii")


def sign_in_link(url: str, folder: ConsoleFolder) -> str:
    """Return a new sign-in link for a server at ``url``. Raises OSError if the folder's secret cannot be used."""
    return f"{url.rstrip('/')}{PATH}#signin={make_code(folder.secret(), time.time())}"


def read_code(secret: bytes, code: str, now: float) -> tuple[bytes, int] | None:
    """Return the random part of a valid code and the end of its time, in seconds; None if the code is not valid."""
    # The decoder passes over other characters; Python 3.15 warns of some of them.
    if not _CODE.fullmatch(code):
        return None
    try:
        data = base64.urlsafe_b64decode(code + "=" * (-len(code) % 4))
    except (binascii.Error, ValueError):
        return None
    head, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
    if len(head) != _TIME_BYTES + _NONCE_BYTES or not hmac.compare_digest(mac, _mac(secret, head)):
        return None
    until = int.from_bytes(head[:_TIME_BYTES], "big")
    # A clock that was set back must not make an old code last longer.
    return (head[_TIME_BYTES:], until) if now <= until <= now + CODE_SECONDS + 1 else None


def _mac(secret: bytes, head: bytes) -> bytes:
    return hmac.new(secret, _PURPOSE + head, hashlib.sha256).digest()[:_MAC_BYTES]
