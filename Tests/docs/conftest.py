"""One sandbox to check in, and one with a server to run in, for all pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from Tests.docs.checking import Checker
from Tests.docs.fake_services import FakeServices
from Tests.docs.running import Example, Runner
from Tests.docs.sandbox import USER, Sandbox
from Tests.integration.launcher import Launcher


@pytest.fixture(scope="session")
def services() -> Iterator[FakeServices]:
    with FakeServices() as services:
        yield services


@pytest.fixture(scope="session")
def checker(services: FakeServices, tmp_path_factory: pytest.TempPathFactory) -> Checker:
    return Checker(Sandbox(tmp_path_factory.mktemp("checked"), services.url))


@pytest.fixture(scope="session")
def runner(services: FakeServices, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Tries examples; nothing is tried yet."""
    sandbox = Sandbox(tmp_path_factory.mktemp("run"), services.url)
    sandbox.change_base_user(
        {
            "offlineWikiApiHost": "127.0.0.1",
            "offlineWikiApiPort": services.port,
            "offlineResearcherApiHost": "127.0.0.1",
            "offlineResearcherApiPort": services.port,
        }
    )
    with Launcher(
        "run_waitress.py",
        "--PublicDirectory",
        sandbox.public,
        "--User",
        USER,
        "--concurrency",
        "0",
        folders=(sandbox.folder, sandbox.home),
    ) as server:
        yield Runner(sandbox, services, server)


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest, runner: Runner) -> dict[str, list[str]]:
    """What is wrong with each example whose test was selected, all tried at once; none of these if it is empty."""
    wanted = [
        item.callspec.params["example"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and "example" in item.callspec.params
    ]
    runner.run([example for example in wanted if isinstance(example, Example)])
    return runner.results
