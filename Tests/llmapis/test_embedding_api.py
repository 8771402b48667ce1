"""The service that makes embeddings: configuration in, vectors out, over real sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import BackendConnectionError, ConfigNotFoundError, ConfigValueError
from Middleware.llmapis.embedding_api import EmbeddingApiService
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Tests.backend_dialects import openai_embeddings
from Tests.llmapis.lab import Lab
from Tests.llmapis.queue_lab import one_slot_for_calls, taken
from Tests.llmapis.transport_lab import SOON
from Tests.stub_backend import Reply, StubBackend, json_reply

SHIPPED = Path(__file__).resolve().parents[2] / "Public" / "Configs" / "ApiTypes"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab = Lab(tmp_path, monkeypatch)
    lab.write("ApiTypes/Embed", {"type": "openAIEmbeddings"})
    return lab


@pytest.fixture
def backend(lab: Lab) -> Iterator[StubBackend]:
    with StubBackend(json_reply(openai_embeddings([[3, 4]]))) as stub:
        lab.endpoint("Main", {"apiTypeConfigFileName": "Embed"}, stub.url)
        yield stub


def test_complete_call(lab: Lab, backend: StubBackend) -> None:
    lab.endpoint("Main", {"apiTypeConfigFileName": "Embed", "apiKey": "sk-x"}, backend.url)
    service = EmbeddingApiService("Main")
    assert service.embed(["text"]) == [[3.0, 4.0]]
    assert (service.endpoint_name, service.model_name) == ("Main", "model-x")
    request = backend.requests[0]
    assert request.json == {"input": ["text"], "model": "model-x"}
    assert request.headers["authorization"] == "Bearer sk-x"


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("OpenAI-Embeddings", "/v1/embeddings", {"data": [{"embedding": [1]}]}),
        ("Ollama-Embeddings", "/api/embed", {"embeddings": [[1]]}),
    ],
)
def test_shipped_api_types(lab: Lab, backend: StubBackend, name: str, path: str, body: Any) -> None:
    (lab.root / "ApiTypes" / f"{name}.json").write_bytes((SHIPPED / f"{name}.json").read_bytes())
    config_utils.reset_config_store()
    lab.endpoint("Main", {"apiTypeConfigFileName": name}, backend.url)
    backend.script(json_reply(body))
    assert EmbeddingApiService("Main").embed(["a"]) == [[1.0]]
    assert backend.requests[0].path == path


def test_model_may_be_left_out_of_the_request(lab: Lab, backend: StubBackend) -> None:
    lab.endpoint("Main", {"apiTypeConfigFileName": "Embed", "dontIncludeModel": "true"}, backend.url)
    service = EmbeddingApiService("Main")
    service.embed(["a"])
    assert backend.requests[0].json == {"input": ["a"]}
    assert service.model_name == "model-x"  # vectors are still told apart by it


def test_no_texts_need_no_request(backend: StubBackend) -> None:
    assert EmbeddingApiService("Main").embed([]) == [] and backend.requests == []


# -- stopping -----------------------------------------------------------------------------------------------------


def test_cancelled_before_the_call(backend: StubBackend) -> None:
    scope = CancelScope()
    service = EmbeddingApiService("Main", scope=scope)
    scope.cancel()
    assert service.embed(["a"]) is None and backend.requests == []


def test_cancelled_while_waiting(backend: StubBackend) -> None:
    backend.script(Reply(never=True))
    scope = CancelScope()
    stopped: list[float] = []

    def stop() -> None:
        backend.wait_requests()
        stopped.append(time.monotonic())
        scope.cancel()

    stopper = threading.Thread(target=stop)
    stopper.start()
    assert EmbeddingApiService("Main", scope=scope).embed(["a"]) is None
    assert time.monotonic() - stopped[0] < SOON
    stopper.join()
    assert backend.requests[0].wait_ended()


def test_the_scope_of_the_current_request_stops_the_call(backend: StubBackend) -> None:
    request = RequestContext(cancel_scope=CancelScope())
    with request_scope(request):
        service = EmbeddingApiService("Main")
    request.cancel_scope.cancel()
    assert service.embed(["a"]) is None and backend.requests == []


def test_calls_pass_the_gate_of_llm_calls(backend: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    with one_slot_for_calls(monkeypatch):
        held = taken()
        assert EmbeddingApiService("Main").embed(["a"]) == [[3.0, 4.0]]
        held.end()


# -- errors -------------------------------------------------------------------------------------------------------


def test_an_unreachable_server_is_named(lab: Lab) -> None:
    lab.endpoint("Main", {"apiTypeConfigFileName": "Embed"}, "http://127.0.0.1:1")
    with pytest.raises(BackendConnectionError, match="Main"):
        EmbeddingApiService("Main").embed(["a"])


def test_an_endpoint_that_generates_text_is_refused(lab: Lab) -> None:
    lab.endpoint("Main", {})
    with pytest.raises(ConfigValueError, match="Endpoints/lab/Main.json: .*cannot make embeddings") as caught:
        EmbeddingApiService("Main")
    assert caught.value.json_path == "apiTypeConfigFileName"
    assert "openAIEmbeddings or ollamaEmbeddings" in caught.value.expected


def test_missing_files_are_named(lab: Lab) -> None:
    with pytest.raises(ConfigNotFoundError, match="Endpoints/lab/Mian.json"):
        EmbeddingApiService("Mian")


def test_an_unusable_key_is_reported_before_anything_is_sent(lab: Lab, backend: StubBackend) -> None:
    lab.endpoint("Main", {"apiTypeConfigFileName": "Embed", "apiKey": "env:WILMER_NOT_SET_ANYWHERE"}, backend.url)
    with pytest.raises(ConfigValueError, match="Endpoints/lab/Main.json: .*WILMER_NOT_SET_ANYWHERE"):
        EmbeddingApiService("Main")
    assert backend.requests == []
