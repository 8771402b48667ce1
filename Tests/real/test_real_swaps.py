"""llama.cpp's own router with two models, of which it holds one at a time: how often it must change the model."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from Tests.integration.launcher import USER, Launcher, endpoint, llm_node, standard_tree
from Tests.real.servers import RealServer, llama_router
from Tests.real.tiny_gguf import write_model

pytestmark = pytest.mark.real

PEOPLE, ROUNDS = 3, 4
GROUP = {"swapGroup": "card"}


@pytest.mark.parametrize(
    ("small_keys", "main_keys", "most"),
    [
        # Within a round, all calls of one model are made before those of the other.
        pytest.param(GROUP, GROUP, 2 * ROUNDS, id="the loaded model first"),
        # Once the model of the answers is loaded, the other is needed no more.
        pytest.param({**GROUP, "swapStandIn": "Main"}, GROUP, 2, id="a stand-in"),
    ],
)
def test_how_often_the_model_changes(
    tmp_path: Path, small_keys: Mapping[str, Any], main_keys: Mapping[str, Any], most: int
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for seed, name in enumerate(("main", "small")):
        write_model(models / f"{name}.gguf", seed)
    with llama_router(tmp_path, models) as router:
        tree = standard_tree(tmp_path / "Public", router.url)
        tree.write("Endpoints/Small.json", endpoint(router.url, modelNameToSendToAPI="small", **small_keys))
        tree.write("Endpoints/Main.json", endpoint(router.url, modelNameToSendToAPI="main", **main_keys))
        tree.shared(
            "Two",
            llm_node("Sort", endpointName="Small", maxResponseSizeInTokens=4),
            llm_node("Answer", endpointName="Main", maxResponseSizeInTokens=12, returnToUser=True),
        )
        with Launcher(
            "run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0"
        ) as wilmer:
            talk_in_rounds(wilmer)
            assert "ERROR" not in wilmer.output()
        assert 2 <= loads(router) <= most


def talk_in_rounds(wilmer: Launcher) -> None:
    """Let all people send a message at the same time, and again when all have their answers."""
    together, statuses = threading.Barrier(PEOPLE), []

    def talk() -> None:
        for _ in range(ROUNDS):
            together.wait(120)
            statuses.append(wilmer.ask("Two").status)

    people = [threading.Thread(target=talk) for _ in range(PEOPLE)]
    for one in people:
        one.start()
    for one in people:
        one.join()
    assert statuses == [200] * PEOPLE * ROUNDS


def loads(router: RealServer) -> int:
    return router.output().count("spawning server instance with name=")
