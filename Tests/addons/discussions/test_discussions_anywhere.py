"""What an owner sees and does of stored conversations is the same in folders and in the state database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.discussions import catalog, forgetting, memory_command, messages, removal
from Middleware.addons.discussions.contents import PARTS, page
from Middleware.addons.discussions.damage_check import check
from Middleware.addons.discussions.discussion_reader import Reader, export
from Middleware.addons.discussions.editing import DiscussionBusyError, DiscussionEditor, MemoryKey, NoSuchMemoryError
from Middleware.addons.discussions.overview import as_json, overview
from Middleware.exceptions import DataKeyError, StateUnavailableError
from Middleware.models.process import process
from Middleware.services.memory.discussion_keys import NO_KEYS, DiscussionKeys
from Middleware.utilities.discussion_state import MEMORIES
from Middleware.utilities.discussions.discussion_folder import discussions, stored_discussion
from Middleware.utilities.discussions.message_index.row_writing import ChatFacts
from Middleware.utilities.encryption_utils import derive_encryption_key
from Tests.addons.postgres.test_documents import Worker
from Tests.services.discussion_lab import HASH, KEY, DiscussionLab
from Tests.utilities.discussions.message_index.lab import said

KEYS = DiscussionKeys(HASH, derive_encryption_key(KEY, "tester"))


@pytest.fixture(params=["files", pytest.param("database", marks=pytest.mark.slow)])
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiscussionLab]:
    """The user's conversations: one without a key, an encrypted one, and one that has nothing but a summary."""
    with contextlib.ExitStack() as stack:
        lab = DiscussionLab(tmp_path, monkeypatch)
        if request.param == "database":
            stack.enter_context(Worker(request.getfixturevalue("database_url"), stack).at_work())
            monkeypatch.setattr(
                lab,
                "folder",
                lambda name, api_key=None, encrypt=True: stored_discussion(
                    name, HASH if api_key else None, KEYS.encryption_key if api_key and encrypt else None
                ),
            )
        lab.store("plain")
        lab.store("secret", KEY)
        lab.folder("bare").write("chat_summary.json", b'[{"text_block": "little", "hash": "h"}]')
        yield lab


def reader(name: str, keys: DiscussionKeys = NO_KEYS) -> Reader:
    return Reader(catalog.choose(catalog.all_discussions(), name), keys)


def keys_of(name: str, part: str) -> list[MemoryKey]:
    shown = page(reader(name), part, 50)  # type: ignore[arg-type]
    assert shown["problem"] == ""
    return [MemoryKey.parse(entry["key"]) for entry in shown["entries"]]


def test_all_are_listed(lab: DiscussionLab) -> None:
    rows = [as_json(overview(one)) for one in catalog.all_discussions()]
    assert [
        {name: value for name, value in row.items() if name not in ("folders", "lastChange", "bytes")} for row in rows
    ] == [
        {
            "discussionId": "bare",
            "keyFolder": None,
            "memories": 0,
            "summary": True,
            "searchableMemories": 0,
            "messages": 0,
            "vectors": {},
            "stateDocument": False,
            "encrypted": False,
            "damaged": False,
        },
        {
            "discussionId": "plain",
            "keyFolder": None,
            "memories": 2,
            "summary": True,
            "searchableMemories": 2,
            "messages": 0,
            "vectors": {"embedder": {"with": 1, "without": 1}},
            "stateDocument": True,
            "encrypted": False,
            "damaged": False,
        },
        {
            "discussionId": "secret",
            "keyFolder": HASH,
            "memories": None,
            "summary": True,
            "searchableMemories": 2,
            "messages": 0,
            "vectors": {"embedder": {"with": 1, "without": 1}},
            "stateDocument": True,
            "encrypted": True,
            "damaged": False,
        },
    ]
    assert all(row["lastChange"] and row["bytes"] for row in rows)
    assert as_json(overview(reader("secret").discussion, KEYS))["memories"] == 2


@pytest.mark.parametrize(("name", "keys"), [("plain", NO_KEYS), ("secret", KEYS)])
def test_texts_are_shown(lab: DiscussionLab, name: str, keys: DiscussionKeys) -> None:
    shown = {part: page(reader(name, keys), part, 50) for part in PARTS}
    assert {part: [entry["text"] for entry in shown[part]["entries"]] for part in PARTS} == {
        "summary": ["All that happened."],
        "memories": ["The inspector came.", "Mara hid the ledger."],
        "searchable": ["The inspector came.", "Mara hid the ledger."],
        "state": ["Mara: at the mill"],
        "messages": [],
    }
    assert [entry["text"] for entry in page(reader(name, keys), "searchable", 9, words="ledger")["entries"]] == [
        "Mara hid the ledger."
    ]


