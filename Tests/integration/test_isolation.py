"""A hundred streams and a hundred whole answers of two users at once, on every launcher.

Nobody is turned away, and nobody hears, logs or stores what another has said.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import pytest

from Middleware.cli.program import raise_descriptor_limit
from Tests.api.front_dialects import FRONTS, Front
from Tests.integration.launcher import NO_MARKS, ConfigTree, Launcher, api_type, endpoint, llm_node
from Tests.patience import CLIENT_PATIENCE
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_answer, node_of

USERS = ("alice", "bob")
PER_USER = 100
TOGETHER = PER_USER * len(USERS)
MARKER = re.compile(r"marker-[0-9a-f]{32}")


@dataclass(frozen=True)
class Exchange:
    """One request and its answer."""

    user: str
    marker: str
    front: Front
    stream: bool
    status: int
    request_id: str
    data: bytes

    @property
    def text(self) -> str:
        return self.front.answer(self.data, self.stream)


class BarrierBackend(StubBackend):
    """Answers ``<model> heard <last message>``; the first nodes of all requests only once every one of them has asked.

    ``complete``: they all have, so that all requests were under way at the same time.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self._missing = count
        self._all_asked = threading.Event()

    @property
    def complete(self) -> bool:
        return self._missing <= 0

    def give_up(self) -> None:
        """Answer although not all of them have asked."""
        self._all_asked.set()

    def respond(self, request: RecordedRequest) -> Reply:
        body = request.json
        text = f"{body['model']} heard {body['messages'][-1]['content']}"
        tokens = [text[i : i + 5] for i in range(0, len(text), 5)]
        if node_of(request) != "first":
            return chat_answer(request, tokens, header_delay=0.2, delay=0.01)
        self._missing -= 1
        if not self._missing:
            self._all_asked.set()
        return chat_answer(request, tokens, delay=0.01, held=self._all_asked)


def two_users(public: Path, url: str) -> ConfigTree:
    tree = ConfigTree(public)
    tree.write("ApiTypes/Chat.json", api_type())
    tree.write("Presets/Chat/Plain.json", {})
    tree.write("PromptTemplates/_chatonly.json", NO_MARKS)
    tree.write("Users/_current-user.json", {"currentUser": "alice"})
    for user in USERS:
        tree.write(f"Users/{user}.json", {"endpointConfigsSubDirectory": user, "chatPromptTemplateName": "_chatonly"})
        tree.write(f"Endpoints/{user}/Stub.json", endpoint(url, modelNameToSendToAPI=f"model-of-{user}"))
        tree.write(
            f"Workflows/{user}/_DefaultWorkflow.json",
            {"nodes": [llm_node("first"), llm_node("answer", returnToUser=True), llm_node("later")]},
        )
    return tree


@dataclass(frozen=True)
class Scene:
    """What a crowd of clients has left behind."""

    public: Path
    logs: Path
    exchanges: list[Exchange]
    backend: BarrierBackend

    def of(self, user: str) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.user == user]


def send(port: int, user: str, number: int, start: threading.Barrier) -> Exchange:
    front, stream, marker = FRONTS[number % 4], number >= PER_USER // 2, f"marker-{uuid.uuid4().hex}"
    body = front.body(f"{marker}[DiscussionId]talk-{number}[/DiscussionId]", model=user, stream=stream)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CLIENT_PATIENCE)
    start.wait(CLIENT_PATIENCE)
    try:
        connection.request("POST", front.path, json.dumps(body))
        response = connection.getresponse()
        return Exchange(user, marker, front, stream, response.status, response.headers["X-Request-Id"], response.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def scene(script: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("isolation")
    with BarrierBackend(TOGETHER) as backend:
        tree = two_users(root / "Public", backend.url)
        users = [argument for user in USERS for argument in ("--User", user)]
        with Launcher(
            script,
            "--PublicDirectory",
            tree.public,
            *users,
            "--concurrency",
            "0",
            "--file-logging",
            "--LoggingDirectory",
            root / "logs",
        ) as server:
            raise_descriptor_limit()  # here, with clients and back-end; the launcher has already seen to its own
            start = threading.Barrier(TOGETHER)
            with ThreadPoolExecutor(TOGETHER) as pool:
                jobs = [
                    pool.submit(send, server.port, user, number, start) for number in range(PER_USER) for user in USERS
                ]
                if wait(jobs, return_when=FIRST_EXCEPTION).not_done:
                    backend.give_up()
            exchanges = [job.result() for job in jobs]
            backend.wait_requests(3 * TOGETHER, CLIENT_PATIENCE)
        yield Scene(tree.public, root / "logs", exchanges, backend)


def test_half_of_the_answers_are_streams(scene: Scene) -> None:
    assert len(scene.exchanges) == TOGETHER
    assert sum(exchange.stream for exchange in scene.exchanges) == TOGETHER // 2


@pytest.mark.contract
def test_each_client_hears_its_own_words(scene: Scene) -> None:
    assert {(exchange.status, exchange.user) for exchange in scene.exchanges} == {(200, user) for user in USERS}
    for exchange in scene.exchanges:
        assert exchange.text == f"model-of-{exchange.user} heard {exchange.marker}"
        assert set(MARKER.findall(exchange.data.decode())) <= {exchange.marker}
        for item in exchange.front.items(exchange.data) if exchange.stream else [json.loads(exchange.data)]:
            assert item["model"] == exchange.user
            assert item.get("request_id", exchange.request_id) == exchange.request_id
    assert len({exchange.request_id for exchange in scene.exchanges}) == len(scene.exchanges)


def test_each_back_end_call_has_the_words_of_one_client(scene: Scene) -> None:
    owner = {exchange.marker: exchange.user for exchange in scene.exchanges}
    seen: list[str] = []
    for request in scene.backend.requests:
        (marker,) = set(MARKER.findall(request.body.decode()))
        assert request.json["model"] == f"model-of-{owner[marker]}"
        seen.append(marker)
    assert all(seen.count(exchange.marker) == 3 for exchange in scene.exchanges)


def test_the_requests_ran_side_by_side(scene: Scene) -> None:
    """Otherwise nothing could have been mixed up."""
    calls = [request for request in scene.backend.requests if request.answered_at is not None]
    busiest = max(
        sum(other.received_at <= call.received_at < (other.answered_at or 0) for other in calls) for call in calls
    )
    assert scene.backend.complete
    assert busiest >= TOGETHER


def test_each_user_has_a_log_of_its_own(scene: Scene) -> None:
    logs = {user: (scene.logs / user / "wilmerai.log").read_text(encoding="utf-8") for user in USERS}
    for exchange in scene.exchanges:
        for user, log in logs.items():
            assert (exchange.request_id in log) is (user == exchange.user)
            assert (f"Request {exchange.request_id}: route" in log) is (user == exchange.user)
    for log in logs.values():
        assert "Traceback" not in log and "ERROR" not in log


def test_no_log_has_words_of_a_conversation(scene: Scene) -> None:
    files = [path for path in scene.logs.rglob("*") if path.is_file()]
    assert len(files) == 3
    assert all(path.stat().st_size for path in files)
    assert not any(MARKER.search(path.read_text(encoding="utf-8")) for path in files)


def test_nothing_is_stored_that_nobody_asked_for(scene: Scene) -> None:
    stored = [path for path in scene.public.rglob("*") if path.is_file()]
    assert stored
    assert not any(b"marker-" in path.read_bytes() for path in stored)
