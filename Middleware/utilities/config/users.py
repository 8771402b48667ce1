"""The current user, the settings of users, and the directories of their data."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError, ConfigValueError, WilmerError
from Middleware.models.process import process
from Middleware.models.request_context import current_outside, current_request
from Middleware.utilities.config.declarations import SWITCHED_OFF, SWITCHED_ON, ConfigKey
from Middleware.utilities.config.keys.user import CURRENT_USER, USER
from Middleware.utilities.config.lookup import Candidate, candidate, find_file, forbidden_folder, require_file
from Middleware.utilities.config.paths import (
    choose_directory,
    clean_directory,
    get_root_config_directory,
    get_root_public_directory,
)
from Middleware.utilities.config.store import ConfigStore, FoundFile, config_store, read_object
from Middleware.utilities.once import Once

logger = logging.getLogger(__name__)

CURRENT_USER_FILE = "_current-user"
# The current user without that file, which init writes.
FIRST_USER = "demo"
CHAT_ONLY_TEMPLATE: str = USER["chatPromptTemplateName"].default
DEFAULT_WORKFLOW: str = USER["categorizationWorkflow"].default


@dataclass(frozen=True)
class UserSnapshot:
    """A user's settings as one request sees them. ``basis`` holds everything that the choice of the user depends on."""

    store: ConfigStore
    basis: tuple[object, ...]
    name: str
    settings: Mapping[str, object]


def _reported() -> Once[tuple[str, str, str]]:
    """Return the reported unusable values: user, key and value as shown."""
    return Once()


def configured_users() -> list[str]:
    """Return the users named on the command line, each once; empty in legacy mode."""
    return list(dict.fromkeys(instance.USERS or ()))


def get_current_username() -> str:
    """Return the request's user, else the only configured one, else the one in ``Users/_current-user.json``.

    Without that file it is ``FIRST_USER``, if there is one. Raises ``WilmerError`` if several users are configured and
    the request names none, and ``ConfigurationError`` if there is no current user.
    """
    requested = instance.get_request_user()
    if requested:
        return requested
    users = configured_users()
    if len(users) == 1:
        return users[0]
    if users:
        raise WilmerError("several users are configured and the request names none of them")
    return _active_user()


def _active_user() -> str:
    if not has_current_user_file() and user_config_exists(FIRST_USER):
        return FIRST_USER
    found = require_file("file", CURRENT_USER_FILE, ("Users", CURRENT_USER_FILE))
    name = CURRENT_USER.value(read_object(found), "currentUser")
    if not isinstance(name, str) or not name.strip():
        raise ConfigValueError("'currentUser' must name a user", file=found.display, json_path="currentUser")
    return name


def has_current_user_file() -> bool:
    """Return whether ``Users/_current-user.json`` exists, readable or not."""
    return find_file(("Users", CURRENT_USER_FILE)) is not None


def user_settings() -> Mapping[str, object]:
    """Return the current user's settings, read-only, and the same throughout a request."""
    return current_snapshot().settings


def current_snapshot() -> UserSnapshot:
    """Return the current user with settings."""
    request = current_request()
    # Within a request the settings must not change, even if the file does; only a change of the user reads them again.
    if (
        request is not None
        and isinstance(known := request.config, UserSnapshot)
        and known.basis
        == (known.store.generation, request.user, instance.USERS, instance.CONFIG_DIRECTORY, instance.PUBLIC_DIRECTORY)
    ):
        return known
    name = get_current_username()
    return use_settings(name, settings_for(name))


def use_settings(name: str, settings: Mapping[str, object]) -> UserSnapshot:
    """Return a user with these settings, which apply for the rest of the current request, if there is one."""
    request, store = current_request(), config_store()
    basis = (
        store.generation,
        request.user if request is not None else None,
        instance.USERS,
        instance.CONFIG_DIRECTORY,
        instance.PUBLIC_DIRECTORY,
    )
    snapshot = UserSnapshot(store, basis, name, settings)
    if request is not None:
        request.config = snapshot
    return snapshot


def settings_for(user: str | None = None) -> Mapping[str, object]:
    """Return the read-only settings of ``user``; None: of the current user."""
    return user_settings() if user is None else read_object(_require_user(user))


def find_user_file(user: str) -> FoundFile | None:
    """Return the user's file: the name in lower case is tried first, then as given, then ignoring case."""
    return find_file(*_user_candidates(user))


