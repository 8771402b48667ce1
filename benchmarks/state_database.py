"""What a state database costs: each row against a server with files, in turns on the same machine; and how far it goes.

    python benchmarks/state_database.py                   the rows with their budgets, and the limits
    python benchmarks/state_database.py --check           the rows alone; exit status 1 if one is above its budget
    python benchmarks/state_database.py --only turn,stop --share 0.1   some rows, with a tenth of the requests

PostgreSQL of Debian's package is started with its ordinary settings, on the same machine and disk. Linux only.
``benchmarks/README.md`` says what the rows mean.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import memory_search, recording, state_limits
from benchmarks.budget_backend import Workload
from benchmarks.soak_backend import SoakBackend, backend_process
from benchmarks.soak_clients import Exchange
from Middleware.utilities.discussions.vector_memory import VectorMemories
from Middleware.utilities.discussions.vector_memory.whole import DatabaseFile
from Tests.api.front_dialects import OPENAI_CHAT
from Tests.integration.launcher import USER, Backend, Launcher, child_node, llm_node, standard_tree, stuck
from Tests.integration.memory_chat import conversation, memory_tree
from Tests.integration.process_figures import figures_of
from Tests.postgres_lab import Server, StatementLog, missing, open_database
from Tests.stub_backend import RecordedRequest, Reply, chat_stream_reply

MEMORIES = 100_000
TOKENS_OF_AN_ANSWER = 1000
# A turn of which everything is remembered already, so that each costs the same.
TURN_MESSAGES = 12
WARM_TURNS = 8
# What makes the server of the tests an ordinary one again.
ORDINARY = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_level": "replica",
    "max_wal_senders": "10",
    "shared_buffers": "128MB",
    "max_connections": "100",
    "autovacuum": "on",
    "jit": "on",
}
QUIET_SECONDS = 0.3
NAME_WIDTH = 48
NO_GATE, GATE = ("--concurrency", "0"), ("--concurrency", "4")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        files, database: the figures; None where there is none.
        value: what the budget is for: the difference, their ratio, or the figure with the database.
    """

    name: str
    value: float
    budget: float | None = None
    files: float | None = None
    database: float | None = None
    unit: str = ""
    at_least: bool = False

    @property
    def is_within(self) -> bool:
        if self.budget is None:
            return True
        return self.value >= self.budget if self.at_least else self.value <= self.budget

    def __str__(self) -> str:
        figures = ("" if figure is None else f"{figure:.4g}" for figure in (self.files, self.database))
        limit = "" if self.budget is None else f"{'>=' if self.at_least else '<='} {self.budget:g}"
        return (
            f"{self.name:{NAME_WIDTH}} {next(figures):>9} {next(figures):>9} {self.value:>+9.3g} {self.unit:6} "
            f"{limit:>9}{'' if self.is_within else '   OVER'}"
        )


def difference(name: str, figures: Sequence[float], budget: float | None, unit: str) -> Row:
    files, database = figures
    return Row(name, database - files, budget, files, database, unit)


class TurnBackend(SoakBackend):
    """Answers at once; the node ``tokens`` with many."""

    def __init__(self) -> None:
        super().__init__()
        self._tokens = chat_stream_reply(f"{number:05}.654321 " for number in range(TOKENS_OF_AN_ANSWER))

    def respond(self, request: RecordedRequest) -> Reply:
        if b"node:tokens" in request.body:
            self.requests.clear()
            return self._tokens
        return super().respond(request)


@dataclass
class Bench:
    """What all rows stand on: a database server, a back-end, and a configuration; ``share``: of the usual requests."""

    folder: Path
    postgres: Server
    backend: str
    share: float = 1.0
    _running: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        self.tree = memory_tree(self.folder / "Public", self.backend, vector=False)
        answer = llm_node(
            "answer",
            returnToUser=True,
            addDiscussionIdTimestampsForLLM=True,
            systemPrompt="node:answer <{agent1Output}|{agent2Output}>",
        )
        self.tree.shared("Answer", llm_node("answer", returnToUser=True))
        self.tree.shared("Tokens", llm_node("tokens", returnToUser=True))
        # The answer comes last, so that a client that has it has waited for everything.
        self.tree.shared(
            "Turn",
            {"type": "GetCurrentMemoryFromFile"},
            {"type": "GetCurrentSummaryFromFile"},
            child_node("Remember"),
            answer,
        )

    def times(self, usual: int) -> int:
        return max(2, round(usual * self.share))

    def words(self, *words: str) -> tuple[str | os.PathLike[str], ...]:
        return ("--PublicDirectory", self.tree.public, "--User", USER, "--console", "off", *words)

    def pair(self, stack: contextlib.ExitStack, *words: str) -> tuple[Launcher, Launcher]:
        """Return a server with files, and one with a database."""
        files, database = (
            stack.enter_context(Launcher("run_waitress.py", *self.words(*words, *where)))
            for where in ((), ("--database", self.postgres.new_database()))
        )
        return files, database


