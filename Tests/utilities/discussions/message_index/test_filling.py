"""What the index holds of a conversation that is edited, branched, cut off and continued."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from Middleware.utilities.discussions.message_index.filling import add_answer, fill
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.message_index.terms import Term
from Tests.amounts import amount
from Tests.tables import check_all, table
from Tests.utilities.discussions.message_index.lab import DAY, START, Request, on_path, opened, request, said

pytestmark = pytest.mark.usefixtures("anywhere")

Said = tuple[str, str]
SEEDS = amount(2, 40)


def talk(count: int, name: str = "m", begins: int = 0) -> list[Said]:
    return [
        (("user", "assistant")[number % 2], f"{name}{number} says something of its own")
        for number in range(begins, begins + count)
    ]


def texts(said: list[Said]) -> list[str]:
    return [text for _, text in said]


def rows(index: MessageIndex) -> int:
    return int(index.all("SELECT count(*) FROM messages")[0][0])


def edited(said: list[Said], place: int, text: str) -> list[Said]:
    return [*said[:place], (said[place][0], text), *said[place + 1 :]]


CHAT = talk(30)
OPERATIONS: dict[str, list[list[Said]]] = {
    "goes on": [CHAT, [*CHAT, ("user", "more")], [*CHAT, ("user", "more"), ("assistant", "yes"), ("user", "so")]],
    "an edit": [CHAT, edited(CHAT, 5, "another text here")],
    "an edit and back": [CHAT, edited(CHAT, 5, "another"), CHAT],
    "an edit of the greeting": [CHAT, edited(CHAT, 0, "another greeting")],
    "two edits": [CHAT, edited(edited(CHAT, 5, "one"), 20, "two")],
    "the newest swiped": [CHAT, edited(CHAT, 29, "one"), edited(CHAT, 29, "two"), edited(CHAT, 29, "one")],
    "one deleted": [CHAT, CHAT[:9] + CHAT[10:]],
    "ten deleted": [CHAT, CHAT[:4] + CHAT[14:]],
    "three behind the greeting deleted": [CHAT, CHAT[:1] + CHAT[4:]],
    "inserted": [CHAT, [*CHAT[:7], ("user", "in between"), *CHAT[7:]]],
    "exchanged": [CHAT, [*CHAT[:7], CHAT[8], CHAT[7], *CHAT[9:]]],
    "rewound": [CHAT, CHAT[:12]],
    "a branch": [CHAT, CHAT[:12] + talk(8, "b", 12)],
    "a branch and back": [CHAT, CHAT[:12] + talk(8, "b", 12), CHAT],
    "a branch of a branch": [CHAT, CHAT[:12] + talk(8, "b", 12), CHAT[:12] + talk(8, "b", 12)[:3] + talk(4, "c", 15)],
    "an insertion where one was": [CHAT, [*CHAT[:7], ("user", "x"), *CHAT[7:]], [*CHAT[:7], ("user", "y"), *CHAT[7:]]],
    "names on": [CHAT, [(role, f"{'Ines' if role == 'user' else 'Tom'}: {text}") for role, text in CHAT]],
    "dates on": [CHAT, [(role, f"[12 March 2026, 10:{n:02}] {text}") for n, (role, text) in enumerate(CHAT)]],
    "the same short message": [
        [(role, "ok" if role == "user" else text) for role, text in CHAT],
        [(role, "ok" if role == "user" else text) for role, text in [*CHAT, *talk(4, "n")]],
    ],
    "nothing but the same message": [[("user", "ok")] * 40, [("user", "ok")] * 41],
    "many in front of a message that comes again": [
        [*CHAT[:6], ("user", "And now?")],
        [*CHAT, ("user", "And now?")],
        [*CHAT, *talk(40, "n"), ("user", "And now?")],
    ],
    "many inserted": [CHAT, [*CHAT[:7], *talk(25, "x"), *CHAT[7:]]],
    "many inserted in two places": [CHAT, [*CHAT[:7], *talk(12, "x"), *CHAT[7:9], *talk(30, "y"), *CHAT[9:]]],
    "many inserted where one was": [
        CHAT,
        [*CHAT[:7], ("user", "x"), *CHAT[7:]],
        [*CHAT[:7], *talk(14, "y"), *CHAT[7:]],
    ],
    "the newest three edited": [CHAT, [*CHAT[:27], *talk(3, "e", 27)]],
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_path_is_what_the_client_shows(tmp_path: Path, name: str) -> None:
    with opened(tmp_path) as index:
        for said in OPERATIONS[name]:
            filled = request(index, said)
            shown = on_path(index, filled.conversation)
            bare = [
                text.partition("] ")[2] or text.removeprefix("Ines: ").removeprefix("Tom: ") for text in texts(said)
            ]
            assert shown == bare
            assert [ids for ids in filled.rows if len(ids) != 1] == []
        assert index.all("SELECT count(*) FROM conversations") == [(1,)]
        assert index.message_count(stored=True) == rows(index)
        assert index.message_count() == len(shown)
        # Each text is stored once, however often it comes and goes.
        distinct = {text for said in OPERATIONS[name] for text in texts(said)}
        if len(set(texts(OPERATIONS[name][0]))) == 30 and name not in ("names on", "dates on", "exchanged"):
            assert rows(index) == len(distinct)


@table("window", [10, 20, 29])
def test_a_client_that_sends_the_newest_only(tmp_path: Path, window: int) -> None:
    long = talk(90)
    with opened(tmp_path) as index:
        for length in range(2, 91, 2):
            request(index, long[:length][-window:])
        assert on_path(index) == texts(long)
        # The window becomes larger, then an edit in it, then smaller.
        request(index, long)
        change = edited(long, 85, "another text")
        request(index, change[-window:])
        assert on_path(index) == texts(change)
        request(index, change[-6:])
        assert on_path(index) == texts(change)
        assert index.all("SELECT count(*) FROM conversations") == [(1,)]


@table(
    ("first", "then", "parts"),
    [
        (slice(-10, None), slice(None), 1),
        (slice(-10, None), slice(None), 3),
        (slice(-10, None), slice(-50, None), 3),
        (slice(-5, None), slice(-12, None), 2),
        # It grows at both ends.
        (slice(40, 50), slice(2, None), 2),
    ],
)
def test_a_window_that_grows(tmp_path: Path, first: slice, then: slice, parts: int) -> None:
    """Many messages in front of the first known one: those of several parts stay whole."""
    long = [(role, "\n\n".join(f"{text} {part} " + "word " * 200 for part in range(parts))) for role, text in talk(80)]
    folder = tmp_path / f"{first.start}-{then.start}-{parts}"
    folder.mkdir()
    with opened(folder) as index:
        request(index, long[first])
        request(index, long[then])
        shown = [part.strip() for _, text in long[then] for part in text.split("\n\n")]
        assert on_path(index) == shown
        stored = rows(index)
        assert index.message_count() == len(long[then])
        assert all(len(ids) == parts for ids in request(index, long[then]).rows)
        request(index, long[then][-8:])
        assert (rows(index), on_path(index)) == (stored, shown)


def test_a_client_that_hides_old_messages(tmp_path: Path) -> None:
    long = talk(60)
    with opened(tmp_path) as index:
        request(index, long[:40])
        for length in range(40, 60):
            request(index, long[30:length])
        assert on_path(index) == texts(long[:59])


def test_a_client_that_keeps_the_greeting(tmp_path: Path) -> None:
    long = talk(80)
    with opened(tmp_path) as index:
        request(index, long[:40])
        for length in range(40, 81, 2):
            request(index, [long[0], *long[10 + length - 40 : length]])
        assert on_path(index) == texts(long)


@pytest.mark.parametrize(("every", "shift"), [(10, 1), (2, 1), (10, 7), (2, 7), (1000, 1), (1000, 5)])
def test_a_client_that_writes_a_summary_at_the_top(tmp_path: Path, every: int, shift: int) -> None:
    long = talk(80)
    with opened(tmp_path) as index:
        request(index, long[:40])
        for length in range(40, 81, 2):
            summary = f"A summary of all that came before, number {length // every}."
            request(index, [("user", summary), *long[length - 20 + (length % shift) : length]])
            shown = on_path(index)
            assert [text for text in shown if "summary" not in text] == texts(long[:length])
            assert set(shown) - set(texts(long)) <= {summary}


def test_a_deleted_beginning(tmp_path: Path) -> None:
    long = talk(60)
    with opened(tmp_path) as index:
        request(index, long[:20])
        for length in range(20, 40, 2):
            request(index, long[1:length])
        # The same message was the first while 12 came.
        assert on_path(index) == texts(long[1:38])


def test_two_chats_that_begin_alike(tmp_path: Path) -> None:
    greeting, hi = ("assistant", "Welcome to the mill, stranger. What brings you here?"), ("user", "Hi")
    first = [greeting, hi, *talk(8, "one", 1)]
    second = [greeting, hi, *talk(8, "two", 1)]
    with opened(tmp_path) as index:
        for length in range(2, 10, 2):
            request(index, first[:length])
        for length in range(2, 10, 2):
            request(index, second[:length])
        request(index, first)
        assert {tuple(on_path(index, number)) for number in (1, 2)} == {tuple(texts(first)), tuple(texts(second[:8]))}


def test_lore_at_a_fixed_depth(tmp_path: Path) -> None:
    lore = ("user", "[The mill has a red door, and its miller never sleeps before midnight.]")
    long = talk(40)
    with opened(tmp_path) as index:
        for length in range(10, 40):
            said = long[:length]
            request(index, [*said[:-4], lore, *said[-4:]])
        assert on_path(index) == texts(long[:39])


def test_tentative_conversations_are_found_by_no_search(tmp_path: Path) -> None:
    def found() -> list[int]:
        with index.order():
            return index.occurrences(Term(("title",))).full

    with opened(tmp_path) as index:
        for number in range(30):
            assert request(
                index, [("user", f"Write a title of a few words for the chat with number {number}")]
            ).tentative
        assert (found(), rows(index)) == ([], 20)
        assert not request(
            index,
            [
                ("user", "Write a title of a few words for the chat with number 29"),
                ("assistant", "Mill"),
                ("user", "Ok"),
            ],
        ).tentative
        assert (len(found()), rows(index)) == (1, 22)
        # A conversation that was further is not tentative because of a shorter request.
        request(index, CHAT)
        assert not request(index, CHAT[:1] + [("assistant", text) for _, text in CHAT[1:5]]).tentative


@table(
    ("kept", "sent", "expected"),
    [(100, 500, 100), (100, 104, 104), (100, 106, 100), (1000, 500, 500)],
)
def test_the_limit_of_rows(tmp_path: Path, kept: int, sent: int, expected: int) -> None:
    long = talk(sent)
    with opened(tmp_path) as index:
        request(index, long[:50], kept=kept)
        request(index, edited(long[:50], 49, "another"), kept=kept)
        for length in range(60, sent + 1, 10):
            request(index, long[:length], kept=kept)
        request(index, long, kept=kept)
        assert rows(index) <= expected * 1.05
        assert on_path(index)[-90:] == texts(long)[-90:]


def test_of_a_long_history_the_newest_come_first(tmp_path: Path, monkeypatch: Any) -> None:
    from Middleware.utilities.discussions.message_index import filling

    monkeypatch.setattr(filling, "MOST_AT_ONCE", 20)
    long = talk(50)
    with opened(tmp_path) as index:
        filled = request(index, long)
        assert on_path(index) == texts(long[30:])
        with index.writing() as writing:
            for message in filled.later:
                writing.add(message)
        assert on_path(index) == texts(long)
        request(index, [*long, ("user", "more")])
        assert rows(index) == 51


def test_a_speaker_is_noted_when_names_come(tmp_path: Path) -> None:
    with opened(tmp_path) as index:
        request(index, CHAT[:10])
        request(index, [(role, f"{'Ines' if role == 'user' else 'Tom'}: {text}") for role, text in CHAT[:10]])
        assert index.all("SELECT DISTINCT speaker FROM messages ORDER BY speaker") == [("Ines",), ("Tom",)]
        with index.order() as order:
            assert +order.speakers == {"Ines": 5, "Tom": 5}


LATER = START + 3600
NEXT, BEFORE = ("user", "so"), START - 100


@table(
    ("dates", "answer", "place", "behind", "expected"),
    [
        # An arrival is that of the edit, whether or not the next message is there already.
        ([], True, 6, [NEXT], (LATER, 4)),
        ([], True, 6, [], (LATER, 4)),
        ([], True, 6, [NEXT, ("assistant", "yes"), NEXT], (LATER, 4)),
        ([], False, 5, [NEXT], (LATER, 4)),
        ([], False, 2, [], (LATER, 4)),
        # A better time stays.
        ([BEFORE] * 6, False, 5, [NEXT], (BEFORE, 1)),
        ([BEFORE] * 6, False, 5, [], (BEFORE, 1)),
        ([BEFORE] * 6, False, 2, [], (BEFORE, 1)),
        ([BEFORE] * 6, True, 6, [NEXT], (LATER, 4)),
        # What follows was said days before.
        ([None, None, None, START - 3 * DAY], False, 2, [], (None, 5)),
        # Two for one in the middle are no edit.
        ([BEFORE] * 6, False, 2, "in the middle", (None, 5)),
        (None, True, 6, [NEXT], (None, 5)),
    ],
)
def test_when_an_edited_message_was_said(
    tmp_path: Path, dates: list[int | None] | None, answer: bool, place: int, behind: Any, expected: object
) -> None:
    chat = talk(6)
    with opened(tmp_path) as index:
        filled = fill(index, Request(chat, dates), START, 50_000)
        if answer:
            chat.append(("assistant", "the answer"))
            number = filled.conversation, filled.end
            row = said(
                "the answer", None, number[1], number[0], said=None if dates is None else BEFORE, said_from=4, state=2
            )
            add_answer(index, filled, [row], 50_000)
        sent = edited(chat, place, "another text")
        sent = [*sent[:3], NEXT, *sent[3:]] if behind == "in the middle" else [*sent, *behind]
        rows = fill(index, Request(sent, None if dates is None else []), LATER, 50_000).rows
        (row,) = index.rows(rows[place])
        assert (row.text, (row.said, row.said_from)) == ("another text", expected)


class _Player:
    """A user who edits, swipes, deletes, branches and returns."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.said: list[Said] = []
        self.branches: list[list[Said]] = []
        self.count = 0

    def line(self, role: str) -> Said:
        self.count += 1
        short = role == "user" and self.random.random() < 0.3
        return role, self.random.choice(
            ["ok", "go on", "yes"]
        ) if short else f"line {self.count} of the {role}, in full"

    def step(self) -> None:
        if len(self.said) < 6:
            self.said += [self.line("user"), self.line("assistant")]
            return
        place = self.random.randrange(1, len(self.said))
        name = self.random.choice("say say say say edit swipe delete insert rewind branch back".split())
        if name == "say":
            self.said += [self.line("user"), self.line("assistant")]
        elif name == "edit":
            self.said[place] = self.line(self.said[place][0])
        elif name == "swipe":
            self.said[-1] = self.line("assistant")
        elif name == "delete":
            # Four and more behind the greeting are taken for a cut.
            del self.said[max(3, place) : max(3, place) + self.random.choice([1, 1, 2, 5])]
        elif name == "insert":
            self.said.insert(place, self.line("user"))
        elif name == "rewind":
            del self.said[max(4, place) :]
        elif name == "branch":
            self.branches.append(list(self.said))
            del self.said[max(4, place) :]
        elif self.branches:
            self.said, kept = list(self.branches.pop(self.random.randrange(len(self.branches)))), self.said
            self.branches.append(kept)


@pytest.mark.amounts
def test_any_operations(tmp_path: Path) -> None:
    def check(seed: int) -> None:
        player = _Player(seed)
        with opened(tmp_path / str(seed)) as index:
            for _ in range(60):
                player.step()
                filled = request(index, player.said)
                assert on_path(index, filled.conversation) == texts(player.said)
                with index.order() as order:
                    assert not order.differs(filled.states)

    for seed in range(SEEDS):
        (tmp_path / str(seed)).mkdir()
    check_all(range(SEEDS), check)
