"""Embeddings for clients, in OpenAI's dialect and both of Ollama's."""

from __future__ import annotations

import base64
import json
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.app import build_wsgi_application, create_app
from Middleware.api.concurrency_middleware import ConcurrencyLimitMiddleware
from Middleware.api.running.running_requests import SERVER_STOPS, running_requests
from Middleware.common.constants import EMBEDDINGS
from Middleware.common.fair_semaphore import FairSemaphore
from Tests.api.api_lab import Answer, ApiLab, settled
from Tests.api.handlers.impl.test_api_cancellation import Server, ended_in_time
from Tests.backend_dialects import PROMPT_TOKENS, embed, openai_embeddings
from Tests.llmapis.queue_lab import one_slot_for_calls, taken
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply, status_reply
from Tests.tables import table

OPENAI, OLLAMA, SINGLE = "/v1/embeddings", "/api/embed", "/api/embeddings"
KOBOLD = "/api/extra/embeddings"
NAMES = ["Emb", "Emb2", "Nearby"]
Text = str | list[str]


def vectors(texts: list[str]) -> list[list[float]]:
    """The vectors of the scripted model, by which texts can be told apart."""
    return [[float(len(text)), 0.1 * len(text), -1.5] for text in texts]


def respond(request: RecordedRequest) -> Reply:
    return embed(request, lambda text: vectors([text])[0])


class EmbeddingsLab(ApiLab):
    """A user with three endpoints: two of OpenAI's kind, one of Ollama's."""

    def _begin(self) -> None:
        super()._begin()
        self.backend.responder = respond
        self.write("ApiTypes/OpenAi-Vectors", {"type": "openAIEmbeddings"})
        self.write("ApiTypes/Ollama-Vectors", {"type": "ollamaEmbeddings"})
        for name, kind in zip(NAMES, ("OpenAi", "OpenAi", "Ollama"), strict=True):
            self.endpoint(
                name,
                {
                    "apiTypeConfigFileName": f"{kind}-Vectors",
                    "modelNameToSendToAPI": f"model-{name}",
                    "apiKey": f"key-{name}",
                },
                self.backend.url,
            )
        self.user(embeddingEndpointName=NAMES)

    def embed(self, value: Any, path: str = OPENAI, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        field = "prompt" if path == SINGLE else "input"
        return self.post({"model": "text-embedding-3-small", field: value, **fields}, path, headers=headers)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddingsLab]:
    with StubBackend() as backend:
        yield EmbeddingsLab(tmp_path, monkeypatch, backend)
    assert settled()


# -- vectors (edge cases 57 and 59) ------------------------------------------------------------------------------------


def test_vectors_as_numbers_and_as_base64(lab: EmbeddingsLab) -> None:
    texts = [f"text {'{x}' * number}" for number in range(40)]
    plain, packed = lab.embed(texts).json, lab.embed(texts, encoding_format="base64").json
    assert plain["object"] == "list" and plain["model"] == "model-Emb"
    assert plain["usage"] == {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS}
    assert [entry["index"] for entry in plain["data"]] == list(range(40))
    assert [entry["embedding"] for entry in plain["data"]] == vectors(texts)
    assert {entry["object"] for entry in plain["data"]} == {"embedding"}
    for entry, other in zip(plain["data"], packed["data"], strict=True):
        numbers = struct.unpack("<3f", base64.b64decode(other["embedding"]))
        assert numbers == pytest.approx(entry["embedding"])
    assert lab.backend.requests[0].json == {"input": texts, "model": "model-Emb"}


@table(
    ("model", "name"),
    [
        ("text-embedding-3-small", "Emb"),
        ("", "Emb"),
        (None, "Emb"),
        ("tester", "Emb"),
        ("Emb2", "Emb2"),
        ("Emb2:latest", "Emb2"),
        ("tester:Emb2", "Emb2"),
        ("tester:Nearby:latest", "Nearby"),
        ("Main", "Emb"),
    ],
)
def test_the_model_chooses_an_endpoint(lab: EmbeddingsLab, model: str | None, name: str) -> None:
    answer = lab.embed("Grüße", model=model, user="u", headers={"Authorization": "Bearer of-the-client"})
    assert (answer.status, answer.json["model"]) == (200, f"model-{name}")
    sent = lab.backend.requests[0]
    assert sent.json == {"input": ["Grüße"], "model": f"model-{name}"}
    assert sent.headers["authorization"] == f"Bearer key-{name}"


