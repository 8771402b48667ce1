"""What the C library gives back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from Tests.integration.launcher import PROJECT
from Tests.patience import CLIENT_PATIENCE

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc tells which blocks it has"
)

START = """
import ctypes, sys
from Middleware.utilities.free_memory import return_large_blocks, return_small_blocks

class Figures(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c free e".split()]

def figures():
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = Figures
    return ask()

def rss():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 >> 20
"""

LARGE = """
if sys.argv[1:]:
    return_large_blocks()
bytearray(25 * 1024 * 1024)
before = figures().hblks
held = bytearray(24 * 1024 * 1024)
print(figures().hblks - before)
"""

SMALL = """
before = rss()
held = [bytearray(20_000) for _ in range(5000)]
del held[:-1]
if sys.argv[1:]:
    return_small_blocks()
print(int(rss() - before > 50))
"""


def says(code: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", START + code, *words],
        cwd=PROJECT,
        capture_output=True,
        timeout=CLIENT_PATIENCE,
        text=True,
    )
    return done.stdout.strip() or done.stderr


def test_large_blocks_are_those_of_the_system_again() -> None:
    """After a large one was freed, glibc keeps what follows for itself."""
    assert [says(LARGE, *words) for words in ([], ["yes"])] == ["0", "1"]


def test_small_blocks_before_one_in_use_are_given_back() -> None:
    assert [says(SMALL, *words) for words in ([], ["yes"])] == ["1", "0"]


def test_a_python_without_ctypes_does_without() -> None:
    """Python is built without it where the headers of libffi are missing."""
    without = "import sys\nsys.modules['_ctypes'] = None\nfrom Middleware.utilities import free_memory\n"
    calls = "free_memory.return_large_blocks()\nfree_memory.return_small_blocks()\nprint('goes on')"
    assert subprocess.run(
        [sys.executable, "-c", without + calls], cwd=PROJECT, capture_output=True, timeout=CLIENT_PATIENCE, text=True
    ).stdout.split("\n")[:1] == ["goes on"]
