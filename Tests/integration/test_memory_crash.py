"""A server that is killed while it writes memories loses none of them, makes none twice, and leaves readable files."""

from __future__ import annotations

import json
import random
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from Middleware.utilities.files.file_access import open_to_read
from Tests.amounts import amount
from Tests.integration.launcher import USER, Launcher
from Tests.integration.memory_chat import (
    EMBEDDING_MODEL,
    Exchange,
    MemoryBackend,
    conversation,
    hash_of,
    markers,
    memory_tree,
)
from Tests.patience import PATIENCE
from Tests.workflows.engine_lab import until

pytestmark = [pytest.mark.slow, pytest.mark.amounts]

KILLS = amount(4, 30)  # of each kind of memories
TURN = 6  # messages by which the conversation grows
LOOKBACK = 2
PLACEHOLDER = "PLACEHOLDER_TIMESTAMP_HASH_0000"
LEFTOVER = re.compile(r"\.[0-9a-f]{16}\.tmp")
KNOWN_FILES = {
    "memories.json",
    "memories.json.bak",
    "memory_anchors.json",
    "chat_summary.json",
    "chat_summary.json.bak",
    "condensation_tracker.json",
    "timestamps.json",
    "context_compactor_old.json",
    "context_compactor_oldest.json",
    "context_compactor_folded.json",
    "vector_memory.db",
    "vector_memory.db-wal",
    "vector_memory.db-shm",
    "vector_memory.db-journal",
    "state_document.md",
    "state_document.md.bak",
    ".lock",
    ".memories.lock",
    ".compactor.lock",
}
AIMS = {  # nodes after whose call the server is killed; "": after any of the turn's first calls
    "crash-files": ("", "memory", "condense", "condense", "summary", "oldest"),
    "crash-vectors": ("", "facts", "embed", "state"),
}
FIRST_CALLS = 7


@dataclass
class Stored:
    """What the folder of a discussion held at one moment; numbers are those of messages."""

    memories: list[list[int]] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    summary: set[int] = field(default_factory=set)
    summary_hash: str = ""
    times: dict[str, str] = field(default_factory=dict)
    old: list[int] = field(default_factory=list)
    boundary: int | None = None
    oldest: set[int] = field(default_factory=set)
    rows: list[int] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    vectors: int = 0
    document: list[int] = field(default_factory=list)

    @property
    def remembered(self) -> list[int]:
        return [number for memory in self.memories for number in memory]


def read(folder: Path) -> Stored:
    """Everything in the folder; every file must be whole."""
    stored = Stored()
    for file in folder.glob("*.json*"):
        json.loads(_content(file))
    pairs = _pairs(folder, "memories.json")
    stored.memories, stored.hashes = [markers(text) for text, _ in pairs], [known for _, known in pairs]
    for text, known in _pairs(folder, "chat_summary.json"):
        stored.summary, stored.summary_hash = set(markers(text)), known
    for text, known in _pairs(folder, "context_compactor_old.json"):
        if text == "__boundary__":
            stored.boundary = int(known.partition(":")[0]) - 1  # the system message is one of the compactor's messages
        else:
            stored.old = markers(text)
    for text, _ in _pairs(folder, "context_compactor_oldest.json"):
        stored.oldest = set(markers(text))
    if (folder / "timestamps.json").exists():
        stored.times = json.loads(_content(folder / "timestamps.json"))
        stored.times.pop(PLACEHOLDER, None)
    for name in ("state_document.md", "state_document.md.bak"):
        if (folder / name).exists():
            text = _content(folder / name).decode("utf-8")
            assert text.strip() or name.endswith(".bak")
            stored.document = stored.document or markers(text)
    if (folder / "vector_memory.db").exists():
        _read_database(folder / "vector_memory.db", stored)
    return stored


def _content(file: Path) -> bytes:
    """What a file holds that the server may be replacing."""
    with open_to_read(str(file)) as opened:
        return opened.read()


