"""Options, markers and settings that hold for every test."""

from __future__ import annotations

import gc
import os
import signal
import socketserver
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from Middleware import addons
from Middleware.common import instance_global_variables as instance
from Middleware.utilities.http import pool
from Middleware.utilities.http.pool import ConnectionPool
from Tests.amounts import DEEP_EXAMPLES, USUAL_EXAMPLES, amount
from Tests.patience import PATIENCE
from Tests.postgres_lab import database as database
from Tests.postgres_lab import database_url as database_url
from Tests.postgres_lab import own_postgres as own_postgres
from Tests.postgres_lab import postgres as postgres
from Tests.unclosed_databases import UnclosedDatabases

TESTS = Path(__file__).parent

# The marker of each test by its file's path below Tests. --quick leaves out all files that are named here, and within
# the others the tests that are marked "slow".
MARKED = {
    "integration": ("integration/*", "doors/*"),
    "docs": ("docs/*",),
    "shipped": ("utilities/test_shipped_*",),
    "generated": (
        "scripts/test_config_schemas.py",
        "scripts/test_*_reference.py",
        "scripts/test_node_pages.py",
        "scripts/test_schema_values.py",
        "scripts/test_vscode_settings.py",
    ),
    # These mark themselves, for they also need what other tests do not.
    "clients": ("clients/*",),
    "real": ("real/*",),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only unit tests that are fast")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare property tests, and handle signals that the caller ignores, as ``nohup`` and background jobs do.

    Programs that the tests start inherit that, and tests of signals need it.
    """
    load_property_profile()
    addons.load()
    pass_over_clients_that_left()
    config.pluginmanager.register(UnclosedDatabases())
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = getattr(signal, "SIGHUP", None)  # not on Windows
    if hangup is not None and signal.getsignal(hangup) == signal.SIG_IGN:
        signal.signal(hangup, signal.SIG_DFL)


def pass_over_clients_that_left() -> None:
    """Let servers in a test's process print no traceback when a client leaves, as clients of tests do on purpose."""
    report = socketserver.BaseServer.handle_error

    def handle_error(self: socketserver.BaseServer, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            report(self, request, client_address)

    socketserver.BaseServer.handle_error = handle_error  # type: ignore[method-assign]


def load_property_profile() -> None:
    """Property tests try the same examples in every run, however long a busy machine needs for one; with
    ``WILMER_FUZZ_SEED`` set, to look for more, others."""
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:  # the environments for clients and real servers have none
        return
    settings.register_profile(
        "repeatable",
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize="WILMER_FUZZ_SEED" not in os.environ,
        max_examples=amount(USUAL_EXAMPLES, DEEP_EXAMPLES),
    )
    settings.load_profile("repeatable")


@cache
def marker_of(path: Path) -> str | None:
    """Return the marker of the tests in this file or folder."""
    if not path.is_relative_to(TESTS):
        return None
    below = path.relative_to(TESTS).as_posix()
    names = below, f"{below}/"  # a folder matches "folder/*"
    return next(
        (
            marker
            for marker, patterns in MARKED.items()
            if any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
        ),
        None,
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what ``--quick`` leaves out."""
    return True if config.getoption("--quick") and marker_of(collection_path) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    marker = marker_of(item.path)
    if marker and not item.get_closest_marker(marker):
        item.add_marker(marker)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that wait most come first, so that others compute meanwhile: integration tests, then slow unit tests. Last,
    they would keep one worker busy while the others have nothing to do."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.get_closest_marker("integration") is None, item.path not in slow))
    if config.getoption("--quick"):
        left_out = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Importing hundreds of modules makes many objects and no garbage to look for."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """The modules and the thousands of tests stay to the end: the garbage collector need not go through them, which it
    would do in the middle of what a test measures."""
    gc.collect()
    gc.freeze()
    gc.enable()


SETTINGS = [name for name in vars(instance) if name.isupper()]


@pytest.fixture(autouse=True)
def settings_of_the_process() -> Iterator[None]:
    """Take back what a test has stored in the settings of the process, as each command does with its flags."""
    before = {name: getattr(instance, name) for name in SETTINGS}
    yield
    for name, value in before.items():
        setattr(instance, name, value)


@pytest.fixture(autouse=True)
def closed_pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the idle connections of every pool that a test makes, as a process keeps its only one to its end.

    Until then they stay open, however long a busy machine takes between two calls.
    """
    monkeypatch.setattr(pool, "PLAIN_IDLE_SECONDS", PATIENCE)
    made: list[ConnectionPool] = []
    initialise = ConnectionPool.__init__

    def remember(one: ConnectionPool) -> None:
        initialise(one)
        made.append(one)

    monkeypatch.setattr(ConnectionPool, "__init__", remember)
    yield
    for one in made:
        # A thread that the test has left may still give a connection back.
        one.__dict__["give_back"] = lambda target, connection, *_: connection.close()
        one.close_all()
