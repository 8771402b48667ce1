"""The steps before the first request, for launchers and for commands that start the engine themselves."""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import sys
from typing import TYPE_CHECKING
from wsgiref.types import WSGIApplication

from Middleware.api.logging_setup import set_up_logging
from Middleware.api.terminal_log import TerminalFormatter
from Middleware.cli import announcement, served_users
from Middleware.cli.addon import addons
from Middleware.cli.program import StartError
from Middleware.common import instance_global_variables as instance
from Middleware.common.constants import VERSION
from Middleware.services.locking_service import get_locking_service
from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import command, in_project_container
from Middleware.utilities.config.paths import is_package
from Middleware.utilities.terminal import wants_colour

if TYPE_CHECKING:
    from flask import Flask

    from Middleware.cli.launch import Launch

logger = logging.getLogger(__name__)


def configure(launch: Launch) -> None:
    """Set up logging, make the gate, let add-ons connect, and delete the locks of dead processes. Raises StartError."""
    arguments = launch.arguments
    instance.LOGGING_DIRECTORY = served_users.resolve_logging_directory(arguments.logging_directory)
    instance.FILE_LOGGING = served_users.resolve_file_logging()
    directory = instance.LOGGING_DIRECTORY if instance.FILE_LOGGING else None
    try:
        set_up_logging(
            directory, config_utils.configured_users(), arguments.log_level, _terminal_log(arguments.verbose)
        )
    except OSError as error:
        raise StartError(
            f"Cannot write log files in {directory}: {error}. Choose another folder with --LoggingDirectory."
        ) from error
    logger.info(
        "WilmerAI %s, Python %s, users: %s, %s at a time: %s, waiting at most %g s",
        VERSION,
        platform.python_version(),
        announcement.describe_users(),
        "LLM calls" if instance.CONCURRENCY_LEVEL == "endpoint" else "requests",
        instance.CONCURRENCY_LIMIT or "any number",
        instance.CONCURRENCY_TIMEOUT,
    )
    instance.initialize_request_semaphore(instance.CONCURRENCY_LIMIT)
    for addon in addons():
        addon.connect(launch)
    names: list[str | None] = [*config_utils.configured_users()]
    for user in names or [None]:
        get_locking_service().delete_dead_locks(user)


def _terminal_log(verbose: bool) -> TerminalFormatter | None:
    """Return the form of the log for a terminal; None for the whole log, which programs and files get."""
    return None if verbose or not sys.stderr.isatty() else TerminalFormatter(wants_colour(sys.stderr))


def build_application(launch: Launch, app: Flask | None = None) -> WSGIApplication:
    """Return the WSGI callable with all that add-ons bring. Raises StartError."""
    for addon in addons():
        addon.prepare(launch)
    # Imported here: the arguments must be in place before the app module is.
    from Middleware.api.app import build_wsgi_application

    return build_wsgi_application(app, launch.threads, launch.listeners, launch.mounts, launch.routes)


def require_packages(flag: str, file: str, packages: str, *modules: str) -> None:
    """Raise StartError if one of ``modules`` is missing; ``file`` names the ``packages`` that have them."""
    if all(map(_is_installed, modules)):
        return
    # The image has no environment that could be added to.
    if in_project_container():
        raise StartError(
            f"{flag} needs packages that are not installed. Write PIP_PACKAGES={packages} "
            "into .env, then run docker compose up -d --build"
        )
    wanted = (
        packages.split() if is_package() else ["-r", os.path.join(config_utils.get_project_root_directory_path(), file)]
    )
    raise StartError(
        f"{flag} needs packages that are not installed. Install them with: "
        f"{command([sys.executable, '-m', 'pip', 'install', *wanted])}"
    )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    # Not even the package around it is there.
    except ModuleNotFoundError:
        return False
