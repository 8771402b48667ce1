"""The expressions of the ArithmeticProcessor node."""

from __future__ import annotations

import math
import operator

from hypothesis import given
from hypothesis import strategies as st

from Middleware.workflows.handlers.impl.specialized_node_handler import calculate
from Tests.tables import table


@table(
    ("expression", "result"),
    [
        ("10 / 4", "2.5"),
        ("10 / 5", "2"),
        ("5--3", "8"),
        ("5 - -3", "8"),
        ("-5-3", "-8"),
        ("0.1+0.2", "0.30000000000000004"),
        ("-0 * 1", "0"),
        ("0 * -1", "0"),
        ("-0.0 + -0.0", "0"),
        ("1/3", "0.3333333333333333"),
        ("2.50 * 2", "5"),
        ("  7\t*\n6 ", "42"),
        ("007 + 1", "8"),
        ("10000000000000000 * 10000", "100000000000000000000"),
        ("1 / 10000000", "1e-07"),
        ("9007199254740993 + 0", "9007199254740992"),
        ("3 - 4", "-1"),
    ],
)
def test_results(expression: str, result: str) -> None:
    assert calculate(expression) == result


@table(
    "expression",
    [
        "1/0",
        "0/0",
        "1 / -0",
        "1 / 0.0",
        "1 + 2 + 3",
        "(1+2)",
        ".5+1",
        "1.+1",
        "1e3+1",
        "5 % 2",
        "3",
        "1,000 + 1",
        "",
        "  ",
        "5 ** 2",
        "5 // 2",
        "ten * 2",
        "- 5 + 3",
        "+5 + 3",
        "5 +",
        "inf + 1",
        "nan + 1",
        "1_0 + 1",
        "٣ + 1",
        "1 + 2;",
        "__import__('os')",
        "9" * 400 + " + 1",
        "9" * 200 + "*" + "9" * 200,
        "9" * 400 + "-" + "9" * 400,
    ],
)
def test_everything_else_is_minus_one(expression: str) -> None:
    assert calculate(expression) == "-1"


def test_a_long_text_is_judged_at_once() -> None:
    assert calculate("1" * 300 + " + 1" * 100_000) == "-1"


_NUMBERS = st.from_regex(r"-?[0-9]{1,330}(\.[0-9]{1,20})?", fullmatch=True)
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@given(_NUMBERS, st.sampled_from(sorted(_OPERATORS)), _NUMBERS, st.sampled_from(["", " ", "  "]))
def test_results_are_those_of_pythons_floats(left: str, sign: str, right: str, space: str) -> None:
    result = calculate(f"{left}{space}{sign}{space}{right}")
    try:
        expected = _OPERATORS[sign](float(left), float(right))
    except ZeroDivisionError:
        expected = math.inf
    assert float(result) == (expected if math.isfinite(expected) else -1)
    assert not result.endswith(".0") and result != "-0"
    assert ("." in result or "e-" in result) == (math.isfinite(expected) and not expected.is_integer())


@given(st.text(alphabet="0123456789.-+*/ e()", max_size=12))
def test_any_text_gives_a_number(expression: str) -> None:
    assert math.isfinite(float(calculate(expression)))
