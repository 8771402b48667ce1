"""A key of format 2 in a real server: from ``keys add`` to what is on the disk, after a kill, and its change."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from Middleware.utilities.discussions.key_salts import KEY_FOLDER_2, SALT_FILE
from Middleware.utilities.encryption_utils import hash_api_key
from Tests.integration.launcher import USER, Launcher, run_launcher
from Tests.integration.memory_chat import MemoryBackend, conversation, memory_tree
from Tests.integration.test_canary import recorded
from Tests.workflows.engine_lab import until

WAITRESS, EVENTLET = "run_waitress.py", "run_eventlet.py"
LONG_AGO = "a-key-that-has-been-there-for-years"
LIST = "accepted-keys.txt"


@dataclass
class Place:
    public: Path
    script: str

    def __post_init__(self) -> None:
        self.flags = ["--PublicDirectory", str(self.public), "--User", USER]
        self.root = self.public / "DiscussionIds"

    def run(self, *words: str) -> str:
        """Run a command of the program that ends well; return what it prints."""
        done = run_launcher(self.script, *words, "--PublicDirectory", self.public)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def new_key(self) -> str:
        (found,) = re.findall(r"wilmer-[\w-]{40,}", self.run("keys", "add", "--User", USER, "--console", "own"))
        return str(found)

    def started(self) -> Launcher:
        return Launcher(self.script, *self.flags, "--record", "texts", "--accepted-keys-file", str(self.public / LIST))

    def key_folders(self) -> set[str]:
        return {path.name for path in self.root.iterdir() if path.is_dir()}

    def files_with(self, *parts: bytes) -> list[str]:
        files = [path for path in self.public.rglob("*") if path.is_file() and path.name != LIST]
        return [
            str(path)
            for path in files
            if any(part in path.read_bytes() or part in str(path).encode() for part in parts)
        ]


def call(server: Launcher, key: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(
            "POST" if body else "GET",
            path,
            json.dumps(body) if body else None,
            {"Content-Type": "application/json", "Authorization": f"Bearer {key}", **headers},
        )
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def chat(server: Launcher, key: str, model: str, name: str) -> int:
    body = {"model": model, "messages": conversation(name, 24)}
    return call(server, key, "/v1/chat/completions", body, **{"X-Idempotency-Key": "1"})[0]


def hashes(key: str) -> list[bytes]:
    """The fast hash in the forms that a file may have it in."""
    digest = hashlib.sha256(key.encode())
    return [hash_api_key(key).encode(), digest.digest()[:8], hash_api_key(key).upper().encode()]


def runs_of(server: Launcher, key: str) -> list[Any]:
    status, found = call(server, key, "/console/api/runs?limit=50&status=ok")
    assert status == 200
    return [(run["id"], run["question"]) for run in found["runs"]]


@pytest.mark.parametrize(
    ("by", "vector"),
    [(WAITRESS, False), (WAITRESS, True), (EVENTLET, False)],
    ids=["files", "vectors", "files on Eventlet"],
)
def test_from_the_first_key_to_the_next(tmp_path: Path, by: str, vector: bool) -> None:
    place = Place(tmp_path / "Public", by)
    with MemoryBackend() as backend:
        tree = memory_tree(place.public, backend.url, vector=vector)
        settings = json.loads((tree.configs / f"Users/{USER}.json").read_text("utf-8"))
        tree.write(f"Users/{USER}.json", {**settings, "encryptUsingApiKey": True})
        stored = "vector_memory.db" if vector else "chat_summary.json"
        # Somebody who has been here for years, with a key that the list has got.
        (place.root / hash_api_key(LONG_AGO) / "old").mkdir(parents=True)
        (place.public / LIST).write_text(f"{LONG_AGO} console=own\n", encoding="utf-8")
        key = place.new_key()
        salt = (place.root / SALT_FILE).read_bytes()
        with place.started() as server:
            for one, name in ((key, "mill"), (LONG_AGO, "old")):
                assert chat(server, one, "Chat", name) == 200
            assert until(lambda: len(list(place.root.glob(f"*/*/{stored}"))) == 2)
            assert call(server, "wilmer-a-wrong-key", "/v1/models")[0] == 401
            (new,) = place.key_folders() - {hash_api_key(LONG_AGO)}
            assert KEY_FOLDER_2.fullmatch(new) and (place.root / new / "mill" / stored).exists()
            assert until(lambda: len(runs_of(server, key)) == len(runs_of(server, LONG_AGO)) == 1)
            assert until(lambda: recorded(place.public / "Console") == 2)
            before = runs_of(server, key)
            assert before[0][1] and before != runs_of(server, LONG_AGO)
            assert server.process
            server.process.kill()
            server.process.wait(60)
        assert place.files_with(*hashes(key), key.encode()) == []
        assert place.files_with(*hashes(LONG_AGO))  # so that it would have been found
        with place.started() as server:
            for one, name in ((key, "mill"), (LONG_AGO, "old")):
                backend.requests.clear()
                assert chat(server, one, "Recall", name) == 200
                assert any("#0#" in json.dumps(request.json) for request in backend.requests)
            assert before[0] in runs_of(server, key)
        listed = json.loads(place.run("memory", "list", "--json", "--User", USER, "--api-key", key))
        assert [(row["discussionId"], row["keyFolder"]) for row in listed] == [("mill", new)]
        # The old user follows, with the same key, and the new one gets another.
        place.run("rekey", "--User", USER, "--yes", "--api-key", LONG_AGO, "--new-api-key", LONG_AGO)
        third = "wilmer-the-third-key-of-these"
        place.run("rekey", "--User", USER, "--yes", "--api-key", key, "--new-api-key", third)
        assert salt == (place.root / SALT_FILE).read_bytes() and all(map(KEY_FOLDER_2.fullmatch, place.key_folders()))
        assert place.key_folders() & {new} == set() and len(place.key_folders()) == 2
        with place.started() as server:
            for one, name in ((third, "mill"), (LONG_AGO, "old")):
                assert chat(server, one, "Recall", name) == 200
            # Runs of both formats are its own, and deleted with the discussion.
            assert until(lambda: len(runs_of(server, LONG_AGO)) == 3)
            (place.root / SALT_FILE).unlink()
            status, answer = call(
                server, third, "/v1/chat/completions", {"model": "Chat", "messages": conversation("mill", 3)}
            )
            assert status == 500 and f"{SALT_FILE} is missing" in answer["error"]["message"]
            assert str(place.root) not in answer["error"]["message"]
            assert f"(file '{place.root / SALT_FILE}')" in server.wait_output("(file '")
            assert call(server, third, "/console/api/runs")[0] == 500
        assert not (place.root / SALT_FILE).exists()
