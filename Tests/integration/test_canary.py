"""With a client's key and encryption, no word of a conversation is on disk or in the log, and everything works.

The same conversation without encryption proves that the search finds what is there.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import shutil
import sqlite3
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from Middleware.utilities.encryption_utils import derive_encryption_key, hash_api_key
from Tests.integration.canary_chat import (
    BROKEN,
    ECHO,
    FILES,
    SENTENCE,
    VECTORS,
    CanaryBackend,
    canary_tree,
    console_hits,
    conversation,
    hits,
    odd_requests,
    recorded,
    tool_call_reply,
)
from Tests.integration.launcher import Launcher, Response, run_launcher
from Tests.patience import CLIENT_PATIENCE, PATIENCE
from Tests.postgres_lab import Server, name_in, need_postgres
from Tests.stub_backend import chat_reply, json_reply, status_reply
from Tests.workflows.engine_lab import until

KEY, OTHER_KEY, SECRET = "the-clients-own-key", "another-clients-key", "sk-endpoint-secret-1234"
UNKNOWN_KEY = "a-key-nobody-accepts"
CHATS = {FILES: "chat-of-files", VECTORS: "chat-of-vectors"}
CHAT = CHATS[VECTORS]
TOOLS = [{"type": "function", "function": {"name": "note", "description": SENTENCE, "parameters": {"type": "object"}}}]
# A copy of a conversation under the name of another key.
MOVE = (
    """
WITH copied AS (INSERT INTO wilmer.discussions (space, key_hash, discussion_id, memory_version)
    SELECT space, '{other}', '{stolen}', memory_version FROM wilmer.discussions
    WHERE key_hash = '{key}' AND discussion_id = '{chat}' RETURNING id)
INSERT INTO wilmer.documents (discussion, name, content, version)
    SELECT copied.id, name, content, version FROM copied, wilmer.documents JOIN wilmer.discussions AS source
    ON source.id = discussion WHERE source.key_hash = '{key}' AND source.discussion_id = '{chat}'""",
    """
INSERT INTO wilmer.memories SELECT target.id, found.id, memory_text, date_added, metadata_json, with_topics
    FROM wilmer.discussions AS target, wilmer.memories AS found JOIN wilmer.discussions AS source
    ON source.id = found.discussion WHERE source.key_hash = '{key}' AND source.discussion_id = '{chat}'
    AND target.discussion_id = '{stolen}'""",
)
FAILING = ("Echo", "Later", "Endpoint", "Preset", "Script", "NoScript", "Fetch", "Url", "Blocked", "Mcp", "Curl", "Rag")


@dataclass
class Run:
    """A server after a conversation, still running; ``answers``: those of the workflows that fail."""

    server: Launcher
    backend: CanaryBackend
    public: Path
    temporary: Path
    answers: dict[str, Response]

    @property
    def places(self) -> tuple[Path, ...]:
        return (
            self.public / "DiscussionIds",
            self.public / "SqlLiteDBs",
            self.public / "logs",
            self.public / "cursors",
            self.temporary,
        )

    def folder(self, chat: str, key: str = KEY) -> Path:
        return self.public / "DiscussionIds" / hash_api_key(key) / chat


def ask(server: Launcher, model: str, messages: list[dict[str, Any]], key: str = KEY, **fields: Any) -> Response:
    """One chat completion with a client's key, and everything that runs after its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=CLIENT_PATIENCE)
    try:
        since = server.output_size()
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps({"model": model, "messages": messages, **fields}),
            {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
        )
        response = connection.getresponse()
        answer = Response(response.status, dict(response.getheaders()), response.read())
        until(lambda: "done after" in server.output(since), PATIENCE if answer.status == 200 else 0.5)
        return answer
    finally:
        connection.close()


def talk(server: Launcher, user: str, turns: int, key: str = KEY) -> None:
    """A conversation that grows by two messages a turn, every second one streamed."""
    for turn in range(turns):
        answer = ask(
            server, f"{user}:Talk", conversation(CHATS[user], 3 + 4 * turn), key, stream=bool(turn % 2), tools=TOOLS
        )
        assert answer.status == 200, answer.body


