"""Servers whose paths have no version of the API: calls of every kind find them, and remember where."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import BackendError, BackendStatusError
from Middleware.llmapis.embedding_api import EmbeddingApiService
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.llmapis.transport import BackendRequest, Transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import Process, install
from Tests.backend_dialects import DIALECTS, Answer, embed
from Tests.llmapis.lab import CLAUDE, OLLAMA, Lab
from Tests.llmapis.transport_lab import SOON
from Tests.stub_backend import BEFORE_STATUS, RecordedRequest, Reply, StubBackend, json_reply, status_reply
from Tests.tables import table

HELLO = [{"role": "user", "content": "Hello"}]
NOT_FOUND = status_reply(404, "Not Found")
CHAT = "/chat/completions"
DIALECT_NAMES = {"Claude": "claudeMessages", "Ollama": "ollamaApiChat", "Completions": "openAIV1Completion"}
BOTH = f"/v1{CHAT}", CHAT


class AddressLab(Lab):
    """``server``: answers as an LLM server does at the paths in ``served``, and elsewhere with ``elsewhere``."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, server: StubBackend) -> None:
        super().__init__(root, monkeypatch)
        self.server = server
        self.served: tuple[str, ...] = ()
        self.dialect = ""
        self.elsewhere: Callable[[RecordedRequest], Reply] = lambda request: NOT_FOUND
        server.responder = self._respond
        self.write("ApiTypes/Claude", CLAUDE)
        self.write("ApiTypes/Ollama", OLLAMA)
        self.write("ApiTypes/Completions", {"type": "openAIV1Completion"})
        self.write("ApiTypes/Vectors", {"type": "openAIEmbeddings"})

    def _respond(self, request: RecordedRequest) -> Reply:
        path = request.path.partition("?")[0]
        if path not in self.served:
            return self.elsewhere(request)
        if path.endswith("/embeddings"):
            return embed(request)
        return DIALECTS[self.dialect].reply(Answer(tokens=("Hi",)), bool(request.json.get("stream")))

    def connect(self, path: str, type_: str = "OpenAI", **keys: Any) -> None:
        self.endpoint("Main", {"apiTypeConfigFileName": type_, **keys}, self.server.url + path)
        self.dialect = DIALECT_NAMES.get(type_, "openAIChatCompletion")

    def call(self, stream: bool = False) -> str:
        answer = LlmApiService("Main", stream=stream).get_response_from_llm(HELLO)
        return answer if isinstance(answer, str) else "".join(chunk["token"] for chunk in answer)

    def asked(self) -> list[str]:
        """The paths of all requests so far, which are forgotten."""
        paths = [request.path for request in self.server.requests]
        self.server.requests.clear()
        return paths

    def next_row(self) -> None:
        super().next_row()
        self.server.requests.clear()
        self.elsewhere = lambda request: NOT_FOUND
        self.server.responder = self._respond
        install(Process())


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: StubBackend) -> Iterator[AddressLab]:
    before = install(Process())
    yield AddressLab(tmp_path, monkeypatch, backend)
    install(before)


