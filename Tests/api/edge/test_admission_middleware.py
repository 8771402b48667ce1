"""What happens to a request before it waits anywhere: its id, its idempotency key, its size."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client, EnvironBuilder, TestResponse
from werkzeug.wrappers import Response
from werkzeug.wsgi import ClosingIterator

from Middleware.api.app import build_wsgi_application, create_app
from Middleware.api.edge.access_keys import AccessKeys
from Middleware.api.edge.admission_middleware import MEGABYTE, AdmissionMiddleware
from Middleware.api.edge.browser_safety import BrowserSafety
from Middleware.api.running.running_requests import request_of, running_requests
from Middleware.common import instance_global_variables as instance
from Middleware.common.fair_semaphore import FairSemaphore
from Middleware.models.process import process
from Middleware.services.cancellation_service import cancellation_service
from Middleware.services.idempotency_service import idempotency_service
from Middleware.utilities.http.via import own_server
from Tests.api.api_lab import CHAT, ApiLab, settled
from Tests.api.front_dialects import message_at
from Tests.stub_backend import Reply, StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import last_text, llm, reply_to, static, until, user

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
COMPLETIONS = ["/v1/chat/completions", "/chat/completions", "/v1/completions", "/completions"]


class Inner:
    """The application behind the admission; remembers who came and what was known of them meanwhile."""

    def __init__(self, *parts: bytes | Exception, fails: bool = False) -> None:
        self.parts, self.fails = parts or (b"x",), fails
        self.requests: list[Any] = []
        self.keys: list[str | None] = []
        self.bodies: list[bytes] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        self.requests.append(request_of(environ))
        self.keys.append(idempotency_service.get_request_id_for_key("anon:k"))
        self.bodies.append(environ["wsgi.input"].read())
        if self.fails:
            raise RuntimeError("broken")
        start_response("200 OK", [("Content-Type", "text/plain")])
        return self._body()

    def _body(self) -> Iterator[bytes]:
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            yield part


class Engine(Inner):
    """Takes every request over, as the engine does, and ends it when the response is closed."""

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        body = super().__call__(environ, start_response)
        request = self.requests[-1]
        running_requests().begin(request, None)
        return ClosingIterator(body, partial(running_requests().end, request))


@pytest.fixture(autouse=True)
def no_traces() -> Iterator[None]:
    yield
    assert settled()
    assert cancellation_service.get_all_cancelled_requests() == set()
    assert idempotency_service._entries == {} and cancellation_service._entries == {}


def open_(app: Any, path: str = CHAT, method: str = "POST", **options: Any) -> TestResponse:
    return Client(app).open(path, method=method, **options)


def run_wsgi(app: Any, environ: dict[str, Any]) -> Response:
    """The answer to a WSGI environ that the test client would have put right."""
    return Response.from_app(app, environ)


def keyed(key: str = "k", **more: str) -> dict[str, str]:
    return {"X-Idempotency-Key": key, **more}


# -- requests that come back -------------------------------------------------------------------------------------------


@table("method", ["POST", "GET", "DELETE", "OPTIONS", "HEAD"])
@table(
    "path",
    [
        *COMPLETIONS,
        *("/v1/responses", "/v1/messages", "/v1/models", "/v1/embeddings"),
        *("/api/chat", "/api/generate", "/api/embed", "/api/ps", "/api/v1/generate", "/api/extra/perf"),
        *("/", "/health", "/props", "/nowhere"),
    ],
)
def test_a_request_that_comes_back_is_refused_at_once(path: str, method: str) -> None:
    """Before its key, its origin and its body are looked at."""
    inner = Inner()
    app = AdmissionMiddleware(inner, keys=NoKeys(), private_only=True)  # type: ignore[arg-type]
    headers = {"X-Wilmer-Via": f"rubbish, {'0' * 32}, {own_server().token()}", "Origin": "https://foreign.example"}
    body = io.BytesIO(b"{}")
    with open_(app, path, method, headers=headers, input_stream=body, content_length=2) as response:
        assert response.status == "508 Loop Detected" and response.headers["x-should-retry"] == "false"
        assert body.tell() == 0 and inner.requests == [] and len(response.headers["X-Request-Id"]) == 36
        if method == "HEAD":
            assert response.data == b""
        elif path.startswith(("/api/v1/", "/api/extra/")):
            assert response.get_json()["detail"]["msg"] == "this WilmerAI is already answering this request"
        else:
            said = message_at(path, response.get_json(), 508)
            assert said == "this WilmerAI is already answering this request"
    assert app.refuses(EnvironBuilder(path, method=method, headers=headers).get_environ())


class NoKeys:
    """A list of keys that must not be asked."""

    def grant(self, authorization: object) -> None:
        raise AssertionError("the key was looked at")


def test_a_request_carries_the_tokens_of_those_before_it() -> None:
    inner = Engine()
    app = AdmissionMiddleware(inner)
    for header, expected in ((None, ""), ("x", 1), (f"{'0' * 32}, {'1' * 32}", 3)):
        with open_(app, headers={} if header is None else {"X-Wilmer-Via": header}):
            value = inner.requests[-1].via
        assert value == "" if expected == "" else len(value.split(", ")) == expected


# -- web pages that cannot read the answers ----------------------------------------------------------------------------


@table(
    ("origins", "named"),
    [
        (["app://obsidian.md"] * 3, ["app://obsidian.md"]),
        (["tauri://localhost", "TAURI://LocalHost", "app://x"], ["tauri://localhost", "app://x"]),
        (["https://foreign.example"] * 3, ["https://foreign.example"]),
        (["https://a.example", "https://b.example", "https://a.example"], ["https://a.example", "https://b.example"]),
        (["null", "null"], ["null"]),
        (["app://x", "https://foreign.example", "app://x"], ["app://x", "https://foreign.example"]),
        # These may read.
        (["http://localhost:3000", "http://127.0.0.1"], []),
        (["https://named.example", "app://named"], []),
        ([None, None], []),
    ],
)
def test_an_origin_without_access_is_named_once(
    caplog: pytest.LogCaptureFixture, origins: list[str | None], named: list[str]
) -> None:
    caplog.clear()
    app = AdmissionMiddleware(Inner(), browsers=BrowserSafety(("https://named.example", "app://named")))
    for origin in origins:
        for method in ("GET", "POST"):
            headers = {} if origin is None else {"Origin": origin}
            with open_(app, "/v1/models", method, headers=headers, content_type="application/json"):
                pass
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == len(named)
    for line, origin in zip(lines, named, strict=True):
        assert origin in line and "--allow-origin" in line and "\n" not in line


# -- the id ------------------------------------------------------------------------------------------------------------


def test_a_method_in_small_letters_is_no_other_way_in() -> None:
    """Not every server insists on capitals, and Flask does not."""
    inner = Engine()
    environ = EnvironBuilder(CHAT, method="POST", data=b"{}").get_environ()
    with run_wsgi(AdmissionMiddleware(inner), {**environ, "REQUEST_METHOD": "post"}) as response:
        (request,) = inner.requests
        assert request is not None and running_requests().knows(request.request_id) and response.status_code == 200
    page = {**environ, "REQUEST_METHOD": "post", "HTTP_SEC_FETCH_SITE": "cross-site"}
    with run_wsgi(AdmissionMiddleware(inner), page) as response:
        assert response.status_code == 403


def test_each_post_has_an_id_by_which_it_can_be_cancelled() -> None:
    inner = Engine()
    with open_(AdmissionMiddleware(inner)) as response:
        (request,) = inner.requests
        assert response.headers["X-Request-Id"] == request.request_id
        assert UUID.fullmatch(request.request_id)
        assert running_requests().knows(request.request_id)
        cancellation_service.request_cancellation(request.request_id)
        assert request.cancel_scope.cancelled


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
def test_other_methods_have_one_that_nothing_runs_under(method: str) -> None:
    inner = Inner()
    with open_(AdmissionMiddleware(inner), method=method, headers=keyed()) as response:
        assert UUID.fullmatch(response.headers["X-Request-Id"])
    assert (inner.requests, inner.keys) == ([None], [None])


def test_the_log_tells_of_the_arrival_and_cannot_be_forged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    inner = Inner()
    open_(AdmissionMiddleware(inner), "/x%0Ay").close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert inner.requests[0].request_id in line and "\n" not in line


# -- the end -----------------------------------------------------------------------------------------------------------


def test_every_trace_of_what_the_engine_does_not_get_goes_before_the_answer() -> None:
    inner = Inner(b"a", b"b")
    response = AdmissionMiddleware(inner)(
        {"REQUEST_METHOD": "POST", "PATH_INFO": CHAT, "HTTP_X_IDEMPOTENCY_KEY": "k", "wsgi.input": io.BytesIO()},
        lambda *_: None,
    )
    assert inner.keys == [inner.requests[0].request_id]
    assert running_requests().count() == 0
    assert idempotency_service.get_request_id_for_key("anon:k") is None
    assert b"".join(response) == b"ab"


@pytest.mark.parametrize(
    "inner", [Inner(fails=True), Inner(b"a", RuntimeError("broken"))], ids=["at once", "in the body"]
)
def test_every_trace_goes_when_the_application_fails(inner: Inner) -> None:
    with pytest.raises(RuntimeError), open_(AdmissionMiddleware(inner), headers=keyed(), buffered=True):
        pass
    assert inner.keys == [inner.requests[0].request_id]


def test_a_request_that_the_engine_has_ends_when_the_engine_says_so() -> None:
    inner = Engine()
    with open_(AdmissionMiddleware(inner), headers=keyed()):
        (request,) = inner.requests
        running_requests().answered(request)
        running_requests().leave(request)
        assert running_requests().knows(request.request_id)
        assert idempotency_service.get_request_id_for_key("anon:k") == request.request_id
    assert not running_requests().knows(request.request_id)


# -- idempotency -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*COMPLETIONS, *(path + "/" for path in COMPLETIONS)])
def test_a_retry_displaces_its_earlier_attempt(path: str) -> None:
    inner = Engine()
    app = AdmissionMiddleware(inner)
    with open_(app, path, headers=keyed()):
        (first,) = inner.requests
        with open_(app, path, headers=keyed()):
            second = inner.requests[1]
            assert first.cancel_scope.cancelled and not second.cancel_scope.cancelled
            assert second.request_id in first.cancel_scope.reason
            running_requests().end(first)  # its work ends while the second is under way
            assert idempotency_service.get_request_id_for_key("anon:k") == second.request_id


def test_a_retry_under_a_path_with_more_slashes_is_one(lab: ApiLab) -> None:
    inner = Engine()
    app = AdmissionMiddleware(inner)
    environ = {"REQUEST_METHOD": "POST", "HTTP_X_IDEMPOTENCY_KEY": "k", "wsgi.input": io.BytesIO()}
    bodies = [app({**environ, "PATH_INFO": path}, lambda *_: None) for path in ("/" + CHAT, "//" + CHAT + "//")]
    assert [request.cancel_scope.cancelled for request in inner.requests] == [True, False]
    for body in bodies:
        body.close()  # type: ignore[attr-defined]
    lab.default([static("x")])
    with lab.client.post("/", environ_overrides={"PATH_INFO": "/" + CHAT}, json={"messages": []}) as answer:
        assert answer.status_code == 200  # the application knows no difference, either


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/api/chat", keyed()),
        ("/api/generate", keyed()),
        ("/v1/completions/x", keyed()),
        (CHAT, keyed("other")),
        (CHAT, keyed("x" * 129)),
        (CHAT, keyed(Authorization="Bearer someone")),
        (CHAT, {}),
    ],
)
def test_others_are_left_alone(path: str, headers: dict[str, str]) -> None:
    inner = Engine()
    app = AdmissionMiddleware(inner)
    with open_(app, headers=keyed()), open_(app, path, headers=headers):
        assert not inner.requests[0].cancel_scope.cancelled
        assert inner.keys[1] == inner.requests[0].request_id


def test_the_log_never_has_the_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    app = AdmissionMiddleware(Engine())
    with open_(app, headers=keyed("my secret")), open_(app, headers=keyed("my secret")):
        pass
    assert "my secret" not in caplog.text and caplog.text.count("#b9d1d013") == 2
    assert "is cancelled: displaced by" in caplog.text


def test_a_displaced_request_that_has_just_ended_leaves_no_flag() -> None:
    running_requests().cancel("no longer there", "displaced")
    assert cancellation_service.get_all_cancelled_requests() == set()


# -- size --------------------------------------------------------------------------------------------------------------

TOO_LARGE = "The request body is larger than 1 MB (--max-request-mb)."
OPENAI = {"message": TOO_LARGE, "type": "invalid_request_error", "param": None, "code": None}


@pytest.mark.parametrize(
    ("path", "error"), [(CHAT, OPENAI), ("/elsewhere", OPENAI), ("/api/chat", TOO_LARGE), ("/api/generate/", TOO_LARGE)]
)
def test_too_large(path: str, error: Any) -> None:
    inner = Inner()
    with open_(AdmissionMiddleware(inner, 1), path, data=b"x" * (MEGABYTE + 1), headers=keyed()) as response:
        assert response.status_code == 413 and UUID.fullmatch(response.headers["X-Request-Id"])
        assert response.headers["Content-Type"] == "application/json"
        assert int(response.headers["Content-Length"]) == len(response.get_data())
        assert json.loads(response.get_data()) == {"error": error}
    assert inner.requests == []


@pytest.mark.parametrize(("megabytes", "size"), [(1, MEGABYTE), (0, MEGABYTE + 1), (2, MEGABYTE + 1)])
def test_large_enough(megabytes: int, size: int) -> None:
    inner = Inner()
    open_(AdmissionMiddleware(inner, megabytes), data=b"x" * size).close()
    assert [len(body) for body in inner.bodies] == [size]


def test_a_refused_retry_displaces_nobody() -> None:
    inner = Engine()
    app = AdmissionMiddleware(inner, 1)
    with open_(app, headers=keyed()), open_(app, headers=keyed(), data=b"x" * (MEGABYTE + 1)) as refused:
        assert refused.status_code == 413
        assert not inner.requests[0].cancel_scope.cancelled


def test_a_delete_has_a_limit_too() -> None:
    inner = Inner()
    with open_(AdmissionMiddleware(inner, 1), method="DELETE", data=b"x" * (MEGABYTE + 1)) as response:
        assert response.status_code == 413 and UUID.fullmatch(response.headers["X-Request-Id"])


# -- in front of the application ---------------------------------------------------------------------------------------


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        lab = ApiLab(tmp_path, monkeypatch, backend)
        backend.responder = lambda request: (
            Reply(never=True) if last_text(request) == "wait" else reply_to(request, "ok")
        )
        yield lab
        assert settled()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> FairSemaphore:
    semaphore = FairSemaphore(1)
    monkeypatch.setattr(process().one(instance.Gate), "semaphore", semaphore)
    monkeypatch.setattr(instance, "CONCURRENCY_LEVEL", "wilmer")
    monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 60)
    return semaphore


def ask(app: Any, text: str = "hi", path: str = CHAT, **options: Any) -> TestResponse:
    """A request of any dialect, answered completely."""
    body = {"model": "tester", "messages": [user(text)], "prompt": text, "stream": options.pop("stream", False)}
    with open_(app, path, json=body, buffered=True, **options) as response:
        return response


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, "{oops", 400),
        (CHAT, "{}", 400),
        ("/v1/models", "{}", 405),
        ("/nowhere", "{}", 404),
        (CHAT, None, 200),
        ("/api/show", '{"model": "tester"}', 200),
    ],
)
def test_every_post_answer_has_one_id_and_leaves_no_trace(
    lab: ApiLab, path: str, body: str | None, status: int
) -> None:
    app = build_wsgi_application(create_app())
    data = json.dumps({"messages": [user("hi")]}) if body is None else body
    with open_(app, path, data=data, headers=keyed()) as response:
        assert response.status_code == status
        assert len(response.headers.getlist("X-Request-Id")) == 1


def test_the_id_of_the_answer_is_the_one_of_the_header(lab: ApiLab) -> None:
    response = ask(build_wsgi_application(create_app()), path="/api/chat")
    assert json.loads(response.get_data())["request_id"] == response.headers["X-Request-Id"]


class Asker(threading.Thread):
    """A request under way."""

    def __init__(self, app: Any, text: str = "hi", **options: Any) -> None:
        super().__init__(daemon=True)
        self._arguments = (app, text, options)
        self.response: TestResponse | None = None
        self.start()

    def run(self) -> None:
        app, text, options = self._arguments
        self.response = ask(app, text, **options)

    def answer(self) -> TestResponse:
        self.join(60)
        assert self.response is not None
        return self.response


EMPTY = {
    CHAT: ["choices", 0, "message", "content"],
    "/v1/completions": ["choices", 0, "text"],
    "/api/chat": ["message", "content"],
    "/api/generate": ["response"],
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", EMPTY)
def test_a_request_cancelled_in_the_queue_gets_an_empty_answer_and_runs_nothing(
    lab: ApiLab, gate: FairSemaphore, path: str, stream: bool
) -> None:
    lab.user_file("tester", routingConfig="routes", categorizationWorkflow="Categorize")
    lab.write("Routing/routes", {"A": {"description": "a", "workflow": "_DefaultWorkflow"}})
    lab.workflow("Categorize", [llm("which?")])
    app = build_wsgi_application(create_app())
    gate.acquire()
    asker = Asker(app, path=path, stream=stream)
    assert until(lambda: gate.waiting == 1)
    cancellation_service.request_cancellation(next(iter(running_requests()._requests)))
    response = asker.answer()
    assert response.status_code == 200 and lab.backend.requests == []
    data = response.get_data(as_text=True)
    if not stream:
        value = json.loads(data)
        for step in EMPTY[path]:
            value = value[step]
        assert value == ""
    elif path.startswith("/api/"):
        assert [json.loads(line)["done"] for line in data.splitlines()] == [True]
    else:
        assert data.endswith("data: [DONE]\n\n") and '"finish_reason":"stop"' in data.replace(": ", ":")
    gate.release()
    assert gate.acquire(blocking=False)


def test_a_retry_displaces_what_runs_and_what_waits(lab: ApiLab, gate: FairSemaphore) -> None:
    lab.default([llm("{chat_user_prompt_last_one}")])
    app = build_wsgi_application(create_app())
    running = Asker(app, "wait", headers=keyed())
    lab.backend.wait_requests(1)
    waiting = Asker(app, "other", headers=keyed("other"))
    assert until(lambda: gate.waiting == 1)
    retry = Asker(app, "retry", headers=keyed("other"))  # displaces the one in the queue
    assert json.loads(waiting.answer().get_data())["choices"][0]["message"]["content"] == ""
    assert retry.is_alive()
    last = Asker(app, "last", headers=keyed())  # displaces the one at work
    assert json.loads(running.answer().get_data())["choices"][0]["message"]["content"] == ""
    assert [json.loads(asker.answer().get_data())["choices"][0]["message"]["content"] for asker in (retry, last)] == [
        "ok",
        "ok",
    ]
    assert [last_text(request) for request in lab.backend.requests] == ["wait", "retry", "last"]


def test_a_retry_displaces_the_background_nodes(lab: ApiLab) -> None:
    lab.default([llm("answer", returnToUser=True), llm("wait"), llm("never")])
    app = build_wsgi_application(create_app())
    ask(app, headers=keyed())
    *_, background = lab.backend.wait_requests(2)
    assert idempotency_service.get_request_id_for_key("anon:k")
    lab.default([llm("again")])
    ask(app, headers=keyed())
    assert background.wait_ended() and background.client_left
    assert settled()
    assert "never" not in lab.prompts


def test_the_entry_of_a_request_at_work_does_not_age() -> None:
    build_wsgi_application(create_app())
    inner = Engine()
    with open_(AdmissionMiddleware(inner)):
        assert idempotency_service.is_running(inner.requests[0].request_id)
    assert not idempotency_service.is_running(inner.requests[0].request_id)


def test_shutdown_sends_the_queue_home(lab: ApiLab, gate: FairSemaphore, monkeypatch: pytest.MonkeyPatch) -> None:
    # Later tests use the same running requests, which must accept new ones again.
    monkeypatch.setattr(running_requests(), "_stopping", False)
    app = build_wsgi_application(create_app())
    gate.acquire()
    asker = Asker(app)
    assert until(lambda: gate.waiting == 1)
    running_requests().shut_down(2)
    assert asker.answer().status_code == 503 and lab.backend.requests == []


# -- what a page under a foreign name may read -------------------------------------------------------------------------

# What these tell is the same for everyone: names of models and workflows, versions, documentation, whether it works.
SAYS_NOTHING = re.compile(
    r"/|/health|/docs/.*|(/v1)?/models(/.*)?|/api/(tags|version|ps|v1/.*|extra/version|extra/true_max_context_length)"
    r"|/static/.*|/api/extra/perf"
)


def test_every_get_is_known_to_tell_nothing_or_has_the_name_checked() -> None:
    app = create_app()
    found = {rule.rule for rule in app.url_map.iter_rules() if "GET" in (rule.methods or ())}
    assert len(found) > 10
    client = Client(build_wsgi_application(app))
    for rule in sorted(found):
        path = re.sub("<[^>]*>", "x", rule)
        answer = client.get(path, headers={"Host": "evil.example", "User-Agent": "x"})
        expected = SAYS_NOTHING.fullmatch(path) is not None
        assert (answer.status_code != 403) == expected, (path, answer.text)


def test_an_accepted_key_reads_under_any_name(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("a-key-of-a-client\n", encoding="utf-8")
    client = Client(AdmissionMiddleware(Inner(), keys=AccessKeys(str(file), list)))
    for key, status in (("a-key-of-a-client", 200), ("another-key", 401), ("", 401)):
        headers = {"Host": "llm.example.com", **({"Authorization": f"Bearer {key}"} if key else {})}
        assert client.get("/v1/responses/resp_1", headers=headers).status_code == status
