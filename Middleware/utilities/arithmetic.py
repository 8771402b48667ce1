"""The expressions of the ArithmeticProcessor node: two numbers and an operator."""
from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable

FAILED = "-1"

_NUMBER = r"(-?\d+(?:\.\d+)?)"
_EXPRESSION = re.compile(rf"{_NUMBER}\s*([-+*/])\s*{_NUMBER}", re.ASCII)
_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def calculate(expression: str) -> str:
    """The result in floating point, whole numbers without ``.0``; ``-1`` for whatever cannot be calculated."""
    found = _EXPRESSION.fullmatch(expression.strip())
    if found is None:
        return FAILED
    left, sign, right = found.groups()
    try:
        result = _OPERATORS[sign](float(left), float(right))
    except ZeroDivisionError:
        return FAILED
    if not math.isfinite(result):
        return FAILED
    return str(int(result)) if result.is_integer() else repr(result)
