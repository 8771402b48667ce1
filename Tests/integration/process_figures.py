"""What a process holds: memory, threads, descriptors.

Read from ``/proc`` on Linux, elsewhere with psutil if that is installed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from Middleware.utilities.daemon_threads import IDLE_SECONDS
from Tests.patience import PATIENCE

NOT_KNOWN = -1
LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Figures:
    """One look at a process; ``NOT_KNOWN`` where the system does not say.

    Attributes:
        rss, uss: resident memory in kB, and the part of it that the process shares with nobody.
        sockets: how many of the descriptors (handles on Windows) are sockets.
    """

    rss: int
    uss: int
    threads: int
    descriptors: int
    sockets: int = NOT_KNOWN

    @property
    def held(self) -> dict[str, int]:
        """What must not grow by itself, as far as it is known; many things have handles on Windows."""
        counts = {"threads": self.threads, "sockets": self.sockets}
        if os.name != "nt":
            counts["descriptors"] = self.descriptors
        return {name: count for name, count in counts.items() if count != NOT_KNOWN}


def figures_of(pid: int) -> Figures | None:
    """The figures of a process; None if it has gone, or if nothing can be known here."""
    folder = Path(f"/proc/{pid}")
    if Path("/proc/self/task").is_dir():
        return _from_proc(folder)
    return _from_psutil(pid)


def held_at_rest(pid: int, expected: dict[str, int] | None = None, seconds: float = PATIENCE) -> dict[str, int]:
    """What a process holds once that is ``expected``, or, without that, once no thread of the pool can be left to end.

    Waits for ``seconds`` at most, or until then. Empty where nothing can be known.
    """
    quiet = 0.0 if expected is not None else IDLE_SECONDS + 1.0
    deadline = time.monotonic() + seconds + 2 * quiet
    held, since = expected, time.monotonic()
    while True:
        before, figures = held, figures_of(pid)
        held = figures.held if figures else {}
        if held != (before if expected is None else expected):
            since = time.monotonic() + LOOK_SECONDS
        if time.monotonic() >= min(since + quiet, deadline):
            return held
        time.sleep(LOOK_SECONDS)


def _from_proc(folder: Path) -> Figures | None:
    try:
        sockets = [_is_socket(file) for file in (folder / "fd").iterdir()]
        memory = _kilobytes(folder / "smaps_rollup")
        return Figures(
            memory.get("Rss", NOT_KNOWN),
            memory.get("Private_Clean", 0) + memory.get("Private_Dirty", 0),
            len(list((folder / "task").iterdir())),
            len(sockets),
            sum(sockets),
        )
    except OSError:
        return None


def _kilobytes(file: Path) -> dict[str, int]:
    """The lines ``Name:  123 kB`` of a file."""
    lines = (line.split() for line in file.read_text(encoding="ascii", errors="replace").splitlines())
    return {parts[0].rstrip(":"): int(parts[1]) for parts in lines if len(parts) == 3 and parts[2] == "kB"}


def _is_socket(file: Path) -> bool:
    try:
        return os.readlink(file).startswith("socket:")
    except OSError:  # closed meanwhile
        return False


def _from_psutil(pid: int) -> Figures | None:
    try:
        import psutil  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return None
    try:
        process = psutil.Process(pid)
        memory = process.memory_full_info()
        descriptors = process.num_handles() if os.name == "nt" else process.num_fds()
        return Figures(memory.rss // 1024, memory.uss // 1024, process.num_threads(), descriptors)
    except psutil.Error:
        return None
