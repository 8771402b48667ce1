"""The directories of the current user's data: launcher flag, else user file, else a folder below ``Public``."""
from __future__ import annotations

import os

from Middleware.common import instance_global_variables as instance
from Middleware.models.request_context import current_trial
from Middleware.utilities.config.keys.user import USER
from Middleware.utilities.config.paths import choose_directory, get_root_public_directory
from Middleware.utilities.config.users import settings_for, user_setting


def get_discussions_root_directory() -> str:
    """Return the folder that contains the folders of discussions."""
    # A trial run must not change the user's data.
    trial = current_trial()
    if trial is not None:
        return trial.discussions
    return choose_directory(instance.DISCUSSION_DIRECTORY, user_setting("discussionDirectory"),
                            os.path.join(get_root_public_directory(), "DiscussionIds"), "discussionDirectory")


def get_lock_database_directory(user: str | None = None) -> str:
    """Return the folder of the lock database of ``user`` (None: the current one)."""
    trial = current_trial()
    if trial is not None:
        return trial.locks
    return choose_directory(instance.USER_LEVEL_SQLITE_DIRECTORY, USER.value(settings_for(user), "sqlLiteDirectory"),
                            os.path.join(get_root_public_directory(), "SqlLiteDBs"), "sqlLiteDirectory")