def fail(server: Launcher, backend: CanaryBackend) -> dict[str, Response]:
    answers = {}
    for stream in (False, True):
        for name in FAILING:
            backend.broken |= {"echo": ECHO, "embed": ECHO}
            answers[name] = ask(server, f"{VECTORS}:{name}", conversation(CHAT, 3), stream=stream)
    for stream, replies in BROKEN.items():
        for reply in replies:
            backend.broken["echo"] = reply
            ask(server, f"{VECTORS}:Echo", conversation(CHAT, 3), stream=stream)
    for path, body in odd_requests(CHAT):
        send(server, path, body)
    return answers


def send(server: Launcher, path: str, body: bytes) -> int:
    """A request in any dialect; returns the status."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=CLIENT_PATIENCE)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def started(public: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> Launcher:
    temporary.mkdir(exist_ok=True)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("SQLITE_TMPDIR", str(temporary))
    return Launcher(
        "run_waitress.py",
        "--PublicDirectory",
        public,
        "--User",
        FILES,
        "--User",
        VECTORS,
        "--file-logging",
        "--log-level",
        "DEBUG",
        *more,
    )


def whole_run(folder: Path, turns: int, *more: str, fails: bool = True, **tree: Any) -> Iterator[Run]:
    public, temporary = folder / "Public", folder / "tmp"
    with pytest.MonkeyPatch.context() as monkeypatch, CanaryBackend() as backend:
        canary_tree(public, backend.url, **tree)
        with started(public, temporary, monkeypatch, *more) as server:
            backend.broken |= dict.fromkeys(("memory", "condense", "summary", "old", "neutral", "state"), ECHO)
            backend.broken |= {
                "tools": tool_call_reply(),
                "facts": json_reply(
                    {
                        "choices": [
                            {
                                "message": {"role": "assistant", "content": f'[{{"title": {SENTENCE}'},
                                "finish_reason": "stop",
                            }
                        ]
                    }
                ),
            }
            for user in (FILES, VECTORS):
                talk(server, user, turns)
            yield Run(server, backend, public, temporary, fail(server, backend) if fails else {})


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from whole_run(tmp_path_factory.mktemp("encrypted"), 6, "--record", "texts", encrypt=True)


@pytest.fixture(scope="module")
def clear(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from whole_run(tmp_path_factory.mktemp("clear"), 5, encrypt=False)


def test_nothing_that_was_said_is_on_disk(encrypted: Run) -> None:
    assert hits(*encrypted.places) == []
    assert (encrypted.public / "logs" / VECTORS / "wilmerai.log").stat().st_size > 10_000


@pytest.mark.parametrize("run", ["encrypted", "clear"])
def test_nothing_that_was_said_is_recorded(run: str, request: pytest.FixtureRequest) -> None:
    """Texts only encrypted, and without --record none."""
    here: Run = request.getfixturevalue(run)
    assert until(lambda: recorded(here.public / "Console") > 50)
    assert console_hits(here.public / "Console") == []


def console(server: Launcher, path: str, token: str = "", body: Any = None) -> Any:
    """What a call of the console's API answers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=CLIENT_PATIENCE)
    try:
        connection.request(
            "POST" if body else "GET",
            f"/console/api/{path}",
            json.dumps(body) if body else None,
            {"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
        )
        response = connection.getresponse()
        assert response.status == 200
        return json.loads(response.read())
    finally:
        connection.close()


def test_only_its_own_key_shows_what_was_said(encrypted: Run) -> None:
    assert until(lambda: recorded(encrypted.public / "Console") > 50)
    link = run_launcher("run_waitress.py", "console", "--PublicDirectory", encrypted.public).stdout
    proofs = {"own": {"key": KEY}, "other": {"key": OTHER_KEY}, "operator": {"code": link.strip().split("signin=")[1]}}
    tokens = {name: console(encrypted.server, "session", body=proof)["token"] for name, proof in proofs.items()}
    listed = {
        name: console(encrypted.server, "runs?limit=200&status=ok", token)["runs"] for name, token in tokens.items()
    }
    assert listed["own"] and all(SENTENCE in str(run["question"]) for run in listed["own"][-20:])
    seen = {run["id"] for run in listed["own"]}
    assert not seen & {run["id"] for run in listed["other"]}
    # The operator sees that there were runs, and nothing of what was said.
    assert seen & {run["id"] for run in listed["operator"]}
    for run in listed["operator"]:
        assert (run["question"], run["answer"], run["texts"]) == (None, None, "private")
    oldest = listed["own"][-1]["id"]
    attempt = next(
        row[0] for row in console(encrypted.server, f"runs/{oldest}", tokens["own"])["spans"] if row[2] == "attempt"
    )
    path = f"runs/{oldest}/texts/{attempt}"
    assert SENTENCE in json.dumps(console(encrypted.server, path, tokens["own"]), ensure_ascii=False)
    assert console(encrypted.server, path, tokens["operator"]) == {}


def test_nothing_that_was_said_is_printed(encrypted: Run, tmp_path: Path) -> None:
    (tmp_path / "output.txt").write_text(encrypted.server.output(), encoding="utf-8")
    assert hits(tmp_path) == []


def test_without_encryption_everything_is_found(clear: Run) -> None:
    found = "\n".join(hits(*clear.places))
    for name in (
        "memories.json",
        "chat_summary.json",
        "context_compactor_old.json",
        "vector_memory.db",
        "state_document.md",
        "vision_responses.json",
        "wilmerai.log",
    ):
        assert f"{name}: " in found, f"{name} is not among\n{found}"


@pytest.mark.parametrize("run", ["encrypted", "clear"])
def test_what_is_remembered_comes_back(run: str, request: pytest.FixtureRequest) -> None:
    here: Run = request.getfixturevalue(run)
    for user, remembered in ((FILES, ("memory says", "summary says")), (VECTORS, ("facts says", "state says"))):
        answer = ask(here.server, f"{user}:Talk", conversation(CHATS[user], 3))
        prompt = here.backend.seen("answer")
        assert answer.status == 200
        for text in (*remembered, "vision says", "page says", "under Zyxophant"):
            assert text in prompt, f"'{text}' of {user} is not in {prompt}"


def test_what_lies_there_is_encrypted_and_private(encrypted: Run) -> None:
    folders = [encrypted.folder(chat) for chat in CHATS.values()]
    files = [file for folder in folders for file in folder.iterdir()]
    assert {
        "memories.json",
        "chat_summary.json",
        "timestamps.json",
        "context_compactor_old.json",
        "vision_responses.json",
        "state_document.md",
        "vector_memory.db",
        "message_index.db",
    } <= {file.name for file in files}
    for file in files:
        assert file.suffix not in (".json", ".md", ".bak") or file.read_bytes().startswith(b"gAAAA"), file.name
    if sys.platform != "win32":
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert {stat.S_IMODE(path.stat().st_mode) for path in (*folders, folders[0].parent)} == {0o700}
    path = encrypted.folder(CHATS[VECTORS]) / "vector_memory.db"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        assert database.execute("SELECT count(*) FROM memory_embeddings").fetchone()[0] > 0
        assert database.execute("SELECT count(*) FROM memories_fts").fetchone()[0] == 0


@pytest.mark.parametrize("name", FAILING)
def test_the_client_is_told_and_the_log_says_where(encrypted: Run, name: str) -> None:
    """So that silence is not taken for safety: each of these wrote something into the log."""
    told = {"Later": "orkflow _shared/Later, node 2", "Script": "A script failed in Invoke"}
    assert told.get(name, f"workflow '{name}'") in encrypted.server.output()
    assert encrypted.answers[name].status in (200, 400, 500, 502)


def test_another_key_has_a_conversation_of_its_own(encrypted: Run) -> None:
    for user in (FILES, VECTORS):
        assert ask(encrypted.server, f"{user}:Talk", conversation(CHATS[user], 3), OTHER_KEY).status == 200
        prompt = encrypted.backend.seen("answer")
        assert "memory says" not in prompt and "facts says" not in prompt and "state says" not in prompt
        assert encrypted.folder(CHATS[user], OTHER_KEY).is_dir()


def test_users_with_the_same_key_share_a_discussion(encrypted: Run) -> None:
    answers = [ask(encrypted.server, f"{user}:Talk", conversation("shared", 9)) for user in (FILES, VECTORS, FILES)]
    assert [answer.status for answer in answers] == [200, 200, 200]


def content(folder: Path) -> dict[str, bytes]:
    """What is in the files that hold something; reading a database makes and removes files beside it."""
    beside = (".lock", "-wal", "-shm")
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith(beside)}


