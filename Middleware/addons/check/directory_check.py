"""Checks of the directories for conversations, locks and logs, and of the permissions of files."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from Middleware.addons.check.findings import Finding
from Middleware.addons.check.lookups import ConfigFile, Lookups, located, path_of
from Middleware.api.edge.access_keys import AccessKeysError, parse_keys
from Middleware.cli.keys import default_list
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory.discussion_keys import encrypting, short_key_text
from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import command
from Middleware.utilities.config.check import Severity, quoted
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.encryption_utils import SHORT_KEY
from Middleware.utilities.text_utils import counted

# Less room than the first is an error, as the next write may fail; less than the second is a warning.
FULL_BYTES = 10 * 1024 * 1024
NEARLY_FULL_BYTES = 200 * 1024 * 1024
# A message names at most this many files of conversations.
MAX_NAMED = 3
_WINDOWS_PATH = re.compile(r"[A-Za-z]:[/\\]|\\\\")


@dataclass(frozen=True)
class DataDirectory:
    """A directory in use: its purpose, its path, and the file and key that name it ("": a flag, or the default)."""

    purpose: str
    path: str
    file: str = ""
    key: str = ""

    def finding(self, severity: Severity, message: str, expected: str = "") -> Finding:
        """Return a finding where the directory is named, or under its own path."""
        text = f"the directory of {self.purpose}{f' ({self.path})' if self.file else ''}: {message}"
        finding = Finding(severity, self.file or os.path.abspath(self.path), self.key, None, text, expected)
        return located(finding) if self.key else finding


def check_data_folders(users: Sequence[str], logs: str | None = None) -> Iterator[Finding]:
    """Return findings about the folders of these users, including the way they are named.

    ``logs``: the folder of the log files, which may contain ``<user>``; None: it is not checked.
    """
    directories: dict[str, DataDirectory] = {}
    for user in users:
        with request_scope(RequestContext(request_id=f"check {user}", user=user)):
            try:
                for directory, foreign in _of_user(Lookups().user_file()):
                    # Several users often share a directory, which is checked once.
                    directories[os.path.abspath(directory.path)] = directory
                    yield from foreign
            # Reported at the file.
            except ConfigurationError:
                continue
    if logs is not None:
        path = os.path.expanduser(logs.partition("<user>")[0]) or os.curdir
        directories.setdefault(os.path.abspath(path), DataDirectory("log files", path))
    for directory in directories.values():
        yield from _directory(directory)


def _of_user(file: ConfigFile) -> Iterator[tuple[DataDirectory, list[Finding]]]:
    """Yield the data directories of the current user, each with a finding if its name means something elsewhere."""
    for purpose, flag, key, find in (
        (
            "conversations",
            instance.DISCUSSION_DIRECTORY,
            "discussionDirectory",
            config_utils.get_discussions_root_directory,
        ),
        (
            "lock databases",
            instance.USER_LEVEL_SQLITE_DIRECTORY,
            "sqlLiteDirectory",
            config_utils.get_lock_database_directory,
        ),
    ):
        written = config_utils.clean_directory(file.content.get(key)) if not flag else None
        path = find()
        foreign = []
        if written and os.name != "nt" and _WINDOWS_PATH.match(written) and not os.path.isdir(written):
            foreign = [
                located(
                    Finding(
                        "warning",
                        file.display,
                        key,
                        None,
                        f"{quoted(written)} is a Windows path, which means nothing here; {path} is used",
                        "a path of this system",
                    )
                )
            ]
        is_named = written == path
        yield DataDirectory(purpose, path, file.display if is_named else "", key if is_named else ""), foreign


def _directory(directory: DataDirectory) -> Iterator[Finding]:
    path = os.path.abspath(directory.path)
    root = os.path.abspath(config_utils.get_root_config_directory())
    # Every JSON file below the configuration would count as a part of it.
    if path == root or path.startswith(root + os.sep):
        yield directory.finding("warning", "it lies among the configuration files", "a directory outside of Configs")
    existing = _existing(path)
    problem = _why_not_writable(path, existing)
    if problem:
        yield directory.finding("error", problem)
        return
    free = shutil.disk_usage(existing).free
    if free < NEARLY_FULL_BYTES:
        yield directory.finding(
            "error" if free < FULL_BYTES else "warning", f"only {free // 1024 // 1024} MB are free on its disk"
        )
    # With the sticky bit, as of /tmp, others cannot touch what is not theirs.
    if os.name != "nt" and existing == path and _mode(path) & stat.S_IWOTH and not _mode(path) & stat.S_ISVTX:
        cure = command(["chmod", "o-w", path])
        yield directory.finding("warning", "every user of this computer can change what it holds", cure)


def _existing(path: str) -> str:
    """Return the path, or its nearest existing parent."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _why_not_writable(path: str, existing: str) -> str:
    if not os.path.isdir(existing):
        return (
            "it is not a directory" if existing == path else f"it cannot be created, as {existing} is not a directory"
        )
    if existing != path:
        return "" if os.access(existing, os.W_OK | os.X_OK) else f"it cannot be created in {existing}: no permission"
    try:
        with tempfile.TemporaryFile(dir=path):
            return ""
    except OSError as error:
        return f"nothing can be written there: {error.strerror or type(error).__name__}"


