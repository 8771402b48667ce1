"""The next request finds nothing of one that was answered a moment ago: no lock, no slot, no key, no entry.

The client sends it as soon as the last byte that means something to it has arrived, as the packages of OpenAI and
Anthropic do: they read a stream up to ``[DONE]`` or ``message_stop``, and not the end of its body.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from Tests.amounts import amount
from Tests.api.answers.test_last_byte import APIS, Api
from Tests.integration.launcher import USER, Backend, ConfigTree, Launcher, standard_tree
from Tests.tables import table

LOCK = {"type": "WorkflowLock", "workflowLockId": "gate"}
ANSWER = {"type": "StaticResponse", "content": "answer", "returnToUser": True}
# Each row sends so many pairs of requests, and a stop of the second.
PAIRS = amount(4, 250)
# The connections of a client.
MOST_OPEN = 100
# Of an unknown session. They make each search for a lock take milliseconds, and so the end of a run: sent before that,
# the last byte would leave its client time for the next request.
OTHER_LOCKS = amount(10_000, 30_000)
_LENGTH = re.compile(rb"(?im)^content-length: *(\d+)")
_ID = re.compile(rb"(?im)^x-request-id: *(\S+)")


@pytest.fixture(scope="module")
def tree(shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> ConfigTree:
    tree = standard_tree(tmp_path_factory.mktemp("ending") / "Public", shared_backend.url)
    tree.write(
        f"Users/{USER}.json",
        {"allowSharedWorkflows": True, "chatPromptTemplateName": "_chatonly", "encryptUsingApiKey": True},
    )
    tree.private("_DefaultWorkflow", LOCK, ANSWER)
    return tree


@pytest.fixture(scope="module")
def locked(script: str, tree: ConfigTree) -> Iterator[Launcher]:
    """A server with one slot, whose only workflow takes a lock."""
    with Launcher(script, "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "1") as server:
        with contextlib.closing(Talker(server)) as first:
            first.ask(APIS["OpenAI chat"], stream=False)
        add_locks(tree.public / "SqlLiteDBs" / f"WilmerDb.{USER}.sqlite")
        yield server


def add_locks(path: Path) -> None:
    expires = f"{datetime.now() + timedelta(hours=1):%Y-%m-%d %H:%M:%S.%f}"
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as database, database:
        if database.execute("SELECT count(*) FROM WorkflowLocks").fetchone()[0] < OTHER_LOCKS:
            database.executemany(
                "INSERT INTO WorkflowLocks (WilmerSessionId, WorkflowId, WorkflowLockId, ExpirationDate) "
                "VALUES ('other', ?, ?, ?)",
                ((f"run-{number}", f"lock-{number}", expires) for number in range(OTHER_LOCKS)),
            )


@dataclass
class Talker:
    """A client that reads an answer no further than to its last byte that means something.

    ``keeps``: it sends the next request on the same connection, if the server has not said that it closes that.
    """

    server: Launcher
    keeps: bool = False

    def __post_init__(self) -> None:
        self._connections: list[socket.socket] = []
        self._open: socket.socket | None = None

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def ask(self, api: Api, stream: bool) -> tuple[str, bytes]:
        """Return the id of the request, and its answer."""
        path = api.stream_path if stream and api.stream_path else api.path
        return self._answered("POST", path, {"stream": stream, **api.body, "model": USER}, api.end if stream else b"")

    def stop(self, request_id: str) -> None:
        """Send a stop for a request."""
        self._answered("DELETE", "/api/chat", {"request_id": request_id}, b"")

    def _answered(self, method: str, path: str, body: object, end: bytes) -> tuple[str, bytes]:
        data = json.dumps(body).encode()
        connection = self._open or self._connected()
        connection.sendall(
            b"%b %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-Idempotency-Key: k\r\n"
            b"Authorization: Bearer secret\r\nContent-Length: %d\r\n\r\n%b"
            % (method.encode(), path.encode(), len(data), data)
        )
        answer = b""
        while not _is_complete(answer, end):
            piece = connection.recv(65536)
            assert piece, f"the server has closed the connection after {answer!r}"
            answer += piece
        head, _, rest = answer.partition(b"\r\n\r\n")
        # A stream is read to its end only on a connection that is used again.
        self._open = connection if self.keeps and not end and b"connection: close" not in head.lower() else None
        found = _ID.search(head)
        assert head.startswith(b"HTTP/1.1 200 ") and found, answer
        return found[1].decode(), rest

    def _connected(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=60)
        self._connections.append(connection)
        # A server takes a thousand. The oldest one has had its answer long ago.
        if len(self._connections) > MOST_OPEN:
            self._connections.pop(0).close()
        return connection


def _is_complete(answer: bytes, end: bytes) -> bool:
    head, separator, body = answer.partition(b"\r\n\r\n")
    if not separator:
        return False
    length = _LENGTH.search(head)
    return len(body) == int(length[1]) if length else bool(end) and end in body


ROWS = [
    (api, stream, keeps)
    for api in APIS
    for stream in (False, True)
    for keeps in (False, True)
    # What ends a stream on Waitress and Eventlet is the end of its connection.
    if not (stream and keeps)
]


@pytest.mark.amounts
@pytest.mark.contract
@table(("api", "stream", "keeps"), ROWS)
def test_the_next_request_finds_nothing_of_the_last(locked: Launcher, api: str, stream: bool, keeps: bool) -> None:
    since = locked.output_size()
    with contextlib.closing(Talker(locked, keeps)) as client:
        for _ in range(PAIRS):
            _, answer = client.ask(APIS[api], stream)
            assert b"answer" in answer, "the lock was held"
            request_id, answer = client.ask(APIS[api], stream)
            assert b"answer" in answer, "the lock was held"
            client.stop(request_id)
    output = locked.output(since)
    assert " waits, " not in output
    # Neither the retry with the key of an earlier request nor the stop found it.
    assert " is cancelled" not in output
    assert output.count("answered after") == 2 * PAIRS


@pytest.mark.amounts
@pytest.mark.slow
def test_the_next_request_on_another_worker(tree: ConfigTree, database_url: str) -> None:
    """What workers hold together is in their database."""
    with contextlib.ExitStack() as running:
        workers = [
            running.enter_context(
                Launcher(
                    "run_waitress.py",
                    "--PublicDirectory",
                    tree.public,
                    "--User",
                    USER,
                    "--database",
                    database_url,
                    "--concurrency",
                    "1",
                )
            )
            for _ in range(2)
        ]
        clients = [running.enter_context(contextlib.closing(Talker(worker))) for worker in workers]
        for api, stream in itertools.product(APIS, (False, True)):
            for client in clients * PAIRS:
                assert b"answer" in client.ask(APIS[api], stream)[1], f"{api}: the lock was held"
        output = "".join(worker.output() for worker in workers)
    assert " waits, " not in output and " is cancelled" not in output
