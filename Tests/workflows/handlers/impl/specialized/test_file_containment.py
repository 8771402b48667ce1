"""Nodes that read or write files, kept in the directories that the user's file allows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigValueError
from Middleware.models.request_context import request_scope
from Tests.tables import table
from Tests.windows import MAKES_LINKS, needs_links
from Tests.workflows.engine_lab import EngineLab, start, static, user


@pytest.fixture
def base(lab: EngineLab, tmp_path: Path) -> Path:
    """The one directory that is allowed; a file beside it is not."""
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "Notes.txt").write_text("notes")
    (tmp_path / "secret.txt").write_text("secret")
    lab.user(allowedFileDirectories=[str(folder)])
    return folder


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "configs" not in path.parts
    }


def get(path: object) -> dict[str, Any]:
    return {"type": "GetCustomFile", "filepath": str(path)}


def save(path: object, mode: str = "overwrite") -> dict[str, Any]:
    return {"type": "SaveCustomFile", "filepath": str(path), "content": "new", "mode": mode, "find": "e"}


CLIMBING = ["../secret.txt", "../new/deep.txt", "x/../../secret.txt", "../base2/x", "..", ""]


def test_inside_all_is_as_ever(lab: EngineLab, base: Path) -> None:
    assert lab.run([get(base / "notes.TXT")]) == "notes"
    assert lab.run([get(base / "missing")]) == "Custom instruction file did not exist"
    target = base / "new" / "x.txt"
    assert lab.run([save(target)]) == f"File successfully saved to {target}"
    assert target.read_text() == "new"
    assert lab.run([save(base / "NOTES.TXT", "append")]).startswith("File successfully saved")
    assert lab.run([get("")]) == "No filepath specified"


@table("value", CLIMBING)
@table("mode", ["read", "overwrite", "append", "replace", "remove", "trim"])
def test_no_value_climbs_out(lab: EngineLab, base: Path, tmp_path: Path, mode: str, value: str) -> None:
    before = tree(tmp_path)
    template = f"{base}/{{agent1Output}}"
    with pytest.raises(ConfigValueError, match="allowedFileDirectories") as raised:
        lab.run([static(value), get(template) if mode == "read" else save(template, mode)])
    assert tree(tmp_path) == before and not (tmp_path / "new").exists()
    assert ".../{agent1Output}" in str(raised.value) and "secret" not in str(raised.value)


def test_no_text_of_the_user_names_a_file_elsewhere(lab: EngineLab, base: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigValueError), request_scope(lab.request):
        lab.workflow("Main", [get("{chat_user_prompt_last_one}")])
        list(start(lab, "Main", user(str(tmp_path / "secret.txt"))))


@needs_links
@pytest.mark.parametrize("name", ["link.txt", "LINK.TXT", "folder/secret.txt", "folder/new.txt", "dangling"])
def test_a_link_that_leads_out(lab: EngineLab, base: Path, tmp_path: Path, name: str) -> None:
    (base / "link.txt").symlink_to(tmp_path / "secret.txt")
    (base / "folder").symlink_to(tmp_path)
    (base / "dangling").symlink_to(tmp_path / "later.txt")
    with pytest.raises(ConfigValueError, match="leads out"):
        lab.run([get(base / name)])
    if name != "LINK.TXT":  # a name of its own for who writes
        with pytest.raises(ConfigValueError, match="leads out"):
            lab.run([save(base / name)])
    assert (tmp_path / "secret.txt").read_text() == "secret" and not (tmp_path / "later.txt").exists()
    assert not (tmp_path / "new.txt").exists()


@pytest.mark.parametrize("keys", [{"cursorDirectory": "{agent1Output}"}, {"returnFile": "{agent1Output}/x.md"}])
def test_the_files_of_the_chunk_processor(lab: EngineLab, base: Path, tmp_path: Path, keys: dict[str, Any]) -> None:
    lab.workflow("Each", [static("x")])
    node = {
        "type": "ConversationChunkProcessor",
        "id": "n",
        "workflowName": "Each",
        "chunkSize": 1,
        "lookbackMessages": 0,
        "cursorDirectory": str(base / "cursors"),
        **keys,
    }
    messages = [user("a"), user("b")]
    for folder, allowed in ((tmp_path / "out", False), (base / "in", True)):
        lab.workflow("Main", [static(str(folder)), node])
        with request_scope(lab.request):
            if not allowed:
                with pytest.raises(ConfigValueError, match="allowedFileDirectories"):
                    list(start(lab, "Main", *messages, discussion_id="d1"))
                assert not folder.exists() and not (base / "cursors").exists()
                continue
            list(start(lab, "Main", *messages, discussion_id="d1"))
        cursors = base / ("cursors" if "returnFile" in keys else "in")
        assert (cursors / "chunk_cursor_n_d1.txt").exists()


# -- what no node may use ----------------------------------------------------------------------------------------------


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the console and two lists of keys, with other names of each."""
    public = tmp_path / "Public"
    (public / "Console" / "exports").mkdir(parents=True)
    for file in ("Console/secret", "Console/exports/mill.json", "accepted-keys.txt", "notes.txt"):
        (public / file).write_text(f"the {file}", encoding="utf-8")
    (tmp_path / "my-keys.txt").write_text("the list", encoding="utf-8")
    if MAKES_LINKS:
        (public / "folder").symlink_to(public / "Console")
        (public / "link").symlink_to(public / "accepted-keys.txt")
    (public / "hard").hardlink_to(public / "Console" / "secret")
    (public / "hard-list").hardlink_to(tmp_path / "my-keys.txt")
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", str(public))
    monkeypatch.setattr(instance, "CONSOLE_DIRECTORY", None)
    monkeypatch.setattr(instance, "ACCESS_KEYS", SimpleNamespace(path=str(tmp_path / "my-keys.txt")))
    for home in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(home, str(public))
    return public


