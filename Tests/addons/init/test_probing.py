"""What init makes of the servers that it meets."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from urllib3.exceptions import ConnectTimeoutError

from Middleware.addons.init.probing import KEY_VARIABLE, UnreachableError, ask, look_closer, probe, probe_all
from Middleware.addons.init.servers import Model, NoServer, Server, normal_address
from Middleware.utilities.http.via import comes_back
from Tests.addons.init import llm_servers
from Tests.free_ports import free_port
from Tests.patience import PATIENCE
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply, status_reply
from Tests.tables import table
from Tests.utilities.http.lab import certificate, tls_backend

__all__ = ["certificate", "tls_backend"]  # fixtures
EMBEDS = "nomic-embed-text"


def found(routes: llm_servers.Routes, **options: object) -> Server | NoServer:
    with llm_servers.serving(routes) as backend:
        return probe(backend.url, **options)


def kind_and_models(routes: llm_servers.Routes) -> tuple[str, tuple[Model, ...]]:
    server = found(routes)
    assert isinstance(server, Server), server
    return server.kind, server.models


def test_each_question_says_who_asks() -> None:
    with llm_servers.serving(llm_servers.ollama("llama3.2:3b")) as backend:
        probe(backend.url)
        assert backend.requests and all(comes_back(request.headers["x-wilmer-via"]) for request in backend.requests)


def test_ollama() -> None:
    kind, models = kind_and_models(llm_servers.ollama("llama3.2:3b", EMBEDS, "qwen3:14b", running=("qwen3:14b",)))
    assert kind == "Ollama"
    assert models == (Model("qwen3:14b", loaded=True, detail="8.0B"), Model("llama3.2:3b", detail="8.0B"))


def test_a_family_of_models_for_embeddings_is_known_whatever_the_name() -> None:
    server = found(llm_servers.ollama("nomic-text"))
    assert isinstance(server, Server)
    assert (server.models, server.others) == ((), 1)


def test_llama_cpp() -> None:
    kind, models = kind_and_models(llm_servers.llama_cpp(window=4096))
    assert (kind, models) == ("llama.cpp", (Model("/models/qwen3-8b.gguf", 4096, True, sees=False),))


def test_llama_cpp_says_what_its_template_can() -> None:
    _, models = kind_and_models(
        llm_servers.llama_cpp(modalities={"vision": True}, chat_template_caps={"supports_tools": True})
    )
    assert (models[0].sees, models[0].calls_tools) == (True, True)


def test_koboldcpp_although_it_plays_ollama() -> None:
    kind, models = kind_and_models(llm_servers.koboldcpp(window=8192))
    assert (kind, models) == ("KoboldCpp", (Model("koboldcpp/Mistral-Nemo", 8192, True, sees=True),))


def test_lm_studio() -> None:
    kind, models = kind_and_models(llm_servers.lm_studio())
    assert kind == "LM Studio"
    loaded = Model("qwen3-14b", 32768, True, sees=False, calls_tools=True, chats=True, state="loaded")
    assert models == (loaded, Model("gemma-3-4b", sees=True, chats=True, state="not-loaded"))


def test_llama_swap() -> None:
    kind, models = kind_and_models(llm_servers.llama_swap("big", "small", running=("small",)))
    assert kind == "llama-swap"
    assert [(model.name, model.loaded, model.state) for model in models] == [
        ("small", True, "loaded"),
        ("big", False, "unloaded"),
    ]


def test_vllm() -> None:
    assert kind_and_models(llm_servers.vllm(window=32768)) == ("vLLM", (Model("mistralai/Mistral-7B", 32768),))


def test_text_generation_webui() -> None:
    kind, models = kind_and_models(llm_servers.text_generation_webui())
    assert (kind, models) == ("text-generation-webui", (Model("Nemo-12B", loaded=True),))


def test_any_other_server_with_a_list_of_models() -> None:
    kind, models = kind_and_models({"/v1/models": llm_servers.openai_list("big", "text-embedding-3-small")})
    assert (kind, models) == ("OpenAI-compatible", (Model("big"),))


def test_wilmer_is_never_offered() -> None:
    result = found(llm_servers.wilmer())
    assert isinstance(result, NoServer) and "WilmerAI" in result.reason


@table(
    "name, other",
    [
        ("nomic-embed-text:latest", True),
        ("text-embedding-3-small", True),
        ("BAAI/bge-m3", True),
        ("all-minilm-l6", True),
        ("mxbai-embed-large", True),
        ("qwen3-reranker", True),
        ("llama3.2", False),
        ("gemma-3-4b", False),
        ("mbge-chat", False),
        ("whisper-1", True),
        ("gpt-4o-mini-tts", True),
        ("tts-1-hd", True),
        ("dall-e-3", True),
        ("omni-moderation-latest", True),
        ("gpt-4o-transcribe", True),
        ("gpt-4o", False),
        ("butts-7b", False),
        ("gpt-image-1", True),
        ("models/imagen-4.0-generate-001", True),
        ("stable-diffusion-3.5", True),
        ("SDXL-turbo", True),
        ("gpt-realtime-mini", True),
        ("gpt-audio", True),
        ("sora-2-pro", True),
        ("models/veo-3.0-fast", True),
        ("black-forest-labs/FLUX.1-dev", True),
        ("flux_schnell", True),
        ("qwen3-asr-flash", True),
        ("mistral-ocr-latest", True),
        ("parakeet-speech", True),
        ("llama-guard-4-12b", True),
        ("openai/*", True),
        ("*", True),
        ("soraya-7b", False),
        ("laser-ocracoke", False),
        ("gemini-2.5-flash", False),
    ],
)
def test_names_of_models_that_do_not_chat(name: str, other: bool) -> None:
    for entries in (
        {"data": [{"id": name}, {"id": "chat"}]},
        [{"id": name}, {"id": "chat"}],
        {"models": [{"name": name}, {"name": "chat"}]},
    ):
        _, models = kind_and_models({"/v1/models": entries})
        assert [model.name for model in models] == (["chat"] if other else [name, "chat"])


@table(
    "facts, chats",
    [
        ({"type": "chat"}, True),
        ({"type": "LLM"}, True),
        ({"type": "language"}, True),
        ({"type": "image"}, False),
        ({"type": "embeddings"}, False),
        ({"type": "rerank"}, False),
        ({"type": "moderation"}, False),
        ({"type": "model"}, None),
        ({"type": 3}, None),
        ({"capabilities": {"completion_chat": True, "vision": False}}, True),
        ({"capabilities": {"completion_chat": False, "ocr": True}}, False),
        ({"capabilities": {"completion_chat": False}}, False),
        ({"capabilities": {"vision": True}}, None),
        ({"capabilities": ["completion", "tools"]}, True),
        ({"capabilities": ["embedding"]}, False),
        ({"capabilities": ["vision"]}, None),
        ({"capabilities": "chat"}, None),
        ({"architecture": {"output_modalities": ["image", "text"]}}, True),
        ({"architecture": {"output_modalities": ["image"]}}, False),
        ({"architecture": {"output_modalities": []}}, False),
        ({"architecture": {"modality": "text->text"}}, None),
        ({"architecture": {"output_modalities": ["audio"]}, "type": "chat"}, False),
    ],
)
def test_what_a_server_says_of_a_model_decides(facts: dict[str, Any], chats: bool | None) -> None:
    """The name decides only where the server says nothing."""
    for name, by_name in (("some-model", True), ("tts-model", False)):
        _, models = kind_and_models({"/v1/models": {"data": [{"id": name, **facts}, {"id": "chat"}]}})
        assert (name in [model.name for model in models]) is (by_name if chats is None else chats)


def test_a_list_without_a_name_of_a_chat_model_is_offered_whole() -> None:
    names = ("gpt-image-1", "tts-1", "openai/*")
    result = found({"/v1/models": llm_servers.openai_list(*names)})
    assert isinstance(result, Server) and result.is_guess
    assert [model.name for model in result.models] == [*names] and result.others == 0
    # What the server itself says is not a guess.
    result = found({"/v1/models": {"data": [{"id": "a", "type": "embedding"}, {"id": "b", "type": "image"}]}})
    assert isinstance(result, Server) and (result.models, result.others, result.is_guess) == ((), 2, False)


# -- llama.cpp's router ------------------------------------------------------------------------------------------------


@table(
    "args, window",
    [
        (["llama-server", "-c", "6144", "--port", "0"], 6144),
        (["llama-server", "-ctx", "6144"], 6144),
        (["--ctx-size", "6144", "-ngl", "99"], 6144),
        (["-c", 6144], 6144),
        (["--ctx-size=6144"], 6144),
        (["-c", "2048", "--ctx-size", "6144"], 6144),
        (["-c", "0"], None),
        (["--ctx-size", "auto"], None),
        (["--ctx-size"], None),
        (["-cb", "6144"], None),
        ([], None),
        (None, None),
        ("-c 6144", None),
    ],
)
def test_the_window_of_a_model_of_a_router(args: object, window: int | None) -> None:
    routes = llm_servers.llama_router({"id": "m", "status": {"value": "loaded", "args": args}})
    _, (model,) = kind_and_models(routes)
    assert (model.window, model.loaded) == (window, True)


def test_a_router_offers_what_can_be_loaded_and_the_loaded_one_first() -> None:
    routes = llm_servers.llama_router(
        {"id": "a", "status": {"value": "unloaded", "args": ["-c", "8192"]}},
        {"id": "b", "status": {"value": "unloaded", "args": [], "failed": True, "exit_code": 1}},
        {"id": "c", "status": {"value": "loading", "args": []}},
        {"id": "d", "status": {"value": "loaded", "args": []}},
        {"id": "embed", "status": {"value": "unloaded", "args": []}},
    )
    with llm_servers.serving(routes) as backend:
        result = probe(backend.url)
        assert isinstance(result, Server) and result.kind == "llama.cpp"
        assert [model.name for model in result.models] == ["d", "a", "c"] and result.others == 1
        assert [(model.name, model.failed) for model in result.failed] == [("b", "exit code 1")]
        backend.requests.clear()
        # The window that is not among the words is asked for, without loading a model for it.
        loaded, unloaded, loading = (look_closer(result, model) for model in result.models)
        assert [request.path for request in backend.requests] == [
            "/props?model=d",
            "/props?model=a&autoload=false",
            "/props?model=c&autoload=false",
        ]
    assert (loaded.window, loaded.sees, loaded.calls_tools) == (5120, True, True)
    assert (unloaded.window, loading.window) == (8192, 5120)


# -- paths -------------------------------------------------------------------------------------------------------------


@table(
    "path, list_, endpoint, api_path",
    [
        ("", "/v1/models", "", None),
        ("/v1", "/v1/models", "", None),
        ("/v1/chat/completions", "/v1/models", "", None),
        ("/v1beta/openai", "/v1beta/openai/models", "/v1beta/openai", None),
        ("/v1beta/openai/chat/completions", "/v1beta/openai/models", "/v1beta/openai", None),
        ("/api/paas/v4/", "/api/paas/v4/models", "/api/paas/v4", None),
        ("/api/v3", "/api/v3/v1/models", "/api/v3/v1", "/v1"),
        ("/openai/v1", "/openai/v1/models", "/openai/v1", "/v1"),
        ("/api", "/api/v1/models", "/api/v1", "/v1"),
        ("/inference", "/inference/models", "/inference", ""),
        ("/openai/v1?api-version=preview", "/openai/v1/models", "/openai/v1?api-version=preview", "/v1"),
    ],
)
def test_a_path_is_kept(path: str, list_: str, endpoint: str, api_path: str | None) -> None:
    query = "?" + path.partition("?")[2] if "?" in path else ""
    with llm_servers.serving({list_ + query: llm_servers.openai_list("m")}) as backend:
        result = probe(normal_address(backend.url + path), named=True)
        assert isinstance(result, Server), result
        assert (result.endpoint, result.api_path) == (backend.url + endpoint, api_path)


def test_azure_gets_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sesame")
    with llm_servers.serving(
        {"/openai/v1/models?api-version=preview": llm_servers.openai_list("m")}, key="sesame"
    ) as backend:
        assert isinstance(probe(f"{backend.url}/openai?api-version=preview", named=True), Server)
        assert {request.headers.get("api-key") for request in backend.requests} == {None, "sesame"}


# -- strange answers ---------------------------------------------------------------------------------------------------

HTML = Reply(body=b"<html>Welcome</html>", headers={"Content-Type": "text/html"})


@table(
    "answer",
    [
        HTML,
        json_reply([]),
        json_reply("text"),
        json_reply({"data": {}}),
        json_reply({"data": 3}),
        json_reply(None),
        Reply(body=b"[" * 100_000),
        Reply(body=b'{"data": '),
        Reply(body=b"1" * 10_000),
        Reply(body=b"\xff\xfe\x00"),
        status_reply(404),
        status_reply(500),
        Reply(status=302, body=b"", headers={"Location": "http://10.0.0.1/"}),
        Reply(raw=b"SSH-2.0-OpenSSH\r\n"),
        Reply(raw=b""),
        Reply(raw=b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000),
    ],
    ids=lambda answer: repr(answer.raw or answer.body)[:24],
)
def test_what_is_no_llm_server(answer: Reply) -> None:
    with llm_servers.serving({}) as backend:
        backend.responder = lambda request: answer
        result = probe(backend.url)
    assert isinstance(result, NoServer)
    assert result.reason and not result.silent


@pytest.mark.parametrize(
    "entries",
    [
        [3, None, "x", [], {"id": 7}, {"id": ""}, {"id": " "}, {"id": "x" * 5000}, {"id": "good"}],
        [{"id": "evil\x1b[2J"}, {"id": "two\nlines"}, {"id": "\u202egood"}, {"id": "good", "max_model_len": "many"}],
    ],
)
def test_strange_entries_are_left_out(entries: list[object]) -> None:
    assert kind_and_models({"/v1/models": {"data": entries}})[1] == (Model("good"),)


@pytest.mark.parametrize("window", [-1, 0, True, "4096", None, 1e300, float("nan"), [], 10**12])
def test_numbers_that_make_no_sense_are_not_believed(window: object) -> None:
    routes = {"/v1/models": Reply(body=json.dumps(llm_servers.openai_list("m", max_model_len=window)).encode())}
    assert kind_and_models(routes)[1] == (Model("m"),)


def test_thousands_of_models() -> None:
    names = [f"model-{number}" for number in range(5000)]
    assert len(kind_and_models({"/v1/models": llm_servers.openai_list(*names)})[1]) == 1000


def test_a_body_without_end_is_given_up() -> None:
    with llm_servers.serving({}) as backend:
        backend.responder = lambda request: Reply(pieces=[b" " * 65536] * 200, headers={})
        result = probe(backend.url)
    assert isinstance(result, NoServer)


@pytest.mark.slow
def test_a_server_that_says_nothing_costs_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the patience of the tests
    with llm_servers.serving({}) as backend:
        backend.responder = lambda request: Reply(never=True)
        started = time.monotonic()
        result = probe(backend.url)
    assert time.monotonic() - started < PATIENCE
    assert isinstance(result, NoServer) and "did not answer" in result.reason


@pytest.fixture
def dripping() -> Iterator[str]:
    """The address of a server that sends one byte after the other, and never a whole head."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def drip() -> None:
            connection, _ = listener.accept()
            head = iter(b"HTTP/1.1 200 OK\r\nX-Long: " + b"y" * 10_000)
            with connection:
                while not ended.wait(0.05):
                    try:
                        connection.send(bytes([next(head)]))
                    except OSError:
                        return

        threading.Thread(target=drip, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        ended.set()


def test_a_head_that_drips_holds_nobody_up(dripping: str) -> None:
    started = time.monotonic()
    with pytest.raises(UnreachableError, match=r"did not answer within 0\.5 s"):
        ask(f"{dripping}/api/show", body={"model": "m"}, seconds=0.5)
    assert time.monotonic() - started < PATIENCE


def test_a_named_server_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of models from far away, or of a server that is busy, may take its seconds."""
    monkeypatch.setattr("Middleware.addons.init.probing.SECONDS", 0.2)
    with llm_servers.serving({}) as backend:
        backend.responder = lambda request: json_reply(llm_servers.openai_list("m", owner="vllm"), header_delay=0.5)
        assert isinstance(probe(backend.url), NoServer)
        assert isinstance(probe(backend.url, named=True), Server)


def test_the_receiver_of_airplay_that_has_port_5000_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sesame")
    with llm_servers.serving({}) as backend:
        backend.responder = lambda request: Reply(status=403, body=b"", headers={"Server": "AirTunes/860.7.1"})
        result = probe(backend.url, named=True)
        assert all("authorization" not in request.headers for request in backend.requests)
    assert isinstance(result, NoServer)
    assert "AirPlay" in result.reason and "key" not in result.reason


def test_a_redirect_is_not_followed() -> None:
    with llm_servers.serving(llm_servers.vllm()) as target, llm_servers.serving({}) as backend:
        backend.responder = lambda request: Reply(status=307, body=b"", headers={"Location": target.url + request.path})
        assert isinstance(probe(backend.url), NoServer)
        assert target.requests == []


def test_this_computer_is_not_asked_by_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with llm_servers.serving(llm_servers.vllm()) as proxy, llm_servers.serving(llm_servers.vllm("real")) as backend:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        server = probe(backend.url)
        assert isinstance(server, Server) and server.models[0].name == "real"
        assert proxy.requests == []


def test_a_far_server_is_asked_the_way_that_the_endpoint_takes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"http://llm.example:8000/v1/models": llm_servers.openai_list("far", owner="vllm")}
    with llm_servers.serving(routes) as proxy:
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.setenv("http_proxy", proxy.url)
        server = probe("http://llm.example:8000", named=True)
        assert {request.headers["host"] for request in proxy.requests} == {"llm.example:8000"}
    assert isinstance(server, Server) and server.models[0].name == "far"


def test_a_certificate_that_nobody_vouches_for(request: pytest.FixtureRequest) -> None:
    backend: StubBackend = request.getfixturevalue("tls_backend")
    result = probe(backend.url, named=True)
    assert isinstance(result, NoServer)
    assert "certificate was not accepted" in result.reason and "REQUESTS_CA_BUNDLE" in result.reason


def test_a_certificate_that_the_environment_vouches_for(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(request.getfixturevalue("certificate")))
    backend: StubBackend = request.getfixturevalue("tls_backend")
    backend.default = json_reply(llm_servers.openai_list("m", owner="vllm"))
    assert isinstance(probe(backend.url, named=True), Server)


def test_https_asked_of_a_server_without(monkeypatch: pytest.MonkeyPatch) -> None:
    with llm_servers.serving(llm_servers.vllm()) as backend:
        result = probe(backend.url.replace("http:", "https:"), named=True)
    assert isinstance(result, NoServer) and "http://" in result.reason


def test_a_host_that_does_not_exist() -> None:
    result = probe("http://no-such-host.invalid:1", named=True)
    assert isinstance(result, NoServer) and "'no-such-host.invalid' cannot be resolved" in result.reason


def test_a_server_that_listens_on_ipv6_alone() -> None:
    body = json.dumps(llm_servers.openai_list("m", owner="vllm")).encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        return  # this computer has no IPv6

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

    with listener:
        threading.Thread(target=serve, daemon=True).start()
        port = listener.getsockname()[1]
        [server] = probe_all([f"http://127.0.0.1:{port}"])
        assert isinstance(server, Server) and server.address == f"http://[::1]:{port}"
        [named] = probe_all([f"http://127.0.0.1:{port}"], named=True)
        assert named == NoServer(f"http://127.0.0.1:{port}", "nothing runs there", silent=True)


def test_where_no_connection_is_accepted_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Firewalls that drop what comes never answer, and Windows takes seconds to refuse."""

    def open_in_vain(*_: object, **__: object) -> None:
        raise ConnectTimeoutError("timed out") from TimeoutError("timed out")

    monkeypatch.setattr("Middleware.utilities.http.pool.ConnectionPool.open", open_in_vain)
    assert probe("http://127.0.0.1:1") == NoServer(
        "http://127.0.0.1:1", f"did not answer within {PATIENCE:g} s", silent=True
    )


def test_nothing_but_get_is_sent() -> None:
    with llm_servers.serving(llm_servers.ollama("m")) as backend:
        probe(backend.url)
        assert {request.method for request in backend.requests} == {"GET"}


# -- several addresses -------------------------------------------------------------------------------------------------


def test_addresses_are_asked_at_the_same_time_and_told_in_order() -> None:
    """None answers before all have been asked."""
    asked, all_asked = set[int](), threading.Event()

    def slowly(number: int) -> llm_servers.StubBackend:
        def reply(request: RecordedRequest) -> Reply:
            asked.add(number)
            if len(asked) == 3:
                all_asked.set()
            return json_reply(llm_servers.openai_list(f"m{number}", owner="vllm"), held=all_asked)

        backend = llm_servers.serving({})
        backend.responder = reply
        return backend

    with slowly(1) as first, slowly(2) as second, slowly(3) as third:
        results = probe_all([first.url, second.url, third.url])
    assert [result.models[0].name for result in results if isinstance(result, Server)] == ["m1", "m2", "m3"]


def test_where_nothing_listens() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    [result] = probe_all([address])
    assert result == NoServer(address, "nothing runs there", silent=True)


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_server_that_wants_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with llm_servers.serving(llm_servers.vllm(), key="sesame") as backend:
        result = probe(backend.url, named=True)
    assert isinstance(result, NoServer)
    assert "wants an API key" in result.reason and KEY_VARIABLE in result.reason


def test_the_key_of_the_environment_opens_a_named_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sesame")
    with llm_servers.serving(llm_servers.vllm(), key="sesame") as backend:
        server = probe(backend.url, named=True)
    assert isinstance(server, Server) and server.key_variable == KEY_VARIABLE


def test_a_server_that_fails_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """LiteLLM's proxy without a database answers with status 500 to whoever sends none."""
    monkeypatch.setenv(KEY_VARIABLE, "sesame")
    with llm_servers.serving({}) as backend:
        backend.responder = lambda request: (
            json_reply(llm_servers.openai_list("m"))
            if request.path == "/v1/models" and "authorization" in request.headers
            else status_reply(500)
        )
        server = probe(backend.url, named=True)
    assert isinstance(server, Server) and server.key_variable == KEY_VARIABLE


def test_a_llama_cpp_whose_list_alone_is_open_wants_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    result = found({**llm_servers.llama_cpp(), "/props": status_reply(401)}, named=True)
    assert isinstance(result, NoServer) and "wants an API key" in result.reason


def test_a_wrong_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "mustard")
    with llm_servers.serving(llm_servers.vllm(), key="sesame") as backend:
        result = probe(backend.url, named=True)
    assert isinstance(result, NoServer)
    assert "does not accept" in result.reason and "mustard" not in result.reason


