"""What relative dates in a text mean, in English and in German."""

from __future__ import annotations

import time
import unicodedata
from datetime import date, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities.relative_dates import (
    MOST_INSERTIONS,
    insertions,
    language_of_message,
    resolve,
    spelled,
    spelled_weekday,
    when_words,
)
from Tests.properties import examples
from Tests.tables import table

WEDNESDAY = date(2026, 3, 18)

# The text, with "|" where something is put, and what is put there.
ENGLISH = [
    # Days.
    ("We met yesterday|.", "17 March 2026"),
    ("Yesterday evening| we met", "17 March 2026"),
    ("YESTERDAY|!", "17 March 2026"),
    ("the day before yesterday| it rained", "16 March 2026"),
    ("The day\r\nbefore yesterday|, it rained", "16 March 2026"),
    ("I called her today|, then again", "18 March 2026"),
    ("tonight|?", "18 March 2026"),
    ("This morning| I ran", "18 March 2026"),
    ("Last night| I dreamt", "17 March 2026"),
    ("See you tomorrow|", "19 March 2026"),
    ("(tomorrow morning|)", "19 March 2026"),
    ("*the day after tomorrow|*", "20 March 2026"),
    # Days of the week.
    ("We danced last Friday|.", "13 March 2026"),
    ("last wednesday night|", "11 March 2026"),
    ("this past Tuesday|", "17 March 2026"),
    ("This Friday| she moves", "20 March 2026"),
    ("This Monday| we met", "16 March 2026"),
    ("this Monday| we will meet", "23 March 2026"),
    ("this Friday| we met", "13 March 2026"),
    ("next Wednesday|", "25 March 2026"),
    ("NEXT SUNDAY|", "22 March 2026"),
    ("On Friday| we went to Ghent", "13 March 2026"),
    ("I bought it on Wednesday|.", "11 March 2026"),
    ("on Thursday evening| she didn't sleep", "12 March 2026"),
    ("We will go on Friday|", "20 March 2026"),
    ("I'm going to sing on Wednesday|", "25 March 2026"),
    ("They’ll come on Monday|, he said.", "23 March 2026"),
    ("on Friday| we played. We will go.", "13 March 2026"),
    ("I was going to the shop on Friday|", "13 March 2026"),
    # Weeks and weekends.
    ("last week|", "the week before 18 March 2026"),
    ("This week| is long", "the week of 18 March 2026"),
    ("next week|,", "the week after 18 March 2026"),
    ("the other week|", "the week before 18 March 2026"),
    ("last weekend|", "weekend of 14 March 2026"),
    ("This Weekend|:", "weekend of 21 March 2026"),
    ("next weekend|", "weekend of 28 March 2026"),
    # Months and years.
    ("last month|", "February 2026"),
    ("this month|", "March 2026"),
    ("next month|", "April 2026"),
    ("last year|", "2025"),
    ("This year|, next", "2026"),
    ("next\nyear|", "2027"),
    ("last May|", "May 2025"),
    ("LAST MAY|", "May 2025"),
    ("last february|", "February 2026"),
    ("last March|", "March 2025"),
    ("We married in May|.", "May 2025"),
    ("We married in February|.", "February 2026"),
    ("In May| we'll go", "May 2026"),
    ("in January| we will go", "January 2027"),
    # Distances.
    ("two days ago|", "16 March 2026"),
    ("A couple of days ago| I", "about 16 March 2026"),
    ("a few days ago|", "about 15 March 2026"),
    ("a day ago|", "17 March 2026"),
    ("18 days ago|", "28 February 2026"),
    ("two weeks ago|", "the week of 4 March 2026"),
    ("a few weeks ago|", "about the week of 25 February 2026"),
    ("two weekends ago|", "weekend of 7 March 2026"),
    ("three months ago|", "December 2025"),
    ("a couple months ago|", "about January 2026"),
    ("Ten years ago|", "2016"),
    ("a few years ago|", "about 2023"),
    ("in three weeks|", "the week of 8 April 2026"),
    ("She leaves in two days|!", "20 March 2026"),
    ("in two days' time|", "20 March 2026"),
    ("in ten months|", "January 2027"),
    ("It opens in a year|", "2027"),
    ("I have played the violin for seven years|", "since 2019"),
    ("We've been married for 12 years| now", "since 2014"),
    ("for a few years| now", "since about 2023"),
    ("We left yesterday| (at 5.30).", "17 March 2026"),
    ("We threw a party on Friday|", "13 March 2026"),
    ("They shook hands on Monday|.", "16 March 2026"),
    ("I have put it there on Friday|", "13 March 2026"),
    ("He's been away for two years|", "since 2024"),
    ("last week| and two days ago.json", "the week before 18 March 2026"),
    ("I bought two yesterday|", "17 March 2026"),
]
GERMAN = [
    ("Wir haben uns gestern| getroffen", "17. März 2026"),
    ("Gestern Abend| war es kalt", "17. März 2026"),
    ("GESTERN|!", "17. März 2026"),
    ("vorgestern|,", "16. März 2026"),
    ("Heute| nicht", "18. März 2026"),
    ("heute Abend|", "18. März 2026"),
    ("heute Morgen| war ich da", "18. März 2026"),
    ("heute morgen früh|", "18. März 2026"),
    ("heute frueh|", "18. März 2026"),
    ("heute Nacht|", "18. März 2026"),
    ("Ich komme morgen|.", "19. März 2026"),
    ("Morgen| gehe ich", "19. März 2026"),
    ("Gut. Morgen| gehe ich", "19. März 2026"),
    ("MORGEN| GEHE ICH", "19. März 2026"),
    ("Morgen früh| gehe ich", "19. März 2026"),
    ("der Zug, der morgen| fährt", "19. März 2026"),
    ("bis übermorgen|", "20. März 2026"),
    ("Uebermorgen|", "20. März 2026"),
    ("u\u0308bermorgen|", "20. März 2026"),
    ("letzten Freitag|", "13. März 2026"),
    ("am letzten Freitagabend|", "13. März 2026"),
    ("seit letztem Sonntag|", "15. März 2026"),
    ("vergangenen Mittwoch|", "11. März 2026"),
    ("am kommenden Mittwoch|", "25. März 2026"),
    ("na\u0308chsten\r\nMontag|", "23. März 2026"),
    ("naechsten Montag|", "23. März 2026"),
    ("diesen Freitag|", "20. März 2026"),
    ("Am Freitag| waren wir in Köln", "13. März 2026"),
    ("Am Freitag Abend| haben wir Karten gespielt", "13. März 2026"),
    ("Wir sind am Samstag| gewandert.", "14. März 2026"),
    ("Am Freitag| werden wir gehen", "20. März 2026"),
    ("letzte Woche|", "Woche vor dem 18. März 2026"),
    ("in der letzten Woche|", "Woche vor dem 18. März 2026"),
    ("diese Woche|", "Woche vom 18. März 2026"),
    ("ab nächster Woche|", "Woche nach dem 18. März 2026"),
    ("am letzten Wochenende|", "Wochenende vom 14. März 2026"),
    ("am nächsten Wochenende|", "Wochenende vom 28. März 2026"),
    ("Am Wochenende| waren wir in Köln", "Wochenende vom 14. März 2026"),
    ("am Wochenende| wird es warm", "Wochenende vom 21. März 2026"),
    ("letzten Monat|", "Februar 2026"),
    ("im nächsten Monat|", "April 2026"),
    ("letztes Jahr|", "2025"),
    ("dieses Jahr|", "2026"),
    ("im naechsten Jahr|", "2027"),
    ("im letzten Mai|", "Mai 2025"),
    ("letzten Maerz|", "März 2025"),
    ("vorletzten Mai|", "Mai 2024"),
    ("vor zwei Tagen|", "16. März 2026"),
    ("vor ein paar Tagen|", "etwa 15. März 2026"),
    ("vor einer Woche|", "Woche vom 11. März 2026"),
    ("vor fuenf Wochen|", "Woche vom 11. Februar 2026"),
    ("vor 3 Monaten|", "Dezember 2025"),
    ("vor einem Jahr|", "2025"),
    ("in drei Wochen|", "Woche vom 8. April 2026"),
    ("seit sieben Jahren|", "seit 2019"),
    ("seit ein paar Jahren|", "seit etwa 2023"),
    ("Heute vor zwei Jahren| war das", "2024"),
    ("am letzten Sonnabend|", "14. März 2026"),
    ("Am Freitag| sang sie im Chor", "13. März 2026"),
    ("Am Freitag| zogen wir um", "13. März 2026"),
    ("Am Freitag| verpasste er den Zug", "13. März 2026"),
]


