"""Writes the lock files: every package that is installed, direct or not, with its version and the hashes of its files.

``requirements.lock`` is what the start scripts install, ``requirements-database.lock`` what ``--database`` needs in
addition, ``requirements-test.lock`` what the tests run with, ``requirements-release.lock`` what makes the files of a
release, and ``requirements-agents.lock`` has the coding agent that the client tests start. They hold for all supported
systems and Pythons (the agent does not take all of them); :mod:`Scripts.generate.lock_platforms` then writes for which
of these there are wheels. Run it after a change of a file that they are made from, with the network and the package uv
(``pip install uv``)::

    python -m Scripts.generate.lock_requirements             # keeps the versions of what is locked already
    python -m Scripts.generate.lock_requirements --upgrade   # takes the newest versions that requirements.txt allows
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from Middleware.cli.prerequisites import OLDEST
from Middleware.cli.standard_streams import run_command
from Scripts.generate import lock_platforms
from Scripts.generate.generated_files import ROOT

OLDEST_PYTHON = ".".join(map(str, OLDEST))
LOCKS = (
    ("requirements.txt", "requirements.lock"),
    ("requirements-test.txt", "requirements-test.lock"),
    ("requirements-agents.txt", "requirements-agents.lock"),
    ("requirements-database.txt", "requirements-database.lock"),
    ("requirements-release.txt", "requirements-release.lock"),
)
WITH_VERSIONS_OF_USERS = ("requirements-test.lock", "requirements-database.lock")
"""They come after the first and take its versions: the tests run what users install, and one environment has both."""


def find_uv() -> str:
    """The path of uv: on the PATH, or in the environment of this Python."""
    return shutil.which("uv") or os.path.join(os.path.dirname(sys.executable), "uv")


def command(uv: str, source: str, lock: str, constraint: str | None, more: Sequence[str]) -> list[str]:
    """The call of uv that writes one lock file."""
    return [
        uv,
        "pip",
        "compile",
        source,
        "--output-file",
        lock,
        "--generate-hashes",
        "--universal",
        "--quiet",
        # A pip before 23.3 takes "coverage[toml]" and "coverage" for two things, and wants a version for the first.
        "--no-strip-extras",
        "--python-version",
        OLDEST_PYTHON,
        "--custom-compile-command",
        "python -m Scripts.generate.lock_requirements",
        *(["--constraint", constraint] if constraint else []),
        "--no-emit-index-url",
        "--no-emit-find-links",
        *more,
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status of the first program that fails, 1 if there is no uv, else 0."""
    more = list(sys.argv[1:] if argv is None else argv)
    uv = find_uv()
    try:
        for source, lock in LOCKS:
            constraint = LOCKS[0][1] if lock in WITH_VERSIONS_OF_USERS else None
            subprocess.run(command(uv, source, lock, constraint, more), cwd=ROOT, check=True)
        locks = [lock_platforms.read(uv, lock) for _, lock in LOCKS]
        lock_platforms.write(locks)
    except FileNotFoundError:
        print("The package uv is needed: pip install uv", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
