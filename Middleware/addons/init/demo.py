"""Demo mode: a fresh clone answers without a real LLM, and says how to get one."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping

from Middleware.cli import served_users
from Middleware.cli.arguments import LaunchArguments
from Middleware.cli.program import StartError, program_name, same_configuration
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.endpoint import ENDPOINT as ENDPOINT_KEYS
from Middleware.utilities.config.users import FIRST_USER
from Middleware.utilities.http.addresses import is_loopback
from Middleware.utilities.http.wire import parse_target
from Middleware.utilities.terminal import printable

logger = logging.getLogger(__name__)

# The shipped demo endpoint names it.
DEMO_PORT = 5055
ENDPOINT = "Endpoints/demo/Demo-LLM.json"
# Between two attempts to take the port of another server's demo back-end; a refused LLM call waits for longer.
PAUSE_SECONDS = 0.2
# A demo back-end that answers later, or still has the port after this time, is not one that is starting or ending.
TAKEOVER_SECONDS = 5.0


def is_first_start(arguments: LaunchArguments) -> bool:
    """Return whether nothing was chosen on the command line, and the shipped user is served as shipped."""
    return not _is_chosen(arguments) and is_wanted(arguments)


def is_wanted(arguments: LaunchArguments) -> bool:
    """Return whether the shipped user alone is served, and its endpoint leads to the demo back-end."""
    if served_users.current_user() != FIRST_USER or _other_server():
        return False
    # A user of that name in another configuration may be anyone, but the endpoint file is that of the demo.
    return not _is_chosen(arguments) or os.path.isfile(_endpoint_path())


def _is_chosen(arguments: LaunchArguments) -> bool:
    """Return whether the command line chooses a user or a folder, as that of a fresh clone's first start does not."""
    return bool(arguments.users or arguments.config_directory or arguments.public_directory or instance.USERS)


def _endpoint_path() -> str:
    return config_utils.get_config_path("Endpoints/demo", "Demo-LLM")


def start_backend(port: int = DEMO_PORT) -> None:
    """Have a demo back-end on loopback: this process starts one unless another already answers there.

    If another does, this process takes its place when it goes. Raises StartError if something else has the port.
    """
    # Imported here because only the demo needs an HTTP server of the standard library.
    from Middleware.addons.init import demo_backend

    deadline = time.monotonic() + TAKEOVER_SECONDS
    while True:
        try:
            demo_backend.start(port)
            return
        except OSError as error:
            if demo_backend.is_running(port):
                break
            # Another server may be about to answer, or to go.
            if time.monotonic() >= deadline:
                raise StartError(
                    f"The demo back-end needs port {port}, which another program uses. Stop that program, or choose a "
                    "user of your own with --User."
                ) from error
        time.sleep(PAUSE_SECONDS)
    logger.info("A demo back-end already runs on port %d; using it", port)
    threading.Thread(target=_take_over, args=(demo_backend.start, port), name="demo-backend-waits", daemon=True).start()


def _take_over(start: Callable[[int], object], port: int) -> None:
    """Start a back-end as soon as the port is free: the server that has it may end at any time."""
    while True:
        time.sleep(PAUSE_SECONDS)
        try:
            start(port)
        except OSError:
            continue
        logger.info("The demo back-end on port %d has gone; this server has started its own", port)
        return


def instructions(base: str, key_needed: bool = False) -> list[str]:
    """Return the lines that a user needs to see the demo, after a line that says what it is."""
    from Middleware.addons.init.init_output import init_command_line

    which, header, ask = "any API key", "", []
    if key_needed:
        which, header, ask = "one of the accepted keys", '-H "Authorization: Bearer KEY" ', ["--ask-key"]
    body = '{\\"messages\\":[{\\"role\\":\\"user\\",\\"content\\":\\"Write a poem about rain\\"}],\\"stream\\":true}'
    return [
        "",
        "Demo mode: the answers come from a small built-in stub, not from a real LLM.",
        f"  To chat in another terminal:  {program_name('chat', FIRST_USER, *same_configuration(), *ask)}",
        f"  For your front-end, base URL:  {base}/v1  ({which})",
        f'  Or try:  curl -N {base}/v1/chat/completions {header}-H "Content-Type: application/json" -d "{body}"',
        f"  To connect a real LLM:  {init_command_line()}",
    ]


def elsewhere() -> list[str]:
    """Return a line for a demo user whose endpoint leads to another server than the demo back-end, else nothing."""
    server = _other_server() if served_users.current_user() == FIRST_USER else ""
    return [f"  Demo user:      the demo back-end is not started; {ENDPOINT} leads to {server}"] if server else []


def _other_server() -> str:
    """Return scheme, host and port of the server in the demo's endpoint; "" if it is the demo back-end, or none."""
    try:
        content: object = config_utils.load_config(_endpoint_path())
        address = ENDPOINT_KEYS.text(content, "endpoint").strip() if isinstance(content, Mapping) else ""
    # Reported by the check, and by the first request.
    except (ConfigurationError, OSError, ValueError):
        return ""
    if not address:
        return ""
    try:
        target = parse_target(address)
    except ConfigurationError:
        return "no server"
    is_demo = target.scheme == "http" and is_loopback(target.host) and target.port == DEMO_PORT
    return "" if is_demo else printable(f"{target.scheme}://{target.host_header}")
