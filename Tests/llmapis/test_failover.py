"""An endpoint that fails and the one that stands in for it, over real sockets; the rules on their own below."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import (
    BackendConnectionError,
    BackendError,
    BackendResponseError,
    BackendStatusError,
    FailoverError,
    GateTimeoutError,
)
from Middleware.llmapis import failover
from Middleware.llmapis.endpoint_file import EndpointFile
from Middleware.llmapis.failover import classify_host
from Middleware.llmapis.handlers.base.backend_call import Prompt
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.llmapis.transport import BackendRequest, Transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import Process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities.http import connect
from Tests.backend_dialects import DIALECTS, Answer
from Tests.llmapis.lab import CLAUDE, LLAMA_CPP, Lab
from Tests.llmapis.queue_lab import one_slot_for_calls, taken, turn
from Tests.llmapis.transport_lab import SOON
from Tests.stub_backend import (
    AFTER_HEADERS,
    AFTER_PIECES,
    BEFORE_STATUS,
    Reply,
    StubBackend,
    chat_chunk,
    chat_reply,
    chat_stream_reply,
    sse_reply,
    status_reply,
)
from Tests.tables import table

HI = [{"role": "user", "content": "hi"}]
ERROR_EVENT = {"error": {"message": "out of memory"}}
COMPLETION = {"type": "openAIV1Completion", "presetType": "OpenAiCompatibleApis"}


class FailoverLab:
    """Endpoints ``A``, ``B``, ``C`` on stub servers of their own; A has the backup B."""

    def __init__(self, lab: Lab, stubs: dict[str, StubBackend]) -> None:
        self.lab, self.stubs = lab, stubs
        lab.user(connectTimeoutInSeconds=30)
        self.endpoint("A", backupEndpointName="B")
        self.endpoint("B")
        self.endpoint("C")

    def endpoint(self, name: str, url: str = "", **keys: Any) -> None:
        self.lab.endpoint(name, keys, url or self.stubs[name].url)

    def __getitem__(self, name: str) -> StubBackend:
        return self.stubs[name]

    def asked(self) -> dict[str, int]:
        """How many requests each server got."""
        return {name: len(stub.requests) for name, stub in self.stubs.items()}


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailoverLab]:
    with ExitStack() as stack:
        yield FailoverLab(Lab(tmp_path, monkeypatch), {name: stack.enter_context(StubBackend()) for name in "ABC"})


def ask(service: LlmApiService, conversation: Any = HI, **arguments: Any) -> Any:
    """The whole text of an answer, streamed or not."""
    answer = service.get_response_from_llm(conversation, **arguments)
    return answer if isinstance(answer, (str, dict)) else "".join(chunk["token"] for chunk in answer)


def reply(text: str, stream: bool, **options: Any) -> Reply:
    return chat_stream_reply([text], **options) if stream else chat_reply(text, **options)


def hops(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "is used. " in record.getMessage()]


both_modes = pytest.mark.parametrize("stream", [False, True])


# -- when the backup stands in -------------------------------------------------------------------------------------


@both_modes
@pytest.mark.parametrize(
    "failing",
    [
        status_reply(500),
        status_reply(429),
        status_reply(401),
        status_reply(404),
        Reply(drop=BEFORE_STATUS),
        Reply(raw=b"no HTTP at all\r\n\r\n"),
        Reply(body=ERROR_EVENT),
        Reply(body=b"<html>"),
    ],
    ids=["500", "429", "401", "404", "dropped", "no-http", "error-object", "html"],
)
def test_the_backup_answers_after_one_attempt(hosts: FailoverLab, failing: Reply, stream: bool) -> None:
    hosts["A"].default, hosts["B"].default = failing, reply("from B", stream)
    service = LlmApiService("A", stream=stream)
    assert ask(service) == "from B"
    # Both forms of an address that may lack the version of its API are one attempt.
    assert hosts.asked() == {"A": 2 if failing.status == 404 else 1, "B": 1, "C": 0}
    assert service.outcome.endpoint_name == "B" and service.outcome.endpoint_config["endpoint"] == hosts["B"].url
    assert service.outcome.finish_reason == "stop" and not service.is_busy()


@both_modes
def test_a_refused_connection_is_not_tried_again(
    hosts: FailoverLab, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "CONNECT_WAITS", (1.2 * SOON,))
    hosts.endpoint("A", "http://127.0.0.1:1", backupEndpointName="B")
    hosts["B"].default = reply("from B", stream)
    started = time.monotonic()
    assert ask(LlmApiService("A", stream=stream)) == "from B"
    assert time.monotonic() - started < SOON


def test_an_error_in_reading_an_answer_is_a_failure_too(
    hosts: FailoverLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hosts["A"].default, hosts["B"].default = chat_reply("from A"), chat_reply("from B")
    service = LlmApiService("A")
    monkeypatch.setattr(service._handler, "read_response", lambda body: {}[f"secret {body}"])
    assert ask(service) == "from B"
    assert "KeyError" in caplog.text and "secret" not in caplog.text


@pytest.mark.parametrize(
    "failing",
    [
        sse_reply([ERROR_EVENT]),
        sse_reply([chat_chunk({"role": "assistant", "content": ""}), ERROR_EVENT]),
        sse_reply([chat_chunk({"role": "assistant", "content": None})], drop=AFTER_PIECES),
        sse_reply([{"choices": [], "usage": {"total_tokens": 99}, "system_fingerprint": "of-A"}], drop=AFTER_PIECES),
        Reply(pieces=[b": ping\n\n"], headers={"Content-Type": "text/event-stream"}, drop=AFTER_PIECES),
        sse_reply([], drop=AFTER_HEADERS),
    ],
    ids=["error-event", "role-then-error", "role-then-drop", "usage-then-drop", "comment-then-drop", "headers-only"],
)
def test_what_shows_nothing_does_not_begin_an_answer(hosts: FailoverLab, failing: Reply) -> None:
    hosts["A"].default, hosts["B"].default = failing, chat_stream_reply(["from ", "B"])
    service = LlmApiService("A", stream=True)
    chunks: Any = list(service.get_response_from_llm(HI))
    assert "".join(chunk["token"] for chunk in chunks) == "from B"
    assert not any(chunk.get("usage") or chunk.get("fingerprint") == "of-A" for chunk in chunks)
    assert service.outcome.endpoint_name == "B" and service.outcome.usage is None


def test_signs_of_life_of_a_silent_endpoint_do_not_begin_an_answer(hosts: FailoverLab) -> None:
    noticed = threading.Event()
    hosts["A"].default = Reply(held=noticed, drop=AFTER_HEADERS, pieces=[b""])
    hosts["B"].default = chat_stream_reply(["from B"])
    stream: Any = LlmApiService("A", stream=True).get_response_from_llm(HI)
    assert next(stream) == {"token": "", "finish_reason": None} and hosts.asked()["B"] == 0
    noticed.set()
    assert "".join(chunk["token"] for chunk in stream) == "from B"


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "from A"},
        {"reasoning_content": "hm"},
        {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]},
    ],
)
def test_an_answer_that_has_begun_fails_with_its_own_error(
    hosts: FailoverLab, delta: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    hosts.lab.user(sendReasoningToClient=True)
    hosts["A"].default = sse_reply([chat_chunk({"role": "assistant"}), chat_chunk(delta)], drop=AFTER_PIECES)
    stream: Any = LlmApiService("A", stream=True).get_response_from_llm(HI)
    seen = []
    with pytest.raises(BackendConnectionError, match="in the middle of its answer"):
        seen.extend(stream)
    assert any(failover.is_visible(chunk, True) for chunk in seen)
    assert hosts.asked() == {"A": 1, "B": 0, "C": 0}
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1 and "'A'" in errors[0] and "'B'" in errors[0]


def test_reasoning_that_the_client_is_not_sent_does_not_begin_an_answer(hosts: FailoverLab) -> None:
    hosts["A"].default = sse_reply([chat_chunk({"reasoning_content": "hm"})], drop=AFTER_PIECES)
    thoughts = [chat_chunk({"reasoning_content": "so"}), chat_chunk({"content": "from B"}), chat_chunk({}, "stop")]
    hosts["B"].default = sse_reply([*thoughts, "[DONE]"])
    hosts.endpoint("B", backupEndpointName="C")
    chunks: Any = list(LlmApiService("A", stream=True).get_response_from_llm(HI))
    assert "".join(chunk["token"] for chunk in chunks) == "from B" and hosts.asked()["C"] == 0
    assert not any("reasoning" in chunk for chunk in chunks)


def test_an_error_behind_tokens_of_the_same_block_comes_too_late(hosts: FailoverLab) -> None:
    hosts["A"].default = Reply(
        pieces=[b"".join(sse_reply([chat_chunk({"content": "x"}), ERROR_EVENT]).pieces or ())],
        headers={"Content-Type": "text/event-stream"},
    )
    with pytest.raises(BackendResponseError, match="out of memory"):
        ask(LlmApiService("A", stream=True))
    assert hosts.asked()["B"] == 0


@both_modes
def test_an_empty_answer_is_an_answer(hosts: FailoverLab, stream: bool) -> None:
    hosts["A"].default = reply("", stream)
    service = LlmApiService("A", stream=stream)
    assert ask(service) == "" and service.outcome.endpoint_name == "A"
    assert hosts.asked() == {"A": 1, "B": 0, "C": 0}


def test_token_counts_before_the_first_token_are_kept_when_the_answer_comes(hosts: FailoverLab) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    hosts["A"].default = sse_reply([{"choices": [], "usage": usage}, chat_chunk({"content": "x"}, "stop"), "[DONE]"])
    chunks: Any = list(LlmApiService("A", stream=True).get_response_from_llm(HI))
    assert [chunk["usage"] for chunk in chunks if "usage" in chunk] == [usage]


# -- chains --------------------------------------------------------------------------------------------------------


@both_modes
def test_chain_and_its_log(hosts: FailoverLab, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    hosts.endpoint("A", backupEndpointName="B", apiKey="sk-secret-a")
    hosts.endpoint("B", backupEndpointName="C")
    hosts["A"].default, hosts["B"].default = status_reply(401, "bad key sk-secret-a"), status_reply(503, "loading")
    hosts["C"].default = reply("from C", stream)
    service = LlmApiService("A", stream=stream)
    assert ask(service) == "from C" and service.outcome.endpoint_name == "C"
    assert hosts.asked() == {"A": 1, "B": 1, "C": 1}
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [
        ("'A'" in text and "'B'" in text and "401" in text, "'B'" in text and "'C'" in text and "loading" in text)
        for text in warnings
    ] == [(True, False), (False, True)]
    assert "sk-secret" not in caplog.text


def test_the_last_endpoint_keeps_its_retries(hosts: FailoverLab) -> None:
    hosts["A"].default = status_reply(500)
    hosts["B"].script(status_reply(500), chat_reply("from B"))
    assert ask(LlmApiService("A")) == "from B"
    assert hosts.asked() == {"A": 1, "B": 2, "C": 0}


@both_modes
@pytest.mark.parametrize("where", ["status", "connection"])
def test_the_error_of_a_backup_says_for_whom_it_stood_in(hosts: FailoverLab, where: str, stream: bool) -> None:
    hosts["A"].default = status_reply(500, "worn out")
    hosts["B"].default = status_reply(400, "ill")
    if where == "connection":
        hosts.endpoint("B", "http://127.0.0.1:9")
    with pytest.raises(BackendStatusError if where == "status" else BackendConnectionError) as caught:
        ask(LlmApiService("A", stream=stream))
    text = str(caught.value)
    assert text.startswith("Endpoint 'B' (") and text.endswith(". It was the backup for 'A', which had failed.")
    assert caught.value.endpoint == "B"


def test_an_error_without_a_backup_says_nothing_of_one(hosts: FailoverLab) -> None:
    hosts["B"].default = status_reply(400, "ill")
    with pytest.raises(BackendStatusError) as caught:
        ask(LlmApiService("B", stream=False))
    assert "was the backup" not in str(caught.value)


@both_modes
def test_when_all_fail_the_last_error_counts(hosts: FailoverLab, stream: bool) -> None:
    hosts["A"].default, hosts["B"].default = status_reply(500), status_reply(403)
    service = LlmApiService("A", stream=stream)
    with pytest.raises(BackendStatusError) as caught:
        ask(service)
    assert caught.value.endpoint == "B" and caught.value.status == 403 and not service.is_busy()


@both_modes
@pytest.mark.parametrize(("back", "asked"), [("A", {"A": 1, "B": 1, "C": 0}), ("B", {"A": 1, "B": 1, "C": 0})])
def test_cycle(hosts: FailoverLab, back: str, asked: dict[str, int], stream: bool) -> None:
    hosts.endpoint("B", backupEndpointName=back)
    hosts["A"].default, hosts["B"].default = status_reply(500), status_reply(503, "B is loading")
    with pytest.raises(RuntimeError, match=f"cycle: A -> B -> {back}") as caught:
        ask(LlmApiService("A", stream=stream))
    assert isinstance(caught.value, FailoverError) and hosts.asked() == asked
    assert "B is loading" in str(caught.value) and isinstance(caught.value.__cause__, BackendStatusError)


def test_a_second_call_asks_the_first_endpoint_again(hosts: FailoverLab) -> None:
    hosts["A"].script(status_reply(500), chat_reply("from A"))
    hosts["B"].default = chat_reply("from B")
    service = LlmApiService("A")
    assert [ask(service), service.outcome.endpoint_name] == ["from B", "B"]
    assert [ask(service), service.outcome.endpoint_name] == ["from A", "A"]


# -- backups that cannot stand in ----------------------------------------------------------------------------------


def no_endpoint(hosts: FailoverLab) -> str:
    hosts.endpoint("A", backupEndpointName="Bb")
    return r"'Bb'.*Did you mean 'B'"


def no_api_type(hosts: FailoverLab) -> str:
    hosts.endpoint("B", apiTypeConfigFileName="Nope")
    return "ApiTypes/Nope.json"


def no_preset(hosts: FailoverLab) -> str:
    hosts.endpoint("A", backupEndpointName="B", backupPresetName="Gone")
    return "Gone"


def embeddings(hosts: FailoverLab) -> str:
    hosts.lab.write("ApiTypes/Embed", {"type": "openAIEmbeddings"})
    hosts.endpoint("B", apiTypeConfigFileName="Embed")
    return "embeddings"


def no_scheme(hosts: FailoverLab) -> str:
    hosts.endpoint("B", "127.0.0.1:5001")
    return "no usable URL"


def no_template(hosts: FailoverLab) -> str:
    hosts.lab.write("ApiTypes/Completion", COMPLETION)
    hosts.endpoint("B", apiTypeConfigFileName="Completion", promptTemplate="lost")
    return "PromptTemplates/lost.json"


def remote(hosts: FailoverLab) -> str:
    hosts.endpoint("B", "http://8.8.8.8")
    return "off-machine.*allowRemoteBackup"


@both_modes
@pytest.mark.parametrize("spoil", [no_endpoint, no_api_type, no_preset, embeddings, no_scheme, no_template, remote])
def test_both_errors_are_told(hosts: FailoverLab, spoil: Callable[[FailoverLab], str], stream: bool) -> None:
    reason = spoil(hosts)
    hosts["A"].default = status_reply(500, "A exploded")
    with pytest.raises(FailoverError, match=reason) as caught:
        ask(LlmApiService("A", stream=stream))
    error = caught.value
    assert "'A'" in str(error) and "A exploded" in str(error) and "'B" in str(error)
    assert isinstance(error.__cause__, BackendStatusError) and error.status == 500 and error.endpoint == "A"
    assert str(hosts.lab.root) not in str(error) and "\n" not in str(error)
    assert hosts.asked() == {"A": 1, "B": 0, "C": 0}


def test_a_missing_backup_is_reported_early_and_once_while_the_endpoint_serves(
    hosts: FailoverLab, caplog: pytest.LogCaptureFixture
) -> None:
    no_endpoint(hosts)
    hosts["A"].default = chat_reply("from A")
    assert [ask(LlmApiService("A")) for _ in range(3)] == ["from A"] * 3
    assert [("'A'" in text, "'Bb'" in text, "'B'" in text) for text in caplog.messages] == [(True, True, True)]


@pytest.mark.parametrize("none", ["", None, "  "])
def test_no_backup(hosts: FailoverLab, none: Any) -> None:
    hosts.endpoint("A", backupEndpointName=none)
    hosts["A"].default = status_reply(404)
    with pytest.raises(BackendStatusError):
        ask(LlmApiService("A"))
    assert hosts.asked()["B"] == 0


# -- where conversations may go --------------------------------------------------------------------------------------


class SpyTransport(Transport):
    """Keeps the requests; sends those to loopback and answers the others itself."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[BackendRequest] = []

    def post_json(self, request: BackendRequest, scope: CancelScope | None = None) -> Any:
        self.requests.append(request)
        if "127.0.0.1" in request.url:
            return super().post_json(request, scope)
        return chat_reply("from afar").body


