"""The configuration and the LLM server of ``benchmarks/soak.py``: two users, of whom one has searchable memories.

The LLM server repeats the last message token by token, answers memory nodes so that memories are really made, and
fails in turn in every way it knows where a workflow asks for it.
"""

from __future__ import annotations

import itertools
import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from Tests.integration.launcher import USER, ConfigTree, child_node, llm_node
from Tests.integration.memory_chat import MemoryBackend, memory_tree
from Tests.stub_backend import (
    AFTER_PIECES,
    BEFORE_STATUS,
    RecordedRequest,
    Reply,
    StubBackend,
    chat_answer,
    chat_chunk,
    node_of,
    sse_reply,
    status_reply,
)

SEARCHER = "bob"
USERS = (USER, SEARCHER)
TOKEN_SECONDS = 0.02
_FAILURES = (
    status_reply(400),
    status_reply(404),
    status_reply(503),
    Reply(drop=BEFORE_STATUS),
    Reply(drop=BEFORE_STATUS, reset=True),
    Reply(body=b"<html>no JSON</html>"),
    sse_reply([{"error": {"message": "scripted"}}]),
    sse_reply([chat_chunk({"content": "Once "})], drop=AFTER_PIECES, reset=True),
)


class SoakBackend(MemoryBackend):
    """Keeps nothing of the requests it has answered."""

    def __init__(self) -> None:
        super().__init__()
        self._failures = itertools.cycle(_FAILURES)

    def respond(self, request: RecordedRequest) -> Reply:
        self.requests.clear()
        self._calls.clear()
        node = node_of(request)
        if node == "failing":
            return next(self._failures)
        if node not in ("echo", "slow"):
            return super().respond(request)
        body = request.json
        text, delay = str(body["messages"][-1]["content"]), 0.5 if node == "slow" else 0.1
        tokens = [text[i : i + 4] for i in range(0, len(text), 4)]
        return chat_answer(request, tokens, delay=TOKEN_SECONDS, header_delay=0.0 if body.get("stream") else delay)


def soak_tree(public: Path, url: str) -> ConfigTree:
    """``USERS`` share all workflows; memories are files for one of them, and searchable for the other."""
    tree = memory_tree(public, url, vector=False)
    recall = public / "Configs" / "Workflows" / "_shared" / "Recall.json"
    recall.rename(recall.with_name("RecallFiles.json"))
    with TemporaryDirectory() as folder:
        other = memory_tree(Path(folder), url, vector=True)
        shutil.copytree(other.configs / "Workflows" / USER, tree.configs / "Workflows" / SEARCHER)
        shutil.copy(other.configs / "Users" / f"{USER}.json", tree.configs / "Users" / f"{SEARCHER}.json")
        shutil.copy(other.configs / "Workflows" / "_shared" / "Recall.json", recall.with_name("RecallVectors.json"))
    respond = {"returnToUser": True}
    for user in USERS:
        for name, node in (("Steps", llm_node("echo")), ("Speaker", llm_node("echo", **respond))):
            tree.write(f"Workflows/{user}/{name}.json", {"nodes": [node, llm_node("slow")]})
    tree.shared("Echo", llm_node("echo", **respond))
    tree.shared("Slow", llm_node("slow", **respond))
    tree.shared("Background", llm_node("echo", **respond), llm_node("slow"), child_node("Steps"))
    tree.shared("Nested", child_node("Steps"), llm_node("echo", **respond))
    tree.shared("NestedSpeaker", child_node("Speaker", **respond), llm_node("slow"))
    tree.shared("Locked", {"type": "WorkflowLock", "workflowLockId": "soak"}, llm_node("echo", **respond))
    tree.shared("Failing", llm_node("failing", **respond))
    return tree


@contextmanager
def backend_process(make: Callable[[], StubBackend] = SoakBackend) -> Iterator[str]:
    """The URL of what ``make`` makes in a process of its own, which ends with the block."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, make), daemon=True)
    process.start()
    try:
        yield str(ours.recv())
    finally:
        ours.send("end")
        process.join(10)


def _serve(pipe: Connection, make: Callable[[], StubBackend]) -> None:
    with make() as backend:
        pipe.send(backend.url)
        pipe.recv()
