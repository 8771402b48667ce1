"""KoboldCpp's API: what SillyTavern's KoboldAI Classic asks, and what it reads in the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from Middleware.addons.init.probing import probe
from Middleware.addons.init.servers import NoServer
from Middleware.api.app import build_wsgi_application, create_app
from Middleware.api.concurrency_middleware import ConcurrencyLimitMiddleware
from Middleware.api.running.running_requests import running_requests
from Middleware.common import instance_global_variables as instance
from Middleware.common.constants import KOBOLD_GENERATE
from Middleware.common.fair_semaphore import FairSemaphore
from Tests.api.api_lab import Answer, ApiLab, settled
from Tests.api.handlers.impl.test_api_cancellation import Server, ended_in_time
from Tests.stub_backend import AFTER_PIECES, Reply, StubBackend, chat_chunk, sse_reply, status_reply
from Tests.tables import table
from Tests.workflows.engine_lab import reply_to, static, until

WHOLE, STREAM = "/api/v1/generate", "/api/extra/generate/stream"
ABORT, CHECK = "/api/extra/abort", "/api/extra/generate/check"
# What SillyTavern sends beside the prompt.
SAMPLERS = {
    "use_story": False,
    "use_memory": False,
    "max_context_length": 4096,
    "max_length": 300,
    "rep_pen": 1.1,
    "temperature": 0.7,
    "top_p": 1,
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "stop_sequence": ["\n:"],
}

# A stream that stops in the middle without an end.
ENDLESS = sse_reply([chat_chunk({"content": text}) for text in ("one ", "two ")], hang=True)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        yield ApiLab(tmp_path, monkeypatch, backend)
    assert settled()


@pytest.fixture
def server(lab: ApiLab) -> Iterator[Server]:
    running = Server(build_wsgi_application(create_app()))
    yield running
    running.stop()


def ask(lab: ApiLab, path: str, prompt: Any = "hi", **fields: Any) -> Answer:
    return lab.post({"prompt": prompt, **SAMPLERS, **fields}, path)


def events(data: bytes) -> list[Any]:
    """The objects of a stream, each in an event ``message``."""
    blocks = [block for block in data.decode().split("\n\n") if block]
    assert all(block.startswith("event: message\ndata: ") for block in blocks)
    return [json.loads(block.partition("data: ")[2]) for block in blocks]


def detail(answer: Answer, status: int, type_: str) -> str:
    """The message of an error, which has the form of KoboldCpp's."""
    assert answer.status == status and answer.json.keys() == {"detail"}
    assert answer.json["detail"].keys() == {"msg", "type"} and answer.json["detail"]["type"] == type_
    return str(answer.json["detail"]["msg"])


# -- what a front-end asks first ---------------------------------------------------------------------------------------


@table(
    ("path", "expected"),
    [
        ("/api/v1/info/version", {"result": "1.2.5"}),
        ("/api/extra/version", {"result": "KoboldCpp", "version": "1.100"}),
        ("/api/v1/config/max_context_length", {"value": 9000}),
        ("/api/v1/model", {"result": "tester:Poem"}),
        ("/api/extra/true_max_context_length/", {"value": 9000}),
    ],
)
def test_facts(lab: ApiLab, path: str, expected: Any) -> None:
    lab.user(allowSharedWorkflows=True, contextLengthForClients=9000)
    lab.shared("Poem", "A poem")
    assert lab.get(path).json == expected
    assert lab.post({}, path).status == 405