@pytest.mark.parametrize(
    ("url", "allowed", "local_only", "warned"),
    [
        ("http://192.168.1.5:1", None, True, ""),
        ("http://localhost:1", False, True, ""),
        ("http://backup.lan:1", "false", True, ""),
        ("http://8.8.8.8", True, False, "off-machine"),
        ("https://cloud.example", "true", False, "off-machine"),
        ("http://lost.example", None, True, "is unknown"),
        ("http://lost.example", True, False, "is unknown"),
    ],
)
def test_remote_rule(
    hosts: FailoverLab,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    url: str,
    allowed: Any,
    local_only: bool,
    warned: str,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", names({"backup.lan": ["192.168.7.7"], "cloud.example": ["1.2.3.4"]}))
    hosts.endpoint("B", url, allowRemoteBackup=allowed)
    hosts["A"].default = status_reply(500)
    process = Process()
    process.put(Transport, spy := SpyTransport())
    monkeypatch.setattr("Middleware.models.process._process", process)
    assert ask(LlmApiService("A")) == "from afar"
    first, second = spy.requests
    assert (first.single_attempt, second.single_attempt) == (True, False)
    assert (first.local_only, second.local_only) == (False, local_only)
    others = [text for text in caplog.messages if "is used. " not in text]
    assert len(hops(caplog)) == 1 and len(others) == bool(warned)
    assert all(warned in text and "'B'" in text for text in others)


def names(table: dict[str, list[str]]) -> Callable[..., list[tuple[Any, ...]]]:
    """A ``getaddrinfo`` that knows these names and those of this machine."""
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *more: Any, **options: Any) -> list[tuple[Any, ...]]:
        if host in table:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in table[host]]
        if str(host).endswith("example"):
            raise socket.gaierror(-2, "unknown")
        return real(host, port, *more, **options)  # type: ignore[no-any-return]

    return resolve


