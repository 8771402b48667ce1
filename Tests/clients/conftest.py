"""One server per launcher, one LLM and one Node process for all tests of this directory, started when first wanted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from Tests.amounts import DEEP
from Tests.clients.cases import NODE
from Tests.clients.client import MODEL, Client, require
from Tests.clients.npm_clients import NpmClient, Worker, missing
from Tests.integration.conftest import Servers
from Tests.integration.launcher import LAUNCHERS, SERVER, USER, Backend, ConfigTree, Launcher, llm_node, standard_tree

OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "HF_HUB_OFFLINE": "1",
}
Connect = Callable[[type[Client], str], Client]
STEERING = ("OPENAI", "ANTHROPIC", "OLLAMA", "LITELLM", "LANGCHAIN", "LANGSMITH")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test Waitress, or every launcher if it is marked as ``contract``, and every client that has the method
    which the test needs. ``server.py`` is the same server as ``run_waitress.py``: only deep tests run on it."""
    if "server" in metafunc.fixturenames:
        every = metafunc.definition.get_closest_marker("contract") is not None
        launchers = [script for script in LAUNCHERS if script != SERVER or DEEP] if every else LAUNCHERS[:1]
        metafunc.parametrize("server", launchers, indirect=True, scope="session")
    if "client" in metafunc.fixturenames:
        method = metafunc.function.needs
        able = [name for name, kind in metafunc.cls.clients.items() if method not in kind.lacks]
        metafunc.parametrize("client", able, indirect=True)


@pytest.fixture(scope="session", autouse=True)
def environment() -> Iterator[None]:
    """Nothing from outside steers the packages, and they ask nothing of the internet."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.upper().startswith(STEERING) or "PROXY" in name.upper():
                patch.delenv(name)
        for name, value in OFFLINE.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def shared_backend() -> Iterator[Backend]:
    with Backend() as backend:
        yield backend


@pytest.fixture(scope="session")
def tree(shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> ConfigTree:
    """The usual workflows, and one whose only node passes tools and images on."""
    tree = standard_tree(tmp_path_factory.mktemp("clients") / "Public", shared_backend.url)
    tree.shared(
        MODEL.partition(":")[2],
        llm_node(NODE, returnToUser=True, allowTools=True, acceptImages=True, lastMessagesToSendInsteadOfPrompt=20),
    )
    return tree


@pytest.fixture
def model_names(tree: ConfigTree) -> list[str]:
    """The models that a client must be shown."""
    return sorted(f"{USER}:{file.stem}" for file in (tree.configs / "Workflows/_shared").iterdir())


@pytest.fixture(scope="session")
def servers(tree: ConfigTree, shared_backend: Backend) -> Iterator[Servers]:
    running = Servers(tree, shared_backend)
    yield running
    running.close()


@pytest.fixture
def backend(shared_backend: Backend) -> Iterator[Backend]:
    """The LLM, with nothing scripted yet."""
    shared_backend.reset()
    yield shared_backend
    shared_backend.reset()


@pytest.fixture
def server(request: pytest.FixtureRequest, servers: Servers) -> Launcher:
    return servers.get(request.param)


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    require(missing())
    with closing(Worker(tmp_path_factory.mktemp("node") / "errors.txt")) as worker:
        yield worker


@pytest.fixture(scope="session")
def connect(request: pytest.FixtureRequest, environment: None) -> Iterator[Connect]:
    """Makes a client of a kind for a server, or hands out the one that is there, so that connections are used again."""
    made: dict[tuple[type[Client], str], Client] = {}

    def make(kind: type[Client], url: str) -> Client:
        if issubclass(kind, NpmClient):
            return kind(url, request.getfixturevalue("worker"))
        return kind(url)

    def get(kind: type[Client], url: str) -> Client:
        if (kind, url) not in made:
            made[kind, url] = make(kind, url)
        return made[kind, url]

    yield get
    for client in made.values():
        client.close()


@pytest.fixture
def client(request: pytest.FixtureRequest, connect: Connect, server: Launcher) -> Client:
    return connect(request.cls.clients[request.param], server.url)


@pytest.fixture
def all_clients(request: pytest.FixtureRequest, connect: Connect, server: Launcher) -> dict[str, Client]:
    return {
        name: connect(kind, server.url)
        for name, kind in request.cls.clients.items()
        if not (issubclass(kind, NpmClient) and missing())
    }
