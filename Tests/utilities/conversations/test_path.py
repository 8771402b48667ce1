"""Which conversation a request belongs to, which pieces stand on its path, and what clients leave out."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities.conversations.message_keys import (
    PathMessage,
    Tail,
    injected,
    next_tails,
    path_messages,
    without,
)
from Middleware.utilities.conversations.path import (
    ClientFirst,
    Gap,
    beginning_is_deleted,
    client_first,
    conversation_of,
    is_tentative,
    kept_greeting,
    key_before_window,
    known_keys,
)
from Middleware.utilities.conversations.trail import Piece, WindowFacts, among_others, trail_of
from Tests.amounts import amount
from Tests.tables import table
from Tests.utilities.conversations.simulated_chat import LOOKBACK, Chat, Memory, keys_of, problems


def history(*names: str) -> list[PathMessage]:
    """A history whose keys are these words; ``m0-m9`` is ten of them. The users' messages are the even ones."""
    keys = [key for name in names for key in expanded(name)]
    return [PathMessage(key, "", ("user", "assistant")[index % 2], 30) for index, key in enumerate(keys)]


def expanded(name: str) -> list[str]:
    first, _, last = name.partition("-")
    if not last:
        return [first]
    return [f"{first[0]}{number}" for number in range(int(first[1:]), int(last[1:]) + 1)]


def piece(name: str, *sources: str, before: str = "", after: str = "", made: int = 0) -> Piece:
    return Piece(name, tuple(key for source in sources for key in expanded(source)), before, after, made)


P1 = piece("p1", "m0-m9", made=1)
P2 = piece("p2", "m10-m19", before="m9", after="p1", made=2)
P3 = piece("p3", "m20-m29", before="m19", after="p2", made=3)
USUAL = [P1, P2, P3]
NEWEST = WindowFacts(newest=["p1", "p2", "p3"])
GOING_ON = [
    piece("p1", "go", "m1", "go", "m3", made=1),
    piece("p2", "go", "m5", "go", "m7", before="m3", after="p1", made=2),
    piece("p3", "go", "m9", "go", "m11", before="m7", after="p2", made=3),
]
OK1, OK2, OK3, OK4 = (
    piece(f"p{number}", *["ok"] * 10, before="ok" if number > 1 else "", after=f"p{number - 1}", made=number)
    for number in (1, 2, 3, 4)
)