def _pairs(folder: Path, name: str) -> list[tuple[str, str]]:
    file = folder / name
    entries = json.loads(_content(file)) if file.exists() else []
    return [(entry["text_block"], entry["hash"]) for entry in entries]


def _read_database(path: Path, stored: Stored) -> None:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=PATIENCE)) as database:
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
        if "memories" in tables:
            database.execute("BEGIN")
            texts = database.execute("SELECT memory_text FROM memories ORDER BY id")
            stored.rows = [number for row in texts for number in markers(row[0])]
            log = database.execute("SELECT message_hash FROM vector_memory_hash_log ORDER BY id")
            stored.logged = [row[0] for row in log]
            stored.vectors = database.execute(
                "SELECT count(*) FROM memory_embeddings WHERE model = ?", (EMBEDDING_MODEL,)
            ).fetchone()[0]


def check(folder: Path, scratch: Path, earlier: Stored, sent: int) -> Stored:
    """The files a dead server left behind, against those seen before; ``sent``: messages of the conversation."""
    unknown = {file.name for file in folder.iterdir()} - KNOWN_FILES
    assert all(LEFTOVER.fullmatch(name) for name in unknown), unknown
    copy = scratch / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*-shm"))  # reading repairs a database: not this one
    now = read_repaired(copy)
    _check_memories(now, earlier, sent)
    _check_summaries(now, earlier)
    _check_rows(now, earlier, sent)
    assert earlier.times.items() <= now.times.items()
    assert set(now.times) <= {hash_of(number) for number in range(sent)}
    assert now.document == sorted(set(now.document)), "facts of the state document are there twice, or out of order"
    assert set(now.document) >= set(earlier.document)
    return now


def read_repaired(folder: Path) -> Stored:
    path = folder / "vector_memory.db"
    if path.exists():
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            if database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                _check_tables(database)
    return read(folder)


def _check_tables(database: sqlite3.Connection) -> None:
    database.execute("INSERT INTO memories_fts (memories_fts) VALUES ('integrity-check')")
    rows = _column(database, "SELECT id FROM memories")
    assert _column(database, "SELECT rowid FROM memories_fts") == rows
    assert _column(database, "SELECT memory_id FROM memory_embeddings") <= rows
    database.rollback()


def _column(database: sqlite3.Connection, statement: str) -> set[Any]:
    return {row[0] for row in database.execute(statement)}


def _check_memories(now: Stored, earlier: Stored, sent: int) -> None:
    """Each message is in one memory, in order, up to where the newest reaches, whatever was condensed."""
    count = len(now.remembered)
    assert now.remembered == list(range(count)), f"lost or twice: {now.memories}"
    assert count <= max(0, sent - LOOKBACK)
    assert now.hashes == [hash_of(memory[-1]) for memory in now.memories]
    assert count >= len(earlier.remembered), "memories that were there are gone"


def _check_summaries(now: Stored, earlier: Stored) -> None:
    assert now.summary == set(range(len(now.summary))) >= earlier.summary, f"the summary lost something: {now.summary}"
    told = [
        memory
        for memory, known in zip(now.memories, now.hashes, strict=True)
        if now.summary_hash in now.hashes[now.hashes.index(known) :]
    ]
    assert {number for memory in told for number in memory} <= now.summary, "the summary points too far"
    assert not now.summary_hash or now.summary_hash in now.hashes, "the summary's pointer is lost"
    if now.boundary is not None:
        start = max(0, now.boundary)
        assert now.old == list(range(start, start + len(now.old))), f"the old section has gaps: {now.old}"
        assert now.oldest >= set(range(now.boundary)), "messages are in neither summary of the compactor"
    assert now.oldest == set(range(len(now.oldest))) >= earlier.oldest


