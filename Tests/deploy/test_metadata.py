"""The package metadata in ``pyproject.toml``: what it names exists, and nothing stands in it twice."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest

from Middleware.common.constants import VERSION
from Middleware.utilities.command_lines import INSTALLED_COMMAND

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_version_and_requirements_are_written_once() -> None:
    dynamic = PYPROJECT["tool"]["setuptools"]["dynamic"]
    assert set(PYPROJECT["project"]["dynamic"]) == set(dynamic) == {"version", "dependencies", "optional-dependencies"}
    module, _, name = dynamic["version"]["attr"].rpartition(".")
    assert getattr(importlib.import_module(module), name) == VERSION
    sources = [dynamic["dependencies"], *dynamic["optional-dependencies"].values()]
    assert all((ROOT / file).is_file() for source in sources for file in source["file"])


def test_the_command_exists() -> None:
    module, _, name = PYPROJECT["project"]["scripts"][INSTALLED_COMMAND].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("file", ["requirements-test.txt", "requirements-release.txt"])
def test_every_wheel_is_built_with_the_same_setuptools(file: str) -> None:
    [wanted] = PYPROJECT["build-system"]["requires"]
    assert re.search(rf"^{re.escape(wanted)}\s", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