@table(
    ("messages", "pieces", "found", "holes"),
    [
        # The numbers are those of the cases that the conversation's rules were written for.
        (["m0-m35"], USUAL, "p1 p2 p3", []),
        (["m0-m4", "x", "m6-m35"], USUAL, "p2 p3", [(0, 10)]),  # 1: edited
        (["m0-m4", "x", "m6-m35"], [*USUAL, piece("q", "m0-m4", "x", "m6-m9", made=9)], "q p2 p3", []),
        (["m0-m35"], [*USUAL, piece("q", "m0-m4", "x", "m6-m9", made=9)], "p1 p2 p3", []),  # 2: and back
        (["m0-m8", "x", "m10-m35"], USUAL, "p2 p3", [(0, 10)]),  # 3: the end of a piece
        (["m0-m4", "m6-m35"], USUAL, "p2 p3", [(0, 9)]),  # 4: deleted
        (["m0-m3", "m15-m35"], USUAL, "p3", [(0, 9)]),  # 5: over a border
        (["m0-m19", "n0-n9"], USUAL, "p1 p2", []),  # 6: rewound
        (["m0-m34", "x"], USUAL, "p1 p2 p3", []),  # 7: regenerated
        (["m0-m12", "n0-n15"], USUAL, "p1", []),  # 9: a branch, and back
        (["m0-m12", "n0-n15"], [*USUAL, piece("q", "m10-m12", "n0-n6", made=9)], "p1 q", []),
        (["m0-m35"], [*USUAL, piece("q", "m10-m12", "n0-n6", made=9)], "p1 p2 p3", []),
        (["ok"] * 40, [OK1, OK2, OK3, OK4], "p1 p2 p3 p4", []),  # 24
        (["ok"] * 39, [OK1, OK2, OK3], "p1 p2 p3", []),
        (["x", *["ok"] * 39], [OK1, OK2, OK3], "p1 p2 p3", [(0, 1)]),
        (["m0-m7", "m9", "m8", "m10-m35"], USUAL, "p2 p3", [(0, 10)]),  # 33: exchanged
        (["m0-m8", "m10", "m9", "m11-m35"], USUAL, "p2 p3", [(0, 9), (10, 11)]),  # 33: over a border
        (["m0-m4", "x", "m5-m35"], USUAL, "p1 p2 p3", [(5, 6)]),  # 34: inserted
        (["m0-m4", "x", "y", "m5-m35"], USUAL, "p1 p2 p3", [(5, 7)]),
        (["m0-m4", "x", "y", "z", "m5-m35"], USUAL, "p2 p3", [(0, 13)]),
        (["m0-m4", "x", "m5-m35"], [*USUAL, piece("q", "x", before="m4")], "p1 q p2 p3", []),
        (["x", "m0-m35"], USUAL, "p1 p2 p3", [(0, 1)]),  # before the first one
        (["m0-m33"], USUAL, "p1 p2 p3", []),  # 35: a device that is behind
        (["m0-m9", "m10-m19"], USUAL, "p1 p2", []),
        ([], USUAL, "", []),
        (["n0-n9"], USUAL, "", []),
        # 40: a joined piece; one of its parts edited.
        (["m0-m35"], [piece("j", "m0-m29", made=9), *USUAL], "j", []),
        (["m0-m12", "x", "m14-m35"], [piece("j", "m0-m29", made=9), *USUAL], "p1 p3", [(10, 20)]),
        # The same messages in other pieces: fewer pieces, then newer ones.
        (["m0-m9"], [piece("a", "m0-m4"), piece("b", "m5-m9"), piece("c", "m0-m9")], "c", []),
        (["m0-m9"], [piece("a", "m0-m9", made=1), piece("b", "m0-m9", made=2)], "b", []),
        (["m0-m9"], [piece("a", "m0-m9"), piece("b", "m0-m9")], "b", []),
        (["m0-m9"], [piece("a", "m0-m6"), piece("b", "m4-m9"), piece("c", "m0-m3")], "c b", []),
        # A short message that is said again: the piece stands behind the message that was before it.
        (["a", "ok", "b", "ok", "c"], [piece("p", "ok", before="b")], "p", [(0, 3)]),
        (["ok", "a", "ok", "b"], [piece("p", "ok", "b", before="a"), piece("q", "ok", "a")], "q p", []),
        (
            ["a", "ok", "b", "x", "ok", "b"],
            [piece("p", "ok", "b", before="x"), piece("q", "ok", "b")],
            "q p",
            [(0, 1), (3, 4)],
        ),
        # An answer to repeated messages is edited: the piece behind it stays where it stood, without a gap.
        (["go", "m1", "go", "m3", "go", "m5", "go", "x", "go", "m9", "go", "m11"], GOING_ON, "p1 p3", [(4, 8)]),
        (["go", "m1", "go", "m3", "go", "x", "go", "m7", "go", "m9", "go", "m11"], GOING_ON, "p1 p3", [(4, 8)]),
        (["go", "m1", "go", "x", "go", "m5", "go", "m7", "go", "m9", "go", "m11"], GOING_ON, "p2 p3", [(0, 4)]),
        (["go", "m1", "go", "m3", "go", "go", "m9", "go", "m11"], GOING_ON, "p1 p3", [(4, 5)]),
        # With a message inserted in it, too.
        (
            ["go", "m1", "go", "m3", "go", "m5", "go", "x", "go", "m9", "y", "go", "m11"],
            GOING_ON,
            "p1 p3",
            [(4, 8), (10, 11)],
        ),
    ],
)
def test_the_trail_of_a_whole_history(
    messages: list[str], pieces: list[Piece], found: str, holes: list[object]
) -> None:
    trail = trail_of(history(*messages), pieces, NEWEST)
    assert [one.id for one in trail.pieces] == found.split()
    assert [(hole.start, hole.stop) for hole in trail.holes(trail.end)] == holes


