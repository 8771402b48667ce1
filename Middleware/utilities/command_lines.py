"""Command lines to be shown, which a person copies."""
from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence

from Middleware.utilities import config_utils


def command(words: Sequence[str]) -> str:
    """A command line that this computer's shell takes as it is."""
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def script_command(name: str, *words: str) -> str:
    """The command line that runs one of the programs in ``Scripts``, from any folder."""
    script = os.path.join(config_utils.get_project_root_directory_path(), "Scripts", name)
    return command([sys.executable, script, *words])
