"""Command lines that messages show for users to copy, and whether this is a container."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from Middleware.utilities.config.paths import get_project_root_directory_path, is_package
from Middleware.utilities.quoting import quoted_program, quoted_word

# The environment variable in which run_linux.sh and the other start scripts put how they were called.
START_SCRIPT = "WILMER_START_SCRIPT"
# The script that pip makes of the entry point in pyproject.toml.
INSTALLED_COMMAND = "wilmerai"
# Files with which Docker and Podman mark a container.
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
COMPOSE_RUN = ("docker", "compose", "run", "--rm", "wilmerai")
"""Runs a command in a new container of the service in compose.yaml, whether that is running or not."""


def command(words: Sequence[str]) -> str:
    """Return a command line that is quoted for the shell of this computer: on Windows, for cmd and for PowerShell."""
    program, *arguments = words
    return " ".join([quoted_program(program), *map(quoted_word, arguments)])


def in_project_container() -> bool:
    """Return whether this is the container of the project's Dockerfile, which is started and stopped from outside."""
    return os.environ.get("WILMER_CONTAINER") == "1"


def in_container() -> bool:
    """Return whether this is a container: the project's, or one that Docker, Podman or Kubernetes has marked."""
    return (
        in_project_container()
        or "KUBERNETES_SERVICE_HOST" in os.environ
        or any(os.path.exists(mark) for mark in _CONTAINER_MARKS)
    )


def usual_start() -> list[str]:
    """Return the words that start the program, for a container from outside of it; nothing if its users name one of
    its files and a Python.
    """
    if in_project_container():
        return list(COMPOSE_RUN)
    # Users who start with a script do not know the Python in its environment.
    by_script = os.environ.get(START_SCRIPT, "").split()
    return by_script or ([_installed_command()] if is_package() else [])


def _installed_command() -> str:
    """Return the command of an installed wheel: its name if the shell finds it by that, else its path."""
    here = shutil.which(INSTALLED_COMMAND, path=os.path.dirname(sys.executable))
    found = shutil.which(INSTALLED_COMMAND)
    return INSTALLED_COMMAND if here is None or (found and os.path.samefile(found, here)) else here


def own_command(*words: str) -> str:
    """Return the command line that runs this program with ``words``."""
    program = os.path.join(get_project_root_directory_path(), "server.py")
    return command([*(usual_start() or [sys.executable, program]), *words])