@table(
    ("path", "value", "expected"),
    [
        (OPENAI, "a", ["a"]),
        ("/embeddings", ["ab", "c"], ["ab", "c"]),
        (KOBOLD, ["ab"], ["ab"]),
        (f"{OPENAI}/", "a", ["a"]),
        (OLLAMA, "abc", ["abc"]),
        (OLLAMA, ["abc", "d"], ["abc", "d"]),
        (SINGLE, "ab", ["ab"]),
        (OLLAMA, [], []),
        (OLLAMA, "", []),
        (OLLAMA, None, []),
        (SINGLE, "", []),
        (SINGLE, None, []),
    ],
)
@pytest.mark.parametrize("name", ["Emb", "Nearby"])
def test_every_dialect_with_every_kind_of_server(
    lab: EmbeddingsLab, name: str, path: str, value: Text | None, expected: list[str]
) -> None:
    answer = lab.embed(value, path, model=name, truncate=True, options={}, keep_alive="5m").json
    if path == SINGLE:
        assert answer == {"embedding": vectors(expected)[0] if expected else []}
    elif path == OLLAMA:
        assert (answer["model"], answer["embeddings"]) == (name, vectors(expected))
        assert answer["prompt_eval_count"] == (PROMPT_TOKENS if expected else 0)
        assert answer["total_duration"] > 0 and answer["load_duration"] == 0
    else:
        assert [entry["embedding"] for entry in answer["data"]] == vectors(expected)
    assert [request.json["input"] for request in lab.backend.requests] == ([expected] if expected else [])


def test_tokens_are_estimated_where_the_server_does_not_count_them(lab: EmbeddingsLab) -> None:
    lab.backend.responder = lambda request: json_reply({"data": [{"embedding": [1]}]})
    usage = lab.embed("five words are in here").json["usage"]
    assert 5 <= usage["prompt_tokens"] <= 10 and usage["total_tokens"] == usage["prompt_tokens"]


def test_one_name_is_enough(lab: EmbeddingsLab) -> None:
    lab.user(embeddingEndpointName=" Emb2 ")
    assert lab.embed("a").json["model"] == "model-Emb2"


# -- requests that are refused (edge case 58) --------------------------------------------------------------------------


@table(
    ("fields", "param", "code", "words"),
    [
        ({"input": [1, 2]}, "input", "unsupported_input", "check_embedding_ctx_length=False"),
        ({"input": [[1, 2], [3]]}, "input", "unsupported_input", "check_embedding_ctx_length=False"),
        ({"input": ""}, "input", None, "'input'"),
        ({"input": []}, "input", None, "'input'"),
        ({"input": ["a", ""]}, "input", None, "'input[1]'"),
        ({"input": [""]}, "input", None, "'input[0]'"),
        ({"input": None}, "input", None, "'input'"),
        ({}, "input", None, "'input'"),
        ({"input": 5}, "input", None, "text"),
        ({"input": {"text": "a"}}, "input", None, "'input'"),
        ({"input": ["a", 5]}, "input", None, "'input[1]'"),
        ({"input": ["a"] * 2049}, "input", None, "2049"),
        ({"input": [1.5]}, "input", None, "'input[0]'"),
        ({"input": "a", "encoding_format": "x"}, "encoding_format", None, "base64"),
        ({"input": "a", "dimensions": 0}, "dimensions", None, "above 0"),
        ({"input": "a", "dimensions": "256"}, "dimensions", None, "whole number"),
    ],
)
def test_requests_that_are_refused(
    lab: EmbeddingsLab, fields: dict[str, Any], param: str, code: str | None, words: str
) -> None:
    answer = lab.post({"model": "m", **fields}, OPENAI)
    error = answer.json["error"]
    assert (answer.status, error["type"], error["param"], error["code"]) == (400, "invalid_request_error", param, code)
    assert words in error["message"] and not lab.backend.requests


@table(
    ("path", "fields"),
    [
        (OLLAMA, {"input": [1, 2]}),
        (OLLAMA, {"input": ["a", ""]}),
        (OLLAMA, {"input": 5}),
        (SINGLE, {"prompt": ["a"]}),
        (SINGLE, {"prompt": 5}),
    ],
)
def test_requests_that_ollama_refuses_too(lab: EmbeddingsLab, path: str, fields: dict[str, Any]) -> None:
    answer = lab.post({"model": "m", **fields}, path)
    assert answer.status == 400 and isinstance(answer.json["error"], str) and not lab.backend.requests


def test_errors_on_koboldcpps_route_have_its_form(lab: EmbeddingsLab) -> None:
    answer = lab.post({"input": [1]}, KOBOLD)
    assert answer.status == 400 and answer.json["detail"]["type"] == "invalid_request_error"


def test_the_length_of_vectors(lab: EmbeddingsLab) -> None:
    assert lab.embed("a", dimensions=3).status == 200
    assert lab.backend.requests[0].json["dimensions"] == 3
    answer = lab.embed("a", dimensions=256)
    error = answer.json["error"]
    assert (answer.status, error["param"]) == (400, "dimensions")
    assert "'Emb'" in error["message"] and "3 numbers" in error["message"]


# -- users, and servers that fail (edge case 60) -----------------------------------------------------------------------


