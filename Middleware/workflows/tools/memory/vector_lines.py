"""Reads memories from the answers of small models: a fact on each line, or JSON that is broken.

Such models answer with lines when they are asked for JSON and the reverse, wrap lines in bullets, numbers and quotation
marks, copy their prompt and its examples, refuse, and are cut off in the middle of a word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from Middleware.utilities.answers.repetition import MOST_WORDS_OF_A_LINE
from Middleware.utilities.discussions.message_index.words import index_words, is_pair
from Middleware.utilities.stop_words import STOP_WORDS, folded, verb_forms
from Middleware.workflows.tools.memory.memory_texts import plain_words, sentences
from Middleware.workflows.tools.memory.vector_answers import (
    MOST_CHARACTERS,
    MOST_ITEMS,
    Item,
    is_memory,
    json_objects,
    parse_memories,
    storable_items,
    without_thinking,
)

# A chunk of ten messages has no more facts; a longer list is a model that goes on with what it made up.
MOST_LINES = 12
# Shorter lines are headings, labels and answers such as "None".
_LEAST_WORDS = 3
# Shorter words are in every text.
_TELLING_LETTERS = 4
_TITLE_WORDS = 8
# From so many complete lines before it, an incomplete last one counts as cut off.
_COMPLETE_LINES = 2

_WORD = re.compile(r"[^\W_]+")
_SUMMARY = re.compile(r'"summary"\s*:\s*"((?:[^"\\]|\\.)*)"')
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
# What is left of JSON that could not be read: brackets, or a key before its value.
_JSON_REST = re.compile(r'[\[\]{}"\s,]*\Z|[\[{][\[{"\s]|"[^"]*"\s*:')
_OBJECT = re.compile(r"\s*(?:```\w*\s*)?\[?\s*\{")
_LIST_OF_STRINGS = re.compile(r'\s*(?:```\w*\s*)?\[\s*"')
_BULLET = re.compile(r"[-*•–—·▪‣○●>+✓✔✅➤➢→]\s+|[-•](?=[^\W\d_])")
# Of a list of tasks: it must not count as an empty list in JSON.
_CHECKBOX = re.compile(r"^([ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t]+)\[[ xX]?\][ \t]+(?=\S)", re.MULTILINE)
_NUMBER = re.compile(r"\(?(\d{1,3})(?:[.):]\s+|[、．]\s*)")
_LABEL = re.compile(r"([^\W\d_]+)(?: \d+)?(?:: +|：\s*)(?=\S)")
_EMPHASIS = re.compile(r"([*_])([^*_]+)\1\Z")
_QUOTES = "\"'“”„‟«»‹›「」『』`"
_TAG_LINE = re.compile(r"<[^<>]*>\Z")
# A line that ends so goes on: a heading, or what was cut off.
_UNENDED = re.compile(r"[-,:;(\[{/–—=&+，、：；]\Z")
_CLOSED = re.compile(r"[.!?…;。！？；)\]}\"'”’»」』]\Z")
_SENTENCE_START = re.compile(r"(?:\A|[.!?…:\n>\"'“„«(*•-])\s*\Z")


@dataclass(frozen=True)
class Reading:
    """How the answer about one excerpt is read.

    Attributes:
        excerpt: the text that the model was given, as it was sent.
        built_in: the prompts are built in, so that every memory must follow from the excerpt.
        speakers: the names before the messages of the excerpt.
        shown: the texts of the prompt without the excerpt: templates, and all messages of the example turns.
        cut_off: the answer ended at the limit of its length.
    """

    excerpt: str = ""
    built_in: bool = False
    speakers: Sequence[str] = ()
    shown: Sequence[str] = ()
    cut_off: bool = False


def read_memories(answer: str, reading: Reading) -> list[Item] | None:
    """Return the memories in JSON or lines; [] for an answer that has nothing to remember; None for an unusable one."""
    answer = _CHECKBOX.sub(r"\1", answer)
    found = parse_memories(answer)
    if len(answer) > MOST_CHARACTERS:
        return found
    if found == []:
        # Some models write facts, and an empty list below them.
        return _kept_lines(answer, reading) or [] if reading.built_in else []
    text = without_thinking(answer).strip()
    if found is None or not ("```" in text or _is_whole(text)):
        # JSON that is broken: the objects in it that are whole, also behind one that is not.
        alone = [item for item in json_objects(text) if is_memory(item)][:MOST_ITEMS]
        found = storable_items(alone) if len(alone) > len(found or ()) else found
    if found is not None:
        return _kept(found, reading) or None if reading.built_in else found
    lines = [*_lines(text, reading)]
    if all(len(index_words(line)) < _LEAST_WORDS for line in lines):
        # "None", for example, and nothing else.
        return [] if lines else None
    return _kept_items(lines, reading) or None


def _kept_lines(answer: str, reading: Reading) -> list[Item]:
    return _kept_items(_lines(without_thinking(answer).strip(), reading), reading)


def _kept_items(lines: Iterable[str], reading: Reading) -> list[Item]:
    return _kept(storable_items(_item(line, reading) for line in lines), reading)[:MOST_LINES]


def _is_whole(text: str) -> bool:
    try:
        json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return False
    return True


# -- what is dropped ---------------------------------------------------------------------------------------------------


def _kept(items: Sequence[Item], reading: Reading) -> list[Item]:
    shown = {
        plain_words(sentence)
        for text in reading.shown
        for line in (*text.splitlines(), *_STRING.findall(text))
        for sentence in (*sentences(line), line, _LABEL.sub("", line, count=1))
    }
    said = _Vocabulary(reading.excerpt)

    def is_kept(text: str) -> bool:
        return (
            len(index_words(text)) >= _LEAST_WORDS
            and not _UNENDED.search(text.rstrip())
            and not all(plain_words(sentence) in shown for sentence in sentences(text))
            and (said.covers(text) or not reading.built_in)
        )

    return [item for item in items if is_kept(item["summary"])]


class _Vocabulary:
    """The words of an excerpt. Endings do not count: words are the same if they begin alike."""

    def __init__(self, text: str) -> None:
        self._words = set(index_words(text))
        self._beginnings = {word[:letters] for word in self._words for letters in (4, 5) if len(word) >= letters}

    def covers(self, text: str) -> bool:
        """Return whether at least half of the telling words of a text are here."""
        telling = [word for word in index_words(text) if len(word) >= _TELLING_LETTERS or is_pair(word)]
        return 2 * sum(map(self._has, telling)) >= len(telling)

    def _has(self, word: str) -> bool:
        if is_pair(word):
            return word in self._words
        if not self._words.isdisjoint(verb_forms(word)):
            return True
        return word[:-1] in self._words or word[: 5 if len(word) >= 6 else 4] in self._beginnings

    def __contains__(self, word: str) -> bool:
        return word in self._words

    def continues(self, word: str) -> bool:
        """Return whether a word here begins with ``word`` and has more letters than an ending."""
        return any(known.startswith(word) and len(known) > len(word) + 1 for known in self._words)


# -- lines -------------------------------------------------------------------------------------------------------------


def _lines(text: str, reading: Reading) -> Iterator[str]:
    """Yield the lines of an answer, or the strings of its JSON, without what stands before and around them."""
    if _LIST_OF_STRINGS.match(text):
        yield from filter(None, map(_decoded, _STRING.findall(text)[:MOST_ITEMS]))
    elif summaries := _SUMMARY.findall(text):
        yield from filter(None, map(_decoded, summaries[:MOST_ITEMS]))
    elif not _OBJECT.match(text):
        lines = [*filter(None, _bare_lines(text))][:MOST_ITEMS]
        # Models separate lines as if they were one sentence.
        yield from (line.rstrip(",; ") for line in (lines[:-1] if _ends_early(lines, reading) else lines))


def _decoded(inside: str) -> str:
    try:
        return str(json.loads(f'"{inside}"', strict=False)).strip()
    except ValueError:
        return ""


def _bare_lines(text: str) -> Iterator[str]:
    number = 0
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith(("```", "#", "---")) or _JSON_REST.match(bare) or _TAG_LINE.match(bare):
            continue
        if mark := _BULLET.match(bare):
            bare = bare[mark.end() :]
        # Any other number at the beginning may be that of a day; within a list, some numbers may be missing.
        if (mark := _NUMBER.match(bare)) and (int(mark[1]) == 1 or ")" in mark[0] or 0 < number < int(mark[1])):
            number, bare = int(mark[1]), bare[mark.end() :]
        bare = _unquoted(_EMPHASIS.sub(r"\2", bare.replace("**", "").strip()))
        if bare and len(index_words(bare)) <= MOST_WORDS_OF_A_LINE:
            yield bare


def _unquoted(line: str) -> str:
    inside = line.rstrip(",")
    if not (inside and inside[0] in _QUOTES and inside[-1] in _QUOTES):
        return line
    # Not '"Bolt" is what she calls "the dog"'. An apostrophe within a word does not count.
    mark = re.escape(inside[0])
    return line if re.search(rf"{mark}(?!\w)|(?<!\w){mark}", inside[1:-1]) else inside.strip(_QUOTES).strip()


def _ends_early(lines: Sequence[str], reading: Reading) -> bool:
    """Return whether the last line was cut off: as the answer was, in the middle of a word, or unlike all others."""
    if not lines or _CLOSED.search(lines[-1]):
        return False
    said, last = _Vocabulary(reading.excerpt), (index_words(lines[-1]) or [""])[-1]
    if reading.cut_off or lines[-1].endswith(","):
        return True
    if is_pair(last) or last in said:
        return False
    before = lines[:-1]
    return said.continues(last) or (len(before) >= _COMPLETE_LINES and all(map(_CLOSED.search, before)))


def _item(line: str, reading: Reading) -> Item:
    label = _LABEL.match(line)
    # The name of a speaker tells whose fact it is.
    if label and label[1] not in reading.speakers:
        line = _unquoted(line[label.end() :].strip()) or line
    return {"title": _title(line), "summary": line, "entities": _entities(line, reading), "key_phrases": []}


def _title(line: str) -> str:
    title = " ".join(line.split()[:_TITLE_WORDS])
    # Eight pairs of neighbouring characters.
    return title[: _TITLE_WORDS + 1] if is_pair(line) else title


def _entities(line: str, reading: Reading) -> list[str]:
    """Return the words with a capital that the excerpt has, too, and the speakers in the line."""
    found = [
        match.group()
        for match in _WORD.finditer(line)
        if match.group()[0].isupper() and _is_name(match.group(), _begins(line, match.start()), reading.excerpt)
    ]
    named = [
        name
        for name in reading.speakers
        if re.search(re.escape(name) if is_pair(name) else rf"(?<!\w){re.escape(name)}(?!\w)", line)
    ]
    return [*dict.fromkeys((*found, *named))]


def _is_name(word: str, begins: bool, excerpt: str) -> bool:
    places = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", excerpt)]
    if not begins or not places:
        return bool(places)
    # Every first word has a capital. It is a name if the excerpt has it inside of a sentence, or never without.
    is_inside = any(not _begins(excerpt, place) for place in places)
    is_frequent = any(folded(word) in language for language in STOP_WORDS.values())
    return is_inside or not (is_frequent or re.search(rf"(?<!\w){re.escape(word.lower())}(?!\w)", excerpt))


def _begins(text: str, place: int) -> bool:
    # A few characters are enough to see the end of the sentence before.
    return _SENTENCE_START.search(text[max(0, place - 8) : place]) is not None
