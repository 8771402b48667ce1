"""The directories that workflows may use files in, if the user's file names such directories."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from Middleware.exceptions import ConfigValueError
from Middleware.models.request_context import current_outside
from Middleware.utilities import config_utils
from Middleware.utilities.config.paths import private_places
from Middleware.utilities.config.users import user_display_path
from Middleware.utilities.files import path_utils
from Middleware.utilities.files.file_access import find_file_ignoring_case, resolve_file_path

logger = logging.getLogger(__name__)

DIRECTORIES_KEY = "allowedFileDirectories"
# The drive of a path on another machine begins with one of these.
_HOSTS = ("\\\\", "//")


def allowed_directories() -> tuple[str, ...] | None:
    """Return the real paths of the directories that the current user's file allows; None, without the key, allows all.

    Relative ones are below the public root, whatever the working directory is. An empty list allows none. Raises
    ConfigValueError if the value is not a list of strings that are not blank.
    """
    value = config_utils.user_setting(DIRECTORIES_KEY)
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(entry, str) and entry.strip() for entry in value):
        raise ConfigValueError(
            f"'{DIRECTORIES_KEY}' cannot be used, and so no file",
            json_path=DIRECTORIES_KEY,
            file=user_display_path(config_utils.current_snapshot().name),
            expected="a list of the paths of directories, none of them blank",
        )
    root = config_utils.get_root_public_directory()
    try:
        return tuple(os.path.realpath(os.path.join(root, os.path.expanduser(entry.strip()))) for entry in value)
    except ValueError:
        raise ConfigValueError(
            f"'{DIRECTORIES_KEY}' holds a path that no directory can have",
            file=user_display_path(config_utils.current_snapshot().name),
            json_path=DIRECTORIES_KEY,
        ) from None


def contained_path(path: str, key: str, template: object, reading: bool = False) -> str:
    """Return the path to open for the file that ``path`` means: without links, and in an allowed directory.

    Without allowed directories, it is ``path``, with ``Outside.path`` applied. Nothing is created, opened or read.

    Args:
        path: with variables filled in, so that anyone may have written it.
        key: the node's key that it comes from.
        template: the value of that key as configured, which error messages may show.
        reading: the case of the file's name is ignored.

    Raises ConfigValueError for a path that leads elsewhere.
    """
    directories = allowed_directories()
    found = path if directories is None or not path.strip() else real_path_within(path, directories, reading)
    if found is None:
        logger.warning(
            "'%s' is %r; with its variables it leads out of the directories that '%s' in the user file "
            "allows. Nothing was read or written.",
            key,
            template,
            DIRECTORIES_KEY,
        )
        where = f"leads out of the directories that '{DIRECTORIES_KEY}' in the user file allows"
    elif _is_private(found, reading):
        where = "leads to the run console's folder or to the list of access keys, which no node may use"
    else:
        return current_outside().path(found)
    shown = _without_folders(str(template))
    raise ConfigValueError(f"the path of '{key}', {shown!r} with its variables, {where}", json_path=key)


def _is_private(path: str, any_case: bool) -> bool:
    """Return whether a path, in any spelling, is a private place, in one, or another name of a file there."""
    path = resolve_file_path(path)
    places = private_places()
    try:
        found = os.path.realpath((find_file_ignoring_case(path) if any_case else None) or path)
        # A file that does not exist yet is recognised by its folders.
        names = [found, *map(str, Path(found).parents)]
        plain = {os.path.realpath(place).casefold() for place in places}
        if any(name.casefold() in plain for name in names):
            return True
        private = {_identity(place) for place in places} - {None}
        if os.path.lexists(found) and os.stat(found).st_nlink > 1:
            files = (os.path.join(folder, file) for folder, _, inside in os.walk(places[0]) for file in inside)
            private |= {_identity(file) for file in files} - {None}
        return any(_identity(name) in private for name in names)
    # No file can have this path, or it cannot be looked at: opening it fails as well.
    except (OSError, ValueError):
        return False


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def real_path_within(path: str, directories: Sequence[str], any_case: bool = False) -> str | None:
    """Return the real path of the file, existing or not, that ``path`` means; None if it is not in ``directories``.

    With ``any_case`` an existing file matches even if its name differs in case.
    """
    path = resolve_file_path(path)
    # Even a look at the path would tell that host which program asks.
    if _is_on_other_host(path, directories):
        return None
    try:
        found = find_file_ignoring_case(path) if any_case else None
        real = os.path.realpath(found or path)
    # A ValueError means that no file can have this path.
    except (OSError, ValueError):
        return None
    if path.endswith(("/", os.sep)):
        # The path of a folder keeps its separator, which the path of a file never ends with.
        real = os.path.join(real, "")
    return real if any(_is_within(real, directory) for directory in directories) else None


def _is_within(real: str, directory: str) -> bool:
    plain, base = os.path.normcase(real), os.path.normcase(directory)
    base = base if base.endswith(os.sep) else base + os.sep
    if not plain.startswith(base):
        return False
    parts = [part for part in plain[len(base) :].split(os.sep) if part]
    return bool(parts) and all(map(path_utils.is_flat_name, parts)) if path_utils.WINDOWS else bool(parts)


def _is_on_other_host(path: str, directories: Sequence[str]) -> bool:
    drive = os.path.splitdrive(path)[0]
    return drive.startswith(_HOSTS) and os.path.normcase(drive) not in {
        os.path.normcase(os.path.splitdrive(directory)[0]) for directory in directories
    }


def _without_folders(template: str) -> str:
    """Return the configured path as clients may see it: the last part of an absolute one."""
    absolute = os.path.isabs(template) or template.startswith(("~", "/", "\\")) or template[1:2] == ":"
    return ".../" + template.replace("\\", "/").rpartition("/")[2] if absolute else template
