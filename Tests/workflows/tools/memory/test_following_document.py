"""The state document with memories that follow a conversation: what it is made of is what the history has."""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from Middleware.services.memory import chunk_facts, folds, memory_store
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.config import users
from Middleware.utilities.config.declarations import read_settings
from Middleware.utilities.discussions.discussion_files import Pair
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.encryption_utils import derive_encryption_key
from Middleware.workflows.tools.memory import state_document
from Middleware.workflows.tools.memory.state_document import update_state_document
from Tests.tables import table

SETTINGS = {"followEdits": True, "useStateDocument": True, "stateDocumentWorkflowName": "State"}


class Document:
    """A discussion whose chunks are letters, each with one fact, and whose document is the letters that it was given.

    Attributes:
        trail: the chunks of the request.
        asked: for each call the chunks, and the document.
        answer: makes the document of both.
    """

    numbers = itertools.count()

    def __init__(self, monkeypatch: pytest.MonkeyPatch, key: bytes | None = None, **settings: Any) -> None:
        self.folder = DiscussionFolder(f"s{next(Document.numbers)}", "0123456789abcdef" if key else None, key)
        self.store = MemoryStore(self.folder)
        self.settings = read_settings(MemorySettings, {**SETTINGS, **settings}, "test")
        self.trail = self.newest = ""
        self.asked: list[tuple[str, str]] = []
        self.answer: Callable[[str, str], str] = lambda chunks, current: current + chunks
        follows = self.settings.follow_edits
        monkeypatch.setattr(chunk_facts, "facts_on_path", lambda state: self.facts(self.trail) if follows else None)
        monkeypatch.setattr(chunk_facts, "newest_facts", lambda state: self.facts(self.newest))
        monkeypatch.setattr(memory_store, "quiet_memory_settings", lambda: self.settings)
        monkeypatch.setattr(state_document, "text_of_helper", lambda context, name, inputs: self._answer(*inputs))
        monkeypatch.setattr(state_document, "helper_prompts", lambda context, name: ())
        monkeypatch.setattr(state_document, "raise_if_request_ended", lambda error, context: None)

    @staticmethod
    def facts(chunks: str) -> list[Pair]:
        return [(f"- {chunk}", f"hash of {chunk}") for chunk in chunks]

    def _answer(self, listed: str, current: str) -> str:
        chunks = listed.replace("- ", "").replace("\n", "")
        self.asked.append((chunks, current))
        return self.answer(chunks, current)

    def shown(self, trail: str) -> str:
        self.trail = trail
        return self.store.state_document()

    def send(self, trail: str) -> str:
        """A request: what it shows; after it, the document is brought up to date."""
        found = self.shown(trail)
        self.write(trail)
        return found

    def write(self, trail: str, facts: Sequence[str] = ()) -> None:
        """Store the chunks of a request, and bring the document up to date; ``facts``: of the newest chunk."""
        if self.settings.follow_edits:
            folds.document_folds(self.folder, lambda: self.facts(self.newest)).keep()
        self.trail = self.newest = trail
        update_state_document(None, self.settings, self.folder, facts)  # type: ignore[arg-type]

    def grow(self, trail: str) -> None:
        """Requests that each have one more chunk."""
        for count in range(1, len(trail) + 1):
            self.send(trail[:count])
        self.asked.clear()

    @property
    def path(self) -> Path:
        return Path(self.folder.plain_file("state_document.md"))

    @property
    def text(self) -> str:
        return self.path.read_text("utf-8")

    def versions(self) -> list[dict[str, Any]]:
        return json.loads(Path(self.folder.plain_file("state_versions.json")).read_text("utf-8"))


@pytest.fixture
def document(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Document]:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(users, "get_discussions_root_directory", lambda: str(tmp_path))
    yield Document(monkeypatch)


def by_hand(text: str) -> Callable[[Document], None]:
    return lambda document: document.path.write_text(text, "utf-8") and None


def removed(document: Document) -> None:
    document.path.unlink()


def restored(document: Document) -> None:
    document.path.write_bytes(document.path.with_suffix(".md.bak").read_bytes())


def damaged(document: Document) -> None:
    Path(document.folder.plain_file("state_versions.json")).write_text("{", "utf-8")


