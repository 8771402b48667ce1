"""Words, their language, and what a search leaves out."""

from __future__ import annotations

import sqlite3
import unicodedata
from contextlib import closing

from Middleware.utilities.stop_words import (
    IRREGULAR_VERBS,
    STOP_WORDS,
    language_of,
    verb_forms,
    without_stop_words,
    words_of,
)
from Tests.tables import table


def test_the_lists_have_the_promised_sizes() -> None:
    assert set(STOP_WORDS) == {"en", "de", "fr", "es"}
    assert [language for language, words in STOP_WORDS.items() if not 80 <= len(words) <= 180] == []
    assert {word for words in STOP_WORDS.values() for word in words if words_of(word) != [word]} == set()
    forms = [form for row in IRREGULAR_VERBS for form in row]
    assert (len(IRREGULAR_VERBS), len(forms), words_of(" ".join(forms))) == (60, len(set(forms)), forms)


@table(
    ("text", "words"),
    [
        ("Ines's key, Tom\u2019S lease", ["ines", "key", "tom", "lease"]),
        ("it's 's s", ["it", "s", "s"]),
        ("don't; I\u2019ll snake_case", ["don", "t", "i", "ll", "snake", "case"]),
        ("STRASSE Stra\u00dfe \u1e9e", ["strasse", "stra\u00dfe", "\u00df"]),
        ("\u0130stanbul \u0131l\u0131k", ["istanbul", "\u0131l\u0131k"]),
        ("u\u0308bermorgen \u00dcBERMORGEN uebermorgen", ["ubermorgen", "ubermorgen", "uebermorgen"]),
        ("НОЙ ΟΔΟΣ 한국", ["ной", "οδοσ", "한국"]),
        ("3rd room 12\r\n\ttwo", ["3rd", "room", "12", "two"]),
        ("", []),
        (" ;-) \U0001f600 _", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_words_are_folded_as_the_index_folds_them() -> None:
    """All letters of the Latin, Greek and Cyrillic alphabets that languages of today are written with."""
    letters = [chr(code) for code in (*range(0xC0, 0x17F), *range(0x391, 0x3CF), *range(0x400, 0x460))]
    letters = [letter for letter in letters if unicodedata.category(letter)[0] == "L"]
    letters += ["n\u0303", "u\u0308", "A\u030a", "\u1e9e", "\u1ebf"]
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE VIRTUAL TABLE t USING fts5(x, tokenize='unicode61 remove_diacritics 2')")
        database.execute("CREATE VIRTUAL TABLE v USING fts5vocab('t', 'instance')")
        rows = [(number, f"q{letter}q") for number, letter in enumerate(letters)]
        database.executemany("INSERT INTO t(rowid, x) VALUES (?, ?)", rows)
        terms = [term for (term,) in database.execute("SELECT term FROM v ORDER BY doc")]
    assert [words_of(f"q{letter}q") for letter in letters] == [[term] for term in terms]


@table(
    ("text", "language", "left"),
    [
        ("Where did the plants die?", "en", "plants die"),
        ("Was hat die Frau gesagt?", "de", "frau gesagt"),
        ("WAS HAT DIE KATZE GEFRESSEN", "de", "katze gefressen"),
        ("Fu\u0308r wen war das?", "de", "fur wen war das"),
        ("Qu\u2019est-ce que tu as fait hier\u00a0?", "fr", "hier"),
        ("\u00bfD\u00f3nde est\u00e1 la llave de In\u00e9s?", "es", "llave ines"),
        ("What was that?", "en", "what was that"),
        ("What happened in May?", "en", "happened may"),
        # As many English words as German ones, and too few of them.
        ("in Rom", "", "in rom"),
        ("Ines?", "", "ines"),
        ("", "", ""),
        # A word counts once: four times "die" is not more German than two English words are English.
        ("die die die die, they will", "en", "die die die die"),
        ("so also in was", "en", "so also in was"),
    ],
)
def test_the_frequent_words_of_one_language_are_left_out(text: str, language: str, left: str) -> None:
    words = words_of(text)
    assert (language_of(words), without_stop_words(words)) == (language, left.split())


def test_a_language_can_be_asked_for_among_some() -> None:
    words = words_of("On a mang\u00e9 avec nous hier")
    assert (language_of(words), language_of(words, ("en", "de")), language_of([], ())) == ("fr", "en", "")


@table(
    ("word", "forms"),
    [
        ("went", ("go", "goes", "went", "gone")),
        ("go", ("go", "goes", "went", "gone")),
        ("written", ("write", "wrote", "written")),
        ("win", ("win", "won")),
        ("moved", ("moved",)),
        ("goeswent", ("goeswent",)),
        ("", ("",)),
    ],
)
def test_irregular_verbs(word: str, forms: tuple[str, ...]) -> None:
    assert verb_forms(word) == forms
