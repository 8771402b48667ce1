from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities.search_utils import (
    NO_MEMORIES,
    advanced_search_in_chunks,
    apply_proximity_filter,
    build_inverted_index,
    calculate_line_scores,
    filter_keywords_by_speakers,
    search_conversation,
    search_in_chunks,
    search_memories,
)
from Middleware.utilities.text_utils import tokenize


def messages(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content} for content in contents]


FILLER = " ".join(["filler"] * 170)
"""Most of a block, so that the messages beside it come into blocks of their own."""


# -- building blocks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "hits"),
    [("CAT", ["a Cat", "cat dog"]), ("dog bird", ["cat dog", "bird!"]), ("", []), ("at", []), ("!", [])],
)
def test_search_in_chunks(query: str, hits: list[str]) -> None:
    assert search_in_chunks(["a Cat", "cat dog", "bird!"], query) == hits


@pytest.mark.parametrize(("limit", "count"), [(0, 4), (1, 1), (3, 3), (9, 4), (-1, 4)])
def test_search_in_chunks_is_capped(limit: int, count: int) -> None:
    chunks = ["a 1", "a 2", "a 3", "a 4"]
    assert search_in_chunks(chunks, "a", limit) == chunks[:count]


def test_index() -> None:
    assert build_inverted_index(["Bob: the cat, Bob", "The cat the"]) == {
        "the": {0: [1], 1: [0, 2]},
        "cat": {0: [2], 1: [1]},
    }


def test_scores() -> None:
    index = build_inverted_index(["a b", "b b c", "c"])
    assert calculate_line_scores(index, ["b", "x"]) == {0: 1, 1: 2}
    assert list(calculate_line_scores(index, ["c", "a"])) == [1, 2, 0]


@pytest.mark.parametrize(
    ("text", "score"), [("a b", 3), ("a x x x x b", 3), ("a x x x x x b", 2), ("b a b", 5), ("a a", 2), ("a b c", 6)]
)
def test_proximity(text: str, score: int) -> None:
    index = build_inverted_index([text])
    tokens = ["a", "b", "c"]
    assert apply_proximity_filter(index, tokens, calculate_line_scores(index, tokens)) == {0: score}


@given(st.text("abx ", max_size=60), st.integers(0, 6))
def test_proximity_counts_every_pair(text: str, limit: int) -> None:
    words = tokenize(text)
    pairs = sum(
        1
        for i, one in enumerate(words)
        for j, other in enumerate(words)
        if one == "a" and other == "b" and abs(i - j) <= limit
    )
    index = build_inverted_index([text])
    scores = calculate_line_scores(index, ["a", "b"])
    assert sum(apply_proximity_filter(index, ["a", "b"], scores, limit).values()) == sum(scores.values()) + pairs


@given(st.text("abcx ", max_size=40))
def test_proximity_of_three_words(text: str) -> None:
    places = [(place, word) for place, word in enumerate(tokenize(text)) if word in ("a", "b", "c")]
    pairs = sum(
        1
        for i, (place, one) in enumerate(places)
        for near, other in places[i + 1 :]
        if one != other and near - place <= 5
    )
    index = build_inverted_index([text])
    scores = calculate_line_scores(index, ["a", "b", "c"])
    assert sum(apply_proximity_filter(index, ["a", "b", "c"], scores).values()) == sum(scores.values()) + pairs


class CountingIndex(dict[str, Any]):
    """Counts how often it is asked for a word."""

    asked = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.asked += 1
        return super().get(key, default)


def test_proximity_of_a_pasted_text_looks_each_word_up_but_once() -> None:
    words = [f"w{number}" for number in range(300)]
    index = CountingIndex(build_inverted_index([" ".join(words)]))
    scores = calculate_line_scores(index, words)
    index.asked = 0
    assert apply_proximity_filter(index, words, scores) == {0: 300 + 5 * 300 - (5 + 4 + 3 + 2 + 1)}
    assert index.asked == len(words)


def test_parentheses_without_end() -> None:
    started = time.process_time()
    assert filter_keywords_by_speakers([], "(" * 30_000 + "ann:" + ")" * 30_000 + " cat") == "cat"
    assert filter_keywords_by_speakers([], ") ( (cat) ( () ) (") == ") ((cat) ("
    assert time.process_time() - started < 2  # 6 s where each pair costs a look at the whole text