def test_a_tombstone_covers_its_messages_without_a_text() -> None:
    gone = Piece("t", P2.sources, tombstone=True)
    trail = trail_of(history("m0-m35"), [P1, P3, gone], NEWEST)
    assert ([one.id for one in trail.pieces], trail.holes(30)) == (["p1", "p3"], [])
    trail = trail_of(history("m0-m10", "x", "m12-m35"), [P1, P3, gone], NEWEST)
    assert trail.holes(trail.end) == [range(10, 20)]


P4 = piece("p4", "m30-m39", before="m29", after="p3", made=4)
LONG = [*USUAL, P4]
LONG_NEWEST = WindowFacts(newest=["p1", "p2", "p3", "p4"])
STAYED = WindowFacts(ClientFirst("m1", 23), newest=["p1", "p2", "p3", "p4"])
SHORT = [
    piece("p1", "ok", "yes", "m2", "m3", "no", made=1),
    piece("p2", "x1-x4", "ok", before="no", after="p1", made=2),
    piece("p3", "go", before="ok", after="p2", made=3),
]
SHORT_NEWEST = WindowFacts(newest=["p1", "p2", "p3"])
OTHER_END = piece("q2", "n10-n14", "m15-m19", before="m9", after="p1", made=9)


@table(
    ("messages", "pieces", "window", "found", "holes"),
    [
        (["m20-m39"], LONG, LONG_NEWEST, "p1 p2 p3 p4", []),  # 27: at a border
        (["m15-m39"], LONG, LONG_NEWEST, "p1 p2 p3 p4", []),  # 27: inside a piece
        (["m19-m39"], LONG, LONG_NEWEST, "p1 p2 p3 p4", []),
        (["m35-m45"], LONG, LONG_NEWEST, "p1 p2 p3 p4", []),
        (["m0-m45"], LONG, LONG_NEWEST, "p1 p2 p3 p4", []),  # 28: everything again
        (["m15-m19", "m20-m22", "x", "m24-m39"], LONG, LONG_NEWEST, "p1 p2 p4", [(5, 15)]),  # 29
        (["m15-m16", "x", "m18-m39"], LONG, LONG_NEWEST, "p1 p3 p4", [(0, 5)]),
        (["m15-m18", "x", "m20-m39"], LONG, LONG_NEWEST, "p1 p3 p4", [(0, 5)]),
        (["m1-m35"], LONG, LONG_NEWEST, "p1 p2 p3", []),  # 30: the first one deleted
        (["m1-m36"], LONG, STAYED, "p2 p3", [(0, 9)]),  # and 12 messages later
        (["m25-m39"], LONG, WindowFacts(ClientFirst("m25", 3), newest=LONG_NEWEST.newest), "p1 p2 p3 p4", []),  # hidden
        (["x", "m1-m35"], LONG, LONG_NEWEST, "p2 p3", [(0, 10)]),  # 31: the greeting edited
        (["x", "y", "m2-m35"], LONG, LONG_NEWEST, "p2 p3", [(0, 10)]),
        (["summary", "m15-m39"], LONG, LONG_NEWEST, "p1 p2 p3 p4", []),  # what the client writes there
        (["summary", "m20-m39"], LONG, LONG_NEWEST, "p1 p2 p3 p4", []),
        (["sum", "mary", "m13-m39"], LONG, LONG_NEWEST, "p1 p2 p3 p4", []),
        (["m0", "m15-m39"], LONG, LONG_NEWEST, "p1 p2 p3 p4", []),  # 32: behind the greeting
        (["m0", "m20-m39"], LONG, LONG_NEWEST, "p1 p2 p3 p4", []),
        (["m0", "m1", "m15-m39"], LONG, LONG_NEWEST, "p1 p2 p3 p4", []),
        (["m0", "m6-m39"], LONG, LONG_NEWEST, "p1 p2 p3 p4", []),
        (["m0", "m4-m39"], LONG, LONG_NEWEST, "p2 p3 p4", [(0, 7)]),  # three of them: deleted
        (["m0", "x", "m15-m39"], LONG, LONG_NEWEST, "p3 p4", [(0, 7)]),  # something else stands there
        # Another piece has the same end.
        (["m15-m39"], [*LONG, OTHER_END], LONG_NEWEST, "p1 p2 p3 p4", []),
        (["m15-m39"], [*LONG, OTHER_END], WindowFacts(newest=["p1", "q2", "p3", "p4"]), "p1 q2 p3 p4", []),
        # A window with nothing of its own yet, behind the last message that a piece covers.
        (["m40-m45"], LONG, LONG_NEWEST, "", []),
        (["m40-m45"], LONG, WindowFacts(last="m39", newest=LONG_NEWEST.newest), "p1 p2 p3 p4", []),
        (["n0-n5"], LONG, WindowFacts(last="n99", newest=LONG_NEWEST.newest), "", []),
        # One word of another conversation is not the end of a piece.
        (["m19", "n1-n20"], LONG, WindowFacts(), "", []),
        (["m16-m19", "n1-n20"], LONG, WindowFacts(), "p1 p2", []),
        # Short messages that are said again are no end of a piece where more says that the conversation begins there.
        (["ok", "m2", "go", "n1"], SHORT, SHORT_NEWEST, "p3", [(0, 2)]),
        (["ok", "n1", "m3", "n2"], SHORT, SHORT_NEWEST, "", []),
        (["edited", "yes", "m2", "n1", "go"], SHORT, SHORT_NEWEST, "p3", [(0, 4)]),
        (["x3", "x4", "ok", "go", "n1"], SHORT, SHORT_NEWEST, "p1 p2 p3", []),
        # One short message, although a piece was made of it alone.
        (["go", "n1", "n2"], SHORT, SHORT_NEWEST, "p3", []),
        (["n1", "go", "n2"], SHORT, SHORT_NEWEST, "p3", [(0, 1)]),
        # Fewer messages than may lie between two of a piece.
        (["ok", "go"], SHORT, SHORT_NEWEST, "p3", [(0, 1)]),
        (["ok"], SHORT, SHORT_NEWEST, "", []),
    ],
)
def test_the_trail_of_a_window(
    messages: list[str], pieces: list[Piece], window: WindowFacts, found: str, holes: list[object]
) -> None:
    trail = trail_of(history(*messages), pieces, window)
    assert [one.id for one in trail.pieces] == found.split()
    assert [(hole.start, hole.stop) for hole in trail.holes(trail.end)] == holes


