"""Mistakes in configuration files: one clear message each, the server stays up, and a repaired file counts at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from Tests.api.front_dialects import openai_message
from Tests.integration.launcher import (
    USER,
    Backend,
    ConfigTree,
    Launcher,
    Response,
    api_type,
    child_node,
    endpoint,
    llm_node,
    run_launcher,
    standard_tree,
)

NOTICED_SECONDS = 1.15
"""After this time a repaired file counts."""

ABSOLUTE_PATH = re.compile(r"(?<![\w:/.])/\w+/|[A-Za-z]:\\")
Fix = Callable[[ConfigTree, str], object]


@dataclass(frozen=True)
class Mistake:
    """A shared workflow with one mistake in it or behind it.

    Attributes:
        names: what the message must contain: file, wrong name, and what helps to mend it.
        files: what is written besides the workflow.
        fix: mends it; is given the back-end's URL.
    """

    name: str
    node: dict[str, object]
    names: tuple[str, ...]
    fix: Fix
    files: dict[str, object] = field(default_factory=dict)
    workflow: str = ""


def _write(path: str, value: object) -> Fix:
    return lambda tree, url: tree.write(path, value)


def _node(name: str, **keys: object) -> dict[str, object]:
    return llm_node(name, returnToUser=True, **keys)


MISTAKES = (
    Mistake(
        "missing-endpoint",
        _node("a", endpointName="Stubb"),
        ("Endpoints/", "Stubb", "'Stub'"),
        lambda tree, url: tree.write("Endpoints/Stubb.json", endpoint(url)),
    ),
    Mistake(
        "missing-preset",
        _node("b", preset="Plane"),
        ("Presets/Chat/", "Plane", "'Plain'"),
        _write("Presets/Chat/Plane.json", {}),
    ),
    Mistake(
        "missing-workflow",
        child_node("Plainn", returnToUser=True),
        (f"Workflows/{USER}/Plainn.json", "'Plain'"),
        lambda tree, url: tree.private("Plainn", _node("c")),
    ),
    Mistake(
        "missing-api-type",
        _node("d", endpointName="NoType"),
        ("ApiTypes/", "Chatt", "'Chat'"),
        _write("ApiTypes/Chatt.json", api_type()),
        {"Endpoints/NoType.json": {"apiTypeConfigFileName": "Chatt"}},
    ),
    Mistake(
        "unknown-api-type",
        _node("e", endpointName="OddType"),
        ("ApiTypes/Odd.json", "openAIChatCompletions", "'openAIChatCompletion'"),
        _write("ApiTypes/Odd.json", api_type()),
        {
            "Endpoints/OddType.json": {"apiTypeConfigFileName": "Odd"},
            "ApiTypes/Odd.json": api_type(type="openAIChatCompletions"),
        },
    ),
    Mistake(
        "no-url",
        _node("f", endpointName="NoUrl"),
        ("NoUrl", "endpoint", "http://"),
        lambda tree, url: tree.write("Endpoints/NoUrl.json", endpoint(url)),
        {"Endpoints/NoUrl.json": {"apiTypeConfigFileName": "Chat"}},
    ),
    Mistake(
        "syntax-in-workflow",
        {},
        ("Workflows/_shared/syntax-in-workflow.json", "line 3", "JSON"),
        lambda tree, url: tree.shared("syntax-in-workflow", _node("g")),
        workflow='{\n  "nodes": [\n    {"title": "g" "type": "Standard"}\n  ]\n}\n',
    ),
    Mistake(
        "syntax-in-endpoint",
        _node("h", endpointName="Torn"),
        ("Endpoints/Torn.json", "line 2", "JSON"),
        lambda tree, url: tree.write("Endpoints/Torn.json", endpoint(url)),
        {"Endpoints/Torn.json": '{"endpoint": "http://127.0.0.1:1",\n'},
    ),
    Mistake(
        "syntax-in-preset",
        _node("i", preset="TornPreset"),
        ("Presets/Chat/TornPreset.json", "line 1", "JSON"),
        _write("Presets/Chat/TornPreset.json", {}),
        {"Presets/Chat/TornPreset.json": "temperature = 1"},
    ),
    Mistake(
        "nodes-not-a-list",
        {},
        ("Workflows/_shared/nodes-not-a-list.json", "nodes", "list"),
        lambda tree, url: tree.shared("nodes-not-a-list", _node("j")),
        workflow='{"nodes": {"type": "Standard"}}',
    ),
)


@dataclass
class Round:
    """What each mistake's workflow answered, whole and streamed."""

    whole: dict[str, Response]
    streamed: dict[str, Response]


@dataclass
class World:
    """A server with every mistake at once, before and after the files were mended."""

    tree: ConfigTree
    server: Launcher
    broken: Round
    mended: Round