@table(
    "type_, path, served, asked",
    [
        ("OpenAI", "", CHAT, [f"/v1{CHAT}", CHAT]),
        ("OpenAI", "/inference", f"/inference{CHAT}", [f"/inference/v1{CHAT}", f"/inference{CHAT}"]),
        ("OpenAI", "/a/b/?key=x", f"/a/b{CHAT}", [f"/a/b/v1{CHAT}?key=x", f"/a/b{CHAT}?key=x"]),
        ("Completions", "/x", "/x/completions", ["/x/v1/completions", "/x/completions"]),
        ("Claude", "/x", "/x/messages", ["/x/v1/messages", "/x/messages"]),
        ("Ollama", "/x", "/x/chat", ["/x/api/chat", "/x/chat"]),
        # The usual form answers.
        ("OpenAI", "/x", f"/x/v1{CHAT}", [f"/x/v1{CHAT}"]),
        ("Ollama", "", "/api/chat", ["/api/chat"]),
        # Nothing is tried where the address leaves no doubt.
        ("OpenAI", "/api/v3", f"/api/v3{CHAT}", [f"/api/v3{CHAT}"]),
        ("OpenAI", f"/x{CHAT}", f"/x{CHAT}", [f"/x{CHAT}"]),
    ],
)
def test_the_form_that_the_server_has_is_found_once(
    lab: AddressLab, type_: str, path: str, served: str, asked: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    lab.served = (served,)
    lab.connect(path, type_)
    for stream, status in ((False, 404), (True, 405)):
        install(Process())
        caplog.clear()
        lab.elsewhere = lambda request, status=status: status_reply(status, "Nothing here")
        with caplog.at_level(logging.INFO):
            assert [lab.call(stream), lab.call(not stream), lab.call(stream)] == ["Hi"] * 3
        assert lab.asked() == [*asked, asked[-1], asked[-1]]
        told = [record.getMessage() for record in caplog.records if "To ask there at once" in record.getMessage()]
        assert len(told) == len(asked) - 1
        for line in told:
            assert f'write "endpoint": "{lab.server.url}{served}" into Endpoints/lab/Main.json' in line


def test_vectors_are_found_too(lab: AddressLab) -> None:
    lab.served = ("/x/embeddings",)
    lab.connect("/x", "Vectors")
    for _ in range(2):
        assert EmbeddingApiService("Main").embed(["a"]) == [[1.0, 1.0, 0.5]]
    assert lab.asked() == ["/x/v1/embeddings", "/x/embeddings", "/x/embeddings"]


@table(
    "keys, path, asked",
    [
        ({"apiPath": "/v9"}, "", f"/v9{CHAT}"),
        ({"apiPath": ""}, "", CHAT),
        ({"apiPath": ""}, "/v1/", f"/v1{CHAT}"),
        ({"apiPath": None}, "/v1", f"/v1{CHAT}"),
        ({"apiPath": 7}, "/v1", f"/v1{CHAT}"),
    ],
)
def test_api_path(lab: AddressLab, keys: dict[str, Any], path: str, asked: str) -> None:
    lab.served = (asked,)
    lab.connect(path, **keys)
    assert (lab.call(), lab.call(True), lab.asked()) == ("Hi", "Hi", [asked, asked])


def test_with_an_api_path_nothing_else_is_tried(lab: AddressLab) -> None:
    lab.connect("", apiPath="/v9")
    with pytest.raises(BackendStatusError) as caught:
        lab.call()
    assert lab.asked() == [f"/v9{CHAT}"]
    assert "Check 'endpoint', 'apiPath' and the ApiType in Endpoints/lab/Main.json" in str(caught.value)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "model 'm' not found"}},
        {"error": {"message": "no such thing", "code": "model_not_found"}},
        b"The Model is gone",
        b"<html><body>This model was retired</body></html>",
    ],
    ids=["sentence", "code", "text", "page"],
)
def test_a_404_about_the_model_is_no_wrong_path(lab: AddressLab, body: Any, stream: bool) -> None:
    lab.elsewhere = lambda request: Reply(404, body)
    lab.connect("")
    for _ in range(2):
        with pytest.raises(BackendStatusError):
            lab.call(stream)
    # The first form is known to be right from then on.
    lab.elsewhere = lambda request: NOT_FOUND
    with pytest.raises(BackendStatusError):
        lab.call(stream)
    assert lab.asked() == [BOTH[0]] * 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [404, 405])
def test_an_address_without_either_form(lab: AddressLab, status: int, stream: bool) -> None:
    lab.elsewhere = lambda request: status_reply(status, "first" if "/v1" in request.path else "second")
    lab.connect("/models/x?key=hunter2")
    with pytest.raises(BackendStatusError) as caught:
        lab.call(stream)
    text, url = str(caught.value), lab.server.url
    assert text.startswith(f"Endpoint 'Main' ({url}/models/x/v1{CHAT}): status {status}") and "first" in text
    assert f"Asked at {url}/models/x/v1{CHAT} and {url}/models/x{CHAT}." in text and "hunter2" not in text
    assert "Check 'endpoint', 'apiPath' and the ApiType in Endpoints/lab/Main.json" in text
    assert len(lab.asked()) == 2
    # A server that has it later is found.
    lab.served = (f"/models/x{CHAT}",)
    assert lab.call(stream) == "Hi"