def check_modes(paths: Mapping[str, str], endpoints: Mapping[str, object]) -> Iterator[Finding]:
    """Return files that other users of this computer can change, or read keys from, each reported once.

    ``paths``: of all files, by their names in messages. ``endpoints``: the content of endpoint files.
    """
    if os.name == "nt":
        return
    loose = [display for display, path in paths.items() if _mode(path) & stat.S_IWOTH]
    if loose:
        yield Finding(
            "warning",
            loose[0],
            "",
            None,
            f"every user of this computer can change this file{_more(loose)}, and with it what the program runs",
            "chmod -R o-w on the folder of the configuration",
        )
    keys = [
        display
        for display, content in endpoints.items()
        if _holds_key(content) and _mode(path_of(display)) & stat.S_IROTH
    ]
    if keys:
        yield Finding(
            "note",
            keys[0],
            "apiKey",
            None,
            f"every user of this computer can read the API key in this file{_more(keys)}",
            "chmod o-r, or 'env:NAME' or 'file:PATH' in place of the key",
        )


def check_discussion_modes(users: Sequence[str]) -> Iterator[Finding]:
    """Return a note for each folder of conversations in which other users of this computer have access to some.

    New ones are private; those of older installations keep their permission bits.
    """
    if os.name == "nt":
        return
    roots = set()
    for user in users:
        # A file that cannot be read is reported by other checks.
        with (
            request_scope(RequestContext(request_id=f"check {user}", user=user)),
            contextlib.suppress(ConfigurationError),
        ):
            roots.add(os.path.abspath(config_utils.get_discussions_root_directory()))
    for root in sorted(roots):
        if wide := sorted(_wide(root)):
            yield DataDirectory("conversations", root).finding(
                "note", _openness(root, wide), command(["chmod", "-R", "go=", root])
            )


def check_short_keys(list_path: str | None, users: Sequence[str]) -> Iterator[Finding]:
    """Return a warning for each short key in the list of accepted keys that encrypts the data of one of the users.

    The length of a key whose line is a hash is not known. ``list_path``: None for the list that ``keys`` makes.
    """
    path = config_utils.clean_directory(list_path) or default_list()
    whose = encrypting(users)
    # A list that cannot be read is reported by the start that names it.
    with contextlib.suppress(OSError, AccessKeysError):
        with open(path, "rb") as file:
            keys = parse_keys(file.read(), users, path) if whose else ()
        for key in keys:
            if key.short and (key.user is None or key.user in whose):
                text = short_key_text(key.user or whose[0])
                yield Finding("warning", path, "", key.line, text, f"{SHORT_KEY} random characters or more")


def _openness(root: str, wide: Sequence[str]) -> str:
    folders = sum(map(os.path.isdir, wide))
    counts = " and ".join(
        counted(count, noun) for count, noun in ((folders, "folder"), (len(wide) - folders, "file")) if count
    )
    names = ", ".join(os.path.relpath(path, root) for path in wide[:MAX_NAMED])
    more = f" and {len(wide) - MAX_NAMED} more" if len(wide) > MAX_NAMED else ""
    return f"other users of this computer have access to {counts} in it ({names}{more}); new ones are private"


def _wide(root: str) -> Iterator[str]:
    """Yield the folders and files of conversations below ``root`` that not only their owner can use."""
    for folder, folders, files in os.walk(root):
        # Next to the folders are files of old installations, and others that hold no conversations.
        stored = [name for name in files if folder != root or name.endswith((".json", ".db"))]
        for path in (os.path.join(folder, name) for name in (*folders, *stored)):
            if _mode(path) & (stat.S_IRWXG | stat.S_IRWXO):
                yield path


def _holds_key(content: object) -> bool:
    key = ENDPOINT.text(content, "apiKey").strip() if isinstance(content, Mapping) else ""
    return bool(key) and not key.startswith(("env:", "file:"))


def _more(files: list[str]) -> str:
    return f" and {len(files) - 1} more" if len(files) > 1 else ""


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0
