"""The JSON files of a conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.exceptions import DataKeyError, UnreadableDataError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import file_utils as f
from Middleware.utilities.discussions.discussion_files import if_readable, read_json, write_json
from Middleware.utilities.encryption_utils import cipher_for, derive_encryption_key

KEY = derive_encryption_key("secretkey", "alice")
PAIRS = [("Mara hid the ledger in the mill.", "5f0c"), ("\u00c9mile {arrived}", "a91e")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "memories.json"


def test_layout(path: Path) -> None:
    f.write_chunks_with_hashes(PAIRS[1:], str(path))
    assert path.read_bytes() == (
        b'[\n    {\n        "text_block": "\\u00c9mile {arrived}",\n        "hash": "a91e"\n    }\n]'
    )


def test_appending_and_replacing(path: Path) -> None:
    f.write_chunks_with_hashes(PAIRS[:1], str(path))
    f.write_chunks_with_hashes(PAIRS[1:], str(path))
    assert f.read_chunks_with_hashes(str(path)) == PAIRS
    f.update_chunks_with_hashes(PAIRS[:1], str(path), "append")
    assert f.read_chunks_with_hashes(str(path)) == [*PAIRS, PAIRS[0]]
    f.update_chunks_with_hashes(PAIRS[:1], str(path), mode="overwrite")
    assert f.read_chunks_with_hashes(str(path)) == PAIRS[:1]
    with pytest.raises(ValueError, match="prepend"):
        f.update_chunks_with_hashes(PAIRS, str(path), "prepend")


def test_reading_a_missing_list_creates_it(path: Path) -> None:
    assert f.read_chunks_with_hashes(str(path)) == []
    assert path.read_bytes() == b"[]"


@pytest.mark.parametrize("read", [f.load_timestamp_file, f.read_condensation_tracker, f.read_vision_responses])
def test_reading_a_missing_object_creates_nothing(path: Path, read: Any) -> None:
    assert read(str(path)) == {} and not path.exists()


@pytest.mark.parametrize(
    "write, read",
    [
        (f.save_timestamp_file, f.load_timestamp_file),
        (f.write_vision_responses, f.read_vision_responses),
        (f.write_condensation_tracker, f.read_condensation_tracker),
    ],
)
def test_objects(path: Path, write: Any, read: Any) -> None:
    write(str(path), {"h": "\u00e9"})
    assert read(str(path)) == {"h": "\u00e9"} and b"\\u00e9" in path.read_bytes()
    write(str(path), {"h": "2"}, KEY)
    assert path.read_bytes().startswith(b"gAAAA") and read(str(path), KEY) == {"h": "2"}


def test_hand_edited_utf8_and_extra_keys_are_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes('\ufeff[{"text_block": "é", "hash": "1", "note": 5}]'.encode())
    assert f.read_chunks_with_hashes(str(path)) == [("é", "1")]


def test_case_of_the_name_does_not_count(path: Path) -> None:
    other = path.with_name("Memories.JSON")
    f.write_chunks_with_hashes(PAIRS[:1], str(other))
    f.write_chunks_with_hashes(PAIRS[1:], str(path))
    assert json.loads(other.read_bytes())[1]["hash"] == "a91e"
    assert [file.name for file in path.parent.iterdir()] == ["Memories.JSON"]


@pytest.mark.parametrize(
    "content, problem",
    [
        (b'[\n{"text_block": "a",\n', "line 3"),
        (b"", "empty"),
        (b'{"a": 1}', "list was expected"),
        (b"{}", "list was expected"),
        (b'""', "list was expected"),
        (b"false", "list was expected"),
        (b'[{"text_block": 1, "hash": "x"}]', "entry 1"),
        (b'[{"text_block": "a"}]', "entry 1"),
    ],
)
def test_other_content_is_reported_and_never_replaced(path: Path, content: bytes, problem: str) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(UnreadableDataError, match=problem):
        f.read_chunks_with_hashes(str(path))
    for overwrite in (False, True):
        with pytest.raises(UnreadableDataError, match="left as it is"):
            f.write_chunks_with_hashes(PAIRS, str(path), overwrite)
    assert path.read_bytes() == content


def test_appending_keeps_what_stands_beside_the_texts(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'[{"note": 3, "text_block": "a", "hash": "x"}]')
    f.write_chunks_with_hashes([("b", "y")], str(path))
    assert json.loads(path.read_bytes()) == [
        {"note": 3, "text_block": "a", "hash": "x"},
        {"text_block": "b", "hash": "y"},
    ]


def test_a_list_where_an_object_belongs(path: Path) -> None:
    f.write_chunks_with_hashes(PAIRS, str(path))
    with pytest.raises(UnreadableDataError):
        f.load_timestamp_file(str(path))
    with pytest.raises(UnreadableDataError):
        f.save_timestamp_file(str(path), {"a": "b"})


def test_ensure_json_file_exists(path: Path) -> None:
    assert f.ensure_json_file_exists(str(path), [1]) == [1] == f.ensure_json_file_exists(str(path))
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(TypeError, match="memories.json holds dict"):
        f.ensure_json_file_exists(str(path))


def test_encryption(path: Path) -> None:
    f.write_chunks_with_hashes(PAIRS[:1], str(path))
    f.write_chunks_with_hashes(PAIRS[1:], str(path), encryption_key=KEY)  # what was in clear becomes a token
    assert path.read_bytes().startswith(b"gAAAA") and f.read_chunks_with_hashes(str(path), KEY) == PAIRS
    for key in (None, derive_encryption_key("other", "alice")):
        before = path.read_bytes()
        with pytest.raises(DataKeyError):
            f.read_chunks_with_hashes(str(path), key)
        with pytest.raises(DataKeyError):
            f.write_chunks_with_hashes(PAIRS, str(path), True, key)
        assert path.read_bytes() == before


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=())), st.text())), st.sampled_from([None, KEY]))
def test_any_text_comes_back(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]], key: bytes | None
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.json"
    f.write_chunks_with_hashes(pairs, str(path), encryption_key=key)
    assert f.read_chunks_with_hashes(str(path), key) == pairs


def test_any_json(path: Path) -> None:
    assert read_json(str(path)) is None
    write_json(str(path), {"a": [1]}, cipher_for(KEY))
    assert read_json(str(path), cipher_for(KEY)) == {"a": [1]}


NAMES = st.text(st.characters(exclude_categories=()), max_size=5)


@given(
    st.recursive(
        st.none() | st.integers() | NAMES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_json_is_indented(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    path = tmp_path_factory.mktemp("any") / "x.json"
    write_json(str(path), content)
    assert path.read_bytes().decode("ascii") == json.dumps(content, indent=4)


def test_other_encodings_are_not_guessed(path: Path) -> None:
    path.parent.mkdir()
    content = '[{"text_block": "caf\u00e9", "hash": "1"}]'.encode("cp1252")
    path.write_bytes(content)
    with pytest.raises(UnreadableDataError, match=r"memories.json is not UTF-8 \(byte 20\)"):
        f.read_chunks_with_hashes(str(path))
    with pytest.raises(UnreadableDataError):
        f.write_chunks_with_hashes(PAIRS, str(path))
    assert path.read_bytes() == content


def test_a_problem_is_told_once_in_a_request(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> str:
        raise UnreadableDataError("k1/memories.json, line 1: no")

    def lost() -> str:
        raise PermissionError(13, "Permission denied", "/somewhere/memories.json")

    for _ in range(2):
        with request_scope(RequestContext()):
            for read in (fail, fail, lost, lost):
                assert if_readable(read, "nothing") == "nothing"
    assert [record.message for record in caplog.records] == 2 * [
        "k1/memories.json, line 1: no",
        "memories.json of a discussion cannot be read: Permission denied",
    ]