@table(
    ("language", "text", "meaning"),
    [
        *(("en", *row) for row in ENGLISH),
        *(("de", *row) for row in GERMAN),
    ],
)
def test_the_meaning_is_put_behind_the_expression(language: str, text: str, meaning: str) -> None:
    resolved = text.replace("|", f" ({meaning})")
    assert resolve(text.replace("|", ""), WEDNESDAY, language) == resolved
    assert resolve(resolved, WEDNESDAY, language) == resolved


@table(
    ("language", "text"),
    [
        ("en", text)
        for text in (
            "On Fridays we play.",
            "on Friday nights we played",
            "We play on Friday.",
            "The shop is closed on Friday.",
            "I need the red bed on Friday",
            "on Friday the 13th we met",
            "On Friday, 13 March, we met",
            "on Friday, March 13 we met",
            "every last Friday of the month",
            "the last week",
            "over the last year we met",
            "last year of school",
            "I am in May.",
            "In May 2025 we met",
            "last May 5th",
            "at last may she rest",
            "the forms it came in may vary, they said",
            "not until tomorrow",
            "Not until next week",
            "yesterday's news",
            "today’s bread",
            "I wasn't born yesterday",
            "as if there was no tomorrow",
            "30 February",
            "1.5 years ago",
            "2-3 days ago",
            "two or three days ago",
            "a week from tomorrow",
            "in a day or two",
            "twice in two weeks",
            "They built it in three weeks.",
            "I lived there for seven years.",
            "I will stay for two years",
            "The warranty is valid for two years.",
            "It lasts for two years",
            "I have to stay for two years",
            "I want to live there for two years",
            "I have read it in two days",
            "5000 years ago",
            "3000 years ago",
            'He said "we met yesterday" and left',
            "“Tomorrow,” she said",
            "'Yesterday I didn't go,' he said",
            "> we met yesterday",
            "`yesterday`",
            "```\nyesterday\n```",
            "~~~python\nyesterday\nno end",
            "    yesterday = 1",
            "today = get(yesterday)",
            "call(yesterday);",
            "// fixed yesterday",
            "https://news.test/yesterday today.json #tomorrow @today today/tomorrow",
            "yesterdays todaylong",
            "hier et demain",
            "yesterday (10 March 2026)",
            "yesterday [10 March 2026]",
            "yesterday (March 10)",
            "yesterday (Mar 10)",
            "yesterday, Sept. 10",
            "last month (February)",
            "last Friday (the 13th of March)",
            "yesterday (17/3)",
            "yesterday, on 17 March",
            "yesterday – 17 March",
            "These last weeks were hard, and my last day was today.json",
            "The next years will be hard",
            "in the next days, weeks and months",
            "two to three weeks ago",
            "10 to 12 days ago",
            "between two and three weeks ago",
            "twenty five years ago",
            "a hundred and two years ago",
            "10 000 years ago",
            "two years and three months ago",
            "two years, three months ago",
            "in a week and a half",
            "in two years and three months",
            "last week (it was 2024)",
        )
    ]
    + [
        ("de", text)
        for text in (
            "der Morgen war schön",
            "Der Morgen ist schön",
            "guten Morgen",
            "Guten morgen zusammen",
            "Morgen!",
            "morgen!",
            "Morgen zusammen!",
            "Morgen, Tom.",
            "am Morgen",
            "eines Morgens",
            "jeden Morgen",
            "Es wurde ein Morgen voller Licht",
            "der morgen war schön",
            "freitags gehen wir",
            "Am Freitag gehe ich.",
            "am Freitag, dem 13. März, waren wir da",
            "jeden letzten Freitag",
            "Schnee von gestern",
            "von heute auf morgen",
            "„Gestern war ich da“, sagte er",
            "»Gestern war ich da«",
            "vor zwei bis drei Tagen",
            "zweimal in zwei Wochen",
            "in drei Wochen haben sie das gelernt",
            "heutzutage",
            "am Wochenende gehen wir",
            "gestern (10. März 2026)",
            "letzten Freitag (13. März)",
            "letzten Monat (Februar)",
            "gestern (17.3.)",
            "gestern, am 17. März",
            "am Freitag, den 13.03.2026, waren wir da",
            "In den letzten Wochen war ich krank",
            "in den nächsten Jahren",
            "am letzten Tag des Monats",
            "in den letzten Monaten",
            "vor zwei Jahren und drei Monaten",
            "in einem Jahr und zwei Monaten",
        )
    ]
    + [("fr", "Nous avons vu Tom hier, yesterday, gestern"), ("es", "ayer"), ("", "yesterday"), ("xx", "gestern")],
)
def test_what_is_no_date_or_unclear_stays(language: str, text: str) -> None:
    assert resolve(text, WEDNESDAY, language) == text