@pytest.mark.parametrize(
    ("chunks", "query", "hits"),
    [
        (["cat", "cat cat", "dog"], "cat", [1, 0]),
        (["cat", "dog"], "dog cat", [1, 0]),  # equal ones in the order of the query
        (["dog x x x x x x cat", "dog cat"], "cat dog", [1, 0]),
        (["cat: dog", "cat"], "cat", [1]),
        (["cat"], "cat CAT cat", [0]),
        (["cat"], "", []),
    ],
)
def test_advanced_search(chunks: list[str], query: str, hits: list[int]) -> None:
    assert advanced_search_in_chunks(chunks, query) == [chunks[number] for number in hits]


def test_advanced_search_is_capped() -> None:
    assert advanced_search_in_chunks(["a"] * 50, "a") == ["a"] * 40
    assert advanced_search_in_chunks(["a", "a a"], "a", 1) == ["a a"]


# -- keywords ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "kept"),
    [
        ("bob AND (cat OR dog) label: bird (bob)", "AND (cat OR dog) bird"),
        ("Bob's cat", "s cat"),
        ("((bob) ( ))", ""),
        ("cat   (  dog )", "cat (dog)"),
        ('cat, "dog"; bird.', "cat dog bird"),
        ("bobby", "bobby"),
        ("", ""),
    ],
)
def test_keywords_without_speakers(keywords: str, kept: str) -> None:
    assert filter_keywords_by_speakers(messages("Bob: hi", None), keywords) == kept


# -- conversation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "lookback", "result"),
    [
        (0, 0, ""),
        (0, 5, ""),
        (1, 1, NO_MEMORIES),
        (1, 2, NO_MEMORIES),
        (1, 0, ""),
        (2, 0, "m0 word"),
        (2, 1, "m1 word"),
        (3, 2, "m1 word\nm2 word"),
    ],
)
def test_conversation_look_back(count: int, lookback: int, result: str) -> None:
    assert search_conversation(messages(*(f"m{n} word" for n in range(count))), "word", lookback) == result


def test_conversation_best_block_first() -> None:
    given_messages = messages("red canoe", FILLER, "the red canoe, red again", FILLER, "newest canoe")
    assert search_conversation(given_messages, "canoe AND red") == "the red canoe, red again--ChunkBreak--red canoe"


def test_conversation_gives_ten_blocks() -> None:
    given_messages = messages(*(f"{FILLER} {FILLER} needle {n}" for n in range(14)))
    hits = search_conversation(given_messages, "needle").split("--ChunkBreak--")
    assert [hit.split()[-1] for hit in hits] == [str(n) for n in range(10)]


def test_conversation_labels_are_no_finds_and_are_removed() -> None:
    given_messages = messages("User: owls are quiet", "Assistant: yes", "newest")
    assert search_conversation(given_messages, "owls") == "owls are quiet\nyes"
    assert search_conversation(given_messages, "user") == ""


def test_conversation_speakers_of_the_last_ten_messages() -> None:
    old = messages("Bob: met bob and a cat", *["x"] * 10)
    assert search_conversation(messages("met bob", FILLER, "Bob: hi", "newest"), "bob") == ""
    assert search_conversation([*messages("met bob", FILLER), *old], "bob").startswith("met bob")


def test_conversation_with_braces() -> None:
    given_messages = messages("__WILMER_L_CURLY__owl__WILMER_R_CURLY__", "newest")
    assert search_conversation(given_messages, "owl") == "{owl}"
    assert given_messages[0]["content"] == "__WILMER_L_CURLY__owl__WILMER_R_CURLY__"


# -- memories ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "found"), [(0, []), (2, [0, 1]), (3, [0, 1, 2]), (4, [0]), (7, [0, 1, 2, 3]), (20, list(range(10)))]
)
def test_memories(count: int, found: list[int]) -> None:
    blocks = [f"owl {number}" for number in range(count)]
    assert search_memories(blocks, messages("hi"), "Owl") == "\n\n".join(blocks[number] for number in found)


@pytest.mark.parametrize("keywords", ["tree AND", "OR (tree OR bush)", "Ann", "", "label: and:"])
def test_memories_without_a_common_word(keywords: str) -> None:
    assert search_memories(["this and that or ann"], messages("Ann: hi"), keywords) == ""


def test_a_long_text_without_spaces_is_searched_in_no_time() -> None:
    pasted = "iVBORw0KGgo" * 3000
    started = time.process_time()
    found = search_conversation(
        [{"role": "user", "content": pasted + " Bob: tea"}, {"role": "user", "content": "?"}], f"tea {pasted}"
    )
    assert time.process_time() - started < 1  # 10 s where each letter of a word may begin a label
    assert found.endswith("tea")