@pytest.mark.usefixtures("short_retry_waits")
@table(
    "answer, kind, remembered",
    [
        (status_reply(401), BackendStatusError, True),
        (status_reply(400), BackendStatusError, True),
        (status_reply(404, "the model is not there"), BackendStatusError, True),
        (Reply(drop=BEFORE_STATUS), BackendError, False),
    ],
)
def test_the_other_form_fails_otherwise(
    lab: AddressLab, answer: Reply, kind: type[BackendError], remembered: bool
) -> None:
    lab.elsewhere = lambda request: NOT_FOUND if "/v1" in request.path else answer
    lab.connect("")
    for _ in range(2):
        with pytest.raises(kind):
            lab.call(True)
    asked = lab.asked()
    # A lost connection is tried again, each time at both.
    assert asked == ([*BOTH, CHAT] if remembered else [*BOTH] * (len(asked) // 2)) and len(asked) >= 3


def test_a_path_that_mentions_models_is_no_model(lab: AddressLab) -> None:
    lab.elsewhere = lambda request: Reply(404, f"Cannot POST {request.path}".encode())
    lab.served = (f"/models{CHAT}x",)
    lab.connect("/models/serving")
    with pytest.raises(BackendStatusError):
        lab.call()
    assert len(lab.asked()) == 2


@table(
    "path, keys, azure",
    [
        ("/openai/deployments/gpt-x?api-version=2024-10-21", {}, True),
        ("/openai/v1?api-version=preview", {}, True),
        ("", {"apiPath": "/openai/deployments/gpt-x"}, True),
        ("/openai/v1", {}, False),
    ],
)
def test_the_key_of_azure(lab: AddressLab, path: str, keys: dict[str, Any], azure: bool) -> None:
    lab.elsewhere = lambda request: json_reply({}, 500)
    lab.connect(path, apiKey="k-123456", **keys)
    with pytest.raises(BackendError) as caught:
        lab.call(True)
    headers = lab.server.requests[0].headers
    assert headers["authorization"] == "Bearer k-123456" and headers.get("api-key") == ("k-123456" if azure else None)
    assert "k-123456" not in str(caught.value)


@pytest.mark.parametrize("how", ["abort", "cancel"])
def test_a_stop_ends_the_question_at_the_other_form(lab: AddressLab, transport: Transport, how: str) -> None:
    lab.elsewhere = lambda request: NOT_FOUND if "/v1" in request.path else Reply(never=True)
    scope, url = CancelScope(), lab.server.url
    stream = transport.open_stream(BackendRequest("E", url + BOTH[0], {}, other_url=url + BOTH[1]), scope)
    ended = threading.Event()

    def read() -> None:
        assert b"".join(stream) == b""
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    lab.server.wait_requests(2)
    if how == "abort":
        stream.abort()
    else:
        scope.cancel("test")
    assert ended.wait(SOON)
    thread.join()
    # What was stopped says nothing about the server.
    lab.served = BOTH[1:]
    lab.connect("")
    lab.asked()
    assert (lab.call(), lab.asked()) == ("Hi", list(BOTH))


def test_a_backup_is_asked_after_both_forms(lab: AddressLab) -> None:
    lab.served = ("/other/v1/chat/completions",)
    lab.connect("", backupEndpointName="Other")
    lab.endpoint("Other", {}, f"{lab.server.url}/other/v1")
    for stream in (False, True):
        assert (lab.call(stream), lab.asked()) == ("Hi", [*BOTH, "/other/v1/chat/completions"])


def test_each_method_finds_its_own_form(lab: AddressLab) -> None:
    """A gateway may have its calls in different places."""
    lab.served = (f"/gw{CHAT}", "/gw/v1/embeddings")
    lab.connect("/gw")
    lab.endpoint("Vectors", {"apiTypeConfigFileName": "Vectors"}, f"{lab.server.url}/gw")
    assert lab.call() == "Hi" and EmbeddingApiService("Vectors").embed(["a"])
    assert lab.asked() == [f"/gw/v1{CHAT}", f"/gw{CHAT}", "/gw/v1/embeddings"]
    # Another file with the same address knows it already.
    lab.endpoint("Main", {"modelNameToSendToAPI": "other"}, f"{lab.server.url}/gw")
    assert (lab.call(), lab.asked()) == ("Hi", [f"/gw{CHAT}"])
