"""Brace sentinels, the token estimate and flags."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities import text_utils as t


@pytest.mark.parametrize(
    "text, estimate",
    [
        ("hello world", 3),
        ("x" * 35, 11),
        ("", 0),
        ("a b c d e f g h i j", 14),
        ("a", 1),
        ("hello", 1),
        ("one two three four five", 7),
        (" ", 0),
        ("x" * 350, 110),
        ("word " * 1000, 1571),
    ],
)
def test_estimate(text, estimate):
    assert t.rough_estimate_token_length(text) == estimate


def test_estimate_margin():
    assert t.rough_estimate_token_length("x" * 35, safety_margin=1.0) == 10


@given(st.text(st.sampled_from("ab \n\t\u2003\u00a0\u200b"), max_size=60), st.integers(1, 40))
def test_words_of_long_texts_are_counted_like_those_of_short_ones(text, piece):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(t, "_PIECE", piece)
        assert t._count_words(text) == len(text.split())


def test_braces_round_trip():
    text = '{"a": {}} } {'
    escaped = t.escape_braces(text)
    assert "{" not in escaped and "}" not in escaped
    assert t.restore_braces(escaped) == text
    assert t.escape_brackets_in_string(text) == escaped
    assert t.return_brackets_in_string(escaped) == text


LEFT, RIGHT = "__WILMER_L_CURLY__", "__WILMER_R_CURLY__"


@given(
    st.lists(st.sampled_from(["{", "}", LEFT, RIGHT, LEFT[:9], LEFT[2:], RIGHT[:-2], "_", "__", "x"])),
    st.integers(1, 40),
)
def test_long_texts_are_changed_like_short_ones(parts, piece):
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(t, "_PIECE", piece)
        assert t.escape_braces(text) == text.replace("{", LEFT).replace("}", RIGHT)
        assert t.restore_braces(text) == text.replace(LEFT, "{").replace(RIGHT, "}")


def test_sentinels_are_the_ones_of_stored_data():
    assert t.escape_braces("{}") == "__WILMER_L_CURLY____WILMER_R_CURLY__"


def test_message_lists_change_in_place_and_survive_missing_content():
    messages = [{"role": "user", "content": "{a}"}, {"role": "assistant", "content": None}, {"role": "tool"}]
    assert t.replace_brackets_in_list(messages) is messages
    assert messages[0]["content"] == "__WILMER_L_CURLY__a__WILMER_R_CURLY__"
    assert t.return_brackets(messages)[0]["content"] == "{a}"
    assert messages[1]["content"] is None


def test_restored_data_is_a_copy():
    data = {"a__WILMER_L_CURLY__": ["__WILMER_R_CURLY__", 1, None]}
    assert t.restore_braces_in_data(data) == {"a{": ["}", 1, None]}
    assert data == {"a__WILMER_L_CURLY__": ["__WILMER_R_CURLY__", 1, None]}


@pytest.mark.parametrize(
    "level, factor",
    [(None, 1.0), (" Balanced ", 1.25), ("aggressive", 1.5), ("XAGGRESSIVE", 1.85), ("conservative", 1.0)],
)
def test_levels(level, factor):
    assert t.estimation_level_multiplier(level) == factor


@pytest.mark.parametrize("level", ["wild", 3, ""])
def test_unknown_level_warns(level, caplog):
    assert t.estimation_level_multiplier(level) == 1.0
    assert "wilmerContextEstimationLevel" in caplog.text


@pytest.mark.parametrize(
    "text, size, pieces",
    [
        ("one two three four five six", 3, ["one two three", "four five six"]),
        ("", 3, []),
        (" \n", 3, []),
        ("supercalifragilistic a b", 2, ["supercalifragilistic", "a b"]),
        ("a  b\nc", 0, ["a", "b", "c"]),
    ],
)
def test_splitting_into_pieces(text, size, pieces):
    assert t.split_into_tokenized_chunks(text, size) == pieces


@pytest.mark.parametrize(
    "limit, rest",
    [
        (5, "two three four five six"),
        (0, ""),
        (-1, ""),
        (6, "one two three four five six"),
        (99, "one two three four five six"),
    ],
)
def test_the_last_words_that_fit(limit, rest):
    assert t.reduce_text_to_token_limit("one  two three\nfour five six", limit) == rest