@table(
    ("said", "text", "meaning"),
    [
        (date(2027, 1, 1), "yesterday", "31 December 2026"),
        (date(2026, 12, 31), "tomorrow", "1 January 2027"),
        (date(2028, 2, 29), "a year ago", "2027"),
        (date(2028, 3, 1), "yesterday", "29 February 2028"),
        (date(2028, 2, 29), "in a year", "2029"),
        (date(2026, 3, 31), "last month", "February 2026"),
        (date(2026, 1, 31), "last month", "December 2025"),
        (date(2026, 12, 31), "in two months", "February 2027"),
        (date(2026, 5, 20), "last May", "May 2025"),
        (date(2026, 6, 1), "last May", "May 2026"),
        (date(2026, 6, 1), "In May last year", "2025"),
        (date(2026, 3, 13), "last Friday", "6 March 2026"),
        (date(2026, 3, 13), "next Friday", "20 March 2026"),
        (date(2026, 3, 13), "this Friday", "13 March 2026"),
        # The last days of 2026 are of the week of 1 January 2027.
        (date(2027, 1, 3), "this weekend", "weekend of 2 January 2027"),
        (date(2027, 1, 4), "last weekend", "weekend of 2 January 2027"),
        (date(2026, 12, 28), "this weekend", "weekend of 2 January 2027"),
        (date(2027, 1, 3), "this Monday", "28 December 2026"),
        (date(2027, 1, 3), "last week", "the week before 3 January 2027"),
        (datetime(2026, 3, 18, 0, 30), "tonight", "18 March 2026"),
        (datetime(2026, 3, 18, 0, 30), "yesterday", "17 March 2026"),
        (date(1, 1, 1), "yesterday", None),
        (date(9999, 12, 31), "tomorrow", None),
        (date(9999, 12, 31), "next year", None),
        (date(30, 1, 1), "30 years ago", None),
        (date(9999, 12, 1), "next month", None),
        (None, "yesterday", None),
    ],
)
def test_borders_of_the_calendar(said: date | None, text: str, meaning: str | None) -> None:
    assert resolve(text, said, "en") == (f"{text} ({meaning})" if meaning else text)


