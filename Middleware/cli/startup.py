"""The steps from a command line to a server that listens, the same for every launcher."""

from __future__ import annotations

import gc
import logging
import os
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from wsgiref.types import WSGIApplication

from Middleware.addons.check.background_check import BackgroundCheck
from Middleware.addons.init import demo
from Middleware.cli import announcement, users
from Middleware.cli.arguments import apply_arguments, parse_arguments
from Middleware.cli.commands import COMMANDS, command_list, find_command, no_such_command
from Middleware.cli.console import FlagError, StartError, prepare_process, program_name, say
from Middleware.cli.preparation import build_application, build_records, configure, require_optional_packages
from Middleware.cli.running_server import announced
from Middleware.cli.serving.listening import bind_socket, url_of
from Middleware.cli.signals import end_orderly
from Middleware.cli.standard_streams import run_command
from Middleware.common import instance_global_variables as instance
from Middleware.common.constants import CHILD_VARIABLE
from Middleware.utilities.http.addresses import is_loopback

if TYPE_CHECKING:
    from Middleware.addons.postgres.worker import StateWorker
    from Middleware.addons.postgres.worker_processes import ParentConnection
    from Middleware.addons.records.records import RunRecords

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launch:
    """The application and the socket that a server gets.

    Attributes:
        sock: bound, not listening yet.
        port: the real one, also if 0 was asked for.
        address: where ``host`` leads, in numbers; it decides who can connect.
        load_check: the application's check of each workflow that it runs.
        demo: the demo back-end runs, and the printed lines say how to try it.
        records: the recorded runs; None where none are.
        drain_seconds: how long requests may go on after a signal to stop; 0: they are cancelled.
        parent: the connection to the process that has started this one and others; None if there is none.
        workers: how many that one has started.
        state: the connections to the state database; None with files.
    """

    application: WSGIApplication
    sock: socket.socket
    host: str
    port: int
    address: str
    load_check: BackgroundCheck
    demo: bool = False
    records: RunRecords | None = None
    drain_seconds: float = 0
    parent: ParentConnection | None = None
    workers: int = 1
    state: StateWorker | None = None

    @property
    def is_first(self) -> bool:
        """Whether this process does what one of several on a socket does for all: log and check the configuration."""
        return self.parent is None or self.parent.number == 1

    def announce(self) -> None:
        """Print where the server is, once it accepts connections, and begin to check the configuration.

        Of several processes on one socket, one does that for all.
        """
        if self.parent is None or self.parent.announces:
            for line in announcement.describe(
                self.host, self.port, self.address, self.demo, self.records, self.state, self.workers
            ):
                say(line)
        if self.parent is not None and self.state is not None:
            say(f"Worker {self.state.session.number} (process {os.getpid()}) serves")
        if self.is_first:
            self.load_check.begin()


def run(
    serve: Callable[[Launch], None],
    argv: Sequence[str] | None = None,
    threads: int | None = None,
    native: bool = True,
    several: bool = False,
) -> int:
    """Start and serve until a signal to stop.

    Args:
        serve: takes the launch, announces it once it listens, and returns when the process must end.
        threads: how many requests the server works on at a time, if that is limited.
        native: whether the server's threads are those of the system, which a state database and traces need.
        several: whether the launcher can start several processes.

    Returns the exit status: 0 after Ctrl-C or SIGTERM, 1 if it cannot start, 2 for wrong flags; that of the sub-command
    if the command line begins with one.
    """
    with _collector_off():
        prepare_process()
        command = find_command(argv)
    if command is not None:
        return run_command(command)
    try:
        with _collector_off():
            launch = prepare(argv, threads, native, several)
        with announced(url_of(launch.host, launch.port)):
            serve(launch)
        if launch.records is not None:
            launch.records.close()
        if launch.state is not None:
            launch.state.stop()
        end_orderly()
    except KeyboardInterrupt:
        return 0
    except StartError as error:
        say(f"ERROR: {error}", error_stream=True)
        return error.status
    # The outermost boundary: a bug needs its traceback on the console.
    except Exception:
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def _collector_off() -> Iterator[None]:
    """Do without the garbage collector, and then with it. What was made before it never looks at.

    A start makes many objects that stay and hardly any garbage: looking for it took a fifth of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def prepare(
    argv: Sequence[str] | None = None, threads: int | None = None, native: bool = True, several: bool = False
) -> Launch:
    """Bind the socket and build the application. Raises StartError, or SystemExit for bad arguments.

    With several processes it does not return: this one starts them and watches.
    """
    parent = _parent()
    arguments = parse_arguments(argv, program_name(), command_list())
    if arguments.database and not native:
        raise StartError("A state database needs native threads: start run_waitress.py instead, without Eventlet.")
    if arguments.otel and not native:
        raise FlagError("--otel needs native threads: start run_waitress.py instead, without Eventlet.")
    if arguments.workers > 1 and not several:
        raise StartError("--workers is for run_waitress.py only: start that instead.")
    apply_arguments(arguments)
    require_optional_packages(arguments)
    if problem := users.second_user(arguments.config_directory) or no_such_command(arguments.first_word):
        raise StartError(problem)
    users.check_users()
    if demo.is_first_start(arguments):
        # Imported here because only a start without a configuration needs it.
        from Middleware.addons.init.command import offer

        offer()
    instance.ACCESS_KEYS = users.read_access_keys(arguments.accepted_keys_file)
    if arguments.workers > 1 and parent is None:
        # Imported here: most servers are one process.
        from Middleware.addons.postgres.worker_processes import become_parent

        raise SystemExit(become_parent(_bind(instance.LISTEN_ADDRESS), arguments.workers))
    state = configure(arguments)
    host = instance.LISTEN_ADDRESS
    sock = _bind(host) if parent is None else parent.sock
    address, port = sock.getsockname()[:2]
    instance.PORT = port
    instance.PRIVATE_CLIENTS_ONLY = (
        instance.ACCESS_KEYS is None and not arguments.allow_public and not is_loopback(address)
    )
    demo_mode = demo.is_wanted(arguments)
    if demo_mode:
        demo.start_backend()
    load_check = BackgroundCheck()
    records = build_records(arguments)
    application = build_application(threads, [load_check], records)
    if records is not None:
        records.begin()
    launch = Launch(
        application,
        sock,
        host,
        port,
        address,
        load_check,
        demo_mode,
        records,
        arguments.drain_seconds,
        parent,
        arguments.workers,
        state,
    )
    if launch.is_first:
        announcement.log_access(address)
    return launch


def _bind(host: str) -> socket.socket:
    try:
        return bind_socket(host, users.resolve_port())
    except StartError as error:
        # "--listen check": the word behind the flag is its address.
        if host in COMMANDS:
            raise StartError(f"{error} To run the command, put it first: {program_name(host)} --listen") from error
        raise


def _parent() -> ParentConnection | None:
    """Return the connection to a parent that starts several processes; None if there is none."""
    # Imported here: only a parent and its children need it.
    if CHILD_VARIABLE not in os.environ:
        return None
    from Middleware.addons.postgres.worker_processes import connect_to_parent

    parent = connect_to_parent()
    instance.WORKER_NUMBER = parent.number
    return parent
