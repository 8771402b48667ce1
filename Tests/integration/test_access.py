"""Who gets in, over real launchers: keys, web pages, and answers that do not wait for a body."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import openai
import pytest

from Tests.api.front_dialects import anthropic_message, message_at
from Tests.integration.gate_cases import CHAT
from Tests.integration.launcher import (
    USER,
    Backend,
    ConfigTree,
    Launcher,
    Response,
    llm_node,
    read_until,
    run_launcher,
    sse_payloads,
    standard_tree,
)
from Tests.patience import BEFORE_BYTES

KEY = "the-key-of-everyone"
BOB_KEY = "the-key-of-bob-alone"
PAGE = "https://chat.example.com"
SAFETY = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
BIG = "10485760"


class ProtectedServer:
    """A launcher with two users, a list of keys and one known web page."""

    def __init__(self, server: Launcher, keys: Path) -> None:
        self.server = server
        self.keys = keys

    def ask(self, method: str, path: str, body: Any = None, key: str = "", **headers: str) -> Response:
        """One request; the keywords are header fields with ``_`` for ``-``."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if key:
            fields["Authorization"] = f"Bearer {key}"
        if body is not None:
            fields.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), fields)
            response = connection.getresponse()
            assert response.msg.get_all("X-Request-Id", [""])[1:] == []
            return Response(
                response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
            )
        finally:
            connection.close()

    def raw(self, *lines: str, wait_for: bytes = b"}", timeout: float = BEFORE_BYTES) -> bytes:
        """Send a request's head and nothing else, and read on until ``wait_for`` comes."""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=timeout) as sock:
            sock.sendall("\r\n".join([*lines, "Host: 127.0.0.1", "", ""]).encode())
            return read_until(sock, wait_for, timeout)


@pytest.fixture(scope="module")
def access(script: str, shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProtectedServer]:
    folder = tmp_path_factory.mktemp("access")
    tree = standard_tree(folder / "Public", shared_backend.url)
    tree.write(
        "Users/bob.json",
        {
            **json.loads((tree.configs / f"Users/{USER}.json").read_text("utf-8")),
            "customWorkflowOverride": True,
            "customWorkflow": "Own",
        },
    )
    tree.write("Workflows/bob/Own.json", {"nodes": [llm_node("own", returnToUser=True)]})
    keys = folder / "keys.txt"
    keys.write_text(f"# everyone\n{KEY}\n{BOB_KEY} user=bob\n", "utf-8")
    keys.chmod(0o600)
    with Launcher(
        script,
        "--PublicDirectory",
        tree.public,
        "--User",
        USER,
        "--User",
        "bob",
        "--concurrency",
        "0",
        "--accepted-keys-file",
        str(keys),
        "--allow-origin",
        PAGE,
        backend=shared_backend,
    ) as server:
        yield ProtectedServer(server, keys)


def chat(backend: Backend, model: str = f"{USER}:Single", **fields: Any) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": backend.hello}],
        "prompt": backend.hello,
        "stream": False,
        **fields,
    }


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("POST", "/health"),
        ("GET", "/v1/models"),
        ("GET", "/nowhere"),
        ("POST", CHAT),
        ("OPTIONS", CHAT),
        ("GET", "/api/tags"),
        ("POST", "/api/chat"),
        ("DELETE", "/api/chat"),
        ("HEAD", "/v1/models"),
        ("POST", "/v1/messages"),
        ("POST", "/v1/messages/count_tokens"),
        ("POST", "/v1/responses"),
        ("GET", "/v1/responses/resp_1"),
        ("POST", "/v1/embeddings"),
    ],
)
def test_every_route_wants_a_key(access: ProtectedServer, method: str, path: str) -> None:
    for key in ("", "wrong"):
        answer = access.ask(method, path, {} if method in ("POST", "DELETE") else None, key)
        assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-type"] == "application/json" and len(answer.headers["x-request-id"]) == 36
        if method == "HEAD":
            assert answer.body == b""
        else:
            assert message_at(path, answer.json, 401)


