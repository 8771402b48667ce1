"""A configuration in a temporary folder, and its editor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.utilities import config_utils
from Tests.addons.check.config_tree import TreeLab, write_tree


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root of a configuration without mistakes."""
    TreeLab(tmp_path / "Public", monkeypatch)
    config_utils.reset_config_store()
    yield write_tree(tmp_path / "Public")
    config_utils.reset_config_store()
