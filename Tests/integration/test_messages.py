"""Anthropic's Messages API over sockets: its packages with their tool runner, silence, failures, leaving clients."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import pytest

from Tests.integration.conftest import Servers
from Tests.integration.launcher import USER, Backend, Launcher, Response, dechunked, read_to_end, read_until, stuck
from Tests.integration.stop_cases import MID_STREAM, PREFILL
from Tests.integration.stop_clients import ANTHROPIC, Client, leave
from Tests.patience import CLIENT_PATIENCE
from Tests.stub_backend import (
    AFTER_PIECES,
    RecordedRequest,
    Reply,
    chat_answer,
    chat_chunk,
    chat_stream_reply,
    json_reply,
    sse_reply,
    status_reply,
)

PATH = "/v1/messages"
PINGS = 3
USAGE = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}


def ask(
    server: Launcher, text: str = "Hi", model: str = "Single", stream: bool = True, path: str = PATH, **fields: Any
) -> Response:
    return server.request(
        "POST",
        path,
        {
            "model": model,
            "max_tokens": 1024,
            "stream": stream,
            "messages": [{"role": "user", "content": text}],
            **fields,
        },
    )


def names(body: bytes) -> list[str]:
    """The names of the events of a stream, which must be their types."""
    blocks = [block.partition("\ndata: ") for block in body.decode().split("\n\n") if block]
    assert all(json.loads(data)["type"] == name.removeprefix("event: ") for name, _, data in blocks)
    return [name.removeprefix("event: ") for name, _, _ in blocks]


@pytest.fixture(scope="module")
def silent(script: str, servers: Servers, shared_backend: Backend) -> dict[str, Response]:
    """Streams that the back-end keeps silent until some pings have come; side by side because they take long."""
    shared_backend.reset()
    events = {text: threading.Event() for text in ("first", "between", "failure")}
    replies = {
        "first": chat_stream_reply(["Once", " upon"], held=events["first"]),
        "between": chat_stream_reply(["Once", " upon"], held=events["between"], held_piece=2),
        "failure": status_reply(400, "too late", held=events["failure"]),
    }
    shared_backend.replies["single"] = lambda request: replies[request.json["messages"][-1]["content"]]

    def answered(text: str) -> Response:
        body = {"model": "Single", "max_tokens": 1024, "stream": True, "messages": [{"role": "user", "content": text}]}
        with post(servers.get(script).port, body) as sock:
            began, data = time.monotonic(), b""
            while data.count(b"event: ping") < PINGS:
                piece = sock.recv(65536)
                assert piece, data
                data += piece
            silence = time.monotonic() - began
            events[text].set()
            data += read_to_end(sock)
        return Response(int(data.split(b" ", 2)[1]), {}, dechunked(data), silence)

    with ThreadPoolExecutor(3) as pool:
        return dict(zip(events, pool.map(answered, events), strict=True))


def post(port: int, body: Any) -> socket.socket:
    """Send a request and leave the answer unread."""
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", port), timeout=CLIENT_PATIENCE)
    sock.sendall(
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (PATH.encode(), len(data), data)
    )
    return sock


def test_silence(silent: dict[str, Response]) -> None:
    """The message begins after a second, and every silent second has a ping: with the beginning, and after it."""
    for text in ("first", "between"):
        response = silent[text]
        events = names(response.body)
        assert events[:2] == ["message_start", "ping"]
        assert events.count("ping") >= PINGS and response.seconds >= PINGS - 1
        rest = [event for event in events if event != "ping"]
        assert rest == [
            "message_start",
            "content_block_start",
            *["content_block_delta"] * 2,
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    # The other one may have been delayed by what else the machine does.
    assert min(silent[text].seconds for text in ("first", "between")) < 3 * PINGS
    begun = [names(silent["first"].body).index(name) for name in ("ping", "content_block_start")]
    assert begun[1] - begun[0] >= PINGS


def test_a_failure_after_the_beginning_ends_the_stream(silent: dict[str, Response]) -> None:
    response = silent["failure"]
    events = [event for event in names(response.body) if event != "ping"]
    assert (response.status, events) == (200, ["message_start", "error"])
    assert b"Stub" in response.body and b'"request_id":"req_' in response.body


def test_a_failure_in_mid_stream(server: Launcher, backend: Backend) -> None:
    backend.replies["single"] = sse_reply([chat_chunk({"content": "Once"})], drop=AFTER_PIECES)
    assert names(ask(server).body) == ["message_start", "ping", "content_block_start", "content_block_delta", "error"]


def test_heads(server: Launcher, backend: Backend) -> None:
    for stream in (False, True):
        backend.replies["single"] = status_reply(400, "no such model")
        refused = ask(server, stream=stream)
        assert refused.status == 502 and refused.json["error"]["type"] == "api_error"
        assert refused.json["request_id"] == refused.headers["request-id"]
        assert refused.headers["x-should-retry"] == "false"
        del backend.replies["single"]
        answered = ask(server, stream=stream, path="/v1/v1/messages?beta=true")
        assert answered.status == 200 and answered.headers["request-id"].startswith("req_")
        assert answered.headers["request-id"][4:] == answered.headers["x-request-id"].replace("-", "")


# -- stopping ----------------------------------------------------------------------------------------------------------
@pytest.mark.contract
def test_a_client_that_leaves_frees_the_gate(gated_server: Launcher, backend: Backend) -> None:
    for phase in (PREFILL, MID_STREAM):
        for stream in (False, True):
            leave(gated_server, backend, phase, Client(ANTHROPIC, stream))
    answer = ask(gated_server, backend.hello, stream=False)
    assert answer.json["content"] == [{"type": "text", "text": "single says hello."}]


def test_a_stopped_stream_whose_client_stays_ends_as_usual(server: Launcher, backend: Backend) -> None:
    stop = leave(server, backend, MID_STREAM, Client(ANTHROPIC, deletes=True))
    assert not stop.complaint() and b'"stop_reason":"end_turn"' in stop.answer


def test_counting_and_leaving_while_the_gate_is_full(gated_server: Launcher, backend: Backend) -> None:
    backend.replies["single"] = stuck("Once", " upon")
    waiting = Client(ANTHROPIC)
    with gated_server.open("Single", stream=True) as running:
        read_until(running, b"upon")
        counted = ask(gated_server, backend.hello, path=f"{PATH}/count_tokens")
        assert counted.status == 200 and counted.json["input_tokens"] > 1
        with waiting.ask(gated_server, "Chain", backend.talk()) as sock:
            time.sleep(0.2)
            sock.close()
    answer = ask(gated_server, backend.hello, model="Background", stream=False)
    assert answer.status == 200 and "first" not in backend.nodes()


# -- Anthropic's packages ----------------------------------------------------------------------------------------------
@pytest.fixture
def client(server: Launcher) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url,
        auth_token="none",
        max_retries=2,
        timeout=CLIENT_PATIENCE,
        http_client=anthropic.DefaultHttpxClient(trust_env=False),
    ) as made:
        yield made


def call(request: RecordedRequest, *calls: tuple[str, str], text: str = "") -> Reply:
    """An answer with calls, whole or in fragments that alternate."""
    whole = [
        {
            "index": number,
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    if not request.json.get("stream"):
        message = {"role": "assistant", "content": text, "tool_calls": whole}
        return json_reply(
            {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": USAGE}
        )
    begun: Any = [
        {**entry, "function": {**entry["function"], "arguments": entry["function"]["arguments"][:4]}} for entry in whole
    ]
    rest: Any = [
        {"index": number, "function": {"arguments": arguments[4:]}} for number, (_, arguments) in enumerate(calls)
    ]
    deltas = [{"content": text}, *({"tool_calls": [entry]} for entry in (*begun, *rest))]
    return sse_reply(
        [*map(chat_chunk, deltas), chat_chunk({}, "tool_calls"), {"choices": [], "usage": USAGE}, "[DONE]"]
    )


def test_lists_of_models(client: anthropic.Anthropic) -> None:
    """The package asks for page after page."""
    everything = [model.id for model in client.models.list()]
    assert f"{USER}:Single" in everything and [model.id for model in client.models.list(limit=1)] == everything
    found = client.models.retrieve(f"{USER}:Single:latest")
    assert (found.id, found.max_input_tokens, found.created_at.year) == (f"{USER}:Single", 32768, 2024)
    with pytest.raises(anthropic.NotFoundError, match="nope") as caught:
        client.models.retrieve("nope")
    assert caught.value.request_id == caught.value.body["request_id"]  # type: ignore[index]


@pytest.mark.contract
def test_tool_runner(client: anthropic.Anthropic, backend: Backend) -> None:
    """It asks for a thread first, and sends the whole conversation once it is refused."""
    read: list[str] = []

    @anthropic.beta_tool
    def read_file(path: str) -> str:
        """Read a file."""
        read.append(path)
        return f"content of {path}"

    def reply(request: RecordedRequest) -> Reply:
        messages = request.json["messages"]
        if messages[-1]["role"] == "tool":
            return chat_answer(request, ["They ", "differ."])
        return call(request, ("read_file", '{"path": "a"}'), ("read_file", '{"path": "b"}'), text="I look.")

    backend.replies["agent"] = reply
    for stream in (False, True):
        read.clear()
        runner: Any = client.beta.messages.tool_runner(
            model="Agent",
            max_tokens=1024,
            tools=[read_file],
            stream=stream,
            messages=[{"role": "user", "content": f"Compare them. {backend.hello}"}],
        )
        replies = [entry.get_final_message() if stream else entry for entry in runner]
        assert [block.type for block in replies[0].content] == ["text", "tool_use", "tool_use"]
        assert replies[0].stop_reason == "tool_use" and replies[-1].content[0].text == "They differ."
        assert sorted(read) == ["a", "b"]
        last = backend.calls("agent")[-1].json["messages"]
        assert [entry["role"] for entry in last] == ["system", "user", "assistant", "tool", "tool"]
        assert [entry["content"] for entry in last[3:]] == ["content of a", "content of b"]


def test_stream_helper(client: anthropic.Anthropic, backend: Backend) -> None:
    backend.replies["agent"] = lambda request: call(
        request, ("a", '{"x": 1}'), ("b", '{"y": "größe 漢字 😀"}'), text="Both."
    )
    tools: Any = [{"name": name, "input_schema": {"type": "object"}} for name in "ab"]
    with client.messages.stream(
        model="Agent", max_tokens=1024, tools=tools, messages=[{"role": "user", "content": backend.hello}]
    ) as stream:
        first = next(iter(stream))
        message = stream.get_final_message()
    assert first.type == "message_start" and first.message.usage.input_tokens > 0
    assert [block.model_dump(include={"text", "name", "input"}) for block in message.content] == [
        {"text": "Both."},
        {"name": "a", "input": {"x": 1}},
        {"name": "b", "input": {"y": "größe 漢字 😀"}},
    ]
    assert message.usage.input_tokens == 100 and message.usage.output_tokens == 7


def test_errors_have_their_class_and_are_not_repeated(client: anthropic.Anthropic, backend: Backend) -> None:
    asked: Any = {"model": "Single", "max_tokens": 1024, "messages": [{"role": "user", "content": backend.hello}]}
    backend.replies["single"] = status_reply(400, "no such model")
    with pytest.raises(anthropic.InternalServerError, match="Stub") as failed:
        client.messages.create(**asked)
    assert failed.value.status_code == 502 and len(backend.calls("single")) == 1
    backend.replies["single"] = sse_reply([chat_chunk({"content": "Once"}), {"error": {"message": "oom"}}])
    with pytest.raises(anthropic.APIStatusError, match="Stub"), client.messages.stream(**asked) as stream:
        for _ in stream:
            pass
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content"):
        client.messages.create(**{**asked, "messages": [{"role": "user", "content": 5}]})
    with pytest.raises(anthropic.NotFoundError, match="does not offer"):
        client.messages.batches.list()
    assert client.messages.count_tokens(model="Single", messages=asked["messages"]).input_tokens > 0


def test_the_package_closes_its_stream(client: anthropic.Anthropic, backend: Backend) -> None:
    backend.replies["single"] = stuck("Once", " upon")
    with client.messages.stream(
        model="Single", max_tokens=1024, messages=[{"role": "user", "content": backend.hello}]
    ) as stream:
        next(stream.text_stream)
    assert backend.wait_call("single").wait_ended()


def test_the_end_of_the_body(server: Launcher, backend: Backend) -> None:
    """Nothing follows message_stop; parsers fail at OpenAI's terminator."""
    with Client(ANTHROPIC).ask(server, "Single", backend.talk()) as sock:
        answer = read_to_end(sock)
    assert b"[DONE]" not in answer and answer.endswith(b'data: {"type":"message_stop"}\n\n\r\n0\r\n\r\n')
