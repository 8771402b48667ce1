"""The lines that a launcher prints at the start, and the warnings about clients that can reach the server."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from Middleware.api.edge.access_keys import KEY_FILE
from Middleware.cli import served_users
from Middleware.cli.serving.listening import urls_elsewhere
from Middleware.common import instance_global_variables as instance
from Middleware.common.constants import VERSION
from Middleware.exceptions import ConfigurationError
from Middleware.models.process import process
from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import command, in_project_container, own_command, usual_start
from Middleware.utilities.config.paths import page_shown
from Middleware.utilities.config.users import has_current_user_file
from Middleware.utilities.discussions.discussion_folder import discussions
from Middleware.utilities.http.addresses import is_loopback

if TYPE_CHECKING:
    from Middleware.cli.launch import Launch

logger = logging.getLogger(__name__)

RULE = "!" * 100
PRIVATE_ONLY = (
    "  Clients:        everyone with a private address (your own network), without a key; others get 403",
    f"                  With keys: {page_shown('User/network-access.md')}. Without keys, for everyone: --allow-public",
)


def describe(launch: Launch) -> list[str]:
    """Return the lines printed at start: resolved directories, users, address, and notes for the operator."""
    public = config_utils.get_root_public_directory()
    conversations = _data_directory(
        config_utils.get_discussions_root_directory,
        instance.DISCUSSION_DIRECTORY,
        os.path.join(public, "DiscussionIds"),
    )
    locks = _data_directory(
        config_utils.get_lock_database_directory,
        instance.USER_LEVEL_SQLITE_DIRECTORY,
        os.path.join(public, "SqlLiteDBs"),
    )
    folders = [f"  Conversations:  {conversations}", f"  Lock databases: {locks}"]
    log_folder = os.path.abspath(instance.LOGGING_DIRECTORY) + ("" if instance.FILE_LOGGING else " (off)")
    lines = [
        f"WilmerAI {VERSION}",
        f"  Configuration:  {os.path.abspath(config_utils.get_root_config_directory())}",
        # Conversations that are not in files have a line among those of the add-on that has them.
        *([] if process().one(discussions).worker else folders),
        f"  Log files:      {log_folder}",
        f"  Users:          {describe_users()}",
        f"  Listening on:   {launch.host}, port {launch.port}: {launch.url}",
    ]
    if others := urls_elsewhere(launch.address, launch.port):
        lines.append(f"  Other devices:  {', '.join(others)}")
    return [*lines, *launch.lines, *describe_access(launch.address), *launch.hints]


def describe_users() -> str:
    """Return the configured users, else the current one and its source; under a WSGI host there may be neither."""
    current = served_users.current_user()
    source = "from Users/_current-user.json" if has_current_user_file() else "without --User"
    return ", ".join(config_utils.configured_users()) or (f"{current} ({source})" if current else "none")


def _data_directory(of_current_user: Callable[[], str], flag: str | None, default: str) -> str:
    """Return an absolute directory to print. With several users, their files are left out of account."""
    chosen = flag or default
    if served_users.current_user():
        try:
            chosen = of_current_user()
        # Reported when the users were checked.
        except (ConfigurationError, OSError, ValueError):
            pass
    return os.path.abspath(chosen)


def describe_access(host: str) -> list[str]:
    """Return the lines about the clients that can reach a server that listens on ``host``."""
    lines = []
    if instance.ACCESS_KEYS is not None:
        keys = instance.ACCESS_KEYS
        lines.append(f"  Accepted keys:  {len(keys.keys)}, from {keys.path}")
        lines += [f"  WARNING: {text}" for text in keys.warnings()]
    if instance.ALLOWED_ORIGINS:
        lines.append(f"  Web pages:      {', '.join(instance.ALLOWED_ORIGINS)}, and those of this machine")
    if is_loopback(host):
        return [*lines, "  Only programs on this machine can connect. Start with --listen to let others in."]
    if instance.ACCESS_KEYS is not None:
        return lines
    return [*lines, *(PRIVATE_ONLY if instance.PRIVATE_CLIENTS_ONLY else _warning())]


def log_access(host: str) -> None:
    """Log the same warnings about access."""
    if instance.ACCESS_KEYS is not None:
        for text in instance.ACCESS_KEYS.warnings():
            logger.warning("%s", text)
    elif instance.PRIVATE_CLIENTS_ONLY:
        logger.warning(
            "Listening on %s without --accepted-keys-file: everyone on the local network can use every "
            "configured user and LLM. Clients with public addresses are refused",
            host,
        )
    elif not is_loopback(host):
        logger.warning(
            "Listening on %s without --accepted-keys-file: anyone who reaches this address can use every "
            "configured user and LLM",
            host,
        )


def _warning() -> list[str]:
    path = os.path.join(config_utils.get_root_public_directory(), KEY_FILE)
    path = os.path.abspath(path)
    return [
        "",
        RULE,
        "!!  WARNING: there is no password. Anyone who reaches this address can use every configured user,",
        "!!  workflow and LLM, and what conversations have left in their memories.",
        "!!",
        "!!  To end this, make a key. It is shown once; give it to your clients as their API key:",
        f"!!    {own_command('keys', 'add', '--accepted-keys-file', path)}",
        *_start_with_keys(path),
        f"!!  More: {page_shown('User/network-access.md')}",
        RULE,
    ]


def _start_with_keys(path: str) -> list[str]:
    # There the command line is part of compose.yaml.
    if in_project_container():
        return [
            "!!  Then write the list of keys into compose.yaml, and type docker compose up -d again:",
            f'!!    command: ["--accepted-keys-file", "{path}"]',
        ]
    program, *words = sys.argv
    started = usual_start() or [sys.executable, os.path.abspath(program)]
    start = [*started, *words, "--accepted-keys-file", path]
    return ["!!  Then stop this server and start it with the list of keys:", f"!!    {command(start)}"]
