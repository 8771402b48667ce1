"""The address of the state database, and what messages may show of it. Needs no package."""

from __future__ import annotations

import argparse
import os
import re

from Middleware.utilities.http.addresses import is_loopback

DATABASE_VARIABLE = "WILMER_DATABASE_URL"
SCHEMES = ("postgresql://", "postgres://")

# Everything to the last @ of the part before the path: a password may contain an @ that should have been escaped.
_USER_AND_PASSWORD = re.compile(r"(?<=://)([^/?#]*)@")
_AUTHORITY = re.compile(r"([^/?#]*)(.*)", re.DOTALL)
UNREADABLE = (
    "the address cannot be read. Special characters in user and password must be percent-encoded, and each "
    "setting behind ? must be one that libpq knows"
)
_SECRET_SETTING = re.compile(r"((?:^|[?&\s])(?:ssl)?password=)[^&\s]*", re.IGNORECASE)


def masked(url: str) -> str:
    """Return the URL with ``***`` in place of its password."""

    def without_password(match: re.Match[str]) -> str:
        user, colon, _ = match[1].partition(":")
        return f"{user}{colon and ':***'}@"

    return _SECRET_SETTING.sub(r"\1***", _USER_AND_PASSWORD.sub(without_password, url, count=1))


def problem_of(url: str) -> str:
    """Return why ``url`` cannot be an address of PostgreSQL; empty if it can. Quotes nothing of it."""
    if not url.startswith(SCHEMES):
        return "it takes postgresql://..."
    authority, rest = _AUTHORITY.match(url.partition("://")[2]).groups()  # type: ignore[union-attr]
    # libpq would take parts of the password for the host, the port or the name of the database, and show them.
    path = rest.partition("?")[0]
    if authority.count("@") > 1 or "/" in path.partition("@")[2] or ("@" in rest and "@" not in authority):
        return (
            "special characters in user and password must be percent-encoded: @ is %40, / is %2F, ? is %3F, # is "
            "%23, % is %25"
        )
    return ""


def is_encrypted_or_local(sslmode: str, hosts: str) -> bool:
    """Return whether no machine on the way can read what is sent: TLS is required, or nothing leaves this machine."""
    return sslmode in ("require", "verify-ca", "verify-full") or all(map(_is_here, hosts.split(",")))


def _is_here(host: str) -> bool:
    # An empty host, and a folder, mean a socket of this machine; @ begins the name of an abstract one.
    return not host or host.startswith(("/", "@")) or host == "localhost" or is_loopback(host)


def chosen_database(flags: argparse.Namespace) -> str:
    """Return the address of the state database that a flag or the environment names; "" for files."""
    return (getattr(flags, "database", None) or os.environ.get(DATABASE_VARIABLE, "")).strip()