def test_without_the_key_nothing_is_shown(lab: DiscussionLab) -> None:
    assert all(page(reader("secret"), part, 50)["locked"] for part in PARTS if part != "messages")
    with pytest.raises(DataKeyError):
        export(reader("secret"))


@pytest.mark.parametrize(("name", "keys"), [("plain", NO_KEYS), ("secret", KEYS)])
def test_an_export_has_everything_in_clear(lab: DiscussionLab, name: str, keys: DiscussionKeys) -> None:
    content = export(reader(name, keys))
    assert sorted(content["files"]) == ["chat_summary.json", "memories.json", "state_document.md"]
    assert content["files"]["memories.json"][0]["text_block"] == "Mara hid the ledger."
    assert content["files"]["state_document.md"] == "Mara: at the mill" and content["unreadable"] == []
    searchable: dict[str, Any] = content["vectorMemory"]
    assert [row["memory_text"] for row in searchable["memories"]] == ["Mara hid the ledger.", "The inspector came."]
    assert [(row["memoryId"], row["model"]) for row in searchable["vectors"]] == [(1, "embedder")]
    assert len(searchable["processedMessages"]) == 2
    assert export(reader("bare"))["vectorMemory"] is None


def test_texts_are_changed_and_deleted(lab: DiscussionLab) -> None:
    for part, number in (("memories", 0), ("searchable", 0), ("summary", 0), ("state", 0)):
        key = keys_of("plain", part)[number]
        DiscussionEditor(reader("plain")).change(key, "The mill burned.")
        assert page(reader("plain"), part, 50)["entries"][0]["text"] == "The mill burned."  # type: ignore[arg-type]
        with pytest.raises(NoSuchMemoryError):
            DiscussionEditor(reader("plain")).change(key, "again")
    for part in ("memories", "searchable"):
        DiscussionEditor(reader("plain")).delete(keys_of("plain", part)[0])
        assert [
            entry["text"]
            for entry in page(reader("plain"), part, 50)["entries"]  # type: ignore[arg-type]
        ] == ["Mara hid the ledger."]
    DiscussionEditor(reader("plain")).delete_all()
    assert all(page(reader("plain"), part, 50)["entries"] == [] for part in PARTS)


@pytest.mark.parametrize(("name", "keys"), [("plain", NO_KEYS), ("secret", KEYS)])
def test_what_is_deleted_is_in_no_backup(lab: DiscussionLab, name: str, keys: DiscussionKeys) -> None:
    state = stored_discussion(name, keys.key_hash, keys.encryption_key)
    entry = page(reader(name, keys), "memories", 50)["entries"][-1]
    editor = DiscussionEditor(reader(name, keys))
    changed = editor.change(MemoryKey.parse(entry["key"]), "Mara moved the ledger.")
    assert b"hid the" in state.cipher.decrypt(state.read("memories.json.bak") or b"")
    editor.delete(changed)
    for document in ("memories.json", "memories.json.bak", "chat_summary.json.bak", "state_document.md.bak"):
        stored = state.read(document) or b""
        assert stored.startswith(b"gAAAA") is (keys is KEYS), document
        assert b"ledger" not in state.cipher.decrypt(stored)
    key = MemoryKey.parse(page(reader(name, keys), "state", 9)["entries"][0]["key"])
    editor.change(key, "Mara: away", forget=True)
    assert state.cipher.decrypt(state.read("state_document.md.bak") or b"") == b"Mara: away"


def test_a_discussion_is_deleted(lab: DiscussionLab) -> None:
    discussion = reader("plain").discussion
    with lab.folder("plain").lock(MEMORIES), pytest.raises(removal.RemovalRefusedError):
        removal.remove(discussion)
    with lab.folder("plain").lock(MEMORIES), pytest.raises(DiscussionBusyError):
        DiscussionEditor(reader("plain")).delete_all()
    assert removal.remove(discussion).deleted >= 4
    assert [one.discussion_id for one in catalog.all_discussions()] == ["bare", "secret"]
    assert lab.folder("plain").read("memories.json") is None
    with lab.folder("plain").memories() as memories:
        assert memories.keyword_search("ledger") == []


