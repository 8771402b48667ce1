"""Searching texts for keywords. Case never counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from Middleware.models.messages import Message
from Middleware.utilities.text_utils import (
    clear_out_user_assistant_from_chunks,
    get_message_chunks,
    message_text,
    restore_braces,
    tokenize,
)

Index = dict[str, dict[int, list[int]]]
"""Token -> number of a text -> positions in that text, counted in tokens and ascending."""

CHUNK_BREAK = "--ChunkBreak--"
NO_MEMORIES = "There are no memories. This conversation has not gone long enough for there to be memories."
# The hits become part of a prompt, so the blocks are small and their number is limited.
BLOCK_TOKENS = 400
MAX_HITS = 10
# The newest messages are enough to find the names of the speakers.
SPEAKER_MESSAGES = 10
RECENT_BLOCKS = 3

# A match never begins inside a word: with backtracking a pasted file without spaces would take hours.
_LABEL = re.compile(r"(?<!\w)(\w++):")
_KEYWORD = re.compile(r"\w+:?|[()]")
_OPERATORS = frozenset({"AND", "OR"})


# -- a conversation, and memories --------------------------------------------------------------------------------------


def search_conversation(messages: Sequence[Message], keywords: str, lookback: int = 0) -> str:
    """Return the best blocks of a conversation, joined by ``--ChunkBreak--``.

    Only the newest ``lookback`` messages are searched; with 0, all but the newest one. ``NO_MEMORIES`` if there are
    no more messages than that.
    """
    if not messages:
        return ""
    messages = _readable(messages)
    if len(messages) <= lookback:
        return NO_MEMORIES
    blocks = get_message_chunks(messages, lookback, BLOCK_TOKENS)
    hits = advanced_search_in_chunks(blocks, _without_speakers(messages, keywords), MAX_HITS)
    return CHUNK_BREAK.join(clear_out_user_assistant_from_chunks(hits))


def search_memories(blocks: Sequence[str], messages: Sequence[Message], keywords: str) -> str:
    """Memories that share a word with the keywords, joined by a blank line; the newest three are left out.

    ``AND`` and ``OR`` are ignored.
    """
    if len(blocks) > RECENT_BLOCKS:
        blocks = blocks[:-RECENT_BLOCKS]
    words = _without_speakers(_readable(messages), keywords).split()
    query = " ".join(word for word in words if word.strip("()") not in _OPERATORS)
    return "\n\n".join(search_in_chunks(blocks, query, MAX_HITS))


def _without_speakers(messages: Sequence[Message], keywords: str) -> str:
    return filter_keywords_by_speakers(messages[-SPEAKER_MESSAGES:], keywords)


def _readable(messages: Sequence[Message]) -> list[Message]:
    """Return copies with real braces: a sentinel would merge with the words next to it."""
    return [{**message, "content": restore_braces(message_text(message))} for message in messages]


# -- building blocks ---------------------------------------------------------------------------------------------------


def search_in_chunks(chunks: Iterable[str], query: str, max_hits: int = 0) -> list[str]:
    """Return the texts that share a word with ``query``, in order; the first ``max_hits`` if that is not 0."""
    wanted = set(tokenize(query.lower()))
    hits = [chunk for chunk in chunks if not wanted.isdisjoint(tokenize(chunk.lower()))]
    return hits[:max_hits] if max_hits > 0 else hits


def advanced_search_in_chunks(
    chunks: Sequence[str], query: str, max_excerpts: int = 40, proximity_limit: int = 5
) -> list[str]:
    """Return the texts that share words with ``query``; those with many of them, close to each other, first."""
    tokens = list(dict.fromkeys(tokenize(query.lower())))
    index = build_inverted_index(chunks)
    scores = apply_proximity_filter(index, tokens, calculate_line_scores(index, tokens), proximity_limit)
    # The sort is stable, also in reverse: equal scores stay in the order of the texts.
    best = sorted(scores, key=scores.__getitem__, reverse=True)
    return [chunks[number] for number in best[:max_excerpts]]


def build_inverted_index(chunks: Iterable[str]) -> Index:
    """Return the positions of every word. A word with a colon after it is a label and left out of that text."""
    index: Index = {}
    for number, chunk in enumerate(chunks):
        text = chunk.lower()
        labels = set(_LABEL.findall(text))
        for position, token in enumerate(tokenize(text)):
            if token not in labels:
                index.setdefault(token, {}).setdefault(number, []).append(position)
    return index


def calculate_line_scores(index: Index, tokens: Iterable[str]) -> dict[int, int]:
    """Return the number of tokens in each text that contains any, in the order in which the texts are found."""
    scores: dict[int, int] = {}
    for token in tokens:
        for number, positions in index.get(token, {}).items():
            scores[number] = scores.get(number, 0) + len(positions)
    return scores


def apply_proximity_filter(
    index: Index, tokens: Sequence[str], scores: Mapping[int, int], proximity_limit: int = 5
) -> dict[int, int]:
    """Return the scores, plus one for each pair of different tokens at most ``proximity_limit`` words apart."""
    places: dict[int, list[tuple[int, str]]] = {}
    for token in dict.fromkeys(tokens):
        for number, positions in index.get(token, {}).items():
            places.setdefault(number, []).extend((position, token) for position in positions)
    result = dict(scores)
    for number, found in places.items():
        close = _close_pairs(sorted(found), max(proximity_limit, 0))
        if close:
            result[number] += close
    return result


def _close_pairs(places: Sequence[tuple[int, str]], limit: int) -> int:
    """Return the number of close pairs in ``places``: (position, token), in the order of the positions."""
    # All positions differ, so at most ``limit`` of them are close after another one. Comparing all pairs of tokens
    # would take long for a pasted text.
    return sum(
        other != token and near - place <= limit
        for at, (place, token) in enumerate(places, 1)
        for near, other in places[at : at + limit]
    )


def filter_keywords_by_speakers(messages: Iterable[Mapping[str, object]], keywords: str) -> str:
    """Return the words, ``AND``, ``OR`` and parentheses of ``keywords``, without labels and names of speakers.

    A label is a word with a colon behind it; a speaker is one that is a label in any of the messages.
    """
    speakers = {label.lower() for message in messages for label in _LABEL.findall(message_text(message))}
    kept: list[str] = []
    for word in _KEYWORD.findall(keywords):
        if word == ")" and kept and kept[-1] == "(":
            kept.pop()
        elif not word.endswith(":") and word.lower() not in speakers:
            kept.append(word)
    return " ".join(kept).replace("( ", "(").replace(" )", ")")
