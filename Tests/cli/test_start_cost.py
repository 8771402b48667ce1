"""What a server has done when it begins to listen, in a process of its own: figures that no machine changes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from Middleware.utilities import config_utils
from Tests.patience import CLIENT_PATIENCE

ROOT = config_utils.get_project_root_directory_path()
LAUNCHERS = ["run_waitress", "run_eventlet", "server"]

# Each launcher listens already when it installs its handlers of signals.
STARTED = """
import gc, json, os, runpy, sys
from Middleware.cli.signals import StopSignals

def report(signals):
    facts = {"modules": sorted(sys.modules), "is_enabled": gc.isenabled(), "frozen": gc.get_freeze_count(),
             "full_collections": gc.get_stats()[2]["collections"]}
    from Middleware.addons.check import load_check
    print(json.dumps({**facts, "with_checks": sorted(sys.modules)}), flush=True)
    os._exit(0)

StopSignals.__enter__ = report
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# Each with all that is below it.
NOT_WHILE_IDLE = (
    "Middleware.addons.observability.metrics",
    "Middleware.addons.init.init_command",
    "Middleware.addons.init.demo_backend",
    "Middleware.addons.talk.talk_command",
    "Middleware.services.lock_database",
    "Middleware.services.memory.embedding_service",
    "Middleware.services.memory.memory_search",
    "Middleware.services.memory_service",
    "Middleware.utilities.discussions.vector_memory",
    "Middleware.addons.postgres.state_database",
    "Middleware.addons.postgres.database",
    "Middleware.addons.postgres.worker_processes",
    "Middleware.workflows.tools.mcp.mcp_sessions",
    "Middleware.workflows.tools.mcp.transports",
    "Middleware.workflows.tools.memory",
    "Middleware.workflows.tools.offline_researcher_api_tool",
    "Middleware.workflows.tools.offline_wikipedia_api_tool",
    "Middleware.workflows.tools.slow_but_quality_rag_tool",
    "Middleware.workflows.tools.web",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "psycopg_pool",
)
# Eventlet loads some of these itself, as Flask and urllib3 load what is not listed here.
NOT_WITH_WAITRESS = (
    "anyio",
    "asyncio",
    "concurrent.futures",
    "cryptography",
    "eventlet",
    "graphlib",
    "html.parser",
    "httpx",
    "httpx2",
    "jsonschema",
    "mcp",
    "multiprocessing",
    "psutil",
    "pydantic",
    "requests",
    "sqlite3",
    "tkinter",
    "unittest",
    "xml",
)
ADVICE = (
    "Import it in the functions that need it, with a comment that says for whom, or under TYPE_CHECKING if only "
    "annotations name it. 'python -X importtime run_waitress.py' shows who imports what. A module that every "
    "server needs is taken off the list."
)


@pytest.fixture(scope="module", params=LAUNCHERS)
def started(request, tmp_path_factory):
    """Return what a launcher reports about itself when it listens."""
    if request.param == "run_eventlet":
        pytest.importorskip("eventlet")
    users = tmp_path_factory.mktemp("start") / "Configs" / "Users"
    users.mkdir(parents=True)
    (users / "ann.json").write_text("{}", "utf-8")
    command = [
        sys.executable,
        "-c",
        STARTED,
        f"{request.param}.py",
        "--ConfigDirectory",
        str(users.parent),
        "--User",
        "ann",
        "--port",
        "0",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=CLIENT_PATIENCE)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "launcher": request.param}


def among(modules, unwanted):
    return [name for name in modules if any(name == one or name.startswith(f"{one}.") for one in unwanted)]


def test_a_server_listens_before_it_imports_the_checks(started):
    assert not among(started["modules"], ["Middleware.addons.check.load_check", "Middleware.addons.check.tree_check"])


def test_an_idle_server_has_not_imported_what_few_requests_need(started):
    """Neither when it listens, nor for the checks, which follow at once."""
    unwanted = NOT_WHILE_IDLE if started["launcher"] == "run_eventlet" else NOT_WHILE_IDLE + NOT_WITH_WAITRESS
    found = among(started["with_checks"], unwanted)
    assert not found, f"Every server imports {', '.join(found)}. {ADVICE}"


def test_nothing_looks_for_garbage_before_the_server_listens(started):
    # A full collection at this point looks at everything that was imported, and finds next to nothing.
    assert started["full_collections"] == 0


def test_the_collector_runs_from_then_on_and_leaves_out_what_the_start_made(started):
    assert started["is_enabled"]
    assert started["frozen"] > 50_000