Step = str | Callable[[Document], None]


@table(
    ("steps", "shown", "text", "asked"),
    [
        # What the last request shows, what is stored after it, and the chunks of all calls.
        ([], "", None, ""),
        (["abcd"], "abc\n\n- d", "abcd", "d"),
        (["abxc"], "ab\n\n- x\n- c", "abxc", "xc"),
        (["xbc"], "- x\n- b\n- c", "xbc", "xbc"),
        (["ab"], "ab", "ab", ""),
        ([""], "", "abc", ""),
        # A return costs nothing, and the document is that of then.
        (["abx", "abc"], "abc", "abc", "x"),
        (["abx", "abc", "abx", "abc"], "abc", "abc", "x"),
        (["a", "abc"], "abc", "abc", ""),
        (["ab", "abd", "abc", "abde"], "abd\n\n- e", "abde", "d|e"),
        # Exchanged, doubled, moved.
        (["acb"], "a\n\n- c\n- b", "acb", "cb"),
        (["abcc"], "abc\n\n- c", "abcc", "c"),
        # By hand: the words of the user stay, with what they cover.
        ([by_hand("mine"), "abc"], "mine", "mine", ""),
        ([by_hand("mine"), "abcd"], "mine\n\n- d", "mined", "d"),
        ([by_hand("mine"), "xbc"], "mine\n\n- x", "minex", "x"),
        ([by_hand("mine"), "ab"], "mine", "mine", ""),
        ([by_hand("mine"), "ab", "abc"], "mine", "mine", ""),
        ([by_hand("mine"), "xbc", "abc"], "mine", "mine", "x"),
        ([by_hand("mine"), "xbc", "abc", "xbc"], "minex", "minex", "x"),
        ([by_hand("mine"), "abcd", "abce", "abcd"], "mined", "mined", "d|e"),
        ([by_hand("mine"), "abcd", by_hand("again"), "abc"], "again", "again", "d"),
        ([by_hand("mine"), "xbc", by_hand("again"), "xyc"], "again\n\n- y", "againy", "x|y"),
        # Saved by an editor without a change.
        ([by_hand("abc\n"), "abc"], "abc", "abc", ""),
        ([by_hand("\nabc"), "abx"], "ab\n\n- x", "abx", "x"),
        ([by_hand("abc "), "abxc"], "ab\n\n- x\n- c", "abxc", "xc"),
        ([by_hand("a\nbc"), "abx"], "a\nbc\n\n- x", "a\nbcx", "x"),
        # One of the earlier documents is as good as any other text, the one before it as well.
        ([by_hand("a"), "abc"], "a", "a", ""),
        ([by_hand("ab"), "abcd"], "ab\n\n- d", "abd", "d"),
        ([restored, "abc"], "ab", "ab", ""),
        ([restored, "abc", restored, "abc"], "ab", "ab", ""),
        # Deleted by hand: made of all facts.
        ([removed, "abc"], "- a\n- b\n- c", "abc", "abc"),
        ([by_hand(" \n"), "abc"], "- a\n- b\n- c", "abc", "abc"),
        ([removed, "abcdefgh"], "- a\n- b\n- c\n- d\n- e\n- f\n- g\n- h", "abcdefgh", "abcdef|gh"),
        ([by_hand("mine"), "abc", removed, "abc"], "- a\n- b\n- c", "abc", "abc"),
        # Without versions, a user may have written it.
        ([damaged, "abc"], "abc", "abc", ""),
        ([damaged, "abx"], "abc\n\n- x", "abcx", "x"),
        ([removed, "ab", removed, damaged, by_hand("mine"), "abx"], "mine\n\n- x", "minex", "ab|x"),
    ],
)
def test_what_is_shown_and_made(
    document: Document,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[Step],
    shown: str,
    text: str | None,
    asked: str,
) -> None:
    document, found = Document(monkeypatch), ""
    document.grow("abc" if text is not None else "")
    for step in steps:
        if callable(step):
            step(document)
        else:
            found = document.send(step)
    assert found == shown
    assert (document.text if document.path.exists() else None) == text
    assert "|".join(chunks for chunks, _ in document.asked) == asked


