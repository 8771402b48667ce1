"""The directories that WilmerAI reads from and writes to."""

from __future__ import annotations

import logging
import ntpath
import os
import posixpath
import re
import sys

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError
from Middleware.models.process import process
from Middleware.utilities.once import Once

logger = logging.getLogger(__name__)

_INSTALL_DIRECTORY = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
# Only an installed wheel has this folder (setup.py): with what lies next to Middleware in a clone.
_PACKAGED = os.path.join(_INSTALL_DIRECTORY, "Middleware", "shipped")
_IS_PACKAGE = os.path.isdir(_PACKAGED)
# The public root of an installed wheel.
PUBLIC_VARIABLE = "WILMER_PUBLIC_DIRECTORY"
_DATA_FOLDER = "wilmerai"
# The list of accepted keys that messages propose, in the public root.
KEY_FILE = "accepted-keys.txt"
_WINDOWS_PATH = re.compile(r"[A-Za-z]:[/\\]|\\\\")


def clean_directory(value: str | None, *, keep_trailing: bool = False) -> str | None:
    """Return a directory from the command line or a user file in usable form; None if nothing is left of it.

    Surrounding spaces, trailing slashes of both kinds (unless ``keep_trailing``) and a stray quotation mark are
    removed; a leading ``~`` or ``~name`` is expanded if that home is known.
    """
    if not isinstance(value, str):
        return None
    text = value.strip()
    # In a Windows shell the backslash at the end of a quoted path escapes the closing quotation mark.
    if text.endswith('"') and text.count('"') % 2:
        text = text[:-1].strip()
    if not keep_trailing:
        text = text.rstrip("/\\")
    if text.startswith("~"):
        text = os.path.expanduser(text)
    return text or None


def get_project_root_directory_path() -> str:
    """Return the install directory, which contains ``Middleware``, whatever the working directory is."""
    return _INSTALL_DIRECTORY


def is_package() -> bool:
    """Return whether the program was installed from a wheel. Nothing may be written to its install directory then."""
    return _IS_PACKAGE


def documentation_directory() -> str:
    """Return the folder of the documentation, which may not exist."""
    return os.path.join(_PACKAGED if _IS_PACKAGE else get_project_root_directory_path(), "Docs")


def page_shown(name: str) -> str:
    """Return a page of the documentation, such as ``User/check.md``, as messages name it: below the install directory,
    or with its whole path if users do not know that directory.
    """
    return os.path.join(documentation_directory(), *name.split("/")) if _IS_PACKAGE else f"Docs/{name}"


def shipped_directories() -> list[str]:
    """Return the folders that may hold the ``Public`` that the program comes with, the first of them preferred."""
    if _IS_PACKAGE:
        return [os.path.join(_PACKAGED, "Public")]
    # In a container, Public is a volume that may be older than the program; Defaults is part of its image.
    return [os.path.join(get_project_root_directory_path(), name) for name in ("Public", "Defaults")]


def get_root_public_directory() -> str:
    """Return the public root: ``--PublicDirectory``, else the program's own."""
    return clean_directory(instance.PUBLIC_DIRECTORY) or own_public_directory()


def own_public_directory() -> str:
    """Return the public root without ``--PublicDirectory``: ``Public`` in the install directory.

    If the program was installed from a wheel: the folder that the environment names, else one among the user's data.
    Raises ConfigurationError if it names none and the user has no home.
    """
    if not _IS_PACKAGE:
        return os.path.join(get_project_root_directory_path(), "Public")
    return clean_directory(os.environ.get(PUBLIC_VARIABLE)) or user_data_directory(sys.platform)


def user_data_directory(platform: str) -> str:
    """Return the folder for the program's data on a platform, as ``sys.platform`` names it.

    Raises ConfigurationError if the user has no home.
    """
    path = ntpath if platform == "win32" else posixpath
    if platform == "win32":
        given, usual = os.environ.get("LOCALAPPDATA", ""), "~\\AppData\\Local"
    elif platform == "darwin":
        given, usual = "", "~/Library/Application Support"
    else:
        given, usual = os.environ.get("XDG_DATA_HOME", ""), "~/.local/share"
    # The specification of the XDG variables has relative paths ignored.
    folder: str = path.join(path.expanduser(given if path.isabs(given) else usual), _DATA_FOLDER)
    if not path.isabs(folder):
        raise ConfigurationError(
            "This account has no home folder for the program's data. Name a folder with "
            f"--PublicDirectory or the environment variable {PUBLIC_VARIABLE}."
        )
    return folder


