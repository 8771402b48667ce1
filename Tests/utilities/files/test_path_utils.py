"""Names become path parts safely."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.files import path_utils
from Middleware.utilities.files.path_utils import folded_name, is_flat_name, is_storable_name, safe_join, split_name
from Middleware.utilities.json_data import freeze
from Tests.corpora import cases
from Tests.tables import table

NAMES = cases("traversal_names")


@pytest.fixture(params=[False, True], ids=["posix", "windows"])
def windows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    monkeypatch.setattr(path_utils, "WINDOWS", request.param)
    path_utils._split_text.cache_clear()
    yield request.param
    path_utils._split_text.cache_clear()


def expected(entry: dict[str, Any], field: str, windows: bool) -> Any:
    value = entry[field]
    if windows:
        value = entry.get("windows", {}).get(field, value)
    return [entry["input"]] if value == "self" else value


@table("entry", NAMES)
def test_flat_names(entry: dict[str, Any], windows: bool) -> None:
    flat = expected(entry, "flat", windows)
    assert is_flat_name(entry["input"]) is flat
    assert is_storable_name(entry["input"]) is (flat and entry["storable"])


@table("entry", NAMES)
def test_names_of_operators(entry: dict[str, Any], windows: bool) -> None:
    parts = expected(entry, "parts", windows)
    if parts is None:
        with pytest.raises(ConfigValueError):
            safe_join("root", entry["input"])
        return
    assert split_name(entry["input"]) == tuple(parts)
    path = os.path.normpath(safe_join("root", entry["input"]))
    assert path.startswith("root" + os.sep) and path == os.path.join("root", *parts)


def test_sub_folders_are_legal_with_both_slashes() -> None:
    expected = os.path.join("root", "Workflows", "sub", "deep", "Flow")
    assert safe_join("root", "Workflows", "sub/deep/Flow") == expected
    assert safe_join("root", "Workflows", "sub\\deep\\Flow") == expected
    assert split_name("a//./b/") == ("a", "b")


def test_the_error_is_a_value_error_that_names_the_name() -> None:
    with pytest.raises(ValueError, match=r"a/\.\./b"):
        split_name("a/../b")


@pytest.mark.parametrize("name", ["AB12", "ab12", "\uff21b12", "a\u200db12", "a\u00adb\u206012", "aB\u2081\u2082"])
def test_names_that_some_file_system_takes_for_the_same(name: str) -> None:
    assert folded_name(name) == "ab12"


def test_composed_and_decomposed_letters_may_be_the_same() -> None:
    assert folded_name("\u00e9") == folded_name("E\u0301") != folded_name("e")


@pytest.mark.parametrize(("name", "kind"), [(freeze(["a"]), "list"), (freeze({"a": 1}), "dict"), (5, "int")])
def test_a_name_that_is_no_text_is_named_by_its_plain_type(name: Any, kind: str) -> None:
    with pytest.raises(ConfigValueError, match=f"must be a string, not {kind}$"):
        split_name(name)
