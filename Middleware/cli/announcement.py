"""The lines that a launcher prints at the start, and the warnings about clients that can reach the server."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from Middleware.addons.init import demo
from Middleware.api.edge.access_keys import KEY_FILE
from Middleware.cli import users
from Middleware.cli.serving.listening import url_of, urls_elsewhere
from Middleware.common import instance_global_variables as instance
from Middleware.common.constants import VERSION
from Middleware.exceptions import ConfigurationError
from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import command, in_project_container, own_command
from Middleware.utilities.config.paths import page_shown
from Middleware.utilities.config.users import has_current_user_file
from Middleware.utilities.http.addresses import is_loopback

if TYPE_CHECKING:
    from Middleware.addons.postgres.worker import StateWorker
    from Middleware.addons.records.records import RunRecords

logger = logging.getLogger(__name__)

RULE = "!" * 100
PRIVATE_ONLY = (
    "  Clients:        everyone with a private address (your own network), without a key; others get 403",
    f"                  With keys: {page_shown('User/network-access.md')}. Without keys, for everyone: --allow-public",
)


def describe(
    host: str,
    port: int,
    address: str,
    is_demo: bool = False,
    records: RunRecords | None = None,
    state: StateWorker | None = None,
    workers: int = 1,
) -> list[str]:
    """Return the lines printed at start: resolved directories, users, address, and notes for the operator.

    Args:
        address: the numeric address of ``host``, which decides who can connect.
        records: the recorded runs; None where none are.
        state: the connections to the state database; None with files.
        workers: the number of processes on this address, each of which says its own number.
    """
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
    log_folder = instance.LOGGING_DIRECTORY if instance.FILE_LOGGING else f"{instance.LOGGING_DIRECTORY} (off)"
    base = url_of(host, port)
    lines = [
        f"WilmerAI {VERSION}",
        f"  Configuration:  {os.path.abspath(config_utils.get_root_config_directory())}",
        *(
            [f"  Conversations:  {conversations}", f"  Lock databases: {locks}"]
            if state is None
            else [f"  Database:       {state.description}, {_workers(state, workers)}"]
        ),
        f"  Log files:      {log_folder}",
        f"  Users:          {served_users()}",
        f"  Listening on:   {host}, port {port}: {base}",
    ]
    if others := urls_elsewhere(address, port):
        lines.append(f"  Other devices:  {', '.join(others)}")
    if records is not None and records.has_console:
        lines.append(f"  Console:        {_console_address(base, records)}")
    if records is not None and records.metrics is not None:
        lines.append(f"  Metrics:        {base}/metrics")
    lines += describe_access(address)
    return lines + (demo.instructions(base, instance.ACCESS_KEYS is not None) if is_demo else demo.elsewhere())


def _workers(state: StateWorker, count: int) -> str:
    return f"this is worker {state.session.number}" if count == 1 else f"{count} workers on this address"


def _console_address(base: str, records: RunRecords) -> str:
    """Return the address of the console: on a terminal a link that signs in, which must not get into a log file."""
    # Imported here: without a console, nothing of it is needed.
    from Middleware.addons.console.sign_in import PATH, sign_in_link

    if sys.stdout.isatty():
        # Without its folder, nobody can be signed in; the page says how to go on.
        with contextlib.suppress(OSError):
            return sign_in_link(base, records.folder)
    return f"{base}{PATH}"


def served_users() -> str:
    """Return the configured users, else the current one and its source; under a WSGI host there may be neither."""
    current = users.current_user()
    source = "from Users/_current-user.json" if has_current_user_file() else "without --User"
    return ", ".join(config_utils.configured_users()) or (f"{current} ({source})" if current else "none")


def _data_directory(of_current_user: Callable[[], str], flag: str | None, default: str) -> str:
    """Return an absolute directory to print. With several users, their files are left out of account."""
    chosen = flag or default
    if users.current_user():
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
            "Listening on %s without --accepted-keys-file: whoever reaches this address can use every "
            "configured user and LLM",
            host,
        )


def _warning() -> list[str]:
    path = os.path.join(config_utils.get_root_public_directory(), KEY_FILE)
    path = os.path.abspath(path)
    return [
        "",
        RULE,
        "!!  WARNING: there is no password. Whoever reaches this address can use every configured user,",
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
    start = [sys.executable, os.path.abspath(program), *words, "--accepted-keys-file", path]
    return ["!!  Then stop this server and start it with the list of keys:", f"!!    {command(start)}"]