@pytest.mark.parametrize("user", [FILES, VECTORS])
def test_data_of_another_key_is_refused_and_left_alone(encrypted: Run, user: str) -> None:
    stolen = encrypted.folder(f"stolen-{user}", OTHER_KEY)
    shutil.copytree(encrypted.folder(CHATS[user]), stolen)
    before = content(stolen)
    answer = ask(encrypted.server, f"{user}:Talk", conversation(stolen.name, 9), OTHER_KEY)
    assert answer.status == 500 and "another API key or user" in answer.error
    assert "gAAAA" not in encrypted.backend.seen("answer") and content(stolen) == before


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_large_request_is_not_kept_in_a_file(encrypted: Run) -> None:
    """Servers and their libraries may put large bodies into files without a name."""
    assert encrypted.server.process is not None
    encrypted.backend.broken["echo"] = chat_reply(SENTENCE * 20_000, header_delay=0.5)
    messages = [{"role": "user", "content": SENTENCE * 40_000}]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, encrypted.server, f"{VECTORS}:Echo", messages)
        opened = set()
        while not answer.done():
            opened |= set(_open_files(encrypted.server.process.pid))
    assert answer.result().status == 200
    assert not [name for name in opened if "(deleted)" in name or name.startswith(str(encrypted.temporary))]


