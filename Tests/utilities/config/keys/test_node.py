"""Node keys that hold numbers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from Middleware.utilities.config.keys.node import FLOAT_FIELDS, KEEP, NUMERIC_FIELDS, coerce_numeric_fields
from Tests.tables import table

VALUES = {"{size}": "33", "{word}": "many"}


def coerced(key: str, value: Any) -> Any:
    config = {key: value, "title": "T"}
    coerce_numeric_fields(config, lambda text: VALUES.get(text, text), "T")
    assert config.keys() == {key, "title"}
    return config[key]


@table(
    ("value", "expected"),
    [
        (7, 7),
        (0, 0),
        (-3, -3),
        (True, True),
        (False, False),
        (None, None),
        (750.9, 750),
        (-1.5, -1),
        ("5000", 5000),
        (" 12 ", 12),
        ("-4", -4),
        ("{size}", 33),
        ("{word}", 400),
        ("abc", 400),
        ("", 400),
        ("750.9", 400),
        ("{nope}", 400),
        ([5], 400),
        ({"a": 1}, 400),
        (float("inf"), 400),
        (float("nan"), 400),
    ],
)
def test_values(value: Any, expected: Any) -> None:
    result = coerced("maxResponseSizeInTokens", value)
    assert result == expected and type(result) is type(expected)


@table(("key", "default"), NUMERIC_FIELDS.items())
def test_defaults(key: str, default: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert coerced(key, "abc") == ("abc" if default is KEEP else default)
        assert coerced(key, "{word}") == ("{word}" if default is KEEP else default)
    assert {record.levelno for record in caplog.records} == {logging.ERROR if default is KEEP else logging.WARNING}
    assert key in caplog.text and "'T'" in caplog.text
    assert coerced(key, "41") == 41


def test_the_table_is_that_of_the_specification() -> None:
    kept = {key for key, default in NUMERIC_FIELDS.items() if default is KEEP}
    assert kept == {
        "lastMessagesToSendInsteadOfPromptMaxTokenSize",
        "maxTurnsToPull",
        "maxSummaryChunksFromFile",
        "offlineWikiApiPort",
        "messageBlockSize",
    }
    # A key of our own beside the 28 of the specification.
    assert len(NUMERIC_FIELDS.keys() - {"appendMemoriesUpToTokens"}) == 28
    assert FLOAT_FIELDS == {"percentile": 0.5}


@pytest.mark.parametrize(("value", "expected"), [("0.75", 0.75), (0.25, 0.25), (1, 1), ("x", 0.5), ("1", 1.0)])
def test_percentile(value: Any, expected: float) -> None:
    assert coerced("percentile", value) == expected


def test_absent_keys_stay_absent_and_others_untouched() -> None:
    config = {"content": "5", "chunkSize": "5", "count": "{size}"}
    coerce_numeric_fields(config, lambda text: pytest.fail("nothing to substitute"), "T")
    assert config == {"content": "5", "chunkSize": "5", "count": "{size}"}


def test_plain_text_is_not_substituted() -> None:
    config: dict[str, Any] = {"limit": "8"}
    coerce_numeric_fields(config, lambda text: pytest.fail("nothing to substitute"), "T")
    assert config == {"limit": 8}
