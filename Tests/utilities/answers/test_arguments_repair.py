"""What becomes of the arguments of calls in a history that are not the JSON text of an object."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities.answers.arguments_repair import repaired_arguments, with_object_arguments
from Tests.properties import examples
from Tests.tables import table

Item = dict[str, Any]


@table(
    "text", ["{}", '{"a":1}', ' { "a" : [1, {"b": null}] }\n', '{"ä": "\\u00e4"}', '{"a": "```"}', '{"a": 1, "a": 2}']
)
def test_an_object_stays_as_it_is(text: str) -> None:
    assert repaired_arguments(text) == text
    message: Item = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"arguments": text}}]}
    assert with_object_arguments(message) is message  # type: ignore[arg-type,comparison-overlap]


@table(
    ("arguments", "expected"),
    [
        # Nothing that could be an object.
        *[(arguments, {}) for arguments in ("", " \n", None, "null", "true", "5", "[]", '["x"]', '"x"', "no JSON", 5)],
        *[(arguments, {}) for arguments in ([1], True, "{", "[" * 100_000, '{"a":' * 100_000, "9" * 5000, "{'a': 1}")],
        # Objects themselves, as scripts have them.
        ({"a": 1}, {"a": 1}),
        ({}, {}),
        # Cut off.
        ('{"', {}),
        ('{"a', {}),
        ('{"a"', {}),
        ('{"a":', {}),
        ('{"a": 1', {"a": 1}),
        ('{"a": 1,', {"a": 1}),
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": 1, "b":', {"a": 1}),
        ('{"a": 1, "b": tru', {"a": 1}),
        ('{"a": 1, "b": -', {"a": 1}),
        ('{"a": 1, "b": "hal', {"a": 1, "b": "hal"}),
        ('{"a": "say \\"hi', {"a": 'say "hi'}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": "x\\\\', {"a": "x\\"}),
        ('{"a": 1, "b": "\\u00', {"a": 1}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ('{"a": [1, {"b": "c, {d", "e": [', {"a": [1, {"b": "c, {d", "e": []}]}),
        ('{"a": "b}', {"a": "b}"}),
        # In a fence, or with words around it.
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('```\n{"a": 1\n```', {"a": 1}),
        ('```json {"a": "```x```", "b": 1', {"a": "```x```", "b": 1}),
        ('Here you are: {"a": 1}', {"a": 1}),
        ('{"a": 1} Done.', {"a": 1}),
        # Several.
        ('{"a": 1}{"b": 2}', {"a": 1}),
        ('{"a": 1}\n{"b": 2', {"a": 1}),
        ('[{"a": 1}, {"b": 2}]', {"a": 1}),
        # Mistakes.
        ('{"a": 1,}', {"a": 1}),
        ('{"a": 1 , \n}', {"a": 1}),
        ('{"a": [1, 2,], "b": 3}', {"a": [1, 2]}),
        ('{"a": {"b": 1,}, "c": 2}', {"a": {"b": 1}}),
        ('{"a": 1, b: 2, "c": 3}', {"a": 1}),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}),
        ('{"a": NaN, "b": -Infinity}', {"a": None, "b": None}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ("{" + "x," * 1000, {}),
        ('{"a": "' + "x" * 2**20, {}),
    ],
    ids=lambda row: str(row)[:40],
)
def test_anything_else_becomes_one(arguments: Any, expected: Item) -> None:
    assert json.loads(repaired_arguments(arguments)) == expected


@examples(200)
@given(
    value=st.dictionaries(
        st.text(max_size=5),
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), st.lists),
        max_size=4,
    ),
    cut=st.integers(0, 200),
)
def test_a_beginning_keeps_the_members_before_its_end(value: Item, cut: int) -> None:
    text = json.dumps(value)
    found = json.loads(repaired_arguments(text[:cut]))
    assert list(found) == list(value)[: len(found)]
    assert all(found[key] == value[key] for key in list(found)[:-1])


@pytest.mark.parametrize("arguments", ['{"a', None, ["x"]])
def test_only_copies_are_changed(arguments: Any) -> None:
    whole = {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    broken = {"id": "c1", "type": "function", "extra": 1, "function": {"name": "f", "arguments": arguments}}
    message: Any = {"role": "assistant", "content": "", "tool_calls": [broken, whole, {"id": "c3"}]}
    before = json.dumps(message)
    changed: Any = with_object_arguments(message)
    assert changed["tool_calls"] == [{**broken, "function": {"name": "f", "arguments": "{}"}}, whole, {"id": "c3"}]
    assert json.dumps(message) == before and changed["tool_calls"][1] is whole


@table("calls", [None, [], "x", [5], [{"function": "x"}]])
def test_calls_that_are_none_stay(calls: Any) -> None:
    message: Any = {"role": "assistant", "content": "", "tool_calls": calls}
    assert with_object_arguments(message) is message
