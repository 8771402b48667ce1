"""Endpoints that lead back to the server: at its own address, through other programs, and through another server."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from Tests.api.front_dialects import message_at
from Tests.backend_dialects import DIALECTS, openai_embeddings, speak
from Tests.integration.client_dialects import FRONTS, Heard, Turn
from Tests.integration.dialect_matrix import ANSWERS, BACKS, CHAT, dialect_tree
from Tests.integration.launcher import (
    USER,
    Backend,
    ConfigTree,
    Launcher,
    Response,
    endpoint,
    llm_node,
    read_until,
)
from Tests.patience import PATIENCE
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply, sse_event
from Tests.tables import table
from Tests.workflows.engine_lab import until

# The gate lets a request wait for minutes.
AT_ONCE = PATIENCE
WORDS = "leads back to this WilmerAI"
VECTORS = {"Vectors": "openAIEmbeddings", "OllamaVectors": "ollamaEmbeddings"}
_HOP_HEADERS = ("connection", "transfer-encoding", "content-length", "keep-alive", "host")


@dataclass
class Lab:
    """Two servers with one slot each; what their endpoints call is a program between them, which tests direct.

    Attributes:
        first, second: the programs behind the servers.
    """

    server: Launcher
    other: Launcher
    first: StubBackend
    second: StubBackend
    tree: ConfigTree

    def ask(self, back: str, stream: bool, front: str = "OpenAI chat") -> Heard:
        """The answer of ``server`` to a client, from the endpoint of a back-end's API type."""
        dialect = FRONTS[front]
        response = self.server.request("POST", dialect.path, dialect.body(back, (Turn("user", "Hi"),), stream))
        assert response.seconds < AT_ONCE
        return dialect.read(response, stream)

    def next_row(self) -> None:
        self.first.next_row()
        self.second.next_row()


def passing_on(server: Launcher) -> Callable[[RecordedRequest], Reply]:
    """What a proxy in front of ``server`` answers."""

    def reply(request: RecordedRequest) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_HEADERS}
        connection.request(request.method, request.path, request.body, headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        kept = {name: value for name, value in response.getheaders() if name.lower() not in _HOP_HEADERS}
        return Reply(response.status, body, kept)

    return reply


def model(request: RecordedRequest) -> Reply:
    """What an LLM server answers."""
    if "embed" in request.path:
        return json_reply(openai_embeddings([[0.5, -1.0]]))
    return speak(request, ANSWERS["text"])


def loop_tree(public: Path, url: str) -> ConfigTree:
    """An endpoint and a shared workflow for each back-end's API type, whose model is named like the workflow."""
    tree = dialect_tree(public, url)
    for api_type, dialect in DIALECTS.items():
        file = endpoint(url, apiTypeConfigFileName=dialect.name, modelNameToSendToAPI=api_type, promptTemplate="")
        tree.write(f"Endpoints/{api_type}.json", {**file, "backupEndpointName": "Backup"})
    tree.write("Endpoints/Backup.json", endpoint("http://127.0.0.1:9", apiTypeConfigFileName="Open-AI-API"))
    # KoboldCpp's API has no name of a model.
    tree.private("_DefaultWorkflow", llm_node("kobold", endpointName="koboldCppGenerate", preset="", returnToUser=True))
    for name, kind in VECTORS.items():
        tree.write(f"ApiTypes/{name}.json", {"type": kind})
        tree.write(f"Endpoints/{name}.json", endpoint(url, apiTypeConfigFileName=name, modelNameToSendToAPI=name))
    user = json.loads((tree.configs / f"Users/{USER}.json").read_text(encoding="utf-8"))
    tree.write(f"Users/{USER}.json", {**user, "embeddingEndpointName": list(VECTORS)})
    return tree


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with ExitStack() as stack:
        first, second = stack.enter_context(StubBackend()), stack.enter_context(StubBackend())
        trees = [
            loop_tree(tmp_path_factory.mktemp(name) / "Public", program.url)
            for name, program in (("a", first), ("b", second))
        ]
        server, other = (
            stack.enter_context(
                Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "1")
            )
            for tree in trees
        )
        yield Lab(server, other, first, second, trees[0])


# -- through other programs --------------------------------------------------------------------------------------------
def assert_refused(heard: Heard, name: str, url: str) -> None:
    assert heard.status in (508, 200) and (heard.status == 508 or not heard.text)
    assert heard.error.startswith(f"Endpoint '{name}' ({url}")
    assert WORDS in heard.error.partition(")")[2]


@table("stream", [False, True], ids=["whole", "streamed"])
@table("back", BACKS)
def test_through_a_proxy(lab: Lab, back: str, stream: bool) -> None:
    lab.next_row()
    lab.first.responder = passing_on(lab.server)
    assert_refused(lab.ask(back, stream), back, lab.first.url)
    assert len(lab.first.requests) == 1 and not lab.second.requests


