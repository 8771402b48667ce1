"""Demo mode: a fresh clone answers without a real LLM, and says how to get one."""
from __future__ import annotations

import logging

from Middleware.cli import users
from Middleware.cli.arguments import LaunchArguments
from Middleware.cli.errors import StartError
from Middleware.common import instance_global_variables as instance

logger = logging.getLogger(__name__)

DEMO_USER = "demo"
DEMO_PORT = 5055  # the shipped demo endpoint names it


def is_wanted(arguments: LaunchArguments) -> bool:
    """True if nothing was chosen on the command line and the shipped choice of user stands."""
    chosen = arguments.users or arguments.config_directory or arguments.public_directory
    return not chosen and not instance.USERS and users.current_user() == DEMO_USER


def start_backend(port: int = DEMO_PORT) -> None:
    """Have a demo back-end on loopback: this process starts one unless another already answers there.

    Raises StartError if something else has the port.
    """
    from Scripts import demo_backend  # not needed by anyone else
    try:
        demo_backend.start(port)
    except OSError as error:
        if not demo_backend.is_running(port):
            raise StartError(
                f"The demo back-end needs port {port}, which another program uses. Stop that program, or choose a user "
                "of your own with --User.") from error
        logger.info("A demo back-end already runs on port %d; using it", port)


def instructions(base: str, key_needed: bool = False) -> list[str]:
    """The three lines a person needs to see the demo, after a line that says what it is."""
    which, header = "any API key", ""
    if key_needed:
        which, header = "one of the accepted keys", '-H "Authorization: Bearer KEY" '
    body = '{\\"messages\\":[{\\"role\\":\\"user\\",\\"content\\":\\"Write a poem about rain\\"}],\\"stream\\":true}'
    return ["",
            "Demo mode: the answers come from a small built-in stand-in, not from a real LLM.",
            f"  For your front-end, base URL:  {base}/v1  ({which})",
            f'  Or try:  curl -N {base}/v1/chat/completions {header}-H "Content-Type: application/json" -d "{body}"',
            "  To connect a real LLM:  see README.md, \"Connect your own LLM\" (three steps)"]