def user_config_exists(user: str) -> bool:
    """Return whether there is a file for this user, readable or not. Raises ConfigValueError for a forbidden folder."""
    if find_user_file(user) is not None:
        return True
    forbidden = forbidden_folder(*_user_candidates(user))
    if forbidden is not None:
        raise forbidden
    return False


def user_of_folder(folder: str) -> str:
    """Return the user to whom a folder below ``Workflows`` belongs; "" if it has no user's name in its path.

    That is the user with the name of the outermost folders, else of the innermost folder that has one.
    """
    parts = [part for part in folder.split("/") if part not in ("", "_overrides")]
    outermost = ("/".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in (*outermost, *reversed(parts)) if is_user(name)), "")


def is_user(name: str) -> bool:
    """Return whether there is a file for this user, readable or not, also if that cannot be the name of one file."""
    try:
        return user_config_exists(name)
    # The name is a path, or several files differ only in case; with a file, a folder must not be read.
    except ConfigurationError as error:
        return bool(error.file)


def existing_users() -> list[str]:
    """Return the names of all user files, readable or not: plain ones, then those with ``_``, then those in folders."""
    root = os.path.join(get_root_config_directory(), "Users")
    names = []
    for folder, _, files in os.walk(root):
        inside = os.path.relpath(folder, root).replace(os.sep, "/")
        prefix = "" if inside == "." else f"{inside}/"
        names += [
            f"{prefix}{name[: -len('.json')]}"
            for name in files
            if name.lower().endswith(".json")
            and not name.startswith(".")
            and os.path.isfile(os.path.join(folder, name))
        ]
    # The names of most shipped examples begin with an underscore; they come after a user's own.
    return sorted(
        (name for name in names if name != CURRENT_USER_FILE),
        key=lambda name: ("/" in name, name.startswith("_"), name),
    )


def user_display_path(user: str) -> str:
    """Return the path of the user's file, existing or not, relative to the config root."""
    found = find_user_file(user)
    return found.display if found else f"Users/{user.lower()}.json"


def _require_user(user: str) -> FoundFile:
    return require_file("user", user, *_user_candidates(user))


def _user_candidates(user: str) -> tuple[Candidate, ...]:
    lower, given = (candidate(name, "Users", kind="user") for name in (user.lower(), user))
    # New files have names in lower case, but older ones may be spelled as given.
    return (lower,) if lower == given else (lower, given)


def flag_in(settings: Mapping[str, object], key: str, user: str) -> bool:
    """Return a boolean setting. Strings such as ``"true"`` are read; others count as the default, with a warning.

    Raises KeyError for a key that user files do not declare.
    """
    value = USER[key].of(settings)
    usable = (
        value.strip().lower() in (*SWITCHED_ON, *SWITCHED_OFF)
        if isinstance(value, str)
        else (value is None or isinstance(value, (bool, int, float)))
    )
    if usable:
        return USER.flag(settings, key)
    default = USER[key].default is True
    _warn(user, key, value, default)
    return default


def int_in(settings: Mapping[str, Any], key: str, user: str) -> int:
    """Return an integer setting, at least the declared minimum; it may be in a string.

    A value that is not a number, or outside of a range with two ends, is replaced by the default, with a warning.

    Raises KeyError for a key that user files do not declare.
    """
    declared = USER[key]
    default = int(declared.default)
    value = settings.get(key)
    if value is None or value == "":
        return default
    try:
        # ``int`` would take ``true`` for 1.
        if isinstance(value, bool):
            raise ValueError
        number = int(value)
        if declared.most is not None and not (declared.least or 0) <= number <= declared.most:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        _warn(user, key, value, default)
        return default
    return number if declared.least is None else max(number, int(declared.least))


def choice_in(settings: Mapping[str, object], key: str, user: str, otherwise: str) -> str:
    """Return one of the declared choices of a key. Any other value counts as ``otherwise``, with a warning.

    Raises KeyError for a key that user files do not declare.
    """
    declared = USER[key]
    value = settings.get(key)
    if value is None:
        return str(declared.default)
    written = value.strip().lower() if isinstance(value, str) else ""
    if written in declared.choices:
        return written
    _warn(user, key, value, otherwise)
    return otherwise


def _warn(user: str, key: str, value: object, default: object) -> None:
    shown = repr(value)[:100]
    # Each request reads the key again.
    if process().one(_reported).first((user, key, shown)):
        logger.warning(
            "%s: %s is %s, which cannot be used; %r is used instead.", user_display_path(user), key, shown, default
        )


