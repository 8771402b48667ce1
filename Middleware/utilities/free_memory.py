"""Give memory back to the system that the C library keeps for later; does so under glibc, and nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys

# The parameter of mallopt, as glibc's malloc.h has it, and its value at the start of a process is 128 KB.
_M_MMAP_THRESHOLD = -3
# In bytes. Smaller blocks are used again soon, and each one that the system gives is cleared first.
_LARGE_BLOCK = 1024 * 1024


def return_large_blocks() -> None:
    """Let the C library give large blocks back to the system as soon as they are free.

    glibc raises the size from which it does so by itself, up to 32 MB: then a server keeps what a few large bodies
    took. A size that is set stays.
    """
    _call("mallopt", _M_MMAP_THRESHOLD, _LARGE_BLOCK)


def return_small_blocks() -> None:
    """Give the small blocks back that are free now. Takes about 0.2 ms for each MB, in which no thread gets a block.

    Otherwise a single block that is in use keeps all free ones that lie before it.
    """
    _call("malloc_trim", 0)


def _call(name: str, *values: int) -> None:
    if sys.platform == "linux":
        # Other C libraries have no such function, and a Python that was built without libffi has no ctypes.
        with contextlib.suppress(OSError, AttributeError, ImportError):
            import ctypes

            getattr(ctypes.CDLL(None), name)(*values)