def _open_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        with contextlib.suppress(OSError):
            yield os.readlink(f"{folder}/{number}")


# -- state database ----------------------------------------------------------------------------------------------------


@pytest.fixture
def chatty_postgres() -> Iterator[Server]:
    """A server that logs each statement with its parameters."""
    need_postgres()
    server = Server(log_statement="all")
    yield server
    server.remove()


def written(postgres: Server, database: str, folder: Path) -> str:
    """Put a dump of a database and the server's log into a folder, beside the bytes that stand in them as digits."""
    folder.mkdir()
    texts = {"dump": postgres.dump(database), "log": postgres.log.read_text("utf-8", "replace")}
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
        (folder / f"{name}-bytes").write_bytes(
            b"\n".join(bytes.fromhex(found) for found in re.findall(r"\\x((?:[0-9a-f]{2})+)", text))
        )
    return "".join(texts.values())


def test_nothing_that_was_said_is_in_the_database_or_its_log(tmp_path: Path, chatty_postgres: Server) -> None:
    url = chatty_postgres.new_database()
    for run in whole_run(tmp_path, 6, "--database", url, fails=False, encrypt=True):
        text = written(chatty_postgres, name_in(url), tmp_path / "before")
        assert hits(tmp_path / "before", run.public / "logs", run.temporary) == []
        # There was something to find.
        for name in (
            "memories.json",
            "chat_summary.json",
            "state_document.md",
            "vision_responses.json",
            "gAAAA",
            "INSERT INTO wilmer.memories",
            "INSERT INTO wilmer.messages",
            "wilmer.workflow_locks",
        ):
            assert name in text, name
        derived = derive_encryption_key(KEY, FILES)
        for secret in (KEY, OTHER_KEY, derived.decode("ascii"), derived.hex(), base64.urlsafe_b64decode(derived).hex()):
            assert secret not in text
        assert not any(path.is_dir() for path in (run.public / "DiscussionIds").iterdir())
        for user, remembered in ((FILES, "memory says"), (VECTORS, "facts says")):
            assert ask(run.server, f"{user}:Talk", conversation(CHATS[user], 3)).status == 200
            assert remembered in run.backend.seen("answer")
            assert ask(run.server, f"{user}:Talk", conversation(CHATS[user], 3), OTHER_KEY).status == 200
            prompt = run.backend.seen("answer")
            assert "memory says" not in prompt and "facts says" not in prompt and "state says" not in prompt
            # Not even where an administrator has moved the rows.
            stolen = f"stolen-{user}"
            for statement in MOVE:
                chatty_postgres.sql(
                    statement.format(
                        chat=CHATS[user], stolen=stolen, key=hash_api_key(KEY), other=hash_api_key(OTHER_KEY)
                    ),
                    name_in(url),
                )
            answer = ask(run.server, f"{user}:Talk", conversation(stolen, 9), OTHER_KEY)
            assert answer.status == 500 and "another API key or user" in answer.error
            assert "gAAAA" not in run.backend.seen("answer")
        written(chatty_postgres, name_in(url), tmp_path / "after")
        assert hits(tmp_path / "after", run.public / "logs", run.temporary) == []


