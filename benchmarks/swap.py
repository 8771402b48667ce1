"""How often a server that holds one model at a time changes it, and how long people wait, by the order of the calls.

    python benchmarks/swap.py [--only assistant,router] [--columns rules,stand-in] [--messages 12]

Some people send messages to the real program, read the answers, think and write again. The LLM server is a simulation:
it answers up to four calls of the loaded model side by side, in the order of their arrival, and takes 5 s to load
another model. All times are divided by 5, and the table shows them as they would be. All cells are measured at the same
time, each with a server of its own; they mostly sleep.

Exit status 1: a cell changes the model more often than its limit.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks.swap_server import SPEED
from Tests.integration.launcher import USER, ConfigTree, Launcher, api_type, endpoint, llm_node, standard_tree
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_chunk, chat_reply, sse_event

LOAD_SECONDS = 5.0
PLACES = 4
# The mean; pauses of people vary widely, and nobody is faster than the least or away for longer than the most.
THINK_SECONDS = 25.0
LEAST_PAUSE, MOST_PAUSE = 5.0, 75.0
PATIENCE_SECONDS = 30
# A limit is the figure of the specification plus this.
TOLERANCE = 0.1

# Seconds of each kind of call: to its first token, and from there to its end.
CALLS: Mapping[str, tuple[float, float]] = {
    "route": (0.7, 0.3),
    "answer": (1.0, 8.0),
    "draft": (1.0, 8.0),
    "think": (1.0, 4.0),
    "words": (0.7, 0.3),
    "memory": (2.0, 4.0),
    "task": (1.0, 1.0),
}
TITLE = '### Task:\nGenerate a title. {{ "title": "x" }} JSON\n### Chat History:\n<chat_history>\n{}\n</chat_history>'
TASKS = {name: TITLE.replace("title", name) for name in ("title", "tags", "follow_ups")}
MEMORY_EVERY = 5
CODE_EVERY = 6


class Row(NamedTuple):
    """A workflow with its people. ``limits``: changes of the model per message by the rules, and with a stand-in."""

    title: str
    workflow: str
    limits: tuple[float, float]
    people: int = 3
    tasks: bool = False


ROWS = {
    "assistant": Row("`me:assistant`", "Assistant", (1.36, 0.02)),
    "tasks": Row("with Open WebUI's own calls", "Assistant", (1.39, 0.02), tasks=True),
    "router": Row("router", "Router", (1.30, 0.02)),
    "code": Row("chat and code models, small router", "Code", (1.50, 0.46)),
    "vector": Row("vector assistant, three models", "Vector", (2.21, 1.13)),
    "six": Row("`me:assistant`, 6 people", "Assistant", (0.75, 0.01), people=6),
}


class Column(NamedTuple):
    title: str
    concurrency: int
    queued: bool = False
    stand_in: bool = False


COLUMNS = {
    "one": Column("without keys, `--concurrency` 1", 1),
    "any": Column("without keys, 0", 0),
    "rules": Column("`swapGroup`", 0, queued=True),
    "stand-in": Column("with `swapStandIn`", 0, queued=True, stand_in=True),
}


# -- the LLM server ---------------------------------------------------------------------------------------------------


class SwapBackend(StubBackend):
    """A server that holds one model. ``swaps`` counts the models that it has loaded after the first."""

    def __init__(self) -> None:
        super().__init__()
        self.responder = self._answer
        self.swaps = 0
        self._loaded = ""
        self._running = 0
        self._line: list[object] = []
        self._changed = threading.Condition()

    def __enter__(self) -> SwapBackend:
        self.start()
        return self

    def _answer(self, request: RecordedRequest) -> Reply:
        body = request.json
        model, kind = str(body["model"]), _kind(body)
        first, rest = (seconds / SPEED for seconds in CALLS[kind])
        self._begin(model, request)
        # The place is free when the answer is out, or its client has gone.
        threading.Thread(target=self._end, args=(request, first + rest), daemon=True).start()
        text = "CODE" if "[code]" in request.body.decode() else "CHAT"
        if not body.get("stream"):
            return chat_reply(text, header_delay=first + rest)
        events = [
            sse_event(chat_chunk({"role": "assistant", "content": text})),
            sse_event(chat_chunk({}, "stop")),
            sse_event("[DONE]"),
        ]
        return Reply(
            pieces=events, header_delay=first, delays=[0.0, rest, 0.0], headers={"Content-Type": "text/event-stream"}
        )

    def _begin(self, model: str, request: RecordedRequest) -> None:
        """Wait for a place and for the model, first come, first served."""
        with self._changed:
            self._line.append(request)
            while not (
                self._line[0] is request and self._running < PLACES and (model == self._loaded or not self._running)
            ):
                self._changed.wait(0.05)
                if request.client_left:
                    self._line.remove(request)
                    return
            if model != self._loaded:
                self.swaps += bool(self._loaded)
                self._loaded = model
                time.sleep(LOAD_SECONDS / SPEED)
            self._line.remove(request)
            self._running += 1
            self._changed.notify_all()

    def _end(self, request: RecordedRequest, seconds: float) -> None:
        request.wait_ended(seconds)
        with self._changed:
            self._running -= 1
            self._changed.notify_all()


def _kind(body: Mapping[str, Any]) -> str:
    text = json.dumps(body["messages"][:1])
    return next((kind for kind in CALLS if f"node:{kind}" in text), "answer")


# -- the program -------------------------------------------------------------------------------------------------------


def write_tree(folder: Path, url: str, column: Column) -> ConfigTree:
    """The workflows of all rows, whose nodes name themselves to the back-end."""
    tree = standard_tree(folder / "Public", url)
    user = json.loads((tree.configs / f"Users/{USER}.json").read_text(encoding="utf-8"))
    tree.write(f"Users/{USER}.json", {**user, "backgroundTaskWorkflow": "Task", "backgroundNodesYield": column.queued})
    keys: dict[str, object] = (
        {"swapGroup": "card", "parallelCalls": PLACES, "swapPatienceInSeconds": round(PATIENCE_SECONDS / SPEED)}
        if column.queued
        else {}
    )
    for name, other in {"Main": "", "Worker": "Main", "Coder": "", "Thinker": "", "Helper": "Thinker"}.items():
        extra = {"swapStandIn": other} if other and column.stand_in else {}
        # The helper is the worker of the row with three models.
        model = "Worker" if name == "Helper" else name
        tree.write(f"Endpoints/{name}.json", endpoint(url, modelNameToSendToAPI=model, **keys, **extra))
    tree.write("ApiTypes/Chat.json", api_type())

    def node(kind: str, where: str, **more: object) -> dict[str, object]:
        return llm_node(kind, endpointName=where, **more)

    def answer(where: str = "Main", **more: object) -> dict[str, object]:
        return node("answer", where, returnToUser=True, **more)

    branch = {
        "type": "ConditionalCustomWorkflow",
        "conditionalKey": "{agent1Output}",
        "returnToUser": True,
        "conditionalWorkflows": {"CODE": "CodeAnswer", "Default": "ChatAnswer"},
    }
    tree.private("Task", node("task", "Worker", returnToUser=True))
    tree.private("ChatAnswer", answer())
    tree.private("CodeAnswer", answer("Coder"))
    tree.shared("Assistant", node("route", "Worker"), answer())
    tree.shared("AssistantMemory", node("route", "Worker"), answer(), node("memory", "Worker"))
    tree.shared("Router", node("route", "Worker"), node("route", "Worker"), answer())
    tree.shared("Code", node("route", "Worker"), branch)
    vector = node("think", "Thinker"), node("words", "Helper"), node("draft", "Main"), answer()
    tree.shared("Vector", *vector)
    tree.shared("VectorMemory", *vector, node("memory", "Helper"))
    return tree


# -- the people --------------------------------------------------------------------------------------------------------


@dataclass
class Cell:
    """The measurement of one row in one column."""

    row: Row
    column: Column
    waits: list[float] = field(default_factory=list)
    swaps: int = 0
    problem: str = ""

    def measure(self, messages: int) -> None:
        """Let the people talk; ``messages`` each."""
        try:
            with tempfile.TemporaryDirectory() as folder, SwapBackend() as backend:
                tree = write_tree(Path(folder), backend.url, self.column)
                with Launcher(
                    "benchmarks/swap_server.py",
                    "--PublicDirectory",
                    tree.public,
                    "--User",
                    USER,
                    "--concurrency",
                    str(self.column.concurrency),
                ) as server:
                    self._talk(server, messages)
                    self.swaps = backend.swaps
        except (AssertionError, OSError) as error:
            self.problem = str(error)

    def _talk(self, server: Launcher, messages: int) -> None:
        people = [
            threading.Thread(target=self._person, args=(server.port, number, messages), daemon=True)
            for number in range(self.row.people)
        ]
        for person in people:
            person.start()
        for person in people:
            person.join()

    def _person(self, port: int, number: int, messages: int) -> None:
        chance = random.Random(f"{self.row.workflow} {number}")
        workflow = self.row.workflow
        for turn in range(1, messages + 1):
            pause = min(max(chance.expovariate(1 / THINK_SECONDS), LEAST_PAUSE), MOST_PAUSE)
            time.sleep(pause / SPEED)
            remembers = workflow in ("Assistant", "Vector") and (turn + number) % MEMORY_EVERY == 0
            codes = workflow == "Code" and (turn + 2 * number) % CODE_EVERY == 0
            waited = _ask(port, workflow + ("Memory" if remembers else ""), "[code] Why?" if codes else "Why?")
            self.waits.append(waited)
            if self.row.tasks:
                for name in ("title", "tags", "follow_ups") if turn == 1 else ("follow_ups",):
                    threading.Thread(target=_ask_for_task, args=(port, TASKS[name].format("Why?")), daemon=True).start()

    @property
    def per_message(self) -> float:
        return self.swaps / max(len(self.waits), 1)

    @property
    def limit(self) -> float | None:
        if not self.column.queued:
            return None
        return self.row.limits[self.column.stand_in] + TOLERANCE

    @property
    def is_above(self) -> bool:
        return bool(self.problem) or (self.limit is not None and self.per_message > self.limit)

    def __str__(self) -> str:
        if self.problem or not self.waits:
            return "failed"
        mark = " (!)" if self.is_above else ""
        return f"{self.per_message:.2f} / {statistics.median(self.waits) * SPEED:.1f}{mark}"


def _ask(port: int, model: str, text: str, stream: bool = True) -> float:
    """Send a message and read the answer; returns the seconds until its first word."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    body = json.dumps({"model": model, "stream": stream, "messages": [{"role": "user", "content": text}]})
    began = time.monotonic()
    first = 0.0
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        for line in response:
            if not first and b'"content":"C' in line.replace(b'": "', b'":"'):
                first = time.monotonic() - began
    return first


