"""Which requests the admission accepts: keys, web pages, and what every answer carries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client
from werkzeug.wrappers import Response

from Middleware.api.api_helpers import MAX_MESSAGES
from Middleware.api.app import build_wsgi_application, create_app
from Middleware.api.edge.access_keys import AccessKeys
from Middleware.api.edge.admission_middleware import BODY_LEFT_KEY, AdmissionMiddleware
from Middleware.api.running.running_requests import running_requests
from Middleware.common import instance_global_variables as instance
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext
from Middleware.services.cancellation_service import cancellation_service
from Middleware.services.idempotency_service import idempotency_service
from Middleware.utilities import encryption_utils
from Tests.api.api_lab import CHAT, ApiLab, settled
from Tests.api.front_dialects import message_at
from Tests.stub_backend import StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import reply_to, user

KEY = "the-key-of-everyone"
ANN = "the-key-of-ann-alone"
PAGE = "https://chat.example.com"
LOCAL_PAGE = "http://localhost:3000"
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ROUTES = [
    ("GET", "/"),
    ("POST", "/health"),
    ("GET", "/health/x"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/ann"),
    ("GET", "/models"),
    ("POST", CHAT),
    ("POST", "/v1/completions"),
    ("POST", "/nowhere"),
    ("GET", "/nowhere"),
    ("PUT", CHAT),
    ("HEAD", "/v1/models"),
    ("OPTIONS", CHAT),
    ("GET", "/api/tags"),
    ("GET", "/api/version"),
    ("GET", "/api/ps"),
    ("POST", "/api/show"),
    ("POST", "/api/chat"),
    ("POST", "/api/generate"),
    ("DELETE", "/api/chat"),
    ("GET", "/api/nowhere"),
]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        lab = ApiLab(tmp_path, monkeypatch, backend)
        lab.users("ann", "bob")
        for name in ("ann", "bob"):
            lab.user_file(name)
            lab.workflow("_DefaultWorkflow", [{"type": "Standard", "endpointName": "Main", "prompt": ""}], folder=name)
        backend.responder = lambda request: reply_to(request, "ok")
        yield lab
        assert settled()


@pytest.fixture
def app(lab: ApiLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The whole application, with a list of keys and one known web page."""
    file = tmp_path / "keys.txt"
    file.write_text(f"{KEY}\n{ANN} user=ann\n", "utf-8")
    monkeypatch.setattr(instance, "ACCESS_KEYS", AccessKeys(str(file), lambda: ["ann", "bob"]))
    monkeypatch.setattr(instance, "ALLOWED_ORIGINS", (PAGE,))
    return build_wsgi_application(create_app())


def ask(app: Any, path: str = CHAT, method: str = "POST", key: str = "", origin: str = "", **options: Any) -> Response:
    headers = {
        **options.pop("headers", {}),
        **({"Authorization": f"Bearer {key}"} if key else {}),
        **({"Origin": origin} if origin else {}),
    }
    with Client(app).open(path, method=method, headers=headers, buffered=True, **options) as response:
        return response


def chat(model: str = "ann", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [user("hi")], "prompt": "hi", "stream": False, **fields}


def message(response: Response) -> str:
    error = json.loads(response.get_data())["error"]
    return str(error if isinstance(error, str) else error["message"])


# -- keys --------------------------------------------------------------------------------------------------------------


@table("key", ["", "wrong"], ids=["none", "wrong"])
@table(("method", "path"), ROUTES)
def test_every_route_wants_a_key(app: Any, method: str, path: str, key: str) -> None:
    response = ask(app, path, method, key, data="{}" if method == "POST" else None)
    assert response.status_code == 401 and response.headers["WWW-Authenticate"] == "Bearer"
    assert UUID.fullmatch(response.headers["X-Request-Id"]) and response.headers["Content-Type"] == "application/json"
    if method == "HEAD":
        assert response.get_data() == b""
        return
    assert "key" in message_at(path, json.loads(response.get_data()), 401)


