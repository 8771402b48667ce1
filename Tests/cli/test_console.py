"""The process around a launcher."""
from __future__ import annotations

import os
import subprocess
import sys

import pytest

from Middleware.utilities import config_utils
from Tests.integration.launcher import run_launcher

ROOT = config_utils.get_project_root_directory_path()


def python(code, **environment):
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=30,
                          env={**os.environ, **environment})


def test_a_console_that_is_not_utf8_does_not_crash():
    done = python("from Middleware.cli.console import prepare_process, say\n"
                  "prepare_process(); say('gr\\u00fc\\u00df \\U0001f600')", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and done.stdout.strip() == rb"gr\xfc\xdf \U0001f600"


@pytest.mark.skipif(os.name == "nt", reason="no such limit")
def test_a_low_descriptor_limit_is_raised():
    done = python("import resource as r\n"
                  "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]\n"
                  "r.setrlimit(r.RLIMIT_NOFILE, (256, hard))\n"
                  "from Middleware.cli.console import raise_descriptor_limit\n"
                  "raise_descriptor_limit(512)\n"
                  "print(r.getrlimit(r.RLIMIT_NOFILE)[0])\n"
                  "raise_descriptor_limit(300)\n"
                  "print(r.getrlimit(r.RLIMIT_NOFILE)[0])")
    assert done.stdout.split() == [b"512", b"512"]


@pytest.mark.parametrize(("script", "shown"), [("run_waitress.py", "run_"), ("server.py", "server.py")])
def test_the_usage_names_what_a_person_types(script, shown):
    told = run_launcher(script, "--help").stdout
    assert told.startswith("usage: ") and shown in told.splitlines()[0] and "run_waitress.py" not in told
    refused = run_launcher(script, "--prot", "1").stderr
    assert shown in refused and "run_waitress.py" not in refused and "Did you mean --port?" in refused
