"""What is removed from a memory or a summary before it is stored.

Small models copy the tags of their prompt, and repeat notes that they were shown. Later prompts contain what is stored,
so it would be repeated in each memory after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from Middleware.services import memory_service
from Middleware.workflows.tools.memory import shared

REPETITIONS = "the answer only repeats earlier memories or its prompt's tags"
# What prompts contain in place of memories or a summary that do not exist yet.
_PLACEHOLDERS = (memory_service.NO_SUMMARY, memory_service.NO_MEMORIES, shared.NO_MEMORIES)
# Older memories may be repeated on purpose, as a reminder.
_MEMORIES_BEFORE = 2
_TAG = re.compile(r"</?([A-Za-z][\w-]*)>")
# The end of a sentence: with a space and anything but a small letter behind it, or as written in East Asia.
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*\s+(?=[^a-z\s])|[。！？]+[”’」』）]*")
# A full stop behind these does not end a sentence, nor does one behind a single capital or within the word ("e.g.").
_ABBREVIATION = re.compile(
    r"(?:\b(?:Dr|Mr|Mrs|Ms|St|Prof|Capt|Gen|Col|Sgt|Lt|Rev|No|Nr|vs|ca|approx|[A-Z])|\.\w+)\.\s+\Z"
)
_CLOSED = re.compile(r"[.!?…。！？][\"'”’)\]」』）]*\s*\Z")
# Without a full stop: fewer words contain too little.
_WORDS_OF_A_SENTENCE = 4
_LIST_MARK = re.compile(r"(?:[-*•–]|\d{1,3}[.)])\s+")
_NOT_SAID = re.compile(r"[\W_]+")


def clean_memory(answer: str, prompts: Sequence[str], before: Sequence[str] = (), shown: Sequence[str] = ()) -> str:
    """Return an answer without the tags and the placeholders of prompts and without repeated sentences.

    Return "" if nothing is left.

    Args:
        prompts: the templates of the call.
        before: earlier memories, oldest first; a sentence that is in one of the last two is repeated.
        shown: example answers in the prompt; a sentence of theirs is repeated, too.
    """
    own = {name for prompt in prompts for name in _TAG.findall(prompt)}
    text = _TAG.sub(lambda found: "" if found[1] in own else found.group(), answer)
    said = {
        plain_words(sentence)
        for memory in (*_PLACEHOLDERS, *before[-_MEMORIES_BEFORE:], *shown)
        for line in memory.splitlines()
        for sentence in sentences(line)
    }
    kept, dropped = [], False
    for line in text.splitlines():
        new = _new_sentences(line, said)
        dropped = dropped or new != line
        # An empty line separates paragraphs, but a line of repetitions leaves none.
        if new.strip() or not line.strip():
            kept.append(new)
    if not dropped and text == answer:
        return answer
    # An empty line or a rule has nothing to separate at the beginning and the end.
    lines = [number for number, line in enumerate(kept) if plain_words(line)]
    return "\n".join(kept[lines[0] : lines[-1] + 1]).strip() if lines else ""


def _new_sentences(line: str, said: set[str]) -> str:
    """Return the line without the sentences in ``said``, to which the others are added."""
    mark = _LIST_MARK.match(line.lstrip())
    begin = len(line) - len(line.lstrip()) + (mark.end() if mark else 0)
    new = []
    for sentence in sentences(line[begin:]):
        key = plain_words(sentence)
        if key not in said or not _is_sentence(sentence, key):
            new.append(sentence)
            said.add(key)
    if len(new) == sum(1 for _ in sentences(line[begin:])):
        return line
    return line[:begin] + "".join(new).rstrip() if new else ""


def sentences(line: str) -> Iterator[str]:
    start = 0
    for end in _SENTENCE_END.finditer(line):
        if not _ABBREVIATION.search(line, start, end.end()):
            yield line[start : end.end()]
            start = end.end()
    if line[start:]:
        yield line[start:]


def _is_sentence(text: str, said: str) -> bool:
    # A heading or a word such as "None" may be there again, and a rule between paragraphs.
    return bool(said) and (len(said.split()) >= _WORDS_OF_A_SENTENCE or _CLOSED.search(text) is not None)


def plain_words(sentence: str) -> str:
    """Return what two sentences have in common that differ only in letter case, punctuation, spaces and list marks."""
    return _NOT_SAID.sub(" ", _LIST_MARK.sub("", sentence.strip(), count=1)).strip().casefold()
