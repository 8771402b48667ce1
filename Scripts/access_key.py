"""Makes the keys that --accepted-keys-file asks clients for.

    python Scripts/access_key.py                           a fresh key, and the line that lets it in
    python Scripts/access_key.py --add FILE [--user NAME]  also appends the line to the list (made if it is missing)
    python Scripts/access_key.py --hash [--add FILE ...]   the same for a key that you have: it is asked for, or read
                                                           from standard input

A fresh key is shown once and stored nowhere: the line holds its hash only. With --user it is good for one user of
several. A running server looks at its list every second. Exit status: 0; 1 if something could not be done, 2 for wrong
arguments.
"""
from __future__ import annotations

import argparse
import datetime
import getpass
import hashlib
import os
import secrets
import sys
from collections.abc import Sequence

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Middleware.api.edge.access_keys import HASHED, SHORT_KEY, USER_FIELD

PREFIX = "wilmer-"  # tells what a key found in some setting is for
RANDOM_BYTES = 32
OWNER_ONLY = 0o600
KNOWN_AGAIN = len(PREFIX) + 4  # characters of a fresh key that its line shows


class NotDoneError(Exception):
    """The command could not be carried out; the text says why."""


class UnusableKeyError(ValueError):
    """Not every client could send this key; the text says why."""


def new_key() -> str:
    """A key that nobody guesses, of characters that every client takes."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def line_for(key: str, user: str | None = None, note: str = "") -> str:
    """The line of a key in the list, which does not hold the key itself."""
    line = HASHED + hashlib.sha256(key.encode("utf-8")).hexdigest()
    line += f" {USER_FIELD}{user}" if user else ""
    return line + (f"  # {note}" if note else "")


def append(path: str, line: str) -> None:
    """Add a line to the list. A list that is made here can be read by its owner alone. Raises NotDoneError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), OWNER_ONLY)
        with open(descriptor, "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(-1, os.SEEK_END)
            before = b"\n" if size and file.read(1) != b"\n" else b""
            file.write(before + line.encode("utf-8") + b"\n")
    except OSError as error:
        raise NotDoneError(f"{path} cannot be written: {error.strerror or error}") from error


def read_key() -> str:
    """A key that exists already, from a hidden prompt or the first line of standard input. Raises NotDoneError,
    UnusableKeyError."""
    try:
        text = getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline()
        text.encode("utf-8")
    except UnicodeError:
        raise NotDoneError("The key is not UTF-8 text.") from None
    key = text.strip()
    if not key:
        raise NotDoneError("No key was given.")
    if any(letter.isspace() for letter in key):
        raise UnusableKeyError("A key cannot have blanks in it.")
    if not key.isascii() or not key.isprintable():
        raise UnusableKeyError("A key may only have visible ASCII characters: clients send others in different ways.")
    return key


def run(options: argparse.Namespace) -> None:
    key = read_key() if options.hash else new_key()
    today = datetime.date.today().isoformat()
    line = line_for(key, options.user, today if options.hash else f"{key[:KNOWN_AGAIN]}..., {today}")
    if options.add:
        append(os.path.expanduser(options.add), line)
    if options.hash and len(key) < SHORT_KEY:
        print(f"WARNING: a key of less than {SHORT_KEY} characters may be guessed.", file=sys.stderr)
    if not options.hash:
        print(f"Key, shown this once; give it to the client as its API key:\n  {key}")
    if options.add:
        print(f"Added to {options.add}. The server is started with --accepted-keys-file {options.add}")
    else:
        print(line if options.hash else f"Line for the list of accepted keys:\n  {line}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="access_key.py", description="Makes the keys that --accepted-keys-file "
                                                                       "asks clients for.")
    parser.add_argument("--add", metavar="FILE", help="append the line to this list")
    parser.add_argument("--user", metavar="NAME", help="the key is good for this user only")
    parser.add_argument("--hash", action="store_true", help="for a key that you have, in place of a fresh one")
    options = parser.parse_args(argv)
    if options.add is not None and not options.add.strip():
        parser.error("--add needs the path of a file")
    if options.user is not None and not (options.user.strip() and options.user.isprintable()
                                         and " #" not in options.user):  # a comment would begin there
        parser.error("--user needs a name, without ' #' in it")
    try:
        run(options)
    except UnusableKeyError as error:
        parser.error(str(error))
    except NotDoneError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, EOFError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