def _ask_all(server: Launcher) -> Round:
    names = [mistake.name for mistake in MISTAKES]
    with ThreadPoolExecutor(4) as pool:
        whole = list(pool.map(server.ask, names))
        streamed = list(pool.map(lambda name: server.ask(name, stream=True), names))
    return Round(dict(zip(names, whole, strict=True)), dict(zip(names, streamed, strict=True)))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Backend() as backend:
        tree = standard_tree(tmp_path_factory.mktemp("broken") / "Public", backend.url)
        for mistake in MISTAKES:
            tree.write(f"Workflows/_shared/{mistake.name}.json", mistake.workflow or {"nodes": [mistake.node]})
            for path, value in mistake.files.items():
                if isinstance(value, dict) and path.startswith("Endpoints/") and mistake.name != "no-url":
                    value = {**endpoint(backend.url), **value}
                tree.write(path, value)
        tree.shared("unknown-node-type", _node("typo", type="Standart"))
        with Launcher(
            "run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0", backend=backend
        ) as server:
            broken = _ask_all(server)
            for mistake in MISTAKES:
                mistake.fix(tree, backend.url)
            time.sleep(NOTICED_SECONDS)
            yield World(tree, server, broken, _ask_all(server))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
class TestMistake:
    def test_message_names_file_and_fix(self, world: World, mistake: Mistake) -> None:
        response = world.broken.whole[mistake.name]
        assert response.status == 500
        assert response.headers["content-type"].startswith("application/json")
        assert openai_message(response.json, 500)
        missing = [name for name in mistake.names if name not in response.error]
        assert not missing, response.error

    def test_message_is_one_line_without_absolute_paths(self, world: World, mistake: Mistake) -> None:
        message = world.broken.whole[mistake.name].error
        assert "\n" not in message and "Traceback" not in message
        assert str(world.tree.public) not in message
        assert not ABSOLUTE_PATH.search(message), message

    def test_streamed_request_gets_the_same(self, world: World, mistake: Mistake) -> None:
        whole, streamed = world.broken.whole[mistake.name], world.broken.streamed[mistake.name]
        assert streamed.status == 500
        assert _without_id(streamed.error) == _without_id(whole.error)

    def test_mended_file_counts_without_a_restart(self, world: World, mistake: Mistake) -> None:
        whole, streamed = world.mended.whole[mistake.name], world.mended.streamed[mistake.name]
        assert (whole.status, streamed.status) == (200, 200), whole.body
        assert whole.text.endswith("says hello.")


def _without_id(message: str) -> str:
    return message.rpartition(" [request")[0]


def test_unknown_node_type_runs_as_standard(world: World) -> None:
    assert world.server.ask("unknown-node-type").text == "typo says hello."
    output = world.server.wait_output("Standart")
    warning = next(
        line for line in output.splitlines() if "WARNING" in line and "Standart" in line and "node 1" in line
    )
    assert "unknown-node-type" in warning
    assert "'Standard'" in warning or "Did you mean Standard" in warning, warning


def test_log_has_no_tracebacks_for_mistakes_of_the_user(world: World) -> None:
    assert "Traceback" not in world.server.output()


def test_file_that_breaks_later_keeps_its_last_good_version(world: World) -> None:
    assert world.server.ask("Single").status == 200
    world.tree.write("Workflows/_shared/Single.json", '{"nodes": [')
    time.sleep(NOTICED_SECONDS)
    assert world.server.ask("Single").text == "single says hello."
    world.server.wait_output("Workflows/_shared/Single.json, line 1")


# -- the user ----------------------------------------------------------------------------------------------------------


def test_missing_user_ends_the_start(script: str, tmp_path: Path) -> None:
    tree = standard_tree(tmp_path / "Public", "http://127.0.0.1:9")
    ended = run_launcher(script, "--PublicDirectory", tree.public, "--User", "bob", "--port", "0")
    assert ended.returncode == 1
    errors = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")]
    assert len(errors) == 1 and "bob" in errors[0] and "bob.json" in errors[0]
    assert "Traceback" not in ended.stderr


def test_torn_user_file_is_told_to_the_client(tmp_path: Path, backend: Backend) -> None:
    tree = standard_tree(tmp_path / "Public", backend.url)
    file = tree.configs / "Users" / f"{USER}.json"
    good = file.read_text(encoding="utf-8")
    file.write_text(good.replace(":", "", 1), encoding="utf-8")
    with Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, backend=backend) as server:
        response = server.ask()
        assert response.status == 500
        assert f"Users/{USER}.json, line 2" in response.error
        assert str(tmp_path) not in response.error
        assert server.request("GET", "/v1/models").status == 200
        file.write_text(good, encoding="utf-8")
        time.sleep(NOTICED_SECONDS)
        assert server.ask("Single").text == "single says hello."