def below_install_directory(path: str) -> str:
    """Return a relative path below the install directory. The ``Public`` of an installed wheel is its public root."""
    first, _, rest = path.replace(os.sep, "/").partition("/")
    if _IS_PACKAGE and rest and first == "Public":
        return os.path.join(get_root_public_directory(), rest)
    return os.path.join(get_project_root_directory_path(), path)


def private_places() -> list[str]:
    """Return the paths of the console's folder and of the lists of keys, which no node may use; they may not exist."""
    lists = [getattr(instance.ACCESS_KEYS, "path", None), os.path.join(get_root_public_directory(), KEY_FILE)]
    return [console_directory(), *filter(None, lists)]


def mode_of_new(path: str) -> int | None:
    """Return the permissions of a new file of the configuration that may hold a key; None for those of the umask.

    ``path``: relative to the config root.
    """
    return 0o600 if path.replace(os.sep, "/").partition("/")[0] in ("Endpoints", "MCPServers") else None


def console_directory() -> str:
    """Return the folder of recorded runs, which may not exist."""
    return instance.CONSOLE_DIRECTORY or os.path.join(get_root_public_directory(), "Console")


def get_root_config_directory() -> str:
    """Return the config root: ``--ConfigDirectory``, else ``Configs`` in the public root."""
    return clean_directory(instance.CONFIG_DIRECTORY) or os.path.join(get_root_public_directory(), "Configs")


def missing_folder(root: str) -> tuple[str, str]:
    """Return why a config root does not exist: the topmost missing folder (absolute) and the flag that names it."""
    if not _is_public_given():
        return os.path.abspath(root), "--ConfigDirectory"
    public = get_root_public_directory()
    return os.path.abspath(root if os.path.isdir(public) else public), "--PublicDirectory"


def meant_folder(root: str) -> str:
    """Return the folder that the flag of this config root should name, if a configuration is one level up or down.

    It is an absolute path; empty if ``root`` itself holds a configuration, or without one nearby.
    """
    if holds_users(root):
        return ""
    named = os.path.abspath(get_root_public_directory() if _is_public_given() else root)
    above = os.path.dirname(named)
    near = [os.path.join(named, "Configs"), os.path.join(named, "Public", "Configs"), named, above]
    if os.path.basename(named).casefold() == "configs":
        near.append(os.path.join(above, "Public", "Configs"))
    # On Windows and macOS the root of the disk has a folder 'Users', which is not ours.
    uppermost = os.path.abspath(os.path.join(named, os.sep))
    found = [folder for folder in near if folder != uppermost and holds_users(folder)]
    if _is_public_given():
        found = [os.path.dirname(folder) for folder in found if os.path.basename(folder).casefold() == "configs"]
    return next(iter(found), "")


def _is_public_given() -> bool:
    """Return whether the config root follows from ``--PublicDirectory``."""
    return bool(not clean_directory(instance.CONFIG_DIRECTORY) and clean_directory(instance.PUBLIC_DIRECTORY))


def holds_users(folder: str) -> bool:
    """Return whether a folder is the root of a configuration."""
    return os.path.isdir(os.path.join(folder, "Users"))


def get_default_logging_directory() -> str:
    """Return the folder of the logs without ``--LoggingDirectory``."""
    return os.path.join(get_root_public_directory(), "logs")


def choose_directory(flag: str | None, configured: object, default: str, key: str) -> str:
    """Return the command-line value, else that of the user file (named ``key`` in warnings), else the default."""
    from_flag = clean_directory(flag)
    if from_flag:
        return from_flag
    from_user = clean_directory(configured if isinstance(configured, str) else None)
    if from_user is None:
        return default
    # Elsewhere a Windows path would become an oddly named folder in the working directory, so it is used only if such a
    # folder exists already.
    if os.name != "nt" and _WINDOWS_PATH.match(from_user) and not os.path.isdir(from_user):
        if process().one(_windows_paths).first((key, from_user, default)):
            logger.warning("%s is a Windows path (%s), which means nothing here; %s is used.", key, from_user, default)
        return default
    return from_user


def _windows_paths() -> Once[tuple[str, str, str]]:
    """Return the reported paths (key, path, default): each is looked up at every request."""
    return Once()


def display_path(path: str) -> str:
    """Return ``path`` as errors show it: relative to the config root with forward slashes, else its last part."""
    root = os.path.abspath(get_root_config_directory())
    absolute = os.path.abspath(path)
    if absolute.startswith(root + os.sep):
        return absolute[len(root) + 1 :].replace(os.sep, "/")
    return os.path.basename(absolute)