def test_init_knows_a_wilmer_all_the_same(lab: ApiLab, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a process of its own, whose tokens this server does not know.
    monkeypatch.setattr("Middleware.llmapis.server_questions.via_headers", dict)
    found = probe(server.url)
    assert isinstance(found, NoServer) and "WilmerAI" in found.reason


# -- answers -----------------------------------------------------------------------------------------------------------


def test_a_whole_answer(lab: ApiLab) -> None:
    answer = ask(lab, WHOLE, "Grüße {a}")
    assert answer.json == {"results": [{"text": "<Grüße {a}>", "finish_reason": "stop"}]}
    assert not {"stop", "temperature"} & lab.backend.requests[0].json.keys()


def test_a_stream(lab: ApiLab) -> None:
    answer = ask(lab, STREAM, "Grüße {a}")
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    *pieces, last = events(answer.data)
    assert "".join(piece["token"] for piece in pieces) == "<Grüße {a}>" and len(pieces) > 2
    assert {piece["finish_reason"] for piece in pieces} == {None} and last == {"token": "", "finish_reason": "stop"}


@pytest.mark.parametrize("path", [WHOLE, STREAM])
def test_an_answer_that_was_cut_off(lab: ApiLab, path: str) -> None:
    lab.backend.responder = lambda request: reply_to(request, "cut", finish_reason="length")
    answer = ask(lab, path)
    last = answer.json["results"][0] if path == WHOLE else events(answer.data)[-1]
    assert last["finish_reason"] == "length"


@pytest.mark.parametrize("path", [WHOLE, STREAM])
def test_marks_make_a_conversation(lab: ApiLab, path: str) -> None:
    ask(lab, path, "[Beg_Sys]You are an owl.[Beg_User]Hello[Beg_Assistant]Hoo[Beg_User]Fly!", images=["iVBORw0KGgo="])
    messages = lab.backend.requests[0].json["messages"]
    assert [message["role"] for message in messages][-3:] == ["user", "assistant", "user"]


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [WHOLE, STREAM])
def test_errors(lab: ApiLab, path: str) -> None:
    assert "'prompt'" in detail(ask(lab, path, 5), 400, "invalid_request_error")
    assert "JSON" in detail(lab.post("{oops", path), 400, "invalid_request_error")
    lab.backend.responder = lambda request: status_reply(400, "no such model")
    answer = ask(lab, path)
    assert "'Main'" in detail(answer, 502, "server_error") and answer.headers["x-should-retry"] == "false"
    assert "base URL" in detail(lab.get("/api/extra/perf"), 404, "invalid_request_error")
    app = lab.client.application
    none_free = ConcurrencyLimitMiddleware(app.wsgi_app, FairSemaphore(0), acquire_timeout=0.01)
    app.wsgi_app = none_free  # type: ignore[method-assign]
    assert "busy" in detail(ask(lab, path), 503, "server_error")


def test_an_error_in_the_middle_of_a_stream(lab: ApiLab) -> None:
    lab.backend.responder = lambda request: sse_reply([chat_chunk({"content": "Once "})], drop=AFTER_PIECES)
    piece, error = events(ask(lab, STREAM).data)
    assert piece == {"token": "Once ", "finish_reason": None}
    assert error["detail"]["type"] == "server_error" and "'Main'" in error["detail"]["msg"]


# -- users -------------------------------------------------------------------------------------------------------------


def test_several_users_need_a_key_of_one(lab: ApiLab) -> None:
    lab.users("tester", "bob")
    lab.user_file("bob")
    lab.workflow("_DefaultWorkflow", [static("of bob")], folder="bob")
    assert "tester, bob" in detail(ask(lab, WHOLE), 400, "invalid_request_error")
    of_bob = {"wilmer.permitted_users": frozenset({"bob"})}
    answer = lab.post({"prompt": "hi"}, WHOLE, environ_base=of_bob)
    assert answer.json["results"][0]["text"] == "of bob"


# -- beside an answer --------------------------------------------------------------------------------------------------


def test_tokens(lab: ApiLab) -> None:
    assert lab.post({"prompt": ""}, "/api/extra/tokencount").json == {"value": 0, "ids": []}
    few, many = (lab.post({"prompt": "owl " * count}, "/api/extra/tokencount").json["value"] for count in (3, 300))
    assert 3 <= few < many
    assert "'prompt'" in detail(lab.post({}, "/api/extra/tokencount"), 400, "invalid_request_error")


def send(server: Server, path: str, key: str = "", prompt: str | None = None) -> HTTPConnection:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return server.send(path, {} if prompt is None else {"prompt": prompt}, headers)


def said(server: Server, path: str, key: str = "") -> Any:
    connection = send(server, path, key)
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


@pytest.mark.parametrize("path", [WHOLE, STREAM])
def test_abort_ends_the_runs_of_its_key(lab: ApiLab, server: Server, path: str) -> None:
    lab.backend.responder = lambda request: Reply(never=True) if path == WHOLE else ENDLESS
    mine = send(server, path, "mine", "a")
    (own,) = lab.backend.wait_requests(1)
    other = send(server, path, "other", "b")
    foreign = lab.backend.wait_requests(2)[1]
    assert said(server, ABORT, "mine") == {"success": "true"}
    assert own.wait_ended() and not foreign.wait_ended(0.1)
    body = mine.getresponse().read()
    if path == WHOLE:
        assert json.loads(body) == {"results": [{"text": "", "finish_reason": "stop"}]}
    else:
        assert events(body)[-1] == {"token": "", "finish_reason": "stop"}
    other.close()
    assert ended_in_time(foreign)
    mine.close()


