"""``python server.py keys``: makes the keys that ``--accepted-keys-file`` asks clients for, and lists them.

A new key is shown once and stored nowhere: its line in the list contains only its hash. A running server looks at its
list every second.
"""

from __future__ import annotations

import argparse
import datetime
import getpass
import hashlib
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Sequence

from Middleware.api.edge.access_keys import (
    CONSOLE_FIELD,
    CONSOLE_WORDS,
    HASHED,
    KEY_FILE,
    USER_FIELD,
    AccessKeys,
    AccessKeysError,
    parse_keys,
)
from Middleware.cli import served_users
from Middleware.cli.arguments import (
    Parser,
    apply_arguments,
    build_command_parser,
    describe_options,
    parse_command_arguments,
)
from Middleware.cli.program import NotDoneError, StartError, program_name, say
from Middleware.exceptions import KeySaltError, OperatorError, WilmerError
from Middleware.services.memory.discussion_keys import encrypting
from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import own_command
from Middleware.utilities.config.users import own_discussions_root
from Middleware.utilities.discussions.client_keys import use_format_2
from Middleware.utilities.discussions.key_salts import SALT_FILE
from Middleware.utilities.encryption_utils import SHORT_KEY
from Middleware.utilities.files.file_access import atomic_write
from Middleware.utilities.quoting import quoted_word
from Middleware.utilities.text_utils import counted

DESCRIPTION = """Creates the keys that --accepted-keys-file requires of clients, and lists them:

  keys add     create a key and add its line to the list, which is created if it is missing
  keys new     create a key and print its line
  keys list    print the lines of the list, with their users and notes

A new key is shown once and stored nowhere: its line contains only its hash. A running server reads a changed list
within a second. Exit status: 0 if it is done, 1 if it could not be done, 2 for a wrong command line."""

# The beginning of a key tells where it is from, wherever it is found.
PREFIX = "wilmer-"
RANDOM_BYTES = 32
OWNER_ONLY = 0o600
ALLOW_SHORT = "--allow-short-key"
# So many characters of a new key are in the note behind its line, to tell which line belongs to it.
NOTED_CHARACTERS = len(PREFIX) + 4


CONSOLE_HELP = (
    "the key opens the run console: 'own' shows the runs made with this very key, 'all' those of the key's "
    "users (default: it does not open it)"
)


class UnusableKeyError(OperatorError, ValueError):
    """Not every client could send this key; the text says why."""


def new_key() -> str:
    """Return a random key of characters that every client accepts."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def line_for(key: str, user: str | None = None, note: str = "", console: str = "") -> str:
    """Return the line of a key for the list; it does not contain the key itself."""
    line = HASHED + hashlib.sha256(key.encode("utf-8")).hexdigest()
    line += f" {CONSOLE_FIELD}{console}" if console else ""
    line += f" {USER_FIELD}{user}" if user else ""
    return line + (f"  # {note}" if note else "")


def append(path: str, line: str) -> None:
    """Add a line to the list. Only its owner can read a list that is created here. Raises NotDoneError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), OWNER_ONLY)
        with open(descriptor, "r+b", buffering=0) as file:
            file.seek(0)
            present = file.readall()
            # Windows PowerShell writes UTF-16; the line would damage such a file.
            present.decode("utf-8")
            before = b"\n" if present and not present.endswith(b"\n") else b""
            file.write(before + line.encode("utf-8") + b"\n")
    except UnicodeDecodeError:
        raise NotDoneError(f"{path}: the file is not UTF-8 text. Save it as UTF-8.") from None
    except OSError as error:
        raise NotDoneError(f"{path} cannot be written: {error.strerror or error}") from error


def read_key() -> str:
    """Return an existing key from a hidden prompt, or from the first line of standard input.

    Raises NotDoneError, UnusableKeyError.
    """
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


