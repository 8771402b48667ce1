"""Requests that wait: streams that are not silent meanwhile, and front-ends' own requests that let chats go first."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.api.front_dialects import FRONTS, message_at
from Tests.integration.gate_cases import Ask, wait_in_queue
from Tests.integration.launcher import (
    USER,
    Backend,
    Launcher,
    dechunked,
    llm_node,
    read_to_end,
    read_until,
    says,
    standard_tree,
    stuck,
)
from Tests.stub_backend import RecordedRequest, Reply
from Tests.workflows.engine_lab import until

pytestmark = pytest.mark.slow

BUSY = "Server busy, concurrency limit reached"
TIMEOUT = 14.0  # seconds; more than the time after which a stream gets its headers
TITLE = (
    '### Task:\nGenerate a title. {}\n### Output:\nJSON format: {{ "title": "x" }}\n### Chat History:\n'
    "<chat_history>\nUSER: hi\n</chat_history>"
)


@pytest.fixture(scope="module")
def servers_of(shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Launcher]]:
    """Launchers that run one request, or one call, at a time."""
    with contextlib.ExitStack() as running:
        made: dict[tuple[str, str], Launcher] = {}

        def get(script: str, level: str = "wilmer") -> Launcher:
            if (script, level) not in made:
                folder: Path = tmp_path_factory.mktemp("waiting")
                tree = standard_tree(folder / "Public", shared_backend.url)
                user = json.loads((tree.configs / f"Users/{USER}.json").read_text(encoding="utf-8"))
                tree.write(f"Users/{USER}.json", {**user, "backgroundTaskWorkflow": "Task"})
                tree.write(f"Workflows/{USER}/Task.json", {"nodes": [llm_node("task", returnToUser=True)]})
                made[script, level] = running.enter_context(
                    Launcher(
                        script,
                        "--PublicDirectory",
                        tree.public,
                        "--User",
                        USER,
                        "--concurrency",
                        "1",
                        "--concurrency-level",
                        level,
                        "--concurrency-timeout",
                        str(TIMEOUT),
                        backend=shared_backend,
                    )
                )
            return made[script, level]

        yield get


@contextlib.contextmanager
def held(server: Launcher, backend: Backend) -> Iterator[socket.socket]:
    """One stream that has begun and does not end: the only slot is taken."""
    backend.replies["single"] = stuck("Once ", "upon ", "a ")
    with server.open("Single", stream=True) as sock:
        read_until(sock, b"upon")
        backend.replies.pop("single")
        yield sock


@pytest.mark.contract
def test_a_stream_that_waits_is_not_silent(script: str, servers_of: Callable[..., Launcher], backend: Backend) -> None:
    """In every dialect; a whole answer waits in silence. When the time is up, the stream says so in an event."""
    server = servers_of(script)
    with held(server, backend), contextlib.ExitStack() as open_:
        began = time.monotonic()
        streams = [(front, open_.enter_context(server.open_front(front, "Single", True))) for front in FRONTS]
        whole = [(front, open_.enter_context(server.open_front(front, "Single", False))) for front in FRONTS]
        heads = [read_until(sock, b"\r\n\r\n") for _, sock in streams]
        assert time.monotonic() - began > 4.5
        for (front, sock), head in zip(streams, heads, strict=True):
            assert head.startswith(b"HTTP/1.1 200 ")
            body = dechunked(head + read_to_end(sock))
            *beats, error = front.items(body)
            assert front.error(error, 503) == BUSY
            # One each second, or one after five.
            assert len(beats) >= (2 if front.ollama else 1)
        for front, sock in whole:
            answer = read_to_end(sock)
            assert answer.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 5" in answer
            assert message_at(front.path, json.loads(answer.partition(b"\r\n\r\n")[2]), 503) == BUSY
    assert backend.nodes() == ["single"]
    assert server.ask("Single").status == 200


@pytest.mark.contract
def test_a_stream_that_has_its_headers_gets_the_slot(
    script: str, servers_of: Callable[..., Launcher], backend: Backend
) -> None:
    server = servers_of(script)
    with contextlib.ExitStack() as open_:
        with held(server, backend):
            streams = [(front, open_.enter_context(server.open_front(front, "Single", True))) for front in FRONTS]
            heads = [read_until(sock, b"\r\n\r\n") for _, sock in streams]
        for (front, sock), head in zip(streams, heads, strict=True):
            assert front.streamed(dechunked(head + read_to_end(sock))) == "single says hello."
    assert server.ask("Single").status == 200


def test_a_client_that_leaves_with_its_headers_gives_its_place_up(
    servers_of: Callable[..., Launcher], backend: Backend
) -> None:
    server = servers_of("run_waitress.py")
    with held(server, backend):
        with server.open_front(FRONTS[0], "Single", True) as sock:
            head = read_until(sock, b"data: ")
        request_id = head.partition(b"X-Request-Id: ")[2].partition(b"\r\n")[0].decode()
        # Whichever of the two looks first.
        noticed = (f"the client of request {request_id} has gone", f"Request {request_id} is cancelled")
        assert until(lambda: any(line in server.output() for line in noticed))
        stays = Ask(server, f"stays {backend.hello}")
    assert stays.answer().status == 200 and backend.nodes() == ["single"] * 2


# -- front-ends' own requests ------------------------------------------------------------------------------------------


def first_hangs(then: Any) -> Callable[[RecordedRequest], Reply]:
    """No answer to the first call, and then answers of ``then``."""
    calls: list[RecordedRequest] = []

    def reply(request: RecordedRequest) -> Reply:
        calls.append(request)
        answer: Reply = Reply(never=True) if len(calls) == 1 else then(request)
        return answer

    return reply


def title(server: Launcher, backend: Backend, **options: Any) -> Ask:
    return Ask(server, TITLE.format(backend.hello), model=USER, **options)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
@pytest.mark.parametrize("level", ["wilmer", "endpoint"])
@pytest.mark.contract
def test_a_title_gives_way_to_a_chat(
    script: str, servers_of: Callable[..., Launcher], backend: Backend, level: str, path: str
) -> None:
    server = servers_of(script, level)
    backend.replies["task"] = first_hangs(lambda request: says(request, "task"))
    asked_first = title(server, backend, path=path)
    call = backend.wait_call("task")
    assert server.ask("Single").text == "single says hello."
    answer = asked_first.answer()
    assert answer.status == 200 and b"task says hello." in answer.body
    assert backend.nodes() == ["task", "single", "task"]
    # The back-end looks at its connection now and then.
    assert call.wait_ended() and call.client_left
    server.wait_output("gives way to a chat")


@pytest.mark.parametrize("level", ["wilmer", "endpoint"])
def test_a_title_gives_way_once(servers_of: Callable[..., Launcher], backend: Backend, level: str) -> None:
    server = servers_of("run_waitress.py", level)
    backend.replies["task"] = first_hangs(lambda request: says(request, "task", header_delay=1.5))
    asked_first = title(server, backend)
    backend.wait_call("task")
    assert server.ask("Single").status == 200
    backend.wait_call("task", count=2)
    assert server.ask("Single").status == 200
    assert b"task says hello." in asked_first.answer().body
    assert backend.nodes() == ["task", "single", "task", "single"]


def test_a_title_waits_behind_chats(servers_of: Callable[..., Launcher], backend: Backend) -> None:
    server = servers_of("run_waitress.py")
    with held(server, backend):
        waiting = wait_in_queue(server, TITLE.format(backend.hello), model=USER)[0]
        chats = [wait_in_queue(server, backend.hello)[0] for _ in range(2)]
    assert all(ask.answer().status == 200 for ask in [waiting, *chats])
    assert backend.nodes() == ["single"] * 3 + ["task"]


def test_a_client_that_leaves_ends_its_title(servers_of: Callable[..., Launcher], backend: Backend) -> None:
    server = servers_of("run_waitress.py")
    backend.replies["task"] = first_hangs(lambda request: Reply(never=True))
    asked_first = title(server, backend)
    backend.wait_call("task")
    assert server.ask("Single").status == 200
    second = backend.wait_call("task", count=2)
    asked_first.leave()
    assert second.wait_ended() and second.client_left
    assert server.ask("Single").status == 200
