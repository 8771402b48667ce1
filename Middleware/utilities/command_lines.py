"""Command lines that messages show for users to copy."""
from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence

from Middleware.utilities import config_utils

# The environment variable in which run_linux.sh and the other start scripts put how they were called.
START_SCRIPT = "WILMER_START_SCRIPT"
COMPOSE_RUN = ("docker", "compose", "run", "--rm", "wilmerai")
"""Runs a command in a new container of the service in compose.yaml, whether that is running or not."""


def command(words: Sequence[str]) -> str:
    """Return a command line that is quoted for the shell of this computer."""
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def in_project_container() -> bool:
    """Return whether this is the container of the project's Dockerfile, which is started and stopped from outside."""
    return os.environ.get("WILMER_CONTAINER") == "1"


def own_command(*words: str) -> str:
    """Return the command line that runs this program with ``words``; for a container, from outside of it."""
    if in_project_container():
        return command([*COMPOSE_RUN, *words])
    # Users who start with a script do not know the Python in its environment.
    by_script = os.environ.get(START_SCRIPT, "").split()
    program = os.path.join(config_utils.get_project_root_directory_path(), "server.py")
    return command([*(by_script or [sys.executable, program]), *words])
