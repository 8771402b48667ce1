from __future__ import annotations

from pathlib import Path

import pytest

from Middleware.workflows.handlers.impl.sub_workflow_handler import ChunkCursor
from Tests.windows import LOCK_FILES


def test_hashes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a" / "cursor.txt"
    first = ChunkCursor(str(path))
    assert first.hashes == [] and not path.parent.exists()
    first.add("h1")
    first.add("h2")
    assert path.read_text(encoding="utf-8") == "h1\nh2\n"
    second = ChunkCursor(str(path))
    second.add("h3")
    assert ChunkCursor(str(path)).hashes == ["h1", "h2", "h3"]
    assert sorted(entry.name for entry in path.parent.iterdir()) == [*LOCK_FILES, "cursor.txt"]


def test_blank_lines_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "cursor.txt"
    path.write_bytes(b"\n h1 \r\n\t\nh2")
    assert ChunkCursor(str(path)).hashes == ["h1", "h2"]


@pytest.mark.parametrize("name", ["folder", "x" * 300, "a\0b"])
def test_a_file_that_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    (tmp_path / "folder").mkdir()
    cursor = ChunkCursor(str(tmp_path / name))
    assert cursor.hashes == []
    cursor.add("h1")
    assert cursor.hashes == ["h1"]
    assert caplog.records[-1].levelname == "ERROR"
