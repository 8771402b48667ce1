"""ArithmeticProcessor, JsonExtractor, TagTextExtractor and DelimitedChunker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from Tests.tables import table
from Tests.workflows.engine_lab import static

Both = Callable[..., Any]


# -- ArithmeticProcessor -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "result"),
    [
        ({"expression": "10 / 4"}, "2.5"),
        ({"expression": "{agent1Output} * 1.07"}, "7.49"),
        ({"expression": "1/0"}, "-1"),
        ({"expression": "{agent1Output}{agent1Output}-7"}, "70"),
        ({"expression": "{nope} + 1"}, "-1"),
        ({}, "-1"),
        ({"expression": None}, "-1"),
        ({"expression": 5}, "-1"),
        ({"expression": "-0 * 1"}, "0"),
        ({"expression": "0.1+0.2"}, "0.30000000000000004"),
    ],
)
def test_arithmetic(both: Both, node: dict[str, Any], result: str) -> None:
    assert both(static("7"), {"type": "ArithmeticProcessor", **node}) == result


def test_arithmetic_on_an_output_with_spaces(both: Both) -> None:
    assert both(static(" 7\n"), {"type": "ArithmeticProcessor", "expression": "{agent1Output} + 1"}) == "8"


# -- JsonExtractor -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "field", "result"),
    [
        ('{"city": "Ulm", "a": {"b": [1, "é"]}}', "city", "Ulm"),
        ('{"a": {"b": [1, "é"]}}', "a", '{"b": [1, "\\u00e9"]}'),
        ('```json\n{"city": "{x}"}\n```', "city", "{x}"),
        ("no JSON", "city", ""),
        ('{"a": true}', "a", "True"),
    ],
)
def test_json_extractor(both: Both, text: str, field: str, result: str) -> None:
    output = {"type": "StringConcatenator", "strings": [text.replace("{", "{{").replace("}", "}}")]}
    node = {"type": "JsonExtractor", "jsonToExtractFrom": "{agent1Output}", "fieldToExtract": field}
    assert both(output, node) == result


@pytest.mark.parametrize(
    ("node", "result"),
    [
        ({"jsonToExtractFrom": '{"a": {"b": 2}}', "fieldToExtract": "a"}, '{"b": 2}'),
        ({"jsonToExtractFrom": '{"a": 2}', "fieldToExtract": "{agent1Output}"}, "2"),
        ({"jsonToExtractFrom": '{"a": 2}'}, ""),
        ({"fieldToExtract": "a"}, ""),
        ({}, ""),
        ({"jsonToExtractFrom": '{"": 2}', "fieldToExtract": ""}, ""),
        ({"jsonToExtractFrom": None, "fieldToExtract": None}, ""),
    ],
)
def test_json_extractor_keys(both: Both, node: dict[str, Any], result: str) -> None:
    assert both(static("a"), {"type": "JsonExtractor", **node}) == result


# -- TagTextExtractor --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "result"),
    [
        ({"tagToExtractFrom": "<a>1</a><a>2</a>", "fieldToExtract": "a"}, "1"),
        ({"tagToExtractFrom": "<t> {agent1Output}\n</t>", "fieldToExtract": "t"}, "<a>{x}</a>"),
        ({"tagToExtractFrom": "{agent1Output}", "fieldToExtract": "a"}, "{x}"),
        ({"tagToExtractFrom": "<a>  </a>", "fieldToExtract": "a", "defaultText": "D"}, "D"),
        ({"tagToExtractFrom": "<a>x", "fieldToExtract": "a", "defaultText": "D {agent1Output}"}, "D <a>{x}</a>"),
        ({"tagToExtractFrom": "", "fieldToExtract": "a", "defaultText": "D"}, "D"),
        ({"tagToExtractFrom": "x", "fieldToExtract": "a"}, ""),
        ({"tagToExtractFrom": "x", "defaultText": "D"}, ""),
        ({"fieldToExtract": "a", "defaultText": "D"}, ""),
        ({"defaultText": "D"}, ""),
        ({}, ""),
    ],
)
def test_tag_text_extractor(both: Both, node: dict[str, Any], result: str) -> None:
    assert both(static("<a>{{x}}</a>"), {"type": "TagTextExtractor", **node}) == result


# -- DelimitedChunker --------------------------------------------------------------------------------------------------

GOOD = {"content": "a,b,c", "delimiter": ",", "mode": "tail", "count": 2}


@table(
    ("changes", "result"),
    [
        ({}, "b,c"),
        ({"mode": "head"}, "a,b"),
        ({"count": 9}, "a,b,c"),
        ({"count": 3}, "a,b,c"),
        ({"content": None}, "No content specified"),
        ({"delimiter": None}, "No delimiter specified"),
        ({"mode": None}, "No mode specified"),
        ({"count": None}, "No count specified"),
        ({"content": None, "delimiter": None, "mode": None, "count": None}, "No content specified"),
        ({"mode": None, "count": "x"}, "No mode specified"),
        ({"count": "2"}, "Invalid count: must be an integer, got str"),
        ({"count": True}, "Invalid count: must be an integer, got bool"),
        ({"count": 2.0}, "Invalid count: must be an integer, got float"),
        ({"count": [2]}, "Invalid count: must be an integer, got list"),
        ({"count": {}}, "Invalid count: must be an integer, got dict"),
        ({"count": 0}, "Invalid count: must be >= 1, got 0"),
        ({"count": -3, "mode": "x"}, "Invalid count: must be >= 1, got -3"),
        ({"mode": "Tail"}, "Invalid mode: must be 'head' or 'tail', got 'Tail'"),
        ({"mode": ""}, "Invalid mode: must be 'head' or 'tail', got ''"),
        ({"content": "", "delimiter": ""}, ""),
        ({"content": "{agent2Output}"}, ""),
        ({"delimiter": ""}, "Invalid delimiter: must resolve to a non-empty string"),
        ({"delimiter": "{agent2Output}"}, "Invalid delimiter: must resolve to a non-empty string"),
        ({"content": "x3y3z", "delimiter": "{agent1Output}"}, "y3z"),
        ({"count": "{agent1Output}"}, "a,b,c"),
        ({"count": " {agent1Output} "}, "a,b,c"),
        ({"count": "{agent2Output}"}, "Invalid count: must be an integer, got str"),
        ({"count": "{nope}"}, "Invalid count: must be an integer, got str"),
        ({"count": "-{agent1Output}"}, "Invalid count: must be >= 1, got -3"),
    ],
)
def test_delimited_chunker(both: Both, changes: dict[str, Any], result: str) -> None:
    assert both(static("3"), static(""), {"type": "DelimitedChunker", **GOOD, **changes}) == result


@pytest.mark.parametrize("missing", sorted(GOOD))
def test_delimited_chunker_with_a_key_missing(both: Both, missing: str) -> None:
    node = {key: value for key, value in GOOD.items() if key != missing}
    assert both({"type": "DelimitedChunker", **node}) == f"No {missing} specified"
