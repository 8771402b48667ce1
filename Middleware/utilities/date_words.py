"""The words and rules of the languages in which relative dates are understood: data for ``relative_dates.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from Middleware.utilities.datetime_utils import MONTHS, WEEKDAYS
from Middleware.utilities.stop_words import ENGLISH, GERMAN, IRREGULAR_VERBS


class Kind(Enum):
    """What an expression names. A step is a number of them: -1 for the last, 0 for this, 1 for the next."""

    DAY = auto()
    WEEKDAY = auto()
    WEEK = auto()
    WEEKEND = auto()
    MONTH = auto()
    NAMED_MONTH = auto()
    YEAR = auto()
    # The unit in the expression, a number of them before or after the day of saying.
    UNIT = auto()
    DISTANCE = auto()
    SINCE = auto()


Form = tuple[str, str, Kind, int | None]
"""Words, an expression, kind and step. Every text with the expression has one of the words. The step is None where a
word of the expression, or else the tense of the verb, decides it.

An expression is a regular expression in lower case. In it, a blank is any run of blanks, an umlaut has all its
spellings, and ``{which}``, ``{weekday}``, ``{month}``, ``{number}``, ``{unit}`` and ``{part}`` (of a day) are words."""


@dataclass(frozen=True)
class Language:
    """The words and rules of a language: names and tables, regular expressions, and how meanings are written."""

    months: Sequence[str]
    weekdays: Sequence[str]
    other_weekdays: Mapping[str, int]
    """Further names of days, with their positions."""
    which: Mapping[str, int]
    numbers: Mapping[str, int]
    few: Mapping[str, int]
    """Words for a small number, which count as that number, with ``about`` before the meaning."""
    units: Mapping[str, Kind]
    part: str
    forms: Sequence[Form]
    # The following are expressions, too, whatever the case.
    idioms: str
    not_after: str
    not_before: str
    past: str
    participles: str
    """Past, if an auxiliary is in the sentence."""
    auxiliaries: str
    not_past_after: str
    lasting: str
    """With one of these, and without an auxiliary, a number of years is not one up to the present."""
    future: str
    day: str
    weeks: Mapping[int, str]
    weekend: str
    since: str
    about: str


def _counted(words: str) -> dict[str, int]:
    return {word: number for number, word in enumerate(words.split(), 1)}


def _units(words: str) -> dict[str, Kind]:
    return dict(zip(words.split(), (Kind.DAY, Kind.WEEKEND, Kind.WEEK, Kind.MONTH, Kind.YEAR), strict=True))


_PAST_FORMS = "|".join(sorted({form for row in IRREGULAR_VERBS for form in row[1:]} - {"goes"}))
_ENGLISH = Language(
    months=MONTHS,
    weekdays=WEEKDAYS,
    other_weekdays={},
    which={"last": -1, "this past": -1, "this": 0, "next": 1},
    numbers=_counted(
        "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
        "eighteen nineteen twenty"
    )
    | {"a": 1, "an": 1, "thirty": 30, "forty": 40, "fifty": 50},
    few={"a couple of": 2, "a couple": 2, "couple of": 2, "a few": 3, "few": 3},
    units=_units("days? weekends? weeks? months? years?"),
    part=" (?:morning|afternoon|evening|night)",
    forms=(
        ("yesterday", "the day before yesterday|day before yesterday", Kind.DAY, -2),
        ("tomorrow", "the day after tomorrow|day after tomorrow", Kind.DAY, 2),
        ("yesterday", "yesterday{part}", Kind.DAY, -1),
        ("night", "last night", Kind.DAY, -1),
        ("today tonight", "today|tonight", Kind.DAY, 0),
        ("morning afternoon evening", "this (?:morning|afternoon|evening)", Kind.DAY, 0),
        ("tomorrow", "tomorrow{part}", Kind.DAY, 1),
        ("day", "(?:{which}|on) {weekday}{part}", Kind.WEEKDAY, None),
        ("week month year", "{which} (?P<unit>week|weekend|month|year)", Kind.UNIT, None),
        ("week", "the other week", Kind.WEEK, -1),
        (" ".join(MONTHS), "last {month}", Kind.NAMED_MONTH, -1),
        (" ".join(MONTHS), "in {month}", Kind.NAMED_MONTH, None),
        ("ago", "{number} {unit} ago", Kind.DISTANCE, -1),
        ("day week month year", "in {number} {unit}(?:['’]s?)?(?: time)?", Kind.DISTANCE, 1),
        ("year", "for {number} years?", Kind.SINCE, None),
    ),
    idioms="born yesterday|no tomorrow|here today,? (?:and )?gone tomorrow|tomorrow is another day|"
    # Parts of a longer number or distance.
    r"tomorrow never (?:comes|dies|knows)|\b(?:(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundreds?|"
    r"thousands?|millions?)(?: and)?|{numbers} to|between {numbers} and|\d{1,3}) {numbers} {units} ago"
    r"|\b{numbers} {units},?(?: and)? {numbers} {units} ago"
    # In lower case, these months are verbs.
    r"|(?-i:\b(?:last|in) (?:march|may)\b)",
    not_after=r"\b(?:the|every|each|or|ago|once|twice|times|not (?:until|till)|(?:day|week|month|year)s? from)",
    not_before=r" of\b(?! course)| (?:mornings|afternoons|evenings|nights)\b| or (?:so|{numbers})\b"
    r"| (?:of )?(?:last|this|next) year\b| and (?:a half\b|{numbers} {units}\b(?! ago))",
    past=r"\b(?:(?:was|were|did|had)(?:n['’]t)?|been|used|died|tied|lied|agreed|"
    r"threw|blew|tore|swore|shook|hung|stuck|swept|wept|struck|shone|dug|fled|dealt|dreamt|learnt|sank|sprang|overslept|"
    r"(?:ha(?:ve|s|d)|['’]ve) (?:read|put|cut|hit|let|set|shut|cost|hurt|beat)|"
    rf"{_PAST_FORMS}|(?!hundred|naked|wicked|sacred)[a-z]{{2,}}[^\W_e]ed)\b",
    participles="(?!)",
    auxiliaries=r"\b(?:(?:have|has)(?! to\b)|haven['’]t|hasn['’]t)\b|['’]ve\b|(?<!had\s)\bbeen\b",
    # "The shop is closed on Friday" is of the present.
    not_past_after=r"(?:\b(?:am|is|are|be|being|gets?|getting|will have)|['’](?:s|re|m))(?: (?:not|\w+ly))? ",
    lasting=r"\b(?:is|are|be|to|lasts?|runs?|valid|can|could|would|should|must|might|may)\b",
    future=r"\b(?:will|won['’]t|gonna)\b|['’]ll\b|(?<!was\s)(?<!were\s)\bgoing to\b",
    day="{0.day} {1} {0.year}",
    weeks={-1: "the week before {}", 0: "the week of {}", 1: "the week after {}"},
    weekend="weekend of {}",
    since="since {}",
    about="about {}",
)

_PRETERITES = (
    "war warst waren hatte hattest hatten wurde wurden worden ging gingen kam kamen sah sahen traf trafen fuhr fuhren "
    "gab gaben nahm nahmen lief liefen schrieb schrieben sprach sprachen aß aßen trank tranken schlief schliefen "
    "blieb blieben fand fanden fiel fielen flog flogen half halfen hielt hielten ließ ließen las lasen lag lagen rief "
    "riefen saß saßen stand standen starb starben verlor verloren begann begannen bekam bekamen dachte dachten "
    "brachte brachten kannte kannten wusste wussten musste mussten konnte konnten wollte wollten sollte sollten "
    "durfte durften mochte mochten machte machten kaufte kauften sagte sagten fragte fragten spielte spielten "
    "besuchte besuchten lernte lernten kochte kochten wohnte wohnten lebte lebten hörte hörten holte holten brauchte "
    "brauchten zeigte zeigten feierte feierten reiste reisten tanzte tanzten zog zogen sang sangen schwamm schwammen "
    "warf warfen stieg stiegen trug trugen schloss schlossen vergaß vergaßen gewann gewannen verließ verließen "
    "verstand verstanden rannte rannten trat traten baute bauten malte malten putzte putzten lachte lachten weinte "
    "weinten stellte stellten legte legten setzte setzten packte packten suchte suchten bestellte bestellten erzählte "
    "erzählten schickte schickten schenkte schenkten verkaufte verkauften verpasste verpassten wachte wachten erfuhr "
    "erfuhren bat baten brach brachen"
)
_GERMAN = Language(
    months="Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split(),
    weekdays="Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag".split(),
    other_weekdays={"Sonnabend": 5},
    which={"letzt": -1, "vergangen": -1, "dies": 0, "nächst": 1, "kommend": 1},
    numbers=_counted(
        "ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
        "achtzehn neunzehn zwanzig"
    )
    | {"einem": 1, "einer": 1, "dreißig": 30, "vierzig": 40, "fünfzig": 50},
    few={"ein paar": 3},
    units=_units("tag(?:en)? wochenenden? wochen? monat(?:en)? jahr(?:en)?"),
    part=" ?(?:früh|vormittag|mittag|nachmittag|abend|nacht|morgen(?: früh)?)",
    forms=(
        ("vorgestern", "vorgestern{part}", Kind.DAY, -2),
        ("gestern", "gestern{part}", Kind.DAY, -1),
        ("heute", "heute{part}", Kind.DAY, 0),
        ("morgen", "morgen{part}", Kind.DAY, 1),
        ("bermorgen", "übermorgen{part}", Kind.DAY, 2),
        ("tag mittwoch sonnabend", "(?:{which}e[nmrs]?|am) {weekday}{part}", Kind.WEEKDAY, None),
        ("woche monat jahr", "{which}e[nmrs]? (?P<unit>woche|wochenende|monat|jahr)", Kind.UNIT, None),
        ("wochenende", "am wochenende", Kind.WEEKEND, None),
        ("vorletzt", "vorletzten {month}", Kind.NAMED_MONTH, -2),
        ("letzt vergangen", "(?:letzt|vergangen)e[nmrs]? {month}", Kind.NAMED_MONTH, -1),
        ("tag woche monat jahr", "vor {number} {unit}", Kind.DISTANCE, -1),
        ("tag woche monat jahr", "in {number} {unit}", Kind.DISTANCE, 1),
        ("jahr", "seit {number} jahr(?:en)?", Kind.SINCE, -1),
    ),
    # The morning: after articles and adjectives, and with a capital letter where no sentence begins with the adverb.
    idioms=r"(?<!,\s)\b(?:d(?:er|em|en|es)|am|vom|zum|gegen|(?:dies|jed|ein|kein|gut|schön|früh|spät|ganz|nächst|letzt)"
    r"(?:e[nmrs]?)?) morgen\b|(?-i:(?<=[\w,;)–-]\s)Morgen\b|\bMorgen\b(?! [a-z\xdf-\xff(]| Abend\b))"
    # A greeting, which may be all of a sentence.
    r"|(?:^|[.!?…\n\"„“»] ?)morgen(?= ?(?:[!,.…\n]|\Z)| (?:zusammen|allerseits|alle|leute|ihr)\b)"
    r"|(?:schnee|nicht|welt) von gestern|von heute auf morgen|hier und heute|morgen ist auch noch ein tag"
    r"|(?-i:\b(?:[Dd]as|[Ii]ns|[Ii]m) (?:Heute|Gestern)\b)",
    not_after=r"\b(?:jede[nmrs]?|oder|\w*mal|nicht vor)",
    not_before=r" oder {numbers}\b| (?:vor|in|und) {numbers} {units}\b",
    past=rf"\b(?:{'|'.join(_PRETERITES.split())}|[a-z\xdf-\xff]+(?:iert|et)en?)\b",
    participles=r"\b(?:(?!gegen\b|gehen\b|geben\b|gelten\b|gewinnen\b)(?:[a-z\xdf-\xff]{1,6})?ge[a-z\xdf-\xff]{2,}"
    r"(?:t|en)|(?:be|er|ent|ver|zer)[a-z\xdf-\xff]{3,}t|[a-z\xdf-\xff]{2,}iert)\b",
    auxiliaries=r"\b(?:hab|habe|hast|hat|haben|habt|bin|bist|ist|sind|seid)\b",
    not_past_after="(?!)",
    lasting="(?!)",
    future=r"\b(?:werden?|wirst|wird|werdet)\b",
    day="{0.day}. {1} {0.year}",
    weeks={-1: "Woche vor dem {}", 0: "Woche vom {}", 1: "Woche nach dem {}"},
    weekend="Wochenende vom {}",
    since="seit {}",
    about="etwa {}",
)
LANGUAGES: Mapping[str, Language] = {ENGLISH: _ENGLISH, GERMAN: _GERMAN}
