"""The steps before the first request, for launchers and for commands that start the engine themselves."""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from wsgiref.types import WSGIApplication

from Middleware.api.logging_setup import set_up_logging
from Middleware.api.terminal_log import TerminalFormatter
from Middleware.cli import announcement, users
from Middleware.cli.arguments import LaunchArguments
from Middleware.cli.console import StartError
from Middleware.common import instance_global_variables as instance
from Middleware.common.constants import VERSION
from Middleware.services.locking_service import get_locking_service
from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import command, in_project_container
from Middleware.utilities.config.paths import is_package
from Middleware.utilities.terminal import wants_colour

if TYPE_CHECKING:
    from Middleware.addons.check.load_check import LoadCheck
    from Middleware.addons.console.catalog_model import WorkflowCatalog
    from Middleware.addons.console.config_editor import ConfigEditor
    from Middleware.addons.postgres.worker import StateWorker
    from Middleware.addons.records.records import RunRecords

logger = logging.getLogger(__name__)


def configure(arguments: LaunchArguments) -> StateWorker | None:
    """Set up logging, connect to the state database, delete the locks of dead processes, and make the gate.

    Returns the connection to the state database; None without one. Raises StartError.
    """
    instance.LOGGING_DIRECTORY = users.resolve_logging_directory(arguments.logging_directory)
    instance.FILE_LOGGING = users.resolve_file_logging()
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
        announcement.served_users(),
        "LLM calls" if instance.CONCURRENCY_LEVEL == "endpoint" else "requests",
        instance.CONCURRENCY_LIMIT or "any number",
        instance.CONCURRENCY_TIMEOUT,
    )
    state = _state_worker(arguments)
    names: list[str | None] = [*config_utils.configured_users()]
    for user in names or [None]:
        get_locking_service().delete_dead_locks(user)
    # With a state database, the gate is that of all workers.
    if state is None:
        instance.initialize_request_semaphore(instance.CONCURRENCY_LIMIT)
    return state


def _state_worker(arguments: LaunchArguments) -> StateWorker | None:
    if not arguments.database:
        return None
    # Imported here: most servers have files, and need nothing of it.
    from Middleware.addons.postgres.state_database import start_worker

    return start_worker(arguments.database)


def _terminal_log(verbose: bool) -> TerminalFormatter | None:
    """Return the form of the log for a person at a terminal; None for the whole log, which programs and files get."""
    return None if verbose or not sys.stderr.isatty() else TerminalFormatter(wants_colour(sys.stderr))


def build_load_check() -> LoadCheck:
    """Return the listener that checks each workflow when it first runs. It is imported here for the app's reason."""
    from Middleware.addons.check.load_check import LoadCheck

    return LoadCheck()


def build_application(
    threads: int | None = None, listeners: Sequence[object] = (), records: RunRecords | None = None
) -> WSGIApplication:
    """Return the WSGI callable. It is imported here because the arguments must be in place before the app module is."""
    from Middleware.api.app import build_wsgi_application

    return build_wsgi_application(threads=threads, listeners=listeners, records=records)


def build_records(arguments: LaunchArguments) -> RunRecords | None:
    """Return what records the runs; None if nobody is to know of them, and then nothing of it is imported."""
    if arguments.console == "off" and not (arguments.metrics or arguments.otel):
        return None
    from Middleware.addons.records.records import build_records

    try:
        records = build_records(arguments.console, arguments.record, arguments.metrics, arguments.otel)
    except ValueError as error:
        raise StartError(f"--otel: {error} Environment variables whose names begin with OTEL_BSP_ set that.") from error
    records.make_workflow_catalog, records.make_editor = _make_workflow_catalog, _make_editor
    return records


def require_optional_packages(arguments: LaunchArguments) -> None:
    """Raise StartError if a flag needs a package that is not installed."""
    if arguments.metrics:
        _require("--metrics", "requirements.lock", "prometheus-client", "prometheus_client")
    if arguments.otel:
        _require(
            "--otel",
            "requirements-otel.txt",
            "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
            "opentelemetry.sdk",
            "opentelemetry.exporter.otlp.proto.http",
        )
    if arguments.database:
        require_database_packages("--database")


def require_database_packages(flag: str) -> None:
    """Raise StartError if the packages for a state database are not installed."""
    _require(flag, "requirements-database.txt", "psycopg[binary] psycopg_pool", "psycopg", "psycopg_pool")


def _require(flag: str, file: str, packages: str, *modules: str) -> None:
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


def _make_workflow_catalog(users: Iterable[str] | None) -> WorkflowCatalog:
    from Middleware.addons.console import workflow_catalog

    return workflow_catalog.WorkflowCatalog(users)


def _make_editor(records: RunRecords) -> ConfigEditor:
    from Middleware.addons.console.editing import editor

    return editor.ConfigEditor(records.folder, records.store)