@given(st.data())
def test_the_choice_covers_as_much_as_any_other(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 9))
    spans = data.draw(st.lists(st.tuples(st.integers(0, length - 1), st.integers(1, 4)), max_size=7))
    pieces = [
        piece(f"p{number}", *[f"m{index}" for index in range(start, min(start + size, length))], made=number)
        for number, (start, size) in enumerate(spans)
    ]
    # One that begins a conversation, or the history would be a window.
    found = trail_of(history(f"m0-m{length - 1}"), [*pieces, piece("first", "m0", "never")], WindowFacts())

    def score(chosen: Sequence[Piece]) -> tuple[int, int]:
        return sum(len(one.sources) for one in chosen), -len(chosen)

    def is_possible(chosen: Sequence[Piece]) -> bool:
        covered = [source for one in chosen for source in one.sources]
        return len(covered) == len(set(covered))

    choices = (some for count in range(len(pieces) + 1) for some in itertools.combinations(pieces, count))
    assert score(found.pieces) == max(score(some) for some in choices if is_possible(some))
    assert is_possible(found.pieces)


def follow(chat: Chat, memory: Memory, where: str) -> None:
    """Send a chat as a client does, and check what is shown before the pass and after it."""
    said = keys_of(chat.messages)
    found = problems(memory.trail(said), said, filled=False)
    memory.seen(said)
    memory.write(said)
    found += problems(memory.trail(said), said, filled=True)
    assert not found, where


