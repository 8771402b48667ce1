"""A search in everything that was said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from Middleware.services.memory.recall import Recall, cut_to, line_tokens, recall
from Middleware.utilities.conversations.message_keys import path_messages
from Middleware.utilities.conversations.trail import Piece
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.vector_memory.searchable import Origin
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher
from Middleware.utilities.text_utils import escape_braces
from Tests.tables import table
from Tests.utilities.discussions.message_index.lab import chat, fill, opened, said
from Tests.utilities.discussions.vector_memory.lab import CIPHER, item
from Tests.utilities.discussions.vector_memory.lab import opened as opened_memories

CHAT = (
    "Ines: I finally signed the lease for the workshop.",
    "Tom: Congratulations! Where is it?",
    "Ines: Behind the harbour,\n\nnext to the old mill.",
    "Tom: Nothing else to say about that.",
    "Ines: My loom does not fit through the door.",
    "Tom: ok",
    "Ines: ok",
)


def lines(index: MessageIndex, text: str, **options: Any) -> list[str]:
    return recall(index, Recall(text, **{"who_said_it": "off", **options})).lines


@table(
    ("question", "first"),
    [
        ("What did Ines sign?", CHAT[0]),
        ("Where is the workshop of Ines?", CHAT[0]),
        ('the "old mill"', "Ines: Behind the harbour, / next to the old mill."),
        ('AND OR NOT loom * ^ "', CHAT[4]),
        ("congratulation", CHAT[1]),
        ("signing", CHAT[0]),
        ("", None),
        ("zeppelin", None),
        ("🎉", None),
    ],
)
def test_the_first_result(tmp_path: Path, question: str, first: str | None) -> None:
    with opened(tmp_path) as index:
        fill(index, chat(*CHAT))
        assert next(iter(lines(index, question)), None) == first


def test_an_answer_without_the_words_of_the_question_is_found_by_its_neighbours(tmp_path: Path) -> None:
    with opened(tmp_path) as index:
        fill(index, chat("Which instrument does your sister play?", "The cello.", *["Well, well." for _ in range(9)]))
        assert "Assistant: The cello." in lines(index, "sister's instrument")


@table(
    ("tokens", "count"),
    [(600, 6), (60, 5), (30, 2), (20, 1), (12, 1), (3, 1)],
)
def test_the_budget_holds(tmp_path: Path, tokens: int, count: int) -> None:
    with opened(tmp_path) as index:
        fill(index, chat(*CHAT))
        found = lines(index, "lease workshop harbour loom Tom", tokens=tokens)
        assert len(found) == count
        assert sum(map(line_tokens, found)) <= max(tokens, 3)
        assert found[0].endswith("…") == (tokens < 12)


def test_equal_and_contained_texts_are_results_once(tmp_path: Path) -> None:
    with opened(tmp_path) as index:
        fill(index, [said("ok loom", place=n) for n in range(40)] + [said("ok loom and more", place=41)])
        assert len(lines(index, "loom")) == 2


LEASE = "I finally signed the lease."


@table(
    ("memory", "both"),
    [
        # Word for word, whatever the marks and capitals.
        (f"Of the workshop, signed: {LEASE}", False),
        ("Ines said of the signed workshop: 'I FINALLY signed the lease', and laughed.", False),
        ("Ines finally signed the lease of the workshop.", True),
        ("I finally signed leases of the signed workshop.", True),
    ],
)
def test_a_message_that_a_memory_quotes_is_left_out_below_it(tmp_path: Path, memory: str, both: bool) -> None:
    with opened(tmp_path) as index, opened_memories(tmp_path / "vector_memory.db") as facts:
        # The other one is first, so that the memory stands above the one that it may quote.
        fill(index, [said("The workshop: lease signed.", place=0), *chat(LEASE, conversation=2)])
        facts.store_chunk([item(memory)], None)
        texts = [found.text for found in recall(index, Recall("signed lease workshop"), None, facts).results]
        assert texts[:2] == ["The workshop: lease signed.", memory]
        assert texts[2:] == [LEASE] * both


MADE_OF = ("Ines: I signed the lease {today}.", "Tom: The lease of the workshop?", "Ines: Yes, the lease.")


@table(
    ("cipher", "sources", "found"),
    [
        (NO_CIPHER, MADE_OF[:1], False),
        (NO_CIPHER, MADE_OF, False),
        (CIPHER, MADE_OF, False),
        # As the client sent it before it knew the speaker's name, or without any.
        (NO_CIPHER, ("I signed  the lease {today}.", MADE_OF[1]), False),
        # One of them is no result.
        (CIPHER, (*MADE_OF[:2], "Tom: A lease that is gone."), True),
        (NO_CIPHER, (*MADE_OF, "Yes."), True),
        (CIPHER, (), True),
    ],
)
def test_a_memory_of_messages_that_stand_above_it_is_left_out(
    tmp_path: Path, cipher: Cipher, sources: Sequence[str], found: bool
) -> None:
    keys = [path_messages([{"role": "user", "content": escape_braces(text)}])[0].key for text in sources]
    with opened(tmp_path, cipher) as index, opened_memories(tmp_path / "vector_memory.db", cipher) as facts:
        fill(index, chat(*MADE_OF))
        # They stand above the one in question, between the messages.
        facts.store_chunk([item("The first lease"), item("The second lease"), item("The third lease")], "first")
        origin = Origin(Piece("", tuple(keys))) if keys else None
        facts.store_chunk([item("A lease was signed")], "second", origin=origin)
        results = recall(index, Recall("lease", who_said_it="off"), None, facts).results
        assert ("A lease was signed" in [result.text for result in results]) is found
        assert len(results) == 6 + found


def test_what_is_shown_anyway_is_no_result(tmp_path: Path) -> None:
    with opened(tmp_path) as index:
        numbers = fill(index, chat(*CHAT))
        assert CHAT[0] not in lines(index, "lease", shown=numbers[:1])


def test_in_the_order_of_time(tmp_path: Path) -> None:
    with opened(tmp_path) as index:
        fill(index, chat("the loom again", "so", "so", "a loom, a loom", said=None))
        found = lines(index, "loom", best_first=False)
        assert found == ["User: the loom again", "User: so", "Assistant: a loom, a loom"]
        assert sorted(found) == sorted(lines(index, "loom"))


@table(("line", "tokens"), [("one two three four five six seven", 8), ("x" * 100, 8), ("x", 3), ("", 3)])
def test_a_line_is_cut_at_its_end(line: str, tokens: int) -> None:
    cut = cut_to(line, tokens)
    assert cut.endswith("…")
    assert line.startswith(cut[:-1])
    assert line_tokens(cut) <= tokens


def test_without_a_file_nothing_is_found_and_nothing_is_made(tmp_path: Path) -> None:
    with opened(tmp_path, write=False) as index:
        assert lines(index, "loom") == []
    assert list(tmp_path.iterdir()) == []
