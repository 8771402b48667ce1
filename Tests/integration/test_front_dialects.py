"""Text completions and the Ollama dialect on real sockets: framing, real clients, stopping, errors."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import ollama
import openai
import pytest

from Tests.api.front_dialects import COUNTERS, FRONTS, OLLAMA_CHAT, OLLAMA_TEXT, OPENAI_TEXT, Front, message_at
from Tests.integration.launcher import USAGE, USER, Backend, Launcher, read_to_end, read_until
from Tests.patience import CLIENT_PATIENCE, PATIENCE
from Tests.stub_backend import Reply, chat_chunk, chat_stream_reply, sse_event, sse_reply, status_reply

NDJSON = [OLLAMA_CHAT, OLLAMA_TEXT]
TEXT = "single says hello."


def send(server: Launcher, method: str, path: str, body: Any = None) -> socket.socket:
    """Send a request and leave the answer unread."""
    data = b"" if body is None else json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=CLIENT_PATIENCE)
    sock.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return sock


def ask(server: Launcher, backend: Backend, front: Front, **fields: Any) -> socket.socket:
    return send(server, "POST", front.path, front.body(backend.hello, **{"model": "Single", **fields}))


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers in lower case, and the body as it was framed."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode("ascii").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


def http_chunks(body: bytes) -> list[bytes]:
    """The chunks of a body with chunked transfer encoding, which must be complete."""
    chunks: list[bytes] = []
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        chunk, body = body[:length], body[length:]
        assert len(chunk) == length and body[:2] == b"\r\n"
        body = body[2:]
        if not length:
            assert body == b""
            return chunks
        chunks.append(chunk)


def burst(*texts: str) -> Reply:
    """All tokens in one piece, as a fast back-end delivers them."""
    pieces = [sse_event(chat_chunk({"content": text})) for text in texts]
    return Reply(
        pieces=[b"".join([*pieces, sse_event(chat_chunk({}, "stop")), sse_event("[DONE]")])],
        headers={"Content-Type": "text/event-stream"},
    )


# -- framing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("front", NDJSON, ids=str)
@pytest.mark.parametrize("kind", ["burst", "slow", "silent", "error"])
def test_one_line_per_http_chunk(server: Launcher, backend: Backend, front: Front, kind: str) -> None:
    tokens = [f"größe {number}\n" for number in range(30)]
    backend.replies["single"] = {
        "burst": burst(*tokens),
        "slow": chat_stream_reply(tokens, delay=0.01),
        "silent": chat_stream_reply(tokens, header_delay=1.3),
        "error": sse_reply([*[chat_chunk({"content": token}) for token in tokens], {"error": {"message": "oom"}}]),
    }[kind]
    with ask(server, backend, front, stream=True) as sock:
        status, headers, body = split(read_to_end(sock))
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    assert headers["transfer-encoding"] == "chunked"
    assert len(headers["x-request-id"]) == 36
    chunks = http_chunks(body)
    assert all(chunk.endswith(b"\n") and chunk.count(b"\n") == 1 and json.loads(chunk) for chunk in chunks)
    assert len(chunks) >= len(tokens)
    text = front.streamed(b"".join(chunks))
    assert text.strip() == "".join(tokens).strip()
    assert ("error" in json.loads(chunks[-1])) is (kind == "error")
    if kind == "silent":
        beat = json.loads(chunks[0])
        assert front.text(beat) == "" and beat["done"] is False and beat["request_id"] == headers["x-request-id"]


@pytest.mark.parametrize("front", FRONTS, ids=str)
def test_no_event_is_split_over_http_chunks(server: Launcher, backend: Backend, front: Front) -> None:
    backend.replies["single"] = burst(*[f"word{number} " for number in range(100)])
    with ask(server, backend, front, stream=True) as sock:
        chunks = http_chunks(split(read_to_end(sock))[2])
    ending = b"\n" if front.ollama else b"\n\n"
    assert all(chunk.endswith(ending) for chunk in chunks)
    assert front.streamed(b"".join(chunks)).split() == [f"word{number}" for number in range(100)]


@pytest.mark.parametrize("front", FRONTS, ids=str)
def test_stream_ends_with_its_connection(server: Launcher, backend: Backend, front: Front) -> None:
    with ask(server, backend, front, stream=True) as sock:
        data = b"".join(http_chunks(split(read_to_end(sock))[2]))
    assert front.streamed(data) == TEXT
    assert front.finishes(data) == ["stop"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", b"Ollama is running"),
        ("/health", b'{"status":"ok"}'),
        ("/api/version", b'{"version":"0.9"}'),
        ("/v1/models", b'"list"'),
    ],
)
def test_get_head_and_options(server: Launcher, path: str, text: bytes) -> None:
    answer = server.request("GET", path)
    assert answer.status == 200 and text in answer.body
    head = server.request("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.body))
    options = server.request("OPTIONS", path)
    assert options.status == 200 and "GET" in options.headers["allow"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/chat", 405),
        ("POST", "/api/tags", 405),
        ("DELETE", "/v1/completions", 405),
        ("POST", "/", 405),
        ("GET", "/api/nowhere", 404),
        ("POST", "/v1/nowhere", 404),
        ("GET", "/static/x.js", 404),
        ("POST", "/v1/messages/batches", 404),
        ("GET", "/v1/messages/batches/x", 404),
        ("GET", "/v1/messages", 405),
        ("POST", "/v1/responses/compact", 405),
        ("GET", "/v1/responses", 405),
        ("PUT", "/v1/v1/messages", 405),
    ],
)
def test_unknown_paths_and_methods(server: Launcher, method: str, path: str, status: int) -> None:
    answer = server.request(method, path)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    message = message_at(path, answer.json, status)
    assert ("does not offer this service" in message) is ("batches" in path)


# -- real clients ------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(server: Launcher) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url, trust_env=False, timeout=CLIENT_PATIENCE) as client:
        yield client


@pytest.fixture
def openai_client(server: Launcher) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=CLIENT_PATIENCE,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    ) as client:
        yield client


def test_ollama_lists(client: ollama.Client) -> None:
    names = [model.model for model in client.list().models]
    assert f"{USER}:Single:latest" in names and names == sorted(names, key=str)
    assert [model.model for model in client.ps().models] == names
    shown = client.show(f"{USER}:Single")
    assert shown.capabilities is not None and "completion" in shown.capabilities
    with pytest.raises(ollama.ResponseError) as caught:
        client.show("nope")
    assert caught.value.status_code == 404


def test_ollama_chat(client: ollama.Client, backend: Backend) -> None:
    answer = client.chat("Single:latest", messages=[{"role": "user", "content": backend.hello}])
    assert (answer.message.content, answer.done_reason, answer.model) == (TEXT, "stop", f"{USER}:Single")
    assert (answer.prompt_eval_count, answer.eval_count) == (USAGE["prompt_tokens"], USAGE["completion_tokens"])
    assert answer.total_duration and answer.created_at
    chunks = list(client.chat("Single", messages=[{"role": "user", "content": backend.hello}], stream=True))
    assert "".join(chunk.message.content or "" for chunk in chunks) == TEXT
    assert [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].eval_count == USAGE["completion_tokens"]
    assert all(key in chunks[-1] for key in COUNTERS)


def test_ollama_generate(client: ollama.Client, backend: Backend) -> None:
    answer = client.generate("Single", backend.hello)
    assert (answer.response, answer.done_reason) == (TEXT, "stop")
    assert answer.total_duration and answer.eval_count == USAGE["completion_tokens"]
    chunks = list(client.generate("Single", f"[Beg_Sys]S[Beg_User]{backend.hello}[Beg_Assistant]Mira:", stream=True))
    assert "".join(chunk.response or "" for chunk in chunks) == TEXT
    assert chunks[-1].done and chunks[-1].eval_duration is not None
    sent = backend.calls("single")[-1].json["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant"]
    assert sent[-1]["content"] == "Mira:"


def test_ollama_load(client: ollama.Client, backend: Backend) -> None:
    assert client.generate("Single").done_reason == "load"
    assert client.chat("Single").done_reason == "load"
    assert backend.calls() == []


@pytest.mark.parametrize("stream", [False, True])
def test_ollama_error(client: ollama.Client, backend: Backend, stream: bool) -> None:
    backend.replies["single"] = status_reply(400, "the model exploded")
    with pytest.raises(ollama.ResponseError, match="the model exploded") as caught:
        chat: Any = client.chat
        answer = chat("Single", messages=[{"role": "user", "content": backend.hello}], stream=stream)
        list(answer)
    assert caught.value.status_code == 502


def test_ollama_error_in_mid_stream(client: ollama.Client, backend: Backend) -> None:
    backend.replies["single"] = sse_reply(
        [chat_chunk({"content": "Once"}), {"error": {"message": "out of memory"}}], delay=0.1
    )
    texts = []
    with pytest.raises(ollama.ResponseError, match="out of memory"):
        for chunk in client.generate("Single", backend.hello, stream=True):
            texts.append(chunk.response)
    assert texts == ["Once"]


def test_text_completions(openai_client: openai.OpenAI, backend: Backend) -> None:
    answer = openai_client.completions.create(model="Single", prompt=[backend.hello], stream=False)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (TEXT, "stop")
    assert answer.usage is not None and answer.usage.total_tokens == USAGE["total_tokens"]
    chunks = list(
        openai_client.completions.create(
            model="Single", prompt=backend.hello, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == TEXT
    assert chunks[-1].choices == [] and chunks[-1].usage is not None


def test_model_by_name(openai_client: openai.OpenAI) -> None:
    assert openai_client.models.retrieve(f"{USER}:Single").owned_by == "Wilmer"
    with pytest.raises(openai.NotFoundError):
        openai_client.models.retrieve("nope")


# -- stopping ----------------------------------------------------------------------------------------------------------

# It says nothing more.
STUCK = sse_reply([chat_chunk({"content": "Once"}), chat_chunk({"content": " upon"})], hang=True)


@pytest.mark.parametrize("front", [*NDJSON, OPENAI_TEXT], ids=str)
def test_closing_the_connection_stops_all(gated_server: Launcher, backend: Backend, front: Front) -> None:
    """One request at a time: the next one is served as soon as the client has left."""
    backend.replies["single"] = STUCK
    with ask(gated_server, backend, front, stream=True) as sock:
        read_until(sock, b"upon")
    assert backend.wait_call("single").wait_ended(PATIENCE)
    backend.replies.clear()
    started = time.monotonic()
    with ask(gated_server, backend, front, stream=False) as sock:
        assert TEXT.encode() in read_until(sock, b"hello.")
    assert time.monotonic() - started < PATIENCE


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize("front", FRONTS, ids=str)
def test_delete_cancels_any_request(gated_server: Launcher, backend: Backend, front: Front, path: str) -> None:
    """It never waits for a place, and the client that is still there gets a proper end."""
    backend.replies["single"] = STUCK
    with ask(gated_server, backend, front, stream=True) as sock:
        data = read_until(sock, b"upon")
        request_id = split(data)[1]["x-request-id"]
        answer = gated_server.request("DELETE", path, {"request_id": request_id})
        assert (answer.status, answer.json) == (200, {"status": "cancelled", "request_id": request_id})
        assert answer.seconds < PATIENCE
        data += read_to_end(sock)
    body = b"".join(http_chunks(split(data)[2]))
    assert front.streamed(body) == "Once upon"
    assert front.finishes(body) == ["stop"]
    assert backend.wait_call("single").wait_ended(PATIENCE)