@table("repeated", [0.0, 0.3, 0.5, 1.0])
def test_whatever_a_user_does_a_memory_follows(repeated: float) -> None:
    """After each operation: nothing that is not there, nothing twice, no hole after the pass, no call twice."""
    for seed in range(amount(12, 100)):
        chat, memory = Chat(random.Random(seed), repeated), Memory()
        for step in range(50):
            follow(chat, memory, f"seed {seed}, step {step}, {chat.anything()}")
        assert len(memory.asked) == len(set(memory.asked))


def test_a_branch_of_a_branch_whose_greeting_is_edited() -> None:
    """Each time back to a chat, its memories are there again, and none is made twice."""
    for seed in range(amount(6, 100)):
        numbers = random.Random(seed)
        chat, memory = Chat(numbers, numbers.choice([0.0, 0.5])), Memory()
        saved: list[list[tuple[str, str]]] = []
        for depth in range(3):
            for _ in range(numbers.randrange(4, 12)):
                chat.say()
                follow(chat, memory, f"seed {seed}, depth {depth}")
            saved.append(list(chat.messages))
            del chat.messages[numbers.randrange(3, len(chat.messages)) :]
            if depth:
                chat.messages[0] = (chat.messages[0][0], f"another greeting, number {depth}")
        asked = len(memory.asked)
        for messages in (*saved, *saved[::-1]):
            chat.messages = list(messages)
            follow(chat, memory, f"seed {seed}, back")
        assert len(memory.asked) == asked == len(set(memory.asked))


@table("repeated", [0.0, 0.5])
def test_injected_text_that_changes_its_distance(repeated: float) -> None:
    """At a new distance it counts as a message once, and as none from the next request on."""
    lore = ("user", "[The mill has a red door, and its miller never sleeps before midnight.]")
    for seed in range(amount(6, 100)):
        numbers = random.Random(seed)
        chat, memory = Chat(numbers, repeated), Memory()
        tails: tuple[Tail, ...] = ()
        distance, moved = 4, 0
        for step in range(40):
            chat.say()
            if not numbers.randrange(6):
                distance, moved = numbers.choice([2, 4, 5, 7]), step
            at = max(0, len(chat.messages) - distance)
            sent = keys_of([*chat.messages[:at], lore, *chat.messages[at:]])
            left_out = injected(sent, tails)
            tails = next_tails(sent, tails)
            said = without(sent, left_out)
            if step - moved > 1 and step > 5:
                assert [one.key for one in said] == [one.key for one in keys_of(chat.messages)], f"seed {seed}, {step}"
            memory.seen(said)
            memory.write(said)
            assert not problems(memory.trail(said), said, filled=True), f"seed {seed}, step {step}"


