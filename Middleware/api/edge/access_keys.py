"""The keys that clients send, and the file of the accepted ones, which is read again when it changes.

A line of the file is a key, or ``sha256:`` and the hash of one, optionally followed by ``console=own`` or
``console=all``, which lets it into the console, and by ``user=NAME``. A comment at its end is the name of the key in
the log::

    # phones and laptops
    wilmer-Zk3...                      every user
    sha256:4be07c1a98d3525f...         every user; the file does not hold the key itself
    sha256:b1f20d6e73c9a804...  console=own user=alice  # Alice's phone

A key may appear on several lines, for several users.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from wsgiref.types import WSGIEnvironment

from Middleware.api.dialects import Dialect, dialect_of
from Middleware.exceptions import OperatorError, WilmerError
from Middleware.utilities.command_lines import command, own_command
from Middleware.utilities.config.paths import KEY_FILE as KEY_FILE
from Middleware.utilities.discussions.client_keys import key_name
from Middleware.utilities.encryption_utils import SHORT_KEY
from Middleware.utilities.files.file_access import file_signature, is_unsettled, open_to_read
from Middleware.utilities.once import Once
from Middleware.utilities.text_utils import did_you_mean

logger = logging.getLogger(__name__)

PERMITTED_USERS_KEY = "wilmer.permitted_users"
"""In the WSGI environ: the names of the users that the request's key is for, None for all."""
KEY_NAME_KEY = "wilmer.key_name"
"""In the WSGI environ: the name of the request's key, for the log."""
# A comment may be a long sentence, and the line of a request must stay readable.
MAX_NAME = 40
# The file's signature is compared at most once in this time, so that requests do not pay for it each.
RECHECK_SECONDS = 1.0
# A larger file is certainly not a list of keys, and was named by mistake.
MAX_FILE_BYTES = 1024 * 1024
BEARER = "Bearer "
X_API_KEY = "HTTP_X_API_KEY"
"""The header of Anthropic's older clients, as the WSGI environ names it."""
# Clients send UUIDs or hashes as idempotency keys; anything with more characters is ignored.
MAX_IDEMPOTENCY_KEY = 128
HASHED = "sha256:"
USER_FIELD = "user="
CONSOLE_FIELD = "console="
CONSOLE_WORDS = ("own", "all")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_HASH = re.compile(r"[0-9a-fA-F]{64}")


class AccessKeysError(OperatorError):
    """The file cannot be used. The message names file and line, never a key."""


class NoKeysError(AccessKeysError):
    """The file is valid, but contains no key."""


@dataclass(frozen=True)
class Grant:
    """The users that a known key permits, all if ``users`` is None; and the key's name, "" for none.

    Attributes:
        console: what the key may see in the console, ``own`` or ``all``; "" if it does not open it.
        console_users: the users of the lines that say so, None for all.
    """

    users: frozenset[str] | None = None
    name: str = field(default="", compare=False)
    console: str = ""
    console_users: frozenset[str] | None = frozenset()


@dataclass(frozen=True)
class AcceptedKey:
    """One line of the file.

    Attributes:
        digest: SHA-256 of the key.
        user: None for every user.
        plain: the file contains the key itself, not its hash.
        short: the key is easy to guess.
        name: the comment behind the key, for the log.
        served: the server serves the user, or the key is for every user.
        console: ``own`` or ``all`` if the key opens the console, else "".
    """

    digest: bytes
    user: str | None = None
    plain: bool = False
    short: bool = False
    line: int = field(default=0, compare=False)
    name: str = ""
    served: bool = True
    console: str = ""


