"""How much memory this process may have: of the machine, of its container, and by the limits of the process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_CGROUPS = "/sys/fs/cgroup"


def allowed_memory() -> int | None:
    """Return the least of the limits in bytes; None if none is known."""
    return min((size for size in (*_of_machine(), *_of_process(), *_of_container()) if size > 0), default=None)


def _of_machine() -> Iterator[int]:
    if sys.platform == "win32":
        import ctypes

        kilobytes = ctypes.c_ulonglong()
        if ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes)):
            yield kilobytes.value * 1024
        return
    try:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # A system that does not know these names, or the answer.
    except (OSError, ValueError):
        pass


def _of_process() -> Iterator[int]:
    if sys.platform == "win32":
        yield from ()  # no such limits there
        return
    import resource

    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            yield limit


def _of_container(root: str = _CGROUPS, own: str = "/proc/self/cgroup") -> Iterator[int]:
    """Yield the limits of the control groups that this process is in, of both versions. Linux only."""
    for line in _text(Path(own)).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder, name = (f"{root}/memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        place = PurePosixPath(group)
        # A group has at most what those around it have. In a container the own group may be the root.
        for around in (place, *place.parents):
            # "max" stands for no limit.
            if (text := _text(Path(f"{folder}{around}", name)).strip()).isdigit():
                yield int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
