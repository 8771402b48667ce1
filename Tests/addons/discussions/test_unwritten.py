"""Of how many messages a discussion has no searchable memory, on the command line and for the console."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from Middleware.addons.discussions.unwritten import unwritten
from Middleware.utilities.conversations.trail import Piece
from Middleware.utilities.discussions.message_places import place_of
from Middleware.utilities.discussions.vector_memory import VectorMemories
from Middleware.utilities.discussions.vector_memory.searchable import Origin
from Tests.tables import table


def stored(path: Path, chunks: str, follows: bool = False) -> VectorMemories:
    """A database of chunks, each a letter: ``f`` has facts, ``e`` has none, ``s`` is a short one without.

    ``follows``: it is stored what each was made of, and they were made in the place of others, the newest first.
    """
    path.mkdir(parents=True, exist_ok=True)
    memories = VectorMemories(str(path / "vector_memory.db"), write=True)
    hashes: list[str] = []
    for number, kind in enumerate(chunks):
        hashes += [f"h{number}.{index}" for index in range(3 if kind == "s" else 10)]
        items = [(f"fact {number}", json.dumps({"title": "t"}))] if kind == "f" else []
        here = [f"{int(name[1:].replace('.', '')):016x}" for name in hashes[-3 if kind == "s" else -10 :]]
        origin = Origin(Piece("", tuple(here)), 1 if number else None) if follows else None
        memories.store_chunk(items, hashes[-1], place=place_of(hashes, len(hashes) - 1), origin=origin)
    return memories


@table(
    ("chunks", "text", "conspicuous"),
    [
        ("", None, False),
        ("fff", None, False),
        ("ss", None, False),
        ("feff", "no facts of 10 of 40 messages", False),
        ("eeef", "no facts of 30 of 40 messages", False),
        ("feee", "no facts of 30 of 40 messages", True),
        ("eseses", "no facts of 30 of 39 messages", True),
        ("fee", "no facts of 20 of 30 messages", False),
    ],
)
def test_messages_without_a_fact(
    tmp_path_factory: pytest.TempPathFactory, chunks: str, text: str | None, conspicuous: bool
) -> None:
    for follows in (False, True):
        with stored(tmp_path_factory.mktemp("d"), chunks, follows) as memories:
            found = unwritten(memories)
            assert (found and str(found).split(", last on 2")[0]) == text
            assert found is None or found.is_conspicuous == conspicuous