@table(
    ("url", "place"),
    [
        ("http://localhost:5001", "local"),
        ("http://LOCALHOST.:5001/v1", "local"),
        ("https://a.localhost", "local"),
        ("http://127.8.9.1", "local"),
        ("http://[::1]:80", "local"),
        ("http://10.1.2.3", "local"),
        ("http://172.31.0.1", "local"),
        ("http://172.32.0.1", "remote"),
        ("http://192.168.1.5", "local"),
        ("http://169.254.7.7", "local"),
        ("http://[fe80::1]", "local"),
        ("http://[fe80::1%25eth0]:1", "local"),
        ("http://[fd00::7]", "local"),
        ("http://[::ffff:192.168.1.5]", "local"),
        ("http://[::ffff:8.8.8.8]", "remote"),
        ("http://8.8.8.8", "remote"),
        ("http://[2001:4860:4860::8888]", "remote"),
        ("http://0.0.0.0:5001", "remote"),
        ("http://[::]:5001", "remote"),
        ("http://100.64.0.1", "remote"),
        ("http://203.0.113.5", "remote"),
        ("192.168.1.5:5001", "local"),
        ("8.8.8.8:80/v1", "remote"),
        ("localhost:5001", "local"),
        ("localhost", "local"),
        ("http://localhost@8.8.8.8/", "remote"),
        ("http://8.8.8.8\\@localhost", "remote"),
        ("http://local.test", "local"),
        ("http://both.test", "remote"),
        ("http://far.test", "remote"),
        ("http://localhost.far.test", "remote"),
        ("http://notlocalhost", "remote"),
        ("two.test:5001", "local"),
        ("http://lost.test", "unknown"),
        ("http://none.test", "unknown"),
        ("http://odd.test", "unknown"),
        ("", "unknown"),
        ("  ", "unknown"),
        ("http://", "unknown"),
        ("http://[::1", "unknown"),
        ("http://:80", "unknown"),
    ],
)
def test_classify_host(url: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "local.test": ["127.0.0.1", "::1"],
        "two.test": ["192.168.0.9", "fe80::2%eth0", "::ffff:10.0.0.1"],
        "both.test": ["10.0.0.1", "1.1.1.1"],
        "far.test": ["1.1.1.1"],
        "localhost.far.test": ["1.1.1.1"],
        "notlocalhost": ["1.1.1.1"],
        "none.test": [],
    }

    def resolve(host: str, port: None) -> list[tuple[Any, ...]]:
        if host == "odd.test":
            raise UnicodeError("label too long")
        if host not in table:
            raise socket.gaierror(-2, "unknown")
        return [(None, None, None, "", (address, 0)) for address in table[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert classify_host(url) == place


def test_slow_name_resolution_is_left_alone(hosts: FailoverLab, monkeypatch: pytest.MonkeyPatch) -> None:
    freed = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: freed.wait(60) and [])
    monkeypatch.setattr(failover, "RESOLVE_SECONDS", 0.1)
    assert failover.find_location("http://slow.test", None) == "unknown"
    freed.set()


@both_modes
def test_cancellation_during_name_resolution(
    hosts: FailoverLab, monkeypatch: pytest.MonkeyPatch, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    asked, freed, scope, known = threading.Event(), threading.Event(), CancelScope(), names({})

    def slow(host: Any, *more: Any, **options: Any) -> list[tuple[Any, ...]]:
        if host != "slow.test":
            return known(host, *more, **options)
        asked.set()
        freed.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    hosts.endpoint("B", "http://slow.test")
    hosts["A"].default = status_reply(500)
    monkeypatch.setattr(failover, "RESOLVE_SECONDS", 60.0)
    threading.Thread(target=lambda: (asked.wait(60), scope.cancel())).start()
    started = time.monotonic()
    assert ask(LlmApiService("A", stream=stream, scope=scope)) == ""
    assert time.monotonic() - started < SOON
    assert asked.is_set() and not hops(caplog)
    freed.set()


# -- presets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "a", "b", "expected"),
    [
        ("P", {}, {}, {"temperature": 0.1}),
        ("P", {"backupPresetName": "Q"}, {}, {"temperature": 0.2}),
        ("P", {"backupPresetName": " "}, {}, {"temperature": 0.1}),
        (None, {"backupPresetName": "Q"}, {"presetSamplers": {"top_k": 7}}, {"temperature": 0.2}),
        (
            None,
            {"presetSamplers": {"temperature": 0.3, "stop": ["x"]}},
            {"presetSamplers": {"top_k": 7}},
            {"temperature": 0.3, "stop_sequences": ["x"]},
        ),
        ("A", {"presetSamplers": {"temperature": 0.3}}, {}, {"temperature": 0.3}),
        (" ", {}, {"presetSamplers": {"top_k": 7}}, {"top_k": 7}),
        (None, {}, {}, {}),
    ],
)
def test_preset_of_the_backup(
    hosts: FailoverLab, preset: str | None, a: dict[str, Any], b: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Names mean what they mean for the backup's own API type."""
    for kind, values in (("OpenAiCompatibleApis", (0.8, 0.9)), ("ClaudeMessages", (0.1, 0.2))):
        for name, value in zip("PQ", values, strict=True):
            hosts.lab.preset(kind, name, {"temperature": value})
    hosts.lab.write("ApiTypes/Odd", {**CLAUDE, "type": "openAIChatCompletion", "maxNewTokensPropertyName": "limit"})
    hosts.endpoint("A", backupEndpointName="B", **a)
    hosts.endpoint("B", apiTypeConfigFileName="Odd", **b)
    hosts["A"].default, hosts["B"].default = status_reply(500), chat_reply("x")
    ask(LlmApiService("A", preset, 77))
    assert hosts["B"].requests[0].json == {"model": "model-x", "messages": HI, "limit": 77, **expected}


def test_an_endpoint_in_a_folder_lends_no_name(hosts: FailoverLab) -> None:
    """Only a plain name can mean an endpoint's samplers, so the backup finds its own."""
    hosts.lab.endpoint("sub/A", {"backupEndpointName": "B", "presetSamplers": {"temperature": 0.3}}, hosts["A"].url)
    hosts["A"].default, hosts["B"].default = status_reply(500), chat_reply("from B")
    assert ask(LlmApiService("sub/A")) == "from B"
    assert "temperature" not in hosts["B"].requests[0].json


def test_the_preset_goes_along_a_chain(hosts: FailoverLab) -> None:
    hosts.endpoint("A", backupEndpointName="B", presetSamplers={"temperature": 0.3})
    hosts.endpoint("B", backupEndpointName="C")
    for name in "AB":
        hosts[name].default = status_reply(500)
    hosts["C"].default = chat_reply("x")
    ask(LlmApiService("A"))
    assert hosts["C"].requests[0].json["temperature"] == 0.3


# -- what is sent ----------------------------------------------------------------------------------------------------


@both_modes
def test_the_same_arguments_are_sent_in_the_backups_own_words(hosts: FailoverLab, stream: bool) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    conversation = [{"role": "user", "content": "hi", "images": ["https://h/x.png"]}]
    hosts.lab.write("ApiTypes/Llama", LLAMA_CPP)
    hosts.endpoint("A", backupEndpointName="B", addTextToStartOfSystem=True, textToAddToStartOfSystem="only A")
    hosts.endpoint("B", apiTypeConfigFileName="Llama", modelNameToSendToAPI="model-b")
    hosts["A"].default, hosts["B"].default = status_reply(500), reply("x", stream)
    ask(
        LlmApiService("A", None, 300, stream),
        conversation,
        llm_takes_images=True,
        tools=tools,
        tool_choice="auto",
        structured_output_schema={"type": "object"},
    )
    first, second = hosts["A"].requests[0].json, hosts["B"].requests[0].json
    assert [message["role"] for message in first["messages"]] == ["system", "user"] and "response_format" not in first
    assert [message["role"] for message in second["messages"]] == ["user"]
    assert second["messages"][0]["content"][1]["image_url"] == {"url": "https://h/x.png"}
    assert second["model"] == "model-b" and second["n_predict"] == 300 and second["stream"] is stream
    assert second["tools"] == tools and second["tool_choice"] == "auto"
    assert second["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert conversation == [{"role": "user", "content": "hi", "images": ["https://h/x.png"]}]


TALK = [
    {"role": "system", "content": "Sys"},
    {"role": "user", "content": "A"},
    {"role": "assistant", "content": "B"},
    {"role": "user", "content": [{"type": "text", "text": "C"}]},
]
TALK_TEXT = "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_start|>user\nC<|im_end|>\n"


@pytest.mark.parametrize(
    ("endpoint", "talk", "system", "prompt"),
    [
        ({}, TALK, "<|im_start|>system\nSys<|im_end|>\n", TALK_TEXT),
        (
            {"addGenerationPrompt": "true"},
            TALK,
            "<|im_start|>system\nSys<|im_end|>\n",
            TALK_TEXT + "<|im_start|>assistant\n",
        ),
        (
            {"addGenerationPrompt": True},
            TALK[1:3],
            "",
            "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB",
        ),  # an answer to be continued
        ({"promptTemplate": "plain", "addGenerationPrompt": True}, TALK[1:2], "", "U:A|M:"),
        (
            {"promptTemplate": "plain", "alternateRoles": True, "addGenerationPrompt": True},
            [*TALK, TALK[1], TALK[0], TALK[3]],
            "",
            "U:Sys\n\nA|M:BU:C\n\nA\n\nSys\n\nC|M:",
        ),
        ({"alternateRoles": True}, [TALK[0], *TALK], "<|im_start|>system\nSys\n\nSys<|im_end|>\n", TALK_TEXT),
        ({"alternateRoles": True}, TALK[2:], "", "<|im_start|>user\nC<|im_end|>\n"),
        ({}, [{"role": "user", "content": None}], "", "<|im_start|>user\n<|im_end|>\n"),
        ({}, [], "", ""),
    ],
)
def test_messages_become_a_text_by_the_backups_template(
    hosts: FailoverLab, endpoint: dict[str, Any], talk: Any, system: str, prompt: str
) -> None:
    hosts.lab.write("ApiTypes/Completion", COMPLETION)
    hosts.lab.write(
        "PromptTemplates/plain",
        {"promptTemplateUserPrefix": "U:", "promptTemplateUserSuffix": "|", "promptTemplateAssistantPrefix": "M:"},
    )
    hosts.endpoint("B", apiTypeConfigFileName="Completion", **endpoint)
    call = Prompt(talk, tools=[{"a": 1}], schema={"b": 2})
    sent = failover.prompt_for_backup(call, EndpointFile.load("B"), False)
    assert (sent.system_prompt, sent.prompt) == (system, prompt)
    assert (sent.conversation, sent.tools, sent.schema) == (call.conversation, call.tools, call.schema)


@both_modes
def test_from_chat_to_completion_and_on_to_chat(
    hosts: FailoverLab, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Each backup makes its prompt out of the original messages."""
    hosts.lab.write("ApiTypes/Completion", COMPLETION)
    hosts.endpoint("B", apiTypeConfigFileName="Completion", addGenerationPrompt=True, backupEndpointName="C")
    hosts["A"].default = hosts["B"].default = status_reply(500)
    hosts["C"].default = reply("from C", stream)
    assert ask(LlmApiService("A", stream=stream), TALK[:2]) == "from C"
    prompt = hosts["B"].requests[0].json["prompt"]
    assert prompt == "<|im_start|>system\nSys<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant"
    assert hosts["C"].requests[0].json["messages"] == TALK[:2]
    assert len(hops(caplog)) == 2 and "template" not in caplog.text


@both_modes
def test_each_backup_applies_its_own_template_only(hosts: FailoverLab, stream: bool) -> None:
    hosts.lab.write("ApiTypes/Completion", COMPLETION)
    hosts.lab.write("PromptTemplates/plain", {"promptTemplateUserPrefix": "U:"})
    hosts.endpoint("B", apiTypeConfigFileName="Completion", backupEndpointName="C")
    hosts.endpoint("C", apiTypeConfigFileName="Completion", promptTemplate="plain")
    hosts["A"].default = hosts["B"].default = status_reply(500)
    hosts["C"].default = DIALECTS["openAIV1Completion"].reply(Answer(tokens=("from C",)), stream)
    assert ask(LlmApiService("A", stream=stream)) == "from C"
    assert hosts["C"].requests[0].json["prompt"] == "U:hi"


def test_texts_with_an_image_go_along_a_chain_unchanged(hosts: FailoverLab, caplog: pytest.LogCaptureFixture) -> None:
    hosts.lab.write("ApiTypes/Ollama", {"type": "ollamaApiGenerate", "presetType": "X"})
    hosts.endpoint("A", backupEndpointName="B", apiTypeConfigFileName="Ollama")
    hosts.endpoint("B", backupEndpointName="C")
    hosts["A"].default = hosts["B"].default = status_reply(500)
    hosts["C"].default = chat_reply("from C")
    picture = [{"role": "user", "content": "", "images": ["https://h/x.png"]}]
    ask(LlmApiService("A"), picture, system_prompt="<s>Sys", prompt="<u>Hi", llm_takes_images=True)
    assert hosts["C"].requests[0].json["messages"] == hosts["B"].requests[0].json["messages"]
    assert len([text for text in caplog.messages if "template" in text]) == 2  # once per backup


@pytest.mark.parametrize("images", [[], ["https://h/x.png"]])
def test_texts_are_sent_to_a_chat_backup_as_they_are(
    hosts: FailoverLab, images: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    hosts.lab.write("ApiTypes/Completion", COMPLETION)
    hosts.endpoint("A", backupEndpointName="B", apiTypeConfigFileName="Completion")
    hosts["A"].default, hosts["B"].default = status_reply(500), chat_reply("from B")
    picture = [{"role": "user", "content": "", "images": images}] if images else None
    service = LlmApiService("A")
    assert ask(service, picture, system_prompt="<s>Sys", prompt="<u>Hi", llm_takes_images=True) == "from B"
    content: Any = "<u>Hi"
    if images:
        content = [{"type": "text", "text": content}, {"type": "image_url", "image_url": {"url": images[0]}}]
    assert hosts["B"].requests[0].json["messages"] == [
        {"role": "system", "content": "<s>Sys"},
        {"role": "user", "content": content},
    ]
    assert len([text for text in caplog.messages if "template" in text]) == 1 and "<u>Hi" not in caplog.text


def test_texts_of_a_chat_endpoint_have_no_template(hosts: FailoverLab, caplog: pytest.LogCaptureFixture) -> None:
    hosts["A"].default, hosts["B"].default = status_reply(500), chat_reply("from B")
    assert ask(LlmApiService("A"), None, system_prompt="Sys", prompt="Hi") == "from B"
    assert hosts["B"].requests[0].json["messages"] == hosts["A"].requests[0].json["messages"]
    assert "template" not in caplog.text


@both_modes
@pytest.mark.parametrize("first", sorted(DIALECTS))
@pytest.mark.parametrize("second", sorted(DIALECTS))
def test_any_type_stands_in_for_any_other(hosts: FailoverLab, first: str, second: str, stream: bool) -> None:
    for name, kind in (("A", first), ("B", second)):
        hosts.lab.write(f"ApiTypes/Of{name}", {"type": kind, "presetType": "X"})
        hosts.endpoint(name, apiTypeConfigFileName=f"Of{name}", backupEndpointName="B" if name == "A" else "")
    hosts["A"].default = status_reply(503)
    hosts["B"].default = DIALECTS[second].reply(Answer(tokens=("from ", "B")), stream)
    service = LlmApiService("A", stream=stream)
    arguments: dict[str, Any] = (
        {"conversation": HI}
        if service.takes_message_collection
        else {"conversation": None, "system_prompt": "", "prompt": "hi"}
    )
    assert ask(service, **arguments) == "from B"
    assert service.outcome.endpoint_name == "B" and "hi" in hosts["B"].requests[0].body.decode()


# -- slots, cancellation, ends ---------------------------------------------------------------------------------------


@pytest.fixture
def one_slot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with one_slot_for_calls(monkeypatch):
        yield


@both_modes
def test_the_slot_is_free_before_the_backup_wants_one(hosts: FailoverLab, one_slot: None, stream: bool) -> None:
    hosts.endpoint("B", backupEndpointName="C")
    hosts["A"].default = hosts["B"].default = status_reply(500)
    hosts["C"].default = reply("from C", stream)
    assert ask(LlmApiService("A", stream=stream)) == "from C"
    taken().end()  # all are back


@both_modes
def test_no_slot_is_no_reason_for_a_backup(
    hosts: FailoverLab, one_slot: None, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    held = taken()
    with pytest.raises(GateTimeoutError):
        ask(LlmApiService("A", stream=stream))
    held.end()
    assert hosts.asked() == {"A": 0, "B": 0, "C": 0} and not hops(caplog)


@both_modes
def test_no_slot_for_the_backup(
    hosts: FailoverLab, one_slot: None, stream: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Someone else takes the slot between the two: that is told as such, and nothing more is tried."""
    held = turn()

    def must_stay_local(*_: Any) -> bool:
        taken(held)
        return True

    monkeypatch.setattr(failover, "must_stay_local", must_stay_local)
    hosts.endpoint("B", backupEndpointName="C")
    hosts["A"].default = status_reply(500)
    with pytest.raises(GateTimeoutError):
        ask(LlmApiService("A", stream=stream))
    held.end()
    assert hosts.asked() == {"A": 1, "B": 0, "C": 0} and len(hops(caplog)) == 1


@both_modes
@pytest.mark.parametrize("where", ["A", "B"])
def test_cancellation_ends_the_call_and_asks_nobody_else(hosts: FailoverLab, where: str, stream: bool) -> None:
    hosts.endpoint("B", backupEndpointName="C")
    hosts["A"].default = status_reply(500)
    hosts[where].default = Reply(never=True)
    scope = CancelScope()
    service = LlmApiService("A", stream=stream, scope=scope)

    def cancel() -> None:
        hosts[where].wait_requests()
        scope.cancel()

    threading.Thread(target=cancel).start()
    assert ask(service) == "" and not service.is_busy()
    assert hosts[where].requests[0].wait_ended()
    assert hosts.asked() == {"A": 1, "B": int(where == "B"), "C": 0}


@both_modes
def test_an_error_of_a_cancelled_call_is_no_reason_for_a_backup(
    hosts: FailoverLab, monkeypatch: pytest.MonkeyPatch, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    scope = CancelScope()
    service = LlmApiService("A", stream=stream, scope=scope)

    def fail(*_: Any) -> Any:
        scope.cancel()
        raise BackendConnectionError("lost")

    monkeypatch.setattr(service._handler, "payload", fail)
    with pytest.raises(BackendConnectionError):
        ask(service)
    assert not hops(caplog) and not service.is_busy()


def test_busy_and_close_cover_the_backups_stream(hosts: FailoverLab) -> None:
    hosts["A"].default = status_reply(500)
    hosts["B"].default = chat_stream_reply(["x", "y"], hang=True)
    service = LlmApiService("A", stream=True)
    stream: Any = service.get_response_from_llm(HI)
    while not next(stream)["token"]:
        pass
    assert service.is_busy()
    service.close()
    assert not service.is_busy() and list(stream) == [] and hosts["B"].requests[0].wait_ended()


def test_the_error_is_a_backend_error_and_a_runtime_error() -> None:
    assert issubclass(FailoverError, BackendError) and issubclass(FailoverError, RuntimeError)


# -- redaction --------------------------------------------------------------------------------------------------------


@both_modes
def test_a_redacted_request_leaves_no_word_of_a_back_end_in_the_log(
    hosts: FailoverLab, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hosts["A"].default = status_reply(500, "cannot parse: dear diary")
    hosts["B"].default = chat_stream_reply(["Fine."]) if stream else chat_reply("Fine.")
    with request_scope(RequestContext(redact=True)):
        ask(LlmApiService("A", stream=stream))
    assert "diary" not in caplog.text
    assert "Endpoint 'A' failed; its backup 'B' is used." in caplog.text and "500" in caplog.text


def test_a_redacted_retry_is_logged_without_the_answer(
    hosts: FailoverLab, short_retry_waits: None, caplog: pytest.LogCaptureFixture
) -> None:
    hosts.endpoint("A", backupEndpointName="")
    hosts["A"].script(status_reply(500, "cannot parse: dear diary"), chat_reply("Fine."))
    with request_scope(RequestContext(redact=True)):
        ask(LlmApiService("A"))
    assert "diary" not in caplog.text and "status 500" in caplog.text and "Trying again" in caplog.text
