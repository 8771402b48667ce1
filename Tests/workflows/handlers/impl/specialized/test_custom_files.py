"""GetCustomFile and SaveCustomFile."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError, EarlyTerminationException
from Middleware.models.request_context import RequestContext
from Middleware.utilities.files.file_access import path_lock
from Middleware.workflows.handlers.impl.specialized import custom_files
from Tests.tables import table
from Tests.windows import LOCK_FILES
from Tests.workflows.engine_lab import EngineLab, start, static, user


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "Notes.txt"


def get(path: object, **keys: Any) -> dict[str, Any]:
    return {"type": "GetCustomFile", "filepath": str(path), **keys}


def save(path: object, **keys: Any) -> dict[str, Any]:
    return {"type": "SaveCustomFile", "filepath": str(path), **keys}


# -- GetCustomFile -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, "l1\nl2\nl3\n"),
        ({"delimiter": "\n", "customReturnDelimiter": "|"}, "l1|l2|l3|"),
        ({"tailCount": 2}, "l3\n"),
        ({"headCount": 1}, "l1"),
        ({"customReturnDelimiter": "|"}, "l1\nl2\nl3\n"),
        ({"delimiter": "l"}, "l1\nl2\nl3\n"),
        ({"delimiter": "\n", "customReturnDelimiter": ""}, "l1\nl2\nl3\n"),
        ({"delimiter": "", "customReturnDelimiter": "|"}, "l1\nl2\nl3\n"),
        ({"delimiter": "{x}", "customReturnDelimiter": "|"}, "l1\nl2\nl3\n"),
        ({"delimiter": "l", "customReturnDelimiter": "{x}"}, "{x}1\n{x}2\n{x}3\n"),
        ({"tailCount": 1}, ""),
        ({"tailCount": 9}, "l1\nl2\nl3\n"),
        ({"headCount": None, "tailCount": None}, "l1\nl2\nl3\n"),
        ({"headCount": 2, "chunkDelimiter": "l"}, "l1\n"),
        ({"headCount": 1, "chunkDelimiter": ""}, "l1"),
        ({"headCount": 2, "delimiter": "\n", "customReturnDelimiter": "|"}, "l1|l2"),
        ({"headCount": "{agent1Output}"}, "l1\nl2"),
        ({"tailCount": "{agent1Output}"}, "l3\n"),
    ],
)
def test_get(lab: EngineLab, path: Path, keys: dict[str, Any], text: str) -> None:
    path.write_bytes(b"l1\nl2\nl3\n")
    assert lab.run([static("2"), get(path, **keys)]) == text
    assert lab.streamed([static("2"), get(path, **keys)]) == text


WRONG = "GetCustomFile: '{}' must be an integer >= 1"


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"headCount": 1, "tailCount": 1}, "GetCustomFile: specify only one of 'headCount' or 'tailCount', not both"),
        ({"headCount": 0, "tailCount": "x"}, "GetCustomFile: specify only one of 'headCount' or 'tailCount', not both"),
        ({"headCount": 0}, WRONG.format("headCount")),
        ({"tailCount": -1}, WRONG.format("tailCount")),
        ({"headCount": True}, WRONG.format("headCount")),
        ({"tailCount": "2"}, WRONG.format("tailCount")),
        ({"tailCount": 2.0}, WRONG.format("tailCount")),
        ({"tailCount": "{agent1Output}"}, WRONG.format("tailCount")),
        ({"headCount": "{nope}"}, WRONG.format("headCount")),
        ({"filepath": None}, "No filepath specified"),
        ({"filepath": ""}, "No filepath specified"),
        ({"filepath": None, "headCount": 0}, "No filepath specified"),
        ({}, "Custom instruction file did not exist"),
        ({"filepath": "{agent2Output}"}, "Custom instruction file did not exist"),
    ],
)
def test_get_without_a_text(lab: EngineLab, path: Path, keys: dict[str, Any], text: str) -> None:
    assert lab.run([static("two"), static(""), {**get(path), **keys}]) == text


def test_get_without_filepath(lab: EngineLab) -> None:
    assert lab.run([{"type": "GetCustomFile"}]) == "No filepath specified"


def test_get_an_empty_file_or_a_folder(lab: EngineLab, path: Path) -> None:
    path.write_text("")
    assert lab.run([get(path)]) == "No additional information added"
    assert lab.run([get(path.parent)]) == "Custom instruction file did not exist"


def test_get_a_file_that_lies_in_the_public_folder(
    lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the server was started; a file of the working directory comes first."""
    public, here = tmp_path / "public", tmp_path / "here"
    for folder in (public / "texts", here):
        folder.mkdir(parents=True)
    (public / "texts" / "a.md").write_text("from the public folder")
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", str(public))
    monkeypatch.chdir(here)
    assert lab.run([get("texts/A.md")]) == "from the public folder"
    assert lab.run([get("texts/b.md")]) == "Custom instruction file did not exist"
    (here / "texts").mkdir()
    (here / "texts" / "a.md").write_text("from here")
    assert lab.run([get("texts/a.md")]) == "from here"


