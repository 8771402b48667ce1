"""A process that is killed while it stores messages leaves the index as it was, and the next request fills it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from Middleware.services.memory.recall import Recall, recall
from Tests.utilities.discussions.message_index import lab

KILLED = """
import os, sys
from pathlib import Path
from Tests.utilities.discussions.message_index import lab
if len(sys.argv) > 2:
    from Middleware.addons.postgres.database import Database
    lab.databases.append(Database(sys.argv[2]))
    lab.databases[0].open()
with lab.opened(Path(sys.argv[1])) as index, index.writing() as writing:
    writing.add(lab.said("a harpoon", place=4))
    writing.set_state([1], 1)
    # So that all is sent that a transaction sends.
    index.all("SELECT count(*) FROM messages")
    os._exit(9)
"""
SAID = [("user", "Where is the lantern?"), ("assistant", "On the shelf."), ("user", "Ah."), ("assistant", "Well.")]


@pytest.mark.usefixtures("anywhere")
def test_a_transaction_that_was_cut_off(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with lab.opened(tmp_path) as index:
        lab.request(index, SAID)
        more = [request.getfixturevalue("shared")._url] if lab.databases else []
        child = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), *more], timeout=120)
        assert child.returncode == 9
        assert lab.on_path(index) == [text for _, text in SAID]
        lab.request(index, [*SAID, ("user", "And the harpoon?")])
        assert index.all("SELECT count(*) FROM messages") == [(5,)]
        assert recall(index, Recall("harpoon")).lines[0] == "User: And the harpoon?"