def refuse_short_key(key: str, users: Iterable[str]) -> None:
    """Raise UnusableKeyError for a new key that is short, and encrypts the data of one of the users."""
    whose = encrypting(users) if len(key) < SHORT_KEY else []
    if whose:
        raise UnusableKeyError(
            f"The new key has {counted(len(key), 'character')}. It encrypts the data of user '{whose[0]}', and anyone "
            "who gets the disk can try keys until one fits: use "
            f"{SHORT_KEY} random characters or more. This makes a good one: {own_command('keys', 'new')}. "
            f"{ALLOW_SHORT} takes the short one all the same."
        )


def prepare_data(key: str, users: Sequence[str], allow_short: bool) -> None:
    """Prepare the folders of those users whose data a new key encrypts. Raises UnusableKeyError for a short key,
    unless it is allowed, and NotDoneError."""
    if not allow_short:
        refuse_short_key(key, users)
    try:
        for user in use_format_2(key, encrypting(users)):
            path = os.path.join(own_discussions_root(user), SALT_FILE)
            say(f"Made {path}, without which no key opens its conversations: keep a copy with them.", error_stream=True)
    except KeySaltError as error:
        raise NotDoneError(f"{error.file}: {error}") from error
    except OSError as error:
        raise NotDoneError(f"{error.filename or SALT_FILE} cannot be written: {error.strerror or error}") from error


def make_key(
    given: bool,
    user: str | None,
    path: str | None,
    console: str = "",
    prepare: Callable[[str], object] = str,
) -> None:
    """Make a key, or ask for it if it is ``given``, and print it with its line, or add the line to the list ``path``.

    Args:
        console: what it may see in the run console, ``own`` or ``all``; "" if it does not open it.
        prepare: is called with the key before it is used.

    Raises NotDoneError, UnusableKeyError.
    """
    key = read_key() if given else new_key()
    prepare(key)
    today = datetime.date.today().isoformat()
    line = line_for(key, user, today if given else f"{key[:NOTED_CHARACTERS]}..., {today}", console)
    if path:
        append(os.path.expanduser(path), line)
    if given and len(key) < SHORT_KEY:
        print(f"WARNING: a key of less than {SHORT_KEY} characters may be guessed.", file=sys.stderr)
    if not given:
        print(f"Key, shown this once; give it to the client as its API key:\n  {key}")
    if path:
        print(f"Added to {path}. The server is started with --accepted-keys-file {quoted_word(path)}")
    else:
        print(line if given else f"Line for the list of accepted keys:\n  {line}")


