"""Shared servers: one process per launcher and setting for the whole directory, started when first wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from Tests.integration.launcher import LAUNCHERS, SERVER, USER, Backend, ConfigTree, Launcher, standard_tree

EVENTLET = LAUNCHERS[-1]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what needs a launcher on Waitress, and what is marked as ``contract`` on every launcher."""
    if "script" in metafunc.fixturenames:
        metafunc.parametrize("script", launchers_for(metafunc.definition), scope="session")


def launchers_for(test: pytest.Function) -> list[Any]:
    """Return the launchers that a test runs on: Waitress, or all if it is marked as ``contract``.

    ``server.py`` starts the same server as ``run_waitress.py``, so only ``contract(SERVER)`` runs on it each time, and
    the rest when deep tests run.
    """
    contract = test.get_closest_marker("contract")
    if contract is None:
        return [LAUNCHERS[0]]
    return [
        pytest.param(script, marks=[pytest.mark.deep] if script == SERVER and SERVER not in contract.args else [])
        for script in LAUNCHERS
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test marked as ``contract``, run one on Eventlet each time, and all when deep tests run."""
    seen = set()
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker("contract") is None:
            continue
        if getattr(item, "callspec", None) is not None and item.callspec.params.get("script") == EVENTLET:
            test = item.path, item.originalname
            if test in seen:
                item.add_marker(pytest.mark.deep)
            seen.add(test)


class Servers:
    """Running launchers by script and concurrency limit."""

    def __init__(self, tree: ConfigTree, backend: Backend) -> None:
        self._tree = tree
        self._backend = backend
        self._running: dict[tuple[str, int], Launcher] = {}
        self._stack = ExitStack()

    def get(self, script: str, concurrency: int = 0) -> Launcher:
        """The launcher with that ``--concurrency`` (0: unlimited), running."""
        key = script, concurrency
        if key not in self._running:
            self._running[key] = self._stack.enter_context(
                Launcher(
                    script,
                    "--PublicDirectory",
                    self._tree.public,
                    "--User",
                    USER,
                    "--concurrency",
                    str(concurrency),
                    backend=self._backend,
                )
            )
        return self._running[key]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def shared_backend() -> Iterator[Backend]:
    with Backend() as backend:
        yield backend


@pytest.fixture(scope="session")
def servers(shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    tree = standard_tree(tmp_path_factory.mktemp("standard") / "Public", shared_backend.url)
    running = Servers(tree, shared_backend)
    yield running
    running.close()


@pytest.fixture
def backend(shared_backend: Backend) -> Iterator[Backend]:
    """The back-end of the shared servers, with nothing scripted yet."""
    shared_backend.reset()
    yield shared_backend
    shared_backend.reset()


@pytest.fixture
def server(script: str, servers: Servers, backend: Backend) -> Launcher:
    """A launcher without a concurrency limit."""
    return servers.get(script)


@pytest.fixture
def gated_server(script: str, servers: Servers, backend: Backend) -> Launcher:
    """A launcher that serves one request at a time."""
    return servers.get(script, concurrency=1)