@table("steps", [["a", "ab", "abc"], ["abcd", "abcdefghij"], [by_hand("mine"), "a", "ab", by_hand("x"), "abcdef"]])
def test_without_edits_nothing_is_different(
    document: Document, monkeypatch: pytest.MonkeyPatch, steps: list[Step]
) -> None:
    """Chunks that are stored one after the other, as a pass does, with ``followEdits`` and without it."""
    found = []
    for follows in (False, True):
        document = Document(monkeypatch, followEdits=follows)
        document.folder.create()
        shown = []
        for step in steps:
            if callable(step):
                step(document)
                continue
            shown.append(document.shown(document.newest))
            for count in range(len(document.newest) + 1, len(step) + 1):
                document.write(step[:count], [step[count - 1]])
        found.append((shown, document.asked, document.text))
    assert found[0] == found[1] and found[0][1]


def test_a_long_history_takes_several_passes(document: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    document = Document(monkeypatch, repairsPerPass=2)
    document.send("abcdefghijklmnopq")
    assert [chunks for chunks, _ in document.asked] == ["abcdef", "ghijkl"]
    assert document.send("abcdefghijklmnopq") == "abcdefghijkl\n\n- m\n- n\n- o\n- p\n- q"
    assert document.shown("abcdefghijklmnopq") == "abcdefghijklmnopq"
    # What was made before does not count as a call.
    document.asked.clear()
    document.send("abcdefghijklmnopr")
    assert [chunks for chunks, _ in document.asked] == ["mnopr"]


def test_what_was_made_of_the_same_is_not_asked_for_again(document: Document) -> None:
    document.grow("abc")
    document.send("axc")
    path = Path(document.folder.plain_file("state_versions.json"))
    # The version of the same text and facts covers something else, as after a correction of a memory that it covers.
    versions = [{**one, "covers": "other"} if one["text"] == "axc" else one for one in document.versions()]
    path.write_text(json.dumps(versions), "utf-8")
    document.asked.clear()
    document.send("abc")
    document.send("axc")
    assert document.text == "axc" and document.asked == []


@table("bad", ["", "<think>Now what", "short"])
def test_an_answer_that_cannot_be_used(
    document: Document, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, bad: str
) -> None:
    document = Document(monkeypatch)
    long = "o" * 1000
    document.answer = lambda chunks, current: bad if current else long
    document.send("a")
    assert document.send("ab") == f"{long}\n\n- b" and document.text == long
    assert "is not updated" in caplog.text
    # Asked once more; then the facts stand there as they are, and the same call is not made again.
    document.send("ab")
    assert document.text == f"{long}\n\n- b" and len(document.asked) == 3
    for _ in range(3):
        assert document.send("ab") == f"{long}\n\n- b"
    assert len(document.asked) == 3
    document.answer = lambda chunks, current: current + chunks
    document.send("abc")
    assert document.text == f"{long}\n\n- bc"


def test_the_length_is_that_of_the_version_before(document: Document) -> None:
    document.answer = lambda chunks, current: "o" * 2000 if chunks == "c" else current + chunks
    document.grow("abc")
    assert document.send("abx") == "ab\n\n- x" and document.text == "abx"


def test_a_failure_leaves_everything(document: Document, caplog: pytest.LogCaptureFixture) -> None:
    document.grow("ab")

    def fail(chunks: str, current: str) -> str:
        raise OSError(0, "away")

    document.answer = fail
    for _ in range(3):
        assert document.send("abc") == "ab\n\n- c"
    assert document.text == "ab" and len(document.asked) == 3 and "is not updated" in caplog.text


def test_a_document_changed_meanwhile_is_kept(document: Document, caplog: pytest.LogCaptureFixture) -> None:
    document.grow("ab")

    def answer(chunks: str, current: str) -> str:
        by_hand("mine")(document)
        return current + chunks

    document.answer = answer
    document.send("abc")
    assert document.text == "mine" and "changed in the meantime" in caplog.text
    document.answer = lambda chunks, current: current + chunks
    assert document.send("abc") == "mine\n\n- c" and document.text == "minec"


@table("settings", [{"useStateDocument": False}, {"stateDocumentWorkflowName": ""}])
def test_a_document_that_is_not_kept_any_more(
    document: Document, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    document = Document(monkeypatch)
    document.grow("abc")
    document.settings = read_settings(MemorySettings, {**SETTINGS, **settings}, "test")
    off = not document.settings.use_state_document
    assert document.send("abcd") == ("abc" if off else "abc\n\n- d")
    assert document.send("axcd") == ("a" if off else "a\n\n- x\n- c\n- d")
    assert document.asked == [] and ("names no workflow" in caplog.text) is not off


def test_a_page_that_only_the_user_writes(document: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    document = Document(monkeypatch, useStateDocument=False)
    document.folder.create()
    by_hand("mine")(document)
    assert [document.send(trail) for trail in ("", "a", "ab", "xb", "")] == ["mine"] * 5
    by_hand("mine too")(document)
    assert [document.send(trail) for trail in ("ab", "y")] == ["mine too"] * 2
    assert document.asked == [] and document.text == "mine too"


def test_switched_off_and_on(document: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    document.grow("abc")
    monkeypatch.setattr(chunk_facts, "facts_on_path", lambda state: None)
    document.settings = read_settings(MemorySettings, {**SETTINGS, "followEdits": False}, "test")
    document.write("abcd", ["d"])
    assert document.text == "abcd" and document.shown("abx") == "abcd"
    monkeypatch.setattr(chunk_facts, "facts_on_path", lambda state: document.facts(document.trail))
    # As if a user had written it.
    assert document.shown("abx") == "abcd\n\n- x"


@table("at", [1, 2, 3])
def test_ended_while_it_is_stored(document: Document, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Killed before one of the writes: the versions, the text, and which version it is of."""
    document = Document(monkeypatch)
    document.grow("ab")
    writes = itertools.count(1)
    write, write_content = DiscussionFolder.write, folds.write_content

    def killed(*args: Any) -> None:
        if next(writes) == at:
            raise KeyboardInterrupt
        write(*args) if isinstance(args[-1], bytes) else write_content(*args)

    with monkeypatch.context() as patch:
        patch.setattr(folds, "write_content", killed)
        patch.setattr(
            DiscussionFolder, "write", lambda *args: killed(*args) if args[1].endswith(".md") else write(*args)
        )
        with pytest.raises(KeyboardInterrupt):
            document.send("abc")
    assert document.shown("abc") == ("ab\n\n- c" if at == 1 else "abc")
    document.asked.clear()
    document.send("abc")
    assert document.text == "abc" and len(document.asked) == (1 if at == 1 else 0)
    assert not any(version["pinned"] for version in document.versions())
    assert document.shown("axc") == "a\n\n- x\n- c"


def test_no_more_versions_than_needed(document: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds, "MOST_VERSIONS", 5)
    document.grow("abcdefgh")
    assert [one["text"] for one in document.versions()] == ["abcd", "abcde", "abcdef", "abcdefg", "abcdefgh"]
    # Those that were used last stay.
    document.send("abcd")
    for last in "xyz":
        document.send(f"abcd{last}")
        document.send("abcd")
    assert {"abcd", "abcdz"} <= {one["text"] for one in document.versions()}
    document.asked.clear()
    document.send("abcd")
    assert document.text == "abcd" and document.asked == []


def test_everything_is_encrypted(document: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    document = Document(monkeypatch, derive_encryption_key("secret", "ann"))
    document.grow("ab")
    document.send("ax")
    files = {path.name: path.read_bytes() for path in Path(document.folder.folder).iterdir() if path.is_file()}
    assert {"state_document.md", "state_versions.json"} <= set(files)
    assert all(content.startswith(b"gAAAA") for content in files.values() if content)
    assert document.shown("ab") == "ab"


def test_what_is_forgotten_is_in_no_version(document: Document) -> None:
    document.grow("abc")
    document.store.save_state_document("new", forget=True)
    assert [one["text"] for one in document.versions()] == ["new"] and document.shown("abc") == "new"


def test_nothing_is_left_of_a_deleted_document(document: Document, caplog: pytest.LogCaptureFixture) -> None:
    document.grow("abc")
    document.store.delete_state_document()
    assert document.versions() == [] and document.shown("") == ""
    with caplog.at_level(logging.ERROR):
        document.send("abc")
    assert document.text == "abc" and not caplog.text
