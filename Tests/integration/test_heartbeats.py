"""Signs of life while nothing else can be sent, and what a failure looks like at each stage of a stream."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from Tests.api.front_dialects import openai_message
from Tests.integration.conftest import Servers
from Tests.integration.launcher import (
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
SILENCES = {
    "prefill": chat_stream_reply(TOKENS, header_delay=2.5),
    "between tokens": chat_stream_reply(TOKENS, delays=[0, 0, 2.5]),
    "failure after a heartbeat": status_reply(400, "too late", header_delay=1.3),
    "whole answer": chat_reply("Once upon", header_delay=1.3),
}
"""What the node of ``Single`` is told when the client's message is the key."""


@pytest.fixture(scope="module")
def silent(script: str, servers: Servers, shared_backend: Backend) -> dict[str, Response]:
    """The answers to requests with long silences; made at the same time because they take long."""
    shared_backend.reset()
    shared_backend.replies["single"] = lambda request: SILENCES[request.json["messages"][-1]["content"]]
    shared_backend.replies["speaker"] = slow("speaker", 2.5)
    shared_backend.replies["first"] = slow("first", 1.3)
    server = servers.get(script)
    with ThreadPoolExecutor(20) as pool:
        jobs = {text: pool.submit(server.ask, "Single", text != "whole answer", text=text) for text in SILENCES}
        jobs["nested prefill"] = pool.submit(server.ask, "NestedSpeaker", True)
        jobs["earlier node"] = pool.submit(server.ask, "Chain", True)
    return {name: job.result() for name, job in jobs.items()}


def comments(body: bytes) -> int:
    """How many comments a piece of an event stream has."""
    return body.split(b"\n\n").count(b":")


def one_each_second(count: int, silence: float, response: Response) -> bool:
    """Whether ``count`` comments fit a silence of at least ``silence`` seconds in an answer that took a little longer.

    On an idle machine this leaves one number; on a busy one the measured time allows what it delayed, and no more.
    """
    return int(silence) <= count <= response.seconds


@pytest.mark.parametrize("name, text", [("prefill", "Once upon"), ("nested prefill", "speaker says hello.")])
def test_silent_prefill(silent: dict[str, Response], name: str, text: str) -> None:
    body = silent[name].body
    before, _, after = body.partition(b"data:")
    assert before == b":\n\n" * comments(before)
    assert one_each_second(comments(before), 2.5, silent[name])
    assert comments(after) == 0
    assert streamed_text(body) == text
    assert after.count(b"[DONE]") == 1


def test_earlier_node_is_silent(silent: dict[str, Response]) -> None:
    body = silent["earlier node"].body
    before = body.partition(b"data:")[0]
    assert before == b":\n\n" * comments(before)
    assert one_each_second(comments(before), 1.3, silent["earlier node"])
    assert streamed_text(body) == "second says hello."


@pytest.mark.contract
def test_silence_between_tokens(silent: dict[str, Response]) -> None:
    body = silent["between tokens"].body
    once, upon = body.index(b"Once"), body.index(b" upon")
    assert one_each_second(comments(body[once:upon]), 2.5, silent["between tokens"])
    assert comments(body[:once]) == comments(body[upon:]) == 0
    assert streamed_text(body) == "Once upon"


def test_no_comments_while_tokens_flow(server: Launcher) -> None:
    assert comments(server.ask("Single", stream=True).body) == 0


def test_whole_answer_has_no_heartbeats(silent: dict[str, Response]) -> None:
    assert silent["whole answer"].text == "Once upon"


def test_failure_after_a_heartbeat(silent: dict[str, Response]) -> None:
    response = silent["failure after a heartbeat"]
    assert response.status == 200
    before = response.body.partition(b"data:")[0]
    assert before == b":\n\n" * comments(before)
    assert one_each_second(comments(before), 1.3, response)
    error, done = sse_payloads(response.body)
    assert "too late" in json.loads(error)["error"]["message"] and done == "[DONE]"


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stream, reply",
    [
        (False, status_reply(400, "no such model")),
        (True, status_reply(400, "no such model")),
        (True, status_reply(503, "loading")),
        (False, Reply(body=b"<html>")),
    ],
    ids=["whole", "stream", "stream 503", "not JSON"],
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
