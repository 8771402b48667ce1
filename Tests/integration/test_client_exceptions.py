"""What the packages of OpenAI and Ollama make of errors: the right class, whose text shows the server's message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ollama
import openai
import pytest

from Tests.backend_dialects import openai_embeddings
from Tests.integration.launcher import USER, Backend, Launcher, standard_tree, stuck
from Tests.patience import CLIENT_PATIENCE
from Tests.stub_backend import AFTER_PIECES, chat_chunk, json_reply, sse_reply, status_reply
from Tests.tables import table

KEY, BOB_KEY = "the-key-of-everyone", "the-key-of-bob-alone"
LARGE = "x" * 2 * 1024 * 1024


@dataclass(frozen=True)
class World:
    """A server of two users with keys, one slot, and small limits; and a client of either package."""

    server: Launcher
    backend: Backend

    def openai(self, key: str = KEY) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.server.url}/v1",
            api_key=key,
            max_retries=0,
            timeout=CLIENT_PATIENCE,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        )

    def ollama(self, key: str = KEY) -> ollama.Client:
        return ollama.Client(
            host=self.server.url, trust_env=False, timeout=CLIENT_PATIENCE, headers={"Authorization": f"Bearer {key}"}
        )


@pytest.fixture(scope="module")
def world(shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("exceptions")
    tree = standard_tree(folder / "Public", shared_backend.url)
    settings = json.loads((tree.configs / f"Users/{USER}.json").read_text(encoding="utf-8"))
    tree.write("Users/bob.json", settings)
    tree.write(f"Users/{USER}.json", {**settings, "embeddingEndpointName": None})
    keys = folder / "keys.txt"
    keys.write_text(f"{KEY}\n{BOB_KEY} user=bob\n", encoding="utf-8")
    keys.chmod(0o600)
    with Launcher(
        "run_waitress.py",
        "--PublicDirectory",
        tree.public,
        "--User",
        USER,
        "--User",
        "bob",
        "--accepted-keys-file",
        keys,
        "--max-request-mb",
        "1",
        "--concurrency-timeout",
        "0.5",
        backend=shared_backend,
    ) as server:
        yield World(server, shared_backend)


@pytest.fixture(autouse=True)
def fresh(shared_backend: Backend) -> Iterator[None]:
    shared_backend.reset()
    yield
    shared_backend.reset()


def ask_openai(client: openai.OpenAI, model: str = f"{USER}:Single", text: str = "hi", role: str = "user") -> None:
    messages: Any = [{"role": role, "content": text}] if role else [{"content": text}]
    client.chat.completions.create(model=model, messages=messages)


def stream_openai(client: openai.OpenAI, text: str = "hi") -> None:
    list(
        client.chat.completions.create(
            model=f"{USER}:Single", messages=[{"role": "user", "content": text}], stream=True
        )
    )


BROKEN = sse_reply([chat_chunk({"content": "Once "})], drop=AFTER_PIECES)
Call = Callable[[openai.OpenAI], object]
OPENAI_CASES: list[tuple[Call, str, type[openai.APIError], str, str | None, str]] = [
    (
        lambda client: ask_openai(client, role=""),
        KEY,
        openai.BadRequestError,
        "invalid_request_error",
        None,
        "Each message must have a 'role' field.",
    ),
    (
        lambda client: ask_openai(client, model="nobody"),
        KEY,
        openai.BadRequestError,
        "invalid_request_error",
        None,
        "Multi-user mode is active",
    ),
    (ask_openai, "wrong", openai.AuthenticationError, "authentication_error", "invalid_api_key", "API key"),
    (ask_openai, BOB_KEY, openai.PermissionDeniedError, "permission_error", None, "not for the user"),
    (
        lambda client: client.models.retrieve("nope"),
        KEY,
        openai.NotFoundError,
        "invalid_request_error",
        "model_not_found",
        "There is no model 'nope'.",
    ),
    (
        lambda client: client.moderations.create(input="x"),
        KEY,
        openai.NotFoundError,
        "invalid_request_error",
        None,
        "does not offer this service",
    ),
    (
        lambda client: client.embeddings.create(model=USER, input="x"),
        KEY,
        openai.NotFoundError,
        "invalid_request_error",
        None,
        "embeddingEndpointName",
    ),
    (
        lambda client: client.embeddings.create(model="bob:Vectors", input="x"),
        KEY,
        openai.InternalServerError,
        "server_error",
        None,
        "no such model",
    ),
    (
        lambda client: client.models.delete("nope"),
        KEY,
        openai.APIStatusError,
        "invalid_request_error",
        None,
        "405 Method Not Allowed",
    ),
    (
        lambda client: ask_openai(client, text=LARGE),
        KEY,
        openai.APIStatusError,
        "invalid_request_error",
        None,
        "larger than 1 MB",
    ),
    (ask_openai, KEY, openai.InternalServerError, "server_error", None, "no such model"),
    (stream_openai, KEY, openai.InternalServerError, "server_error", None, "no such model"),
]


@table(("call", "key", "kind", "type_", "code", "words"), OPENAI_CASES)
def test_openai(
    world: World, call: Call, key: str, kind: type[openai.APIStatusError], type_: str, code: str | None, words: str
) -> None:
    world.backend.replies.update(single=status_reply(400, "no such model"), embed=status_reply(400, "no such model"))
    with world.openai(key) as client, pytest.raises(kind) as caught:
        call(client)
    assert words in str(caught.value)
    assert (caught.value.type, caught.value.code, caught.value.param) == (type_, code, None)


def test_vectors(world: World) -> None:
    """OpenAI's package asks for base64 unless it is told otherwise."""
    world.backend.replies["embed"] = lambda request: json_reply(
        openai_embeddings([[len(text), 0.5] for text in request.json["input"]])
    )
    texts, expected = ["one", "three"], [[3.0, 0.5], [5.0, 0.5]]
    with world.openai(BOB_KEY) as client:
        for options in ({}, {"encoding_format": "float"}):
            answer = client.embeddings.create(model="text-embedding-3-small", input=texts, **options)
            assert [entry.embedding for entry in answer.data] == expected and answer.usage.total_tokens > 0
    with world.ollama(BOB_KEY) as client_:
        assert client_.embed("nomic-embed-text", texts).embeddings == expected
        assert client_.embeddings("nomic-embed-text", "one").embedding == expected[0]