def text_setting(settings: Mapping[str, object], key: ConfigKey, user: str, default: str | None = None) -> str:
    """Return a name in the settings of ``user``; null and "" count as absent: ``default`` or what ``key`` declares.

    Raises ``ConfigValueError`` if it is not a string.
    """
    value = settings.get(key.name)
    if value is None or value == "":
        return (key.default or "") if default is None else default
    if not isinstance(value, str):
        shown = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else json.dumps(value)
        raise ConfigValueError(
            f"{key.name} must be a string, not {shown}", file=user_display_path(user), json_path=key.name
        )
    return value


def user_setting(key: str) -> object:
    """Return the current user's value of a key, of whatever type and read-only; the default if absent or null."""
    return USER[key].of(current_snapshot().settings)


def user_wide_variables() -> Mapping[str, object]:
    """Return the variables that the current user's file defines for all workflows."""
    table = user_setting("userWideWorkflowVariables")
    return table if isinstance(table, Mapping) else {}


def user_flag(key: str) -> bool:
    """Return ``flag_in`` for the current user."""
    snapshot = current_snapshot()
    declared = USER[key]
    # Requests read many flags, and nearly all of them are absent or JSON booleans.
    value = snapshot.settings.get(key)
    if value is None:
        return declared.default is True
    return value if value is True or value is False else flag_in(snapshot.settings, key, snapshot.name)


def user_int(key: str) -> int:
    """Return ``int_in`` for the current user."""
    snapshot = current_snapshot()
    return int_in(snapshot.settings, key, snapshot.name)


def user_name_setting(key: str, default: str | None = None) -> str:
    """Return a name from the current user's file; if it is absent or blank, ``default`` or the declared default."""
    snapshot, declared = current_snapshot(), USER[key]
    default = (declared.default or "") if default is None else default
    value = text_setting(snapshot.settings, declared, snapshot.name, default)
    return value if value.strip() else default


def chat_template_name() -> str:
    """Return the prompt template of chat-only variables and of endpoints without one."""
    return user_name_setting("chatPromptTemplateName")


def custom_workflow_name() -> str | None:
    """Return the workflow that overrides all others, or None. Raises ``ConfigValueError`` if it has none."""
    if not user_flag("customWorkflowOverride"):
        return None
    name = user_name_setting("customWorkflow")
    if not name:
        raise ConfigValueError(
            "customWorkflowOverride is true, but customWorkflow names no workflow",
            file=user_display_path(current_snapshot().name),
            json_path="customWorkflow",
        )
    return name


def categorization_workflow_name() -> str:
    """Return the workflow that chooses a category; without one ``_DefaultWorkflow``, with a warning."""
    key = USER["categorizationWorkflow"].name
    name = user_name_setting(key, "")
    if not name:
        _warn(current_snapshot().name, key, user_settings().get(key), DEFAULT_WORKFLOW)
    return name or DEFAULT_WORKFLOW


# -- directories -------------------------------------------------------------------------------------------------------
# Each is chosen by the launcher flag, else by the user file, else it is a folder below ``Public``.


def get_discussions_root_directory() -> str:
    """Return the folder that contains the folders of discussions."""
    return current_outside().discussions_root or own_discussions_root()


def own_discussions_root(user: str | None = None) -> str:
    """Return the folder of the discussions of ``user`` (None: the current one), also where a request uses others."""
    return choose_directory(
        instance.DISCUSSION_DIRECTORY,
        _discussion_directory(user),
        os.path.join(get_root_public_directory(), "DiscussionIds"),
        "discussionDirectory",
    )


def get_discussions_space(user: str | None = None) -> str:
    """Return the name that the state database has for the folder of discussions: users who share it share these.

    ``user``: whose; None: the current one's.
    """
    configured = _discussion_directory(user)
    if clean_directory(instance.DISCUSSION_DIRECTORY) or not isinstance(configured, str):
        return ""
    return configured.strip().rstrip("/\\")


def _discussion_directory(user: str | None) -> object:
    if user is None:
        return user_setting("discussionDirectory")
    # What was stored of a user may outlive the user's file.
    settings = settings_for(user) if find_user_file(user) else {}
    return USER["discussionDirectory"].of(settings)


def get_lock_database_directory(user: str | None = None) -> str:
    """Return the folder of the lock database of ``user`` (None: the current one)."""
    return choose_directory(
        current_outside().locks_root or instance.USER_LEVEL_SQLITE_DIRECTORY,
        USER.value(settings_for(user), "sqlLiteDirectory"),
        os.path.join(get_root_public_directory(), "SqlLiteDBs"),
        "sqlLiteDirectory",
    )