def test_a_health_check_needs_no_key(access: ProtectedServer) -> None:
    """A load balancer has none. A body is not read for it."""
    printed = access.server.output_size()
    for method, body in (("GET", b'{"status":"ok"}'), ("HEAD", b"")):
        answer = access.ask(method, "/health")
        assert (answer.status, answer.body) == (200, body)
    assert access.server.output(printed) == ""
    assert b" 401 " in access.raw("GET /health HTTP/1.1", f"Content-Length: {BIG}")


@pytest.mark.parametrize(
    "framing",
    [f"Content-Length: {BIG}", "Transfer-Encoding: chunked", f"Content-Length: {BIG}\r\nExpect: 100-continue"],
    ids=["length", "chunks", "expect"],
)
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ("Authorization: Bearer wrong", b"401"),
        (f"Authorization: Bearer {KEY}\r\nOrigin: http://evil.example", b"403"),
        (f"Authorization: Bearer {KEY}\r\nOrigin: {PAGE}\r\nContent-Type: text/plain", b"415"),
    ],
    ids=["key", "origin", "content type"],
)
def test_the_answer_does_not_wait_for_the_body(
    access: ProtectedServer, fields: str, status: bytes, framing: str
) -> None:
    began = time.monotonic()
    answer = access.raw(f"POST {CHAT} HTTP/1.1", framing, fields)
    assert b" " + status + b" " in answer and time.monotonic() - began < BEFORE_BYTES


@pytest.mark.contract
def test_a_client_that_sends_its_body_all_the_same_reads_why(access: ProtectedServer) -> None:
    assert access.ask("POST", CHAT, {"padding": "x" * 10_000_000}, "wrong").status == 401
    assert access.ask("POST", "/api/chat", {"padding": "x" * 10_000_000}, "wrong").status == 401


@pytest.mark.contract
def test_what_follows_a_refused_body_is_no_request(access: ProtectedServer, backend: Backend) -> None:
    body = json.dumps(chat(backend))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: "
    hidden = f"{head}{len(body)}\r\nAuthorization: Bearer {KEY}\r\n\r\n{body}"
    with socket.create_connection(("127.0.0.1", access.server.port), timeout=60) as sock:
        sock.sendall(f"{head}{len(hidden)}\r\n\r\n{hidden}{hidden}".encode())
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    assert answer.count(b"HTTP/1.1 ") == answer.count(b" 401 ") == 1 and backend.nodes() == []


