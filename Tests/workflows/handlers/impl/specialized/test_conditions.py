"""The expressions of the Conditional node."""

from __future__ import annotations

import logging
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.workflows.handlers.impl.specialized.conditional import (
    ConditionSyntaxError,
    evaluate_condition,
    parse_condition,
)
from Tests.properties import examples
from Tests.tables import table


@table(
    "text",
    [
        "TRUE OR FALSE AND FALSE",
        "FALSE AND FALSE OR TRUE",
        "5 == 5.0",
        "TRUE == 1",
        "FALSE == 0",
        "true==TRUE",
        "-5 < 3",
        "'x' != 5",
        "abc",
        "!TRUE",
        "a == a",
        "'a' == a",
        '"it\'s" == "it\'s"',
        "'two\nlines'",
        "5 >= 5",
        "5 <= 5.0",
        "3 > -4",
        "TRUE > FALSE",
        "inf > 99999",
        "nan != nan",
        "((TRUE))",
        "(TRUE) AND (1 == 1)",
        "TRUE or FALSE",
        "TRUE aNd TRUE",
        "'AND'",
        "'or' == 'or'",
        "ANDROID",
        "a != A",
        "'' != 'x'",
        "x_1 == x_1",
        "(1 == 1 OR FALSE) AND TRUE",
        "0.5",
        "-1",
        "$ TRUE #",
    ],
)
def test_true(text: str) -> None:
    assert evaluate_condition(text)


@table(
    "text",
    [
        "(TRUE OR FALSE) AND FALSE",
        "5 == '5'",
        '"5" > "3"',
        "TRUE == 'TRUE'",
        "a == A",
        "0",
        '""',
        "''",
        "0.0",
        "FALSE",
        "false",
        "1 == 2",
        "'a' < 'b'",
        "'a' <= 'a'",
        "5 > 5",
        "TRUE != 1",
        "5 != 5",
        "nan == nan",
        "'x' > 1",
    ],
)
def test_false(text: str) -> None:
    assert not evaluate_condition(text)
    parse_condition(text)  # well-formed


@table(
    "text",
    [
        "1 < 2 < 3",
        "5 >",
        "()",
        "(TRUE",
        "TRUE)",
        "NOT TRUE",
        "5=5",
        "1e5 == 100000",
        "(1) == (1)",
        "5-3",
        "> 5",
        "TRUE AND",
        "OR TRUE",
        "TRUE AND OR TRUE",
        "yes, sure == yes",
        "== yes",
        "'it's' == 'a'",
        "((",
        "TRUE FALSE",
        "5 == (5)",
        "." * 3 + "AND",
    ],
)
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


def test_warning_names_the_node_without_conversation_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        evaluate_condition("my private words ==", "Is it so?")
    warning, detail = caplog.records
    assert warning.levelno == logging.WARNING and "'Is it so?'" in warning.getMessage()
    assert "private" not in warning.getMessage()
    assert detail.levelno == logging.DEBUG and "my private words ==" in detail.getMessage()


def test_deep_nesting_does_not_exhaust_the_stack() -> None:
    assert evaluate_condition("(" * 100 + "TRUE" + ")" * 100)
    assert not evaluate_condition("(" * 100_000 + "TRUE" + ")" * 100_000)


# -- a second evaluator, which splits where the one under test descends ------------------------------------------------

_OPERANDS: dict[str, object] = {
    "TRUE": True,
    "false": False,
    "0": 0.0,
    "1": 1.0,
    "-2.5": -2.5,
    "inf": float("inf"),
    "word": "word",
    "Word": "Word",
    "''": "",
    "'AND'": "AND",
    '"a b"': "a b",
    "'1'": "1",
    "'('": "(",
}
_SIGNS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_TOKENS = st.sampled_from([*_OPERANDS, *_SIGNS, "(", ")", "AND", "or", "and", "OR"])


class Malformed(Exception):
    pass


def split_at(tokens: list[str], word: str) -> list[list[str]]:
    """The parts of ``tokens`` between the words outside of all parentheses."""
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth < 0:
            raise Malformed
        if token.upper() == word and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    if depth:
        raise Malformed
    return parts


def judge(tokens: list[str]) -> bool:
    # In lists, so that a damaged part behind the one that decides is read, too, and refused.
    parts = [[judge_unit(unit) for unit in split_at(part, "AND")] for part in split_at(tokens, "OR")]
    return any(all(units) for units in parts)


def judge_unit(tokens: list[str]) -> bool:
    if tokens[:1] == ["("] and tokens[-1] == ")":
        return judge(tokens[1:-1])
    if len(tokens) == 1 and tokens[0] in _OPERANDS:
        return bool(_OPERANDS[tokens[0]])
    if len(tokens) == 3 and tokens[0] in _OPERANDS and tokens[1] in _SIGNS and tokens[2] in _OPERANDS:
        left, sign, right = _OPERANDS[tokens[0]], tokens[1], _OPERANDS[tokens[2]]
        if sign in ("==", "!="):
            return bool(_SIGNS[sign](left, right))
        return not isinstance(left, str) and not isinstance(right, str) and bool(_SIGNS[sign](left, right))
    raise Malformed


def expected(tokens: list[str]) -> bool | None:
    try:
        return judge(tokens)
    except Malformed:
        return None


def found(text: str) -> bool | None:
    try:
        return parse_condition(text)
    except ConditionSyntaxError:
        return None


_UNITS = st.one_of(
    st.sampled_from(sorted(_OPERANDS)).map(lambda token: [token]),
    st.tuples(
        st.sampled_from(sorted(_OPERANDS)), st.sampled_from(sorted(_SIGNS)), st.sampled_from(sorted(_OPERANDS))
    ).map(list),
)
_EXPRESSIONS = st.recursive(
    _UNITS,
    lambda inner: st.one_of(
        inner.map(lambda tokens: ["(", *tokens, ")"]),
        st.tuples(inner, st.sampled_from(["AND", "OR", "and", "Or"]), inner).map(
            lambda parts: [*parts[0], parts[1], *parts[2]]
        ),
    ),
    max_leaves=8,
)


@examples(300)
@given(_EXPRESSIONS)
def test_well_formed_expressions_against_the_reference(tokens: list[str]) -> None:
    assert expected(tokens) is not None
    assert found(" ".join(tokens)) == expected(tokens)


@examples(300)
@given(_EXPRESSIONS, st.integers(0, 30), st.lists(_TOKENS, max_size=2), st.integers(0, 2))
def test_damaged_expressions_against_the_reference(
    tokens: list[str], position: int, added: list[str], removed: int
) -> None:
    position %= len(tokens)
    tokens = [*tokens[:position], *added, *tokens[position + removed :]]
    assert found(" ".join(tokens)) == expected(tokens)


@examples(100)
@given(_EXPRESSIONS, st.text(alphabet="$#%&*+,;:?@[]^`{|}~é€\\ \n", max_size=5))
def test_other_characters_are_skipped(tokens: list[str], noise: str) -> None:
    assert found(f"{noise} ".join(tokens) + noise) == expected(tokens)


@examples(100)
@given(st.text(alphabet="()<>=!'\"TRUEANDOR 51.-\n{}é", max_size=30))
def test_any_text_gives_an_answer(text: str) -> None:
    assert evaluate_condition(text) in (True, False)