def _ask_for_task(port: int, text: str) -> None:
    # The server may end before it.
    with contextlib.suppress(OSError, http.client.HTTPException):
        _ask(port, USER, text, stream=False)


# -- the table ---------------------------------------------------------------------------------------------------------


def table(cells: Mapping[tuple[str, str], Cell], rows: Sequence[str], columns: Sequence[str]) -> str:
    heads = ["workflow", *(COLUMNS[name].title for name in columns)]
    lines = [heads, ["---", *["--:"] * len(columns)]]
    lines += [[ROWS[row].title, *(str(cells[row, name]) for name in columns)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="How often models are changed, and how long people wait")
    parser.add_argument("--only", default=",".join(ROWS), help="rows, such as assistant,router")
    parser.add_argument("--columns", default=",".join(COLUMNS), help="columns, such as rules,stand-in")
    parser.add_argument("--messages", type=int, default=12, help="messages of each person")
    options = parser.parse_args()
    rows, columns = options.only.split(","), options.columns.split(",")
    cells = {(row, column): Cell(ROWS[row], COLUMNS[column]) for row in rows for column in columns}
    threads = [threading.Thread(target=cell.measure, args=(options.messages,), daemon=True) for cell in cells.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("Changes of the model per message / median seconds to the first word:\n")
    print(table(cells, rows, columns))
    for cell in cells.values():
        if cell.problem:
            print(f"{cell.row.title}, {cell.column.title}: {cell.problem}", file=sys.stderr)
        elif cell.is_above:
            print(
                f"{cell.row.title}, {cell.column.title}: {cell.per_message:.2f} changes per message, at most "
                f"{cell.limit:.2f} are allowed",
                file=sys.stderr,
            )
    return int(any(cell.is_above for cell in cells.values()))


if __name__ == "__main__":
    sys.exit(main())
