"""Documents of conversations in the state database: bytes, versions, copies, locks, with a real server."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator

import pytest

from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.documents import DatabaseDiscussion, DatabaseDiscussions
from Middleware.addons.postgres.session import WorkerSession
from Middleware.exceptions import DataKeyError, StateConflictError, StateUnavailableError
from Middleware.models.process import Process, install, process
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.discussion_state import BACKUP, COMPACTOR, MEMORIES, DiscussionState
from Middleware.utilities.discussions.client_keys import key_place
from Middleware.utilities.discussions.discussion_folder import discussions, holds_data_of_a_key, stored_discussion
from Middleware.utilities.encryption_utils import (
    KeySalt,
    derive_encryption_key,
    hash_api_key,
    is_token,
    key_folder_name,
)
from Tests.postgres_lab import open_database

pytestmark = pytest.mark.slow
NAME = "memories.json"
END_OTHERS = (
    "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


class Worker:
    """A worker of its own, with its own locks between threads, in this process."""

    def __init__(self, url: str, stack: contextlib.ExitStack) -> None:
        self.database = open_database(url)
        stack.callback(self.database.close)
        self.session = WorkerSession(self.database)
        self.session.open()
        stack.callback(self.session.close)
        self.discussions = DatabaseDiscussions(self.database, self.session)
        self.process = Process()
        self.process.put(discussions, self.discussions)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        before = install(self.process)
        try:
            yield
        finally:
            install(before)

    def state(self, discussion_id: str = "a", key_hash: str | None = None, key: bytes | None = None) -> DiscussionState:
        return self.discussions.state(discussion_id, key_hash, key)

    def count(self, table: str) -> int:
        [(count,)] = self.database.read(f"SELECT count(*) FROM wilmer.{table}")
        return int(count)


@pytest.fixture
def workers(database_url: str) -> Iterator[Callable[[], Worker]]:
    """Makes one more worker on the same database."""
    with contextlib.ExitStack() as stack:
        yield lambda: Worker(database_url, stack)


@pytest.fixture
def worker(workers: Callable[[], Worker]) -> Iterator[Worker]:
    made = workers()
    with made.at_work():
        yield made


def sent(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of statements from now on, in a list that grows."""
    calls: list[int] = []
    run = Database.run

    def counted(database: Database, *arguments: object, **named: object) -> object:
        calls.append(1)
        return run(database, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "run", counted)
    return calls


def test_what_is_written_is_read_byte_for_byte(worker: Worker) -> None:
    content = b'[{"text_block": "\xc3\xa4 \\u0000",\r\n "hash": ""}]\0\xff'
    state = worker.state()
    assert state.read(NAME) is None and worker.count("discussions") == 0
    state.write(NAME, content)
    assert state.read(NAME) == worker.state().read(NAME) == content
    state.write(NAME, b"")
    assert worker.state().read(NAME) == b""
    assert worker.count("discussions") == worker.count("documents") == 1


def test_the_one_factory_gives_it_in_database_mode(worker: Worker) -> None:
    state = stored_discussion("a")
    assert isinstance(state, DatabaseDiscussion) and state.display(NAME) == "a/memories.json"
    with pytest.raises(ValueError, match="usable as the name of a folder"):
        stored_discussion("a/b")


def test_conversations_keys_and_names_are_kept_apart_exactly(worker: Worker) -> None:
    worker.state("a").write(NAME, b"1")
    assert worker.state("A").read(NAME) is None and worker.state("a").read("Memories.json") is None
    assert worker.state("a", "0123456789abcdef").read(NAME) is None
    worker.state("a", "0123456789abcdef").write(NAME, b"2")
    assert worker.state("a").read(NAME) == b"1"
    assert len({worker.state("a").place, worker.state("A").place, worker.state("a", "0123456789abcdef").place}) == 3