def test_the_official_clients(access: ProtectedServer, backend: Backend) -> None:
    hello: Any = [{"role": "user", "content": backend.hello}]
    plain = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=f"{access.server.url}/v1", api_key=KEY, max_retries=0, http_client=plain) as client:
        answer = client.chat.completions.create(model=f"{USER}:Single", messages=hello)
        assert answer.choices[0].message.content == "single says hello."
        stream = client.chat.completions.create(model=f"{USER}:Single", messages=hello, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "single says hello."
        with pytest.raises(openai.AuthenticationError, match="API key"):
            client.with_options(api_key="wrong").models.list()
    authorization = {"Authorization": f"Bearer {KEY}"}
    with ollama.Client(access.server.url, headers=authorization, trust_env=False) as with_key:
        assert with_key.chat(f"{USER}:Single", hello).message.content == "single says hello."
    with (
        ollama.Client(access.server.url, trust_env=False) as without_key,
        pytest.raises(ollama.ResponseError, match="API key") as caught,
    ):
        without_key.chat(f"{USER}:Single", hello)
    assert caught.value.status_code == 401


def test_a_key_of_one_user(access: ProtectedServer, backend: Backend) -> None:
    assert access.ask("POST", CHAT, chat(backend, "bob:Single"), BOB_KEY).text == "single says hello."
    unnamed = {key: value for key, value in chat(backend).items() if key != "model"}
    assert access.ask("POST", CHAT, unnamed, BOB_KEY).json["model"] == "bob"
    assert access.ask("POST", CHAT, unnamed, KEY).status == 400
    for path, dialect in ((CHAT, dict), ("/api/chat", str)):
        refused = access.ask("POST", path, chat(backend), BOB_KEY)
        assert refused.status == 403 and isinstance(refused.json["error"], dialect)
    models = access.ask("GET", "/v1/models", key=BOB_KEY).json["data"]
    assert models and all(model["id"].startswith("bob:") for model in models)
    assert "error" in access.ask("GET", f"/v1/models/{USER}:Single", key=BOB_KEY).json


MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


@pytest.mark.contract
def test_a_key_in_the_header_of_anthropics_clients(access: ProtectedServer, backend: Backend) -> None:
    asked = chat(backend, max_tokens=10)
    for key in (KEY, f" {KEY}\t"):
        answer = access.ask("POST", MESSAGES, asked, X_Api_Key=key)
        assert answer.json["content"] == [{"type": "text", "text": "single says hello."}]
    assert access.ask("POST", MESSAGES, asked, KEY, X_Api_Key="wrong").status == 200
    for headers in ({"X_Api_Key": "wrong"}, {"X_Api_Key": ""}, {"X_Api_Key": KEY, "Authorization": "Bearer wrong"}):
        refused = access.ask("POST", MESSAGES, asked, **headers)
        assert refused.status == 401 and anthropic_message(refused.json, 401)
        assert refused.headers["request-id"] == refused.json["request_id"]
    unnamed = {key: value for key, value in asked.items() if key != "model"}
    assert access.ask("POST", MESSAGES, unnamed, X_Api_Key=BOB_KEY).json["model"] == "bob"
    listed = access.ask("GET", "/v1/models", X_Api_Key=BOB_KEY, anthropic_version="2023-06-01").json["data"]
    assert listed and all(model["id"].startswith("bob:") for model in listed)
    for path in (CHAT, RESPONSES, "/api/chat"):
        assert access.ask("POST", path, {**asked, "input": "hi"}, X_Api_Key=KEY).status == 401
    assert access.ask("GET", "/v1/models", X_Api_Key=KEY).status == 401


def test_an_unknown_user_in_every_dialect(access: ProtectedServer, backend: Backend) -> None:
    for path in (CHAT, "/api/generate", MESSAGES, "/v1/messages/count_tokens", RESPONSES, "/v1/responses/input_tokens"):
        said = {"input": "hi", "model": "nobody"} if path.startswith(RESPONSES) else chat(backend, "nobody")
        answer = access.ask("POST", path, said, KEY)
        assert answer.status == 400 and f"{USER}, bob" in message_at(path, answer.json, 400)
    assert backend.nodes() == []


def test_the_model_names_the_workflow_and_the_tag_is_taken_out(access: ProtectedServer, backend: Backend) -> None:
    told = f"[DiscussionId]access-{backend.hello.split()[-1]}[/DiscussionId]{backend.hello}"
    for path, body in (
        (MESSAGES, {"max_tokens": 10, "messages": [{"role": "user", "content": told}]}),
        (RESPONSES, {"input": told}),
    ):
        answer = access.ask("POST", path, {**body, "model": f"{USER}:Single"}, KEY)
        assert (answer.status, answer.json["model"]) == (200, f"{USER}:Single")
        assert backend.calls("single")[-1].json["messages"][-1]["content"] == backend.hello


def test_the_list_of_keys_is_read_again(access: ProtectedServer) -> None:
    before = access.keys.read_text("utf-8")
    try:
        for text, status in ((f"{before}a-key-of-tomorrow\n", 200), (f"{before}sha256:oops\n", 200), (before, 401)):
            access.keys.write_text(text, "utf-8")
            time.sleep(1.1)
            assert access.ask("GET", "/v1/models", key="a-key-of-tomorrow").status == status
            assert access.ask("GET", "/v1/models", key=KEY).status == 200
        assert "line 4" in access.server.output() and KEY not in access.server.output()
    finally:
        access.keys.write_text(before, "utf-8")


# -- pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["null", "http://evil.example", "http://127.0.0.1.evil.example"])
def test_a_foreign_page(access: ProtectedServer, backend: Backend, origin: str) -> None:
    for path in (CHAT, "/api/generate"):
        answer = access.ask("POST", path, chat(backend), KEY, Origin=origin)
        assert answer.status == 403 and "not accepted" in answer.error
        assert "access-control-allow-origin" not in answer.headers and len(answer.headers["x-request-id"]) == 36
    assert access.ask("GET", "/v1/models", key=KEY, Origin=origin).status == 403
    assert backend.nodes() == []


def test_a_name_that_was_led_to_this_computer(access: ProtectedServer, backend: Backend) -> None:
    rebound = {"Host": f"evil.example:{access.server.port}", "Origin": f"http://evil.example:{access.server.port}"}
    assert access.ask("POST", CHAT, chat(backend), KEY, **rebound).status == 403
    for host in ("host.docker.internal:5000", "llm.home.example.com"):  # a program, such as Open WebUI's server
        answer = access.ask("POST", CHAT, chat(backend), KEY, Host=host, User_Agent="Python/3.12 aiohttp/3.11")
        assert answer.status == 200


@pytest.mark.parametrize("origin", [PAGE, "http://localhost:3000"])
def test_a_known_page(access: ProtectedServer, backend: Backend, origin: str) -> None:
    preflight = access.ask(
        "OPTIONS",
        CHAT,
        Origin=origin,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization,content-type",
    )
    assert preflight.status == 200 and preflight.body == b""
    assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    answer = access.ask("POST", CHAT, chat(backend), KEY, Origin=origin)
    stream = access.ask("POST", CHAT, chat(backend, stream=True), KEY, Origin=origin)
    refused = access.ask("POST", CHAT, chat(backend), Origin=origin)
    assert (answer.status, stream.status, refused.status) == (200, 200, 401)
    assert sse_payloads(stream.body)[-1] == "[DONE]"
    for response in (preflight, answer, stream, refused):
        assert response.headers["access-control-allow-origin"] == origin and response.headers["vary"] == "Origin"


def test_pages_must_send_json_and_programs_need_not(access: ProtectedServer, backend: Backend) -> None:
    text = {"Content_Type": "text/plain"}
    assert access.ask("POST", CHAT, chat(backend), KEY, **text).status == 200
    for browser in ({"Origin": "http://localhost:3000"}, {"Sec_Fetch_Site": "same-origin"}):
        assert access.ask("POST", CHAT, chat(backend), KEY, **text, **browser).status == 415
    assert access.ask("POST", CHAT, chat(backend), KEY, Sec_Fetch_Site="cross-site").status == 403


# -- what every answer carries -----------------------------------------------------------------------------------------


def test_headers_of_every_answer(access: ProtectedServer, backend: Backend) -> None:
    version = {"anthropic_version": "2023-06-01"}
    anthropic = [
        access.ask("POST", MESSAGES, chat(backend), KEY),
        access.ask("POST", MESSAGES, {}, KEY),
        access.ask("POST", MESSAGES, chat(backend, stream=True), KEY),
        access.ask("GET", MESSAGES, key=KEY),
        access.ask("GET", "/v1/models", key=KEY, **version),
        access.ask("GET", "/v1/messages/batches", key=KEY),
    ]
    assert [answer.status for answer in anthropic] == [200, 400, 200, 405, 200, 404]
    for answer in anthropic:
        assert answer.headers["request-id"] == "req_" + answer.headers["x-request-id"].replace("-", "")
    answers = [
        access.ask("GET", "/v1/models", key=KEY),
        access.ask("GET", "/v1/models"),
        access.ask("GET", "/no", key=KEY),
        access.ask("POST", CHAT, {}, KEY),
        access.ask("POST", CHAT, chat(backend), KEY),
        access.ask("POST", CHAT, chat(backend, stream=True), KEY),
        access.ask("POST", "/api/chat", {}, "wrong"),
    ]
    assert [answer.status for answer in answers] == [200, 401, 404, 400, 200, 200, 401]
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)
    for answer in answers:
        assert {name: answer.headers.get(name) for name in SAFETY} == SAFETY and "request-id" not in answer.headers
    assert [answer.headers.get("cache-control") for answer in answers] == [
        None,
        None,
        None,
        "no-store",
        "no-store",
        "no-cache",
        "no-store",
    ]