@table("stream", [False, True], ids=["whole", "streamed"])
@table("back", BACKS)
def test_through_another_server(lab: Lab, back: str, stream: bool) -> None:
    lab.next_row()
    lab.first.responder, lab.second.responder = passing_on(lab.other), passing_on(lab.server)
    assert_refused(lab.ask(back, stream), back, lab.first.url)
    assert len(lab.first.requests) == len(lab.second.requests) == 1


@table("stream", [False, True], ids=["whole", "streamed"])
@table("front", FRONTS)
def test_each_client_gets_the_error(lab: Lab, front: str, stream: bool) -> None:
    lab.next_row()
    lab.first.responder, lab.second.responder = passing_on(lab.other), passing_on(lab.server)
    assert_refused(lab.ask(CHAT, stream, front), CHAT, lab.first.url)


@table("stream", [False, True], ids=["whole", "streamed"])
@table("back", BACKS)
def test_a_chain_of_servers_works(lab: Lab, back: str, stream: bool) -> None:
    lab.next_row()
    lab.first.responder, lab.second.responder = passing_on(lab.other), model
    heard = lab.ask(back, stream)
    assert (heard.status, heard.error) == (200, "") and heard.text.strip() == ANSWERS["text"].text.strip()
    [sent], [passed] = lab.first.requests, lab.second.requests
    via = passed.headers["x-wilmer-via"].split(", ")
    assert via[1:] == [sent.headers["x-wilmer-via"]] and all(re.fullmatch("[0-9a-f]{32}", token) for token in via)


LATE = "Endpoint 'Far' (http://far.example/v1/chat/completions) leads back to this WilmerAI. In node 1. [request 1]"


@table("stream", [False, True], ids=["whole", "streamed"])
@table(
    ("back", "event", "whole"),
    [
        ("openAIChatCompletion", sse_event({"error": {"message": LATE}}), {"error": {"message": LATE}}),
        ("openAIV1Completion", sse_event({"error": {"message": LATE, "type": "server_error"}}), {"error": LATE}),
        ("ollamaApiChat", json.dumps({"error": LATE}).encode() + b"\n", {"error": LATE}),
        (
            "claudeMessages",
            b"event: error\n" + sse_event({"type": "error", "error": {"type": "api_error", "message": LATE}}),
            {"type": "error", "error": {"type": "api_error", "message": LATE}},
        ),
    ],
)
def test_a_loop_that_is_found_late(lab: Lab, back: str, event: bytes, whole: Any, stream: bool) -> None:
    """The server between has begun its answer: the error comes with the status of success."""
    lab.next_row()
    lab.first.responder = lambda request: Reply(pieces=[event]) if stream else json_reply(whole)
    assert_refused(lab.ask(back, stream), back, lab.first.url)
    # With the status that a server between makes of it.
    lab.first.responder = lambda request: json_reply(whole, 500)
    assert_refused(lab.ask(back, stream), back, lab.first.url)
    assert len(lab.first.requests) == 2


@table("path", ["/v1/embeddings", "/api/embed"])
@table("name", VECTORS)
def test_embeddings(lab: Lab, path: str, name: str) -> None:
    lab.next_row()
    lab.first.responder = passing_on(lab.server)
    response = lab.server.request("POST", path, {"model": name, "input": "x"})
    assert response.status == 508 and response.seconds < AT_ONCE
    assert WORDS in message_at(path, response.json, 508) and f"'{name}'" in message_at(path, response.json, 508)
    assert len(lab.first.requests) == 1


def test_no_request_has_the_token_of_another(lab: Lab) -> None:
    lab.next_row()
    lab.first.responder = model
    for _ in range(3):
        assert lab.ask(CHAT, stream=False).status == 200
    tokens = [request.headers["x-wilmer-via"] for request in lab.first.requests]
    assert len(set(tokens)) == 3


def test_the_log_names_the_endpoint_and_the_refused_request(lab: Lab) -> None:
    lab.next_row()
    lab.first.responder = passing_on(lab.server)
    since = lab.server.output_size()
    lab.ask(CHAT, stream=False)
    output = lab.server.wait_output(WORDS, since=since)
    assert "refused with 508: this WilmerAI is already answering this request" in output
    assert "its backup" not in output


# -- what comes from outside -------------------------------------------------------------------------------------------
@contextmanager
def connected(server: Launcher) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        yield connection
    finally:
        connection.close()


def with_header(server: Launcher, *values: str) -> Response:
    body = json.dumps({"model": CHAT, "messages": [{"role": "user", "content": "Hi"}], "stream": False}).encode()
    with connected(server) as connection:
        connection.putrequest("POST", "/v1/chat/completions")
        connection.putheader("Content-Length", str(len(body)))
        for value in values:
            connection.putheader("X-Wilmer-Via", value)
        connection.endheaders(body)
        response = connection.getresponse()
        return Response(response.status, dict(response.getheaders()), response.read())


FOREIGN = [f"{number:032x}" for number in range(5000)]


