"""The directories that WilmerAI reads from and writes to."""
from __future__ import annotations

import logging
import os
import re

from Middleware.common import instance_global_variables as instance
from Middleware.models.process import process
from Middleware.utilities.once import Once

logger = logging.getLogger(__name__)

_INSTALL_DIRECTORY = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
_WINDOWS_PATH = re.compile(r"[A-Za-z]:[/\\]|\\\\")


def clean_directory(value: str | None, *, keep_trailing: bool = False) -> str | None:
    """A directory as given on the command line or in a user file, made usable; None if nothing is left of it.

    Spaces around it, trailing slashes of both kinds (unless ``keep_trailing``) and the stray quote that a quoted
    Windows path ending in a backslash leaves are removed; a leading ``~`` or ``~name`` is expanded if that home is
    known.
    """
    if not isinstance(value, str):
        return None
    text = value.strip()
    if text.endswith('"') and text.count('"') % 2:
        text = text[:-1].strip()
    if not keep_trailing:
        text = text.rstrip("/\\")
    if text.startswith("~"):
        text = os.path.expanduser(text)
    return text or None


def get_project_root_directory_path() -> str:
    """The install directory: where ``Middleware`` lies, whatever the working directory is."""
    return _INSTALL_DIRECTORY


def get_root_public_directory() -> str:
    """The public root: ``--PublicDirectory``, else ``Public`` in the install directory."""
    return clean_directory(instance.PUBLIC_DIRECTORY) or os.path.join(_INSTALL_DIRECTORY, "Public")


def get_root_config_directory() -> str:
    """The config root: ``--ConfigDirectory``, else ``Configs`` in the public root."""
    return clean_directory(instance.CONFIG_DIRECTORY) or os.path.join(get_root_public_directory(), "Configs")


def missing_folder(root: str) -> tuple[str, str]:
    """Of a config root that does not exist: the absolute path of the uppermost folder that a flag names and that is
    missing, and the flag to correct."""
    if not _is_public_given():
        return os.path.abspath(root), "--ConfigDirectory"
    public = get_root_public_directory()
    return os.path.abspath(root if os.path.isdir(public) else public), "--PublicDirectory"


def meant_folder(root: str) -> str:
    """What the flag that led to this config root should have named, if a level more or less leads to a configuration.

    An absolute path; empty if ``root`` holds one itself, or if there is none near.
    """
    if _holds_users(root):
        return ""
    named = os.path.abspath(get_root_public_directory() if _is_public_given() else root)
    above = os.path.dirname(named)
    near = [os.path.join(named, "Configs"), os.path.join(named, "Public", "Configs"), named, above]
    if os.path.basename(named).casefold() == "configs":
        near.append(os.path.join(above, "Public", "Configs"))
    uppermost = os.path.abspath(os.path.join(named, os.sep))  # on Windows and macOS it holds the 'Users' of the system
    found = [folder for folder in near if folder != uppermost and _holds_users(folder)]
    if _is_public_given():
        found = [os.path.dirname(folder) for folder in found if os.path.basename(folder).casefold() == "configs"]
    return next(iter(found), "")


def _is_public_given() -> bool:
    """Whether the config root follows from ``--PublicDirectory``."""
    return bool(not clean_directory(instance.CONFIG_DIRECTORY) and clean_directory(instance.PUBLIC_DIRECTORY))


def _holds_users(folder: str) -> bool:
    return os.path.isdir(os.path.join(folder, "Users"))


def get_default_logging_directory() -> str:
    """Where logs go without ``--LoggingDirectory``."""
    return os.path.join(get_root_public_directory(), "logs")


def choose_directory(flag: str | None, configured: object, default: str, key: str) -> str:
    """The command-line value, else the user file's (named ``key`` in warnings), else the default.

    A Windows path on another platform would become an oddly named folder in the working directory; it is used only if
    such a folder exists already.
    """
    from_flag = clean_directory(flag)
    if from_flag:
        return from_flag
    from_user = clean_directory(configured if isinstance(configured, str) else None)
    if from_user is None:
        return default
    if os.name != "nt" and _WINDOWS_PATH.match(from_user) and not os.path.isdir(from_user):
        if process().one(_windows_paths).first((key, from_user, default)):
            logger.warning("%s is a Windows path (%s), which means nothing here; %s is used.", key, from_user, default)
        return default
    return from_user


def _windows_paths() -> Once[tuple[str, str, str]]:
    """Key, path and default of what was reported: each is looked up at every request."""
    return Once()


def display_path(path: str) -> str:
    """``path`` as errors may show it: relative to the config root with forward slashes, else only its last part."""
    root = os.path.abspath(get_root_config_directory())
    absolute = os.path.abspath(path)
    if absolute.startswith(root + os.sep):
        return absolute[len(root) + 1:].replace(os.sep, "/")
    return os.path.basename(absolute)
