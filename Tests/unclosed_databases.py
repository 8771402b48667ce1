"""Connections to SQLite databases that a test, or what it tests, leaves open."""

from __future__ import annotations

import gc
import os
import sqlite3
from collections import Counter
from typing import Any

import pytest


class UnclosedDatabases:
    """A plugin that lets the run fail if connections were left to the garbage collector, and names the tests in which
    they were opened.

    Python 3.13 and later warn of them, but only when the garbage collector finds them, which may be during any later
    test.
    """

    def __init__(self) -> None:
        self._tests: Counter[str] = Counter()
        connect = sqlite3.connect

        def watched(*args: Any, **options: Any) -> sqlite3.Connection:
            made = connect(*args, **{"factory": _Connection, **options})
            if isinstance(made, _Connection):
                made.left_by = self._tests
                made.opened_in = os.environ.get("PYTEST_CURRENT_TEST", "no test").partition(" (")[0]
            return made

        sqlite3.connect = watched  # type: ignore[assignment]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._tests.update(getattr(node, "workeroutput", {}).get("unclosed databases", {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        gc.collect()
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["unclosed databases"] = dict(self._tests)
        elif self._tests and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._tests:
            terminalreporter.section("unclosed connections to SQLite databases")
            for test, count in self._tests.items():
                terminalreporter.line(f"{count} opened in {test}")


class _Connection(sqlite3.Connection):
    left_by: Counter[str]
    opened_in = ""

    def close(self) -> None:
        super().close()
        self.opened_in = ""

    def __del__(self) -> None:
        if self.opened_in:
            self.left_by[self.opened_in] += 1