def _check_rows(now: Stored, earlier: Stored, sent: int) -> None:
    """The rows are those of the logged chunks, exactly: one transaction writes both."""
    assert now.rows == list(range(len(now.rows))), f"lost or twice: {now.rows}"
    assert now.rows[: len(earlier.rows)] == earlier.rows and now.logged[: len(earlier.logged)] == earlier.logged
    assert bool(now.rows) == bool(now.logged)
    if now.rows:
        assert now.logged[-1] == hash_of(now.rows[-1])
        assert set(now.logged) <= {hash_of(number) for number in now.rows}
    assert len(now.logged) == len(set(now.logged))
    assert earlier.vectors <= now.vectors <= len(now.rows) <= max(0, sent - LOOKBACK)


@pytest.fixture(params=["crash-files", "crash-vectors"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend() -> Iterator[MemoryBackend]:
    with MemoryBackend(seed=1, jitter=0.03) as running:
        yield running


def kill_while_it_remembers(
    server: Launcher,
    backend: MemoryBackend,
    exchange: Exchange,
    chance: random.Random,
    folder: Path,
    aims: Sequence[str],
) -> Stored:
    """Kill the server shortly after the answer to one of the turn's calls; returns what was stored just before."""
    aim, count = chance.choice(aims), chance.randint(1, FIRST_CALLS)
    calls, ends = backend.wait_calls(aim, count, 0.7), time.monotonic() + 60
    # A turn need not have such a call; a busy machine may only need longer.
    while not calls and not exchange.answered and time.monotonic() < ends:
        calls = backend.wait_calls(aim, count, 0.7)
    until(lambda: all(call.answered_at is not None for call in calls))
    time.sleep(chance.choice((0.006, 0.012, 0.04)) * chance.random())  # most is written a few milliseconds later
    before = read(folder) if folder.is_dir() else Stored()
    assert server.process is not None
    server.process.kill()
    server.process.wait(PATIENCE)
    exchange.wait()
    return before


def test_memory_survives_kills(name: str, backend: MemoryBackend, tmp_path: Path) -> None:
    vector = name == "crash-vectors"
    tree = memory_tree(tmp_path / "Public", backend.url, vector=vector)
    folder, chance = tree.public / "DiscussionIds" / name, random.Random(f"{name} 1")
    sent, stored, answered = 0, Stored(), 0
    for _ in range(KILLS):
        with Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER) as server:
            sent += TURN
            exchange = Exchange(server.port, "Chat", conversation(name, sent))
            before = kill_while_it_remembers(server, backend, exchange, chance, folder, AIMS[name])
            answered += exchange.answered
        stored = check(folder, tmp_path, stored, sent) if folder.is_dir() else stored
        check(folder, tmp_path, before, sent)
    assert answered > KILLS // 2, "nearly all kills came before any memory was written"
    _check_the_end(tree.public, name, sent, folder, tmp_path, stored)


def _check_the_end(public: Path, name: str, sent: int, folder: Path, scratch: Path, stored: Stored) -> None:
    """Left alone, the server catches up with everything."""
    with Launcher("run_waitress.py", "--PublicDirectory", public, "--User", USER) as server:
        for _ in range(3):  # one kind of memories is condensed once in a turn
            sent, size = sent + TURN, server.output_size()
            assert Exchange(server.port, "Chat", conversation(name, sent)).wait().answered
            # The nodes after the answer have ended.
            server.wait_output(" done after ", 60, since=size)
            stored = check(folder, scratch, stored, sent)
    done = stored.rows if name == "crash-vectors" else stored.remembered
    assert done == list(range(sent - LOOKBACK))
    if name == "crash-vectors":
        assert stored.vectors == len(done) and stored.document[-1] == done[-1]
    else:
        assert stored.summary_hash in stored.hashes[-2:]  # one memory alone waits for another
        assert len(stored.times) == sent and stored.old and stored.oldest
        assert any(len(memory) > 6 for memory in stored.memories), "nothing was condensed"