# -- requests ----------------------------------------------------------------------------------------------------------


def plain() -> dict[str, Any]:
    return {"model": "Answer", "messages": [{"role": "user", "content": "Hello"}], "stream": False}


def turn(discussion: str = "bench") -> dict[str, Any]:
    return {"model": "Turn", "messages": conversation(discussion, TURN_MESSAGES), "stream": False}


def ask(server: Launcher, body: dict[str, Any]) -> float:
    """Return the milliseconds of a request."""
    answer = server.request("POST", OPENAI_CHAT.path, body)
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: {answer.body[:200]!r}")
    return answer.seconds * 1000


def medians(servers: Sequence[Launcher], body: dict[str, Any], times: int) -> list[float]:
    """Return the median milliseconds of a request to each server, in turns."""
    found: list[list[float]] = [[] for _ in servers]
    for _ in range(WARM_TURNS):
        for server in servers:
            ask(server, body)
    for _ in range(times):
        for server, milliseconds in zip(servers, found, strict=True):
            milliseconds.append(ask(server, body))
    return [statistics.median(one) for one in found]


@contextlib.contextmanager
def counted(bench: Bench, *words: str) -> Iterator[Callable[[dict[str, Any]], int]]:
    """A server on a database that writes down all statements: returns how many a request has, the second time."""
    url = bench.postgres.new_database()
    log = StatementLog(bench.postgres, url)
    with Launcher("run_waitress.py", *bench.words(*words, "--database", url)) as server:

        def count(body: dict[str, Any]) -> int:
            for _ in range(WARM_TURNS):
                ask(server, body)
            time.sleep(QUIET_SECONDS)
            log.take()
            ask(server, body)
            statements = log.take()
            while True:
                time.sleep(QUIET_SECONDS)
                more = log.take()
                if not more:
                    return len(statements)
                statements += more

        yield count


# -- rows --------------------------------------------------------------------------------------------------------------


def starts(bench: Bench) -> Iterator[Row]:
    seconds: list[list[float]] = [[], []]
    memory: list[list[int]] = [[], []]
    loaded = 0
    url = bench.postgres.new_database()
    for _ in range(bench.times(5)):
        for number, where in enumerate(((), ("--database", url))):
            began = time.monotonic()
            with Launcher("run_waitress.py", *bench.words(*NO_GATE, *where)) as server:
                seconds[number].append(time.monotonic() - began)
                assert server.process is not None
                memory[number].append(resident(server.process.pid))
                if not number:
                    loaded += "psycopg" in Path(f"/proc/{server.process.pid}/maps").read_text("utf-8")
    yield Row("files: processes that have loaded psycopg", loaded, 0, loaded)
    yield difference("start to the first answer", [statistics.median(one) for one in seconds], None, "s")
    yield difference("memory, idle", [statistics.median(one) / 1000 for one in memory], 25, "MB")


def resident(pid: int) -> int:
    figures = figures_of(pid)
    assert figures is not None
    return figures.rss


def requests(bench: Bench) -> Iterator[Row]:
    for name, words, budget, most in (("gate on", GATE, 3, 3), ("no gate", NO_GATE, None, 0)):
        with contextlib.ExitStack() as stack:
            yield difference(
                f"request, {name}: p50", medians(bench.pair(stack, *words), plain(), bench.times(600)), budget, "ms"
            )
        with counted(bench, *words) as count:
            found = count(plain())
            yield Row(f"request, {name}: statements", found, most, None, found)


def turns(bench: Bench) -> Iterator[Row]:
    with contextlib.ExitStack() as stack:
        pair = bench.pair(stack, *GATE)
        yield difference("turn of a discussion: p50", medians(pair, turn(), bench.times(400)), 6, "ms")
        memory = [resident(server.process.pid) / 1000 for server in pair if server.process is not None]
        yield difference("memory, after these turns", memory, 25, "MB")
    with counted(bench, *GATE) as count:
        found = count(turn())
        yield Row("turn of a discussion: statements", found, 20, None, found)


