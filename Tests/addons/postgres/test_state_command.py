"""Moving stored conversations into the state database and back: every byte and every row stays."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from Middleware.addons.discussions import exports
from Middleware.addons.discussions.memory_command import main as memory_command
from Middleware.addons.discussions.rekey.rekey_command import main as rekey_command
from Middleware.addons.discussions.removal import Removal
from Middleware.addons.postgres import moving, state_command
from Middleware.addons.postgres.database_discussions import database_for_command, discussions_of
from Middleware.addons.postgres.memory_rows import PostgresMemories
from Middleware.addons.postgres.message_store import PostgresMessages
from Middleware.addons.postgres.session import NUMBERS
from Middleware.addons.postgres.stored_salts import stored_salt
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.cli.running_server import announced
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import KeySaltError
from Middleware.models.process import process
from Middleware.services.memory.recall import Recall, recall
from Middleware.utilities.conversations.trail import Piece
from Middleware.utilities.discussion_state import MEMORIES, MESSAGE_INDEX
from Middleware.utilities.discussions.client_keys import data_key
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder, discussions
from Middleware.utilities.discussions.folder_names import own_name
from Middleware.utilities.discussions.key_salts import SALT_FILE, salt_text
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.vector_memory import VectorMemories
from Middleware.utilities.discussions.vector_memory.searchable import Origin
from Middleware.utilities.encryption_utils import (
    KeySalt,
    cipher_for,
    derive_encryption_key,
    hash_api_key,
    key_folder_name,
)
from Middleware.utilities.files.file_access import process_lock
from Tests.addons.postgres.test_documents import Worker
from Tests.folding_file_systems import RULES, OtherFileSystem, used
from Tests.postgres_lab import open_database
from Tests.services.discussion_lab import HASH, KEY, DiscussionLab
from Tests.utilities.discussions.message_index.lab import request
from Tests.utilities.discussions.vector_memory.lab import old_database

pytestmark = pytest.mark.slow
TABLES = (
    "memories",
    "memory_embeddings",
    "memory_indexed_topics",
    "vector_memory_hash_log",
    "vector_memory_hash_places",
    "memories_fts",
)
MESSAGE_TABLES = ("messages", "conversations", "meta", "message_embeddings")
SAID = [("user", "Where is the lantern?"), ("assistant", "In the cellar."), ("user", "Ah.")]


class StateLab(DiscussionLab):
    """The user ``tester``, whose discussions lie in ``root``, and a state database."""

    def __init__(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        super().__init__(tmp_path, monkeypatch)
        monkeypatch.setenv("WILMER_DATABASE_URL", url)
        monkeypatch.setattr(state_command, "_use_configuration", lambda options: None)
        self._capsys = capsys

    def run(self, *words: str) -> tuple[int, list[str], list[str]]:
        """Return the exit status and the lines of both outputs."""
        self._capsys.readouterr()
        status = state_command.main(words)
        told = self._capsys.readouterr()
        return status, told.out.splitlines(), told.err.splitlines()


@pytest.fixture
def lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str, capsys: pytest.CaptureFixture[str]
) -> StateLab:
    return StateLab(tmp_path, monkeypatch, database_url, capsys)


@pytest.fixture
def full(lab: StateLab) -> StateLab:
    """Discussions of every kind."""
    plain = lab.store("plain")
    with plain.memories(write=True) as memories:
        memories.store_chunk([("Ünïcode \ud83d", json.dumps({"summary": "owl", "topics": ["zoo"]}))], "h", True)
        memories.delete(1)
        memories.store_chunk([("ox", "{}")], "i", origin=Origin(Piece("", ("a", "b"), "", "1")))
    with lab.store("secret", KEY).memories(write=True) as memories:
        memories.store_chunk([("ox", "{}")], "i", origin=Origin(Piece("", ("a", "b"), "c", "")))
    for folder in (plain, lab.folder("secret", KEY)):
        with folder.messages(write=True) as index:
            request(index, SAID)
            with index.writing() as writing:
                writing.forget([3])
    lab.store("open", KEY, encrypt=False)
    folder = lab.root / "odd"
    folder.mkdir(mode=0o700)
    (folder / "memories.json").write_bytes(b"\xff not json \x00\r\n")
    (folder / "notes of mine.txt").write_bytes(b"")
    (folder / "timestamps.json.bak").write_bytes(b"{}")
    (folder / "memories.json.0123456789abcdef.tmp").write_bytes(b"half")
    (folder / MEMORIES).write_bytes(b"")
    (lab.root / "empty").mkdir()
    return lab


def documents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.endswith((".lock", ".tmp", "-wal", "-shm")) and path.suffix != ".db"
    }


def _chunk_tables(database: sqlite3.Connection) -> list[str]:
    names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    return sorted({"vector_memory_sources", "memory_chunks"} & names)


def databases(root: Path) -> dict[str, list[object]]:
    """All rows of all databases, by the path below the root."""
    found: dict[str, list[object]] = {}
    for path in sorted(root.rglob("*.db")):
        with closing(sqlite3.connect(path)) as database:
            if path.name == MESSAGE_INDEX:
                read = {table: database.execute(f"SELECT * FROM {table}").fetchall() for table in MESSAGE_TABLES}
                # A new file begins to count anew.
                found[str(path.relative_to(root))] = [
                    sorted(row for row in rows if row[0] not in ("version", "generation")) for rows in read.values()
                ]
                continue
            found[str(path.relative_to(root))] = [
                (table, database.execute(f"SELECT rowid, * FROM {table} ORDER BY rowid").fetchall())
                for table in (*TABLES, *_chunk_tables(database))
            ]
    return found


def test_what_is_imported_and_exported_is_the_same(full: StateLab, tmp_path: Path) -> None:
    assert full.run("import") == (0, ["4 discussions imported, 0 known, 0 differ"], [])
    out = tmp_path / "out"
    assert full.run("export", "--to", str(out)) == (0, ["4 discussions exported, 0 known, 0 differ"], [])
    assert documents(out) == documents(full.root) and len(documents(out)) >= 10
    assert databases(out) == databases(full.root) and len(databases(out)) == 5
    if os.name == "posix":
        assert {path.stat().st_mode & 0o777 for path in out.rglob("*") if path.is_file()} == {0o600}
        assert {path.stat().st_mode & 0o777 for path in out.rglob("*") if path.is_dir()} == {0o700}
    assert full.run("import") == (0, ["0 discussions imported, 4 known, 0 differ"], [])
    assert full.run("import", "--from", str(out)) == (0, ["0 discussions imported, 4 known, 0 differ"], [])
    assert full.run("export", "--to", str(out)) == (0, ["0 discussions exported, 4 known, 0 differ"], [])
    assert not any("0123456789abcdef" in str(path) for path in out.rglob("*"))


@pytest.mark.parametrize("key", [None, KEY])
def test_ids_that_a_file_system_takes_for_each_other(lab: StateLab, tmp_path: Path, key: str | None) -> None:
    ids, out = ("mill", "Mill", "MILL"), tmp_path / "out"
    with used(OtherFileSystem(RULES["NTFS"])):
        for name in ids:
            lab.store(name, key, texts=(f"Of {name}.",))
        assert lab.run("import")[1] == ["3 discussions imported, 0 known, 0 differ"]
        assert lab.run("export", "--to", str(out))[1] == ["3 discussions exported, 0 known, 0 differ"]
        assert lab.run("export")[1] == ["0 discussions exported, 3 known, 0 differ"]
        assert lab.run("export", "--to", str(out))[1] == ["0 discussions exported, 3 known, 0 differ"]
    assert {Path(name).parent.name for name in documents(out)} == {"MILL", own_name("Mill"), own_name("mill")}
    told = tmp_path / "told"
    assert lab.run("export", "--to", str(told))[1] == ["3 discussions exported, 0 known, 0 differ"]
    assert {Path(name).parent.name for name in documents(told)} == {*ids}
    assert lab.run("import", "--from", str(out))[1] == ["0 discussions imported, 3 known, 0 differ"]


def test_a_server_in_file_mode_works_on_what_was_exported(
    full: StateLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full.run("import")
    full.run("export", "--to", str(tmp_path / "out"))
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "out"))
    with full.folder("secret", KEY).memories(write=True) as memories:
        assert [row["memory_text"] for row in memories.keyword_search("ledger")] == ["Mara hid the ledger."]
    with full.folder("plain").memories(write=True) as memories:
        assert memories.keyword_search("ledger") == [] and len(memories.keyword_search("zoo;inspector")) == 2
        assert memories.store_chunk([("new", "{}")], "j") == [5]
        assert [message.hash for message in memories.logged_messages(2)] == ["j", "i"]
    for state in (full.folder("secret", KEY), full.folder("plain")):
        goes_on(state.messages(write=True))


def test_workers_find_what_was_imported(full: StateLab, database_url: str) -> None:
    full.run("import")
    with closing(open_database(database_url)) as database:
        cipher = cipher_for(full.folder("secret", KEY).encryption_key)
        with PostgresMemories(database, "", HASH, "secret", cipher=cipher) as memories:
            assert [row["id"] for row in memories.keyword_search("ledger")] == [1]
            assert len(memories.embeddings("embedder")) == 1
        with PostgresMemories(database, "", "", "plain", write=True) as memories:
            assert [row["id"] for row in memories.keyword_search("zoo")] == [3]
            assert memories.store_chunk([("new", "{}")], "j") == [5]
        goes_on(PostgresMessages(database, "", HASH, "secret", write=True, cipher=cipher))
        goes_on(PostgresMessages(database, "", "", "plain", write=True))


def goes_on(opened: MessageIndex) -> None:
    """The messages are found, those that the user has deleted are not, and the next request goes on."""
    with opened as index:
        request(index, [*SAID, ("assistant", "Come and see the lantern.")])
        assert index.all("SELECT id, state FROM messages ORDER BY id") == [(1, 0), (2, 0), (3, 3), (4, 0)]
        lines = recall(index, Recall("lantern", who_said_it="off")).lines
        assert sorted(lines) == [
            "Assistant: Come and see the lantern.",
            "Assistant: In the cellar.",
            "User: Where is the lantern?",
        ]


def test_a_discussion_of_messages_alone(lab: StateLab, tmp_path: Path, database_url: str) -> None:
    folder = lab.folder("said")
    with folder.messages(write=True) as index:
        request(index, SAID)
    (Path(folder.folder) / f"{MESSAGE_INDEX}.corrupt-1").write_bytes(b"damaged")
    assert lab.run("import")[1] == ["1 discussions imported, 0 known, 0 differ"]
    with closing(open_database(database_url)) as database:
        assert database.read("SELECT name FROM wilmer.documents") == []
        assert database.read("SELECT count(*) FROM wilmer.messages") == [(3,)]
        with PostgresMessages(database, "", "", "said", write=True) as stored:
            request(stored, [*SAID, ("assistant", "Come.")])
        assert lab.run("import")[1] == ["0 discussions imported, 0 known, 1 differ"]
        assert lab.run("export", "--replace")[1] == ["1 discussions exported, 0 known, 0 differ"]
        with folder.messages() as index:
            assert index.message_count() == 4
        with discussions_of(database_url, "test"):
            [listed] = process().one(discussions).listed() or []
            assert (listed.discussion_id, listed.remove()) == ("said", 1)
        # Another one of that name begins to count again.
        with PostgresMessages(database, "", "", "said", write=True) as stored:
            request(stored, [("user", "A ladder"), ("assistant", "Which?"), ("user", "The old one")])
            assert recall(stored, Recall("lantern")).lines == []
            assert recall(stored, Recall("ladder")).lines[0] == "User: A ladder"


def versions(url: str) -> dict[str, int]:
    with closing(database_for_command(url, "test").connect()) as connection:
        return dict(
            connection.execute(
                "SELECT name, version FROM wilmer.documents JOIN wilmer.discussions d ON d.id = "
                "discussion WHERE discussion_id = 'odd'"
            ).fetchall()
        )


def test_what_differs_is_named_and_left_alone(full: StateLab, database_url: str) -> None:
    full.run("import")
    before = versions(database_url)
    (full.root / "odd" / "memories.json").write_bytes(b"[]")
    (full.root / "odd" / "new.txt").write_bytes(b"new")
    (full.root / "odd" / "notes of mine.txt").unlink()
    with full.folder("plain").memories(write=True) as memories:
        memories.log_hash("j")
    told = [
        "odd: what is in the database is different. It stays as it is, unless you give --replace.",
        "plain: what is in the database is different. It stays as it is, unless you give --replace.",
    ]
    for words in (["import"], ["import", "--dry-run"]):
        status, out, err = full.run(*words)
        assert (status, err) == (1, told) and out[-1].endswith("2 known, 2 differ")
    status, _, err = full.run("export")
    assert status == 1 and err == [line.replace("in the database", "in the folder") for line in told]
    assert full.run("import", "--replace", "--dry-run")[1] == ["2 discussions would be imported, 2 known, 0 differ"]
    assert full.run("import", "--replace")[:2] == (0, ["2 discussions imported, 2 known, 0 differ"])
    # Workers that know the older ones ask for the version.
    after = versions(database_url)
    assert sorted(after) == ["memories.json", "new.txt", "timestamps.json.bak"]
    assert [name for name in before if after.get(name) == before[name]] == ["timestamps.json.bak"]
    with closing(database_for_command(database_url, "test").connect()) as connection:
        assert connection.execute(
            "SELECT index_generation FROM wilmer.discussions WHERE discussion_id = 'plain'"
        ).fetchone() == (2,)
    (full.root / "odd" / "new.txt").write_bytes(b"newer")
    (full.root / "odd" / "newest.txt").write_bytes(b"newest")
    assert full.run("export", "--replace", "odd")[:2] == (0, ["1 discussions exported, 0 known, 0 differ"])
    assert (full.root / "odd" / "new.txt").read_bytes() == b"new" and not (full.root / "odd" / "newest.txt").exists()


def test_a_server_that_writes_files_meanwhile_is_named(full: StateLab) -> None:
    with announced("http://127.0.0.1:5001"):
        status, _, [line] = full.run("import")
        assert status == 0 and f"uses {os.path.realpath(full.root)} (http://127.0.0.1:5001). Stop it" in line
        assert full.run("export")[2] == [line]
        # A server with the database reads no files.
        with closing(database_for_command(os.environ["WILMER_DATABASE_URL"], "test").connect()) as connection:
            connection.execute("SELECT pg_advisory_lock(%s, 1)", [NUMBERS])
            connection.execute(
                "INSERT INTO wilmer.workers VALUES (1, 'i', 'host', %s, '2.0', '', now(), now())", [os.getpid()]
            )
            assert full.run("import")[2] == []
    assert full.run("import")[2] == []


def test_a_dry_run_changes_nothing(full: StateLab, database_url: str) -> None:
    before = full.everything()
    assert full.run("import", "--dry-run") == (0, ["4 discussions would be imported, 0 known, 0 differ"], [])
    with closing(database_for_command(database_url, "test").connect()) as connection:
        assert connection.execute("SELECT count(*) FROM wilmer.discussions").fetchone() == (0,)
    assert full.everything() == before


def test_files_of_old_installations(lab: StateLab, tmp_path: Path) -> None:
    lab.root.mkdir()
    (lab.root / "SHOUTED_MEMORIES.JSON").write_bytes(b"[1]")
    (lab.root / "SHOUTED").mkdir()
    (lab.root / "SHOUTED" / "Timestamps.json").write_bytes(b"{}")
    (lab.root / "SHOUTED" / "chat_summary.json").write_bytes(b"[2]")
    (lab.root / "SHOUTED_chat_summary.json").write_bytes(b"[3]")
    (lab.root / "flat one_memories.json").write_bytes(b"[4]")
    older = lab.install / "Public" / "DiscussionIds" / "old"
    older.mkdir(parents=True)
    (older / "memories.json").write_bytes(b"[5]")
    (lab.install / "Public" / "ancient_vector_memory.db").touch()
    old_database(lab.install / "Public" / "ancient_vector_memory.db", "the old mill", "the owl", topics="zoo")
    assert lab.run("import") == (0, ["4 discussions imported, 0 known, 0 differ"], [])
    out = tmp_path / "out"
    lab.run("export", "--to", str(out))
    assert documents(out) == {
        "SHOUTED/chat_summary.json": b"[2]",
        "SHOUTED/memories.json": b"[1]",
        "SHOUTED/timestamps.json": b"{}",
        "flat one/memories.json": b"[4]",
        "old/memories.json": b"[5]",
    }
    with VectorMemories(str(out / "ancient" / "vector_memory.db")) as memories:
        assert len(memories.keyword_search("zoo")) == 2 and memories.logged_messages()[0].hash == "old"
    assert lab.run("import") == (0, ["0 discussions imported, 4 known, 0 differ"], [])
    assert lab.run("export") == (0, ["0 discussions exported, 4 known, 0 differ"], [])


def test_each_user_has_a_folder_of_discussions(
    lab: StateLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", None)
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", str(tmp_path / "P"))
    team = tmp_path / "team"
    users = tmp_path / "Configs" / "Users"
    for name in ("one", "two"):
        # Both write it differently and mean the same.
        written = f" {team}{'/' if name == 'two' else ''}"
        (users / f"{name}.json").write_text(json.dumps({"discussionDirectory": written}), "utf-8")
    for root, text in ((team, b"[1]"), (tmp_path / "P" / "DiscussionIds", b"[2]")):
        (root / "chat").mkdir(parents=True)
        (root / "chat" / "memories.json").write_bytes(text)
    assert lab.run("import") == (0, ["2 discussions imported, 0 known, 0 differ"], [])
    with closing(database_for_command(database_url, "test").connect()) as connection:
        rows = connection.execute(
            "SELECT space, content FROM wilmer.documents JOIN wilmer.discussions d ON d.id = discussion ORDER BY space"
        ).fetchall()
    assert rows == [("", b"[2]"), (str(team), b"[1]")]
    assert lab.run("import", "--from", str(team)) == (0, ["0 discussions imported, 1 known, 0 differ"], [])
    status, _, err = lab.run("export", "--to", str(tmp_path / "out"))
    assert status == 1 and "other users have one with this name" in err[0]
    (team / "chat" / "memories.json").unlink()
    assert lab.run("export") == (0, ["1 discussions exported, 1 known, 0 differ"], [])
    assert (team / "chat" / "memories.json").read_bytes() == b"[1]"
    for name in ("one", "two"):
        (users / f"{name}.json").unlink()
    status, _, err = lab.run("export")
    assert status == 1 and "the discussionDirectory of no user" in err[0]


def test_a_damaged_database_stops_only_its_discussion(full: StateLab) -> None:
    (full.root / "odd" / "vector_memory.db").write_bytes(b"no database" * 500)
    status, out, err = full.run("import")
    assert (status, out) == (1, ["3 discussions imported, 0 known, 0 differ"])
    assert err == ["odd: file is not a database"]


def test_a_discussion_that_a_server_writes_is_named(full: StateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "LOCK_SECONDS", 0.2)
    taken, done = threading.Event(), threading.Event()

    def server() -> None:
        with process_lock(str(full.root / "odd" / MEMORIES)):
            taken.set()
            done.wait(60)

    thread = threading.Thread(target=server)
    thread.start()
    try:
        assert taken.wait(60)
        status, out, err = full.run("import")
    finally:
        done.set()
        thread.join(60)
    assert (status, out) == (1, ["3 discussions imported, 0 known, 0 differ"])
    assert err == ["odd: a server is writing it just now; try again"]


def test_only_what_is_asked_for_is_exported(full: StateLab, tmp_path: Path) -> None:
    full.run("import")
    out = tmp_path / "out"
    assert full.run("export", "--to", str(out), "plain") == (0, ["1 discussions exported, 0 known, 0 differ"], [])
    assert [path.name for path in out.iterdir()] == ["plain"]
    assert full.run("export", "nobody") == (1, [], ["There is no discussion 'nobody' in the database."])
    assert full.run("import", "--from", str(tmp_path / "no")) == (1, [], [f"There is no folder {tmp_path / 'no'}."])


def test_the_schema_is_made_once(lab: StateLab) -> None:
    assert lab.run("upgrade")[:2] == (
        0,
        ["The schema is up to date; applied: 0001_start, 0002_keepsakes, 0003_key_salts, 0004_chunks, 0005_messages."],
    )
    assert lab.run("upgrade")[:2] == (0, ["The schema is up to date; applied: nothing."])


def test_status(full: StateLab, database_url: str) -> None:
    full.run("import")
    status, out, err = full.run("status")
    assert (status, err) == (0, []) and out[0].startswith("PostgreSQL ") and ", schema 5, " in out[0]
    assert out[1:] == ["0 workers", "4 discussions, 12 documents, 8 searchable memories."]
    with contextlib.ExitStack() as stack:
        workers = [Worker(database_url, stack) for _ in range(3)]
        for worker, settings in zip(workers, "abb", strict=True):
            worker.database.write(
                "INSERT INTO wilmer.workers VALUES (%s, 'i', 'host', 17, '2.0', %s, '2026-01-02 03:04', now(), %s)",
                [worker.session.number, settings, settings == "a"],
            )
        # A worker that was killed left its row.
        workers[2].session.close()
        workers[0].database.write("INSERT INTO wilmer.gate (worker) VALUES (1), (1)")
        out = full.run("status")[1]
    assert out[1] == "2 workers:" and len(out) == 5
    assert out[2] == "  1  host  pid 17  WilmerAI 2.0  since 2026-01-02 03:04  2 requests waiting or running, draining"
    assert out[3].startswith("  2  host") and out[3].endswith("0 requests waiting or running, another configuration")


def test_status_makes_no_tables(lab: StateLab, database_url: str) -> None:
    status, out, [line] = lab.run("status")
    assert (status, out) == (1, []) and line.startswith("The database has no tables of WilmerAI.")
    with closing(database_for_command(database_url, "test").connect()) as connection:
        assert connection.execute("SELECT to_regnamespace('wilmer')").fetchall() == [(None,)]


def test_check(full: StateLab, database_url: str) -> None:
    full.run("import")
    status, out, _ = full.run("check")
    assert status == 1 and out[-1] == "4 discussions checked, 1 problem."
    assert next(line for line in out if line.startswith("PROBLEM")).startswith("PROBLEM: odd/memories.json")
    with closing(database_for_command(database_url, "test").connect()) as connection:
        connection.execute("DELETE FROM wilmer.discussions WHERE discussion_id = 'odd'")
        connection.execute("UPDATE wilmer.discussions SET space = 'other' WHERE discussion_id = 'plain'")
    status, out, _ = full.run("check")
    assert (status, out[-2:]) == (
        0,
        ["note: 1 discussion of no user's discussionDirectory, not checked", "2 discussions checked, no problems."],
    )
    assert process().one(discussions).listed() is None


def test_the_command_memory_works_on_the_database(
    full: StateLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = memory_command(
            [
                *words,
                "--User",
                "tester",
                "--ConfigDirectory",
                str(full.config.root),
                "--DiscussionDirectory",
                str(full.root),
            ]
        )
        told = capsys.readouterr()
        return status, told.out, told.err

    full.run("import")
    before = full.everything()
    (full.root / "plain" / "memories.json").write_bytes(b"[]")
    status, out, _ = run("show", "plain")
    assert status == 0 and "Mara hid the ledger." in out
    status, out, _ = run("delete", "plain", "--yes")
    assert status == 0 and "searchable memories" in out and run("show", "plain")[0] == 1
    assert full.everything() == {**before, "plain/memories.json": b"[]"}
    monkeypatch.delenv("WILMER_DATABASE_URL")
    assert run("show", "plain")[0] == 0 and run("show", "plain", "--database", database_url)[0] == 1
    status, out, err = run("list", "--database", "postgresql://u:Geheim@127.0.0.1:1/d")
    assert (status, out) == (1, "") and err.startswith("The state database cannot be used: ") and "Geheim" not in err


NEW = "sk-another-key-18"


def rekey(
    lab: StateLab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    monkeypatch.setenv("WILMER_API_KEY", KEY)
    capsys.readouterr()
    status = rekey_command(
        [
            *words,
            "--User",
            "tester",
            "--ConfigDirectory",
            str(lab.config.root),
            "--yes",
            "--DiscussionDirectory",
            str(lab.root),
        ]
    )
    told = capsys.readouterr()
    assert KEY not in told.out + told.err
    return status, told.out, told.err


def test_the_command_rekey_works_on_the_database(
    full: StateLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    full.run("import")
    before = full.everything()
    monkeypatch.setenv("WILMER_NEW_API_KEY", NEW)
    status, out, _ = rekey(full, monkeypatch, capsys)
    assert status == 0 and out.startswith("2 conversation(s) encrypted with the new key.")
    assert full.everything() == before
    with closing(open_database(database_url)) as database:
        # The new key has format 2, which an older program would not find.
        salt = database.run(lambda connection: stored_salt(connection, ""))
        assert database.read("SELECT max(oldest_program) FROM wilmer.schema_version") == [(3,)]
        new, folder = cipher_for(derive_encryption_key(NEW, "tester", salt)), key_folder_name(NEW, salt)
        names = database.read("SELECT key_hash, discussion_id FROM wilmer.discussions ORDER BY discussion_id")
        assert salt and names == [("", "odd"), (folder, "open"), ("", "plain"), (folder, "secret")]
        rows = database.read(
            "SELECT content FROM wilmer.documents JOIN wilmer.discussions d ON d.id = discussion WHERE key_hash <> ''"
        )
        assert len(rows) == 6 and all(new.decrypt(bytes(content)) for (content,) in rows)
        for name in ("secret", "open"):
            with PostgresMemories(database, "", folder, name, cipher=new) as memories:
                assert [row["memory_text"] for row in memories.keyword_search("ledger")] == ["Mara hid the ledger."]
                assert len(memories.embeddings("embedder")) == 1
        goes_on(PostgresMessages(database, "", folder, "secret", write=True, cipher=new))
    monkeypatch.setenv("WILMER_API_KEY", NEW)
    assert "Mara hid the ledger." in run_memory(capsys, full, "show", "secret")
    status, _, err = rekey(full, monkeypatch, capsys)
    assert status == 1 and "nothing is stored for this API key" in err


def test_exports_of_the_console_get_the_new_key_too(
    full: StateLab,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    database_url: str,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(instance, "CONSOLE_DIRECTORY", str(tmp_path / "Console"))
    full.run("import")
    console, folder = ConsoleFolder(str(tmp_path / "Console")), tmp_path / "Console" / "exports"
    with discussions_of(database_url, "memory"):
        exports.save(console, full.reader("secret", KEY))
    monkeypatch.setenv("WILMER_NEW_API_KEY", NEW)
    assert rekey(full, monkeypatch, capsys)[0] == 0
    [export] = folder.iterdir()
    with discussions_of(database_url, "memory"):
        assert cipher_for(data_key(NEW, "tester")).decrypt(export.read_bytes())
        exports.remove(console, full.reader("secret", NEW), Removal())
    assert list(folder.iterdir()) == []


def run_memory(capsys: pytest.CaptureFixture[str], lab: StateLab, *words: str) -> str:
    lab.config.user(encryptUsingApiKey=True)
    capsys.readouterr()
    assert memory_command([*words, "--ConfigDirectory", str(lab.config.root), "--User", "tester"]) == 0
    return capsys.readouterr().out


def test_the_salt_goes_along(
    full: StateLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    """Into the database and back; and another one, or running servers, which would not see it, are refused."""
    monkeypatch.setenv("WILMER_NEW_API_KEY", NEW)
    monkeypatch.delenv("WILMER_DATABASE_URL")
    assert rekey(full, monkeypatch, capsys)[0] == 0
    monkeypatch.setenv("WILMER_DATABASE_URL", database_url)
    assert full.run("import", "--dry-run")[0] == 0
    with contextlib.ExitStack() as stack:
        Worker(database_url, stack)
        status, out, err = full.run("import")
        assert status == 1 and out[-1].startswith("2 discussions imported")
        assert len(err) == 3 and all("running servers would not see the new key-salt.json" in line for line in err)
    assert full.run("import") == (0, ["2 discussions imported, 2 known, 0 differ"], [])
    monkeypatch.setenv("WILMER_API_KEY", NEW)
    assert "Mara hid the ledger." in run_memory(capsys, full, "show", "secret")
    own, out = full.root / SALT_FILE, full.root.parent / "out"
    assert full.run("export", "--to", str(out)) == (0, ["4 discussions exported, 0 known, 0 differ"], [])
    assert documents(out) == documents(full.root) and (out / SALT_FILE).read_bytes() == own.read_bytes()
    for folder, words in ((full.root, ["import"]), (out, ["export", "--to", str(out)])):
        (folder / SALT_FILE).write_text(salt_text(KeySalt(bytes(32))), encoding="utf-8")
        status, told, err = full.run(*words)
        assert status == 1 and told[-1].endswith("2 known, 0 differ")
        assert any("the folder has another key-salt.json than the database" in line for line in err)
    own.write_text("{}", encoding="utf-8")
    status, told, err = full.run("import")
    assert status == 1 and any("key-salt.json is damaged" in line for line in err)
    with closing(open_database(database_url)) as database:
        database.write("DELETE FROM wilmer.key_salts")
        with pytest.raises(KeySaltError, match="is missing, and the conversations of 1 API key "):
            database.run(lambda connection: stored_salt(connection, ""))


@pytest.mark.parametrize("own", ["no salt", "another salt", "the same salt", "the only salt"])
def test_the_salt_of_the_installations_folder_goes_along(
    full: StateLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, database_url: str, own: str
) -> None:
    """A user's older conversations may be there, while the user's folder has nothing of them."""
    monkeypatch.setenv("WILMER_NEW_API_KEY", NEW)
    monkeypatch.delenv("WILMER_DATABASE_URL")
    assert rekey(full, monkeypatch, capsys)[0] == 0
    monkeypatch.setenv("WILMER_DATABASE_URL", database_url)
    older = full.install / "Public" / "DiscussionIds"
    older.parent.mkdir(parents=True, exist_ok=True)
    full.root.rename(older)
    full.root.mkdir()
    text = salt_text(KeySalt(bytes(32))) if own == "another salt" else (older / SALT_FILE).read_text(encoding="utf-8")
    if own == "the only salt":
        (older / SALT_FILE).unlink()
    if own != "no salt":
        (full.root / SALT_FILE).write_text(text, encoding="utf-8")
    before = sorted(full.root.parent.rglob("*"))
    assert full.run("import", "--dry-run")[0] == 0
    assert sorted(full.root.parent.rglob("*")) == before
    status, told, err = full.run("import")
    if own == "another salt":
        # They were not to be found in the files either.
        assert status == 1 and told[-1].startswith("2 discussions imported") and len(err) == 2
        assert all("the folder has another key-salt.json than the database" in line for line in err)
        return
    assert (status, told, err) == (0, ["4 discussions imported, 0 known, 0 differ"], [])
    monkeypatch.setenv("WILMER_API_KEY", NEW)
    assert "Mara hid the ledger." in run_memory(capsys, full, "show", "secret")


def test_a_change_of_format_goes_on_after_an_interruption(
    full: StateLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    """Some discussions have the name of format 2 then, and the others still that of format 1."""
    full.run("import")
    monkeypatch.setenv("WILMER_NEW_API_KEY", KEY)
    assert rekey(full, monkeypatch, capsys)[0] == 0
    assert full.run("import") == (0, ["2 discussions imported, 2 known, 0 differ"], [])  # those of format 1 again
    with closing(open_database(database_url)) as database:
        database.write("DELETE FROM wilmer.discussions WHERE key_hash LIKE 'v2-%%' AND discussion_id = 'secret'", [])
        assert rekey(full, monkeypatch, capsys)[0] == 1  # one name is taken
        names = database.read("SELECT discussion_id FROM wilmer.discussions WHERE key_hash = %s", [HASH])
        assert names == [("open",)]
    assert "Mara hid the ledger." in run_memory(capsys, full, "show", "secret", "--api-key", KEY)


def test_rekey_leaves_alone_what_it_cannot_change(
    full: StateLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    full.run("import")
    monkeypatch.setenv("WILMER_NEW_API_KEY", NEW)
    with closing(open_database(database_url)) as database:
        database.write(
            "INSERT INTO wilmer.discussions (space, key_hash, discussion_id) VALUES ('', %s, 'open')",
            [hash_api_key(NEW)],
        )
        database.write(
            "UPDATE wilmer.documents SET content = %s WHERE name = 'chat_summary.json' AND discussion = "
            "(SELECT id FROM wilmer.discussions WHERE discussion_id = 'secret')",
            [cipher_for(derive_encryption_key("somebody")).encrypt(b"[]")],
        )
        before = database.read("SELECT * FROM wilmer.memories ORDER BY discussion, id")
        status, out, err = rekey(full, monkeypatch, capsys)
        assert status == 1 and out.startswith("0 conversation(s)")
        assert "open has the name of a conversation" in err and "secret belongs to another API key" in err
        assert database.read("SELECT * FROM wilmer.memories ORDER BY discussion, id") == before
    with contextlib.ExitStack() as stack:
        Worker(database_url, stack)
        status, _, err = rekey(full, monkeypatch, capsys)
        assert status == 1 and "in use by 1 running server." in err


def test_rekey_decrypts_without_a_new_key(
    full: StateLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    full.run("import")
    monkeypatch.delenv("WILMER_NEW_API_KEY", raising=False)
    assert rekey(full, monkeypatch, capsys)[0] == 0
    with closing(open_database(database_url)) as database, PostgresMemories(database, "", HASH, "secret") as memories:
        assert [row["memory_text"] for row in memories.keyword_search("ledger")] == ["Mara hid the ledger."]


@pytest.mark.parametrize("url", ["", "mysql://u:Geheim@h/d"])
def test_another_address_is_a_wrong_argument(
    lab: StateLab, monkeypatch: pytest.MonkeyPatch, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WILMER_DATABASE_URL", url)
    with pytest.raises(SystemExit) as ended:
        state_command.main(["upgrade"])
    assert ended.value.code == 2 and "Geheim" not in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_one_line(lab: StateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WILMER_DATABASE_URL", "postgresql://u:Geheim@127.0.0.1:1/d")
    status, out, err = lab.run("import")
    assert (status, out, len(err)) == (1, [], 1) and "Geheim" not in err[0]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:x/Geheim@127.0.0.1/d",
        "postgresql://u:x@Geheim@127.0.0.1/d",
        "postgresql://u:Geheim/d",
        "postgresql://u:x@127.0.0.1/d?Geheim=1",
    ],
)
def test_an_address_with_special_characters_is_explained(
    lab: StateLab, monkeypatch: pytest.MonkeyPatch, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WILMER_DATABASE_URL", url)
    status, out, [line] = lab.run("status")
    assert (status, out) == (1, []) and "must be percent-encoded" in line and "Geheim" not in line
    assert memory_command(["list", "--database", url]) == 1
    line = capsys.readouterr().err
    assert "must be percent-encoded" in line and "Geheim" not in line


def test_documents_without_memories_make_no_database(lab: StateLab, tmp_path: Path) -> None:
    DiscussionFolder("bare").write("memories.json", b"[]")
    lab.run("import")
    lab.run("export", "--to", str(tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out" / "bare").iterdir()] == ["memories.json"]
