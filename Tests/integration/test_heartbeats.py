"""Signs of life while nothing else can be sent, and what a failure looks like at each stage of a stream."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from Tests.api.front_dialects import openai_message
from Tests.api.old_decoders import go_events
from Tests.integration.conftest import Servers
from Tests.integration.launcher import (
    LAUNCHERS,
    Backend,
    Launcher,
    Response,
    says,
    slow,
    sse_payloads,
    streamed_text,
)
from Tests.stub_backend import (
    AFTER_PIECES,
    Reply,
    chat_chunk,
    chat_reply,
    chat_stream_reply,
    sse_reply,
    status_reply,
)

DROPPED = sse_reply([chat_chunk({"content": "Once"}), chat_chunk({"content": " upon"})], drop=AFTER_PIECES)
ERROR_EVENT = sse_reply([chat_chunk({"content": "Once"}), {"error": {"message": "out of memory"}}], delay=0.1)
TOKENS = ["Once", " upon"]
# Longer than the five seconds after which a stream has its first heartbeat.
LONG = 6.2
SILENCES = {
    "prefill": chat_stream_reply(TOKENS, header_delay=LONG),
    "between tokens": chat_stream_reply(TOKENS, delays=[0, 0, LONG]),
    "in time": chat_stream_reply(TOKENS, header_delay=4, delays=[0, 0, 4]),
    "early failure": status_reply(400, "in time", header_delay=3),
    "failure after a heartbeat": status_reply(400, "too late", header_delay=LONG),
    "whole answer": chat_reply("Once upon", header_delay=LONG),
}
"""What the node of ``Single`` is told when the client's message is the key."""


@pytest.fixture(scope="module")
def silent(script: str, servers: Servers, shared_backend: Backend) -> dict[str, Response]:
    """The answers to requests with long silences; made at the same time because they take long."""
    shared_backend.reset()
    shared_backend.replies["single"] = lambda request: SILENCES[request.json["messages"][-1]["content"]]
    shared_backend.replies["speaker"] = slow("speaker", LONG)
    shared_backend.replies["first"] = slow("first", LONG)
    server = servers.get(script)
    with ThreadPoolExecutor(20) as pool:
        jobs = {text: pool.submit(server.ask, "Single", text != "whole answer", text=text) for text in SILENCES}
        jobs["nested prefill"] = pool.submit(server.ask, "NestedSpeaker", True)
        jobs["earlier node"] = pool.submit(server.ask, "Chain", True)
    return {name: job.result() for name, job in jobs.items()}


def signs(body: bytes) -> list[int]:
    """Which events of a stream have nothing to say: chunks of a chat, with a role at most."""
    found = []
    for number, payload in enumerate(sse_payloads(body)):
        (choice,) = json.loads(payload).get("choices", [{}]) if payload != "[DONE]" else [{}]
        if choice.get("delta") in ({}, {"role": "assistant"}) and choice["finish_reason"] is None:
            found.append(number)
    return found


def one_in_five_seconds(found: list[int], response: Response, first: int) -> bool:
    """Whether the signs are those of one long silence, the first of them at this place.

    On an idle machine this leaves one number of them; on a busy one the measured time allows what it delayed.
    """
    return found == list(range(first, first + len(found))) and 1 <= len(found) <= response.seconds / 5


@pytest.mark.parametrize(
    "name, text",
    [
        ("prefill", "Once upon"),
        ("nested prefill", "speaker says hello."),
        ("earlier node", "second says hello."),
    ],
)
def test_silence_before_the_answer(silent: dict[str, Response], name: str, text: str) -> None:
    assert one_in_five_seconds(signs(silent[name].body), silent[name], 0)
    assert streamed_text(silent[name].body) == text
    assert silent[name].body.count(b"[DONE]") == silent[name].body.count(b'"role":"assistant"') == 1


@pytest.mark.contract
def test_silence_between_tokens(silent: dict[str, Response]) -> None:
    assert one_in_five_seconds(signs(silent["between tokens"].body), silent["between tokens"], 1)
    assert streamed_text(silent["between tokens"].body) == "Once upon"


