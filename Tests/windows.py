"""Where Windows differs from other systems: what its file system tells apart, and what only Wine lacks."""

from __future__ import annotations

import ctypes
import shutil
import sys
import tempfile
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

ON_WINE = sys.platform == "win32" and hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")
"""Whether this is Windows as Wine imitates it."""


def wine_lacks(what: str) -> pytest.MarkDecorator:
    """Return the marker of a test that needs ``what``, which Windows has and Wine does not."""
    return pytest.mark.skipif(ON_WINE, reason=f"Wine lacks {what}")


needs_curl = pytest.mark.skipif(ON_WINE and shutil.which("curl") is None, reason="Wine lacks curl.exe")
"""The marker of a test that calls ``curl``, which Windows has had since version 10."""


def _makes_links() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "link")
        try:
            link.symlink_to("target")
        except OSError:
            return False
        return link.is_symlink()


MAKES_LINKS = sys.platform != "win32" or _makes_links()
"""Whether the system makes symbolic links for this account."""

needs_links = pytest.mark.skipif(not MAKES_LINKS, reason="links need a right on Windows, and Wine makes none")
"""The marker of a test that makes symbolic links. On Windows, administrators and the developer mode have the right."""

console_decides = pytest.mark.skipif(sys.platform == "win32", reason="on Windows, the console of the run decides that")
"""The marker of a test in which output is in colours, as on a terminal."""

LOCK_FILES = [".wilmer.lock"] if sys.platform == "win32" else []
"""What a lock of a folder leaves in it: only on Windows, where a folder itself cannot be locked."""


def tells_apart(folder: Path, one: str, other: str) -> bool:
    """Return whether the file system of ``folder`` has a file for each of these names, rather than one for both.

    Names that differ in capitals are one file on Windows and macOS, those that differ in normalisation on macOS.
    """
    # In a folder of its own: other processes may ask at the same moment.
    with tempfile.TemporaryDirectory(dir=folder) as asked:
        (Path(asked) / f"{one}-asked").touch()
        return not (Path(asked) / f"{other}-asked").exists()


def tells_capitals_apart(folder: Path) -> bool:
    """Return whether files of ``folder`` may differ only in capitals."""
    return tells_apart(folder, "a", "A")


def is_running(pid: int) -> bool:
    """Return whether this process runs: ``os.kill(pid, 0)`` would be Ctrl-C on Windows. A zombie has ended."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
