"""Names become path parts safely."""
from __future__ import annotations

import os

import pytest

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.path_utils import is_flat_name, safe_join, split_name


@pytest.mark.parametrize("name", ["x", "d1", "..x", "ä ö", "a.b", "_hidden", "x" * 300])
def test_flat_names(name: str) -> None:
    assert is_flat_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "C:x", "../evil", "a\0b", "\ud800", None, 5, ["x"]])
def test_not_flat_names(name: object) -> None:
    assert not is_flat_name(name)


def test_sub_folders_are_legal_with_both_slashes() -> None:
    expected = os.path.join("root", "Workflows", "sub", "deep", "Flow")
    assert safe_join("root", "Workflows", "sub/deep/Flow") == expected
    assert safe_join("root", "Workflows", "sub\\deep\\Flow") == expected
    assert split_name("a//./b/") == ("a", "b")


@pytest.mark.parametrize("name", ["..", "a/../b", "a\\..\\b", "/etc/passwd", "\\\\host\\share", "C:\\x", "c:x", "a\0b",
                                  "", ".", "../x", ".. /x", "\ud800", None, 3])
def test_names_that_lead_out_are_refused(name: object) -> None:
    with pytest.raises(ConfigValueError):
        safe_join("root", name)  # type: ignore[arg-type]


def test_the_error_is_a_value_error_that_names_the_name() -> None:
    with pytest.raises(ValueError, match=r"a/\.\./b"):
        split_name("a/../b")