@pytest.mark.contract
def test_what_the_server_itself_cannot_read(access: ProtectedServer) -> None:
    answer = access.raw(f"POST {CHAT} HTTP/1.1", "Content-Length: many")
    assert b" 400 " in answer and b"x-request-id: " in answer.lower() and b"nosniff" in answer
    answer = access.raw(f"POST {MESSAGES} HTTP/1.1", "Content-Length: many", wait_for=b"}")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"request-id: req_" in head.lower() and b'{"type":"error"' in body


def test_users_are_not_told_to_what_a_proxy_passes_on(access: ProtectedServer, backend: Backend) -> None:
    assert f"{USER}, bob" in access.ask("POST", CHAT, chat(backend, "nobody"), KEY).error
    for proxied in (
        {"X_Real_IP": "127.0.0.1"},
        {"Host": "llm.example.com"},
        {"Via": "1.1 proxy"},
        {"X_Forwarded_For": "192.0.2.7"},
        {"Forwarded": "for=192.0.2.7"},
    ):
        error = access.ask("POST", CHAT, chat(backend, "nobody"), KEY, **proxied).error
        assert "Multi-user" in error and "bob" not in error


# -- start -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [(None, "no such file"), ("# nothing\n", "no key in it"), (f"{KEY}\nsha256:12\n", "line 2")],
    ids=["missing", "empty", "bad hash"],
)
def test_a_list_that_cannot_be_used_keeps_the_server_down(tmp_path: Path, text: str | None, problem: str) -> None:
    tree = ConfigTree(tmp_path / "Public")
    tree.write(f"Users/{USER}.json", {})
    keys = tmp_path / "keys.txt"
    if text is not None:
        keys.write_text(text, "utf-8")
    done = run_launcher(
        "run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--port", "0", "--accepted-keys-file", keys
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert problem in done.stderr and str(keys) in done.stderr and KEY not in done.stderr + done.stdout


def test_a_key_of_a_user_who_is_not_served(tmp_path: Path, backend: Backend) -> None:
    """With one user, some routes look at no user: the key must open none of them."""
    tree = standard_tree(tmp_path / "Public", backend.url)
    keys = tmp_path / "keys.txt"
    keys.write_text(f"{KEY} user=annn\n", "utf-8")
    with Launcher(
        "run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--accepted-keys-file", keys
    ) as server:
        server.wait_output("so this key admits no client. Did you mean 'ann'?")
        for method, path in (("GET", "/v1/models"), ("GET", "/"), ("DELETE", "/v1/chat/completions/x")):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.request(method, path, headers={"Authorization": f"Bearer {KEY}"})
            assert connection.getresponse().status == 401
            connection.close()


# -- without keys ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "status"),
    [(["--listen"], 403), (["--listen", "--allow-public"], 200), ([], 200)],
    ids=["listen", "allow public", "loopback"],
)
def test_public_clients_of_a_proxy(script: str, tmp_path: Path, flags: list[str], status: int) -> None:
    tree = ConfigTree(tmp_path / "Public")
    tree.write(f"Users/{USER}.json", {})
    with Launcher(script, "--PublicDirectory", tree.public, "--User", USER, *flags) as server:
        access = ProtectedServer(server, tmp_path)
        assert access.ask("GET", "/v1/models").status == 200
        assert access.ask("GET", "/v1/models", X_Forwarded_For="192.168.1.5").status == 200
        for _ in range(2):
            assert access.ask("POST", "/api/chat", {}, X_Forwarded_For="203.0.113.5").status in (status, 400)
            answer = access.ask("GET", "/v1/models", X_Forwarded_For="203.0.113.5")
            assert answer.status == status and ("--allow-public" in answer.body.decode()) == (status == 403)
        output = server.output()
        assert output.count("203.0.113.5") == (status == 403)
        assert ("!!  WARNING" in output) == ("--allow-public" in flags)