class AccessKeys:
    """The accepted keys of one file. Thread-safe.

    Args:
        path: the file.
        users: returns the names of the users that are served at the time of the call.
        clock: counts seconds (tests replace it).

    Raises AccessKeysError if the file is not usable now. Later, an unusable file is logged and the last good list
    stays in force; but if the last key was removed from the file, no key is accepted any more.
    """

    def __init__(
        self, path: str, users: Callable[[], Sequence[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self._users = users
        self._clock = clock
        self._lock = threading.Lock()
        self._spelling: Once[str] = Once()
        # Remembers one error only, so that an error is logged again after a different one.
        self._errors: Once[str] = Once(1)
        self._signature = file_signature(path)
        self._is_unsettled = is_unsettled(self._signature)
        self.keys: tuple[AcceptedKey, ...] = ()
        self._unserved: tuple[AcceptedKey, ...] = ()
        self._adopt(parse_keys(_read(path), users(), path))
        self._next_look = clock() + RECHECK_SECONDS

    def grant(self, authorization: str | None) -> Grant | None:
        """Return the users that the ``Authorization`` header permits; None if it contains none of the keys.

        Every key is compared, so that the time taken reveals nothing. A key of certain users needs the exact
        ``Bearer``, by which their conversations are kept separate; with another spelling it would reach the
        conversations that are stored without a key.
        """
        self._look_again()
        scheme, _, text = (authorization or "").partition(" ")
        digests = _digests(text.strip(" \t")) if scheme.lower() == "bearer" else set()
        found = [key for key in self.keys for digest in digests if hmac.compare_digest(digest, key.digest)]
        users, name = {key.user for key in found}, next((key.name for key in found if key.name), "")
        if users and scheme != "Bearer":
            self._warn_of_spelling(scheme)
            # Only keys for all users are accepted with this spelling.
            users &= {None}
        if not users:
            return None
        opening = [key for key in found if key.console and key.user in users]
        # Of several lines of one key, the one that shows more decides.
        console = max((key.console for key in opening), key=CONSOLE_WORDS.index, default="")
        return Grant(_named(users), name, console, _named({key.user for key in opening}))

    def warnings(self) -> list[str]:
        """Return what the operator should fix, although the file can be used."""
        found = self._warnings_of_unserved()
        for key in self.keys:
            if key.short:
                found.append(
                    f"{self.path}, line {key.line}: the key has less than {SHORT_KEY} characters and may be "
                    f"guessed. This makes a good one: {_maker(self.path)}"
                )
        if any(key.plain for key in self.keys) and _others_may_read(self.path):
            found.append(
                f"{self.path}: other users of this computer can read the keys in it; "
                f"end that with: {command(['chmod', '600', self.path])}"
            )
        return found

    def _adopt(self, keys: Sequence[AcceptedKey]) -> None:
        # A key of a user who is not served admits no client: with one user, some routes look at no user.
        self.keys = tuple(key for key in keys if key.served)
        self._unserved = tuple(key for key in keys if not key.served)

    def _warnings_of_unserved(self) -> list[str]:
        return [
            f"{self.path}, line {key.line}: '{key.user}' is not one of the users that are served "
            f"({', '.join(self._users())}), so this key admits no client."
            + did_you_mean(key.user or "", self._users(), cutoff=0.6)
            for key in self._unserved
        ]

    def _warn_of_spelling(self, scheme: str) -> None:
        if self._spelling.first("Bearer"):
            logger.warning(
                "A client writes %s in place of 'Bearer': its conversations are kept as those of clients "
                "without a key, and a key with '%s' does not let it in.",
                ascii(scheme),
                USER_FIELD,
            )

    # -- the file --------------------------------------------------------------------------------------------------
    def _look_again(self) -> None:
        now = self._clock()
        # A thread that finds the lock taken uses the present keys: another one reads the file.
        if now < self._next_look or not self._lock.acquire(blocking=False):
            return
        try:
            self._next_look = now + RECHECK_SECONDS
            signature = file_signature(self.path)
            if signature != self._signature or self._errors.keys() or self._is_unsettled:
                self._signature, self._is_unsettled = signature, is_unsettled(signature)
                self._reload()
        finally:
            self._lock.release()

    def _reload(self) -> None:
        try:
            keys = parse_keys(_read(self.path), self._users(), self.path)
        except NoKeysError as error:
            self._adopt(())
            self._report(f"No client is admitted until the file holds a key. {error}")
            return
        except (AccessKeysError, WilmerError) as error:
            self._report(f"The keys accepted until now stay accepted. {error}")
            return
        self._errors.clear()
        if set(keys) != {*self.keys, *self._unserved}:
            self._adopt(keys)
            logger.info("The accepted keys have changed: %s now holds %d", self.path, len(self.keys))
            for text in self._warnings_of_unserved():
                logger.warning("%s", text)

    def _report(self, error: str) -> None:
        """Log an error once, as long as it stays the same."""
        if self._errors.first(error):
            logger.error("%s", error)


def api_key_in(authorization: str | None) -> str | None:
    """Return the key in an ``Authorization`` header, which follows exactly ``Bearer ``, trimmed; None without one."""
    if not authorization or not authorization.startswith(BEARER):
        return None
    return authorization[len(BEARER) :].strip() or None


def authorization_of(environ: WSGIEnvironment) -> str | None:
    """Return the ``Authorization`` header; for Anthropic's API, whose older clients send another, with its key."""
    authorization: str | None = environ.get("HTTP_AUTHORIZATION")
    key: str | None = environ.get(X_API_KEY)
    if key is not None and api_key_in(authorization) is None and dialect_of(environ) is Dialect.ANTHROPIC:
        return BEARER + key.strip()
    return authorization


def api_key_of(environ: WSGIEnvironment) -> str | None:
    """Return the key that a request brings, in whichever header; None without one."""
    return api_key_in(authorization_of(environ))


def idempotency_key_in(environ: WSGIEnvironment) -> str | None:
    """Return the key with which a retry replaces the client's earlier attempt, separate for each API key, or None."""
    value = environ.get("HTTP_X_IDEMPOTENCY_KEY", "").strip()
    if not 0 < len(value) <= MAX_IDEMPOTENCY_KEY:
        return None
    api_key = api_key_of(environ)
    owner = key_name(api_key, None) if api_key else "anon"
    return f"{owner}:{value}" if owner else None


def _digests(text: str) -> set[bytes]:
    """Return the hashes that a client's key may have in the file: none, one, or two if the key is not ASCII."""
    if not text:
        return set()
    # WSGI decodes header bytes as Latin-1, although most clients send UTF-8.
    encodings = ("utf-8",) if text.isascii() else ("utf-8", "latin-1")
    try:
        return {hashlib.sha256(text.encode(encoding)).digest() for encoding in encodings}
    except UnicodeEncodeError:
        return set()


def parse_keys(data: bytes, users: Sequence[str], name: str) -> tuple[AcceptedKey, ...]:
    """Return the keys in a file's content, at least one. ``name`` of the file is for errors. Raises AccessKeysError."""
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise AccessKeysError(f"{name}, line {number}: the file is not UTF-8 text. Save it as UTF-8.") from None
    keys = []
    for number, line in enumerate(lines, 1):
        words = _COMMENT.sub("", line).strip().split(None, 1)
        if words:
            comment = _COMMENT.search(line)
            keys.append(
                replace(
                    _key(words, users, f"{name}, line {number}"), line=number, name=_name(comment[0]) if comment else ""
                )
            )
    if not keys:
        raise NoKeysError(f"{name}: there is no key in it. This makes one: {_maker(name)}")
    return tuple(keys)


def _named(users: set[str | None]) -> frozenset[str] | None:
    """Return users as a grant has them: None, which stands for all, swallows the others."""
    return None if None in users else frozenset(user for user in users if user is not None)


def _name(comment: str) -> str:
    """Return a comment as the name of its key: one line of printable characters, without the mark."""
    text = " ".join(comment.strip().lstrip("#").split())
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:MAX_NAME]


def _key(words: Sequence[str], users: Sequence[str], where: str) -> AcceptedKey:
    """Return the key of one line, which has the key itself or its hash, and perhaps the fields behind it."""
    console, rest = _console(words[1].strip() if len(words) > 1 else "", where)
    user = _user(rest, where) if rest else None
    served = user is None or user in users
    text = words[0]
    if text.startswith(CONSOLE_FIELD):
        raise AccessKeysError(f"{where}: the key is missing before '{CONSOLE_FIELD}'.")
    if text.startswith(USER_FIELD):
        raise AccessKeysError(f"{where}: the key is missing before '{USER_FIELD}'.")
    if not text.lower().startswith(HASHED):
        if not text.isprintable():
            raise AccessKeysError(f"{where}: a key cannot hold control characters.")
        return AcceptedKey(
            hashlib.sha256(text.encode("utf-8")).digest(),
            user,
            plain=True,
            short=len(text) < SHORT_KEY,
            served=served,
            console=console,
        )
    digits = text[len(HASHED) :]
    if not _HASH.fullmatch(digits):
        raise AccessKeysError(
            f"{where}: after '{HASHED}' come 64 hexadecimal digits, and these are not. "
            f"This makes the line of a key: {own_command('keys', 'new', '--hash')}"
        )
    return AcceptedKey(bytes.fromhex(digits), user, served=served, console=console)


def _maker(path: str) -> str:
    return own_command("keys", "add", "--accepted-keys-file", path)


def _console(text: str, where: str) -> tuple[str, str]:
    """Return the word of the field for the console, "" without one, and the rest of the line."""
    if not text.startswith(CONSOLE_FIELD):
        return "", text
    first, *others = text.split(None, 1)
    word, rest = first[len(CONSOLE_FIELD) :], others[0] if others else ""
    if word not in CONSOLE_WORDS:
        raise AccessKeysError(
            f"{where}: '{CONSOLE_FIELD}' takes 'own' (the key's own runs) or 'all' (the runs of its "
            f"users), not '{word[:30]}'."
        )
    return word, rest


def _user(text: str, where: str) -> str:
    if text == USER_FIELD:
        raise AccessKeysError(f"{where}: {USER_FIELD} needs a name, as in '{USER_FIELD}NAME'.")
    if f" {CONSOLE_FIELD}" in text:
        raise AccessKeysError(f"{where}: '{CONSOLE_FIELD}' stands directly behind the key, before '{USER_FIELD}NAME'.")
    if not text.startswith(USER_FIELD):
        raise AccessKeysError(
            f"{where}: after the key only '{CONSOLE_FIELD}own', '{CONSOLE_FIELD}all' and then "
            f"'{USER_FIELD}NAME' may follow. A key has no blanks in it, and a comment begins with "
            "'#'."
        )
    return text[len(USER_FIELD) :].strip()


def _read(path: str) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise AccessKeysError(f"{path}: this is not a file.")
        with open_to_read(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise AccessKeysError(f"{path}: there is no such file of keys. This makes it: {_maker(path)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise AccessKeysError(f"{path}: the file of keys cannot be read: {reason}.") from None
    if len(data) > MAX_FILE_BYTES:
        raise AccessKeysError(f"{path}: this is too large to be a file of keys.")
    return data


def _others_may_read(path: str) -> bool:
    """Return whether the file mode lets every account of the computer read it; False on systems without such modes."""
    if sys.platform == "win32":
        return False
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH)
    except OSError:
        return False