def test_a_file_of_the_public_folder_may_lie_in_an_allowed_one(
    lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "public" / "texts").mkdir(parents=True)
    (tmp_path / "public" / "texts" / "a.md").write_text("allowed")
    (tmp_path / "public" / "b.md").write_text("not allowed")
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", str(tmp_path / "public"))
    lab.write("Users/tester", {"allowedFileDirectories": ["texts"]})
    assert lab.run([get("texts/a.md")]) == "allowed"
    with pytest.raises(ConfigurationError, match="leads out of the directories"):
        lab.run([get("b.md")])


def test_get_by_name(lab: EngineLab, path: Path) -> None:
    path.write_text("text {x} {agent1Output}")
    assert lab.run([static("nOTES"), get(path.with_name("{agent1Output}.TXT"))]) == "text {x} {agent1Output}"
    if not (path.parent.parent / path.parent.name.upper()).exists():
        other = path.parent.parent / path.parent.name.upper() / path.name
        assert lab.run([get(other)]) == "Custom instruction file did not exist"


def test_get_relative_to_the_working_directory(lab: EngineLab, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("x")
    monkeypatch.chdir(path.parent)
    assert lab.run([get("Notes.txt")]) == "x"


def test_get_what_must_not_be_read(lab: EngineLab, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(custom_files, "load_custom_file", refuse)
    with pytest.raises(ConfigurationError, match="'Notes'.*filepath.*Permission denied") as failure:
        lab.run([get(path, title="Notes")])
    assert str(path) not in str(failure.value)


# -- SaveCustomFile ----------------------------------------------------------------------------------------------------


def test_overwrite(lab: EngineLab, path: Path) -> None:
    nodes = [static("new {{x}}\n"), save(path, content="{agent1Output}")]
    assert lab.run(nodes) == f"File successfully saved to {path}"
    assert lab.streamed(nodes) == f"File successfully saved to {path}"
    assert path.read_bytes() == b"new {x}\n"
    assert lab.run([save(path, content="")]) == f"File successfully saved to {path}"
    assert path.read_bytes() == b""


def test_append(lab: EngineLab, path: Path) -> None:
    assert lab.run([save(path, content="x", mode="append")]) == f"File successfully saved to {path}"
    assert lab.run([save(path, content="y", mode="append")]) == f"File successfully saved to {path}"
    assert path.read_text() == "xy"


@pytest.mark.parametrize(
    ("keys", "message", "text"),
    [
        (
            {"mode": "replace", "find": "a{agent1Output}", "content": "z"},
            "File successfully updated: replaced 2 occurrence(s) in {}",
            "z\nb\n\nz c\nd\n",
        ),
        (
            {"mode": "replace", "find": "b", "content": ""},
            "File successfully updated: replaced 1 occurrence(s) in {}",
            "a1\n\n\na1 c\nd\n",
        ),
        (
            {"mode": "replace", "find": "q", "content": "z"},
            "File unchanged: no occurrence of the target text found in {}",
            None,
        ),
        ({"mode": "remove", "find": "a"}, "File successfully updated: removed 2 line(s) from {}", "b\n\nd\n"),
        ({"mode": "remove", "find": "A"}, "File unchanged: no line matching the target text found in {}", None),
        ({"mode": "trim"}, "File successfully tidied: removed 1 blank line(s) from {}", "a1\nb\na1 c\nd\n"),
    ],
)
def test_changes(lab: EngineLab, path: Path, keys: dict[str, Any], message: str, text: str | None) -> None:
    before = "a1\nb\n\na1 c\nd\n"
    path.write_bytes(before.encode())
    assert lab.run([static("1"), save(path, **keys)]) == message.format(path)
    assert path.read_bytes().decode() == (before if text is None else text)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"mode": "replace", "find": "q", "content": ""},
            "File unchanged: no occurrence of the target text found in {}",
        ),
        ({"mode": "remove", "find": "q"}, "File unchanged: no line matching the target text found in {}"),
        ({"mode": "trim"}, "File unchanged: no blank lines to remove in {}"),
    ],
)
def test_changes_create_nothing(lab: EngineLab, path: Path, keys: dict[str, Any], message: str) -> None:
    assert lab.run([save(path, **keys)]) == message.format(path)
    assert not path.exists()