REFUSED = [
    "Console/secret",
    "Console/SECRET",
    "console/secret",
    "CONSOLE/new.txt",
    "Console/new/deep.txt",
    "Console/exports/mill.json",
    "Console",
    "./x/../Console//secret",
    *(("folder/secret", "folder/new.txt", "link") if MAKES_LINKS else ()),
    "hard",
    "accepted-keys.txt",
    "Accepted-Keys.TXT",
    "hard-list",
    "../my-keys.txt",
    "Console/../../MY-KEYS.txt",
]


@table("value", REFUSED)
@table("allowed", [False, True])
def test_no_node_uses_the_console_or_the_list_of_keys(lab: EngineLab, private: Path, allowed: bool, value: str) -> None:
    lab.user(**({"allowedFileDirectories": [str(private), str(private.parent)]} if allowed else {}))
    before = tree(private.parent)
    chunks = {"type": "ConversationChunkProcessor", "id": "x", "workflowName": "W", "cursorDirectory": "/x"}
    for path in (str(private / value), f"~/{value}", "{agent1Output}"):
        nodes = [static(str(private / value)), {**chunks, "returnFile": path}]
        for node in (get(path), save(path), save(path, "trim"), nodes[-1]):
            with pytest.raises(ConfigValueError, match="list of access keys, which no node may use"):
                lab.run([nodes[0], node])
    assert tree(private.parent) == before


@needs_links
def test_a_link_to_the_list_is_found_in_any_case_where_files_are(lab: EngineLab, private: Path) -> None:
    with pytest.raises(ConfigValueError, match="list of access keys, which no node may use"):
        lab.run([get(private / "LINK")])


def test_other_files_next_to_them_are_as_ever(lab: EngineLab, private: Path) -> None:
    assert lab.run([get(private / "NOTES.txt")]) == "the notes.txt"
    for name in ("Console2/x.txt", "keys.txt", "accepted-keys.txt.md"):
        assert lab.run([save(private / name)]).startswith("File successfully saved")
    # Another place has been chosen for both.
    instance.ACCESS_KEYS.path = str(private / "none.txt")
    assert lab.run([get(private.parent / "my-keys.txt")]) == "the list"
