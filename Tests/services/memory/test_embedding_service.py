"""Vectors for memories, from real servers into real databases."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import BackendError, ConfigurationError, EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import Process
from Middleware.services.memory import embedding_service
from Middleware.utilities.discussions.vector_memory import VectorMemories
from Middleware.utilities.encryption_utils import NO_CIPHER
from Middleware.utilities.once import Once
from Middleware.utilities.vector_math_utils import blob_to_vector
from Tests.backend_dialects import embed, openai_embeddings
from Tests.llmapis.lab import Lab
from Tests.stub_backend import Reply, StubBackend, json_reply, status_reply
from Tests.utilities.discussions.vector_memory.lab import CIPHER, item, opened


def answer(request: Any) -> Reply:
    """One vector for each text: its length, and 1."""
    return embed(request, lambda text: [len(text), 1])


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab = Lab(tmp_path / "config", monkeypatch)
    lab.write("ApiTypes/Embed", {"type": "openAIEmbeddings"})
    return lab


@pytest.fixture
def backend(lab: Lab) -> Iterator[StubBackend]:
    with StubBackend() as stub:
        stub.responder = answer
        lab.endpoint("Embed", {"apiTypeConfigFileName": "Embed"}, stub.url)
        yield stub


@pytest.fixture(params=[NO_CIPHER, CIPHER], ids=["clear", "encrypted"])
def memories(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VectorMemories]:
    with opened(tmp_path / "vector_memory.db", request.param) as database:
        database.store_chunk([item("a" * number) for number in range(1, 7)], None)
        yield database


def inputs(backend: StubBackend) -> list[list[int]]:
    return [[len(text) for text in request.json["input"]] for request in backend.requests]


def stored(memories: VectorMemories) -> dict[int, list[float]]:
    return {number: blob_to_vector(blob) for number, blob in memories.embeddings("model-x")}


def test_texts(backend: StubBackend) -> None:
    service = embedding_service.EmbeddingService("Embed")
    assert (service.model_name, service.embed(["a", "bcd"])) == ("model-x", [[1.0, 1.0], [3.0, 1.0]])


def test_texts_of_a_cancelled_request(backend: StubBackend) -> None:
    scope = CancelScope()
    scope.cancel()
    assert embedding_service.EmbeddingService("Embed", scope=scope).embed(["a"]) is None and not backend.requests


@pytest.mark.parametrize(("endpoint", "error"), [("Nowhere", ConfigurationError), ("Main", ConfigurationError)])
def test_wrong_endpoints(backend: StubBackend, endpoint: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        embedding_service.EmbeddingService(endpoint).embed(["a"])


def test_failing_server(backend: StubBackend) -> None:
    backend.responder = lambda request: status_reply(500)
    with pytest.raises(BackendError):
        embedding_service.EmbeddingService("Embed").embed(["a"])


@pytest.mark.parametrize(("backfill", "older"), [(0, []), (2, [1, 2]), (20, [1, 2, 3, 4])])
def test_new_rows_and_older_ones_in_one_call(
    backend: StubBackend, memories: VectorMemories, backfill: int, older: list[int]
) -> None:
    assert embedding_service.embed_new_rows(memories, [5, 6], "Embed", backfill) == 2 + len(older)
    assert [request.json["input"] for request in backend.requests] == [["a" * number for number in [5, 6, *older]]]
    assert stored(memories) == {number: [number, 1.0] for number in [*older, 5, 6]}


def test_vectors_of_other_models_stay(backend: StubBackend, memories: VectorMemories) -> None:
    memories.add_embeddings([(1, b"abcd")], "other")
    embedding_service.embed_new_rows(memories, [1], "Embed", 0)
    assert memories.embeddings("other") == [(1, b"abcd")] and list(stored(memories)) == [1]


def test_nothing_to_embed_needs_no_call(backend: StubBackend, memories: VectorMemories) -> None:
    assert embedding_service.embed_new_rows(memories, [], "Embed", 0) == 0 and not backend.requests


def test_a_batch_that_is_refused_is_sent_without_older_rows(backend: StubBackend, memories: VectorMemories) -> None:
    backend.responder = lambda request: status_reply(400) if "a" in request.json["input"] else answer(request)
    assert embedding_service.embed_new_rows(memories, [5, 6], "Embed", 2) == 3
    assert inputs(backend) == [[5, 6, 1, 2], [5, 6], [1, 2], [1], [2]] and list(stored(memories)) == [2, 5, 6]


MALFORMED = json_reply({"data": []})


@pytest.mark.parametrize("reply", [status_reply(400), status_reply(413), status_reply(500), MALFORMED])
def test_a_row_that_no_server_takes_stops_nothing(
    backend: StubBackend, memories: VectorMemories, reply: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried once in the life of the process; the rows behind it get their turn."""
    backend.responder = lambda request: reply if "aa" in request.json["input"] else answer(request)
    assert embedding_service.embed_new_rows(memories, [6], "Embed", 3) == 3 and list(stored(memories)) == [1, 3, 6]
    assert "memory 2" in caplog.text
    backend.requests.clear()
    assert embedding_service.embed_new_rows(memories, [], "Embed", 3) == 2
    assert inputs(backend) == [[4, 5]] and list(stored(memories)) == [1, 3, 4, 5, 6]


