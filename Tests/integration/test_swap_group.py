"""Two models of which one is in memory: the order of calls, and what the loaded one does in place of the other."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from Tests.integration.gate_cases import Ask
from Tests.integration.launcher import (
    USER,
    Backend,
    ConfigTree,
    Launcher,
    endpoint,
    llm_node,
    standard_tree,
    streamed_text,
)
from Tests.patience import PATIENCE
from Tests.stub_backend import Reply, chat_reply, status_reply
from Tests.workflows.engine_lab import until


def tree_for(folder: Path, url: str, **worker: object) -> ConfigTree:
    tree = standard_tree(folder / "Public", url)
    tree.write(
        "Endpoints/A.json",
        endpoint(
            url,
            modelNameToSendToAPI="model-a",
            swapGroup="card",
            parallelCalls=1,
            removeThinking=True,
            startThinkTag="<think>",
            endThinkTag="</think>",
        ),
    )
    tree.write(
        "Endpoints/B.json",
        endpoint(
            url,
            modelNameToSendToAPI="model-b",
            swapGroup="card",
            parallelCalls=1,
            presetSamplers={"temperature": 0.25},
            **{"maxContextTokenSize": 2048, **worker},
        ),
    )
    tree.write(
        "ApiTypes/Chat.json",
        {
            "nameForDisplayOnly": "Chat",
            "type": "openAIChatCompletion",
            "presetType": "Chat",
            "maxNewTokensPropertyName": "max_tokens",
            "streamPropertyName": "stream",
            "truncateLengthPropertyName": "window",
            "samplerFieldMap": {"temperature": "temperature"},
        },
    )
    tree.shared("A", llm_node("a", endpointName="A", returnToUser=True))
    tree.shared("B", llm_node("b", endpointName="B", preset="", returnToUser=True))
    tree.shared(
        "Routed",
        llm_node("route", endpointName="B", preset=""),
        llm_node("answer", endpointName="A", systemPrompt="node:answer <{agent1Output}>", returnToUser=True),
    )
    return tree


def launcher(tree: ConfigTree, backend: Backend, *flags: str) -> Launcher:
    return Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, *flags, backend=backend)


@pytest.fixture
def swapping(backend: Backend, tmp_path: Path) -> Iterator[Launcher]:
    with launcher(tree_for(tmp_path, backend.url), backend, "--concurrency", "0") as server:
        yield server


def models(backend: Backend) -> list[str]:
    return [call.json["model"] for call in backend.calls()]


def test_calls_of_the_loaded_model_go_first(swapping: Launcher, backend: Backend) -> None:
    backend.replies["a"] = Reply(never=True)
    asks = [Ask(swapping, backend.hello, model="A")]
    backend.wait_call("a", PATIENCE)
    backend.replies.clear()
    for number, name in enumerate("BAAB", 1):
        asks.append(Ask(swapping, backend.hello, model=name))
        assert until(lambda: swapping.output().count("waits for its turn") == number, PATIENCE)  # noqa: B023
    asks[0].leave()
    assert all(ask.answer(PATIENCE).status == 200 for ask in asks[1:])
    assert models(backend) == ["model-a"] * 3 + ["model-b"] * 2
    assert "Swap group 'card': from model 'model-a' to 'model-b'" in swapping.output()


def test_the_loaded_model_does_the_small_jobs(backend: Backend, tmp_path: Path) -> None:
    """With its own window and cleaning, and the samplers of the endpoint that the node names."""
    backend.replies["route"] = chat_reply("<think>hm</think>poem")
    with launcher(tree_for(tmp_path, backend.url, swapStandIn="A"), backend, "--concurrency", "0") as server:
        assert server.ask("Routed").status == 200
        assert models(backend) == ["model-b", "model-a"], "nothing was loaded"
        assert server.ask("Routed").status == 200
        server.wait_output("Endpoint 'A' stands in for 'B', as its model is loaded", PATIENCE)
    first, _, third, fourth = backend.calls()
    assert models(backend)[2:] == ["model-a", "model-a"]
    assert (first.json["temperature"], first.json["window"]) == (0.25, 2048)
    assert (third.json["temperature"], third.json["window"]) == (0.25, 8192)
    assert fourth.json["temperature"] == 0.5 and "node:answer <poem>" in json.dumps(fourth.json["messages"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_waits_is_taken_by_the_model_that_is_loaded_meanwhile(
    backend: Backend, tmp_path: Path, stream: bool
) -> None:
    """With its own address, cleaning and name, and the samplers of the endpoint that the node names."""
    tree = tree_for(tmp_path, backend.url, swapStandIn="A", maxContextTokenSize=8192)
    tree.write("Endpoints/C.json", endpoint(backend.url, modelNameToSendToAPI="model-c", swapGroup="card"))
    tree.shared("C", llm_node("c", endpointName="C", returnToUser=True))
    backend.replies["c"] = Reply(never=True)
    backend.replies["b"] = chat_reply("<think>hm</think>done")
    with launcher(tree, backend, "--concurrency", "0") as server:
        running = Ask(server, backend.hello, model="C")
        backend.wait_call("c", PATIENCE)
        first = Ask(server, backend.hello, model="A")
        assert until(lambda: server.output().count("waits for its turn") == 1, PATIENCE)
        second = Ask(server, backend.hello, model="B", stream=stream)
        assert until(lambda: server.output().count("waits for its turn") == 2, PATIENCE)
        running.leave()
        assert first.answer(PATIENCE).status == 200
        answer = second.answer(PATIENCE)
        assert (streamed_text(answer.body) if stream else answer.text) == "done"
    assert models(backend) == ["model-c", "model-a", "model-a"]
    assert backend.calls()[2].json["temperature"] == 0.25


def test_an_endpoint_of_another_group_stands_in_for_none(backend: Backend, tmp_path: Path) -> None:
    tree = tree_for(tmp_path, backend.url, swapStandIn="Stub")
    with launcher(tree, backend, "--concurrency", "0") as server:
        server.ask("A")
        server.ask("B")
        server.wait_output("swapStandIn names 'Stub', which is not in swapGroup 'card'", PATIENCE)
    assert models(backend) == ["model-a", "model-b"]


def test_a_backup_waits_only_when_the_failed_call_has_left(backend: Backend, tmp_path: Path) -> None:
    tree = tree_for(tmp_path, backend.url, backupEndpointName="A")
    backend.replies["b"] = status_reply(400)
    with launcher(tree, backend, "--concurrency", "0") as server:
        backend.replies["b"] = lambda request: (
            status_reply(400) if request.json["model"] == "model-b" else chat_reply("from A")
        )
        assert server.ask("B").text == "from A"
    assert models(backend) == ["model-b", "model-a"]


@pytest.mark.parametrize(
    "flags, warned", [((), True), (("--concurrency", "4"), False), (("--concurrency-level", "endpoint"), False)]
)
def test_the_start_says_that_one_request_at_a_time_is_bad_for_it(
    backend: Backend, tmp_path: Path, flags: tuple[str, ...], warned: bool
) -> None:
    with launcher(tree_for(tmp_path, backend.url), backend, *flags) as server:
        text = "Endpoints/A.json, Endpoints/B.json: swapGroup does little with --concurrency 1"
        if warned:
            server.wait_output(text, PATIENCE)
        else:
            server.ask("A")
            assert text not in server.output()


def test_a_second_server_is_told_that_queues_are_not_shared(backend: Backend, tmp_path: Path) -> None:
    tree = tree_for(tmp_path, backend.url)
    with launcher(tree, backend) as first, launcher(tree, backend) as second:
        text = f"count the calls of one process only, and http://127.0.0.1:{first.port} serves the same configuration"
        second.wait_output(text, PATIENCE)
        assert "of one process only" not in first.output()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not end the processes with the first one at once")
def test_several_workers_are_told_so_once(backend: Backend, tmp_path: Path, database_url: str) -> None:
    with launcher(tree_for(tmp_path, backend.url), backend, "--workers", "3", "--database", database_url) as server:
        server.wait_output("parallelCalls and swapGroup count the calls of one worker only")
        assert until(lambda: server.output().count(") serves\n") == 3)
        assert server.output().count("parallelCalls and swapGroup count") == 1