MODES = "SaveCustomFile: 'mode' must be one of 'overwrite', 'append', 'replace', 'remove', or 'trim', got '{}'"


@table(
    ("keys", "message"),
    [
        ({"filepath": None, "mode": "x"}, "No filepath specified"),
        ({"filepath": ""}, "No filepath specified"),
        ({"mode": "x"}, MODES.format("x")),
        ({"mode": "Append", "content": "y"}, MODES.format("Append")),
        ({"mode": 5}, MODES.format("5")),
        ({"mode": ["trim"]}, MODES.format("['trim']")),
        ({}, "No content specified"),
        ({"mode": None}, "No content specified"),
        ({"mode": "append"}, "No content specified"),
        ({"mode": "replace"}, "No content specified"),
        ({"content": None}, "No content specified"),
        ({"mode": "replace", "content": "y"}, "SaveCustomFile: mode 'replace' requires a 'find' value"),
        ({"mode": "remove", "find": None}, "SaveCustomFile: mode 'remove' requires a 'find' value"),
        ({"mode": "remove", "find": ""}, "SaveCustomFile: mode 'remove' requires a 'find' value"),
        (
            {"mode": "remove", "find": "{agent1Output}"},
            "Error saving file: 'find' is empty, and mode 'remove' needs a text to look for",
        ),
        ({"filepath": "{agent1Output}", "content": "y"}, "Error saving file: the file path is empty"),
        ({"filepath": "a\0b", "content": "y"}, "Error saving file: {}"),
        ({"filepath": "{chat_user_prompt_last_one}/x/", "content": "y"}, "Error saving file: hi/x/: {}"),
    ],
)
def test_nothing_is_saved(
    lab: EngineLab, path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(path.parent)
    result = lab.run([static(""), {**save(path), **keys}])
    assert result.startswith(message.removesuffix("{}")) and (message.endswith("{}") or result == message)
    assert {entry.name for entry in path.parent.iterdir()} - {*LOCK_FILES} == {lab.root.name}


def test_a_failure_is_an_output(lab: EngineLab, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.mkdir()
    with caplog.at_level(logging.INFO):
        result = lab.run([save(path, content="secret", title="Keep"), static("{agent1Output}!")])
    assert result == f"Error saving file: {path}: {os.strerror(errno.EISDIR)}!"
    warning = next(record for record in caplog.records if record.levelname == "WARNING")
    assert "'Keep'" in warning.getMessage() and "secret" not in caplog.text


@pytest.mark.skipif(os.name == "nt", reason="permission bits")
def test_permission_bits_stay(lab: EngineLab, path: Path) -> None:
    path.write_text("x")
    path.chmod(0o664)
    lab.run([save(path, content="y")])
    assert (path.stat().st_mode & 0o777, path.read_text()) == (0o664, "y")


def test_home(lab: EngineLab, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(path.parent))
    monkeypatch.setenv("USERPROFILE", str(path.parent))
    expected = os.path.expanduser("~/n/a.txt")
    assert lab.run([save("~/n/a.txt", content="y")]) == f"File successfully saved to {expected}"
    assert (path.parent / "n" / "a.txt").read_text() == "y"


def test_conversation_text_is_written_as_typed(lab: EngineLab, path: Path) -> None:
    lab.run(
        [save(path, content="{chat_user_prompt_last_one}")],
        user("a __WILMER_L_CURLY__agent1Output__WILMER_R_CURLY__ é"),
    )
    assert path.read_bytes() == "a {agent1Output} é".encode()


def test_many_requests_append_to_one_file(lab: EngineLab, path: Path) -> None:
    lab.workflow("Log", [save(path, content="{chat_user_prompt_last_one}\n", mode="append")])

    def run(number: int) -> None:
        list(start(lab, "Log", user(f"request {number}")))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.read_text().splitlines()) == sorted(f"request {number}" for number in range(20))


def test_a_cancelled_request_stops_waiting_for_a_file(lab: EngineLab, path: Path) -> None:
    lab.request = RequestContext(request_id="r-1")
    threading.Timer(0.2, lab.request.cancel_scope.cancel).start()
    with path_lock(str(path)), pytest.raises(EarlyTerminationException):
        lab.run([save(path, content="x")])
    assert not path.exists()
