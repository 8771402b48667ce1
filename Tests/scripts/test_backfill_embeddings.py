"""The script that gives old memories vectors, against a real server."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.memory_rows import PostgresMemories
from Middleware.utilities.encryption_utils import NO_CIPHER
from Middleware.utilities.vector_math_utils import vector_to_blob
from Scripts import backfill_embeddings
from Tests.backend_dialects import ollama_embeddings, openai_embeddings
from Tests.llmapis.lab import Lab
from Tests.patience import CLIENT_PATIENCE
from Tests.stub_backend import Reply, StubBackend, json_reply, status_reply
from Tests.utilities.discussions.vector_memory.lab import CIPHER, item, old_database, opened

INSTALL = Path(__file__).resolve().parents[2]


def answer(request: Any) -> Reply:
    vectors = [[len(text), 0.5] for text in request.json["input"]]
    if request.path == "/api/embed":
        return json_reply(ollama_embeddings(vectors))
    return json_reply(openai_embeddings(vectors[::-1], list(range(len(vectors)))[::-1]))


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubBackend]:
    monkeypatch.setattr(backfill_embeddings, "PAUSE", 0.01)
    with StubBackend() as stub:
        stub.responder = answer
        yield stub


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "vector_memory.db"
    old_database(path, *("a" * number for number in range(1, 8)))
    return path


def run(path: Path, backend: StubBackend, *more: str) -> int:
    return backfill_embeddings.main(["--db", str(path), "--url", backend.url, "--model", "m", *more])


def stored(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT * FROM memory_embeddings ORDER BY model, memory_id").fetchall()


ALL = [(number, "m", 2, vector_to_blob([number, 0.5])) for number in range(1, 8)]


@pytest.mark.parametrize(
    ("shape", "endpoint", "slash"),
    [
        ([], "/v1/embeddings", ""),
        (["--api-shape", "openai"], "/v1/embeddings", "/v1/"),
        (["--api-shape", "ollama"], "/api/embed", "/"),
    ],
)
def test_everything_is_embedded_oldest_first(
    path: Path, backend: StubBackend, shape: list[str], endpoint: str, slash: str
) -> None:
    assert run(path, backend, "--batch-size", "3", *shape, "--url", backend.url + slash) == 0
    assert stored(path) == ALL
    assert [request.json for request in backend.requests] == [
        {"model": "m", "input": ["a" * number for number in batch]} for batch in ([1, 2, 3], [4, 5, 6], [7])
    ]
    assert {request.path for request in backend.requests} == {endpoint}
    assert "authorization" not in backend.requests[0].headers


def test_key(path: Path, backend: StubBackend) -> None:
    assert run(path, backend, "--api-key", "sk-1") == 0
    assert backend.requests[0].headers["authorization"] == "Bearer sk-1"


def test_only_gaps_of_the_model_are_filled(path: Path, backend: StubBackend) -> None:
    with opened(path) as memories:
        memories.add_embeddings([(number, b"abcd") for number in (1, 2, 4)], "m")
        memories.add_embeddings([(3, b"abcd")], "other")
    assert run(path, backend) == 0
    assert [request.json["input"] for request in backend.requests] == [["a" * number for number in (3, 5, 6, 7)]]
    assert (1, "m", 1, b"abcd") in stored(path) and (3, "other", 1, b"abcd") in stored(path)
    assert run(path, backend) == 0 and len(backend.requests) == 1


@pytest.mark.parametrize(
    "bad",
    [
        status_reply(500),
        status_reply(401),
        json_reply({}),
        json_reply([]),
        json_reply({"data": []}),
        json_reply({"data": [{"embedding": []}] * 3}),
        json_reply({"data": [{"embedding": ["x"]}] * 3}),
        json_reply({"data": [{"embedding": [1e39]}] * 3}),
        json_reply({"data": [{"embedding": [10**400]}] * 3}),
        Reply(body=b"no json"),
        Reply(drop="before_status"),
        Reply(status=302, headers={"Location": "/v1/embeddings"}),
    ],
)
def test_three_failures_in_a_row_stop_it(
    path: Path, backend: StubBackend, bad: Reply, capsys: pytest.CaptureFixture[str]
) -> None:
    backend.responder = lambda request: answer(request) if len(backend.requests) == 1 else bad
    assert run(path, backend, "--batch-size", "3") == 1
    assert len(backend.requests) == 5 and stored(path) == ALL[:3]  # what was done stays
    assert backend.requests[4].json["input"] == ["memory"]  # it is not because of the texts
    assert "4 memories remain" in capsys.readouterr().err
    backend.responder = answer
    assert run(path, backend) == 0 and stored(path) == ALL


def test_two_failures_in_a_row_do_not(path: Path, backend: StubBackend) -> None:
    backend.responder = lambda request: answer(request) if len(backend.requests) % 3 == 0 else status_reply(503)
    assert run(path, backend, "--batch-size", "3") == 0
    assert len(backend.requests) == 9 and stored(path) == ALL


def test_slow_server(path: Path, backend: StubBackend) -> None:
    backend.responder = lambda request: Reply(never=True)
    assert run(path, backend, "--timeout", "0.1") == 1 and len(backend.requests) == 4


@pytest.mark.parametrize("bad", [{4}, {1}, {7}, {1, 2, 3}, {2, 5, 7}, set(range(1, 8))])
@pytest.mark.parametrize("batch_size", ["1", "3", "32"])
def test_memories_that_the_server_does_not_take_are_skipped(
    path: Path, backend: StubBackend, bad: set[int], batch_size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    backend.responder = lambda request: (
        status_reply(400)
        if {len(text) for text in request.json["input"] if text != "memory"} & bad
        else answer(request)
    )
    assert run(path, backend, "--batch-size", batch_size) == 1
    assert stored(path) == [row for row in ALL if row[0] not in bad]
    named = ", ".join(map(str, sorted(bad)))
    assert f"makes no vectors of {len(bad)} memories: {named}\n" in capsys.readouterr().err


def test_a_server_that_takes_one_text_at_a_time(path: Path, backend: StubBackend) -> None:
    backend.responder = lambda request: answer(request) if len(request.json["input"]) == 1 else status_reply(500)
    assert run(path, backend) == 0 and stored(path) == ALL


@pytest.mark.parametrize("content", [None, b"", b"no database " * 100])
def test_no_memory_database(tmp_path: Path, backend: StubBackend, content: bytes | None) -> None:
    path = tmp_path / "other.db"
    if content is not None:
        path.write_bytes(content)
    assert run(path, backend) == 1 and not backend.requests
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([] if content is None else [content])


def test_database_without_memories(tmp_path: Path, backend: StubBackend) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("CREATE TABLE t (a)")
    before = (tmp_path / "other.db").read_bytes()
    assert run(tmp_path / "other.db", backend) == 1
    assert (tmp_path / "other.db").read_bytes() == before


def test_encrypted_database(tmp_path: Path, backend: StubBackend, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vector_memory.db"
    with opened(path, CIPHER) as memories:
        memories.store_chunk([item("secret")], None)
    assert run(path, backend) == 1 and not backend.requests and stored(path) == []
    assert "encrypted" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        ["--batch-size", "0"],
        ["--batch-size", "x"],
        ["--timeout", "0"],
        ["--timeout", "nan"],
        ["--api-shape", "x"],
        ["--url", "file:///etc/passwd"],
        ["--model"],
    ],
)
def test_wrong_arguments(path: Path, backend: StubBackend, wrong: list[str]) -> None:
    before = path.read_bytes()
    with pytest.raises(SystemExit) as stopped:
        run(path, backend, *wrong)
    assert stopped.value.code == 2 and path.read_bytes() == before


@pytest.mark.slow
def test_a_state_database_is_filled(
    backend: StubBackend,
    database: Database,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Lab(tmp_path / "Configs", monkeypatch)
    monkeypatch.setattr(backfill_embeddings, "apply_directories", lambda options, users: None)
    monkeypatch.setenv("WILMER_DATABASE_URL", database_url)

    def fill(*more: str) -> int:
        return backfill_embeddings.main(["--url", backend.url, "--model", "m", *more])

    for name, cipher in (("mill", NO_CIPHER), ("secret", CIPHER)):
        with PostgresMemories(database, "", "", name, write=True, cipher=cipher) as memories:
            memories.store_chunk([item("a" * number) for number in range(1, 8)], "h")
    assert fill("--discussion", "mill", "--batch-size", "3") == 0 == fill("--discussion", "mill")
    with PostgresMemories(database, "", "", "mill") as memories:
        assert memories.embeddings("m") == [(number, blob) for number, _, _, blob in ALL]
    assert fill("--discussion", "secret") == 1 and "is encrypted" in capsys.readouterr().err
    assert fill("--discussion", "nothing") == 1 and "no searchable memories" in capsys.readouterr().err
    assert fill("--discussion", "../mill") == 1 and "name of a folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        fill()


def test_it_runs_from_anywhere(path: Path, backend: StubBackend, tmp_path: Path) -> None:
    script = INSTALL / "Scripts" / "backfill_embeddings.py"
    done = subprocess.run(
        [sys.executable, str(script), "--db", path.name, "--url", backend.url, "--model", "m"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=CLIENT_PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "") and stored(path) == ALL
