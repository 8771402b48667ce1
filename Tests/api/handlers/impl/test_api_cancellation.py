"""Clients that go away, on real sockets: the back-end call ends and no further node starts."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.serving import WSGIRequestHandler, make_server

from Middleware.api.app import build_wsgi_application, create_app
from Middleware.api.concurrency_middleware import ConcurrencyLimitMiddleware
from Middleware.api.running.running_requests import running_requests
from Middleware.common.fair_semaphore import FairSemaphore
from Middleware.services.cancellation_service import cancellation_service
from Tests.api.api_lab import CHAT, ApiLab, settled
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_stream_reply
from Tests.workflows.engine_lab import last_text, llm, reply_to, static, until, user

ENOUGH = 60.0  # seconds; a call that is not stopped never ends. Latency is measured elsewhere


class QuietHandler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:
        pass


class Server:
    """The application behind Werkzeug's threaded server."""

    def __init__(self, application: Any) -> None:
        self._server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=QuietHandler)
        self._server.daemon_threads = True  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    def post(self, **fields: Any) -> http.client.HTTPConnection:
        """Send a chat request and do not wait for the answer."""
        return self.send(CHAT, {"messages": [user("hi")], **fields})

    def send(self, path: str, body: Any, headers: dict[str, str] | None = None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=60)
        connection.request("POST", path, json.dumps(body), headers or {})
        return connection

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def responder(request: RecordedRequest) -> Reply:
    """A prompt ``wait`` is never answered, one ``talk`` never ends."""
    if "talk" in last_text(request):
        return chat_stream_reply(["one ", "two "], hang=True)
    return Reply(never=True) if "wait" in last_text(request) else reply_to(request, "ok")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        lab = ApiLab(tmp_path, monkeypatch, backend)
        backend.responder = responder
        yield lab
    assert settled()
    assert cancellation_service.get_all_cancelled_requests() == set()


@pytest.fixture
def server(lab: ApiLab) -> Iterator[Server]:
    running = Server(build_wsgi_application(create_app()))
    yield running
    running.stop()


def ended_in_time(request: RecordedRequest) -> bool:
    started = time.monotonic()
    return request.wait_ended(ENOUGH) and request.client_left and time.monotonic() - started < ENOUGH


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "nodes",
    [
        [llm("wait", returnToUser=True), llm("never")],
        [llm("wait"), llm("never")],
        [static("x"), {"type": "CustomWorkflow", "workflowName": "Child", "returnToUser": True}, llm("never")],
        [{"type": "CustomWorkflow", "workflowName": "Child"}, llm("never")],
    ],
    ids=["responder", "first node", "nested responder", "nested first node"],
)
def test_client_leaves_during_prompt_processing(
    lab: ApiLab, server: Server, nodes: list[dict[str, Any]], stream: bool
) -> None:
    lab.workflow("Child", [llm("wait"), llm("child never")])
    lab.default(nodes)
    connection = server.post(stream=stream)
    (request,) = lab.backend.wait_requests(1)
    connection.close()
    assert ended_in_time(request)
    assert settled()
    assert lab.prompts == ["wait"]


@pytest.mark.parametrize("nested", [False, True])
def test_client_leaves_in_mid_stream(lab: ApiLab, server: Server, nested: bool) -> None:
    lab.workflow("Child", [llm("talk", returnToUser=True), llm("child never")])
    lab.default(
        [
            {"type": "CustomWorkflow", "workflowName": "Child", "returnToUser": True}
            if nested
            else llm("talk", returnToUser=True),
            llm("never"),
        ]
    )
    connection = server.post(stream=True)
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    response.close()
    connection.close()
    assert ended_in_time(lab.backend.requests[0])
    assert settled()
    assert lab.prompts == ["talk"]


def test_client_leaves_while_a_category_is_chosen(lab: ApiLab, server: Server) -> None:
    lab.user(routingConfig="routes", categorizationWorkflow="Categorize")
    lab.write("Routing/routes", {"A": {"description": "d", "workflow": "Never"}})
    lab.workflow("Categorize", [llm("wait")])
    lab.workflow("Never", [llm("never")])
    connection = server.post(stream=True)
    (request,) = lab.backend.wait_requests(1)
    connection.close()
    assert ended_in_time(request)
    assert settled()
    assert lab.prompts == ["wait"]


def test_half_closing_counts_as_leaving(lab: ApiLab, server: Server) -> None:
    lab.default([llm("wait")])
    connection = server.post()
    (request,) = lab.backend.wait_requests(1)
    connection.sock.shutdown(socket.SHUT_WR)
    assert ended_in_time(request)
    connection.close()


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_after_the_answer_cancels_nothing(lab: ApiLab, server: Server, stream: bool) -> None:
    lab.default([static("now", returnToUser=True), llm("slow"), llm("last")])
    lab.backend.responder = lambda request: reply_to(request, "ok", header_delay=0.15)
    connection = server.post(stream=stream)
    assert b"now" in connection.getresponse().read()
    connection.close()
    assert until(lambda: len(lab.backend.requests) == 2)
    assert settled()
    assert lab.prompts == ["slow", "last"]
    assert not any(request.client_left for request in lab.backend.requests)


@pytest.mark.parametrize("stream", [False, True])
def test_cancelled_but_still_connected_gets_a_proper_end(lab: ApiLab, server: Server, stream: bool) -> None:
    lab.default([llm("talk" if stream else "wait", returnToUser=True), llm("never")])
    connection = server.post(stream=stream)
    lab.backend.wait_requests(1)
    if stream:
        response = connection.getresponse()
        assert response.status == 200
        cancellation_service.request_cancellation(response.headers["X-Request-Id"])
        body = response.read()
        assert body.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"stop"' in body
    else:
        cancellation_service.request_cancellation(next(iter(running_requests()._requests)))
        response = connection.getresponse()
        assert response.status == 200
        assert json.loads(response.read())["choices"][0]["message"]["content"] == ""
    connection.close()
    assert lab.backend.requests[0].wait_ended(ENOUGH)
    assert settled()
    assert len(lab.backend.requests) == 1


def test_one_client_leaving_spares_the_others(lab: ApiLab, server: Server) -> None:
    lab.default([llm("")])
    gone = threading.Event()
    lab.backend.responder = lambda request: (
        Reply(never=True) if "wait" in last_text(request) else reply_to(request, "fine", held=gone)
    )
    first = server.post(messages=[user("wait")])
    (waits,) = lab.backend.wait_requests(1)
    second = server.post(messages=[user("slow")])
    lab.backend.wait_requests(2)
    first.close()
    assert ended_in_time(waits)
    gone.set()
    assert b"fine" in second.getresponse().read()
    second.close()


def test_gate_is_free_again_when_its_holder_leaves(lab: ApiLab) -> None:
    semaphore = FairSemaphore(1)
    server = Server(ConcurrencyLimitMiddleware(create_app(), semaphore, 120))
    try:
        lab.default([llm("")])
        first = server.post(messages=[user("talk")], stream=True)
        talking = first.getresponse()
        assert talking.readline()
        second = server.post(messages=[user("quick")])
        time.sleep(0.1)
        assert lab.prompts == ["talk"]
        models = http.client.HTTPConnection("127.0.0.1", server._server.port, timeout=60)
        models.request("GET", "/v1/models")
        assert models.getresponse().status == 200
        models.close()
        talking.close()
        first.close()
        assert lab.backend.requests[0].wait_ended(ENOUGH)
        assert b"ok" in second.getresponse().read()
        second.close()
    finally:
        server.stop()
    assert until(lambda: semaphore.acquire(blocking=False))
