"""The expressions of the Conditional node."""
from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from Middleware.utilities.conditions import ConditionSyntaxError, evaluate_condition, parse_condition


@pytest.mark.parametrize("text", [
    "TRUE OR FALSE AND FALSE", "FALSE AND FALSE OR TRUE", "5 == 5.0", "TRUE == 1", "FALSE == 0", "true==TRUE",
    "-5 < 3", "'x' != 5", "abc", "!TRUE", "a == a", "'a' == a", '"it\'s" == "it\'s"', "'two\nlines'", "5 >= 5",
    "5 <= 5.0", "3 > -4", "TRUE > FALSE", "inf > 99999", "nan != nan", "((TRUE))", "(TRUE) AND (1 == 1)",
    "TRUE or FALSE", "TRUE aNd TRUE", "'AND'", "'or' == 'or'", "ANDROID", "a != A", "'' != 'x'", "x_1 == x_1",
    "(1 == 1 OR FALSE) AND TRUE", "0.5", "-1", "$ TRUE #",
])
def test_true(text: str) -> None:
    assert evaluate_condition(text)


@pytest.mark.parametrize("text", [
    "(TRUE OR FALSE) AND FALSE", "5 == '5'", '"5" > "3"', "TRUE == 'TRUE'", "a == A", "0", '""', "''", "0.0", "FALSE",
    "false", "1 == 2", "'a' < 'b'", "'a' <= 'a'", "5 > 5", "TRUE != 1", "5 != 5", "nan == nan", "'x' > 1",
])
def test_false(text: str) -> None:
    assert not evaluate_condition(text)
    parse_condition(text)  # well-formed


@pytest.mark.parametrize("text", [
    "1 < 2 < 3", "5 >", "()", "(TRUE", "TRUE)", "NOT TRUE", "5=5", "1e5 == 100000", "(1) == (1)", "5-3", "> 5",
    "TRUE AND", "OR TRUE", "TRUE AND OR TRUE", "yes, sure == yes", "== yes", "'it's' == 'a'", "((", "TRUE FALSE",
    "5 == (5)", "." * 3 + "AND",
])
def test_errors_are_false(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConditionSyntaxError):
        parse_condition(text)
    with caplog.at_level(logging.WARNING):
        assert not evaluate_condition(text)
    assert caplog.records


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_empty_is_false_without_a_word(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert not evaluate_condition(text)
    assert not caplog.records


def test_warning_has_no_conversation_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        evaluate_condition("my private words ==")
    assert "private" not in caplog.text


def test_deep_nesting_does_not_exhaust_the_stack() -> None:
    assert evaluate_condition("(" * 100 + "TRUE" + ")" * 100)
    assert not evaluate_condition("(" * 100_000 + "TRUE" + ")" * 100_000)


_UNITS = st.sampled_from(["TRUE", "FALSE", "1 == 1", "2 < 1"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(_UNITS, st.sampled_from(["AND", "OR"])), min_size=1, max_size=8))
def test_precedence_is_pythons(parts: list[tuple[str, str]]) -> None:
    text = " ".join(f"{unit} {sign}" for unit, sign in parts[:-1]) + " " + parts[-1][0]
    python = text.replace("TRUE", "True").replace("FALSE", "False").replace("AND", "and").replace("OR", "or")
    assert evaluate_condition(text) == eval(python)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="()<>=!'\"TRUEANDOR 51.-\n{}é", max_size=30))
def test_any_text_gives_an_answer(text: str) -> None:
    assert evaluate_condition(text) in (True, False)
