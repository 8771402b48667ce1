"""Calls that take turns, over real sockets: places of servers, embeddings, backups, and what gives way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.llmapis.call_queue import PAUSE_SECONDS, CallQueue
from Middleware.llmapis.call_turns import turn_for, turn_for_embeddings
from Middleware.llmapis.embedding_api import EmbeddingApiService
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_call import LlmCallRecord, NodeSite, TokenCounts, enter_node, leave_node
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Tests.llmapis.lab import Lab
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_reply, json_reply, status_reply
from Tests.workflows.engine_lab import until

HI = [{"role": "user", "content": "hi"}]
SOON = 60.0


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab = Lab(tmp_path, monkeypatch)
    lab.user(backgroundNodesYield=True)
    lab.write("ApiTypes/Embed", {"type": "openAIEmbeddings", "presetType": "Embed"})
    lab.write("ApiTypes/Kobold", {"type": "koboldCppGenerate", "presetType": "X"})
    return lab


@pytest.fixture
def backend(lab: Lab) -> Iterator[StubBackend]:
    with StubBackend() as running:
        lab.endpoint("Main", {"parallelCalls": 1}, running.url)
        yield running


@pytest.fixture(autouse=True)
def queue() -> Iterator[CallQueue]:
    made = CallQueue()
    process().put(CallQueue, made)
    yield made
    process().put(CallQueue, CallQueue())


def answered() -> RequestContext:
    """A request whose answer has been complete for a while."""
    return RequestContext(answered_at=time.monotonic() - PAUSE_SECONDS)


def at_work(context: RequestContext, work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Do ``work`` for a request on a thread of its own; returns the list for its result."""
    results: list[Any] = []

    def run() -> None:
        with request_scope(context):
            results.append(work())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


def test_endpoints_without_the_keys_have_no_turns(lab: Lab) -> None:
    lab.endpoint("Main", {})
    assert turn_for("Main", config_utils.load_endpoint("Main"), None) is None
    assert turn_for_embeddings("Main", config_utils.load_endpoint("Main"), None) is None
    for keys in ({"parallelCalls": 0}, {"swapGroup": ""}, {"swapGroup": "  ", "parallelCalls": None}):
        lab.endpoint("Main", keys)
        assert turn_for("Main", config_utils.load_endpoint("Main"), None) is None