@pytest.mark.parametrize("path", [OPENAI, OLLAMA, SINGLE])
def test_a_user_without_embeddings(lab: EmbeddingsLab, path: str) -> None:
    for value in (None, [], " ", {}):
        lab.user(embeddingEndpointName=value)
        answer = lab.embed("a", path)
        assert answer.status == 404 and b"embeddingEndpointName" in answer.data and b"tester" in answer.data


@table(
    ("reply", "words"),
    [
        (status_reply(500, "no memory"), "no memory"),
        (status_reply(400, "too long"), "too long"),
        (json_reply(openai_embeddings([[1.0]])), "1 vector(s) for 2 text(s)"),
        (Reply(drop="before_status"), "'Emb'"),
    ],
)
def test_a_server_that_fails_is_asked_once(lab: EmbeddingsLab, reply: Reply, words: str) -> None:
    lab.backend.responder = lambda request: reply
    answer = lab.embed(["a", "b"])
    assert (answer.status, len(lab.backend.requests)) == (502, 1)
    message = answer.json["error"]["message"]
    assert "'Emb'" in message and words in message


def test_an_endpoint_of_the_wrong_kind(lab: EmbeddingsLab) -> None:
    lab.user(embeddingEndpointName="Main")
    answer = lab.embed("a")
    assert answer.status == 500 and "cannot make embeddings" in answer.json["error"]["message"]


def test_several_users(lab: EmbeddingsLab) -> None:
    lab.users("tester", "bob")
    lab.user_file("bob", embeddingEndpointName="Emb2")
    for model in ("text-embedding-3-small", "", "Emb2", "nobody:Emb"):
        answer = lab.embed("a", model=model)
        assert answer.status == 400 and "tester, bob" in answer.json["error"]["message"]
    for model, name in (("bob", "Emb2"), ("tester:Emb2", "Emb2"), ("tester", "Emb"), ("bob:Emb", "Emb2")):
        assert lab.embed("a", model=model).json["model"] == f"model-{name}"


def test_the_user_of_a_key(lab: EmbeddingsLab) -> None:
    lab.users("tester", "bob")
    lab.user_file("bob", embeddingEndpointName="Emb2")
    of_bob = {"wilmer.permitted_users": frozenset({"bob"})}
    for model, status in (("text-embedding-3-small", 200), ("", 200), ("bob:Emb2", 200), ("tester", 403)):
        answer = lab.post({"model": model, "input": "a"}, OPENAI, environ_base=of_bob)
        assert answer.status == status and (status != 200 or answer.json["model"] == "model-Emb2")


# -- beside everything else (edge case 61) -----------------------------------------------------------------------------


def test_no_slot_is_needed(lab: EmbeddingsLab, monkeypatch: pytest.MonkeyPatch) -> None:
    app = lab.client.application
    none_free = ConcurrencyLimitMiddleware(app.wsgi_app, FairSemaphore(0), acquire_timeout=0.01)
    app.wsgi_app = none_free  # type: ignore[method-assign]
    with one_slot_for_calls(monkeypatch):
        held = taken()
        assert [lab.embed("a", path).status for path in (OPENAI, "/embeddings", OLLAMA, SINGLE)] == [200] * 4
        held.end()


def test_they_are_no_models(lab: EmbeddingsLab) -> None:
    for path in ("/v1/models", "/api/tags"):
        assert b"Emb" not in lab.get(path).data


def test_texts_are_logged_nowhere(lab: EmbeddingsLab, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert lab.embed("a secret document").status == 200
        lab.backend.responder = lambda request: status_reply(500)
        assert lab.embed("a secret document").status == 502
    assert "Emb" in caplog.text and "secret" not in caplog.text


@table(("reason", "status", "words"), [(SERVER_STOPS, 503, "stopping"), ("its id was sent", 400, "cancelled")])
def test_a_request_that_is_stopped(lab: EmbeddingsLab, reason: str, status: int, words: str) -> None:
    lab.backend.responder = lambda request: Reply(never=True)
    server = Server(build_wsgi_application(create_app()))
    connection = server.send(OPENAI, {"input": "a"})
    lab.backend.wait_requests()
    (request,) = running_requests().of_client(EMBEDDINGS, None)
    running_requests().cancel(request.request_id, reason)
    response = connection.getresponse()
    assert response.status == status and words in json.loads(response.read())["error"]["message"]
    connection.close()
    server.stop()


def test_a_client_that_leaves_ends_the_call(lab: EmbeddingsLab) -> None:
    lab.backend.responder = lambda request: Reply(never=True)
    server = Server(build_wsgi_application(create_app()))
    connection = server.send(OPENAI, {"input": "a"})
    request = lab.backend.wait_requests()[0]
    connection.close()
    assert ended_in_time(request)
    assert settled()
    server.stop()