@pytest.mark.parametrize("key", ["two\nlines", "lines\u20ac", "lines\x7f"])
def test_a_key_that_no_header_can_hold(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key)
    with llm_servers.serving(llm_servers.vllm(), key="sesame") as backend:
        result = probe(backend.url, named=True)
    assert isinstance(result, NoServer) and "lines" not in result.reason


@pytest.mark.parametrize("key", ["sesame", ""])
def test_no_key_is_sent_to_who_was_not_named_or_asks_for_none(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    for name in (KEY_VARIABLE, "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "sesame")
    with llm_servers.serving(llm_servers.vllm(), key=key) as backend:
        probe(backend.url, named=not key)
        assert all("authorization" not in request.headers for request in backend.requests)


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typed, meant",
    [
        ("192.168.1.20:11434", "http://192.168.1.20:11434"),
        ("http://localhost:8080/", "http://localhost:8080"),
        (" https://host/v1 ", "https://host"),
        ("http://h:1/v1/chat/completions", "http://h:1"),
        ("http://h:1/api/tags", "http://h:1"),
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api"),
        ("http://[::1]:8080/v1/", "http://[::1]:8080"),
        ("HTTP://Host:80", "http://host:80"),
        ("http://h/v1#chat", "http://h"),
        ("http://h/v1beta/openai/", "http://h/v1beta/openai"),
        ("http://h/api/paas/v4/chat/completions", "http://h/api/paas/v4"),
        ("http://h/openai/deployments/x?api-version=1", "http://h/openai/deployments/x?api-version=1"),
        ("http://h/v1/messages", "http://h"),
    ],
)
def test_addresses_as_people_type_them(typed: str, meant: str) -> None:
    assert normal_address(typed) == meant


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "  ",
        "ftp://h",
        "http://",
        "http://h:port",
        "http://h:99999",
        "http://me:pw@h",
        "http://h\n/x",
        "two words",
        "http://[::1",
    ],
)
def test_what_is_no_address(typed: str) -> None:
    with pytest.raises(ValueError):
        normal_address(typed)
