"""Runs made up for the pages of the console: as the API sends them, with no server behind them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Row = list[Any]
SECOND = 1_000_000

SYSTEM = (
    "You are an experienced programmer. Answer with working code and say in one sentence what it does.\n"
    "Today is Tuesday. What you know about the user:\n"
    + "".join(f"- fact {n}: prefers tabs, tea and terse answers; said so in message {n * 7}.\n" for n in range(1, 90))
)
CODE = """Here is a small snake game.

```python
import curses, random

def main(screen):
    curses.curs_set(0)
    height, width = screen.getmaxyx()
    snake = [(height // 2, width // 2 + n) for n in range(3)]
    while True:
        key = screen.getch()
```

It runs in a terminal of any size."""


def run_id(number: int) -> str:
    return hashlib.sha256(str(number).encode("ascii")).hexdigest()[:32]


def facts(number: int, started: int, status: str = "ok", **changes: object) -> dict[str, object]:
    """The facts of a run, with the keys of the API."""
    ended = None if status in ("running", "answered", "queued") else started + 12_400_000
    made: dict[str, object] = {
        "id": run_id(number),
        "kind": "chat",
        "origin": None,
        "status": status,
        "error.type": None,
        "user": "me",
        "key_hash": None,
        "private": False,
        "client": "openaichat",
        "model": "me:assistant",
        "stream": True,
        "workflow": "Coding",
        "route": "CODING -> Coding",
        "route.reason": "category CODING, named by Categorize at attempt 1 of 2",
        "discussion": "mill",
        "conversation": "0011223344556677",
        "started": started,
        "queued": None,
        "first_token": started + 9_100_000,
        "answered": started + 12_200_000,
        "ended": ended,
        "nodes": 3,
        "calls": 3,
        "endpoints": ["Worker", "Main"],
        "usage.input_tokens": 18_204,
        "usage.output_tokens": 168,
        "usage.cache_read.input_tokens": 412,
        "estimated": False,
        "config": [
            {"path": "Workflows/demo/Coding.json", "hash": "ab" * 16},
            {"path": "Endpoints/Main.json", "hash": "cd" * 16},
        ],
        "question": "Write a snake game",
        "answer": CODE[:500],
        "error": None,
        "pinned": False,
        "note": "",
        "texts": "kept",
    }
    return made | changes


@dataclass
class Spans:
    """Rows with counted ids."""

    rows: list[Row] = field(default_factory=list)

    def add(
        self,
        parent: int | None,
        kind: str,
        name: str,
        start: int,
        duration: int,
        status: str = "ok",
        texts: dict[str, object] | None = None,
        **attributes: Any,
    ) -> int:
        named = {key.replace("__", "."): value for key, value in attributes.items()}
        self.rows.append([len(self.rows) + 1, parent, kind, name, start, duration, status, named, texts or {}])
        return len(self.rows)

    def node(self, parent: int, index: int, title: str, node_type: str, start: int, duration: int, **more: Any) -> int:
        return self.add(
            parent, "node", title, start, duration, node__index=index, node__title=title, node__type=node_type, **more
        )

    def call(
        self,
        parent: int,
        endpoint: str,
        start: int,
        duration: int,
        answer: str = "An answer.",
        *,
        failed: str = "",
        stands_in_for: str = "",
        status: str = "ok",
        messages: list[dict[str, str]] | None = None,
        **timing: int,
    ) -> int:
        """A call with its attempts: ``failed`` is the error of a first one."""
        payload = {
            "model": "qwen3-32b",
            "messages": messages
            or [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Write a snake game"}],
            "temperature": 0.6,
            "top_p": 0.95,
            "max_tokens": 2048,
            "stream": True,
        }
        first = timing.get("first", duration // 2)
        call = self.add(
            parent,
            "llm",
            endpoint,
            start,
            duration,
            status,
            {"answer": answer} if status == "ok" else {},
            endpoint=endpoint,
            streamed=True,
            time_to_first_token=first if status != "error" else None,
            chunks=168,
            failed_endpoints=[stands_in_for] if stands_in_for else [],
        )
        begin = start
        common = {
            "operation__name": "chat",
            "provider__name": "openaiChatCompletion",
            "server__address": "127.0.0.1",
            "server__port": 8080,
            "request__model": "qwen3-32b",
            "request__temperature": 0.6,
        }
        if failed:
            self.add(
                call,
                "attempt",
                stands_in_for or endpoint,
                start,
                210_000,
                "error",
                {"payload": payload, "error": failed},
                **common,
                http__status=None,
            )
            begin = start + 210_000
        self.add(
            call,
            "attempt",
            endpoint,
            begin,
            start + duration - begin,
            status,
            {"payload": payload},
            **common,
            response__model="qwen3-32b",
            response__finish_reasons=["stop"],
            http__status=200,
            stands_in_for=stands_in_for or None,
            usage__input_tokens=timing.get("read", 18_204),
            usage__output_tokens=timing.get("written", 168),
            usage__cache_read__input_tokens=timing.get("reused", 412),
            backend__load_ms=timing.get("load"),
            backend__prompt_ms=timing.get("prompt_ms", first // 1000),
            backend__generate_ms=(duration - first) // 1000,
        )
        return call


def chat_spans() -> list[Row]:
    """A routed chat: gate, route, a retry, a nested workflow, a tool, parallel nodes, nodes after the answer."""
    spans = Spans()
    spans.rows[spans.add(None, "wait", "gate", 0, 380_000, ahead=2) - 1][7]["for"] = "gate"
    route = spans.add(
        None,
        "route",
        "Categorize",
        380_000,
        1_020_000,
        candidates=["CODING", "WRITING", "CHAT"],
        chosen="CODING",
        attempts=1,
    )
    spans.call(route, "Worker", 390_000, 1_000_000, "CODING", first=700_000, read=812, written=3, reused=790)
    root = spans.add(None, "workflow", "Coding", 1_400_000, 15_000_000, workflow__name="Coding", folder="demo")
    node = spans.node(root, 1, "Analyse", "Standard", 1_410_000, 1_200_000, endpoint="Worker", preset="Fast")
    spans.rows[node - 1][8] = {"output": "The user wants a game for the terminal."}
    spans.call(
        node,
        "Worker",
        1_420_000,
        1_180_000,
        "The user wants a game for the terminal.",
        failed="Connection refused: 127.0.0.1:8081",
        first=640_000,
        read=812,
        written=44,
        reused=0,
    )
    search = spans.node(root, 2, "Look it up", "CustomWorkflow", 1_420_000, 900_000)
    nested = spans.add(
        search, "workflow", "Search", 1_425_000, 880_000, workflow__name="Search", folder="demo", nested=True
    )
    page = spans.node(nested, 1, "Read the page", "WebFetch", 1_430_000, 760_000)
    spans.add(
        page,
        "tool",
        "web page",
        1_440_000,
        700_000,
        "ok",
        {"arguments": {"url": "https://example.org/snake"}, "result": "Snake is ..."},
        tool__name="web page",
        tool__type="web",
        server__address="example.org",
        http__status=200,
    )
    spans.add(
        nested,
        "note",
        "WARNING",
        2_200_000,
        0,
        "ok",
        {"message": "the page was cut at 20,000 characters"},
        level="WARNING",
        logger="web",
    )
    spans.add(
        root,
        "memory",
        "read vector",
        2_620_000,
        90_000,
        "ok",
        {},
        store="vector",
        action="read",
        found=4,
        trail="12 of 14 pieces on the path, 1 hole",
    )
    answer = spans.node(
        root, 3, "Answer", "Standard", 2_720_000, 9_500_000, endpoint="Main", preset="Code", responder=True
    )
    spans.rows[answer - 1][8] = {"output": CODE}
    spans.call(
        answer, "Main", 2_730_000, 9_480_000, CODE, stands_in_for="", first=6_400_000, load=1_900, prompt_ms=4_500
    )
    after = spans.node(
        root, 4, "Remember", "QualityMemory", 12_250_000, 4_000_000, endpoint="Worker", after_answer=True
    )
    spans.call(after, "Worker", 12_300_000, 3_900_000, "The user likes snakes.", first=900_000)
    return spans.rows


def long_spans(nodes: int) -> list[Row]:
    """One workflow with many nodes, each with a call; some fail and are retried."""
    spans = Spans()
    root = spans.add(None, "workflow", "Long", 0, nodes * 100_000, workflow__name="Long", folder="demo")
    for index in range(1, nodes + 1):
        start = (index - 1) * 100_000
        node = spans.node(
            root, index, f"Step {index}", "Standard", start, 98_000, endpoint="Worker", responder=index == nodes
        )
        spans.call(
            node,
            "Worker",
            start + 1_000,
            95_000,
            f"Step {index} is done.",
            failed="" if index % 40 else "Timeout",
            first=40_000,
            messages=[{"role": "user", "content": f"Do step {index}"}],
        )
    return spans.rows


def failed_spans() -> list[Row]:
    spans = Spans()
    root = spans.add(None, "workflow", "Chat", 0, 650_000, "error", workflow__name="Chat", folder="demo")
    node = spans.node(root, 1, "Answer", "Standard", 4_000, 640_000, endpoint="Main", responder=True)
    spans.rows[node - 1][6] = "error"
    call = spans.call(node, "Main", 5_000, 630_000, "", failed="HTTP 503: the model is still loading", status="error")
    spans.rows[call][8]["error"] = "HTTP 503: the model is still loading"
    spans.rows[call + 1][8]["error"] = "Connection refused: 127.0.0.1:8080"
    return spans.rows


def running_spans() -> list[Row]:
    rows = chat_spans()[:-5]
    for row in rows:
        if row[3] in ("Coding", "Answer"):
            row[5], row[6] = 0, "running"
    spans = Spans(rows)
    spans.add(
        next(row[0] for row in rows if row[3] == "Answer"),
        "llm",
        "Main",
        2_730_000,
        0,
        "running",
        endpoint="Main",
        streamed=True,
        time_to_first_token=3_000_000,
    )
    return spans.rows


EXPLANATION = {
    "text": "12.2 s: 4.5 s Main read 18,204 prompt tokens (412 reused), 3.1 s Main wrote 168 (54/s), "
    "1.9 s Main loaded its model, "
    "1.2 s node 1 'Analyse' on Worker, 1.0 s Worker named the category, 0.4 s at the gate, 0.1 s the rest.",
    "parts": [
        {"what": "waited at the gate", "kind": "gate", "endpoint": None, "us": 380_000, "tokens": None, "node": None},
        {
            "what": "named the category",
            "kind": "write",
            "endpoint": "Worker",
            "us": 1_020_000,
            "tokens": None,
            "node": None,
        },
        {
            "what": "first attempt failed",
            "kind": "retry",
            "endpoint": "Worker",
            "us": 210_000,
            "tokens": None,
            "node": "Analyse",
        },
        {
            "what": "node 1 'Analyse'",
            "kind": "write",
            "endpoint": "Worker",
            "us": 990_000,
            "tokens": None,
            "node": "Analyse",
        },
        {
            "what": "loaded its model",
            "kind": "load",
            "endpoint": "Main",
            "us": 1_900_000,
            "tokens": None,
            "node": "Answer",
        },
        {
            "what": "read 18,204 prompt tokens (412 reused)",
            "kind": "prompt",
            "endpoint": "Main",
            "us": 4_500_000,
            "tokens": 18_204,
            "node": "Answer",
        },
        {
            "what": "wrote 168 tokens (54/s)",
            "kind": "write",
            "endpoint": "Main",
            "us": 3_080_000,
            "tokens": 168,
            "node": "Answer",
        },
        {"what": "WilmerAI itself", "kind": "own", "endpoint": None, "us": 120_000, "tokens": None, "node": None},
    ],
    "odd": ["Worker refused the first attempt of node 1 'Analyse'; the second succeeded."],
}
PREFIX_TEXT = (
    'Same up to character 104 of 6,512 (2%). First difference in message 1 (system): "Today is Monday" / '
    '"Today is Tuesday".'
)


def many(newest: int, count: int) -> Iterator[dict[str, object]]:
    """Runs as they stand in a list, newest first, one each 90 seconds."""
    questions = (
        "Write a snake game",
        "What is the capital of Australia, and why is it not Sydney? Please be thorough.",
        "Hello",
        "Summarise the attached minutes",
        "Continue the story where the mill burns down",
        "Refactor this function",
    )
    for number in range(count):
        started = newest - number * 90 * SECOND
        changes: dict[str, object] = {"question": questions[number % len(questions)]}
        status = "ok"
        if number % 13 == 4:
            status = "failed"
            changes |= {
                "error": "Main: HTTP 503, the model is still loading",
                "error.type": "BackendUnavailableError",
                "first_token": None,
                "answered": None,
                "usage.input_tokens": None,
                "usage.output_tokens": None,
                "ended": started + 230_000,
            }
        elif number % 29 == 7:
            status = "cancelled"
            changes |= {"answered": None}
        elif number % 41 == 9:
            status = "refused"
            changes |= {
                "workflow": None,
                "route": None,
                "route.reason": None,
                "first_token": None,
                "answered": None,
                "endpoints": [],
                "usage.input_tokens": None,
                "usage.output_tokens": None,
                "ended": started + 900,
            }
        if number % 6 == 3:
            changes |= {
                "kind": "task",
                "route": None,
                "route.reason": "background task",
                "workflow": "Task",
                "endpoints": ["Worker"],
                "stream": False,
                "first_token": None,
                "estimated": True,
            }
        if number % 17 == 5:
            changes |= {"private": True, "question": None, "answer": None, "texts": "private"}
        yield facts(number, started, status, **changes)
