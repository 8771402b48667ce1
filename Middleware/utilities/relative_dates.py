"""What relative dates in a text mean: ``we met yesterday (10 March 2026)``. English and German.

``date_words.py`` has the rules of both languages: expressions with the kind of their meaning, and the words around them
that exclude them. Quotations and code keep their words, and what is ambiguous stays as it is.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache, lru_cache
from itertools import accumulate, islice

from Middleware.utilities.date_words import LANGUAGES, Kind, Language
from Middleware.utilities.stop_words import ENGLISH, STOP_WORDS, folded, language_of, words_of

# A message that consists of dates, such as a calendar, must not double in size.
MOST_INSERTIONS = 8
# The sentence around each is searched for verbs: a text of a megabyte that consists of them would take ten seconds.
_MOST_EXPRESSIONS = 1000
# What excludes an expression stands directly before it, and its verb near to it. In characters.
_NEAR_BEFORE, _NEAR = 60, 200
# Not "11. März".
_SENTENCE_END = re.compile(r"[!?;\n]|(?<!\d)\.")
# A verb behind a comma counts as so much farther away: "They will come on Monday, he said".
_COMMA = 10
_SATURDAY = 5
PAST, PRESENT, FUTURE = -1, 0, 1
# Characters of a text that show its language.
_ENOUGH = 2000
_FREQUENT = frozenset[str]().union(*STOP_WORDS.values())

# Names of files, addresses, handles and possessives are not dates: "today.json", "/tomorrow", "yesterday's".
_BEGINNING = re.compile(r"(?<![\w@#/\\=&])(?<!\w[-.])(?<!\d[,:–])")
_END = r"(?![\w@/\\=]|[-.]\w|['’]s\b)"
# Blanks within a line, or one end of a line.
_BLANK = r"(?:[^\S\n]{0,4}\s[^\S\n]{0,4})"
_SPELLINGS = {"ä": "(?:ä|a\u0308|ae)", "ö": "(?:ö|o\u0308|oe)", "ü": "(?:ü|u\u0308|ue)", "ß": "(?:ß|ss)", " ": _BLANK}
# What this module puts into a text, and dates behind an expression, of this module or of the writer.
_BRACKETS = r"\([^()\n]{0,40}\)"
# In dates that are written behind an expression, also shortened.
_MONTH = r"(?:{months}|(?:jan|feb|mar|apr|jun|jul|aug|sept?|o[ck]t|nov|de[cz])\b\.?)"
_DATED = (
    r" ?[(\[][^()\[\]\n]{0,80}"
    rf"(?:\d{{4}}|\d(?:st|nd|rd|th|\.)? (?:of )?{_MONTH}|{_MONTH} \d|\b\d{{1,2}}(?:\.\d{{1,2}}\.|/\d))"
    rf"[^()\[\]\n]{{0,80}}[)\]]| ?[(\[]{_MONTH}[)\]]"
    r"|(?:,| [–—-])? (?:(?:on|am|the|dem|den|der) ){0,2}"
    rf"(?:\d{{1,2}}(?:st|nd|rd|th|\.)(?!\d)|\d{{1,2}} (?:of )?{_MONTH}(?!\w)|{_MONTH} \d|\d{{4}}\b|\d{{1,2}}[./]\d)"
)
_MARKS = re.compile(r"[\"`„“«»‚‘>={};/$#\t~]|(?<!\w)'|\w\(| {4}|\):")
_UNTOUCHED = re.compile(
    r"^ {0,3}(?P<fence>```|~~~)[^\n]*\n.*?(?:^ {0,3}(?P=fence)|\Z)|`[^`\n]+`|^ {0,3}>[^\n]*"
    r"|\"[^\"]*?(?:\"|(?=\n[^\S\n]*\n))|„[^„“”\"]*[“”\"]|“[^“”]*”|«[^«»]*»|»[^«»]*«|‚[^‚‘’]*[‘’]|‘[^‘’]*’"
    r"|(?<!\w)'(?:[^'\n]|'(?=\w)){1,500}'(?!\w)"
    # Lines of code: indented ones that are not of a list, comments, and those with the marks of a statement.
    r"|^(?: {4}|\t)[ \t]*(?![-*+\d ])[^\n]*"
    r"|^[ \t]*(?://|/\*|\$ |>>> |#!|#include|(?:def|class|import|const|let|var|function|public|private|static|return)\b"
    r"(?=[^\n]*[=({;]))[^\n]*"
    r"|^[^\n]*(?:[{}][;,]?|\);|\):|\s[:=!<>+*/-]?=\s[^\n]*)[ \t\r]*$",
    re.MULTILINE | re.DOTALL,
)


def spelled(day: date, language: str) -> str:
    """Return a date as ``11 March 2026`` or ``11. März 2026``; in English for other languages."""
    words = LANGUAGES.get(language, LANGUAGES[ENGLISH])
    return words.day.format(day, words.months[day.month - 1])


def spelled_weekday(day: date, language: str) -> str:
    """Return the day of the week of a date, in the same languages."""
    return LANGUAGES.get(language, LANGUAGES[ENGLISH]).weekdays[day.weekday()]


def language_of_message(texts: Iterable[str]) -> str:
    """Return ``en``, ``de`` or an empty string, by the frequent words of a message and of the two before it."""
    words = {word for text in texts for word in _frequent_words(text)}
    never = len(words) + 1
    best = language_of(words, tie=never)
    return "" if best and best not in LANGUAGES else language_of(words, LANGUAGES, never)


@lru_cache(maxsize=128)  # of messages in a row, each text is asked about three times
def _frequent_words(text: str) -> frozenset[str]:
    return _FREQUENT.intersection(words_of(text[:_ENOUGH]))


def resolve(text: str, said: date | None, language: str) -> str:
    """Return ``text`` with the meanings of its relative dates in brackets behind them.

    ``said`` is the day of the message, in the time zone of the user; None if that is unknown. ``language`` is
    ``en`` or ``de``; a text of another language is returned as it is. A text that has been resolved stays as it is.
    """
    parts, position = [], 0
    for end, meaning in insertions(text, said, language):
        parts += [text[position:end], f" ({meaning})"]
        position = end
    return "".join((*parts, text[position:]))


def when_words(text: str, said: date | None, language: str) -> str:
    """Return the words with which a search for a time finds a text: its date, and the meanings of dates in it."""
    if said is None:
        return ""
    meanings = (meaning for _, meaning in insertions(text, said, language))
    return " ".join((spelled(said, language), spelled_weekday(said, language), *meanings))


def insertions(text: str, said: date | None, language: str) -> list[tuple[int, str]]:
    """Return the ends of the first relative dates of a text, in order, each with its meaning."""
    words = LANGUAGES.get(language)
    if words is None or said is None:
        return []
    lowered = text.lower()
    forms = [form for heads, form in _forms(language) if any(head in lowered for head in heads)]
    if not forms:
        return []
    if len(lowered) != len(text):
        # Two characters in lower case, such as the Turkish capital I with a dot, would move all positions.
        lowered = "".join(letter.lower()[:1] for letter in text)
    # Without the time that a datetime has.
    expressions = _Expressions(text, lowered, date(said.year, said.month, said.day), language, words)
    return [one for one in islice(expressions.meanings(forms), MOST_INSERTIONS) if one[1]]


@cache
def _forms(language: str) -> list[tuple[list[str], tuple[re.Pattern[str], Kind, int | None]]]:
    """Return the forms of a language, compiled, with their words."""
    return [
        (heads.lower().split(), (_pattern(language, f"(?:{expression}){_END}", 0), kind, step))
        for heads, expression, kind, step in LANGUAGES[language].forms
    ]


@cache  # as many as the languages have expressions
def _pattern(language: str, expression: str, flags: int = re.IGNORECASE | re.MULTILINE) -> re.Pattern[str]:
    words = LANGUAGES[language]
    meanings = {
        "which": words.which,
        "weekday": (*words.weekdays, *words.other_weekdays),
        "month": words.months,
        "number": [r"\d{1,3}", *sorted((*words.numbers, *words.few), key=len, reverse=True)],
        "unit": words.units,
    }
    for name, names in meanings.items():
        one_of = "|".join(names).lower() if not flags else "|".join(names)
        expression = expression.replace(f"{{{name}}}", f"(?P<{name}>{one_of})").replace(f"{{{name}s}}", f"(?:{one_of})")
    for written, spellings in {"{part}": f"(?:{words.part})?", **_SPELLINGS}.items():
        expression = expression.replace(written, spellings)
    return re.compile(expression, flags)


def _plain(words: str) -> str:
    """Return words with one spelling of umlauts and one blank between them."""
    return re.sub("([aou])e", r"\1", " ".join(folded(words).split()))


@cache
def _values(language: str, table: str) -> dict[str, int]:
    """Return a table of a language, or the positions in one of its lists, by words in plain spelling."""
    words: Mapping[str, int] | Sequence[str] = getattr(LANGUAGES[language], table)
    values = words if isinstance(words, Mapping) else {name: index for index, name in enumerate(words)}
    return {_plain(word): value for word, value in values.items()}


@dataclass(frozen=True)
class _Expressions:
    """The relative dates of the text of a day."""

    text: str
    lowered: str
    said: date
    language: str
    words: Language

    def meanings(self, forms: Iterable[tuple[re.Pattern[str], Kind, int | None]]) -> Iterator[tuple[int, str]]:
        """Yield the ends of the expressions that have a meaning, in order, with it; empty where the text has it."""
        found = [(match, kind, step) for pattern, kind, step in forms for match in pattern.finditer(self.lowered)]
        if not found:
            return
        is_untouched = self._untouched()
        position = 0
        found.sort(key=lambda one: (one[0].start(), -one[0].end()))
        for match, kind, step in found[:_MOST_EXPRESSIONS]:
            start, end = match.span()
            # Of expressions that overlap, the first and longest counts, even where it means nothing.
            if start < position or not _BEGINNING.match(self.text, start):
                continue
            position = end
            if is_untouched(start) or self._excluded(start, end):
                continue
            try:
                meaning = self._meaning(match, kind, step)
            # A year before 1 or after 9999.
            except (ValueError, OverflowError):
                continue
            if meaning:
                yield end, "" if self._of(_DATED).match(self.text, end) else meaning

    def _of(self, expression: str) -> re.Pattern[str]:
        return _pattern(self.language, expression)

    def _untouched(self) -> Callable[[int], bool]:
        """Return a function that says whether a place is in a quotation, in code or in an idiom."""
        patterns = [self._of(self.words.idioms), *([_UNTOUCHED] if _MARKS.search(self.text) else [])]
        spans = sorted(match.span() for pattern in patterns for match in pattern.finditer(self.text))
        starts = [start for start, _ in spans]
        ends = [0, *accumulate((end for _, end in spans), max)]
        return lambda place: place < ends[bisect.bisect_right(starts, place)]

    def _excluded(self, start: int, end: int) -> bool:
        """Return whether the words directly before or behind an expression make it mean something else."""
        before = self._of(rf"{self.words.not_after} (?:{_BRACKETS} )?\Z")
        near = self.text[max(0, start - _NEAR_BEFORE) : start]
        return bool(before.search(near) or self._of(self.words.not_before).match(self.text, end))

    def _meaning(self, match: re.Match[str], kind: Kind, step: int | None) -> str:
        """Return what an expression means; empty if that is unclear."""
        which = match.groupdict().get("which")
        if which:
            step = self._value("which", which)
        if kind is Kind.WEEKDAY:
            return self._weekday(match, step)
        if kind is Kind.NAMED_MONTH:
            return self._named_month(match, step)
        if kind is Kind.DISTANCE:
            return self._distance(match, step or 0)
        if kind is Kind.SINCE:
            return self._since(match) if step is not None or self._reaches_now(match) else ""
        if step is None:
            # On a weekend, what has happened "on the weekend" is of the present one.
            weekday = self.said.weekday()
            step = {PAST: 0 if weekday >= _SATURDAY else -1, FUTURE: int(weekday > _SATURDAY)}.get(self._tense(match))
        return "" if step is None else self._named(self._unit(match) if kind is Kind.UNIT else kind, step)

    def _unit(self, match: re.Match[str]) -> Kind:
        return next(kind for unit, kind in self.words.units.items() if re.fullmatch(unit, match["unit"]))

    def _number(self, match: re.Match[str]) -> tuple[str, int]:
        """Return how the meaning of a number is written, and the number."""
        few = self._value("few", match["number"])
        if few:
            return self.words.about, few
        return "{}", self._value("numbers", match["number"]) or int(match["number"])

    def _value(self, table: str, found: str) -> int | None:
        return _values(self.language, table).get(_plain(found))

    def _named(self, kind: Kind, step: int) -> str:
        """Return the day, week, weekend, month or year that is ``step`` of them after that of the day of saying."""
        if kind is Kind.DAY:
            return spelled(self.said + timedelta(step), self.language)
        if kind is Kind.WEEK:
            return self.words.weeks[step].format(spelled(self.said, self.language))
        if kind is Kind.WEEKEND:
            saturday = self.said + timedelta(_SATURDAY - self.said.weekday() + 7 * step)
            return self.words.weekend.format(spelled(saturday, self.language))
        if kind is Kind.MONTH:
            years, month = divmod(self.said.month - 1 + step, 12)
            return self._month(month, self.said.year + years)
        return str(date(self.said.year + step, 1, 1).year)

    def _month(self, month: int, year: int) -> str:
        return f"{self.words.months[month]} {date(year, 1, 1).year}"

    def _distance(self, match: re.Match[str], step: int) -> str:
        # "They built it in three weeks" is how long it took.
        if step > 0 and self._tense(match) == PAST:
            return ""
        about, number = self._number(match)
        kind = self._unit(match)
        if kind is Kind.WEEK:
            return about.format(self.words.weeks[0].format(self._named(Kind.DAY, 7 * step * number)))
        return about.format(self._named(kind, step * number))

    def _since(self, match: re.Match[str]) -> str:
        about, number = self._number(match)
        return self.words.since.format(about.format(self._named(Kind.YEAR, -number)))

    def _weekday(self, match: re.Match[str], step: int | None) -> str:
        tense = PRESENT if step else self._tense(match)
        known, other = (self._value(table, match["weekday"]) for table in ("weekdays", "other_weekdays"))
        days = (known if other is None else other) or 0
        days -= self.said.weekday()
        # "This" day is that of the week, unless the verb is of the past before it, or of the future after it.
        if step is None or days * tense < 0:
            step = step or tense
            if step == PRESENT:
                return ""
        if step:
            days = days % 7 - 7 if step < 0 else days % 7 or 7
        return self._named(Kind.DAY, days)

    def _named_month(self, match: re.Match[str], step: int | None) -> str:
        """Return the month before the present one, or, with None, that of the past or of the future."""
        month = _values(self.language, "months")[_plain(match["month"])]
        months = month - (self.said.month - 1)
        if step is not None:
            return self._month(month, self.said.year + step + (months < 0))
        tense = self._tense(match)
        return self._month(month, self.said.year + (tense if months * tense < 0 else 0)) if tense else ""

    def _sentence(self, match: re.Match[str]) -> tuple[int, int]:
        """Return where the sentence of an expression is, as far as it is near."""
        start, end = match.span()
        begin = start - len(_SENTENCE_END.split(self.text[max(0, start - _NEAR) : start])[-1])
        return begin, end + len(_SENTENCE_END.split(self.text[end : end + _NEAR], maxsplit=1)[0])

    def _tense(self, match: re.Match[str]) -> int:
        """Return the tense of the nearest verb in the sentence that is of the past or of the future, else PRESENT."""
        words, sentence = self.words, self._sentence(match)
        verbs = [(FUTURE, verb.span()) for verb in self._plainly(words.future).finditer(self.lowered, *sentence)]
        verbs += [(PAST, verb.span()) for verb in self._plainly(words.past).finditer(self.lowered, *sentence)]
        if self._has_auxiliary(sentence):
            # In German, nouns that look like participles have a capital letter.
            verbs += [(PAST, verb.span()) for verb in self._plainly(words.participles).finditer(self.text, *sentence)]
        present = self._plainly(rf"(?:{words.not_past_after})\Z")
        distances = [
            (self._distance_to(match, verb), tense)
            for tense, verb in verbs
            if tense == FUTURE or not present.search(self.lowered, max(sentence[0], verb[0] - _NEAR_BEFORE), verb[0])
        ]
        return min(distances, default=(0, PRESENT))[1]

    def _distance_to(self, match: re.Match[str], verb: tuple[int, int]) -> int:
        """Return the characters between an expression and a verb, without what this module puts between them."""
        start, end = match.span()
        between = re.sub(_BRACKETS, "", self.text[min(end, verb[1]) : max(start, verb[0])])
        return len(between) + _COMMA * between.count(",")

    def _has_auxiliary(self, sentence: tuple[int, int]) -> bool:
        return self._plainly(self.words.auxiliaries).search(self.lowered, *sentence) is not None

    def _reaches_now(self, match: re.Match[str]) -> bool:
        """Return whether what has lasted for some years has not ended: "for two years" with a perfect or a present."""
        sentence = self._sentence(match)
        if self._has_auxiliary(sentence):
            return True
        is_lasting = self._plainly(self.words.lasting).search(self.lowered, *sentence) is not None
        return not is_lasting and self._tense(match) == PRESENT

    def _plainly(self, expression: str) -> re.Pattern[str]:
        """Compile an expression that is looked for in lower case, as written."""
        return _pattern(self.language, expression, 0)
