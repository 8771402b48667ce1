from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import EngineLab


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        yield EngineLab(tmp_path / "configs", monkeypatch, backend)


@pytest.fixture
def both(lab: EngineLab) -> Callable[..., Any]:
    """Runs nodes twice; their result, the same whether streamed or not."""

    def run(*nodes: dict[str, Any]) -> Any:
        result = lab.run(list(nodes))
        assert lab.streamed(list(nodes)) == result
        return result

    return run
