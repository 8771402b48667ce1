"""The users that the server serves, and the settings in their files for the launch: port and log files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from Middleware.api.edge.access_keys import AccessKeys, AccessKeysError
from Middleware.cli.program import StartError, say
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError
from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import command
from Middleware.utilities.config.keys.user import USER
from Middleware.utilities.config.paths import meant_folder, missing_folder
from Middleware.utilities.files.path_utils import split_name
from Middleware.utilities.quoting import quoted_word
from Middleware.utilities.text_utils import nearest

DEFAULT_PORT: int = USER["port"].default
SEVERAL_USERS_PORT = 5050
# A message lists at most this many users, so that it stays readable.
MAX_NAMED = 12
NAME_CONFIGS = "Name the folder that holds 'Users', 'Endpoints' and the others with --ConfigDirectory."
_USER_TOKEN = re.compile(r"<user>[/\\]*")


def check_users() -> None:
    """Check that every configured user has a file or, with none configured, that there is a current user.

    The server starts with a file that does not parse, too: the check of the start reports it, and requests get an
    error. Raises StartError.
    """
    for user in config_utils.configured_users():
        require_user_file(user)
    if not config_utils.configured_users():
        problem = _folder_problem()
        if problem:
            raise StartError(problem)
        _check_current_user()


def _folder_problem() -> str:
    """Return the reason if there is no configuration in its folder; "" if there is one."""
    root = config_utils.get_root_config_directory()
    if os.path.isdir(os.path.join(root, "Users")):
        return ""
    path, meant = os.path.abspath(root), meant_folder(root)
    missing, flag = missing_folder(root)
    if flag == "--PublicDirectory" and meant:
        return f"There is no folder {missing}. Did you mean --PublicDirectory {quoted_word(meant)}?"
    if flag == "--PublicDirectory":
        return f"There is no folder {missing}. Name the folder that holds 'Configs' with --PublicDirectory."
    is_below = meant.startswith(path + os.sep)
    hint = " ".join([*([] if is_below else [NAME_CONFIGS]), *([f"Did you mean {meant}?"] if meant else [])])
    if os.path.isdir(root):
        return f"The configuration folder {path} holds no folder 'Users'. {hint}"
    return f"There is no configuration folder {path}. {hint}"


def require_user_file(user: str) -> None:
    """Raise StartError if there is no file for this user, readable or not."""
    try:
        exists = config_utils.user_config_exists(user)
    # The name is a path, or several files differ only in case.
    except ConfigurationError as error:
        raise StartError(f"User '{user}' cannot be used: {error}") from error
    if not exists:
        path = os.path.join(config_utils.get_root_config_directory(), "Users", f"{user.lower()}.json")
        raise StartError(f"Config file not found for user '{user}': {path}{existing_users_hint(user)}")


def second_user(folder: str | None) -> str:
    """Return why ``folder``, given as the configuration folder, is probably a user's name; "" if it is not."""
    if not folder or os.path.exists(folder) or not config_utils.configured_users():
        return ""
    # A second user's name after --User is parsed as the positional ConfigDirectory.
    usual = os.path.join(config_utils.get_root_public_directory(), "Configs", "Users", f"{folder.lower()}.json")
    if not os.path.isfile(usual):
        return ""
    flags = command([word for name in (*config_utils.configured_users(), folder) for word in ("--User", name)])
    return f"There is no configuration folder '{folder}', but a user of that name. Each user has a flag: {flags}"


def existing_users_hint(user: str) -> str:
    """Return a line with the existing users, the most similar first, or with the reason why there are not any."""
    problem, known = _folder_problem(), config_utils.existing_users()
    if problem:
        return f"\n{problem}"
    if not known:
        return ""
    near = nearest(user, known, 0.6)
    names = sorted(known, key=lambda name: name != near)
    rest = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    guess = f" Did you mean '{near}'?" if near else ""
    return f"\nThe users that exist: {', '.join(names[:MAX_NAMED])}{rest}.{guess}"


def served_users() -> list[str]:
    """Return the configured users, else the current one."""
    return config_utils.configured_users() or [config_utils.get_current_username()]


def read_access_keys(path: str | None) -> AccessKeys | None:
    """Return the list of keys that clients need, or None. Raises StartError if it cannot be used."""
    if path is None:
        return None
    try:
        return AccessKeys(path, served_users)
    except (AccessKeysError, ConfigurationError) as error:
        raise StartError(f"--accepted-keys-file: {error}") from error


def current_user() -> str | None:
    """Return the only configured user, else the current one; None if there are several."""
    users = config_utils.configured_users()
    if users:
        return users[0] if len(users) == 1 else None
    try:
        return config_utils.get_current_username()
    except (ConfigurationError, OSError, ValueError):
        return None


def resolve_port() -> int:
    """Return ``--port``, else 5050 with several users, else the user's ``port``, else 5000."""
    if instance.PORT is not None:
        return instance.PORT
    # One server has one port, and the files of several users may name different ones.
    if len(config_utils.configured_users()) > 1:
        say(
            f"WARNING: with several users their own ports do not apply; using {SEVERAL_USERS_PORT}. "
            "Choose another with --port.",
            error_stream=True,
        )
        return SEVERAL_USERS_PORT
    value = _setting("port", DEFAULT_PORT)
    try:
        port = int(value)
    except (TypeError, ValueError):
        port = -1
    # int() accepts true and false.
    if not isinstance(value, bool) and 0 <= port <= 65535:
        return port
    say(
        f"WARNING: Users/{current_user()}.json: port {value!r} is not a port number; using port {DEFAULT_PORT}.",
        error_stream=True,
    )
    return DEFAULT_PORT


def resolve_file_logging() -> bool:
    """Return ``--file-logging``, else the only user's ``useFileLogging``, else False."""
    if instance.FILE_LOGGING is not None:
        return instance.FILE_LOGGING
    # The files of several users may disagree; the flag is for all of them.
    if len(config_utils.configured_users()) > 1:
        return False
    value = _setting("useFileLogging", False)
    return value.strip().lower() == "true" if isinstance(value, str) else bool(value)


def resolve_logging_directory(given: str | None) -> str:
    """Return the folder of the log files, with ``<user>`` replaced by the only user, or else removed."""
    default = config_utils.get_default_logging_directory()
    if not given:
        return default
    if "<user>" not in given:
        return given
    user = current_user()
    if user:
        return given.replace("<user>", "/".join(split_name(user)))
    say("WARNING: <user> in --LoggingDirectory is left out: there is no single user.", error_stream=True)
    return _USER_TOKEN.sub("", given).rstrip("/\\") or default


def _check_current_user() -> None:
    try:
        config_utils.get_current_username()
    except (ConfigurationError, OSError, ValueError) as error:
        raise StartError(
            f"No --User was given, and the current user cannot be read: {error}{existing_users_hint('')}"
        ) from error


def _setting(key: str, default: object) -> Any:
    """Return a value in the only user's file; ``default`` if the file cannot be read."""
    user = current_user()
    if user is None:
        return default
    try:
        config: Mapping[str, object] = config_utils.get_user_config_for(user)
    # Reported by the check of the start, with the line.
    except (ConfigurationError, OSError, ValueError):
        return default
    value = USER.value(config, key) if USER.has(config, key) else ""
    return default if value == "" else value