def test_a_wait_that_begins_with_the_pause_is_logged_from_its_reason_on(
    lab: Lab, backend: StubBackend, queue: CallQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is logged about the pause itself, and nothing goes on that was not said to wait."""
    held = turn_for("Main", config_utils.load_endpoint("Main"), None)
    assert held is not None
    list(held.waiting())
    backend.default = chat_reply("done")
    lines = lambda: [record.getMessage().partition("'Main' ")[2] for record in caplog.records]  # noqa: E731
    with caplog.at_level("INFO", "Middleware.llmapis.call_queue"):
        # The pause lasts until the test ends it.
        context = RequestContext(answered_at=time.monotonic() + 600)
        thread, _ = at_work(context, lambda: LlmApiService("Main").get_response_from_llm(HI))
        assert until(lambda: queue.waiting == 1, SOON) and lines() == []
        [turn] = queue._waiting
        turn.not_before = 0.0
        assert until(lambda: len(lines()) == 1, SOON)
        held.end()
        thread.join(SOON)
        paused = RequestContext(answered_at=time.monotonic() - PAUSE_SECONDS + 0.5)
        at_work(paused, lambda: LlmApiService("Main").get_response_from_llm(HI))[0].join(SOON)
    waits, goes_on = lines()
    assert waits == "waits for its turn: its server has 1 of 1 calls to do; waiting calls: 1"
    assert goes_on.startswith("goes on after ")


def test_embeddings_take_a_place_on_their_server(lab: Lab, backend: StubBackend, queue: CallQueue) -> None:
    """By their own address and places, and without a model that anything else would have to be unloaded for."""
    lab.endpoint(
        "Embed", {"apiTypeConfigFileName": "Embed", "parallelCalls": 1, "swapGroup": "card"}, f"{backend.url}/v1"
    )
    backend.script(Reply(never=True), json_reply({"data": [{"index": 0, "embedding": [1.0]}]}))
    scope = CancelScope()
    calling, _ = at_work(RequestContext(), lambda: LlmApiService("Main", scope=scope).get_response_from_llm(HI))
    assert until(lambda: len(backend.requests) == 1, SOON)
    embedding, vectors = at_work(RequestContext(), lambda: EmbeddingApiService("Embed").embed(["a"]))
    assert until(lambda: queue.waiting == 1, SOON)
    assert len(backend.requests) == 1 and queue.loaded("card") is None
    scope.cancel()
    calling.join(SOON)
    embedding.join(SOON)
    assert vectors == [[[1.0]]] and (queue.waiting, queue.running) == (0, 0)


def test_a_cancelled_wait_for_embeddings_sends_nothing(lab: Lab, backend: StubBackend, queue: CallQueue) -> None:
    lab.endpoint("Embed", {"apiTypeConfigFileName": "Embed", "parallelCalls": 1}, backend.url)
    held = turn_for("Main", config_utils.load_endpoint("Main"), None)
    assert held is not None
    list(held.waiting())
    scope = CancelScope()
    thread, vectors = at_work(RequestContext(), lambda: EmbeddingApiService("Embed", scope=scope).embed(["a"]))
    assert until(lambda: queue.waiting == 1, SOON)
    began = time.monotonic()
    scope.cancel()
    thread.join(SOON)
    assert vectors == [None] and time.monotonic() - began < SOON and not backend.requests
    assert queue.waiting == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_backup_on_the_same_server_gets_the_place_of_the_failed_call(
    lab: Lab, backend: StubBackend, stream: bool
) -> None:
    lab.endpoint("Main", {"parallelCalls": 1, "backupEndpointName": "Spare"}, backend.url)
    lab.endpoint("Spare", {"parallelCalls": 1}, f"{backend.url}/v1")
    backend.script(status_reply(400), chat_reply("from Spare"))
    result = LlmApiService("Main", stream=stream).get_response_from_llm(HI)
    text = result if isinstance(result, str) else "".join(chunk["token"] for chunk in result)  # type: ignore[union-attr,index]
    assert text == "from Spare"


class Ear:
    """Keeps the records of calls."""

    def __init__(self) -> None:
        self.records: list[LlmCallRecord] = []

    def listens_to(self, *events: str) -> bool:
        return True

    def emit(self, event: str, *arguments: Any) -> None:
        if event == "llm_call_finished":
            self.records.append(arguments[0])


def test_a_wait_is_in_the_record_of_the_call_and_in_the_counts_of_the_node(
    lab: Lab, backend: StubBackend, queue: CallQueue
) -> None:
    held = turn_for("Main", config_utils.load_endpoint("Main"), None)
    assert held is not None
    list(held.waiting())
    ear, counts, context = Ear(), TokenCounts(), RequestContext()
    context.listeners = ear

    def work() -> Any:
        site = NodeSite(ear, context.request_id, "W", 1, "N", counts=counts)
        before = enter_node(site)
        try:
            return LlmApiService("Main").get_response_from_llm(HI)
        finally:
            leave_node(site, before)

    backend.default = chat_reply("done")
    thread, _ = at_work(context, work)
    assert until(lambda: queue.waiting == 1, SOON)
    time.sleep(0.3)
    held.end()
    thread.join(SOON)
    (record,) = ear.records
    assert 0.25 < record.waited <= record.seconds and counts.waited == record.waited
    assert 0.25 < context.waited <= record.seconds and context.counts.waited == record.waited
    assert counts.in_words == f"waited {record.waited:.2f} s for its turn"


def test_a_server_that_works_on_for_a_client_that_left_is_stopped_before_the_next_call(
    lab: Lab, backend: StubBackend
) -> None:
    """KoboldCpp's abort stops everything on the server, so it has to arrive before the call of the message."""
    lab.endpoint("Main", {"apiTypeConfigFileName": "Kobold", "parallelCalls": 1}, backend.url)
    paths: list[str] = []

    def reply(request: RecordedRequest) -> Reply:
        paths.append(request.path)
        if request.path.endswith("/abort"):
            return json_reply({"success": True})
        if len(paths) == 1:
            return Reply(never=True)
        return json_reply({"results": [{"text": "done"}]})

    backend.responder = reply

    def ask() -> Any:
        return LlmApiService("Main").get_response_from_llm(None, "", "hi")

    remembering = answered()
    memory, memories = at_work(remembering, ask)
    assert until(lambda: len(paths) == 1, SOON)
    message = RequestContext()
    chat, answers = at_work(message, ask)
    chat.join(SOON)
    message.answered_at = time.monotonic()
    memory.join(SOON)
    assert answers == memories == ["done"]
    assert [path.rpartition("/")[2] for path in paths] == ["generate", "abort", "generate", "generate"]
    # The server has worked on both calls.
    assert (remembering.counts.calls, message.counts.calls) == (2, 1)