def stops(bench: Bench) -> Iterator[Row]:
    url = bench.postgres.new_database()
    milliseconds: list[float] = []
    with contextlib.ExitStack() as stack:
        backend = stack.enter_context(Backend())
        backend.replies.update(single=stuck("Once ", "upon ", "a "))
        tree = standard_tree(bench.folder / "Stops", backend.url)
        one, two = (
            stack.enter_context(
                Launcher(
                    "run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, *NO_GATE, "--database", url
                )
            )
            for _ in range(2)
        )
        for number in range(1, bench.times(60) + 1):
            fields = OPENAI_CHAT.body(backend.hello, model="Single", stream=True)
            with Exchange(two.port, OPENAI_CHAT, fields) as exchange:
                exchange.some()
                call = backend.wait_call("single", count=number)
                began = time.monotonic()
                one.request("DELETE", "/api/chat", {"request_id": exchange.request_id})
                if not call.wait_ended(60) or call.ended_at is None:
                    raise RuntimeError("a stop did not arrive")
                milliseconds.append((call.ended_at - began) * 1000)
    half = statistics.median(milliseconds)
    yield Row(f"stop on another worker, {len(milliseconds)}: p50", half, 30, None, half, "ms")
    yield Row(
        f"stop on another worker, {len(milliseconds)}: worst", max(milliseconds), 250, None, max(milliseconds), "ms"
    )


def searches(bench: Bench) -> Iterator[Row]:
    from Middleware.addons.postgres.memory_rows import PostgresMemories
    from Middleware.addons.postgres.stored_discussions import DiscussionName, claim

    memories = bench.times(MEMORIES)
    path, name = str(bench.folder / "vector_memory.db"), DiscussionName("", "", "bench")
    memory_search.make(path, memories)
    with contextlib.closing(open_database(bench.postgres.new_database())) as database:
        with database.connect() as connection, connection.transaction(), DatabaseFile(path) as rows:
            connection.seconds = None
            connection.execute("SET LOCAL statement_timeout = 0")
            claim(connection, name).write_memories(rows)

        def file_search(terms: Sequence[str]) -> None:
            with VectorMemories(path, "bench") as found:
                assert found.keyword_search(";".join(terms), 15)

        def database_search(terms: Sequence[str]) -> None:
            found = PostgresMemories(database, *name)
            assert found.keyword_search(";".join(terms), 15)

        searched = list(memory_search.SEARCHES.values())[:2]
        before, began = resident(os.getpid()), time.perf_counter()
        database_search(searched[0])
        first = time.perf_counter() - began
        size = (resident(os.getpid()) - before) / 1000
        yield Row(f"first search in {memories} memories", first, 8, None, first, "s")
        yield Row("memory of its index", size, None, None, size, "MB")
        milliseconds: list[list[float]] = [[], []]
        for _ in range(bench.times(20)):
            for terms in searched:
                for number, search in enumerate((file_search, database_search)):
                    began = time.perf_counter()
                    search(terms)
                    milliseconds[number].append((time.perf_counter() - began) * 1000)
        yield difference("later searches: p50", [statistics.median(one) for one in milliseconds], 2, "ms")


def tokens(bench: Bench) -> Iterator[Row]:
    workload = Workload("Plain", 4000, stream=True)
    with (
        recording.Server(bench.folder / "Files", recording.OFF) as files,
        recording.Server(
            bench.folder / "Database", (*recording.OFF, "--database", bench.postgres.new_database())
        ) as database,
    ):
        seconds = recording.seconds_for((files, database), workload, bench.times(100), in_turn=1)
    off, on = (one / (bench.times(100) * workload.tokens) * 1_000_000 for one in seconds)
    yield Row("CPU of a streamed token, us", on / off, 1.03, off, on, "x")
    with counted(bench, *NO_GATE) as count:
        found = count({"model": "Tokens", "messages": plain()["messages"], "stream": True})
        yield Row(f"statements of {TOKENS_OF_AN_ANSWER} tokens", found, 0, None, found)


# -- a second worker ---------------------------------------------------------------------------------------------------

# What each worker gets of a core, so that clients, back-end and database have enough of two.
PART_OF_A_CORE = 0.25
SLICE_SECONDS = 0.005
CLIENTS = 12
# Windows has neither.
_STOP, _GO = (getattr(signal, name, 0) for name in ("SIGSTOP", "SIGCONT"))


