"""What a server has done when it begins to listen, in a process of its own: figures that no machine changes."""
from __future__ import annotations

import json
import subprocess
import sys

import pytest

from Middleware.utilities import config_utils

ROOT = config_utils.get_project_root_directory_path()
LAUNCHERS = ["run_waitress", "run_eventlet", "server"]

# Each launcher listens already when it installs its handlers of signals.
STARTED = """
import gc, json, os, runpy, sys
from Middleware.cli.signals import StopSignals

def report(signals):
    print(json.dumps({"modules": sorted(sys.modules), "is_enabled": gc.isenabled(), "frozen": gc.get_freeze_count(),
                      "full_collections": gc.get_stats()[2]["collections"]}), flush=True)
    os._exit(0)

StopSignals.__enter__ = report
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module", params=LAUNCHERS)
def started(request, tmp_path_factory):
    """Return what a launcher reports about itself when it listens."""
    if request.param == "run_eventlet":
        pytest.importorskip("eventlet")
    users = tmp_path_factory.mktemp("start") / "Configs" / "Users"
    users.mkdir(parents=True)
    (users / "ann.json").write_text("{}", "utf-8")
    command = [sys.executable, "-c", STARTED, f"{request.param}.py", "--ConfigDirectory", str(users.parent),
               "--User", "ann", "--port", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_looks_for_garbage_before_the_server_listens(started):
    # A full collection at this point looks at everything that was imported, and finds next to nothing.
    assert started["full_collections"] == 0


def test_the_collector_runs_from_then_on_and_leaves_out_what_the_start_made(started):
    assert started["is_enabled"]
    assert started["frozen"] > 50_000
