"""Memories that follow a conversation, and that their owner has corrected, deleted or forgotten."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from Middleware.addons.discussions.catalog import discussions_in
from Middleware.addons.discussions.discussion_reader import Reader
from Middleware.addons.discussions.editing import DiscussionEditor, MemoryKey
from Tests.tables import table
from Tests.workflows.tools.memory.test_following import ALL, P1, P2, P3, Discussion, begun, chat, discussion, of

__all__ = ["discussion"]
BRANCH = chat("m0-m12", "n0-n9")
CORRECTED = "What really happened."


def reader(made: Discussion) -> Reader:
    found = discussions_in(str(Path(made.folder.folder).parent))
    return Reader(next(one for one in found if one.discussion_id == made.folder.discussion_id))


def corrected(made: Discussion) -> None:
    DiscussionEditor(reader(made)).change(MemoryKey.of("memory", 2, P2), CORRECTED)


def corrected_in_the_file(made: Discussion) -> None:
    path = Path(made.folder.folder) / "memories.json"
    path.write_text(path.read_text("utf-8").replace(P2, CORRECTED), "utf-8")


def deleted(made: Discussion) -> None:
    DiscussionEditor(reader(made)).delete(MemoryKey.of("memory", 2, P2))


def forgotten(made: Discussion) -> None:
    names = [entry["id"] for entry in json.loads(made.folder.read("memories.json") or b"")]
    DiscussionEditor(reader(made)).forget(names[1:2], [], [])


def forgotten_on_the_branch(made: Discussion) -> None:
    made.send(BRANCH)
    names = [entry["id"] for entry in json.loads(made.folder.read("memories_elsewhere.json") or b"")]
    DiscussionEditor(reader(made)).forget(names, [], [])


ON_BRANCH = of("m10-m12", "n0-n6")


@table(
    ("change", "after", "branch", "returned", "calls"),
    [
        # What a user has corrected is what comes back: 46, 47.
        (corrected, [P1, CORRECTED, P3], [P1, ON_BRANCH], [P1, CORRECTED, P3], 1),
        (corrected_in_the_file, [P1, CORRECTED, P3], [P1, ON_BRANCH], [P1, CORRECTED, P3], 1),
        # What he has deleted is not made again of the same messages: 45.
        (deleted, [P1, P3], [P1, ON_BRANCH], [P1, P3], 1),
        (forgotten, [P1, P3], [P1, ON_BRANCH], [P1, P3], 1),
        # Those that were elsewhere are gone after the return, too.
        (forgotten_on_the_branch, [P1], [P1, ON_BRANCH], [P1], 1),
    ],
)
def test_a_change_by_hand_outlives_a_branch(
    monkeypatch: pytest.MonkeyPatch,
    discussion: Discussion,
    change: Callable[[Discussion], None],
    after: list[str],
    branch: list[str],
    returned: list[str],
    calls: int,
) -> None:
    made = Discussion(monkeypatch)
    begun(made)
    change(made)
    for _ in range(2):
        made.send(ALL)
        assert made.shown(ALL) == after
    made.send(BRANCH)
    assert made.shown(BRANCH) == branch
    made.send(ALL)
    assert (made.shown(ALL), len(made.asked)) == (returned, calls)


def test_of_another_text_it_is_made(discussion: Discussion) -> None:
    begun(discussion)
    deleted(discussion)
    edited = chat("m0-m14", "x", "m16-m36")
    discussion.send(edited)
    assert discussion.shown(edited) == [P1, of("m10-m14", "x", "m16-m19"), P3]