@table(
    ("language", "text", "resolved"),
    [
        (
            "en",
            "We're going to Rome on Friday,\r\nand last week we were in Ghent; yesterday too.",
            "We're going to Rome on Friday (20 March 2026),\r\nand last week (the week before 18 March 2026) "
            "we were in Ghent; yesterday (17 March 2026) too.",
        ),
        (
            "de",
            "Gestern war ich da.\nMorgen, wie jeden Morgen, nicht; übermorgen schon.",
            "Gestern (17. März 2026) war ich da.\nMorgen, wie jeden Morgen, nicht; übermorgen (20. März 2026) schon.",
        ),
        ("en", "this afternoon; this evening", "this afternoon (18 March 2026); this evening (18 March 2026)"),
        ("en", "\u0130 saw \u0130nes yesterday", "\u0130 saw \u0130nes yesterday (17 March 2026)"),
        (
            "en",
            'yesterday\n"not today\n\ntomorrow',
            'yesterday (17 March 2026)\n"not today\n\ntomorrow (19 March 2026)',
        ),
        ("en", "a year ago today", "a year ago (2025) today"),
    ],
)
def test_several_in_a_text(language: str, text: str, resolved: str) -> None:
    assert resolve(text, WEDNESDAY, language) == resolved
    assert resolve(resolved, WEDNESDAY, language) == resolved


