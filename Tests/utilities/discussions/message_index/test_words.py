"""The words of a message and of a question."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

from Middleware.utilities.discussions.message_index.message_tables import INDEX_TABLE
from Middleware.utilities.discussions.message_index.terms import Term, query_of, stands_in, term_of
from Middleware.utilities.discussions.message_index.words import index_words
from Tests.tables import table

DIGEST = "ab12" * 16
BASE64 = "QmFzZTY0IGlzIG5vdCBhIHdvcmQ+aW4/bWVzc2FnZXMgYW5kIG5vYm9keSBzZWFyY2hlcyBmb3IgaXQ="


@table(
    ("text", "words"),
    [
        ("Ines's key", ["ines", "key"]),
        ("Größe ÉTÉ", ["große", "ete"]),
        ("東京へ 猫", ["東京", "京へ", "猫"]),
        ("Tokyo東京2020", ["tokyo", "東京", "2020"]),
        ("สวัสดี", ["สว", "วส", "สด"]),
        ("が か", ["が", "か"]),
        ("한국어 문장", ["한국어", "문장"]),
        (f"the digest {DIGEST} here", ["the", "digest", "here"]),
        (f"see {BASE64} there", ["see", "there"]),
        ("x" * 61, []),
        ("x" * 60, ["x" * 60]),
        ("a-long-hyphenated-name-that-nobody-would-ever-take-for-data-of-any-kind", None),
        ("🎉🎉", []),
        ("", []),
    ],
)
def test_words_of_an_index(text: str, words: list[str] | None) -> None:
    assert index_words(text) == (text.split("-") if words is None else words)


def test_the_index_takes_no_word_apart() -> None:
    """What is looked for is looked for as one word: FTS5 must not see two."""
    text = "สวัสดีครับ 東京へ行きました がぎ हिन्दी العَرَبِيّة עִבְרִית İstanbul ﬁne ² Ωσ 한국어 ελληνικά"
    words = index_words(text)
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(INDEX_TABLE)
        database.execute("CREATE VIRTUAL TABLE v USING fts5vocab('messages_fts', 'instance')")
        database.executemany("INSERT INTO messages_fts (rowid, text) VALUES (?, ?)", enumerate(words))
        assert len(database.execute("SELECT doc FROM v").fetchall()) == len(words)
        for number, word in enumerate(words):
            found = database.execute("SELECT rowid FROM messages_fts WHERE messages_fts MATCH ?", (f'"{word}"',))
            assert (number,) in found.fetchall(), word


SPEAKERS = ["Ines", "Tom", "Tom Miller", "The Narrator", "You"]


@table(
    ("text", "words", "named"),
    [
        ("What did Ines say about the loom?", ["say", "loom"], "Ines"),
        ("Ines?", ["ines"], "Ines"),
        ("Did Tom or Ines sign?", ["sign"], None),
        ("What does Tom Miller do for work?", ["work"], "Tom Miller"),
        ("what was TOM's job", ["job"], "Tom"),
        ("Did you see the narrator smile?", ["see", "smile"], "The Narrator"),
        ("Where do you live?", ["live"], None),
        ("Anna's cat", ["anna", "cat"], None),
        ("What was that?", ["what", "was", "that"], None),
        ("lease; workshop; Ines", ["lease", "workshop"], "Ines"),
        ("- lease\n- the workshop\n3. rent", ["lease", "workshop", "rent"], None),
        ("go went goes", ["go"], None),
        ("", [], None),
        (" ; ;", [], None),
        ("Wo war die Werkstatt, die Ines gemietet hat?", ["werkstatt", "gemietet"], "Ines"),
        ("Wer hat die Blumen gegossen?", ["blumen", "gegossen"], None),
    ],
)
def test_words_of_a_question(text: str, words: list[str], named: str | None) -> None:
    query = query_of(text, SPEAKERS)
    assert (list(query.words), query.named) == (words, named)


@table(
    ("text", "phrases"),
    [
        ('who said "the old mill" then', [("the", "old", "mill")]),
        ("„die alte Mühle“ und “red bicycle”", [("die", "alte", "muhle"), ("red", "bicycle")]),
        ('a "word" alone', []),
        ('an "open quotation', []),
        ('""', []),
    ],
)
def test_phrases(text: str, phrases: list[tuple[str, ...]]) -> None:
    assert list(query_of(text).phrases) == phrases


def test_a_question_is_read_from_its_end() -> None:
    assert query_of("lorem " * 400 + "where is the harbour").words[-1] == "harbour"
    assert "first" not in query_of("first " + "x y " * 400).words
    # The cut is in the middle of a word.
    assert set(query_of("bicycles " * 200).words) == {"bicycles"}


@table(
    ("word", "term"),
    [
        ("signed", Term(("signed",), "signe")),
        ("loom", Term(("loom",))),
        ("went", Term(("go", "goes", "went", "gone"))),
        ("202611", Term(("202611",))),
        ("東京", Term(("東京",))),
    ],
)
def test_terms(word: str, term: Term) -> None:
    assert term_of(word) == term


@table(
    ("phrase", "text", "expected"),
    [
        ("old mill", "the old mill", True),
        ("old mill", "the old windmill", False),
        ("old mill", "an old red mill", False),
        ("mill", "mills", False),
    ],
)
def test_a_phrase_stands_in_a_text(phrase: str, text: str, expected: bool) -> None:
    assert stands_in(phrase.split(), text.split()) is expected


@table(
    "text",
    ["1" * 300000, "ab12" * 75000, "-" * 300000, "ab1=/" * 60000, "a" * 60 + (" " + "A" * 60) * 5000],
    ids=lambda text: text[:5],
)
def test_long_runs_take_no_longer_than_they_are_long(text: str) -> None:
    """Quadratic time would be minutes."""
    began = time.process_time()
    index_words(text)
    assert time.process_time() - began < 5
