"""Two users of one server whose clients send the same API key, and data that belongs to another key."""

from __future__ import annotations

import http.client
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from Middleware.utilities.discussions.vector_memory import VectorMemories
from Middleware.utilities.encryption_utils import Cipher, cipher_for, derive_encryption_key, hash_api_key
from Tests.integration.launcher import USER, Launcher
from Tests.integration.memory_chat import MemoryBackend, conversation, memory_tree
from Tests.patience import CLIENT_PATIENCE
from Tests.workflows.engine_lab import until

KEY, OTHER_USER = "secretkey", "bob"
FILES = ("memories.json", "chat_summary.json", "timestamps.json", "context_compactor_old.json")
FIRST_LENGTH, MORE = 24, 12


@dataclass
class Server:
    launcher: Launcher
    discussions: Path

    def ask(
        self,
        user: str,
        model: str,
        name: str,
        length: int,
        stream: bool = False,
        path: str = "/v1/chat/completions",
        **key: str,
    ) -> tuple[int, Any]:
        """Status and body of an answer; the body is text if it was streamed. ``key``: its header, ``_`` for ``-``."""
        connection = http.client.HTTPConnection("127.0.0.1", self.launcher.port, timeout=CLIENT_PATIENCE)
        body = json.dumps({"model": f"{user}:{model}", "messages": conversation(name, length), "stream": stream})
        try:
            headers = {name.replace("_", "-"): value for name, value in key.items()} or {
                "Authorization": f"Bearer {KEY}"
            }
            connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            data = response.read()
            return response.status, data.decode("utf-8") if stream else json.loads(data)
        finally:
            connection.close()

    def folder(self, name: str) -> Path:
        return self.discussions / hash_api_key(KEY) / name


@pytest.fixture(scope="module", params=[False, True], ids=["files", "vectors"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    public = tmp_path_factory.mktemp("shared") / "Public"
    with MemoryBackend() as backend:
        tree = memory_tree(public, backend.url, vector=request.param)
        user = tree.configs / "Users" / f"{USER}.json"
        user.write_text(json.dumps({**json.loads(user.read_text("utf-8")), "encryptUsingApiKey": True}), "utf-8")
        shutil.copy(user, user.with_name(f"{OTHER_USER}.json"))
        shutil.copytree(tree.configs / "Workflows" / USER, tree.configs / "Workflows" / OTHER_USER)
        with Launcher("run_waitress.py", "--PublicDirectory", public, "--User", USER, "--User", OTHER_USER) as started:
            yield Server(started, public / "DiscussionIds")


def test_users_with_one_key_go_on_in_turn(server: Server, request: pytest.FixtureRequest) -> None:
    folder, length = server.folder("mill"), FIRST_LENGTH
    cipher = cipher_for(derive_encryption_key(KEY, USER))  # of the user who was first, alone
    for user in (USER, OTHER_USER, USER):
        before = _stored(folder, cipher)
        assert server.ask(user, "Chat", "mill", length)[0] == 200
        assert until(lambda: _stored(folder, cipher) > before), before  # noqa: B023 - it is asked for at once
        assert server.ask(user, "Recall", "mill", length)[0] == 200
        length += MORE
    assert server.launcher.output().count("another API key") == 0


def test_a_key_is_the_same_in_the_header_of_anthropics_clients(server: Server) -> None:
    folder, cipher = server.folder("hill"), cipher_for(derive_encryption_key(KEY, USER))
    assert server.ask(USER, "Chat", "hill", FIRST_LENGTH, path="/v1/messages", x_api_key=f" {KEY} ")[0] == 200
    assert until(lambda: _stored(folder, cipher) > 0)
    assert server.ask(USER, "Recall", "hill", FIRST_LENGTH)[0] == 200
    # On the other routes that header is not a key, so there is none.
    assert server.ask(USER, "Chat", "dale", FIRST_LENGTH, x_api_key=KEY)[0] == 200
    assert not server.folder("dale").exists()


def _stored(folder: Path, cipher: Cipher) -> int:
    """How many memories there are. Raises DataKeyError if anything does not fit the key."""
    for name in FILES:
        if (folder / name).exists():
            cipher.decrypt((folder / name).read_bytes())
    if (folder / "vector_memory.db").exists():
        with VectorMemories(str(folder / "vector_memory.db"), cipher=cipher) as memories:
            return len(list(memories.all_memories()))
    memories_file = folder / "memories.json"
    return len(json.loads(cipher.decrypt(memories_file.read_bytes()))) if memories_file.exists() else 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_data_of_another_key_is_an_error_and_stays(server: Server, stream: bool) -> None:
    folder = server.folder(f"foreign-{stream}")
    folder.mkdir(parents=True)
    token = cipher_for(derive_encryption_key("sk-other", USER)).encrypt(b"{}")
    for name in FILES:
        (folder / name).write_bytes(token)
    status, body = server.ask(USER, "Chat", folder.name, FIRST_LENGTH, stream)
    assert status == 500
    assert "belongs to another API key or user" in (json.loads(body) if stream else body)["error"]["message"]
    text = json.loads(body) if stream else body
    assert folder.name not in text["error"]["message"]
    assert f"(file '{folder.name}/" in server.launcher.wait_output(f"(file '{folder.name}/")
    time.sleep(0.1)
    assert all((folder / name).read_bytes() == token for name in FILES)
