"""The files of the context compactor."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import DataKeyError, UnreadableDataError
from Middleware.services.memory import compactor_store
from Middleware.services.memory.compactor_store import Boundary, CompactorState, CompactorStore, FoldedMessages
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.encryption_utils import derive_encryption_key
from Tests.llmapis.lab import Lab

OLD, OLDEST = "context_compactor_old.json", "context_compactor_oldest.json"
FOLDED = "context_compactor_folded.json"
MARK = FoldedMessages(3, "h2", "h1", "t0")
BROKEN = ["{", "5", '{"a": 1}', '[{"text_block": 1, "hash": "h"}]']


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    Lab(tmp_path / "Configs", monkeypatch)
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    return tmp_path / "D"


def store(key: bytes | None = None, key_hash: str | None = None) -> CompactorStore:
    return CompactorStore(DiscussionFolder("k1", key_hash, key))


def put(root: Path, name: str, text: str) -> Path:
    path = root / "k1" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def entries(*pairs: tuple[str, str]) -> str:
    return json.dumps([{"text_block": text, "hash": stored} for text, stored in pairs])


def test_reading_creates_nothing(root: Path) -> None:
    assert store().read() == CompactorState()
    assert not root.exists()


def test_layout(root: Path) -> None:
    store().save(("old \u00e9", "h5"), Boundary("h3", 3), ("oldest", "h0"))
    assert json.loads((root / "k1" / OLD).read_bytes()) == [
        {"text_block": "old \u00e9", "hash": "h5"},
        {"text_block": "__boundary__", "hash": "3:h3"},
    ]
    assert (root / "k1" / OLDEST).read_bytes() == (
        b'[\n    {\n        "text_block": "oldest",\n        "hash": "h0"\n    }\n]'
    )
    assert store().read() == CompactorState(("old \u00e9", "h5"), Boundary("h3", 3), ("oldest", "h0"))


def test_layout_of_the_note_of_what_was_folded(root: Path) -> None:
    assert store().folded() is None and not root.exists()
    store().save(("old", "h5"), Boundary("h3", 3), ("oldest", "h0"), MARK)
    assert json.loads((root / "k1" / FOLDED).read_bytes()) == {
        "index": 3,
        "hash": "h2",
        "previousHash": "h1",
        "summaryHash": "t0",
    }
    assert store().folded() == MARK
    store().save(("old", "h6"), Boundary("h4", 4))
    assert store().folded() == MARK


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "5",
        "gAAAAA-token",
        "{}",
        '{"index": 3}',
        *(
            json.dumps({"index": index, "hash": "a", "previousHash": previous, "summaryHash": "c"})
            for index, previous in (("3", "b"), (True, "b"), (3.0, "b"), (0, "b"), (-1, "b"), (3, None))
        ),
    ],
)
def test_an_unusable_note_counts_as_none(root: Path, content: str) -> None:
    put(root, FOLDED, content)
    assert store().folded() is None
    store().save(("old", "h5"), Boundary("h3", 3), ("oldest", "h0"), MARK)
    assert store().read() == CompactorState(("old", "h5"), Boundary("h3", 3), ("oldest", "h0"))
    if not content.startswith('{"') and content != "{}":  # nobody's to change
        assert (root / "k1" / FOLDED).read_text(encoding="utf-8") == content
    else:
        assert store().folded() == MARK


def test_a_folder_in_place_of_the_note(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    (root / "k1" / FOLDED).mkdir(parents=True)
    assert store().folded() is None
    store().save(("old", "h5"), Boundary("h3", 3), ("oldest", "h0"), MARK)
    assert store().read().old == ("old", "h5")
    assert f"k1/{FOLDED}" in caplog.text and str(root) not in caplog.text


@pytest.mark.parametrize(("dies_at", "noted"), [(OLDEST, None), (OLD, MARK)])
def test_the_note_is_written_between_the_summaries(
    root: Path, monkeypatch: pytest.MonkeyPatch, dies_at: str, noted: FoldedMessages | None
) -> None:
    write = compactor_store.write_content

    def die(folder: DiscussionFolder, name: str, content: object) -> None:
        if name == dies_at:
            raise KeyboardInterrupt
        write(folder, name, content)

    monkeypatch.setattr(compactor_store, "write_content", die)
    with pytest.raises(KeyboardInterrupt):
        store().save(("old", "h5"), Boundary("h3", 3), ("oldest", "h0"), MARK)
    assert store().folded() == noted


def test_saving_without_oldest_leaves_it_alone(root: Path) -> None:
    store().save(("a", "h1"), Boundary("h0", 0), ("oldest", "h0"))
    store().save(("b", "h2"), Boundary("h1", 1))
    assert store().read() == CompactorState(("b", "h2"), Boundary("h1", 1), ("oldest", "h0"))


@pytest.mark.parametrize(
    ("stored", "boundary"),
    [
        ("abc", Boundary("abc", None)),
        ("12:abc", Boundary("abc", 12)),
        ("x:abc", Boundary("abc", None)),
        ("-1:abc", Boundary("abc", None)),
        (":abc", Boundary("abc", None)),
        ("\u00b2:abc", Boundary("abc", None)),
    ],
)
def test_forms_of_the_boundary(root: Path, stored: str, boundary: Boundary) -> None:
    put(root, OLD, entries(("__boundary__", stored), ("old", "h")))
    assert store().read() == CompactorState(("old", "h"), boundary)


@pytest.mark.parametrize("content", BROKEN)
@pytest.mark.parametrize("name", [OLD, OLDEST])
def test_what_can_be_read_is_read_and_nothing_is_written(
    root: Path, caplog: pytest.LogCaptureFixture, name: str, content: str
) -> None:
    store().save(("old", "h1"), Boundary("h0", 0), ("oldest", "h0"))
    path = put(root, name, content)
    state = store().read()
    assert (state.old is None, state.oldest is None, state.readable) == (name == OLD, name == OLDEST, False)
    assert f"k1/{name}" in caplog.text
    before = {other: (root / "k1" / other).read_bytes() for other in (OLD, OLDEST)}
    with pytest.raises(UnreadableDataError):
        store().save(("new", "h2"), Boundary("h1", 1), ("new", "h0"))
    assert {other: (root / "k1" / other).read_bytes() for other in (OLD, OLDEST)} == before
    assert path.read_text(encoding="utf-8") == content


@pytest.mark.parametrize("name", [OLD, OLDEST])
def test_a_folder_in_place_of_a_file(root: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    (root / "k1" / name).mkdir(parents=True)
    assert store().read() == CompactorState(readable=False)
    assert f"k1/{name}" in caplog.text and str(root) not in caplog.text
    with pytest.raises(OSError):
        store().save(("new", "h2"), Boundary("h1", 1), ("new", "h0"))
    assert sorted(path.name for path in (root / "k1").iterdir()) == [name]


def test_encrypted_on_disk(root: Path) -> None:
    key = derive_encryption_key("secret", "tester")
    store(key, "a" * 16).save(("old text", "h1"), Boundary("h0", 0), ("oldest text", "h0"), MARK)
    for name in (OLD, OLDEST, FOLDED):
        path = root / ("a" * 16) / "k1" / name
        assert path.read_bytes().startswith(b"gAAAA")
        assert os.name == "nt" or stat.S_IMODE(path.stat().st_mode) == 0o600
    assert store(key, "a" * 16).read().oldest == ("oldest text", "h0")
    assert store(key, "a" * 16).folded() == MARK
    assert store(derive_encryption_key("other", "tester"), "a" * 16).folded() is None
    with pytest.raises(DataKeyError):
        store(derive_encryption_key("other", "tester"), "a" * 16).read()


def test_older_flat_files_are_used_on(root: Path) -> None:
    root.mkdir()
    (root / f"k1_{OLD}").write_text(entries(("old", "h")), encoding="utf-8")
    assert store().read() == CompactorState(("old", "h"))
    store().save(("new", "h"), Boundary("h", 0))
    assert "new" in (root / f"k1_{OLD}").read_text(encoding="utf-8")
