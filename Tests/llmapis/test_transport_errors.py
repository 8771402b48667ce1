"""What a person reads when a back-end fails."""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
import time

import pytest

from Middleware.exceptions import BackendStatusError
from Middleware.llmapis import transport as transport_module
from Middleware.llmapis.backend_errors import call_error, public_text, short_body
from Middleware.llmapis.transport import BackendRequest, Transport
from Middleware.utilities.http.problems import connect_problem
from Middleware.utilities.http.wire import parse_target
from Tests.llmapis.transport_lab import KEY, SOON, ask
from Tests.stub_backend import AFTER_PIECES, Reply, StubBackend, status_reply

pytestmark = pytest.mark.usefixtures("short_retry_waits")


def refused(host: str) -> str:
    target = parse_target(f"http://{host}:8080/v1?key=abcdef")
    return str(call_error("my-llm", target, connect_problem(target.host, ConnectionRefusedError(111, "refused"))))


@pytest.fixture(params=[False, True], ids=["outside", "inside"])
def inside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this is a container."""
    monkeypatch.setattr("Middleware.llmapis.backend_errors.in_container", lambda: request.param)
    return bool(request.param)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_refused_by_this_machine_inside_a_container(host: str, inside: bool) -> None:
    hint = " Inside a container, localhost means the container itself; try host.docker.internal." if inside else ""
    assert refused(host) == (
        f"Endpoint 'my-llm' (http://{host}:8080/v1): connection refused. Is the LLM server running, and is this its "
        f"port?{hint}"
    )


def test_refused_by_another_machine(inside: bool) -> None:
    assert refused("192.168.1.5").endswith("is this its port?")


@pytest.mark.parametrize(
    ("host", "hint"),
    [("no-such-host", "Check the URL"), ("host.docker.internal", "--add-host=host.docker.internal:host-gateway")],
)
def test_unknown_host_names(host: str, hint: str, inside: bool) -> None:
    if not inside:
        hint = "Check the URL of the endpoint."
    error = call_error("e", parse_target(f"http://{host}/"), connect_problem(host, socket.gaierror(-2, "unknown")))
    assert f"'{host}' cannot be resolved" in str(error) and hint in str(error)


@pytest.mark.parametrize(("status", "hint"), [(401, "apiKey"), (404, "apiPath.*model"), (503, "no calls")])
def test_status_messages_help(backend: StubBackend, transport: Transport, status: int, hint: str) -> None:
    backend.default = status_reply(status, "nope")
    with pytest.raises(BackendStatusError, match=rf"my-llm.*{status}.*nope\. .*{hint}"):
        transport.post_json(ask(backend, single_attempt=True))


def test_messages_and_log_hold_no_secrets(
    backend: StubBackend, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    backend.default = status_reply(500, f"bad key {KEY}, pass pa55word, query token=querysecret, querysecret")
    url = f"http://user:pa55word@127.0.0.1:{backend.port}/v1?token=querysecret"
    with pytest.raises(BackendStatusError) as caught:
        transport.post_json(BackendRequest("e", url, {}, {"Authorization": f"Bearer {KEY}"}))
    for text in (str(caught.value), caught.value.body, caplog.text):
        assert not any(secret in text for secret in (KEY, "pa55word", "querysecret"))
    assert backend.requests[0].path == "/v1?token=querysecret"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no such model", "type": "x", "code": 404}}', "no such model"),
        (b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}', "Overloaded"),
        (b'{"error": "plain text"}', "plain text"),
        (b'{"message": "said"}', "said"),
        (b'"only text"', "only text"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', "field required"),
        (b'{"detail": {"msg": "Server is busy", "type": "service_unavailable"}}', "Server is busy"),
        (b'{"errors": [{"message": "first"}]}', "first"),
        (b'{"error": true, "message": "why"}', "why"),
        (b'{"error": {"code": 5}}', '{"error": {"code": 5}}'),
        (b'{"broken', '{"broken'),
        (b"", ""),
        (b'\xef\xbb\xbf{"error": "with BOM"}', "with BOM"),
        (b"bad \xff byte", "bad \ufffd byte"),
        (b"two\n lines\x1b[31m\x00", "two lines [31m"),
        (
            b"<html><head><TITLE lang=en>404 <b>Not</b>\nFound &amp; gone</TITLE></head><body>x</body></html>",
            "404 Not Found & gone",
        ),
        (
            b"\n<!DOCTYPE html><html><style>p {}</style><script>x()</script><p>Bad <i>Gateway</i></p><!-- y --></html>",
            "Bad Gateway",
        ),
        (b"<html><title> </title><body></body></html>", ""),
    ],
)
def test_the_servers_own_message(body: bytes, message: str) -> None:
    assert short_body(body) == message


@pytest.mark.parametrize(
    "body",
    [
        b"line\n" * 5000,
        b"<title>" + b"x" * 15000 + b"</title>",
        b'{"error": "%b"}' % (b"y" * 900),
        b"[" * 60_000,
        b"<" * 60_000,
        b"<script" * 9000,
    ],
)
def test_messages_are_short(body: bytes) -> None:
    started = time.thread_time()
    assert len(short_body(body)) <= 500
    assert "\n" not in short_body(body)
    # An expression that takes quadratic time needs minutes for these.
    assert time.thread_time() - started < SOON


def test_the_message_in_the_error(backend: StubBackend, transport: Transport) -> None:
    backend.script(Reply(status=404, body={"detail": "model 'x' not found"}))
    with pytest.raises(BackendStatusError) as caught:
        transport.post_json(ask(backend, "/v1/chat?key=abcdef"))
    assert str(caught.value) == (
        f"Endpoint 'my-llm' ({backend.url}/v1/chat): status 404 Not Found: model 'x' not found. "
        "Check 'modelNameToSendToAPI' of the endpoint: it must be a model that the server has ('ollama list' shows "
        "those of Ollama, 'ollama pull' gets another)."
    )
    assert (caught.value.status, caught.value.body) == (404, "model 'x' not found")


@pytest.mark.parametrize(
    ("status", "said", "hinted"),
    [
        (404, "model 'qwen3:1.7b' not found", True),
        (404, "The model `x` does not exist.", True),
        (400, "Unknown model: x", True),
        (404, "Not Found", False),
        (404, "File Not Found", False),
        (400, "model x: unknown parameter 'min_p'", False),
        (500, "model not found", False),
    ],
)
def test_a_model_that_is_not_there_is_told(
    backend: StubBackend, transport: Transport, status: int, said: str, hinted: bool
) -> None:
    backend.default = status_reply(status, said)
    with pytest.raises(BackendStatusError) as caught:
        transport.post_json(ask(backend, single_attempt=True))
    assert ("Check 'modelNameToSendToAPI'" in str(caught.value)) is hinted
    assert not (hinted and "wrong path" in str(caught.value))


@pytest.mark.parametrize(
    ("status", "said", "hinted"),
    [
        (400, "the request exceeds the available context size (4096 tokens)", True),
        (400, "This model's maximum context length is 8192 tokens", True),
        (400, "prompt is too long: 250000 tokens > 200000 maximum", True),
        (400, "temperature must be a number", False),
        (401, "the context window is closed", False),
    ],
)
def test_a_prompt_that_is_too_long(
    backend: StubBackend, transport: Transport, status: int, said: str, hinted: bool
) -> None:
    backend.script(Reply(status=status, body={"error": {"message": said}}))
    with pytest.raises(BackendStatusError) as caught:
        transport.post_json(ask(backend))
    assert ("'maxContextTokenSize'" in str(caught.value)) == hinted


@pytest.mark.parametrize(
    ("status", "said", "hinted"),
    [
        (500, "image input is not supported - hint: you may need to provide the mmproj", True),
        (400, "org/model is not a multimodal model", True),
        (400, "Invalid content type. image_url is only supported by certain models.", True),
        (400, "This model does not support image inputs", True),
        (500, "this model is missing data required for image input", True),
        (404, "No endpoints found that support image input", True),
        (400, "This model does not support tools. Images are left out.", False),
        (400, "At most 1 image(s) may be provided in one request.", False),
        (429, "image input is not supported", False),
    ],
)
def test_a_model_that_cannot_see(
    backend: StubBackend, transport: Transport, status: int, said: str, hinted: bool
) -> None:
    backend.default = Reply(status=status, body={"error": {"message": said}})
    with pytest.raises(BackendStatusError) as caught:
        transport.post_json(ask(backend, single_attempt=True))
    assert ("'acceptImages'" in str(caught.value)) == hinted


@pytest.mark.parametrize(
    ("status", "said", "hinted"),
    [
        (500, "Conversation roles must alternate user/assistant/user/assistant/... at row 15, column 67", True),
        (400, "After the optional system message, conversation roles must alternate user/assistant/...", True),
        (500, "Jinja Exception: System message must be at the beginning.", True),
        (500, "Only user, assistant and tool roles are supported", False),
        (503, "roles must alternate", False),
    ],
)
def test_a_template_that_wants_roles_in_turn(
    backend: StubBackend, transport: Transport, status: int, said: str, hinted: bool
) -> None:
    backend.default = Reply(status=status, body={"error": {"message": said}})
    with pytest.raises(BackendStatusError) as caught:
        transport.post_json(ask(backend, single_attempt=True))
    assert ("'alternateRoles'" in str(caught.value)) == hinted


def test_long_reasons_are_cut(backend: StubBackend, transport: Transport) -> None:
    backend.script(Reply(raw=b"HTTP/1.1 400 " + b"r" * 5000 + b"\r\nContent-Length: 0\r\n\r\n"))
    with pytest.raises(BackendStatusError, match=r"status 400 r{57}\.\.\.$"):
        transport.post_json(ask(backend))


@pytest.mark.parametrize("encoding", ["br", "gzip"])
def test_an_unreadable_error_body_does_not_hide_the_status(
    backend: StubBackend, transport: Transport, encoding: str
) -> None:
    backend.script(Reply(status=401, body=b"garbage", headers={"Content-Encoding": encoding}))
    with pytest.raises(BackendStatusError, match="401.*apiKey"):
        transport.post_json(ask(backend))


def test_error_body_that_never_ends_does_not_hide_the_status(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "MAX_ERROR_BODY_WAIT", 0.0)
    backend.script(
        Reply(status=400, pieces=[b"half"], hang=True), Reply(status=400, pieces=[b"half"], drop=AFTER_PIECES)
    )
    for _ in range(2):
        with pytest.raises(BackendStatusError, match="half"):
            transport.post_json(ask(backend))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "private"), f"OSError: {os.strerror(errno.ENOSPC)}"),
        (OSError("private"), "OSError"),
        (ssl.SSLError(1, "private"), "SSLError"),
        (socket.gaierror(8, "private"), "gaierror"),
        (ValueError("private"), "ValueError"),
    ],
)
def test_only_numbers_of_the_system_are_told_as_its_texts(error: Exception, told: str) -> None:
    """Libraries for TLS and names count their errors on their own: 1 would be "Operation not permitted"."""
    assert public_text(error) == told
