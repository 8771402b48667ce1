"""Paths of a conversation's files as scripts ask for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils

FILES = {
    "memory": "memories.json",
    "chat_summary": "chat_summary.json",
    "timestamp": "timestamps.json",
    "condensation_tracker": "condensation_tracker.json",
    "vision_responses": "vision_responses.json",
    "context_compactor_old": "context_compactor_old.json",
    "context_compactor_oldest": "context_compactor_oldest.json",
    "state_document": "state_document.md",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path))
    return tmp_path


def path_of(kind: str, *arguments: str) -> Path:
    return Path(getattr(config_utils, f"get_discussion_{kind}_file_path")(*arguments))


@pytest.mark.parametrize(("kind", "name"), FILES.items())
def test_a_file_lies_in_the_folder_of_its_conversation(root: Path, kind: str, name: str) -> None:
    assert path_of(kind, "talk") == root / "talk" / name
    assert path_of(kind, "talk", "0123456789abcdef") == root / "0123456789abcdef" / "talk" / name
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("kind", [kind for kind in FILES if kind != "state_document"])
def test_an_old_flat_file_is_found_without_a_key(root: Path, kind: str) -> None:
    flat = root / f"talk_{FILES[kind]}"
    flat.write_text("[]", encoding="utf-8")
    assert path_of(kind, "talk") == flat
    assert path_of(kind, "talk", "0123456789abcdef").parent.name == "talk"
    nested = root / "talk" / FILES[kind]
    nested.parent.mkdir()
    nested.write_text("[]", encoding="utf-8")
    assert path_of(kind, "talk") == nested


@pytest.mark.parametrize("kind", FILES)
def test_an_unsafe_id_has_no_path(root: Path, kind: str) -> None:
    with pytest.raises(ValueError, match="discussion id"):
        path_of(kind, "../talk")
