"""The address of the state database, and what messages may show of it. Needs no package."""
from __future__ import annotations

import re

SCHEMES = ("postgresql://", "postgres://")

# Everything to the last @ of the part before the path: a password may contain an @ that should have been escaped.
_USER_AND_PASSWORD = re.compile(r"(?<=://)([^/?#]*)@")
_SECRET_SETTING = re.compile(r"((?:^|[?&\s])(?:ssl)?password=)[^&\s]*", re.IGNORECASE)


def masked(url: str) -> str:
    """Return the URL with ``***`` in place of its password."""
    def without_password(match: re.Match[str]) -> str:
        user, colon, _ = match[1].partition(":")
        return f"{user}{colon and ':***'}@"

    return _SECRET_SETTING.sub(r"\1***", _USER_AND_PASSWORD.sub(without_password, url, count=1))
