"""What is stored of messages under a key, and what becomes of files in clear and of other keys."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from Middleware.exceptions import DataKeyError
from Middleware.services.memory.recall import Recall, recall
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.message_index.message_tables import ELSEWHERE
from Middleware.utilities.encryption_utils import NO_CIPHER
from Tests.utilities.discussions.message_index.lab import on_path, opened, request
from Tests.utilities.discussions.vector_memory.lab import CIPHER, OTHER, bytes_on_disk

CHAT = [
    ("user", "Ines: Where is the lantern of the lighthouse?"),
    ("assistant", "Tom: On the shelf behind the barometer."),
    ("user", "Ines: And the harpoon?"),
    ("assistant", "Tom: Sold to the museum."),
]
WORDS = [b"lantern", b"lighthouse", b"barometer", b"harpoon", b"museum", b"Ines", b"Tom"]


def found(index: MessageIndex, question: str) -> list[str]:
    return recall(index, Recall(question, who_said_it="off")).lines


def test_no_word_is_on_the_disk_and_all_is_found(tmp_path: Path) -> None:
    with opened(tmp_path, CIPHER) as index:
        before = [("user", "Ines: Good morning to you."), ("assistant", "Tom: And to you, how was the night?")]
        request(index, [*before, *CHAT])
        request(index, [*before, *CHAT[:1], ("assistant", "Tom: In the cellar with the anchor."), *CHAT[2:]])
        lines = found(index, "lantern")
        assert lines[0] == "Ines: Where is the lantern of the lighthouse?"
        assert "Tom: In the cellar with the anchor." in lines
        assert "barometer" not in " ".join(found(index, "barometer"))
        # With the log of the database, which another reader keeps from going.
        assert [word for word in (*WORDS, b"anchor") if word in bytes_on_disk(tmp_path)] == []
        assert index.all("SELECT DISTINCT length(key) FROM messages") == [(8,)]


def test_keys_are_not_bare_hashes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with opened(tmp_path / "a", CIPHER) as one, opened(tmp_path / "b", CIPHER) as two:
        request(one, CHAT)
        request(two, CHAT)
        keys = "SELECT key FROM messages"
        assert not {*one.all(keys)} & {*two.all(keys)}


def test_a_file_in_clear_is_encrypted_by_the_first_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as index:
        request(index, CHAT)
    assert b"barometer" in bytes_on_disk(tmp_path)
    with opened(tmp_path, CIPHER, write=False) as index:
        assert found(index, "barometer")[0] == "Tom: On the shelf behind the barometer."
    with opened(tmp_path, CIPHER) as index:
        assert [word for word in WORDS if word in bytes_on_disk(tmp_path)] == []
        # The same messages are recognised.
        request(index, [*CHAT, ("user", "Ines: When?")])
        assert index.all("SELECT count(*) FROM messages") == [(5,)]
        assert found(index, "barometer")[0] == "Tom: On the shelf behind the barometer."


def test_another_key(tmp_path: Path) -> None:
    with opened(tmp_path, CIPHER) as index:
        request(index, CHAT)
        keys = index.all("SELECT key FROM messages ORDER BY id")
    for cipher in (OTHER, NO_CIPHER):
        with pytest.raises(DataKeyError):
            opened(tmp_path, cipher)
    with opened(tmp_path, CIPHER, write=False) as index:
        index.change_cipher(OTHER)
        assert found(index, "harpoon")[0] == "Ines: And the harpoon?"
    with opened(tmp_path, OTHER) as index:
        # No row gets another key, those without a text included.
        assert index.all("SELECT key FROM messages ORDER BY id") == keys
        request(index, [*CHAT, ("user", "Ines: When?")])
        assert len(on_path(index)) == 5
    # In clear again: still the same keys.
    with opened(tmp_path, OTHER, write=False) as index:
        index.change_cipher(NO_CIPHER)
    with opened(tmp_path) as index:
        request(index, [*CHAT, ("user", "Ines: When?"), ("assistant", "Tom: In May.")])
        assert (len(on_path(index)), found(index, "museum")[0]) == (6, "Tom: Sold to the museum.")


def test_what_another_process_writes_is_found(tmp_path: Path) -> None:
    with opened(tmp_path, CIPHER) as index:
        request(index, CHAT)
        assert found(index, "museum")
        with closing(sqlite3.connect(index.path)) as elsewhere, elsewhere:
            elsewhere.execute("UPDATE messages SET state = ? WHERE id = 4", (ELSEWHERE,))
            elsewhere.execute("UPDATE meta SET value = value + 1 WHERE name = 'version'")
        assert "museum" not in " ".join(found(index, "museum"))


def test_forgotten_rows_leave_no_text(tmp_path: Path) -> None:
    for cipher in (NO_CIPHER, CIPHER):
        folder = tmp_path / str(cipher.active)
        folder.mkdir()
        with opened(folder, cipher) as index:
            request(index, CHAT)
            with index.writing() as writing:
                writing.forget([4])
            assert "museum" not in " ".join(found(index, "museum"))
            # While the client still sends it, it does not come back.
            request(index, [*CHAT, ("user", "Ines: When?")])
            assert "museum" not in " ".join(found(index, "museum"))
            assert index.all("SELECT state, text FROM messages WHERE id = 4") == [(3, "")]
