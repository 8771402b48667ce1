"""The notes at start about which clients can reach the server."""
from __future__ import annotations

import logging
import os
import sys

from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import command, in_project_container, script_command
from Middleware.utilities.http.addresses import is_loopback

logger = logging.getLogger(__name__)

KEY_FILE = "accepted-keys.txt"
RULE = "!" * 100


def describe(host: str) -> list[str]:
    """Return the lines printed at start for a server that listens on ``host``."""
    lines = []
    if instance.ACCESS_KEYS is not None:
        keys = instance.ACCESS_KEYS
        lines.append(f"  Accepted keys:  {len(keys.keys)}, from {keys.path}")
        lines += [f"  WARNING: {text}" for text in keys.warnings()]
    if instance.ALLOWED_ORIGINS:
        lines.append(f"  Web pages:      {', '.join(instance.ALLOWED_ORIGINS)}, and those of this machine")
    if is_loopback(host):
        return [*lines, "  Only programs on this machine can connect. Start with --listen to let others in."]
    return lines if instance.ACCESS_KEYS is not None else [*lines, *_warning()]


def write_log(host: str) -> None:
    """Log the same warnings."""
    if instance.ACCESS_KEYS is not None:
        for text in instance.ACCESS_KEYS.warnings():
            logger.warning("%s", text)
    elif not is_loopback(host):
        logger.warning("Listening on %s without --accepted-keys-file: whoever reaches this address can use every "
                       "configured user and LLM", host)


def _warning() -> list[str]:
    path = os.path.join(config_utils.get_root_public_directory(), KEY_FILE)
    path = os.path.abspath(path)
    return ["",
            RULE,
            "!!  WARNING: there is no password. Whoever reaches this address can use every configured user,",
            "!!  workflow and LLM, and what conversations have left in their memories.",
            "!!",
            "!!  To end this, make a key. It is shown once; give it to your clients as their API key:",
            f"!!    {script_command('access_key.py', '--add', path)}",
            *_start_with_keys(path),
            "!!  More: Docs/User/network-access.md",
            RULE]


def _start_with_keys(path: str) -> list[str]:
    if in_project_container():
        return ["!!  Then write the list of keys into compose.yaml, and type docker compose up -d again:",
                f'!!    command: ["--accepted-keys-file", "{path}"]']
    program, *words = sys.argv
    start = [sys.executable, os.path.abspath(program), *words, "--accepted-keys-file", path]
    return ["!!  Then stop this server and start it with the list of keys:",
            f"!!    {command(start)}"]
