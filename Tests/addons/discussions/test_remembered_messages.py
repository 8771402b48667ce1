"""Messages that are remembered word for word: what an owner sees of them, and how they are forgotten for good."""

from __future__ import annotations

import io
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from Middleware.addons.discussions import memory_command
from Middleware.addons.discussions.contents import page
from Middleware.addons.discussions.damage_check import check
from Middleware.services.memory.folds import chain
from Middleware.services.memory.follow_state import read_follow_state
from Middleware.services.memory.pieces import CHUNKS
from Middleware.utilities.conversations.message_keys import path_messages
from Middleware.utilities.conversations.trail import Piece
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.discussions.message_index import filling
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.message_index.message_tables import PROVISIONAL
from Middleware.utilities.discussions.vector_memory.searchable import Origin
from Middleware.utilities.encryption_utils import is_token
from Tests.services.discussion_lab import KEY, DiscussionLab
from Tests.tables import table
from Tests.utilities.discussions.message_index.lab import DAY, START, Request, on_path, said

# One word, because the index of words has no sentences.
CANARY = "zebrafinchlike"
SECRET = f"Nobody may know that the {CANARY} sings in the mill."
CHAT = [
    ("user", "Hello, are you in the workshop today?"),
    ("assistant", "Ines: I signed the lease yesterday."),
    ("user", SECRET),
    ("assistant", "Ines: I keep it to myself, like the ledgers."),
    ("user", "ok"),
    ("assistant", "Ines: Shall we go to the harbour?"),
    ("user", "ok"),
    ("assistant", "Ines: The boat leaves at eight."),
]
# About noon, so that the day is the same one in most time zones.
DATES = [START + DAY // 3 + number * DAY for number in range(len(CHAT))]


def shown(at: int) -> str:
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiscussionLab:
    return DiscussionLab(tmp_path, monkeypatch)


class Place:
    """A discussion whose messages are remembered, and its owner."""

    def __init__(self, lab: DiscussionLab, api_key: str | None = None) -> None:
        self.lab, self.api_key = lab, api_key
        lab.config.user(encryptUsingApiKey=True)
        self.folder.create()
        self.send(CHAT)

    @property
    def folder(self) -> DiscussionFolder:
        return self.lab.folder("mill", self.api_key)

    def index(self, write: bool = True) -> MessageIndex:
        return self.folder.messages(write=write)

    def send(self, messages: Sequence[tuple[str, str]], dates: Sequence[int | None] = DATES) -> filling.Filled:
        with self.index() as index:
            return filling.fill(index, Request(messages, dates), START, 50_000)

    def texts(self) -> list[str]:
        with self.index(write=False) as index:
            return on_path(index)

    def number(self, text: str, which: int = 0) -> str:
        with self.index(write=False) as index:
            found = [rows[0].id for _, rows in index.all_messages() if text in rows[0].text]
        return str(found[which])

    def remember(self, name: str, *pieces: tuple[str, range], before: int = 0) -> None:
        """Store memories of the file, each with the messages of the chat that it was made of."""
        keys = [message.key for message in path_messages([{"role": role, "content": text} for role, text in CHAT])]
        content = [
            {"text_block": text, "hash": f"{number:064x}", "id": f"{number + before:016x}"}
            | {"sources": [keys[index] for index in span], "before": "", "after": "", "made": number}
            for number, (text, span) in enumerate(pieces)
        ]
        self.folder.write(name, json.dumps(content).encode())

    def chunk(self, *facts: str, of: range) -> None:
        """Store searchable memories with the messages of the chat that they were made of."""
        keys = [message.key for message in path_messages([{"role": role, "content": text} for role, text in CHAT])]
        origin = Origin(Piece("", tuple(keys[index] for index in of), keys[of.start - 1] if of.start else ""))
        with self.folder.memories(write=True) as memories:
            items = [(fact, json.dumps({"title": "About it", "summary": fact})) for fact in facts]
            memories.store_chunk(items, f"{of.stop:064x}", origin=origin)
            memories.add_embeddings([(1, b"\0\0\x80\x3f" * 3)], "embedder")

    def holding(self, word: str = CANARY) -> list[str]:
        """The files that contain the word, encrypted ones as they are decrypted."""
        cipher, found = self.folder.cipher, []
        for path in sorted(self.lab.root.rglob("*")):
            data = path.read_bytes() if path.is_file() else b""
            data = cipher.decrypt(data) if is_token(data) else data
            if word.lower().encode() in data.lower():
                found.append(path.name)
        return found

    def tool(self, *arguments: str) -> int:
        key = ["--api-key", self.api_key] if self.api_key else []
        roots = ["--ConfigDirectory", str(self.lab.config.root), "--DiscussionDirectory", str(self.lab.root)]
        return memory_command.main([*arguments, *key, "--User", "tester", *roots])


# -- forgetting --------------------------------------------------------------------------------------------------------


def _edited(place: Place) -> None:
    """The message with the secret is elsewhere, and another one stands in its place."""
    place.send([*CHAT[:2], ("user", "Nothing happened."), *CHAT[3:]])


def _new_conversation(place: Place) -> None:
    place.send([("user", f"Only the {CANARY} again?")], [START + 30 * DAY])


def _provisional(place: Place) -> None:
    filled = place.send(CHAT)
    with place.index() as index:
        row = said(
            f"It was the {CANARY}.", "Ines", filled.end, filled.conversation, role="assistant", state=PROVISIONAL
        )
        filling.add_answer(index, filled, [row], 50_000)


def _with_a_picture(place: Place) -> None:
    place.folder.write("vision_responses.json", json.dumps({"h": f"a {CANARY} on a wall", "i": "a boat"}).encode())
    place.send([*CHAT, ("user", f"Look!\n(picture: a {CANARY} on a wall)")])


def _remembered(place: Place) -> None:
    place.remember(
        "memories.json", ("They met.", range(2)), (f"The {CANARY} sings.", range(2, 4)), ("Boat.", range(4, 8))
    )
    place.remember("memories_elsewhere.json", (f"A {CANARY} is there.", range(1, 4)), ("All.", range(6, 8)), before=9)
    place.folder.write("memories.json.bak", b'[{"text_block": "%s", "hash": ""}]' % CANARY.encode())


def _compacted(place: Place) -> None:
    name = "context_compactor_blocks.json"
    place.remember(name, ("They met.", range(2)), (f"The {CANARY} sings.", range(2, 4)))
    stored = place.folder.read(name)
    assert stored is not None
    blocks = json.loads(place.folder.cipher.decrypt(stored) if is_token(stored) else stored)
    kept = [{"text": f"All of {CANARY}", "covers": "", "seen": 1, "summed": 1}]
    place.folder.write(name, json.dumps({"blocks": blocks, "old": kept, "oldest": kept}).encode())
    for file in ("context_compactor_old.json", "context_compactor_oldest.json"):
        place.folder.write(file, b'[{"text_block": "%s", "hash": ""}]' % CANARY.encode())


def _nothing(place: Place) -> None:
    pass


ALL = [text for _, text in CHAT]


@table(
    ("before", "arguments", "gone"),
    [
        (_nothing, [CANARY], [2]),
        (_nothing, [CANARY.upper()], [2]),
        # All words, in any form.
        (_nothing, [f"mill {CANARY} sing"], [2]),
        (_nothing, ["ledger"], [3]),
        (_nothing, [f"{CANARY} lease"], []),
        # Side by side.
        (_nothing, ['"the lease"'], [1]),
        (_nothing, ['"lease the"'], []),
        # Of a speaker, among others by a word.
        (_nothing, ["Ines lease"], [1]),
        (_nothing, ["ok"], [4, 6]),
        (_nothing, ["of the"], []),
        (_nothing, ["", "--before", "2026-02-03"], [0]),
        (_nothing, ["", "--before", "2020-01-01"], []),
        (_nothing, ["ok", "--before", "2026-02-08"], [4]),
        (_nothing, ["", "--elsewhere"], []),
        (_edited, [CANARY], [2]),
        (_edited, ["", "--elsewhere"], [2]),
        (_new_conversation, [CANARY], [2]),
        (_provisional, [CANARY], [2]),
        (_with_a_picture, [CANARY], [2]),
        (_remembered, [CANARY], [2]),
        (_compacted, [CANARY], [2]),
    ],
)
@pytest.mark.parametrize("api_key", [None, KEY], ids=["clear", "encrypted"])
def test_what_is_forgotten_is_in_no_file(
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    api_key: str | None,
    before: Callable[[Place], None],
    arguments: list[str],
    gone: list[int],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        place = Place(DiscussionLab(tmp_path_factory.mktemp("d"), patch), api_key)
        before(place)
        was = place.texts()
        status = place.tool("forget", "mill", *arguments, "--yes")
        out = capsys.readouterr()
        texts = [text.removeprefix("Ines: ") for text in ALL]
        assert (status, "No stored message fits" in out.err) == ((0, False) if gone else (1, True)), out
        lost = Counter(texts[index] for index in gone) | Counter(text for text in was if CANARY in text and 2 in gone)
        assert Counter(was) - lost == Counter(place.texts())
        if 2 in gone:
            assert place.holding() == []
            # While the client sends it, it does not come back, under none of its forms.
            place.send(CHAT)
            assert place.holding() == [] and texts[2] not in place.texts()
            assert check(place.lab.reader("mill", api_key)) == []


# -- with what was made of them ----------------------------------------------------------------------------------------


def _texts(place: Place, name: str) -> list[str]:
    stored = place.folder.read(name)
    assert stored is not None
    return [
        one["text_block"] for one in json.loads(place.folder.cipher.decrypt(stored) if is_token(stored) else stored)
    ]


@table(
    ("words", "shown", "elsewhere", "summary"),
    [
        # The memory of the second and third message, and one that is elsewhere; the summary that holds it.
        ([CANARY], ["They met.", "Boat."], ["All."], "They met, it seems."),
        # Nothing was made of the first message but the first memory, so no summary is left.
        (["Hello"], ["Fact.", "Boat."], ["Other.", "All."], None),
        # Made of the last ones: the summary never had it.
        (["boat"], ["They met.", "Fact."], ["Other."], "They met, a fact."),
        # What is said twice is still said once.
        (["", "--message", "OK"], ["They met.", "Fact.", "Boat."], ["Other.", "All."], "They met, a fact."),
        (["ok"], ["They met.", "Fact."], ["Other."], "They met, a fact."),
    ],
)
@pytest.mark.parametrize("api_key", [None, KEY], ids=["clear", "encrypted"])
def test_what_was_made_of_a_message_goes_with_it(
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    api_key: str | None,
    words: list[str],
    shown: list[str],
    elsewhere: list[str],
    summary: str | None,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        place = Place(DiscussionLab(tmp_path_factory.mktemp("d"), patch), api_key)
        texts = ["They met.", "Fact.", "Boat."]
        place.remember("memories.json", (texts[0], range(2)), (texts[1], range(2, 4)), (texts[2], range(4, 8)))
        place.remember("memories_elsewhere.json", ("Other.", range(1, 4)), ("All.", range(6, 8)), before=9)
        covers = chain(texts)
        versions = [
            {"text": "They met, it seems.", "covers": covers[1], "count": 1, "last": "", "used": 1},
            {"text": "They met, a fact.", "covers": covers[2], "count": 2, "last": "", "used": 2},
        ]
        place.folder.write("summary_versions.json", json.dumps(versions).encode())
        place.folder.write("chat_summary.json", json.dumps([{"text_block": versions[1]["text"], "hash": ""}]).encode())
        # Before the last message: one that is made of it stays, where the words say so.
        arguments = [place.number("ok") if word == "OK" else word for word in words]
        assert place.tool("forget", "mill", *arguments, "--yes") == 0, capsys.readouterr()
        assert (_texts(place, "memories.json"), _texts(place, "memories_elsewhere.json")) == (shown, elsewhere)
        assert _texts(place, "chat_summary.json") == ([] if summary is None else [summary])
        buried = read_follow_state(place.folder).tombstones
        assert len(buried) == 5 - len(shown) - len(elsewhere)


@table(
    ("words", "facts", "document"),
    [
        ([CANARY], ["They met.", "The boat leaves."], "They met."),
        (["Hello"], [f"A {CANARY} sings.", "It sings well.", "The boat leaves."], ""),
        (["boat"], ["They met.", f"A {CANARY} sings.", "It sings well."], "They met, and something sings."),
        (["elephant"], ["They met.", f"A {CANARY} sings.", "It sings well.", "The boat leaves."], None),
    ],
)
@pytest.mark.parametrize("api_key", [None, KEY], ids=["clear", "encrypted"])
def test_searchable_memories_of_a_message_go_with_it(
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    api_key: str | None,
    words: list[str],
    facts: list[str],
    document: str | None,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        place = Place(DiscussionLab(tmp_path_factory.mktemp("d"), patch), api_key)
        place.chunk("They met.", of=range(2))
        place.chunk(f"A {CANARY} sings.", "It sings well.", of=range(2, 4))
        place.chunk("The boat leaves.", of=range(4, 8))
        covers = chain(["- They met.", f"- A {CANARY} sings.\n- It sings well."])
        versions = [
            {"text": "They met.", "covers": covers[1], "count": 1, "last": "", "used": 5},
            {"text": "They met, and something sings.", "covers": covers[2], "count": 2, "last": "", "used": 6},
        ]
        place.folder.write("state_versions.json", json.dumps(versions).encode())
        place.folder.write("state_document.md", b"They met, and something sings.")
        assert place.tool("forget", "mill", *words, "--yes") == (document is None), capsys.readouterr()
        with place.folder.memories() as memories:
            assert [row["memory_text"] for row in memories.all_memories()] == facts
            assert len(memories.chunks()) == 3
        stored = place.folder.read("state_document.md") or b""
        text = (place.folder.cipher.decrypt(stored) if is_token(stored) else stored).decode()
        assert text == (versions[1]["text"] if document is None else document)
        if api_key is None:
            assert (place.holding() == []) == (words == [CANARY])
        if words == [CANARY]:
            assert place.holding() == [] and place.holding("something sings") == []
            assert check(place.lab.reader("mill", api_key)) == []


def test_what_does_not_fit_now_is_marked(lab: DiscussionLab, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(lab)
    place.chunk("They met.", of=range(2))
    place.chunk("Something sings.", of=range(2, 4))
    place.remember("memories.json", ("On the path.", range(2)))
    place.remember("memories_elsewhere.json", ("On a branch.", range(2, 4)), before=5)
    with place.folder.memories() as memories:
        conversation = {"number": 1, "active": {CHUNKS: [memories.chunks()[0].id]}}
    place.folder.write("follow.json", json.dumps({"conversations": [conversation]}).encode())
    assert place.tool("show", "mill") == 0
    out = capsys.readouterr().out
    assert "[elsewhere] 00000000\nOn a branch." in out and "[1] 00000000\nOn the path." in out
    assert " About it (elsewhere)\nSomething sings." in out and " About it\nThey met." in out
    assert place.tool("list", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["memories"], row["searchableMemories"]) == (1, 1)
    # What no conversation shows is found by none of the searches.
    for words, found in (("sings", False), ("met", True)):
        entries = page(place.lab.reader("mill"), "searchable", 5, words=words)["entries"]
        assert [entry["number"] for entry in entries] == [1][: 1 if found else 0], words
        for flags in ([], ["--limit", "3"]):
            assert place.tool("search", "mill", words, *flags) == 0
            out = capsys.readouterr().out
            assert ("They met." in out) == found and "Something sings." not in out, out


# -- asking first, and what cannot be done -----------------------------------------------------------------------------


@table(
    ("answer", "arguments", "status", "said"),
    [
        ("yes\n", [CANARY], 0, "1 message forgotten"),
        ("Y\n", [CANARY], 0, "1 message forgotten"),
        ("no\n", [CANARY], 1, "Nothing was forgotten."),
        ("\n", [CANARY], 1, "Nothing was forgotten."),
        ("", [CANARY], 1, "Nothing was forgotten."),
        ("yes\n", [], 1, "Name the messages to be forgotten"),
        ("yes\n", [" "], 1, "Name the messages to be forgotten"),
        ("yes\n", ["elephant"], 1, "No stored message fits"),
        ("yes\n", ["", "--message", "999"], 1, "No stored message fits"),
    ],
)
def test_it_is_asked_first(
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    arguments: list[str],
    status: int,
    said: str,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        place = Place(DiscussionLab(tmp_path_factory.mktemp("d"), patch))
        patch.setattr("sys.stdin", io.StringIO(answer))
        assert place.tool("forget", "mill", *arguments) == status
        out = capsys.readouterr()
        assert said in out.out + out.err
        assert (place.holding() == []) == (status == 0)
        # What would go is shown before anything is asked.
        assert (f"[3] {shown(DATES[2])} User: {SECRET}" in out.out) == (arguments == [CANARY])


@pytest.mark.parametrize("day", ["", "yesterday", "2026-02-30", "11.03.2026"])
def test_a_wrong_date_is_refused(lab: DiscussionLab, capsys: pytest.CaptureFixture[str], day: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        Place(lab).tool("forget", "mill", "--before", day)
    assert "is not a date such as 2026-03-11" in capsys.readouterr().err


def test_a_long_message_goes_as_a_whole(lab: DiscussionLab) -> None:
    place = Place(lab)
    paragraphs = [f"Paragraph {number}: " + "word " * 100 for number in range(9)]
    text = "\n\n".join([*paragraphs, f"The {CANARY} sings.", "It ends here. " * 40])
    place.send([*CHAT, ("user", text)], [*DATES, START + 20 * DAY])
    assert place.tool("forget", "mill", f"{CANARY} ends paragraph", "--yes") == 0
    assert place.texts() == [text.removeprefix("Ines: ") for text in ALL] and place.holding("Paragraph") == []


def test_a_deletion_that_was_interrupted_can_be_repeated(lab: DiscussionLab, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(lab)
    _remembered(place)
    with monkeypatch.context() as patch:
        patch.setattr(MessageIndex, "forget", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        assert place.tool("forget", "mill", CANARY, "--yes") == 1
    assert place.holding() == ["message_index.db"]
    assert place.tool("forget", "mill", CANARY, "--yes") == 0 and place.holding() == []


def test_pages_that_a_reader_has_kept_go_with_the_next_request(lab: DiscussionLab) -> None:
    place = Place(lab)
    with closing(sqlite3.connect(lab.root / "mill" / "message_index.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchone()
        assert place.tool("forget", "mill", CANARY, "--yes") == 0
        assert place.holding() != []
    place.send([*CHAT, ("user", "And now?")])
    assert place.holding() == []


# -- what is shown -----------------------------------------------------------------------------------------------------


def _swiped(place: Place) -> None:
    place.send([*CHAT[:-1], ("assistant", "Ines: The boat leaves at nine.")], [*DATES[:-1], None])


def _forgotten(place: Place) -> None:
    assert place.tool("forget", "mill", CANARY, "--yes") == 0


@table(
    ("before", "messages", "line"),
    [
        (_nothing, 8, "8 rows from {first} to {last}"),
        # The edited message keeps its first time.
        (_edited, 8, "9 rows from {first} to {last}, 1 elsewhere"),
        (_provisional, 9, "9 rows from {first} to {last}, 1 without a date, 1 provisional"),
        (_new_conversation, 9, "9 rows from {first} to {later}, 1 not indexed"),
        (_forgotten, 7, "7 rows from {first} to {last}, 1 forgotten"),
    ],
)
@pytest.mark.parametrize("api_key", [None, KEY], ids=["clear", "encrypted"])
def test_what_is_stored_is_counted(
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    api_key: str | None,
    before: Callable[[Place], None],
    messages: int,
    line: str,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        place = Place(DiscussionLab(tmp_path_factory.mktemp("d"), patch), api_key)
        before(place)
        capsys.readouterr()
        assert place.tool("show", "mill") == 0
        times = {"first": shown(DATES[0]), "last": shown(DATES[-1]), "later": shown(START + 30 * DAY)}
        assert f"== Messages ==\n{line.format(**times)}\n" in capsys.readouterr().out
        # They are counted without the key, too.
        for place.api_key in (api_key, None):
            assert place.tool("list", "--json") == 0
            assert json.loads(capsys.readouterr().out)[0]["messages"] == messages


def test_without_messages_nothing_is_said_of_them(lab: DiscussionLab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.store("plain")
    roots = ["--User", "tester", "--ConfigDirectory", str(lab.config.root), "--DiscussionDirectory", str(lab.root)]
    assert memory_command.main(["show", "plain", *roots], "memory") == 0
    assert "Messages" not in capsys.readouterr().out
    assert not (lab.root / "plain" / "message_index.db").exists()


@table(
    ("before", "question", "expected"),
    [
        (_nothing, "When does the boat leave?", ["[9 February 2026] Ines: The boat leaves at eight."]),
        (_swiped, "When does the boat leave?", ["[9 February 2026] Ines: The boat leaves at nine."]),
        (_provisional, CANARY, [f"[4 February 2026] User: {SECRET}", f"Ines: It was the {CANARY}."]),
        (_forgotten, CANARY, []),
        (_new_conversation, "again", []),
    ],
)
@pytest.mark.parametrize("api_key", [None, KEY], ids=["clear", "encrypted"])
def test_a_search_finds_what_recall_finds(
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    api_key: str | None,
    before: Callable[[Place], None],
    question: str,
    expected: list[str],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        place = Place(DiscussionLab(tmp_path_factory.mktemp("d"), patch), api_key)
        before(place)
        capsys.readouterr()
        assert place.tool("search", "mill", question) == 0
        lines = capsys.readouterr().out.splitlines()
        assert sorted(lines[: len(expected)]) == sorted(expected) if expected else lines == ["Nothing was found."]
        assert place.tool("search", "mill", question, "--json") == 0
        rows = json.loads(capsys.readouterr().out)
        assert sorted(row["line"] for row in rows[: len(expected)]) == sorted(expected)
        assert {row["source"] for row in rows} <= {"messages"} and all(row["score"] > 0 for row in rows)
        assert {row["state"] for row in rows} <= {"in the conversation", "provisional"}


def test_flags_of_a_search_in_memories_search_there(lab: DiscussionLab, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(lab)
    lab.store("mill", texts=("The boat is red.",))
    assert place.tool("search", "mill", "boat", "--limit", "1") == 0
    assert capsys.readouterr().out.strip() == "The boat is red."
    assert place.tool("search", "mill", "boat", "--json") == 0
    assert [row["source"] for row in json.loads(capsys.readouterr().out)][:2] in (
        ["facts", "messages"],
        ["messages", "facts"],
    )
    assert place.tool("search", "mill", "boat", "--json", "--dates") == 1
    assert "--json is for what Recall finds, and cannot be combined with --dates" in capsys.readouterr().err


# -- checking and repairing --------------------------------------------------------------------------------------------


def _change(place: Place, *statements: str) -> None:
    with closing(sqlite3.connect(place.lab.root / "mill" / "message_index.db", isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


LOST = "1 of the rows are not in the index of words, so no search finds them; rebuild-index adds them"
STRAY = "the index of words has 1 entry without a row; rebuild-index removes them"


@table(
    ("statement", "finding"),
    [
        ("SELECT 1", ""),
        (
            "INSERT INTO messages SELECT 99, conversation, 50, key, key2, role, speaker, text, words, said, said_from, "
            "seen, 0, when_words FROM messages WHERE id = 1",
            LOST,
        ),
        ("DELETE FROM messages WHERE id = 1", STRAY),
        ("UPDATE messages_fts_data SET block = zeroblob(9) WHERE id > 99", "the index of words is damaged"),
    ],
)
def test_a_damaged_index_is_found_and_made_again(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str], statement: str, finding: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        place = Place(DiscussionLab(tmp_path_factory.mktemp("d"), patch))
        _change(place, statement)
        found = [one.text for one in check(place.lab.reader("mill"))]
        assert [text for text in found if finding not in text] == [] and bool(found) == bool(finding)
        assert place.tool("rebuild-index", "mill") == 0
        assert "The index of messages was made again from" in capsys.readouterr().out
        assert check(place.lab.reader("mill")) == []
        assert place.tool("search", "mill", "lease") == 0 and "Ines: I signed the lease" in capsys.readouterr().out


def test_tokens_that_do_not_decrypt_are_counted(lab: DiscussionLab, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(lab, KEY)
    folder = next(path for path in lab.root.rglob("message_index.db"))
    with closing(sqlite3.connect(folder, isolation_level=None)) as database:
        database.execute(
            "UPDATE messages SET text = substr(text, 1, 40) || 'AAAA' || substr(text, 45) WHERE id IN (2, 4)"
        )
    assert place.tool("check", "mill") == 1
    assert "message_index.db: 2 rows cannot be decrypted, the first one is 2" in capsys.readouterr().out


def test_memories_that_others_name_are_looked_for(lab: DiscussionLab) -> None:
    place = Place(lab)
    place.remember("memories.json", ("They met.", range(2)))
    entries = json.loads(place.folder.read("memories.json") or b"")
    place.folder.write("memories.json", json.dumps([entries[0] | {"after": "f" * 16}]).encode())
    conversation = {"number": 1, "active": {"file": [entries[0]["id"], "e" * 16]}}
    place.folder.write("follow.json", json.dumps({"conversations": [conversation]}).encode())
    assert [(one.text, one.problem) for one in check(lab.reader("mill"))] == [
        ("mill/memories.json: 1 of the memories refer to one before them that is not stored (any more)", False),
        ("mill/follow.json: it refers to memories that are not stored (any more): 1", False),
    ]


def test_an_export_has_the_messages(lab: DiscussionLab, tmp_path: Path) -> None:
    place = Place(lab, KEY)
    assert place.tool("export", "mill", "--output", str(tmp_path / "e.json")) == 0
    rows = json.loads((tmp_path / "e.json").read_text(encoding="utf-8"))["messages"]
    assert [row["text"] for row in rows] == [text.removeprefix("Ines: ") for text in ALL]
    assert rows[1]["speaker"] == "Ines" and rows[1]["said"] == DATES[1]
