"""Messages that are sent while memories are being written by a server that runs one call at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from Tests.integration.launcher import USER, ConfigTree, Launcher, endpoint, streamed_text
from Tests.integration.memory_chat import ANSWER, Exchange, MemoryBackend, conversation, looked_at, memory_tree
from Tests.integration.test_memory_crash import LOOKBACK, read
from Tests.workflows.engine_lab import until

pytestmark = pytest.mark.slow

PASS_SECONDS = 90.0
# Far below the pass, far above an answer on a busy machine.
PROMPT = 30.0
FIRST = 12
LONG = 60.0


@pytest.fixture
def backend() -> Iterator[MemoryBackend]:
    with MemoryBackend() as running:
        yield running


@pytest.fixture(params=["vector", "files"])
def tree(request: pytest.FixtureRequest, backend: MemoryBackend, tmp_path: Path) -> ConfigTree:
    made = memory_tree(
        tmp_path / "Public",
        backend.url,
        vector=request.param == "vector",
        summary=False,
        condenseMemories=False,
        useStateDocument=False,
    )
    user = json.loads((made.configs / f"Users/{USER}.json").read_text(encoding="utf-8"))
    made.write(f"Users/{USER}.json", {**user, "backgroundNodesYield": True})
    made.write("Endpoints/Stub.json", endpoint(backend.url, parallelCalls=1))
    return made


def launched(tree: ConfigTree) -> Launcher:
    return Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER)


def ask(server: Launcher, count: int, name: str = "talk", stream: bool = True) -> Exchange:
    exchange = Exchange(server.port, "Chat", conversation(name, count), stream).wait()
    assert exchange.answered
    assert ANSWER in (streamed_text(exchange.body) if stream else exchange.body.decode("utf-8"))
    assert exchange.seconds < PROMPT, f"the answer took {exchange.seconds:.1f} s"
    return exchange


def remembered(tree: ConfigTree, name: str = "talk") -> list[int]:
    """The numbers of the messages in memories, in their order; twice what is there twice."""
    folder = tree.public / "DiscussionIds" / name
    stored = read(folder) if folder.is_dir() else None
    return (stored.rows or stored.remembered) if stored is not None else []


def memory_calls(backend: MemoryBackend) -> int:
    return sum(name in ("memory", "facts") for name in backend.calls)


def open_file(server: Launcher, tree: ConfigTree) -> None:
    """A first look at the conversation, too short for memories: a new one waits for more text than an old one."""
    ask(server, 4)
    assert until(lambda: looked_at(tree.public / "DiscussionIds" / "talk"), LONG)


def begin(server: Launcher, backend: MemoryBackend, tree: ConfigTree) -> None:
    """Leaves the server at work on a memory, which takes very long."""
    backend.delays = {"memory": PASS_SECONDS, "facts": PASS_SECONDS}
    open_file(server, tree)
    ask(server, FIRST)
    assert until(lambda: memory_calls(backend) == 1, LONG), "no memory was asked for"


def test_a_message_is_answered_at_once_and_the_memory_is_written_after_it(
    tree: ConfigTree, backend: MemoryBackend
) -> None:
    with launched(tree) as server:
        begin(server, backend, tree)
        # Before the message: after it the memory is asked for once more, maybe before the answer is seen here.
        backend.delays = {}
        ask(server, FIRST + 2)
        assert until(lambda: set(remembered(tree)) >= set(range(FIRST - LOOKBACK)), LONG)
        ask(server, FIRST + 8)
        due = FIRST + 8 - LOOKBACK
        assert until(lambda: len(remembered(tree)) > due - 5, LONG)
        found = remembered(tree)
        assert found == list(range(len(found))), "nothing is missing, and nothing is there twice"


def test_messages_in_a_row_do_not_starve_the_memories(tree: ConfigTree, backend: MemoryBackend) -> None:
    """Twenty, each half a second after the answer to the last one: the first memory is written among them."""
    with launched(tree) as server:
        begin(server, backend, tree)
        backend.delays = {"memory": 1.0, "facts": 1.0, "answer": 0.3}
        written = []
        for count in range(FIRST + 2, FIRST + 2 + 40, 2):
            ask(server, count)
            # A program that writes without any pause would leave no moment in which nobody waits.
            time.sleep(0.5)
            written.append(len(remembered(tree)))
        assert any(written), "no memory was written between twenty messages"
        last = FIRST + 40 - LOOKBACK
        backend.delays = {}
        ask(server, FIRST + 42)
        assert until(lambda: len(remembered(tree)) >= last - 3, LONG)
        found = remembered(tree)
        assert found == list(range(len(found)))


def test_a_killed_server_loses_nothing_and_writes_nothing_twice(tree: ConfigTree, backend: MemoryBackend) -> None:
    """Killed while the call of a memory waits to be made again, after others were stored."""
    with launched(tree) as server:
        open_file(server, tree)
        ask(server, FIRST)
        assert until(lambda: bool(remembered(tree)), LONG)
        before = remembered(tree)
        backend.delays = {"memory": PASS_SECONDS, "facts": PASS_SECONDS}
        known = memory_calls(backend)
        ask(server, FIRST + 10)
        assert until(lambda: memory_calls(backend) > known, LONG)
        ask(server, FIRST + 12)
        assert server.process is not None
        server.process.kill()
        server.process.wait(LONG)
    assert remembered(tree)[: len(before)] == before
    backend.delays = {}
    with launched(tree) as server:
        ask(server, FIRST + 12)
        due = FIRST + 12 - LOOKBACK
        assert until(lambda: len(remembered(tree)) > due - 5, LONG)
        found = remembered(tree)
        assert found == list(range(len(found)))
