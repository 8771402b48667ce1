"""Writes the files of a plan, so that a failure leaves the configuration as it was."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from Middleware.addons.init.plan import Plan, planned_paths, to_bytes
from Middleware.cli.program import StartError
from Middleware.cli.served_users import current_user
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.user import CURRENT_USER as CURRENT_USER_KEYS
from Middleware.utilities.config.paths import mode_of_new
from Middleware.utilities.file_utils import atomic_write
from Middleware.utilities.files.path_utils import is_storable_name
from Middleware.utilities.terminal import printable

CURRENT_USER = "Users/_current-user.json"
# Names of files and folders contain it, and with its folders a path must stay short enough for Windows.
LONGEST_NAME = 60
_NAME = re.compile(r"[^\W_][\w-]*")
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)


@dataclass
class Written:
    """The files that were written, as paths below the config folder.

    Attributes:
        kept: previous versions, under the names that they have now.
        previous_user: the current user before, if it was another one.
    """

    files: list[str]
    shipped: list[str]
    kept: list[str]
    previous_user: str | None = None


def user_name_problem(name: str) -> str | None:
    """Return what is wrong with a new user's name; None if nothing is."""
    if _NAME.fullmatch(name) and is_storable_name(name) and not _DEVICES.fullmatch(name) and len(name) <= LONGEST_NAME:
        return None
    return (
        f"'{printable(name[:60])}' cannot be the name of a user: use up to 60 letters, digits, '-' and '_', "
        "with a letter or digit first, such as 'me' (a few names such as 'con' belong to Windows)"
    )


def existing_files(user: str) -> list[str]:
    """Return the existing files of such a user, as paths below the config folder, the user's own file first."""
    found = [path for path in planned_paths(user) if os.path.lexists(_path(path))]
    return sorted(found, key=lambda path: not path.startswith("Users/"))


def as_spelled(user: str) -> str:
    """Return the spelling of an existing user with this name: users that differ in case alone are one."""
    return next((name for name in config_utils.existing_users() if name.casefold() == user.casefold()), user)


def other_name(user: str) -> str:
    """Return a name like ``user`` that has no files yet."""
    names = (f"{user[: LONGEST_NAME - 4]}{number}" for number in range(2, 10_000))
    return next(name for name in names if not existing_files(as_spelled(name)))


def write(plan: Plan, user: str) -> Written:
    """Write all files, and make ``user`` the current one at last. Files that are replaced stay under another name.

    Raises StartError with everything as it was.
    """
    previous = current_user()
    current = to_bytes({"$schema": "../../Schemas/current-user.schema.json", "currentUser": user})
    done = Written([*plan.files, CURRENT_USER], list(plan.shipped), [], None if previous == user else previous)
    undo: list[tuple[str, bytes | None]] = []
    everything = {**plan.shipped, **plan.files, CURRENT_USER: current}
    places = [*everything, *([f"{plan.presets}/x"] if plan.presets else [])]
    folders = {folder for path in places for folder in _missing_folders(_path(path))}
    try:
        if plan.presets:
            os.makedirs(_path(plan.presets), exist_ok=True)
        for path, data in everything.items():
            _write_one(path, data, done, undo)
    # Ctrl-C, too, must leave everything as it was.
    except BaseException as error:
        _take_back(undo, done.kept, folders)
        if isinstance(error, OSError):
            raise StartError(
                f"Cannot write {error.filename}: {error.strerror}. Nothing was changed. Another folder "
                "can be named with --PublicDirectory."
            ) from error
        raise
    return done


def _write_one(path: str, data: bytes, done: Written, undo: list[tuple[str, bytes | None]]) -> None:
    target = _path(path)
    old = Path(target).read_bytes() if os.path.exists(target) else None
    if old == data:
        return
    # The old file is kept before it is replaced, so that no step loses data.
    if old is not None and not _is_no_loss(path, old):
        kept = next(name for name in _backup_names(path) if not os.path.lexists(_path(name)))
        done.kept.append(kept)
        atomic_write(_path(kept), old, os.stat(target).st_mode & 0o777)
    undo.append((target, old))
    atomic_write(target, data, mode_of_new(path))


def _is_no_loss(path: str, old: bytes) -> bool:
    """Return whether a file holds nothing but a choice of user, whose name is printed."""
    try:
        content = json.loads(old) if path == CURRENT_USER else None
    except ValueError:
        return False
    return (
        isinstance(content, dict)
        and content.keys() <= {"$schema", "currentUser"}
        and isinstance(CURRENT_USER_KEYS.value(content, "currentUser"), str)
    )


def _backup_names(path: str) -> Iterator[str]:
    return (f"{path}.bak{number}" for number in itertools.chain([""], itertools.count(2)))


def _take_back(undo: list[tuple[str, bytes | None]], kept: list[str], folders: set[str]) -> None:
    """Restore what was there, newest first. If that fails somewhere, the backups stay."""
    try:
        for target, old in reversed(undo):
            if old is not None:
                atomic_write(target, old)
            elif os.path.exists(target):
                os.unlink(target)
        for name in kept:
            # Ctrl-C may have come before it was written.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_path(name))
    except OSError:
        return
    for folder in sorted(folders, key=len, reverse=True):
        # Another program may have put a file there.
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _missing_folders(path: str) -> Iterator[str]:
    folder = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(folder):
        yield folder
        folder = os.path.dirname(folder)


def _path(path: str) -> str:
    return os.path.join(config_utils.get_root_config_directory(), *path.split("/"))
