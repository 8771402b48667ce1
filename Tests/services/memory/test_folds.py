"""What is shown of a text that was made of memories."""

from __future__ import annotations

from dataclasses import replace

from Middleware.services.memory.folds import Fold, Version, fold_of, with_pinned, with_version
from Tests.tables import table


def pairs(*texts: str) -> list[tuple[str, str]]:
    return [(text, "") for text in texts]


def version(text: str, *memories: str) -> Version:
    """The version of a text that was made of these memories at once."""
    return with_version([], Fold(None, pairs(*memories)), pairs(*memories), pairs(*memories), text)[-1]


LONG = version("S3", "a", "b", "c")


@table(
    ("memories", "versions", "shown"),
    [
        # What was in no version yet is not shown behind one.
        (["a", "b"], [version("S1", "a")], "S1"),
        # A memory that is equal to one within the version is as new as any other.
        (["a", "a"], [version("S1", "a")], "S1"),
        (["a", "b", "a", "c"], [version("S1", "a"), version("S2", "a", "b")], "S2"),
        (["a", "b", "b"], [version("S2", "a", "b")], "S2"),
        # After an edit of the second, the others were in the version of before.
        (["a", "x", "c"], [version("S1", "a"), LONG], "S1\nx\nc"),
        (["a", "x", "c", "d"], [version("S1", "a"), LONG], "S1\nx\nc"),
        (["x", "b", "c"], [LONG], "x\nb\nc"),
        # A text of the user counts before longer ones that are older.
        (["a", "b", "c"], [LONG, replace(version("mine", "a"), pinned=True)], "mine\nb\nc"),
        (["a", "x", "c"], with_pinned([LONG], pairs("a", "b", "c"), "mine", LONG), "mine"),
        ([], [], ""),
    ],
)
def test_what_is_shown(memories: list[str], versions: list[Version], shown: str) -> None:
    assert fold_of(versions, pairs(*memories)).shown == shown
