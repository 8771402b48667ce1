"""Servers that run one call at a time: what waits in the program, in which order, and what gives way."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from Tests.api.front_dialects import FRONTS, Front
from Tests.integration.gate_cases import Ask
from Tests.integration.launcher import (
    USER,
    Backend,
    ConfigTree,
    Launcher,
    dechunked,
    endpoint,
    llm_node,
    read_to_end,
    read_until,
    says,
    standard_tree,
    stuck,
)
from Tests.patience import PATIENCE
from Tests.stub_backend import RecordedRequest, Reply
from Tests.workflows.engine_lab import until

pytestmark = pytest.mark.slow

QUIET_SECONDS = 0.3
MOMENT = 2.9  # three seconds, and what clocks may differ by


def tree_for(folder: Path, url: str, **user_keys: object) -> ConfigTree:
    tree = standard_tree(folder / "Public", url)
    user = json.loads((tree.configs / f"Users/{USER}.json").read_text(encoding="utf-8"))
    tree.write(f"Users/{USER}.json", {**user, "backgroundNodesYield": True, **user_keys})
    tree.write("Endpoints/Stub.json", endpoint(url, parallelCalls=1))
    tree.shared("Memory", llm_node("answer", returnToUser=True), llm_node("memory"), llm_node("after"))
    return tree


@pytest.fixture(scope="module")
def busy(shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """A launcher without a gate, whose LLM server runs one call at a time."""
    tree = tree_for(tmp_path_factory.mktemp("busy"), shared_backend.url)
    with Launcher(
        "run_waitress.py",
        "--PublicDirectory",
        tree.public,
        "--User",
        USER,
        "--concurrency",
        "0",
        backend=shared_backend,
    ) as server:
        yield server


@contextmanager
def held(server: Launcher, backend: Backend) -> Iterator[None]:
    """The only place of the LLM server is taken."""
    backend.replies["single"] = stuck("Once ", "upon ", "a ")
    with server.open("Single", stream=True) as sock:
        read_until(sock, b"upon")
        backend.replies.pop("single")
        yield


def waits(server: Launcher, calls: int) -> bool:
    """Whether as many calls as given have begun to wait since the last look."""
    return until(lambda: len(re.findall(r"waits for its turn", server.output())) >= calls, PATIENCE)


def counted(server: Launcher) -> int:
    return len(re.findall(r"waits for its turn", server.output()))


def test_calls_wait_here_and_not_in_the_llm_server(busy: Launcher, backend: Backend) -> None:
    """In the order of their arrival; the line of the request and the summary of its run say how long."""
    before = counted(busy)
    with held(busy, backend):
        asks = []
        for number in range(4):
            asks.append(Ask(busy, f"{number} {backend.hello}", stream=number % 2 == 0))
            assert waits(busy, before + number + 1)
        time.sleep(QUIET_SECONDS)
        assert backend.nodes() == ["single"]
    answers = [ask.answer(PATIENCE) for ask in asks]
    assert all(answer.status == 200 for answer in answers)
    texts = [call.json["messages"][-1]["content"].split()[0] for call in backend.calls()]
    assert texts[1:] == ["0", "1", "2", "3"]
    request_id = answers[3].headers["x-request-id"]
    line = re.compile(rf"Request {request_id}: route .*, waited \d+\.\d\d s in the queue, answered after ")
    assert until(lambda: line.search(busy.output()) is not None), busy.output()
    assert re.search(r"Node 1: Standard \|\| 'single' .*, waited \d+\.\d\d s for its turn", busy.output())


@pytest.mark.parametrize("front", FRONTS, ids=lambda front: front.path)
def test_heartbeats_go_on_while_a_call_waits(busy: Launcher, backend: Backend, front: Front) -> None:
    with held(busy, backend):
        sock = busy.open_front(front, "Single", True)
        head = read_until(sock, b"\r\n\r\n", PATIENCE)
        beats = read_until(sock, b"\n\n" if not front.ollama else b"\n", PATIENCE)
    with sock:
        assert front.streamed(dechunked(head + beats + read_to_end(sock, PATIENCE))) == "single says hello."


@pytest.mark.parametrize("how", ["left", "cancelled"])
def test_a_waiting_call_is_taken_out_and_never_sent(busy: Launcher, backend: Backend, how: str) -> None:
    before = counted(busy)
    with held(busy, backend):
        ask = Ask(busy, f"gone {backend.hello}")
        assert waits(busy, before + 1)
        request_id = re.findall(r"Request ([0-9a-f-]{36}): its call of endpoint 'Stub' waits", busy.output())[-1]
        if how == "left":
            ask.leave()
        else:
            assert busy.request("DELETE", "/api/chat", {"request_id": request_id}).status == 200
            assert ask.answer(PATIENCE).text == ""
        # Its line comes when all of its work is over, while the only place is still taken.
        busy.wait_output(f"Request {request_id}: route ", PATIENCE)
    assert busy.ask("Single").status == 200
    assert all(b"gone" not in call.body for call in backend.calls())


def first_hangs(count: int, go_on: threading.Event) -> Callable[[RecordedRequest], Reply]:
    """No answer to the first calls, and to others once ``go_on`` is set."""
    calls: list[RecordedRequest] = []

    def reply(request: RecordedRequest) -> Reply:
        calls.append(request)
        if len(calls) <= count:
            return Reply(never=True)
        return says(request, "memory", held=go_on)

    return reply


def test_work_behind_an_answer_gives_way_and_is_done_later(busy: Launcher, backend: Backend) -> None:
    """Its call is cancelled at the LLM server, and made anew when nobody waits; the third time, it runs to its end."""
    go_on = threading.Event()
    backend.replies["memory"] = first_hangs(2, go_on)
    assert busy.ask("Memory").text == "answer says hello."
    for count in (1, 2):
        call = backend.wait_call("memory", count=count)
        began = time.monotonic()
        assert busy.ask("Single").text == "single says hello."
        assert time.monotonic() - began < PATIENCE
        assert call.wait_ended(PATIENCE) and call.client_left
    third = backend.wait_call("memory", count=3)
    before = counted(busy)
    message = Ask(busy, backend.hello)
    assert waits(busy, before + 1)
    go_on.set()
    assert message.answer().status == 200
    assert third.answered_at is not None and not third.client_left
    backend.wait_call("after")
    assert backend.nodes() == ["answer", "memory", "single", "memory", "single", "memory", "single", "after"]
    output = busy.output()
    assert "gives way to a message; it begins again when no client waits (2 of 2 times)" in output
    # Both calls that gave way are counted.
    assert busy.wait_output("5 calls", PATIENCE)


def test_it_begins_a_moment_after_the_answer(busy: Launcher, backend: Backend) -> None:
    """And what follows comes without another one; a machine that is too busy to show that gets another chance."""
    pauses: list[float] = []
    while not pauses or (pauses[-1] >= MOMENT and len(pauses) < 3):
        began, count = time.monotonic(), len(pauses) + 1
        busy.ask("Memory")
        call = backend.wait_call("memory", count=count)
        assert call.received_at - began >= MOMENT
        pauses.append(backend.wait_call("after", count=count).received_at - call.received_at)
    assert pauses[-1] < MOMENT


TITLE = (
    '### Task:\nGenerate a title. {}\n### Output:\nJSON format: {{ "title": "x" }}\n### Chat History:\n'
    "<chat_history>\nUSER: hi\n</chat_history>"
)


@pytest.mark.parametrize(
    "flags",
    [("--concurrency", "3"), ("--concurrency", "3", "--concurrency-level", "endpoint")],
    ids=["requests", "calls"],
)
def test_a_title_gives_its_place_to_a_chat(backend: Backend, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """The gate has slots for both, the LLM server has a place for one."""
    tree = tree_for(tmp_path, backend.url, backgroundTaskWorkflow="Task")
    tree.private("Task", llm_node("task", returnToUser=True))
    calls: list[RecordedRequest] = []

    def reply(request: RecordedRequest) -> Reply:
        calls.append(request)
        return Reply(never=True) if len(calls) == 1 else says(request, "task")

    backend.replies["task"] = reply
    with Launcher(
        "run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, *flags, backend=backend
    ) as server:
        title = Ask(server, TITLE.format(backend.hello), model=USER)
        first = backend.wait_call("task", PATIENCE)
        assert server.ask("Single").text == "single says hello."
        assert title.answer(PATIENCE).text == "task says hello."
    assert first.client_left and backend.nodes() == ["task", "single", "task"]


def test_a_stop_of_the_server_ends_what_waits(shared_backend: Backend, backend: Backend, tmp_path: Path) -> None:
    tree = tree_for(tmp_path, shared_backend.url)
    with Launcher(
        "run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0", backend=backend
    ) as server:
        backend.replies["memory"] = Reply(never=True)
        server.ask("Memory")
        backend.wait_call("memory", PATIENCE)
        backend.replies["single"] = Reply(never=True)
        running = Ask(server, backend.hello)
        backend.wait_call("single", PATIENCE)
        waiting = Ask(server, f"waiting {backend.hello}")
        assert waits(server, 2)
        assert server.process is not None
        server.process.terminate()
        assert {running.answer().status, waiting.answer().status} == {503}
        assert server.process.wait(PATIENCE) == 0
    assert all(b"waiting" not in call.body for call in backend.calls())


def test_the_time_limit_does_not_run_while_they_wait(shared_backend: Backend, backend: Backend, tmp_path: Path) -> None:
    tree = tree_for(tmp_path, shared_backend.url, backgroundNodesTimeoutInSeconds=4)
    with Launcher(
        "run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0", backend=backend
    ) as server:
        request_id = server.ask("Memory").headers["x-request-id"]
        with held(server, backend):
            time.sleep(5.5)
        backend.wait_call("after", PATIENCE)
        done = re.compile(rf"Request {request_id}: route .* done after .*")
        assert until(lambda: done.search(server.output()) is not None, PATIENCE)
        assert "cancelled" not in done.search(server.output())[0]  # type: ignore[index]
        backend.replies["memory"] = Reply(never=True)
        request_id = server.ask("Memory").headers["x-request-id"]
        server.wait_output(f"{request_id} is cancelled: background nodes took too long")
