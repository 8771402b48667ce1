"""Memories are made after the answer, and nobody waits for them: neither this request's client nor the next one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from Tests.integration.launcher import USER, Launcher, streamed_text
from Tests.integration.memory_chat import ANSWER, Exchange, MemoryBackend, conversation, looked_at, memory_tree
from Tests.integration.test_memory_crash import LOOKBACK, Stored, read
from Tests.workflows.engine_lab import until

LONG = 60.0  # seconds in which what must come has come, on a busy machine
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
FIRST, SECOND = 12, 14  # messages


@pytest.fixture(scope="module", params=["vector", "files"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def backend() -> Iterator[MemoryBackend]:
    with MemoryBackend() as running:
        yield running
        running.release()


@pytest.fixture(scope="module")
def public(kind: str, backend: MemoryBackend, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return memory_tree(
        tmp_path_factory.mktemp(kind) / "Public",
        backend.url,
        vector=kind == "vector",
        summary=False,
        chunkEstimatedTokenSize=400,
        vectorMemoryChunkEstimatedTokenSize=400,
        condenseMemories=False,
        useStateDocument=False,
    ).public


@pytest.fixture(scope="module")
def server(public: Path) -> Iterator[Launcher]:
    with Launcher("run_waitress.py", "--PublicDirectory", public, "--User", USER) as running:
        yield running


def ask(server: Launcher, model: str, name: str, count: int, stream: bool = False) -> Exchange:
    exchange = Exchange(server.port, model, conversation(name, count), stream).wait()
    assert exchange.answered
    assert ANSWER in (streamed_text(exchange.body) if stream else exchange.body.decode("utf-8"))
    return exchange


def remembered(public: Path, name: str) -> list[int]:
    folder = public / "DiscussionIds" / name
    stored = read(folder) if folder.is_dir() else Stored()
    return stored.rows or stored.remembered


def open_file(server: Launcher, public: Path, name: str) -> None:
    """A first look at a conversation, too short for memories: a new one waits for more text than an old one."""
    ask(server, "Chat", name, 4)
    assert until(lambda: looked_at(public / "DiscussionIds" / name), LONG)


def count_calls(backend: MemoryBackend) -> int:
    return sum(name in ("memory", "facts") for name in backend.calls)


def begin(server: Launcher, backend: MemoryBackend, public: Path, name: str, stream: bool) -> None:
    """Leaves the server at work on the memories of the first messages, until the back-end is released."""
    open_file(server, public, name)
    backend.hold("memory", "facts")
    before = count_calls(backend)
    # An answer that waited for the memories would never come.
    ask(server, "Chat", name, FIRST, stream)
    assert until(lambda: count_calls(backend) > before, LONG), "no memory was asked for"


def written(public: Path, name: str, count: int) -> bool:
    """Wait for the memories of the first ``count`` messages."""
    return until(lambda: remembered(public, name) == list(range(count)), LONG)


@STREAM
def test_answers_do_not_wait_for_memories(server: Launcher, backend: MemoryBackend, public: Path, stream: bool) -> None:
    name = f"own-{stream}"
    begin(server, backend, public, name, stream)
    backend.release()
    assert written(public, name, FIRST - LOOKBACK)


@STREAM
def test_next_request_does_not_wait(server: Launcher, backend: MemoryBackend, public: Path, stream: bool) -> None:
    """Its own memories wait for their turn, and are those that the first did not make."""
    name = f"next-{stream}"
    begin(server, backend, public, name, stream)
    ask(server, "Chat", name, SECOND, stream)
    ask(server, "Recall", name, SECOND, stream)
    assert not remembered(public, name)
    backend.release()
    assert written(public, name, FIRST - LOOKBACK)
    ask(server, "Chat", name, SECOND + FIRST, stream)
    assert written(public, name, SECOND + FIRST - LOOKBACK)


def test_recall_reads_what_is_there(server: Launcher, backend: MemoryBackend, public: Path) -> None:
    """A node before the responder reads while another request holds the turn of the memories."""
    name = "recall"
    begin(server, backend, public, name, False)
    backend.release()
    assert written(public, name, FIRST - LOOKBACK)
    backend.hold("memory", "facts")
    before = count_calls(backend)
    ask(server, "Chat", name, 2 * FIRST)
    assert until(lambda: count_calls(backend) > before, LONG)
    ask(server, "Recall", name, 2 * FIRST)
    system = str(backend.requests[-1].json["messages"][0]["content"])
    assert all(f"#{number}#" in system for number in range(FIRST - LOOKBACK)), system
    backend.release()


def test_server_stays_prompt_for_others(server: Launcher, backend: MemoryBackend, public: Path) -> None:
    """Many conversations at work on their memories take no place from new requests."""
    names = [f"many-{number}" for number in range(12)]
    for name in names:
        open_file(server, public, name)
    backend.hold("memory", "facts")
    before = count_calls(backend)
    for name in names:
        ask(server, "Chat", name, FIRST)
    assert until(lambda: count_calls(backend) - before >= 1, LONG)
    ask(server, "Recall", "somebody", 4)
    assert not any(remembered(public, name) for name in names)
    backend.release()
    assert until(lambda: all(len(remembered(public, name)) == FIRST - LOOKBACK for name in names), LONG)
