"""``Tests.workers_behind_proxy``: whether the conformance suite meets two servers that share a database, and files."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from Tests.integration.launcher import (
    PROJECT,
    USER,
    Backend,
    ConfigTree,
    clean_environment,
    llm_node,
    read_to_end,
    read_until,
    says,
    standard_tree,
    stuck,
)
from Tests.postgres_lab import Server
from Tests.workflows.engine_lab import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.deep,
    pytest.mark.skipif(sys.platform == "win32", reason="PostgreSQL is that of Debian"),
]
PATIENCE = 60.0
NAME = "shared"


class Command:
    """The command as a process."""

    def __init__(self, folder: Path, postgres: Server, *words: str) -> None:
        self.log = folder / "output.txt"
        with self.log.open("ab") as log:
            self.begins = log.tell()
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "Tests.workers_behind_proxy",
                    "2",
                    "--admin",
                    postgres.admin,
                    "--database",
                    postgres.url("{name}"),
                    "--",
                    "run_waitress.py",
                    *words,
                ],
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean_environment(),
            )
        self.port = 0

    def output(self) -> str:
        return self.log.read_bytes()[self.begins :].decode("utf-8")

    def __enter__(self) -> Command:
        assert until(lambda: self.process.poll() is not None or "servers behind" in self.output(), PATIENCE)
        found = re.search(r"servers behind http://127\.0\.0\.1:(\d+)", self.output())
        self.port = int(found[1]) if found else 0
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        # It gives its servers 13 s.
        self.process.wait(PATIENCE)


@pytest.fixture
def tree(tmp_path: Path, backend: Backend) -> ConfigTree:
    tree = standard_tree(tmp_path / "Public", backend.url)
    tree.shared("Stamped", llm_node("stamped", returnToUser=True, addDiscussionIdTimestampsForLLM=True))
    return tree


@pytest.fixture
def start(tree: ConfigTree, tmp_path: Path, postgres: Server) -> Callable[..., Command]:
    def start(*words: str) -> Command:
        return Command(
            tmp_path,
            postgres,
            "--ConfigDirectory",
            str(tree.configs),
            "--PublicDirectory",
            str(tree.public),
            "--concurrency",
            "0",
            "--port",
            "0",
            *words,
        )

    return start


def body(model: str, stream: bool = False, text: str = "hello") -> bytes:
    return json.dumps(
        {
            "model": model,
            "stream": stream,
            "messages": [
                {"role": "system", "content": f"[DiscussionId]{NAME}[/DiscussionId]"},
                {"role": "user", "content": "first"},
                {"role": "assistant", "content": "yes"},
                {"role": "user", "content": text},
            ],
        }
    ).encode()


def test_requests_go_to_two_servers_by_turns_and_conversations_are_files(
    start: Callable[..., Command], tree: ConfigTree
) -> None:
    stored = tree.public / "DiscussionIds" / NAME / "timestamps.json"
    stored.parent.mkdir(parents=True)

    def turns(port: int, *texts: str) -> Iterator[str | None]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
            for text in texts:
                connection.request(
                    "POST", "/v1/chat/completions", body("Stamped", text=text), {"Content-Type": "application/json"}
                )
                answer = connection.getresponse()
                assert answer.status == 200 and answer.read()
                yield answer.getheader("X-Wilmer-Worker")

    def has_times_of(*texts: str) -> bool:
        # Keys are digests of messages.
        keys = {hashlib.sha256(text.encode()).hexdigest() for text in texts} | {"of a file"}
        return keys <= set(json.loads(stored.read_bytes()))

    with start("--User", USER) as command:
        # The conformance suite writes a case's files when the server answers already.
        stored.write_text('{"of a file": "(Monday, 2026-01-05 10:00:00)"}', "utf-8")
        first, second, *others = turns(command.port, *"abcdef")
        assert {first, second} == {"1", "2"} and others == [first, second] * 2
        # While the servers run.
        assert until(lambda: has_times_of(*"abcdef"), PATIENCE)
    assert command.process.returncode == 0, command.output()
    # After a restart, what was exported is known, and the conversation goes on.
    with start("--User", USER) as command:
        assert len(list(turns(command.port, *"gh"))) == 2
    assert command.process.returncode == 0, command.output()
    assert "0 discussions imported, 1 known, 0 differ" in command.output() and has_times_of(*"abcdefgh")


def test_a_client_that_leaves_and_a_stream(start: Callable[..., Command], backend: Backend) -> None:
    backend.replies.update(single=stuck("Once ", "upon ", "a "))

    def opened(port: int) -> socket.socket:
        data = body("Single", stream=True, text=backend.hello)
        client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
        )
        return client

    with start("--User", USER) as command:
        with opened(command.port) as client:
            # Each piece comes when the back-end says it, which never ends.
            read_until(client, b"upon", PATIENCE)
        call = backend.wait_call("single", PATIENCE)
        assert call.wait_ended(PATIENCE) and call.client_left
        with opened(command.port) as client:
            read_until(client, b"upon", PATIENCE)
            command.process.send_signal(signal.SIGTERM)
            # The servers end their streams.
            assert read_to_end(client, PATIENCE)
    assert command.process.returncode == 0, command.output()


def test_nodes_after_an_answer_show_in_the_folder(
    start: Callable[..., Command], tree: ConfigTree, backend: Backend
) -> None:
    ends, working = threading.Event(), tree.public / "DiscussionIds" / "working"
    backend.replies.update(slow=lambda request: says(request, "slow", held=ends))

    def changes(within: float = PATIENCE) -> bool:
        before = working.stat().st_mtime_ns
        return until(lambda: working.stat().st_mtime_ns != before, within)

    with start("--User", USER) as command, contextlib.ExitStack() as finally_:
        finally_.callback(ends.set)
        connection = http.client.HTTPConnection("127.0.0.1", command.port, timeout=PATIENCE)
        finally_.callback(connection.close)
        connection.request(
            "POST", "/v1/chat/completions", body("Background", text=backend.hello), {"Content-Type": "application/json"}
        )
        assert connection.getresponse().status == 200
        assert until(working.exists, PATIENCE) and changes() and changes()
        ends.set()
        assert until(lambda: not changes(within=1), PATIENCE)
    assert command.process.returncode == 0, command.output()


def test_what_goes_wrong_ends_everything(start: Callable[..., Command], tree: ConfigTree) -> None:
    with start("--User", "nobody") as command:
        assert command.port == 0 and command.process.returncode == 1 and "nobody" in command.output()
    broken = tree.public / "DiscussionIds" / NAME / "vector_memory.db"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no database " * 1000)
    with start("--User", USER) as command:
        with pytest.raises((OSError, http.client.HTTPException)):
            connection = http.client.HTTPConnection("127.0.0.1", command.port, timeout=PATIENCE)
            connection.request("POST", "/v1/chat/completions", body("Single"))
            connection.getresponse()
        assert command.process.wait(PATIENCE) == 1 and "state import ended with status 1" in command.output()
