"""The full search in a conversation's memories, with a real database and a real embedding server."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import DataKeyError, EarlyTerminationException, StateUnavailableError
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory import memory_search
from Middleware.services.memory_service import MemoryService
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.discussions.vector_memory import VectorMemories
from Middleware.utilities.encryption_utils import derive_encryption_key, hash_api_key
from Middleware.utilities.vector_math_utils import vector_to_blob
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Tests.backend_dialects import openai_embeddings
from Tests.llmapis.lab import Lab
from Tests.stub_backend import Reply, StubBackend, json_reply, status_reply
from Tests.workflows.engine_lab import user

NOTHING = "No relevant memories found in the vector database for the given keywords."
BREAK = "\n\n---\n\n"
KEY, KEY_HASH = derive_encryption_key("secret", "tester"), hash_api_key("secret")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiscussionFolder:
    lab = Lab(tmp_path / "Configs", monkeypatch)
    lab.write("ApiTypes/Embed", {"type": "openAIEmbeddings"})
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    process().one(memory_search.fallback_notices).clear()
    return DiscussionFolder("d1")


@pytest.fixture
def lab(folder: DiscussionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab = Lab(tmp_path / "Configs", monkeypatch)
    lab.write("ApiTypes/Embed", {"type": "openAIEmbeddings"})
    return lab


@pytest.fixture
def backend(lab: Lab) -> Iterator[StubBackend]:
    """Answers every text with [1, 0]."""
    with StubBackend(default=json_reply(openai_embeddings([[1, 0]]))) as stub:
        lab.endpoint("Embedder", {"apiTypeConfigFileName": "Embed"}, stub.url)
        yield stub


def remember(
    folder: DiscussionFolder,
    *texts: str,
    entities: Mapping[str, Any] | None = None,
    vectors: Mapping[str, Sequence[float]] | None = None,
    model: str = "model-x",
) -> None:
    with folder.memories(write=True) as memories:
        for text in texts:
            metadata = {"title": "", "summary": text, "entities": (entities or {}).get(text), "key_phrases": None}
            (number,) = memories.store_chunk([(text, json.dumps(metadata))], None)
            if vectors and text in vectors:
                memories.add_embeddings([(number, vector_to_blob(vectors[text]))], model)


def search(keywords: str, limit: int = 5, **options: Any) -> list[str]:
    text = MemoryService().search_vector_memories("d1", keywords, limit, **options)
    return [] if text == NOTHING else text.split(BREAK)


def semantic(keywords: str, limit: int = 5, mode: str = "semantic", **options: Any) -> list[str]:
    return search(keywords, limit, search_mode=mode, embedding_endpoint_name="Embedder", **options)


# -- words -------------------------------------------------------------------------------------------------------------


def test_without_discussion_id() -> None:
    assert MemoryService().search_vector_memories(None, "x") == (
        "Cannot search vector memories without a discussionId."
    )


@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid"])
def test_without_a_database(folder: DiscussionFolder, backend: StubBackend, mode: str) -> None:
    assert (
        MemoryService().search_vector_memories("d1", "owl", search_mode=mode, embedding_endpoint_name="Embedder")
        == NOTHING
    )
    assert not Path(folder.folder).exists() and len(backend.requests) == (mode != "keyword")


def test_words(folder: DiscussionFolder) -> None:
    remember(folder, "the owl sleeps", "owl owl owl", "a cat ran", "running dogs")
    assert search("owl") == ["owl owl owl", "the owl sleeps"]
    assert search("owl", 1) == ["owl owl owl"]
    assert sorted(search("run")) == ["running dogs"] and search("AND") == []
    assert set(search("owl sleeps; cat")) == {"the owl sleeps", "a cat ran"}


@pytest.mark.parametrize("keywords", ["", " ", ";;", "***", '"', "nowhere"])
def test_nothing_found(folder: DiscussionFolder, keywords: str) -> None:
    remember(folder, "owl")
    assert MemoryService().search_vector_memories("d1", keywords) == NOTHING


@pytest.mark.parametrize("limit", [0, -1])
def test_no_room(folder: DiscussionFolder, limit: int) -> None:
    remember(folder, "owl")
    assert MemoryService().search_vector_memories("d1", "owl", limit) == NOTHING


def test_dates(folder: DiscussionFolder) -> None:
    remember(folder, "owl")
    assert re.fullmatch(r"\[\d{4}-\d\d-\d\d\] owl", search("owl", include_dates=True)[0])


@pytest.mark.parametrize(
    ("times", "day"),
    [
        ({"said": "1999-03-12T09:00:00+01:00", "said_from": "1999-03-11T09:00:00+01:00"}, "1999-03-12"),
        # An LLM may write such a field into its memory.
        ({"said": "1999-03-12"}, ""),
        ({"said_from": "1999-03-12T09:00:00+01:00"}, ""),
        ({"said": "yesterday", "said_from": "yesterday"}, ""),
    ],
)
def test_a_memory_has_the_day_of_its_messages_if_the_writer_stored_it(
    folder: DiscussionFolder, times: Mapping[str, str], day: str
) -> None:
    with folder.memories(write=True) as memories:
        memories.store_chunk([("owl", json.dumps({"summary": "owl", **times}))], None)
        (row,) = memories.all_memories()
    assert search("owl", include_dates=True) == [f"[{day or row['date_added'][:10]}] owl"]


@pytest.mark.parametrize(
    ("weights", "first"),
    [(None, "plain"), ([0, 0, 10, 0, 0], "named"), ([1, 2], "plain"), ([True, 0, 10, 0, 0], "plain")],
)
def test_weights(folder: DiscussionFolder, weights: Any, first: str) -> None:
    remember(folder, "plain owl owl owl", "named", entities={"named": ["Owl"]})
    assert search("owl", 1, bm25_weights=weights)[0].split()[0] == first


def test_recency(folder: DiscussionFolder) -> None:
    remember(folder, "owl one", "owl two")
    with folder.memories(write=True) as memories:
        memories._db.execute("UPDATE memories SET date_added = '2000-01-01T00:00:00+00:00' WHERE id = 1")
    assert search("owl")[0] == "owl one" and search("owl", use_recency=True)[0] == "owl two"


def test_memories_of_a_key(folder: DiscussionFolder) -> None:
    own = DiscussionFolder("d1", KEY_HASH, KEY)
    remember(own, "owl")
    keys: dict[str, Any] = {"api_key_hash": KEY_HASH, "encryption_key": KEY}
    assert search("owl", **keys) == ["owl"] and search("owl") == []
    with pytest.raises(DataKeyError):
        search("owl", api_key_hash=KEY_HASH)


def test_a_broken_database(folder: DiscussionFolder, caplog: pytest.LogCaptureFixture) -> None:
    Path(folder.create(), "vector_memory.db").write_bytes(b"no database at all" * 100)
    assert MemoryService().search_vector_memories("d1", "secretword") == NOTHING
    assert "d1" in caplog.text and "secretword" not in caplog.text


# -- meaning -----------------------------------------------------------------------------------------------------------

VECTORS = {"near": [1.0, 0.1], "far owl": [0.0, 1.0], "middle": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("mode", "limit", "expected"),
    [
        ("semantic", 5, ["near", "middle", "far owl"]),
        ("SEMANTIC", 2, ["near", "middle"]),
        ("hybrid", 5, ["far owl", "near", "middle"]),
        ("Hybrid", 2, ["far owl", "near"]),
        ("keyword", 5, ["far owl"]),
    ],
)
def test_modes(folder: DiscussionFolder, backend: StubBackend, mode: str, limit: int, expected: list[str]) -> None:
    remember(folder, *VECTORS, vectors=VECTORS)
    assert semantic("owl", limit, mode) == expected


def test_hybrid_without_words_found(folder: DiscussionFolder, backend: StubBackend) -> None:
    remember(folder, *VECTORS, vectors=VECTORS)
    assert semantic("zebra", 2, "hybrid") == ["near", "middle"]


@pytest.mark.parametrize(
    ("keywords", "query", "sent"),
    [
        ("owl; night", "", "owl  night"),
        (" owl ;", None, "owl"),
        ("owl", "who flies?", "who flies?"),
        ("owl", "  ", "owl"),
    ],
)
def test_what_is_embedded(folder: DiscussionFolder, backend: StubBackend, keywords: str, query: Any, sent: str) -> None:
    remember(folder, *VECTORS, vectors=VECTORS)
    assert semantic(keywords, semantic_query=query)[0] == "near"
    assert [request.json["input"] for request in backend.requests] == [[sent]]


@pytest.mark.parametrize(
    ("mode", "endpoint", "level"),
    [
        ("fuzzy", "Embedder", logging.WARNING),
        ("", "Embedder", logging.WARNING),
        ("semantic", "", logging.ERROR),
        ("hybrid", None, logging.ERROR),
    ],
)
def test_modes_that_cannot_be_used(
    folder: DiscussionFolder,
    backend: StubBackend,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    endpoint: str | None,
    level: int,
) -> None:
    remember(folder, *VECTORS, vectors=VECTORS)
    assert search("owl", search_mode=mode, embedding_endpoint_name=endpoint) == ["far owl"]
    assert [record.levelno for record in caplog.records] == [level] and backend.requests == []


@pytest.mark.parametrize("mode", ["semantic", "hybrid"])
@pytest.mark.parametrize("reply", [status_reply(500), json_reply({"data": []}), Reply(drop="before_status")])
def test_a_failing_embedder(
    folder: DiscussionFolder, backend: StubBackend, caplog: pytest.LogCaptureFixture, mode: str, reply: Reply
) -> None:
    remember(folder, *VECTORS, vectors=VECTORS)
    backend.script(reply)
    assert semantic("owl", mode=mode) == ["far owl"]
    assert any(record.levelno == logging.ERROR for record in caplog.records) and len(backend.requests) == 1


def test_an_endpoint_that_cannot_embed(folder: DiscussionFolder, backend: StubBackend) -> None:
    remember(folder, *VECTORS, vectors=VECTORS)
    for endpoint in ("Main", "Nowhere"):
        assert search("owl", search_mode="semantic", embedding_endpoint_name=endpoint) == ["far owl"]


def test_vectors_of_another_model_do_not_count(
    folder: DiscussionFolder, backend: StubBackend, caplog: pytest.LogCaptureFixture
) -> None:
    remember(folder, *VECTORS, vectors=VECTORS, model="other")
    assert semantic("owl") == ["far owl"] and "3 memories have no vector of model 'model-x'" in caplog.text


def test_the_log_tells_of_missing_vectors_once(
    folder: DiscussionFolder, backend: StubBackend, caplog: pytest.LogCaptureFixture
) -> None:
    remember(folder, "owl one", "owl two")
    for mode in ("semantic", "hybrid", "semantic"):
        assert len(semantic("owl", mode=mode)) == 2
    assert caplog.text.count("2 memories have no vector") == 1


@pytest.mark.parametrize("mode", ["semantic", "hybrid"])
def test_the_log_tells_if_some_vectors_are_missing(
    folder: DiscussionFolder, backend: StubBackend, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    remember(folder, *VECTORS, vectors=VECTORS)
    semantic("owl", mode=mode)
    assert caplog.text == ""
    remember(folder, "new owl")
    assert semantic("owl", mode=mode)[0] in ("near", "far owl", "new owl")
    assert "1 memories have no vector of model 'model-x'" in caplog.text


def test_missing_vectors_are_counted_without_reading_memories(
    folder: DiscussionFolder, backend: StubBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*args: Any) -> None:
        raise AssertionError("memories are read only to be counted")

    remember(folder, *VECTORS, vectors=VECTORS)
    remember(folder, "new owl")
    monkeypatch.setattr(VectorMemories, "without_embeddings", read)
    assert semantic("owl")[0] == "near"


def test_vectors_of_another_length_are_not_found(folder: DiscussionFolder, backend: StubBackend) -> None:
    """A model that was exchanged behind its name."""
    remember(folder, "owl", "cat", vectors={"owl": [1.0, 0.0, 0.0], "cat": [1.0, 0.0, 0.0]})
    assert semantic("owl") == ["owl"] == semantic("owl", mode="hybrid")


@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid"])
def test_a_huge_limit(folder: DiscussionFolder, backend: StubBackend, mode: str) -> None:
    remember(folder, *VECTORS, vectors=VECTORS, entities={"far owl": ["near"]})
    assert "far owl" in semantic("owl", 10**30, mode, use_entity_expansion=True)


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_cancelled_request(folder: DiscussionFolder, backend: StubBackend, is_asked: bool) -> None:
    """Cancelled before the embedding service is asked, and while it is."""
    remember(folder, *VECTORS, vectors=VECTORS)
    backend.script(Reply(never=True))
    request = RequestContext()
    stopper = threading.Thread(target=lambda: (backend.wait_requests(), request.cancel_scope.cancel()))
    if is_asked:
        stopper.start()
    else:
        request.cancel_scope.cancel()
    started = time.monotonic()
    with request_scope(request), contextlib.suppress(EarlyTerminationException):  # where it notices is all the same
        assert semantic("owl") == ["far owl"]
    assert time.monotonic() - started < 60 and len(backend.requests) == is_asked
    if is_asked:
        stopper.join()


# -- names -------------------------------------------------------------------------------------------------------------


def expanded(keywords: str, limit: int, **options: Any) -> list[str]:
    return search(keywords, limit, use_entity_expansion=True, **options)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (5, ["owl owl", "an owl", "Mara"]),
        (3, ["owl owl", "an owl", "Mara"]),
        (2, ["owl owl", "Mara"]),
        (1, ["owl owl"]),
    ],
)
def test_expansion(folder: DiscussionFolder, limit: int, expected: list[str]) -> None:
    remember(folder, "owl owl", "an owl", "Mara", "nobody", entities={"owl owl": ["Mara"]})
    assert expanded("owl", limit) == expected
    assert search("owl", limit) == expected[:2] if limit > 2 else True


def test_a_third_is_reserved(folder: DiscussionFolder) -> None:
    remember(folder, *["owl"] * 9, *["Mara"] * 9, entities={"owl": ["Mara"]})
    assert expanded("owl", 6) == ["owl"] * 4 + ["Mara"] * 2
    assert expanded("owl", 9) == ["owl"] * 6 + ["Mara"] * 3


def test_what_is_known_does_not_crowd_out_the_new(folder: DiscussionFolder) -> None:
    new = "Mara went a long way by herself that night"
    remember(folder, "owl Mara Mara Mara", "owl Mara Mara", new, entities={"owl Mara Mara": ["Mara"]})
    assert search("Mara", 2) == ["owl Mara Mara Mara", "owl Mara Mara"]
    assert expanded("owl", 2)[1] == new


@pytest.mark.parametrize(
    "entities", [["owl", "OWL", " "], [], None, "Mara", [None, 5, {"name": "Mara"}], ["Nobody here"]]
)
def test_names_that_do_not_expand(folder: DiscussionFolder, entities: Any) -> None:
    remember(folder, "an owl", "Mara", "5", entities={"an owl": entities})
    assert expanded("owl", 5) == ["an owl"]


def test_a_name_is_one_phrase(folder: DiscussionFolder) -> None:
    remember(folder, "an owl", "Mara Bell", "Bell; Mara", entities={"an owl": ["Mara; Bell"]})
    assert expanded("owl", 5) == ["an owl", "Mara Bell"]


def test_at_most_sixty_names(folder: DiscussionFolder, caplog: pytest.LogCaptureFixture) -> None:
    names = [f"n{number}" for number in range(70)]
    remember(folder, "an owl", "n59", "n60", entities={"an owl": [*names[:3], *names]})
    assert expanded("owl", 5) == ["an owl", "n59"] and caplog.text == ""


def test_names_of_the_best_ten_only(folder: DiscussionFolder) -> None:
    remember(folder, *[f"owl {'x ' * number}" for number in range(11)], "Mara", entities={f"owl {'x ' * 10}": ["Mara"]})
    assert "Mara" not in expanded("owl", 15)


def test_names_of_what_was_found_by_meaning(folder: DiscussionFolder, backend: StubBackend) -> None:
    remember(folder, "near", "Mara", entities={"near": ["Mara"]}, vectors={"near": [1.0, 0.0]})
    assert semantic("zebra", use_entity_expansion=True) == ["near", "Mara"]


# -- the node ----------------------------------------------------------------------------------------------------------


def run(lab: Lab, *nodes: dict[str, Any], **variables: Any) -> Any:
    lab.write("Workflows/tester/Main", {**variables, "nodes": list(nodes)})
    request = RequestContext(request_id="r-1")
    with request_scope(request):
        return list(WorkflowManager("Main", listeners=[]).start(request, [user("hi")], discussion_id="d1"))[-1]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"input": "owl"}, ["far owl"]),
        ({"input": "{agent1Output}"}, ["far owl"]),
        ({}, [NOTHING]),
        ({"input": None}, [NOTHING]),
        ({"input": "owl", "limit": 0}, [NOTHING]),
        ({"input": "owl", "limit": "0"}, [NOTHING]),
        ({"input": "owl", "limit": -3}, [NOTHING]),
        ({"input": "near;middle;owl", "limit": "{two}"}, None),
        ({"input": "owl", "limit": "junk"}, ["far owl"]),
        ({"input": "owl", "limit": None}, ["far owl"]),
        ({"input": "owl", "bm25Weights": "[1,1,1,1,1]"}, ["far owl"]),
        (
            {"input": "owl", "searchMode": "semantic", "embeddingEndpointName": "Embedder"},
            ["near", "middle", "far owl"],
        ),
        (
            {"input": "owl", "searchMode": "hybrid", "embeddingEndpointName": "Embedder", "limit": 2},
            ["far owl", "near"],
        ),
        ({"input": "owl", "searchMode": None}, ["far owl"]),
    ],
)
def test_node(
    lab: Lab,
    folder: DiscussionFolder,
    backend: StubBackend,
    monkeypatch: pytest.MonkeyPatch,
    keys: dict[str, Any],
    expected: list[str] | None,
) -> None:
    remember(folder, *VECTORS, vectors=VECTORS)
    result = run(
        lab, {"type": "StaticResponse", "content": "owl"}, {"type": "VectorMemorySearch", **keys}, two=2
    ).split(BREAK)
    assert len(result) == 2 if expected is None else result == expected


def test_node_flags(lab: Lab, folder: DiscussionFolder, backend: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(folder, "an owl", "Mara", entities={"an owl": ["Mara"]}, vectors={"Mara": [1.0, 0.0]})
    keys = {"type": "VectorMemorySearch", "input": "owl", "includeDates": True, "useEntityExpansion": "true"}
    dated = run(lab, keys)
    assert re.fullmatch(r"\[.{10}\] an owl\n\n---\n\n\[.{10}\] Mara", dated)
    assert run(lab, {**keys, "includeDates": "false", "useEntityExpansion": False}) == "an owl"
    asked = {
        **keys,
        "searchMode": "semantic",
        "semanticQuery": "{chat_user_prompt_last_one}?",
        "embeddingEndpointName": "Embedder",
        "includeDates": False,
        "useEntityExpansion": False,
    }
    assert run(lab, asked) == "Mara" and backend.requests[0].json["input"] == ["hi?"]


def test_node_warns_of_weights_that_are_no_list(
    lab: Lab, folder: DiscussionFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    remember(folder, "owl")
    assert run(lab, {"type": "VectorMemorySearch", "input": "owl", "bm25Weights": 5}) == "owl"
    assert "bm25Weights" in caplog.text


def test_the_log_tells_what_was_found_but_not_the_words(
    folder: DiscussionFolder, caplog: pytest.LogCaptureFixture
) -> None:
    remember(folder, "the owl sleeps", "a cat ran")
    with caplog.at_level(logging.INFO):
        search("owl; moon")
    assert "Discussion d1: 1 memories found for 2 search terms" in caplog.text and "owl" not in caplog.text


def test_a_broken_database_is_named(folder: DiscussionFolder, caplog: pytest.LogCaptureFixture) -> None:
    folder.create()
    Path(folder.vector_database()).write_bytes(b"no database" * 500)
    search("owl")
    assert "d1/vector_memory.db cannot be searched: file is not a database" in caplog.text


def test_a_chat_goes_on_without_its_memories_while_the_state_database_is_down(
    folder: DiscussionFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise StateUnavailableError

    remember(folder, "the owl sleeps")
    monkeypatch.setattr(VectorMemories, "keyword_search", fail)
    assert search("owl") == []
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == [
        "d1/vector_memory.db cannot be searched: the state database does not answer"
    ]
