"""Fills a public root without a configuration with the one that comes with the program, as an empty volume of a
container and an installed wheel need it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from Middleware.cli.program import say
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError
from Middleware.utilities.config import paths

CONFIGS = "Configs"
UNFINISHED = ".filling"
# It will hold the keys of LLM servers, and conversations.
PRIVATE_FOLDER = 0o700


def provide() -> None:
    """Have a configuration in the public root of an installed wheel, and report a folder that is filled.

    Nothing is done if the configuration is elsewhere, or if it seems to be in a folder near the one that was named.
    Raises SystemExit if the folder cannot be filled.
    """
    if not paths.is_package() or paths.clean_directory(instance.CONFIG_DIRECTORY):
        return
    try:
        public = Path(os.path.abspath(paths.get_root_public_directory()))
        if paths.meant_folder(str(public / CONFIGS)):
            return
        fill(public, Path(paths.shipped_directories()[0]))
    except (ConfigurationError, OSError) as error:
        problem = cannot_fill(public, error) if isinstance(error, OSError) else str(error)
        say(f"ERROR: {problem}", error_stream=True)
        sys.exit(1)


def fill(public: Path, shipped: Path) -> bool:
    """Copy ``shipped`` into a ``public`` without ``Configs``; return whether that was done.

    Nothing that is there is overwritten. ``Configs`` appears last and at once: a copy that was interrupted is made
    again. Raises OSError.
    """
    if (public / CONFIGS).exists() or not shipped.is_dir():
        return False
    public.parent.mkdir(parents=True, exist_ok=True)
    public.mkdir(PRIVATE_FOLDER, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=public))
    try:
        _copy(shipped, unfinished)
        for entry in sorted(unfinished.iterdir(), key=lambda path: path.name == CONFIGS):
            _move(entry, public / entry.name)
    except OSError:
        # Another start, which has filled the folder, has removed this copy.
        if not (public / CONFIGS).exists():
            raise
        return False
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    # Left by a start that was killed.
    for left in public.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    say(f"The configuration that comes with WilmerAI has been copied to {public}", error_stream=True)
    return True


def cannot_fill(public: Path, error: OSError) -> str:
    """Return why a folder cannot be filled."""
    by_user = ""
    if sys.platform != "win32":
        by_user = f" by user {os.getuid()}"
    return f"{public} is empty and cannot be filled{by_user}: {error.strerror}: {error.filename}."


def _copy(source: Path, target: Path) -> None:
    """Copy the files below ``source``. Their permissions are not copied: an installation may be read-only."""
    for file in filter(Path.is_file, source.rglob("*")):
        copied = target / file.relative_to(source)
        # pip compiles the scripts.
        if copied.parent.name != "__pycache__":
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copied)


def _move(entry: Path, target: Path) -> None:
    """Rename ``entry`` to ``target`` unless that exists, as it does if another start fills the folder, too."""
    try:
        if not target.exists():
            entry.rename(target)
    except OSError:
        if not target.exists():
            raise
