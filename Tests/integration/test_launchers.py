"""Launchers, started for real, with the official ``openai`` client in front of them."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from Middleware.common.constants import VERSION
from Tests.integration.launcher import (
    SERVER,
    USAGE,
    USER,
    Backend,
    Launcher,
    read_to_end,
    read_until,
    run_launcher,
    sse_payloads,
    standard_tree,
    streamed_text,
    stuck,
)
from Tests.integration.prelude import launcher_after
from Tests.patience import CLIENT_PATIENCE, PATIENCE
from Tests.stub_backend import (
    RecordedRequest,
    Reply,
    chat_chunk,
    chat_reply,
    chat_stream_reply,
    sse_reply,
    status_reply,
)

STREAMS = 20
Hello = list[ChatCompletionMessageParam]
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to catch")


@pytest.fixture
def hello(backend: Backend) -> Hello:
    return [{"role": "user", "content": backend.hello}]


@pytest.fixture
def client(server: Launcher) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=CLIENT_PATIENCE,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    ) as client:
        yield client


@pytest.mark.contract
def test_lists_models(client: openai.OpenAI) -> None:
    ids = [model.id for model in client.models.list()]
    assert f"{USER}:Single" in ids and f"{USER}:Chain" in ids
    assert ids == sorted(ids)


def test_answers_through_routing_and_nested_workflow(client: openai.OpenAI, backend: Backend, hello: Hello) -> None:
    backend.replies["categorize"] = chat_reply("POEM")
    answer = client.chat.completions.create(model=USER, messages=hello)
    assert answer.choices[0].message.content == "final says hello."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == USER
    assert answer.usage is not None and answer.usage.total_tokens == USAGE["total_tokens"]
    assert backend.nodes() == ["categorize", "outline", "draft", "final"]
    assert "outline says hello." in backend.calls("draft")[0].json["messages"][0]["content"]


@pytest.mark.contract(SERVER)
def test_streams_through_routing_and_nested_workflow(client: openai.OpenAI, backend: Backend, hello: Hello) -> None:
    backend.replies["categorize"] = chat_reply("POEM")
    backend.replies["final"] = chat_stream_reply(["Grüße", " ", "aus 東京", "."], finish_reason="length")
    chunks = list(client.chat.completions.create(model=USER, messages=hello, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Grüße aus 東京."
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)
    assert backend.nodes() == ["categorize", "outline", "draft", "final"]


def test_stream_with_usage(client: openai.OpenAI, hello: Hello) -> None:
    chunks = list(
        client.chat.completions.create(
            model="Single", messages=hello, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == USAGE["completion_tokens"]
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.contract
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"], ids=["SSE", "NDJSON"])
def test_stream_arrives_token_by_token(server: Launcher, backend: Backend, path: str) -> None:
    go_on = threading.Event()
    backend.replies["single"] = chat_stream_reply(["one ", "two ", "three"], held=go_on, held_piece=2)
    with server.open("Single", True, path) as sock:
        assert b"two" not in read_until(sock, b"one")
        go_on.set()
        read_until(sock, b"three")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_backend_error_is_a_status_error(client: openai.OpenAI, backend: Backend, stream: bool, hello: Hello) -> None:
    backend.replies["single"] = status_reply(400, "the model exploded")
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="Single", messages=hello, stream=stream)  # type: ignore[call-overload]
    assert isinstance(caught.value, openai.APIStatusError)
    assert caught.value.status_code == 502
    assert "the model exploded" in str(caught.value) and "Stub" in str(caught.value)


def test_error_in_mid_stream_is_an_api_error(client: openai.OpenAI, backend: Backend, hello: Hello) -> None:
    backend.replies["single"] = sse_reply(
        [chat_chunk({"content": "Once"}), {"error": {"message": "out of memory"}}], delay=0.1
    )
    texts = []
    with pytest.raises(openai.APIError, match="out of memory"):
        for chunk in client.chat.completions.create(model="Single", messages=hello, stream=True):
            texts.append(chunk.choices[0].delta.content)
    assert texts == ["Once"]


def test_wrong_request_is_a_bad_request_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="Single", messages=[{"content": "x"}])  # type: ignore[list-item]
    assert "Each message must have a 'role' field." in str(caught.value)
    assert (caught.value.type, caught.value.param, caught.value.code) == ("invalid_request_error", None, None)


@pytest.mark.contract
def test_unknown_path_and_method_are_json(server: Launcher) -> None:
    for method, path, status in (("GET", "/nowhere", 404), ("GET", "/v1/chat/completions", 405)):
        response = server.request(method, path)
        assert response.status == status
        assert response.headers["content-type"].startswith("application/json")
        assert response.error


@pytest.mark.contract
def test_parallel_streams(client: openai.OpenAI, backend: Backend, hello: Hello) -> None:
    tokens = [f"word{number} " for number in range(10)]
    all_asked = threading.Event()

    def reply(request: RecordedRequest) -> Reply:
        if len(backend.calls("single")) == STREAMS:
            all_asked.set()
        return chat_stream_reply(tokens, held=all_asked, held_piece=5)

    backend.replies["single"] = reply

    def read(_: int) -> str:
        stream = client.chat.completions.create(model="Single", messages=hello, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    with ThreadPoolExecutor(STREAMS) as pool:
        answers = list(pool.map(read, range(STREAMS)))
    assert answers == ["".join(tokens).strip()] * STREAMS


def test_stream_ends_with_its_connection(server: Launcher) -> None:
    with server.open("Single", stream=True) as sock:
        answer = read_to_end(sock)  # hangs if the server kept the connection
    assert b"text/event-stream" in answer.lower()
    assert answer.count(b"data: [DONE]\n\n") == 1


# -- start and end of the process --------------------------------------------------------------------------------------


@posix_only
@pytest.mark.contract
def test_sigterm_ends_idle_and_busy_servers_cleanly(script: str, tmp_path: Path, backend: Backend) -> None:
    tree = standard_tree(tmp_path / "Public with ümlaut", backend.url)
    backend.replies["single"] = stuck("Once ", "upon ", "a ")
    with Launcher(script, "--PublicDirectory", tree.public, "--User", USER, backend=backend) as server:
        assert server.process is not None
        with server.open("Single", stream=True) as sock:
            read_until(sock, b"upon")
            started = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
        assert time.monotonic() - started < PATIENCE
        assert backend.calls("single")[0].wait_ended()
        assert "Traceback" not in server.output()


@pytest.mark.contract
def test_port_taken_is_one_clear_sentence(script: str, tmp_path: Path) -> None:
    tree = standard_tree(tmp_path / "Public", "http://127.0.0.1:9")
    with socket.socket() as holder:
        if sys.platform == "win32":
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        ended = run_launcher(script, "--PublicDirectory", tree.public, "--User", USER, "--port", str(port))
    assert ended.returncode == 1
    errors = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")]
    assert len(errors) == 1 and str(port) in errors[0]
    assert "Traceback" not in ended.stderr + ended.stdout
    assert "Listening" not in ended.stdout


def test_version(script: str) -> None:
    ended = run_launcher(script, "--version")
    assert (ended.returncode, ended.stdout.strip()) == (0, f"WilmerAI {VERSION}")


@pytest.mark.contract
def test_bad_arguments_print_usage(script: str) -> None:
    ended = run_launcher(script, "--concurrency", "-1")
    assert ended.returncode == 2
    assert "--concurrency must be >= 0" in ended.stderr and script in ended.stderr


@pytest.mark.contract
def test_waitress_stands_in_for_eventlet(tmp_path: Path, backend: Backend) -> None:
    tree = standard_tree(tmp_path / "Public", backend.url)
    without = launcher_after(tmp_path, "run_eventlet.py", "sys.modules['eventlet'] = None")
    with Launcher(without, "--PublicDirectory", tree.public, "--User", USER, backend=backend) as server:
        assert server.ask("Single").text == "single says hello."
        assert server.output().count("NOTICE: the package eventlet is not installed; Waitress is used instead.") == 1
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=CLIENT_PATIENCE)
        for _ in range(2):
            connection.request("GET", "/v1/models")
            assert connection.getresponse().read()
        connection.close()


def test_start_tells_where_the_server_is(server: Launcher) -> None:
    output = server.output()
    assert re.search(rf"Listening on:.*{server.port}", output)
    assert "--listen" in output and USER in output
    assert streamed_text(server.ask("Single", stream=True).body) == "single says hello."
    assert sse_payloads(server.ask("Single", stream=True).body)[-1] == "[DONE]"