def test_a_key_that_is_refused_is_not_stretched(lab: ApiLab, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes a processor for many milliseconds, so it is only for keys of the list, and once for each of them."""
    lab.user_file("ann", encryptUsingApiKey=True)
    derived: list[str] = []
    derive = encryption_utils._derive

    def noted(api_key: str, user_name: str | None) -> bytes:
        derived.append(api_key)
        return derive(api_key, user_name)

    monkeypatch.setattr(encryption_utils, "_derive", noted)
    for method, path in ROUTES:
        for key in ("wrong", KEY[:-1], KEY.upper()):
            assert ask(app, path, method, key, json=chat() if method == "POST" else None).status_code == 401
    assert derived == []
    process().one(encryption_utils.DerivedKeys)._kept.clear()
    for _ in range(3):
        assert ask(app, key=KEY, json=chat()).status_code == 200
    assert derived == [KEY]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/health", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/nowhere", 404),
        ("PUT", CHAT, 405),
        ("OPTIONS", CHAT, 200),
        ("GET", "/api/tags", 200),
        ("POST", CHAT, 200),
        ("POST", "/v1/completions", 200),
        ("POST", "/api/chat", 200),
        ("POST", "/api/generate", 200),
    ],
)
def test_a_key_opens_every_route(app: Any, method: str, path: str, status: int) -> None:
    assert ask(app, path, method, KEY, json=chat() if method == "POST" else None).status_code == status


@table("key", ["", "wrong"], ids=["none", "wrong"])
@table(("method", "path"), [("GET", "/health"), ("HEAD", "/health"), ("GET", "/health/")])
def test_a_health_check_needs_no_key_and_leaves_no_trace(
    app: Any, method: str, path: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    response = ask(app, path, method, key)
    assert response.status_code == 200 and response.headers["Content-Type"] == "application/json"
    assert response.get_data() == (b"" if method == "HEAD" else b'{"status":"ok"}')
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]


def test_a_health_check_with_a_body_is_none(app: Any) -> None:
    assert ask(app, "/health", "GET", data="x").status_code == 401


class Unread:
    """A body that must not be asked for."""

    def read(self, size: int = -1) -> bytes:
        raise AssertionError("the body was read")


@pytest.mark.parametrize(
    "framing", [{"CONTENT_LENGTH": "10000000"}, {"HTTP_TRANSFER_ENCODING": "chunked"}], ids=["length", "chunks"]
)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"HTTP_ORIGIN": "null", "HTTP_AUTHORIZATION": f"Bearer {KEY}"},
        {"HTTP_ORIGIN": PAGE, "CONTENT_TYPE": "text/plain"},
    ],
    ids=["no key", "foreign page", "content type"],
)
def test_the_body_of_a_refused_request_is_left_alone(app: Any, fields: dict[str, str], framing: dict[str, str]) -> None:
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": CHAT,
        "wsgi.input": Unread(),
        "wsgi.input_terminated": True,
        **framing,
        **fields,
    }
    answered: list[str] = []
    assert app.refuses(dict(environ))
    b"".join(app(environ, lambda status, headers: answered.append(status)))
    assert answered[0][:3] in ("401", "403", "415") and environ[BODY_LEFT_KEY] is True


def test_an_admitted_request_is_not_refused_by_its_head(app: Any) -> None:
    known = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": "2"}
    assert not app.refuses({**known, "HTTP_AUTHORIZATION": f"Bearer {KEY}", "HTTP_ORIGIN": PAGE})
    assert app.refuses({**known, "HTTP_ORIGIN": PAGE})
    assert not app.refuses(
        {"REQUEST_METHOD": "OPTIONS", "HTTP_ORIGIN": PAGE, "HTTP_ACCESS_CONTROL_REQUEST_METHOD": "POST"}
    )


def test_a_refused_retry_displaces_nobody(app: Any) -> None:
    idempotency_service.register("anon:k", "earlier")
    assert ask(app, headers={"X-Idempotency-Key": "k"}, json=chat()).status_code == 401
    assert idempotency_service.get_request_id_for_key("anon:k") == "earlier"
    idempotency_service.clear()


def test_the_log_names_the_client_and_no_key(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    ask(app, key="some-wrong-secret", environ_overrides={"REMOTE_ADDR": "192.168.1.77"})
    ask(app, key=KEY, json=chat())
    assert "192.168.1.77" in caplog.text and "401" in caplog.text
    assert "some-wrong-secret" not in caplog.text and KEY not in caplog.text


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/api/chat", "/api/generate"])
def test_a_key_of_one_user(app: Any, path: str) -> None:
    assert ask(app, path, key=ANN, json=chat("ann")).status_code == 200
    refused = ask(app, path, key=ANN, json=chat("bob"))
    assert refused.status_code == 403 and "key" in message(refused) and "bob" not in message(refused)
    assert isinstance(json.loads(refused.get_data())["error"], str) == path.startswith("/api/")


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/v1/models", lambda body: [entry["id"] for entry in body["data"]]),
        ("/api/tags", lambda body: [entry["name"] for entry in body["models"]]),
        ("/api/ps", lambda body: [entry["name"] for entry in body["models"]]),
    ],
    ids=["openai", "tags", "ps"],
)
def test_a_key_of_one_user_lists_the_models_of_that_user(app: Any, path: str, names: Any) -> None:
    assert names(json.loads(ask(app, path, "GET", KEY).get_data())) == ["ann", "bob"]
    assert names(json.loads(ask(app, path, "GET", ANN).get_data())) == ["ann"]


def test_other_users_models_do_not_exist_for_a_key_of_one_user(app: Any) -> None:
    for key, model, status in ((ANN, "ann", 200), (ANN, "bob", 404), (KEY, "bob", 200)):
        assert ask(app, f"/v1/models/{model}", "GET", key).status_code == status
        assert ask(app, "/api/show", "POST", key, json={"model": model}).status_code == status


@pytest.mark.parametrize("owner", ["bob", None], ids=["bob", "not known yet"])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_key_of_one_user_stops_no_request_of_another(app: Any, path: str, owner: str | None) -> None:
    request = RequestContext(user=owner)
    running_requests().arrive(request)
    try:
        refused = ask(app, path, "DELETE", ANN, json={"request_id": request.request_id})
        assert refused.status_code == 403 and "key" in message(refused) and "bob" not in message(refused)
        assert not request.cancel_scope.cancelled
        assert ask(app, path, "DELETE", KEY, json={"request_id": request.request_id}).status_code == 200
        assert request.cancel_scope.cancelled
    finally:
        running_requests().end(request)


def test_a_key_of_one_user_stops_requests_of_that_user_and_such_as_are_over(app: Any) -> None:
    request = RequestContext(user="ann")
    running_requests().arrive(request)
    try:
        for number in (request.request_id, "over"):
            assert ask(app, "/api/chat", "DELETE", ANN, json={"request_id": number}).status_code == 200
        assert request.cancel_scope.cancelled
    finally:
        running_requests().end(request)
        cancellation_service.acknowledge_cancellation("over")


def test_the_key_of_the_only_user_stops_every_request(app: Any, lab: ApiLab) -> None:
    lab.users("ann")
    request = RequestContext()
    running_requests().arrive(request)
    try:
        assert ask(app, "/api/chat", "DELETE", ANN, json={"request_id": request.request_id}).status_code == 200
        assert request.cancel_scope.cancelled
    finally:
        running_requests().end(request)


def test_without_a_list_nobody_is_asked(lab: ApiLab) -> None:
    app = build_wsgi_application(create_app())
    assert ask(app, json=chat()).status_code == 200
    assert ask(app, "/health", "GET", "anything").status_code == 200


# -- pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, "/api/chat", "/nowhere"])
@pytest.mark.parametrize("origin", ["null", "http://evil.example"])
def test_a_foreign_page_is_refused_whatever_it_knows(app: Any, origin: str, path: str) -> None:
    for method in ("POST", "GET", "DELETE", "OPTIONS"):
        response = ask(app, path, method, KEY, origin, json=chat())
        assert response.status_code == 403 and "Access-Control-Allow-Origin" not in response.headers
        assert isinstance(json.loads(response.get_data())["error"], str) == path.startswith("/api/")


def test_a_preflight_needs_no_key(app: Any) -> None:
    headers = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    response = ask(app, method="OPTIONS", origin=PAGE, headers=headers)
    assert response.status_code == 200 and response.get_data() == b""
    assert response.headers["Access-Control-Allow-Origin"] == PAGE
    assert response.headers["Access-Control-Allow-Headers"] == "authorization"
    assert UUID.fullmatch(response.headers["X-Request-Id"])
    assert ask(app, method="OPTIONS", headers=headers).status_code == 401
    assert ask(app, method="OPTIONS", origin=PAGE).status_code == 401


@pytest.mark.parametrize("origin", [PAGE, LOCAL_PAGE])
@pytest.mark.parametrize(("key", "stream", "status"), [("", False, 401), (KEY, False, 200), (KEY, True, 200)])
def test_a_known_page_may_read_answers_and_refusals(app: Any, origin: str, key: str, stream: bool, status: int) -> None:
    response = ask(app, key=key, origin=origin, json=chat(stream=stream), base_url="http://127.0.0.1:5000")
    assert response.status_code == status
    assert response.headers.getlist("Access-Control-Allow-Origin") == [origin]
    assert response.headers["Vary"] == "Origin" and "X-Request-Id" in response.headers["Access-Control-Expose-Headers"]


@pytest.mark.parametrize("path", [CHAT, "/api/generate"])
def test_pages_must_send_json_and_programs_need_not(app: Any, path: str) -> None:
    data = json.dumps(chat())
    refused = ask(app, path, key=KEY, origin=LOCAL_PAGE, data=data, content_type="text/plain")
    assert refused.status_code == 415 and "application/json" in message(refused)
    assert isinstance(json.loads(refused.get_data())["error"], str) == path.startswith("/api/")
    assert ask(app, path, key=KEY, data=data, content_type="text/plain").status_code == 200
    assert ask(app, path, key=KEY, data="{oops", content_type="text/plain").status_code == 400


# -- what every answer carries -----------------------------------------------------------------------------------------

SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


@table("key", ["", KEY], ids=["refused", "let in"])
@table(("method", "path"), ROUTES)
def test_headers_of_every_answer(app: Any, method: str, path: str, key: str) -> None:
    response = ask(app, path, method, key, json=chat() if method == "POST" else None)
    for name, value in SAFETY.items():
        assert response.headers.getlist(name) == [value]
    assert len(response.headers.getlist("X-Request-Id")) == 1
    assert "Access-Control-Allow-Origin" not in response.headers and "Vary" not in response.headers
    assert response.headers.getlist("Cache-Control") == (["no-store"] if method == "POST" else [])


def test_a_stream_keeps_its_own_headers(app: Any) -> None:
    response = ask(app, key=KEY, json=chat(stream=True))
    assert response.headers.getlist("Cache-Control") == ["no-cache"]
    assert response.headers["X-Accel-Buffering"] == "no"
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"


def test_two_requests_have_two_ids() -> None:
    app = AdmissionMiddleware(lambda environ, start: (start("200 OK", []), [b""])[1])
    assert ask(app, method="GET").headers["X-Request-Id"] != ask(app, method="GET").headers["X-Request-Id"]


# -- counts ------------------------------------------------------------------------------------------------------------


# A text in each would be more than the limit on all values of a body allows.
EMPTY = {"role": "user", "content": None}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [EMPTY] * (MAX_MESSAGES + 1)}),
        ("/api/chat", {"messages": [EMPTY] * (MAX_MESSAGES + 1)}),
        ("/v1/completions", {"prompt": "[Beg_User]" * (MAX_MESSAGES + 1)}),
        ("/api/generate", {"prompt": "x", "images": ["aQ=="] * 1001}),
    ],
    ids=["chat", "ollama chat", "text", "images"],
)
def test_more_than_any_conversation_has(app: Any, path: str, body: dict[str, Any]) -> None:
    response = ask(app, path, key=KEY, json={"model": "ann", **body})
    assert response.status_code == 413 and "the most that are accepted" in message(response)
