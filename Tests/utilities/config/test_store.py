"""Caching, revalidation and errors of the config store."""

from __future__ import annotations

import builtins
import copy
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import ConfigNotFoundError, ConfigSyntaxError, ConfigValueError
from Middleware.utilities.config.store import ConfigStore
from Middleware.utilities.json_data import freeze, private_copy
from Tests.windows import needs_links


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Counts:
    """Counts the file system calls of the code under test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opens = self.stats = self.scans = 0
        real_open, real_stat, real_scan = builtins.open, os.stat, os.scandir

        def counting_open(*args: Any, **kwargs: Any) -> Any:
            self.opens += 1
            return real_open(*args, **kwargs)

        def counting_stat(*args: Any, **kwargs: Any) -> Any:
            self.stats += 1
            return real_stat(*args, **kwargs)

        def counting_scan(*args: Any, **kwargs: Any) -> Any:
            self.scans += 1
            return real_scan(*args, **kwargs)

        monkeypatch.setattr(builtins, "open", counting_open)
        monkeypatch.setattr(os, "stat", counting_stat)
        monkeypatch.setattr(os, "scandir", counting_scan)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> ConfigStore:
    return ConfigStore(clock)


def write(path: Path, text: str | bytes, age: float = 60) -> None:
    """Write a file whose time stamp lies ``age`` seconds back."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    when = path.stat().st_mtime - age + 0.123
    os.utime(path, (when, when))


def read(store: ConfigStore, path: Path) -> Any:
    return store.read_json(str(path), display=path.name)


