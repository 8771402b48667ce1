"""Two or three servers on one state database, as processes: stops, retries, limits and aborts are those of all."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from Tests.integration.launcher import (
    USER,
    Backend,
    ConfigTree,
    Launcher,
    api_type,
    dechunked,
    endpoint,
    llm_node,
    read_to_end,
    read_until,
    says,
    sse_payloads,
    standard_tree,
    stuck,
)
from Tests.postgres_lab import Server
from Tests.stub_backend import Reply
from Tests.workflows.engine_lab import until

pytestmark = pytest.mark.slow
PATIENCE = 60.0
Start = Callable[..., list[Launcher]]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory, shared_backend: Backend) -> ConfigTree:
    tree = standard_tree(tmp_path_factory.mktemp("workers") / "Public", shared_backend.url)
    tree.write("ApiTypes/Kobold.json", api_type(type="koboldCppGenerate", maxNewTokensPropertyName="max_length"))
    tree.write("Endpoints/Kobold.json", endpoint(shared_backend.url, apiTypeConfigFileName="Kobold"))
    tree.shared("Kobold", llm_node("kobold", endpointName="Kobold", systemPrompt="node:kobold ", returnToUser=True))
    tree.shared("Locked", {"type": "WorkflowLock", "workflowLockId": "gate"}, llm_node("single", returnToUser=True))
    return tree


@contextlib.contextmanager
def starting(tree: ConfigTree, backend: Backend, postgres: Server) -> Iterator[Start]:
    """Starts so many servers on one new database."""
    words = ["--PublicDirectory", str(tree.public), "--User", USER, "--database", postgres.new_database()]
    with contextlib.ExitStack() as running:

        def start(count: int, *arguments: str) -> list[Launcher]:
            return [
                running.enter_context(Launcher("run_waitress.py", *words, *arguments, backend=backend))
                for _ in range(count)
            ]

        yield start


@pytest.fixture
def start(tree: ConfigTree, backend: Backend, postgres: Server) -> Iterator[Start]:
    with starting(tree, backend, postgres) as start:
        yield start


@pytest.fixture(scope="module")
def shared_workers(tree: ConfigTree, shared_backend: Backend, postgres: Server) -> Iterator[list[Launcher]]:
    with starting(tree, shared_backend, postgres) as start:
        yield start(3, "--concurrency", "0")


@pytest.fixture
def workers(shared_workers: list[Launcher], backend: Backend) -> list[Launcher]:
    """Three servers without a limit, which the tests leave running."""
    return shared_workers


def delete(server: Launcher, request_id: str) -> int:
    return server.request("DELETE", "/api/chat", {"request_id": request_id}, PATIENCE).status


def id_in(head: bytes) -> str:
    lines = head.partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("x-request-id:"))


# -- stops -------------------------------------------------------------------------------------------------------------


def test_a_stop_on_another_worker(workers: list[Launcher], backend: Backend) -> None:
    """How soon the back-end is free is measured elsewhere; here, that it is, and that the answer ends as it should."""
    one, two, _ = workers
    backend.replies.update(single=stuck("Once ", "upon ", "a "))
    seconds = []
    for count in range(1, 11):
        with two.open("Single", stream=True) as stream:
            begun = read_until(stream, b"upon", PATIENCE)
            call = backend.wait_call("single", PATIENCE, count)
            began = time.monotonic()
            assert delete(one, id_in(begun)) == 200
            assert call.wait_ended(PATIENCE) and call.client_left and call.ended_at is not None
            seconds.append(call.ended_at - began)
            assert sse_payloads(dechunked(begun + read_to_end(stream, PATIENCE)))[-1] == "[DONE]"
    print(f"median {sorted(seconds)[5] * 1000:.0f} ms, worst {max(seconds) * 1000:.0f} ms")
    for unknown in ("0123456789", "x" * 10_000):
        assert delete(one, unknown) == 200


def test_a_retry_on_another_worker_stops_the_first_attempt(workers: list[Launcher], backend: Backend) -> None:
    backend.replies.update(single=Reply(never=True))

    def attempt(server: Launcher, key: str, api_key: str = "k") -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        body = {"model": "Single", "messages": [{"role": "user", "content": backend.hello}], "stream": False}
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps(body),
            {"Content-Type": "application/json", "X-Idempotency-Key": key, "Authorization": f"Bearer {api_key}"},
        )
        return connection

    with contextlib.ExitStack() as open_:
        open_.callback(attempt(workers[0], "same").close)
        first = backend.wait_call("single", PATIENCE)
        open_.callback(attempt(workers[1], "same", "another client").close)
        other = backend.wait_call("single", PATIENCE, 2)
        open_.callback(attempt(workers[1], "same").close)
        backend.wait_call("single", PATIENCE, 3)
        assert first.wait_ended(PATIENCE) and first.client_left
        for number in range(6):
            open_.callback(attempt(workers[number % 3], "together").close)
        # Three for the first part, and one of the six.
        assert until(lambda: sum(not call.client_left for call in backend.calls("single")) == 3, PATIENCE)
        assert len(backend.calls("single")) >= 4 and not other.client_left


# -- the gate ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["wilmer", "endpoint"])
def test_the_limit_is_that_of_all_workers(start: Start, backend: Backend, level: str) -> None:
    workers = start(3, "--concurrency", "2", "--concurrency-level", level)
    events, numbers = [threading.Event() for _ in range(12)], itertools.count()
    backend.replies.update(single=lambda request: says(request, "single", held=events[next(numbers)]))
    statuses: list[int] = []
    threads = [
        threading.Thread(
            target=lambda number=number: statuses.append(
                workers[number % 3]
                .request(
                    "POST",
                    "/v1/chat/completions",
                    {"model": "Single", "messages": [{"role": "user", "content": backend.hello}]},
                    PATIENCE,
                )
                .status
            )
        )
        for number in range(12)
    ]
    for thread in threads:
        thread.start()
    for count in range(2, 13):
        # One more for each that has ended.
        backend.wait_call("single", PATIENCE, count)
        time.sleep(0.1)
        assert len(backend.calls("single")) == count
        events[count - 2].set()
    events[11].set()
    for thread in threads:
        thread.join(PATIENCE)
    assert statuses == [200] * 12
    # What needs no slot never waits.
    with contextlib.ExitStack() as open_:
        backend.replies.update(single=Reply(never=True))
        for server in workers[:2]:
            open_.enter_context(server.open("Single", stream=False))
        backend.wait_call("single", PATIENCE, 14)
        for server in workers:
            assert server.request("GET", "/v1/models").status == 200 and delete(server, "unknown") == 200


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_the_slots_of_a_killed_worker_serve_others(start: Start, backend: Backend) -> None:
    one, two = start(2, "--concurrency", "1")
    backend.replies.update(single=Reply(never=True), plain=lambda request: says(request, "plain"))
    with one.open("Single", stream=False):
        backend.wait_call("single", PATIENCE)
        with two.open("Plain", stream=False) as waiting:
            time.sleep(1)
            assert not backend.calls("plain")
            assert one.process is not None
            one.process.send_signal(signal.SIGKILL)  # type: ignore[attr-defined,unused-ignore]
            backend.wait_call("plain", PATIENCE)
            assert b" 200 " in read_until(waiting, b"says hello", PATIENCE)


def test_a_request_that_waits_too_long_for_another_worker(start: Start, backend: Backend) -> None:
    one, two = start(2, "--concurrency", "1", "--concurrency-timeout", "1")
    backend.replies.update(single=Reply(never=True))
    with one.open("Single", stream=False):
        backend.wait_call("single", PATIENCE)
        assert two.ask("Plain").status == 503
        assert not backend.calls("plain")


# -- workflow locks ----------------------------------------------------------------------------------------------------


def test_a_workflow_lock_holds_on_all_workers(workers: list[Launcher], backend: Backend) -> None:
    one, two, _ = workers
    held = threading.Event()
    backend.replies.update(single=lambda request: says(request, "single", held=held))
    with contextlib.ExitStack() as open_:
        open_.callback(held.set)
        first = open_.enter_context(one.open("Locked", stream=False))
        backend.wait_call("single", PATIENCE)
        assert two.ask("Locked").text == "" and len(backend.calls("single")) == 1
        held.set()
        assert b"single says hello" in read_until(first, b"says hello", PATIENCE)
        # The lock ends with its run, which ends before the last byte of its answer is sent.
        assert two.ask("Locked").text == "single says hello."


# -- KoboldCpp ---------------------------------------------------------------------------------------------------------


def test_an_abort_spares_the_call_of_another_worker(workers: list[Launcher], backend: Backend) -> None:
    one, two, _ = workers
    backend.replies.update(kobold=Reply(never=True))
    with one.open("Kobold", stream=False), two.open("Kobold", stream=False) as second:
        calls = [backend.wait_call("kobold", PATIENCE, count) for count in (1, 2)]
        second.close()
        assert until(lambda: any(call.client_left for call in calls), PATIENCE)
        # As long as it may take, where an abort is sent.
        time.sleep(1)
        assert backend.aborts == []
    # Now nothing else runs there.
    assert until(lambda: len(backend.aborts) == 1, PATIENCE)