@table(("keeps_greeting", "repeated"), [(False, 0.3), (True, 0.3), (False, 0.6)])
def test_a_window_loses_no_memory(keeps_greeting: bool, repeated: float) -> None:
    """A client that sends the newest messages alone, or behind the greeting; it cuts off two with each request."""
    for seed in range(amount(10, 100)):
        numbers = random.Random(seed)
        chat, memory = (
            Chat(numbers, repeated, greeting="Good evening, traveller. What brings you to the mill?"),
            Memory(8),
        )
        size = numbers.randrange(20, 50)
        for step in range(40):
            chat.say()
            if not step % 9:
                chat.swipe()
            whole = keys_of(chat.messages)
            is_cut = len(whole) > size + keeps_greeting
            said = [*whole[:keeps_greeting], *whole[-size:]] if is_cut else whole
            memory.seen(said)
            memory.write(said)
            trail = memory.trail(said)
            shown = [key for one in trail.pieces for key in one.sources]
            expected = [one.key for one in whole][: 8 * ((len(whole) - LOOKBACK) // 8)]
            # Behind a greeting, the first one to three that are missing are taken for a deletion.
            assert shown == expected or (keeps_greeting and shown[1:][-len(expected) + 8 :] == expected[8:]), (
                f"seed {seed}, step {step}"
            )
            assert not trail.holes(trail.end)


# -- conversations -----------------------------------------------------------------------------------------------------


def known(number: int, *trail: str, used: int = 0, elsewhere: Sequence[Sequence[str]] = ()) -> object:
    keys = [key for name in trail for key in expanded(name)]
    others = [[key for name in names for key in expanded(name)] for names in elsewhere]
    return known_keys(number, used, keys[:4], keys, others)


A, B = known(1, "g", "hi", "a0-a39", used=1), known(2, "g", "hi", "b0-b39", used=2)
GO_ON = known(1, "g", "go", "a1", "go", "a2", "go", "a3", "go", "a4")


@table(
    ("messages", "stored", "number"),
    [
        (["g", "hi", "a0-a5"], [A, B], 1),
        (["g", "hi", "b0-b5"], [A, B], 2),
        (["g", "hi", "c0-c5"], [A, B], None),  # a third that begins alike
        (["g", "hi"], [A, B], None),
        (["g"], [A], None),
        ([], [A], None),
        (["g", "hi", "a0", "x1-x9"], [A], None),  # a branch within the first three messages
        (["g", "hi", "a0", "a1", "x1-x9"], [A], 1),
        (["a20-a39"], [A, B], 1),  # a window
        (["a10-a13", "x1-x30"], [A, B], 1),  # and a branch behind it
        (["x1-x3", "a10-a16"], [A], 1),  # a new summary in front
        (["a10", "x1", "a11", "x2", "a12", "x3", "a13", "x4"], [A], None),  # words in common
        (["ok"] * 20, [known(1, *["ok"] * 40)], 1),
        (["ok"] * 3, [known(1, *["ok"] * 40)], None),  # its newest is not counted
        # The short messages of the user are the same in both.
        (["g", "go", "b1", "go", "b2", "go", "b3", "go", "b4", "go"], [GO_ON], None),
        (["g", "go", "b1", "go"], [GO_ON], None),
        (["g", "go", "a1", "x", "b2"], [GO_ON], None),
        (["g", "go", "a1", "go", "b2"], [GO_ON], 1),
        # Half of what there is.
        (["g", "hi", "x1-x4"], [known(1, "g", "hi", "a0", "a1")], 1),
        (["g", "x", "x1-x4"], [known(1, "g", "hi")], None),
        # What is elsewhere counts: a return to a branch.
        (["m0-m3", "n0-n9"], [known(1, "m0-m3", "k0-k40", elsewhere=[["n0-n9"]])], 1),
        (["n2-n9", "x"], [known(1, "m0-m3", "k0-k40", elsewhere=[["n0-n9"]])], 1),
        # Of several: most in common, then the one used last.
        (["a5-a20"], [known(1, "a0-a10", used=9), known(2, "a0-a39", used=1)], 2),
        (["a0-a9"], [known(1, "a0-a39", used=1), known(2, "a0-a39", used=2)], 2),
        (["a0-a9"], [known(1, "a0-a39", used=2), known(2, "a0-a39", used=1)], 1),
        # Rewound, edited, deleted.
        (["g", "hi", "a0-a3"], [A], 1),
        (["g", "x", "a0-a39"], [A], 1),
        (["x", "hi", "a0-a39"], [A], 1),
        (["a0-a39"], [A], 1),
    ],
)
def test_the_conversation_of_a_request(messages: list[str], stored: list[object], number: int | None) -> None:
    assert (
        conversation_of(history(*messages, "newest" if len(history(*messages)) % 2 == 0 else "answer"), stored)
        == number
    )  # type: ignore[arg-type]


@given(st.integers(0, 10_000))
def test_a_conversation_is_found_from_any_of_its_windows(seed: int) -> None:
    numbers = random.Random(seed)
    chats = [Chat(numbers, 0.5) for _ in range(3)]
    greeting = ("assistant", "Good evening, traveller.")
    for number, chat in enumerate(chats):
        chat.count = 1000 * number
        chat.messages = [greeting, ("user", "Hi")]
        for _ in range(30):
            chat.messages += [("assistant", f"a long answer of chat {number}: {numbers.random()}"), chat.new("user")]
    stored = [known_keys(number, number, *_stored(chat)) for number, chat in enumerate(chats)]
    number = numbers.randrange(3)
    said = chats[number].messages
    start = numbers.randrange(0, 40)
    window = said[start : start + numbers.randrange(8, 22)]
    assert conversation_of(keys_of(window), stored) == number
    assert conversation_of(keys_of([*said[:2], ("assistant", "new"), ("user", "new")]), stored) is None


def _stored(chat: Chat) -> tuple[list[str], list[str]]:
    keys = [one.key for one in keys_of(chat.messages)]
    return keys[:4], keys


@table(
    ("messages", "tentative"),
    [
        (["u"], True),
        (["g", "u"], True),
        (["u", "a"], True),
        (["u", "a", "u"], False),
        (["a"] * 5, True),
        (["a"] * 6, False),
        ([], True),
    ],
)
def test_a_conversation_that_begins(messages: list[str], tentative: bool) -> None:
    roles = {"u": "user", "a": "assistant", "g": "assistant"}
    assert is_tentative([PathMessage(str(index), "", roles[one]) for index, one in enumerate(messages)]) is tentative


# -- windows -----------------------------------------------------------------------------------------------------------


@table(
    ("messages", "newest", "gap"),
    [
        (["m0", "m5-m30"], "m0-m29", Gap(1, 4)),
        (["m0", "m4-m30"], "m0-m29", None),
        (["m0", "m1", "m6-m30"], "m0-m29", Gap(2, 4)),
        (["m0-m2", "m12-m30"], "m0-m29", None),  # in the middle: a deletion
        (["m0", "m22-m30"], "m0-m29", Gap(1, 21)),
        (["m0", "m23-m30"], "m0-m29", None),  # of the newest 8
        (["m0", "x", "m12-m30"], "m0-m29", None),
        (["x", "m12-m30"], "m0-m29", None),
        (["m0-m30"], "m0-m29", None),
        (["m0"], "m0-m29", None),
        ([], "m0-m29", None),
        (["m0", "m5-m30"], "", None),
    ],
)
def test_the_gap_behind_a_greeting(messages: list[str], newest: str, gap: Gap | None) -> None:
    assert kept_greeting(history(*messages), expanded(newest)) == gap


def test_the_same_message_stays_the_first() -> None:
    first = client_first(history("m1-m20"), None)
    assert first == ClientFirst("m1", 20, "m2")
    assert client_first(history("m1-m25"), first) == first
    assert client_first(history("m3-m25"), first) == ClientFirst("m3", 23, "m4")
    assert client_first(history("m1", "n2-n25"), first) == ClientFirst("m1", 25, "n2")  # said again
    assert client_first([], first) == first
    grown = [beginning_is_deleted(history(f"m1-m{20 + more}"), first) for more in (0, 11, 12)]
    assert grown == [False, False, True]
    assert not beginning_is_deleted(history("m3-m40"), first)
    assert not beginning_is_deleted(history("m3-m40"), None)


@table(
    ("messages", "before", "known", "key"),
    [
        (["m5-m20"], "m3-m18", "", "m4"),  # the window has slid
        (["m5-m20"], "m5-m18", "m4", "m4"),  # it has not
        (["m0-m20"], "m5-m18", "m4", ""),  # everything again
        (["x", "m6-m20"], "m5-m18", "m4", ""),
        (["n0-n9"], "m5-m18", "m4", ""),
        ([], "m5-m18", "m4", ""),
    ],
)
def test_the_message_before_a_window(messages: list[str], before: str, known: str, key: str) -> None:
    keys = tuple(expanded(before))
    assert key_before_window(history(*messages), Tail(len(keys), keys[:3], keys[::-1]), known) == key
    assert key_before_window(history(*messages), None, known) == ""


@table(
    ("own", "others", "order"),
    [
        ([("a", 1), ("b", 5)], [("x", 2), ("y", 9)], "a x b y"),
        ([("a", 5)], [("x", 2), ("y", 1)], "y x a"),
        ([("a", 5), ("b", 1)], [("x", 3)], "a b x"),  # behind the last one that was made before it
        ([], [("x", 3), ("y", 2)], "y x"),
        ([("a", 0)], [], "a"),
    ],
)
def test_pieces_of_other_conversations(own: list[tuple[str, int]], others: list[tuple[str, int]], order: str) -> None:
    found = among_others(*([piece(name, "m0", made=made) for name, made in some] for some in (own, others)))
    assert [one.id for one in found] == order.split()


# -- cost --------------------------------------------------------------------------------------------------------------


def long_chat(count: int) -> tuple[list[PathMessage], list[Piece], WindowFacts]:
    """A history, its pieces of ten messages, and 500 others; every fourth message is the same short one."""
    said = keys_of(
        [
            ("user" if index % 2 == 0 else "assistant", f"message {index}" if index % 4 else "ok")
            for index in range(count)
        ]
    )
    keys = [one.key for one in said]
    pieces = [
        Piece(f"p{start}", tuple(keys[start : start + 10]), keys[start - 1] if start else "", f"p{start - 10}", start)
        for start in range(0, count - 10, 10)
    ]
    numbers = random.Random(1)
    elsewhere = []
    for number in range(500):
        old = numbers.choice(pieces)
        at = numbers.randrange(10)
        sources = (*old.sources[:at], f"{number:016x}", *old.sources[at + 1 :])
        elsewhere.append(Piece(f"e{number}", sources, old.before, old.after, count + number))
    return said, [*elsewhere, *pieces], WindowFacts(newest=[one.id for one in pieces])


def calls_of(work: Callable[[], object]) -> int:
    """The Python functions and built-in ones that are called: what does not depend on how busy the machine is."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@table("window", [slice(None), slice(1003, None), slice(5, 1900)])
def test_what_a_trail_costs(window: slice) -> None:
    """On the machine of the bounds, a call takes less than 0.1 microseconds: 10 ms are 100,000 calls, for all kinds."""
    said, pieces, facts = long_chat(2000)
    assert calls_of(lambda: trail_of(said[window], pieces, facts)) < 30_000


def test_the_cost_grows_with_the_length_alone() -> None:
    few, many = (calls_of(partial(trail_of, *long_chat(count))) for count in (2000, 8000))
    assert many < 4.5 * few


def test_what_keys_cost_for_texts_that_are_known() -> None:
    said = [{"role": "user", "content": f"Kim: message {index}"} for index in range(500)]
    path_messages(said)
    assert calls_of(partial(path_messages, said)) < 40 * len(said)


@table("stored", [1, 20])
def test_what_the_search_for_the_conversation_costs(stored: int) -> None:
    said = long_chat(2000)[0]
    keys = [one.key for one in said]
    own = known_keys(0, 0, keys[:4], keys)
    others = [known_keys(number, number, ["x"] * 4, [f"{number} {key}" for key in keys]) for number in range(1, stored)]
    assert calls_of(lambda: conversation_of(said, [own, *others])) < 10_000


@table("texts", [3, 7, 97])
def test_what_a_gap_costs_where_messages_are_repeated(texts: int) -> None:
    def calls(count: int) -> int:
        keys = [f"say {index % texts}" for index in range(count)]
        said = [PathMessage(key) for key in (*keys[:2], *keys[count // 2 :])]
        return calls_of(lambda: kept_greeting(said, keys))

    assert calls(8000) < 5 * calls(2000)