def test_openai_repeats_no_failure_that_would_come_again(world: World) -> None:
    # The client asks three times, and the server asks three times each.
    for status, calls in ((400, 1), (404, 1), (500, 9)):
        world.backend.reset()
        world.backend.replies["single"] = status_reply(status, "no such model")
        with world.openai() as client, pytest.raises(openai.InternalServerError):
            stream_openai(client.with_options(max_retries=2), world.backend.hello)
        assert len(world.backend.calls("single")) == calls, status


def test_openai_in_the_middle_of_a_stream(world: World) -> None:
    world.backend.replies["single"] = BROKEN
    with world.openai() as client, pytest.raises(openai.APIError) as caught:
        stream_openai(client)
    assert "Stub" in str(caught.value) and caught.value.type == "server_error"


def ask_ollama(client: ollama.Client, model: str = f"{USER}:Single", text: str = "hi") -> None:
    client.chat(model, [{"role": "user", "content": text}])


@table(
    ("call", "key", "status", "words"),
    [
        (lambda client: ask_ollama(client, model="nobody"), KEY, 400, "Multi-user mode is active"),
        (ask_ollama, "wrong", 401, "API key"),
        (ask_ollama, BOB_KEY, 403, "not for the user"),
        (lambda client: client.show("nope"), KEY, 404, "model 'nope' not found"),
        (lambda client: client.pull("m"), KEY, 404, "it cannot be pulled"),
        (lambda client: client.embed(USER, "x"), KEY, 404, "embeddingEndpointName"),
        (lambda client: client.embed("m", "x"), KEY, 400, "Multi-user mode is active"),
        (lambda client: ask_ollama(client, text=LARGE), KEY, 413, "larger than 1 MB"),
        (ask_ollama, KEY, 502, "no such model"),
        (lambda client: list(client.generate(f"{USER}:Single", "hi", stream=True)), KEY, 502, "no such model"),
    ],
)
def test_ollama(world: World, call: Callable[[ollama.Client], object], key: str, status: int, words: str) -> None:
    world.backend.replies["single"] = status_reply(400, "no such model")
    with world.ollama(key) as client, pytest.raises(ollama.ResponseError) as caught:
        call(client)
    assert words in str(caught.value) and caught.value.status_code == status
    assert caught.value.error.startswith(str(caught.value).partition(" (status code")[0])
    assert "{" not in caught.value.error


def test_a_busy_server(world: World) -> None:
    world.backend.replies["single"] = stuck("Once ", "upon ")
    with (
        world.openai() as client,
        client.chat.completions.create(
            model=f"{USER}:Single", messages=[{"role": "user", "content": "hi"}], stream=True
        ) as running,
    ):
        next(running)
        with pytest.raises(openai.InternalServerError, match="Server busy") as caught:
            ask_openai(client)
        assert caught.value.status_code == 503 and caught.value.type == "server_error"
        with world.ollama() as client_, pytest.raises(ollama.ResponseError) as refused:
            ask_ollama(client_)
        assert (refused.value.error, refused.value.status_code) == ("Server busy, concurrency limit reached", 503)