@table(
    ("values", "passed_on"),
    [
        ([""], []),
        (["rubbish"], []),
        ([", ,;=\t"], []),
        (["f" * 31, "f" * 33, "g" * 32, "F" * 32, f"x{FOREIGN[1]}"], []),
        (["\u00ff" * 40], []),
        ([FOREIGN[0]], FOREIGN[:1]),
        ([", ".join(FOREIGN[:3])], FOREIGN[:3]),
        ([",".join(FOREIGN[:3])], FOREIGN[:3]),
        # Several headers, rubbish between them, the same one twice.
        ([FOREIGN[0], "rubbish", FOREIGN[1], FOREIGN[1]], [*FOREIGN[:2], FOREIGN[1]]),
        # The server takes heads up to 64 KB.
        ([",".join(FOREIGN[:1900])], FOREIGN[:15]),
    ],
)
def test_foreign_tokens_are_passed_on(lab: Lab, values: list[str], passed_on: list[str]) -> None:
    lab.next_row()
    lab.first.responder = model
    assert with_header(lab.server, *values).status == 200
    [request] = lab.first.requests
    own, *others = request.headers["x-wilmer-via"].split(", ")
    assert others == passed_on and own not in FOREIGN


def test_own_tokens_are_found_anywhere_among_the_first_sixteen(lab: Lab) -> None:
    lab.next_row()
    lab.first.responder = model
    assert lab.ask(CHAT, stream=False).status == 200
    own = lab.first.requests[0].headers["x-wilmer-via"]
    for before, status in ((0, 508), (1, 508), (15, 508), (16, 200), (17, 200)):
        response = with_header(lab.server, ",".join([*FOREIGN[:before], own, *FOREIGN[20:]])[:60_000])
        assert response.status == status, before
    assert with_header(lab.other, own).status == 200 or lab.second.requests


@pytest.mark.contract
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
def test_every_launcher_refuses_before_the_body(server: Launcher, backend: Backend, path: str) -> None:
    assert server.ask("Single").status == 200
    own = backend.calls()[-1].headers["x-wilmer-via"]
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Wilmer-Via: {own}\r\nContent-Length: 100000000\r\n\r\n"
        sock.sendall(head.encode())
        assert read_until(sock, b"already answering this request").startswith(b"HTTP/1.1 508 ")


# -- at the own port ---------------------------------------------------------------------------------------------------
def own_hosts() -> list[str]:
    """The ways to write this computer's address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Nothing is sent; the system only chooses the interface.
        probe.connect(("192.0.2.1", 9))
        outer: str = probe.getsockname()[0]
    names = ["127.0.0.1", "127.0.0.2", "localhost", "LOCALHOST", "localhost.", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]"]
    return [*names, outer, socket.gethostname()]


@pytest.fixture(scope="module")
def at_own_port(lab: Lab) -> Lab:
    """The lab, with an endpoint and a workflow for each API type and each way to write the own address."""
    for number, host in enumerate(own_hosts()):
        for api_type, dialect in DIALECTS.items():
            name = f"own{number}-{api_type}"
            url = f"http://{host}:{lab.server.port}"
            file = endpoint(url, apiTypeConfigFileName=dialect.name, modelNameToSendToAPI="x", promptTemplate="")
            lab.tree.write(f"Endpoints/{name}.json", {**file, "backupEndpointName": "Backup"})
            lab.tree.shared(name, llm_node(name, endpointName=name, preset="", returnToUser=True))
    for name, kind in VECTORS.items():
        file = endpoint(f"http://localhost:{lab.server.port}", apiTypeConfigFileName=name)
        lab.tree.write(f"Endpoints/Own{name}.json", file)
        lab.tree.write(f"ApiTypes/{name}.json", {"type": kind})
    user = json.loads((lab.tree.configs / f"Users/{USER}.json").read_text(encoding="utf-8"))
    own = [f"Own{name}" for name in VECTORS]
    lab.tree.write(f"Users/{USER}.json", {**user, "embeddingEndpointName": [*VECTORS, *own]})
    listed = f"own{len(own_hosts()) - 1}-{CHAT}"
    assert until(lambda: listed in lab.server.request("GET", "/v1/models").body.decode())
    return lab


@table("stream", [False, True], ids=["whole", "streamed"])
@table("back", BACKS)
@table("number", range(len(own_hosts())))
def test_at_the_own_address(at_own_port: Lab, number: int, back: str, stream: bool) -> None:
    at_own_port.next_row()
    since = at_own_port.server.output_size()
    name = f"own{number}-{back}"
    assert_refused(at_own_port.ask(name, stream), name, "http://")
    assert "refused with 508" not in at_own_port.server.output(since)


def test_embeddings_at_the_own_address(at_own_port: Lab) -> None:
    for name in VECTORS:
        response = at_own_port.server.request("POST", "/v1/embeddings", {"model": f"Own{name}", "input": "x"})
        assert response.status == 508 and WORDS in response.error


def test_another_port_of_this_computer_is_another_server(at_own_port: Lab) -> None:
    at_own_port.next_row()
    at_own_port.first.responder = model
    assert at_own_port.ask(CHAT, stream=False).status == 200
