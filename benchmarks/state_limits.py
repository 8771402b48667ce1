"""How far servers go that share a state database, and what limits them first; ``state_database.py`` prints it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.recording import children, process_seconds
from Middleware.addons.postgres import gate, presence, shared_objects
from Tests.postgres_lab import Server, name_in, open_database, programs

if TYPE_CHECKING:
    from benchmarks.state_database import Bench

WORKERS = (1, 2, 3)
CLIENTS = 16
# So many requests pass the gate at once that none of these waits.
GATE = ("--concurrency", "1000")
SECONDS = 8.0
SAMPLE_SECONDS = 0.02
_WAITS = (
    "SELECT coalesce(wait_event_type || ': ' || wait_event, 'CPU') FROM pg_stat_activity "
    "WHERE state = 'active' AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


# -- workers -----------------------------------------------------------------------------------------------------------


@dataclass
class Use:
    """The CPU seconds of each part from ``start`` to ``end``, and for what PostgreSQL's sessions waited meanwhile."""

    postgres: Server
    workers: Sequence[int]
    seconds: dict[str, float] = field(default_factory=dict)
    waits: Counter[str] = field(default_factory=Counter)
    _before: dict[int, float] = field(default_factory=dict)
    _began: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def _parts(self) -> Mapping[str, Sequence[int]]:
        backends = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
        return {
            "workers": self.workers,
            "database": [self.postgres.pid, *children(self.postgres.pid)],
            "others": [os.getpid(), *backends],
        }

    def __enter__(self) -> Use:
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()
        self._before = {pid: process_seconds(pid) for pids in self._parts.values() for pid in pids}
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.passed = time.monotonic() - self._began
        for part, pids in self._parts.items():
            self.seconds[part] = sum(process_seconds(pid) - self._before.get(pid, 0.0) for pid in pids)
        self._ended.set()
        self._sampler.join()

    def _sample(self) -> None:
        import psycopg

        with psycopg.connect(
            host=str(self.postgres.folder), port=self.postgres.port, user="postgres", autocommit=True
        ) as connection:
            while not self._ended.wait(SAMPLE_SECONDS):
                self.waits.update(row[0] for row in connection.execute(_WAITS))

    @property
    def most_waited(self) -> str:
        total = sum(self.waits.values()) or 1
        return ", ".join(f"{name} {count / total:.0%}" for name, count in self.waits.most_common(3))


def several_workers(bench: Bench) -> Iterator[str]:
    """What one to three workers of one machine do, with all their clients and the database on it."""
    from benchmarks.state_database import TOKENS_OF_AN_ANSWER, Clients, plain, turn, workers

    yield (
        f"\n{'workers':8} {'':8} {'per s':>8} {'cores: workers':>15} {'database':>9} {'others':>7}"
        f" {'CPU ms: workers':>16} {'database':>9}   sessions of the database are busy with"
    )
    streamed = {"model": "Tokens", "messages": plain()["messages"], "stream": True}
    for count in WORKERS:
        for kind, bodies, parts in (
            ("turns", [turn(f"of {number}") for number in range(CLIENTS)], 1),
            ("tokens", [streamed] * CLIENTS, TOKENS_OF_AN_ANSWER),
        ):
            with workers(bench, count, *GATE) as (server, pids):
                clients = Clients(server, bodies)
                # Until everything is remembered.
                time.sleep(max(1.0, 4 * bench.share))
                before = clients.done
                with Use(bench.postgres, pids) as use:
                    time.sleep(max(1.0, SECONDS * bench.share))
                    done = (clients.done - before) * parts
                clients.end()
            cores = {part: seconds / use.passed for part, seconds in use.seconds.items()}
            each = {part: seconds * 1000 / max(done, 1) for part, seconds in use.seconds.items()}
            yield (
                f"{count:<8} {kind:8} {done / use.passed:8.0f} {cores['workers']:15.2f} {cores['database']:9.2f} "
                f"{cores['others']:7.2f} {each['workers']:16.3g} {each['database']:9.3g}   {use.most_waited}"
            )


# -- statements --------------------------------------------------------------------------------------------------------

SESSIONS = (1, 16)
LISTENERS = 8
DISCUSSIONS = 1000
# What a turn sends that finds nothing to remember: so often through the gate, so many readings and writes.
PASSAGES, READINGS, WRITES = 1, 6, 2
PASSAGE, WAITED, READING, WRITE = (
    "gate: enter, leave",
    "gate: the same, others wait",
    "documents: read 3",
    "document: compare and set",
)
_DISCUSSION = "'d' || :d"
_NAMES = "ARRAY['memories.json', 'chat_summary.json', 'condensation_tracker.json']"