def test_a_second_read_returns_the_same_object_without_touching_the_disk(
    store: ConfigStore, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    write(file, '{"a": [1]}')
    first = read(store, file)
    counts = Counts(monkeypatch)
    clock.now += 0.99
    assert read(store, file) is first
    assert (counts.opens, counts.stats) == (0, 0)
    clock.now += 0.02
    assert read(store, file) is first
    assert (counts.opens, counts.stats) == (0, 1)


def test_an_edit_counts_a_second_later(store: ConfigStore, clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write(file, '{"a": 1}')
    assert read(store, file) == {"a": 1}
    write(file, '{"a": 2}', age=30)
    assert read(store, file) == {"a": 1}
    clock.now += 1
    assert read(store, file) == {"a": 2}


def test_a_quick_edit_of_the_same_size_is_noticed(store: ConfigStore, clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"a": 1}', encoding="utf-8")
    status = file.stat()
    assert read(store, file) == {"a": 1}
    with file.open("r+", encoding="utf-8") as handle:
        handle.write('{"a": 2}')
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    clock.now += 1
    assert read(store, file) == {"a": 2}


def test_a_missing_file_is_looked_for_once_a_second(
    store: ConfigStore, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    counts = Counts(monkeypatch)
    for _ in range(3):
        with pytest.raises(ConfigNotFoundError, match="a.json"):
            read(store, file)
    assert counts.stats == 1
    file.write_text("[]", encoding="utf-8")
    clock.now += 1
    assert read(store, file) == []


def test_a_deleted_file_is_missing(store: ConfigStore, clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write(file, "[]")
    assert read(store, file) == []
    file.unlink()
    clock.now += 1
    with pytest.raises(FileNotFoundError):
        read(store, file)


def test_a_broken_file_keeps_its_last_good_version_and_says_where(
    store: ConfigStore, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.json"
    write(file, '{"a": 1}')
    read(store, file)
    write(file, '{\n  "a": 1,\n  oops\n}', age=30)
    clock.now += 1
    with caplog.at_level(logging.ERROR):
        assert read(store, file) == {"a": 1}
        clock.now += 1
        assert read(store, file) == {"a": 1}
    assert len(caplog.records) == 1
    told, *shown = caplog.records[0].getMessage().split("\n")
    assert "a.json, line 3, column 3" in told and shown == ["  3 |   oops", "    |   ^^^^"]
    write(file, '{"a": 3}', age=20)
    clock.now += 1
    assert read(store, file) == {"a": 3}


def test_a_file_that_never_parsed_is_an_error_each_time_but_opened_once(
    store: ConfigStore, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    write(file, '{"a": \n tru}')
    counts = Counts(monkeypatch)
    for _ in range(3):
        with pytest.raises(json.JSONDecodeError) as caught:
            read(store, file)
        assert isinstance(caught.value, ConfigSyntaxError)
        assert (caught.value.lineno, caught.value.colno) == (2, 2)
        clock.now += 1
    assert counts.opens == 1


@pytest.mark.parametrize("text", ["", "  \n", "{'a': 1}", '{"a": 1,}', '{"a": NaN}', "[" * 200_000])
def test_what_is_not_strict_json(store: ConfigStore, tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    write(file, text)
    with pytest.raises(ConfigSyntaxError, match="a.json"):
        read(store, file)


def test_utf8_with_and_without_bom(store: ConfigStore, tmp_path: Path) -> None:
    for name, mark in (("a.json", b""), ("b.json", b"\xef\xbb\xbf")):
        write(tmp_path / name, mark + '{"täg": "｜"}'.encode())
        assert read(store, tmp_path / name) == {"täg": "｜"}


def test_other_encodings_are_read_as_the_legacy_code_page_with_a_warning(
    store: ConfigStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("locale.getencoding", lambda: "cp1252")
    write(tmp_path / "a.json", '{"a": "é"}'.encode("cp1252"))
    write(tmp_path / "b.json", b'{"a": "\xe9\x81"}')  # 0x81 is in no Western code page
    assert read(store, tmp_path / "a.json") == {"a": "é"}
    assert read(store, tmp_path / "b.json") == {"a": "é\ufffd"}
    assert "a.json is not UTF-8" in caplog.text


def test_the_legacy_code_page_is_that_of_the_system_also_in_the_utf8_mode(
    store: ConfigStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.15 is always in that mode."""
    monkeypatch.setattr("locale.getpreferredencoding", lambda *_: "utf-8")
    monkeypatch.setattr("locale.getencoding", lambda: "cp1251")
    write(tmp_path / "a.json", '{"a": "ж"}'.encode("cp1251"))
    assert read(store, tmp_path / "a.json") == {"a": "ж"}


def test_a_folder_in_place_of_a_file_is_no_file(store: ConfigStore, tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(ConfigNotFoundError):
        read(store, tmp_path / "a.json")


def test_a_file_that_cannot_be_opened(store: ConfigStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.json", "[]")

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(builtins, "open", refuse)
    with pytest.raises(ConfigValueError) as caught:
        read(store, tmp_path / "a.json")
    assert str(caught.value) == "a.json: no permission to read the file"


def test_data_is_read_only_and_copies_are_not(store: ConfigStore, tmp_path: Path) -> None:
    write(tmp_path / "a.json", '{"a": {"b": [1, 2]}}')
    data = read(store, tmp_path / "a.json")
    for change in (
        lambda: data.update(x=1),
        lambda: data["a"].pop("b"),
        lambda: data["a"]["b"].append(3),
        lambda: data.__setitem__("a", 1),
        lambda: data["a"]["b"].sort(),
    ):
        with pytest.raises(TypeError, match="read-only"):
            change()
    assert json.dumps(data) == '{"a": {"b": [1, 2]}}'
    for copied in (copy.deepcopy(data), private_copy(data)):
        copied["a"]["b"].append(3)
        assert type(copied["a"]) is dict and type(copied["a"]["b"]) is list
    assert type(copy.copy(data)) is dict and type(dict(data)) is dict and type(data.copy()) is dict
    assert data == {"a": {"b": [1, 2]}}
    assert freeze([{"x": None}]) == [{"x": None}]


def test_derived_values_are_computed_once_per_version(store: ConfigStore, clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write(file, "[1, 2]")
    calls: list[Any] = []

    def total(data: Any) -> int:
        calls.append(data)
        return sum(data)

    assert [store.read_derived(str(file), "a.json", "sum", total) for _ in range(3)] == [3, 3, 3]
    assert len(calls) == 1
    write(file, "[1, 2, 3]", age=30)
    clock.now += 1
    assert store.read_derived(str(file), "a.json", "sum", total) == 6


def test_folder_listings_are_remembered(
    store: ConfigStore, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "sub").mkdir()
    (tmp_path / "f" / "x.json").write_text("[]", encoding="utf-8")
    os.utime(tmp_path / "f", (1_000_000.5, 1_000_000.5))
    counts = Counts(monkeypatch)
    for _ in range(3):
        assert store.list_folder(str(tmp_path / "f"))[0] == {"sub": True, "x.json": False}
        clock.now += 1
    assert counts.scans == 1
    (tmp_path / "f" / "y.json").write_text("[]", encoding="utf-8")
    clock.now += 1
    assert "y.json" in (store.list_folder(str(tmp_path / "f"))[0] or {})
    assert store.list_folder(str(tmp_path / "none"))[0] is None


@needs_links
def test_a_link_in_a_circle_hides_nothing_else(store: ConfigStore, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]", encoding="utf-8")
    (tmp_path / "circle.json").symlink_to("circle.json")
    assert store.list_folder(str(tmp_path))[0] == {"a.json": False, "circle.json": False}


def test_memory_of_missing_names_is_bounded(
    store: ConfigStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("Middleware.utilities.config.store.MAX_REMEMBERED", 50)
    for number in range(500):
        assert not store.file_exists(str(tmp_path / f"{number}.json"))[0]
    assert len(store._files) <= 50
    assert not store.file_exists(str(tmp_path / "a\0b"))[0]


def test_many_threads_parse_a_file_once(store: ConfigStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.json"
    write(file, json.dumps(list(range(2000))))
    counts = Counts(monkeypatch)
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(read(store, file))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts.opens == 1 and len(results) == 16
    assert all(result is results[0] for result in results)


# -- the reference to a JSON Schema ------------------------------------------------------------------------------------


def test_a_reference_to_a_schema_has_no_effect(store: ConfigStore, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write(file, '{"$schema": "../Schemas/user.schema.json", "a": {"$schema": "kept"}}')
    assert read(store, file) == {"a": {"$schema": "kept"}}
    assert read(store, file) is read(store, file)
    assert store.read_derived(str(file), "a.json", "keys", list) == ["a"]


@pytest.mark.parametrize(
    ("reference", "kept"),
    [
        ("https://json-schema.org/draft/2020-12/schema", True),
        ("http://json-schema.org/draft-07/schema#", True),
        ("../../Schemas/structured-output.schema.json", False),
        ("C:\\W\\Public\\Schemas\\user.schema.json", False),
        ("https://example.org/Public/Schemas/structured-output.schema.json", False),
        ("Schemas/mine.json", True),
        (7, True),
    ],
)
def test_a_document_keeps_the_reference_to_a_schema_that_is_not_ours(
    store: ConfigStore, tmp_path: Path, reference: object, kept: bool
) -> None:
    file = tmp_path / "a.json"
    write(file, json.dumps({"type": "object", "$schema": reference}))
    document = store.read_document(str(file), display="a.json")
    assert document == {"type": "object", **({"$schema": reference} if kept else {})}
    assert read(store, file) == {"type": "object"}


def test_a_changed_reference_is_seen(store: ConfigStore, clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write(file, '{"$schema": "https://one.example/", "a": 1}')
    assert store.read_document(str(file), display="a.json")["$schema"] == "https://one.example/"
    write(file, '{"$schema": "https://two.example/", "a": 1}', age=30)
    clock.now += 1
    assert store.read_document(str(file), display="a.json")["$schema"] == "https://two.example/"


def test_a_broken_version_is_told_once_however_often_it_is_read(
    store: ConfigStore, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.json", "{}")
    assert read(store, tmp_path / "a.json") == {}
    for text, count in (("{,", 1), ("{,", 1), ("[1", 2), ("{}", 2), ("{,", 3)):
        (tmp_path / "a.json").write_text(text, encoding="utf-8")  # so new that it is read again
        clock.now += 1
        assert read(store, tmp_path / "a.json") == {}
        assert len(caplog.records) == count


# -- keys that stand twice ---------------------------------------------------------------------------------------------


def test_a_key_that_stands_twice_is_reported_once_per_version(
    store: ConfigStore, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.json"
    write(file, '{"a": 1,\n "b": [{"c": 2, "c": 3}],\n "a": 4}')
    for _ in range(3):
        assert read(store, file) == {"a": 4, "b": [{"c": 3}]}
        clock.now += 1
    assert [record.getMessage() for record in caplog.records] == [
        "a.json: a key appears twice in one object; the last value counts: 'b[0].c' (line 2, column 17; "
        "first in line 2), 'a' (line 3, column 2; first in line 1)."
    ]
    write(file, '{"a": 1, "b": 2, "b": 3}', age=30)
    clock.now += 1
    assert read(store, file) == {"a": 1, "b": 3}
    assert len(caplog.records) == 2 and "'b' (line 1" in caplog.text
    write(file, '{"a": 1}', age=20)
    clock.now += 1
    assert read(store, file) == {"a": 1} and len(caplog.records) == 2


def test_many_keys_that_stand_twice_make_one_line(
    store: ConfigStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.json", "{" + ", ".join(f'"k{number}": 1, "k{number}": 2' for number in range(40)) + "}")
    assert len(read(store, tmp_path / "a.json")) == 40
    assert len(caplog.records) == 1 and caplog.text.count("'k") == 5 and "and 35 more" in caplog.text


def test_a_rewritten_file_with_the_same_duplicate_is_not_reported_while_its_time_is_unsettled(
    store: ConfigStore, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"a": 1, "a": 2}', encoding="utf-8")
    for _ in range(4):
        read(store, file)
        clock.now += 1
    assert len(caplog.records) == 1