def test_users_share_conversations_if_they_share_the_folder(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    setting: list[object] = [None]
    monkeypatch.setattr("Middleware.utilities.config.users.user_setting", lambda name: setting[0])
    worker.state().write(NAME, b"1")
    for configured, found in ((" /data/x/ ", None), ("/data/x", b"2"), ("/data/y", None), ("  ", b"1"), (17, b"1")):
        setting[0] = configured
        assert worker.state().read(NAME) == found, configured
        if found is None:
            worker.state().write(NAME, b"2")
    monkeypatch.setattr("Middleware.common.instance_global_variables.DISCUSSION_DIRECTORY", "/elsewhere")
    setting[0] = "/data/x"
    assert worker.state().read(NAME) == b"1"


# -- versions ----------------------------------------------------------------------------------------------------------


def test_who_has_read_before_another_wrote_does_not_write(worker: Worker) -> None:
    one, two = worker.state(), worker.state()
    assert one.read(NAME) is two.read(NAME) is None
    one.write(NAME, b"1")
    with pytest.raises(StateConflictError):
        two.write(NAME, b"2")
    assert two.read(NAME) == b"1"
    two.write(NAME, b"12")
    with pytest.raises(StateConflictError):
        one.write(NAME, b"13")
    assert one.read(NAME) == b"12"


def test_one_object_writes_again_and_again(worker: Worker) -> None:
    state = worker.state()
    for number in range(3):
        state.write(NAME, b"%d" % number)
    assert state.read(NAME) == b"2"


def test_a_document_that_was_removed_and_made_again_is_another(worker: Worker) -> None:
    state = worker.state()
    state.write(NAME, b"1")
    worker.database.write("DELETE FROM wilmer.discussions")
    with pytest.raises(StateConflictError):
        state.write(NAME, b"2")
    assert worker.state().read(NAME) is None
    worker.state().write(NAME, b"new")
    with pytest.raises(StateConflictError):
        state.write(NAME, b"3")
    # Nor does the row of the discussion that is gone do harm.
    empty = worker.state("b")
    worker.state("b").write("other.json", b"1")
    assert empty.read(NAME) is None
    worker.database.write("DELETE FROM wilmer.discussions")
    with pytest.raises(StateConflictError):
        empty.write(NAME, b"1")


def test_a_write_whose_answer_was_lost_is_not_a_conflict(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    state = worker.state()
    state.write(NAME, b"1")
    attempts: list[int] = []
    run = Database._attempt

    def broken(database: Database, work: Callable[..., object], scope: object) -> object:
        def lost(connection: object) -> object:
            result = work(connection)
            attempts.append(1)
            if len(attempts) == 1:
                with worker.database.connect() as other:
                    other.execute(END_OTHERS)
                connection.execute("SELECT 1")  # type: ignore[attr-defined]
            return result

        return run(database, lost, scope)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "_attempt", broken)
    state.write(NAME, b"2")
    assert state.read(NAME) == b"2" and len(attempts) > 2
    state.write(NAME, b"3")


def test_current_bytes_are_not_sent_again(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.state().write(NAME, b"x" * 100_000)
    received: list[object] = []
    present = worker.discussions.cache.put
    monkeypatch.setattr(worker.discussions.cache, "put", lambda key, value: (received.append(key), present(key, value)))
    assert worker.state().read(NAME) == worker.state().read(NAME) == b"x" * 100_000
    assert received == []
    worker.database.write("UPDATE wilmer.documents SET content = 'y', version = version + 1")
    assert worker.state().read(NAME) == b"y" and len(received) == 1


def test_statements(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the budget for a turn."""
    state = worker.state()
    calls = sent(worker, monkeypatch)
    for does, statements in (
        (lambda: state.read(NAME), 1),
        (lambda: state.write(NAME, b"1"), 1),
        (lambda: state.write(NAME, b"2"), 1),
        (lambda: state.copy(NAME, BACKUP), 2),
        (lambda: state.hide(NAME, BACKUP), 0),
        (lambda: state.change(NAME, lambda _: b"3"), 1),
        (lambda: state.change(NAME, lambda _: None), 1),
    ):
        calls.clear()
        does()
        assert len(calls) == statements


def test_documents_that_are_read_together_cost_one_statement(
    workers: Callable[[], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, other = workers(), workers()
    with worker.at_work():
        state = worker.state()
        calls = sent(worker, monkeypatch)
        for content in (None, b"2"):
            calls.clear()
            with state.together(NAME, "b.json"):
                assert calls == []
                assert state.read(NAME) is None
                with state.together("b.json", "c.json"):
                    assert state.read("b.json") == content and len(calls) == 1
                assert state.read("c.json") is None and len(calls) == 2
                assert state.read("d.json") is None and len(calls) == 3
            state.read(NAME)
            assert len(calls) == 4
            other.state().write("b.json", b"2")
        with state.together(NAME, "b.json"):
            calls.clear()
            # What is written in between is read: by this object always, by another one after a lock was taken.
            assert state.read("b.json") == b"2"
            state.write(NAME, b"1")
            state.write("b.json", b"3")
            assert (state.read(NAME), state.read("b.json"), len(calls)) == (b"1", b"3", 3)
            other.state().write("b.json", b"4")
            assert state.read("b.json") == b"3"
            with pytest.raises(StateConflictError):
                state.write("b.json", b"5")
            assert state.read("b.json") == b"4"
            other.state().write("b.json", b"6")
            with state.lock(MEMORIES):
                assert state.read("b.json") == b"6"
                other.state().write("b.json", b"7")
                with pytest.raises(StateConflictError):
                    state.write("b.json", b"8")
        assert state.read("b.json") == b"7"


# -- changes -----------------------------------------------------------------------------------------------------------


def test_simultaneous_changes_of_two_workers_are_all_kept(workers: Callable[[], Worker]) -> None:
    errors: list[BaseException] = []

    def change(worker: Worker, number: int) -> None:
        def add(stored: bytes | None) -> bytes:
            return json.dumps([*json.loads(stored or b"[]"), number]).encode()

        try:
            worker.state().change("timestamps.json", add)
        except BaseException as error:
            errors.append(error)

    three = [workers() for _ in range(3)]
    threads = [threading.Thread(target=change, args=(three[number % 3], number)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert sorted(json.loads(three[0].state().read("timestamps.json") or b"")) == list(range(24))


def test_a_change_meets_another_workers(workers: Callable[[], Worker]) -> None:
    one, two = workers(), workers()
    seen: list[bytes | None] = []

    def function(stored: bytes | None) -> bytes:
        seen.append(stored)
        if len(seen) == 1:
            two.state().write(NAME, b"2")
        return (stored or b"") + b"1"

    one.state().change(NAME, function)
    assert seen == [None, b"2"] and two.state().read(NAME) == b"21"


def test_a_change_begins_with_what_this_worker_knows(
    workers: Callable[[], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = workers(), workers()
    calls = sent(one, monkeypatch)

    def add(stored: bytes | None) -> bytes | None:
        if stored == b"x":
            raise ValueError("this one cannot be changed")
        return None if stored == b"full" else (stored or b"") + b"1"

    def change(before: bytes, after: bytes, statements: int) -> None:
        state = two.state()
        state.read(NAME)
        state.write(NAME, before)
        calls.clear()
        one.state().change(NAME, add)
        assert len(calls) == statements and two.state().read(NAME) == after

    one.state().change(NAME, add)
    # The answer to the write that came too late has the present document.
    change(b"2", b"21", 2)
    # What is not to be written, or fails, is looked at once more.
    change(b"full", b"full", 1)
    assert one.state().read(NAME) == b"full"
    change(b"3", b"31", 2)
    change(b"x2", b"x21", 2)
    for broken in (b"x", b"x"):
        with pytest.raises(ValueError, match="cannot be changed"):
            change(broken, broken, 2)
    change(b"4", b"41", 2)


def test_a_change_that_never_succeeds_ends(workers: Callable[[], Worker]) -> None:
    one, two = workers(), workers()
    other, calls = two.state(), [0]

    def function(stored: bytes | None) -> bytes:
        calls[0] += 1
        other.read(NAME)
        other.write(NAME, b"%d" % calls[0])
        return b"mine"

    with pytest.raises(StateConflictError):
        one.state().change(NAME, function)
    assert calls == [20]


# -- encryption --------------------------------------------------------------------------------------------------------


def key(name: str) -> bytes:
    return derive_encryption_key(name)


def test_encrypted_documents_are_tokens_in_the_database_and_in_the_cache(worker: Worker) -> None:
    state = worker.state("a", "0123456789abcdef", key("ann"))
    state.write(NAME, b"a secret")
    [(content,)] = worker.database.read("SELECT content FROM wilmer.documents")
    stored = state.read(NAME)
    assert stored == content and is_token(content) and state.cipher.decrypt(content) == b"a secret"
    assert worker.discussions.cache.get(("", "0123456789abcdef", "a", NAME)).content == content  # type: ignore[union-attr]
    with pytest.raises(DataKeyError):
        worker.state("a", "0123456789abcdef", key("bob")).write(NAME, b"other")
    with pytest.raises(DataKeyError):
        worker.state("a", "0123456789abcdef").copy(NAME, BACKUP)
    assert worker.count("documents") == 1


def test_copies(worker: Worker) -> None:
    plain = worker.state()
    plain.copy(NAME, BACKUP)
    assert worker.count("documents") == 0
    plain.write(NAME, b"1")
    plain.copy(NAME, BACKUP)
    plain.write(NAME, b"2")
    assert plain.read(NAME + BACKUP) == b"1"
    plain.copy(NAME, BACKUP)
    assert plain.read(NAME + BACKUP) == b"2"
    # With encryption switched on, a copy in clear is encrypted, and so is a new one of what is still in clear.
    secret = worker.state("a", None, key("ann"))
    secret.hide(NAME, BACKUP)
    hidden = secret.read(NAME + BACKUP)
    assert hidden is not None and is_token(hidden) and secret.cipher.decrypt(hidden) == b"2"
    secret.hide(NAME, BACKUP)
    assert secret.read(NAME + BACKUP) == hidden
    secret.copy(NAME, BACKUP)
    again = secret.read(NAME + BACKUP)
    assert again is not None and again != hidden and secret.cipher.decrypt(again) == b"2"
    secret.write(NAME, b"3")
    secret.copy(NAME, BACKUP)
    assert secret.read(NAME + BACKUP) == secret.read(NAME)


def test_an_id_that_is_a_keys_folder(worker: Worker, postgres: object) -> None:
    assert not holds_data_of_a_key("0123456789abcdef")
    worker.state("a", "0123456789abcdef").write(NAME, b"1")
    assert holds_data_of_a_key("0123456789abcdef") and holds_data_of_a_key("0123456789ABCDEF")
    assert not holds_data_of_a_key("a") and not holds_data_of_a_key("0123456789abcdee")
    worker.database.fail("a test says so")
    assert holds_data_of_a_key("0123456789abcdee") and not holds_data_of_a_key("a")


# -- locks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [MEMORIES, COMPACTOR])
def test_locks_hold_between_workers_for_one_conversation(workers: Callable[[], Worker], name: str) -> None:
    one, two = workers(), workers()
    other = COMPACTOR if name == MEMORIES else MEMORIES
    with one.at_work(), one.state().lock(name):
        with pytest.raises(TimeoutError), one.state().lock(name, timeout=0):
            pass
        with two.at_work():
            with pytest.raises(TimeoutError), two.state().lock(name, timeout=0):
                pass
            with two.state().lock(other, timeout=0), two.state("b").lock(name, timeout=0):
                pass
    with two.at_work(), two.state().lock(name, timeout=0):
        pass


def test_a_worker_whose_lock_was_lost_neither_overwrites_nor_repeats(workers: Callable[[], Worker]) -> None:
    """Without noticing: the connections are ended in the middle of a pass, and another worker begins the same pass."""
    one, two = workers(), workers()
    MemoryStore(one.state()).open_memories()
    first, second = MemoryStore(one.state()), MemoryStore(two.state())
    with one.at_work(), first.state.lock(MEMORIES):
        assert first.open_memories() == ([], True)
        with one.database.connect() as connection:
            connection.execute(END_OTHERS)
        with two.at_work(), second.state.lock(MEMORIES):
            assert second.open_memories() == ([], True)
            second.append_memory("one", "h1")
            with pytest.raises(StateConflictError):
                first.append_memory("one", "h1")
            second.append_memory("two", "h2")
            with pytest.raises(StateConflictError):
                first.append_memory("two", "h2")
            with pytest.raises(StateConflictError):
                first.replace_memories([])
    assert MemoryStore(two.state()).memories() == [("one", "h1"), ("two", "h2")]
    # With the lock again, it works on what is there.
    with one.at_work(), first.state.lock(MEMORIES):
        first.append_memory("three", "h3")
    assert len(MemoryStore(two.state()).memories()) == 3


def test_what_could_not_be_read_under_a_lock_is_not_replaced_under_it(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    MemoryStore(worker.state()).save_summary("all so far", "h1")
    store = MemoryStore(worker.state())
    with store.state.lock(MEMORIES):
        with monkeypatch.context() as patch:
            patch.setattr(Database, "run", lambda *_, **__: (_ for _ in ()).throw(StateUnavailableError()))
            assert store.summary() is None
        with pytest.raises(StateConflictError):
            store.save_summary("only what is new", "h2")
    assert MemoryStore(worker.state()).summary() == ("all so far", "h1")


@pytest.mark.parametrize("stored", ["format 1", "format 2", "both", "nothing"])
@pytest.mark.parametrize("known", [False, True])
def test_a_key_keeps_its_data_when_the_database_was_away(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, stored: str, known: bool
) -> None:
    """What a request writes that began while the database was away never hides what the key had."""
    key, salt = "wilmer-a-key-of-some-length", KeySalt(bytes(32), 2**14, 8, 1)
    process().one(discussions).keep_key_salt(salt)
    names = {"format 1": hash_api_key(key), "format 2": key_folder_name(key, salt)}
    for one, name in names.items():
        if stored in (one, "both"):
            worker.state("years", name).write(NAME, b"[]")
    expected = names["format 1" if stored == "format 1" else "format 2"]
    if known:
        assert key_place(key).name == expected
    with monkeypatch.context() as patch:
        patch.setattr(Database, "run", lambda *_, **__: (_ for _ in ()).throw(StateUnavailableError()))
        during = key_place(key).name
    # A key that this worker has not seen before may have data in format 1.
    assert during == (expected if known else names["format 1"])
    worker.state("new", during).write(NAME, b"[]")
    assert key_place(key).name == (during if stored == "nothing" else expected)


def test_the_stores_of_the_program_work_on_it(worker: Worker) -> None:
    store = MemoryStore(stored_discussion("a"))
    with store.state.lock(MEMORIES):
        assert store.open_memories() == ([], False)
        store.append_memory("one", "h1")
        store.append_memory("two", "h2")
        store.save_summary("both", "h2", 2)
        store.save_condensation_hash("h1")
        store.replace_memories([("both", "h2")])
        store.save_state_document("# State")
    again = MemoryStore(stored_discussion("a"))
    assert again.memories() == [("both", "h2")] and again.summary() == ("both", "h2")
    assert again.summary_position() == 2 and again.condensation_hash() == "h1" and again.state_document() == "# State"
    names = {name for (name,) in worker.database.read("SELECT name FROM wilmer.documents")}
    assert names == {
        "memories.json",
        "memories.json.bak",
        "chat_summary.json",
        "condensation_tracker.json",
        "state_document.md",
    }
    assert process() is worker.process