def test_without_encryption_the_database_and_its_log_have_it(tmp_path: Path, chatty_postgres: Server) -> None:
    """So that nothing found means that nothing is there."""
    url = chatty_postgres.new_database()
    for run in whole_run(tmp_path, 5, "--database", url, fails=False, encrypt=False):
        written(chatty_postgres, name_in(url), tmp_path / "text")
        found = "\n".join(hits(tmp_path / "text"))
        for name in ("dump: ", "dump-bytes: ", "log: ", "log-bytes: "):
            assert name in found
        assert ask(run.server, f"{FILES}:Talk", conversation(CHATS[FILES], 3)).status == 200


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_keys_are_told_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the clients' nor the endpoint's, also if a back-end repeats what it was sent."""
    accepted = tmp_path / "keys.txt"
    accepted.write_text(f"{KEY}\n{OTHER_KEY}\n", encoding="utf-8")
    with CanaryBackend() as backend:
        tree = canary_tree(tmp_path / "Public", backend.url, encrypt=False)
        path = tree.configs / "Endpoints" / "Stub.json"
        tree.write("Endpoints/Stub.json", {**json.loads(path.read_bytes()), "apiKey": SECRET})
        with started(tree.public, tmp_path / "tmp", monkeypatch, "--accepted-keys-file", str(accepted)) as server:
            assert ask(server, f"{FILES}:Echo", conversation(CHAT, 3), UNKNOWN_KEY).status == 401
            backend.broken["echo"] = status_reply(401, f"wrong key: Bearer {SECRET}")
            answer = ask(server, f"{FILES}:Echo", conversation(CHAT, 3))
            assert answer.status == 502 and SECRET not in str(answer) and KEY not in str(answer)
            assert ask(server, f"{FILES}:Talk", conversation(CHAT, 3)).status == 200
            assert f"Bearer {SECRET}" in backend.requests[0].headers.values()
            assert server.process is not None
            seen = server.output() + _arguments(server.process.pid)
        logs = "".join(file.read_text(encoding="utf-8") for file in (tree.public / "logs").rglob("*.log*"))
        stored = b"".join(file.read_bytes() for file in (tree.public / "DiscussionIds").rglob("*") if file.is_file())
    for secret in (SECRET, KEY, OTHER_KEY, UNKNOWN_KEY):
        assert secret not in seen and secret not in logs and secret.encode() not in stored


def _arguments(pid: int) -> str:
    """What others see of a process, where that can be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file, open(f"/proc/{pid}/comm", "rb") as name:
            return os.fsdecode(file.read() + name.read())
    except OSError:
        return ""


# -- without any key ---------------------------------------------------------------------------------------------------


def test_without_a_flag_only_debug_tells_what_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CanaryBackend() as backend:
        tree = canary_tree(tmp_path / "Public", backend.url, encrypt=False)
        shutil.copyfile(tree.configs / "Workflows/_shared/Chat.json", tree.configs / "Workflows/_shared/Plain.json")
        with Launcher(
            "run_waitress.py", "--PublicDirectory", tree.public, "--User", FILES, "--file-logging", "--record", "texts"
        ) as server:
            for turn in range(3):
                assert ask(server, "Plain", conversation(CHAT, 3 + 4 * turn)).status == 200
            assert until(lambda: bool(console_hits(tree.public / "Console")))
        assert hits(tree.public / "DiscussionIds") and hits(tree.public / "logs") == []


def test_redaction_alone_keeps_the_log_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in whole_run(tmp_path, 2, "--record", "texts", encrypt=False, redact=True):
        assert until(lambda: recorded(run.public / "Console") > 50)  # noqa: B023
        assert console_hits(run.public / "Console") == []
        assert hits(run.public / "DiscussionIds") and hits(run.public / "logs", run.temporary) == []