@pytest.mark.parametrize("cipher", [NO_CIPHER, CIPHER], ids=["clear", "encrypted"])
def test_a_conversation_begun_anew_has_hope_again(backend: StubBackend, tmp_path: Path, cipher: Any) -> None:
    backend.responder = lambda request: status_reply(400) if "bad" in request.json["input"] else answer(request)
    for text, known in (("bad", 0), ("good", 1)):
        for path in tmp_path.glob("anew.db*"):
            path.unlink()
        with opened(tmp_path / "anew.db", cipher) as memories:
            memories.store_chunk([item(text)], None)
            assert embedding_service.embed_new_rows(memories, [], "Embed", 3) == known


def test_older_rows_alone(backend: StubBackend, memories: VectorMemories) -> None:
    backend.responder = lambda request: status_reply(400) if "aa" in request.json["input"] else answer(request)
    assert embedding_service.embed_new_rows(memories, [], "Embed", 3) == 2
    assert inputs(backend) == [[1, 2, 3], [1], [2, 3], [2], [3]]


@pytest.mark.parametrize("status", [401, 404, 429, 503, 508])
def test_a_server_that_has_enough_blames_no_row(backend: StubBackend, memories: VectorMemories, status: int) -> None:
    said = "this WilmerAI is already answering this request" if status == 508 else "no"
    backend.responder = lambda request: status_reply(status, said) if "a" in request.json["input"] else answer(request)
    assert embedding_service.embed_new_rows(memories, [6], "Embed", 3) == 0 and list(stored(memories)) == [6]
    backend.responder = answer
    assert embedding_service.embed_new_rows(memories, [], "Embed", 3) == 3


def test_a_request_cancelled_between_the_calls_sends_no_more(backend: StubBackend, memories: VectorMemories) -> None:
    scope = CancelScope()

    def reply(request: Any) -> Reply:
        if "a" in request.json["input"]:
            scope.cancel()
            return status_reply(400)
        return answer(request)

    backend.responder = reply
    with contextlib.suppress(EarlyTerminationException):
        embedding_service.embed_new_rows(memories, [5, 6], "Embed", 2, scope)
    assert len(backend.requests) == 1


def test_rows_without_hope_belong_to_a_database_and_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Process()
    own.put(embedding_service._rejected, Once(2))
    monkeypatch.setattr("Middleware.models.process._process", own)
    for number in range(3):
        own.one(embedding_service._rejected).first(("p", "m", number, "digest"))
    rows = embedding_service._rejected_rows
    assert rows("p", "m") == {(1, "digest"), (2, "digest")} and rows("p", "x") == rows("q", "m") == set()


@pytest.mark.parametrize(
    "reply",
    [
        status_reply(500),
        status_reply(404),
        json_reply({}),
        json_reply(openai_embeddings([[1]])),
        Reply(drop="before_status"),
    ],
)
def test_errors_are_logged_and_nothing_more(
    backend: StubBackend, memories: VectorMemories, reply: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    backend.responder = lambda request: reply
    assert embedding_service.embed_new_rows(memories, [1, 2], "Embed", 2) == 0
    assert stored(memories) == {} and any(record.levelno == logging.ERROR for record in caplog.records)


@pytest.mark.parametrize("endpoint", ["Nowhere", "Main"])
def test_wrong_settings_are_logged(
    backend: StubBackend, memories: VectorMemories, endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert embedding_service.embed_new_rows(memories, [1], endpoint) == 0 and endpoint in caplog.text


def test_a_database_that_cannot_be_written_is_logged(
    backend: StubBackend, memories: VectorMemories, caplog: pytest.LogCaptureFixture
) -> None:
    memories._db.execute("DROP TABLE memory_embeddings")
    assert embedding_service.embed_new_rows(memories, [1], "Embed", 0) == 0 and caplog.records


def test_a_cancelled_request_stores_nothing(
    backend: StubBackend, memories: VectorMemories, caplog: pytest.LogCaptureFixture
) -> None:
    backend.responder = lambda request: Reply(never=True)
    scope = CancelScope()

    def stop() -> None:
        backend.wait_requests()
        scope.cancel()

    stopper = threading.Thread(target=stop)
    stopper.start()
    assert embedding_service.embed_new_rows(memories, [1], "Embed", 20, scope) == 0
    stopper.join()
    assert stored(memories) == {} and not [record for record in caplog.records if record.levelno >= logging.WARNING]
