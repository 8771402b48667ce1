"""The placeholder grammar and what it refuses."""

import string
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities.templates.substitution import (
    SubstitutionError,
    UnknownVariableError,
    parse,
    substitute,
    substitute_wherever_possible,
)
from Middleware.utilities.text_utils import restore_braces
from Tests.corpora import cases
from Tests.tables import table


def values_of(config=None, outside=None):
    def lookup(name):
        if outside and name in outside:
            return outside[name], False
        if config and name in config:
            return config[name], True
        raise UnknownVariableError(name)

    return lookup


def fill(text, config=None, outside=None):
    return restore_braces(substitute(text, values_of(config, outside)))


@table(
    "text",
    [
        "plain",
        "{{}}",
        "a{{b}}c",
        "{s}",
        "{s!r}",
        "{s:>9}",
        "{n:03d}",
        "{f:.2f}",
        "{s:{n}}",
        "{l}",
        "{l[1]}",
        "{d[k]}",
        "{d[k][0]}",
        "{d!s:>20}",
        "{o.real}",
        "{s!a}",
        "{b}{x}",
        "{ spaced }",
        "{l[0]}{l[1]}",
    ],
)
def test_same_as_str_format(text):
    values = {
        "s": "tä",
        "n": 7,
        "f": 2.5,
        "l": [1, "two"],
        "d": {"k": ["v"]},
        "o": 3,
        "b": True,
        "x": None,
        " spaced ": "sp",
    }
    expected = text.format(**values)
    assert parse(text).fill(values_of(values)) == expected
    assert restore_braces(parse(text).fill(values_of(outside=values))) == expected


@table(
    "text",
    [
        "{}",
        "a { b",
        "a } b",
        "{0}",
        "{s!x}",
        "{s:d}",
        "{d[zz]}",
        "{l[9]}",
        "{l[a]}",
        "{s.}",
        "{d[]}",
        "{d[k}",
        "{!r}",
        "{d[k]x}",
        "{d.k}",
        "{nope}",
        "{s",
        "s}",
        "{s:{n:{n}}}",
    ],
)
def test_failures(text):
    with pytest.raises(SubstitutionError):
        fill(text, {"s": "t", "d": {"k": 1}, "l": [1], "n": 2})


class Thing:
    field = "data"
    _hidden = "secret"
    module = types

    def method(self):
        return "called"

    def __str__(self):
        raise RuntimeError("broken")


class Data:
    field = "data"


@table("entry", cases("template_injection", kind="format"))
def test_out_of_reach(entry):
    harmless = entry["expected"] != "refused"
    values = {
        "o": Data() if harmless else Thing(),
        "m": [1 if harmless else Thing()],
        "d": {"k": "v"},
        "s": "t",
        "n": 9,
        "k": Thing,
    }
    outside = {"x": "{s} {{s}} {o.__class__}"}
    if harmless:
        assert fill(entry["input"], values, outside) == entry["expected"]
    else:
        with pytest.raises(SubstitutionError):
            fill(entry["input"], values, outside)


def test_public_attributes_are_data():
    assert fill("{o.field}", {"o": Thing()}) == "data"


def test_huge_widths_are_refused():
    with pytest.raises(SubstitutionError):
        fill("{s:>99999999999}", {"s": "x"})
    with pytest.raises(SubstitutionError):
        fill("{s:{w}}", {"s": "x"}, {"w": "9999999999"})
    with pytest.raises(SubstitutionError):
        fill("{s:>\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661}", {"s": "x"})
    assert len(fill("{s:>999}", {"s": "x"})) == 999


def test_one_level_of_nesting():
    config = {"p": "{q}", "q": "{r}", "r": "end", "j": '{"a": 1}'}
    assert fill("{q}", config) == "end"
    assert fill("{p}", config) == "{r}"
    assert fill("{j}", config) == '{"a": 1}'
    assert fill("{{r}}", config) == "end"
    assert fill("{{x}} {{}}", config) == "{x} {}"


def test_outside_text_is_never_a_template():
    outside = {"a": "{secret} {{b}} {", "b": {"k": "{secret}", "{secret}": 1}}
    assert fill("{p} {b[k]} {b}", {"secret": "S", "p": "<{a}>"}, outside) == (
        "<{secret} {{b}} {> {secret} {'k': '{secret}', '{secret}': 1}"
    )


def test_sentinels_do_not_distort_formats():
    outside = {"a": "__WILMER_L_CURLY__x__WILMER_R_CURLY__"}
    assert fill("{a:>5}|{a!r}|{a[0]}|{a[1]}", None, outside) == "  {x}|'{x}'|{|x"


def test_known_only():
    lookup = values_of({"a": "X", "n": 5, "deep": "{a}"})
    assert substitute("{a}-{b}", lookup, keep_unknown=True) == "X-{b}"
    assert substitute("{b!r:>{a}} {deep} {n}", lookup, keep_unknown=True) == "{b!r:>{a}} X 5"
    with pytest.raises(SubstitutionError):
        substitute("{a} {", lookup, keep_unknown=True)


def test_wherever_possible():
    lookup = values_of({"a": "X", "p": "{a}{a}"}, {"o": "{a}"})
    result = substitute_wherever_possible('if (x) { return {a}; } {b} {p} {"k": {o}} {', lookup)
    assert restore_braces(result) == 'if (x) { return X; } {b} XX {"k": {a}} {'


@given(st.text(alphabet="{}[].!:ab0_ \n", max_size=30))
def test_random_templates_agree_with_str_format(text):
    values = {"a": "v", "b": [1, 2]}
    try:
        expected = text.format(**values)
    except Exception:
        expected = None
    names = [name for _, name, _, _ in _fields(text)]
    try:
        result = parse(text).fill(values_of(values))
    except SubstitutionError:
        assert expected is None or any("." in (name or "") for name in names)
    else:
        assert result == expected


def _fields(text):
    try:
        return list(string.Formatter().parse(text))
    except ValueError:
        return []


@given(st.text(), st.text())
def test_any_outside_text_arrives_unchanged(first, second):
    if "__WILMER_" in first + second:
        return
    assert fill("{a}|{c}", {"c": "({b})"}, {"a": first, "b": second}) == f"{first}|({second})"