def scripts() -> dict[str, str]:
    """Return what workers send, as transactions of pgbench."""
    from Middleware.addons.postgres import documents

    def passage(slots: int) -> str:
        return f"{gate._ENTER % (1, slots, 'true')} \\gset\n{gate._LEAVE % (1, ':ticket', slots)};"

    chosen = f"\\set d random(1, {DISCUSSIONS})\n"
    version = "(SELECT version FROM wilmer.documents WHERE discussion = :d AND name = 'timestamps.json')"
    replace = documents._REPLACE % {
        "content": "repeat('x', 2000)::bytea",
        "discussion": ":d",
        "name": "'timestamps.json'",
        "version": version,
    }
    read = documents._READ % (_NAMES, "ARRAY[1, 1, 1]", "''", "''", _DISCUSSION)
    register = shared_objects._REGISTER_KEY % ("sha256((:k)::text::bytea)", "'r' || :client_id", "1")
    release = shared_objects._RELEASE_KEY % ("sha256((:k)::text::bytea)", "'r' || :client_id")
    stop = shared_objects._PASS_CANCELLATION_ON % (_quoted("r"), _quoted(""), "NULL", _quoted("cancel r"))
    return {
        PASSAGE: passage(1_000_000),
        WAITED: passage(1),
        "gate: look": f"{gate._LOOK % (1, 'ARRAY[1]::bigint[]', 'false')};",
        "gate: look, and remove the dead": f"{gate._LOOK % (1, 'ARRAY[1]::bigint[]', 'true')};",
        READING: f"{chosen}{_one_line(read)};",
        WRITE: f"{chosen}{_one_line(replace)};",
        "lock of a discussion: take, free": f"{chosen}SELECT pg_try_advisory_lock(:d);\nSELECT pg_advisory_unlock(:d);",
        "idempotency key: register, release": f"\\set k random(1, 1000000000)\n{register};\n{release};",
        "stop for another worker": f"{stop};",
        "presence": f"{presence._SEEN % (1, _quoted('i'))};",
    }


def _one_line(statement: str) -> str:
    return " ".join(statement.split())


def _quoted(text: str) -> str:
    return f"'{text}'"


@dataclass(frozen=True)
class Measured:
    """Transactions per second, and the CPU time of PostgreSQL for one, in microseconds."""

    rate: float
    cpu: float


def statements(bench: Bench) -> Iterator[str]:
    """What PostgreSQL alone does of each thing that workers ask of it, and what that means for many workers."""
    found = programs()
    program = None if found is None else found / "pgbench"
    if program is None or not program.exists():
        yield "pgbench is not installed: the limits of statements are left out"
        return
    url = bench.postgres.new_database()
    _fill(url, bench.postgres)
    yield (
        f"\n{'PostgreSQL alone, per second':36} "
        + " ".join(f"{f'{sessions} session' + 's' * (sessions > 1):>12}" for sessions in SESSIONS)
        + f" {'CPU us':>8}"
    )
    results: dict[str, Measured] = {}
    for name, script in scripts().items():
        with _other_workers(url):
            rates = [_run(program, url, script, sessions, bench) for sessions in SESSIONS]
        results[name] = rates[-1]
        yield f"{name:36} " + " ".join(f"{one.rate:12.0f}" for one in rates) + f" {rates[-1].cpu:8.0f}"
    turn = (PASSAGES * results[PASSAGE].cpu + READINGS * results[READING].cpu + WRITES * results[WRITE].cpu) / 1e6
    limits = {
        "the lock of the gate": results[PASSAGE].rate / PASSAGES,
        "the same, if others wait": results[WAITED].rate / PASSAGES,
        "writes to the disk": results[WRITE].rate / WRITES,
        **{f"{cores} cores for PostgreSQL": cores / turn for cores in (2, 8)},
    }
    yield f"\nA turn takes {turn * 1000:.2f} ms of PostgreSQL's CPU. Turns per second at most, by"
    for name, limit in limits.items():
        yield f"{name:36} {limit:12.0f}"


def _fill(url: str, postgres: Server) -> None:
    open_database(url).close()
    postgres.sql(
        f"INSERT INTO wilmer.discussions (space, key_hash, discussion_id) SELECT '', '', 'd' || n "
        f"FROM generate_series(1, {DISCUSSIONS}) n; "
        f"INSERT INTO wilmer.documents (discussion, name, content, version) "
        f"SELECT d, name, repeat('x', 2000)::bytea, 1 "
        f"FROM generate_series(1, {DISCUSSIONS}) d, unnest({_NAMES} || 'timestamps.json'::text) name; "
        "INSERT INTO wilmer.workers VALUES (1, 'i', 'h', 1, 'v', 'c', now(), now()); ANALYZE",
        name_in(url),
    )


@contextlib.contextmanager
def _other_workers(url: str) -> Iterator[None]:
    """The sessions that hear what is notified, and one that tidies the gate, as workers do."""
    import psycopg

    ended = threading.Event()

    def tidy() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not ended.wait(1):
                connection.execute(gate._TIDY)

    def listen() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("LISTEN wilmer")
            while not ended.is_set():
                for _ in connection.notifies(timeout=0.2):
                    pass

    threads = [threading.Thread(target=what, daemon=True) for what in (tidy, *[listen] * LISTENERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(10)


def _run(program: Path, url: str, script: str, sessions: int, bench: Bench) -> Measured:
    file = bench.folder / "script.sql"
    file.write_text(script + "\n", "utf-8")
    before = _ended_children_seconds(bench.postgres.pid)
    done = subprocess.run(
        [
            program,
            "--no-vacuum",
            "--protocol",
            "prepared",
            "--file",
            file,
            "--client",
            str(sessions),
            "--jobs",
            str(min(2, sessions)),
            "--time",
            str(max(1, round(3 * bench.share))),
            url,
        ],
        capture_output=True,
        encoding="utf-8",
    )
    rate, count = (re.search(pattern, done.stdout) for pattern in (r"tps = ([\d.]+)", r"actually processed: (\d+)"))
    if done.returncode or rate is None or count is None:
        raise RuntimeError(f"{script}\n{done.stderr}")
    # The server's first process learns what its children have used when they have ended.
    time.sleep(0.2)
    spent = _ended_children_seconds(bench.postgres.pid) - before
    return Measured(float(rate[1]), spent / max(1, int(count[1])) * 1e6)


def _ended_children_seconds(pid: int) -> float:
    if sys.platform == "win32":
        raise NotImplementedError
    # The name of the program, in parentheses, may contain spaces.
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / float(os.sysconf("SC_CLK_TCK"))
