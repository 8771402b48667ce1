"""Words of a text, the frequent words of four languages, and the forms of irregular English verbs.

A search leaves out the frequent words of one language, and looks for a verb in all its forms. Which language that is,
the frequent words decide as well. Words are folded as the index of SQLite folds them (``unicode61`` with
``remove_diacritics 2``), so that a word of a question equals the word in the index.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from types import MappingProxyType

ENGLISH, GERMAN, FRENCH, SPANISH = "en", "de", "fr", "es"

# Two lists that agree on fewer words than this say nothing about the language: "in Rom" is English and German.
FEWEST_AT_A_TIE = 3

# SQLite removes diacritics from Latin letters only.
_DIACRITICS = re.compile(r"(?<=[a-z])[\u0300-\u036f]+")
_POSSESSIVE = re.compile(r"(?<=\w)['\u2019\u02bc]s(?!\w)", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")


def folded(text: str) -> str:
    """Return ``text`` in lower case and without the diacritics of Latin letters."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFD", text.lower().replace("\u03c2", "\u03c3"))
    return unicodedata.normalize("NFC", _DIACRITICS.sub("", decomposed))


def words_of(text: str) -> list[str]:
    """Return the runs of letters and digits of ``text``, folded, in order, without the possessive ``'s``."""
    return _WORD.findall(folded(_POSSESSIVE.sub("", text)))


def _read(text: str) -> frozenset[str]:
    return frozenset(folded(text).split())


# "may" is not here, because it is a month. Single letters and pairs are what an apostrophe separates: "don't", "I'll".
_ENGLISH = _read("""
    a about above after again against all also am an and any are as at be because been before being below between both
    but by can could d did do does doing don down during each few for from further had has have having he her here hers
    herself him himself his how i if in into is isn it its itself just ll m me might mine more most must my myself no
    nor not now of off on once only or other our ours ourselves out over own re same she should so some such t than that
    the their theirs them themselves then there these they this those through to too under until up us ve very was we
    were what when where which while who whom whose why will with would you your yours yourself yourselves
""")
_GERMAN = _read("""
    aber alle allem allen aller alles als also am an auch auf aus bei beim bin bis bist da damit dann das daß dass dein
    deine deinem deinen deiner dem den denn der des dich die dies diese diesem diesen dieser dieses dir doch dort du
    durch ein eine einem einen einer eines er es etwas euch euer eure für fuer gegen habe haben hast hat hatte hatten
    hier hinter ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im in ins ist ja jede jedem jeden jeder jedes jetzt kann
    kein keine keinem keinen man mein meine meinem meinen meiner mich mir mit nach nicht nichts noch nur ob oder ohne
    schon sehr sein seine seinem seinen seiner seit sich sie sind so soll über ueber um und uns unser unsere unter vom
    von vor war waren warst warum was wegen weil welche welchem welchen welcher welches wem wen wenn wer werde werden
    wessen wie wieder wir wird wo woher wohin worden wurde wurden zu zum zur zwischen
""")
_FRENCH = _read("""
    à ai alors as au aucun aucune aussi autre aux avait avec avez avoir avons c car ce cela ces cet cette ceux chez
    comme comment d dans de depuis des donc dont du elle elles en entre es est et étaient étais était étant été êtes
    être eu eux fait furent fut il ils j je jusqu l la le les leur leurs lors lui là m ma mais me mes moi moins mon n ne
    ni nos notre nous on ont ou où par parce pas pendant peu plus pour pourquoi qu quand que quel quelle quelles quels
    qui quoi s sa sans se sera ses si sommes son sont sous suis sur t ta te tes toi ton tous tout toute toutes très tu
    un une vers vos votre vous y
""")
_SPANISH = _read("""
    a al algo alguna alguno algunos ante antes aquel aquella aquello así aun aunque bajo bien cada como cómo con contra
    cuál cuando cuándo cuánto de del desde donde dónde durante e el él ella ellas ellos en entre era eran eras eres es
    esa ese eso esos esta está estaba están estar estas este esto estos estoy fue fueron fui ha había han has hasta hay
    he hemos la las le les lo los más me mi mis mucho muy nada ni no nos nosotros nuestra nuestro o os otra otro para
    pero poco por porque pues que qué quién quiénes se sea ser si sí sido sin sobre sois somos son soy su sus también
    tanto te tengo ti tiene tienen todo todos tu tú tus un una unas uno unos usted ustedes vosotros y ya yo
""")

STOP_WORDS = MappingProxyType({ENGLISH: _ENGLISH, GERMAN: _GERMAN, FRENCH: _FRENCH, SPANISH: _SPANISH})

# A verb each, up to a semicolon: its base form, then the forms without its stem. "be", "do" and "have" are stop words.
_VERBS = """
    become became; begin began begun; break broke broken; bring brought; build built; buy bought; catch caught;
    choose chose chosen; come came; draw drew drawn; drink drank drunk; drive drove driven; eat ate eaten; fall fell
    fallen; feel felt; fight fought; find found; fly flew flown; forget forgot forgotten; freeze froze frozen; get
    got gotten; give gave given; go goes went gone; grow grew grown; hear heard; hide hid hidden; hold held; keep
    kept; know knew known; leave left; lend lent; lose lost; make made; mean meant; meet met; pay paid; ride rode
    ridden; ring rang rung; run ran; say said; see saw seen; sell sold; send sent; sing sang sung; sit sat; sleep
    slept; speak spoke spoken; spend spent; stand stood; steal stole stolen; swim swam swum; take took taken; teach
    taught; tell told; think thought; understand understood; wake woke woken; wear wore worn; win won; write wrote
    written
"""
IRREGULAR_VERBS = tuple(tuple(row.split()) for row in _VERBS.split(";"))
_FORMS = {form: row for row in IRREGULAR_VERBS for form in row}


def verb_forms(word: str) -> tuple[str, ...]:
    """Return all forms of the irregular English verb that has the folded form ``word``; else only ``word``."""
    return _FORMS.get(word, (word,))


def language_of(words: Iterable[str], among: Collection[str] = STOP_WORDS, tie: int = FEWEST_AT_A_TIE) -> str:
    """Return the language of ``among`` whose list has most of the folded ``words``, each counted once.

    Empty if no list has any. If several have as many, the first of them if those are ``tie`` words or more, else empty.
    """
    distinct = set(words)
    counts = {language: len(STOP_WORDS[language] & distinct) for language in among}
    most = max(counts.values(), default=0)
    best = [language for language, count in counts.items() if count == most]
    return best[0] if most and (len(best) == 1 or most >= tie) else ""


def without_stop_words(words: Sequence[str]) -> list[str]:
    """Return ``words`` without the frequent words of their language; all of them if no others are left.

    One list only: a German article is an English verb.
    """
    stop_words = STOP_WORDS.get(language_of(words), frozenset())
    return [word for word in words if word not in stop_words] or list(words)