def test_the_command_memory(lab: DiscussionLab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int, str]:
        status = memory_command.main(
            [
                *words,
                "--User",
                "tester",
                "--ConfigDirectory",
                str(lab.config.root),
                "--DiscussionDirectory",
                str(lab.root),
            ]
        )
        return status, capsys.readouterr().out

    status, out = run("list")
    assert status == 0 and sorted(line.split()[0] for line in out.splitlines()[1:4]) == ["bare", "plain", "secret"]
    status, out = run("show", "plain")
    assert status == 0 and out.count("Mara hid the ledger.") == 2 and "Mara: at the mill" in out
    assert run("search", "plain", "ledger") == (0, "Mara hid the ledger.\n")
    status, out = run("check")
    assert status == 0 and out.endswith("3 discussions checked, no problems.\n")
    assert run("rebuild-index", "plain") == (0, "The index was made again from 2 memories.\n")
    assert run("export", "plain", "--output", str(tmp_path / "out.json"))[0] == 0
    assert b"Mara hid the ledger." in (tmp_path / "out.json").read_bytes()
    status, out = run("delete", "plain", "--yes")
    # The folder is named, or each document.
    assert status == 0 and (str(lab.root / "plain") in out or "  memories.json" in out)
    assert run("show", "plain")[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("lab", ["database"], indirect=True)
def test_what_is_damaged_is_found(lab: DiscussionLab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.folder("bare").write("memories.json", b"not JSON")
    database: Any = process().one(discussions)
    database.database.write(
        "UPDATE wilmer.memories SET metadata_json = '[]' WHERE id = 2 AND discussion = "
        "(SELECT id FROM wilmer.discussions WHERE discussion_id = 'plain')"
    )
    found = [finding.text for one in catalog.all_discussions() for finding in check(Reader(one)) if finding.problem]
    assert len(found) == 2 and "bare/memories.json" in found[0]
    assert found[1] == "plain/vector_memory.db: the metadata of memory 2 is not a JSON object"


@pytest.mark.slow
@pytest.mark.parametrize("lab", ["database"], indirect=True)
def test_a_database_that_is_down_is_no_empty_list(lab: DiscussionLab) -> None:
    process().one(discussions).database.close()  # type: ignore[attr-defined]
    with pytest.raises(StateUnavailableError):
        catalog.all_discussions()


# -- messages ----------------------------------------------------------------------------------------------------------

MESSAGES = [
    said(f"Line {number} of the {word}.", ("Ines", None)[number % 2], number, role=("user", "assistant")[number % 2])
    for number, word in enumerate(("boat", "ledger", "mill", "ledgers", "harbour"))
]


@pytest.mark.parametrize(("name", "keys"), [("plain", NO_KEYS), ("secret", KEYS)])
def test_messages_are_shown_and_forgotten(lab: DiscussionLab, name: str, keys: DiscussionKeys) -> None:
    with stored_discussion(name, keys.key_hash, keys.encryption_key).messages(write=True) as index:
        with index.writing() as writing:
            writing.put_chat(1, 1, False, ChatFacts())
            writing.put_chat(2, 2, True, ChatFacts())
            for message in (*MESSAGES, said("Is the ledger here?", None, 0, 2)):
                writing.add(message, indexed=message.conversation == 1)
    assert as_json(overview(reader(name, keys).discussion, keys))["messages"] == 6
    shown = page(reader(name, keys), "messages", 2)
    assert [entry["text"] for entry in shown["entries"]] == ["Is the ledger here?", "Line 4 of the harbour."]
    rest = page(reader(name, keys), "messages", 50, shown["next"])
    assert [entry["text"] for entry in rest["entries"]] == [one.text for one in reversed(MESSAGES[:-1])]
    assert [entry["text"] for entry in page(reader(name, keys), "messages", 9, words="mill")["entries"]][:1] == [
        "Line 2 of the mill."
    ]
    assert messages.about(reader(name, keys)) == "6 rows, 6 without a date, 1 not indexed"
    found = forgetting.find(reader(name, keys), forgetting.Choice("ledger"))
    assert [one.text for one in found.messages] == [MESSAGES[1].text, MESSAGES[3].text, "Is the ledger here?"]
    forgetting.forget(reader(name, keys), found)
    assert forgetting.find(reader(name, keys), forgetting.Choice("ledger")).messages == []
    assert messages.about(reader(name, keys)) == "3 rows, 3 without a date, 3 forgotten"
    assert page(reader(name, keys), "messages", 9, words="ledger")["entries"] == []
    with reader(name, keys).messages(write=True) as index:
        assert index is not None and index.rebuild_index() == 3
    assert [row["text"] for row in export(reader(name, keys))["messages"]] == [MESSAGES[n].text for n in (0, 2, 4)]
    assert not [one for one in check(reader(name, keys)) if one.problem]
    if keys is NO_KEYS:
        return
    assert page(reader(name), "messages", 9)["locked"]
    with pytest.raises(DataKeyError):
        forgetting.find(reader(name), forgetting.Choice("mill"))