def main(words: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = build_command_parser(program_name("keys"), DESCRIPTION, positionals=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("action", choices=("add", "new", "list"), metavar="add|new|list")
    parser.add_argument("--hash", action="store_true", help="for a key that you have, instead of a new one")
    add_short_key_flag(parser)
    describe_options(
        parser,
        {
            "--User": "the key is for this user only; without it, for every user",
            "--accepted-keys-file": f"the list (default: {KEY_FILE} in the public directory)",
            "--console": CONSOLE_HELP,
        },
    )
    _accept_console_words(parser)
    arguments, options = parse_command_arguments(parser, words)
    apply_arguments(arguments)
    if len(arguments.users) > 1:
        parser.error("a line is for one user, or for all: give --User once, or run this once for each user")
    path = config_utils.clean_directory(options.accepted_keys_file) or default_list()
    user = arguments.users[0] if arguments.users else None
    return _reported(parser, lambda: _run(options, user, path))


def add_short_key_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag without which ``refuse_short_key`` is called."""
    parser.add_argument(
        ALLOW_SHORT,
        action="store_true",
        help=f"take a new key of less than {SHORT_KEY} characters, although it encrypts data and can be guessed",
    )


def _accept_console_words(parser: argparse.ArgumentParser) -> None:
    """Let ``--console`` take the words of a key. Those of the server are still understood, without effect."""
    for action in parser._actions:
        if "--console" in action.option_strings:
            action.choices, action.metavar = [*CONSOLE_WORDS, *(action.choices or ())], "own|all"
            action.default = None


def _run(options: argparse.Namespace, user: str | None, path: str) -> None:
    if user is not None:
        # The name of a user who does not exist would make a key that admits no client.
        served_users.require_user_file(user)
    if options.action == "list":
        print_list(path)
    else:
        console = options.console if options.console in CONSOLE_WORDS else ""
        list_path = path if options.action == "add" else None
        users = [user] if user else config_utils.existing_users()
        make_key(options.hash, user, list_path, console, lambda key: prepare_data(key, users, options.allow_short_key))


def default_list() -> str:
    """Return the path of the list that the warning at the start proposes."""
    return os.path.abspath(os.path.join(config_utils.get_root_public_directory(), KEY_FILE))


def print_list(path: str) -> None:
    """Print where each accepted key is in the list, its user and its name. Raises NotDoneError."""
    try:
        accepted = AccessKeys(path, config_utils.existing_users)
    except (AccessKeysError, WilmerError) as error:
        raise NotDoneError(str(error)) from error
    for key in accepted.keys:
        facts = [f"user {key.user}" if key.user else "every user", key.console and f"console {key.console}", key.name]
        say(f"line {key.line}: {', '.join(filter(None, facts))}")
    say(f"{len(accepted.keys)} in {path}")
    for text in accepted.warnings():
        say(f"WARNING: {text}", error_stream=True)


def replace_key(path: str, old: str, new: str) -> list[int]:
    """Put the line of a new key in place of an old one, with its user and its note; return the numbers of the lines.

    Raises NotDoneError, which names the lines if they cannot be changed.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
        digest = hashlib.sha256(old.encode("utf-8")).digest()
        numbers = [key.line for key in parse_keys(data, (), path) if key.digest == digest]
    except (AccessKeysError, OSError) as error:
        raise NotDoneError(f"The old key stays in the list of accepted keys: {error}") from error
    lines = data.decode("utf-8-sig").split("\n")
    for number in numbers:
        line = lines[number - 1].replace(f"{old[:NOTED_CHARACTERS]}...", f"{new[:NOTED_CHARACTERS]}...")
        lines[number - 1] = line.replace(line.split()[0], line_for(new), 1)
    try:
        if numbers:
            atomic_write(path, "\n".join(lines).encode("utf-8"), OWNER_ONLY)
    except OSError as error:
        places = f"line{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        raise NotDoneError(
            f"{path} cannot be written: {error.strerror or error}. Replace the old key in {places} by {line_for(new)}"
        ) from error
    return numbers


def script(argv: Sequence[str] | None = None) -> int:
    """Run the older form of the command, ``Scripts/access_key.py``; return the exit status.

    It knows no configuration, so it takes any name of a user.
    """
    parser = Parser(
        prog="access_key.py",
        description="Makes the keys that --accepted-keys-file asks clients for. The "
        "command 'keys' of the start scripts does this, too.",
    )
    parser.add_argument("--add", metavar="FILE", help="append the line to this list")
    parser.add_argument("--user", metavar="NAME", help="the key is good for this user only")
    parser.add_argument("--hash", action="store_true", help="for a key that you have, instead of a new one")
    parser.add_argument("--console", choices=CONSOLE_WORDS, default="", help=CONSOLE_HELP)
    options = parser.parse_args(argv)
    if options.add is not None and not options.add.strip():
        parser.error("--add needs the path of a file")
    # A comment would begin at ' #'.
    if options.user is not None and not (
        options.user.strip() and options.user.isprintable() and " #" not in options.user
    ):
        parser.error("--user needs a name, without ' #' in it")
    return _reported(parser, lambda: make_key(options.hash, options.user, options.add, options.console))


def _reported(parser: argparse.ArgumentParser, action: Callable[[], None]) -> int:
    try:
        action()
    except UnusableKeyError as error:
        parser.error(str(error))
    except (NotDoneError, StartError) as error:
        say(f"ERROR: {error}", error_stream=True)
        return 1
    except (KeyboardInterrupt, EOFError):
        return 1
    return 0
