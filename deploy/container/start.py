"""What a container runs: it fills an empty ``Public`` folder and starts the server, or what is asked for instead.

    python -m deploy.container.start [FLAGS]          the server; it listens on all addresses of the container
    python -m deploy.container.start init|check|...   a sub-command of the launchers
    python -m deploy.container.start PROGRAM ...      any other program, such as python

``Public`` is a volume. The first time it has no ``Configs``, and gets what lies in ``Defaults``; nothing that is there
is ever overwritten. The server's port is that of ``--port``, else of the environment's ``WILMER_PORT``, whatever the
user's file says: it must be the one that the container publishes.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from Middleware import addons
from Middleware.cli.commands import all_commands
from Middleware.cli.shipped_configuration import cannot_fill, fill

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ROOT / "run_waitress.py"
DEFAULT_PORT = "5000"
REMEDY = (
    "If it is a folder of the computer, give it to that user (sudo chown -R UID FOLDER), or name its owner as "
    'the container\'s user (docker run --user UID:GID; in compose.yaml user: "UID:GID").'
)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 if the folder cannot be filled, else that of what was started."""
    words = list(sys.argv[1:] if argv is None else argv)
    public = ROOT / "Public"
    addons.load()
    try:
        fill(public, ROOT / "Defaults")
    except OSError as error:
        print(f"ERROR: {cannot_fill(public, error)} {REMEDY}", file=sys.stderr)
        return 1
    if is_program(words):
        return _run_program(words)
    return _run_launcher(launcher_words(words, os.environ.get("WILMER_PORT", DEFAULT_PORT)))


def is_program(words: Sequence[str]) -> bool:
    """Return whether a command line names a program of the container rather than flags or a sub-command."""
    return bool(words) and words[0] not in all_commands() and shutil.which(words[0]) is not None


def launcher_words(words: Sequence[str], port: str) -> list[str]:
    """The launcher's command line. A server listens where the container's network reaches it, on a known port."""
    if words and words[0] in all_commands():
        return list(words)
    added = {"--listen": "0.0.0.0", "--port": port}
    return [f"{flag}={value}" for flag, value in added.items() if not _has(words, flag)] + list(words)


def _has(words: Sequence[str], flag: str) -> bool:
    return any(word == flag or word.startswith(f"{flag}=") for word in words)


def _run_launcher(words: Sequence[str]) -> int:
    """Within this process: the engine's signals go to it."""
    sys.argv = [str(LAUNCHER), *words]
    runpy.run_path(str(LAUNCHER), run_name="__main__")
    return 0  # not reached: the launcher ends with a status of its own


def _run_program(words: Sequence[str]) -> int:
    """In place of this process where the system can do that, so that signals reach the program."""
    if os.name == "posix":
        os.execvp(words[0], list(words))
    return subprocess.run(words).returncode


if __name__ == "__main__":
    sys.exit(main())
