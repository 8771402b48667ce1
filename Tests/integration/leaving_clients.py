"""Clients that ask and go away before they have their answer, in many phases and ways, and the back-end they ask.

``leave_all`` sends many of them to a server that serves ``SLOTS`` requests at a time. The server's workflows are in
``leaving_tree``: the back-end answers ``node:quick`` at once, begins to answer ``node:stuck``, and says nothing to
``node:never``, which holds until the server lets go of the call.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import select
import socket
import struct
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from Tests.api.front_dialects import FRONTS, OPENAI_CHAT, Front
from Tests.integration.launcher import ConfigTree, child_node, llm_node, read_until
from Tests.integration.memory_chat import conversation, memory_tree
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_answer, chat_chunk, node_of, sse_reply

SLOTS = 24
WORKERS = 16
PATIENCE_SECONDS = 60.0
CHAIN = 10
KEPT_TALKS = 4  # conversations with memories
NOTED_MESSAGES = 20
LINGER = struct.pack("ii", 1, 0)
TOKEN = b"upon"
_ID = re.compile(rb"(?i)x-request-id: ([0-9a-f-]{36})")


class LeftBackend(StubBackend):
    """Counts the calls by node in ``called``, and keeps nothing else of them."""

    def __init__(self) -> None:
        super().__init__()
        self.called: Counter[str] = Counter()

    def respond(self, request: RecordedRequest) -> Reply:
        self.requests.clear()
        node = node_of(request)
        self.called[node] += 1
        if node == "quick":  # closed, so that no idle connection is left to be told from a lost one
            return chat_answer(request, ["Once ", "upon."], keep_alive=False)
        if node == "stuck" and request.json.get("stream"):
            return sse_reply([chat_chunk({"content": word}) for word in ("Once ", "upon ", "a ")], hang=True)
        return Reply(never=True)


def leaving_tree(public: Path, url: str) -> ConfigTree:
    tree = memory_tree(public, url, vector=False, summary=False)
    respond = {"returnToUser": True}
    tree.private("WriteMemory", llm_node("never"))
    tree.private("Deep", llm_node("quick"), llm_node("never"))
    tree.private("DeepStuck", llm_node("quick"), llm_node("stuck", **respond))
    tree.shared("Quick", llm_node("quick", **respond))
    tree.shared("Never", llm_node("quick"), llm_node("never", **respond))
    tree.shared("Stuck", llm_node("stuck", **respond))
    tree.shared("Nested", child_node("Deep"), llm_node("quick", **respond))
    tree.shared("NestedStuck", child_node("DeepStuck", **respond), llm_node("quick"))
    tree.shared("Locked", {"type": "WorkflowLock", "workflowLockId": "{Discussion_Id}"}, llm_node("stuck", **respond))
    tree.shared("After", llm_node("quick", **respond), llm_node("never"))
    tree.shared("Notes", llm_node("quick", **respond), {"type": "QualityMemory"})
    return tree


# -- one client --------------------------------------------------------------------------------------------------------
class LeavingClients:
    """Clients of the server at ``port``. Thread-safe. ``left`` counts the requests given up so far, by phase."""

    def __init__(self, port: int, seed: int = 0) -> None:
        self.left: Counter[str] = Counter()
        self._port = port
        self._seed = seed
        self._chance = random.Random(seed)
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def open(
        self, model: str, stream: bool = True, front: Front = OPENAI_CHAT, key: str = "", talk: str = ""
    ) -> socket.socket:
        """Send a request and leave the answer unread. ``talk``: the conversation; by default one of its own."""
        text = f"[DiscussionId]{talk or f'talk-{self._seed}-{next(self._numbers)}'}[/DiscussionId]Hello"
        data = json.dumps(front.body(text, model=model, stream=stream)).encode()
        if model == "Notes":
            data = json.dumps(
                {
                    "model": model,
                    "stream": stream,
                    "messages": [*conversation(talk, NOTED_MESSAGES), {"role": "user", "content": "Hello"}],
                }
            ).encode()
        header = f"X-Idempotency-Key: {key}\r\n" if key else ""
        return self._send(f"POST {front.path}", header, data)

    def delete(self, request_id: bytes) -> None:
        with self._send("DELETE /api/chat", "", json.dumps({"request_id": request_id.decode()}).encode()) as sock:
            read_until(sock, b"cancelled", PATIENCE_SECONDS)

    def _send(self, line: str, header: str, data: bytes) -> socket.socket:
        head = (
            f"{line} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{header}"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        sock = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_SECONDS)
        sock.sendall(head.encode() + data)
        return sock

    def close(self, sock: socket.socket) -> None:
        """Politely, or with a reset."""
        if self._chance.random() < 0.3:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        sock.close()

    def hold_all_slots(self) -> list[socket.socket]:
        """As many streams as the server has slots, all of them begun."""
        held = [self.open("Stuck") for _ in range(SLOTS)]
        for sock in held:
            read_until(sock, TOKEN, PATIENCE_SECONDS)
        return held

    def pause(self, most: float) -> None:
        time.sleep(self._chance.uniform(0, most))

    def count(self, phase: str, requests: int = 1) -> None:
        with self._lock:
            self.left[phase] += requests

    def some_front(self) -> Front:
        return self._chance.choice(FRONTS)


# -- the ways to leave -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Phase:
    """Where a request is when its client leaves.

    Attributes:
        pause: most seconds that the client waits before it leaves, once it has read ``seen``.
        talks: how many conversations the clients share; 0: each has its own.
        delete: the request is stopped by its id, and its client reads on; else the client closes the connection.
    """

    name: str
    model: str
    stream: bool = True
    seen: bytes = b""
    pause: float = 0.05
    delete: bool = False
    talks: int = 0

    def leave(self, clients: LeavingClients, number: int) -> None:
        """One client. Raises AssertionError if it does not hear what it should."""
        front = OPENAI_CHAT if self.delete else clients.some_front()
        talk = f"kept-{number % self.talks}" if self.talks else ""
        with clients.open(self.model, self.stream, front, talk=talk) as sock:
            heard = read_until(sock, self.seen, PATIENCE_SECONDS) if self.seen else b""
            clients.pause(self.pause)
            if self.delete:
                found = _ID.search(heard)
                assert found
                clients.delete(found[1])
                assert b"[DONE]" in heard or b"[DONE]" in read_until(sock, b"[DONE]", PATIENCE_SECONDS)
            clients.close(sock)
        clients.count(self.name)


PHASES = (
    Phase("at once, streamed", "Never", pause=0),
    Phase("at once, whole", "Never", False, pause=0),
    Phase("prompt processing", "Never"),
    Phase("prompt processing, whole", "Never", False),
    Phase("in mid-stream", "Stuck", seen=TOKEN),
    Phase("in mid-stream, by id", "Stuck", seen=TOKEN, delete=True),
    Phase("nested", "Nested", False),
    Phase("nested, in mid-stream", "NestedStuck", seen=TOKEN),
    Phase("holding a workflow lock", "Locked", seen=TOKEN),
    Phase("holding a workflow lock, by id", "Locked", seen=TOKEN, delete=True),
    Phase("nodes after the answer", "After", seen=b"[DONE]", delete=True),
    Phase("writing memories", "Notes", seen=b"[DONE]", delete=True, talks=KEPT_TALKS),
)

DISPLACED, AT_THE_GATE = "displaced by a retry", "at the gate"
ALL_WAYS = {*(phase.name for phase in PHASES), DISPLACED, AT_THE_GATE}


def displace(clients: LeavingClients, number: int) -> None:
    """A chain of attempts with one key: each ends the one before it, and the client of the last closes."""
    with ExitStack() as stack:
        before: socket.socket | None = None
        for _ in range(CHAIN):
            sock = stack.enter_context(clients.open("Stuck", key=f"key-{number}"))
            read_until(sock, TOKEN, PATIENCE_SECONDS)
            if before is not None:
                read_until(before, b"[DONE]", PATIENCE_SECONDS)
            before = sock
    clients.count(DISPLACED, CHAIN)


def wait_in_vain(clients: LeavingClients, number: int) -> None:
    """Two attempts at the gate, while all slots are taken: one takes the place of the other, then leaves too."""
    with clients.open("Quick", False, key=f"gate-{number}") as first:
        clients.pause(0.1)
        with clients.open("Quick", False, key=f"gate-{number}") as second:
            answered, _, _ = select.select([first, second], [], [], PATIENCE_SECONDS)  # they may overtake each other
            assert len(answered) == 1
            assert read_until(answered[0], b"\r\n\r\n", PATIENCE_SECONDS).startswith(b"HTTP/1.1 200 ")
            clients.pause(0.1)
            clients.close(second if answered == [first] else first)
    clients.count(AT_THE_GATE, 2)


def leave_all(clients: LeavingClients, requests: int) -> None:
    """Have about ``requests`` requests given up: most in the table's phases, the others displaced or at the gate."""
    with ThreadPoolExecutor(WORKERS) as pool:
        rounds = requests * 8 // 10 // len(PHASES) + 1
        jobs: list[Future[None]] = [
            pool.submit(phase.leave, clients, number) for number in range(rounds) for phase in PHASES
        ]
        jobs += [pool.submit(displace, clients, number) for number in range(max(1, requests // 10 // CHAIN))]
        for job in jobs:
            job.result()
        held = clients.hold_all_slots()
        waiting = [pool.submit(wait_in_vain, clients, number) for number in range(max(1, requests // 20))]
        for job in waiting:
            job.result()
        for sock in held:
            clients.close(sock)
