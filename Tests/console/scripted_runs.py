"""Runs for scripted answers of the console's API."""

from __future__ import annotations

# 14:00 on some day, in microseconds.
START = 1_790_000_000_000_000
SECOND = 1_000_000


def run(run_id: str, **facts: object) -> dict[str, object]:
    """Return the facts of a run that answered after 3 seconds."""
    return {
        "id": run_id,
        "kind": "chat",
        "origin": None,
        "status": "ok",
        "error.type": None,
        "user": "me",
        "key_hash": None,
        "private": False,
        "client": "openaichatcompletion",
        "model": "me:chat",
        "stream": True,
        "workflow": "Coding",
        "route": "CODING -> Coding",
        "route.reason": "category CODING, named by Categorize at attempt 1 of 2",
        "discussion": None,
        "conversation": None,
        "started": START,
        "queued": None,
        "first_token": START + SECOND,
        "answered": START + 3 * SECOND,
        "ended": START + 3 * SECOND,
        "nodes": 2,
        "calls": 2,
        "endpoints": ["Main"],
        "usage.input_tokens": 4096,
        "usage.output_tokens": 97,
        "usage.cache_read.input_tokens": None,
        "estimated": False,
        "config": [],
        "question": "Write a snake game",
        "answer": "Here it is",
        "error": None,
        "pinned": False,
        "note": None,
        "texts": "kept",
        **facts,
    }


RUN = run("3f2a91c0e5d24b7f8a6c1d2e3f405162")
LATER = run("77b0e5d2a91c4f3b8d6e5f4a3b2c1d0e", started=START + 60 * SECOND)


def spans() -> list[list[object]]:
    """Return the rows of a workflow with one node and its call."""
    node = {"node.index": 1, "node.type": "Standard", "node.title": "Analyse"}
    payload = {"model": "m", "messages": [{"role": "user", "content": "Write a snake game"}]}
    return [
        [1, None, "workflow", "Coding", 0, 3 * SECOND, "ok", {"workflow.name": "Coding", "folder": "me"}, {}],
        [2, 1, "node", "Analyse", 0, 3 * SECOND, "ok", node, {"output": "Here it is"}],
        [3, 2, "llm", "Main", 0, 3 * SECOND, "ok", {"endpoint": "Main"}, {"answer": "Here it is"}],
        [4, 3, "attempt", "Main", 0, 3 * SECOND, "ok", {"endpoint": "Main"}, {"payload": payload}],
    ]


def run_answer(facts: dict[str, object] = RUN) -> dict[str, object]:
    """Return the answer of ``GET runs/ID``."""
    part = {"what": "writing", "kind": "writing", "endpoint": "Main", "us": 3 * SECOND, "tokens": 97, "node": "Analyse"}
    return {
        "run": facts,
        "spans": spans(),
        "event": 1,
        "prefix": {},
        "explanation": {"text": "3.0 s: Main wrote 97 tokens.", "parts": [part], "odd": []},
    }
