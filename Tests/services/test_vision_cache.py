"""The file of image descriptions, and the ones kept in memory."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from pathlib import Path

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.services import vision_cache
from Middleware.services.vision_cache import VisionResponses
from Middleware.utilities.config import paths
from Middleware.utilities.discussion_state import SHORT
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.encryption_utils import derive_encryption_key
from Middleware.utilities.files.file_access import process_lock
from Tests.llmapis.lab import Lab

KEY = derive_encryption_key("secretkey", "alice")
posix_only = pytest.mark.skipif(os.name == "nt", reason="Windows has no permission bits")


def responses(discussion_id: str, key_hash: str | None = None, key: bytes | None = None) -> VisionResponses:
    return VisionResponses(DiscussionFolder(discussion_id, key_hash, key))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    Lab(tmp_path / "Configs", monkeypatch)
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    return tmp_path / "D"


def test_reading_creates_nothing(root: Path) -> None:
    assert responses("k1").read() == {}
    assert not root.exists()


def test_layout(root: Path) -> None:
    responses("k1").add({"h": "a red \u00e9toile"})
    data = (root / "k1" / "vision_responses.json").read_bytes()
    assert data == b'{\n    "h": "a red \\u00e9toile"\n}'
    assert responses("k1").read() == {"h": "a red \u00e9toile"}


def test_nothing_to_add_writes_nothing(root: Path) -> None:
    responses("k1").add({})
    assert not root.exists()


def test_additions_join_and_old_ones_win(root: Path) -> None:
    responses("k1").add({"a": "1"})
    responses("k1").add({"a": "other", "b": "2"})
    assert responses("k1").read() == {"a": "1", "b": "2"}


def test_known_additions_do_not_touch_the_file(root: Path) -> None:
    responses("k1").add({"a": "1"})
    path = root / "k1" / "vision_responses.json"
    os.utime(path, (1, 1))
    responses("k1").add({"a": "1"})
    assert path.stat().st_mtime == 1


def test_concurrent_additions_all_stay(root: Path) -> None:
    threads = [threading.Thread(target=responses("k1").add, args=({f"h{n}": str(n)},)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert responses("k1").read() == {f"h{n}": str(n) for n in range(12)}


def test_waiting_for_the_file_ends_with_the_request(root: Path) -> None:
    (root / "k1").mkdir(parents=True)
    scope = CancelScope()
    with process_lock(str(root / "k1" / SHORT)):
        threading.Timer(0.05, scope.cancel).start()
        with pytest.raises(EarlyTerminationException):
            responses("k1").add({"a": "1"}, scope)


@pytest.mark.parametrize("content", [b'{\n"a": "1",\n', b"[]", b"", b'"text"'])
def test_a_broken_file_is_reported_and_left_alone(root: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    path = root / "k1" / "vision_responses.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with caplog.at_level(logging.ERROR):
        store = responses("k1")
        assert store.read() == {}
        store.add({"a": "2"})
    assert path.read_bytes() == content
    assert "k1/vision_responses.json" in caplog.text and str(root) not in caplog.text
    if content.startswith(b"{"):
        assert "line 3" in caplog.text


def test_values_that_are_no_texts_are_kept_but_not_read(root: Path) -> None:
    path = root / "k1" / "vision_responses.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"a": 5}), encoding="utf-8")
    responses("k1").add({"b": "2"})
    assert responses("k1").read() == {"b": "2"}
    assert json.loads(path.read_text(encoding="utf-8")) == {"b": "2", "a": 5}


def test_a_failure_to_write_is_only_logged(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "get_project_root_directory_path", lambda: str(root))
    root.write_text("a file where the folder should be", encoding="utf-8")
    responses("k1").add({"a": "secret text"})
    assert "k1 were not saved" in caplog.text and "secret" not in caplog.text


def test_cipher(root: Path) -> None:
    responses("k1", key=KEY).add({"a": "1"})
    assert (root / "k1" / "vision_responses.json").read_bytes().startswith(b"gAAAA")
    assert responses("k1", key=KEY).read() == {"a": "1"}


def test_key_folder(root: Path) -> None:
    responses("k1", "ad165b11320bc915").add({"a": "1"})
    assert (root / "ad165b11320bc915" / "k1" / "vision_responses.json").is_file()
    assert responses("k1").read() == {}


@posix_only
def test_key_folder_is_private(root: Path) -> None:
    responses("k1", "ad165b11320bc915").add({"a": "1"})
    folder = root / "ad165b11320bc915"
    paths = (folder, folder / "k1", folder / "k1" / vision_cache.FILE_NAME)
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o700, 0o700, 0o600]


def test_name_in_other_case(root: Path) -> None:
    (root / "k1").mkdir(parents=True)
    (root / "k1" / "Vision_Responses.JSON").write_text('{"a": "1"}', encoding="utf-8")
    responses("k1").add({"b": "2"})
    assert responses("k1").read() == {"a": "1", "b": "2"}
    assert not [path for path in (root / "k1").iterdir() if path.name == "vision_responses.json"]


def test_flat_file_of_older_versions(root: Path) -> None:
    root.mkdir()
    flat = root / "k1_vision_responses.json"
    flat.write_text('{"a": "1"}', encoding="utf-8")
    responses("k1").add({"b": "2"})
    assert json.loads(flat.read_text(encoding="utf-8")) == {"b": "2", "a": "1"}
    assert responses("k1", "ad165b11320bc915").read() == {}


def test_folder_at_the_older_root(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "get_project_root_directory_path", lambda: str(tmp_path / "install"))
    older = tmp_path / "install" / "Public" / "DiscussionIds" / "k1"
    older.mkdir(parents=True)
    responses("k1").add({"a": "1"})
    assert (older / "vision_responses.json").is_file() and not root.exists()


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\\b", "C:x"])
def test_ids_that_are_no_folder_names(root: Path, name: str) -> None:
    with pytest.raises(ValueError, match="folder"):
        responses(name)
    with pytest.raises(ValueError, match="folder"):
        responses("k1", name or "..")
