"""A database in clear becomes one of tokens whatever happens meanwhile: the process dies, others read, others write."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from Middleware.utilities import sqlite
from Middleware.utilities.discussions.vector_memory import conversion, schema
from Middleware.utilities.discussions.vector_memory.schema import is_token
from Tests.patience import CLIENT_PATIENCE
from Tests.utilities.discussions.vector_memory.lab import CIPHER, bytes_on_disk, item, old_database, opened, texts

PROJECT = Path(__file__).resolve().parents[4]
WORD = "Quetzalcoatl"
COUNT = 400
TEXTS = [f"the {WORD} stone {number}" for number in range(COUNT)]
CONVERT = textwrap.dedent("""
    import os, sqlite3, sys
    from Middleware.utilities.discussions.vector_memory import conversion, schema
    from Tests.utilities.discussions.vector_memory.lab import CIPHER, opened

    stop, seen, prepare = int(sys.argv[2]), 0, schema.prepare

    def count(statement):
        global seen
        seen += 1
        if seen == stop:
            os._exit(9)  # nothing is closed or rolled back

    def watched(database):
        prepare(database)
        database.set_trace_callback(count)

    schema.prepare = watched
    print("ready", flush=True)
    opened(sys.argv[1], CIPHER).close()
    print(seen, flush=True)
""")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return in_clear_with_leftovers(tmp_path)


def in_clear_with_leftovers(folder: Path) -> Path:
    """A database in clear, with what deleted rows left in its free pages."""
    path = folder / "data" / "vector_memory.db"
    path.parent.mkdir()
    old_database(path, *TEXTS, *[f"gone {WORD}"] * 40)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA secure_delete = OFF")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("DELETE FROM memories WHERE id > ?", (COUNT,))
        database.execute("DELETE FROM memories_fts WHERE rowid > ?", (COUNT,))
        database.commit()
    return path


def converting(path: Path, stop: int = 0) -> subprocess.Popen[str]:
    """A process that encrypts the database, and dies before its statement number ``stop``."""
    return subprocess.Popen(
        [sys.executable, "-c", CONVERT, str(path), str(stop)], cwd=PROJECT, encoding="utf-8", stdout=subprocess.PIPE
    )


def in_clear(path: Path) -> bool:
    return b"uetzalcoatl" in bytes_on_disk(path.parent).lower()


def stored(path: Path) -> list[str]:
    """The texts as they lie there; of a copy, since looking at a database ends what a dead process began."""
    copy = path.parent.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path.parent, copy, ignore=shutil.ignore_patterns("*-shm"))
    with closing(sqlite3.connect(copy / path.name)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [row[0] for row in database.execute("SELECT memory_text FROM memories ORDER BY id")]


def assert_whole(path: Path) -> None:
    """All or nothing; what is there is found, and the next write ends the work."""
    kinds = {is_token(text) for text in stored(path)}
    assert len(kinds) == 1
    with opened(path, CIPHER) as memories:
        assert not in_clear(path)
        memories.store_chunk([item(f"new {WORD}")], "h")
        assert len(memories.keyword_search(WORD, 2 * COUNT)) == COUNT + 1
        assert texts(list(memories.all_memories()))[:COUNT] == TEXTS
    assert not in_clear(path) and all(map(is_token, stored(path)))


@pytest.fixture(scope="module")
def statements(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many it takes."""
    with converting(in_clear_with_leftovers(tmp_path_factory.mktemp("trial"))) as process:
        assert process.stdout is not None
        return int(process.stdout.read().split()[1])


@pytest.mark.slow
@pytest.mark.parametrize("before_end", [440, 200, 18, 6, 5, 3, 2, 1])
def test_a_process_that_dies_at_a_statement(path: Path, statements: int, before_end: int) -> None:
    """Among the last ones are the new index, the commit, dropping old pages, and emptying the log."""
    assert statements > 440
    with converting(path, statements - before_end + 1) as process:
        assert process.wait(CLIENT_PATIENCE) == 9
    assert {is_token(text) for text in stored(path)} == {before_end < 6}
    assert_whole(path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_process_that_is_killed_at_any_moment(path: Path, seed: int) -> None:
    with converting(path) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(random.Random(seed).uniform(0, 0.12))
        process.kill()
    assert_whole(path)


def test_a_writer_in_the_way_puts_it_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"), opened(path, CIPHER):
            pass
        assert stored(path) == TEXTS
    assert_whole(path)


def test_a_reader_in_the_way_delays_the_last_step(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It still sees what was there; nobody reads tokens as text, and the log of old pages goes when it has left."""
    monkeypatch.setattr(conversion, "_LOG_SECONDS", 0.2)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM memories").fetchone() == (COUNT,)
        with opened(path, CIPHER) as memories:
            memories.store_chunk([item("new")], "h")
        assert in_clear(path) and "tried again at its next write" in caplog.text
        assert reader.execute("SELECT memory_text FROM memories WHERE id = 1").fetchone()[0] == TEXTS[0]
        caplog.clear()
        with opened(path, CIPHER, write=False) as memories:
            assert len(list(memories.all_memories())) == COUNT + 1
        reader.execute("COMMIT")  # it stays open, so that closing is not what empties the log
        with opened(path, CIPHER) as memories:
            memories.store_chunk([item("newer")], "h")
            assert not in_clear(path) and caplog.text == ""


@pytest.mark.skipif(sys.platform == "win32", reason="permission bits")
def test_all_files_of_a_key_are_private(path: Path) -> None:
    made = path.with_name("made.db")
    before = os.umask(0)
    try:
        with opened(made, CIPHER, mode=0o600) as memories:
            memories.store_chunk([item("x")], "h")
            files = [made.with_name(f"made.db{end}") for end in ("", "-wal", "-shm")]
            assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 3
            memories._db.execute("VACUUM")
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.stat().st_mode) == 0o600


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("in_memory", [True, False], ids=["memory", "control"])
def test_no_temporary_file_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool) -> None:
    """Neither for dropping old pages nor for sorting; the control shows that one would be seen."""
    if not in_memory:
        prepare = schema.prepare
        monkeypatch.setattr(
            schema, "prepare", lambda database: (prepare(database), database.execute("PRAGMA temp_store = FILE"))
        )
    with opened(path) as memories:
        memories.store_chunk([item(f"{number} {'x' * 1000}") for number in range(1500)], None)
    with Watch(path.parent) as watch, opened(path, CIPHER) as memories:
        memories._db.execute("SELECT memory_text FROM memories ORDER BY memory_text").fetchall()
    assert bool(watch.found) is not in_memory, watch.found


class Watch:
    """Temporary files outside of ``folder`` that this process opens, looked for all the time."""

    def __init__(self, folder: Path) -> None:
        self.found: set[str] = set()
        self._folder = str(folder)
        self._before, self._end = self._open_files(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.is_set():
            self.found |= {name for name in self._open_files() - self._before if "deleted" in name or "etilqs" in name}
            time.sleep(0.0005)

    def _open_files(self) -> set[str]:
        names = set()
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                names.add(os.readlink(f"/proc/self/fd/{number}"))
        return {name for name in names if not name.startswith(self._folder)}
