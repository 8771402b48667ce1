"""A configuration in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.utilities import config_utils
from Tests.addons.check.config_tree import TreeLab


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TreeLab]:
    yield TreeLab(tmp_path / "Public", monkeypatch)
    config_utils.reset_config_store()
