"""What is stored of messages under a key, and what becomes of files in clear and of other keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from Middleware.exceptions import DataKeyError
from Middleware.services.memory.recall import Recall, recall
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher
from Middleware.utilities.vector_math_utils import vector_to_blob
from Tests.utilities.discussions.message_index.lab import on_path, opened, request, stored
from Tests.utilities.discussions.vector_memory.lab import CIPHER, OTHER

pytestmark = pytest.mark.usefixtures("anywhere")

CHAT = [
    ("user", "Ines: Where is the lantern of the lighthouse?"),
    ("assistant", "Tom: On the shelf behind the barometer."),
    ("user", "Ines: And the harpoon?"),
    ("assistant", "Tom: Sold to the museum."),
]
WORDS = [b"lantern", b"lighthouse", b"barometer", b"harpoon", b"museum", b"Ines", b"Tom"]


def found(index: MessageIndex, question: str) -> list[str]:
    return recall(index, Recall(question, who_said_it="off")).lines


def test_no_word_is_stored_and_all_is_found(tmp_path: Path) -> None:
    with opened(tmp_path, CIPHER) as index:
        before = [("user", "Ines: Good morning to you."), ("assistant", "Tom: And to you, how was the night?")]
        request(index, [*before, *CHAT])
        request(index, [*before, *CHAT[:1], ("assistant", "Tom: In the cellar with the anchor."), *CHAT[2:]])
        lines = found(index, "lantern")
        assert lines[0] == "Ines: Where is the lantern of the lighthouse?"
        # Said when it was edited, as far as is known.
        assert "[2 February 2026] Tom: In the cellar with the anchor." in lines
        assert "barometer" not in " ".join(found(index, "barometer"))
        # With the log of the database, which another reader keeps from going.
        assert [word for word in (*WORDS, b"anchor") if word in stored(tmp_path)] == []
        assert index.all("SELECT DISTINCT length(key) FROM messages") == [(8,)]


def test_keys_are_not_bare_hashes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with opened(tmp_path / "a", CIPHER) as one, opened(tmp_path / "b", CIPHER) as two:
        request(one, CHAT)
        request(two, CHAT)
        keys = "SELECT key FROM messages"
        assert not {*one.all(keys)} & {*two.all(keys)}


def test_an_index_in_clear_is_encrypted_by_the_first_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as index:
        request(index, CHAT)
    assert b"barometer" in stored(tmp_path)
    with opened(tmp_path, CIPHER, write=False) as index:
        assert found(index, "barometer")[0] == "Tom: On the shelf behind the barometer."
    assert caplog.messages == ["Stored data that is not encrypted yet was read; its next write encrypts it."]
    with opened(tmp_path, CIPHER) as index:
        assert [word for word in WORDS if word in stored(tmp_path)] == []
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


@pytest.mark.parametrize("cipher", [NO_CIPHER, CIPHER], ids=["clear", "encrypted"])
def test_vectors_are_found_under_any_key(tmp_path: Path, cipher: Cipher) -> None:
    with opened(tmp_path, cipher) as index:
        request(index, CHAT)
        assert [row.id for row in index.without_vectors("m", 4, 10)] == [1, 2, 4]
        index.add_vectors([(1, vector_to_blob([1.0, 0.0])), (2, vector_to_blob([0.0, 1.0])), (9, b"")], "m")
        index.add_vectors([(2, vector_to_blob([1.0, 1.0]))], "m")
        assert index.similarities([0.0, 1.0], "m") == pytest.approx({1: 0.0, 2: 0.7071}, abs=1e-3)
        index.change_cipher(OTHER)
        assert index.similarities([1.0, 0.0], "m") == pytest.approx({1: 1.0, 2: 0.7071}, abs=1e-3)
        index.forget([1])
        assert [row.id for row in index.without_vectors("m", 4, 10)] == [4]
        assert index.all("SELECT message_id FROM message_embeddings") == [(2,)]
