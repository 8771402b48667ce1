"""The steps from a command line to a server that listens, the same for every launcher."""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from Middleware.cli import announcement, served_users
from Middleware.cli.addon import addons
from Middleware.cli.arguments import apply_arguments, parse_arguments
from Middleware.cli.commands import command_list, find_command, no_such_command
from Middleware.cli.launch import Launch
from Middleware.cli.preparation import build_application, configure
from Middleware.cli.program import StartError, prepare_process, program_name, say
from Middleware.cli.running_server import announced
from Middleware.cli.signals import end_orderly
from Middleware.cli.standard_streams import run_command
from Middleware.common import instance_global_variables as instance
from Middleware.utilities.free_memory import return_large_blocks
from Middleware.utilities.http.addresses import is_loopback
from Middleware.utilities.http.via import own_server

logger = logging.getLogger(__name__)


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
        return_large_blocks()
        with announced(launch.url):
            serve(launch)
        launch.close()
        end_orderly()
    except KeyboardInterrupt:
        return 0
    except StartError as error:
        say(f"ERROR: {error}", error_stream=True)
        return error.status
    # The outermost boundary: a bug needs its traceback on the terminal.
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

    An add-on that has started several processes, which it watches, ends this one by SystemExit.
    """
    arguments = parse_arguments(argv, program_name(), command_list())
    apply_arguments(arguments)
    if problem := served_users.second_user(arguments.config_directory) or no_such_command(arguments.first_word):
        raise StartError(problem)
    served_users.check_users()
    instance.ACCESS_KEYS = served_users.read_access_keys(arguments.accepted_keys_file)
    launch = Launch(arguments, threads, native, several)
    for addon in addons():
        addon.check(launch)
    configure(launch)
    launch.host = instance.LISTEN_ADDRESS
    launch.address, launch.port = launch.bind().getsockname()[:2]
    instance.PORT = own_server().port = launch.port
    instance.PRIVATE_CLIENTS_ONLY = (
        instance.ACCESS_KEYS is None and not arguments.allow_public and not is_loopback(launch.address)
    )
    launch.built = build_application(launch)
    if launch.is_first:
        announcement.log_access(launch.address)
    return launch
