"""The two embeddings dialects: what is sent, what is read, what is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from Middleware.common.constants import LEFT_BRACE_SENTINEL, RIGHT_BRACE_SENTINEL
from Middleware.exceptions import (
    BackendConnectionError,
    BackendResponseError,
    BackendStatusError,
    BackendTimeoutError,
)
from Middleware.llmapis import embedding_api
from Middleware.llmapis.embedding_api import EmbeddingsHandler, OllamaEmbeddings, OpenAiEmbeddings
from Middleware.llmapis.handlers.base.backend_call import BackendSettings
from Middleware.llmapis.transport import get_transport
from Tests.backend_dialects import PROMPT_TOKENS, ollama_embeddings, openai_embeddings
from Tests.stub_backend import BEFORE_STATUS, Reply, StubBackend, json_reply, status_reply
from Tests.tables import table

BOTH = pytest.mark.parametrize(
    ("handler_class", "answer", "path"),
    [(OpenAiEmbeddings, openai_embeddings, "/v1/embeddings"), (OllamaEmbeddings, ollama_embeddings, "/api/embed")],
)


@pytest.fixture
def backend() -> Iterator[StubBackend]:
    with StubBackend() as stub:
        yield stub


def handler(
    handler_class: type[EmbeddingsHandler], backend: StubBackend, url: str = "", **settings: Any
) -> EmbeddingsHandler:
    values = {"endpoint": {}, "api_type": {}, "model": "e5", **settings}
    return handler_class(BackendSettings("Vectors", url or backend.url, **values), get_transport())


def refusal(
    backend: StubBackend, body: Any, handler_class: type[EmbeddingsHandler] = OpenAiEmbeddings, texts: int = 1
) -> str:
    """The message of the error that ``body`` causes; it names the endpoint, and is a value error."""
    backend.script(json_reply(body))
    with pytest.raises(ValueError, match="[Ee]ndpoint 'Vectors'") as caught:
        handler(handler_class, backend).embed(["text"] * texts)
    assert isinstance(caught.value, BackendResponseError) and caught.value.endpoint == "Vectors"
    assert len(backend.requests) == 1
    return str(caught.value)


# -- request ------------------------------------------------------------------------------------------------------


@BOTH
def test_request_and_answer(backend: StubBackend, handler_class: Any, answer: Any, path: str) -> None:
    backend.script(json_reply(answer([[1, 0.5], [-2.0, 0]])))
    found = handler(handler_class, backend, api_key="sk-x").embed(["first", "zweiter Grüß"])
    assert found == ([[1.0, 0.5], [-2.0, 0.0]], PROMPT_TOKENS)
    assert found is not None and all(type(number) is float for vector in found.vectors for number in vector)
    request = backend.requests[0]
    assert (request.method, request.path, request.headers["authorization"]) == ("POST", path, "Bearer sk-x")
    assert request.json == {"input": ["first", "zweiter Grüß"], "model": "e5"}


@BOTH
def test_a_base_url_may_end_in_the_first_part_of_the_path(
    backend: StubBackend, handler_class: Any, answer: Any, path: str
) -> None:
    first = path.rpartition("/")[0]
    for end in (first, f"{first}/", "/", "/proxy"):
        backend.script(json_reply(answer([[1]])))
        handler(handler_class, backend, backend.url + end).embed(["a"])
    assert [request.path for request in backend.requests] == [path, path, path, f"/proxy{path}"]


@BOTH
def test_no_model_and_no_key(backend: StubBackend, handler_class: Any, answer: Any, path: str) -> None:
    backend.script(json_reply(answer([[1]])))
    handler(handler_class, backend, model=None).embed(("a",))
    assert backend.requests[0].json == {"input": ["a"]}
    assert "authorization" not in backend.requests[0].headers


@BOTH
def test_the_length_of_vectors_is_passed_on(backend: StubBackend, handler_class: Any, answer: Any, path: str) -> None:
    backend.script(json_reply({**answer([[1]]), "usage": "many", "prompt_eval_count": "9"}))
    assert handler(handler_class, backend).embed(["a"], 256) == ([[1.0]], None)
    assert backend.requests[0].json == {"input": ["a"], "model": "e5", "dimensions": 256}


@BOTH
def test_braces_come_back_into_the_texts(backend: StubBackend, handler_class: Any, answer: Any, path: str) -> None:
    backend.script(json_reply(answer([[1], [2]])))
    handler(handler_class, backend).embed([f"a {LEFT_BRACE_SENTINEL}b{RIGHT_BRACE_SENTINEL}", "{c}"])
    assert backend.requests[0].json["input"] == ["a {b}", "{c}"]


@BOTH
def test_no_texts_need_no_request(backend: StubBackend, handler_class: Any, answer: Any, path: str) -> None:
    assert handler(handler_class, backend).embed([]) == ([], None)
    assert backend.requests == []


# -- answers ------------------------------------------------------------------------------------------------------


def test_openai_entries_are_put_into_the_order_of_the_texts(backend: StubBackend) -> None:
    backend.script(json_reply(openai_embeddings([[1], [0], [2]], indices=[1, 0, 2])))
    assert handler(OpenAiEmbeddings, backend).embed(["a", "b", "c"]) == ([[0.0], [1.0], [2.0]], PROMPT_TOKENS)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([{"embedding": [5]}, {"embedding": [6]}], [[5.0], [6.0]]),
        ([{"embedding": [5], "index": 1}, {"embedding": [6]}], [[6.0], [5.0]]),
        ([{"embedding": [5], "index": None}, {"embedding": [6], "index": 0}], [[5.0], [6.0]]),
    ],
)
def test_a_missing_index_is_zero_and_equal_ones_keep_their_order(
    backend: StubBackend, entries: list[Any], expected: list[list[float]]
) -> None:
    backend.script(json_reply({"data": entries}))
    assert handler(OpenAiEmbeddings, backend).embed(["a", "b"]) == (expected, None)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([[1]], "not a JSON object"),
        (None, "not a JSON object"),
        ("text", "not a JSON object"),
        (b"<html>", "not JSON"),
        ({}, "without a list 'data'"),
        ({"data": None}, "without a list 'data'"),
        ({"data": {}}, "without a list 'data'"),
        ({"embeddings": [[1]]}, "without a list 'data'"),
        ({"data": [[1]]}, "without 'embedding'"),
        ({"data": [{"index": 0}]}, "without 'embedding'"),
        ({"data": [None]}, "without 'embedding'"),
        ({"data": [{"embedding": [1], "index": "0"}]}, "'index' is not a whole number"),
        ({"data": [{"embedding": [1], "index": True}]}, "'index' is not a whole number"),
    ],
)
def test_openai_answers_that_are_refused(backend: StubBackend, body: Any, text: str) -> None:
    assert text in refusal(backend, body)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([[1]], "not a JSON object"),
        ({}, "without a list 'embeddings'"),
        ({"embeddings": {"0": [1]}}, "without a list 'embeddings'"),
        ({"embedding": [1]}, "without a list 'embeddings'"),
        ({"embeddings": [1]}, "not a list of numbers"),
    ],
)
def test_ollama_answers_that_are_refused(backend: StubBackend, body: Any, text: str) -> None:
    assert text in refusal(backend, body, OllamaEmbeddings)


@BOTH
@pytest.mark.parametrize("vectors", [[], [[1]], [[1], [2], [3]]])
def test_the_number_of_vectors_must_be_that_of_the_texts(
    backend: StubBackend, handler_class: Any, answer: Any, path: str, vectors: list[list[float]]
) -> None:
    assert f"{len(vectors)} vector(s) for 2 text(s)" in refusal(backend, answer(vectors), handler_class, texts=2)


@BOTH
@table(
    ("vector", "text"),
    [
        ("[]", "an empty vector"),
        ('"AAAAAA=="', "not a list of numbers"),
        ("null", "not a list of numbers"),
        ('["1"]', "something else than numbers"),
        ("[1, null]", "something else than numbers"),
        ("[true]", "something else than numbers"),
        ("[[1]]", "something else than numbers"),
        ("[NaN]", "without a finite value"),
        ("[1, -Infinity]", "without a finite value"),
        ("[1e39]", "without a finite value"),
        ("[-1e39, 1]", "without a finite value"),
        ("[1e999]", "without a finite value"),
        ("[1" + "0" * 400 + "]", "without a finite value"),
    ],
)
def test_vectors_that_are_refused(
    backend: StubBackend, handler_class: Any, answer: Any, path: str, vector: str, text: str
) -> None:
    body = json.dumps(answer([["HERE"]])).replace('["HERE"]', vector).encode()
    assert text in refusal(backend, body, handler_class)


@BOTH
@pytest.mark.parametrize("error", ["no such model, sk-secret-1", {"message": "no such model, sk-secret-1"}])
def test_an_error_object_with_a_good_status_is_an_error_without_the_key(
    backend: StubBackend, handler_class: Any, answer: Any, path: str, error: Any
) -> None:
    backend.script(json_reply({**answer([[1]]), "error": error}))
    with pytest.raises(BackendResponseError, match=r"Vectors.*no such model, \*\*\*") as caught:
        handler(handler_class, backend, api_key="sk-secret-1").embed(["a"])
    assert caught.value.body == "no such model, ***"


# -- transport ----------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (status_reply(503), BackendStatusError),
        (status_reply(429), BackendStatusError),
        (Reply(drop=BEFORE_STATUS), BackendConnectionError),
    ],
)
def test_one_attempt(
    backend: StubBackend, handler_class: Any, answer: Any, path: str, reply: Reply, error: type[Exception]
) -> None:
    backend.script(reply, json_reply(answer([[1]])))
    with pytest.raises(error, match="Vectors"):
        handler(handler_class, backend).embed(["a"])
    assert len(backend.requests) == 1


@BOTH
def test_silence_ends_at_the_read_timeout(
    backend: StubBackend, handler_class: Any, answer: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = handler(handler_class, backend, connect_timeout=7).request(["a"])
    assert (asked.read_timeout, asked.connect_timeout, asked.single_attempt) == (120.0, 7, True)
    monkeypatch.setattr(embedding_api, "READ_TIMEOUT", 0.3)
    backend.script(Reply(never=True))
    with pytest.raises(BackendTimeoutError, match="Vectors"):
        handler(handler_class, backend).embed(["a"])


def test_texts_stay_out_of_log_and_errors(backend: StubBackend, caplog: pytest.LogCaptureFixture) -> None:
    backend.script(json_reply({"data": [{"embedding": ["what was said"]}]}))
    with caplog.at_level(logging.DEBUG), pytest.raises(BackendResponseError) as caught:
        handler(OpenAiEmbeddings, backend, api_key="sk-secret-1").embed(["what was said"])
    assert "Vectors" in caplog.text
    assert not any(text in caplog.text + str(caught.value) for text in ("what was said", "sk-secret-1"))
