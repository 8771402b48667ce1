"""The process around a launcher."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import START_SCRIPT
from Tests.integration.launcher import PROJECT
from Tests.patience import CLIENT_PATIENCE

ROOT = config_utils.get_project_root_directory_path()


def python(code, *words, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        capture_output=True,
        timeout=CLIENT_PATIENCE,
        env={**os.environ, **environment},
    )


def test_a_console_that_is_not_utf8_does_not_crash():
    done = python(
        "from Middleware.cli.program import prepare_process, say\n"
        "prepare_process(); say('gr\\u00fc\\u00df \\U0001f600')",
        PYTHONIOENCODING="ascii",
    )
    assert done.returncode == 0 and done.stdout.strip() == rb"gr\xfc\xdf \U0001f600"


@pytest.mark.skipif(os.name == "nt", reason="no such limit")
def test_a_low_descriptor_limit_is_raised():
    done = python(
        "import resource as r\n"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (256, hard))\n"
        "from Middleware.cli.program import raise_descriptor_limit\n"
        "raise_descriptor_limit(512)\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE)[0])\n"
        "raise_descriptor_limit(300)\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE)[0])"
    )
    assert done.stdout.split() == [b"512", b"512"]


@pytest.mark.slow
@pytest.mark.parametrize("start_script", ["", "bash run_macos.sh"])
@pytest.mark.parametrize("script", ["run_waitress.py", "server.py"])
def test_the_usage_names_what_a_person_types(script, start_script):
    def output(*words):
        return subprocess.run(
            [sys.executable, PROJECT / script, *words],
            capture_output=True,
            encoding="utf-8",
            timeout=CLIENT_PATIENCE,
            env={**os.environ, START_SCRIPT: start_script},
        )

    shown = start_script or script
    told = output("--help").stdout
    assert told.startswith("usage: ") and shown in told.splitlines()[0]
    refused = output("--prot", "1").stderr
    assert shown in refused and "Did you mean --port?" in refused
    assert bool(start_script) == (script not in told + refused)


@pytest.mark.parametrize("script", ["run_linux.sh", "run_macos.sh", "run_windows.bat"])
def test_each_start_script_says_what_it_is(script):
    text = (PROJECT / script).read_text(encoding="utf-8")
    assert any(START_SCRIPT in line and script in line for line in text.splitlines())


BLOCKS = """
import ctypes, sys
from Middleware.cli.program import return_large_blocks

class Figures(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]

ask = ctypes.CDLL(None).mallinfo2
ask.restype = Figures

if sys.argv[1:]:
    return_large_blocks()
bytearray(25 * 1024 * 1024)
before = ask().hblks
held = bytearray(24 * 1024 * 1024)
print(ask().hblks - before)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc tells which blocks it has"
)
def test_large_blocks_are_those_of_the_system_again():
    """After a large one was freed, glibc keeps what follows for itself."""
    assert [python(BLOCKS, *words).stdout.split() for words in ([], ["yes"])] == [[b"0"], [b"1"]]