def test_no_heartbeats_while_tokens_flow(server: Launcher, silent: dict[str, Response]) -> None:
    assert signs(server.ask("Single", stream=True).body) == []
    # On a busy machine, four seconds may become five.
    assert signs(silent["in time"].body) == [] or silent["in time"].seconds > 9


def test_whole_answer_has_no_heartbeats(silent: dict[str, Response]) -> None:
    assert silent["whole answer"].text == "Once upon"


def test_failure_before_a_heartbeat(silent: dict[str, Response]) -> None:
    response = silent["early failure"]
    assert response.status == 502 and "in time" in openai_message(response.json, 502)


def test_failure_after_a_heartbeat(silent: dict[str, Response]) -> None:
    response = silent["failure after a heartbeat"]
    assert response.status == 200
    assert one_in_five_seconds(signs(response.body), response, 0)
    *_, error, done = sse_payloads(response.body)
    assert "too late" in json.loads(error)["error"]["message"] and done == "[DONE]"


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stream, reply",
    [
        (False, status_reply(400, "no such model")),
        (True, status_reply(400, "no such model")),
        (True, status_reply(503, "busy")),
        (True, status_reply(500, "scripted", header_delay=3.0)),
        (False, Reply(body=b"<html>")),
    ],
    ids=["whole", "stream", "stream 503", "stream 500 after 3 s", "not JSON"],
)
def test_early_failure_has_a_real_status(server: Launcher, backend: Backend, stream: bool, reply: Reply) -> None:
    backend.replies["single"] = reply
    response = server.ask("Single", stream)
    assert response.status == 502
    assert response.headers["content-type"].startswith("application/json")
    message = openai_message(response.json, 502)
    assert "Stub" in message and "single" in message and "\n" not in message


@pytest.mark.parametrize("reply", [ERROR_EVENT, DROPPED], ids=["error event", "connection lost"])
def test_failure_after_the_first_tokens(server: Launcher, backend: Backend, reply: Reply) -> None:
    backend.replies["single"] = reply
    response = server.ask("Single", stream=True)
    assert response.status == 200
    *chunks, error, done = sse_payloads(response.body)
    assert done == "[DONE]"
    assert "Stub" in openai_message(json.loads(error), 502)
    assert "Once" in "".join(chunks)
    assert not any(json.loads(chunk)["choices"][0]["finish_reason"] for chunk in chunks)


def test_next_request_is_not_disturbed(server: Launcher, backend: Backend) -> None:
    backend.replies["single"] = DROPPED
    server.ask("Single", stream=True)
    backend.replies["single"] = lambda request: says(request, "single")
    assert streamed_text(server.ask("Single", stream=True).body) == "single says hello."


# -- a long time -------------------------------------------------------------------------------------------------------
VERY_LONG = 20.5
PROMPTS = {"/v1/completions": "prompt", "/v1/responses": "input"}
PATHS = ("/v1/chat/completions", "/v1/messages", *PROMPTS)


@pytest.mark.deep
def test_an_old_decoder_reads_streams_with_long_silences(servers: Servers, backend: Backend) -> None:
    """Once while the LLM is silent, and once while another request has the only slot of the gate."""
    backend.replies["single"] = chat_stream_reply(TOKENS, header_delay=VERY_LONG)

    def ask(server: Launcher, path: str) -> bytes:
        messages = [{"role": "user", "content": backend.hello}]
        said = {PROMPTS[path]: backend.hello} if path in PROMPTS else {"messages": messages, "max_tokens": 99}
        return server.request("POST", path, {"model": "Single", "stream": True, **said}).body

    for server, name in ((servers.get(LAUNCHERS[0]), "silent"), (servers.get(LAUNCHERS[0], 1), "at the gate")):
        with ThreadPoolExecutor(8) as pool:
            if name == "at the gate":
                first = pool.submit(ask, server, "/v1/chat/completions")
                backend.wait_call("single", count=len(PATHS) + 1)
                backend.replies["single"] = chat_stream_reply(TOKENS)
            bodies = dict(zip(PATHS, pool.map(lambda path, server=server: ask(server, path), PATHS), strict=True))
            if name == "at the gate":
                assert b"upon" in first.result()
        for path, body in bodies.items():
            events = [item for _, item in go_events(body)]
            assert len(events) >= 3 and b"upon" in body and not any("error" in item for item in events), (name, path)
