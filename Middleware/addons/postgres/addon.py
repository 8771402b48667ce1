"""The state database of several servers, several processes on one address, and the command ``state``."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from Middleware.addons.discussions.elsewhere import StoredElsewhere
from Middleware.addons.postgres.database_address import DATABASE_VARIABLE, chosen_database
from Middleware.cli.addon import AddOn, Command, Flags
from Middleware.cli.launch import Launch
from Middleware.cli.preparation import require_packages
from Middleware.cli.program import StartError, program_name, say
from Middleware.common import instance_global_variables as instance
from Middleware.common.constants import CHILD_VARIABLE
from Middleware.utilities.config.paths import page_shown

if TYPE_CHECKING:
    from Middleware.addons.discussions.rekey.folder_keys import KeyChange
    from Middleware.addons.discussions.rekey.key_folder import Result

T = TypeVar("T")


class Postgres(AddOn):
    def add_flags(self, flags: Flags) -> None:
        flags.add(
            "--workers",
            type=int,
            default=1,
            metavar="N",
            help="processes that serve, for all cores of this machine; more than one need --database "
            "(default: %(default)s)",
        )
        flags.add(
            "--database",
            metavar="URL",
            help="postgresql://...: keep conversations in this database, which several servers share (default: "
            f"environment {DATABASE_VARIABLE}, else files)",
        )

    def check_flags(self, flags: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> None:
        if flags.workers < 1:
            refuse("--workers must be >= 1")
        if flags.workers > 1 and not chosen_database(flags):
            refuse(
                "--workers needs --database when there are several: the processes share conversations, the limit "
                f"on requests and stops by a PostgreSQL database, see {page_shown('User/several-workers.md')}"
            )

    def commands(self) -> Mapping[str, Command]:
        return {
            "state": Command("move stored conversations into a database that several servers share, and back", _state)
        }

    def check(self, launch: Launch) -> None:
        flags = launch.arguments.flags
        if chosen_database(flags):
            if not launch.native:
                raise StartError(
                    "A state database needs native threads: start run_waitress.py instead, without Eventlet."
                )
            require_database_packages("--database")
        workers = getattr(flags, "workers", 1)
        if CHILD_VARIABLE in os.environ:
            _join(launch)
        elif workers > 1:
            if not launch.several:
                raise StartError("--workers is for run_waitress.py only: start that instead.")
            # Imported here: most servers are one process.
            from Middleware.addons.postgres.worker_processes import become_parent

            raise SystemExit(become_parent(launch.bind(), workers))

    def connect(self, launch: Launch) -> None:
        url = chosen_database(launch.arguments.flags)
        if not url:
            return
        # Commands that start the engine come here without a check.
        require_database_packages("--database")
        # Imported here: most servers have files, and need nothing of it.
        from Middleware.addons.postgres.state_database import start_worker

        state = start_worker(url)
        workers = getattr(launch.arguments.flags, "workers", 1)
        number = f"this is worker {state.session.number}" if workers == 1 else f"{workers} workers on this address"
        launch.lines.append(f"  Database:       {state.description}, {number}")
        launch.on_stop.append(state.stop)
        if workers > 1:
            launch.on_listening.insert(
                0, lambda stop: say(f"Worker {state.session.number} (process {os.getpid()}) serves")
            )

    def find(self, kind: type[T]) -> T | None:
        database = InDatabase() if kind is StoredElsewhere else None
        return database if isinstance(database, kind) else None


class InDatabase(StoredElsewhere):
    """The state database, if it is chosen."""

    about = f"\nWith --database or the environment variable {DATABASE_VARIABLE}, {{}}."

    def add_flag(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--database",
            metavar="URL",
            default=argparse.SUPPRESS,
            help=f"the state database, if there is one (better: {DATABASE_VARIABLE})",
        )

    def chosen(self, options: argparse.Namespace) -> str:
        return chosen_database(options)

    def used_by(self, name: str, command: str) -> contextlib.AbstractContextManager[None]:
        require_database_packages("--database")
        from Middleware.addons.postgres.database_discussions import discussions_of

        return discussions_of(name, command)

    def rekey(self, name: str, change: KeyChange) -> tuple[int, Result]:
        require_database_packages("--database")
        from Middleware.addons.postgres.database_discussions import change_in_database

        return change_in_database(name, change)


def require_database_packages(flag: str) -> None:
    """Raise StartError if the packages for a state database are not installed."""
    require_packages(flag, "requirements-database.txt", "psycopg[binary] psycopg_pool", "psycopg", "psycopg_pool")


def _join(launch: Launch) -> None:
    """Become one of several processes on a socket."""
    # Imported here: only a parent and its children need it.
    from Middleware.addons.postgres.worker_processes import connect_to_parent

    parent = connect_to_parent()
    instance.WORKER_NUMBER = parent.number
    launch.bound, launch.is_first, launch.announces = parent.sock, parent.number == 1, parent.announces
    launch.on_listening.append(parent.report_serving)


def _state(words: Sequence[str]) -> int:
    try:
        require_database_packages("state")
    except StartError as error:
        say(f"ERROR: {error}", error_stream=True)
        return 1
    from Middleware.addons.postgres.state_command import main

    return main(words, program_name("state"))


ADDON = Postgres
