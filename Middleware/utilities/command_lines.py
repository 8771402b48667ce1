"""Command lines to be shown, which a person copies."""
from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence

from Middleware.utilities import config_utils

COMPOSE_RUN = ("docker", "compose", "run", "--rm", "wilmerai")
"""Runs something in a container of compose.yaml's service beside the one that serves, or before it does."""


def command(words: Sequence[str]) -> str:
    """A command line that this computer's shell takes as it is."""
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def in_project_container() -> bool:
    """Whether this is the container of the project's Dockerfile, which people start and stop from outside."""
    return os.environ.get("WILMER_CONTAINER") == "1"


def script_command(name: str, *words: str) -> str:
    """The command line that runs one of the programs in ``Scripts``, from any folder; for a container, from outside."""
    if in_project_container():
        return command([*COMPOSE_RUN, "python", f"Scripts/{name}", *words])
    script = os.path.join(config_utils.get_project_root_directory_path(), "Scripts", name)
    return command([sys.executable, script, *words])
