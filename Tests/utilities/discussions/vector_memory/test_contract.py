"""What searchable memories do in every kind of database: the same cases over an SQLite file and over PostgreSQL."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from Middleware.exceptions import DataKeyError
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.conversations.trail import Piece
from Middleware.utilities.discussions.message_places import LoggedMessage, MessagePlace
from Middleware.utilities.discussions.vector_memory import SearchableMemories
from Middleware.utilities.discussions.vector_memory.searchable import Origin
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher
from Middleware.utilities.text_utils import storable
from Middleware.utilities.vector_math_utils import vector_to_blob
from Tests.postgres_lab import Server, open_database
from Tests.utilities.discussions.vector_memory.lab import CIPHER, OTHER, item, log_hashes, metadata, opened, texts

if TYPE_CHECKING:
    from Middleware.addons.postgres.database import Database


class Open(Protocol):
    """Opens the memories of one conversation."""

    def __call__(
        self, cipher: Cipher = NO_CIPHER, *, write: bool = True, scope: CancelScope | None = None
    ) -> SearchableMemories: ...


_spaces = itertools.count()


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest) -> Iterator[Database]:
    """One database for all cases, as making one takes longer than a case; each has its own space in it."""
    server: Server = request.getfixturevalue("postgres")
    database = open_database(server.new_database())
    yield database
    database.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if kind == "sqlite":

        def in_file(cipher: Cipher = NO_CIPHER, **options: Any) -> SearchableMemories:
            return opened(tmp_path / "vector_memory.db", cipher, **options)

        return in_file
    return in_database(request)


def in_database(request: pytest.FixtureRequest) -> Open:
    database, space = request.getfixturevalue("shared"), f"space {next(_spaces)}"
    from Middleware.addons.postgres.memory_rows import PostgresMemories

    def opened_there(cipher: Cipher = NO_CIPHER, **options: Any) -> SearchableMemories:
        return PostgresMemories(database, space, "", "chat", **{"write": True, **options}, cipher=cipher)

    return opened_there


@pytest.fixture(params=[NO_CIPHER, CIPHER], ids=["clear", "encrypted"])
def cipher(request: pytest.FixtureRequest) -> Cipher:
    found: Cipher = request.param
    return found


@pytest.fixture
def memories(open_: Open, cipher: Cipher) -> Iterator[SearchableMemories]:
    with open_(cipher) as found:
        yield found


def found(memories: SearchableMemories, query: str, **options: Any) -> list[str]:
    return [row["memory_text"] for row in memories.keyword_search(query, **options)]


def blob(*numbers: float) -> bytes:
    return vector_to_blob(numbers)


# -- nothing there ------------------------------------------------------------------------------------------------


def test_what_does_not_exist_is_empty_and_stays_so(open_: Open, cipher: Cipher) -> None:
    for _ in range(2):
        with open_(cipher, write=False) as memories:
            assert not memories.exists
            assert log_hashes(memories) == memories.keyword_search("a") == memories.by_ids([1]) == []
            assert memories.embeddings("m") == memories.without_embeddings("m") == memories.nearest([1.0], "m", 5) == []
            assert list(memories.all_memories()) == memories.newest(5) == []
            assert memories.counts() == {"memories": 0, "embeddings": 0, "hashes": 0}
            assert memories.count_without_embeddings("m") == 0
            with pytest.raises(Exception, match=r"not open for writing|no memories to write to"):
                memories.log_hash("h")


def test_opened_for_writing_it_exists(memories: SearchableMemories, open_: Open, cipher: Cipher) -> None:
    assert memories.exists
    with open_(cipher, write=False) as again:
        assert again.exists and again.keyword_search("a") == [] and again.nearest([1.0], "m", 5) == []


# -- chunks and the log -------------------------------------------------------------------------------------------


def test_a_chunk_is_stored_whole(memories: SearchableMemories, open_: Open, cipher: Cipher) -> None:
    assert memories.store_chunk([item("Mara hid the ledger"), item("The mill burned")], "h1") == [1, 2]
    assert memories.store_chunk([], "h2") == [] and memories.store_chunk([item("Tobias left")], None) == [3]
    assert log_hashes(memories) == ["h2", "h1"]
    with open_(cipher, write=False) as again:
        row = again.by_ids([1])[0]
        assert {**row, "date_added": ""} == {
            "id": 1,
            "discussion_id": "chat",
            "memory_text": "Mara hid the ledger",
            "date_added": "",
            "metadata_json": metadata("Mara hid the ledger"),
        }
        assert row["date_added"].endswith("+00:00")
        assert found(again, "ledger") == ["Mara hid the ledger"]
        assert texts(list(again.all_memories())) == ["Mara hid the ledger", "The mill burned", "Tobias left"]
        assert again.counts() == {"memories": 3, "embeddings": 0, "hashes": 2}


@pytest.mark.parametrize("bad", ["{", "[]", "null", ""])
def test_metadata_that_is_no_object_stores_nothing(memories: SearchableMemories, bad: str) -> None:
    with pytest.raises(ValueError):
        memories.store_chunk([item("a"), ("b", bad)], "h")
    assert memories.counts() == {"memories": 0, "embeddings": 0, "hashes": 0}


def test_a_failure_in_the_middle_stores_nothing(memories: SearchableMemories, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("full")

    with monkeypatch.context() as patch:
        patch.setattr(memories, "_insert_hash", fail)
        with pytest.raises(OSError, match="full"):
            memories.store_chunk([item("lost")], "h")
    assert memories.counts()["memories"] == 0 and found(memories, "lost") == []
    assert memories.store_chunk([item("kept")], "h") == [1]


def test_the_position_of_a_message_is_logged(memories: SearchableMemories) -> None:
    place = MessagePlace(("b", ""), 7, "history", False, True, "key", 12, ("a",))
    memories.store_chunk([item("a")], "h", place=place)
    memories.log_hash("i")
    assert memories.logged_messages() == [LoggedMessage("i", None), LoggedMessage("h", place)]


@pytest.mark.parametrize(("asked", "expected"), [(10, ["c", "b", "a"]), (2, ["c", "b"]), (0, []), (-1, [])])
def test_the_log_is_read_newest_first(memories: SearchableMemories, asked: int, expected: list[str]) -> None:
    for message_hash in "abc":
        memories.log_hash(message_hash)
    assert log_hashes(memories, asked) == expected


def test_the_log_grows_in_order_whatever_the_clock_says(
    memories: SearchableMemories, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(["2999-01-01T00:00:00+00:00", "2999-01-01T00:00:00.5+00:00", "2025-01-01T00:00:00+00:00"])
    monkeypatch.setattr("Middleware.utilities.discussions.vector_memory.searchable.utc_now", lambda: next(times))
    for message_hash in "abc":
        memories.log_hash(message_hash)
    assert log_hashes(memories) == ["c", "b", "a"]


def test_failures_of_a_chunk_are_counted_until_they_are_over(
    memories: SearchableMemories, open_: Open, cipher: Cipher
) -> None:
    assert memories.failures("after h") == 0
    assert [memories.count_failure("after h") for _ in range(2)] == [1, 2]
    with open_(cipher) as again:
        assert again.failures("after h") == 2 and again.failures("other \0") == 0
        assert again.count_failure("after h") == 3 and again.count_failure("other \0") == 1
        again.end_failures("after h")
    assert memories.count_failure("after h") == 1
    memories.end_failures("after h")
    memories.end_failures("other \0")
    assert memories.failures("after h") == 0


# -- texts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"title": 5, "summary": None, "entities": None},
        {"title": "\ud800", "summary": "a\0b", "entities": "deepword"},
        {"summary": {"a": [1, {"b": "deepword"}]}, "topics": 7},
        {"title": "x" * 200_000},
        {},
    ],
    ids=range(5),
)
def test_metadata_may_hold_anything(memories: SearchableMemories, fields: dict[str, Any]) -> None:
    text = json.dumps(fields)
    assert memories.store_chunk([("plain words \ud83d \ude00 end", text)], "h", True) == [1]
    row = memories.by_ids([1])[0]
    assert row["metadata_json"] == text and row["memory_text"] == "plain words \ufffd \ufffd end"
    assert len(memories.keyword_search("plain words")) == 1
    assert len(memories.keyword_search("deepword")) == ("deepword" in text)


def test_a_text_may_hold_nul(memories: SearchableMemories, kind: str, cipher: Cipher) -> None:
    memories.store_chunk([("left \0 right", metadata("s"))], "h\0")
    text = "left \0 right"
    # A token holds any character, and so does a file.
    expected = storable(text) if kind == "postgres" and not cipher.active else text
    assert texts(memories.by_ids([1])) == [expected] and found(memories, "right") == [expected]


@pytest.mark.parametrize(
    "look", [OTHER.encrypt(b"x").decode(), OTHER.encrypt(b"x" * 30).decode() + "\n"], ids=["short", "with line end"]
)
def test_a_text_may_look_like_a_token(open_: Open, look: str) -> None:
    with open_() as memories:
        memories.store_chunk([item(look)], None)
        assert [text.strip() for text in texts(list(memories.all_memories()))] == [look.strip()]
    with open_(CIPHER) as memories:
        assert [text.strip() for text in texts(list(memories.all_memories()))] == [look.strip()]


# -- reading ------------------------------------------------------------------------------------------------------


def test_rows_come_in_the_order_that_is_asked_for(
    memories: SearchableMemories, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories.store_chunk([item(str(number)) for number in range(1, 31)], None)
    monkeypatch.setattr("Middleware.addons.postgres.memory_rows.BATCH", 7, raising=False)
    wanted = [30, 3, 9999, *range(5, 28)]
    assert [row["id"] for row in memories.by_ids(wanted)] == [number for number in wanted if number != 9999]
    assert [row["id"] for row in memories.all_memories()] == list(range(1, 31))
    assert [row["id"] for row in memories.all_memories(16, 3)] == list(range(4, 20))
    assert [row["id"] for row in memories.all_memories(0)] == [] == [row["id"] for row in memories.all_memories(5, 30)]
    assert [row["id"] for row in memories.newest(3)] == [30, 29, 28]
    assert [row["id"] for row in memories.newest(3, before=3)] == [2, 1]


@pytest.mark.parametrize("limit", [2**31, 2**63, 10**30])
def test_no_limit_is_too_large(memories: SearchableMemories, limit: int) -> None:
    memories.store_chunk([item("owl")], "h")
    memories.add_embeddings([(1, blob(1, 0))], "m")
    assert found(memories, "owl", limit=limit) == ["owl"] and memories.nearest([1, 0], "m", limit) == [1]
    assert log_hashes(memories, limit) == ["h"] and len(memories.without_embeddings("other", limit)) == 1
    assert len(list(memories.all_memories(limit))) == 1 and list(memories.all_memories(limit, limit)) == []


# -- vectors ------------------------------------------------------------------------------------------------------


def test_vectors(memories: SearchableMemories) -> None:
    memories.store_chunk([item(text) for text in ("a", "b", "c")], None)
    assert memories.add_embeddings([(1, blob(1, 0)), (3, blob(0, 1))], "m") == 2
    assert memories.add_embeddings([(2, blob(0, 1))], "other") == 1 and memories.add_embeddings([], "m") == 0
    assert memories.embeddings("m") == [(1, blob(1, 0)), (3, blob(0, 1))]
    assert texts(memories.without_embeddings("m")) == ["b"]
    assert texts(memories.without_embeddings("none", 2)) == ["a", "b"] and memories.without_embeddings("none", 0) == []
    assert [memories.count_without_embeddings(model) for model in ("m", "other", "none")] == [1, 2, 3]
    assert memories.nearest([0.1, 1], "m", 5) == [3, 1] and memories.nearest([0.1, 1], "m", 1) == [3]
    assert memories.nearest([1, 1], "none", 5) == []
    # Another worker's cache must notice a vector that is replaced.
    memories.add_embeddings([(1, blob(5, 5, 5)), (1, blob(0.1, 1, 0))], "m")
    assert memories.nearest([0.1, 1], "m", 5) == [3] and memories.nearest([0, 1, 0], "m", 5) == [1]
    assert memories.counts() == {"memories": 3, "embeddings": 3, "hashes": 0}


def test_vectors_that_are_added_later_are_found(memories: SearchableMemories, open_: Open, cipher: Cipher) -> None:
    memories.store_chunk([item(str(number)) for number in range(6)], None)
    memories.add_embeddings([(4, blob(1, 0)), (5, blob(0, 1))], "m")
    with open_(cipher, write=False) as reader:
        assert reader.nearest([1, 0], "m", 9) == [4, 5]
        memories.add_embeddings([(6, blob(0.5, 0.5)), (2, blob(1, 0))], "m")
        assert reader.nearest([1, 0], "m", 9) == [2, 4, 6, 5]
        memories.delete(4)
        assert reader.nearest([1, 0], "m", 9) == [2, 6, 5]


# -- changes by hand ----------------------------------------------------------------------------------------------


def test_changed_and_deleted_memories(memories: SearchableMemories, open_: Open, cipher: Cipher) -> None:
    memories.store_chunk([item("the mill", topics=["zoo"]), item("the bridge"), item("the owl")], "h", True)
    memories.add_embeddings([(number, blob(1, number)) for number in (1, 2, 3)], "m")
    with open_(cipher, write=False) as reader:
        assert found(reader, "mill") == ["the mill"] and len(reader.nearest([1, 0], "m", 9)) == 3
        memories.change_text(1, "the lake")
        assert found(reader, "mill") == [] and found(reader, "lake") == ["the lake"] == found(reader, "zoo")
        assert reader.nearest([1, 0], "m", 9) == [2, 3] and texts(reader.without_embeddings("m")) == ["the lake"]
        memories.delete(3)
        assert found(reader, "owl") == [] and reader.nearest([1, 0], "m", 9) == [2]
        assert memories.store_chunk([item("the inspector")], None) == [3]
        assert found(reader, "owl;inspector") == ["the inspector"] and log_hashes(reader) == ["h"]
        memories.delete_all()
        assert reader.counts() == {"memories": 0, "embeddings": 0, "hashes": 0} and found(reader, "lake") == []
        assert memories.store_chunk([item("the lake")], "h") == [1] and found(reader, "lake") == ["the lake"]


def test_the_index_can_be_made_anew(memories: SearchableMemories) -> None:
    memories.store_chunk([item("lion", topics=["zoo"])], None, True)
    memories.store_chunk([item("tiger", topics=["zoo"])], None, False)
    assert memories.rebuild_index() == 2 and found(memories, "zoo") == ["lion"] and len(found(memories, "tiger")) == 1


# -- keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", [NO_CIPHER, OTHER], ids=["no key", "other key"])
@pytest.mark.parametrize("write", [False, True])
def test_data_of_another_key_is_refused(open_: Open, reader: Cipher, write: bool) -> None:
    with open_(CIPHER) as memories:
        memories.store_chunk([item("secret")], None)
    with pytest.raises(DataKeyError) as raised:
        open_(reader, write=write)
    assert raised.value.file.endswith("/vector_memory.db")


def test_memories_in_clear_become_tokens_with_the_next_write(open_: Open) -> None:
    with open_() as memories:
        memories.store_chunk([item("the mill", topics=["zoo"]), item("the owl")], "h", True)
        memories.add_embeddings([(1, blob(1, 0))], "m")
    with open_(CIPHER, write=False) as memories:
        assert found(memories, "zoo") == ["the mill"] and memories.embeddings("m") == [(1, blob(1, 0))]
    with open_(CIPHER) as memories:
        assert found(memories, "zoo") == ["the mill"] and memories.embeddings("m") == [(1, blob(1, 0))]
        assert memories.store_chunk([item("new")], "i") == [3]
    with pytest.raises(DataKeyError):
        open_(NO_CIPHER, write=False)


@pytest.mark.parametrize("target", [NO_CIPHER, OTHER], ids=["clear", "other key"])
def test_the_key_can_be_changed(open_: Open, target: Cipher) -> None:
    with open_(CIPHER) as memories:
        memories.store_chunk([item("lion", topics=["zoo"])], None, True)
        memories.store_chunk([item("tiger", topics=["zoo"])], None)
        memories.add_embeddings([(1, blob(1.0))], "m")
        assert found(memories, "zoo") == ["lion"]
        memories.change_cipher(target)
        assert found(memories, "zoo") == ["lion"]
        memories.store_chunk([item("owl", topics=["zoo"])], None, True)
    with open_(target, write=False) as memories:
        assert sorted(found(memories, "zoo")) == ["lion", "owl"] and len(found(memories, "lion;tiger")) == 2
        assert memories.embeddings("m") == [(1, blob(1.0))]


# -- searching ----------------------------------------------------------------------------------------------------

WORDS = ["mill", "ledger", "bridge", "owl", "inspector", "storm", "Mara", "Tobias", "harbour", "letter"]


def many(count: int) -> list[tuple[str, str]]:
    chance = random.Random(17)
    made = []
    for number in range(count):
        words = chance.choices(WORDS, k=12)
        made.append(
            (
                f"{' '.join(words)} {number}",
                metadata(" ".join(words[:5]), title=words[0], entities=words[5:7], key_phrases=[" ".join(words[7:9])]),
            )
        )
    return made


QUERIES = ["mill", "mills;owls", "Mara;Tobias;letter", "storm bridge", "ledger;nothing", ";".join(WORDS)]


@pytest.mark.slow
@pytest.mark.parametrize("cipher", [NO_CIPHER, CIPHER], ids=["clear", "encrypted"])
def test_postgres_finds_what_sqlite_finds_in_the_same_order(
    request: pytest.FixtureRequest, tmp_path: Path, cipher: Cipher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("Middleware.utilities.discussions.vector_memory.encrypted_index.BATCH", 64)
    results = []
    for memories in (opened(tmp_path / "vector_memory.db", cipher), in_database(request)(cipher)):
        with memories:
            memories.store_chunk(many(400), "h")
            results.append(
                [
                    [row["id"] for row in memories.keyword_search(query, 5, weights, False)]
                    for query in QUERIES
                    for weights in (None, [5, 1, 3, 1, 1])
                ]
            )
    assert results[0] == results[1] and all(len(row) == 5 for row in results[0])


def test_newer_memories_are_found_after_the_first_search(
    memories: SearchableMemories, open_: Open, cipher: Cipher
) -> None:
    with open_(cipher, write=False) as reader:
        for number in range(1, 5):
            memories.store_chunk([item(f"mill {number}")], f"h{number}")
            assert len(found(reader, "mill")) == number


def test_recency_is_counted(memories: SearchableMemories, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([f"20{year}-01-01T00:00:00+00:00" for year in (24, 26, 25)])
    monkeypatch.setattr("Middleware.utilities.discussions.vector_memory.searchable.utc_now", lambda: next(times))
    memories.store_chunk([item("mill")] * 3, None)
    assert [row["id"] for row in memories.keyword_search("mill", use_recency=True)] == [2, 3, 1]
    assert [row["id"] for row in memories.keyword_search("mill")] == [1, 2, 3]


# -- what chunks were made of ------------------------------------------------------------------------------------------

M = [f"{number:016x}" for number in range(9)]


def origin(*sources: str, before: str = "", after: str = "", following: int | None = None) -> Origin:
    return Origin(Piece("", sources, before, after), following)


def three_chunks(memories: SearchableMemories) -> None:
    """The chunks 2, 3 and 4, the last of which has no memory; before them, one of which nothing is known."""
    memories.store_chunk([item("the old mill")], "h0")
    assert not memories.chunks()
    memories.store_chunk([item("the mill"), item("the owl")], "h1", origin=origin(M[0], M[1], M[0]))
    memories.store_chunk([item("the lake mill")], "h2", origin=origin(M[3], before=M[0], after="2"))
    memories.log_hash("h3", origin=origin(M[4], before=M[3], after="3"))


PIECES = [
    Piece("2", (M[0], M[1], M[0]), "", "", 2),
    Piece("3", (M[3],), M[0], "2", 3),
    Piece("4", (M[4],), M[3], "3", 4),
]


def test_what_a_chunk_was_made_of_is_known(memories: SearchableMemories, open_: Open, cipher: Cipher) -> None:
    assert not memories.has_chunks and memories.chunks(M) == [] and memories.chunks_of([1]) == {}
    three_chunks(memories)
    with open_(cipher, write=False) as reader:
        assert reader.has_chunks and reader.chunks(M) == PIECES
        assert reader.chunks_of([1, 2, 4, 9]) == {2: "2", 4: "3"}
        shown = {name: [row["memory_text"] for row in rows] for name, rows in reader.facts_of(["3", "2", "4"]).items()}
        assert shown == {"3": ["the lake mill"], "2": ["the mill", "the owl"], "4": []}
        some = reader.chunks([M[0]])
        assert (some[0].sources[::2], some[1].before) == ((M[0], M[0]), M[0])
        # What is not asked for is hidden from those without the key.
        assert (some[0].sources[1] == M[1], some[1].sources[0] == some[2].before) == (not cipher.active, True)


def test_a_search_leaves_chunks_out_before_it_ranks(memories: SearchableMemories) -> None:
    three_chunks(memories)
    memories.add_embeddings([(number, blob(1, 0.1 * number)) for number in (1, 2, 3, 4)], "m")
    assert found(memories, "mill", limit=1) == ["the mill"]
    for chunks, texts_left in (
        (["2"], ["the old mill", "the lake mill"]),
        (["2", "4"], ["the old mill", "the lake mill"]),
        (["3", "2"], ["the old mill"]),
        ([], ["the mill", "the old mill", "the lake mill"]),
        (["4", "99"], ["the mill", "the old mill", "the lake mill"]),
    ):
        memories.leave_out(chunks)
        assert sorted(found(memories, "mill")) == sorted(texts_left)
        assert sorted(found(memories, "mill", use_recency=True)) == sorted(texts_left)
        assert found(memories, "mill", limit=1)[0] in texts_left
        near = [row["memory_text"] for row in memories.by_ids(memories.nearest([1.0, 0.0], "m", 1))]
        assert near == ["the old mill"]
        newest = [row["memory_text"] for row in memories.newest(1)]
        assert newest == (["the old mill"] if "3" in chunks else ["the lake mill"])
    memories.leave_out(["2", "3"])
    assert memories.ids_of('"mill"') == [1] and memories.nearest([0.0, 1.0], "m", 9) == [1]


def test_chunks_are_settled(memories: SearchableMemories, open_: Open, cipher: Cipher) -> None:
    three_chunks(memories)
    memories.add_embeddings([(4, blob(1, 0))], "m")
    assert len(found(memories, "mill")) == 3
    memories.settle_chunks({"2": "4", "4": ""}, ["3"])
    assert [(piece.id, piece.after) for piece in memories.chunks()] == [("2", "4"), ("4", "")]
    with open_(cipher, write=False) as reader:
        assert sorted(found(reader, "mill")) == ["the mill", "the old mill"]
        assert reader.embeddings("m") == [] and log_hashes(reader) == ["h3", "h1", "h0"]
    # The number of the deleted memory may be given again.
    (number,) = memories.store_chunk([item("the new mill")], None)
    assert memories.chunks_of([number]) == {}
    memories.settle_chunks({}, [])


def test_a_chunk_in_a_hole_is_not_the_newest(memories: SearchableMemories) -> None:
    three_chunks(memories)
    memories.store_chunk([], "hole", origin=origin(M[2], following=3))
    assert log_hashes(memories)[0] == "h3"
    memories.store_chunk([], "end", origin=origin(M[5]))
    assert log_hashes(memories)[0] == "end"


@pytest.mark.parametrize("delete", ["delete_all", "delete"])
def test_a_deleted_memory_leaves_nothing_of_its_chunk(memories: SearchableMemories, delete: str) -> None:
    three_chunks(memories)
    if delete == "delete":
        memories.delete(4)
        assert memories.chunks(M) == PIECES and memories.facts_of(["3"]) == {"3": []}
    else:
        memories.delete_all()
        assert memories.chunks(M) == [] and memories.counts()["hashes"] == 0
        three_chunks(memories)
        assert [piece.sources for piece in memories.chunks(M)] == [piece.sources for piece in PIECES]


def test_keys_of_messages_are_hashed_once_there_is_a_key(open_: Open, kind: str, tmp_path: Path) -> None:
    with open_() as memories:
        three_chunks(memories)
    with open_(CIPHER, write=False) as memories:
        assert memories.chunks(M) == PIECES
    with open_(CIPHER) as memories:
        assert memories.chunks(M) == PIECES
        assert not {*memories.chunks()[0].sources} & {*M}
        hashed = memories.chunks()
        memories.change_cipher(OTHER)
        assert memories.chunks(M) == PIECES and memories.chunks() == hashed
    if kind == "sqlite":
        assert M[1].encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    with open_(OTHER) as memories:
        memories.store_chunk([], "h4", origin=origin(M[1]))
        assert memories.chunks(M)[-1].sources == (M[1],) and memories.chunks()[-1].sources[0] == hashed[0].sources[1]
        memories.change_cipher(NO_CIPHER)
        assert memories.chunks(M)[:3] == PIECES
    with open_() as memories:
        assert memories.chunks(M)[:3] == PIECES
    with open_(CIPHER) as memories:
        assert memories.chunks(M)[:3] == PIECES


def test_an_interrupted_chunk_leaves_nothing(memories: SearchableMemories, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(memories, "_insert_chunk", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            memories.store_chunk([item("lost")], "h", origin=origin(M[0]))
    three_chunks(memories)
    assert memories.chunks(M) == PIECES