def test_the_text_so_far(lab: ApiLab, server: Server) -> None:
    nothing = {"results": [{"text": ""}]}
    assert said(server, CHECK) == nothing
    lab.backend.responder = lambda request: ENDLESS
    running = send(server, STREAM, "mine", "a")
    assert until(lambda: said(server, CHECK, "mine") == {"results": [{"text": "one two "}]})
    assert said(server, CHECK, "other") == nothing
    running.close()
    assert settled()
    assert said(server, CHECK, "mine") == nothing


# Others than the owner of the stream, whose address is 10.0.0.7: in address, in what proxies say, or in the key.
OTHERS = (
    {"REMOTE_ADDR": "10.0.0.8"},
    {"REMOTE_ADDR": "10.0.0.8", "HTTP_X_FORWARDED_FOR": "10.0.0.7"},
    {"REMOTE_ADDR": "10.0.0.8", "HTTP_FORWARDED": "for=10.0.0.7"},
    {"HTTP_X_FORWARDED_FOR": "10.0.0.7"},
    {"HTTP_X_FORWARDED_FOR": ""},
    {"HTTP_X_REAL_IP": "10.0.0.9"},
    {"HTTP_VIA": "1.1 proxy"},
    {"REMOTE_ADDR": "::1"},
    {"REMOTE_ADDR": ""},
    {"HTTP_AUTHORIZATION": "Bearer x"},
)


@table(
    ("proxied", "later"),
    [
        ({}, {}),
        ({"HTTP_X_FORWARDED_FOR": "10.1.1.1"}, {}),
        ({"HTTP_X_FORWARDED_FOR": "10.1.1.1:5001"}, {"HTTP_X_FORWARDED_FOR": "10.1.1.1:5002"}),
        ({"HTTP_FORWARDED": 'for="[fd00::1]:5001"'}, {"HTTP_FORWARDED": 'for="[fd00::1]:5002"'}),
    ],
    ids=["direct", "behind a proxy", "with ports", "with ports of IPv6"],
)
def test_without_a_key_only_the_same_peer_reads_and_aborts(
    lab: ApiLab, proxied: dict[str, str], later: dict[str, str]
) -> None:
    lab.backend.responder = lambda request: ENDLESS
    client = Client(build_wsgi_application(create_app()))
    owner = {"REMOTE_ADDR": "10.0.0.7", **proxied}
    running = client.post(STREAM, json={"prompt": "a"}, environ_base=owner)
    chunks = running.iter_encoded()
    assert b"one" in next(chunks)

    def text_for(environ: dict[str, str]) -> str:
        return str(client.get(CHECK, environ_base=environ).get_json()["results"][0]["text"])

    for other in ({**owner, **environ} for environ in OTHERS):
        # An empty header is the same as none.
        if {name: value for name, value in other.items() if value} != owner:
            assert text_for(other) == "", other
            client.post(ABORT, environ_base=other)
    owner |= later
    assert text_for(owner).startswith("one")
    assert client.post(ABORT, environ_base=owner).status_code == 200
    assert b"stop" in b"".join(chunks)
    running.close()
    assert settled()


def test_abort_of_a_request_that_waits_at_the_gate(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONCURRENCY_LEVEL", "wilmer")
    monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 30)
    instance.initialize_request_semaphore(1)
    semaphore = instance.get_request_semaphore()
    assert semaphore is not None and semaphore.acquire()
    server = Server(build_wsgi_application(create_app()))
    waiting = send(server, WHOLE, prompt="a")
    assert until(lambda: bool(running_requests().of_client(KOBOLD_GENERATE, None)))
    assert said(server, ABORT) == {"success": "true"}
    assert json.loads(waiting.getresponse().read()) == {"results": [{"text": "", "finish_reason": "stop"}]}
    assert not lab.backend.requests
    server.stop()
    semaphore.release()
    instance.initialize_request_semaphore(0)