def test_a_message_gets_at_most_eight() -> None:
    text = "yesterday, " * 12
    once = resolve(text, WEDNESDAY, "en")
    assert once == "yesterday (17 March 2026), " * MOST_INSERTIONS + "yesterday, " * 4
    assert resolve(once, WEDNESDAY, "en") == once


@table(
    ("text", "said", "language", "words"),
    [
        ("we met yesterday", date(2026, 3, 11), "en", "11 March 2026 Wednesday 10 March 2026"),
        ("wir waren gestern da", date(2026, 3, 11), "de", "11. März 2026 Mittwoch 10. März 2026"),
        ("nous avons vu hier", date(2026, 3, 11), "fr", "11 March 2026 Wednesday"),
        (
            "last week, in three days",
            date(2026, 3, 1),
            "en",
            "1 March 2026 Sunday the week before 1 March 2026 4 March 2026",
        ),
        ("", date(2026, 3, 11), "", "11 March 2026 Wednesday"),
        ("yesterday", None, "en", ""),
    ],
)
def test_words_for_the_search_of_a_time(text: str, said: date | None, language: str, words: str) -> None:
    assert when_words(text, said, language) == words


def test_dates_are_spelled_in_the_language() -> None:
    days = [date(2026, month, 1) for month in range(1, 13)]
    german = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split()
    assert [spelled(day, "de") for day in days] == [f"1. {month} 2026" for month in german]
    assert [spelled(days[11], language) for language in ("en", "fr", "")] == ["1 December 2026"] * 3
    assert [spelled_weekday(WEDNESDAY, language) for language in ("en", "de", "fr")] == [
        "Wednesday",
        "Mittwoch",
        "Wednesday",
    ]


@table(
    ("texts", "language"),
    [
        (["We met yesterday"], "en"),
        (["Wir waren gestern da"], "de"),
        (["FUER DEN HUND"], "de"),
        (["gestern"], ""),
        ([], ""),
        # The two messages before it decide as well.
        (["gestern", "Wann warst du da?"], "de"),
        (["The dog is with the cat and they are fine", "Ich war da", "and we were there"], "en"),
        # As many of both.
        (["was in"], ""),
        (["Nous avons mangé avec Tom, et on a ri"], ""),
        (["\u00bfD\u00f3nde est\u00e1 la llave?"], ""),
    ],
)
def test_the_language_of_a_message(texts: list[str], language: str) -> None:
    assert language_of_message(texts) == language


_PIECES = st.sampled_from(
    [
        *(row[0].replace("|", "") for row in (*ENGLISH, *GERMAN)),
        "\n",
        '"',
        "'",
        "(",
        "2026",
        "the",
        "we will",
        "we went",
        "am",
    ]
)


@examples(200, deadline=None)
@given(st.lists(_PIECES, max_size=12), st.sampled_from(["en", "de"]), st.dates(min_value=date(1200, 1, 1)))
def test_resolving_twice_changes_nothing(pieces: list[str], language: str, said: date) -> None:
    for text in (" ".join(pieces), unicodedata.normalize("NFD", ", ".join(pieces))):
        once = resolve(text, said, language)
        assert resolve(once, said, language) == once
        assert len(insertions(text, said, language)) <= MOST_INSERTIONS


@table(
    "text",
    [
        "day " * 20000,
        "yesterday " * 20000,
        '"' * 20000 + "yesterday",
        "'" * 20000 + "yesterday",
        "„" * 20000 + "yesterday",
        "last " + " " * 20000 + "friday",
        "in three days " * 5000,
        "am " * 20000 + "morgen gestern",
        "am morgen " * 20000,
        "on friday " * 100_000,
        '"x" yesterday' * 5000,
        "yesterday (" * 5000,
        "= " * 20000 + "today",
        "\n" * 20000 + "today",
    ],
    ids=lambda text: text[:20],
)
def test_long_texts_take_no_longer_than_they_are_long(text: str) -> None:
    """Quadratic time would be minutes."""
    for language in ("en", "de"):
        began = time.process_time()
        resolve(text, WEDNESDAY + timedelta(1), language)
        assert time.process_time() - began < 5
