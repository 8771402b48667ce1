"""The package metadata in ``pyproject.toml``: what it names exists, and nothing stands in it twice."""
from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

from Middleware.common.constants import VERSION

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_version_and_requirements_are_written_once() -> None:
    dynamic = PYPROJECT["tool"]["setuptools"]["dynamic"]
    assert set(PYPROJECT["project"]["dynamic"]) == set(dynamic) == {"version", "dependencies"}
    module, _, name = dynamic["version"]["attr"].rpartition(".")
    assert getattr(importlib.import_module(module), name) == VERSION
    assert all((ROOT / file).is_file() for file in dynamic["dependencies"]["file"])


def test_the_command_starts_a_launcher() -> None:
    module, _, name = PYPROJECT["project"]["scripts"]["wilmerai"].partition(":")
    assert module in PYPROJECT["tool"]["setuptools"]["py-modules"]
    assert callable(getattr(importlib.import_module(module), name))
