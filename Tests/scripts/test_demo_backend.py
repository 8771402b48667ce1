"""The demo back-end over real sockets, and what it says."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.init.demo_backend import MARK, MODEL, DemoServer, answer, is_running, start
from Scripts import demo_backend
from Tests.free_ports import free_port
from Tests.patience import PATIENCE
from Tests.workflows.engine_lab import until

CHOICE = "Choose one category:\n- CODING: programming, Python functions\n- STORY: tales of dragons\n- GENERAL: the rest"


@pytest.fixture(scope="module")
def server() -> Iterator[DemoServer]:
    running = start(delay=0.001)
    yield running
    running.shutdown()
    running.server_close()


def post(server: DemoServer, path: str, body: Any) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def chat(text: str, system: str = "") -> list[dict[str, Any]]:
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": text}]


def sse(content: bytes) -> list[Any]:
    events = [event for event in content.decode().split("\n\n") if event]
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"
    return [json.loads(event[6:]) for event in events[:-1]]


# --- what it says


@pytest.mark.parametrize(
    ("question", "category"),
    [
        ("Write a python function", "CODING"),
        ("Tell me a story about a dragon", "STORY"),
        ("<conversation>\nUser: a python function\nAssistant: done\nUser: now a tale\n</conversation>\nSo?", "STORY"),
        ("<conversation>\nUser: tell me a tale\nAssistant: Once\nUser: longer, please\n</conversation>", "STORY"),
        ("What is the weather like?", "GENERAL"),
    ],
)
def test_picks_the_option_that_shares_words_with_the_newest_line(question: str, category: str) -> None:
    assert answer(chat(question, CHOICE)) == category


def test_a_list_without_a_request_to_choose_is_an_ordinary_question() -> None:
    assert answer(chat("What now?", "Of my day I say:\n- work: long\n- sleep: short")).startswith(MARK)


def test_an_ordinary_answer_names_itself_the_instruction_and_earlier_steps() -> None:
    system = "You are an editor. This is it:\n<draft>\nOnce upon a time\n</draft>\nGo on."
    reply = answer(chat("A story, please", system))
    assert reply.startswith(MARK)
    for part in ("A story, please", "You are an editor", "draft", "Once upon a time"):
        assert part in reply


def test_the_texts_of_a_step_around_a_message_are_told_from_the_message() -> None:
    notes = "Notes on it:\n<notes>\nBegin with rain.\n\nThen sun.\n</notes>\nUse them."
    task = "Answer the message above as a writer: choose words well.\n- one: x\n- two: y"
    reply = answer(chat(f"{notes}\n\nA story!\n\nA short one.\n\n{task}", "You are kind."))
    for part in (
        "You asked: \u201cA story! A short one.\u201d",
        "begins \u201cAnswer the message above as a writer",
        "notes (\u201cBegin with rain.",
    ):
        assert part in reply
    task = "Do not answer the message above yet. Plan it."
    assert "You asked: \u201cA story!\u201d" in answer(chat(f"A story!\n\n{task}"))


def test_the_same_request_gets_the_same_answer() -> None:
    assert answer(chat("Hello")) == answer(chat("Hello"))


def test_a_requested_json_object_is_json() -> None:
    text = '### Task:\nGive a title.\nJSON format: { "title": "your title" }\n<chat>\nUSER: bees\n</chat>'
    assert json.loads(answer(chat(text))) == {"title": "Demo: bees"}


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "assistant", "content": "x"}],
        [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url"}]}],
        [{"role": "user", "content": "\ud800 {x} %s \\"}],
        [{"content": 5}],
    ],
)
def test_odd_messages_are_answered(messages: list[dict[str, Any]]) -> None:
    assert answer(messages).startswith(MARK)


def test_a_hostile_text_costs_little_time() -> None:
    started = time.process_time()
    for piece in ("<a>\n", "- ", "AB or ", '{ "', "summarise ", "x"):
        text = piece * 100_000
        answer(chat(text, text))
    assert time.process_time() - started < 5


# --- OpenAI


def test_openai_chat(server: DemoServer) -> None:
    response, content = post(server, "/v1/chat/completions", {"model": "any", "messages": chat("Hello there")})
    body = json.loads(content)
    assert response.status == 200
    assert (body["object"], body["model"]) == ("chat.completion", MODEL)
    assert body["choices"][0]["message"] == {"role": "assistant", "content": answer(chat("Hello there"))}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["total_tokens"] == 2 + body["usage"]["completion_tokens"]


def test_openai_chat_stream(server: DemoServer) -> None:
    request = {"messages": chat("Grüße"), "stream": True, "stream_options": {"include_usage": True}}
    response, content = post(server, "/v1/chat/completions", request)
    assert response.getheader("Content-Type", "").startswith("text/event-stream")
    *chunks, last, usage = sse(content)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == answer(chat("Grüße"))
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] > 0
    assert len({chunk["id"] for chunk in [*chunks, last, usage]}) == 1


def test_usage_only_if_asked(server: DemoServer) -> None:
    _, content = post(server, "/v1/chat/completions", {"messages": chat("Hi"), "stream": True})
    assert all("usage" not in chunk for chunk in sse(content))


LISTED: dict[str, Callable[[Any], str]] = {
    "/v1/models": lambda body: body["data"][0]["id"],
    "/api/tags": lambda body: body["models"][0]["name"],
}


def test_listings(server: DemoServer) -> None:
    for path, name in LISTED.items():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        connection.request("GET", path)
        assert name(json.loads(connection.getresponse().read())) == MODEL
        connection.close()


# --- Ollama


def test_ollama(server: DemoServer) -> None:
    request = {"model": "m", "messages": chat("Hi")}
    _, content = post(server, "/api/chat", {**request, "stream": False})
    body = json.loads(content)
    assert (body["message"]["content"], body["done"], body["done_reason"]) == (answer(chat("Hi")), True, "stop")

    response, content = post(server, "/api/chat", request)  # streams by default
    assert response.getheader("Content-Type") == "application/x-ndjson"
    chunks = [json.loads(line) for line in content.splitlines()]
    assert "".join(chunk["message"]["content"] for chunk in chunks) == answer(chat("Hi"))
    assert [chunk["done"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["eval_count"] == len(chunks) - 1


# --- HTTP


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"{", 400),
        ("/v1/chat/completions", b"\xff\xfe\x00", 400),
        ("/v1/chat/completions", [], 400),
        ("/v1/chat/completions", {}, 400),
        ("/v1/chat/completions", {"messages": ["x"]}, 400),
        ("/nowhere", {"messages": []}, 404),
    ],
)
def test_bad_requests_get_json_errors(server: DemoServer, path: str, body: Any, status: int) -> None:
    response, content = post(server, path, body)
    assert response.status == status
    assert json.loads(content)["error"]["message"]


@pytest.mark.parametrize("length", ["", "many", "-5", str(64 * 1024 * 1024 + 1)])
def test_a_body_of_unknown_or_enormous_length_is_refused(server: DemoServer, length: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.putrequest("POST", "/v1/chat/completions")
    if length:
        connection.putheader("Content-Length", length)
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 400 and "Content-Length is missing or over" in response.read().decode()
    connection.close()


def test_a_bug_is_printed_and_a_client_that_leaves_is_not(
    server: DemoServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, is_printed in ((ConnectionResetError("gone"), False), (ValueError("a bug"), True)):
        try:
            raise error
        except (OSError, ValueError):
            server.handle_error(None, ("127.0.0.1", 1))
        assert ("a bug" in capsys.readouterr().err) == is_printed


def test_streams_at_the_given_pace() -> None:
    slow = start(delay=0.05)
    try:
        started = time.monotonic()
        words = len(answer(chat("Hi")).split())
        post(slow, "/v1/chat/completions", {"messages": chat("Hi"), "stream": True})
        assert words * 0.05 < time.monotonic() - started < PATIENCE
    finally:
        slow.shutdown()
        slow.server_close()


def test_a_closed_client_ends_the_stream() -> None:
    # The last of more than forty words comes much later than a client that has left is noticed.
    slow = start(delay=1.0)
    before = set(threading.enumerate())

    def others() -> set[threading.Thread]:
        return set(threading.enumerate()) - before

    try:
        client = socket.create_connection(("127.0.0.1", slow.port), timeout=PATIENCE)
        body = json.dumps({"messages": chat("Hi"), "stream": True}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        client.sendall(head + body)
        assert client.recv(100).startswith(b"HTTP/1.0 200")
        assert len(others()) == 1
        client.close()
        assert until(lambda: not others(), 30)
    finally:
        slow.shutdown()
        slow.server_close()


def test_many_streams_at_once(server: DemoServer) -> None:
    results: list[int] = []

    def one() -> None:
        _, content = post(server, "/v1/chat/completions", {"messages": chat("Hi"), "stream": True})
        results.append(len(sse(content)))

    threads = [threading.Thread(target=one) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(results) == 50 and len(set(results)) == 1


def test_start_reports_a_taken_port_and_is_running_knows_its_own(server: DemoServer) -> None:
    assert is_running(server.port)
    with pytest.raises(OSError):
        start(server.port)
    assert not is_running(free_port())


def test_command_line(server: DemoServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo_backend.main(["--port", str(server.port)]) == 1
    assert "--port" in capsys.readouterr().err


def test_runs_as_a_script_from_anywhere(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(demo_backend.__file__).resolve()), "--port", "0", "--delay", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            port = int(line.split("http://127.0.0.1:")[1].split(";")[0])
            assert is_running(port)
        finally:
            process.terminate()
