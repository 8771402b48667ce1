"""The process around a launcher."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import START_SCRIPT
from Tests.integration.launcher import PROJECT
from Tests.patience import CLIENT_PATIENCE

ROOT = config_utils.get_project_root_directory_path()


def python(code, data=None, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        input=data,
        capture_output=True,
        timeout=CLIENT_PATIENCE,
        env={**os.environ, **environment},
    )


SAYS = "from Middleware.cli.program import prepare_process, say\nprepare_process(); say('gr\\u00fc\\u00df \\U0001f600')"


@pytest.mark.parametrize("encoding", ["ascii", "cp850", "latin-1", "utf-16"])
def test_a_pipe_is_utf8(encoding):
    done = python(SAYS, PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and done.stdout.decode("utf-8").strip() == "gr\u00fc\u00df \U0001f600"


@pytest.mark.parametrize("data", ["one ü\r\ntwo\r\n", "\ufeffone ü\r\ntwo", "one ü\ntwo\n", "one ü\rtwo\r"])
def test_lines_from_a_pipe_have_no_marks_of_their_system(data):
    reads = (
        "import sys\nfrom Middleware.cli.program import prepare_process\n"
        "prepare_process(); print(ascii([input(), sys.stdin.readline().removesuffix('\\n'), sys.stdin.read()]))"
    )
    done = python(reads, data.encode(), PYTHONIOENCODING="cp850")
    assert (done.stdout.decode().strip(), done.stderr) == (r"['one \xfc', 'two', '']", b"")


@pytest.mark.skipif(os.name == "nt", reason="its console takes all characters")
def test_a_terminal_that_is_not_utf8_gets_escapes():
    reader, terminal = os.openpty()
    with open(reader, "rb", buffering=0) as shown, open(terminal, "wb") as stdout:
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        done = subprocess.run([sys.executable, "-c", SAYS], cwd=ROOT, stdout=stdout, timeout=120, env=environment)
        assert done.returncode == 0 and shown.read(100).strip() == rb"gr\xfc\xdf \U0001f600"


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
@pytest.mark.parametrize("start_script", ["", "bash run_macos.sh", r".\run_windows.bat"])
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