class Clients:
    """Clients that ask again and again, each with a body of its own; ``done`` counts the answers."""

    def __init__(self, server: Launcher, bodies: Sequence[dict[str, Any]]) -> None:
        self.done = 0
        self.failures: list[BaseException] = []
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(server, body), daemon=True) for body in bodies]
        for thread in self._threads:
            thread.start()

    def _run(self, server: Launcher, body: dict[str, Any]) -> None:
        try:
            while not self._ended.is_set():
                ask(server, body)
                with self._lock:
                    self.done += 1
        except BaseException as error:
            self.failures.append(error)

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
        if self.failures:
            raise self.failures[0]


@contextlib.contextmanager
def workers(bench: Bench, count: int, *words: str) -> Iterator[tuple[Launcher, list[int]]]:
    """A server of so many workers on a new database, and their process ids."""
    with Launcher(
        "run_waitress.py", *bench.words(*words, "--workers", str(count), "--database", bench.postgres.new_database())
    ) as server:
        ends = time.monotonic() + 120
        # A single one has no line of its own.
        while count > 1 and server.output().count(" serves\n") < count:
            if time.monotonic() > ends:
                raise RuntimeError(server.output())
            time.sleep(0.05)
        assert server.process is not None
        yield server, recording.children(server.process.pid) or [server.process.pid]


class CpuLimit:
    """Lets processes run only as long as they have used less than their part of a core."""

    def __init__(self, pids: Sequence[int], part: float) -> None:
        self._part = part
        self._pids = pids
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> CpuLimit:
        self._thread.start()
        return self

    def _run(self) -> None:
        began = time.monotonic()
        before = [recording.process_seconds(pid) for pid in self._pids]
        while not self._ended.wait(SLICE_SECONDS):
            allowed = self._part * (time.monotonic() - began)
            for pid, earlier in zip(self._pids, before, strict=True):
                uses_too_much = recording.process_seconds(pid) - earlier > allowed
                os.kill(pid, _STOP if uses_too_much else _GO)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for pid in self._pids:
            os.kill(pid, _GO)


def second(bench: Bench) -> Iterator[Row]:
    rates: dict[int, list[float]] = {1: [], 2: []}
    body = {"model": "Tokens", "messages": plain()["messages"], "stream": True}
    for _ in range(2):
        for count, found in rates.items():
            with workers(bench, count, *NO_GATE) as (server, pids):
                clients = Clients(server, [body] * CLIENTS)
                time.sleep(1)
                with CpuLimit(pids, PART_OF_A_CORE):
                    time.sleep(1)
                    before, began = clients.done, time.monotonic()
                    time.sleep(max(1.0, 8 * bench.share))
                    found.append((clients.done - before) * TOKENS_OF_AN_ANSWER / (time.monotonic() - began))
                clients.end()
    one, two = (statistics.fmean(rates[count]) for count in (1, 2))
    yield Row("tokens/s: 1 and 2 workers", two / one, 1.8, one, two, "x", at_least=True)


ROWS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "start": starts,
    "request": requests,
    "turn": turns,
    "stop": stops,
    "search": searches,
    "token": tokens,
    "second": second,
}
LIMITS: dict[str, Callable[[Bench], Iterator[str]]] = {
    "workers": state_limits.several_workers,
    "statements": state_limits.statements,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only the rows; exit status 1 if one is above its budget")
    parser.add_argument("--only", default="", help=f"some of {','.join((*ROWS, *LIMITS))}")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of requests and memories")
    options = parser.parse_args(argv)
    names = options.only.split(",") if options.only else [*ROWS, *(() if options.check else LIMITS)]
    if unknown := [name for name in names if name not in ROWS | LIMITS]:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS | LIMITS)}")
    if problem := missing():
        parser.exit(2, f"{problem}\n")
    over, began = 0, time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="state-", ignore_cleanup_errors=True)))
        postgres = Server(**ORDINARY)
        stack.callback(postgres.remove)
        bench = Bench(folder, postgres, stack.enter_context(backend_process(TurnBackend)), options.share)
        if any(name in ROWS for name in names):
            print(f"{'row':{NAME_WIDTH}} {'files':>9} {'database':>9} {'value':>9} {'':6} {'budget':>9}")
        for name in names:
            if name in ROWS:
                for row in ROWS[name](bench):
                    over += not row.is_within
                    print(row, flush=True)
            else:
                for line in LIMITS[name](bench):
                    print(line, flush=True)
    print(f"measured in {time.monotonic() - began:.0f} s; {over or 'nothing'} above its budget")
    return 1 if options.check and over else 0


if __name__ == "__main__":
    sys.exit(main())
